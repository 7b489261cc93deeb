"""Tasks as clients of both forms see them. The tool is defined here; the stage that seals question
handles is the real one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.permissive_hub import build_permissive_hub

from dragoman.core.bus import Bus
from dragoman.core.call import (
    FORM,
    Call,
    LogMessage,
    Progress,
    Question,
    Result,
    TaskStarted,
    Update,
)
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.errors import Denied, NeedsInput, TimedOut, WorkFailed
from dragoman.core.principal import OWNER, Principal
from dragoman.core.question_handles import QuestionHandles
from dragoman.core.tool import PROMPT, TOOL, TargetTraits, Tool
from dragoman.core.tool_filter import EVERYTHING
from dragoman.guards.questions import Questions
from dragoman.mcp.protocol.elicitation import TASKS_ONLY
from dragoman.mcp.protocol.revisions import (
    R2024,
    R2503,
    R2506,
    R2511,
    R2607,
    RELATED_KEY,
    TASKS,
    Revision,
)
from dragoman.mcp.server import tasks as task_face
from dragoman.mcp.server.client_state import ClientState
from dragoman.mcp.server.dispatcher import McpServer
from dragoman.wire import rpc

pytestmark = pytest.mark.promise("B12")

META = "io.modelcontextprotocol/"
KNOWS: dict[str, Any] = {"extensions": {TASKS: {}}, "elicitation": {}}
BOB = Principal("key", "bob")
Steps = Update | Result | Exception


class Worker:
    """A scripted tool that records its calls."""

    name = "worker"

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.cancelled = asyncio.Event()
        self.traits = TargetTraits(ends_questions=True)
        self.given_up: list[str] = []
        self._next: asyncio.Queue[Steps] = asyncio.Queue()

    def does(self, *steps: Steps) -> None:
        for step in steps:
            self._next.put_nowait(step)

    async def run(self, call: Call) -> Result:
        if call.handle is not None and call.answers is None:
            self.given_up.append(call.handle)
            raise WorkFailed("given up")
        self.calls.append(call)
        while True:
            try:
                step = await self._next.get()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            if isinstance(step, Result):
                return step
            if isinstance(step, Exception):
                raise step
            call.updates(step)


class HubRig:
    def __init__(self, after: float, **bounds: Any) -> None:
        self.worker = Worker()
        hub = build_permissive_hub(
            Catalog(review=admit_all), Bus(), [Questions(QuestionHandles(b"k" * 32, 60))]
        )
        for kind in (TOOL, PROMPT):
            tool = Tool(name="worker.t", alias="t", kind=kind, remote_name="t", target=self.worker)
            hub.catalogs[kind].offer("worker", [tool])
        self.tasks = task_face.build_task_registry(**{"ttl": 60.0, **bounds})
        self.mcp_server = McpServer(hub, question_seconds=5, tasks=self.tasks, task_after=after)

    async def ask(
        self,
        method: str,
        able: Mapping[str, Any] = KNOWS,
        who: Principal = OWNER,
        push: Callable[[bytes], bool] | None = None,
        **params: Any,
    ) -> Any:
        """A request of the new era."""
        meta = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": able}
        params["_meta"] = {**meta, **params.get("_meta", {})}
        peer = ClientState(who, "test", EVERYTHING, R2607)
        answer = await self.mcp_server.answer(
            json.loads(rpc.encode_request(1, method, params)), peer, push
        )
        assert answer is not None
        return json.loads(answer)

    async def get(self, task: str, able: Mapping[str, Any] = KNOWS) -> Any:
        return (await self.ask("tasks/get", able, taskId=task))["result"]

    async def until(self, task: str, status: str) -> Any:
        async with asyncio.timeout(60):
            while (now := await self.get(task))["status"] != status:
                await asyncio.sleep(0.002)
        return now

    async def waits(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The answer to a call that lasts, and that is not answered before it is done."""
        asking = asyncio.create_task(work)
        self.worker.does(TaskStarted())
        await asyncio.wait([asking], timeout=0.1)
        assert not asking.done(), asking.result()
        self.worker.does(done())
        return await asyncio.wait_for(asking, 60)

    async def created(self) -> Any:
        """The task of a call that lasts from its first moment."""
        self.worker.does(TaskStarted())
        made = (await self.ask("tools/call", name="t"))["result"]
        assert made["resultType"] == "task"
        return made


@asynccontextmanager
async def run_rig(after: float = 60.0, **bounds: Any) -> AsyncIterator[HubRig]:
    made = HubRig(after, **bounds)
    yield made
    await made.tasks.close()


def asks(*names: str) -> Result:
    questions = {name: Question(FORM, {"message": f"{name}?"}) for name in names}
    return Result(questions=questions, handle="state")


def done(words: str = "done") -> Result:
    return Result(content=[{"type": "text", "text": words}])


def text(result: Mapping[str, Any]) -> Any:
    return result["content"][0]["text"]


# --- 2026-07-28: what becomes a task


async def test_quick_call_of_a_task_client_is_a_plain_call() -> None:
    async with run_rig() as here:
        here.worker.does(done())
        answer = await here.ask("tools/call", name="t", task={"ttl": 5})
        assert text(answer["result"]) == "done" and answer["result"]["resultType"] == "complete"
        assert len(here.tasks) == 0
        assert here.worker.calls[0].features == KNOWS


async def test_slow_call_becomes_a_task_after_the_grace_period() -> None:
    async with run_rig(after=0.05) as here:
        made = (await here.ask("tools/call", name="t"))["result"]
        assert made["resultType"] == "task" and made["status"] == "working"
        assert set(made) >= {"taskId", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"}
        assert not set(made) & {"result", "error", "inputRequests", "requestState", "content"}
        now = await here.get(made["taskId"])
        assert (now["status"], now["resultType"], now["ttlMs"]) == ("working", "complete", 60_000)
        here.worker.does(Progress(progress=1, total=2), done())
        now = await here.until(made["taskId"], "completed")
        assert text(now["result"]) == "done" and now["result"]["resultType"] == "complete"
        assert len(here.worker.calls) == 1, "it was never called again"


async def test_lasting_call_becomes_a_task_at_once() -> None:
    async with run_rig() as here:
        here.worker.does(TaskStarted(message="queued"))
        made = (await here.ask("tools/call", name="t"))["result"]
        assert (made["resultType"], made["statusMessage"]) == ("task", "queued")
        here.worker.does(Progress(progress=1, message="half"))
        async with asyncio.timeout(60):
            while (await here.get(made["taskId"])).get("statusMessage") != "half":
                await asyncio.sleep(0.002)


async def test_client_without_tasks_waits_and_gets_the_plain_result() -> None:
    async with run_rig(after=0.01) as here:
        able: dict[str, Any] = {"extensions": {"x/y": {}}}
        answer = await here.waits(here.ask("tools/call", able, name="t"))
        assert text(answer["result"]) == "done" and here.worker.calls[0].features == able
        assert len(here.tasks) == 0


@pytest.mark.parametrize("revision", [R2024, R2503, R2506, R2511])
async def test_hub_handles_tasks_for_handshake_clients(
    revision: Revision,
) -> None:
    async with run_rig(after=0.01) as here:
        params = {"name": "t", "task": {}} if revision < R2511 else {"name": "t"}
        peer = ClientState(OWNER, "test", EVERYTHING, revision, client="c")
        message = json.loads(rpc.encode_request(1, "tools/call", params))
        answer = json.loads(await here.waits(here.mcp_server.answer(message, peer)))
        assert text(answer["result"]) == "done"
        assert here.worker.calls[0].features is TASKS_ONLY


async def test_progress_and_logs_are_sent_until_the_call_is_a_task() -> None:
    async with run_rig(after=0.2) as here:
        heard: list[Any] = []

        def push(message: bytes) -> bool:
            heard.append(json.loads(message))
            return True

        meta = {"progressToken": "p", META + "logLevel": "info"}
        here.worker.does(Progress(progress=1), LogMessage(level="info", data="x"))
        made = (await here.ask("tools/call", push=push, name="t", _meta=meta))["result"]
        here.worker.does(Progress(progress=2), LogMessage(level="info", data="y"), done())
        await here.until(made["taskId"], "completed")
        assert [one["method"] for one in heard] == [
            "notifications/progress",
            "notifications/message",
        ]


async def test_disconnect_before_the_task_cancels_the_call() -> None:
    async with run_rig() as here:
        asking = asyncio.create_task(here.ask("tools/call", name="t"))
        await until(lambda: here.worker.calls)
        asking.cancel()
        await asyncio.wait_for(here.worker.cancelled.wait(), 60)
        with pytest.raises(asyncio.CancelledError):
            await asking


# --- 2026-07-28: how it is


@pytest.mark.parametrize(
    "error",
    [
        Denied("no"),
        TimedOut("late"),
        WorkFailed("its own", {"code": -32010, "message": "native", "data": {"x": 1}}),
        NeedsInput("asks", {"sampling": {}}),
    ],
)
async def test_task_result_equals_the_call_result(error: Exception) -> None:
    async with run_rig() as here:
        here.worker.does(error)
        direct = await here.ask("tools/call", name="t")
        made = await here.created()
        here.worker.does(error)
        async with asyncio.timeout(60):
            while (now := await here.get(made["taskId"]))["status"] == "working":
                await asyncio.sleep(0.002)
        if "error" in direct:
            assert now["status"] == "failed" and "result" not in now
            ours, theirs = now["error"], direct["error"]
            assert ours["code"] == theirs["code"]
            assert ours["message"].partition(" (trace")[0] == theirs["message"].partition(" (")[0]
        else:
            assert now["status"] == "completed" and "error" not in now
            assert now["result"]["isError"] is True


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_tasks_need_the_capability_and_their_owner(method: str) -> None:
    async with run_rig() as here:
        id = (await here.created())["taskId"]
        lacking = await here.ask(method, {}, taskId=id)
        assert lacking["error"]["code"] == -32021
        assert lacking["error"]["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        params: dict[str, Any] = {"inputResponses": {}} if method == "tasks/update" else {}
        unknown = await here.ask(method, taskId="0" * 32, **params)
        others = await here.ask(method, who=BOB, taskId=id, **params)
        assert others["error"]["code"] == unknown["error"]["code"] == rpc.INVALID_PARAMS
        assert others["error"]["message"] == unknown["error"]["message"].replace("0" * 32, id)
        for wrong in (None, 7, [id], {"id": id}):
            assert (await here.ask(method, taskId=wrong))["error"]["code"] == rpc.INVALID_PARAMS
        assert (await here.get(id))["status"] == "working"


@pytest.mark.parametrize("method", ["tasks/result", "tasks/list"])
async def test_legacy_task_methods_are_unknown_in_the_modern_form(method: str) -> None:
    async with run_rig() as here:
        id = (await here.created())["taskId"]
        assert (await here.ask(method, taskId=id))["error"]["code"] == rpc.METHOD_NOT_FOUND


# --- 2026-07-28: questions and cancelling


async def test_task_elicits_and_resumes_when_all_is_answered() -> None:
    async with run_rig() as here:
        id = (await here.created())["taskId"]
        here.worker.does(asks("a", "b"))
        now = await here.until(id, "input_required")
        assert set(now["inputRequests"]) == {"a", "b"} and "requestState" not in now
        assert now["inputRequests"]["a"] == {
            "method": "elicitation/create",
            "params": {"message": "a?"},
        }
        ack = await here.ask("tasks/update", taskId=id, inputResponses={"a": {"x": 1}, "z": {}})
        assert ack["result"].keys() == {"resultType", "_meta"}
        assert set((await here.get(id))["inputRequests"]) == {"b"}
        await here.ask("tasks/update", taskId=id, inputResponses={"b": {"x": 2}})
        here.worker.does(done("thanks"))
        assert text((await here.until(id, "completed"))["result"]) == "thanks"
        again = here.worker.calls[1]
        assert (again.answers, again.handle) == ({"a": {"x": 1}, "b": {"x": 2}}, "state")
        bad: Any
        for bad in (None, [], {"a": 7}):
            answer = await here.ask("tasks/update", taskId=id, inputResponses=bad)
            assert answer["error"]["code"] == rpc.INVALID_PARAMS


async def test_question_before_the_task_is_asked_directly() -> None:
    async with run_rig() as here:
        here.worker.does(asks("a"))
        first = (await here.ask("tools/call", name="t"))["result"]
        assert first["resultType"] == "input_required" and len(here.tasks) == 0
        brought = {"requestState": first["requestState"], "inputResponses": {"a": {"x": 1}}}
        here.worker.does(TaskStarted())
        second = (await here.ask("tools/call", name="t", **brought))["result"]
        assert second["resultType"] == "task" and here.worker.calls[1].answers == {"a": {"x": 1}}
        here.worker.does(asks("a"))
        await here.until(second["taskId"], "input_required")
        forged = await here.ask("tools/call", name="t", requestState="x", inputResponses={})
        assert forged["error"]["code"] == rpc.INVALID_PARAMS


async def test_cancel_is_acknowledged_repeatedly() -> None:
    async with run_rig() as here:
        id = (await here.created())["taskId"]
        for _ in range(2):
            ack = await here.ask("tasks/cancel", taskId=id)
            assert ack["result"].keys() == {"resultType", "_meta"}
            now = await here.get(id)
            assert now["status"] == "cancelled" and not now.keys() & {"result", "error"}
        await asyncio.wait_for(here.worker.cancelled.wait(), 60)


@pytest.mark.parametrize("understands", [True, False])
async def test_cancelled_task_with_a_pending_question_notifies_its_target(
    understands: bool,
) -> None:
    async with run_rig() as here:
        here.worker.traits = TargetTraits(ends_questions=understands)
        id = (await here.created())["taskId"]
        here.worker.does(asks("a"))
        await here.until(id, "input_required")
        await here.ask("tasks/cancel", taskId=id)
        assert (await here.get(id))["status"] == "cancelled"
        await here.tasks.close()
        assert here.worker.given_up == (["state"] if understands else [])


# --- 2025-11-25


class LegacyClient(ClientState):
    """A session of 2025-11-25 and its received notifications."""

    def __init__(self, here: HubRig, who: Principal = OWNER, client: str = "c") -> None:
        super().__init__(who, "test", EVERYTHING, R2511, client)
        self.features = {"elicitation": {}}
        self.here = here
        self.told: list[Any] = []

    def notify(self, message: bytes) -> None:
        self.told.append(json.loads(message))

    def push(self, message: bytes) -> bool:
        self.notify(message)
        return True

    async def ask(self, method: str, **params: Any) -> Any:
        message = json.loads(rpc.encode_request(1, method, params))
        return json.loads(await self.here.mcp_server.answer(message, self, self.push) or b"")


async def test_legacy_task_is_created_and_awaited() -> None:
    async with run_rig() as here:
        old = LegacyClient(here)
        meta = {"progressToken": 7}
        made = await old.ask("tools/call", name="t", task={"ttl": 9_000}, _meta=meta)
        task = made["result"]["task"]
        assert made["result"].keys() == {"task"} and here.worker.calls == []
        assert (task["status"], task["ttl"]) == ("working", 9_000)
        id = task["taskId"]
        assert (await old.ask("tasks/get", taskId=id))["result"]["status"] == "working"
        waiting = asyncio.create_task(old.ask("tasks/result", taskId=id))
        here.worker.does(TaskStarted(), Progress(progress=1, total=2, message="half"), done())
        result = (await asyncio.wait_for(waiting, 60))["result"]
        assert text(result) == "done" and result["_meta"] == {RELATED_KEY: {"taskId": id}}
        assert here.worker.calls[0].wanted_updates.task_start, "so that its server may make one"
        progress, status = old.told
        assert progress["params"] == {
            "progressToken": 7,
            "progress": 1,
            "total": 2,
            "message": "half",
            "_meta": {RELATED_KEY: {"taskId": id}},
        }
        assert status["method"] == "notifications/tasks/status"
        assert (status["params"]["taskId"], status["params"]["status"]) == (id, "completed")
        again = await old.ask("tasks/result", taskId=id)
        assert again["result"] == result, "as often as one likes"


async def test_legacy_task_elicits_on_the_result_stream() -> None:
    async with run_rig() as here:
        old = LegacyClient(here)
        id = (await old.ask("tools/call", name="t", task={}))["result"]["task"]["taskId"]
        here.worker.does(asks("a"))
        await until(lambda: old.told and old.told[-1]["params"]["status"] == "input_required")
        assert len(old.told) == 1, "nothing is asked before the client can answer"
        waiting = asyncio.create_task(old.ask("tasks/result", taskId=id))
        await until(lambda: old.told[-1]["method"] == "elicitation/create")
        asked = old.told[-1]
        assert asked["params"]["_meta"] == {RELATED_KEY: {"taskId": id}}
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}}
        assert await here.mcp_server.answer(answer, old) is None
        here.worker.does(done("thanks"))
        assert text((await asyncio.wait_for(waiting, 60))["result"]) == "thanks"
        assert here.worker.calls[1].answers == {"a": {"action": "accept"}}


async def test_refusal_by_a_legacy_client_reaches_the_task() -> None:
    async with run_rig() as here:
        old = LegacyClient(here)
        id = (await old.ask("tools/call", name="t", task={}))["result"]["task"]["taskId"]
        here.worker.does(asks("a"))
        waiting = asyncio.create_task(old.ask("tasks/result", taskId=id))
        await until(lambda: old.told and old.told[-1]["method"] == "elicitation/create")
        waiting.cancel()
        await asyncio.wait([waiting])
        assert (await old.ask("tasks/get", taskId=id))["result"]["status"] == "input_required"
        waiting = asyncio.create_task(old.ask("tasks/result", taskId=id))
        await until(lambda: sum(one["method"] == "elicitation/create" for one in old.told) == 2)
        error = {"code": -1, "message": "no"}
        await here.mcp_server.answer(
            {"jsonrpc": "2.0", "id": old.told[-1]["id"], "error": error}, old
        )
        here.worker.does(done())
        await asyncio.wait_for(waiting, 60)
        assert here.worker.calls[1].answers == {"a": {"action": "cancel"}}


async def test_legacy_task_reports_failure_and_result() -> None:
    async with run_rig() as here:
        old = LegacyClient(here)
        ids = []
        native = WorkFailed("x", {"code": -32010, "message": "native"})
        failed = Result(content=[{"type": "text", "text": "it broke"}], failed=True)
        lacking = WorkFailed("x", {"code": -32021, "message": "you lack it"})
        for step in (failed, native, TimedOut("late"), lacking):
            made = await old.ask("tools/call", name="t", task={})
            ids.append(made["result"]["task"]["taskId"])
            here.worker.does(step)
            async with asyncio.timeout(60):
                while True:
                    now = (await old.ask("tasks/get", taskId=ids[-1]))["result"]
                    if now["status"] != "working":
                        break
                    await asyncio.sleep(0.002)
            assert now["status"] == "failed" and now["statusMessage"]
        first, second, third, fourth = [await old.ask("tasks/result", taskId=id) for id in ids]
        assert text(first["result"]) == "it broke" and first["result"]["isError"] is True
        assert second["error"]["code"] == -32010
        assert third["result"]["isError"] is True and "late" in text(third["result"])
        assert "you lack it" in text(fourth["result"]), "a code that this revision does not know"


async def test_legacy_task_cancels_once() -> None:
    async with run_rig() as here:
        old = LegacyClient(here)
        id = (await old.ask("tools/call", name="t", task={}))["result"]["task"]["taskId"]
        await until(lambda: here.worker.calls)
        assert (await old.ask("tasks/cancel", taskId=id))["result"]["status"] == "cancelled"
        assert (await old.ask("tasks/cancel", taskId=id))["error"]["code"] == rpc.INVALID_PARAMS
        await asyncio.wait_for(here.worker.cancelled.wait(), 60)
        assert "error" in await old.ask("tasks/result", taskId=id)
        for bad in ("x", None):
            for method in ("tasks/get", "tasks/cancel", "tasks/result"):
                answer = await old.ask(method, taskId=bad)
                assert answer["error"]["code"] == rpc.INVALID_PARAMS


async def test_legacy_tasks_are_listed_by_page_and_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_face, "PAGE", 2)
    async with run_rig() as here:
        old, bob = LegacyClient(here), LegacyClient(here, BOB)
        mine = []
        for _ in range(5):
            made = await old.ask("tools/call", name="t", task={})
            mine.append(made["result"]["task"]["taskId"])
        theirs = (await bob.ask("tools/call", name="t", task={}))["result"]["task"]["taskId"]
        listed: list[str] = []
        cursor: dict[str, Any] = {}
        while True:
            page = (await old.ask("tasks/list", **cursor))["result"]
            listed += [task["taskId"] for task in page["tasks"]]
            if "nextCursor" not in page:
                break
            cursor = {"cursor": page["nextCursor"]}
        assert listed == mine
        for wrong in ("x", 7, theirs):
            answer = await old.ask("tasks/list", cursor=wrong)
            assert answer["error"]["code"] == rpc.INVALID_PARAMS
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            answer = await old.ask(method, taskId=theirs)
            assert answer["error"]["code"] == rpc.INVALID_PARAMS


async def test_unknown_tool_and_invalid_ttl_are_refused() -> None:
    async with run_rig() as here:
        old = LegacyClient(here)
        answer = await old.ask("tools/call", name="nobody", task={})
        assert answer["error"]["code"] == rpc.INVALID_PARAMS and len(here.tasks) == 0
        ttl: Any
        for ttl in ("x", True, {}):
            answer = await old.ask("tools/call", name="t", task={"ttl": ttl})
            assert answer["error"]["code"] == rpc.INVALID_PARAMS
        for ttl, kept in ((10**30, 60_000), (-5, 1_000), (None, 60_000)):
            answer = await old.ask("tools/call", name="t", task={"ttl": ttl})
            assert answer["result"]["task"]["ttl"] == kept


async def test_full_registry_refuses_explicit_tasks_and_runs_plain_calls() -> None:
    async with run_rig(count_per_owner=1, after=0.01) as here:
        old = LegacyClient(here)
        await old.ask("tools/call", name="t", task={})
        await until(lambda: here.worker.calls)
        answer = await old.ask("tools/call", name="t", task={})
        assert answer["error"]["code"] == -32000 and "tasks of this caller" in str(answer)
        asking = asyncio.create_task(here.ask("tools/call", name="t"))
        await until(lambda: len(here.worker.calls) == 2)
        here.worker.does(done("one"), done("two"))
        assert text((await asyncio.wait_for(asking, 60))["result"]) in ("one", "two")


async def test_only_tools_have_tasks() -> None:
    async with run_rig(after=0.01) as here:
        old = LegacyClient(here)
        for asking in (
            old.ask("prompts/get", name="t", task={}),
            here.ask("prompts/get", name="t"),
        ):
            here.worker.does(TaskStarted(), Result())
            assert "messages" in (await asking)["result"]
        assert len(here.tasks) == 0


# --- subscriptions/listen


class Listener:
    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.reads = True

    def push(self, message: bytes) -> bool:
        if self.reads:
            self.heard.append(json.loads(message))
        return self.reads

    def states(self) -> list[str]:
        return [one["params"]["status"] for one in self.heard[1:]]


async def test_task_subscription_sends_complete_own_tasks_on_change() -> None:
    async with run_rig(after=0.05) as here:
        id = (await here.created())["taskId"]
        theirs = (await here.ask("tools/call", who=BOB, name="t"))["result"]["taskId"]
        listener = Listener()
        wanted = {"taskIds": [id, "x", theirs, id]}
        listening = asyncio.create_task(
            here.ask("subscriptions/listen", push=listener.push, notifications=wanted)
        )
        await until(lambda: len(listener.heard) == 2)
        assert listener.heard[0]["params"]["notifications"] == {"taskIds": [id]}
        told = listener.heard[1]
        assert told["method"] == "notifications/tasks"
        assert told["params"]["_meta"] == {META + "subscriptionId": 1}
        here.worker.does(Progress(progress=1))
        await here.ask("tasks/cancel", taskId=id)
        await until(lambda: len(listener.heard) == 3)
        assert listener.states() == ["working", "cancelled"]
        here.mcp_server.subscriptions.close()
        assert "result" in await asyncio.wait_for(listening, 60)


async def test_task_subscription_sends_questions_and_result() -> None:
    async with run_rig() as here:
        id = (await here.created())["taskId"]
        listener = Listener()
        listening = asyncio.create_task(
            here.ask("subscriptions/listen", push=listener.push, notifications={"taskIds": [id]})
        )
        await until(lambda: len(listener.heard) == 2)
        here.worker.does(asks("a"))
        await until(lambda: len(listener.heard) == 3)
        assert "inputRequests" in listener.heard[2]["params"]
        await here.ask("tasks/update", taskId=id, inputResponses={"a": {}})
        here.worker.does(done())
        await until(lambda: len(listener.heard) == 5)
        assert listener.states() == ["working", "input_required", "working", "completed"]
        assert text(listener.heard[4]["params"]["result"]) == "done"
        listening.cancel()
        await asyncio.wait([listening])
        assert not here.mcp_server.tasks.find_task(
            ClientState(OWNER, "t", EVERYTHING), id
        ).watchers[1:]


async def test_slow_task_subscriber_gets_the_latest_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_face, "RETRY_SECONDS", 0.02)
    async with run_rig() as here:
        id = (await here.created())["taskId"]
        listener = Listener()
        listening = asyncio.create_task(
            here.ask("subscriptions/listen", push=listener.push, notifications={"taskIds": [id]})
        )
        await until(lambda: len(listener.heard) == 2)
        listener.reads = False
        here.worker.does(asks("a"))
        await here.until(id, "input_required")
        await here.ask("tasks/update", taskId=id, inputResponses={"a": {}})
        here.worker.does(done())
        await here.until(id, "completed")
        listener.reads = True
        await until(lambda: len(listener.heard) == 3)
        assert listener.states() == ["working", "completed"]
        listening.cancel()
        await asyncio.wait([listening])


async def test_task_subscription_needs_the_capability() -> None:
    async with run_rig() as here:
        push = Listener().push
        listen: dict[str, Any] = {"method": "subscriptions/listen", "push": push}
        answer = await here.ask(**listen, able={}, notifications={"taskIds": []})
        assert answer["error"]["code"] == -32021
        for wrong in ("x", [7], ["x"] * 101):
            answer = await here.ask(**listen, notifications={"taskIds": wrong})
            assert answer["error"]["code"] == rpc.INVALID_PARAMS


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.002)
