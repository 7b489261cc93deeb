"""One connection to Redis or Valkey that many callers share: commands are pipelined, and none waits
longer than a bound.

While the server is away, slow, or answers with errors or unexpected replies, every command fails at
once, and a background task tries to connect. Knows nothing of what the commands are for.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from dragoman.core.background import Background, start_task
from dragoman.core.backoff import Backoff
from dragoman.core.errors import ConfigError
from dragoman.core.structs import Struct
from dragoman.core.urls import render_origin

if TYPE_CHECKING:
    from redis.asyncio import ConnectionPool
    from redis.asyncio.connection import AbstractConnection

log = logging.getLogger(__name__)

Argument = str | bytes | int | float
UNEXPECTED = "an unexpected reply"


class RedisUnavailable(Exception):
    """The server did not answer in time, or answered with an error or an unexpected reply."""


class LinkLimits(Struct, frozen=True):
    reply_seconds: float = 0.05
    """How long a command may take; a server that takes longer counts as away."""
    grace_seconds: float = 0.005
    """How much longer replies are read: the event loop may have been late, and not the server."""
    connect_seconds: float = 1.0
    first_retry: float = 0.1
    longest_retry: float = 1.0
    beat_seconds: float = 1.0
    """How often the connection is tested."""
    steady_seconds: float = 2.0
    """How long a server that was away must answer before it is used again: twice as long each time
    it is away again soon, up to `longest_steady`."""
    longest_steady: float = 30.0
    calm_seconds: float = 60.0
    """After so long a time in use, the next absence counts as the first."""
    pending: int = 4_096
    """How many commands may wait for their replies."""


class RedisScript:
    """A Lua script, called by its digest."""

    __slots__ = ("digest", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def build_pool(url: str, connect_seconds: float) -> ConnectionPool:
    """Raises `ConfigError` if the driver is missing or the address is invalid."""
    try:
        from redis.asyncio import ConnectionPool
    except ImportError:
        raise ConfigError(
            '[redis] url needs the extra "redis"; run: pip install "dragoman-hub[redis]"'
        ) from None
    try:
        # Its own retries and timeouts would hide that the server is away.
        return ConnectionPool.from_url(
            url,
            protocol=2,
            socket_timeout=None,
            socket_connect_timeout=connect_seconds,
            driver_info=None,
        )
    except ValueError as error:
        raise ConfigError(f"[redis] url is invalid: {_hide(url, str(error))}") from None


def _hide(url: str, text: str) -> str:
    return text.replace(url, render_origin(url))


class RedisLink:
    def __init__(
        self,
        url: str,
        beat: Callable[[], Awaitable[object]],
        limits: LinkLimits | None = None,
    ) -> None:
        """`beat` sends a command that writes, so that a server which refuses to write is found. It
        is awaited on every new connection, before others use it, and then now and then. Raises
        `ConfigError`."""
        self.limits = LinkLimits() if limits is None else limits
        self.place = render_origin(url)
        self.is_up = False
        """Whether commands can be sent."""
        self._pool = build_pool(url, self.limits.connect_seconds)
        self._beat = beat
        self._queue: list[tuple[Argument, ...]] = []
        self._pending: deque[tuple[float, asyncio.Future[Any]]] = deque()
        """When each reply is due, in the order of the commands."""
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._lost: asyncio.Future[str] | None = None
        """Why the connection was closed; None while there is none."""
        self._was_up: bool | None = None
        """Whether it was in use before; None before the first attempt."""
        self._absences = _Absences(self.place, self.limits.calm_seconds)
        self._steady = Backoff(self.limits.steady_seconds, self.limits.longest_steady)
        self._background = Background("the connection to Redis")

    # --- commands --------------------------------------------------------------------------------

    async def evaluate(
        self,
        script: RedisScript,
        keys: Sequence[Argument],
        *arguments: Argument,
        bounds: Sequence[float],
    ) -> list[int]:
        """Runs a script, in one round trip unless the server has lost it. A script returns as many
        whole numbers as there are `bounds`, each from 0 to its bound: a server with another reply
        counts as away. Raises `RedisUnavailable`."""
        from redis.exceptions import NoScriptError

        rest = (len(keys), *keys, *arguments)
        try:
            try:
                reply = await self.send(("EVALSHA", script.digest, *rest))
            except NoScriptError:
                reply = await self.send(("EVAL", script.text, *rest))
            return check_numbers(reply, bounds)
        except (NoScriptError, ValueError):
            self._lose(UNEXPECTED)
            raise RedisUnavailable(UNEXPECTED) from None

    def send(self, command: tuple[Argument, ...]) -> asyncio.Future[Any]:
        """Sends a command; the reply is awaited. Raises `RedisUnavailable`."""
        if self._lost is None or len(self._pending) >= self.limits.pending:
            raise RedisUnavailable("there is no connection to Redis")
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Any] = loop.create_future()
        due = loop.time() + self.limits.reply_seconds
        self._pending.append((due, reply))
        self._queue.append(command)
        self._wake.set()
        if self._timer is None:
            self._timer = loop.call_at(due, self._check_due)
        return reply

    def _check_due(self) -> None:
        self._timer = None
        if not self._pending:
            return
        due, loop = self._pending[0][0], asyncio.get_running_loop()
        if due > loop.time():
            self._timer = loop.call_at(due, self._check_due)
        else:
            self._timer = loop.call_later(self.limits.grace_seconds, self._give_up, due)

    def _give_up(self, due: float) -> None:
        self._timer = None
        if self._pending and self._pending[0][0] <= due:
            milliseconds = round(self.limits.reply_seconds * 1000)
            self._lose(f"no answer within {milliseconds} ms")
        else:
            self._check_due()

    def _lose(self, why: str) -> None:
        """Gives the connection up: what was sent on it fails now."""
        self.is_up = False
        lost, self._lost = self._lost, None
        if lost is not None and not lost.done():
            lost.set_result(why)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._queue.clear()
        while self._pending:
            _, reply = self._pending.popleft()
            if not reply.done():
                reply.set_exception(RedisUnavailable(why))

    # --- the connection --------------------------------------------------------------------------

    def start(self) -> None:
        self._background.spawn(self._keep())

    async def close(self) -> None:
        self._lose("the hub is shutting down")
        await self._background.close()

    async def _keep(self) -> None:
        """Connects, again and again."""
        backoff = Backoff(self.limits.first_retry, self.limits.longest_retry)
        while True:
            connection = self._pool.make_connection()  # type: ignore[no-untyped-call]
            try:
                async with asyncio.timeout(self.limits.connect_seconds):
                    await connection.connect()
                why = await self._serve(connection, backoff)
            except Exception as error:
                why = describe_failure(error)
            finally:
                self._lose("the connection was closed")
                await connection.disconnect(nowait=True)
            if self._was_up is not False:
                self._was_up = False
                self._absences.log_begin(why)
            await asyncio.sleep(backoff.next_delay())

    async def _serve(self, connection: AbstractConnection, backoff: Backoff) -> str:
        """Sends and reads on a connection until it is closed; returns why."""
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._lost = lost
        work = [start_task(one) for one in (self._write(connection), self._read(connection))]
        try:
            await self._beat()
            backoff.reset()
            if self._was_up is False:
                await self._keep_beating(lost, self._steady.next_delay())
                if lost.done():
                    return lost.result()
                self._absences.log_end()
            self.is_up = self._was_up = True
            await self._keep_beating(lost, self.limits.calm_seconds)
            if not lost.done():
                self._steady.reset()
                self._absences.log_calm()
            await self._keep_beating(lost, math.inf)
        except RedisUnavailable as error:
            return str(error)
        finally:
            for one in work:
                one.cancel()
            await asyncio.wait(work, timeout=1.0)
        return lost.result()

    async def _keep_beating(self, lost: asyncio.Future[str], seconds: float) -> None:
        """Tests the connection for so long, or until it is lost. Raises `RedisUnavailable`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while not lost.done() and (left := until - loop.time()) > 0:
            await asyncio.wait([lost], timeout=min(left, self.limits.beat_seconds))
            if not lost.done():
                await self._beat()

    async def _write(self, connection: AbstractConnection) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                commands, self._queue = self._queue, []
                if commands:
                    packed = connection.pack_commands(commands)
                    await connection.send_packed_command(packed, check_health=False)
        except Exception as error:
            self._lose(describe_failure(error))

    async def _read(self, connection: AbstractConnection) -> None:
        from redis.exceptions import NoScriptError, ResponseError

        pending = self._pending
        try:
            while True:
                try:
                    found = await connection.read_response(timeout=math.inf)
                except NoScriptError as error:
                    found = error
                except ResponseError as error:
                    self._lose(describe_failure(error))
                    return
                if not pending:
                    self._lose(UNEXPECTED)
                    return
                _, reply = pending.popleft()
                if reply.done():  # its caller has left
                    continue
                if isinstance(found, NoScriptError):
                    reply.set_exception(found)
                else:
                    reply.set_result(found)
        except Exception as error:
            self._lose(describe_failure(error))


class _Absences:
    """Logs when the server is away and back. Of a server that is away again and again, the second
    absence is the last that is logged before it was in use for a while."""

    def __init__(self, place: str, calm_seconds: float) -> None:
        self._place, self._calm_seconds = place, calm_seconds
        self._count = 0

    def log_begin(self, why: str) -> None:
        self._count += 1
        if self._count == 1:
            log.warning("Redis at %s is away: %s", self._place, why)
        elif self._count == 2:
            log.warning(
                "Redis at %s is away again: %s; its next absences are logged once it has been in "
                "use for %g s",
                self._place,
                why,
                self._calm_seconds,
            )

    def log_end(self) -> None:
        if self._count == 1:
            log.warning("Redis at %s is back", self._place)

    def log_calm(self) -> None:
        """After it was in use for `calm_seconds`."""
        if self._count > 1:
            log.warning("Redis at %s is back, after %d absences", self._place, self._count)
        self._count = 0


def check_numbers(reply: object, bounds: Sequence[float]) -> list[int]:
    """Returns the numbers of a reply. Raises `ValueError` if it has other values, or others than
    numbers: True, nan, and an error inside a list are none."""
    if type(reply) is not list or len(reply) != len(bounds):
        raise ValueError
    for number, bound in zip(reply, bounds, strict=True):
        if type(number) is not int or not 0 <= number <= bound:
            raise ValueError
    return reply


def describe_failure(error: Exception) -> str:
    """Describes what the driver has raised, in a bounded text."""
    return str(error)[:200] or type(error).__name__
