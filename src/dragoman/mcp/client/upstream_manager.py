"""All configured servers: started together, and changed one by one when the configuration is."""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.core.bus import Bus
from dragoman.core.catalog import Catalog
from dragoman.core.events import ClientGone, RootsChanged
from dragoman.core.ports import Viewer
from dragoman.core.tool import PROMPT, RESOURCE, TEMPLATE, TOOL
from dragoman.core.tool_identity import fold_server_name
from dragoman.core.urls import render_arguments, render_url
from dragoman.mcp.client.client_lists import wait_for_lists
from dragoman.mcp.client.list_freshness import WAIT_SECONDS
from dragoman.mcp.client.upstream import Upstream
from dragoman.mcp.config import (
    ANSWER_SECONDS,
    ServerEntry,
    StdioTransport,
    parse_headers,
)

log = logging.getLogger(__name__)


class UpstreamManager:
    def __init__(
        self, make: Callable[[ServerEntry], Upstream], catalogs: Mapping[str, Catalog], bus: Bus
    ) -> None:
        self._make = make
        self._catalogs = catalogs
        self._running: dict[str, Upstream] = {}
        self._entries: list[ServerEntry] = []
        bus.observe(ClientGone, self._client_gone)
        bus.observe(RootsChanged, self._roots_changed)

    async def apply(self, entries: Sequence[ServerEntry]) -> None:
        """Makes what runs what `entries` say; whom they leave as it was is not touched."""
        wanted = {entry.name: entry for entry in entries if entry.enabled}
        gone = [
            upstream
            for name, upstream in self._running.items()
            if wanted.get(name) != upstream.entry
        ]
        self._entries = list(entries)
        for upstream in gone:
            del self._running[upstream.name]
        ending = {upstream.name for upstream in gone}
        self._start(entry for name, entry in wanted.items() if name not in ending)
        await _stop_all(gone)
        self._start(wanted.values())

    async def restart(self, name: str) -> bool:
        """Stops the server and connects to it again; False where no such server is switched on."""
        upstream = self._running.pop(name, None)
        if upstream is None:
            return False
        await _stop_all([upstream])
        self._start(entry for entry in self._entries if entry.enabled and entry.name == name)
        return True

    def _client_gone(self, event: ClientGone) -> None:
        for upstream in self._running.values():
            upstream.drop_client(event.client)

    def _roots_changed(self, event: RootsChanged) -> None:
        for upstream in self._running.values():
            upstream.roots_changed(event.client)

    def _start(self, entries: Iterable[ServerEntry]) -> None:
        for entry in entries:
            if entry.name not in self._running:
                self._running[entry.name] = upstream = self._make(entry)
                upstream.start()

    async def wait_settled(self) -> None:
        """Until each has been connected once, or has failed once."""
        await asyncio.gather(*(upstream.wait_tried() for upstream in self._running.values()))

    async def stop(self) -> None:
        running, self._running = self._running, {}
        await _stop_all(running.values())

    @property
    def starting(self) -> list[str]:
        return [name for name, upstream in self._running.items() if upstream.state == "starting"]

    def find(self, name: str) -> Upstream | None:
        return self._running.get(name)

    def find_absent(self, name: str) -> tuple[Upstream, str] | None:
        """The server in whose namespace `name` is, of those that were never connected."""
        folded = fold_server_name(name)
        for upstream in self._running.values():
            if upstream.restarts >= 0:
                continue
            if _is_in_namespace(upstream, folded.removeprefix("mcp_")):
                state = f"not connected: {upstream.reason}" if upstream.reason else "still starting"
                return upstream, f'server "{upstream.name}" is {state}'
        return None

    # --- who is listed what (core.ports.ListVisibility) ----------------------------------------

    def prepare(self, kind: str, viewer: Viewer) -> Awaitable[None] | None:
        tasks = []
        for upstream in self._running.values():  # no generators: every list comes here
            task = upstream.lists.prepare(kind, viewer)
            if task is not None:
                tasks.append(task)
        return wait_for_lists(tasks) if tasks else None

    def list_hidden(self, kind: str, viewer: Viewer) -> frozenset[str]:
        names: frozenset[str] = frozenset()
        for upstream in self._running.values():
            if upstream.listing.differs:
                names |= upstream.lists.list_hidden(kind, viewer)
        return names

    def list_client_only_names(self, kind: str) -> frozenset[str]:
        names: frozenset[str] = frozenset()
        for upstream in self._running.values():
            if upstream.listing.differs:
                names |= upstream.listing.list_client_only_names(kind)
        return names

    # --- reading lists again (core.ports.ListRefresher) ----------------------------------------

    def is_stale(self, kind: str) -> bool:
        for upstream in self._running.values():  # noqa: SIM110
            if upstream.is_stale(kind):
                return True
        return False

    async def refresh(self, kind: str) -> None:
        stale = [one for one in self._running.values() if one.is_stale(kind)]
        await _refresh_all(stale, kind)

    async def refresh_for(self, name: str, kind: str) -> bool:
        if kind not in (TOOL, PROMPT):  # resources need not be listed to be read
            return False
        folded = fold_server_name(name).removeprefix("mcp_")
        found = [
            upstream
            for upstream in self._running.values()
            if upstream.freshness.may_read(kind) and _may_have(upstream, folded)
        ]
        await _refresh_all(found, kind)
        return bool(found)

    def count(self, state: str) -> int:
        return sum(upstream.state == state for upstream in self._running.values())

    def __len__(self) -> int:
        return len(self._running)

    def read_log(self, name: str) -> str | None:
        upstream = self._running.get(name)
        if upstream is None:  # switched off: it says nothing
            return "" if any(entry.name == name for entry in self._entries) else None
        return upstream.stderr.read_text()

    def find_nearest(self, name: str) -> str | None:
        return next(iter(difflib.get_close_matches(name, self._running, n=1)), None)

    def snapshot(self) -> dict[str, Any]:
        """`configured` and `connected`, with the reason for one that is not; how many tools each
        has, and not which: there may be many."""
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
            reason = (
                "it is switched off (enabled = false)" if not entry.enabled else "it is stopped"
            )
            return {
                "name": entry.name,
                "tools_count": 0,
                "connected": False,
                "state": "off",
                "reason": reason,
            }
        state: dict[str, Any] = {
            "name": entry.name,
            "tools_count": len(self._catalogs[TOOL].list_offered(entry.name)),
            "prompts_count": len(self._catalogs[PROMPT].list_offered(entry.name)),
            "resources_count": len(self._catalogs[RESOURCE].list_offered(entry.name)),
            "templates_count": len(self._catalogs[TEMPLATE].list_offered(entry.name)),
            "connected": upstream.session is not None,
            "state": upstream.state,
            "era": _name_era(upstream),
            "protocol_version": upstream.revision,
            "restarts": max(0, upstream.restarts),
        }
        if upstream.session is None:
            state["reason"] = upstream.reason or "it is being connected"
        if upstream.session is not None and upstream.session.server_info:
            state["server_info"] = upstream.session.server_info
        if upstream.problems:
            state["problems"] = upstream.problems
        if remarks := upstream.lists.remarks():
            state["remarks"] = remarks
        if len(upstream.client_sessions):
            state["own_sessions"] = len(upstream.client_sessions)
        return state


def _is_in_namespace(upstream: Upstream, folded: str) -> bool:
    spaces = {
        fold_server_name(upstream.name),
        fold_server_name(upstream.entry.prefix or upstream.name),
    }
    return folded.startswith(tuple(f"{space}{mark}" for space in spaces for mark in "._"))


def _may_have(upstream: Upstream, folded: str) -> bool:
    """Whether the server may offer something that is called like this here."""
    return upstream.entry.prefix == "" or _is_in_namespace(upstream, folded)


async def _refresh_all(upstreams: Iterable[Upstream], kind: str) -> None:
    reading = [upstream.refresh(kind) for upstream in upstreams]
    if reading:
        await asyncio.wait(reading, timeout=WAIT_SECONDS)


async def _stop_all(upstreams: Iterable[Upstream]) -> None:
    """Stops them side by side; one that fails to stop keeps none of the others from it."""
    stopping = {upstream.name: upstream.stop() for upstream in upstreams}
    ended = await asyncio.gather(*stopping.values(), return_exceptions=True)
    for name, error in zip(stopping, ended, strict=True):
        if isinstance(error, Exception):
            log.error('server "%s" could not be stopped properly', name, exc_info=error)


def _name_era(upstream: Upstream) -> str | None:
    if upstream.modern is None:
        return None
    return "modern" if upstream.modern else "legacy"


def _describe_entry(entry: ServerEntry) -> dict[str, Any]:
    """The entry as it was written, less what may be secret."""
    shown: dict[str, Any] = msgspec.to_builtins(entry)
    shown["timeout_secs"] = entry.timeout_secs or ANSWER_SECONDS
    if isinstance(entry.transport, StdioTransport):
        shown["transport"]["args"] = render_arguments(entry.transport.args)
    else:
        names = [name for name, _ in parse_headers(entry.transport.headers)]
        shown["transport"]["headers"] = dict.fromkeys(names, "(hidden)")
        shown["transport"]["url"] = render_url(entry.transport.url)
    return shown
