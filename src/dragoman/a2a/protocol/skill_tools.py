"""Builds tools from the skills on a remote agent's card: names, schemas, descriptions. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from dragoman.core.agent_tool import is_accepted
from dragoman.core.ports import SchemaCompiler
from dragoman.core.tool import Bridged, Target, Tool
from dragoman.core.tool_identity import (
    append_digest,
    build_identity,
    build_portable_names,
    fold_name,
    shorten,
)

MAX_SAFE = 64
"""The limit of most models' APIs, which also allow no dot."""
OPEN: Mapping[str, Any] = {"type": "object", "additionalProperties": True}
"""The schema of a skill without one: any object."""

_OTHER = re.compile(r"[^a-z0-9]+")
_UNNAMEABLE = re.compile(r"[^A-Za-z0-9_.-]")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def slug_from_name(name: str) -> str:
    """`Linear (prod)` -> `linear_prod`; empty for a name without ASCII letters and digits."""
    return _OTHER.sub("_", name.lower()).strip("_")


def build_spelled_name(slug: str, skill: str) -> str:
    """`slug.skill`, with the skill spelled as on its card, as far as tool names allow."""
    return shorten(
        f"{slug}.{_UNNAMEABLE.sub('_', _fold_to_ascii(skill))}", original=f"{slug}.{skill}"
    )


def build_alias(slug: str, skill: str) -> str:
    """`a2a_slug_skill`, both as slugs."""
    return shorten(
        f"a2a_{slug}_{slug_from_name(_fold_to_ascii(skill))}", original=f"{slug}.{skill}"
    )


def _build_other_names(slug: str, skill: str, canonical: str, spelled: str) -> dict[str, str]:
    """Returns the name in each style; `safe!` is unique whatever other tools are called."""
    safe = _UNSAFE.sub("_", f"{slug}_{_fold_to_ascii(skill)}")
    names = {
        "legacy": spelled,
        "dotted": spelled,
        "alias": build_alias(slug, skill),
        "safe": shorten(safe, MAX_SAFE, canonical),
        "safe!": append_digest(safe, canonical, MAX_SAFE),
        **build_portable_names(spelled, safe, canonical),
    }
    if spelled != canonical:
        names["spelled"] = spelled
    if (verbatim := f"{slug}.{skill}") not in (canonical, spelled):
        names["verbatim"] = verbatim
    return names


def _fold_to_ascii(skill: str) -> str:
    """Returns `skill` itself if it is ASCII, else its folded name."""
    return skill if skill.isascii() else fold_name(skill)


# --- tools ----------------------------------------------------------------------------------------


class SkillOwner(NamedTuple):
    """The agent that skills belong to."""

    target: Target
    slug: str
    card_id: str
    url: str
    sources: frozenset[str]
    sinks: frozenset[str]


def build_skill_tools(
    owner: SkillOwner,
    card: Mapping[str, Any],
    compile_schema: SchemaCompiler,
    taken: set[str],
    odd: list[str],
) -> list[Tool]:
    """Builds a tool from each skill on a card of 1.0's form. `taken` are other names of the agent;
    reasons why a skill is not offered are added to `odd`."""
    found = []
    for skill in card.get("skills") or ():
        try:
            tool = _build_tool(owner, skill, compile_schema, taken)
        except ValueError as problem:
            odd.append(f'its skill "{str(skill.get("id"))[:100]}" is not offered: {problem}')
            continue
        found.append(tool)
    return found


def _build_tool(
    owner: SkillOwner, skill: Mapping[str, Any], compile_schema: SchemaCompiler, taken: set[str]
) -> Tool:
    id = skill["id"]
    schema = skill.get("inputSchema", OPEN)
    if schema.get("type", "object") != "object":
        raise ValueError("its inputSchema is not of type object")
    try:
        validate = compile_schema(schema)
    except ValueError as problem:
        raise ValueError(f"its inputSchema is invalid: {problem}") from None
    name, spelled = build_identity(owner.slug, id), build_spelled_name(owner.slug, id)
    if name in taken:
        name = spelled = append_digest(name, fold_name(id))
    others = _build_other_names(owner.slug, id, name, spelled)
    description = describe_skill(id, owner.target.name, skill)
    return Tool(
        name=name,
        alias=spelled,
        other_names=others,
        remote_name=id,
        description=description,
        definition={"name": spelled, "description": description, "inputSchema": schema},
        validate=validate,
        bridged=Bridged(
            agent=owner.target.name,
            card_id=owner.card_id,
            url=owner.url,
            skill_id=id,
            alias=others["alias"],
        ),
        sources=owner.sources,
        sinks=owner.sinks,
        target=owner.target,
    )


def describe_skill(id: str, agent: str, skill: Mapping[str, Any]) -> str:
    words = f"Invokes the {id} skill on remote A2A agent {agent}"
    own = skill.get("description")
    # The description of a skill defaults to its name.
    return f"{words}. {own}" if own and own not in (id, skill.get("name")) else words


AS_DATA, AS_TEXT, AS_BOTH = "data", "text", "both"
"""How the arguments of a call are sent."""


def choose_argument_forms(raw: Mapping[str, Any], card: Mapping[str, Any]) -> dict[str, str]:
    """Chooses the form of each skill's arguments by the input modes on the card. Text if it accepts
    no JSON; both if it accepts both without a schema, because most such agents read only the text;
    data if the card declares nothing, or a schema."""
    listed = raw.get("skills")
    said = {
        one["id"]: one
        for one in (listed if isinstance(listed, list) else ())
        if isinstance(one, dict) and isinstance(one.get("id"), str)
    }
    found = {}
    for skill in card.get("skills") or ():
        own = said.get(skill["id"], {})
        modes = skill.get("inputModes") or ()
        known = bool(raw.get("defaultInputModes") or own.get("inputModes"))
        form = AS_DATA
        if known and is_accepted(modes, "text/plain"):
            if not is_accepted(modes, "application/json"):
                form = AS_TEXT
            elif "inputSchema" not in skill:
                form = AS_BOTH
        found[skill["id"]] = form
    return found
