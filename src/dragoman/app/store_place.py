"""Where the stores of a home are: for commands that need no hub, and for parts that follow them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.config import Config, load, load_variables
from dragoman.core.secret_references import SecretResolver
from dragoman.stores.database import COMMAND_LIMITS, StorePlace, open_place

if TYPE_CHECKING:
    from dragoman.stores.postgres import PostgresServer


@contextmanager
def open_offline_place(home: Path, config: Config | None = None) -> Iterator[StorePlace]:
    """Gives where the stores of the home are. Raises `ConfigError`."""
    url = (config or load(home / "config.toml")).store.url
    secrets = SecretResolver(load_variables(home) if url is not None else {}, home)
    place = open_place(home, url, secrets, COMMAND_LIMITS)
    try:
        yield place
    finally:
        if not isinstance(place, Path):
            place.close()


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
