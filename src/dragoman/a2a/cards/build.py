"""Builds agent cards in the form of 1.0. Pure: knows neither the catalog nor the principal."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.a2a.cards.parse import MAX_SKILLS
from dragoman.a2a.protocol.dialects.card_shapes import TEXT_MODE
from dragoman.core.fast_dataclass import record

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


@record(frozen=True, slots=True, kw_only=True)
class AgentDescription:
    """What a card says of an agent. `skills`, `extensions` and `provider` are in 1.0's form."""

    name: str
    description: str
    version: str
    skills: Sequence[Mapping[str, Any]]
    input_modes: Sequence[str] = MODES
    output_modes: Sequence[str] = MODES
    streaming: bool
    push: bool
    extended: bool
    """Whether authenticated clients get an extended card."""
    extensions: Sequence[Mapping[str, Any]] = ()
    provider: Mapping[str, Any] | None = None
    documentation: str | None = None


@record(frozen=True, slots=True, kw_only=True)
class CardAddresses:
    """The addresses of an agent, as a client sees them."""

    url: str
    """Of JSON-RPC and HTTP+JSON; its path names the agent."""
    grpc: str | None = None
    """`host:port`; None for a card without it: google-adk 2.13 rejects a card with an address of
    another origin than the card's own."""
    tenant: str = ""
    """Names the agent over gRPC, where no path can."""


def build_card(
    described: AgentDescription, *, urls: CardAddresses, security: bool
) -> dict[str, Any]:
    """Builds the agent's card in the form of 1.0; `security` declares that a key is required."""
    name = _cut(described.name, MAX_NAME) or "agent"
    description = _cut(described.description, MAX_DESCRIPTION) or f'The agent "{name}"'
    inputs, outputs = list(described.input_modes or MODES), list(described.output_modes or MODES)
    skills = [_complete_skill(skill, inputs, outputs) for skill in described.skills[:MAX_SKILLS]]
    if not skills:  # a required list is never empty (5.7)
        only = {"id": name, "name": name, "description": description, "tags": ["agent"]}
        skills = [_complete_skill(only, inputs, outputs)]
    card: dict[str, Any] = {
        "name": name,
        "description": description,
        "supportedInterfaces": _build_interfaces(urls),
        "version": _cut(described.version, MAX_NAME) or "0",
        "capabilities": _build_capabilities(described),
        "defaultInputModes": inputs,
        "defaultOutputModes": outputs,
        "skills": skills,
    }
    if described.provider:
        card["provider"] = dict(described.provider)
    if described.documentation:
        card["documentationUrl"] = described.documentation
    if security:
        card["securitySchemes"] = {name: dict(scheme) for name, scheme in _BEARER.items()}
        card["securityRequirements"] = [{"schemes": {"bearer": {"list": []}}}]
    return card


def _build_interfaces(urls: CardAddresses) -> list[dict[str, Any]]:
    """The preferred one first, gRPC last. HTTP serves all versions at one address. gRPC has no
    tenant in 0.3, so it reaches only the default agent."""
    found: list[dict[str, Any]] = [
        {"url": urls.url, "protocolBinding": binding, "protocolVersion": version}
        for version in ("1.0", "0.3")
        for binding in ("JSONRPC", "HTTP+JSON")
    ]
    if urls.grpc:
        grpc = {"url": urls.grpc, "protocolBinding": "GRPC", "protocolVersion": "1.0"}
        if urls.tenant:
            found.append({**grpc, "tenant": urls.tenant})
        else:
            found += [grpc, {**grpc, "protocolVersion": "0.3"}]
    return found


def _build_capabilities(described: AgentDescription) -> dict[str, Any]:
    known: dict[str, Any] = {
        "streaming": described.streaming,
        "pushNotifications": described.push,
        "extendedAgentCard": described.extended,
    }
    if described.extensions:
        known["extensions"] = [dict(extension) for extension in described.extensions]
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
    name: str,
    title: str | None = None,
    description: str = "",
    tags: Sequence[str] = ("tool",),
    input_schema: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Converts a tool to a skill. Its modes are data, and text if the text can only be meant for
    one argument."""
    takes_text = input_schema is None or find_text_argument(input_schema) is not None
    return {
        "id": name,
        "name": _cut(title, MAX_NAME) or name.replace("_", " "),
        "description": _cut(description, MAX_SKILL_DESCRIPTION) or f"Can use the {name} tool",
        "tags": list(tags),
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
