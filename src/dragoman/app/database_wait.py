"""Lets a hub wait for a database that is not there yet, with the reason on `/readyz`."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from dragoman import __version__
from dragoman import home as home_files
from dragoman.config import Config, load_variables
from dragoman.core.errors import HubError
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.secret_references import SecretResolver
from dragoman.stores.database import open_place, render_reason
from dragoman.web.http.listener import HttpListener
from dragoman.web.http.sockets import tcp_socket, unix_socket
from dragoman.web.waiting import WaitingApp

RETRY_SECONDS = 1.0
LAST_SECONDS = 0.3


def is_outage(config: Config, error: HubError) -> bool:
    """Whether the hub cannot start because its database is away, and nothing has to be changed."""
    if config.store.url is None:
        return False
    from dragoman.stores.postgres_connections import is_temporary

    return is_temporary(error)


async def wait_for_database(
    home: Path, config: Config, error: HubError, ended: asyncio.Event
) -> None:
    """Waits until the database of `[store] url` answers, or `ended` is set. Returns also if waiting
    does not help: the next start says why."""
    async with _serve(home, config, WaitingApp(lambda: _render(error))):
        while not ended.is_set():
            STORAGE_OUTAGE.note(f"the hub waits for its database: {error}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_SECONDS):
                    await ended.wait()
            try:
                # Not on the event loop, which answers the probes meanwhile.
                await asyncio.to_thread(_connect, home, config)
                return
            except HubError as failure:
                if not is_outage(config, failure):
                    return
                error = failure


def _render(error: HubError) -> str:
    return render_reason(str(error).rpartition(" cannot be used: ")[2])


def _connect(home: Path, config: Config) -> None:
    secrets = SecretResolver(load_variables(home), home)
    place = open_place(home, config.store.url, secrets, create=False)
    if not isinstance(place, Path):
        place.close()


@contextlib.asynccontextmanager
async def _serve(home: Path, config: Config, app: WaitingApp) -> AsyncIterator[None]:
    """Listens where the hub will, and lets commands find this process."""
    settings, (http_path, mcp_path) = config.server, home_files.find_socket_paths(str(home))
    sock = tcp_socket(settings.host, settings.port, shared=settings.workers > 1)
    port = sock.getsockname()[1]
    listeners = [HttpListener(app, sock), HttpListener(app, unix_socket(http_path))]
    try:
        for listener in listeners:
            await listener.start()
        home_files.write_daemon(
            str(home),
            home_files.DaemonRecord(
                pid=os.getpid(),
                url=f"http://{settings.host}:{port}",
                socket=http_path,
                mcp_socket=mcp_path,
                version=__version__,
                started_at=home_files.render_now(),
                mode="daemon",
                stop_secs=home_files.STOP_SECONDS,
            ),
        )
        yield
    finally:
        home_files.remove_daemon(str(home))
        await asyncio.gather(*(listener.drain(LAST_SECONDS) for listener in listeners))
        for listener in listeners:
            listener.abort()
        with contextlib.suppress(OSError):
            os.unlink(http_path)
