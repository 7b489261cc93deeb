"""A hub whose lease has expired by its own clock lets nothing leave: its heir may do it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.a2a import test_trace_a2a
from tests.a2a.task_builders import build_registry
from tests.a2a.test_trace_a2a import HubRig, run_rig
from tests.permissive_hub import call_tool
from tests.stores.test_cluster_store import run_hub, until

from dragoman.a2a.server.task import A2aTaskRegistry
from dragoman.core.call import Call, Result
from dragoman.core.errors import LeaseExpired
from dragoman.core.principal import Principal
from dragoman.core.task_registry import TAKEN_OVER
from dragoman.stores import cluster
from dragoman.stores.tasks import MemoryTaskStore

ANN = Principal("key", "ann")
MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}


def let_lease_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    now = cluster._read_clock() + 31
    monkeypatch.setattr(cluster, "_read_clock", lambda: now)


async def send(rig: HubRig) -> Any:
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": MESSAGE}}
    return await rig.post("/a2a", body, {"A2A-Version": "1.0"})


async def test_no_call_leaves_a_hub_whose_lease_has_expired(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_hub(postgres_url, "a", 30) as member, run_rig(member) as rig:
        await until(lambda: member.is_connected)
        name = rig.hub.catalog.list_tools()[0].name
        await call_tool(rig.hub, ANN, name, {"message": "hi"})
        let_lease_expire(monkeypatch)
        with pytest.raises(LeaseExpired, match="nothing has left the hub"):
            await call_tool(rig.hub, ANN, name, {"message": "hi"})
        assert len(rig.agent.calls) == 1


async def test_a_hub_whose_lease_has_expired_accepts_no_task(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_hub(postgres_url, "a", 30) as member, run_rig(member) as rig:
        await until(lambda: member.is_connected)
        assert "result" in await send(rig)
        rig.hub._pipeline = None  # type: ignore[assignment]  # it does not get that far
        let_lease_expire(monkeypatch)
        answer = await send(rig)
        assert "nothing has left the hub" in answer["error"]["message"]
        assert len(rig.agent.calls) == 1


async def test_an_end_that_was_not_stored_before_others_took_over_is_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The heir does not know of it, and ends the task as interrupted."""
    built: list[A2aTaskRegistry] = []

    def build(store: MemoryTaskStore) -> A2aTaskRegistry:
        built.append(build_registry(store))
        return built[0]

    monkeypatch.setattr(test_trace_a2a, "build_registry", build)
    async with run_rig() as rig:
        tasks, run = built[0], rig.agent.run

        async def run_and_lose_the_task(call: Call) -> Result:
            (task,) = tasks
            task.watch(lambda: tasks.abandon("b") if task.finished and task.registry else None)
            return await run(call)

        rig.agent.run = run_and_lose_the_task  # type: ignore[method-assign]
        answer = await send(rig)
        assert len(rig.agent.calls) == 1
        assert TAKEN_OVER in answer["error"]["message"], answer
