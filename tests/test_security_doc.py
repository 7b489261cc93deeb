"""docs/security.md: each threat has a test or a reason, and everything that the page names exists.

The tests are read, not imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
from tests.generate_docs import DOCS, keys

from dragoman.cli.main import cli

TESTS = Path(__file__).parent
PAGE = DOCS / "security.md"
THREATS = range(1, 60)
WITHOUT_TESTS = ("Not covered yet", "Not applicable")
LABELS = {"untrusted_agent", "external_network"}


def list_test_names() -> set[str]:
    return {
        node.name
        for file in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def read_rows(page: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the heading and the cells of each row whose first cell has the numbers of threats."""
    heading = ""
    for line in page.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif re.match(r"\| \d", line):
            yield heading, [cell.strip() for cell in line.strip("| ").split(" | ")]


def find_row_problems(page: str, tests: set[str]) -> list[str]:
    problems, proven, excused = [], [], []
    for heading, (numbers, *cells) in read_rows(page):
        found = [int(number) for number in numbers.split(", ")]
        if heading in WITHOUT_TESTS:
            excused += found
            if len(cells) != 2 or not all(cells):
                problems.append(f"{numbers} in {heading}: no reason")
            continue
        proven += found
        named = re.findall(r"`(test_\w+)`", cells[-1])
        if len(cells) != 3 or not all(cells) or not named:
            problems.append(f"{numbers}: no threat, control or test")
    problems += [f"{number}: two rows" for number in set(proven) if proven.count(number) > 1]
    problems += [f"{number}: no row" for number in THREATS if number not in {*proven, *excused}]
    problems += [f"{number}: unknown" for number in {*proven, *excused} - set(THREATS)]
    named_anywhere = set(re.findall(r"`(test_\w+)`", page))
    problems += [f"{name}: no such test" for name in sorted(named_anywhere - tests)]
    return problems


def find_command(words: list[str]) -> bool:
    command: click.Command = cli
    for word in words:
        if not isinstance(command, click.Group):
            break
        inner = command.get_command(click.Context(command), word)
        if inner is None:
            return False
        command = inner
    return command is not cli


def find_name_problems(page: str) -> list[str]:
    """Settings as `[section] key`, `key = value` or `some_key`; commands as `dragoman words`."""
    # `mcp_servers[].transport(http).url` is in the sections mcp_servers and mcp_servers.transport.
    paths = [re.sub(r"\[\]|\(\w+\)", "", path) for path, *_ in keys()]
    last_words = {path.rpartition(".")[2] for path in paths}
    problems = []
    for code in re.findall(r"`([^`\n]+)`", page):
        if code.startswith("dragoman "):
            words = [word for word in code.split()[1:] if re.fullmatch(r"[a-z0-9-]+", word)]
            if not find_command(words):
                problems.append(f"{code}: no such command")
        elif section := re.fullmatch(r"\[{1,2}([\w.]+)\]{1,2}(?: (\w+))?", code):
            path = section[1] + (f".{section[2]}" if section[2] else "")
            known = path in paths if section[2] else any(p.startswith(f"{path}.") for p in paths)
            if not known:
                problems.append(f"{code}: no such setting")
        elif code.startswith("test_"):
            continue
        elif name := re.fullmatch(r"(\w+) = .*|([a-z]+(?:_[a-z]+)+)", code):
            known = (name[1] or name[2]) in last_words | LABELS
            problems += [] if known else [f"{code}: no such setting"]
    return problems


def test_each_threat_has_a_row_with_tests_that_exist_or_a_reason() -> None:
    assert not find_row_problems(PAGE.read_text(encoding="utf-8"), list_test_names())


def test_settings_and_commands_of_the_page_exist() -> None:
    assert not find_name_problems(PAGE.read_text(encoding="utf-8"))


def test_each_kind_of_problem_of_the_page_is_reported() -> None:
    proven = {*THREATS} - {53, 54, 55}
    rows = [f"| {number} | t | c | `test_a` |" for number in sorted(proven)]
    page = "\n".join([
        "### Access", *rows, "| 1 | t | c | `test_a` |", "| 53 | t | c | none |",
        "| 54 | t | c | `test_gone` |", "| 99 | t | c | `test_a` |",
        "## Not covered yet", "| 2, 3 | what | |",
        "`dragoman audit verify`, `dragoman audit forge`, `dragoman nothing`",
        "`[limits] chain_depth`, `[limits] chain_width`, `[limits.rate]`, `[limit]`",
        '`pin = "strict"`, `pins = "strict"`, `allow_private`, `allow_public`',
    ])  # fmt: skip
    assert sorted(find_row_problems(page, {"test_a"})) == [
        "1: two rows",
        "2, 3 in Not covered yet: no reason",
        "53: no threat, control or test",
        "55: no row",
        "99: unknown",
        "test_gone: no such test",
    ]
    assert find_name_problems(page) == [
        "dragoman audit forge: no such command",
        "dragoman nothing: no such command",
        "[limits] chain_width: no such setting",
        "[limit]: no such setting",
        'pins = "strict": no such setting',
        "allow_public: no such setting",
    ]
