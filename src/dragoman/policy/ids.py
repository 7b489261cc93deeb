"""The entity ids by which policies name tools, and the texts that can equal a name. Pure.

The id of a tool or skill is its identity, `github.get_user`; that of a prompt, resource or template
begins with its kind, `prompt:github.review`, so that a permit for one does not cover the other.
Policies may spell a tool in any way: their ids are folded when they are loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dragoman.core.tool import COMPLETION, PROMPT, RESOURCE, SUBSCRIPTION, TEMPLATE, TOOL, Tool
from dragoman.core.tool_identity import fold_id, fold_name

_TYPES = frozenset({"Hub::Tool", "Hub::Skill"})
_ADDRESSED = frozenset({RESOURCE, TEMPLATE})
_ABOUT = {SUBSCRIPTION: RESOURCE, COMPLETION: PROMPT}
"""The kind that another kind of call refers to."""
_COMPARED = frozenset({"==", "!=", "contains", "containsAll", "containsAny", "in"})
WILDCARD = "*"


def find_catalog_kind(kind: str, definition: Mapping[str, Any]) -> str:
    """Returns the kind that a call of `kind` refers to: a tool, prompt, resource or template."""
    if kind == COMPLETION and "uriTemplate" in definition:
        return TEMPLATE
    return _ABOUT.get(kind, kind)


def build_entity_id(kind: str, name: str) -> str:
    """Returns the entity id of `name`, by its kind."""
    return name if kind == TOOL else f"{kind}:{name}"


def id_from_tool(tool: Tool) -> str:
    return build_entity_id(find_catalog_kind(tool.kind, tool.definition), tool.name)


def split_id(id: str) -> tuple[str, str]:
    """Splits an id into kind and name."""
    kind, colon, name = id.partition(":")
    return (kind, name) if colon and kind in (PROMPT, *_ADDRESSED) else (TOOL, id)


def fold_entity_id(id: str) -> str:
    """Folds an id in any spelling. URIs are case-sensitive and are not folded."""
    kind, name = split_id(id)
    return id if kind in _ADDRESSED else build_entity_id(kind, fold_id(name))


def fold_form(node: Any) -> Any:
    """Folds all ids of tools and skills in the JSON form of a policy."""
    if isinstance(node, list):
        return [fold_form(one) for one in node]
    if not isinstance(node, dict):
        return node
    if node.keys() == {"type", "id"} and node["type"] in _TYPES:
        return {**node, "id": fold_entity_id(str(node["id"]))}
    return {key: one if key == "annotations" else fold_form(one) for key, one in node.items()}


def list_named_ids(node: Any) -> Iterator[tuple[str, str]]:
    """Lists the types and ids of the tools and skills that such a form names."""
    if isinstance(node, dict) and node.keys() == {"type", "id"} and node["type"] in _TYPES:
        yield str(node["type"]).removeprefix("Hub::"), str(node["id"])
    elif isinstance(node, dict | list):
        inner: Iterable[Any] = node.values() if isinstance(node, dict) else node
        for one in inner:
            yield from list_named_ids(one)


# --- texts that are compared with names -----------------------------------------------------------


def find_unmatched(form: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Finds texts that a policy compares with a name and that no name can equal, each with its
    correction."""
    for condition in form.get("conditions", ()):
        for text in _list_compared(condition.get("body")):
            if (right := fold_text(text)) != text:
                yield text, right


def fold_text(text: str) -> str:
    """Folds a name or a pattern of names. The part before the dot is the name of a server or agent
    and keeps its spelling; a text with a colon may be a URI and keeps it too."""
    if ":" in text:
        return text
    target, dot, name = text.partition(".")
    if dot:
        return f"{target}.{_fold_pattern(name)}"
    first, star, rest = text.partition(WILDCARD)
    return f"{first}{star}{_fold_pattern(rest)}"


def _fold_pattern(text: str) -> str:
    if WILDCARD not in text:
        return fold_name(text)
    return re.sub(r"[^a-z0-9_*]", "_", text.lower())


def _list_compared(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for one in node:
            yield from _list_compared(one)
    if not isinstance(node, dict):
        return
    for op, at in node.items():
        if op == "like" and isinstance(at, dict) and _is_name(at.get("left")):
            yield "".join(
                WILDCARD if one == "Wildcard" else str(one["Literal"])
                for one in at.get("pattern", ())
            )
        elif op in _COMPARED and isinstance(at, dict):
            left, right = at.get("left"), at.get("right")
            for side, other in ((left, right), (right, left)):
                if _is_name(side):
                    yield from _list_texts(other)
        yield from _list_compared(at)


def _is_name(node: Any) -> bool:
    """Whether the node reads the name of a tool, or the names of a chain."""
    at = node.get(".") if isinstance(node, dict) else None
    if not isinstance(at, dict):
        return False
    if at.get("left") == {"Var": "context"}:
        return at.get("attr") == "chain"
    return at.get("attr") in ("name", "id")


def _list_texts(node: Any) -> Iterator[str]:
    if isinstance(node, dict) and isinstance(node.get("Value"), str):
        yield node["Value"]
    elif isinstance(node, dict | list):
        inner: Iterable[Any] = node.values() if isinstance(node, dict) else node
        for one in inner:
            yield from _list_texts(one)
