"""A server that one hub of a cluster runs, `placement = "one"`: calls wait while it moves from one
hub to another. Knows nothing of hubs: `UpstreamManager` replaces it by its successor.
"""

from __future__ import annotations

import asyncio
from time import monotonic

from dragoman.core.background import resolve
from dragoman.core.call import Call, Result
from dragoman.core.errors import Unreachable
from dragoman.mcp.client.upstream import Upstream

MOVE_SECONDS = 15.0
"""How long a call waits for a server that cannot be reached: a hub that stops finishes its calls
before another one runs the server."""
TRY_SECONDS = 0.2


class PlacedUpstream(Upstream):
    _successor: Upstream | None = None
    _moved: asyncio.Future[None] | None = None

    def begin_move(self) -> None:
        """What it offers stays listed when it stops."""
        self.withdraws = False

    def end_move(self, successor: Upstream) -> None:
        """Has its calls made by another one, at another place."""
        self._successor = successor
        resolve(self._moved, None)

    async def run(self, call: Call) -> Result:
        until = monotonic() + MOVE_SECONDS
        while True:
            if self._successor is not None:
                return await self._successor.run(call)
            try:
                return await super().run(call)
            except Unreachable as error:
                if error.sent or monotonic() > until:
                    raise
            await self._wait_for_move()

    async def try_now(self) -> None:
        until = monotonic() + MOVE_SECONDS
        while self.connection.restarts < 0:
            if self._successor is not None:
                return await self._successor.try_now()
            try:
                await self.connection.wait_session()
            except Unreachable:
                if monotonic() > until:
                    raise
                await self._wait_for_move()

    async def _wait_for_move(self) -> None:
        if self._moved is None or self._moved.done():
            self._moved = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._moved], timeout=TRY_SECONDS)
