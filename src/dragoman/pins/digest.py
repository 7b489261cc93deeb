"""What of a definition is pinned, and when two of them are the same. Pure.

Of a tool, prompt, resource or skill every member that clients are shown is pinned; of an agent's
card what it is called, what it says, and where calls go. Keys in another order, sets in another
order and white space in texts are no change. Knows nothing of who approves what.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from dragoman.core.tool import INSTRUCTIONS, PROMPT, RESOURCE, TEMPLATE, TOOL
from dragoman.wire.json import encode

SKILL, CARD = "skill", "card"
"""What is pinned beside what the catalogs have."""
ADDRESSED = frozenset({RESOURCE, TEMPLATE})
LASTING = ADDRESSED | {INSTRUCTIONS}
"""A change of these does not take them away: the text that was approved is shown meanwhile."""

SCHEME = 2
"""Which members are pinned. In scheme 1 there were fewer; such a pin is compared by those."""

_TOOL = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
_MEMBERS: Mapping[str, tuple[str, ...]] = {
    TOOL: _TOOL,
    SKILL: _TOOL,
    PROMPT: ("name", "title", "description", "arguments"),
}
_OWN = "execution"
"""Of a tool: the hub says itself whether it may be called as a task."""
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
"""There every list is a set, however deep."""
_NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
"""There keys are names, which mean nothing by themselves."""


def select_pinned(
    kind: str, definition: Mapping[str, Any], skill: Any = None, scheme: int = SCHEME
) -> dict[str, Any]:
    """What is pinned of a definition; of a skill's what the card says of it as well."""
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
    """A resource without its size and the time of its last change, which are no words of its
    server's and change with every write."""
    found = {name: value for name, value in definition.items() if name != "size"}
    notes = found.get("annotations")
    if isinstance(notes, Mapping) and "lastModified" in notes:
        found["annotations"] = {name: notes[name] for name in notes if name != "lastModified"}
        if not found["annotations"]:
            del found["annotations"]
    return found


def add_measures(approved: Mapping[str, Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """A resource as it was approved with the size and the time that it has now, where they are
    such."""
    found = dict(approved)
    if type(size := offered.get("size")) is int:
        found["size"] = size
    notes = offered.get("annotations")
    when = notes.get("lastModified") if isinstance(notes, Mapping) else None
    if isinstance(when, str) and _TIME.fullmatch(when):
        found["annotations"] = {**(found.get("annotations") or {}), "lastModified": when}
    return found


def select_pinned_of_card(card: Mapping[str, Any], scheme: int = SCHEME) -> dict[str, Any]:
    """The same of a card, of any version of A2A and in whichever spelling."""
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
    """Both spellings count, `inputModes` and `input_modes`: whoever reads it may take either."""
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
    """The form in which those that are the same are equal; `key` is where it stands."""
    if isinstance(value, str):
        return " ".join(value.split()) if key in _TEXTS else value
    if isinstance(value, Mapping):
        if key in _NAMED:
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
    """SHA-256 over the canonical JSON of `members`."""
    return hashlib.sha256(encode(normalize(pinned))).hexdigest()
