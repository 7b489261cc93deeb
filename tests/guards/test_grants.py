"""The tools of an agent are found by its grants; policies are asked about those alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.permissive_hub import PermitAll, build_permissive_hub

from dragoman.core.bus import Bus
from dragoman.core.call import Call, Result
from dragoman.core.call_chains import CallChains
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.local_agents import AgentProfile, AgentProfiles, build_agent_principal
from dragoman.core.principal import Principal
from dragoman.core.tool import TargetFacts, TargetTraits, Tool
from dragoman.core.trace import new_trace
from dragoman.guards.grants import GrantedAuthorizer, GrantedTools

pytestmark = pytest.mark.promise("P1", "Q3")


class Server:
    traits = TargetTraits(facts=TargetFacts(type="Server"))

    def __init__(self, name: str) -> None:
        self.name = name

    async def run(self, call: Call) -> Result:
        raise NotImplementedError


class Policies(PermitAll):
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.hidden: set[str] = set()

    def can_see(self, caller: Principal, tool: Tool, door: str) -> bool:
        self.asked.append(tool.name)
        return tool.name not in self.hidden


def offer(catalog: Catalog, server: str, *names: str) -> None:
    target = Server(server)
    catalog.offer(
        server,
        [
            Tool(
                name=f"{server}.{name}",
                alias=f"mcp_{server}_{name}",
                remote_name=name,
                definition={},
                target=target,
            )
            for name in names
        ],
    )


def test_policies_are_asked_about_granted_tools_alone() -> None:
    catalog, policies, profiles = Catalog(review=admit_all), Policies(), AgentProfiles()
    for number in range(50):
        offer(catalog, f"s{number}", "read", "write")
    authorizer = GrantedAuthorizer(policies, profiles)
    hub = build_permissive_hub(catalog, Bus(), [])
    granted = GrantedTools(hub, CallChains(bytes(32)), authorizer, "agent")
    profile = AgentProfile(
        name="a", workspace=Path("/w"), tools=("s1.read", "mcp_s2_*"), servers=("s3",)
    )
    profiles.add(profile)
    agent = build_agent_principal(profile)

    def list_names() -> list[str]:
        return [tool.name for tool in granted.list_granted(agent, new_trace())]

    expected = ["s1.read", "s2.read", "s2.write", "s3.read", "s3.write"]
    assert list_names() == list_names() == expected
    assert set(policies.asked) == set(expected)
    policies.hidden.add("s2.write")
    assert list_names() == [one for one in expected if one != "s2.write"]
    offer(catalog, "s3", "read", "list")
    assert list_names() == ["s1.read", "s2.read", "s3.read", "s3.list"]
    profiles.add(AgentProfile(name="a", workspace=Path("/w"), tools=("s9.*",)))
    assert list_names() == ["s9.read", "s9.write"]
    profiles.remove("a")
    profiles.add(AgentProfile(name="a", workspace=Path("/w")))
    assert list_names() == []


def test_tools_for_user_interfaces_alone_are_not_listed_to_agents() -> None:
    catalog, profiles = Catalog(review=admit_all), AgentProfiles()
    offer(catalog, "app", "show", "poll")
    show, poll = catalog.list_offered("app")
    catalog.offer("app", [show, replace(poll, is_for_models=False)])
    authorizer = GrantedAuthorizer(Policies(), profiles)
    hub = build_permissive_hub(catalog, Bus(), [])
    granted = GrantedTools(hub, CallChains(bytes(32)), authorizer, "agent")
    profile = AgentProfile(name="a", workspace=Path("/w"), servers=("app",))
    profiles.add(profile)
    agent = build_agent_principal(profile)
    assert [tool.name for tool in granted.list_granted(agent, new_trace())] == ["app.show"]
