"""Warns of long modules; `make check` prints it and does not fail."""

from __future__ import annotations

from pathlib import Path

MAX_LINES = 800


def find_long_modules(root: Path) -> list[str]:
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in root.rglob("*.py")}
    return [
        f"{path.relative_to(root)} has {lines} lines: split it if it holds two nouns"
        for path, lines in sorted(lengths.items())
        if lines > MAX_LINES
    ]


if __name__ == "__main__":
    for warning in find_long_modules(Path(__file__).parent.parent / "src"):
        print(f"warning: {warning}")
