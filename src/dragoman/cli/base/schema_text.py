"""Renders a JSON Schema as an indented list of arguments, wrapped to the terminal.

Schemas come from servers: depth, number of lines and references are bounded.
"""

from __future__ import annotations

import difflib
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dragoman.cli.base.output import clean, get_terminal_width

MAX_DEPTH = 6
MAX_LINES = 400
MAX_CHOICES = 20
STEP = 2


def get_properties(schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the properties of an object schema, ignoring malformed ones."""
    found = schema.get("properties")
    properties = found if isinstance(found, dict) else {}
    return {key: about if isinstance(about, dict) else {} for key, about in properties.items()}


def list_required(schema: Mapping[str, Any]) -> list[str]:
    found = schema.get("required")
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def find_misspelt(schema: Mapping[str, Any], given: Iterable[str]) -> list[tuple[str, str, bool]]:
    """Finds arguments unknown to the schema that resemble a known one. Returns each with the known
    name and whether the call must fail."""
    known = get_properties(schema)
    given = list(given)
    found = []
    for name in given:
        if name in known or not known:
            continue
        free = [each for each in known if each not in given]
        near = difflib.get_close_matches(name, free, n=1, cutoff=0.6)
        if near:
            closed = schema.get("additionalProperties") is False
            found.append((name, near[0], closed or near[0] in list_required(schema)))
    return found


def render_arguments(schema: Mapping[str, Any]) -> list[str]:
    """Renders each argument on one or more lines, nested ones indented below."""
    lines: list[str] = []
    for line in _render_members(schema, schema, 1, ()):
        if len(lines) >= MAX_LINES:
            lines.append(f"{' ' * STEP}… (--json has the whole schema)")
            break
        lines.append(line)
    return lines


def wrap(text: str, indent: int, first: int | None = None) -> list[str]:
    """Wraps text to the terminal, the first line indented by `first`."""
    start = " " * (indent if first is None else first)
    width = max(get_terminal_width(), indent + 20)
    return textwrap.wrap(text, width, initial_indent=start, subsequent_indent=" " * indent)


def _render_members(
    root: Mapping[str, Any], schema: Mapping[str, Any], depth: int, seen: tuple[str, ...]
) -> Iterator[str]:
    required = list_required(schema)
    for name, written in get_properties(schema).items():
        about, below = _resolve(root, written, seen)
        needed = "required" if name in required else "optional"
        kind = describe_type(root, about, below)
        words = f"{clean(name)}  {kind}, {needed}"
        if "default" in about:
            words += f", default {clean(json.dumps(about['default'], ensure_ascii=False))}"
        if about.get("description"):
            words += f"  {clean(about['description'])}"
        yield from wrap(words, depth * STEP + 2 * STEP, depth * STEP)
        yield from _render_nested(root, about, depth + 1, below)


def _render_nested(
    root: Mapping[str, Any], about: Mapping[str, Any], depth: int, seen: tuple[str, ...]
) -> Iterator[str]:
    if depth > MAX_DEPTH:
        return
    if isinstance(about.get("items"), dict):
        items, below = _resolve(root, about["items"], seen)
        yield from _render_nested(root, items, depth, below)
    forms = [one for one in _list_alternatives(about) if isinstance(one, dict)]
    for written in forms:
        form, below = _resolve(root, written, seen)
        if get_properties(form) and len(forms) > 1:
            title = clean(form.get("title") or form.get("description") or "an object")
            yield from wrap(f"either: {title}", depth * STEP)
        yield from _render_members(root, form, depth + (len(forms) > 1), below)
    yield from _render_members(root, about, depth, seen)


def _list_alternatives(about: Mapping[str, Any]) -> list[Any]:
    for key in ("anyOf", "oneOf"):
        if isinstance(about.get(key), list):
            return list(about[key])
    return []


def _resolve(
    root: Mapping[str, Any], about: Mapping[str, Any], seen: tuple[str, ...]
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Resolves a local `$ref`, each reference once per path."""
    reference = about.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return about, seen
    if reference in seen:
        return {"type": f"recursive ({reference.rpartition('/')[2]})"}, seen
    found: Any = root
    for step in reference[2:].split("/"):
        step = step.replace("~1", "/").replace("~0", "~")
        found = found.get(step) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        return about, seen
    more = {key: value for key, value in about.items() if key != "$ref"}
    return {**found, **more}, (*seen, reference)


def describe_type(
    root: Mapping[str, Any], about: Mapping[str, Any], seen: tuple[str, ...] = (), depth: int = 0
) -> str:
    choices = about.get("enum")
    if isinstance(choices, list):
        more = ", …" if len(choices) > MAX_CHOICES else ""
        return "one of " + ", ".join(clean(choice) for choice in choices[:MAX_CHOICES]) + more
    if "const" in about:
        return f"always {clean(json.dumps(about['const'], ensure_ascii=False))}"
    kind = about.get("type")
    if kind is None and depth < MAX_DEPTH and (forms := _list_alternatives(about)):
        names = [
            describe_type(root, *_resolve(root, one, seen), depth + 1)
            for one in forms
            if isinstance(one, dict)
        ]
        return " or ".join(dict.fromkeys(names)) or "any"
    if kind == "array" and depth < MAX_DEPTH and isinstance(about.get("items"), dict):
        inner = describe_type(root, *_resolve(root, about["items"], seen), depth + 1)
        return f"array of {inner}"
    if kind is None:
        kind = "object" if get_properties(about) else "any"
    return clean(" or ".join(map(str, kind)) if isinstance(kind, list) else kind)
