"""The routes of 0.1: `POST /tasks/send` and its like, answered with a bare task.

A body is the JSON-RPC of `tasks/send`, or its parameters alone. What python-a2a's clients send is
recognised by its path or shape and answered in their form. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from dragoman.a2a.protocol.dialects import operations, python_a2a, v01
from dragoman.a2a.protocol.errors import A2aError, invalid
from dragoman.a2a.server.task_stream import TaskStream
from dragoman.core.structs import Struct
from dragoman.wire import sse
from dragoman.wire.json import encode

SENDS = {"/tasks/send": operations.SEND, "/tasks/sendSubscribe": operations.STREAM}
PYTHON_A2A_PATHS = {path: op for path, op in python_a2a.PATHS.items() if path not in SENDS}
"""Paths that only python-a2a's clients post to."""
_TASK = re.compile(r"/tasks/([^/:]+)")
_CANCEL = re.compile(r"/tasks/([^/:]+)/cancel")

DIALECT = v01

EncodeEvent = Callable[[TaskStream, int, Any, bool], bytes]
"""Encodes an event for a stream: the stream, its number, the event, whether it is the last. May
return nothing."""


def render_failure(error: A2aError) -> tuple[int, dict[str, Any]]:
    """The status and the body of an error, as clients of the legacy routes read it."""
    status = 409 if error.reason == "TASK_NOT_CANCELABLE" else error.codes.http
    return status, {"error": error.message}


class LegacyRequest(Struct, frozen=True):
    op: str
    request: dict[str, Any]
    render_answer: Callable[[dict[str, Any]], Any]
    encode_event: EncodeEvent
    render_failure: Callable[[A2aError], tuple[int, dict[str, Any]]] = render_failure


def is_route(method: str, path: str) -> bool:
    if method == "POST":
        return path in SENDS or path in PYTHON_A2A_PATHS or _CANCEL.fullmatch(path) is not None
    return method == "GET" and _TASK.fullmatch(path) is not None


def parse_request(method: str, path: str, body: Any) -> LegacyRequest:
    """For a path that `is_route`."""
    if path in PYTHON_A2A_PATHS:
        return _parse_python_a2a(PYTHON_A2A_PATHS[path], body, chunks=path == "/stream")
    if path in SENDS:
        if not isinstance(body, dict):
            raise invalid("message", "is required: send a message to the agent")
        params = body.get("params") if "jsonrpc" in body or "params" in body else body
        if python_a2a.is_python_a2a(params):
            return _parse_python_a2a(SENDS[path], body, chunks=False)
        op = SENDS[path]
        id = body.get("id") if "jsonrpc" in body else None

        def encode_event(stream: TaskStream, number: int, event: Any, final: bool) -> bytes:
            out: Any = v01.render_event(event, final=final)
            if "jsonrpc" in body:
                out = {"jsonrpc": "2.0", "id": id, "result": out}
            return sse.encode_event(encode(out), id=str(number))

        return LegacyRequest(op, v01.parse_params(op, params), _render_sent, encode_event)
    if method == "GET":
        match, op = _TASK.fullmatch(path), operations.GET
    else:
        match, op = _CANCEL.fullmatch(path), operations.CANCEL
    assert match is not None
    request = v01.parse_params(op, {"id": unquote(match[1])})
    return LegacyRequest(op, request, v01.render_bare_task, _reject_event)


def parse_bare_request(body: Any) -> LegacyRequest | None:
    """A body that was posted to an agent without an envelope; None for an unknown form."""
    if not isinstance(body, dict) or python_a2a.find_form(body) is None:
        return None
    return _parse_python_a2a(operations.SEND, body, chunks=False)


def _parse_python_a2a(op: str, body: Any, *, chunks: bool) -> LegacyRequest:
    if not isinstance(body, dict):
        raise invalid("message", "is required: send a message to the agent")
    wrapped = "jsonrpc" in body
    given: Any = body.get("params") if wrapped else body
    reader = v01.parse_params if wrapped else python_a2a.parse_params
    request = reader(op, given)

    def answer(value: dict[str, Any]) -> Any:
        if not wrapped:
            form = python_a2a.find_form(body)
            held = value if op == operations.SEND else {"task": value}
            return python_a2a.render_rest_answer(form, body, held)
        result = python_a2a.render_result(op, value)
        return {"jsonrpc": "2.0", "id": body.get("id"), "result": result}

    def fail(error: A2aError) -> tuple[int, dict[str, Any]]:
        status, shown = python_a2a.render_error(error)
        if wrapped:
            return status, {"jsonrpc": "2.0", "id": body.get("id"), "error": shown}
        return status, {"error": shown}

    def encode_event(stream: TaskStream, number: int, event: Any, final: bool) -> bytes:
        if chunks:
            chunk = python_a2a.render_chunk(event, final=final)
            return sse.encode_event(encode(chunk), id=str(number)) if chunk is not None else b""
        if number < stream.number:
            return b""  # each event is the whole task, and the next one includes this
        task = stream.render_task() or v01.task_from_message(event)
        name, data = python_a2a.render_event(task, final=final)
        return sse.encode_event(encode(data), name=name, id=str(number))

    return LegacyRequest(op, request, answer, encode_event, fail)


def _render_sent(answer: Mapping[str, Any]) -> dict[str, Any]:
    return v01.render_bare_task(
        answer["task"] if "task" in answer else v01.task_from_message(answer)
    )


def _reject_event(stream: TaskStream, number: int, event: Any, final: bool) -> bytes:
    raise NotImplementedError
