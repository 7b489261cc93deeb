"""Servers that run at one hub of a cluster: `placement = "one"`.

The hub that holds the lease of such a server runs it. The others reach it there, as an MCP server
over the internal connection: each checks and records its own calls, and the hub that runs the
server passes them on. Imported only in a cluster.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote, unquote

from dragoman.app.build_guards import Guards
from dragoman.core.background import Work
from dragoman.core.call import Call
from dragoman.core.catalog import admit_all, build_catalogs
from dragoman.core.cluster import Leases
from dragoman.core.hub import Hub
from dragoman.core.name_claims import NameClaims
from dragoman.core.ports import Decision
from dragoman.core.principal import Principal
from dragoman.core.rate_limiter import LocalRateLimiter, Rate, RateRules
from dragoman.core.structs import replace as replace_struct
from dragoman.core.tool import RESOURCE, TEMPLATE, Tool
from dragoman.mcp.client.upstream_manager import UpstreamManager
from dragoman.mcp.config import HttpTransport, ServerEntry, StdioTransport
from dragoman.mcp.server.dispatcher import McpServer, ServerIdentity
from dragoman.mcp.server.streamable_http import StreamableHttpTransport
from dragoman.wire.http import JSON_HEADERS, HttpRequest
from dragoman.wire.json import encode

PREFIX = "/placed/"
BASE = f"http://localhost{PREFIX}"
"""How the addresses of such servers begin, for the hubs that do not run them."""
_ANY_RATE = Rate(1e9, 1e9)


def build_lease_name(server: str) -> str:
    return f"server {server}"


def is_placed(url: str) -> bool:
    return url.startswith(BASE)


def parse_hub(url: str) -> str:
    """The hub that runs the server of an address; empty if none does."""
    return url.partition("?hub=")[2]


@dataclass(frozen=True, slots=True)
class Placement:
    """Decides which of the servers run here."""

    leases: Leases

    def place(self, entries: Sequence[ServerEntry]) -> list[ServerEntry]:
        """Replaces the transport of servers that another hub runs."""
        return [self._place(one) for one in entries]

    def _place(self, entry: ServerEntry) -> ServerEntry:
        is_one = entry.placement == "one" and isinstance(entry.transport, StdioTransport)
        name = build_lease_name(entry.name)
        if is_one and entry.interactive is None:
            # A client with a session of its own would have a process of its own.
            entry = replace_struct(entry, interactive=False)
        if not is_one or not entry.enabled or self.leases.holds(name):
            return entry
        url = f"{BASE}{quote(entry.name, safe='')}?hub={self.leases.find_holder(name)}"
        return replace_struct(entry, transport=HttpTransport(url=url), era="auto")


class DecidedElsewhere:
    """The `Authorizer` of calls that the hub of the caller has permitted."""

    version = 0

    def reads_arguments(self, tool: Tool) -> bool:
        return False

    def decide(self, call: Call) -> Decision:
        return Decision(True)

    def can_list(self, principal: Principal, tool: Tool) -> bool:
        return True

    def can_see(self, principal: Principal, tool: Tool, door: str) -> bool:
        return True

    def group_of_principal(self, principal: Principal) -> Hashable:
        return "hub"

    def decide_action(
        self, principal: Principal, action: str, tool: Tool | None = None, *, owner: bool = False
    ) -> Decision:
        return Decision(True)


@dataclass(eq=False, slots=True)
class PlacedServers:
    """Serves the placed servers of this hub to the others, each as an MCP server with the names of
    its own."""

    _guards: Guards
    _upstreams: UpstreamManager
    _key: bytes
    _open: dict[str, tuple[Hub, StreamableHttpTransport]] = field(default_factory=dict)
    _seen: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The versions of the catalogs that each one is of."""

    def serve(self, request: HttpRequest, hub: str) -> Work[None] | None:
        """Serves a request of another hub."""
        name = unquote(request.path.removeprefix(PREFIX))
        upstream = self._upstreams.find(name)
        is_here = upstream is not None and isinstance(upstream.entry.transport, StdioTransport)
        # One that was not connected yet would seem to offer nothing.
        if upstream is None or not is_here or upstream.connection.restarts < 0:
            said = f'server "{name[:64]}" does not run at this hub'
            request.reply(503, JSON_HEADERS, encode({"error": {"message": said}}))
            return None
        transport = self._find(name)
        return transport(request, Principal("hub", hub, roles=("owner",)))

    async def follow(self) -> None:
        """Offers what the servers offer by now."""
        for name in self._open:
            self._refresh(name)

    def _find(self, name: str) -> StreamableHttpTransport:
        if name not in self._open:
            guards, main = self._guards, self._guards.hub
            rules = RateRules(principal=_ANY_RATE, owner=_ANY_RATE, org=_ANY_RATE)
            hub = Hub(
                build_catalogs(admit_all, NameClaims()),
                main.bus,
                (),
                guards.chains,
                DecidedElsewhere(),
                limiter=LocalRateLimiter(rules),
            )
            server = McpServer(hub, self._key, identity=ServerIdentity(name, ""))
            self._open[name] = hub, StreamableHttpTransport(server, self._key)
        self._refresh(name)
        return self._open[name][1]

    def _refresh(self, name: str) -> None:
        versions = tuple(one.version for one in self._guards.hub.offered.values())
        if self._seen.get(name) == versions:
            return
        self._seen[name] = versions
        hub = self._open[name][0]
        for kind, catalog in self._guards.hub.offered.items():
            # As the server itself describes it: each hub compares that with its pins.
            found = tuple(replace(one, description="") for one in catalog.list_offered(name))
            if kind not in (RESOURCE, TEMPLATE):
                found = tuple(_restore_names(one) for one in found)
            if found != hub.offered[kind].list_offered(name):
                hub.offered[kind].offer(name, found)

    def close(self) -> None:
        for _, transport in self._open.values():
            transport.server.subscriptions.close()
            transport.close()


def _restore_names(tool: Tool) -> Tool:
    """Returns the tool as its server lists it: hubs share the pins of its definition."""
    said = tool.definition.get("description")
    return replace(
        tool,
        alias=tool.remote_name,
        other_names={},
        fallback_names=(),
        description=said if isinstance(said, str) else "",
    )
