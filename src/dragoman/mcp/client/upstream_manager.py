"""All configured servers: started together, and changed one by one with the configuration."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.core.bus import Bus
from dragoman.core.catalog import Catalog
from dragoman.core.events import ClientGone, RootsChanged
from dragoman.core.ports import Interfaces, Viewer
from dragoman.core.secret_references import render_reference
from dragoman.core.tool import PROMPT, TOOL, Tool
from dragoman.core.tool_identity import fold_server_name
from dragoman.core.urls import render_arguments, render_url
from dragoman.mcp.client.catalog_sync import KINDS, WAIT_SECONDS
from dragoman.mcp.client.placed_upstream import PlacedUpstream
from dragoman.mcp.client.upstream import Upstream
from dragoman.mcp.config import ANSWER_SECONDS, ServerEntry, StdioTransport, parse_headers

log = logging.getLogger(__name__)

PREPARE_SECONDS = 10.0
"""How long a list waits for what is found out about its client; changes are announced later."""
Place = Callable[[Sequence[ServerEntry]], list[ServerEntry]]


class UpstreamManager:
    def __init__(
        self,
        make: Callable[[ServerEntry], Upstream],
        catalogs: Mapping[str, Catalog],
        bus: Bus,
        place: Place = list,
    ) -> None:
        """`place` replaces the entries of servers that run at another hub."""
        self._make = make
        self._place = place
        self._applying = asyncio.Lock()
        self._catalogs = catalogs
        self._running: dict[str, Upstream] = {}
        self._entries: list[ServerEntry] = []
        bus.observe(ClientGone, self._client_gone)
        bus.observe(RootsChanged, self._roots_changed)

    async def apply(self, entries: Sequence[ServerEntry]) -> None:
        """Starts, stops and restarts servers as `entries` say; unchanged ones keep running."""
        async with self._applying:
            await self._apply(entries)

    async def follow_placement(self) -> None:
        """Applies a change of what `place` returns."""
        async with self._applying:
            now = {entry.name: entry for entry in self._place(self._entries) if entry.enabled}
            if any(now.get(name) != one.entry for name, one in self._running.items()):
                await self._apply(self._entries)

    async def _apply(self, entries: Sequence[ServerEntry]) -> None:
        wanted = {entry.name: entry for entry in self._place(entries) if entry.enabled}
        changed = [
            upstream
            for name, upstream in self._running.items()
            if not _is_unchanged(wanted.get(name), upstream.entry)
        ]
        self._entries = list(entries)
        moved = [
            upstream
            for upstream in changed
            if isinstance(upstream, PlacedUpstream)
            and _is_moved(wanted.get(upstream.name), upstream.entry)
        ]
        for one in moved:
            one.begin_move()
        for upstream in changed:
            del self._running[upstream.name]
        ending = {upstream.name for upstream in changed}
        self._start(entry for name, entry in wanted.items() if name not in ending)
        await _stop_all(changed)
        self._start(wanted.values())
        for one in moved:
            one.end_move(self._running[one.name])

    async def restart(self, name: str) -> bool:
        """Stops the server and connects to it again; False if no such server is enabled."""
        upstream = self._running.pop(name, None)
        if upstream is None:
            return False
        await _stop_all([upstream])
        placed = self._place(self._entries)
        self._start(entry for entry in placed if entry.enabled and entry.name == name)
        return True

    def _client_gone(self, event: ClientGone) -> None:
        for upstream in self._running.values():
            upstream.drop_client(event.client)

    def _roots_changed(self, event: RootsChanged) -> None:
        for upstream in self._running.values():
            upstream.client_sessions.note_roots_changed(event.client)

    def _start(self, entries: Iterable[ServerEntry]) -> None:
        for entry in entries:
            if entry.name not in self._running:
                self._running[entry.name] = upstream = self._make(entry)
                upstream.start()

    async def wait_settled(self) -> None:
        """Waits until each server is connected or has failed once."""
        running = self._running.values()
        await asyncio.gather(*(upstream.connection.wait_settled() for upstream in running))

    async def stop(self) -> None:
        running, self._running = self._running, {}
        await _stop_all(running.values())

    @property
    def starting(self) -> list[str]:
        running = self._running.items()
        return [name for name, upstream in running if upstream.connection.state == "starting"]

    @property
    def starts(self) -> dict[str, str]:
        """What each server is doing that has been starting for long."""
        running = self._running.items()
        doing = {name: upstream.connection.describe_start() for name, upstream in running}
        return {name: text for name, text in doing.items() if text}

    @property
    def is_installing(self) -> bool:
        """Whether to stop now may end an installation."""
        return any(upstream.connection.is_installing for upstream in self._running.values())

    def find(self, name: str) -> Upstream | None:
        return self._running.get(name)

    def find_absent(self, name: str) -> tuple[Upstream, str] | None:
        """Finds the server that was never connected and whose namespace contains `name`, with its
        state."""
        folded = fold_server_name(name)
        for upstream in self._running.values():
            if upstream.connection.restarts >= 0:
                continue
            if _is_in_namespace(upstream, folded.removeprefix("mcp_")):
                reason = upstream.connection.reason
                doing = upstream.connection.describe_start()
                state = f"not connected: {reason}" if reason else "still starting"
                state += f" (it {doing})" if doing else ""
                return upstream, f'server "{upstream.name}" is {state}'
        return None

    # --- visibility (core.ports.ListVisibility) ------------------------------------------------

    def prepare(self, kind: str, viewer: Viewer) -> Awaitable[None] | None:
        tasks = []
        for upstream in self._running.values():  # no generators: every list request runs this
            task = upstream.lists.prepare(kind, viewer)
            if task is not None:
                tasks.append(task)
        return _wait(tasks, PREPARE_SECONDS) if tasks else None

    def list_hidden(self, kind: str, viewer: Viewer) -> frozenset[str]:
        names: frozenset[str] = frozenset()
        for upstream in self._running.values():
            if upstream.lists.differs:
                names |= upstream.lists.list_hidden(kind, upstream.lists.find_view(viewer))
        return names

    def list_client_only_names(self, kind: str) -> frozenset[str]:
        names: frozenset[str] = frozenset()
        for upstream in self._running.values():
            if upstream.lists.differs:
                names |= upstream.lists.list_client_only_names(kind)
        return names

    def list_interfaces(self, viewer: Viewer) -> Interfaces:
        found: Interfaces = frozenset()
        for upstream in self._running.values():
            if upstream.lists.has_interfaces:
                found |= upstream.lists.list_interfaces(upstream.lists.find_view(viewer))
        return found

    def has_own_lists(self, kind: str, targets: Collection[str], viewer: Viewer) -> bool:
        for name in targets:
            upstream = self._running.get(name)
            if upstream is None or not upstream.lists.differs:
                return False
            if not upstream.lists.has_own(kind, viewer):
                return False
        return bool(targets)

    def begin_sessions(self, viewer: Viewer, may_use: Callable[[str], bool]) -> None:
        for name, upstream in self._running.items():
            sessions = upstream.client_sessions
            if sessions.asked_at_start and may_use(name):
                sessions.begin(viewer)

    # --- logins --------------------------------------------------------------------------------

    def list_needing_login(self, viewer: Viewer) -> frozenset[str]:
        """Lists the servers at which such a client's calls need a login first."""
        found: frozenset[str] = frozenset()
        for upstream in self._running.values():  # no generators: every list request runs this
            if upstream.clients is not None and upstream.needs_login(viewer):
                found |= {upstream.name}
        return found

    def list_login_tools(self) -> list[Tool]:
        found = (upstream.login_tool for upstream in self._running.values())
        return [tool for tool in found if tool is not None]

    # --- reading lists again (core.ports.ListRefresher) ----------------------------------------

    def is_stale(self, kind: str) -> bool:
        for upstream in self._running.values():  # noqa: SIM110
            if upstream.lists.is_stale(kind):
                return True
        return False

    async def refresh(self, kind: str) -> None:
        stale = [one for one in self._running.values() if one.lists.is_stale(kind)]
        await _refresh_all(stale, kind)

    async def refresh_for(self, name: str, kind: str) -> bool:
        if kind not in (TOOL, PROMPT):  # resources need not be listed to be read
            return False
        folded = fold_server_name(name).removeprefix("mcp_")
        found = [
            upstream
            for upstream in self._running.values()
            if upstream.lists.freshness.may_read(kind)
            and (upstream.entry.prefix == "" or _is_in_namespace(upstream, folded))
        ]
        await _refresh_all(found, kind)
        return bool(found)

    def count(self, state: str) -> int:
        return sum(upstream.connection.state == state for upstream in self._running.values())

    def __len__(self) -> int:
        return len(self._running)

    def read_log(self, name: str) -> str | None:
        upstream = self._running.get(name)
        if upstream is None:  # disabled
            return "" if any(entry.name == name for entry in self._entries) else None
        return upstream.stderr.read_text()

    def snapshot(self) -> dict[str, Any]:
        """Describes each server as `configured` and as `connected`, with the number of its tools or
        the reason why it is not."""
        connected = [self._describe(entry) for entry in self._entries]
        return {
            "configured": [_describe_entry(entry) for entry in self._entries],
            "connected": connected,
            "total_configured": len(self._entries),
            "total_connected": sum(state["connected"] for state in connected),
        }

    def _describe(self, entry: ServerEntry) -> dict[str, Any]:
        upstream = self._running.get(entry.name)
        if upstream is None:
            reason = "it is disabled (enabled = false)" if not entry.enabled else "it is stopped"
            off = {"name": entry.name, "tools_count": 0, "connected": False, "state": "off"}
            return {**off, "reason": reason}
        connection = upstream.connection
        session = connection.session
        state: dict[str, Any] = {
            "name": entry.name,
            **{f"{kind}s_count": len(upstream.catalog.list_offered(kind)) for kind in KINDS},
            "connected": session is not None,
            "state": connection.state,
            "era": {None: None, True: "modern", False: "legacy"}[connection.modern],
            "protocol_version": connection.version,
            "restarts": max(0, connection.restarts),
        }
        if upstream.sandbox:
            state["sandbox"] = upstream.sandbox
        if upstream.sandbox_problem:
            state["sandbox_problem"] = upstream.sandbox_problem
        if session is None:
            doing = connection.describe_start()
            state["reason"] = connection.reason or (
                f"it {doing}" if doing else "it is being connected"
            )
        elif session.server_info:
            state["server_info"] = session.server_info
        if problems := upstream.catalog.problems:
            state["problems"] = problems
        remarks = [*upstream.sandbox_remarks, *upstream.lists.describe_differences()]
        if remarks := [*remarks, *upstream.catalog.describe_long_names()]:
            state["remarks"] = remarks
        if len(upstream.client_sessions):
            state["own_sessions"] = len(upstream.client_sessions)
        return state


def _is_in_namespace(upstream: Upstream, folded: str) -> bool:
    spaces = {
        fold_server_name(upstream.name),
        fold_server_name(upstream.entry.prefix or upstream.name),
    }
    spaces |= {space.removeprefix("mcp_") for space in spaces}  # as in the style `portable`
    return folded.startswith(tuple(f"{space}{mark}" for space in spaces for mark in "._"))


async def _refresh_all(upstreams: Iterable[Upstream], kind: str) -> None:
    reading = [upstream.lists.refresh(kind) for upstream in upstreams]
    if reading:
        await _wait(reading, WAIT_SECONDS)


async def _wait(futures: Iterable[asyncio.Future[None]], seconds: float) -> None:
    await asyncio.wait(list(futures), timeout=seconds)


async def _stop_all(upstreams: Iterable[Upstream]) -> None:
    """Stops them concurrently; one that fails to stop does not affect the others."""
    stopping = {upstream.name: upstream.stop() for upstream in upstreams}
    ended = await asyncio.gather(*stopping.values(), return_exceptions=True)
    for name, error in zip(stopping, ended, strict=True):
        if isinstance(error, Exception):
            log.error('server "%s" could not be stopped properly', name, exc_info=error)


def _is_unchanged(new: ServerEntry | None, old: ServerEntry) -> bool:
    """Whether a running server can go on. Its tags concern views alone."""
    return new is not None and msgspec.structs.replace(new, tags=old.tags) == old


def _is_moved(new: ServerEntry | None, old: ServerEntry) -> bool:
    """Whether the same server runs at another place now."""
    return new is not None and _is_unchanged(
        msgspec.structs.replace(new, transport=old.transport, era=old.era), old
    )


def _describe_entry(entry: ServerEntry) -> dict[str, Any]:
    """Returns the entry as it was written, without what may be secret."""
    described: dict[str, Any] = msgspec.to_builtins(entry)
    described["timeout_secs"] = entry.timeout_secs or ANSWER_SECONDS
    references = entry.env_references
    described["env"] = [
        f"{name}={render_reference(references[name])}" if name in references else name
        for name in entry.env_names
    ]
    if isinstance(entry.transport, StdioTransport):
        described["transport"]["args"] = render_arguments(entry.transport.args)
    else:
        names = [name for name, _ in parse_headers(entry.transport.headers)]
        described["transport"]["headers"] = dict.fromkeys(names, "(hidden)")
        described["transport"]["url"] = render_url(entry.transport.url)
    return described
