"""Whose credential a call uses: the principal that started its chain."""

from __future__ import annotations

import pytest
from tests.core.test_call_chains import ChainStage, FakeTarget

from dragoman.core.call import Call
from dragoman.core.errors import Denied
from dragoman.core.holders import (
    OWNER_HOLDER,
    bind_handle,
    find_holder,
    find_holder_of,
    open_handle,
    render_holder,
    require_holder,
)
from dragoman.core.principal import LOCAL, OWNER, Principal
from dragoman.core.tool import Tool
from dragoman.core.trace import CHAIN, TRACE_ID, Trace, TraceContext

ANNA = Principal("user", "anna")
BERT = Principal("key", "bert")
AGENT = Principal("agent", "helper", serves="helper")
SCHEDULE = Principal("schedule", "helper")


@pytest.mark.parametrize("principal", [OWNER, LOCAL, Principal("key", "api_key")])
def test_the_owner_is_one_holder_on_every_way_in(principal: Principal) -> None:
    assert find_holder_of(principal) == OWNER_HOLDER


def test_users_and_keys_are_holders_of_their_own() -> None:
    others = (ANNA, Principal("user", "anna", org="other"), Principal("key", "anna"))
    assert len({find_holder_of(one) for one in others}) == 3
    assert render_holder(str(find_holder_of(others[1]))) == "user:anna (other)"


@pytest.mark.parametrize("principal", [AGENT, SCHEDULE, Principal("server", "files")])
def test_who_acts_for_others_holds_nothing(principal: Principal) -> None:
    assert find_holder_of(principal) is None


def begin(stage: ChainStage, caller: Principal, above: Trace | None = None) -> Call:
    """A call that has entered its chain, on behalf of the call with the trace `above`."""
    carried = TraceContext(above.id, above.span, "", above.state) if above is not None else None
    return build_call(caller, stage.begin(caller, f"t{stage.chains._used}", carried).trace)


def build_call(caller: Principal, trace: Trace) -> Call:
    tool = Tool(name="files.read", alias="read", remote_name="read", target=FakeTarget("files"))
    return Call(caller, tool, tool.name, {}, trace, "test")


def test_an_agent_uses_the_holder_of_the_first_caller() -> None:
    stage = ChainStage()
    first = begin(stage, ANNA)
    second = begin(stage, AGENT, first.trace)
    third = begin(stage, Principal("agent", "other", serves="other"), second.trace)
    assert find_holder(first) == find_holder(second) == find_holder(third) == ANNA.key


def test_a_user_who_knows_the_trace_of_another_uses_the_own_credential() -> None:
    """A server of the hub, or its log, shows the traces of the calls that it serves."""
    stage = ChainStage()
    first = begin(stage, ANNA)
    stolen = begin(stage, BERT, first.trace)
    nested = begin(stage, AGENT, stolen.trace)
    assert stolen.trace.parent is not None
    assert find_holder(stolen) == find_holder(nested) == BERT.key
    assert find_holder(begin(stage, AGENT, first.trace)) == ANNA.key
    carried = nested.trace.build_context()
    for flight in list(stage.chains._running.values()):
        stage.chains.leave(flight)
    later = stage.begin(AGENT, "files", TraceContext(carried[TRACE_ID], "", carried[CHAIN], ""))
    assert find_holder(build_call(AGENT, later.trace)) is None


def test_an_agent_that_serves_several_users_and_names_none_has_no_holder() -> None:
    stage = ChainStage()
    stage.begin(ANNA, "helper")
    alone = stage.begin(AGENT, "files")
    assert find_holder(build_call(AGENT, alone.trace)) == ANNA.key
    second = stage.begin(BERT, "helper")
    guessed = stage.begin(AGENT, "files")
    nested = begin(stage, Principal("agent", "other", serves="other"), guessed.trace)
    for call in (build_call(AGENT, guessed.trace), nested):
        with pytest.raises(Denied, match="who started it is unknown"):
            require_holder(call, "files")
    assert find_holder(begin(stage, AGENT, second.trace)) == BERT.key


def test_a_call_that_no_user_started_is_refused() -> None:
    stage = ChainStage()
    scheduled = begin(stage, SCHEDULE)
    nested = begin(stage, AGENT, scheduled.trace)
    for call in (scheduled, nested, begin(stage, AGENT)):
        with pytest.raises(Denied, match="credentials of single users"):
            require_holder(call, "files")


def test_a_chain_of_which_only_the_token_is_left_has_no_holder() -> None:
    stage = ChainStage()
    first = begin(stage, ANNA)
    carried = first.trace.build_context()
    again = ChainStage()  # the hub was restarted
    trace = TraceContext(carried[TRACE_ID], "", carried[CHAIN], "")
    flight = again.begin(AGENT, "files", trace)
    tool = Tool(name="files.read", alias="read", remote_name="read", target=FakeTarget("files"))
    call = Call(AGENT, tool, tool.name, {}, flight.trace, "test")
    assert flight.trace.parent is not None and find_holder(call) is None


def test_a_handle_opens_for_its_holder_alone() -> None:
    handle = bind_handle("state:x", ANNA.key)
    assert open_handle(handle, ANNA.key) == "state:x"
    assert open_handle(handle, OWNER_HOLDER) is None
    assert open_handle("state:x", ANNA.key) is None
