"""Attacks on the HTTP transports: leftovers of clients, header bypass, confusion of ids and
sessions.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.mcp.upstream_hub import until
from tests.web.mcp_http_fixture import ALICE, BOB, BOTH, HubRig, call, modern, request, run_mcp_rig

from dragoman.core.principal import Principal
from dragoman.mcp.server import http_sessions, tasks

LEGACY = "2025-11-25"


async def hang_up(here: HubRig, message: Any, **headers: str) -> None:
    """Sends that, waits for nothing, and goes."""
    body = json.dumps(message).encode()
    sent = {
        "Host": "localhost",
        "Authorization": f"Bearer {ALICE}",
        "Accept": BOTH,
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    _, writer = await asyncio.open_connection("127.0.0.1", here.port)
    writer.write(f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body)
    await writer.drain()
    writer.close()
    await writer.wait_closed()


# --- what outlives its client


@pytest.mark.promise("B12")
async def test_disconnected_task_waiters_do_not_accumulate() -> None:
    async with run_mcp_rig() as here:
        message = call(waits=True)
        message["params"]["task"] = {}
        made = await here.send("POST", message=message, Mcp_Protocol_Version=LEGACY)
        id = (await made.json())["result"]["task"]["taskId"]
        before = len(asyncio.all_tasks())
        for number in range(2 * tasks.MAX_WAITING):
            wait = request(number, "tasks/result", taskId=id)
            await hang_up(here, wait, Mcp_Protocol_Version=LEGACY)
        last = asyncio.ensure_future(
            here.send(
                "POST",
                message=request(1, "tasks/result", taskId=id),
                Accept="application/json",
                Mcp_Protocol_Version=LEGACY,
            )
        )
        bound = before + tasks.MAX_WAITING + 4
        await until(lambda: len(asyncio.all_tasks()) <= bound and not last.done(), 60)
        here.work.go.set()
        answer = await (await last).json()
        assert answer["result"]["content"][0]["text"] == "done", "who came last has the result"


@pytest.mark.promise("G2")
async def test_session_has_one_request_per_id() -> None:
    async with run_mcp_rig() as here:
        session = await here.session()
        first = await here.send("POST", message=call(7, steps=[1], waits=True), **session)
        again = await here.send("POST", message=call(7, waits=True), **session)
        assert "still running" in (await again.json())["error"]["message"]
        other = await here.send("POST", message=call("7", text="another"), **session)
        assert (await other.json())["result"]["content"][0]["text"] == "another"
        assert len(here.work.calls) == 2, "what was refused was not done"
        gone = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
        gone["params"] = {"requestId": 7}  # type: ignore[assignment]
        await here.send("POST", message=gone, **session)
        assert "cancelled" in json.loads((await first.rest())[-1].data)["error"]["message"]
        assert here.work.cancelled.is_set(), "the first can still be cancelled"


# --- past the headers


@pytest.mark.promise("G2")
async def test_modern_request_in_a_batch_cannot_bypass_header_checks() -> None:
    async with run_mcp_rig() as here:
        right = modern(call(1))["message"]
        for version in ("", "2025-03-26"):
            headers = {"Mcp_Protocol_Version": version} if version else {}
            answer = await here.send("POST", message=[right], **headers)
            said = await answer.json()
            assert "error" in json.dumps(said), said
        session = await here.session("2025-03-26")
        answer = await here.send("POST", message=[right, call(2, text="old")], **session)
        said = {one["id"]: one for one in await answer.json()}
        assert "error" in said[1] and "result" in said[2]
        listen = modern(request(3, "subscriptions/listen", notifications={}))["message"]
        answer = await here.send("POST", message=[listen], **session)
        assert "error" in (await answer.json())[0]
        assert len(here.work.calls) == 1


# --- sessions


@pytest.mark.promise("G2")
async def test_session_flood_evicts_its_own_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_sessions, "MAX_SESSIONS", 20)
    async with run_mcp_rig() as here:
        bobs = await here.session(who=BOB)
        await here.send(
            "POST", message=request(1, "logging/setLevel", level="debug"), who=BOB, **bobs
        )
        for _ in range(40):
            await here.session(who=ALICE)
        assert len(here.http.sessions) == 20
        found = here.http.sessions.find(bobs["Mcp_Session_Id"], Principal("key", BOB))
        assert found is not None and found.log_level == "debug", "it is the one that he had"
