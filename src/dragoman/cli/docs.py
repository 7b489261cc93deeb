"""`docs`: prints the documentation that is installed with the program."""

from __future__ import annotations

import difflib
from pathlib import Path

import click

import dragoman
from dragoman.cli.base.errors import NOT_FOUND, fail
from dragoman.cli.base.output import json_option, print_json, print_table


@click.command()
@click.argument("page", required=False)
@json_option
def docs(page: str | None, as_json: bool) -> None:
    """Print a page of the documentation, or list the pages.

    \b
    dragoman docs                  list the pages
    dragoman docs operations       print a page (Markdown)
    dragoman docs operations | less
    """
    pages = find_pages()
    if page is None:
        rows = [{"name": name, "title": _read_title(path)} for name, path in pages.items()]
        if as_json:
            print_json(rows)
        else:
            print_table(["PAGE", "TITLE"], [[row["name"], row["title"]] for row in rows])
        return
    name = page.removeprefix("docs/").removesuffix(".md")
    if name not in pages:
        near = difflib.get_close_matches(name, pages, n=1)
        hint = f'did you mean "{near[0]}"?' if near else "see: dragoman docs"
        fail(f'unknown page "{page}"; {hint}', NOT_FOUND)
    text = pages[name].read_text(encoding="utf-8")
    if as_json:
        print_json({"name": name, "text": text})
    else:
        print(text, end="")


def find_pages() -> dict[str, Path]:
    """Returns every page by name, pages of subfolders last."""
    folder = find_folder()
    found = sorted(folder.rglob("*.md"), key=lambda path: (path.parent != folder, path))
    return {str(path.relative_to(folder).with_suffix("")): path for path in found}


def find_folder() -> Path:
    """Returns the folder inside the package, or beside the sources in a checkout."""
    package = Path(dragoman.__file__).parent
    inside = package / "docs"
    return inside if inside.is_dir() else package.parent.parent / "docs"


def _read_title(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline().removeprefix("# ").strip()
