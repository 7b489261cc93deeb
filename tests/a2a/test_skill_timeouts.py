"""Timeouts of skills, and what happens to the remote task when a client stops waiting."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from tests.a2a.bridged_skill import BridgedAgent, bridged
from tests.a2a.scripted_agent import Request

from dragoman.a2a.remote.circuit_breaker import CircuitBreaker
from dragoman.core.call import WantedUpdates
from dragoman.core.errors import RemoteA2ATimeoutError

PROGRESS, TASKS = WantedUpdates(progress=True), WantedUpdates(progress=True, task_start=True)


class Slow:
    """An agent that is done when it was asked for its task so often: after 0.05, 0.13, 0.26, 0.46,
    0.79 s. It says something else each time, or nothing."""

    def __init__(self, gets: int, words: bool = False) -> None:
        self.gets = gets
        self.words = words
        self.asked = 0
        self.cancelled = asyncio.Event()

    def __call__(self, request: Request) -> None:
        if request.rpc == "tasks/cancel":
            self.cancelled.set()
            request.result(self._task("canceled"))
            return
        self.asked += request.rpc == "tasks/get"
        request.result(self._task("completed" if self.asked >= self.gets else "working"))

    def _task(self, state: str) -> dict[str, Any]:
        status: dict[str, Any] = {"state": state}
        if self.words and state == "working":
            parts = [{"kind": "text", "text": f"step {self.asked}"}]
            status["message"] = {"role": "agent", "messageId": "m", "parts": parts}
        made = [{"artifactId": "a", "parts": [{"kind": "text", "text": "made"}]}]
        return {"id": "t1", "status": status, "artifacts": made if state == "completed" else []}


async def made(ground: BridgedAgent, **more: Any) -> bool:
    result = await ground.call(**more)
    return bool(result.content == [{"type": "text", "text": "made"}])


@pytest.mark.promise("R5")
async def test_skill_timeout_names_the_task_to_resume() -> None:
    slow = Slow(1_000)
    async with bridged(slow, timeout=0.3) as ground:
        with pytest.raises(RemoteA2ATimeoutError) as raised:
            await ground.call()
        told = str(raised.value)
        assert '"vercel_ops.deploy" took longer than 0.3 s' in told
        assert f"`dragoman a2a task {ground.server.url} t1`" in told
        assert ground.calls[0].notes.remote_task == "t1"
        await ground.agent.stop()  # which waits for running calls
    assert not slow.cancelled.is_set() and not ground.server.sent("tasks/cancel")
    assert not ground.agent.breaker.is_open


@pytest.mark.promise("R5")
@pytest.mark.parametrize("wire", ["auto", "skill-only"])
async def test_silent_agent_is_a_timeout(wire: str) -> None:
    async def never(request: Request) -> None:
        await asyncio.Event().wait()

    async with bridged(never, timeout=0.2, wire=wire) as ground:
        with pytest.raises(RemoteA2ATimeoutError, match="may or may not have been done"):
            await asyncio.wait_for(ground.call(), 60)


@pytest.mark.promise("R5")
async def test_agent_timeout_applies_without_a_bridge_timeout() -> None:
    async with bridged(Slow(1_000), timeout_secs=0.2) as ground:
        assert ground.agent.timeout == 0.2
        with pytest.raises(RemoteA2ATimeoutError, match=r"longer than 0\.2 s"):
            await ground.call()


@pytest.mark.promise("R4")
async def test_task_capable_client_waits_for_the_task_timeout() -> None:
    async with bridged(Slow(4), timeout=0.2) as ground:
        assert await made(ground, wanted_updates=TASKS)
    async with bridged(Slow(4), timeout=0.2) as ground:
        with pytest.raises(RemoteA2ATimeoutError):
            await made(ground, wanted_updates=PROGRESS)


@pytest.mark.promise("R4")
async def test_progress_extends_the_timeout() -> None:
    async with bridged(Slow(5, words=True), timeout=0.5) as ground:
        assert await made(ground, wanted_updates=PROGRESS)
        assert len(ground.updates) > 3
    async with bridged(Slow(5, words=True), timeout=0.5) as ground:
        with pytest.raises(RemoteA2ATimeoutError):
            await made(ground)


@pytest.mark.promise("P3")
async def test_pipeline_timeout_exceeds_the_skill_timeout() -> None:
    async with bridged(Slow(4), timeout=5.0, limits=(0.1, 0.1, 0.1)) as ground:
        assert await made(ground)
    async with bridged(Slow(4), timeout=5.0, limits=(0.1, 0.1, 0.1)) as ground:
        assert await made(ground, wanted_updates=PROGRESS)


@pytest.mark.promise("P3")
async def test_remote_task_is_cancelled_at_the_task_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dragoman.guards.timeout.MARGIN", 0.1)
    slow = Slow(1_000)
    async with bridged(slow, timeout=0.1, limits=(0.1, 0.2, 0.4)) as ground:
        with pytest.raises(RemoteA2ATimeoutError, match="task_timeout_secs"):
            await ground.call(wanted_updates=TASKS)
        await asyncio.wait_for(slow.cancelled.wait(), 60)


@pytest.mark.promise("R4")
async def test_disconnect_cancels_the_remote_task() -> None:
    slow = Slow(1_000)
    async with bridged(slow) as ground:
        call = asyncio.get_running_loop().create_task(ground.call())
        while not slow.asked:
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(slow.cancelled.wait(), 60)


async def test_longer_skill_timeout_applies_to_each_response() -> None:
    async def late(request: Request) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.4):
                await asyncio.Event().wait()
        request.result({"role": "agent", "parts": [{"kind": "text", "text": "made"}]})

    async with bridged(late, timeout_secs=0.2, timeout=5.0, wire="skill-only") as ground:
        assert await made(ground)


# --- the breaker ----------------------------------------------------------------------------------


def test_circuit_breaker_opens_after_failures_and_allows_one_probe() -> None:
    now = 100.0
    breaker = CircuitBreaker(failures=3, seconds=30.0, clock=lambda: now)
    for _ in range(2):
        breaker.record_failure()
    breaker.record_success()
    for _ in range(3):
        assert breaker.admit() == 0.0
        breaker.record_failure()
    assert (breaker.is_open, breaker.admit()) == (True, 30.0)
    now += 29.0
    assert breaker.admit() == 1.0
    now += 1.0
    assert breaker.admit() == 0.0
    assert breaker.admit() > 0, "one is trying"
    breaker.release()
    assert breaker.admit() == 0.0, "that one did not find out"
    breaker.record_failure()
    assert breaker.admit() == 30.0
    now += 30.0
    assert breaker.admit() == 0.0
    breaker.record_success()
    assert not breaker.is_open and breaker.admit() == breaker.admit() == 0.0
