"""The environment variables that configured values refer to."""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.core.errors import ConfigError


def find_variable(name: str, variables: Mapping[str, str], owner: str) -> str:
    """Raises `ConfigError` for an unset variable: it must not become an empty secret."""
    if name not in variables:
        raise ConfigError(
            f"{owner} needs the environment variable {name}, which is not set; set it for the hub "
            "or put it into the env file in its home"
        )
    return variables[name]
