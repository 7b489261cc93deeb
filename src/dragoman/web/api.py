"""The HTTP API: health, metrics, status, servers, tools. `/openapi.json` describes it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import unquote

from msgspec import Raw

from dragoman.core.access import require_scope
from dragoman.core.call import (
    ABSENT,
    NO_UPDATES,
    NOTHING,
    Result,
    Updates,
    WantedUpdates,
    discard_update,
)
from dragoman.core.errors import (
    ApprovalPending,
    AuthorizationError,
    HubError,
    InsufficientScope,
    InvalidInput,
    LoginRequired,
    NotFound,
    RateLimited,
    Refused,
)
from dragoman.core.hub import CallOptions, Hub
from dragoman.core.logs import render_time
from dragoman.core.principal import Principal
from dragoman.core.scopes import ADMIN, ADMIN_RIGHTS, METRICS, REGISTRY
from dragoman.core.structs import replace
from dragoman.core.tool import Nowhere
from dragoman.core.tool_filter import EVERYTHING
from dragoman.core.tool_identity import KEY_META
from dragoman.core.trace import parse_trace
from dragoman.core.urls import parse_query
from dragoman.web.errors import find_status
from dragoman.web.openapi import Operation, admin_route, build_document, list_routes, route
from dragoman.web.openapi_schemas import QUERY_FLAG, TEXT, Schema
from dragoman.web.tool_listing import (
    ToolListing,
    ToolListings,
    ToolQuery,
    estimate_cost,
    summarize_tool,
)
from dragoman.wire.http import build_retry_after
from dragoman.wire.json import Malformed, decode, encode


@dataclass(frozen=True, slots=True)
class ApiResponse:
    status: int
    body: bytes
    content_type: str = "application/json"
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)


def build_error(
    status: int, message: str, *headers: tuple[bytes, bytes], **more: Any
) -> ApiResponse:
    body = encode({"error": {"message": message, **more}})
    return ApiResponse(status, body, headers=[*headers])


def build_response(value: Any) -> ApiResponse:
    return ApiResponse(200, encode(value))


NO_SNIFF = (b"x-content-type-options", b"nosniff")
PROGRESS = WantedUpdates(progress=True, tool_steps=True)
CALL_ERRORS = (400, 403, 404, 409, 502, 503, 504)
MAX_PAGE = 1_000
MAX_WORDS = 20
MAX_PARAMETER = 500
PAGE_QUERY: Mapping[str, Schema] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE},
    "cursor": {"type": "string", "description": "The nextCursor of the page before."},
}
TOOL_SOURCES = ("mcp", "a2a", "agent")
TOOL_QUERY: Mapping[str, Schema] = {
    "q": {"type": "string", "description": "Words that its name or description contains."},
    "server": TEXT,
    "source": {"enum": list(TOOL_SOURCES)},
    "sort": {"enum": ["name", "server", "tokens", "-name", "-server", "-tokens"]},
    **PAGE_QUERY,
}
FLAGS = {"0": False, "1": True, "false": False, "true": True}
PUBLIC_STATUS = frozenset({"version", "mode", "started_at", "uptime_secs"})
"""The members of the status for principals without `admin`."""


class StatusSource(Protocol):
    """Data of the API that comes neither from the hub nor from the API itself."""

    def ready(self) -> str | None:
        """Returns None when ready, otherwise the reason."""

    async def status(self) -> Mapping[str, Any]: ...

    def server_states(self) -> Mapping[str, Any]:
        """Returns the states of the servers, without their tools."""

    def server_log(self, name: str) -> str | None: ...

    def metrics(self) -> str: ...

    def note_denied(self, principal: Principal | None, what: str) -> None:
        """Records a request that needs `admin` and was denied."""


class ApiCall(Protocol):
    """What the API reads of a request: of a client, or of a page of the console."""

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def query(self) -> bytes: ...

    @property
    def fields(self) -> Mapping[bytes, bytes]: ...

    @property
    def body(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class ApiRequest:
    principal: Principal | None
    names: tuple[str, ...]
    fields: Mapping[bytes, bytes]
    body: bytes
    query: Mapping[str, str]
    updates: Updates | None = None
    """Receives the updates of a call; None if the client wants none."""

    @property
    def caller(self) -> Principal:
        """The principal, which only requests for public paths lack."""
        assert self.principal is not None
        return self.principal


WELCOME_TEXT = b"""This is a Dragoman hub: MCP servers and A2A agents behind one endpoint.

MCP clients     /mcp (Streamable HTTP)
HTTP API        /openapi.json describes it
on the machine  dragoman status, dragoman servers, dragoman docs
"""
"""For a browser that opens the hub's URL."""
WELCOME_PAGE = (
    b"<!doctype html><meta charset=utf-8><title>Dragoman</title>\n<pre>"
    + WELCOME_TEXT.replace(b"/openapi.json", b"<a href=/openapi.json>/openapi.json</a>")
    + b"</pre>\n"
)


Respond = Callable[[ApiRequest], Awaitable[ApiResponse]]


class Api:
    def __init__(
        self,
        hub: Hub,
        sources: StatusSource,
        features: Mapping[str, Any] = NOTHING,
        parts: Sequence[object] = (),
    ) -> None:
        """`features` are the capabilities of every client of the API; a call may declare more.
        `parts` have modules of their own; their handlers are marked with `route` too."""
        self._hub = hub
        self.limiter = hub.limiter
        self._features = features
        self._sources = sources
        self._listings = ToolListings(hub)
        routes = [route for part in (self, *parts) for route in list_routes(part)]
        routes.sort(key=lambda route: "{name}" in route[0].path)  # exact paths first
        self.operations = [operation for operation, _ in routes]
        self._routes: list[tuple[Operation, re.Pattern[str], Respond]] = [
            (operation, re.compile(operation.pattern), respond) for operation, respond in routes
        ]

    async def respond(
        self, request: ApiCall, principal: Principal | None, updates: Updates | None = None
    ) -> ApiResponse:
        method, path = request.method, request.path
        allowed: set[str] = set()
        matched = ""
        for operation, pattern, respond in self._routes:
            match = pattern.fullmatch(path)
            if match is None or matched not in ("", operation.path):
                continue  # `/api/policies/test` is no policy file
            matched = operation.path
            wanted = operation.method
            if wanted == method or (wanted == "GET" and method == "HEAD"):
                names = tuple(unquote(name) for name in match.groups())
                try:
                    if principal is not None and not operation.calls:
                        charged = self.limiter.charge(
                            principal, operation.charge, f"{method} {path}"
                        )
                        if charged is not None:
                            await charged
                    if operation.right:
                        require_right(self._hub, principal, operation.right)
                    if len(request.body) > (most := operation.body_bytes):
                        return build_error(413, f"the body is too large: at most {most} bytes")
                    query = decode_query(request.query)
                    _refuse_empty(query, operation.query)
                    return await respond(
                        ApiRequest(principal, names, request.fields, request.body, query, updates)
                    )
                except HubError as error:
                    if isinstance(error, AuthorizationError):
                        self._sources.note_denied(principal, f"{method} {path}")
                    return response_from_error(error)
            allowed.add(wanted)
        if allowed:
            allow = (b"allow", ", ".join(sorted(allowed)).encode())
            return build_error(405, f"use {' or '.join(sorted(allowed))}", allow)
        return build_error(404, "not found; see /openapi.json for the available paths")

    @route(
        "GET /", "What this is, as text", answer=None, media=("text/plain", "text/html"), right=""
    )
    async def _get_welcome(self, request: ApiRequest) -> ApiResponse:
        if b"text/html" in request.fields.get(b"accept", b""):
            policy = (b"content-security-policy", b"default-src 'none'")
            return ApiResponse(200, WELCOME_PAGE, "text/html; charset=utf-8", headers=[policy])
        return ApiResponse(200, WELCOME_TEXT, "text/plain; charset=utf-8")

    @route("GET /healthz", "Whether the hub is alive", answer=None, right="")
    async def _get_healthz(self, request: ApiRequest) -> ApiResponse:
        return ApiResponse(200, b"ok\n", "text/plain")

    @route("GET /readyz", "Whether the hub serves", (503,), answer=None, right="")
    async def _get_readyz(self, request: ApiRequest) -> ApiResponse:
        if (waiting := self._sources.ready()) is not None:
            return build_error(503, waiting)
        return ApiResponse(200, b"ready\n", "text/plain")

    @route(
        "GET /metrics",
        "Counters for Prometheus; needs admin or the scope metrics",
        answer=None,
        right=METRICS,
    )
    async def _get_metrics(self, request: ApiRequest) -> ApiResponse:
        who = request.caller
        if METRICS not in who.scopes and not self._hub.authorizer.decide_action(who, ADMIN).allowed:
            raise AuthorizationError(
                f'"{who.label}" may not do this: it needs a policy that permits the action '
                f'"admin", or a key created with --scope {METRICS}'
            )
        text = self._sources.metrics()
        return ApiResponse(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    @route("GET /openapi.json", "This document", right="")
    async def _get_openapi(self, request: ApiRequest) -> ApiResponse:
        return build_response(build_document(self.operations))

    @route("GET /api/status", "The hub: version, uptime, counts", right="")
    async def _get_status(self, request: ApiRequest) -> ApiResponse:
        status = await self._sources.status()
        if self._is_admin(request):
            return build_response(status)
        public = {name: value for name, value in status.items() if name in PUBLIC_STATUS}
        return build_response(public)

    @route(
        "GET /api/mcp/servers",
        "MCP servers, configured and connected; ?tools=0: without the names of their tools",
        query={"tools": QUERY_FLAG},
    )
    async def _list_servers(self, request: ApiRequest) -> ApiResponse:
        is_admin = self._is_admin(request)
        with_tools = parse_flag(request, "tools", otherwise=True)
        if is_admin and not with_tools:
            return build_response(self._sources.server_states())
        listings = self._listings
        found = await (
            listings.list_offered() if is_admin else listings.list_visible(request.caller)
        )
        states = self._sources.server_states()
        if not is_admin:
            return build_response(_build_visible_servers(states, found, with_tools))
        connected = [
            {**state, "tools": Raw(found.by_server.get(state["name"], (0, b"[]"))[1])}
            for state in states.get("connected", ())
        ]
        return build_response({**states, "connected": connected})

    def _is_admin(self, request: ApiRequest) -> bool:
        who = request.principal
        return who is not None and self._hub.authorizer.decide_action(who, REGISTRY).allowed

    # It may contain data of other callers.
    @admin_route(
        REGISTRY, "GET /api/mcp/servers/{name}/logs", "The end of a server's stderr", (404,)
    )
    async def _get_server_log(self, request: ApiRequest) -> ApiResponse:
        text = self._sources.server_log(request.names[0])
        if text is None:
            return build_error(404, f'there is no server "{request.names[0]}"')
        return build_response({"name": request.names[0], "stderr": text})

    @route(
        "GET /api/tools",
        "All tools; with q, server, source, sort, limit or cursor a page of those that match",
        answer="Tools",
        query=TOOL_QUERY,
    )
    async def _list_tools(self, request: ApiRequest) -> ApiResponse:
        if request.query:
            return await self._search_tools(request)
        found = await self._listings.list_visible(request.caller)
        return ApiResponse(200, b'{"tools":%b,"total":%d}' % (found.summaries, found.total))

    async def _search_tools(self, request: ApiRequest) -> ApiResponse:
        query = parse_known(request, TOOL_QUERY)
        sort = query.get("sort", "name")
        if sort not in TOOL_QUERY["sort"]["enum"]:
            raise InvalidInput(
                "sort must be name, server or tokens, with - before it to reverse it"
            )
        if query.get("source", "mcp") not in TOOL_SOURCES:
            raise InvalidInput(f"source must be {', '.join(TOOL_SOURCES)}")
        wanted = ToolQuery(
            tuple(query.get("q", "").lower().split()[:MAX_WORDS]),
            query.get("server", ""),
            query.get("source", ""),
            sort.removeprefix("-"),
            sort.startswith("-"),
        )
        start, limit = parse_number(query, "cursor", 0), parse_limit(query, MAX_PAGE)
        tools, total = await self._listings.search(request.caller, wanted, start, limit)
        more = str(start + limit) if start + limit < total else None
        return build_response({"tools": tools, "total": total, "nextCursor": more})

    @route("GET /api/tools/{name}", "One tool, by name or id", (404, 409), answer="Tool")
    async def _get_tool(self, request: ApiRequest) -> ApiResponse:
        tool = self._hub.find_visible(request.caller, request.names[0], EVERYTHING)
        if isinstance(tool.target, Nowhere):
            return response_from_error(tool.target.error)
        if not self._hub.authorizer.can_see(request.caller, tool, "api"):
            raise NotFound(f'there is no tool "{request.names[0][:200]}"')
        return build_response(
            {
                **summarize_tool(self._hub, tool),
                "tokens": estimate_cost(tool),
                "definition": tool.definition,
            }
        )

    @route(
        "POST /api/tools/{name}/call",
        "Call a tool; a client that accepts text/event-stream gets its progress too",
        CALL_ERRORS,
        "Arguments",
        "Result",
        calls=True,
        media=("text/event-stream",),
    )
    async def _call_tool(self, request: ApiRequest) -> ApiResponse:
        try:
            arguments, options = _parse_call(request, self._features)
            _, result = await self._hub.call(request.caller, request.names[0], arguments, options)
        except HubError as error:
            return response_from_error(error)
        return build_response(json_from_result(result))


def _build_visible_servers(
    states: Mapping[str, Any], found: ToolListing, with_tools: bool
) -> dict[str, Any]:
    """Builds the list of servers for principals without `admin`: those with visible tools, without
    their commands."""
    connected = [
        {
            "name": state["name"],
            "tools_count": found.by_server[state["name"]][0],
            **({"tools": Raw(found.by_server[state["name"]][1])} if with_tools else {}),
            "connected": state["connected"],
            "state": state["state"],
        }
        for state in states["connected"]
        if state["name"] in found.by_server
    ]
    return {
        "configured": [{"name": state["name"]} for state in connected],
        "connected": connected,
        "total_configured": len(connected),
        "total_connected": sum(state["connected"] for state in connected),
    }


def json_from_result(result: Result) -> dict[str, Any]:
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


def decode_query(query: bytes) -> dict[str, str]:
    return parse_query(query.decode("latin-1")) if query else {}


def parse_known(request: ApiRequest, known: Mapping[str, Schema]) -> Mapping[str, str]:
    """Returns the query; raises for parameters that are unknown or too long."""
    query = request.query
    if unknown := query.keys() - known.keys():
        raise InvalidInput(f'unknown parameter "{min(unknown)[:100]}"; use {", ".join(known)}')
    if any(len(value) > MAX_PARAMETER for value in query.values()):
        raise InvalidInput(f"a parameter is too long: at most {MAX_PARAMETER} characters")
    return query


def _refuse_empty(query: Mapping[str, str], schemas: Mapping[str, Schema]) -> None:
    """Raises for a parameter without a value whose schema demands one."""
    for name, value in query.items():
        schema = schemas.get(name)
        if value or schema is None:
            continue
        if schema.get("type") != "string" or "" not in schema.get("enum", ("",)):
            raise InvalidInput(f"{name} is empty: give it a value, or leave it out")


def parse_number(query: Mapping[str, str], name: str, otherwise: int) -> int:
    text = query.get(name, "")
    if not text:
        return otherwise
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise InvalidInput(f"{name} must be a whole number")
    return int(text)


def parse_limit(query: Mapping[str, str], otherwise: int) -> int:
    """Parses the size of a page."""
    limit = parse_number(query, "limit", otherwise)
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidInput(f"limit must be a number from 1 to {MAX_PAGE}")
    return limit


def parse_flag(request: ApiRequest, name: str, otherwise: bool = False) -> bool:
    """Parses a parameter of the query; absent, it is false, or `otherwise`."""
    value = request.query.get(name, str(int(otherwise)))
    if value not in FLAGS:
        raise InvalidInput(f"{name} must be 0 or 1")
    return FLAGS[value]


def parse_object(request: ApiRequest) -> dict[str, Any]:
    """Parses the body, which must be a JSON object; returns an empty one if there is no body."""
    if request.body.strip() and not request.fields.get(b"content-type", b"").startswith(
        b"application/json"
    ):
        raise InvalidInput("send the body as content-type application/json")
    try:
        given = decode(request.body) if request.body.strip() else {}
    except Malformed as error:
        raise InvalidInput(str(error)) from None
    if not isinstance(given, dict):
        raise InvalidInput("the body must be a JSON object")
    return given


def require_right(hub: Hub, principal: Principal | None, right: str) -> None:
    """Raises unless the credential of the principal has the scope `right` and, for a part of the
    administration, the policies permit it."""
    if principal is not None:
        require_scope(principal, right)
        if right not in ADMIN_RIGHTS or hub.authorizer.decide_action(principal, right).allowed:
            return
    who = principal.label if principal is not None else "anonymous"
    raise AuthorizationError(
        f'"{who}" may not do this: it needs a policy that permits the action "{right}", or "admin"'
    )


def _build_rate_limited(error: RateLimited) -> ApiResponse:
    return build_error(
        find_status(error),
        str(error),
        build_retry_after(error.retry_after),
        kind=error.kind,
        trace=error.trace,
        retry_after=error.retry_after,
    )


def response_from_error(error: HubError) -> ApiResponse:
    if isinstance(error, RateLimited):
        return _build_rate_limited(error)
    more = {"url": error.url} if isinstance(error, LoginRequired) and error.url else {}
    if isinstance(error, ApprovalPending):
        more = {"approval": error.id, "expiresAt": render_time(error.expires_at)}
    if isinstance(error, InsufficientScope):
        more = {"scope": error.scope}
    response = build_error(
        find_status(error), str(error), kind=error.kind, trace=error.trace, **more
    )
    if isinstance(error, InsufficientScope):
        challenge = f'Bearer realm="dragoman", error="insufficient_scope", scope="{error.scope}"'
        response.headers.append((b"www-authenticate", challenge.encode()))
    if isinstance(error, Refused) and response.status == 503:
        response.headers.append((b"retry-after", b"1"))
    return response


CAN_BE_ASKED = ("form", "url")
"""The kinds of questions that a person at a program can answer."""


_SHAPE = (
    'the body must be {"arguments": {…}}, with "can" (a list of "form" and "url") where questions '
    'can be answered, "answers" and "handle" where they are, and "idempotencyKey" (a text of at '
    "most 200 characters) where the call may be repeated"
)
MAX_KEY = 200


def _parse_call(
    request: ApiRequest, features: Mapping[str, Any]
) -> tuple[dict[str, Any], CallOptions]:
    if not request.fields.get(b"content-type", b"").startswith(b"application/json"):
        raise InvalidInput('send {"arguments": {…}} as content-type application/json')
    try:
        given = decode(request.body) if request.body.strip() else {}
    except Malformed as error:
        raise InvalidInput(str(error)) from None
    known = {"arguments", "idempotencyKey", *QUESTION_MEMBERS}
    if not isinstance(given, dict) or given.keys() - known:
        raise InvalidInput(_SHAPE)
    arguments, key = given.get("arguments", {}), given.get("idempotencyKey")
    options = build_call_options(request, given, features)
    if not isinstance(arguments, dict) or options is None:
        raise InvalidInput(_SHAPE)
    if key is not None:
        if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY:
            raise InvalidInput(_SHAPE)
        options = replace(options, meta={KEY_META: key})
    return arguments, options


QUESTION_MEMBERS = ("can", "answers", "handle")


def build_call_options(
    request: ApiRequest, given: Mapping[str, Any], features: Mapping[str, Any]
) -> CallOptions | None:
    """Builds the options of a call from the members of its body that are about questions; None if
    these are invalid."""
    can, answers, handle = given.get("can", []), given.get("answers"), given.get("handle")
    if (
        not isinstance(can, list)
        or any(kind not in CAN_BE_ASKED for kind in can)
        or not isinstance(answers, dict | None)
        or not isinstance(handle, str | None)
        or (answers is None) != (handle is None)
    ):
        return None
    return CallOptions(
        door="api",
        view=EVERYTHING,
        trace_context=parse_trace(request.fields),
        features={**features, "elicitation": {kind: {} for kind in can}} if can else features,
        answers=answers,
        handle=handle,
        updates=request.updates or discard_update,
        wanted_updates=NO_UPDATES if request.updates is None else PROGRESS,
    )
