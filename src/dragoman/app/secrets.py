"""The secrets of a home: variables that its configuration refers to, and exposed files."""

from __future__ import annotations

import os
from pathlib import Path

from dragoman.config import Config, read_env
from dragoman.core.errors import ConfigError
from dragoman.core.file_modes import find_exposures, find_exposures_in


def load_variables(home: Path) -> dict[str, str]:
    """Returns the environment, and from the home's `env` file what is not in it."""
    try:
        data = (home / "env").read_bytes()
    except FileNotFoundError:
        data = None
    except OSError as error:
        raise ConfigError(f"{home / 'env'} cannot be read: {error.strerror}") from None
    return {**read_env(data), **os.environ}


def refuse_exposed(home: Path, config: Config) -> None:
    """Raises `ConfigError` if other users can write the hub's files or read its secrets."""
    exposures = [
        *find_exposures(home, config_is_secret=config.api_key is not None),
        *find_exposures_in(home / config.policy.folder),
    ]
    exposed = [str(one) for one in exposures if one.reachable]
    if exposed:
        raise ConfigError("; ".join(exposed[:3]))
