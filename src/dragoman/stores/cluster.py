"""The hubs of a cluster, their leases and the messages between them, in PostgreSQL.

A row for each hub, renewed several times per lease. A hub declares another one dead after it has
itself seen the row unchanged for the length of a lease, and becomes its heir; a hub that cannot
renew counts its own lease as lost before that. Each hub measures by its own clock, and no clock is
compared with another. Messages between hubs are notifications of the database, which may be lost.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dragoman.core.background import Background, resolve
from dragoman.core.cluster import MARK_CHARS, End, OwnedElsewhere, Receive
from dragoman.core.errors import ConfigError, HubError, LeaseExpired, StorageFailed
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.structs import Struct
from dragoman.stores import handover
from dragoman.stores.fence import Fence
from dragoman.stores.postgres_async import (
    STATEMENT_SECONDS,
    AsyncLane,
    Row,
    load_driver,
    render_failure,
)

if TYPE_CHECKING:
    import psycopg

    from dragoman.stores.redis_bus import RedisBus

log = logging.getLogger(__name__)

T = TypeVar("T")

CHANNEL = "dragoman_hubs"
SCHEMA = """
CREATE SCHEMA IF NOT EXISTS dragoman;
CREATE TABLE IF NOT EXISTS dragoman.hubs (
  id text PRIMARY KEY,
  node text NOT NULL,
  version text NOT NULL,
  address text NOT NULL,
  started_at timestamptz NOT NULL DEFAULT now(),
  seen_at timestamptz NOT NULL DEFAULT now(),
  state text NOT NULL,
  heir text
);
ALTER TABLE dragoman.hubs ADD COLUMN IF NOT EXISTS settled boolean NOT NULL DEFAULT true;
ALTER TABLE dragoman.hubs ADD COLUMN IF NOT EXISTS beats bigint NOT NULL DEFAULT 0;
ALTER TABLE dragoman.hubs ADD COLUMN IF NOT EXISTS seals boolean NOT NULL DEFAULT false;
CREATE TABLE IF NOT EXISTS dragoman.leases (
  name text PRIMARY KEY,
  hub text NOT NULL,
  token bigint NOT NULL,
  until timestamptz NOT NULL
);
CREATE TABLE IF NOT EXISTS dragoman.handed_sessions (
  digest text PRIMARY KEY,
  hub text NOT NULL,
  state jsonb NOT NULL
);
"""
LOCK = 0x647261676F6D616E  # "dragoman": of the migrations
STARTING, READY, DRAINING, STOPPED, DEAD = "starting", "ready", "draining", "stopped", "dead"
"""The states of a hub."""
ENDED = frozenset({STOPPED, DEAD})

HAND_OVER_SECONDS = 3.0
RETRY_SECONDS = 0.5
REFRESH_SECONDS = 0.2
"""How often requests for unknown hubs make this one read the table of hubs."""
SWEEP_SECONDS = 1.0
"""How often is looked for what ended hubs have left, at most."""
FORGET_DAYS = 8
"""How long an ended hub is remembered: its sessions are found by its row."""
MAX_QUEUED = 1_000
MAX_PAYLOAD = 7_500
"""Bytes of a notification; PostgreSQL takes less than 8,000."""
MAX_LEASES = 1_000
DECLARE_MILLISECONDS = 300
"""How long a declaration of death waits for a transaction of the hub that it is about."""
MAX_STRANGE = 10_000

_JOIN = """
INSERT INTO dragoman.hubs (id, node, version, address, state, seals)
VALUES (%s, %s, %s, %s, %s, true)
"""
_RENEW = """
UPDATE dragoman.hubs
SET seen_at = now(), beats = beats + 1, state = %s, version = %s, address = %s
WHERE id = %s AND heir IS NULL AND state NOT IN ('stopped', 'dead') RETURNING id
"""
"""Hubs of the version before this one read `seen_at`."""
_LEAVE = "UPDATE dragoman.hubs SET state = 'stopped' WHERE id = %s AND heir IS NULL"
_BREAK_OFF = """
UPDATE dragoman.hubs SET state = 'dead', seen_at = now() - interval '1 hour'
WHERE id = %s AND heir IS NULL
"""
_HAND_OVER = """
INSERT INTO dragoman.handed_sessions (digest, hub, state) VALUES (%s, %s, %s::jsonb)
ON CONFLICT (digest) DO UPDATE SET hub = excluded.hub, state = excluded.state
"""
_TAKE_HANDED = "DELETE FROM dragoman.handed_sessions WHERE hub = %s RETURNING digest, state"
_LIST = """
SELECT id, node, version, address, state, heir, extract(epoch FROM started_at)::float8, settled,
       beats, seen_at
FROM dragoman.hubs
"""
_DECLARE = """
SELECT id FROM dragoman.hubs
WHERE id = %(id)s AND heir IS NULL
  AND (state IN ('stopped', 'dead') OR (beats = %(beats)s AND seen_at = %(seen_at)s)) FOR UPDATE
"""
"""Unless the hub has given a sign of life since it was observed. `FOR UPDATE` waits for the write
transactions of that hub: each holds its row (see `fence`)."""
_INHERIT = """
UPDATE dragoman.hubs
SET heir = %s, state = CASE state WHEN 'stopped' THEN state ELSE 'dead' END, settled = false
WHERE id = %s
"""
_INHERIT_ALL = "UPDATE dragoman.hubs SET heir = %s WHERE heir = %s"
_SETTLE = "UPDATE dragoman.hubs SET settled = true WHERE id = %s AND heir = %s"
_HOLDS = """EXISTS (
  SELECT 1 FROM dragoman.hubs WHERE id = {} AND heir IS NULL AND state = 'ready')
"""
_LEASE = f"""
INSERT INTO dragoman.leases AS held (name, hub, token, until)
SELECT name, %(hub)s, 1, now() + make_interval(secs => %(secs)s)
FROM unnest(%(names)s::text[]) AS name WHERE {_HOLDS.format("%(hub)s")}
ON CONFLICT (name) DO UPDATE SET hub = excluded.hub, until = excluded.until,
  token = held.token + (held.hub <> excluded.hub)::int
WHERE held.hub = excluded.hub OR NOT {_HOLDS.format("held.hub")} RETURNING name, token
"""
"""A lease lasts as long as its holder lives and is ready: it is lost by a declaration of death, not
by a time. `until` is for hubs of the version before this one, and for people."""
_HOLDERS = f"""
SELECT name, hub FROM dragoman.leases WHERE name = ANY(%s) AND {_HOLDS.format("leases.hub")}
"""


class HubRecord(Struct, frozen=True):
    """A row of the table of hubs."""

    id: str
    node: str
    version: str
    address: str
    """Where its internal listener is: `host:port` or the path of a Unix socket."""
    state: str
    heir: str | None
    started_at: float
    is_settled: bool
    """Whether its heir, if it has one, has taken over what it owned."""
    beats: int
    seen_at: datetime
    """`beats` or `seen_at` changes with each renewal."""

    @property
    def is_ended(self) -> bool:
        return self.heir is not None or self.state in ENDED


class Observation(NamedTuple):
    """Since when a hub's row is unchanged, by the clock of this hub."""

    beats: int
    seen_at: datetime
    since: float


class LeaseRecord(Struct, frozen=True):
    name: str
    hub: str
    token: int
    left: float
    """Seconds until it expires."""


class PostgresCluster:
    """Implements `Ownership`, `Leases` and `ClusterBus`. Only the event loop uses it."""

    def __init__(self, url: str, node: str, version: str, lease_secs: float) -> None:
        self.mark = token_hex(MARK_CHARS // 2)
        self._address = ""
        self.state = STARTING
        self.lease_secs = lease_secs
        self.hubs: dict[str, HubRecord] = {}
        """All that are known, this one too."""
        self.fence = Fence()
        """What every write transaction of this hub begins with."""
        self._observed: dict[str, Observation] = {}
        self._node = node
        self._version = version
        self._beat = lease_secs / 3
        self._own: set[str] = {self.mark}
        """This hub and those that it is the heir of."""
        self._strange: OrderedDict[str, None] = OrderedDict()
        """Ids in requests that no row has, and that have fallen to this hub."""
        self._renewed = 0.0
        """When the last renewal that succeeded was begun."""
        self._leased = 0.0
        """When the last renewal of the leases that succeeded was begun."""
        self._steady_since = 0.0
        """Since when no renewal has been missed."""
        self._read = 0.0
        """When the table of hubs was read last."""
        self._swept = 0.0
        """When was looked for what ended hubs have left."""
        self._wanted: dict[str, int] = {}
        """The leases that this hub asks for, with the token of each; 0 if it does not hold it."""
        self._holders: dict[str, str] = {}
        """The hubs that hold the leases that this hub asks for."""
        self._lane = AsyncLane(url)
        self._lock = asyncio.Lock()
        self._next_read: asyncio.Task[HubError | None] | None = None
        """The reading of the table that has not begun."""
        self._queue: deque[str] = deque()
        self._receivers: dict[str, list[Receive]] = {}
        self._bus: RedisBus | None = None
        """What sends messages instead of the database, if anything does."""
        self._background = Background("the cluster")
        self._wake = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._changed: asyncio.Future[None] | None = None
        self._settling: dict[str, asyncio.Task[None]] = {}
        """The running takeovers, by the id of the hub that has ended."""
        self.on_inherit: list[Callable[[str], Awaitable[None]]] = []
        """Called with the id of each hub that this one becomes the heir of, and again if that has
        failed, an heir before this one may not have come to its end, or something is left."""
        self.find_left: list[Callable[[Sequence[str]], Collection[str]]] = []
        """Each gets the ids of the hubs that this one is the heir of, and returns those that still
        own something. Raises `StorageFailed`."""
        self.on_lost: list[Callable[[str], Awaitable[None]]] = []
        """Called with the new id of this hub when others have declared it dead."""

    # --- start and stop ------------------------------------------------------------------------

    async def start(self, address: str) -> None:
        """Registers this hub, whose internal listener is at `address`. Raises `ConfigError` if the
        database cannot be used."""
        load_driver()
        self._address = address
        try:
            await self._execute_script(SCHEMA + handover.SCHEMA)
            await self._register()
        except StorageFailed as error:
            raise ConfigError(f"the cluster cannot be joined: {error}") from error
        self._background.spawn(self._keep_beating())
        self._background.spawn(self._keep_listening())

    async def set_state(self, state: str) -> None:
        self.state = state
        if state != READY:  # before others can see it: they take the leases then
            self._wanted = dict.fromkeys(self._wanted, 0)
        with suppress(StorageFailed):  # the next renewal writes it
            await self._renew()

    async def hand_over(self, states: Mapping[str, Any]) -> None:
        """Stores what the heir of this hub needs to know of its sessions."""
        rows = [(digest, self.mark, json.dumps(one)) for digest, one in states.items()]

        async def run(connection: psycopg.AsyncConnection[Any]) -> None:
            async with self.fence.transact(connection), connection.cursor() as cursor:
                await cursor.executemany(_HAND_OVER, rows)

        if rows:
            async with self._lock:
                await self._lane.attempt(run, HAND_OVER_SECONDS)

    async def take_handed(self, hub: str) -> dict[str, Any]:
        """Takes what a hub has handed over, whose heir this one is. Only for `on_inherit`."""

        async def run(connection: psycopg.AsyncConnection[Any]) -> list[Row]:
            async with self.fence.transact(connection):
                return await (await connection.execute(_TAKE_HANDED, (hub,))).fetchall()

        async with self._lock:
            rows = await self._attempt(run, STATEMENT_SECONDS)
        return {str(row[0]): row[1] for row in rows}

    async def stop(self, is_clean: bool = True) -> None:
        """Leaves the cluster: releases the leases, so that others own at once what was this hub's
        own. `is_clean`: all requests of other hubs that it took were answered."""
        self.state = STOPPED
        await self._background.close()
        with suppress(StorageFailed):
            await self._execute("DELETE FROM dragoman.leases WHERE hub = %s", (self.mark,))
            await self._execute(_LEAVE if is_clean else _BREAK_OFF, (self.mark,))
            await self._execute("SELECT pg_notify(%s, %s)", (CHANNEL, self._encode("hubs", {})))
        self._lane.close()

    # --- ownership -----------------------------------------------------------------------------

    def check(self, mark: str) -> None:
        if mark not in self._own and mark not in self._strange and _is_mark(mark):
            raise OwnedElsewhere(mark)

    async def find_owner(self, mark: str, *, is_fresh: bool = False) -> HubRecord | None:
        """Finds the living hub that owns what `mark` names; None if it is this hub. Until an heir
        has taken over, it is a hub that has ended. One that no row has any more is as if it were
        chosen by lot, the same at each hub."""
        if is_fresh and _read_clock() - self._read > REFRESH_SECONDS / 4:
            await self.refresh()
        for attempt in range(2):
            record = self.hubs.get(mark)
            for _ in range(len(self.hubs)):  # heirs of heirs
                if record is None or record.heir is None or record.id in self._own:
                    break
                if not record.is_settled:
                    break
                record = self.hubs.get(record.heir)
            if record is not None and record.id in self._own:
                return None
            if record is not None and not record.is_ended:
                return record
            if not attempt and _read_clock() - self._read > REFRESH_SECONDS:
                await self.refresh()
        if mark in self.hubs:
            return self.hubs[mark]  # it has ended, and its heir does not own it yet
        lots = {one.id: sha256(f"{mark} {one.id}".encode()).digest() for one in self.list_living()}
        chosen = max(lots, key=lambda id: lots[id], default=self.mark)
        if chosen != self.mark:
            return self.hubs[chosen]
        self._strange[mark] = None
        while len(self._strange) > MAX_STRANGE:
            self._strange.popitem(last=False)
        return None

    async def has_left(self, id: str) -> bool:
        """Whether a hub has stopped and had answered each request that it took of others."""
        await self.refresh()
        record = self.hubs.get(id)
        return record is not None and record.state == STOPPED

    async def refresh(self) -> None:
        """Reads the table of hubs, and becomes the heir of those that have ended. Those who ask
        while the table is read share the next reading, which also fails for all of them."""
        if self._next_read is None:
            self._next_read = self._background.spawn(self._read_next())
        reading = self._next_read
        await asyncio.wait([reading])
        if reading.cancelled():
            raise StorageFailed("this hub has left the cluster")
        if (failure := reading.result()) is not None:
            raise failure.with_traceback(None)

    async def _read_next(self) -> HubError | None:
        async with self._lock:
            self._next_read = None
            try:
                await self._renew_alone()
            except HubError as error:
                return error
            return None

    async def wait_for_change(self, seconds: float) -> None:
        """Waits until the table of hubs has changed, or so many seconds."""
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._changed], timeout=seconds)

    @property
    def is_connected(self) -> bool:
        """Whether this hub has renewed its row within the length of a lease."""
        return _read_clock() - self._renewed < self.lease_secs

    def check_lease(self) -> None:
        if _read_clock() - self._renewed >= self.lease_secs:
            raise LeaseExpired(
                f"this hub has not renewed its place in the cluster for {self.lease_secs:g} s, so "
                "others may own what it owned; nothing has left the hub: send it again"
            )

    def list_living(self) -> list[HubRecord]:
        return [one for one in self.hubs.values() if not one.is_ended]

    def list_others(self) -> list[HubRecord]:
        return [one for one in self.list_living() if one.id != self.mark]

    # --- leases --------------------------------------------------------------------------------

    def holds(self, name: str) -> bool:
        return self.find_token(name) > 0

    def find_token(self, name: str) -> int:
        token = self._wanted.get(name)
        if token is None:
            if len(self._wanted) >= MAX_LEASES:
                log.error("too many leases: %s is not asked for", name[:100])
                return 0
            self._wanted[name] = token = 0
            self._wake.set()
        # Not by the renewal of the row: that of the leases comes later, and can fail alone.
        return token if _read_clock() - self._leased < self.lease_secs else 0

    def find_holder(self, name: str) -> str:
        return self._holders.get(name, "")

    async def list_leases(self) -> list[LeaseRecord]:
        rows = await self._execute(
            "SELECT name, hub, token, extract(epoch FROM until - now())::float8 "
            "FROM dragoman.leases ORDER BY name"
        )
        return [LeaseRecord(*row) for row in rows]

    # --- messages ------------------------------------------------------------------------------

    def use_bus(self, bus: RedisBus) -> None:
        """Sends messages by `bus` from now on; those that the database sends still arrive."""
        self._bus = bus
        bus.subscribe("hubs", lambda sender, data: self._wake.set())
        bus.observe_gaps(self._wake.set)

    def publish(self, kind: str, data: Mapping[str, Any]) -> None:
        if self._bus is not None:
            return self._bus.publish(kind, data)
        text = self._encode(kind, data)
        if len(text) > MAX_PAYLOAD or len(self._queue) >= MAX_QUEUED:
            log.warning("a message to other hubs was dropped: %s", kind)
            return
        self._queue.append(text)
        if self._sending is None or self._sending.done():
            self._sending = self._background.spawn(self._send())

    def subscribe(self, kind: str, receive: Receive) -> End:
        receivers = self._receivers.setdefault(kind, [])
        receivers.append(receive)
        end = self._bus.subscribe(kind, receive) if self._bus is not None else None

        def end_both() -> None:
            if receive in receivers:
                receivers.remove(receive)
            if end is not None:
                end()

        return end_both

    def _encode(self, kind: str, data: Mapping[str, Any]) -> str:
        # ASCII, so that characters are bytes.
        return json.dumps([kind, self.mark, data], separators=(",", ":"))

    async def _send(self) -> None:
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), 100))]
            try:
                await self._execute(
                    "SELECT pg_notify(%s, text) FROM unnest(%s::text[]) AS text", (CHANNEL, batch)
                )
            except StorageFailed as error:
                STORAGE_OUTAGE.note(f"{len(batch)} messages to other hubs are lost: {error}")

    def _receive(self, payload: str) -> None:
        try:
            kind, sender, data = json.loads(payload)
        except (ValueError, TypeError):
            return
        if sender == self.mark or not isinstance(data, dict):
            return
        if kind == "hubs":
            self._wake.set()
        for receive in tuple(self._receivers.get(kind, ())):
            try:
                receive(sender, data)
            except Exception:
                log.exception("a message of another hub could not be handled: %s", kind)

    async def _keep_listening(self) -> None:
        import psycopg

        while True:
            connection = None
            try:
                connection = await self._lane.connect()
                async with asyncio.timeout(STATEMENT_SECONDS):
                    await connection.execute(f"LISTEN {CHANNEL}")
                self._wake.set()  # what was missed
                while True:
                    async for one in connection.notifies(timeout=self.lease_secs):
                        self._receive(one.payload)
                    async with asyncio.timeout(STATEMENT_SECONDS):  # is it still there?
                        await connection.execute("SELECT 1")
            except (psycopg.Error, OSError, TimeoutError, StorageFailed) as error:
                STORAGE_OUTAGE.note(f"no messages of other hubs: {render_failure(error)}")
            finally:
                if connection is not None:
                    connection.pgconn.finish()
            await asyncio.sleep(RETRY_SECONDS)

    # --- renewal -------------------------------------------------------------------------------

    async def _register(self) -> None:
        await self._execute(
            _JOIN,
            (self.mark, self._node, self._version, self._address, self.state),
        )
        self.fence.mark = self.mark
        await self._execute(
            "DELETE FROM dragoman.hubs WHERE state IN ('stopped', 'dead') "
            "AND seen_at < now() - make_interval(days => %s)",
            (FORGET_DAYS,),
        )
        await self._execute(
            "DELETE FROM dragoman.handed_sessions WHERE hub NOT IN (SELECT id FROM dragoman.hubs)"
        )
        self._steady_since = _read_clock()
        await self._renew()
        self.publish("hubs", {})

    async def _keep_beating(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._beat):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self._renew()
            except StorageFailed as error:
                STORAGE_OUTAGE.note(f"this hub could not renew its place in the cluster: {error}")
                await asyncio.sleep(min(RETRY_SECONDS, self._beat))
            except Exception:  # without renewals this hub would be dead for the others
                log.exception("this hub could not renew its place in the cluster")
                await asyncio.sleep(min(RETRY_SECONDS, self._beat))

    async def _renew(self) -> None:
        """Renews the row and the leases, and reads what others have written."""
        async with self._lock:
            await self._renew_alone()

    async def _renew_alone(self) -> None:
        begun = _read_clock()
        renewed = await self._run(_RENEW, (self.state, self._version, self._address, self.mark))
        if not renewed:
            await self._begin_anew()
            return
        if begun - self._renewed > self.lease_secs:
            self._steady_since = begun
        self._renewed = begun
        await self._renew_leases(begun)
        asked = _read_clock()
        self._take(await self._run(_LIST, ()))
        await self._inherit(asked)

    async def _renew_leases(self, begun: float) -> None:
        """`begun`: when the renewal of the row was, on which the leases depend."""
        if not self._wanted or self.state != READY:
            self._wanted = dict.fromkeys(self._wanted, 0)
            return
        names = list(self._wanted)
        held = await self._run(_LEASE, {"hub": self.mark, "secs": self.lease_secs, "names": names})
        tokens: dict[str, int] = {str(name): int(token) for name, token in held}
        is_ready = self.state == READY
        for name in names:
            self._wanted[name] = tokens.get(name, 0) if is_ready else 0
        self._leased = begun
        rows = await self._run(_HOLDERS, (names,))
        self._holders = {str(name): str(hub) for name, hub in rows}

    async def _inherit(self, asked: float) -> None:
        """Becomes the heir of hubs that have ended, as the rows say that were asked for at `asked`.
        A hub that was cut off itself waits: it cannot know whether the others were, too."""
        if self.state != READY:
            return
        is_steady = self._renewed - self._steady_since >= self.lease_secs
        for one in list(self.hubs.values()):
            late = is_steady and asked - self._observed[one.id].since > self.lease_secs
            if one.id == self.mark or one.heir is not None or not (late or one.state in ENDED):
                continue
            try:
                is_heir = await self._become_heir(one)
            except StorageFailed as error:  # such as a lock: the next renewal tries again
                log.info("hub %s (%s) is not declared dead yet: %s", one.id, one.node, error)
                continue
            if is_heir:
                log.warning("hub %s (%s) has ended; this hub takes over", one.id, one.node)
                self.publish("hubs", {})
                self._take(await self._run(_LIST, ()))
        left = self._find_left()
        for one in self.hubs.values():
            is_left = not one.is_settled or one.id in left
            if one.heir == self.mark and is_left and one.id not in self._settling:
                # Not here: this hub must go on to renew its own row.
                self._settling[one.id] = self._background.spawn(self._settle(one.id, self.mark))

    def _find_left(self) -> set[str]:
        """Finds the hubs of which something has appeared after they were taken over."""
        settled = [one.id for one in self.hubs.values() if one.heir == self.mark and one.is_settled]
        left: set[str] = set()
        if not settled or self._read - self._swept < SWEEP_SECONDS:
            return left
        self._swept = self._read
        for find in self.find_left:
            try:
                left.update(find(settled))
            except StorageFailed as error:
                log.info("what ended hubs have left is looked for later: %s", error)
        return left

    async def _become_heir(self, hub: HubRecord) -> bool:
        """In one transaction, so that no hub is left to an heir that has died: the hubs that `hub`
        was the heir of become those of this one. The transaction is fenced: a hub that was declared
        dead becomes no heir, and none is declared until the transaction ends."""

        async def run(connection: psycopg.AsyncConnection[Any]) -> bool:
            async with self.fence.transact(connection):
                await connection.execute(f"SET LOCAL lock_timeout = {DECLARE_MILLISECONDS}")
                seen = {"id": hub.id, "beats": hub.beats, "seen_at": hub.seen_at}
                cursor = await connection.execute(_DECLARE.encode(), seen)
                if not await cursor.fetchall():
                    return False
                await connection.execute(_INHERIT.encode(), (self.mark, hub.id))
                await connection.execute(_INHERIT_ALL.encode(), (self.mark, hub.id))
                return True

        return await self._attempt(run, STATEMENT_SECONDS)

    async def _settle(self, id: str, mark: str) -> None:
        """Takes over what a hub owned, before requests for it are served here."""
        try:
            for react in self.on_inherit:
                await self._react(react, id)
            while True:
                try:
                    await self._execute(_SETTLE, (id, mark))
                    break
                except StorageFailed as error:
                    STORAGE_OUTAGE.note(f"hub {id} is taken over, which is not stored: {error}")
                    await asyncio.sleep(RETRY_SECONDS)
            await self._renew()
            self.publish("hubs", {})
        except StorageFailed as error:  # of the renewal, which is repeated soon
            STORAGE_OUTAGE.note(f"this hub could not renew its place in the cluster: {error}")
        finally:
            self._settling.pop(id, None)

    def _take(self, rows: Sequence[Row]) -> None:
        found = {row[0]: HubRecord(*row) for row in rows}
        self._read = _read_clock()
        self._observe(found.values())
        before = _summarize(self.hubs)
        self.hubs = found
        self._own = {self.mark} | {
            one.id for one in found.values() if one.heir == self.mark and one.is_settled
        }
        for id in [id for id in self._strange if id in found]:
            del self._strange[id]
        if before != _summarize(found):
            resolve(self._changed, None)

    def _observe(self, records: Collection[HubRecord]) -> None:
        """Notes which rows have changed: by whatever its hub writes, of this version or the one
        before it."""
        before, self._observed = self._observed, {}
        for one in records:
            known = before.get(one.id)
            if known is None or (known.beats, known.seen_at) != (one.beats, one.seen_at):
                known = Observation(one.beats, one.seen_at, self._read)
            self._observed[one.id] = known

    def measure_silence(self, id: str) -> float:
        """Seconds since this hub has seen the row of another change."""
        known = self._observed.get(id)
        return _read_clock() - known.since if known is not None else 0.0

    async def read_beat(self, id: str) -> object:
        """Reads what changes each time a hub shows that it lives. Raises `StorageFailed`."""
        await self.refresh()
        known = self._observed.get(id)
        return (known.beats, known.seen_at) if known is not None else None

    async def _begin_anew(self) -> None:
        """Others have declared this hub dead while it was cut off, and own what was its own."""
        if self.state in ENDED:
            return
        log.error("this hub was cut off and counts as dead; it joins the cluster again as another")
        self._own = set()
        for settling in self._settling.values():
            settling.cancel()
        self._wanted = dict.fromkeys(self._wanted, 0)
        mark, begun = token_hex(MARK_CHARS // 2), _read_clock()
        await self._run(_JOIN, (mark, self._node, self._version, self._address, self.state))
        # Only now: what a hub without a row has claimed counts as that of a dead one.
        self.mark = self.fence.mark = mark
        self._own = {mark}
        self._renewed = self._steady_since = begun
        for lost in self.on_lost:  # before anything can fail: this is not repeated
            try:
                await lost(self.mark)
            except Exception:  # the renewals go on
                log.exception("what other hubs have taken over is not dropped here")
        self.publish("hubs", {})
        self._take(await self._run(_LIST, ()))

    async def _react(self, react: Callable[[str], Awaitable[None]], id: str) -> None:
        """Calls `react` until it succeeds."""
        while True:
            try:
                return await react(id)
            except HubError as error:
                text = f"what hub {id} owned is taken over later: {error}"
                if isinstance(error, StorageFailed):
                    STORAGE_OUTAGE.note(text)
                else:
                    log.warning("%s", text)
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:  # a defect; the rest goes on
                log.exception("what hub %s owned is not taken over", id)
                return

    # --- the database --------------------------------------------------------------------------

    async def _execute(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        async with self._lock:
            return await self._run(statement, values)

    async def _execute_script(self, script: str) -> None:
        """Creates the tables, one hub after the other."""

        async def run(connection: psycopg.AsyncConnection[Any]) -> None:
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
                await connection.execute(script.encode())

        async with self._lock:
            await self._attempt(run, 10.0)

    async def _run(self, statement: str, values: Any) -> list[Row]:
        return await self._lane.run(statement, values)

    async def _attempt(
        self, run: Callable[[psycopg.AsyncConnection[Any]], Awaitable[T]], seconds: float
    ) -> T:
        return await self._lane.attempt(run, seconds)


def _summarize(hubs: Mapping[str, HubRecord]) -> dict[str, tuple[object, ...]]:
    """What others wait for a change of."""
    return {one.id: (one.state, one.heir, one.address, one.is_settled) for one in hubs.values()}


def _read_clock() -> float:
    """Seconds of a clock that goes on while the machine sleeps, where there is one: the leases of
    a machine that wakes up have expired."""
    return time.clock_gettime(_CLOCK)


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_HEX = frozenset("0123456789abcdef")


def _is_mark(text: str) -> bool:
    return len(text) == MARK_CHARS and _HEX.issuperset(text)
