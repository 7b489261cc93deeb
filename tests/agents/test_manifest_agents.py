"""Agents that others start: grants and models no wider than the parent's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dragoman.agents.manifest import LoadedManifest, Manifest
from dragoman.agents.manifest_agents import ManifestAgents
from dragoman.core.agent_tool import SCHEMA, build_agent_tool
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.errors import InvalidInput
from dragoman.core.local_agents import AgentProfile, AgentProfiles
from dragoman.core.tool import AgentFacts, TargetTraits

pytestmark = pytest.mark.promise("P1", "Q4")

PARENT = """
[model]
provider = "openai"
model = "m"
base_url = "http://127.0.0.1:9/v1"
api_key_env = "MODEL_KEY"
system_prompt = "Lead."
[capabilities]
agent_spawn = true
tools = ["files.*"]
[limits]
tokens_per_day = 500
"""


class Agent:
    traits = TargetTraits()

    def __init__(self, loaded: LoadedManifest) -> None:
        self.name = loaded.manifest.name
        facts = AgentFacts(name=self.name, description="", version="1", skills=())
        self.tool = build_agent_tool(self, facts, "x", lambda arguments: None, SCHEMA)

    async def run(self, call: Any) -> Any:
        raise NotImplementedError

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass


class Rig:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.built: list[Manifest] = []
        self.agents: dict[str, Any] = {}
        folder = home / "agents" / "lead"
        folder.mkdir(parents=True)
        (folder / "agent.toml").write_text(PARENT, encoding="utf-8")
        self.times: Iterator[float] = iter(())
        self.made = ManifestAgents(
            home,
            Catalog(review=admit_all),
            self.agents,
            AgentProfiles(),
            self._build,
            lambda name: None,
            lambda: next(self.times),
        )
        self.made.check()
        parent = self.made.find_by_name("lead")
        assert parent is not None
        self.parent = parent

    def _build(self, loaded: LoadedManifest, profile: AgentProfile) -> Any:
        self.built.append(loaded.manifest)
        return Agent(loaded)

    async def spawn(self, **manifest: Any) -> Manifest:
        await self.made.spawn(self.parent, {"name": "child", **manifest})
        return self.built[-1]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


async def test_started_agent_thinks_with_the_models_of_its_parent(rig: Rig) -> None:
    child = await rig.spawn(model={"system_prompt": "Follow."})
    assert (child.model.model, child.model.api_key_env) == ("m", "MODEL_KEY")
    assert child.model.system_prompt == "Follow."
    assert rig.built[0].model.system_prompt == "Lead."


SAME = {"model": "other", "base_url": "http://127.0.0.1:9/v1", "api_key_env": "MODEL_KEY"}


@pytest.mark.parametrize(
    "change",
    [
        {"base_url": "http://203.0.113.1/v1"},
        {"api_key_env": "AWS_SECRET_ACCESS_KEY"},
        {"allow_private": True},
        {"provider": "anthropic"},
        {"base_url": ""},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_started_agent_cannot_send_secrets_to_another_place(
    rig: Rig, change: Mapping[str, Any]
) -> None:
    with pytest.raises(InvalidInput, match="may only use models where its parent"):
        await rig.spawn(model={**SAME, **change})
    with pytest.raises(InvalidInput, match="may only use models where its parent"):
        await rig.spawn(model=SAME, fallback_models=[{**SAME, **change}])
    assert list(rig.agents) == ["lead"]
    assert (await rig.spawn(model=SAME)).model.model == "other"


async def test_started_agent_may_follow_a_script_or_use_the_clients_model(rig: Rig) -> None:
    child = await rig.spawn(script=[{"when": "hello, you", "say": "hi"}])
    assert child.script and not child.model.api_key_env
    await rig.made.kill("child", rig.parent)
    assert (await rig.spawn(model={"provider": "client"})).model.provider == "client"


async def test_started_agent_has_no_more_grants_than_its_parent(rig: Rig) -> None:
    with pytest.raises(InvalidInput, match='more than its parent "lead": tools "web_fetch"'):
        await rig.spawn(capabilities={"tools": ["web_fetch"]})
    await rig.spawn(capabilities={"tools": ["files.read"]})


@pytest.mark.parametrize(
    "program", [{"command": {"argv": ["sh", "-c", "id"]}}, {"function": "os:system"}], ids=list
)
async def test_started_agent_is_no_program(rig: Rig, program: Mapping[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="cannot be a program or a function"):
        await rig.spawn(**program)
    assert len(rig.built) == 1


@pytest.mark.parametrize(("asked", "given"), [(0, 500), (900, 500), (100, 100)])
async def test_started_agent_has_no_higher_budget(rig: Rig, asked: int, given: int) -> None:
    child = await rig.spawn(limits={"tokens_per_day": asked, "cost_per_day": asked})
    assert (child.limits.tokens_per_day, child.limits.cost_per_day) == (given, asked)


async def test_failed_manifest_is_tried_again_when_asked_for(rig: Rig) -> None:
    folder = rig.home / "agents" / "late"
    folder.mkdir()
    (folder / "agent.toml").write_text("nonsense = 1\n", encoding="utf-8")
    assert rig.made.check() == ["late"] and "late" in rig.made.failures
    assert rig.made.check() == []
    rig.made.reconsider(frozenset())
    assert rig.made.check() == ["late"]


async def test_manifests_are_watched_for_a_small_share_of_the_time(rig: Rig) -> None:
    async def looks(begun: float, ended: float) -> bool:
        """Whether a check that would take from `begun` to `ended` is made."""
        rig.times = iter((begun, ended))
        await rig.made.follow()
        return next(rig.times, None) is None

    assert await looks(10.0, 10.01)  # 10 ms: the next one in two seconds
    assert not await looks(11.9, 12.0)
    folder = rig.home / "agents" / "new"
    folder.mkdir()
    (folder / "agent.toml").write_text(PARENT, encoding="utf-8")
    assert await looks(12.1, 14.1) and "new" in rig.agents
    assert await looks(14.2, 99.0), "after a change there is no pause"
    assert not await looks(19.1, 19.2) and await looks(19.3, 19.4), "a pause has an end"
