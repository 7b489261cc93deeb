from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.permissive_hub import build_permissive_hub, call_tool

from dragoman.core.bus import Bus
from dragoman.core.call import Call, Progress, Result
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.errors import HubError, NotFound, Unreachable, WorkFailed, list_leaves
from dragoman.core.hub import Hub
from dragoman.core.pipeline import Next, Stage, build_pipeline
from dragoman.core.principal import OWNER, Principal
from dragoman.core.tool import (
    COMPLETION,
    DEFAULT_TRAITS,
    PROMPT,
    RESOURCE,
    SUBSCRIPTION,
    TEMPLATE,
    Tool,
)
from dragoman.core.tool_filter import EVERYTHING, View
from dragoman.core.trace import TraceContext, new_trace


class FakeTarget:
    """A target that answers with what it was called with, or raises."""

    traits = DEFAULT_TRAITS
    name = "place"

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.calls: list[Call] = []

    async def run(self, call: Call) -> Result:
        self.calls.append(call)
        if self.error is not None:
            raise self.error
        call.updates(Progress(progress=1))
        return Result(content=[call.tool.remote_name])


def hub_of(place: FakeTarget, *stages: Stage) -> Hub:
    catalog = Catalog(review=admit_all)
    tools = [
        Tool(
            name=f"place.{name}", alias=f"mcp_place_{name.lower()}", remote_name=name, target=place
        )
        for name in ("echo", "Echo", "add")
    ]
    catalog.offer("place", tools)
    return build_permissive_hub(catalog, Bus(), stages)


async def call(hub: Hub, name: str, view: View = EVERYTHING, **more: Any) -> Result:
    return await call_tool(hub, OWNER, name, {"a": 1}, door="test", view=view, **more)


async def test_call_reaches_its_target_unchanged() -> None:
    place = FakeTarget()
    updates: list[Progress] = []
    carried = TraceContext("5" * 32, "", "")
    caller = Principal("key", "ci", "lab")
    result = await call_tool(hub_of(place),
        caller, "mcp_place_add", {"x": 2}, door="api", view=EVERYTHING,
        trace_context=carried, meta={"k": 1}, updates=updates.append,
    )  # fmt: skip
    assert result.content == ["add"]
    (made,) = place.calls
    assert (made.principal, made.arguments, made.door) == (caller, {"x": 2}, "api")
    assert (made.trace.id, made.trace.chain) == ("5" * 32, ())
    assert (made.tool.name, made.requested_name, made.meta) == (
        "place.add", "mcp_place_add", {"k": 1},
    )  # fmt: skip
    assert updates == [Progress(progress=1)]


async def test_unknown_name_passes_the_pipeline() -> None:
    seen: list[str] = []

    async def stage(next: Next, call: Call) -> Result:
        seen.append(call.tool.name)
        return await next(call)

    hub = hub_of(FakeTarget(), stage)
    with pytest.raises(NotFound, match='there is no tool "nothing"'):
        await call(hub, "nothing")
    assert (await call(hub, "mcp_place_echo")).content == ["echo"]
    assert seen == ["nothing", "place.echo"]


async def test_tool_outside_the_view_cannot_be_called() -> None:
    place = FakeTarget()
    hub = hub_of(place)
    view = View(("place.a*", "dragoman_agent_*"))
    assert [tool.name for tool in hub.list_tools(OWNER, view)] == ["place.add"]
    assert (await call(hub, "mcp_place_add", view)).content == ["add"]
    with pytest.raises(NotFound) as hidden:
        await call(hub, "place.echo", view)
    with pytest.raises(NotFound) as unknown:
        await call(hub, "place.none", view)
    assert str(hidden.value).replace("echo", "none") == str(unknown.value)
    assert len(place.calls) == 1


def test_view_matches_both_names_and_an_empty_one_nothing() -> None:
    hub = hub_of(FakeTarget())
    by_alias = hub.list_tools(OWNER, View(("mcp_place_echo",)))
    assert [tool.name for tool in by_alias] == ["place.echo", "place.Echo"]
    assert hub.list_tools(OWNER, View(())) == []
    assert len(hub.list_tools(OWNER, EVERYTHING)) == len(hub.list_tools(OWNER, View(("*",)))) == 3


async def test_an_error_carries_the_trace_of_its_call() -> None:
    hub = hub_of(FakeTarget(Unreachable("gone")))
    with pytest.raises(Unreachable) as raised:
        await call(hub, "place.add", trace_context=TraceContext("abc", "", ""))
    assert raised.value.trace == "abc"
    with pytest.raises(Unreachable) as again:
        await call(hub, "place.add")
    assert again.value.trace and len(again.value.trace) == 32


async def test_unexpected_exception_of_a_target_is_its_failure() -> None:
    hub = hub_of(FakeTarget(KeyError("x")))
    with pytest.raises(WorkFailed, match=r"\"place.add\" failed: KeyError\('x'\)") as raised:
        await call(hub, "place.add")
    assert isinstance(raised.value.__cause__, KeyError)


async def test_cancelled_caller_cancels_the_target() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    class Slow(FakeTarget):
        traits = DEFAULT_TRAITS

        async def run(self, call: Call) -> Result:
            begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                ended.set()
            raise AssertionError

    task = asyncio.create_task(call(hub_of(Slow()), "place.add"))
    await asyncio.wait_for(begun.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_stages_wrap_the_target_in_order_and_may_refuse() -> None:
    order: list[str] = []

    def stage(name: str, stops: bool = False) -> Stage:
        async def run(next: Next, call: Call) -> Result:
            order.append(f"{name} in")
            if stops:
                raise NotFound(name)
            result = await next(call)
            order.append(f"{name} out")
            return result

        return run

    async def end(call: Call) -> Result:
        order.append("end")
        return Result()

    def guarded(stages: Sequence[Stage]) -> Next:
        return build_pipeline(stages, end)

    place = FakeTarget()
    made = Call(
        principal=OWNER, tool=hub_of(place).catalog.find("place.add"), requested_name="x",
        arguments={}, trace=new_trace(), door="test",
    )  # fmt: skip
    await guarded([stage("outer"), stage("inner")])(made)
    assert order == ["outer in", "inner in", "end", "inner out", "outer out"]
    order.clear()
    with pytest.raises(NotFound):
        await guarded([stage("outer"), stage("stop", stops=True), stage("inner")])(made)
    assert order == ["outer in", "stop in"]
    order.clear()
    await guarded([])(made)
    assert order == ["end"]


def test_only_leaf_errors_are_raised() -> None:
    names = {kind.__name__ for kind in list_leaves()}
    assert {"Denied", "Overloaded", "NotFound", "AmbiguousName", "TimedOut", "BadReply"} <= names
    assert not names & {"HubError", "Refused", "TargetFailed"}
    assert all(issubclass(kind, HubError) for kind in list_leaves())


def offered(hub: Hub, kind: str, *addresses: str, server: str = "place") -> FakeTarget:
    place = FakeTarget()
    place.name = server
    hub.catalogs[kind].offer(
        server,
        [
            Tool(name=f"{server}.{a}", alias=a, remote_name=a, kind=kind, target=place)
            for a in addresses
        ],
    )
    return place


async def test_each_kind_has_its_own_catalog() -> None:
    hub = hub_of(FakeTarget())
    prompts = offered(hub, PROMPT, "echo")
    await call(hub, "echo", kind=PROMPT)
    assert prompts.calls[0].tool.kind == PROMPT
    with pytest.raises(NotFound, match='there is no prompt "add"'):
        await call(hub, "add", kind=PROMPT)
    with pytest.raises(NotFound, match='there is no resource "echo"'):
        await call(hub, "echo", kind=RESOURCE)


async def test_resource_is_read_and_subscribed_by_uri_or_full_name() -> None:
    hub = hub_of(FakeTarget())
    place = offered(hub, RESOURCE, "test://a")
    for name, kind in (("test://a", RESOURCE), ("place.test://a", RESOURCE)):
        await call(hub, name, kind=kind)
        assert place.calls[-1].tool.remote_name == "test://a"
    await call(hub, "test://a", kind=SUBSCRIPTION)
    assert place.calls[-1].tool.kind == SUBSCRIPTION


async def test_template_resource_is_read_from_its_server() -> None:
    hub = hub_of(FakeTarget())
    other = offered(hub, RESOURCE, "y://1", server="other")
    place = offered(hub, TEMPLATE, "x://{id}")
    await call(hub, "x://7", kind=RESOURCE)
    assert place.calls[-1].tool.name == "place.x://7" and not other.calls
    with pytest.raises(NotFound):
        await call(hub, "x://7", view=View(("other.*",)), kind=RESOURCE)


async def test_uri_stays_with_its_first_server_even_if_disconnected() -> None:
    hub = hub_of(FakeTarget())
    first = offered(hub, RESOURCE, "x://1", server="a")
    second = offered(hub, RESOURCE, "x://1", server="b")
    offered(hub, TEMPLATE, "x://{id}", server="b")
    await call(hub, "x://1", kind=RESOURCE)
    await call(hub, "b.x://1", kind=RESOURCE)
    assert len(first.calls) == len(second.calls) == 1
    hub.catalogs[RESOURCE].withdraw("a")
    with pytest.raises(NotFound):
        await call(hub, "x://1", kind=RESOURCE)
    await call(hub, "x://2", kind=RESOURCE)
    await call(hub, "b.x://1", kind=RESOURCE)
    assert len(first.calls) == 1 and len(second.calls) == 2


async def test_an_argument_is_completed_for_a_prompt_or_a_template() -> None:
    hub = hub_of(FakeTarget())
    prompts = offered(hub, PROMPT, "ask")
    templates = offered(hub, TEMPLATE, "x://{id}", server="other")
    await call(hub, "ask", kind=COMPLETION)
    await call(hub, "x://{id}", kind=COMPLETION)
    assert prompts.calls[0].tool.kind == templates.calls[0].tool.kind == COMPLETION
    with pytest.raises(NotFound):
        await call(hub, "none", kind=COMPLETION)
