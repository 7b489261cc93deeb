"""A client that wants progress learns that a silent call still runs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.web.mcp_http_fixture import MODERN, HubRig, call, modern, run_mcp_rig

from dragoman.core.call import Progress

EVERY = 0.05
VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", MODERN]


async def prepare(here: HubRig, version: str, message: dict[str, Any]) -> dict[str, Any]:
    if version == MODERN:
        return modern(message)
    return {"message": message, **await here.session(version)}


async def next_progress(answer: Any) -> dict[str, Any]:
    while True:
        event = await answer.event()
        if event.data:
            message = json.loads(event.data)
            assert message["method"] == "notifications/progress", message
            params: dict[str, Any] = message["params"]
            return params


@pytest.mark.promise("B12", "F6")
@pytest.mark.parametrize("version", VERSIONS)
async def test_silent_call_reports_that_it_runs(version: str) -> None:
    async with run_mcp_rig(report_seconds=EVERY) as here:
        answer = await here.send("POST", **await prepare(here, version, call(waits=True)))
        assert answer.streams
        reports = [await next_progress(answer) for _ in range(3)]
        assert all(one["progressToken"] == "t" and "total" not in one for one in reports)
        if version != "2024-11-05":  # whose progress has no message
            assert all(one["message"].startswith("still running, ") for one in reports)
        values = [one["progress"] for one in reports]
        assert values == sorted(set(values))
        here.work.go.set()
        *_, last = [json.loads(one.data) for one in await answer.rest() if one.data]
        assert last["result"]["content"][0]["text"] == "done"


async def test_reports_leave_the_progress_of_the_target_as_it_is() -> None:
    async with run_mcp_rig(report_seconds=EVERY) as here:
        answer = await here.send("POST", **modern(call(waits=True)))
        before = [await next_progress(answer) for _ in range(2)]
        update = here.work.calls[0].updates
        values = [one["progress"] for one in before]
        for step in (0, 0.5, 3):  # the first of which is not above what was reported
            update(Progress(progress=step, total=10, message=f"step {step}"))
            while (told := await next_progress(answer)).get("message") != f"step {step}":
                values.append(told["progress"])
            values.append(told["progress"])
            assert told["total"] == 10
            assert told["progress"] == pytest.approx(step, abs=1e-3)
            if step:
                assert told["progress"] == step
            report = await next_progress(answer)
            assert report["message"].startswith("still running, ")
            values.append(report["progress"])
        assert values == sorted(set(values))


async def test_reports_increase_the_largest_progress() -> None:
    async with run_mcp_rig(report_seconds=EVERY) as here:
        answer = await here.send("POST", **modern(call(waits=True, steps=[10**18, 2.0**1000])))
        values = [(await next_progress(answer))["progress"] for _ in range(4)]
        assert values == sorted(set(values))


async def test_call_without_a_token_and_a_quick_one_get_no_report() -> None:
    async with run_mcp_rig(report_seconds=EVERY) as here:
        silent = call(waits=True)
        del silent["params"]["_meta"]
        answer = asyncio.create_task(here.send("POST", **modern(silent)))
        reported = await here.send("POST", **modern(call(2, waits=True)))
        for _ in range(3):
            await next_progress(reported)
        here.work.go.set()
        first = await answer
        assert not first.streams
        assert (await first.json())["result"]["content"][0]["text"] == "done"
        quick = await here.send("POST", **modern(call(3, steps=[])))
        assert not quick.streams
