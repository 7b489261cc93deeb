"""Background tasks: referenced while they run, their failures logged, ended with their owner."""

from __future__ import annotations

import asyncio
import gc

import pytest

from dragoman.core.background import Background


async def test_unreferenced_task_runs_to_completion() -> None:
    background, done = Background("test"), asyncio.Event()

    async def work() -> None:
        await asyncio.sleep(0)
        gc.collect()
        await asyncio.sleep(0)
        done.set()

    background.spawn(work())
    async with asyncio.timeout(60):
        await done.wait()
    await background.close()
    assert len(background) == 0 and background


async def test_a_failure_is_logged_with_the_name_of_the_owner(
    caplog: pytest.LogCaptureFixture,
) -> None:
    background = Background("the stamp collection")

    async def work() -> None:
        raise ValueError("torn")

    task = background.spawn(work())
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert "the stamp collection" in caplog.text and "torn" in caplog.text


async def test_close_cancels_waits_and_prevents_later_spawns() -> None:
    background, seen = Background("test"), []

    async def work(name: str) -> None:
        seen.append(name)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            seen.append(f"{name} ended")

    background.spawn(work("first"))
    await asyncio.sleep(0)
    await background.close()
    late = background.spawn(work("late"))
    await asyncio.wait([late])
    assert seen == ["first", "first ended"] and late.cancelled() and len(background) == 0


async def test_close_waits_for_the_grace_period_but_not_for_its_caller() -> None:
    background, seen = Background("test"), []

    async def work() -> None:
        await asyncio.sleep(0.01)
        seen.append("done")

    background.spawn(work())
    closing = background.spawn(background.close(grace=5, timeout=1))
    async with asyncio.timeout(60):
        await closing
    assert seen == ["done"]


async def test_task_ignoring_cancellation_does_not_block_close() -> None:
    background, release = Background("test"), asyncio.Event()

    async def deaf() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    task = background.spawn(deaf())
    await asyncio.sleep(0)
    await background.close(timeout=0.01)
    assert not task.done()
    release.set()
    await asyncio.wait([task])


async def test_run_to_completion_outlives_its_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    background, go, seen = Background("test"), asyncio.Event(), []

    async def work() -> int:
        await go.wait()
        seen.append("done")
        raise ValueError("after the caller left")

    async def succeed() -> int:
        return 7

    assert await background.run_to_completion(succeed()) == 7
    caller = asyncio.get_running_loop().create_task(background.run_to_completion(work()))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled() and len(background) == 1
    go.set()
    await background.close(grace=5)
    assert seen == ["done"] and "after the caller left" in caplog.text
