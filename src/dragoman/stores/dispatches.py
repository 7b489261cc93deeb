"""Dispatches: every call of a registered agent's skill, and every call whose agent the hub has
chosen, in `dispatches.db` of the hub's home.

Running dispatches are in memory, where the load of each agent is counted. Ended dispatches are
written in groups, by a thread in which all of this database is used: no call waits for it. A crash
loses the last group; the audit has those calls.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import sqlite3
from binascii import Error as NotBase64
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from dragoman.core import event_payloads as payloads
from dragoman.core.bus import Bus
from dragoman.core.call import RoutedBy
from dragoman.core.errors import InvalidInput, Overloaded, ShuttingDown, StorageFailed
from dragoman.core.events import PostVerb, PreVerb
from dragoman.core.logs import render_time
from dragoman.core.principal import Principal
from dragoman.core.redaction import select_numbers, shorten
from dragoman.core.tool import Tool
from dragoman.core.trace import Trace
from dragoman.stores.database import StorePlace, StoreTables, open_database

log = logging.getLogger(__name__)

DATABASE = "dispatches.db"
WRITE_SECONDS, AGAIN_SECONDS = 0.1, 1.0
MAX_UNWRITTEN = 10_000
"""Where the database cannot be written, so many are kept for when it can; the oldest go first."""
BUSY_SECONDS = 0.5
MAX_FINDING = 8
"""Who look for some at once; further ones are refused."""

RUNNING, COMPLETED, ASKED, PARKED, FAILED_STATUS, DENIED, CANCELLED = STATUSES = (
    "running", "completed", "asked", "parked", "failed", "denied", "cancelled",
)  # fmt: skip
"""`asked`: the agent has asked something, and the answer comes with a dispatch of its own; and so
does the outcome of a task that is `parked`."""
EXPLICIT, ROUTED = KINDS = ("explicit", "routed")
ALL = "*"
"""Of all callers: no caller's label is this."""

T = TypeVar("T")

MIGRATIONS = (
    """
CREATE TABLE dispatches (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL, org TEXT NOT NULL, agent_id TEXT NOT NULL, agent TEXT NOT NULL,
    skill TEXT NOT NULL, verb TEXT NOT NULL, asked_as TEXT NOT NULL, task TEXT,
    trace TEXT NOT NULL, session TEXT NOT NULL, caller TEXT NOT NULL, behalf TEXT,
    status TEXT NOT NULL, kind TEXT NOT NULL, started REAL NOT NULL, completed REAL,
    latency REAL, code INTEGER, usage TEXT
) STRICT;
CREATE INDEX dispatches_by_time ON dispatches (started);
""",
    """
ALTER TABLE dispatches ADD COLUMN work_type TEXT;
ALTER TABLE dispatches ADD COLUMN decision TEXT;
""",
)
TABLES = StoreTables("dispatches", DATABASE, MIGRATIONS)


@dataclass(slots=True)
class Dispatch:
    """One of them: its fields are the columns. Changed once, at its end."""

    id: str
    org: str
    agent_id: str
    agent: str
    skill: str
    verb: str
    asked_as: str
    task: str | None
    trace: str
    session: str
    caller: str
    behalf: str | None
    status: str
    kind: str
    started: float
    completed: float | None = None
    latency: float | None = None
    code: int | None = None
    usage: str | None = None
    work_type: str | None = None
    decision: str | None = None
    """That of the router; None if the caller named the agent."""


DispatchEnd = tuple[str, int | None, float, float, Any, Any]
"""Status, code, when, after how many ms, the remote task's name, and what it took."""


@dataclass(slots=True)
class ObservedCall:
    """The data for a dispatch that is built later: the call must not wait for it, and its arguments
    and result must not be kept."""

    tool: Tool
    caller: Principal
    trace: Trace
    asked_as: str
    started: float
    routed: RoutedBy | None
    end: DispatchEnd | None = None


COLUMNS = tuple(Dispatch.__dataclass_fields__)
_row = attrgetter(*COLUMNS)
AT_ONCE = 64
"""Rows of one statement: between two of them the thread asks for its turn among the others."""


def _insert(rows: int) -> str:
    row = f"({', '.join('?' for _ in COLUMNS)})"
    return f"INSERT INTO dispatches ({', '.join(COLUMNS)}) VALUES {', '.join([row] * rows)}"


_INSERT, _INSERT_MANY = _insert(1), _insert(AT_ONCE)
_PRUNE = "DELETE FROM dispatches WHERE seq <= (SELECT max(seq) FROM dispatches) - ?"


EXACT = ("agent_id", "agent", "status", "kind", "session", "id", "decision")
"""The columns that a filter compares as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchFilter:
    """Which ones. Whose, must be said: a caller's label, or `ALL`."""

    org: str
    caller: str
    agent_id: str | None = None
    agent: str | None = None
    status: str | None = None
    kind: str | None = None
    session: str | None = None
    id: str | None = None
    decision: str | None = None
    since: float | None = None
    until: float | None = None
    before: tuple[float, str] | None = None
    """When the last one that was seen began, and its id."""

    def includes(self, one: Dispatch) -> bool:
        exact = (getattr(self, name) for name in EXACT)
        its = (getattr(one, name) for name in EXACT)
        return (
            one.org == self.org
            and self.caller in (ALL, one.caller)
            and all(want in (None, has) for want, has in zip(exact, its, strict=True))
            and (self.since is None or one.started >= self.since)
            and (self.until is None or one.started < self.until)
            and (self.before is None or (one.started, one.id) < self.before)
        )

    def query(self, limit: int) -> tuple[str, list[Any]]:
        tests: list[tuple[str, Any]] = [("org = ?", self.org)]
        if self.caller != ALL:
            tests.append(("caller = ?", self.caller))
        for name in EXACT:
            if (value := getattr(self, name)) is not None:
                tests.append((f"{name} = ?", value))
        if self.since is not None:
            tests.append(("started >= ?", self.since))
        if self.until is not None:
            tests.append(("started < ?", self.until))
        where, values = " AND ".join(test for test, _ in tests), [value for _, value in tests]
        if self.before is not None:
            where += " AND (started, id) < (?, ?)"
            values += self.before
        return (
            f"SELECT {', '.join(COLUMNS)} FROM dispatches WHERE {where} "
            "ORDER BY started DESC, id DESC LIMIT ?",
            [*values, limit],
        )


class DispatchStore:
    """Used by the thread of the loop; its own thread is used for the database alone."""

    def __init__(self, place: StorePlace, keep: int) -> None:
        self._keep = keep
        self._open: dict[str, ObservedCall] = {}
        """By the spans of their calls."""
        self._active: dict[str, int] = {}
        self._unwritten: deque[ObservedCall] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None
        self._failing = False
        self._closed = False
        self._finding = 0
        self.groups = 0
        """Transactions so far."""
        self.lost = 0
        """Ended, and never written."""
        self._thread = ThreadPoolExecutor(1, "dispatches")
        try:
            opened = self._thread.submit(open_database, place, TABLES, busy_seconds=BUSY_SECONDS)
            self._base = opened.result()
            self._db = self._base.db
        except BaseException:
            self._thread.shutdown()
            raise

    def observe(self, bus: Bus) -> None:
        name = "the observer that keeps dispatches"
        bus.observe(PreVerb, self._record_start, name, agents_only=True)
        bus.observe(PostVerb, self._record_end, name)

    def count_active(self, agent: str) -> int:
        """Returns the number of running dispatches of an agent."""
        return self._active.get(agent, 0)

    # --- from the bus -----------------------------------------------------------------------------

    def _record_start(self, event: PreVerb) -> None:
        call = event.call
        if call.tool.bridged is None and call.routed is None:
            return
        self._open[call.trace.span] = ObservedCall(
            call.tool, call.principal, call.trace, call.requested_name, event.at, call.routed
        )
        agent = call.tool.target.name
        self._active[agent] = self._active.get(agent, 0) + 1

    def _record_end(self, event: PostVerb) -> None:
        call = event.call
        if call.tool.bridged is None and call.routed is None:
            return
        agent = call.tool.target.name
        seen = self._open.pop(call.trace.span, None)
        if seen is None:  # refused before it was announced
            started = event.at - event.duration_ms / 1000
            seen = ObservedCall(
                call.tool, call.principal, call.trace, call.requested_name, started, call.routed
            )
        elif (left := self._active[agent] - 1) > 0:
            self._active[agent] = left
        else:
            del self._active[agent]
        status, code = _status_from_event(event)
        notes = call.notes
        seen.end = status, code, event.at, event.duration_ms, notes.remote_task, notes.usage
        self._unwritten.append(seen)
        self._drop_oldest()
        self._schedule_write(WRITE_SECONDS)

    # --- the database -----------------------------------------------------------------------------

    def _schedule_write(self, seconds: float) -> None:
        if self._timer is None and self._writing is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._write)

    def _write(self) -> None:
        """Hands all that has ended to the thread, as one transaction; one at a time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        group = list(self._unwritten)
        self._unwritten.clear()
        self._writing = self._in_thread(lambda: self._insert(group))
        self._writing.add_done_callback(lambda done: self._finish_write(group, done))

    def _insert(self, group: Sequence[ObservedCall]) -> None:
        rows = [_row(_dispatch_from_call(seen)) for seen in group]
        self._base.check()
        with self._base.writer.transaction():
            whole = len(rows) - len(rows) % AT_ONCE
            for start in range(0, whole, AT_ONCE):
                values = chain.from_iterable(rows[start : start + AT_ONCE])
                self._db.execute(_INSERT_MANY, tuple(values))
            self._db.executemany(_INSERT, rows[whole:])
            self._db.execute(_PRUNE, (self._keep,))

    def _finish_write(self, group: list[ObservedCall], done: asyncio.Future[None]) -> None:
        self._writing = None
        error = done.exception()
        if error is None:
            self.groups += 1
        else:
            if not self._failing:
                log.error("dispatches cannot be written, which is tried again: %s", error)
            self._unwritten.extendleft(reversed(group))
            self._drop_oldest()
        self._failing = error is not None
        if self._unwritten:
            self._schedule_write(AGAIN_SECONDS if self._failing else WRITE_SECONDS)

    def _drop_oldest(self) -> None:
        while len(self._unwritten) > MAX_UNWRITTEN:
            self._unwritten.popleft()
            self.lost += 1

    async def find(
        self, limit: int, cursor: str | None, **wanted: Any
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Finds up to `limit` dispatches, newest first, and the cursor of the next page. `wanted`
        are the fields of `DispatchFilter`."""
        want = DispatchFilter(
            **wanted, before=_decode_cursor(cursor) if cursor is not None else None
        )
        if self._closed:
            raise ShuttingDown("the hub is shutting down; try again later")
        if self._finding >= MAX_FINDING:  # writes would wait behind them
            raise Overloaded("too many queries for dispatches; try again shortly")
        self._finding += 1
        try:
            return await self._find(limit, want)
        finally:
            self._finding -= 1

    async def _find(
        self, limit: int, want: DispatchFilter
    ) -> tuple[list[dict[str, Any]], str | None]:
        # What is being written now is so before the thread reads: each of them is there once.
        here = map(_dispatch_from_call, (*self._open.values(), *self._unwritten))
        found = [one for one in here if want.includes(one)]
        query, values = want.query(limit + 1)
        try:
            rows = await self._in_thread(lambda: self._db.execute(query, values).fetchall())
        except sqlite3.Error as error:
            raise StorageFailed(f'"{self._base.name}" cannot be read ({error})') from error
        found += [Dispatch(*row) for row in rows]
        found.sort(key=lambda one: (one.started, one.id), reverse=True)
        more = _encode_cursor(found[limit - 1]) if len(found) > limit else None
        return [_render(one) for one in found[:limit]], more

    def _in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def close(self) -> None:
        """What has ended is written; what has not is in the audit."""
        if self._closed:
            return
        self._closed = True
        await self._wait_until_written()
        if self._unwritten:
            self._write()
            await self._wait_until_written()
        self.lost += len(self._unwritten)
        if self.lost:
            log.error("%d dispatches could not be written; the audit has them", self.lost)
        await self._in_thread(self._base.close)
        self._thread.shutdown()

    async def _wait_until_written(self) -> None:
        while self._writing is not None:
            await asyncio.wait([self._writing])
            await asyncio.sleep(0)  # what is done when it is done is still to come


def _dispatch_from_call(seen: ObservedCall) -> Dispatch:
    tool, caller, trace, routed = seen.tool, seen.caller, seen.trace, seen.routed
    bridged = tool.bridged
    agent_id = bridged.card_id if bridged is not None else routed.agent_id if routed else ""
    # Not the span itself: a caller that knows it could join the chain.
    id = blake2b(trace.span.encode(), digest_size=16).hexdigest()
    one = Dispatch(
        id,
        caller.org,
        agent_id,
        tool.target.name,
        bridged.skill_id if bridged is not None else "",
        tool.name,
        shorten(seen.asked_as),
        None,
        trace.id,
        payloads.session_id_from_trace(tool, trace),
        caller.label,
        trace.origin or caller.behalf or None,
        RUNNING,
        EXPLICIT if routed is None else ROUTED,
        seen.started,
    )
    if routed is not None:
        one.work_type, one.decision = routed.work_type, routed.decision
    if seen.end is not None:
        one.status, one.code, one.completed, latency, task, usage = seen.end
        one.latency = round(latency, 3)
        one.task = shorten(str(task)) if task is not None else None
        if usage and (counted := select_numbers(usage)):
            one.usage = msgspec.json.encode(counted).decode()
    return one


def _status_from_event(event: PostVerb) -> tuple[str, int | None]:
    result, error = event.result, event.error
    if error is not None:
        status = DENIED if payloads.is_denied(event.call, error) else FAILED_STATUS
        return status, payloads.find_code(error)
    if result is None and event.cancelled:
        return CANCELLED, payloads.CANCELLED
    if result is None:
        return FAILED_STATUS, payloads.CRASHED
    if result.failed:
        return FAILED_STATUS, payloads.FAILED
    if result.unfinished:
        return PARKED, None
    return ASKED if result.questions else COMPLETED, None


def _render(one: Dispatch) -> dict[str, Any]:
    usage = msgspec.json.decode(one.usage) if one.usage else None
    return {
        "dispatchId": one.id,
        "agentId": one.agent_id or None,
        "agentName": one.agent,
        "skillId": one.skill or None,
        "verb": one.verb,
        "askedAs": one.asked_as,
        "taskId": one.task,
        "traceId": one.trace,
        "sessionId": one.session,
        "caller": one.caller,
        "onBehalfOf": one.behalf,
        "status": one.status,
        "kind": one.kind,
        "workType": one.work_type,
        "decisionId": one.decision,
        "startedAt": render_time(one.started),
        "completedAt": render_time(one.completed) if one.completed is not None else None,
        "latencyMs": one.latency,
        "errorCode": one.code,
        "costTokens": _count_tokens(usage) if usage else None,
        "usage": usage,
    }


TOTALS = ("totalTokens", "total_tokens", "tokens")
PARTS = (("inputTokens", "outputTokens"), ("input_tokens", "output_tokens"),
         ("promptTokens", "completionTokens"), ("prompt_tokens", "completion_tokens"))  # fmt: skip
"""What agents call it."""


def _count_tokens(usage: Mapping[str, float]) -> float | None:
    for name in TOTALS:
        if name in usage:
            return usage[name]
    for names in PARTS:
        if any(name in usage for name in names):
            return sum(usage.get(name, 0) for name in names)
    return None


def _encode_cursor(one: Dispatch) -> str:
    return base64.urlsafe_b64encode(f"{one.started!r} {one.id}".encode()).decode().rstrip("=")


def _decode_cursor(cursor: str) -> tuple[float, str]:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        started, _, id = text.partition(" ")
        return float(started), id
    except (NotBase64, ValueError):
        raise InvalidInput("there is no such cursor; begin without one") from None
