"""Converts an agent card of A2A 1.0 into the shape that each version's clients read. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.a2a.protocol.card_fields import select_members
from dragoman.a2a.protocol.dialects.operations import V01, V03, V10

MERGED = "merged"
SHAPES = (V10, V03, V01, MERGED)
TEXT_MODE = "text/plain"


def render_card(card: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Renders a card of 1.0 for clients of `version`. Signatures stay if the form does."""
    if version == V10:
        return _render_10(card)
    if version == V03:
        return _render_03(card)
    if version == V01:
        return _render_01(card)
    if version == MERGED:
        return _render_merged(card)
    raise ValueError(f'unknown card shape "{version}"; use {", ".join(SHAPES)}')


def _render_10(card: Mapping[str, Any]) -> dict[str, Any]:
    """Only the members of 1.0: the official schema rejects others."""
    pure = select_members(card)
    pure["skills"] = [{**skill, "examples": skill.get("examples", [])} for skill in pure["skills"]]
    return pure


def _render_03(card: Mapping[str, Any]) -> dict[str, Any]:
    passed = ("name", "description", "version", "provider", "documentationUrl", "iconUrl")
    old: dict[str, Any] = {name: card[name] for name in passed if name in card}
    old |= _render_connection_03(card)
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
        old["securitySchemes"] = {
            name: _render_scheme_03(scheme) for name, scheme in schemes.items()
        }
    if requirements := card.get("securityRequirements"):
        old["security"] = _render_security_03(requirements)
    old["defaultInputModes"] = card["defaultInputModes"]
    old["defaultOutputModes"] = card["defaultOutputModes"]
    old["skills"] = [_render_skill_03(skill) for skill in card["skills"]]
    return old


def _render_connection_03(card: Mapping[str, Any]) -> dict[str, Any]:
    """Renders the interfaces of 0.x; all interfaces if the card has none of them."""
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


def _render_scheme_03(scheme: Mapping[str, Any]) -> dict[str, Any]:
    for name, kind in _SCHEMES_03.items():
        if name in scheme:
            inner = dict(scheme[name])
            if "location" in inner:
                inner["in"] = inner.pop("location")
            return {"type": kind, **inner}
    return {}


def _render_security_03(requirements: Sequence[Mapping[str, Any]]) -> list[dict[str, list[str]]]:
    return [
        {name: list(scopes.get("list", ())) for name, scopes in one.get("schemes", {}).items()}
        for one in requirements
    ]


def _render_skill_03(skill: Mapping[str, Any]) -> dict[str, Any]:
    old = {name: value for name, value in skill.items() if name != "securityRequirements"}
    if requirements := skill.get("securityRequirements"):
        old["security"] = _render_security_03(requirements)
    return old


def _render_01(card: Mapping[str, Any]) -> dict[str, Any]:
    """The shape of v0.1.0 and of the first hubs."""
    newer = _render_03(card)
    passed = ("name", "description", "url", "version", "provider", "documentationUrl")
    old = {name: newer[name] for name in passed if name in newer}
    old["capabilities"] = {
        name: newer["capabilities"][name]
        for name in ("streaming", "pushNotifications", "stateTransitionHistory")
    }
    if schemes := _list_schemes_01(card):
        old["authentication"] = {"schemes": schemes}
    known = ("id", "name", "description", "tags", "examples")
    old["skills"] = [
        {"examples": []} | {k: skill[k] for k in known if k in skill} for skill in card["skills"]
    ]
    for modes in ("defaultInputModes", "defaultOutputModes"):
        # Its readers look for "text"; those of v0.1.0 also read media types.
        old[modes] = ["text"] * (TEXT_MODE in card[modes]) + card[modes]
    return old


def _list_schemes_01(card: Mapping[str, Any]) -> list[str]:
    """Lists the schemes as in 0.1: the word before the credentials in the header."""
    if not card.get("securityRequirements"):
        return []
    found = []
    for scheme in card.get("securitySchemes", {}).values():
        http = scheme.get("httpAuthSecurityScheme", {}).get("scheme", "")
        found.append(http.lower() or _render_scheme_03(scheme).get("type", ""))
    return [name for name in found if name]


def _render_merged(card: Mapping[str, Any]) -> dict[str, Any]:
    """1.0 with the members that readers of 0.3 and 0.1 need. The members of 1.0 stay unchanged, so
    that a signature stays valid: readers of 1.0 drop the others before they check it."""
    old = _render_03(card)
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
    if schemes := _list_schemes_01(card):
        merged["authentication"] = {"schemes": schemes}
    return merged
