"""The web application: authenticates requests, checks Host and Origin, and routes by path."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dragoman.core.access import TokenRejected, build_missing_scope
from dragoman.core.background import Work, start_task
from dragoman.core.call import Artifact, Progress, TaskStarted, ToolStep, Update
from dragoman.core.errors import HubError, RateLimited
from dragoman.core.ports import RateLimiter
from dragoman.core.principal import USER, Principal
from dragoman.core.rate_limiter import check_address, limit_address
from dragoman.core.scopes import CALL, LIST
from dragoman.web.api import NO_SNIFF, Api, ApiResponse, build_error, response_from_error
from dragoman.web.auth import AllowedNames, Authenticator, Found
from dragoman.web.http import decompression
from dragoman.web.http.connection_limits import BODY_BYTES
from dragoman.web.http.http1 import SMALL_BYTES, AdmitLater
from dragoman.web.http.request import Headers, ServerRequest
from dragoman.web.peer_process import PeerIdentifier
from dragoman.web.resource_metadata import NO_METADATA, ResourceMetadata
from dragoman.wire import rpc, sse
from dragoman.wire.http import HttpRequest
from dragoman.wire.json import MAX_BYTES, TOO_MANY_VALUES, encode

if TYPE_CHECKING:
    from dragoman.web.console.gate import ConsoleGate

log = logging.getLogger(__name__)

Mounted = Callable[[HttpRequest, Principal], Work[None] | None]
"""Returns what sends the response; None if it was sent."""
Public = Callable[[HttpRequest, Principal | None], Work[None] | None]


@dataclass(frozen=True, slots=True)
class PathMount:
    """A handler of all paths with a prefix, and which of them need no key."""

    prefix: str
    """A path without a slash at its end; serves that path and all below it."""
    serve: Public
    is_open: Callable[[str], bool]
    is_rpc: Callable[[str], bool] = lambda path: False
    """Which of them speak JSON-RPC."""
    body_bytes: int = 0
    """How large a body of a request without a principal may be; 0: it is not read."""

    def has(self, path: str) -> bool:
        return path == self.prefix or path.startswith(f"{self.prefix}/")


PROBES = frozenset({"/healthz", "/readyz"})
"""Paths that answer under any Host, since a load balancer or the kubelet calls an IP address. They
need no key and say only whether the hub runs."""
NO_OAUTH = ("/.well-known/oauth-", "/.well-known/openid-configuration")
"""Where clients look for an authorization server before they ask for a key; the hub has none."""
ONCE = frozenset(
    {
        *(b"host", b"origin", b"authorization", b"content-type", b"cookie"),
        *(b"mcp-session-id", b"mcp-protocol-version", b"mcp-method", b"mcp-name"),
        *(b"last-event-id", b"a2a-version", b"idempotency-key"),
    }
)
"""The headers that decide something. Parsers disagree which of two counts, so neither does."""
MIRRORED = b"mcp-param-"
"""The prefix of the headers that repeat arguments; they must not be repeated either."""


@dataclass(frozen=True, slots=True)
class _LaterRefusal:
    """The response to a request without a principal, once its address was charged."""

    _charged: Awaitable[None]
    _refusal: ApiResponse | None

    async def find(self) -> ApiResponse | None:
        try:
            await self._charged
        except RateLimited as error:
            return response_from_error(error)
        return self._refusal


Charged = ApiResponse | _LaterRefusal | None
"""What a request without a principal is answered; None if it is served."""


@dataclass(frozen=True, slots=True)
class TcpApp:
    """Serves the TCP listener: authenticates, and routes by path."""

    _auth: Authenticator
    _names: AllowedNames
    _mounts: Mapping[str, Mounted]
    _api: Api
    _under: Sequence[PathMount] = ()
    _note_failed: Callable[[str], None] = lambda address: None
    """Gets the address that a wrong key came from."""
    _: KW_ONLY
    peers: PeerIdentifier
    metadata: ResourceMetadata = NO_METADATA
    console: ConsoleGate | None = None
    """None where the console is not served."""

    def admit(self, request: ServerRequest) -> bool | AdmitLater:
        """Authenticates the request. The body of one without a principal is not read."""
        refusal: Charged = self._check_head(request)
        found: Found = None
        if refusal is None:
            try:
                if b"authorization" in request.fields:
                    found = self._auth.authenticate(
                        request.fields, lambda: request.find_peer(self.peers.identify_tcp)
                    )
                elif (console := self._find_console(request)) is not None:
                    found, refusal = console
                elif not self._auth.requires_key():
                    peer = request.connection.peer
                    found = (
                        peer[0] if peer is not None else request.find_peer(self.peers.identify_tcp)
                    )
            except TokenRejected as problem:
                refusal = self._refuse_token(request, str(problem))
            except HubError as error:
                refusal = None if request.path in PROBES else _refuse_for_now(error)
        if found is None or isinstance(found, Principal):
            return self._settle(request, found, refusal)
        return partial(self._admit_later, request, found)

    def _find_console(
        self, request: ServerRequest
    ) -> tuple[Principal | None, ApiResponse | None] | None:
        """Returns what the console says of a request of its pages; None for all others."""
        fields = request.fields
        if self.console is None or not (
            b"cookie" in fields or b"x-csrf-token" in fields or request.path == "/"
        ):
            return None
        return self.console.admit(request, self.peers.identify_tcp)

    async def _admit_later(
        self, request: ServerRequest, find: Callable[[], Awaitable[Principal | None]]
    ) -> bool:
        """Admits a request whose token was not seen before."""
        found: Principal | None = None
        refusal: Charged = None
        try:
            check_address(self._api.limiter, request.address)
            found = await find()
        except RateLimited as error:
            refusal = response_from_error(error)
        except TokenRejected as problem:
            refusal = self._refuse_token(request, str(problem))
        except HubError as error:
            refusal = None if request.path in PROBES else _refuse_for_now(error)
        settled = self._settle(request, found, refusal)
        return settled if isinstance(settled, bool) else await settled()

    def _settle(
        self, request: ServerRequest, principal: Principal | None, refusal: Charged
    ) -> bool | AdmitLater:
        """Sets the principal and the refusal; returns whether the body is read."""
        if (
            principal is not None
            and principal.kind == USER
            and (missing := self.metadata.find_missing_scopes(principal))
        ):
            if refusal is None and (request.path in PROBES or self._is_open(request.path)):
                principal = None  # sees what everyone sees
            else:
                refusal = self._refuse_scopes(request, missing)
        if principal is not None and CALL not in principal.rights:
            refusal = self._limit_scopes(request, principal, refusal)
        request.principal, limiter = principal, self._api.limiter
        if principal is None:
            if refusal is None and request.path not in PROBES:
                refusal = self._refuse_stranger(request)
            if isinstance(refusal, _LaterRefusal):
                return partial(self._settle_later, request, refusal)
            return self._settle_stranger(request, refusal)
        if refusal is not None:
            assert not isinstance(refusal, _LaterRefusal)  # of a request without a principal
        request.refusal = refusal
        if request.path.startswith("/api/") or limiter.find_low_budget(principal) is not None:
            request.find_headers = partial(_build_rate_headers, limiter, principal)
        return refusal is None

    def _settle_stranger(self, request: ServerRequest, refusal: ApiResponse | None) -> bool:
        limit = self._find_body_limit(request.path) if refusal is None else 0
        if limit:
            refusal = _refuse_body(request.fields, limit)
        request.refusal = refusal
        return refusal is None and limit > 0

    async def _settle_later(self, request: ServerRequest, refusal: _LaterRefusal) -> bool:
        return self._settle_stranger(request, await refusal.find())

    def _check_head(self, request: ServerRequest) -> ApiResponse | None:
        """Returns the response if the request is refused for any principal."""
        fields = request.fields
        if request.repeated:
            twice = [name for name in request.repeated if name in ONCE or name.startswith(MIRRORED)]
            if twice:
                return build_error(400, f"the header {min(twice).decode('latin-1')} is repeated")
        host = fields.get(b"host")
        if host is None or (host not in self._names.seen and not self._names.knows_host(host)):
            is_probe = request.path in PROBES and request.method in ("GET", "HEAD")
            return None if is_probe else _UNKNOWN_HOST
        if (origin := fields.get(b"origin")) is not None:
            if not self._names.allows_origin(origin, host):
                return build_error(
                    403, "pages of this Origin may not call the hub; see [server] allowed_origins"
                )
            request.extra = [(b"access-control-allow-origin", origin), *_CORS]
            if request.method == "OPTIONS":
                wanted = fields.get(b"access-control-request-headers", b"")
                request.extra.append((b"access-control-allow-headers", _allowed(wanted)))
                return ApiResponse(204, b"", "text/plain")
        if b"content-encoding" in fields and not _is_readable(fields):
            return _ENCODED
        return None

    def _charge_address(self, request: ServerRequest, refusal: ApiResponse | None) -> Charged:
        """Charges the address of a request without a principal; returns the response if it has no
        budget left, and `refusal` otherwise."""
        try:
            charged = limit_address(self._api.limiter, request.address)
        except RateLimited as error:
            return response_from_error(error)
        return refusal if charged is None else _LaterRefusal(charged, refusal)

    def _refuse_token(self, request: ServerRequest, why: str) -> Charged:
        """Charges the address of an invalid token; returns the response unless the path is open."""
        if self._is_open(request.path):
            return None
        self._note_failed(request.address)
        challenge = self.metadata.build_challenge(request, "invalid_token", why)
        return self._charge_address(request, build_error(401, why, challenge))

    def _limit_scopes(
        self, request: ServerRequest, principal: Principal, refusal: Charged
    ) -> Charged:
        """Prepares the response to a call of a principal that may make none; refuses the endpoints
        of protocols to one that may not even list. The API knows what its operations need."""
        missing = build_missing_scope(principal, CALL, f"{request.method} {request.path}")
        challenge = self.metadata.build_challenge(
            request, "insufficient_scope", str(missing), missing.scope
        )
        request.scope_challenge = challenge
        path = request.path
        is_exempt = path in (*PROBES, "/", "/metrics") or path.startswith(("/api/", "/openapi"))
        if refusal is not None or LIST in principal.rights or is_exempt or self._is_open(path):
            return refusal
        return build_error(403, str(missing), challenge, kind=missing.kind, scope=missing.scope)

    def _refuse_scopes(self, request: ServerRequest, required: Sequence[str]) -> ApiResponse:
        why = f"the access token needs the scopes: {' '.join(required)}"
        return build_error(
            403, why, self.metadata.build_challenge(request, "insufficient_scope", why)
        )

    def _refuse_stranger(self, request: ServerRequest) -> Charged:
        """Charges the address of a request without a principal; returns the response unless the
        path is open."""
        is_open = self._is_open(request.path)
        if b"authorization" in request.fields and not is_open:
            self._note_failed(request.address)
        return self._charge_address(request, None if is_open else self._ask_for_key(request))

    def _ask_for_key(self, request: ServerRequest) -> ApiResponse:
        has_issuers = self.metadata.has_issuers(request)
        if b"authorization" not in request.fields and request.path.startswith(NO_OAUTH):
            return build_error(404, NO_AUTHORIZATION_SERVER if has_issuers else NO_OAUTH_TEXT)
        if not self._auth.requires_key():
            return build_error(401, ANOTHER_USER, self.metadata.build_challenge(request))
        if _shows_key(request.fields):
            challenge = self.metadata.build_challenge(request, "invalid_token")
            return build_error(401, WRONG_TOKEN if has_issuers else WRONG_KEY, challenge)
        said = TOKEN_NEEDED if has_issuers else UNAUTHORIZED
        return build_error(401, said, self.metadata.build_challenge(request))

    def _find_body_limit(self, path: str) -> int:
        """How large a body of a request without a principal may be at `path`."""
        return max((one.body_bytes for one in self._under if one.has(path)), default=0)

    def _is_open(self, path: str) -> bool:
        return any(one.has(path) and one.is_open(path) for one in self._under)

    def answer(self, request: ServerRequest) -> Work[None] | None:
        mounted = self._mounts.get(request.path)
        if (
            mounted is None
            or request.principal is None
            or request.refusal
            or request.refused
            or b"content-encoding" in request.fields
        ):
            return serve(request, self._mounts, self._api, self._under)
        return mounted(request, request.principal)  # as for most


@dataclass(frozen=True, slots=True)
class OwnerApp:
    """Serves the hub's Unix socket: a process that can open it is the owner's, unless it descends
    from a server that the hub has started."""

    _peers: PeerIdentifier
    _mounts: Mapping[str, Mounted]
    _api: Api
    _under: Sequence[PathMount] = ()

    def admit(self, request: ServerRequest) -> bool:
        request.principal = request.find_peer(self._peers.identify_unix)
        if b"content-encoding" in request.fields and not _is_readable(request.fields):
            request.refusal = _ENCODED
        return request.refusal is None

    def answer(self, request: ServerRequest) -> Work[None] | None:
        return serve(request, self._mounts, self._api, self._under)


def serve(
    request: ServerRequest, mounts: Mapping[str, Mounted], api: Api, under: Sequence[PathMount]
) -> Work[None] | None:
    path, principal = request.path, request.principal
    mounted = mounts.get(path)
    if request.refusal or request.refused:
        return _refuse(request, mounts, under)
    if b"content-encoding" in request.fields:
        return _serve_inflated(request, mounts, api, under)
    if mounted is not None and principal is not None:
        return mounted(request, principal)
    for one in under:
        if one.has(path) and (principal is not None or one.is_open(path)):
            return one.serve(request, principal)
    return _respond(request, api)


async def _serve_inflated(
    request: ServerRequest, mounts: Mapping[str, Mounted], api: Api, under: Sequence[PathMount]
) -> None:
    coding = request.fields.pop(b"content-encoding").lower()
    try:
        if coding in decompression.CODINGS and request.body:
            request.body = await decompression.inflate(
                request.body,
                coding,
                BODY_BYTES,
                SMALL_BYTES,
                lambda: request.take_room(BODY_BYTES),
                request.pace,
            )
            if request.reserved:
                request.take_room(len(request.body))
    except decompression.BodyTooLarge:
        request.refused = 413
    except decompression.BodyBudgetFull:
        request.refused = 503
    except decompression.CorruptBody:
        request.refusal = build_error(400, f"invalid {coding.decode('latin-1')} body")
    if (answer := serve(request, mounts, api, under)) is not None:
        await answer


async def _refuse(
    request: ServerRequest, mounts: Mapping[str, Mounted], under: Sequence[PathMount]
) -> None:
    """Sends the refusal of the listener or of `admit`, in the form that the path's clients read."""
    if request.refusal is not None:
        return reply(request, request.refusal)
    code, message = _REFUSED[request.refused]
    path = request.path
    headers = {401: [_CHALLENGE], 503: [(b"retry-after", b"1")]}.get(request.refused, [])
    if (path in mounts and not path.startswith("/api/")) or any(
        one.has(path) and one.is_rpc(path) for one in under
    ):
        body: bytes = rpc.encode_error(None, code, message)
    else:
        body = build_error(request.refused, message).body
    reply(request, ApiResponse(request.refused, body, headers=headers))


class UpdateStream:
    """Sends the updates of an API call as server-sent events before its response, to a client that
    accepts them. It begins with the first update; a call without updates gets a plain response."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request
        self.has_started = False

    def send(self, update: Update) -> None:
        """Sends progress, and the answer of an agent while it is written; a client that does not
        read misses some."""
        name = "progress"
        if isinstance(update, Progress):
            step = update.step
            members: dict[str, Any] = {
                "progress": update.progress,
                "total": update.total,
                "message": update.message,
                "step": _render_step(step) if step is not None else None,
            }
        elif isinstance(update, TaskStarted):
            members = {"message": update.message}
        elif isinstance(update, Artifact):
            name = "artifact"
            members = {
                "id": update.id,
                "name": update.name or None,
                "append": update.append,
                "content": list(update.content),
            }
        else:
            return
        if not self.has_started:
            self.has_started = True
            self._request.start(200, [*sse.HEADERS, NO_SNIFF])
        known = {name: value for name, value in members.items() if value is not None}
        self._request.send(sse.encode_event(encode(known), name=name))

    async def finish(self, response: ApiResponse) -> None:
        """Sends the response body as the event `result` or `error`."""
        name = "result" if response.status < 400 else "error"
        await self._request.write(sse.encode_event(response.body, name=name))
        self._request.end()


def _render_step(step: ToolStep) -> dict[str, Any]:
    found: dict[str, Any] = {"agent": step.agent, "tool": step.tool, "outcome": step.outcome}
    if step.outcome:
        found["durationMs"] = round(step.duration_ms, 1)
    if step.problem:
        found["problem"] = step.problem
    return found


async def _respond(request: ServerRequest, api: Api) -> None:
    wants_updates = b"text/event-stream" in request.fields.get(b"accept", b"")
    is_call = request.path.endswith(("/call", "/dispatch"))
    stream = UpdateStream(request) if wants_updates and is_call else None
    send = stream.send if stream is not None else None
    work = start_task(api.respond(request, request.principal, send))
    gone: asyncio.Future[Any] = request.gone
    why: tuple[Any, ...] = ()
    try:
        await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            return  # the client has disconnected
        response = work.result()
    except asyncio.CancelledError as error:
        why = error.args
        raise
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        response = build_error(500, "internal error; see the hub's log")
    finally:
        if not work.done():
            work.cancel(*why)
            await asyncio.wait([work])
    if stream is not None and stream.has_started:
        await stream.finish(response)
    else:
        reply(request, response)


def reply(request: ServerRequest, response: ApiResponse) -> None:
    headers: Headers = [
        (b"content-type", response.content_type.encode()),
        NO_SNIFF,
        *response.headers,
    ]
    request.reply(response.status, headers, response.body)


def _build_rate_headers(limiter: RateLimiter, principal: Principal) -> Headers:
    """Builds the fields of draft-ietf-httpapi-ratelimit-headers-10, for each of the budgets: the
    policy with quota and window, and what remains of it with the seconds until it is full."""
    policies, remaining = [], []
    for one in limiter.find_budgets(principal):
        window = math.ceil(60 * one.rate.burst / one.rate.per_minute)
        policies.append(f'"{one.scope}";q={one.rate.burst:.0f};w={window}')
        remaining.append(f'"{one.scope}";r={one.remaining};t={math.ceil(one.full_in)}')
    return [
        (b"ratelimit-policy", ", ".join(policies).encode()),
        (b"ratelimit", ", ".join(remaining).encode()),
    ]


def _shows_key(fields: Mapping[bytes, bytes]) -> bool:
    scheme, _, key = fields.get(b"authorization", b"").partition(b" ")
    return scheme.lower() == b"bearer" and bool(key.strip())


def _refuse_body(fields: Mapping[bytes, bytes], limit: int) -> ApiResponse | None:
    """Refuses the body of a request without a principal that is not small and plain."""
    length = fields.get(b"content-length", b"0")
    if b"content-encoding" in fields or b"transfer-encoding" in fields or not length.isdigit():
        return build_error(411, "send the body as it is, with a Content-Length")
    if int(length) > limit:
        return build_error(413, f"the body is too large: at most {limit} bytes")
    return None


def _is_readable(fields: Mapping[bytes, bytes]) -> bool:
    coding = fields[b"content-encoding"].lower()
    return coding in (b"", b"identity") or coding in decompression.CODINGS


def _refuse_for_now(error: HubError) -> ApiResponse:
    """Refuses a request whose key or token cannot be checked at the moment."""
    return build_error(503, str(error), (b"retry-after", b"1"))


_UNKNOWN_HOST = build_error(421, "unknown Host header; see [server] allowed_hosts")

_ENCODED = build_error(
    415, "unsupported Content-Encoding: use gzip or deflate", (b"accept-encoding", b"gzip, deflate")
)
_CHALLENGE = (b"www-authenticate", b'Bearer realm="dragoman"')
UNAUTHORIZED = "a key is needed: send Authorization: Bearer KEY; make one with dragoman keys create"
WRONG_KEY = (
    "the key is not accepted: it is wrong, was revoked or has expired; dragoman keys list "
    "shows those that are good, dragoman keys create NAME makes one"
)
TOKEN_NEEDED = (
    "a key or an access token is needed: send Authorization: Bearer TOKEN; "
    "/.well-known/oauth-protected-resource names the issuers whose tokens are accepted"
)
WRONG_TOKEN = (
    "the key or access token is not accepted: a key is wrong, was revoked or has expired, and a "
    "token is of none of the issuers that /.well-known/oauth-protected-resource names"
)
NO_OAUTH_TEXT = "the hub has no OAuth; send Authorization: Bearer KEY"
NO_AUTHORIZATION_SERVER = (
    "the hub is no authorization server; /.well-known/oauth-protected-resource names those whose "
    "tokens it accepts"
)
ANOTHER_USER = (
    "while it has no keys the hub serves programs of its own user only, and this connection is "
    "another user's or cannot be attributed; have that user run dragoman keys create NAME, and "
    "send Authorization: Bearer KEY"
)
_REFUSED = {
    400: (rpc.PARSE_ERROR, TOO_MANY_VALUES),
    401: (rpc.INVALID_REQUEST, "the key or access token is not accepted any more"),
    413: (rpc.INVALID_REQUEST, f"message too large: at most {MAX_BYTES} bytes"),
    503: (
        -32000,  # a server error, as for every refusal that may be retried
        "too many large requests at once; try again shortly or raise [limits] body_megabytes",
    ),
}
"""The JSON-RPC code and the message of refusals of the listener."""

_CORS: Headers = [
    (b"vary", b"Origin"),
    (b"access-control-allow-methods", b"GET, POST, PATCH, DELETE, OPTIONS"),
    (
        b"access-control-expose-headers",
        b"mcp-session-id, www-authenticate, a2a-extensions, "
        b"retry-after, ratelimit, ratelimit-policy",
    ),
]
_ALLOWED = (
    b"authorization, content-type, accept, last-event-id, mcp-session-id, "
    b"mcp-protocol-version, mcp-method, mcp-name, a2a-version, a2a-extensions, idempotency-key"
)
_PARAM = re.compile(rb"mcp-param-[!#$%&'*+.^_`|~0-9a-z-]{1,100}")


def _allowed(wanted: bytes) -> bytes:
    """Lists the headers that a page may send: the usual ones, and the requested ones of those that
    repeat an argument, which may have any name."""
    asked = wanted[:8_192].lower().replace(b" ", b"").split(b",")
    return b", ".join([_ALLOWED, *filter(_PARAM.fullmatch, asked[:64])])
