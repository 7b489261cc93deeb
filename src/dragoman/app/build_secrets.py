"""Builds what reads secrets by reference: the environment, files, the keyring, commands."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.config import Config, check_api_key
from dragoman.core.cached_secrets import CachedSecrets
from dragoman.core.secret_references import SecretResolver, is_reference
from dragoman.core.secret_rules import Author, ReferenceRules, SecretUse

if TYPE_CHECKING:
    from collections.abc import Callable

API_KEY_USE = SecretUse(Author.OWNER, "api_key")


def build_secrets(
    home: Path, variables: Mapping[str, str], find_config: Callable[[], Config]
) -> SecretResolver:
    """`find_config` returns the configuration in force."""

    async def read_keyring(name: str, owner: str) -> str:
        from dragoman.stores.system_keyring import read_keyring

        return await read_keyring(name, owner)

    async def read_command(command: str, owner: str) -> str:
        from dragoman.processes.secret_command import read_command

        return await read_command(command, owner, variables, find_config().secrets.command_secs)

    def find_seconds() -> float:
        return find_config().secrets.cache_secs

    config = find_config()
    return SecretResolver(
        variables,
        home,
        {
            "keyring": CachedSecrets(read_keyring, find_seconds),
            "exec": CachedSecrets(read_command, find_seconds),
        },
        ReferenceRules(config.bridge.credential_env, home, config.secrets.allow),
    )


def resolve_api_key(home: Path, config: Config, variables: Mapping[str, str]) -> str | None:
    """The key of the configuration, before there is an event loop. Raises `ConfigError`."""
    key = config.api_key
    if key is None or not is_reference(key):
        return key
    secrets = build_secrets(home, variables, lambda: config)
    found = asyncio.run(secrets.resolve(key, API_KEY_USE))
    check_api_key(found)
    return found


def resolve_local_api_key(config: Config, secrets: SecretResolver) -> str | None:
    """The same inside of a running loop, for references that need no other program."""
    key = config.api_key
    if key is None or not is_reference(key):
        return key
    found = secrets.resolve_local(key, API_KEY_USE)
    check_api_key(found)
    return found
