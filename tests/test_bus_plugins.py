from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.skill_hub import SkillHub

from dragoman.app.build_events import EVENTS, build_events
from dragoman.app.plugins import load_plugins
from dragoman.config import Config, parse
from dragoman.core.bus import Bus
from dragoman.core.errors import ConfigError, Denied
from dragoman.core.events import PostVerb, PreVerb, VerbError

MODULE = """
import asyncio

from dragoman.plugin import Denied, PostVerb, PreVerb, VerbError, render_verb_event

heard, followed = [], []

def friday(bus):
    async def gate(event):
        if event.call.arguments.get("branch") == "main":
            raise Denied("not to main on a Friday")
    bus.gate("friday", gate)

def watch(bus):
    for kind in (PreVerb, PostVerb, VerbError):
        bus.observe(kind, lambda event: heard.append(render_verb_event(event)["phase"]))
    async def follow(event):
        await asyncio.sleep(0.05)  # it takes its time, which it is given
        followed.append(event.outcome)
    bus.follow([PostVerb], "watch", follow)

def broken(bus):
    raise ValueError("no settings")

async def late(bus):
    bus.gate("late", None)

nothing = 7
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package beside the hub, as installed; its module's name is new each time."""
    name = f"plug_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(MODULE, encoding="utf-8")
    for number, points in enumerate(
        (
            [f"{point} = {name}:{point}" for point in ("friday", "watch", "broken", "late")]
            + [f"nothing = {name}:nothing", f"gone = {name}:gone", f"twice = {name}:watch"],
            [f"twice = {name}:friday"],
        )
    ):
        info = tmp_path / f"{name}_{number}-1.0.dist-info"
        info.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {name}-{number}\nVersion: 1.0\n"
        (info / "METADATA").write_text(metadata, encoding="utf-8")
        lines = ["[dragoman.bus]", *points, ""]
        (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def build_config(*plugins: str) -> Config:
    return parse(f"[bus]\nplugins = {list(plugins)}\n[bridge]\nkeep_dispatches = 100\n")


@pytest.mark.promise("R8")
async def test_plugins_that_the_configuration_names_observe_follow_and_gate(
    installed: str, short_tmp: Path
) -> None:
    hub = SkillHub()
    events = build_events(short_tmp, build_config("friday", "watch"), hub.hub)
    await hub.call(branch="dev")
    with pytest.raises(Denied, match="not to main on a Friday"):
        await hub.call(branch="main")
    assert [call.arguments["branch"] for call in hub.agent.calls] == ["dev"]
    rows, _ = await events.dispatches.find(10, None, org="default", caller="*")
    assert [row["status"] for row in rows] == ["denied", "completed"]
    events.streams.close()
    await asyncio.wait_for(events.close(), 60)
    module = __import__(installed)
    assert module.heard == ["pre-verb", "post-verb", "pre-verb", "post-verb", "verb-error"]
    assert module.followed == ["completed", "failed"]


def test_plugins_not_configured_are_not_loaded(installed: str) -> None:
    bus = Bus()
    load_plugins(bus, [])
    assert not bus.has_gates and not any(
        bus.is_observed(kind) for kind in (PreVerb, PostVerb, VerbError)
    )


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("frida", 'has an entry point "frida" in the group dragoman.bus; there are broken, friday'),
        ("broken", r"\"broken\" \(.*\) failed to load: ValueError\('no settings'\); fix it"),
        ("gone", "failed to load: AttributeError"),
        ("nothing", "failed to load: TypeError"),
        ("late", "a plug-in must not be async: it would join the bus too late"),
        ("twice", r"\"twice\" names several entry points in the group dragoman.bus: \S+, \S+;"),
    ],
)
def test_unusable_configured_plugin_stops_the_start(
    name: str, why: str, installed: str, short_tmp: Path
) -> None:
    hub = SkillHub()
    with pytest.raises(ConfigError, match=why):
        build_events(short_tmp, build_config(name), hub.hub)
    assert list(short_tmp.iterdir()) == []  # nothing was left open


async def test_hub_without_plugins_has_event_stream_and_dispatches(short_tmp: Path) -> None:
    hub = SkillHub()
    events = build_events(short_tmp, build_config(), hub.hub)
    assert list(events.mounts) == [EVENTS] == ["/api/events"]
    rows, _ = await events.dispatches.find(10, None, org="default", caller="*")
    assert rows == []
    await events.close()
    await events.close()
