"""What a hub leaves to its heir in PostgreSQL: events of streams, and tasks of MCP clients.

Nothing waits for it: what is to be kept goes into a queue, and one task writes the queue in
batches. The tables are not logged, so that PostgreSQL writes each row once; they are empty after a
crash of the server. Bounded in size, number and age.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from typing import Any

import msgspec

from dragoman.core.background import Background, resolve
from dragoman.core.errors import StorageFailed
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.ports import KeptEvent, KeptTask, TaskChange
from dragoman.core.principal import Principal
from dragoman.stores.fence import Fence
from dragoman.stores.postgres_async import AsyncLane, Row
from dragoman.stores.tasks import encode_safely

log = logging.getLogger(__name__)

SCHEMA = """
CREATE UNLOGGED TABLE IF NOT EXISTS dragoman.handover_events (
  owner text NOT NULL,
  stream text NOT NULL,
  number integer NOT NULL,
  data bytea NOT NULL,
  is_last boolean NOT NULL,
  at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (stream, number)
);
CREATE INDEX IF NOT EXISTS handover_events_by_time ON dragoman.handover_events (at);
CREATE UNLOGGED TABLE IF NOT EXISTS dragoman.handover_tasks (
  id text PRIMARY KEY,
  owner text NOT NULL,
  state text NOT NULL,
  created float8 NOT NULL,
  updated float8 NOT NULL,
  about bytea NOT NULL,
  at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS handover_tasks_by_time ON dragoman.handover_tasks (at);
"""
EVENT_SECONDS, TASK_SECONDS = 300.0, 7_200.0
"""How long rows are kept."""
MAX_ROW = 1024 * 1024
"""Bytes of an event, or of a task with its result; what is larger is not kept."""
MAX_QUEUED = 16 * 1024 * 1024
"""Bytes that wait to be written."""
MAX_KEPT = 64 * 1024 * 1024
"""Bytes that one hub writes within `EVENT_SECONDS`; what comes beyond is not kept."""
MAX_LOADED = 1_000
ROW_COST = 200
BATCH_BYTES, BATCH_ROWS = 2 * 1024 * 1024, 1_000
PAUSE_SECONDS = 0.02
"""Between two batches."""
RETRY_SECONDS = 0.5
PRUNE_SECONDS = 30.0
WAIT_SECONDS = 1.0
"""How long the response about a task waits for the database."""
LOAD_SECONDS = 1.5
CLOSE_SECONDS = 2.0

_EVENTS = """
INSERT INTO dragoman.handover_events (owner, stream, number, data, is_last)
SELECT * FROM unnest(%s::text[], %s::text[], %s::integer[], %s::bytea[], %s::boolean[])
ON CONFLICT DO NOTHING
"""
_LOAD_EVENTS = """
SELECT number, data, is_last FROM dragoman.handover_events
WHERE stream = %s AND owner = %s AND number > %s ORDER BY number LIMIT %s
"""
_TASKS = """
INSERT INTO dragoman.handover_tasks (id, owner, state, created, updated, about)
SELECT * FROM unnest(
  %s::text[], %s::text[], %s::text[], %s::float8[], %s::float8[], %s::bytea[])
ON CONFLICT (id) DO UPDATE SET state = excluded.state, updated = excluded.updated,
  about = excluded.about, at = now()
"""
_LOAD_TASK = """
SELECT state, created, updated, about FROM dragoman.handover_tasks WHERE id = %s AND owner = %s
"""
_DROP_TASKS = "DELETE FROM dragoman.handover_tasks WHERE id = ANY(%s)"
_PRUNE = """
DELETE FROM dragoman.handover_{} WHERE at < now() - make_interval(secs => %s)
"""


class PostgresHandover:
    """A `Handover`. Only the event loop uses it."""

    def __init__(self, url: str, fence: Fence) -> None:
        self._writer, self._reader = AsyncLane(url, fence), AsyncLane(url, fence)
        self._reading = asyncio.Lock()
        self._events: deque[tuple[str, str, KeptEvent]] = deque()
        self._tasks: dict[str, tuple[Any, ...] | None] = {}
        """The rows to write by id, the latest state of each; None deletes it."""
        self._writing: dict[str, tuple[Any, ...] | None] = {}
        """Those that are being written."""
        self._batch_end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the next batch is written."""
        self._queued = 0
        self._written: deque[tuple[float, int]] = deque()
        """When how many bytes were written, for as long as they are kept."""
        self._kept = 0
        self._wake = asyncio.Event()
        self._background = Background("the handover")
        self._is_closing = False
        self.dropped = 0
        """What was not kept because of a limit."""

    def start(self) -> None:
        self._background.spawn(self._keep_writing())

    async def close(self) -> None:
        """Writes what is left: other hubs need it when this one has stopped."""
        self._is_closing = True
        self._wake.set()
        await self._background.close(CLOSE_SECONDS)
        for lane in (self._writer, self._reader):
            lane.close()

    # --- keeping -------------------------------------------------------------------------------

    def keep_event(self, owner: str, stream: str, event: KeptEvent) -> None:
        if self._has_room(len(event.data)):
            self._queued += len(event.data) + ROW_COST
            self._events.append((owner, stream, event))
            self._wake.set()

    def keep_task(self, change: TaskChange) -> None:
        about = encode_safely(change.about)
        if len(about) > MAX_ROW:
            about = encode_safely({**change.about, "result": None})
        if not self._has_room(len(about)):
            return
        self._forget(change.id)
        self._queued += len(about) + ROW_COST
        self._tasks[change.id] = (
            change.id, _render_owner(change.owner), change.state, change.created, change.updated,
            about,
        )  # fmt: skip
        self._wake.set()

    def drop_task(self, id: str) -> None:
        """Not while this hub stops: its heir answers for its tasks."""
        if not self._is_closing:
            self._forget(id)
            if len(self._tasks) < BATCH_ROWS:  # otherwise its age deletes it
                self._tasks[id] = None
                self._wake.set()

    async def wait_for_task(self, id: str) -> None:
        if self._tasks.get(id) is None and self._writing.get(id) is None:
            return
        until = asyncio.get_running_loop().time() + WAIT_SECONDS
        while self._tasks.get(id) is not None or self._writing.get(id) is not None:
            left = until - asyncio.get_running_loop().time()
            if left <= 0:
                return
            await asyncio.wait([self._batch_end], timeout=left)

    def _forget(self, id: str) -> None:
        row = self._tasks.pop(id, None)
        if row is not None:
            self._queued -= len(row[5]) + ROW_COST

    def _has_room(self, size: int) -> bool:
        now = time.monotonic()
        while self._written and self._written[0][0] < now - EVENT_SECONDS:
            self._kept -= self._written.popleft()[1]
        queued = self._queued + size + ROW_COST
        if size <= MAX_ROW and queued <= MAX_QUEUED and self._kept + queued <= MAX_KEPT:
            return True
        self.dropped += 1
        return False

    # --- loading -------------------------------------------------------------------------------

    async def load_events(self, owner: str, stream: str, after: int) -> list[KeptEvent]:
        rows = await self._load(_LOAD_EVENTS, (stream, owner, after, MAX_LOADED))
        return [KeptEvent(*row) for row in rows]

    async def load_task(self, owner: Principal, id: str) -> KeptTask | None:
        rows = await self._load(_LOAD_TASK, (id, _render_owner(owner)))
        for state, created, updated, about in rows:
            try:
                return KeptTask(state, created, updated, msgspec.json.decode(about, type=dict))
            except msgspec.DecodeError:
                log.error("a task that another hub has left is damaged")
        return None

    async def _load(self, statement: str, values: tuple[Any, ...]) -> list[Row]:
        try:
            async with asyncio.timeout(LOAD_SECONDS), self._reading:
                return await self._reader.run(statement, values)
        except TimeoutError:
            raise StorageFailed("PostgreSQL: it did not answer in time") from None

    # --- writing -------------------------------------------------------------------------------

    async def _keep_writing(self) -> None:
        pruned = 0.0
        while not self._is_closing or self._events or self._tasks:
            if not (self._events or self._tasks):
                try:
                    async with asyncio.timeout(PRUNE_SECONDS):
                        await self._wake.wait()
                except TimeoutError:
                    pass
            self._wake.clear()
            try:
                await self._write_batch()
                if time.monotonic() - pruned > PRUNE_SECONDS:
                    pruned = time.monotonic()
                    await self._writer.write(_PRUNE.format("events"), (EVENT_SECONDS,))
                    await self._writer.write(_PRUNE.format("tasks"), (TASK_SECONDS,))
            except StorageFailed as error:
                STORAGE_OUTAGE.note(f"what the heir of this hub may need is not stored: {error}")
                await asyncio.sleep(RETRY_SECONDS)
            if not self._is_closing:
                await asyncio.sleep(PAUSE_SECONDS)

    async def _write_batch(self) -> None:
        events: list[tuple[str, str, KeptEvent]] = []
        size = 0
        while self._events and size < BATCH_BYTES and len(events) < BATCH_ROWS:
            events.append(self._events.popleft())
            size += len(events[-1][2].data) + ROW_COST
        tasks = {id: row for id, row in self._tasks.items() if row is not None}
        dropped = [id for id, row in self._tasks.items() if row is None]
        taken = self._writing = self._tasks
        self._tasks = {}
        size += sum(len(row[5]) + ROW_COST for row in tasks.values())
        try:
            if events:
                rows = [(owner, stream, *_split(event)) for owner, stream, event in events]
                await self._writer.write(
                    _EVENTS, [list(column) for column in zip(*rows, strict=True)]
                )
            if tasks:
                columns = [list(column) for column in zip(*tasks.values(), strict=True)]
                await self._writer.write(_TASKS, columns)
            if dropped:
                await self._writer.write(_DROP_TASKS, (dropped,))
        except StorageFailed as error:
            if _is_about_data(error):
                log.error("%d rows for the heir of this hub are lost: %s", len(events), error)
                self._queued -= size
                self.dropped += len(events) + len(tasks)
                return
            self._events.extendleft(reversed(events))
            self._tasks = {**taken, **self._tasks}
            self._queued = sum(len(event.data) + ROW_COST for _, _, event in self._events)
            self._queued += sum(len(row[5]) + ROW_COST for row in self._tasks.values() if row)
            raise
        finally:
            self._writing = {}
            ended, self._batch_end = self._batch_end, self._batch_end.get_loop().create_future()
            resolve(ended, None)
        self._queued -= size
        self._kept += size
        self._written.append((time.monotonic(), size))


def _render_owner(owner: Principal) -> str:
    return json.dumps([owner.kind, owner.id, owner.org])  # ASCII, without control characters


def _is_about_data(error: StorageFailed) -> bool:
    """Whether the same rows would fail again."""
    import psycopg

    return isinstance(error.__cause__, psycopg.DataError | psycopg.ProgrammingError)


def _split(event: KeptEvent) -> tuple[int, bytes, bool]:
    # PostgreSQL has no larger integers; such a stream has lasted for years.
    return min(event.number, 2**31 - 1), event.data, event.is_last
