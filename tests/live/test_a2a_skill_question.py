"""A person who types to the hub over A2A is shown the tools that the words are about."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.a2a_hub import STREAM, V03, Caller, text_from_parts
from tests.live.configurable_servers import run_configurable_hub, tool
from tests.live.conftest import RunningHub
from tests.live.module_hub import until

pytestmark = pytest.mark.promise("J4")

CONFIG = "[a2a]\nenabled = true\n"


def takes(*names: str) -> dict[str, Any]:
    properties = {name: {"type": "string"} for name in names}
    return {"inputSchema": {"type": "object", "properties": properties, "required": list(names)}}


def takes_number(name: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {name: {"type": "number"}}, "required": [name]}
    return {"inputSchema": schema}


SHOP = [
    tool("count_stock", "Counts what is in stock. Slow.", **takes("product", "shelf")),
    tool("order_stock", "Orders stock from a supplier.", **takes("product")),
    *(tool(f"report_{number:02}", f"Writes report {number}.") for number in range(40)),
]
OFFICE = [
    tool("echo", "Says it again.", **takes("message")),
    tool("nap", "Sleeps for some seconds.", **takes_number("seconds")),
    tool("secret_stock", "Counts the secret stock.", **takes("product")),
]
HIDE = (
    '@id("open") permit (principal, action in [Hub::Action::"any_call", Hub::Action::"list", '
    'Hub::Action::"a2a_discover"], resource);\n'
    '@id("hide") forbid (principal, action in [Hub::Action::"any_call", Hub::Action::"list"], '
    'resource == Hub::Tool::"office.secret_stock");\n'
)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    place = tmp_path_factory.mktemp("offers")
    servers: dict[str, Any] = {
        "shop": {"offers": {"tools": SHOP}},
        "office": {"offers": {"tools": OFFICE}},
    }
    with contextlib.ExitStack() as stack:
        running, _ = stack.enter_context(run_configurable_hub(place, CONFIG, **servers))
        yield running


def ask(hub: RunningHub, words: str, task: str | None = None) -> tuple[Any, list[str]]:
    """The task, and the lines of its question."""
    asked = Caller(hub).send(words, task=task) if task else Caller(hub).send(words)
    assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED", asked
    return asked, text_from_parts(asked["status"]["message"]).splitlines()


def list_tools(lines: list[str]) -> list[str]:
    return [line[2:].partition(":")[0] for line in lines if line.startswith("- ")]


def test_question_shows_the_nearest_tools_and_how_one_is_called(hub: RunningHub) -> None:
    asked, (first, *lines) = ask(hub, "I want to count stock")
    assert first.startswith("Which skill is this for? The nearest of ")
    assert lines[0] == "- shop.count_stock: Counts what is in stock"
    assert {"shop.order_stock", "office.secret_stock"} <= set(list_tools(lines))
    assert len(list_tools(lines)) <= 5
    assert lines[-1].endswith('in the same line: shop.count_stock {"product":"…","shelf":"…"}')
    line = lines[-1].partition("same line: ")[2]
    done = Caller(hub).send(line, task=asked["id"])
    assert text_from_parts(done["artifacts"][0]) == "arrived: count_stock"


def test_other_words_in_the_same_task_are_searched_too(hub: RunningHub) -> None:
    asked, _ = ask(hub, "I want to count stock")
    again, lines = ask(hub, "echo a message", asked["id"])
    assert again["id"] == asked["id"] and list_tools(lines)[0] == "office.echo"
    assert lines[-1].endswith("in the same line: office.echo message…")
    line = lines[-1].partition("same line: ")[2]
    done = Caller(hub).send(line, task=asked["id"])
    assert text_from_parts(done["artifacts"][0]) == "arrived: echo"


def test_number_is_shown_and_taken_as_it_is(hub: RunningHub) -> None:
    asked, lines = ask(hub, "sleep for a while")
    assert lines[-1].endswith("in the same line: office.nap seconds…")
    done = Caller(hub).send("office.nap 0.5", task=asked["id"])
    assert text_from_parts(done["artifacts"][0]) == "arrived: nap"


@pytest.mark.parametrize("words", ["xyzzy", "?", "qwrtpsdf ghjkl"])
def test_words_without_a_near_tool_show_some_of_each_server(hub: RunningHub, words: str) -> None:
    _, (first, *lines) = ask(hub, words)
    assert "describe what you need" in first
    shown = list_tools(lines)
    assert len(shown) == 5
    assert {name.partition(".")[0] for name in shown} == {"shop", "office"}


def test_client_of_0_3_that_streams_is_asked_too(hub: RunningHub) -> None:
    with Caller(hub, binding=V03).stream(STREAM, V03.params("count stock")) as stream:
        *_, last = V03.events(stream)
    assert "shop.count_stock" in str(last)


def test_question_names_no_tool_that_the_caller_may_not_see(hub: RunningHub) -> None:
    (hub.home / "policies").mkdir(exist_ok=True)
    file = Path(hub.home / "policies" / "hidden.cedar")
    file.write_text(HIDE, encoding="utf-8")
    try:
        until(lambda: "secret_stock" not in str(hub.api("/api/tools")))
        for words in ("count the secret stock", "secret", "xyzzy"):
            _, lines = ask(hub, words)
            assert "secret_stock" not in "\n".join(lines)
        assert "shop.count_stock" in list_tools(ask(hub, "count the secret stock")[1])
    finally:
        file.unlink()
