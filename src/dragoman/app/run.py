"""Runs a hub: in the foreground until a signal, or inside `dragoman mcp`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from dragoman import home as home_files
from dragoman.app import process
from dragoman.app.app import App
from dragoman.app.build import build_app
from dragoman.app.build_secrets import resolve_api_key
from dragoman.app.config_watch import refuse_exposed
from dragoman.app.database_wait import is_outage, wait_for_database
from dragoman.app.hub_parts import HubParts
from dragoman.app.secret_variables import list_skill_variables, withhold_secrets
from dragoman.config import Config, load_variables, load_with_source
from dragoman.config_layers import Override
from dragoman.core.errors import ConfigError, StorageFailed
from dragoman.core.logs import LogFile, start_logging
from dragoman.processes.descendants import DESCENDANTS
from dragoman.stores.store_inventory import describe_damage

log = logging.getLogger(__name__)

Ready = Callable[[HubParts], None]
"""Called once the hub serves."""


def run(
    home: Path,
    ready: Ready,
    given: Sequence[Override] = (),
    log_file: str | None = None,
    stop: threading.Event | None = None,
    announce_workers: Callable[[str, int], None] | None = None,
) -> None:
    """Locks the home and runs a hub until a signal, or inside a `dragoman mcp` until `stop` is set.
    Logs to `log_file`, or else to stderr. With `announce_workers` it runs as many processes as
    `[server] workers` says, and calls that with the address once they serve."""
    home_files.prepare(str(home))
    with home_files.lock_home(str(home)):
        config, source = load_with_source(home / "config.toml", given)
        refuse_exposed(home, config)
        _start_logging(config, log_file)
        for warning in source.warnings:
            log.warning("%s", warning)
        process.protect()
        withhold_secrets(config, list_skill_variables(home))
        DESCENDANTS.adopt_orphans()
        process.raise_file_limit()
        if announce_workers is not None and config.server.workers > 1:
            from dragoman.app.workers import supervise

            supervise(home, config, given, log_file, announce_workers)
            return
        mode = "daemon" if stop is None else "mcp"
        api_key = resolve_api_key(home, config, load_variables(home))
        build = partial(build_app, home, config, mode, given, api_key)
        with asyncio.Runner(loop_factory=process.find_loop_factory()) as runner:
            runner.run(_serve(home, config, build, ready, stop))


def host(home: str, stop: threading.Event) -> None:
    """Runs the hub inside a `dragoman mcp` until `stop` is set."""
    start_logging(logging.WARNING)
    run(Path(home), lambda _: None, stop=stop)


def _start_logging(config: Config, path: str | None) -> None:
    settings = config.log
    file = None
    if path is not None:
        file = LogFile(path, int(settings.megabytes * 1024 * 1024), settings.files)
    start_logging(logging.getLevelNamesMapping()[settings.level.upper()], settings.format, file)


async def _serve(
    home: Path,
    config: Config,
    build: Callable[[], App],
    ready: Ready,
    stop: threading.Event | None,
) -> None:
    ended = asyncio.Event()
    _arrange_end(ended, stop)
    while not ended.is_set():
        try:
            with _explain_damage(home):
                app = await _start(build)
        except ConfigError as error:
            # A person who waits for a command, or for an IDE, learns at once what is wrong.
            if stop is not None or not is_outage(config, error):
                raise
            await wait_for_database(home, config, error, ended)
            gc.collect()  # the parts of this start, before the next one exempts what it finds
            continue
        try:
            with _explain_damage(home):
                ready(app.parts)
            await ended.wait()
        finally:
            await app.stop()


async def _start(build: Callable[[], App]) -> App:
    app = build()
    try:
        await app.start()
    except BaseException:
        await app.stop()
        raise
    process.freeze_garbage()
    process.keep_memory()
    return app


def _arrange_end(ended: asyncio.Event, stop: threading.Event | None) -> None:
    """Sets `ended` when another thread sets `stop`; without one, when a signal arrives."""
    loop = asyncio.get_running_loop()
    if stop is None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                loop.add_signal_handler(number, ended.set)
        return

    def wait() -> None:
        stop.wait()
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait, daemon=True).start()


@contextlib.contextmanager
def _explain_damage(home: Path) -> Iterator[None]:
    """Says what to do about a store that can be opened but not read."""
    try:
        yield
    except StorageFailed as error:
        raise ConfigError(describe_damage(home) or str(error)) from error
