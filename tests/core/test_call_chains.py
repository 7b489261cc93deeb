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
from dragoman.core.principal import LOCAL, Principal
from dragoman.core.tool import DEFAULT_TRAITS, Tool
from dragoman.core.trace import CHAIN, PARENT, STATE, Trace, TraceContext, new_trace, parse_trace

KEY = bytes(range(32))
ANN = Principal("key", "ann")
BOB = Principal("key", "bob")


class Named:
    traits = DEFAULT_TRAITS

    def __init__(self, name: str) -> None:
        self.name = name

    async def run(self, call: Call) -> Result:
        raise NotImplementedError


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Road:
    """The part of the road that knows of chains: a call that is under way, until it is over."""

    def __init__(self, **limits: Any) -> None:
        self.clock = Clock()
        self.chains = CallChains(KEY, clock=self.clock, **limits)

    def begin(
        self, caller: Principal, target: str, carried: TraceContext | None = None, **more: Any
    ) -> RunningCall:
        tool = Tool(name=f"{target}.run", alias=target, remote_name="run", target=Named(target))
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
    """Who has the credential of that target."""
    return Principal("key", f"{name}-key", serves=name)


def told(flight: RunningCall, *left_out: str) -> TraceContext:
    """What the target of a call was told, as it brings it back."""
    beside = {
        name: text for name, text in flight.trace.build_context().items() if name not in left_out
    }
    carried = parse_trace({}, beside)
    assert carried is not None
    return carried


def refused(road: Road, caller: Principal, target: str, carried: TraceContext | None = None) -> str:
    with pytest.raises(Refused) as caught:
        road.begin(caller, target, carried)
    return f"{type(caught.value).__name__}: {caught.value}"


# --- by what is brought ---------------------------------------------------------------------------


@pytest.mark.promise("Q6")
def test_a_call_that_brings_nothing_begins_a_trace_of_its_own() -> None:
    road = Road()
    first, second = road.begin(ANN, "a"), road.begin(ANN, "b")
    assert first.trace.id != second.trace.id and first.chain is not second.chain
    assert first.trace.depth == 0 and first.trace.origin == "" and first.chain.origin == "key:ann"


@pytest.mark.promise("Q6")
@pytest.mark.parametrize("left_out", [(), (PARENT, STATE), (PARENT, CHAIN), (CHAIN, STATE)])
def test_each_of_the_forms_alone_tells_where_a_call_belongs(left_out: tuple[str, ...]) -> None:
    road = Road()
    first = road.begin(ANN, "a")
    carried = first.trace.build_context()
    if PARENT in left_out and CHAIN in left_out:  # a tracing library has put in its own span
        carried[PARENT] = f"00-{first.trace.id}-{'ab' * 8}-01"
        left_out = (CHAIN,)
    brought = parse_trace({}, {name: carried[name] for name in carried if name not in left_out})
    second = road.begin(LOCAL, "b", brought)
    assert second.parent is first and second.chain is first.chain
    assert second.trace.id == first.trace.id and second.trace.chain == ("a.run",)
    assert second.trace.origin == "key:ann"


@pytest.mark.promise("Q6")
def test_a_trace_of_somebody_else_is_kept_with_what_others_say_of_it() -> None:
    road = Road()
    id = "4f" * 16
    brought = TraceContext(id, "ab" * 8, "v1.made.up", "rojo=00f067aa0ba902b7, congo=t61")
    flight = road.begin(ANN, "a", brought)
    assert flight.trace.id == id and flight.parent is None and flight.trace.depth == 0
    own, rojo, congo = flight.trace.state.split(",")
    assert own.endswith(f"@dragoman={flight.trace.span}")
    assert (rojo, congo) == ("rojo=00f067aa0ba902b7", "congo=t61")
    again = road.begin(BOB, "b", TraceContext(id, "cd" * 8, "", flight.trace.state))
    assert again.parent is flight
    assert again.trace.state.split(",") == [own.replace(flight.trace.span, again.trace.span),
                                            rojo, congo]  # fmt: skip
    long = road.begin(
        ANN, "c", TraceContext("5e" * 16, "ab" * 8, "", ",".join(["x=" + "y" * 98] * 5))
    )
    assert len(long.trace.state) <= 512 and long.trace.state.count("x=") == 4


@pytest.mark.promise("Q7")
def test_a_ring_of_two_hubs_is_seen_by_the_first() -> None:
    here, there = Road(), Road()
    there.chains = CallChains(b"another key" * 3)
    first = here.begin(ANN, "other-hub")
    passed = there.begin(LOCAL, "this-hub", told(first))
    assert passed.parent is None and passed.trace.id == first.trace.id
    assert "other-hub" in refused(here, LOCAL, "other-hub", told(passed))


@pytest.mark.promise("Q7")
@pytest.mark.parametrize(
    "words",
    [
        "", "v1", "v1.", "v1..", "v2.e30.e30", "v1.e30.", "v1.é.é", "v1.!!!!.00", "-1", "5", "1e9",
        "v1." + "A" * 4_000 + "." + "0" * 32, "\0", "v1.W10=.d41d8cd98f00b204e9800998ecf8427e",
    ],
)  # fmt: skip
def test_words_that_this_hub_has_not_signed_say_nothing(words: str) -> None:
    road = Road()
    flight = road.begin(ANN, "a", TraceContext("4f" * 16, "ab" * 8, words))
    assert flight.parent is None and flight.trace.depth == 0


@pytest.mark.promise("Q7")
def test_signed_words_that_were_changed_say_nothing() -> None:
    road = Road()
    first = road.begin(ANN, "a")
    words = first.trace.build_context()[CHAIN]
    road.end(first)
    assert road.begin(BOB, "b", TraceContext("", "", words)).chain.id == first.chain.id
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
        assert road.begin(BOB, "b", TraceContext("", "", forged)).parent is None


# --- by the credential ----------------------------------------------------------------------------


@pytest.mark.promise("Q7")
def test_a_credential_tells_what_was_left_out_or_is_anothers() -> None:
    road = Road()
    first, other = road.begin(ANN, "a"), road.begin(BOB, "x")
    lies = (None, TraceContext("4f" * 16, "ab" * 8, "v1.made.up"), told(other))
    for lie in lies:
        second = road.begin(of("a"), "b", lie)
        assert second.parent is first and second.trace.chain == ("a.run",)
        road.end(second)
        assert refused(road, of("a"), "a", lie).startswith("Looping: ")
    assert other.chain.calls == 1


@pytest.mark.promise("Q7")
def test_a_credential_says_nothing_while_its_target_serves_nobody() -> None:
    road = Road()
    first = road.begin(ANN, "a")
    words = told(first)
    road.end(first)
    assert road.begin(of("a"), "b").parent is None
    # Unless it says itself that it goes on with something that is over.
    late = road.begin(of("a"), "a", words)
    assert late.chain.id == first.chain.id and late.trace.chain == ("a.run",)


@pytest.mark.promise("Q7")
def test_of_several_calls_that_a_target_serves_it_is_the_one_that_it_names() -> None:
    road = Road()
    flights = [road.begin(caller, "a") for caller in (ANN, BOB, LOCAL)]
    for flight in flights:
        assert road.begin(of("a"), "b", told(flight)).parent is flight


@pytest.mark.promise("Q7")
def test_a_target_that_names_none_is_not_refused_for_what_may_be_anothers() -> None:
    road = Road()
    ann, bob = road.begin(ANN, "a"), road.begin(BOB, "b")
    under_ann = road.begin(of("a"), "b")
    assert under_ann.parent is ann
    # "b" serves ann's chain, in which "a" waits, and bob's, in which it does not.
    assert road.begin(of("b"), "a").parent is bob


@pytest.mark.promise("Q7")
def test_a_ring_does_not_go_on_at_the_expense_of_others_that_its_targets_serve() -> None:
    road = Road()
    road.begin(ANN, "a")
    bob = road.begin(BOB, "b")
    calls = 0
    with pytest.raises(Looping):
        for _ in range(100):
            road.begin(of("a"), "b")
            road.begin(of("b"), "a")
            calls += 1
    assert calls <= 2 and bob.chain.calls <= 3
    tool = road.begin(of("b"), "tool", told(bob))  # and bob's goes on
    assert tool.chain is bob.chain


@pytest.mark.promise("Q7")
def test_calls_at_once_that_name_none_are_spread_over_those_that_they_may_be_for() -> None:
    road = Road()
    served = [road.begin(ANN, "a") for _ in range(100)]
    made = [road.begin(of("a"), "b") for _ in range(100)]
    assert {id(one.parent) for one in made} == {id(one) for one in served}


# --- how far --------------------------------------------------------------------------------------


@pytest.mark.promise("Q7")
def test_depth_five_is_done_and_six_is_refused_with_the_chain() -> None:
    road = Road()
    flight = road.begin(ANN, "t0")
    for number in range(1, 6):
        flight = road.begin(LOCAL, f"t{number}", told(flight))
    assert flight.trace.depth == 5
    problem = refused(road, LOCAL, "t6", told(flight))
    assert problem == (
        'TooDeep: "t6.run" was refused: it would be 6 calls deep and 5 are allowed ([limits] '
        "chain_depth): key:ann → t0.run → t1.run → t2.run → t3.run → t4.run → t5.run → t6.run"
    )


@pytest.mark.promise("Q7")
def test_depth_is_kept_by_the_credential_alone() -> None:
    road = Road()
    road.begin(ANN, "t0")
    for number in range(1, 6):
        road.begin(of(f"t{number - 1}"), f"t{number}")
    assert refused(road, of("t5"), "t6").startswith("TooDeep: ")


@pytest.mark.promise("Q7")
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_ring_ends_where_it_would_close(size: int) -> None:
    road = Road()
    flight = road.begin(ANN, "t0")
    for number in range(1, size):
        flight = road.begin(LOCAL, f"t{number}", told(flight))
    problem = refused(road, LOCAL, "t0", told(flight))
    path = " → ".join(["key:ann", *(f"t{number}.run" for number in range(size)), "t0.run"])
    assert problem == (
        'Looping: "t0.run" was refused: "t0" is already at work in this chain and would wait for '
        f"itself: {path}"
    )


@pytest.mark.promise("Q7")
def test_a_chain_makes_sixty_four_calls_and_others_go_on() -> None:
    road = Road()
    first, other = road.begin(ANN, "a"), road.begin(BOB, "a")
    for number in range(63):
        road.end(road.begin(of("a"), f"t{number}", told(first)))
    assert "64 calls, which are all it may make ([limits] chain_calls)" in refused(
        road, of("a"), "t", told(first)
    )
    # What names none is then the other's, and so is the rest of its budget.
    assert road.begin(of("a"), "t").chain is other.chain
    assert road.begin(of("a"), "t", told(other)).chain is other.chain


@pytest.mark.promise("Q7")
def test_a_chain_leads_to_nothing_more_after_its_time() -> None:
    road = Road(seconds=300)
    first = road.begin(ANN, "a")
    road.clock.now += 300
    second = road.begin(LOCAL, "b", told(first))
    road.clock.now += 0.5
    assert "began more than 300 s ago ([limits] chain_secs)" in refused(
        road, LOCAL, "c", told(second)
    )
    road.begin(ANN, "c")


@pytest.mark.promise("Q7")
def test_who_brings_nothing_is_bounded_by_what_a_target_serves() -> None:
    road = Road(at_once=8)
    mine = [road.begin(LOCAL, "a") for _ in range(4)]
    problem = refused(road, LOCAL, "a")
    assert problem == (
        'Overloaded: "a.run" was refused: 4 calls to "a" are running; try again shortly or raise '
        "[limits] target_calls"
    )
    for _ in range(4):
        road.begin(ANN, "a")
    assert '8 calls to "a"' in refused(road, BOB, "a")
    road.begin(LOCAL, "b")
    road.end(mine.pop())
    road.begin(BOB, "a")
    assert len(road.chains._at["a"]) == 8


def test_what_is_over_is_forgotten() -> None:
    road = Road()
    flights = [road.begin(ANN, "a")]
    for number in range(5):
        flights.append(road.begin(LOCAL, f"t{number}", told(flights[-1])))
    refused(road, LOCAL, "t9", told(flights[-1]))
    road.end(*reversed(flights))
    chains = road.chains
    assert not chains._running and not chains._at and not chains._of


# --- beyond the calls -----------------------------------------------------------------------------


@pytest.mark.promise("Q7")
def test_what_goes_on_after_its_call_was_answered_is_counted_all_the_same() -> None:
    road = Road()
    flight = road.begin(ANN, "a")
    for number in range(5):  # each answers at once, and calls the next one afterwards
        words = told(flight)
        road.end(flight)
        flight = road.begin(LOCAL, "ab"[number % 2], words)
    words = told(flight)
    road.end(flight)
    assert flight.trace.depth == 5 and flight.chain.calls == 6
    assert refused(road, LOCAL, "a", words).startswith("TooDeep: ")


@pytest.mark.promise("Q7")
def test_a_hub_that_was_started_again_knows_its_words() -> None:
    road = Road()
    first = road.begin(ANN, "a")
    second = road.begin(LOCAL, "b", told(first))
    words = told(second)
    after = Road(calls=3)
    third = after.begin(LOCAL, "c", words)
    assert third.trace.id == first.trace.id and third.trace.chain == ("a.run", "b.run")
    assert third.chain.origin == "key:ann" and third.chain.calls == 3
    assert "its chain has made 3 calls" in refused(after, LOCAL, "d", words)


@pytest.mark.promise("Q7")
def test_the_time_of_a_chain_goes_on_while_the_hub_is_down(monkeypatch: Any) -> None:
    road = Road()
    words = told(road.begin(ANN, "a"))
    wall = time.time()
    monkeypatch.setattr(module, "time", lambda: wall + 301.5)
    assert "[limits] chain_secs" in refused(Road(), LOCAL, "b", words)
    # A clock that was put back makes a chain younger than it is, but never unborn.
    monkeypatch.setattr(module, "time", lambda: wall - 5_000)
    late = Road()
    flight = late.begin(LOCAL, "b", words)
    assert flight.chain.begun == late.clock.now


def test_chains_are_remembered_in_bounds_and_the_count_is_in_the_words(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MAX_REMEMBERED", 10)
    road = Road(calls=3)
    first = road.begin(ANN, "a")
    road.end(road.begin(LOCAL, "b", told(first)))
    words = told(first)
    road.end(first)
    assert first.chain.id in road.chains._over
    for _ in range(50):
        flight = road.begin(BOB, "x")
        road.end(road.begin(LOCAL, "y", told(flight)))
        road.end(flight)
    assert len(road.chains._over) == 10 and first.chain.id not in road.chains._over
    assert not road.chains._live
    road.end(road.begin(LOCAL, "c", words))
    assert "its chain has made 3 calls" in refused(road, LOCAL, "d", words)


def test_a_chain_that_led_to_nothing_is_in_its_words_alone_and_its_labels_too() -> None:
    road = Road()
    first = road.begin(ANN, "a")
    first.sources = frozenset({"untrusted_agent"})
    words = told(first)
    road.end(first)
    assert not road.chains._over and not road.chains._live
    late = road.begin(LOCAL, "b", words)
    assert late.chain.id == first.chain.id and late.trace.labels == {"untrusted_agent"}
    assert road.begin(LOCAL, "c", words).chain is late.chain, "from its first use on it is known"


def test_the_words_are_short_whatever_the_names_are() -> None:
    road = Road(depth=63)
    flight = road.begin(ANN, "é" * 5_000)
    for number in range(40):
        flight = road.begin(LOCAL, f"{number}" + '"\0\n\ud800'[number % 4] * 3_000, told(flight))
    text = flight.trace.build_context()[CHAIN]
    assert len(text) < 2_500 and text.isascii() and "\n" not in text
    road.end(flight)
    assert road.begin(LOCAL, "z", TraceContext("", "", text)).trace.depth == 41


# --- questions ------------------------------------------------------------------------------------


@pytest.mark.promise("Q6")
def test_what_continues_a_question_goes_on_in_its_trace() -> None:
    road = Road()
    first = road.begin(ANN, "a")
    handle = f"{first.trace.id}.sealed"
    assert road.begin(ANN, "a", handle=handle).trace.id == first.trace.id
    # Also where its request was traced anew by somebody on the way.
    fresh = TraceContext("5e" * 16, "ab" * 8, "")
    assert road.begin(ANN, "a", fresh, handle=handle).trace.id == first.trace.id
    for none in ("sealed", f"{'0' * 32}.x", f"{'g' * 32}.x", ""):
        assert road.begin(ANN, "b", handle=none).trace.id not in ("0" * 32, first.trace.id)


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
def test_what_a_request_brings_is_read_or_left(
    fields: dict[bytes, bytes], beside: Any, carried: TraceContext | None
) -> None:
    assert parse_trace(fields, beside) == carried


@pytest.mark.promise("Q6")
def test_what_leaves_is_the_same_beside_a_message_and_as_headers() -> None:
    flight = Road().begin(ANN, "a")
    beside, headers = flight.trace.build_context(), flight.trace.build_headers()
    assert list(beside.values()) == list(headers.values()) and len(headers) == 4
    fields = {name.encode(): value.encode() for name, value in headers.items()}
    assert parse_trace(fields) == parse_trace({}, json.loads(json.dumps(beside)))
    assert all(value.isascii() and value.isprintable() for value in headers.values())
    own = new_trace().build_headers()
    assert set(own) == {"x-openstarry-trace-id", "traceparent"}
    assert parse_trace({name.encode(): value.encode() for name, value in own.items()}) is not None
    assert Trace("4f" * 16).labels == frozenset()
