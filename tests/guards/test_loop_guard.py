"""The loop guard: patterns that are refused, ordinary sequences that are not, and what a run is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count, cycle, islice
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.call import ABSENT, Artifact, Call, MessageOrigin, Question, Result
from dragoman.core.call_chains import CallChains
from dragoman.core.errors import (
    AuthorizationError,
    InvalidInput,
    NotFound,
    Repeating,
    TimedOut,
    Unreachable,
    WorkFailed,
)
from dragoman.core.pipeline import build_pipeline
from dragoman.core.principal import OWNER, Principal
from dragoman.core.tool import (
    EXTERNAL,
    RESOURCE,
    TargetFacts,
    TargetTraits,
    Tool,
    build_unknown_tool,
)
from dragoman.core.trace import Trace, TraceContext
from dragoman.guards import loop
from dragoman.guards.config import LoopSettings
from dragoman.guards.loop import LoopGuard

pytestmark = pytest.mark.promise("P4")

READS = {"readOnlyHint": True}
POLLED = {"readOnlyHint": True, "idempotentHint": True}
Outcome = Result | Exception


class ScriptedTarget:
    name = "t"

    def __init__(self, trust: int = 2) -> None:
        self.traits = TargetTraits(facts=TargetFacts(type="Server", trust=trust))

    async def run(self, call: Call) -> Result:
        raise AssertionError("the pipeline ends before it")


TARGET = ScriptedTarget()
PARENT = SimpleNamespace(trace=Trace("1" * 32, (), "2" * 16), labels=frozenset())
"""A running call on whose behalf an agent calls."""


def text(words: str, failed: bool = False) -> Result:
    return Result(content=[{"type": "text", "text": words}], failed=failed)


FAILURE = text("no such file", failed=True)


def make_tool(name: str, hints: Mapping[str, Any] | None = None, trust: int = 2) -> Tool:
    definition = {"annotations": hints} if hints is not None else {}
    target = TARGET if trust == 2 else ScriptedTarget(trust)
    return Tool(
        name=f"t.{name}", alias=name, remote_name=name, definition=definition, target=target
    )


class Rig:
    """A guard with a clock that a test sets, in front of outcomes that a test scripts."""

    def __init__(self, **settings: Any) -> None:
        self.now = 100.0
        self.guard = LoopGuard(LoopSettings(**settings), clock=lambda: self.now)
        self.outcome: Outcome = Result()
        self.made = 0
        self.run = build_pipeline([self.guard], self._end)

    async def _end(self, call: Call) -> Result:
        self.made += 1
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    async def call(
        self,
        tool: str | Tool = "a",
        outcome: Outcome | str = FAILURE,
        *,
        who: Principal = OWNER,
        after: float = 2.0,
        **how: Any,
    ) -> Result:
        """Calls in a client's session, unless `how` says otherwise."""
        self.now += after
        self.outcome = text(outcome) if isinstance(outcome, str) else outcome
        tool = make_tool(tool) if isinstance(tool, str) else tool
        call = Call(
            principal=who,
            tool=tool,
            requested_name=tool.name,
            arguments=how.pop("arguments", {}),
            trace=how.pop("trace", Trace("0" * 32)),
            door="mcp-http",
            client=how.pop("client", "s1"),
            **how,
        )
        return await self.run(call)

    async def nested(self, tool: str | Tool, outcome: Outcome | str, **how: Any) -> Result:
        """Calls as an agent does that serves a call."""
        trace = Trace("1" * 32, ("agent.message",), "3" * 16, "t", "", PARENT)
        return await self.call(tool, outcome, trace=trace, **how)


def warning_in(result: Result) -> str:
    last = str(result.content[-1]["text"]) if result.content else ""
    return last if last.startswith("[loop guard: ") else ""


# --- the six patterns ---------------------------------------------------------------------------


async def test_identical_failing_calls_warn_at_three_and_are_refused_at_five() -> None:
    rig = Rig()
    warnings = [warning_in(await rig.call("read", arguments={"path": "x"})) for _ in range(4)]
    assert warnings[:2] == ["", ""]
    assert warnings[2] == (
        '[loop guard: "t.read" was called 3 times in a row with the same arguments and failed in '
        "the same way, and is refused as number 5. Change the arguments, use another tool, or "
        "report what prevents progress.]"
    )
    assert "4 times" in warnings[3]
    with pytest.raises(Repeating) as refused:
        await rig.call("read", arguments={"path": "x"})
    assert str(refused.value) == (
        '"t.read" was refused: it was called 4 times in a row with the same arguments and failed '
        "in the same way. Change the arguments, use another tool, or report what prevents "
        "progress. It is accepted again after a different call or a pause of 10 s; if it is meant "
        "to be called repeatedly, add it to [limits.loop] polling"
    )
    assert rig.made == 4
    await rig.call("read", arguments={"path": "y"})
    await rig.call("read", arguments={"path": "x"})
    assert rig.made == 6


async def test_identical_successful_calls_of_an_agent_are_refused_at_five() -> None:
    rig = Rig()
    results = [await rig.nested("status", "clean") for _ in range(4)]
    assert [bool(warning_in(one)) for one in results] == [False, False, True, True]
    assert "and returned the same result" in warning_in(results[2])
    with pytest.raises(Repeating, match=r"called 4 times in a row .* returned the same result"):
        await rig.nested("status", "clean")


@pytest.mark.parametrize(("period", "names"), [(2, "ab"), (3, "abc")])
async def test_cycle_warns_after_three_rounds_and_is_refused(period: int, names: str) -> None:
    rig = Rig()
    results = [await rig.nested(name, name) for name in names * 3]
    assert [bool(warning_in(one)) for one in results] == [False] * (3 * period - 1) + [True]
    assert f"a cycle of {period} calls that was repeated 3 times" in warning_in(results[-1])
    with pytest.raises(Repeating, match=f"a cycle of {period} calls"):
        await rig.nested("a", "a")
    assert rig.made == 3 * period
    await rig.nested("other", "o")
    await rig.nested("a", "a")


async def test_cycle_of_a_client_is_refused_if_one_of_its_calls_fails() -> None:
    """Read the file, edit it in vain, read it again: the loop of a model that edits by text."""
    rig = Rig()
    with pytest.raises(Repeating, match="cycle of 2 calls"):
        for name in "xyxyxyxyxy":
            await rig.call(name, FAILURE if name == "y" else "contents")
    assert rig.made <= 8
    rig = Rig()
    for name in "xy" * 10:
        await rig.call(name, "contents")


async def test_identical_results_with_changing_arguments_are_refused_after_thirty() -> None:
    rig, search = Rig(), make_tool("search", READS)
    warned = [
        number
        for number in range(31)
        if warning_in(await rig.nested(search, "nothing found", arguments={"query": number}))
    ]
    assert warned == list(range(20, 31))
    with pytest.raises(Repeating, match="one of 30 calls in a row that brought no new result"):
        await rig.nested(search, "nothing found", arguments={"query": 31})
    await rig.nested("other", "something new")
    await rig.nested(search, "nothing found", arguments={"query": 32})


async def test_changing_argument_with_the_same_failure_is_refused() -> None:
    rig, ids = Rig(), count(1_000_000)
    with pytest.raises(Repeating, match="30 calls in a row that brought no new result"):
        for number in range(40):
            failure = WorkFailed(f"request {next(ids)} failed: out of memory")
            await _ignore(rig.call("run", failure, arguments={"nonce": number}), WorkFailed)
    assert rig.made == 31


async def test_thirty_calls_without_progress_are_refused_whatever_their_order() -> None:
    rig = Rig(cycles=20)
    order = "abcdefgfedcbaacegbdfabcdgfe" * 3
    with pytest.raises(Repeating, match="no new result"):
        for name in order:
            await rig.nested(name, name)
    assert rig.made == 7 + 30


async def _ignore(work: Any, kind: type[Exception]) -> None:
    try:
        await work
    except kind as error:
        if isinstance(error, Repeating):
            raise


# --- what counts as a repetition ----------------------------------------------------------------


async def test_errors_of_targets_and_invalid_arguments_count_and_carry_the_warning() -> None:
    for make in (
        lambda: TimedOut('"t.a" took longer than 60 s'),
        lambda: InvalidInput('"path" is missing'),
        lambda: WorkFailed("failed", {"code": -32000, "message": "failed"}),
    ):
        rig, raised = Rig(), []
        for _ in range(4):
            with pytest.raises((TimedOut, InvalidInput, WorkFailed)) as caught:
                await rig.call(outcome=make())
            raised.append(caught.value)
        assert "[loop guard: " not in str(raised[1])
        assert "[loop guard: " in str(raised[2]) and "3 times" in str(raised[2])
        if isinstance(raised[2], WorkFailed):
            assert raised[2].native is not None and "[loop guard: " in raised[2].native["message"]
        with pytest.raises(Repeating):
            await rig.call(outcome=make())


@pytest.mark.parametrize("refusal", [AuthorizationError("no policy"), NotFound("there is no tool")])
async def test_calls_that_something_else_refuses_do_not_count(refusal: Exception) -> None:
    rig = Rig(clients="all")
    for _ in range(20):
        with pytest.raises(type(refusal)):
            await rig.call(outcome=refusal)
    assert not rig.guard._runs


async def test_order_of_arguments_and_ids_in_a_failure_do_not_matter() -> None:
    rig = Rig()
    with pytest.raises(Repeating):
        for number in range(5):
            pair = [("x", 1), ("y", 2)]
            failed = text(f"failed (request 8f3ac2d{number}1e, at 17000000{number}0)", failed=True)
            await rig.call("a", failed, arguments=dict(pair if number % 2 else pair[::-1]))
    assert rig.made == 4


async def test_changed_result_is_progress_but_an_alternating_one_is_not() -> None:
    rig = Rig()
    for number in range(200):
        await rig.nested("status", f"{number} %")
    rig = Rig()
    for words in ("queued", "queued", "queued", "running", "running", "running", "running"):
        await rig.nested("status", words)
    with pytest.raises(Repeating, match="was called 4 times in a row"):
        await rig.nested("status", "running")
    rig = Rig()
    with pytest.raises(Repeating, match="no new result"):
        for number in range(40):
            await rig.nested("status", ("on", "off")[number % 2])
    assert rig.made == 32


async def test_pause_ends_a_repetition() -> None:
    rig = Rig()
    for _ in range(20):
        await rig.call(after=31)
    for _ in range(3):
        await rig.call()
    with pytest.raises(Repeating):
        await rig.call()
    for _ in range(4):
        await rig.call(after=31 * (rig.made == 23))
    with pytest.raises(Repeating):  # not only if it is made at once
        await rig.call(after=25)


async def test_refused_call_is_tried_once_more_after_a_pause() -> None:
    rig = Rig()
    for _ in range(4):
        await rig.call()
    for pause in (2, 7):
        with pytest.raises(Repeating):
            await rig.call(after=pause)
    await rig.call(after=2)
    with pytest.raises(Repeating, match="called 5 times"):
        await rig.call()
    assert not warning_in(await rig.call(outcome="done", after=11))
    await rig.call()


async def test_lost_connection_counts_for_agents_only() -> None:
    """A client that tries again until its server has restarted must not be delayed."""
    rig = Rig()
    for _ in range(20):
        with pytest.raises(Unreachable):
            await rig.call(outcome=Unreachable("not connected"))
    await rig.call(outcome="back")
    for _ in range(4):
        with pytest.raises(Unreachable):
            await rig.nested("a", Unreachable("not connected"))
    with pytest.raises(Repeating):
        await rig.nested("a", Unreachable("not connected"))


async def test_result_that_cannot_be_encoded_is_new() -> None:
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    rig = Rig()
    for _ in range(10):
        await rig.nested("a", Result(structured=list(deep)))


async def test_unknown_tools_and_resources_are_not_recorded() -> None:
    rig = Rig(clients="all")
    for tool in (build_unknown_tool("nothing"), replace_kind(make_tool("a"), RESOURCE)):
        for _ in range(10):
            await rig.call(tool)
    assert not rig.guard._runs


def replace_kind(tool: Tool, kind: str) -> Tool:
    return Tool(
        name=tool.name, alias=tool.alias, remote_name=tool.remote_name, kind=kind, target=TARGET
    )


async def test_questions_and_their_answers_are_no_repetition() -> None:
    rig = Rig(clients="all")
    asks = Result(questions={"q": Question("form", {})}, handle="h")
    for _ in range(10):
        await rig.call("form", asks)
        await rig.call("form", asks, handle="h", answers={})
    for _ in range(4):
        await rig.call()
    await rig.call(handle="h", answers={})


# --- polling ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "settings"),
    [
        (make_tool("status", POLLED), {}),
        (make_tool("status"), {"polling": ["t.status"]}),
        (make_tool("wait_for"), {"polling": ["*.wait*"]}),
    ],
)
async def test_polling_has_wider_bounds(tool: Tool, settings: dict[str, Any]) -> None:
    rig = Rig(**settings)
    warned = [bool(warning_in(await rig.nested(tool, "queued"))) for _ in range(119)]
    assert warned.index(True) == 71
    with pytest.raises(Repeating):
        await rig.nested(tool, "queued")
    rig = Rig(**settings)
    for _ in range(50):  # and in turn with another tool, as a wait between two looks
        await rig.nested(tool, "queued")
        await rig.nested("sleep", f"slept until {rig.now}")


async def test_annotations_of_an_external_target_do_not_widen_its_bounds() -> None:
    rig, tool = Rig(), make_tool("status", POLLED, trust=EXTERNAL)
    with pytest.raises(Repeating):
        for _ in range(5):
            await rig.nested(tool, "queued")


# --- runs ---------------------------------------------------------------------------------------


BOB = Principal("key", "bob")
SENT = Trace("5" * 32, is_sent=True)
RUNS: dict[str, Callable[[int], dict[str, Any]]] = {
    "session": lambda number: {"client": f"s{number}"},
    "A2A context": lambda number: {"client": "", "message": MessageOrigin(context=f"c{number}")},
    "trace of the client": lambda number: {
        "client": "",
        "trace": replace(SENT, id=f"{number:032x}"),
    },
    "call of an agent": lambda number: {
        "trace": Trace(
            "1" * 32,
            ("agent.message",),
            "3" * 16,
            "t",
            "",
            SimpleNamespace(trace=Trace("1" * 32, (), f"{number:016x}")),
        )
    },
    "principal": lambda number: {"who": Principal("key", f"k{number}")},
}


@pytest.mark.parametrize("make", RUNS.values(), ids=RUNS.keys())
async def test_runs_that_look_alike_do_not_affect_each_other(
    make: Callable[[int], dict[str, Any]],
) -> None:
    rig = Rig()
    for _ in range(4):
        for number in range(1, 6):
            await rig.call("a", **make(number))
    for number in range(1, 6):
        with pytest.raises(Repeating):
            await rig.call("a", **make(number))


async def test_call_without_a_run_is_never_refused() -> None:
    rig = Rig(clients="all")
    for _ in range(50):
        await rig.call(client="")
    assert not rig.guard._runs


def test_trace_counts_as_sent_only_if_the_client_sent_its_id() -> None:
    chains = CallChains(b"k" * 32)
    carried = TraceContext("4f" * 16, "1" * 16, "")
    assert chains.start_trace(OWNER, "t.a", "t", carried).is_sent
    assert not chains.start_trace(OWNER, "t.a", "t", None).is_sent
    assert not chains.start_trace(OWNER, "t.a", "t", TraceContext("", "", "")).is_sent


async def test_runs_are_bounded_per_principal_and_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "MAX_RUNS", 20)
    rig = Rig()
    for _ in range(4):
        await rig.call("a", who=BOB, after=0.01)
    for number in range(500):
        await rig.call("a", client=f"s{number}", after=0.01)
    assert sum(map(len, rig.guard._runs.values())) == 21
    with pytest.raises(Repeating):  # the flood has not displaced another's run
        await rig.call("a", who=BOB, after=0.01)
    await rig.call("a", client="late", after=31)
    assert sum(map(len, rig.guard._runs.values())) == 1


async def test_success_of_a_client_keeps_no_history() -> None:
    rig = Rig()
    for _ in range(1_000):
        await rig.call(outcome="ok", after=0.001)
    assert not rig.guard._runs
    await rig.call()
    for _ in range(loop.FORGIVEN):
        await rig.call(outcome="ok")
    assert not rig.guard._runs


# --- modes --------------------------------------------------------------------------------------


async def test_mode_warn_never_refuses_and_off_does_nothing() -> None:
    rig = Rig(mode="warn")
    results = [await rig.call() for _ in range(40)]
    assert "40 times" in warning_in(results[-1]) and "refused" not in warning_in(results[-1])
    rig = Rig(mode="off")
    assert not any([warning_in(await rig.call()) for _ in range(40)])


async def test_changed_settings_apply_at_once() -> None:
    rig = Rig()
    for _ in range(4):
        await rig.call()
    rig.guard.apply(LoopSettings())  # as before: another setting was changed
    with pytest.raises(Repeating):
        await rig.call()
    rig.guard.apply(LoopSettings(refuse=7))
    for _ in range(6):
        await rig.call()
    with pytest.raises(Repeating):
        await rig.call()


async def test_warning_is_added_to_every_form_of_a_result() -> None:
    rig = Rig()
    structured = Result(structured={"x": 1}, size=9)
    made = Result(
        content=[{"type": "text", "text": "done"}],
        artifacts=[Artifact(id="1", content=[{"type": "text", "text": "done"}])],
    )
    for result in (structured, made):
        for _ in range(2):
            await rig.nested("a", result, arguments={"form": repr(result.structured)})
        warned = await rig.nested("a", result, arguments={"form": repr(result.structured)})
        assert warning_in(warned) and warned.size == -1
        assert warned.structured == result.structured
        if result.structured is not ABSENT:
            assert warned.content[0]["text"] == '{"x":1}'
        else:
            assert warned.artifacts[-1].content == [warned.content[-1]]


# --- ordinary use, under the shipped defaults ---------------------------------------------------

Step = tuple[str, str | Result]


def steps(*given: Step, times: int = 1) -> list[Step]:
    return list(given) * times


def numbered(tool: str, words: str, times: int, failed: bool = False) -> list[Step]:
    return [(tool, text(words.format(number), failed)) for number in range(times)]


BENIGN: dict[str, tuple[Iterable[Step], float]] = {
    "a status that does not change": (steps(("git_status", "clean"), times=40), 3),
    "status between edits": (
        [s for n in range(30) for s in (("edit", f"edited {n}"), ("git_status", f"M {n}"))],
        3,
    ),
    "status between edits by the IDE": (numbered("git_status", "M {}", 30), 10),
    "reads of one file": (steps(("read", "contents"), times=60), 5),
    "a key pressed many times": (steps(("press_tab", "ok"), times=30), 1),
    "two keys in turn": (steps(("press_down", "ok"), ("press_enter", "ok"), times=20), 1),
    "scrolling": (steps(("scroll", "done"), times=50), 1),
    "a slide show": (steps(("next", "ok"), ("wait", "ok"), ("shot", "ok"), times=20), 2),
    "writes of many files": (numbered("write", "ok", 100), 1),
    "searches without a hit": (numbered("search", "nothing found", 60), 3),
    "paths that do not exist": (numbered("read", "no such file: {}", 25, failed=True), 2),
    "waiting for CI": (steps(("ci_status", "in progress"), times=80), 8),
    "waiting for CI that ends": (
        [*steps(("ci", "queued"), times=9), *steps(("ci", "running"), times=9), ("ci", "green")],
        8,
    ),
    "progress of a build": (numbered("build_status", "{} of 100", 60), 2),
    "a server that starts": (
        [*steps(("navigate", text("connection refused", True)), times=3), ("navigate", "page")],
        3,
    ),
    "tests that fail in fewer places": (
        [s for n in range(15) for s in steps(("test", text(f"{20 - n} failed", True)))],
        20,
    ),
    "tests that fail as before, with edits by the IDE": (
        steps(("test", text("2 failed", True)), times=10),
        40,
    ),
    "test and fix through the hub": (
        [s for n in range(12) for s in (("test", text("2 failed", True)), ("edit", f"edited {n}"))],
        5,
    ),
    "a failure now and then": (
        [s for n in range(20) for s in (("call", text("busy", True)), *numbered("x", "{}", 4))],
        2,
    ),
    "a retry, then another way": (
        [*steps(("fetch", text("403", True)), times=3), ("search", "found"), ("fetch", "page")],
        3,
    ),
    "a monitor that reads every minute": (steps(("health", text("down", True)), times=60), 60),
    "a random number": (numbered("random", "0.{}", 200), 0.1),
    "the time": (numbered("time", "12:{}", 200), 1),
    "a benchmark": (steps(("echo", "hello"), times=500), 0.001),
    "a conversation that says go on": (numbered("agent", "step {}", 40), 5),
    "pages of a list": (numbered("list", "page {}", 60), 1),
    "list, read, list, read": (
        [s for n in range(20) for s in (("list", "a b c"), ("read", f"text {n}"))],
        2,
    ),
    "one question to many rows": (numbered("insert", "1 row", 100), 0.5),
    "undo many times": (steps(("undo", "undone"), times=30), 1),
    "a poll with a pause": (steps(("poll", text("not ready", True)), times=50), 35),
    "validation, corrected step by step": (numbered("create", "field {} is missing", 10, True), 4),
    "a form filled in": (
        [s for n in range(15) for s in (("type", "ok"), ("press_tab", "ok"))],
        1,
    ),
}
CHANGING = {"writes of many files", "searches without a hit", "one question to many rows"}


@pytest.mark.parametrize("name", BENIGN)
async def test_ordinary_use_is_not_refused(name: str) -> None:
    sequence, pace = BENIGN[name]
    rig = Rig()
    warned = 0
    for number, (tool, outcome) in enumerate(sequence):
        arguments = {"number": number} if name in CHANGING else {}
        warned += bool(warning_in(await rig.call(tool, outcome, after=pace, arguments=arguments)))
    assert warned <= 1, "and is hardly ever warned about"


def test_benign_set_has_thirty_sequences() -> None:
    assert len(BENIGN) >= 30


@pytest.mark.parametrize("names", ["ab", "abcd", "abacabad"])
async def test_ordinary_work_of_an_agent_is_not_refused(names: str) -> None:
    rig = Rig()
    for number, name in enumerate(islice(cycle(names), 60)):
        await rig.nested(name, f"result {number}")
        await rig.nested("write", "ok", arguments={"number": number})
