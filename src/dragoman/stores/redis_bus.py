"""Messages between hubs by publish and subscribe in Redis: implements `core.cluster.ClusterBus`.

A message is lost if a hub, or Redis, is away at that moment. The bus notifies listeners when that
may have happened, so that they read the stores. A program that can publish in this Redis can send
any message, so a message must be no more than a reason to look.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dragoman.core.background import Background
from dragoman.core.backoff import Backoff
from dragoman.core.cluster import End, Receive
from dragoman.core.structs import Struct
from dragoman.core.urls import render_origin
from dragoman.stores.redis_link import UNEXPECTED, build_pool, describe_failure
from dragoman.wire.json import Malformed, decode, encode

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub

log = logging.getLogger(__name__)

LOST = "lost"
"""The kind of message by which a hub says that it could not send others."""


class BusLimits(Struct, frozen=True):
    payload: int = 8_000
    """Bytes of an encoded message, as with PostgreSQL."""
    queued: int = 1_000
    batch: int = 100
    reply_seconds: float = 1.0
    beat_seconds: float = 1.0
    """After so long without a message the connection is tested."""
    first_retry: float = 0.1
    longest_retry: float = 1.0


class RedisBus:
    def __init__(
        self,
        url: str,
        find_mark: Callable[[], str],
        prefix: str = "dragoman",
        limits: BusLimits | None = None,
    ) -> None:
        """`find_mark` returns the id of this hub. Raises `ConfigError` for an invalid address."""
        self.limits = BusLimits() if limits is None else limits
        self.is_listening = False
        """Whether messages of other hubs arrive."""
        self._pool = build_pool(url, self.limits.reply_seconds)
        self._place = render_origin(url)
        self._find_mark = find_mark
        self._channel = f"{prefix}:bus"
        self._queue: deque[bytes] = deque()
        self._has_dropped = False
        self._receivers: dict[str, list[Receive]] = {}
        self._gap_listeners: list[Callable[[], None]] = []
        self._wake = asyncio.Event()
        self._background = Background("the bus in Redis")

    def start(self) -> None:
        from redis.asyncio import Redis

        client = Redis(connection_pool=self._pool)
        self._background.spawn(self._keep(self._listen, client))
        self._background.spawn(self._keep(self._send, client))

    async def close(self) -> None:
        await self._background.close()
        self.is_listening = False
        await self._pool.disconnect()

    # --- sending ---------------------------------------------------------------------------------

    def publish(self, kind: str, data: Mapping[str, Any]) -> None:
        payload = encode([kind, self._find_mark(), data])
        if len(payload) > self.limits.payload:
            log.warning("a message to other hubs is too large and was dropped: %s", kind)
        elif len(self._queue) >= self.limits.queued:
            self._has_dropped = True
        else:
            self._queue.append(payload)
            self._wake.set()

    async def _send(self, client: Redis, note_success: Callable[[], None]) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                batch = [
                    self._queue.popleft() for _ in range(min(len(self._queue), self.limits.batch))
                ]
                lost, self._has_dropped = self._has_dropped, True  # until they are sent
                if lost:
                    batch.insert(0, encode([LOST, self._find_mark(), {}]))
                pipeline = client.pipeline(transaction=False)
                for payload in batch:
                    pipeline.publish(self._channel, payload)
                async with asyncio.timeout(self.limits.reply_seconds):
                    await pipeline.execute()
                self._has_dropped = False
                note_success()

    # --- receiving -------------------------------------------------------------------------------

    def subscribe(self, kind: str, receive: Receive) -> End:
        receivers = self._receivers.setdefault(kind, [])
        receivers.append(receive)
        return lambda: receivers.remove(receive) if receive in receivers else None

    def observe_gaps(self, listener: Callable[[], None]) -> End:
        """Calls `listener` whenever messages may have been lost, also after the start."""
        listeners = self._gap_listeners
        listeners.append(listener)
        return lambda: listeners.remove(listener) if listener in listeners else None

    async def _listen(self, client: Redis, note_success: Callable[[], None]) -> None:
        pubsub = client.pubsub()
        try:
            async with asyncio.timeout(self.limits.reply_seconds):
                await pubsub.subscribe(self._channel)
            await self._follow(pubsub, note_success)
        finally:
            self.is_listening = False
            await pubsub.aclose()  # type: ignore[no-untyped-call]

    async def _follow(self, pubsub: PubSub, note_success: Callable[[], None]) -> None:
        is_tested = True  # the subscription is confirmed by a message
        while True:
            message = await pubsub.get_message(timeout=self.limits.beat_seconds)
            if message is None:
                if is_tested:
                    raise TimeoutError("no answer")
                async with asyncio.timeout(self.limits.reply_seconds):
                    await pubsub.ping()
                is_tested = True
                continue
            is_tested = False
            if message["type"] == "subscribe":
                self.is_listening = True
                self._tell_gap()
                continue
            if message["type"] == "message":
                self._receive(message["data"])
            elif message["type"] != "pong":
                raise TypeError(UNEXPECTED)
            # Not by the subscription alone: what answers nothing else properly is not back.
            note_success()

    def _receive(self, payload: object) -> None:
        if not isinstance(payload, bytes):
            raise TypeError(UNEXPECTED)
        if len(payload) > self.limits.payload:
            return
        try:
            kind, sender, data = decode(payload)
        except (Malformed, ValueError, TypeError):
            return
        if not isinstance(kind, str) or not isinstance(sender, str) or not isinstance(data, dict):
            return
        if sender == self._find_mark():
            return
        if kind == LOST:
            self._tell_gap()
        for receive in tuple(self._receivers.get(kind, ())):
            try:
                receive(sender, data)
            except Exception:
                log.exception("a message of another hub could not be handled: %s", kind)

    def _tell_gap(self) -> None:
        for listener in tuple(self._gap_listeners):
            try:
                listener()
            except Exception:
                log.exception("a gap in the messages of other hubs could not be handled")

    # --- the connections -------------------------------------------------------------------------

    async def _keep(self, work: Callable[[Redis, Callable[[], None]], Any], client: Redis) -> None:
        """Runs `work`, which ends with an exception, again and again. The driver raises any kind of
        exception for a reply that it does not expect."""
        backoff = Backoff(self.limits.first_retry, self.limits.longest_retry)

        def note_success() -> None:
            if backoff.failures:
                log.warning("messages between hubs by Redis at %s are back", self._place)
            backoff.reset()

        while True:
            try:
                await work(client, note_success)
            except Exception as error:
                if not backoff.failures:
                    why = describe_failure(error)
                    log.warning("messages between hubs by Redis at %s fail: %s", self._place, why)
            await asyncio.sleep(backoff.next_delay())
            self._wake.set()
