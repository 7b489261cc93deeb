"""Opens sessions with configured servers: chooses the transport and the era.

A server configured as `http` may turn out to be HTTP+SSE and the other way round; the transport
that works is used.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from secrets import token_hex

from dragoman.core.errors import BadReply, HubError, TargetFailed, Unreachable, WorkFailed
from dragoman.core.package_runners import (
    explain_unpinned,
    find_installer,
    find_unpinned_package,
)
from dragoman.core.secret_references import SecretResolver, needs_resolver
from dragoman.core.secret_rules import Author, SecretUse
from dragoman.core.urls import render_full_origin
from dragoman.mcp.client.connection import HttpWireType
from dragoman.mcp.client.jsonrpc_channel import Wire
from dragoman.mcp.client.legacy_sse import SseWire
from dragoman.mcp.client.message_limit import MessageLimit
from dragoman.mcp.client.server_start import build_folder_name
from dragoman.mcp.client.session import BothErasAnswered, SessionSpec, UpstreamSession
from dragoman.mcp.client.stdio import StdioWire
from dragoman.mcp.client.streamable_http import HttpWire, UpstreamHttpError
from dragoman.mcp.client.upstream import Upstream
from dragoman.mcp.config import (
    HttpTransport,
    SseTransport,
    StdioTransport,
    parse_headers,
)
from dragoman.processes.bubblewrap import NoBubblewrap, find_bubblewrap
from dragoman.processes.child_process import Confined, build_environment
from dragoman.processes.sandbox import (
    SandboxFolders,
    SandboxSpec,
    build_sandbox_command,
    describe_hub_paths,
    describe_loose_files,
)
from dragoman.wire.http import HttpClient
from dragoman.wire.masked_replies import MaskingClient, list_secret_words
from dragoman.wire.secret_headers import SecretHeadersClient, build_placeholder

log = logging.getLogger(__name__)

OTHER_TRANSPORT = frozenset({200, 400, 404, 405, 406, 415, 501})
"""Statuses with which a server of one HTTP transport may answer a request of the other: a POST of
`initialize` (2025-03-26, backwards compatibility), or a GET of a stream."""
HTTP_WIRES: dict[type[SseTransport], tuple[HttpWireType, HttpWireType]] = {
    HttpTransport: (HttpWire, SseWire),
    SseTransport: (SseWire, HttpWire),
}
"""The wires to try for a configured transport, in order."""

_OUTSIDE = frozenset({"TMPDIR", "XDG_RUNTIME_DIR"})
"""Variables that lead to folders outside of every sandbox."""

HASH_SEED = "0"
"""`PYTHONHASHSEED` of a server, unless its entry sets one: otherwise what a Python server makes of
a set has another order in each process, and its definitions seem to change at every start."""

Reach = Callable[[str, bool], HttpClient]
"""Returns the HTTP client for a configured URL, which may or may not lead to private addresses."""


class Connector:
    def __init__(
        self,
        home: Path,
        mark: str,
        lookup: Mapping[str, str],
        reach: Reach,
        secrets: SecretResolver | None = None,
    ) -> None:
        self._secrets = SecretResolver(lookup, home) if secrets is None else secrets
        self.home = home
        self.mark = mark
        self.lookup = lookup
        """The values of `env` names and `${NAME}` references."""
        self._reach = reach
        self._warned: set[tuple[str, str]] = set()
        """Servers and the warnings that have been logged for each."""

    async def __call__(
        self, upstream: Upstream, seconds: float, spec: SessionSpec
    ) -> UpstreamSession:
        transport = upstream.entry.transport
        if isinstance(transport, StdioTransport):
            return await self._connect_stdio(upstream, transport, seconds, spec)
        first, second = HTTP_WIRES[type(transport)]
        if upstream.connection.http_wire is second:
            first, second = second, first
        if (
            not spec.is_main and upstream.connection.http_wire is not None
        ):  # found by the shared one
            return await self._connect_http(first, upstream, transport, seconds, spec)
        try:
            return await self._connect_http(first, upstream, transport, seconds, spec)
        except UpstreamHttpError as error:
            if error.status not in OTHER_TRANSPORT:
                raise
            problem: TargetFailed = error
        except BadReply as error:
            problem = error
        try:
            return await self._connect_http(second, upstream, transport, seconds, spec)
        except HubError:
            raise problem from None

    async def _connect_stdio(
        self, upstream: Upstream, transport: StdioTransport, seconds: float, spec: SessionSpec
    ) -> UpstreamSession:
        folder = self.home / "servers" / build_folder_name(upstream.name)
        mark = f"{self.mark}:{upstream.name}"
        if not spec.is_main:  # all processes with the same mark are killed together
            mark = f"{self.mark}:{token_hex(8)} {upstream.name}"
        names, users = upstream.entry.env_names, upstream.entry.has_user_home
        self._check_package(upstream, transport)
        bubblewrap = await self._find_sandbox(upstream)
        # What one server puts into a shared cache, another would run.
        caches = folder / "cache" if bubblewrap else self.home / "cache"
        lookup = await self._add_secrets(upstream)
        env = build_environment(names, lookup, folder, caches, mark, with_user_home=users)
        env.setdefault("PYTHONHASHSEED", HASH_SEED)
        cwd = os.path.expanduser(transport.cwd) if transport.cwd else env["HOME"]
        if bubblewrap:
            for name in _OUTSIDE - set(names) if users else ():
                env.pop(name, None)
        confine = partial(self._confine, upstream, bubblewrap, folder, env, cwd)

        async def start(modern: bool | None) -> UpstreamSession:
            wire = StdioWire(upstream.name, spec.sink, upstream.stderr, _build_limit(upstream))
            wire.may_install = bool(find_installer(transport.command, transport.args))
            await wire.start(
                os.path.expanduser(transport.command), transport.args, env, cwd, confine
            )
            session = await self._open(upstream, wire, seconds, modern, spec)
            wire.may_install = False
            return session

        try:
            return await start(upstream.connection.modern)
        except BothErasAnswered:
            upstream.connection.modern = True
            return await start(True)

    async def _add_secrets(self, upstream: Upstream) -> Mapping[str, str]:
        """The variables, with those that the server's entry refers to."""
        references = upstream.entry.env_references
        if not references:
            return self.lookup
        use = _build_use(upstream)
        found = {
            name: await self._secrets.resolve(reference, use)
            for name, reference in references.items()
        }
        return {**self.lookup, **found}

    def _check_package(self, upstream: Upstream, transport: StdioTransport) -> None:
        """Logs a package without a version; refuses it where the sandbox is strict."""
        package = find_unpinned_package(transport.command, transport.args)
        if package is None:
            return
        reason = "; ".join(explain_unpinned(transport.command, package))
        if upstream.entry.sandbox == "strict":
            raise Unreachable(f'{reason} (sandbox = "strict" requires it)', sent=False)
        self._warn_once(upstream.name, reason)

    async def _find_sandbox(self, upstream: Upstream) -> str | None:
        """Finds bubblewrap for a server that needs it; None if it runs without a sandbox."""
        level = upstream.entry.sandbox
        upstream.sandbox, upstream.sandbox_problem, upstream.sandbox_remarks = level, "", []
        if level == "off":
            return None
        try:
            return await asyncio.to_thread(find_bubblewrap, self.lookup.get("PATH"))
        except NoBubblewrap as error:
            if level == "strict":
                raise Unreachable(
                    f'it was not started: sandbox = "strict", but {error}', sent=False
                ) from None
            upstream.sandbox, upstream.sandbox_problem = "off", str(error)
            self._warn_once(upstream.name, f'it runs without its sandbox "net": {error}')
            return None

    def _confine(
        self,
        upstream: Upstream,
        bubblewrap: str | None,
        folder: Path,
        env: Mapping[str, str],
        cwd: str,
        command: Sequence[str],
    ) -> Confined:
        entry = upstream.entry
        if bubblewrap is None:
            return Confined(command, entry.limits)
        user = Path(self.lookup.get("HOME") or os.path.expanduser("~"))
        spec = SandboxSpec(
            entry.sandbox,
            SandboxFolders(self.home, folder, user),
            entry.has_user_home,
            tuple(entry.sandbox_paths),
        )
        upstream.sandbox_remarks = [
            *describe_hub_paths(spec, command, env, entry.env_names, cwd),
            *describe_loose_files(spec, command, env, entry.env_names),
        ]
        for remark in upstream.sandbox_remarks:
            self._warn_once(upstream.name, remark)
        return build_sandbox_command(
            bubblewrap, spec, command, env, entry.env_names, cwd, entry.limits
        )

    def _warn_once(self, server: str, reason: str) -> None:
        if (server, reason) not in self._warned:
            self._warned.add((server, reason))
            log.warning('server "%s": %s', server, reason)

    async def _connect_http(
        self,
        wire_type: HttpWireType,
        upstream: Upstream,
        transport: SseTransport,
        seconds: float,
        spec: SessionSpec,
    ) -> UpstreamSession:
        modern = upstream.connection.modern
        if not wire_type.speaks_modern:
            modern = False
            if upstream.entry.era == "modern":
                raise build_not_modern(upstream.name)
        if upstream.clients is not None:
            http = upstream.clients.get_client(spec.holder or upstream.clients.find_list_holder())
        else:
            http = self._reach(transport.url, transport.allow_private)
        headers, http = await self._fill_headers(upstream, transport, http)
        wire = wire_type(
            upstream.name, http, transport.url, headers, spec.sink, _build_limit(upstream)
        )
        await wire.start()
        session = await self._open(upstream, wire, seconds, modern, spec)
        upstream.connection.http_wire = wire_type
        return session

    async def _fill_headers(
        self, upstream: Upstream, transport: SseTransport, http: HttpClient
    ) -> tuple[dict[str, str], HttpClient]:
        """Returns the headers, and the client that puts secrets into them which may change."""
        secrets, use = self._secrets, _build_use(upstream)
        headers, templates, fixed = {}, {}, list[str]()
        for name, value in parse_headers(transport.headers):
            filled = await secrets.expand(value, use)  # reports what is missing now
            if needs_resolver(value):
                filled = build_placeholder()
                templates[filled] = value
            else:
                fixed += list_secret_words(filled, value, name.lower())
            headers[name.lower()] = filled
        if fixed:
            http = MaskingClient(http, fixed)
        if not templates:
            return headers, http
        expand = partial(secrets.expand_to_send, use=use)
        return headers, SecretHeadersClient(http, templates, expand, secrets.forget_embedded)

    async def _open(
        self, upstream: Upstream, wire: Wire, seconds: float, modern: bool | None, spec: SessionSpec
    ) -> UpstreamSession:
        session = UpstreamSession(upstream.name, wire, spec)
        era = upstream.entry.era
        try:
            if not spec.is_main or era == "legacy":
                modern = False
            try:
                await session.open(seconds, modern=True if era == "modern" else modern)
            except (WorkFailed, UpstreamHttpError):
                if not spec.is_main or era != "auto" or modern is None:
                    raise
                # The server may have been replaced by one of the other era.
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


def build_not_modern(server: str) -> BadReply:
    return BadReply(
        f'server "{server}" does not speak 2026-07-28; set its era to "auto" or "legacy"'
    )


def _build_limit(upstream: Upstream) -> MessageLimit:
    return MessageLimit(upstream.name, upstream.entry.message_megabytes)


def _build_use(upstream: Upstream) -> SecretUse:
    transport = upstream.entry.transport
    origin = "" if isinstance(transport, StdioTransport) else render_full_origin(transport.url)
    return SecretUse(Author(upstream.entry.added_by), f'server "{upstream.name}"', origin)
