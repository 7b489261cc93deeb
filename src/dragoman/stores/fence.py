"""The condition of every write transaction of a hub in a cluster: other hubs count it as alive.

A transaction begins by locking the hub's own row in the table of hubs, and fails if another hub has
become its heir. The lock (`FOR KEY SHARE`) does not conflict with the renewals of the row, nor with
other transactions of the same hub; it does with the declaration of death (`FOR UPDATE`), which
waits for them. So what a hub has written is complete when its heir takes it over, and a hub that
was paused or cut off writes nothing after that.

Sessions of a server are read-only by default, and the only transactions that may write are those
that are begun here: a statement that writes outside of them is refused by PostgreSQL.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from dragoman.core.errors import LeaseExpired

if TYPE_CHECKING:
    import psycopg

READ_ONLY = "SET default_transaction_read_only = on"
IDLE_MILLISECONDS = 5_000
"""After so long without a statement the server ends a transaction: that of a hub which was paused
in the middle must not keep its heir waiting."""
IDLE = f"SET idle_in_transaction_session_timeout = {IDLE_MILLISECONDS}"
BEGIN = "BEGIN READ WRITE"
_REFUSED = "this hub counts as dead"
LOST = "the other hubs have declared this one dead; nothing was stored: send it again"
_CHECK = (
    f"SELECT CASE count(*) WHEN 1 THEN 1 ELSE ('{_REFUSED}: ' || count(*))::integer END FROM "
    "(SELECT 1 FROM dragoman.hubs WHERE id = '{}' AND heir IS NULL "
    "AND state NOT IN ('stopped', 'dead') FOR KEY SHARE) AS member"
)
"""Fails, and with it the transaction, so that it can be sent together with the statements that
follow."""


class Fence:
    """Of one hub. That of a single hub has no mark, and checks nothing."""

    def __init__(self) -> None:
        self.mark = ""
        """The id of this hub in the cluster; empty until it has joined: no other hub knows it."""

    def build_check(self) -> str:
        """Builds the statement that comes first in a write transaction; empty if there is none."""
        return _CHECK.format(self.mark) if self.mark else ""

    def build_begin(self) -> str:
        """Builds the script that begins a write transaction."""
        check = self.build_check()
        return f"{BEGIN}; {check}" if check else BEGIN

    @asynccontextmanager
    async def transact(self, connection: psycopg.AsyncConnection[Any]) -> AsyncIterator[None]:
        """A write transaction of a connection that is used for nothing else meanwhile. A connection
        that cannot be rolled back is closed. Raises `LeaseExpired`."""
        try:
            await connection.execute(self.build_begin().encode())
            yield
            await connection.execute(b"COMMIT")
        except Exception as error:
            await _roll_back(connection)
            if is_refusal(error):
                raise LeaseExpired(LOST) from error
            raise
        except BaseException:  # cancelled: a statement may be running
            connection.pgconn.finish()
            raise


async def _roll_back(connection: psycopg.AsyncConnection[Any]) -> None:
    import psycopg

    status = psycopg.pq.TransactionStatus
    if connection.pgconn.transaction_status in (status.INTRANS, status.INERROR):
        with suppress(psycopg.Error):
            await connection.execute(b"ROLLBACK")
    if connection.pgconn.transaction_status != status.IDLE:
        connection.pgconn.finish()


def is_refusal(error: BaseException) -> bool:
    """Whether an error of the driver says that the hub counts as dead."""
    return getattr(error, "sqlstate", "") == "22P02" and _REFUSED in str(error)
