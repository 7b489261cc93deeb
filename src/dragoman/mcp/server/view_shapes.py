"""How a view shows the definition of a tool: its description there, cut to a length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.core.shortened_texts import list_shortened, note_shortened
from dragoman.core.tool import Tool
from dragoman.core.views import NamedView

_SCHEMAS = ("items", "additionalProperties", "not", "contains", "propertyNames")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_TABLES = ("properties", "$defs", "definitions", "patternProperties")
MAX_DEPTH = 32
CUT = "…"


def shape_for_view(definition: dict[str, Any], tool: Tool, view: NamedView) -> dict[str, Any]:
    """Returns the definition as the view shows it, with a note in `_meta` on what is cut. What is
    validated stays the tool's own."""
    told = view.find_description(tool)
    if told is not None:
        definition = {**definition, "description": told}
    most = view.rule.description_chars
    if not most:
        return definition
    shaped = dict(definition)
    if told is None and isinstance(text := shaped.get("description"), str):
        shaped["description"] = cut_text(text, most)
    if isinstance(schema := shaped.get("inputSchema"), dict):
        shaped["inputSchema"] = cut_schema(schema, most)
    return dict(note_shortened(shaped, list_shortened(definition, shaped)))


def cut_text(text: str, most: int) -> str:
    """Cuts a text after a sentence or a word, to at most so many characters."""
    if len(text) <= most:
        return text
    kept = text[: max(most - len(CUT), 0)]
    end = max(kept.rfind(mark) for mark in (". ", ".\n", "\n\n"))
    if end >= most // 2:
        return kept[: end + 1].rstrip()
    space = kept.rfind(" ")
    return (kept[:space] if space >= most // 2 else kept).rstrip() + CUT


def cut_schema(schema: Mapping[str, Any], most: int, depth: int = 0) -> dict[str, Any]:
    """Cuts the descriptions in a schema, and leaves values such as defaults and examples alone."""
    shaped = dict(schema)
    if depth >= MAX_DEPTH:
        return shaped
    if isinstance(text := shaped.get("description"), str):
        shaped["description"] = cut_text(text, most)
    for key in _SCHEMAS:
        if isinstance(inner := shaped.get(key), dict):
            shaped[key] = cut_schema(inner, most, depth + 1)
    for key in _LISTS:
        if isinstance(listed := shaped.get(key), list):
            shaped[key] = [
                cut_schema(one, most, depth + 1) if isinstance(one, dict) else one for one in listed
            ]
    for key in _TABLES:
        if isinstance(table := shaped.get(key), dict):
            shaped[key] = {
                name: cut_schema(one, most, depth + 1) if isinstance(one, dict) else one
                for name, one in table.items()
            }
    return shaped
