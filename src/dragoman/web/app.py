"""The ASGI application: who is asking, under which name, and for what. Mounts what it is given."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

from dragoman.core.errors import HubError
from dragoman.core.principal import Principal
from dragoman.web.api import Api, Response, problem
from dragoman.web.auth import Authenticator, Names
from dragoman.web.body import BODY_SECONDS, Gone, Receive, TooLarge, read_body
from dragoman.wire import rpc
from dragoman.wire.json import MAX_BYTES

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = frozenset({"/healthz", "/readyz"})
"""Paths that need no key."""
MAY_REPEAT = frozenset({b"accept"})
READ = frozenset(
    {
        *(b"accept", b"host", b"origin", b"authorization", b"content-type"),
        *(b"mcp-session-id", b"mcp-protocol-version", b"mcp-method", b"mcp-name"),
    }
)
"""The headers that the hub goes by."""


class Sender:
    """ASGI's `send`, and `whole` for a response that is all there: True if it was sent."""

    __slots__ = ("_send", "whole")

    def __init__(self, send: Send, whole: Callable[..., bool]) -> None:
        self._send = send
        self.whole = whole

    def __call__(self, message: MutableMapping[str, Any]) -> Awaitable[None]:
        return self._send(message)


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
        send = Sender(send, scope.pop("whole"))
        fields = dict(scope["headers"])
        if len(fields) != len(scope["headers"]) and (
            twice := named_twice(scope["headers"], fields)
        ):
            await reply(send, problem(400, f"the header {twice.decode('latin-1')} is named twice"))
            return
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
            send = Sender(send, scope.pop("whole"))
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


_TOO_SLOW = problem(408, f"the body did not come within {BODY_SECONDS:g} s")
_TOO_LARGE = Response(
    413,
    rpc.error(
        None, rpc.INVALID_REQUEST, f"a message may have {MAX_BYTES} bytes and this one has more"
    ),
)


def named_twice(
    headers: Sequence[tuple[bytes, bytes]], fields: MutableMapping[bytes, bytes]
) -> bytes | None:
    """The header that must stand once and stands twice, so that nobody can tell which counts.

    Those that are lists are joined in `fields`.
    """
    for name in READ:
        values = [value for other, value in headers if other == name]
        if len(values) > 1:
            if name not in MAY_REPEAT:
                return name
            fields[name] = b", ".join(values)
    return None


async def serve(
    scope: Scope,
    receive: Receive,
    send: Send,
    fields: Mapping[bytes, bytes],
    principal: Principal | None,
    mounts: Mapping[str, Asgi],
    api: Api,
) -> None:
    # What a stranger has to say is not worth reading.
    wanted = scope["method"] == "POST" and principal is not None
    try:
        body = await read_body(fields, receive) if wanted else b""
    except TooLarge:
        await reply(send, _TOO_LARGE)
        return
    except Gone:  # or too slow, and then this is read
        await reply(send, _TOO_SLOW)
        return
    mounted = mounts.get(scope["path"])
    if mounted is not None and principal is not None:
        scope["fields"] = fields
        scope["principal"] = principal
        scope["body"] = body
        await mounted(scope, receive, send)
        return
    try:
        path = scope["raw_path"].decode("latin-1")  # not unquoted: a name may hold a slash
        response = await api.respond(scope["method"], path, fields, principal, body)
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
