"""The ASGI application: who is asking, under which name, and for what. Mounts what it is given."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from dragoman.core.errors import HubError
from dragoman.core.principal import Principal
from dragoman.web.api import Api, Response, problem
from dragoman.web.auth import Authenticator, Names
from dragoman.web.body import Gone, Receive, TooLarge, read_body
from dragoman.wire import rpc
from dragoman.wire.json import MAX_BYTES

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = frozenset({"/healthz", "/readyz"})
"""Paths that need no key."""


class App:
    """What TCP clients reach."""

    def __init__(
        self, auth: Authenticator, names: Names, mounts: Mapping[str, Asgi], api: Api
    ) -> None:
        self._auth = auth
        self._names = names
        self._mounts = mounts
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        fields = dict(scope["headers"])
        host = fields.get(b"host")
        if not self._names.knows_host(host):
            await reply(
                send,
                problem(
                    421, "the Host header names no host of this hub; see [server] allowed_hosts"
                ),
            )
            return
        if (origin := fields.get(b"origin")) is not None:
            if host is None or not self._names.allows_origin(origin, host):
                await reply(
                    send,
                    problem(
                        403,
                        "pages of this Origin may not call the hub; see [server] allowed_origins",
                    ),
                )
                return
            send = _with_cors(send, origin)
            if scope["method"] == "OPTIONS":
                await reply(send, Response(204, b"", "text/plain"))
                return
        try:
            principal = self._auth.principal(fields)
        except HubError as error:
            await reply(send, problem(503, str(error)))
            return
        if principal is None and scope["path"] not in OPEN:
            await reply(send, _UNAUTHORIZED)
            return
        await serve(scope, receive, send, fields, principal, self._mounts, self._api)


class OwnerApp:
    """What the hub's Unix socket serves: whoever can open it is the owner."""

    def __init__(self, owner: Principal, mounts: Mapping[str, Asgi], api: Api) -> None:
        self._owner = owner
        self._mounts = mounts
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            fields = dict(scope["headers"])
            await serve(scope, receive, send, fields, self._owner, self._mounts, self._api)


_UNAUTHORIZED = Response(
    401,
    problem(
        401, "a key is needed: send Authorization: Bearer KEY; make one with dragoman keys create"
    ).body,
    "application/json",
    [(b"www-authenticate", b'Bearer realm="dragoman"')],
)


_TOO_LARGE = Response(
    413,
    rpc.error(
        None, rpc.INVALID_REQUEST, f"a message may have {MAX_BYTES} bytes and this one has more"
    ),
)


async def serve(
    scope: Scope,
    receive: Receive,
    send: Send,
    fields: Mapping[bytes, bytes],
    principal: Principal | None,
    mounts: Mapping[str, Asgi],
    api: Api,
) -> None:
    try:
        body = await read_body(fields, receive) if scope["method"] == "POST" else b""
    except TooLarge:
        await reply(send, _TOO_LARGE)
        return
    except Gone:
        return
    mounted = mounts.get(scope["path"])
    if mounted is not None and principal is not None:
        scope["fields"] = fields
        scope["principal"] = principal
        scope["body"] = body
        await mounted(scope, receive, send)
        return
    try:
        response = await api.respond(scope["method"], scope["path"], fields, principal, body)
    except Exception:
        log.exception("%s %s crashed", scope["method"], scope["path"])
        response = problem(500, "the hub failed at this; see its log")
    await reply(send, response, head_only=scope["method"] == "HEAD")


async def reply(send: Send, response: Response, *, head_only: bool = False) -> None:
    headers = [
        (b"content-type", response.content_type.encode()),
        (b"content-length", str(len(response.body)).encode()),
        (b"x-content-type-options", b"nosniff"),
        *response.headers,
    ]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if head_only else response.body})


def _with_cors(send: Send, origin: bytes) -> Send:
    allowed = [
        (b"access-control-allow-origin", origin),
        (b"vary", b"Origin"),
        (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
        (
            b"access-control-allow-headers",
            b"authorization, content-type, accept, last-event-id, mcp-session-id, "
            b"mcp-protocol-version, mcp-method, mcp-name",
        ),
        (b"access-control-expose-headers", b"mcp-session-id, www-authenticate"),
    ]

    async def send_with(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *allowed]
        await send(message)

    return send_with
