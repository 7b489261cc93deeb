"""How often `find_tools` finds the right tool, over the tools of public servers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.views.real_tools import Task, build_tools, load_rows, load_tasks

from dragoman.core.text_search import TextIndex, find_action
from dragoman.core.token_estimate import estimate_tokens
from dragoman.core.tool_finder import weigh_tool

TOP = 5


@pytest.fixture(scope="module")
def find_best() -> Callable[[Task], list[str]]:
    tools = build_tools()
    index = TextIndex(
        [weigh_tool(tool) for tool in tools],
        [tool.target.name for tool in tools],
        [find_action(one.remote_name) or find_action(one.description, 4) for one in tools],
    )
    return lambda task: [tools[number].name for number, _ in index.search(task.text, TOP)]


@pytest.mark.promise("U5")
def test_the_right_tool_is_among_the_first_five_for_nine_in_ten_tasks(
    find_best: Callable[[Task], list[str]],
) -> None:
    tasks = load_tasks()
    missed = [one.text for one in tasks if not set(find_best(one)) & set(one.tools)]
    assert len(tasks) >= 200
    assert 1 - len(missed) / len(tasks) >= 0.9, missed


def test_tasks_are_about_many_tools_and_none_repeats_the_name_of_its_tool() -> None:
    tasks, names = load_tasks(), {f"{one['server']}.{one['name']}" for one in load_rows()}
    assert {tool for one in tasks for tool in one.tools} <= names
    assert len({tool for one in tasks for tool in one.tools}) >= 200
    assert sum(len(one.tools) == 1 for one in tasks) >= 0.8 * len(tasks)
    for one in tasks:
        for tool in one.tools:
            own = tool.partition(".")[2]
            if "_" in own or "-" in own:
                assert own.lower() not in one.text.lower(), one


@pytest.mark.promise("U5")
def test_the_estimate_is_above_what_tokenizers_count_by_a_known_amount() -> None:
    rows = load_rows()
    for tokenizer in ("cl100k", "o200k"):
        total = sum(estimate_tokens(row["bytes"]) for row in rows)
        assert 1.05 < total / sum(row[tokenizer] for row in rows) < 1.15
        for row in rows:
            assert 0.85 < estimate_tokens(row["bytes"]) / row[tokenizer] < 1.45, row["name"]
