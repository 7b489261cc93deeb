"""The table of mutants fits the code: each old text occurs once, and each test exists."""

from __future__ import annotations

import ast
import re
from functools import cache

from tests.mutants import ROOT, load_mutants

import dragoman.guards


@cache
def list_tests(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_each_mutant_changes_one_place_to_valid_code_and_its_tests_exist() -> None:
    mutants = load_mutants()
    assert len({one.label for one in mutants}) == len(mutants)
    for mutant in mutants:
        text = (ROOT / "src" / "dragoman" / mutant.file).read_text(encoding="utf-8")
        changed = mutant.apply(text)
        assert changed != text
        if mutant.file.endswith(".py"):
            ast.parse(changed)
        assert mutant.tests, mutant.label
        for test in mutant.tests:
            file, _, name = test.partition("::")
            assert name.partition("[")[0] in list_tests(file), f"{mutant.label}: {test}"


def test_each_row_of_the_security_page_shares_a_test_with_a_mutant() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    proven = {
        test.partition("::")[2].partition("[")[0] for one in load_mutants() for test in one.tests
    }
    rows = [line for line in page.splitlines() if line.startswith("|") and "`test_" in line]
    assert len(rows) > 50
    assert not [row[:80] for row in rows if proven.isdisjoint(re.findall(r"`(test_\w+)`", row))]


def test_each_threat_with_tests_and_each_stage_has_a_mutant() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    threats = {
        number
        for line in page.splitlines()
        if "`test_" in line and (row := re.match(r"\| ([\d, ]+) \|", line))
        for number in row[1].split(", ")
    }
    source = (ROOT / "src/dragoman/guards/__init__.py").read_text(encoding="utf-8")
    assert dragoman.guards.__file__
    listed = source.partition("return [")[2].partition("\n    ]")[0]
    stages = set(re.findall(r"^        (\w+)\(", listed, re.MULTILINE))
    assert threats and stages
    assert not (threats | stages) - {one.of for one in load_mutants()}
