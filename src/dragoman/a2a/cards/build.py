"""Cards: what an agent says of itself, in the form of 1.0, and in the shapes that clients read.

Pure. Who the agents are, who may see what of them and where they are served is known elsewhere; how
the cards of others are read is in `card_reading`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.a2a.cards.canonical import members
from dragoman.a2a.cards.parse import (
    MAX_CARD_BYTES,
    MAX_SKILLS,
    Interface,
    card_in,
    interfaces_of,
    read_card,
)
from dragoman.core.fast_dataclass import record

__all__ = [
    "MAX_CARD_BYTES",
    "MAX_SKILLS",
    "Described",
    "Interface",
    "Interfaces",
    "card_in",
    "card_of",
    "etag",
    "headers_of",
    "interfaces_of",
    "read_card",
    "shape",
    "skill_of_tool",
    "text_argument",
    "unchanged",
]

MERGED = "merged"
SHAPES = ("1.0", "0.3", "0.1", MERGED)

TEXT_MODE, DATA_MODE = "text/plain", "application/json"
MODES = (TEXT_MODE, DATA_MODE)

MAX_AGE_SECS = 60
"""A card follows the catalog; who has an old one asks again by its ETag, which costs little."""

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
class Described:
    """What there is to say of an agent. `skills`, `extensions` and `provider` are in 1.0's form."""

    name: str
    description: str
    version: str
    skills: Sequence[Mapping[str, Any]]
    input_modes: Sequence[str] = MODES
    output_modes: Sequence[str] = MODES
    streaming: bool
    push: bool
    extended: bool
    """Whether there is a card that says more, for those who say who they are."""
    extensions: Sequence[Mapping[str, Any]] = ()
    provider: Mapping[str, Any] | None = None
    documentation: str | None = None


@record(frozen=True, slots=True, kw_only=True)
class Interfaces:
    """Where an agent is reached, as a client sees it."""

    url: str
    """Of JSON-RPC and of HTTP+JSON alike; it names the agent by its path."""
    grpc: str | None = None
    """`host:port`; None for a card without it: google-adk 2.13 refuses a card with an address of
    another origin than the card's own."""
    tenant: str = ""
    """The agent where no path can name it, which is over gRPC."""


def card_of(described: Described, *, urls: Interfaces, security: bool) -> dict[str, Any]:
    """The agent's card in the form of 1.0; `security` says that a key is needed."""
    name = _cut(described.name, MAX_NAME) or "agent"
    description = _cut(described.description, MAX_DESCRIPTION) or f'The agent "{name}"'
    inputs, outputs = list(described.input_modes or MODES), list(described.output_modes or MODES)
    skills = [_whole(skill, inputs, outputs) for skill in described.skills[:MAX_SKILLS]]
    if not skills:  # a required list is never empty (5.7)
        only = {"id": name, "name": name, "description": description, "tags": ["agent"]}
        skills = [_whole(only, inputs, outputs)]
    card: dict[str, Any] = {
        "name": name,
        "description": description,
        "supportedInterfaces": _interfaces(urls),
        "version": _cut(described.version, MAX_NAME) or "0",
        "capabilities": _capabilities(described),
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


def _interfaces(urls: Interfaces) -> list[dict[str, Any]]:
    """The preferred one first. HTTP carries all versions at one address, and gRPC comes last. In
    0.3 gRPC has no tenant, so it reaches the default agent alone."""
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


def _capabilities(described: Described) -> dict[str, Any]:
    known: dict[str, Any] = {
        "streaming": described.streaming,
        "pushNotifications": described.push,
        "extendedAgentCard": described.extended,
    }
    if described.extensions:
        known["extensions"] = [dict(extension) for extension in described.extensions]
    return known


def _whole(skill: Mapping[str, Any], inputs: list[str], outputs: list[str]) -> dict[str, Any]:
    """A skill with nothing missing that any client asks for. fasta2a refuses one without modes."""
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


def skill_of_tool(
    name: str,
    title: str | None = None,
    description: str = "",
    tags: Sequence[str] = ("tool",),
    input_schema: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A tool as a skill. Its modes say what it takes: data by its schema, and text where there is
    one argument that it can only be."""
    takes_text = input_schema is None or text_argument(input_schema) is not None
    return {
        "id": name,
        "name": _cut(title, MAX_NAME) or name.replace("_", " "),
        "description": _cut(description, MAX_SKILL_DESCRIPTION) or f"Can use the {name} tool",
        "tags": list(tags),
        "examples": [],
        "inputModes": list(MODES) if takes_text else [DATA_MODE],
        "outputModes": list(MODES),
    }


def text_argument(schema: Mapping[str, Any]) -> str | None:
    """The argument that a plain text is meant for: the only required one, or else the only one,
    where it takes a string. None where there is none such."""
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


# --- shapes ---------------------------------------------------------------------------------------


def shape(card: Mapping[str, Any], version: str) -> dict[str, Any]:
    """A card of 1.0 as clients of `version` read it. Its signatures stay where its form does."""
    if version == "1.0":
        return _shape_10(card)
    if version == "0.3":
        return _shape_03(card)
    if version == "0.1":
        return _shape_01(card)
    if version == MERGED:
        return _shape_merged(card)
    raise ValueError(f'a card has no shape "{version}"; there are {", ".join(SHAPES)}')


def _shape_10(card: Mapping[str, Any]) -> dict[str, Any]:
    """What 1.0 knows and no more: the official schema takes no member that it does not name."""
    pure = members(card)
    pure["skills"] = [{**skill, "examples": skill.get("examples", [])} for skill in pure["skills"]]
    return pure


def _shape_03(card: Mapping[str, Any]) -> dict[str, Any]:
    passed = ("name", "description", "version", "provider", "documentationUrl", "iconUrl")
    old: dict[str, Any] = {name: card[name] for name in passed if name in card}
    old |= _connection_03(card)
    capabilities = card["capabilities"]
    old["capabilities"] = {
        "streaming": capabilities.get("streaming", False),
        "pushNotifications": capabilities.get("pushNotifications", False),
        "stateTransitionHistory": True,
    }
    if extensions := capabilities.get("extensions"):
        old["capabilities"]["extensions"] = extensions
    old["supportsAuthenticatedExtendedCard"] = capabilities.get("extendedAgentCard", False)
    if schemes := card.get("securitySchemes"):
        old["securitySchemes"] = {name: _scheme_03(scheme) for name, scheme in schemes.items()}
    if requirements := card.get("securityRequirements"):
        old["security"] = _security_03(requirements)
    old["defaultInputModes"] = card["defaultInputModes"]
    old["defaultOutputModes"] = card["defaultOutputModes"]
    old["skills"] = [_skill_03(skill) for skill in card["skills"]]
    return old


def _connection_03(card: Mapping[str, Any]) -> dict[str, Any]:
    """Its interfaces of 0.x; of a card that has none, those that there are."""
    every = card["supportedInterfaces"]
    served = [one for one in every if one["protocolVersion"].startswith("0.")] or every
    if not served:
        return {"protocolVersion": "0.3.0"}
    return {
        "url": served[0]["url"],
        "preferredTransport": served[0]["protocolBinding"],
        "protocolVersion": "0.3.0",
        "additionalInterfaces": [
            {"url": one["url"], "transport": one["protocolBinding"]} for one in served
        ],
    }


_SCHEMES_03 = {
    "apiKeySecurityScheme": "apiKey",
    "httpAuthSecurityScheme": "http",
    "oauth2SecurityScheme": "oauth2",
    "openIdConnectSecurityScheme": "openIdConnect",
    "mtlsSecurityScheme": "mutualTLS",
}


def _scheme_03(scheme: Mapping[str, Any]) -> dict[str, Any]:
    for name, kind in _SCHEMES_03.items():
        if name in scheme:
            inner = dict(scheme[name])
            if "location" in inner:
                inner["in"] = inner.pop("location")
            return {"type": kind, **inner}
    return {}


def _security_03(requirements: Sequence[Mapping[str, Any]]) -> list[dict[str, list[str]]]:
    return [
        {name: list(scopes.get("list", ())) for name, scopes in one.get("schemes", {}).items()}
        for one in requirements
    ]


def _skill_03(skill: Mapping[str, Any]) -> dict[str, Any]:
    old = {name: value for name, value in skill.items() if name != "securityRequirements"}
    if requirements := skill.get("securityRequirements"):
        old["security"] = _security_03(requirements)
    return old


def _shape_01(card: Mapping[str, Any]) -> dict[str, Any]:
    """As v0.1.0 has it, and the seed."""
    newer = _shape_03(card)
    passed = ("name", "description", "url", "version", "provider", "documentationUrl")
    old = {name: newer[name] for name in passed if name in newer}
    old["capabilities"] = {
        name: newer["capabilities"][name]
        for name in ("streaming", "pushNotifications", "stateTransitionHistory")
    }
    if schemes := _authentication(card):
        old["authentication"] = {"schemes": schemes}
    known = ("id", "name", "description", "tags", "examples")
    old["skills"] = [
        {"examples": []} | {k: skill[k] for k in known if k in skill} for skill in card["skills"]
    ]
    for modes in ("defaultInputModes", "defaultOutputModes"):
        # Its readers look for "text"; those of v0.1.0 also know media types.
        old[modes] = ["text"] * (TEXT_MODE in card[modes]) + card[modes]
    return old


def _authentication(card: Mapping[str, Any]) -> list[str]:
    """The schemes in the words of 0.1: what is named before the credentials in the header."""
    if not card.get("securityRequirements"):
        return []
    found = []
    for scheme in card.get("securitySchemes", {}).values():
        http = scheme.get("httpAuthSecurityScheme", {}).get("scheme", "")
        found.append(http.lower() or _scheme_03(scheme).get("type", ""))
    return [name for name in found if name]


def _shape_merged(card: Mapping[str, Any]) -> dict[str, Any]:
    """1.0 and what the readers of 0.3 and 0.1 need besides. What 1.0 knows of it stays as it is,
    so that a signature holds: readers of 1.0 leave the rest out before they check it."""
    old = _shape_03(card)
    merged = {**old, **card}
    merged["capabilities"] = {**old["capabilities"], **card["capabilities"]}
    if "securitySchemes" in card:
        merged["securitySchemes"] = {
            name: {**old["securitySchemes"][name], **scheme}
            for name, scheme in card["securitySchemes"].items()
        }
    merged["skills"] = [
        {**before, **skill} for before, skill in zip(old["skills"], card["skills"], strict=True)
    ]
    if schemes := _authentication(card):
        merged["authentication"] = {"schemes": schemes}
    return merged


# --- as it is served ------------------------------------------------------------------------------


def etag(data: bytes) -> str:
    """A strong one: the same bytes, the same tag."""
    return f'"{hashlib.sha256(data).hexdigest()[:32]}"'


def unchanged(tag: str, if_none_match: str) -> bool:
    """RFC 9110, 13.1.2: compared weakly, and `*` stands for whatever there is."""
    asked = [one.strip().removeprefix("W/") for one in if_none_match[:4_096].split(",")]
    return tag in asked or "*" in asked


def headers_of(data: bytes, *, shared: bool) -> list[tuple[bytes, bytes]]:
    """The head of a card's answer. `shared` says that every caller is shown the same."""
    scope = "public" if shared else "private"
    return [
        (b"content-type", b"application/json"),
        (b"etag", etag(data).encode()),
        (b"cache-control", f"{scope}, max-age={MAX_AGE_SECS}".encode()),
        (b"vary", b"A2A-Version, Authorization"),
    ]


def _cut(text: Any, limit: int) -> str:
    said = text.strip() if isinstance(text, str) else ""
    return said if len(said) <= limit else said[: limit - 1] + "…"
