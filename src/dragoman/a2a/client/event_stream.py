"""What an agent says while it works: a stream of events, each read in the words of 1.0. Bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

from dragoman.a2a.client.endpoint import (
    STREAM_TYPE,
    Endpoint,
    NotUnderstood,
    is_final,
    parse_result,
)
from dragoman.a2a.protocol.dialects.operations import STREAMING
from dragoman.core.errors import BadReply
from dragoman.core.ports import Reply
from dragoman.core.read_pacing import LINES_AN_EVENT, Pace
from dragoman.wire import sse
from dragoman.wire.json import MAX_BYTES, Malformed, decode_reply

MAX_STREAM = 256 * 1024 * 1024
MAX_EVENTS = 100_000
MAX_ID = 1_000
TURN = 16
"""Events that are read before everybody else in the hub has a turn."""
PIECE = 16 * 1024
"""Bytes that are parsed at once."""
BYTES_AN_EVENT = 16 * 1024
"""So many bytes of one event count as another one."""

TERMINAL = frozenset(
    f"TASK_STATE_{name}" for name in ("COMPLETED", "FAILED", "CANCELED", "REJECTED")
)
INTERRUPTED = frozenset(("TASK_STATE_INPUT_REQUIRED", "TASK_STATE_AUTH_REQUIRED"))


def read_state(task: Any) -> str:
    """Of a task or of an update of its status."""
    status = task.get("status") if isinstance(task, dict) else None
    state = status.get("state") if isinstance(status, dict) else None
    return state if isinstance(state, str) else ""


def is_last(event: Mapping[str, Any]) -> bool:
    """Whether nothing can follow it: an answer of words, or the end of a task."""
    return "message" in event or any(
        read_state(event.get(member)) in TERMINAL for member in ("task", "statusUpdate")
    )


def find_task_id(event: Mapping[str, Any]) -> str:
    """The task that an event is of; empty where it names none."""
    for member, name in (("statusUpdate", "taskId"), ("artifactUpdate", "taskId"), ("task", "id")):
        if isinstance(said := event.get(member), dict):
            id = said.get(name)
            return id if isinstance(id, str) else ""
    return ""


Events = AsyncGenerator[tuple[str | None, dict[str, Any]], None]
"""With the id of each, where it has one."""


class EventStream:
    """What comes of a message while it is worked on: 1.0's StreamResponse objects."""

    def __init__(self, events: Events, reply: Reply | None = None) -> None:
        self.last_id: str | None = None
        """Of the last event that had one: where to go on when the line breaks."""
        self._events = events
        self._reply = reply

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> dict[str, Any]:
        id, event = await self._events.__anext__()
        if id is not None:
            self.last_id = id
        return event

    async def close(self) -> None:
        await self._events.aclose()
        if self._reply is not None:  # a generator that never began has closed nothing
            self._reply.body.close()


def is_stream(reply: Reply) -> bool:
    ok = 200 <= reply.status < 300
    return ok and reply.headers.get("content-type", "").lower().startswith(STREAM_TYPE)


async def yield_event(event: dict[str, Any]) -> Events:
    yield None, event


async def read_events(endpoint: Endpoint, op: str, reply: Reply, pace: Pace) -> Events:
    """`pace` is that of the agent: all of its streams together are read no faster. Nothing else is
    read of the socket meanwhile, so an agent that sends more has to wait."""
    parser = sse.Parser(MAX_BYTES)
    count = size = turn = 0
    own = ""
    try:
        async for piece in _read_pieces(reply):
            size += len(piece)
            turn += piece.count(b"\n") // LINES_AN_EVENT
            try:
                found = parser.feed(piece)
            except sse.TooLong as problem:
                raise BadReply(f"{endpoint} sent too much: {problem}") from None
            for event in found:
                count += 1
                if size > MAX_STREAM or count > MAX_EVENTS:
                    raise BadReply(
                        f"{endpoint} sent more than {MAX_EVENTS} events or {MAX_STREAM >> 20} MB"
                    )
                value, last = _parse_event(endpoint, op, event)
                task = find_task_id(value)
                own = own or task
                if task != own and task:
                    continue  # of another task, whose end is not this one's
                id = event.id if event.id and len(event.id) <= MAX_ID else None
                yield id if id and id.isascii() and id.isprintable() else None, value
                if last:
                    return
                turn += 1 + len(event.data) // BYTES_AN_EVENT
                if turn >= TURN:
                    await asyncio.sleep(pace.pause(turn))  # others have theirs
                    turn = 0
            if turn >= TURN:
                await asyncio.sleep(pace.pause(turn))
                turn = 0
    finally:
        reply.body.close()


async def _read_pieces(reply: Reply) -> AsyncIterator[bytes]:
    """The body in pieces that are parsed in a moment."""
    async for chunk in reply.body.chunks():
        if len(chunk) <= PIECE:
            yield chunk
        else:
            for at in range(0, len(chunk), PIECE):
                yield chunk[at : at + PIECE]


def _parse_event(
    endpoint: Endpoint, op: str, event: sse.ServerEvent
) -> tuple[dict[str, Any], bool]:
    """The event, and whether it is the last."""
    try:
        value = decode_reply(event.data)
    except Malformed as problem:
        raise BadReply(f"{endpoint} sent an event that is no JSON: {problem}") from None
    try:
        read = parse_result(endpoint, op, value)
    except NotUnderstood as problem:
        # Into an open stream that says so too late to be certain.
        raise BadReply(str(problem)) from None
    if not isinstance(read, dict):
        raise BadReply(f"{endpoint} sent an event that is no object")
    return read, op not in STREAMING or is_last(read) or is_final(endpoint, op, value)
