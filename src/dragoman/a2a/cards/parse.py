"""Converts cards of other agents, of any version, to the form of 1.0.

Lenient: flaws are corrected where possible, otherwise dropped, and always reported. Every size is
bounded. Knows neither where cards are found nor whether they are trusted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import urljoin, urlsplit

from dragoman.a2a.cards.canonical import MAX_DEPTH
from dragoman.a2a.protocol.card_fields import FIELDS, FLAG, FREE, TEXT
from dragoman.a2a.protocol.dialects.operations import SKILL
from dragoman.wire.json import Malformed, decode, is_deeper_than

SCHEMAS = "inputSchemas"
"""The parameter of the extension SKILL with the input schemas by skill id."""
MAX_CARD_BYTES = 1024 * 1024
MAX_SKILLS = 1_000
MAX_ITEMS = 100
"""The most entries of any other list or map."""
MAX_ODD = 50
MAX_TEXT = 2_048
_LIMITS = {"description": 10_000, "name": 256, "id": 256, "version": 256}
_LIMITS |= {"protected": 8_192, "signature": 8_192}

_MODES = {"text": "text/plain", "data": "application/json", "json": "application/json"}
"""Modes of 0.1 that are not media types."""

_BINDINGS = {
    "JSONRPC": "JSONRPC",
    "HTTPJSON": "HTTP+JSON",
    "REST": "HTTP+JSON",
    "HTTP": "HTTP+JSON",
    "GRPC": "GRPC",
}

_SCHEMES = {
    "apiKey": "apiKeySecurityScheme",
    "http": "httpAuthSecurityScheme",
    "oauth2": "oauth2SecurityScheme",
    "openIdConnect": "openIdConnectSecurityScheme",
    "mutualTLS": "mtlsSecurityScheme",
}


class InvalidCard(ValueError):
    """The card cannot be read; the message says why."""


class _Findings:
    """The flaws of a card, a bounded number of them."""

    def __init__(self, said: list[str] | None) -> None:
        self._said = [] if said is None else said

    def add(self, what: str) -> None:
        if len(self._said) < MAX_ODD:
            self._said.append(what[:300])


def decode_card(data: bytes) -> dict[str, Any]:
    """Decodes a card without changing it: its signatures are checked against this form."""
    if len(data) > MAX_CARD_BYTES:
        raise InvalidCard(f"it is larger than {MAX_CARD_BYTES} bytes")
    try:
        value = decode(data.removeprefix(b"\xef\xbb\xbf"))
    except Malformed as error:
        raise InvalidCard(str(error)) from None
    if not isinstance(value, dict):
        raise InvalidCard("it is not a JSON object")
    return value


def parse_card(raw: Any, found_at: str = "", odd: list[str] | None = None) -> dict[str, Any]:
    """Converts a card of any version to 1.0, with every required member. Relative or missing
    addresses are resolved against `found_at`. Flaws are added to the list `odd`."""
    if not isinstance(raw, dict):
        raise InvalidCard("it is not a JSON object")
    notes = _Findings(odd)
    lifted = {name: _find_member(raw, name) for name in FIELDS["AgentCard"]}
    lifted["supportedInterfaces"] = _parse_interfaces(raw, found_at, notes)
    lifted["capabilities"] = _parse_capabilities(raw)
    lifted["securitySchemes"] = _parse_schemes(raw) or None
    lifted["securityRequirements"] = _parse_requirements(raw) or None
    lifted["provider"] = _parse_provider(raw)
    skills = lifted.pop("skills")
    card: dict[str, Any] = _parse_message(lifted, "AgentCard", "", notes)
    if not card["supportedInterfaces"]:
        notes.add("it has no address of the agent")
    for modes in ("defaultInputModes", "defaultOutputModes"):
        card[modes] = _list_media_types(card.get(modes) or ["text/plain"])
    card["skills"] = _parse_skills(skills, card, notes)
    return _complete_card(card, found_at, notes)


# --- members that older cards have in another form ------------------------------------------------


def _parse_interfaces(
    raw: Mapping[str, Any], found_at: str, odd: _Findings
) -> list[dict[str, Any]]:
    """Returns the usable interfaces of 1.0, otherwise the addresses of 0.x."""
    offered = _to_list(_find_member(raw, "supportedInterfaces"))
    if found := _parse_offered(offered, "1.0", found_at, odd):
        return found
    if offered:
        odd.add("supportedInterfaces has no usable interface")
    version = _find_text(raw, "protocolVersion") or _guess_version(raw, odd)
    main = {
        "url": _find_member(raw, "url"),
        "transport": _find_member(raw, "preferredTransport") or "JSONRPC",
    }
    if not isinstance(main["url"], str) or not main["url"].strip():
        odd.add("it has no address; that of the card is used")
        main["url"] = _find_base(found_at)
    return _parse_offered(
        [main, *_to_list(_find_member(raw, "additionalInterfaces"))], version, found_at, odd
    )


def _guess_version(raw: Mapping[str, Any], odd: _Findings) -> str:
    odd.add("it does not declare a version of A2A")
    newer = (
        *("securitySchemes", "security", "preferredTransport", "additionalInterfaces"),
        "supportsAuthenticatedExtendedCard",
    )
    later = any(_find_member(raw, name) is not None for name in newer)
    return "0.2" if later else "0.1"


def _parse_offered(
    offered: list[Any], version: str, found_at: str, odd: _Findings
) -> list[dict[str, Any]]:
    """`version` is that of an entry without one."""
    found: list[dict[str, Any]] = []
    for one in offered[:MAX_ITEMS]:
        if not isinstance(one, dict):
            odd.add("an interface is not an object")
            continue
        said = _find_text(one, "protocolBinding") or _find_text(one, "transport") or "JSONRPC"
        binding = _BINDINGS.get(re.sub(r"[^A-Z]", "", said.upper()), said)
        url = _resolve_address(_find_text(one, "url"), binding, found_at)
        if url is None:
            odd.add(f'an interface has no usable address: "{_find_text(one, "url")[:100]}"')
            continue
        entry = {
            "url": url,
            "protocolBinding": binding,
            "protocolVersion": _find_text(one, "protocolVersion") or version,
        }
        if tenant := _find_text(one, "tenant"):
            entry["tenant"] = tenant
        if entry not in found:
            found.append(entry)
    return found


def _resolve_address(url: str, binding: str, found_at: str) -> str | None:
    if not url or len(url) > MAX_TEXT or not url.isprintable() or " " in url:
        return None
    if binding not in ("JSONRPC", "HTTP+JSON"):
        return url
    try:
        whole = url if "://" in url else urljoin(found_at, url)
        parts = urlsplit(whole)
        usable = parts.scheme.lower() in ("http", "https") and parts.hostname
    except ValueError:
        return None
    return whole if usable else None


def _find_base(found_at: str) -> str:
    """Returns the agent's address from that of its card."""
    return re.sub(r"/(\.well-known/)?agent(-card)?\.json$", "", found_at.partition("?")[0])


def _parse_capabilities(raw: Mapping[str, Any]) -> dict[str, Any]:
    given = _find_member(raw, "capabilities")
    known = dict(given) if isinstance(given, dict) else {}
    for name in ("supportsAuthenticatedExtendedCard", "supportsExtendedAgentCard"):
        if _find_member(raw, name) is True and _find_member(known, "extendedAgentCard") is None:
            known["extendedAgentCard"] = True
    return known


def _parse_provider(raw: Mapping[str, Any]) -> Any:
    given = _find_member(raw, "provider")
    if isinstance(given, str) and given:  # python-a2a sends only a name
        return {"organization": given, "url": ""}
    if isinstance(given, dict) and _find_text(given, "organization"):
        return {"organization": given["organization"], "url": _find_text(given, "url")}
    return None


def _parse_schemes(raw: Mapping[str, Any]) -> dict[str, Any]:
    given = _find_member(raw, "securitySchemes")
    if isinstance(given, dict):
        return {name: _parse_scheme(one) for name, one in given.items() if isinstance(one, dict)}
    found: dict[str, Any] = {}
    for scheme in _list_scheme_names(_find_member(raw, "authentication")):
        if scheme.lower() in ("apikey", "api_key"):
            key = {"location": "header", "name": "X-API-Key"}
            found[scheme] = {"apiKeySecurityScheme": key}
        else:
            found[scheme] = {"httpAuthSecurityScheme": {"scheme": scheme}}
    return found


def _parse_scheme(one: Mapping[str, Any]) -> Mapping[str, Any]:
    """A scheme of 0.3 has its kind as a member, and may be merged with one of 1.0."""
    kind = one.get("type")
    if any(_find_member(one, name) is not None for name in FIELDS["SecurityScheme"]):
        return one
    if not isinstance(kind, str) or kind not in _SCHEMES:
        return {}
    inner = dict(one)
    if "in" in inner:
        inner["location"] = inner["in"]
    return {_SCHEMES[kind]: inner}


def _parse_requirements(raw: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Accepts the forms of 1.0, 0.3 and 0.1, also in the place of another, as in the
    specification's own sample."""
    given = _find_member(raw, "securityRequirements")
    wanted = given if given is not None else _find_member(raw, "security")
    if wanted is None:
        schemes = _list_scheme_names(_find_member(raw, "authentication"))
        return [{"schemes": {scheme: {"list": []}}} for scheme in schemes]
    found = []
    for one in _to_list(wanted)[:MAX_ITEMS]:
        if isinstance(one, dict):
            named = one["schemes"] if isinstance(one.get("schemes"), dict) else one
            found.append(
                {"schemes": {name: _parse_scopes(scopes) for name, scopes in named.items()}}
            )
    return found


def _parse_scopes(scopes: Any) -> dict[str, Any]:
    inner = scopes.get("list") if isinstance(scopes, dict) else scopes
    return {"list": [scope for scope in _to_list(inner) if isinstance(scope, str)]}


def _list_scheme_names(authentication: Any) -> list[str]:
    """Lists the schemes of 0.1: `{"schemes": [...]}`, or one word in python-a2a."""
    inner = authentication
    if isinstance(authentication, dict):
        inner = _find_member(authentication, "schemes")
    named = [inner] if isinstance(inner, str) else _to_list(inner)
    return [one for one in named if isinstance(one, str) and one][:MAX_ITEMS]


def _parse_skills(given: Any, card: Mapping[str, Any], odd: _Findings) -> list[dict[str, Any]]:
    if not isinstance(given, list):
        odd.add("skills is not a list")
        return []
    if len(given) > MAX_SKILLS:
        odd.add(f"it has {len(given)} skills; the first {MAX_SKILLS} are read")
    found: dict[str, dict[str, Any]] = {}
    schemas = _find_schemas(card)
    for index, one in enumerate(given[:MAX_SKILLS]):
        where = f"skills[{index}]"
        skill = _parse_skill(one, where, card, schemas, odd)
        if skill is not None and skill["id"] in found:
            odd.add(f'{where} has the id "{skill["id"][:100]}" of another skill')
        elif skill is not None:
            found[skill["id"]] = skill
    return list(found.values())


def _find_schemas(card: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the input schemas that a Dragoman hub declares by its extension."""
    for extension in card.get("capabilities", {}).get("extensions") or ():
        if extension.get("uri") == SKILL:
            found = extension.get("params", {}).get(SCHEMAS)
            return found if isinstance(found, dict) else {}
    return {}


def _parse_skill(
    one: Any, where: str, card: Mapping[str, Any], schemas: Mapping[str, Any], odd: _Findings
) -> dict[str, Any] | None:
    if isinstance(one, str) and one.strip():
        one = {"id": one, "name": one}
    if not isinstance(one, dict):
        odd.add(f"{where} is not an object")
        return None
    lifted = {**one, "securityRequirements": _parse_requirements(one) or None}
    skill: dict[str, Any] = _parse_message(lifted, "AgentSkill", where, odd)
    said = skill.get("id") or skill.get("name")
    if not said:
        odd.add(f"{where} has neither id nor name and is ignored")
        return None
    skill["id"] = said
    skill["name"] = skill.get("name") or said
    skill["description"] = skill.get("description") or skill["name"]
    skill.setdefault("tags", [])
    for modes, default in (
        ("inputModes", "defaultInputModes"),
        ("outputModes", "defaultOutputModes"),
    ):
        skill[modes] = _list_media_types(skill.get(modes) or card[default])
    schema = _find_member(one, "inputSchema")
    if schema is None:
        schema = schemas.get(said)
    if isinstance(schema, dict) and not is_deeper_than(schema, MAX_DEPTH):
        # In no version, but some agents declare it, and the bridge uses it.
        skill["inputSchema"] = schema
    return skill


def _list_media_types(modes: list[str]) -> list[str]:
    return list(dict.fromkeys(_MODES.get(mode, mode) for mode in modes))


def _complete_card(card: dict[str, Any], found_at: str, odd: _Findings) -> dict[str, Any]:
    """Fills in required texts, and orders the members as in a2a.proto."""
    if not card.get("name"):
        urls = [one["url"] for one in card["supportedInterfaces"]]
        host = urlsplit(urls[0]).hostname if urls and "://" in urls[0] else None
        card["name"] = host or urlsplit(found_at).hostname or "unnamed"
    card["description"] = card.get("description") or f'The agent "{card["name"]}"'
    card["version"] = card.get("version") or "unknown"
    return {name: card[name] for name in FIELDS["AgentCard"] if name in card}


# --- any message of the table ---------------------------------------------------------------------


def _find_member(value: Mapping[str, Any], name: str) -> Any:
    """Finds a member by its JSON name or by that of a2a.proto, as proto-JSON requires."""
    found = value.get(name)
    return found if found is not None else value.get(_to_snake_case(name))


@cache
def _to_snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower()


def _parse_message(
    value: Mapping[str, Any], message: str, where: str, odd: _Findings
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, kind in FIELDS[message].items():
        place = f"{where}.{name}" if where else name
        given = _find_member(value, name)
        if given is None:
            if kind[-1] == "!" and place != "skills":  # parsed separately
                odd.add(f"{place} is missing")
            continue
        read = _parse_value(given, kind.rstrip("!?"), place, odd)
        if read is not None:
            found[name] = read
    return found


def _parse_value(value: Any, kind: str, where: str, odd: _Findings) -> Any:
    """Returns None if `value` is not of `kind`."""
    if kind[0] == "[":
        return _parse_items(value, kind[1:-1], where, odd)
    if kind == TEXT:
        return _parse_text(value, where, odd)
    if kind == FLAG and isinstance(value, bool):
        return value
    if kind != FLAG and isinstance(value, dict):
        if kind in FIELDS:
            return _parse_message(value, kind, where, odd)
        if kind == FREE:
            return None if is_deeper_than(value, MAX_DEPTH) else value
        return {
            key[:MAX_TEXT]: read
            for key, item in list(value.items())[:MAX_ITEMS]
            if (read := _parse_value(item, kind[1:-1], f"{where}.{key[:50]}", odd)) is not None
        }
    odd.add(f"{where} is not {'a boolean' if kind == FLAG else 'an object'}")
    return None


def _parse_items(value: Any, kind: str, where: str, odd: _Findings) -> list[Any] | None:
    if isinstance(value, str) and kind == TEXT:
        odd.add(f"{where} is text instead of a list")
        value = [value]
    if not isinstance(value, list):
        odd.add(f"{where} is not a list")
        return None
    if len(value) > MAX_ITEMS:
        odd.add(f"{where} has {len(value)} items; the first {MAX_ITEMS} are read")
    read = (_parse_value(item, kind, where, odd) for item in value[:MAX_ITEMS])
    return [item for item in read if item is not None]


def _parse_text(value: Any, where: str, odd: _Findings) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        odd.add(f"{where} is a number instead of text")
        value = str(value)
    if not isinstance(value, str):
        odd.add(f"{where} is not text")
        return None
    limit = _LIMITS.get(where.rpartition(".")[2], MAX_TEXT)
    if len(value) > limit:
        odd.add(f"{where} is longer than {limit} characters and is truncated")
        return value[:limit]
    return value


def _find_text(value: Mapping[str, Any], name: str) -> str:
    found = _find_member(value, name)
    return found.strip() if isinstance(found, str) else ""


def _to_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
