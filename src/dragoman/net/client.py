"""The hub's only HTTP client: pooled, bounded, and guarded against unintended addresses.

`OutboundHttp` holds the connections. A `GuardedHttpClient` talks to one configured server and knows
how far its operator lets it reach; redirects are followed under the same rules.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from weakref import WeakValueDictionary

from dragoman.core.body_budget import BodyBudget
from dragoman.core.deadlines import Deadlines
from dragoman.core.errors import BadReply, ConfigError, TimedOut, Unreachable
from dragoman.core.structs import Struct
from dragoman.core.urls import render_origin
from dragoman.net.addresses import Verdict, classify_address
from dragoman.net.connection import HttpExchange
from dragoman.net.dialing import (
    CONNECT_SECONDS,
    Dialer,
    Reach,
    Resolve,
    classify_host,
    list_permitted,
    system_resolve,
)
from dragoman.net.headers import encode_headers, select_harmless
from dragoman.net.pool import CONNECTIONS, ConnectionPool
from dragoman.net.urls import LOOPBACK, BadUrl, Url, UrlOrigin, join_url, parse_url
from dragoman.wire.http import NO_HEADERS, HttpReply

REDIRECTS = 3
ROUTES = 256
LIMITS = 64
ROOM_BYTES = 64 * 1024 * 1024
"""For large bodies that are being read, unless the hub sets another limit."""
MAX_WAITING = 2_000
"""Large bodies that wait for room at once. Of each at most 256 KB are in memory."""

_MOVED = frozenset((301, 302, 303, 307, 308))
_METHODS = frozenset(("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"))
_BODILESS = frozenset(("GET", "HEAD", "OPTIONS", "DELETE"))


class OutboundHttp:
    """Shares connections between all clients that reach the same origin under the same rule."""

    def __init__(
        self,
        resolve: Resolve = system_resolve,
        *,
        socket_path: str | None = None,
        tls: ssl.SSLContext | None = None,
        connections: int = CONNECTIONS,
        connect_seconds: float = CONNECT_SECONDS,
        room_bytes: int = ROOM_BYTES,
    ) -> None:
        """With `socket_path` every connection goes to that Unix socket, without TLS unless `tls` is
        given, which is used instead of the certificates of the system. At most `connections` are
        open to an origin; large bodies that are being read have at most `room_bytes` together,
        half of it for one caller."""
        self.room = BodyBudget(room_bytes, MAX_WAITING, MAX_WAITING)
        self.resolve = resolve
        self._connections = connections
        self._connect_seconds = connect_seconds
        self._socket_path = socket_path
        # A pool lives as long as something has a route to it or it has a connection.
        self._pools: WeakValueDictionary[tuple[UrlOrigin, Reach], ConnectionPool] = (
            WeakValueDictionary()
        )
        self._context = tls
        self._has_socket_tls = tls is not None
        self._closed = False

    def open_configured(
        self, url: str, *, allow_private: bool, follow: bool = True
    ) -> GuardedHttpClient:
        """A client for the server that is configured with `url`. Unless `follow`, a redirect is
        returned unchanged."""
        try:
            return GuardedHttpClient(self, parse_url(url), allow_private, follow)
        except BadUrl as problem:
            raise ConfigError(f'"{render_origin(url)}" cannot be used: {problem}') from None

    def open_public(self, *, allow_private: bool) -> GuardedHttpClient:
        """A client for addresses that clients name: only public ones are reached, and a redirect is
        returned unchanged."""
        return GuardedHttpClient(self, None, allow_private, follow=False)

    async def find_objection(self, url: str, *, allow_private: bool) -> str | None:
        """Why `open_public` would refuse `url` now, as the end of a sentence; None if it would not,
        or if the name does not resolve yet. Does not reveal the address of a name."""
        reach = Reach.PRIVATE if allow_private else Reach.PUBLIC
        try:
            judgements = await classify_host(parse_url(url), self.resolve)
        except BadUrl as problem:
            return f"cannot be used: {problem}"
        except (OSError, UnicodeError):
            return None
        for judgement in judgements.values():
            if not reach.admits(judgement):
                return f"leads to {judgement.kind}, which clients may not make the hub reach"
        return None

    async def close(self) -> None:
        """Closes every connection, including those in use."""
        self._closed = True
        pools = list(self._pools.values())
        for pool in pools:
            pool.close()
        for pool in pools:
            await pool.gone.wait()

    def pool(self, url: Url, reach: Reach) -> ConnectionPool:
        pool = self._pools.get((url.origin, reach))
        if pool is None:
            socket_path, has_tls = self._socket_path, self._has_socket_tls
            dialer = Dialer(reach, self.resolve, self._tls, socket_path, has_tls)
            pool = ConnectionPool(dialer, self.room, self._connections, self._connect_seconds)
            self._pools[url.origin, reach] = pool
            if self._closed:
                pool.close()
        return pool

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = ssl.create_default_context()
            self._context.set_alpn_protocols(["http/1.1"])
        return self._context


class RequestRoute(Struct, frozen=True):
    """The parts of a request that stay the same."""

    method: str
    url: Url
    rendered: str
    pool: ConnectionPool
    start: bytes
    """The request line and the fixed headers."""


class GuardedHttpClient:
    """Implements `wire.http.HttpClient`."""

    def __init__(
        self, client: OutboundHttp, configured: Url | None, allow_private: bool, follow: bool
    ) -> None:
        self._client = client
        self._configured = configured
        self._own = _own_reach(configured) if configured is not None else Reach.PUBLIC
        self._follows = follow
        self._allow_private = allow_private
        self._routes: dict[tuple[str, str], RequestRoute] = {}
        self._limits: dict[float, Deadlines] = {}
        """One per timeout in use."""

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        timeout: float,
        extra_headers: Mapping[str, str] = NO_HEADERS,
    ) -> HttpReply:
        route = self._routes.get((method, url)) or self._remember(method, url)
        pool = route.pool
        limit = self._limits.get(timeout)
        if limit is None:  # an idle `Deadlines` is falsy
            limit = self._limit(timeout)
        request = _encode_request(route, encode_headers(headers, extra_headers), body)
        now = pool.loop.time()
        deadline = now + timeout
        connection = pool.take(now)
        if connection is None:
            exchange = await self._send(route, request, timeout, deadline)
        else:
            exchange = connection.send(request, method, route.rendered, timeout, limit)
            await exchange.head()
        if exchange.status in _MOVED and self._follows:
            headers = {**headers, **extra_headers}
            exchange = await self._follow(route, exchange, headers, body, timeout, deadline)
        return HttpReply(exchange.status, exchange.headers, exchange, repeated=exchange.repeated)

    async def find_addresses(self, url: str, timeout: float) -> list[str]:
        """Implements `wire.http.AddressFinder`."""
        parsed = _parse(url)
        seconds = min(timeout, CONNECT_SECONDS)
        return await list_permitted(parsed, self._reach(parsed), self._client.resolve, seconds)

    async def fill(self, url: str, headers: Mapping[str, str]) -> dict[str, str]:
        return dict(headers)

    async def _send(
        self, route: RequestRoute, request: bytes, timeout: float, deadline: float
    ) -> HttpExchange:
        """Sends over an idle connection or a new one, in the remaining time."""
        pool = route.pool
        now = pool.loop.time()
        connection = pool.take(now) or await pool.open(route.url, deadline - now)
        left = Deadlines(deadline - pool.loop.time())
        exchange = connection.send(request, route.method, route.rendered, timeout, left)
        await exchange.head()
        return exchange

    def _limit(self, timeout: float) -> Deadlines:
        if len(self._limits) >= LIMITS:
            return Deadlines(timeout)
        return self._limits.setdefault(timeout, Deadlines(timeout))

    async def _follow(
        self,
        route: RequestRoute,
        exchange: HttpExchange,
        headers: Mapping[str, str],
        body: bytes,
        timeout: float,
        deadline: float,
    ) -> HttpExchange:
        for hops in range(REDIRECTS + 1):
            location = exchange.headers.get("location")
            # 307 and 308 keep the method; the others turn anything but GET into another request.
            if location is None or (exchange.status < 307 and route.method != "GET"):
                return exchange
            exchange.close()
            if hops == REDIRECTS:
                break
            moved = _resolve_redirect(route.url, location)
            if moved.origin != route.url.origin:
                headers = select_harmless(headers)
            if route.pool.loop.time() >= deadline:
                raise TimedOut(f'"{route.rendered}" did not answer within {timeout:g} s')
            try:
                route = self._route(route.method, moved)
                request = _encode_request(route, encode_headers(headers), body)
                exchange = await self._send(route, request, timeout, deadline)
            except Unreachable as error:
                # The request has reached the first server, whatever happens at this one.
                raise Unreachable(f"{error} (redirected there)") from error
            if exchange.status not in _MOVED:
                return exchange
        raise BadReply(f'"{route.rendered}" redirects more than {REDIRECTS} times')

    def _remember(self, method: str, text: str) -> RequestRoute:
        if len(self._routes) >= ROUTES:
            self._routes.clear()
        route = self._routes[method, text] = self._route(method, _parse(text))
        return route

    def _route(self, method: str, url: Url) -> RequestRoute:
        if method not in _METHODS:
            raise ValueError(f"unsupported HTTP method {method!r}")
        start = f"{method} {url.target} HTTP/1.1\r\nhost: {url.authority}\r\n"
        return RequestRoute(
            method,
            url,
            url.rendered,
            self._client.pool(url, self._reach(url)),
            f"{start}accept-encoding: identity\r\n".encode("ascii"),
        )

    def _reach(self, url: Url) -> Reach:
        """How far inside the network `url` may lead. A private address is reached only at the
        configured origin: another port of that host may be an unrelated service."""
        configured = self._configured
        if self._allow_private:
            return Reach.PRIVATE
        if configured is None or self._own is Reach.PUBLIC:
            return Reach.PUBLIC
        own, origin = configured.origin, url.origin
        if origin == own or (origin.host == own.host and _is_upgrade(own, origin)):
            return self._own
        if origin.host in LOOPBACK and own.host in LOOPBACK:
            if (origin.scheme, origin.port) == (own.scheme, own.port) or _is_upgrade(own, origin):
                return Reach.LOOPBACK
        elif origin.host != own.host:
            return Reach.PUBLIC
        raise Unreachable(
            f'will not connect to "{url.rendered}": only "{configured.rendered}" was configured, '
            "and other ports of a private host are not reached; set allow_private = true for it "
            "if that is intended",
            sent=False,
        )


def _parse(text: str) -> Url:
    try:
        return parse_url(text)
    except BadUrl as problem:
        message = f'will not connect to "{render_origin(text)}": {problem}'
        raise Unreachable(message, sent=False) from None


def _encode_request(route: RequestRoute, headers: bytes, body: bytes) -> bytes:
    if body or route.method not in _BODILESS:
        length = str(len(body)).encode()  # joining takes half the time of formatting
        return b"".join((route.start, headers, b"content-length: ", length, b"\r\n\r\n", body))
    return b"%b%b\r\n" % (route.start, headers)


def _own_reach(configured: Url) -> Reach:
    """How far inside the network the host of a configured URL may lead: the operator wrote it."""
    if configured.origin.host == "localhost":
        return Reach.LOOPBACK
    if configured.literal and classify_address(configured.origin.host).verdict is Verdict.PRIVATE:
        return Reach.PRIVATE
    return Reach.PUBLIC


def _is_upgrade(own: UrlOrigin, other: UrlOrigin) -> bool:
    """Whether a redirect leads from http to https, each at its default port."""
    return (own.scheme, own.port, other.scheme, other.port) == ("http", 80, "https", 443)


def _resolve_redirect(url: Url, location: str) -> Url:
    try:
        moved = join_url(url, location)
    except BadUrl as problem:
        raise BadReply(f'"{url.rendered}" redirects to an invalid URL: {problem}') from None
    if url.origin.scheme == "https" and moved.origin.scheme == "http":
        raise BadReply(f'"{url.rendered}" redirects from https to http, which is refused')
    return moved
