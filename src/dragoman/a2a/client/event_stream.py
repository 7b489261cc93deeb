"""Reads the event stream of an agent: bounded, paced, each event in the form of 1.0."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

from dragoman.a2a.client.endpoint import (
    STREAM_TYPE,
    AgentRequest,
    NotUnderstood,
    is_final,
    parse_result,
)
from dragoman.a2a.protocol.dialects.operations import STREAMING
from dragoman.core.errors import BadReply
from dragoman.core.read_pacing import LINES_AN_EVENT, Pace
from dragoman.wire import sse
from dragoman.wire.http import HttpReply
from dragoman.wire.json import MAX_BYTES, Malformed, decode_reply

MAX_STREAM = 256 * 1024 * 1024
MAX_EVENTS = 100_000
SENT_TOO_MUCH = f"sent more than {MAX_EVENTS} events or {MAX_STREAM >> 20} MB"
MAX_ID = 1_000
TURN = 16
"""Events that are read before other tasks of the hub run."""
BYTES_AN_EVENT = 16 * 1024
"""An event counts once more for each such number of bytes."""

TERMINAL = frozenset(
    f"TASK_STATE_{name}" for name in ("COMPLETED", "FAILED", "CANCELED", "REJECTED")
)
INTERRUPTED = frozenset(("TASK_STATE_INPUT_REQUIRED", "TASK_STATE_AUTH_REQUIRED"))


def read_state(task: Any) -> str:
    """Reads the state of a task or of a status update; empty if it has none."""
    status = task.get("status") if isinstance(task, dict) else None
    state = status.get("state") if isinstance(status, dict) else None
    return state if isinstance(state, str) else ""


def is_last(event: Mapping[str, Any]) -> bool:
    """Whether no event can follow: a message, or a terminal state of the task."""
    return "message" in event or any(
        read_state(event.get(member)) in TERMINAL for member in ("task", "statusUpdate")
    )


def find_task_id(event: Mapping[str, Any]) -> str:
    """Finds the id of the event's task; empty if the event names none."""
    for member, name in (("statusUpdate", "taskId"), ("artifactUpdate", "taskId"), ("task", "id")):
        if isinstance(said := event.get(member), dict):
            id = said.get(name)
            return id if isinstance(id, str) else ""
    return ""


Events = AsyncGenerator[tuple[str | None, dict[str, Any]], None]
"""Pairs of an event id, if there is one, and the event."""


class AgentEventStream:
    """An open stream of StreamResponse objects of 1.0."""

    def __init__(self, events: Events, reply: HttpReply | None = None) -> None:
        self.last_id: str | None = None
        """Id of the last event that had one: where to resume after a lost connection."""
        self._events = events
        self._reply = reply

    def __aiter__(self) -> AgentEventStream:
        return self

    async def __anext__(self) -> dict[str, Any]:
        id, event = await self._events.__anext__()
        if id is not None:
            self.last_id = id
        return event

    async def close(self) -> None:
        await self._events.aclose()
        if self._reply is not None:  # a generator that never ran closes nothing
            self._reply.body.close()


def is_stream(reply: HttpReply) -> bool:
    ok = 200 <= reply.status < 300
    return ok and reply.headers.get("content-type", "").lower().startswith(STREAM_TYPE)


async def yield_event(event: dict[str, Any]) -> Events:
    yield None, event


async def read_events(request: AgentRequest, reply: HttpReply, pace: Pace) -> Events:
    """Reads the events of a reply. `pace` is shared by all streams of the agent; pausing stops
    reading from the socket, so an agent that sends faster has to wait."""
    parser = sse.SseParser(MAX_BYTES)
    count = size = turn = 0
    own = ""
    try:
        async for piece in _read_pieces(reply):
            size += len(piece)
            turn += piece.count(b"\n") // LINES_AN_EVENT
            try:
                found = parser.feed(piece)
            except sse.EventTooLong as problem:
                raise BadReply(f"{request.endpoint} sent too much: {problem}") from None
            for event in found:
                count += 1
                if size > MAX_STREAM or count > MAX_EVENTS:
                    raise BadReply(f"{request.endpoint} {SENT_TOO_MUCH}")
                value, last = _parse_event(request, event)
                task = find_task_id(value)
                own = own or task
                if task != own and task:
                    continue  # of another task
                id = event.id if event.id and len(event.id) <= MAX_ID else None
                yield id if id and id.isascii() and id.isprintable() else None, value
                if last:
                    return
                turn += 1 + len(event.data) // BYTES_AN_EVENT
                if turn >= TURN:
                    await asyncio.sleep(pace.pause(turn))  # lets other tasks run
                    turn = 0
            if turn >= TURN:
                await asyncio.sleep(pace.pause(turn))
                turn = 0
    finally:
        reply.body.close()


async def _read_pieces(reply: HttpReply) -> AsyncIterator[bytes]:
    """Splits the body into pieces that each take little time to parse."""
    async for chunk in reply.body.chunks():
        for piece in sse.split_pieces(chunk):
            yield piece


def _parse_event(request: AgentRequest, event: sse.ServerEvent) -> tuple[dict[str, Any], bool]:
    """Parses one event, and tells whether it is the last."""
    try:
        value = decode_reply(event.data)
    except Malformed as problem:
        raise BadReply(f"{request.endpoint} sent an event that is not JSON: {problem}") from None
    try:
        read = parse_result(request, value)
    except NotUnderstood as problem:
        # Too late to be certain that nothing was done: the stream is open.
        raise BadReply(str(problem)) from None
    if not isinstance(read, dict):
        raise BadReply(f"{request.endpoint} sent an event that is not an object")
    return read, request.op not in STREAMING or is_last(read) or is_final(request, value)
