"""Builds the router and its tool once there are agents to choose from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import time
from typing import TYPE_CHECKING, Any

from dragoman.a2a.remote.health_watch import DEGRADED, HEALTHY, UNKNOWN, UNREACHABLE
from dragoman.a2a.remote.registered_agents import RegisteredAgents
from dragoman.app.build_guards import Guards
from dragoman.core.call import Call
from dragoman.core.events import REMOVED, AgentChanged
from dragoman.core.tool import Tool
from dragoman.core.tool_identity import HUB, fold_name
from dragoman.guards.tool_flows import ENFORCE
from dragoman.guards.validate import compile_schema
from dragoman.routing.config import RoutingSettings

if TYPE_CHECKING:
    from dragoman.routing.dispatch_tool import DispatchTool
    from dragoman.routing.router import RoutableAgent, Router
    from dragoman.stores.database import StorePlace
    from dragoman.stores.routing import DatabaseRouting

HOUR = 3_600.0
LOCAL, EXTERNAL = "local", "external"
_UNUSABLE = {
    HEALTHY: "unavailable",
    DEGRADED: "unavailable",
    UNKNOWN: "not checked yet",
    UNREACHABLE: UNREACHABLE,
}
"""What an agent without tools is called, by its health."""


@dataclass(frozen=True, slots=True)
class HubAgents:
    """Implements `routing.router.RoutableAgents`."""

    _guards: Guards
    _registered: RegisteredAgents

    def list_agents(self) -> Iterator[RoutableAgent]:
        from dragoman.a2a.remote.registry_view import build_policy_tool
        from dragoman.routing.router import RoutableAgent

        tools, skills = self._find_tools()
        for member in self._registered.list_agents():
            name, watch = member.name, member.watch
            tool = tools.pop(name, None)
            if watch is None:
                health = "disabled"
            elif tool is None:
                health = "quarantined" if watch.quarantine_reason else _UNUSABLE[watch.health.state]
            else:
                health = watch.health.state
            yield RoutableAgent(
                name=name,
                kind=EXTERNAL,
                tool=tool if tool is not None else build_policy_tool(member),
                is_offered=tool is not None,
                skill_tools=skills.get(name, {}),
                health=health,
                agent_id=member.registration.id,
            )
        profiles = self._guards.granted.profiles
        for name, tool in tools.items():
            profile = profiles.get(name)
            tags = profile.tags if profile is not None else ()
            yield RoutableAgent(name=name, kind=LOCAL, tool=tool, is_offered=True, tags=tags)

    def _find_tools(self) -> tuple[dict[str, Tool], dict[str, dict[str, Tool]]]:
        """Finds the tool of each agent, and those of its skills."""
        agents: dict[str, Tool] = {}
        skills: dict[str, dict[str, Tool]] = {}
        for tool in self._guards.hub.catalog.list_tools():
            if tool.agent is not None:
                agents[tool.target.name] = tool
            elif tool.bridged is not None:
                own = skills.setdefault(tool.target.name, {})
                own[fold_name(tool.bridged.skill_id)] = tool
        return agents, skills


@dataclass(frozen=True, slots=True)
class LazyRouting:
    place: StorePlace
    settings: RoutingSettings
    guards: Guards
    registered: RegisteredAgents
    offered: list[DispatchTool] = field(default_factory=list)
    """The tool, once it is offered."""
    built: list[tuple[DatabaseRouting, Router]] = field(default_factory=list)
    """The router with its store, once something was dispatched or explained."""

    def check(self) -> None:
        """Offers the tool once the hub knows two agents to choose from; it then stays."""
        if self.offered:
            return
        names = {tool.target.name for tool in self.guards.hub.catalog.list_targets() if tool.agent}
        if len(names.union(self.registered.list_names())) > 1:
            self.offer()

    async def follow(self) -> None:
        self.check()

    def offer(self) -> None:
        """Offers the tool, unless it is offered already."""
        if self.offered:
            return
        from dragoman.routing.dispatch_tool import DispatchTool

        hub = self.guards.hub
        target = DispatchTool(hub, self.find_router, compile_schema)
        target.observe(hub.bus)
        hub.catalog.offer(HUB, [target.tool])
        self.offered.append(target)

    def explain(self, id: str, org: str, caller: str | None) -> dict[str, Any] | None:
        """See `Router.explain`. A hub that has dispatched nothing stays without a store."""
        from dragoman.stores.routing import DATABASE

        place = self.place
        has_store = (
            (place / DATABASE).exists() if isinstance(place, Path) else "routing" in place.known
        )
        if not self.built and not has_store:
            return None
        return self.find_router().explain(id, org, caller)

    def close(self) -> None:
        for store, _ in self.built:
            store.close()

    def find_router(self) -> Router:
        """Returns the router, and builds it if it does not exist yet. Raises `ConfigError` if its
        store cannot be opened."""
        if not self.built:
            self.built.append(self._build())
        return self.built[0][1]

    def _build(self) -> tuple[DatabaseRouting, Router]:
        from dragoman.routing.choice import RoutingLimits
        from dragoman.routing.outcomes import OutcomeTable
        from dragoman.routing.router import Router
        from dragoman.stores.routing import DatabaseRouting

        settings, hub = self.settings, self.guards.hub
        store = DatabaseRouting(self.place, settings.keep_decisions)
        outcomes = OutcomeTable(
            store,
            window=settings.window,
            half_life_seconds=settings.half_life_hours * HOUR,
            clock=time,
        )

        def forget_removed(event: AgentChanged) -> None:
            if event.state == REMOVED:
                outcomes.forget(event.agent)

        hub.bus.observe(AgentChanged, forget_removed, "the observer that forgets outcomes")
        router = Router(
            hub,
            HubAgents(self.guards, self.registered),
            self._find_refusal,
            outcomes,
            store,
            RoutingLimits(soft_cap=settings.soft_cap, hard_cap=settings.hard_cap),
            Random(settings.seed),
        )
        return store, router

    def _find_refusal(self, call: Call) -> str:
        """Implements `routing.router.FindRefusal`."""
        from dragoman.routing.router import DENIED

        if not self.guards.granted.may_call(call):
            return DENIED
        above = call.trace.parent
        rules = self.guards.flows.find(call.tool).rules
        for label in sorted(above.enforced_labels) if above is not None else ():
            if label in rules and rules[label].mode == ENFORCE:
                return f"the taint rule {label} -> {rules[label].sink} forbids it"
        return ""
