"""Builds agent cards in the form of 1.0. Pure: knows neither the catalog nor the principal."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from dragoman.a2a.cards.parse import MAX_SKILLS
from dragoman.a2a.protocol.dialects import ADVERTISED, find_traits
from dragoman.a2a.protocol.dialects.card_shapes import TEXT_MODE
from dragoman.core.structs import Struct
from dragoman.core.tool import AgentFacts

DATA_MODE = "application/json"
MODES = (TEXT_MODE, DATA_MODE)

MAX_AGE_SECS = 60
"""A card follows the catalog; a client revalidates an old one cheaply by its ETag."""

MAX_NAME = 256
MAX_DESCRIPTION = 4_000
MAX_SKILL_DESCRIPTION = 1_000
MAX_EXAMPLES = MAX_TAGS = 20
MAX_EXAMPLE = 1_000

_BEARER = {
    "bearer": {
        "httpAuthSecurityScheme": {
            "description": "A key of this hub, as Authorization: Bearer <key>.",
            "scheme": "Bearer",
        }
    }
}


class CardAddresses(Struct, frozen=True, kw_only=True):
    """The addresses of an agent, as a client sees them."""

    url: str
    """Of JSON-RPC and HTTP+JSON; its path names the agent."""
    grpc: str | None = None
    """`host:port`; None for a card without it: google-adk 2.13 rejects a card with an address of
    another origin than the card's own."""
    tenant: str = ""
    """Names the agent over gRPC, where no path can."""
    grpc_03: str | None = None
    """`host:port` where gRPC of 0.3, which has no tenant, reaches the agent; None if nowhere."""


def build_card(facts: AgentFacts, *, urls: CardAddresses, security: bool) -> dict[str, Any]:
    """Builds the agent's card in the form of 1.0; `security` declares that a key is required."""
    name = _cut(facts.name, MAX_NAME) or "agent"
    description = _cut(facts.description, MAX_DESCRIPTION) or f'The agent "{name}"'
    inputs, outputs = list(facts.input_modes or MODES), list(facts.output_modes or MODES)
    skills = [_complete_skill(skill, inputs, outputs) for skill in facts.skills[:MAX_SKILLS]]
    if not skills:  # a required list is never empty (5.7)
        only = {"id": name, "name": name, "description": description, "tags": ["agent"]}
        skills = [_complete_skill(only, inputs, outputs)]
    card: dict[str, Any] = {
        "name": name,
        "description": description,
        "supportedInterfaces": _build_interfaces(urls),
        "version": _cut(facts.version, MAX_NAME) or "0",
        "capabilities": _build_capabilities(facts),
        "defaultInputModes": inputs,
        "defaultOutputModes": outputs,
        "skills": skills,
    }
    if security:
        card["securitySchemes"] = {name: dict(scheme) for name, scheme in _BEARER.items()}
        card["securityRequirements"] = [{"schemes": {"bearer": {"list": []}}}]
    return card


def _build_interfaces(urls: CardAddresses) -> list[dict[str, Any]]:
    """The preferred one first, gRPC last. HTTP serves all versions at one address."""
    found: list[dict[str, Any]] = [
        {"url": urls.url, "protocolBinding": binding, "protocolVersion": version}
        for version in ADVERTISED
        for binding in ("JSONRPC", "HTTP+JSON")
        if binding == "JSONRPC" or find_traits(version).has_rest
    ]
    if urls.grpc:
        grpc = {"url": urls.grpc, "protocolBinding": "GRPC", "protocolVersion": "1.0"}
        found.append({**grpc, "tenant": urls.tenant} if urls.tenant else grpc)
    if urls.grpc_03:
        grpc = {"url": urls.grpc_03, "protocolBinding": "GRPC", "protocolVersion": "0.3"}
        found.append(grpc)
    return found


def _build_capabilities(facts: AgentFacts) -> dict[str, Any]:
    known: dict[str, Any] = {
        "streaming": facts.streaming,
        "pushNotifications": facts.push,
        "extendedAgentCard": facts.extended,
    }
    if facts.extensions:
        known["extensions"] = [dict(extension) for extension in facts.extensions]
    return known


def _complete_skill(
    skill: Mapping[str, Any], inputs: list[str], outputs: list[str]
) -> dict[str, Any]:
    """Fills in every member that a client may require. fasta2a rejects a skill without modes."""
    id_ = str(skill["id"])
    name = _cut(skill.get("name"), MAX_NAME) or id_
    return {
        **skill,
        "id": id_,
        "name": name,
        "description": _cut(skill.get("description"), MAX_SKILL_DESCRIPTION) or name,
        "tags": [_cut(tag, MAX_NAME) for tag in skill.get("tags") or ["agent"]][:MAX_TAGS],
        "examples": [_cut(one, MAX_EXAMPLE) for one in skill.get("examples") or ()][:MAX_EXAMPLES],
        "inputModes": list(skill.get("inputModes") or inputs),
        "outputModes": list(skill.get("outputModes") or outputs),
    }


def skill_from_tool(
    name: str, description: str = "", input_schema: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Converts a tool to a skill. Its modes are data, and text if the text can only be meant for
    one argument."""
    takes_text = input_schema is None or find_text_argument(input_schema) is not None
    return {
        "id": name,
        "name": name.replace("_", " "),
        "description": _cut(description, MAX_SKILL_DESCRIPTION) or f"Can use the {name} tool",
        "tags": ["tool"],
        "examples": [],
        "inputModes": list(MODES) if takes_text else [DATA_MODE],
        "outputModes": list(MODES),
    }


def find_text_argument(schema: Mapping[str, Any]) -> str | None:
    """Returns the argument that a plain text is meant for: the only required one, else the only
    one, if it takes a string; otherwise None."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return None
    required = schema.get("required")
    names = [n for n in required if n in properties] if isinstance(required, list) else []
    names = names or list(properties)
    if len(names) != 1:
        return None
    kind = properties[names[0]].get("type") if isinstance(properties[names[0]], Mapping) else None
    return names[0] if kind == "string" or (isinstance(kind, list) and "string" in kind) else None


# --- as it is served ------------------------------------------------------------------------------


def build_etag(data: bytes) -> str:
    """Returns a strong ETag."""
    return f'"{hashlib.sha256(data).hexdigest()[:32]}"'


def is_unchanged(tag: str, if_none_match: str) -> bool:
    """Whether If-None-Match matches: compared weakly, and `*` matches all (RFC 9110, 13.1.2)."""
    asked = [one.strip().removeprefix("W/") for one in if_none_match[:4_096].split(",")]
    return tag in asked or "*" in asked


def build_card_headers(data: bytes, *, shared: bool) -> list[tuple[bytes, bytes]]:
    """Builds the headers of a card's response. `shared`: every client gets the same card."""
    scope = "public" if shared else "private"
    return [
        (b"content-type", b"application/json"),
        (b"etag", build_etag(data).encode()),
        (b"cache-control", f"{scope}, max-age={MAX_AGE_SECS}".encode()),
        (b"vary", b"A2A-Version, Authorization"),
    ]


def _cut(text: Any, limit: int) -> str:
    said = text.strip() if isinstance(text, str) else ""
    return said if len(said) <= limit else said[: limit - 1] + "…"
