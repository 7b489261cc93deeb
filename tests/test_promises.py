"""Holds promises.toml and the tests together, in both directions. The tests are read, not imported.

`python -m tests.test_promises` prints the table: id, its tests, what is missing.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PROMISES: dict[str, dict[str, str]] = tomllib.loads(
    (TESTS / "promises.toml").read_text(encoding="utf-8")
)


def _ids_of_marker(node: ast.expr, where: str) -> list[str]:
    """The ids of `pytest.mark.promise(...)`; none where `node` is something else."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func) != "pytest.mark.promise":
        return []
    if node.keywords or not node.args:
        raise ValueError(f"{where}: pytest.mark.promise takes ids and nothing else")
    ids = []
    for argument in node.args:
        if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
            raise ValueError(f"{where}: the ids of pytest.mark.promise are written out as strings")
        ids.append(argument.value)
    return ids


def marks(source: str, where: str) -> Iterator[tuple[str, str]]:
    """(id, test) for each marker on a test, on its class or on the whole module."""

    def walk(body: list[ast.stmt], prefix: str, inherited: list[str]) -> Iterator[tuple[str, str]]:
        for node in body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
                several = node.value
                for mark in several.elts if isinstance(several, ast.List) else [several]:
                    inherited = inherited + _ids_of_marker(mark, where)
        for node in body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            name = f"{prefix}::{node.name}"
            own = [i for mark in node.decorator_list for i in _ids_of_marker(mark, name)]
            if isinstance(node, ast.ClassDef):
                yield from walk(node.body, name, inherited + own)
            elif node.name.startswith("test"):
                yield from ((promise, name) for promise in inherited + own)

    yield from walk(ast.parse(source).body, where, [])


def proofs() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        where = str(path.relative_to(TESTS))
        for promise, test in marks(path.read_text(encoding="utf-8"), where):
            found.setdefault(promise, []).append(test)
    return found


def problems(promises: dict[str, dict[str, str]], proven: dict[str, list[str]]) -> list[str]:
    found = []
    for promise, entry in promises.items():
        if not entry.get("says"):
            found.append(f"{promise} says nothing")
        if unknown := set(entry) - {"says", "not_yet", "missing"}:
            found.append(f"{promise} has unknown keys: {', '.join(sorted(unknown))}")
        if "not_yet" in entry and promise in proven:
            found.append(
                f"{promise} is listed as not yet built, but proven by {proven[promise][0]}"
            )
        if "not_yet" not in entry and promise not in proven:
            found.append(f"{promise} has no test and is not listed as not yet built")
        if "missing" in entry and "not_yet" in entry:
            found.append(f"{promise} has both `missing` and `not_yet`")
    for promise in sorted(set(proven) - set(promises)):
        found.append(f"{', '.join(proven[promise])} names {promise}, which is no promise")
    return found


def test_promises_and_tests_agree() -> None:
    assert not problems(PROMISES, proofs())


PLANTED = {
    "B1 has no test and is not listed as not yet built": ({"B1": {"says": "x"}}, {}),
    "t names B2, which is no promise": ({}, {"B2": ["t"]}),
    "B1 is listed as not yet built, but proven by t": (
        {"B1": {"says": "x", "not_yet": "y"}},
        {"B1": ["t"]},
    ),
    "B1 has both `missing` and `not_yet`": (
        {"B1": {"says": "x", "missing": "y", "not_yet": "z"}},
        {},
    ),
    "B1 says nothing": ({"B1": {"says": "", "not_yet": "y"}}, {}),
    "B1 has unknown keys: notyet": ({"B1": {"says": "x", "notyet": "y"}}, {"B1": ["t"]}),
}


@pytest.mark.parametrize("problem", PLANTED)
def test_each_kind_of_promise_problem_is_reported(problem: str) -> None:
    assert problems(*PLANTED[problem]) == [problem]


def test_markers_are_found_on_functions_classes_and_modules() -> None:
    source = """
pytestmark = [pytest.mark.promise("A1"), pytest.mark.slow]

@pytest.mark.promise("A2", "A3")
async def test_one(): ...

class TestMore:
    @pytest.mark.parametrize("x", [1])
    @pytest.mark.promise("A4")
    def test_two(self, x): ...

@pytest.mark.promise("A5")
def helper(): ...
"""
    assert sorted(marks(source, "f.py")) == [
        ("A1", "f.py::TestMore::test_two"),
        ("A1", "f.py::test_one"),
        ("A2", "f.py::test_one"),
        ("A3", "f.py::test_one"),
        ("A4", "f.py::TestMore::test_two"),
    ]
    with pytest.raises(ValueError, match="written out as strings"):
        list(marks("@pytest.mark.promise(ID)\ndef test_x(): ...", "f.py"))


def main() -> None:
    proven = proofs()
    for promise, entry in PROMISES.items():
        tests = proven.get(promise, [])
        rest = entry.get("missing") or entry.get("not_yet") or ""
        print(f"{promise:<4} {len(tests):>3} tests  {'missing: ' + rest if rest else ''}".rstrip())
        for test in tests:
            print(f"       {test}")
    for problem in problems(PROMISES, proven):
        print(f"problem: {problem}")


if __name__ == "__main__":
    main()
