"""Where the stores of a home are: for commands that need no hub, and for parts that follow them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.core.environment import read_environment
from dragoman.core.secret_references import SecretResolver
from dragoman.core.shared_settings import resolve_cluster_key
from dragoman.stores.database import COMMAND_LIMITS, StorePlace, open_place

if TYPE_CHECKING:
    from dragoman.config import Config
    from dragoman.stores.postgres import PostgresServer

VARIABLE = "DRAGOMAN_STORE__URL"


@contextmanager
def open_offline_place(home: Path, config: Config | None = None) -> Iterator[StorePlace]:
    """Gives where the stores of the home are. Raises `ConfigError`."""
    url = config.store.url if config is not None else find_url(home)
    if url is None:
        yield home
        return
    from dragoman.config import load_variables

    secrets = SecretResolver(load_variables(home), home)
    place = open_place(home, url, secrets, COMMAND_LIMITS)
    try:
        if not isinstance(place, Path):
            _attach_seals(place, home, config, secrets)
        yield place
    finally:
        if not isinstance(place, Path):
            place.close()


def _attach_seals(
    place: PostgresServer, home: Path, config: Config | None, secrets: SecretResolver
) -> None:
    """Has a command seal the rows that it writes, as the hubs do."""
    from dragoman.config import load
    from dragoman.home import WORKERS_SECRET
    from dragoman.stores.seal_database import attach_seals

    file = home / WORKERS_SECRET
    settings = (config or load(home / "config.toml")).cluster
    default = f"file:{file}" if file.exists() else None
    attach_seals(place, resolve_cluster_key(settings, secrets, default), home)


def find_url(home: Path) -> str | None:
    """Finds `[store] url`. Most homes have none, and no need to load the whole configuration."""
    try:
        text = (home / "config.toml").read_bytes()
    except OSError:
        text = b""
    if b"store" not in text and b"\\" not in text and VARIABLE not in read_environment():
        return None
    from dragoman.config import load

    return load(home / "config.toml").store.url


def follow_store(server: PostgresServer, store: str, note: Callable[[], None]) -> None:
    """Has `note` called on the event loop, when other hubs have changed the store."""
    loop = asyncio.get_running_loop()

    def notify() -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(note)

    server.follow(store, notify)


def has_store(place: StorePlace, file: str) -> bool:
    """Whether a store may have rows: reading must not create its file."""
    return not isinstance(place, Path) or (place / file).exists()
