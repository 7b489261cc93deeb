"""Prints the diffs of pins for people; equal changes of several definitions are printed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.cli.base.output import clean, style
from dragoman.core.safe_text import escape_controls

MAX_NAMED = 8
_COLOURS = {"-": "red", "+": "green", "!": "yellow"}


def print_diff(pin: Mapping[str, Any]) -> None:
    """Prints the summary and the diff of one pin."""
    print(clean(pin["summary"]))
    if pin["diff"]:
        print()
        _print_lines(str(pin["diff"]))


def print_diffs(pins: Sequence[Mapping[str, Any]]) -> None:
    """Prints the diffs of several pins: first each change that several have, with their names,
    then what is left of each."""
    shared = _find_shared(pins)
    for paragraph, names in sorted(shared.items(), key=lambda item: -len(item[1])):
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        listed = ", ".join(clean(name) for name in names[:MAX_NAMED])
        print(f"the same change in {len(names)} definitions: {listed}{more}\n")
        _print_lines(paragraph)
        print()
    for pin in pins:
        left = [part for part in _split(pin) if part not in shared]
        if left or not pin["diff"]:
            print_diff({**pin, "diff": "\n\n".join(left)})
            print()


def _find_shared(pins: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Returns the changes of more than one pin, with the names of these."""
    names: dict[str, list[str]] = {}
    for pin in pins:
        if pin["approved_at"] and pin["state"] != "new":  # otherwise there is no change
            for part in dict.fromkeys(_split(pin)):
                names.setdefault(part, []).append(str(pin["name"]))
    return {part: found for part, found in names.items() if len(found) > 1}


def _split(pin: Mapping[str, Any]) -> list[str]:
    """Splits a diff into its changes. No line within one is empty: each has a sign or indent."""
    return str(pin["diff"]).split("\n\n") if pin["diff"] else []


def _print_lines(text: str) -> None:
    for line in text.split("\n"):
        safe = escape_controls(line)
        sign = safe.strip()[:1]
        indented = safe.startswith("  ")
        print(style(safe, fg=_COLOURS[sign]) if indented and sign in _COLOURS else safe)
