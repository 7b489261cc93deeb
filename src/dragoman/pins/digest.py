"""Selects what is pinned of a definition, and computes its digest. Pure.

Of a tool, prompt, resource or skill every member that clients see is pinned; of an agent's card its
names, descriptions and addresses. The order of keys and of sets, and white space in texts, do not
matter. Knows nothing of approvals.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from dragoman.core.tool import INSTRUCTIONS, PROMPT, RESOURCE, TEMPLATE, TOOL
from dragoman.wire.json import encode

SKILL, CARD = "skill", "card"
"""Pinned kinds besides those of the catalogs."""
EXTENDED = "extended"
"""The id of the extended card of an agent; that of its card is empty."""
ADDRESSED = frozenset({RESOURCE, TEMPLATE})
LASTING = ADDRESSED | {INSTRUCTIONS}
"""Kinds that stay available when they change: the approved text is shown meanwhile."""

SCHEME = 2
"""The version of the selection. Scheme 1 had fewer members; an old pin is compared by those."""

_TOOL = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
_MEMBERS: Mapping[str, tuple[str, ...]] = {
    TOOL: _TOOL,
    SKILL: _TOOL,
    PROMPT: ("name", "title", "description", "arguments"),
}
_OWN = "execution"
"""Not pinned: the hub itself decides whether a tool may be called as a task."""
_TIME = re.compile(r"[0-9][0-9T:.+Zz -]{3,39}")
_SKILL = frozenset({
    "id", "name", "description", "tags", "examples", "inputmodes", "outputmodes", "inputschema",
    "security", "securityrequirements",
})  # fmt: skip
_CARD = frozenset({
    "name", "description", "provider", "url", "preferredtransport", "securityschemes", "security",
    "securityrequirements", "authentication",
})  # fmt: skip
_MODES = frozenset(("defaultinputmodes", "defaultoutputmodes"))
_INTERFACES = frozenset(("supportedinterfaces", "additionalinterfaces", "interfaces"))

_TEXTS = frozenset(("description", "title", "examples"))
_SETS = frozenset({
    "required", "enum", "type", "allOf", "anyOf", "oneOf", "tags", "examples", "inputModes",
    "outputModes", "defaultInputModes", "defaultOutputModes", "default_input_modes",
    "default_output_modes", "supportedInterfaces", "additionalInterfaces", "extensions",
})  # fmt: skip
_SETS_WITHIN = frozenset(("security", "securityRequirements", "dependentRequired"))
"""Inside these every list is a set, at any depth."""
NAMED_SCHEMAS = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
)
"""Inside these keys are names without a meaning of their own."""


def select_pinned(
    kind: str, definition: Mapping[str, Any], skill: Any = None, scheme: int = SCHEME
) -> dict[str, Any]:
    """Returns the pinned members of a definition, and for a skill also those on the card."""
    names = _MEMBERS.get(kind, ()) if scheme == 1 else definition
    found = {
        name: definition[name]
        for name in names
        if definition.get(name) is not None and name != _OWN
    }
    if kind in ADDRESSED:
        found = remove_measures(found)
    if isinstance(skill, Mapping):
        found |= _pick_members(skill, _SKILL) if scheme == 1 else {**skill}
    return found


def remove_measures(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Removes the size and the modification time of a resource, which change with every write."""
    found = {name: value for name, value in definition.items() if name != "size"}
    notes = found.get("annotations")
    if isinstance(notes, Mapping) and "lastModified" in notes:
        found["annotations"] = {name: notes[name] for name in notes if name != "lastModified"}
        if not found["annotations"]:
            del found["annotations"]
    return found


def add_measures(approved: Mapping[str, Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an approved resource with its current size and modification time, if valid."""
    found = dict(approved)
    if type(size := offered.get("size")) is int:
        found["size"] = size
    notes = offered.get("annotations")
    when = notes.get("lastModified") if isinstance(notes, Mapping) else None
    if isinstance(when, str) and _TIME.fullmatch(when):
        found["annotations"] = {**(found.get("annotations") or {}), "lastModified": when}
    return found


def select_pinned_of_card(card: Mapping[str, Any], scheme: int = SCHEME) -> dict[str, Any]:
    """Returns the pinned members of a card, of any version of A2A and in any spelling."""
    found = _pick_members(card, _CARD if scheme == 1 else _CARD | _MODES)
    for name, value in _pick_members(card, _INTERFACES).items():
        places = value if isinstance(value, list) else [value]
        found[name] = [_remove_version(place) for place in places]
    required = []
    for capabilities in _pick_members(card, {"capabilities"}).values():
        if isinstance(capabilities, Mapping):
            required += _list_required(capabilities.get("extensions"))
    return found | {"extensions": required} if required else found


def _pick_members(value: Mapping[str, Any], wanted: Iterable[str]) -> dict[str, Any]:
    """Picks both spellings, `inputModes` and `input_modes`: a reader may take either."""
    return {
        name: inner
        for name, inner in value.items()
        if inner is not None and name.replace("_", "").lower() in wanted
    }


def _remove_version(place: Any) -> Any:
    if not isinstance(place, Mapping):
        return place
    return {
        name: value
        for name, value in place.items()
        if name.replace("_", "").lower() != "protocolversion"
    }


def _list_required(extensions: Any) -> list[Any]:
    if not isinstance(extensions, list):
        return []
    return [one for one in extensions if isinstance(one, Mapping) and one.get("required")]


def normalize(value: Any, key: str = "") -> Any:
    """Returns a form in which equivalent values are equal; `key` is the member's name."""
    if isinstance(value, str):
        return " ".join(value.split()) if key in _TEXTS else value
    if isinstance(value, Mapping):
        if key in NAMED_SCHEMAS:
            return {name: normalize(value[name]) for name in sorted(value)}
        within = key if key in _SETS_WITHIN else ""
        return {name: normalize(value[name], within or name) for name in sorted(value)}
    if isinstance(value, list | tuple):
        inner = key if key in _SETS_WITHIN or key in _TEXTS else ""
        items = [normalize(item, inner) for item in value]
        if key in _SETS or key in _SETS_WITHIN:
            items.sort(key=encode)
        return items
    if type(value) is float and value.is_integer():
        return int(value)  # RFC 8785: 1.0 is 1
    return value


def compute_digest(pinned: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of the normalized JSON of the pinned members."""
    return hashlib.sha256(encode(normalize(pinned))).hexdigest()
