"""Where a call belongs and when its chain has gone far enough, without anything around it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dragoman.core import call_chains as module
from dragoman.core.call import Call, Result
from dragoman.core.call_chains import CallChains, RunningCall
from dragoman.core.errors import Looping, Refused
from dragoman.core.holders import find_person
from dragoman.core.principal import LOCAL, Principal
from dragoman.core.tool import DEFAULT_TRAITS, Tool
from dragoman.core.trace import CHAIN, PARENT, STATE, Trace, TraceContext, new_trace, parse_trace

KEY = bytes(range(32))
ANN = Principal("key", "ann")
BOB = Principal("key", "bob")


class FakeTarget:
    traits = DEFAULT_TRAITS

    def __init__(self, name: str) -> None:
        self.name = name

    async def run(self, call: Call) -> Result:
        raise NotImplementedError


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


class ChainStage:
    """The pipeline stage that tracks chains: a call from its start to its end."""

    def __init__(self, **limits: Any) -> None:
        self.clock = Clock()
        self.chains = CallChains(KEY, clock=self.clock, **limits)

    def begin(
        self, caller: Principal, target: str, carried: TraceContext | None = None, **more: Any
    ) -> RunningCall:
        tool = Tool(
            name=f"{target}.run", alias=target, remote_name="run", target=FakeTarget(target)
        )
        trace = self.chains.start_trace(caller, tool.name, target, carried, **more)
        call = Call(
            principal=caller, tool=tool, requested_name=tool.name,
            arguments={}, trace=trace, door="test",
        )  # fmt: skip
        return self.chains.enter(call)

    def end(self, *flights: RunningCall) -> None:
        for flight in flights:
            self.chains.leave(flight)


def of(name: str) -> Principal:
    """The principal with the credential of that target."""
    return Principal("key", f"{name}-key", serves=name)


def returned_trace(flight: RunningCall, *left_out: str) -> TraceContext:
    """The trace that the target of a call received, as it returns it."""
    beside = {
        name: text for name, text in flight.trace.build_context().items() if name not in left_out
    }
    carried = parse_trace({}, beside)
    assert carried is not None
    return carried


def refused(
    stage: ChainStage, caller: Principal, target: str, carried: TraceContext | None = None
) -> str:
    with pytest.raises(Refused) as caught:
        stage.begin(caller, target, carried)
    return f"{type(caught.value).__name__}: {caught.value}"


# --- by what is brought ---------------------------------------------------------------------------


@pytest.mark.promise("Q6")
def test_call_without_a_trace_starts_one() -> None:
    stage = ChainStage()
    first, second = stage.begin(ANN, "a"), stage.begin(ANN, "b")
    assert first.trace.id != second.trace.id and first.chain is not second.chain
    assert first.trace.depth == 0 and first.trace.origin == "" and first.chain.origin == "key:ann"


@pytest.mark.promise("Q6")
@pytest.mark.parametrize("left_out", [(), (PARENT, STATE), (PARENT, CHAIN), (CHAIN, STATE)])
def test_each_trace_form_identifies_the_chain(left_out: tuple[str, ...]) -> None:
    stage = ChainStage()
    first = stage.begin(ANN, "a")
    carried = first.trace.build_context()
    if PARENT in left_out and CHAIN in left_out:  # a tracing library has put in its own span
        carried[PARENT] = f"00-{first.trace.id}-{'ab' * 8}-01"
        left_out = (CHAIN,)
    brought = parse_trace({}, {name: carried[name] for name in carried if name not in left_out})
    second = stage.begin(LOCAL, "b", brought)
    assert second.parent is first and second.chain is first.chain
    assert second.trace.id == first.trace.id and second.trace.chain == ("a.run",)
    assert second.trace.origin == "key:ann"


@pytest.mark.promise("Q6")
def test_foreign_trace_is_kept_with_its_state() -> None:
    stage = ChainStage()
    id = "4f" * 16
    brought = TraceContext(id, "ab" * 8, "v1.made.up", "rojo=00f067aa0ba902b7, congo=t61")
    flight = stage.begin(ANN, "a", brought)
    assert flight.trace.id == id and flight.parent is None and flight.trace.depth == 0
    own, rojo, congo = flight.trace.state.split(",")
    assert own.endswith(f"@dragoman={flight.trace.span}")
    assert (rojo, congo) == ("rojo=00f067aa0ba902b7", "congo=t61")
    again = stage.begin(BOB, "b", TraceContext(id, "cd" * 8, "", flight.trace.state))
    assert again.parent is flight
    assert again.trace.state.split(",") == [own.replace(flight.trace.span, again.trace.span),
                                            rojo, congo]  # fmt: skip
    long = stage.begin(
        ANN, "c", TraceContext("5e" * 16, "ab" * 8, "", ",".join(["x=" + "y" * 98] * 5))
    )
    assert len(long.trace.state) <= 512 and long.trace.state.count("x=") == 4


@pytest.mark.promise("Q7")
def test_cycle_of_two_hubs_is_detected_by_the_first() -> None:
    here, there = ChainStage(), ChainStage()
    there.chains = CallChains(b"another key" * 3)
    first = here.begin(ANN, "other-hub")
    passed = there.begin(LOCAL, "this-hub", returned_trace(first))
    assert passed.parent is None and passed.trace.id == first.trace.id
    assert "other-hub" in refused(here, LOCAL, "other-hub", returned_trace(passed))


@pytest.mark.promise("Q7")
@pytest.mark.parametrize(
    "words",
    [
        "", "v1", "v1.", "v1..", "v2.e30.e30", "v1.e30.", "v1.é.é", "v1.!!!!.00", "-1", "5", "1e9",
        "v1." + "A" * 4_000 + "." + "0" * 32, "\0", "v1.W10=.d41d8cd98f00b204e9800998ecf8427e",
    ],
)  # fmt: skip
def test_unsigned_chain_state_is_ignored(words: str) -> None:
    stage = ChainStage()
    flight = stage.begin(ANN, "a", TraceContext("4f" * 16, "ab" * 8, words))
    assert flight.parent is None and flight.trace.depth == 0


@pytest.mark.promise("Q7")
def test_modified_chain_state_is_ignored() -> None:
    stage = ChainStage()
    first = stage.begin(ANN, "a")
    words = first.trace.build_context()[CHAIN]
    stage.end(first)
    assert stage.begin(BOB, "b", TraceContext("", "", words)).chain.id == first.chain.id
    said, _, mac = words.rpartition(".")
    other = CallChains(b"another key" * 3)
    for forged in (
        f"{said.replace('.1.', '.0.', 1)}.{mac}",
        f"{said}.{mac[::-1]}",
        f"{said}.{mac[:-1]}",
        f"{said}.",
        said,
        other._sign(first.trace),
    ):
        assert forged != words
        assert stage.begin(BOB, "b", TraceContext("", "", forged)).parent is None


# --- by the credential ----------------------------------------------------------------------------


@pytest.mark.promise("Q7")
def test_credential_identifies_a_missing_or_foreign_trace() -> None:
    stage = ChainStage()
    first, other = stage.begin(ANN, "a"), stage.begin(BOB, "x")
    lies = (None, TraceContext("4f" * 16, "ab" * 8, "v1.made.up"), returned_trace(other))
    for lie in lies:
        second = stage.begin(of("a"), "b", lie)
        assert second.parent is first and second.trace.chain == ("a.run",)
        stage.end(second)
        assert refused(stage, of("a"), "a", lie).startswith("Looping: ")
    assert other.chain.calls == 1


@pytest.mark.promise("Q7")
def test_credential_of_an_idle_target_identifies_no_chain() -> None:
    stage = ChainStage()
    first = stage.begin(ANN, "a")
    words = returned_trace(first)
    stage.end(first)
    assert stage.begin(of("a"), "b").parent is None
    # Unless it says itself that it goes on with something that is over.
    late = stage.begin(of("a"), "a", words)
    assert late.chain.id == first.chain.id and late.trace.chain == ("a.run",)


@pytest.mark.promise("Q7")
def test_named_call_is_chosen_among_those_a_target_serves() -> None:
    stage = ChainStage()
    flights = [stage.begin(caller, "a") for caller in (ANN, BOB, LOCAL)]
    for flight in flights:
        assert stage.begin(of("a"), "b", returned_trace(flight)).parent is flight


@pytest.mark.promise("Q7")
def test_call_that_the_hub_makes_later_belongs_to_its_callers_though_the_target_serves_others() -> (
    None
):
    stage = ChainStage()
    agent = of("agent")
    served = stage.begin(ANN, "agent")
    with stage.chains.hold([(BOB, "api")], {}) as held:
        within = TraceContext(held.id, held.span, "")
        inner = stage.begin(agent, "git", within)
        assert inner.trace.origin == BOB.label
        assert inner.parent is not None and inner.parent.principal == BOB
        assert not inner.trace.is_ambiguous and find_person(inner) is None  # no credential of ANN
        stage.end(inner)
    stage.end(served)


def test_unnamed_parent_is_not_refused_for_another_chain() -> None:
    stage = ChainStage()
    ann, bob = stage.begin(ANN, "a"), stage.begin(BOB, "b")
    under_ann = stage.begin(of("a"), "b")
    assert under_ann.parent is ann
    # "b" serves ann's chain, in which "a" waits, and bob's, in which it does not.
    assert stage.begin(of("b"), "a").parent is bob


@pytest.mark.promise("Q7")
def test_cycle_does_not_consume_other_chains_budgets() -> None:
    stage = ChainStage()
    stage.begin(ANN, "a")
    bob = stage.begin(BOB, "b")
    calls = 0
    with pytest.raises(Looping):
        for _ in range(100):
            stage.begin(of("a"), "b")
            stage.begin(of("b"), "a")
            calls += 1
    assert calls <= 2 and bob.chain.calls <= 3
    tool = stage.begin(of("b"), "tool", returned_trace(bob))  # and bob's goes on
    assert tool.chain is bob.chain


@pytest.mark.promise("Q7")
def test_unnamed_concurrent_calls_are_spread_over_possible_parents() -> None:
    stage = ChainStage()
    served = [stage.begin(ANN, "a") for _ in range(100)]
    made = [stage.begin(of("a"), "b") for _ in range(100)]
    assert {id(one.parent) for one in made} == {id(one) for one in served}


# --- how far --------------------------------------------------------------------------------------


@pytest.mark.promise("Q7")
def test_depth_six_is_refused_with_the_chain() -> None:
    stage = ChainStage()
    flight = stage.begin(ANN, "t0")
    for number in range(1, 6):
        flight = stage.begin(LOCAL, f"t{number}", returned_trace(flight))
    assert flight.trace.depth == 5
    problem = refused(stage, LOCAL, "t6", returned_trace(flight))
    assert problem == (
        'TooDeep: "t6.run" was refused: it would be 6 calls deep and 5 are allowed ([limits] '
        "chain_depth): key:ann → t0.run → t1.run → t2.run → t3.run → t4.run → t5.run → t6.run"
    )


@pytest.mark.promise("Q7")
@pytest.mark.parametrize("depth", [0, 1, 5, 63])
def test_configured_depth_is_reached_and_not_exceeded(depth: int) -> None:
    stage = ChainStage(depth=depth, calls=1_000)
    flight = stage.begin(ANN, "t0")
    for number in range(depth):
        flight = stage.begin(LOCAL, f"t{number + 1}", returned_trace(flight))
    assert flight.trace.depth == depth
    problem = refused(stage, LOCAL, "last", returned_trace(flight))
    assert f"it would be {depth + 1} calls deep and {depth} are allowed" in problem


@pytest.mark.promise("Q7")
def test_depth_is_tracked_by_credential_alone() -> None:
    stage = ChainStage()
    stage.begin(ANN, "t0")
    for number in range(1, 6):
        stage.begin(of(f"t{number - 1}"), f"t{number}")
    assert refused(stage, of("t5"), "t6").startswith("TooDeep: ")


@pytest.mark.promise("Q7")
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_cycle_is_refused_where_it_closes(size: int) -> None:
    stage = ChainStage()
    flight = stage.begin(ANN, "t0")
    for number in range(1, size):
        flight = stage.begin(LOCAL, f"t{number}", returned_trace(flight))
    problem = refused(stage, LOCAL, "t0", returned_trace(flight))
    path = " → ".join(["key:ann", *(f"t{number}.run" for number in range(size)), "t0.run"])
    assert problem == (
        'Looping: "t0.run" was refused: "t0" is already at work in this chain and would wait for '
        f"itself: {path}"
    )


@pytest.mark.promise("Q7")
def test_chain_is_limited_to_sixty_four_calls() -> None:
    stage = ChainStage()
    first, other = stage.begin(ANN, "a"), stage.begin(BOB, "a")
    for number in range(63):
        stage.end(stage.begin(of("a"), f"t{number}", returned_trace(first)))
    assert "64 calls, which are all it may make ([limits] chain_calls)" in refused(
        stage, of("a"), "t", returned_trace(first)
    )
    # What names none is then the other's, and so is the rest of its budget.
    assert stage.begin(of("a"), "t").chain is other.chain
    assert stage.begin(of("a"), "t", returned_trace(other)).chain is other.chain


@pytest.mark.promise("Q7")
def test_expired_chain_makes_no_calls() -> None:
    stage = ChainStage(seconds=300)
    first = stage.begin(ANN, "a")
    stage.clock.now += 300
    second = stage.begin(LOCAL, "b", returned_trace(first))
    stage.clock.now += 0.5
    assert "began more than 300 s ago ([limits] chain_secs)" in refused(
        stage, LOCAL, "c", returned_trace(second)
    )
    stage.begin(ANN, "c")


@pytest.mark.promise("Q7")
def test_calls_without_a_trace_are_bounded_per_target() -> None:
    stage = ChainStage(at_once=8)
    mine = [stage.begin(LOCAL, "a") for _ in range(4)]
    problem = refused(stage, LOCAL, "a")
    assert problem == (
        'Overloaded: "a.run" was refused: 4 calls to "a" are running; try again shortly or raise '
        "[limits] target_calls"
    )
    for _ in range(4):
        stage.begin(ANN, "a")
    assert '8 calls to "a"' in refused(stage, BOB, "a")
    stage.begin(LOCAL, "b")
    stage.end(mine.pop())
    stage.begin(BOB, "a")
    assert len(stage.chains._at["a"]) == 8


def test_finished_chains_are_forgotten() -> None:
    stage = ChainStage()
    flights = [stage.begin(ANN, "a")]
    for number in range(5):
        flights.append(stage.begin(LOCAL, f"t{number}", returned_trace(flights[-1])))
    refused(stage, LOCAL, "t9", returned_trace(flights[-1]))
    stage.end(*reversed(flights))
    chains = stage.chains
    assert not chains._running and not chains._at and not chains._of


# --- beyond the calls -----------------------------------------------------------------------------


@pytest.mark.promise("Q7")
def test_work_after_the_response_still_counts() -> None:
    stage = ChainStage()
    flight = stage.begin(ANN, "a")
    for number in range(5):  # each answers at once, and calls the next one afterwards
        words = returned_trace(flight)
        stage.end(flight)
        flight = stage.begin(LOCAL, "ab"[number % 2], words)
    words = returned_trace(flight)
    stage.end(flight)
    assert flight.trace.depth == 5 and flight.chain.calls == 6
    assert refused(stage, LOCAL, "a", words).startswith("TooDeep: ")


@pytest.mark.promise("Q7")
def test_restarted_hub_accepts_its_chain_state() -> None:
    stage = ChainStage()
    first = stage.begin(ANN, "a")
    second = stage.begin(LOCAL, "b", returned_trace(first))
    words = returned_trace(second)
    after = ChainStage(calls=3)
    third = after.begin(LOCAL, "c", words)
    assert third.trace.id == first.trace.id and third.trace.chain == ("a.run", "b.run")
    assert third.chain.origin == "key:ann" and third.chain.calls == 3
    assert "its chain has made 3 calls" in refused(after, LOCAL, "d", words)


@pytest.mark.promise("Q7")
def test_chain_deadline_counts_downtime(monkeypatch: Any) -> None:
    stage = ChainStage()
    words = returned_trace(stage.begin(ANN, "a"))
    wall = time.time()
    monkeypatch.setattr(module, "time", lambda: wall + 301.5)
    assert "[limits] chain_secs" in refused(ChainStage(), LOCAL, "b", words)
    # A clock that was put back makes a chain younger than it is, but never unborn.
    monkeypatch.setattr(module, "time", lambda: wall - 5_000)
    late = ChainStage()
    flight = late.begin(LOCAL, "b", words)
    assert flight.chain.begun == late.clock.now


def test_remembered_chains_are_bounded_and_counts_travel_in_the_state(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MAX_REMEMBERED", 10)
    stage = ChainStage(calls=3)
    first = stage.begin(ANN, "a")
    stage.end(stage.begin(LOCAL, "b", returned_trace(first)))
    words = returned_trace(first)
    stage.end(first)
    assert first.chain.id in stage.chains._over
    for _ in range(50):
        flight = stage.begin(BOB, "x")
        stage.end(stage.begin(LOCAL, "y", returned_trace(flight)))
        stage.end(flight)
    assert len(stage.chains._over) == 10 and first.chain.id not in stage.chains._over
    assert not stage.chains._live
    stage.end(stage.begin(LOCAL, "c", words))
    assert "its chain has made 3 calls" in refused(stage, LOCAL, "d", words)


def test_unused_chain_lives_only_in_its_state() -> None:
    stage = ChainStage()
    first = stage.begin(ANN, "a")
    first.sources = frozenset({"untrusted_agent"})
    words = returned_trace(first)
    stage.end(first)
    assert not stage.chains._over and not stage.chains._live
    late = stage.begin(LOCAL, "b", words)
    assert late.chain.id == first.chain.id and late.trace.labels == {"untrusted_agent"}
    assert stage.begin(LOCAL, "c", words).chain is late.chain, "from its first use on it is known"


def test_chain_state_is_short_for_any_names() -> None:
    stage = ChainStage(depth=63)
    flight = stage.begin(ANN, "é" * 5_000)
    for number in range(40):
        flight = stage.begin(
            LOCAL, f"{number}" + '"\0\n\ud800'[number % 4] * 3_000, returned_trace(flight)
        )
    text = flight.trace.build_context()[CHAIN]
    assert len(text) < 2_500 and text.isascii() and "\n" not in text
    stage.end(flight)
    assert stage.begin(LOCAL, "z", TraceContext("", "", text)).trace.depth == 41


# --- questions ------------------------------------------------------------------------------------


@pytest.mark.promise("Q6")
def test_continued_call_keeps_its_trace() -> None:
    stage = ChainStage()
    first = stage.begin(ANN, "a")
    handle = f"{first.trace.id}.sealed"
    assert stage.begin(ANN, "a", handle=handle).trace.id == first.trace.id
    # Also where an intermediary replaced the trace of its request.
    fresh = TraceContext("5e" * 16, "ab" * 8, "")
    assert stage.begin(ANN, "a", fresh, handle=handle).trace.id == first.trace.id
    for none in ("sealed", f"{'0' * 32}.x", f"{'g' * 32}.x", ""):
        assert stage.begin(ANN, "b", handle=none).trace.id not in ("0" * 32, first.trace.id)


# --- reading --------------------------------------------------------------------------------------

PARENTS = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def shapes() -> Iterator[tuple[dict[bytes, bytes], Any, TraceContext | None]]:
    id, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    other = "00-" + "5e" * 16 + "-" + "ab" * 8 + "-00"
    none = TraceContext("", "", "")
    yield {}, None, None
    yield {b"accept": b"*/*"}, {"progressToken": 1}, None
    yield {}, {STATE: "a=b"}, None
    yield {}, {PARENT: PARENTS}, TraceContext(id, span, "")
    yield {b"traceparent": PARENTS.encode()}, None, TraceContext(id, span, "")
    yield {b"traceparent": PARENTS.encode()}, {PARENT: other}, TraceContext("5e" * 16, "ab" * 8, "")
    hubs = {b"traceparent": PARENTS.encode(), b"x-dragoman-chain": b"v1.x.y"}
    yield hubs, {PARENT: other}, TraceContext(id, span, "v1.x.y")
    yield hubs, {PARENT: other, CHAIN: "v1.a.b"}, TraceContext("5e" * 16, "ab" * 8, "v1.a.b")
    yield {b"x-openstarry-trace-id": id.upper().encode()}, None, TraceContext(id, "", "")
    uuid = "4bf92f35-77b3-4da6-a3ce-929d0e0e4736"
    yield {}, {"X-OpenStarry-Trace-ID": uuid}, TraceContext(id, "", "")
    yield {}, {"X-OpenStarry-Trace-ID": "x", PARENT: PARENTS}, TraceContext(id, span, "")
    no_id, no_span = f"00-{'0' * 32}-{span}-01", f"00-{id}-{'0' * 16}-01"
    texts = ("", "x", PARENTS[:-1], f"{PARENTS}-x", PARENTS.upper(), f"ff{PARENTS[2:]}")
    for bad in (*texts, no_id, no_span, 5, None, ["x"], {"a": 1}):
        yield {}, {PARENT: bad}, none
    for bad in ("0" * 32, "x" * 32, 7, None, "a" * 1_000_000, [id]):
        yield {}, {"X-OpenStarry-Trace-ID": bad}, none
    yield {}, {CHAIN: "x" * 4_097}, none
    yield {}, {CHAIN: -1}, none
    yield {}, {PARENT: PARENTS, STATE: "a=b,c=d"}, TraceContext(id, span, "", "a=b,c=d")
    for bad in ("a=b\r\nx: y", "a=\0", "é=1", "a=" + "b" * 511, 5, ["a=b"]):
        yield {}, {PARENT: PARENTS, STATE: bad}, TraceContext(id, span, "")
    yield {b"traceparent": b"\xff\xfe"}, None, none


@pytest.mark.promise("Q6")
@pytest.mark.parametrize(("fields", "beside", "carried"), list(shapes()))
def test_trace_members_are_parsed_or_ignored(
    fields: dict[bytes, bytes], beside: Any, carried: TraceContext | None
) -> None:
    assert parse_trace(fields, beside) == carried


@pytest.mark.promise("Q6")
def test_outgoing_trace_is_equal_in_meta_and_headers() -> None:
    flight = ChainStage().begin(ANN, "a")
    beside, headers = flight.trace.build_context(), flight.trace.build_headers()
    assert list(beside.values()) == list(headers.values()) and len(headers) == 4
    fields = {name.encode(): value.encode() for name, value in headers.items()}
    assert parse_trace(fields) == parse_trace({}, json.loads(json.dumps(beside)))
    assert all(value.isascii() and value.isprintable() for value in headers.values())
    own = new_trace().build_headers()
    assert set(own) == {"x-openstarry-trace-id", "traceparent"}
    assert parse_trace({name.encode(): value.encode() for name, value in own.items()}) is not None
    assert Trace("4f" * 16).labels == frozenset()
