"""Traces of MCP clients are read by every transport; all rounds of a call share one trace."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.web.mcp_http_fixture import HubRig, Work, call, request, run_mcp_rig
from tests.web.mcp_http_fixture import modern as of_the_new_era

from dragoman.core.call import Call, Progress, Question, Result
from dragoman.core.call_chains import CallChains, RunningCall
from dragoman.core.principal import OWNER, Principal
from dragoman.core.tool import DEFAULT_TRAITS, Tool
from dragoman.core.tool_filter import EVERYTHING
from dragoman.core.trace import Trace
from dragoman.mcp.protocol.revisions import R2511, R2607, TASKS
from dragoman.mcp.server.client_state import ClientState
from dragoman.mcp.server.dispatcher import McpServer
from dragoman.mcp.server.socket_transport import SocketConnection

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ID = PARENT[3:35]
META = "io.modelcontextprotocol/"


def start_call(chains: CallChains, work: Work) -> RunningCall:
    """A running call of another principal."""
    ann = Principal("key", "ann")
    call = Call(
        principal=ann,
        tool=Tool(name="far.run", alias="far", remote_name="run", target=work),
        requested_name="far.run",
        arguments={},
        trace=chains.start_trace(ann, "far.run", "far", None),
        door="test",
    )
    return chains.enter(call)


def underscored(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("-", "_"): value for name, value in headers.items()}


async def by_post(here: HubRig, meta: Mapping[str, Any], headers: Mapping[str, str]) -> Trace:
    """The new era: each request by itself."""
    sent = of_the_new_era(with_meta(call(), meta))
    answer = await here.send("POST", **sent, **underscored(headers))
    assert (await answer.json())["result"]["content"]
    return here.work.calls[-1].trace


async def by_session(here: HubRig, meta: Mapping[str, Any], headers: Mapping[str, str]) -> Trace:
    session = await here.session()
    message = with_meta(call(), meta)
    answer = await here.send("POST", message=message, **session, **underscored(headers))
    assert (await answer.json())["result"]["content"]
    return here.work.calls[-1].trace


async def by_batch(here: HubRig, meta: Mapping[str, Any], headers: Mapping[str, str]) -> Trace:
    session = await here.session("2025-03-26")
    message = [with_meta(call(), meta)]
    answer = await here.send("POST", message=message, **session, **underscored(headers))
    assert (await answer.json())[0]["result"]["content"]
    return here.work.calls[-1].trace


async def by_sse(here: HubRig, meta: Mapping[str, Any], headers: Mapping[str, str]) -> Trace:
    stream = await here.send("GET", "/sse", Accept="text/event-stream")
    where = (await stream.event()).data.decode()
    params = {"protocolVersion": "2024-11-05", "capabilities": {}}
    for message in (request(0, "initialize", **params), with_meta(call(), meta)):
        assert (await here.send("POST", where, message, **underscored(headers))).status == 202
        assert "result" in await stream.message()
    return here.work.calls[-1].trace


async def by_stdio(here: HubRig, meta: Mapping[str, Any], headers: Mapping[str, str]) -> Trace:
    assert not headers
    async with on_a_pipe(here.mcp_server) as (reader, writer):
        params = {"protocolVersion": "2025-11-25", "capabilities": {}}
        for message in (request(0, "initialize", **params), with_meta(call(), meta)):
            writer.write(json.dumps(message).encode() + b"\n")
            assert "result" in json.loads(await asyncio.wait_for(reader.readline(), 60))
    return here.work.calls[-1].trace


@contextlib.asynccontextmanager
async def on_a_pipe(
    mcp_server: McpServer,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    transport, _ = await loop.create_connection(
        lambda: SocketConnection(mcp_server, lambda _: OWNER, lambda: EVERYTHING, set()),
        sock=ours,
    )
    reader, writer = await asyncio.open_connection(sock=theirs)
    try:
        await asyncio.wait_for(reader.readline(), 60)  # it says who it is
        yield reader, writer
    finally:
        writer.close()
        transport.abort()


def with_meta(message: dict[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    if meta:
        message["params"]["_meta"] = {**message["params"].get("_meta", {}), **meta}
    return message


DOORS = (by_post, by_session, by_batch, by_sse, by_stdio)


@pytest.mark.promise("Q6")
@pytest.mark.parametrize("door", DOORS)
async def test_trace_in_meta_is_continued(door: Any) -> None:
    async with run_mcp_rig() as here:
        assert (await door(here, {"traceparent": PARENT}, {})).id == ID
        assert (await door(here, {"X-OpenStarry-Trace-ID": ID}, {})).id == ID
        first, second = (await door(here, {}, {})).id, (await door(here, {}, {})).id
        assert len({ID, first, second}) == 3


@pytest.mark.promise("Q6")
@pytest.mark.parametrize("door", [door for door in DOORS if door is not by_stdio])
async def test_trace_in_headers_is_continued(door: Any) -> None:
    async with run_mcp_rig() as here:
        assert (await door(here, {}, {"traceparent": PARENT})).id == ID
        assert (await door(here, {}, {"X-OpenStarry-Trace-ID": ID})).id == ID
        other = PARENT.replace(ID, "5e" * 16)
        assert (await door(here, {"traceparent": other}, {"traceparent": PARENT})).id == "5e" * 16


@pytest.mark.promise("Q6", "Q7")
@pytest.mark.parametrize("door", DOORS)
async def test_returning_call_joins_the_call_it_was_made_for(door: Any) -> None:
    async with run_mcp_rig() as here:
        flight = start_call(here.mcp_server.hub.chains, here.work)
        trace = await door(here, flight.trace.build_context(), {})
        assert trace.parent is flight and trace.chain == ("far.run",) and trace.depth == 1
        assert trace.id == flight.trace.id and trace.origin == "key:ann"
        if door is not by_stdio:
            assert (await door(here, {}, flight.trace.build_headers())).parent is flight


@pytest.mark.promise("Q6")
@pytest.mark.parametrize("meta", [{"traceparent": 5}, {"dragoman.hub/chain": []}, {"x": None}])
async def test_invalid_trace_is_ignored(meta: dict[str, Any]) -> None:
    async with run_mcp_rig() as here:
        assert len((await by_session(here, meta, {})).id) == 32
        session = await here.session()
        message = call()
        message["params"]["_meta"] = "none"
        answer = await here.send("POST", message=message, **session)
        assert (await answer.json())["result"]["content"]


# --- rounds ---------------------------------------------------------------------------------------

FORM = Question("form", {"message": "who?", "requestedSchema": {"type": "object"}})
ANSWER = {"action": "accept", "content": {}}


class AskingTarget(Work):
    """Asks twice, when it may."""

    traits = DEFAULT_TRAITS

    async def run(self, call: Call) -> Result:
        self.calls.append(call)
        call.updates(Progress(progress=1))
        await asyncio.wait_for(self.go.wait(), 60)
        if len(self.calls) < 3:
            return Result(questions={"q": FORM}, handle="h")
        return Result(content=[{"type": "text", "text": "done"}])


def ids(work: Work) -> set[str]:
    assert len(work.calls) == 3
    assert len({one.trace.span for one in work.calls}) == 3
    return {one.trace.id for one in work.calls}


def curious(here: HubRig, *, at_once: bool = True) -> AskingTarget:
    work = AskingTarget()
    if at_once:
        work.go.set()
    tool = next(one for one in here.mcp_server.hub.catalog.list_tools() if one.name == "work.do")
    here.mcp_server.hub.catalog.offer("work", [replace(tool, target=work)])
    return work


@pytest.mark.promise("Q6")
@pytest.mark.parametrize("brought", [{}, {"traceparent": PARENT}])
async def test_modern_answer_stays_in_the_trace_of_its_question(
    brought: dict[str, Any],
) -> None:
    async with run_mcp_rig() as here:
        work = curious(here)
        params: dict[str, Any] = {"name": "work.do", "arguments": {}}
        for number in range(3):
            meta = {
                META + "protocolVersion": "2026-07-28",
                META + "clientCapabilities": {"elicitation": {"form": {}}},
                **brought,
            }
            if number:  # as a tracing library would: another request, another trace
                meta["traceparent"] = PARENT.replace(ID, f"{number}e" * 16)
            message = request(number, "tools/call", **params, _meta=meta)
            raw = await here.mcp_server.answer(
                message, ClientState(OWNER, "test", EVERYTHING, R2607)
            )
            result = json.loads(raw or b"")["result"]
            if number < 2:
                params["requestState"] = result["requestState"]
                params["inputResponses"] = {"q": ANSWER}
        assert result["content"][0]["text"] == "done"
        (id,) = ids(work)
        assert id == ID or not brought


@pytest.mark.promise("Q6")
async def test_elicited_call_keeps_one_trace() -> None:
    async with run_mcp_rig() as here:
        work = curious(here)
        peer = ClientState(OWNER, "test", EVERYTHING, R2511, client="c")
        peer.features = {"elicitation": {"form": {}}}

        answering = []

        def push(message: bytes) -> bool:
            asked = json.loads(message)
            if asked.get("method") == "elicitation/create":
                answer = {"jsonrpc": "2.0", "id": asked["id"], "result": ANSWER}
                answering.append(asyncio.ensure_future(here.mcp_server.answer(answer, peer)))
            return True

        message = with_meta(call(), {"traceparent": PARENT})
        raw = await asyncio.wait_for(here.mcp_server.answer(message, peer, push), 60)
        assert json.loads(raw or b"")["result"]["content"][0]["text"] == "done"
        assert ids(work) == {ID}


@pytest.mark.promise("Q6")
async def test_call_turned_task_keeps_one_trace() -> None:
    async with run_mcp_rig() as here:
        work = curious(here, at_once=False)
        here.mcp_server.tasks._after = 0.0
        able: dict[str, Any] = {"elicitation": {"form": {}}, "extensions": {TASKS: {}}}
        meta = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": able}
        peer = ClientState(OWNER, "test", EVERYTHING, R2607)

        async def ask(method: str, **params: Any) -> Any:
            message = request(1, method, **params, _meta={**meta, **brought})
            return json.loads(await here.mcp_server.answer(message, peer) or b"")["result"]

        brought = {"traceparent": PARENT}
        made = await ask("tools/call", name="work.do", arguments={})
        brought = {}
        work.go.set()
        assert made["resultType"] == "task", made
        async with asyncio.timeout(60):
            while (task := await ask("tasks/get", taskId=made["taskId"]))["status"] != "completed":
                if task["status"] == "input_required":
                    answers = dict.fromkeys(task["inputRequests"], ANSWER)
                    await ask("tasks/update", taskId=made["taskId"], inputResponses=answers)
                await asyncio.sleep(0.01)
        assert ids(work) == {ID}
