"""Phrases and names that CONTRIBUTING rules out, in the code, the tests and the documentation.

Docstrings, comments, messages and pages name their subject and use the standard terms, so a few
phrases that avoid both are not used at all.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "dragoman"

PHRASES = (
    "whoever", "whomever", "nobody", "somebody", "is told", "are told", "was told",
    "be told", "gone by", "far side", "agents of others", "agent of others", "who asks",
    "what is asked", "what was asked", "going down", "given up", "gives up", "is there already",
    "nothing to choose by", "is none that", "without a word", "makes of it", "under way",
    "in its own words",
)  # fmt: skip
MODULES = frozenset(
    {
        "answering", "answers", "approving", "asker", "asking", "assembly", "cleaning", "cut",
        "far", "followed", "following", "golden", "hearing", "judge", "listed", "listening",
        "lists", "offers", "outside", "parked", "patience", "personal", "pinning", "place",
        "probing", "reading", "record", "recorded", "rest03", "rows", "seed", "sending",
        "shapes03", "showing", "tasklist", "through", "tolerant", "turns", "unasked", "verbs",
        "view", "ways",
    }
)  # fmt: skip
PUBLIC = {'"nobody"'}  # the caller in audit records of requests without a principal
GENERATED = {"benchmarks.md", "conformance.md", "reliability.md"}
_PHRASE = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, PHRASES))})(?![\w-])")


def find_phrases(text: str) -> list[str]:
    return _PHRASE.findall(" ".join(text.split()).lower())


def read_prose(file: Path) -> Iterator[tuple[int, str]]:
    """Yields the comments and strings of a Python file, or the lines of a page."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    if not find_phrases(text):
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT) and token.string not in PUBLIC:
            yield token.start[0], token.string


def read_documentation(file: Path) -> Iterator[tuple[int, str]]:
    """Yields the docstrings and comments of a Python file; its other strings may be test data."""
    text = file.read_text(encoding="utf-8")
    if not find_phrases(text):  # most files: what they say is in their text
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def list_files() -> list[Path]:
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.name not in GENERATED]
    single = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "tests" / "promises.toml"]
    return [*SOURCE.rglob("*.py"), *single, *pages]


def list_test_names() -> Iterator[tuple[Path, str]]:
    for file in (ROOT / "tests").rglob("test_*.py"):
        for name in re.findall(r"\bdef (test_\w+)", file.read_text(encoding="utf-8")):
            yield file, name


def test_prose_contains_no_banned_phrase() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {phrase}"
        for file in list_files()
        for line, text in read_prose(file)
        for phrase in find_phrases(text)
    ]
    assert not found, "\n".join(found)


def test_documentation_of_tests_contains_no_banned_phrase() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {phrase}"
        for folder in ("tests", "bench", "conformance", "faults")
        for file in (ROOT / folder).rglob("*.py")
        if "node_modules" not in file.parts and "build" not in file.parts
        for line, text in read_documentation(file)
        for phrase in find_phrases(text)
    ]
    assert not found, "\n".join(found)


def test_test_names_contain_no_banned_phrase() -> None:
    assert not [
        f"{file.relative_to(ROOT)}: {name}"
        for file, name in list_test_names()
        if find_phrases(name.replace("_", " "))
    ]


def test_module_names_are_not_on_the_banned_list() -> None:
    assert not [
        str(file.relative_to(SOURCE)) for file in SOURCE.rglob("*.py") if file.stem in MODULES
    ]


@pytest.mark.parametrize("text", ["Whoever calls it", "the far\nside", '"nobody"', "(is told)"])
def test_planted_phrase_is_reported(text: str) -> None:
    assert len(find_phrases(text)) == 1


@pytest.mark.parametrize("text", ["a-nobody", "tolds", "under wayland", "is not told"])
def test_similar_words_are_not_reported(text: str) -> None:
    assert not find_phrases(text)
