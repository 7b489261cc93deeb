"""The HTTP API: health, metrics, status, servers, tools. Described by `/openapi.json`."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import unquote

from dragoman.core.call import ABSENT, NOTHING, Result
from dragoman.core.errors import HubError, InvalidInput
from dragoman.core.hub import Hub
from dragoman.core.principal import Principal
from dragoman.core.tool import Nowhere, Tool
from dragoman.core.view import EVERYTHING
from dragoman.web.errors import status_of
from dragoman.web.openapi import document
from dragoman.wire.json import Malformed, decode, encode


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes
    content_type: str = "application/json"
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)


def problem(status: int, message: str, **more: Any) -> Response:
    return Response(status, encode({"error": {"message": message, **more}}))


def ok(value: Any) -> Response:
    return Response(200, encode(value))


class Sources(Protocol):
    """What the API tells of that is neither in the hub nor its own."""

    def ready(self) -> str | None:
        """None when ready, else what it is still waiting for."""

    def status(self) -> Mapping[str, Any]: ...

    def server_states(self) -> Mapping[str, Any]: ...

    def server_log(self, name: str) -> str | None: ...

    def metrics(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Request:
    principal: Principal | None
    names: tuple[str, ...]
    fields: Mapping[bytes, bytes]
    body: bytes


Respond = Callable[[Request], Awaitable[Response]]


class Api:
    def __init__(self, hub: Hub, sources: Sources, features: Mapping[str, Any] = NOTHING) -> None:
        """`features` are those of everybody who calls by this door; what more a caller can do, it
        says with its call."""
        self._hub = hub
        self._features = features
        self._sources = sources
        self._routes: list[tuple[str, re.Pattern[str], Respond]] = [
            (method, re.compile(path), respond)
            for method, path, respond in (
                ("GET", r"/healthz", self._healthz),
                ("GET", r"/readyz", self._readyz),
                ("GET", r"/metrics", self._metrics),
                ("GET", r"/openapi\.json", self._openapi),
                ("GET", r"/api/status", self._status),
                ("GET", r"/api/mcp/servers", self._servers),
                ("GET", r"/api/mcp/servers/([^/]+)/logs", self._server_log),
                ("GET", r"/api/tools", self._tools),
                ("GET", r"/api/tools/([^/]+)", self._tool),
                ("POST", r"/api/tools/([^/]+)/call", self._call),
            )
        ]

    async def respond(
        self,
        method: str,
        path: str,
        fields: Mapping[bytes, bytes],
        principal: Principal | None,
        body: bytes,
    ) -> Response:
        allowed = set()
        for wanted, pattern, respond in self._routes:
            match = pattern.fullmatch(path)
            if match is None:
                continue
            if wanted == method or (wanted == "GET" and method == "HEAD"):
                names = tuple(unquote(name) for name in match.groups())
                return await respond(Request(principal, names, fields, body))
            allowed.add(wanted)
        if allowed:
            allow = (b"allow", ", ".join(sorted(allowed)).encode())
            return Response(
                405, problem(405, f"use {' or '.join(sorted(allowed))}").body, headers=[allow]
            )
        return problem(404, "there is nothing here; see /openapi.json for what there is")

    async def _healthz(self, request: Request) -> Response:
        return Response(200, b"ok\n", "text/plain")

    async def _readyz(self, request: Request) -> Response:
        waiting = self._sources.ready()
        return Response(200, b"ready\n", "text/plain") if waiting is None else problem(503, waiting)

    async def _metrics(self, request: Request) -> Response:
        text = self._sources.metrics()
        return Response(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    async def _openapi(self, request: Request) -> Response:
        return ok(document())

    async def _status(self, request: Request) -> Response:
        return ok(self._sources.status())

    async def _servers(self, request: Request) -> Response:
        return ok(self._sources.server_states())

    async def _server_log(self, request: Request) -> Response:
        text = self._sources.server_log(request.names[0])
        if text is None:
            return problem(404, f'there is no server "{request.names[0]}"')
        return ok({"name": request.names[0], "stderr": text})

    async def _tools(self, request: Request) -> Response:
        assert request.principal is not None
        tools = self._hub.tools(request.principal, EVERYTHING)
        return ok({"tools": [self._summary(tool) for tool in tools], "total": len(tools)})

    async def _tool(self, request: Request) -> Response:
        tool = self._hub.catalog.find(request.names[0])
        if isinstance(tool.target, Nowhere):
            return _refusal(tool.target.error)
        return ok({**self._summary(tool), "definition": tool.definition})

    async def _call(self, request: Request) -> Response:
        assert request.principal is not None
        try:
            asked = _asked(request, self._features)
            result = await self._hub.call(
                request.principal,
                request.names[0],
                asked.arguments,
                door="api",
                view=EVERYTHING,
                features=asked.features or self._features,
                answers=asked.answers,
                handle=asked.handle,
            )
        except HubError as error:
            return _refusal(error)
        return ok(result_as_json(result))

    def _summary(self, tool: Tool) -> dict[str, Any]:
        return {
            "name": self._hub.catalog.shown(tool),
            "id": tool.name,
            "description": tool.description,
            "source": "mcp",
            "server": tool.target.name,
        }


def result_as_json(result: Result) -> dict[str, Any]:
    value: dict[str, Any] = {"content": list(result.content), "failed": result.failed}
    if result.structured is not ABSENT:
        value["structured"] = result.structured
    if result.extra:
        value["extra"] = result.extra
    if result.questions is not None:
        value["questions"] = {
            key: {"kind": question.kind, **question.body}
            for key, question in result.questions.items()
        }
        value["handle"] = result.handle
    return value


def _refusal(error: HubError) -> Response:
    response = problem(status_of(error), str(error), kind=error.kind, trace=error.trace)
    if response.status == 503:
        response.headers.append((b"retry-after", b"1"))
    return response


CAN_BE_ASKED = ("form", "url")
"""The kinds of questions that a person at a program can answer."""


@dataclass(frozen=True)
class Asked:
    """The body of a call."""

    arguments: dict[str, Any]
    features: dict[str, Any]
    answers: dict[str, Any] | None
    handle: str | None


_SHAPE = (
    'the body must be {"arguments": {…}}, with "can" (a list of "form" and "url") where questions '
    'can be answered, and "answers" and "handle" where they are'
)


def _asked(request: Request, more: Mapping[str, Any]) -> Asked:
    if not request.fields.get(b"content-type", b"").startswith(b"application/json"):
        raise InvalidInput('send {"arguments": {…}} as content-type application/json')
    try:
        given = decode(request.body) if request.body.strip() else {}
    except Malformed as error:
        raise InvalidInput(str(error)) from None
    if not isinstance(given, dict) or given.keys() - {"arguments", "can", "answers", "handle"}:
        raise InvalidInput(_SHAPE)
    arguments, can = given.get("arguments", {}), given.get("can", [])
    answers, handle = given.get("answers"), given.get("handle")
    if (
        not isinstance(arguments, dict)
        or not isinstance(can, list)
        or any(kind not in CAN_BE_ASKED for kind in can)
        or not isinstance(answers, dict | None)
        or not isinstance(handle, str | None)
        or (answers is None) != (handle is None)
    ):
        raise InvalidInput(_SHAPE)
    features = {**more, "elicitation": {kind: {} for kind in can}} if can else {}
    return Asked(arguments, features, answers, handle)
