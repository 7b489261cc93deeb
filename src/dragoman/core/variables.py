"""References to environment variables in configured values: `${NAME}`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dragoman.core.errors import ConfigError

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def expand_variables(value: str, variables: Mapping[str, str], owner: str) -> str:
    """Replaces each reference in `value`; `owner` is what the value belongs to."""
    return _REFERENCE.sub(lambda match: find_variable(match[1], variables, owner), value)


def list_references(value: str) -> list[str]:
    """Returns the names that `value` refers to."""
    return _REFERENCE.findall(value)


def find_variable(name: str, variables: Mapping[str, str], owner: str) -> str:
    """Raises `ConfigError` for an unset variable: it must not become an empty secret."""
    if name not in variables:
        raise ConfigError(
            f"{owner} needs the environment variable {name}, which is not set; set it for the hub "
            "or put it into the env file in its home"
        )
    return variables[name]
