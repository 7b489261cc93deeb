"""From a server's entry to an open session: which transport, which era.

What the configuration calls `http` may turn out to be HTTP+SSE and the other way round; it is then
used as what it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any

from dragoman.core.errors import (
    BadReply,
    ConfigError,
    HubError,
    TargetFailed,
    Unreachable,
    WorkFailed,
)
from dragoman.core.ports import HttpClient
from dragoman.mcp.client.child_process import build_environment
from dragoman.mcp.client.legacy_sse import SseWire
from dragoman.mcp.client.notifications import NotificationSink
from dragoman.mcp.client.session import BothErasAnswered, UpstreamSession
from dragoman.mcp.client.stdio import StdioWire
from dragoman.mcp.client.streamable_http import HttpWire, UpstreamHttpError
from dragoman.mcp.client.upstream import SessionSpec, Upstream
from dragoman.mcp.config import HttpTransport, SseTransport, StdioTransport, parse_headers

OTHER_WAY = frozenset({200, 400, 404, 405, 406, 415, 501})
"""What a server of one of the two HTTP transports may say to a request of the other: to a POST of
`initialize` (2025-03-26, backwards compatibility), or to a GET that asks for a stream."""

Reaching = Callable[[str, bool], HttpClient]
"""The way out for one configured url, and whether it may lead to private addresses."""


class Connector:
    def __init__(
        self, home: Path, mark: str, lookup: Mapping[str, str], reaching: Reaching
    ) -> None:
        self.home = home
        self.mark = mark
        self.lookup = lookup
        """Where `env` names and `${NAME}` references get their values."""
        self._reaching = reaching

    async def __call__(
        self, upstream: Upstream, seconds: float, apart: SessionSpec | None
    ) -> UpstreamSession:
        """The shared session, in the era that is configured or found; apart from it, a session of
        the handshake era."""
        transport = upstream.entry.transport
        if isinstance(transport, StdioTransport):
            return await self._stdio(upstream, transport, seconds, apart)
        if isinstance(transport, HttpTransport):
            order = [self._http, self._sse]
        else:
            order = [self._sse, self._http]
        if upstream.way is not None:
            order.sort(key=lambda way: way.__name__ != upstream.way)
        first, second = order
        if apart is not None and upstream.way is not None:  # the shared session has settled it
            return await first(upstream, transport, seconds, apart)
        try:
            return await first(upstream, transport, seconds, apart)
        except UpstreamHttpError as error:
            if error.status not in OTHER_WAY:
                raise
            problem: TargetFailed = error
        except BadReply as error:
            problem = error
        try:
            return await second(upstream, transport, seconds, apart)
        except HubError:
            raise problem from None

    async def _stdio(
        self,
        upstream: Upstream,
        transport: StdioTransport,
        seconds: float,
        apart: SessionSpec | None,
    ) -> UpstreamSession:
        folder = self.home / "servers" / re.sub(r"[^A-Za-z0-9_-]", "_", upstream.name)
        mark = f"{self.mark}:{upstream.name}"
        if apart is not None:  # all that carries a mark ends together
            mark = f"{self.mark}:{token_hex(8)} {upstream.name}"
        env = build_environment(
            upstream.entry.env,
            self.lookup,
            folder,
            self.home / "cache",
            mark,
            with_user_home=upstream.entry.has_user_home,
        )
        cwd = os.path.expanduser(transport.cwd) if transport.cwd else env["HOME"]

        async def start(modern: bool | None) -> UpstreamSession:
            wire = StdioWire(upstream.name, _ears(upstream, apart), upstream.stderr)
            await wire.start(os.path.expanduser(transport.command), transport.args, env, cwd)
            return await self._open(upstream, wire, seconds, modern, apart)

        try:
            return await start(upstream.modern)
        except BothErasAnswered:
            upstream.modern = True
            return await start(True)

    async def _http(
        self,
        upstream: Upstream,
        transport: SseTransport,
        seconds: float,
        apart: SessionSpec | None,
    ) -> UpstreamSession:
        http = self._reaching(transport.url, transport.allow_private)
        headers = self._headers(upstream, transport)
        wire = HttpWire(upstream.name, http, transport.url, headers, _ears(upstream, apart))
        session = await self._open(upstream, wire, seconds, upstream.modern, apart)
        upstream.way = "_http"
        return session

    async def _sse(
        self,
        upstream: Upstream,
        transport: SseTransport,
        seconds: float,
        apart: SessionSpec | None,
    ) -> UpstreamSession:
        if upstream.entry.era == "modern":
            raise build_not_modern(upstream.name)
        http = self._reaching(transport.url, transport.allow_private)
        headers = self._headers(upstream, transport)
        wire = SseWire(upstream.name, http, transport.url, headers, _ears(upstream, apart))
        await wire.start()
        session = await self._open(upstream, wire, seconds, False, apart)
        upstream.way = "_sse"
        return session

    async def _open(
        self,
        upstream: Upstream,
        wire: Any,
        seconds: float,
        modern: bool | None,
        apart: SessionSpec | None,
    ) -> UpstreamSession:
        if apart is None:
            session = UpstreamSession(upstream.name, wire, upstream.reread_all)
        else:
            session = UpstreamSession(
                upstream.name, wire, apart.missed, apart.features, apart.listens
            )
            if apart.outside is not None:
                wire.set_session_listener(apart.outside)
        try:
            era = upstream.entry.era
            if apart is not None or era == "legacy":
                modern = False
            try:
                await session.open(seconds, modern=True if era == "modern" else modern)
            except (WorkFailed, UpstreamHttpError):
                if apart is not None or era != "auto" or modern is None:
                    raise
                # It is another than the one that was started before.
                await session.open(seconds, modern=None)
            if era == "modern" and not session.modern:
                raise build_not_modern(upstream.name)
        except BaseException as error:
            reason = wire.lost.result() if wire.lost.done() else None
            await session.close()
            if reason is not None and isinstance(error, Unreachable):
                raise Unreachable(reason, sent=False) from None
            raise
        return session

    def _headers(self, upstream: Upstream, transport: SseTransport) -> dict[str, str]:
        return {
            name.lower(): expand_variables(value, self.lookup, f'server "{upstream.name}"')
            for name, value in parse_headers(transport.headers)
        }


def expand_variables(value: str, lookup: Mapping[str, str], whose: str) -> str:
    """`${NAME}` replaced by its value; one that is not set is an error, not an empty secret."""

    def known(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in lookup:
            raise ConfigError(
                f"{whose} needs the environment variable {name}, which is not set; set "
                "it for the hub or put it into the env file in its home"
            )
        return lookup[name]

    return re.sub(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", known, value)


def build_not_modern(server: str) -> BadReply:
    return BadReply(
        f'server "{server}" does not speak 2026-07-28; set its era to "auto" or "legacy"'
    )


def _ears(upstream: Upstream, apart: SessionSpec | None) -> NotificationSink:
    return upstream.handle_shared_notification if apart is None else apart.heard
