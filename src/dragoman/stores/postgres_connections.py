"""Connections to PostgreSQL for work beside the event loop's own: copying, queries, runs.

Every wait has a deadline on this side: a server that is stopped keeps its connections open, so that
its own timeouts do not help. A connection whose deadline has passed is closed. Needs the extra
`postgres`.
"""

from __future__ import annotations

import asyncio
import logging
from functools import cache
from typing import TYPE_CHECKING, Any

from dragoman.core.errors import ConfigError, LeaseExpired, StorageFailed
from dragoman.core.urls import render_origin
from dragoman.stores.database import DatabaseAway, FencedError

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]
    AsyncConnection = psycopg.AsyncConnection[tuple[Any, ...]]

# The driver warns of each error that it drops behind another one, which it raises.
logging.getLogger("psycopg").setLevel(logging.ERROR)

NAMESPACE = "dragoman"
CONNECT_SECONDS = 1.0
WAIT_SECONDS = 2.0
"""How long a statement may take that a request waits for."""
LONG_SECONDS = 60.0
"""For the statements of commands, such as the creation of an index."""
IDLE = 0
"""libpq's `PQTRANS_IDLE`; a closed connection has another status."""
PIPELINE_OFF = 0
"""libpq's `PQ_PIPELINE_OFF`."""


def render_failure(error: BaseException) -> str:
    """Renders the first line of an error, or what it means if it has none."""
    text = " ".join(str(error).strip().partition("\n")[0].split())[:300]
    late = "it did not answer in time" if isinstance(error, TimeoutError) else ""
    return text or late or type(error).__name__


def describe_failure(url: str, error: BaseException) -> str:
    return f'the database at "{render_origin(url)}" cannot be used: {render_failure(error)}'


TEMPORARY = ("08", "25", "40", "53", "55", "57", "58")
"""The classes of SQLSTATE that may pass: no connection, read-only, no resources, locked, shut down,
a failed disk."""
LASTING = (
    "password", "pg_hba.conf", "does not exist", "does not support SSL", "certificate",
    "not permitted",
)  # fmt: skip
"""What servers say of settings that must be changed. A server that speaks another language is
waited for."""


def is_temporary(error: BaseException | None) -> bool:
    """Whether an error, or what has caused it, is that a database is not there for now, or that the
    other hubs have declared this one dead while it started."""
    psycopg = load_driver()
    is_away = False
    while error is not None:
        if isinstance(error, FencedError | LeaseExpired):
            return True
        is_away = is_away or isinstance(error, DatabaseAway)
        if isinstance(error, psycopg.Error) and error.sqlstate is not None:
            return str(error.sqlstate).startswith(TEMPORARY)
        if isinstance(error, psycopg.OperationalError):  # a connection that was not made has none
            return not any(text in str(error) for text in LASTING)
        if isinstance(error, TimeoutError):
            return True
        error = error.__cause__ or error.__context__
    return is_away


@cache
def find_errors() -> tuple[type[Exception], ...]:
    """The errors of a database that is away, slow or refuses a statement."""
    psycopg = load_driver()
    return (psycopg.Error, OSError, TimeoutError)


def connect(url: str, seconds: float = WAIT_SECONDS) -> Connection:
    """Connects; each statement may take `seconds`. Raises `StorageFailed`."""
    try:
        found = _build_classes()[0].connect(url, autocommit=True, **_build_options(seconds))
    except find_errors() as error:
        raise StorageFailed(describe_failure(url, error)) from error
    found.seconds = seconds
    return found  # type: ignore[no-any-return]


async def connect_async(url: str, seconds: float = WAIT_SECONDS, **more: Any) -> AsyncConnection:
    """Connects; each statement may take `seconds`. Raises one of `find_errors()`."""
    options = {**_build_options(seconds), **more}
    async with asyncio.timeout(CONNECT_SECONDS * 2):
        found = await _build_classes()[1].connect(url, autocommit=True, **options)
    found.seconds = seconds
    return found  # type: ignore[no-any-return]


def is_idle(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether the server reports no open transaction, and the driver no pipeline that it could not
    leave after an error. Only then is a connection used again."""
    found = connection.pgconn
    return found.transaction_status == IDLE and found.pipeline_status == PIPELINE_OFF


def load_driver() -> Any:
    try:
        import psycopg
    except ImportError:
        raise ConfigError(
            "[store] url needs another package: pip install 'dragoman-hub[postgres]'"
        ) from None
    return psycopg


def _build_options(seconds: float) -> dict[str, Any]:
    return {
        "connect_timeout": max(1, round(CONNECT_SECONDS)),
        "application_name": "dragoman",
        "client_encoding": "UTF8",
        "options": f"-c search_path={NAMESPACE} -c statement_timeout={round(seconds * 1000)}",
        "prepare_threshold": None,
    }


@cache
def _build_classes() -> tuple[Any, Any]:
    """The driver is imported only by hubs that use it."""
    psycopg = load_driver()
    late = psycopg.errors.OperationalError

    class DeadlineConnection(psycopg.Connection):  # type: ignore[name-defined,misc]
        seconds = CONNECT_SECONDS

        def wait(self, gen: Any, *args: Any, **more: Any) -> Any:
            try:
                return super().wait(gen, timeout=self.seconds)
            except psycopg.errors._WaitTimeout:
                self.pgconn.finish()
                raise late(f"no answer within {self.seconds:g} s") from None

    class AsyncDeadlineConnection(psycopg.AsyncConnection):  # type: ignore[name-defined,misc]
        seconds = CONNECT_SECONDS

        async def wait(self, gen: Any, *args: Any, **more: Any) -> Any:
            # Not by the method of the parent, which waits for the server when it is cancelled.
            from psycopg import waiting

            try:
                return await waiting.wait_async(gen, self.pgconn.socket, timeout=self.seconds)
            except psycopg.errors._WaitTimeout:
                self.pgconn.finish()
                raise late(f"no answer within {self.seconds:g} s") from None
            except asyncio.CancelledError:
                self.pgconn.finish()
                raise

    return DeadlineConnection, AsyncDeadlineConnection
