"""The documentation: generated pages are current, links resolve."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from tests.generate_docs import DOCS, PAGES, keys

ROOT = DOCS.parent


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_up_to_date(name: str) -> None:
    file = DOCS / name
    written = file.read_text(encoding="utf-8") if file.exists() else ""
    if written != PAGES[name]():  # not asserted on the texts: the difference would fill the screen
        pytest.fail(f"docs/{name} is not what the code says: run `make docs`")


def test_every_setting_says_what_it_means_in_one_sentence() -> None:
    assert keys()
    assert not [path for path, _, _, meaning in keys() if not meaning.endswith((".", "!", "`"))]
    paths = [path for path, *_ in keys()]
    assert len(set(paths)) == len(paths)


def test_the_commands_that_add_agents_use_variables_that_are_allowed_by_default() -> None:
    pages = [ROOT / "README.md", *DOCS.glob("*.md"), *(ROOT / "examples").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"--token env:(\w+)", page.read_text())}
    assert named and all(name.startswith("DRAGOMAN_AGENT_") for name in named), named


def _text_without_code(page: str) -> str:
    page = re.sub(r"^(```|~~~).*?^\1", "", page, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", page)


def _anchor(heading: str) -> str:
    words = re.sub(r"[^\w\- ]", "", heading.strip().lower().replace("`", ""))
    return words.replace(" ", "-")


def anchors(page: str) -> set[str]:
    page = re.sub(r"^(```|~~~).*?^\1", "", page, flags=re.DOTALL | re.MULTILINE)
    return {_anchor(heading) for heading in re.findall(r"^#+ (.*)$", page, re.MULTILINE)}


def broken_links(page: Path, root: Path) -> list[str]:
    text = _text_without_code(page.read_text(encoding="utf-8"))
    links = re.findall(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)", text)
    links += re.findall(r"^\[[^\]]+\]:\s*(\S+)", text, re.MULTILINE)
    broken = []
    for link in links:
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page.resolve()
        if not target.exists() or not target.is_relative_to(root.resolve()):
            broken.append(f"{page.relative_to(root)} links to {link}, which is not there")
        elif anchor and anchor not in anchors(target.read_text(encoding="utf-8")):
            broken.append(f"{page.relative_to(root)} links to {link}, which has no such heading")
    return broken


def test_every_relative_link_resolves() -> None:
    pages = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    assert not [problem for page in pages for problem in broken_links(page, ROOT)]


def test_every_page_is_linked_from_another_one() -> None:
    pages = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    linked = {
        (page.parent / unquote(link).partition("#")[0]).resolve()
        for page in pages
        for link in re.findall(r"\]\(<?([^)\s>:]+)>?\)", page.read_text(encoding="utf-8"))
        if not link.startswith("#")
    }
    assert not [page.name for page in DOCS.glob("*.md") if page.resolve() not in linked]


def test_the_table_of_packages_is_that_of_the_tree() -> None:
    """A package may have a row of its own, or rows of its parts."""
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("\n## Packages\n")[2].partition("\n\n**")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    source = ROOT / "src" / "dragoman"
    assert not [name for name in named if not (source / name).exists()]
    tree = {path.parent.name for path in source.glob("*/__init__.py")}
    tree |= {path.name for path in source.glob("*.py") if not path.name.startswith("__")}
    assert {name.partition("/")[0] for name in named} == tree
    for package in {name.partition("/")[0] for name in named if "/" in name} - set(named):
        parts = {path.parent.name for path in (source / package).glob("*/__init__.py")}
        assert parts <= {name.partition("/")[2] for name in named}, package


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Other\n\n## `a.b` and more\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n[a](other.md) [b](other.md#ab-and-more) [c](#page) [d](https://example.com/x)\n"
        "`[code](nowhere.md)`\n```\n[code](nowhere.md)\n```\n"
        '[e](gone.md) [f](other.md#gone) [g](../outside.md) [h](gone.png "title")\n[i]: gone.txt\n',
        encoding="utf-8",
    )
    assert [
        problem.split(" links to ")[1].split(",")[0] for problem in broken_links(page, tmp_path)
    ] == [
        "gone.md",
        "other.md#gone",
        "../outside.md",
        "gone.png",
        "gone.txt",
    ]


def decision_problems(folder: Path) -> list[str]:
    problems: list[str] = []
    numbers: dict[int, str] = {}
    for file in sorted(folder.glob("*.md")):
        found = re.match(r"(\d+)-[a-z0-9-]+\.md$", file.name)
        if not found:
            problems.append(f"{file.name} is not named NUMBER-words.md")
        elif (number := int(found[1])) in numbers:
            problems.append(f"{file.name} has the number of {numbers[number]}")
        else:
            numbers[number] = file.name
        if not re.match(r"# \S", file.read_text(encoding="utf-8")):
            problems.append(f"{file.name} does not begin with a title")
    return problems


def test_decision_records_have_unique_numbers_and_titles() -> None:
    assert not decision_problems(DOCS / "decisions")


def test_a_decision_out_of_order_is_found(tmp_path: Path) -> None:
    for name, text in {
        "0001-one.md": "# One\n",
        "1-two.md": "# Two\n",
        "0003-three.md": "Three\n",
        "four.md": "# Four\n",
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert decision_problems(tmp_path) == [
        "0003-three.md does not begin with a title",
        "1-two.md has the number of 0001-one.md",
        "four.md is not named NUMBER-words.md",
    ]
