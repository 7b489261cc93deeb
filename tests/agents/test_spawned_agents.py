"""Agents that agents start: their names, folders, grants and end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.permissive_hub import PermitAll

from dragoman.agents.manifest_agents import ManifestAgents
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.errors import InvalidInput
from dragoman.core.local_agents import AGENT, AgentProfiles
from dragoman.core.principal import Principal
from dragoman.core.tool import TargetFacts, TargetTraits, Tool
from dragoman.guards.grants import GrantedAuthorizer

pytestmark = pytest.mark.promise("P1", "T2")

PARENT = """
[[script]]
say = "hi"
[capabilities]
tools = ["fs.*"]
shell = ["*"]
agent_spawn = true
"""


class FakeAgent:
    """Stands for an agent: only its place in the directory is tested here."""

    traits = TargetTraits(facts=TargetFacts(type="Agent"))

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False
        self.tool = Tool(name=f"{name}.message", alias=name, remote_name="message", target=self)

    async def run(self, call: Any) -> Any:
        raise AssertionError

    def close(self) -> None:
        self.closed = True


class Rig:
    def __init__(self, home: Path) -> None:
        folder = home / "agents" / "parent"
        folder.mkdir(parents=True)
        self.file = folder / "agent.toml"
        self.file.write_text(PARENT, encoding="utf-8")
        self.profiles = AgentProfiles()
        self.agents: dict[str, Any] = {}
        self.made = ManifestAgents(
            home,
            Catalog(review=admit_all),
            self.agents,
            self.profiles,
            lambda loaded, profile: FakeAgent(profile.name),
            lambda name: None,
        )
        self.made.check()

    async def spawn(self, **manifest: Any) -> Any:
        parent = self.profiles.get("parent")
        assert parent is not None
        return await self.made.spawn(parent, manifest)


async def test_folder_of_a_child_follows_its_checked_name(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    child = await rig.spawn(name="../../victim", identity={"name": "good"})
    assert child.workspace == tmp_path / "agents" / "parent" / "spawned" / "good" / "workspace"
    for name in ("../x", "/etc", "", ".."):
        with pytest.raises(InvalidInput, match="invalid"):
            await rig.spawn(name=name)


@pytest.mark.parametrize(
    "wider",
    [
        {"capabilities": {"tools": ["git.*"]}},
        {"capabilities": {"shell": ["sh -c *"]}},
        {"capabilities": {"network": ["*"]}},
        {"command": {"argv": ["/bin/sh"]}},
        {"function": "os:system"},
        {"model": {"base_url": "http://evil.example/v1", "model": "m", "api_key_env": "SECRET"}},
    ],
)
async def test_child_has_no_more_than_its_parent(tmp_path: Path, wider: dict[str, Any]) -> None:
    rig = Rig(tmp_path)
    with pytest.raises(InvalidInput):
        await rig.spawn(name="child", **wider)
    assert set(rig.agents) == {"parent"}
    await rig.spawn(name="child", capabilities={"tools": ["fs.read"], "shell": ["*"]})


async def test_children_end_with_their_parent_and_its_changes(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    child = await rig.spawn(name="child")
    agent = rig.agents["child"]
    assert child.workspace.is_dir()
    rig.file.write_text(PARENT + "# changed\n", encoding="utf-8")
    rig.made.check()
    assert set(rig.agents) == {"parent"} and agent.closed and not child.workspace.exists()
    again = await rig.spawn(name="child")
    parent = rig.profiles.get("parent")
    assert parent is not None
    await rig.made.kill("child", parent)
    assert set(rig.agents) == {"parent"} and not again.workspace.exists()


def test_agent_that_was_removed_has_no_grants() -> None:
    profiles = AgentProfiles()
    granted = GrantedAuthorizer(PermitAll(), profiles)
    tool = Tool(name="fs.read", alias="x", remote_name="read", target=FakeAgent("fs"))
    gone = Principal(AGENT, "gone", serves="gone")
    assert not granted.is_granted(gone, tool, None, "agent")
    assert not granted.can_see(gone, tool, "agent")
    key = Principal("key", "k", serves="server-without-a-manifest")
    assert granted.is_granted(key, tool, None, "agent")
