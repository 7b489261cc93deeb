"""Taint labels go with what the tools store, and come back with it in another chain."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.tools.small_http import serve_http
from tests.tools.test_shell import PlainRunner
from tests.tools.tool_rig import ToolRig, Use, read_object, text_result

from dragoman.core.call import Result
from dragoman.core.errors import Tainted
from dragoman.core.taint import EXEC, EXTERNAL_NETWORK, NET, UNTRUSTED_AGENT, WRITE
from dragoman.stores.labels import DatabaseLabels
from dragoman.tools.agent_calls import ScheduledCalls

pytestmark = pytest.mark.promise("T2", "P5")


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[ToolRig]:
    labels = DatabaseLabels(tmp_path)
    made = ToolRig(tmp_path, "allow_private = true", runner=PlainRunner(), labels=labels)
    yield made
    await made.close()
    labels.close()


class Steps:
    """An agent that makes the calls of a test, one chain per message."""

    def __init__(self, rig: ToolRig, name: str = "worker") -> None:
        self._rig = rig
        self._name = name
        self.calls: list[tuple[str, dict[str, Any]]] = []
        profile = rig.build_profile(name, shell=("echo *", "cp *"), network=("*",))
        rig.add_agent(profile, self._run)

    async def _run(self, use: Use, message: str) -> Result:
        result = text_result("nothing")
        for name, arguments in self.calls:
            result = await use(name, **arguments)
        return result

    async def chain(self, *calls: tuple[str, dict[str, Any]]) -> Result:
        self.calls = list(calls)
        return await self._rig.send(self._name)


ECHO = ("shell_exec", {"command": "echo x"})
PATCH = "*** Begin Patch\n*** Add File: p.txt\n+x\n*** End Patch"
MOVE = "*** Begin Patch\n*** Update File: f.txt\n*** Move to: g.txt\n*** End Patch"


@pytest.mark.parametrize(
    ("writes", "reads"),
    [
        (
            [("file_write", {"path": "f.txt", "content": "x"})],
            ("file_read", {"path": "./f.txt"}),
        ),
        ([("apply_patch", {"patch": PATCH})], ("file_read", {"path": "p.txt"})),
        (
            [("memory_store", {"key": "a", "value": "found words"})],
            ("memory_recall", {"key": "self.a"}),
        ),
        (
            [("memory_store", {"key": "shared.a", "value": "found words"})],
            ("memory_recall", {"query": "words"}),
        ),
        ([("task_post", {"title": "T", "description": "D"})], ("task_claim", {})),
        ([("task_post", {"title": "T", "description": "D"})], ("task_list", {})),
    ],
)
async def test_labelled_write_taints_a_later_read(
    rig: ToolRig, writes: list[tuple[str, dict[str, Any]]], reads: tuple[str, dict[str, Any]]
) -> None:
    steps = Steps(rig)
    await steps.chain(*writes, reads, ECHO)  # without labels nothing is refused
    async with serve_http(lambda asked: (200, {}, b"foreign text")) as web:
        if writes[0][0] == "apply_patch":
            (rig.home / "workspaces/worker/p.txt").unlink()
        await steps.chain(("web_fetch", {"url": web.url}), *writes)
    with pytest.raises(Tainted, match=r'from "builtin\.web_fetch"'):
        await steps.chain(reads, ECHO)


async def test_labels_follow_a_file_that_is_moved_or_copied(rig: ToolRig) -> None:
    steps = Steps(rig)
    async with serve_http(lambda asked: (200, {}, b"foreign text")) as web:
        await steps.chain(
            ("web_fetch", {"url": web.url}), ("file_write", {"path": "f.txt", "content": "x"})
        )
    await steps.chain(("apply_patch", {"patch": MOVE}))
    with pytest.raises(Tainted):
        await steps.chain(("file_read", {"path": "g.txt"}), ECHO)
    await steps.chain(("shell_exec", {"command": "cp g.txt h.txt"}))
    with pytest.raises(Tainted):
        await steps.chain(("file_read", {"path": "h.txt"}), ECHO)


async def test_workspaces_and_own_memories_are_apart(rig: ToolRig) -> None:
    first, second = Steps(rig, "first"), Steps(rig, "second")
    writes = [
        ("file_write", {"path": "f.txt", "content": "x"}),
        ("memory_store", {"key": "a", "value": "x"}),
    ]
    async with serve_http(lambda asked: (200, {}, b"foreign text")) as web:
        await first.chain(("web_fetch", {"url": web.url}), *writes)
    await second.chain(*writes)
    reads = [("file_read", {"path": "f.txt"}), ("memory_recall", {"key": "a"})]
    await second.chain(*reads, ECHO)
    with pytest.raises(Tainted):
        await first.chain(*reads, ECHO)


async def test_labels_come_back_with_a_scheduled_message(rig: ToolRig) -> None:
    steps = Steps(rig)
    async with serve_http(lambda asked: (200, {}, b"foreign text")) as web:
        made = await steps.chain(
            ("web_fetch", {"url": web.url}),
            ("schedule_create", {"description": "run it", "schedule": "daily"}),
        )
    (schedule,) = rig.stores.schedules.load_all()
    assert schedule.id == read_object(made)["id"]
    steps.calls = [ECHO]
    with pytest.raises(Tainted, match="external_network"):
        await ScheduledCalls(rig.hub, rig.directory).fire(schedule, "run it")
    await steps.chain(("schedule_create", {"description": "run it", "schedule": "daily"}))
    clean = next(one for one in rig.stores.schedules.load_all() if one.id != schedule.id)
    steps.calls = [ECHO]
    await ScheduledCalls(rig.hub, rig.directory).fire(clean, "run it")


@pytest.mark.parametrize(
    ("tool", "sources", "sinks"),
    [
        ("file_read", set(), set()),
        ("file_write", set(), {WRITE}),
        ("apply_patch", set(), {WRITE}),
        ("web_fetch", {EXTERNAL_NETWORK}, {NET}),
        ("shell_exec", set(), {EXEC, WRITE}),
        ("agent_send", set(), {"agent"}),
        ("a2a_send", {EXTERNAL_NETWORK, UNTRUSTED_AGENT}, {"agent", NET}),
        ("system_time", set(), set()),
        ("memory_store", set(), {WRITE}),
        ("memory_recall", set(), set()),
    ],
)
def test_flows_are_as_declared(rig: ToolRig, tool: str, sources: set[str], sinks: set[str]) -> None:
    found = rig.flows.find(rig.hub.catalog.find(tool))
    assert (set(found.sources), set(found.sinks)) == (sources, sinks)
