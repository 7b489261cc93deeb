"""A server's task followed to its end, in both forms; the server is defined here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from dragoman.core import structs
from dragoman.core.call import Call, Progress, TaskStarted, Update, WantedUpdates
from dragoman.core.errors import (
    BadReply,
    HubError,
    InvalidInput,
    NeedsInput,
    NotFound,
    Overloaded,
    Unreachable,
    WorkFailed,
)
from dragoman.core.principal import OWNER, Principal
from dragoman.core.tool import build_missing_tool
from dragoman.core.trace import new_trace
from dragoman.mcp.client import remote_tasks
from dragoman.mcp.client.remote_tasks import (
    RemoteTaskLimits,
    UpstreamTasks,
    is_task,
    is_task_handle,
    wants_task,
)
from dragoman.mcp.protocol.revisions import TASKS

pytestmark = pytest.mark.promise("B12")

Step = Mapping[str, Any] | HubError
FORM_ASKED = {"method": "elicitation/create", "params": {"message": "sure?"}}


QUICK = RemoteTaskLimits(question_secs=60.0, first_poll=0.002, shortest_poll=0.001)


class Server:
    """Answers `tasks/get` with one step after the other, the last one again and again."""

    def __init__(self, *steps: Step) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.cancelled = asyncio.Event()
        self.result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.times: list[float] = []
        self._steps: Iterator[Step] = iter(steps)
        self._last: Step = {}

    async def ask(self, method: str, params: dict[str, Any], timeout: float) -> tuple[Any, int]:
        self.asked.append((method, params))
        self.times.append(asyncio.get_running_loop().time())
        if method == "tasks/cancel":
            self.cancelled.set()
            return {}, 2
        if method == "tasks/update":
            return {}, 2
        if method == "tasks/result":
            return await asyncio.shield(self.result), 7
        self._last = next(self._steps, self._last)
        if isinstance(self._last, HubError):
            raise self._last
        return {"taskId": "t1", **self._last}, 5

    def methods(self) -> list[str]:
        return [method for method, _ in self.asked]


def a_call(
    updates: Callable[[Update], None] = lambda update: None,
    features: Mapping[str, Any] | None = None,
    **more: Any,
) -> Call:
    return Call(
        principal=OWNER,
        tool=build_missing_tool("s.x", NotFound("x")),
        requested_name="x",
        arguments={},
        trace=new_trace(),
        door="test",
        updates=updates,
        features={"elicitation": {}} if features is None else features,
        **more,
    )


CREATED = {"resultType": "task", "taskId": "t1", "status": "working", "pollIntervalMs": 1}
OLD = {"task": {"taskId": "t1", "status": "working", "pollInterval": 1}}
DONE = {"status": "completed", "result": {"content": ["done"]}}
ASKS = {"status": "input_required", "inputRequests": {"a": FORM_ASKED}}


# --- the extension


async def test_remote_task_is_polled_until_its_result() -> None:
    told: list[Update] = []
    server = Server(
        {"status": "working", "statusMessage": "one"},
        {"status": "working", "statusMessage": "one"},
        {"status": "working", "statusMessage": "two"},
        DONE,
    )
    created = {**CREATED, "statusMessage": "queued"}
    result = await UpstreamTasks("s", QUICK).follow(created, a_call(told.append), server.ask)
    assert (result.content, result.size) == (["done"], 5)
    assert told == [
        TaskStarted(message="queued"),
        Progress(progress=1, message="queued"),
        Progress(progress=2, message="one"),
        Progress(progress=3, message="two"),
    ]
    assert server.asked == [("tasks/get", {"taskId": "t1"})] * 4


async def test_failed_task_is_the_servers_error_and_cancelled_is_named() -> None:
    native = {"code": -32603, "message": "panic", "data": 1}
    server = Server({"status": "failed", "error": native})
    with pytest.raises(WorkFailed, match="panic") as failed:
        await UpstreamTasks("s", QUICK).follow(CREATED, a_call(), server.ask)
    assert failed.value.native == native
    server = Server({"status": "cancelled"})
    with pytest.raises(WorkFailed, match="has cancelled its task") as cancelled:
        await UpstreamTasks("s", QUICK).follow(CREATED, a_call(), server.ask)
    assert cancelled.value.native is None
    assert server.methods() == ["tasks/get"], "nothing is left to cancel"


async def test_lost_task_is_reported_without_the_servers_error() -> None:
    server = Server(WorkFailed("unknown", {"code": -32602, "message": "unknown"}))
    with pytest.raises(WorkFailed, match="no longer knows the task") as lost:
        await UpstreamTasks("s", QUICK).follow(CREATED, a_call(), server.ask)
    assert lost.value.native is None


async def test_temporary_disconnect_is_tolerated_and_a_permanent_one_not() -> None:
    gone = Unreachable("gone")
    server = Server(gone, gone, {"status": "working"}, gone, gone, gone, gone, DONE)
    result = await UpstreamTasks("s", QUICK).follow(CREATED, a_call(), server.ask)
    assert result.content == ["done"]
    server = Server(gone)
    with pytest.raises(Unreachable):
        await UpstreamTasks("s", QUICK).follow(CREATED, a_call(), server.ask)
    await asyncio.wait_for(server.cancelled.wait(), 60)
    assert server.methods().count("tasks/get") == remote_tasks.MAX_FAILURES


async def test_disconnected_server_is_not_called_again_for_its_task() -> None:
    gone = Unreachable("gone", sent=False)
    following = UpstreamTasks("s", QUICK)
    asked = await following.follow(CREATED, a_call(), Server(ASKS).ask)
    again = a_call(answers={}, handle=asked.handle)
    server = Server(gone)
    server.result.set_exception(gone)
    for work in (
        following.follow(CREATED, a_call(), server.ask),
        following.resume(again, server.ask),
        following.wait_result(OLD, lambda update: None, server.ask, is_watched=False),
    ):
        with pytest.raises(Unreachable) as left:
            await work
        assert left.value.sent, "or the call itself would be made once more"
    await following.close()


@pytest.mark.parametrize("id", [None, 7, "", "x" * 2_000])
async def test_a_task_without_a_usable_id_is_a_bad_reply(id: Any) -> None:
    with pytest.raises(BadReply, match="invalid id"):
        await UpstreamTasks("s", QUICK).follow({**CREATED, "taskId": id}, a_call(), Server().ask)


async def test_poll_interval_follows_the_server_within_bounds() -> None:
    for wish, reason in ((0, 0.001), (-5, 0.001), (20, 0.02), (10**9, 60.0), ("x", None)):
        followed = remote_tasks.UpstreamTask("t1", 0.001)
        followed.update({"pollIntervalMs": wish}, lambda update: None)
        assert followed.pause == reason
    server = Server({"status": "working", "pollIntervalMs": 100}, DONE)
    await UpstreamTasks("s", QUICK).follow(CREATED, a_call(), server.ask)
    assert server.times[1] - server.times[0] >= 0.09, "the last wish counts"


async def test_disconnect_cancels_the_server_task() -> None:
    server = Server({"status": "working"})
    following = UpstreamTasks("s", QUICK)
    running = asyncio.create_task(following.follow(CREATED, a_call(), server.ask))
    async with asyncio.timeout(60):
        while not server.asked:
            await asyncio.sleep(0.001)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await server.cancelled.wait()
    assert server.asked[-1] == ("tasks/cancel", {"taskId": "t1"})


async def test_result_omits_the_server_task_id() -> None:
    meta = {"io.modelcontextprotocol/related-task": {"taskId": "t1"}, "kept": 1}
    server = Server({"status": "completed", "result": {"content": [], "_meta": meta}})
    result = await UpstreamTasks("s", QUICK).follow(CREATED, a_call(), server.ask)
    assert result.extra == {"_meta": {"kept": 1}}


# --- its questions


async def test_task_question_is_answered_on_the_same_task() -> None:
    server = Server({"status": "working"}, ASKS, ASKS, {"status": "working"}, DONE)
    following = UpstreamTasks("s", QUICK)
    asked = await following.follow(CREATED, a_call(), server.ask)
    assert asked.questions is not None and asked.questions["a"].body == {"message": "sure?"}
    assert is_task_handle(asked.handle)
    answers = {"a": {"action": "accept"}}
    told: list[Update] = []
    again = a_call(told.append, answers=answers, handle=asked.handle)
    result = await following.resume(again, server.ask)
    assert result.content == ["done"], "and what it asked before is not asked again"
    assert told[0] == TaskStarted()
    assert server.asked[2] == ("tasks/update", {"taskId": "t1", "inputResponses": answers})
    assert not following._suspended


async def test_second_question_is_asked() -> None:
    both = {"a": FORM_ASKED, "b": {"method": "roots/list"}}
    server = Server(ASKS, {**ASKS, "inputRequests": both}, DONE)
    following = UpstreamTasks("s", QUICK)
    features: dict[str, Any] = {"elicitation": {}, "roots": {}}
    first = await following.follow(CREATED, a_call(features=features), server.ask)
    again = a_call(features=features, answers={"a": {}}, handle=first.handle)
    second = await following.resume(again, server.ask)
    assert second.questions is not None and list(second.questions) == ["b"]
    await following.close()


async def test_incapable_client_cancels_the_server_task() -> None:
    server = Server(ASKS)
    with pytest.raises(NeedsInput, match=r"sure\?"):
        await UpstreamTasks("s", QUICK).follow(CREATED, a_call(features={}), server.ask)
    await asyncio.wait_for(server.cancelled.wait(), 60)


async def test_unanswered_question_expires_with_its_task() -> None:
    server = Server(ASKS)
    following = UpstreamTasks("s", replace(QUICK, question_secs=0.01))
    await following.follow(CREATED, a_call(), server.ask)
    assert not server.cancelled.is_set()
    await asyncio.wait_for(server.cancelled.wait(), 60)
    assert not following._suspended


async def test_expired_question_cannot_be_answered() -> None:
    server = Server(ASKS)
    following = UpstreamTasks("s", replace(QUICK, question_secs=0.01))
    asked = await following.follow(CREATED, a_call(), server.ask)
    await asyncio.wait_for(server.cancelled.wait(), 60)
    again = a_call(answers={"a": {}}, handle=asked.handle)
    with pytest.raises(InvalidInput, match="no longer open"):
        await following.resume(again, server.ask)
    assert "tasks/update" not in server.methods()


async def test_handle_reveals_nothing_and_is_unique_per_task() -> None:
    following = UpstreamTasks("s", QUICK)
    first, second = Server(ASKS), Server(ASKS, DONE)
    one = await following.follow(CREATED, a_call(), first.ask)
    other = await following.follow(CREATED, a_call(), second.ask)
    assert one.handle != other.handle and "t1" not in (one.handle or "")
    again = a_call(answers={"a": {}}, handle=other.handle)
    assert (await following.resume(again, second.ask)).content == ["done"]
    assert following.suspended == 1
    await following.close()


async def test_shutdown_cancels_tasks_waiting_for_answers() -> None:
    server = Server(ASKS)
    following = UpstreamTasks("s", QUICK)
    await following.follow(CREATED, a_call(), server.ask)
    await following.close()
    assert server.cancelled.is_set() and not following.suspended


async def test_continued_call_without_an_answer_is_asked_again() -> None:
    server = Server(ASKS)
    following = UpstreamTasks("s", QUICK)
    asked = await following.follow(CREATED, a_call(), server.ask)
    again = await following.resume(a_call(answers={}, handle=asked.handle), server.ask)
    assert again.questions == asked.questions and "tasks/update" not in server.methods()
    await following.close()


async def test_task_with_a_withdrawn_question_is_cancelled() -> None:
    server = Server(ASKS)
    following = UpstreamTasks("s", QUICK)
    asked = await following.follow(CREATED, a_call(), server.ask)
    with pytest.raises(WorkFailed, match="was cancelled: its question was not answered"):
        again = a_call(handle=asked.handle)
        await following.resume(again, server.ask)
    await asyncio.wait_for(server.cancelled.wait(), 60)
    assert "tasks/update" not in server.methods()


async def test_tasks_with_open_questions_are_bounded() -> None:
    server, following = Server(ASKS), UpstreamTasks("s", replace(QUICK, max_suspended=2))
    ann, bob, eve = (
        structs.replace(a_call(), principal=Principal("key", id)) for id in ("a", "b", "e")
    )
    await following.follow(CREATED, ann, server.ask)
    await following.follow(CREATED, bob, server.ask)
    with pytest.raises(Overloaded, match="too many questions"):
        await following.follow({**CREATED, "taskId": "t2"}, eve, server.ask)
    await asyncio.wait_for(server.cancelled.wait(), 60)
    assert server.asked[-1] == ("tasks/cancel", {"taskId": "t2"})
    await following.close()


async def test_principal_has_half_of_the_tasks_with_open_questions() -> None:
    server, following = Server(ASKS), UpstreamTasks("s", replace(QUICK, max_suspended=4))
    ann, bob = (structs.replace(a_call(), principal=Principal("key", id)) for id in ("a", "b"))
    for _ in range(2):
        await following.follow(CREATED, ann, server.ask)
    with pytest.raises(Overloaded, match="2 of your tasks"):
        await following.follow({**CREATED, "taskId": "t2"}, ann, server.ask)
    await asyncio.wait_for(server.cancelled.wait(), 60)
    assert server.asked[-1] == ("tasks/cancel", {"taskId": "t2"})
    assert (await following.follow(CREATED, bob, server.ask)).questions
    await following.close()


async def test_unknown_question_kind_is_a_bad_reply_and_cancels_the_task() -> None:
    server = Server({**ASKS, "inputRequests": {"a": {"method": "x/y"}}})
    with pytest.raises(BadReply, match='"x/y"'):
        await UpstreamTasks("s", QUICK).follow(CREATED, a_call(), server.ask)
    await asyncio.wait_for(server.cancelled.wait(), 60)


# --- the form of 2025-11-25


async def test_legacy_form_waits_for_the_result_and_polls_status() -> None:
    told: list[Update] = []
    server = Server({"status": "working", "statusMessage": "half"})

    def hear(update: Update) -> None:
        told.append(update)
        if isinstance(update, Progress):
            meta = {"io.modelcontextprotocol/related-task": {"taskId": "t1"}}
            server.result.set_result({"content": ["done"], "_meta": meta})

    value, size = await UpstreamTasks("s", QUICK).wait_result(
        OLD, hear, server.ask, is_watched=True
    )
    assert (value, size) == ({"content": ["done"], "_meta": {}}, 7)
    assert told == [TaskStarted(), Progress(progress=1, message="half")]
    assert "tasks/cancel" not in server.methods()


async def test_legacy_status_is_not_polled_without_interest() -> None:
    server = Server()
    server.result.set_result({"content": []})
    await UpstreamTasks("s", QUICK).wait_result(
        OLD, lambda update: None, server.ask, is_watched=False
    )
    assert server.methods() == ["tasks/result"]


async def test_tool_error_is_distinguished_from_a_lost_task() -> None:
    native = {"code": -32000, "message": "no"}
    server = Server({"status": "failed"})
    server.result.set_exception(WorkFailed("no", native))
    with pytest.raises(WorkFailed) as failed:
        await UpstreamTasks("s", QUICK).wait_result(
            OLD, lambda update: None, server.ask, is_watched=False
        )
    assert failed.value.native == native
    server = Server(WorkFailed("unknown", {"code": -32602, "message": "unknown"}))
    server.result.set_exception(WorkFailed("unknown", {"code": -32602, "message": "unknown"}))
    with pytest.raises(WorkFailed, match="no longer knows"):
        await UpstreamTasks("s", QUICK).wait_result(
            OLD, lambda update: None, server.ask, is_watched=False
        )


async def test_not_waiting_server_is_polled_again() -> None:
    server = Server({"status": "working"}, {"status": "working"})
    server.result.set_exception(WorkFailed("not yet", {"code": -32602, "message": "not yet"}))

    async def ask(method: str, params: dict[str, Any], timeout: float) -> tuple[Any, int]:
        if method == "tasks/result" and server.methods().count(method) == 2:
            return {"content": ["done"]}, 7
        return await server.ask(method, params, timeout)

    value, _ = await UpstreamTasks("s", QUICK).wait_result(
        OLD, lambda update: None, ask, is_watched=False
    )
    assert value == {"content": ["done"]}


async def test_disconnect_cancels_the_legacy_task() -> None:
    server = Server({"status": "working"})
    outcome = UpstreamTasks("s", QUICK).wait_result(
        OLD, lambda update: None, server.ask, is_watched=True
    )
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await outcome
    await asyncio.wait_for(server.cancelled.wait(), 60)


# --- which calls


@pytest.mark.parametrize(
    ("support", "asked", "wanted"),
    [
        ("required", False, True),
        ("required", True, True),
        ("optional", False, False),
        ("optional", True, True),
        ("forbidden", True, False),
        (None, True, False),
        (7, True, False),
    ],
)
def test_legacy_task_is_requested_where_required_or_wanted(
    support: Any, asked: bool, wanted: bool
) -> None:
    features: dict[str, Any] = {"tasks": {"requests": {"tools": {"call": {}}}}}
    call = a_call(wanted_updates=WantedUpdates(task_start=asked))
    definition = {"execution": {"taskSupport": support}}
    call = structs.replace(call, tool=replace(call.tool, definition=definition))
    assert wants_task(features, call) is wanted
    assert not wants_task({"tasks": {}}, call)
    odd = structs.replace(call, tool=replace(call.tool, definition={"execution": "x"}))
    assert not wants_task(features, odd)


def test_both_task_forms_are_recognized() -> None:
    assert is_task(CREATED) and is_task(OLD)
    other: Any
    for other in (None, [], {"content": []}, {"task": "x"}, {"task": {"taskId": 7}}):
        assert not is_task(other)
    assert remote_tasks.makes_tasks({"tasks": {}})
    assert remote_tasks.makes_tasks({"extensions": {TASKS: {}}})
    assert not remote_tasks.makes_tasks({"extensions": {}, "tools": {}})
