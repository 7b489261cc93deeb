"""A hub with the built-in tools, every guard, real stores and a small directory of agents."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from tests.permissive_hub import PermitAll

from dragoman import guards
from dragoman.app.build_tools import ToolParts, ToolStores, build_tools
from dragoman.app.lazy_tools import build_access
from dragoman.core.access import WhyEnded
from dragoman.core.agent_tool import SCHEMA, build_agent_tool
from dragoman.core.bus import Bus
from dragoman.core.call import ABSENT, Call, Result
from dragoman.core.call_chains import CallChains
from dragoman.core.catalog import admit_all, build_catalogs
from dragoman.core.errors import InvalidInput, NotFound
from dragoman.core.hub import CallOptions, Hub
from dragoman.core.kept_results import KeptResults
from dragoman.core.local_agents import AgentProfile, AgentProfiles, build_agent_principal
from dragoman.core.name_claims import NameClaims
from dragoman.core.principal import OWNER, Principal
from dragoman.core.question_handles import QuestionHandles
from dragoman.core.rate_limiter import LocalRateLimiter
from dragoman.core.secret_references import SecretResolver
from dragoman.core.structs import replace
from dragoman.core.taint import LabelStore
from dragoman.core.tool import AgentFacts, TargetFacts, TargetTraits
from dragoman.core.tool_filter import EVERYTHING
from dragoman.guards.carried_labels import CarriedLabels
from dragoman.guards.config import Limits, TaintSettings
from dragoman.guards.grants import GrantedAuthorizer
from dragoman.guards.tool_flows import ToolFlowTable
from dragoman.guards.validate import compile_schema
from dragoman.net.client import OutboundHttp
from dragoman.stores.labels import MemoryLabels
from dragoman.tools.config import ToolSettings
from dragoman.tools.media import VisionModel
from dragoman.tools.shell import ShellRunner

Use = Callable[..., Awaitable[Result]]
"""Calls a tool by name, with its arguments, on behalf of the agent."""
Script = Callable[[Use, str], Awaitable[Result]]
"""What an agent does with a message."""


class NullAudit:
    """Counts the records and keeps none: these tests are about tools."""

    count = 0

    def intend(self, entry: Mapping[str, Any]) -> int:
        self.count += 1
        return self.count

    def hash_arguments(self, arguments: bytes) -> str:
        return ""

    def conclude(self, intent: int, entry: Mapping[str, Any]) -> None:
        pass


def text_result(text: str) -> Result:
    return Result(content=[{"type": "text", "text": text}])


class ScriptAgent:
    """An agent that does what a function of the test says."""

    traits = TargetTraits(facts=TargetFacts(type="Agent"))

    def __init__(self, rig: ToolRig, profile: AgentProfile, script: Script) -> None:
        self.name = profile.name
        self.profile = profile
        self._rig = rig
        self._script = script
        facts = AgentFacts(name=profile.name, description=profile.description)
        self.tool = build_agent_tool(self, facts, "dragoman_agent_", compile_schema(SCHEMA))

    async def run(self, call: Call) -> Result:
        async def use(name: str, **arguments: Any) -> Result:
            principal = build_agent_principal(self.profile)
            options = CallOptions(door="agent", view=EVERYTHING)
            return (
                await self._rig.hub.call_within(call.trace, principal, name, arguments, options)
            )[1]

        return await self._script(use, str(call.arguments["message"]))


class SmallDirectory:
    """Implements `AgentDirectory` for the agents of a test."""

    def __init__(self, rig: ToolRig) -> None:
        self._rig = rig
        self.agents: dict[str, ScriptAgent] = {}

    def find_profile(self, principal: Principal) -> AgentProfile | None:
        return self._rig.profiles.find(principal)

    def list_profiles(self) -> list[AgentProfile]:
        return self._rig.profiles.list_all()

    async def spawn(self, parent: AgentProfile, manifest: Mapping[str, Any]) -> AgentProfile:
        name, granted = manifest.get("name"), manifest.get("capabilities", {})
        if not isinstance(name, str) or name in self.agents:
            raise InvalidInput(f"an agent cannot be called {name!r}")
        wide = set(granted.get("tools", ())) - set(parent.tools)
        if wide and "*" not in parent.tools:
            raise InvalidInput(f"the parent was not granted {', '.join(sorted(wide))}")
        profile = replace(
            parent,
            name=name,
            parent=parent.name,
            tools=tuple(granted.get("tools", ())),
            can_spawn=False,
        )
        self._rig.add_agent(profile)
        return profile

    async def kill(self, name: str, by: AgentProfile) -> None:
        agent = self.agents.get(name)
        if agent is None:
            raise NotFound(f'there is no agent "{name}"')
        if not agent.profile.parent:
            raise InvalidInput(f'"{name}" has a manifest and was not spawned')
        del self.agents[name]
        self._rig.profiles.remove(name)
        self._rig.hub.catalog.withdraw(name)


async def echo(use: Use, message: str) -> Result:
    return text_result(f"heard: {message}")


class ToolRig:
    def __init__(
        self,
        home: Path,
        settings: str = "",
        *,
        runner: ShellRunner | None = None,
        vision: VisionModel | None = None,
        labels: LabelStore | None = None,
        taint: str = "",
        authorizer: PermitAll | None = None,
        why_ended: WhyEnded = lambda principal: "",
    ) -> None:
        home.mkdir(exist_ok=True)
        self.home = home
        self.settings = msgspec.toml.decode(settings.encode(), type=ToolSettings, strict=False)
        self.bus, self.net = Bus(), OutboundHttp()
        self.labels = labels or MemoryLabels()
        self.profiles, self.directory = AgentProfiles(), SmallDirectory(self)
        access = build_access(home, self.settings, self.profiles)
        catalogs = build_catalogs(admit_all, NameClaims())
        chains, limits = CallChains(os.urandom(32)), Limits()
        judge = GrantedAuthorizer(authorizer or PermitAll(), self.profiles, access, why_ended)
        kept = KeptResults(limits.kept_megabytes, limits.kept_secs)
        limiter = LocalRateLimiter(limits.rate.build_rules())
        self.flows = ToolFlowTable(msgspec.toml.decode(taint.encode(), type=TaintSettings))
        stages = guards.build_stages(
            NullAudit(), self.bus, limits, QuestionHandles(os.urandom(32), 60), chains, judge,
            kept, limiter, self.flows, CarriedLabels(self.labels),
        )  # fmt: skip
        self.hub = Hub(catalogs, self.bus, stages, chains, judge, results=kept, limiter=limiter)
        self.parts: ToolParts = build_tools(
            home, home, self.settings, self.hub, self.net, self.directory, access, runner, vision,
            SecretResolver({}, home),
        )  # fmt: skip
        self.stores: ToolStores = self.parts.stores
        self.tester = self.add_agent(self.build_profile("tester"))

    def build_profile(self, name: str, **grants: Any) -> AgentProfile:
        """The profile of an agent that was granted much."""
        granted: dict[str, Any] = {
            "workspace": self.home / "workspaces" / name,
            "tools": ("*",),
            "agents": ("*",),
            "can_spawn": True,
            "network": ("127.0.0.1",),
            "memory_read": ("self.*", "shared.*"),
            "memory_write": ("self.*", "shared.*"),
        }
        return AgentProfile(name=name, **{**granted, **grants})

    def add_agent(self, profile: AgentProfile, script: Script = echo) -> ScriptAgent:
        agent = self.directory.agents[profile.name] = ScriptAgent(self, profile, script)
        self.profiles.add(profile)
        self.hub.catalog.offer(profile.name, [agent.tool])
        return agent

    async def use(self, tool: str, agent: str = "tester", /, **arguments: Any) -> Result:
        """Calls a tool as an agent, in a chain of its own."""
        principal = build_agent_principal(self.directory.agents[agent].profile)
        return await self.call(principal, tool, arguments)

    async def call(
        self, principal: Principal, tool: str, arguments: Mapping[str, Any], **options: Any
    ) -> Result:
        how = CallOptions(door="test", view=EVERYTHING, **options)
        return (await self.hub.call(principal, tool, arguments, how))[1]

    async def send(self, agent: str, message: str = "go", who: Principal = OWNER) -> Result:
        return await self.call(who, f"{agent}.message", {"message": message})

    @property
    def workspace(self) -> Path:
        return self.tester.profile.workspace

    async def close(self) -> None:
        await self.parts.stop()
        await self.net.close()


def read_text(result: Result) -> str:
    return "\n".join(block["text"] for block in result.content)


def read_object(result: Result) -> Any:
    assert result.structured is not ABSENT
    return result.structured
