"""The registration of a remote agent: parsed from a request, stored, and rendered. Pure.

Secrets are not among it: a token and the values of headers are references, here and everywhere.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4, uuid5

from dragoman.a2a.config import HUB, PATHS, RENAMED_WIRES, WIRE_SKILL_ONLY, ExternalAgent
from dragoman.a2a.protocol.skill_tools import slug_from_name
from dragoman.core.errors import InvalidInput
from dragoman.core.structs import Struct
from dragoman.core.tool_identity import BUILTIN
from dragoman.core.urls import parse_origin, render_origin, render_url

log = logging.getLogger(__name__)

CONFIG, API = "config", "api"
BRIEF, WHOLE = 200, 10_000
"""Characters of a text in a list of agents, and of one agent."""
ORG = "default"
MAX_NAME = 64
MAX_URL = 2_048
MAX_HEADERS = 16
_SPACE = UUID("6f3c1d0e-6b0a-5c1b-9a55-6d2a5f9a7c11")
"""Namespace of the ids of configured agents, which are the same at every start."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _()-]*")
_REFERENCE = (
    r"env:[A-Za-z_][A-Za-z0-9_]{0,127}|file:[^\x00-\x1f\x7f}]{1,500}|"
    r"keyring:[^\x00-\x1f\x7f}]{1,200}"
)
_TOKEN = re.compile(_REFERENCE)
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_VALUE = re.compile(
    r"(?:[A-Za-z][A-Za-z0-9-]{0,30} )?\$\{(?:[A-Za-z_][A-Za-z0-9_]{0,127}|" + _REFERENCE + r")\}"
)
_FRAMING = frozenset({"host", "connection", "content-length", "transfer-encoding", "upgrade", "te"})
_CHOICES = {
    "trust": ("external", "trusted"),
    "pin": ("strict", "first", "off"),
    "additions": ("show", "hold"),
    "wire": ("auto", WIRE_SKILL_ONLY),
    "credentials": ("shared", "user"),
}
_KEYS = {"trustLevel": "trust", "timeoutSecs": "timeout_secs", "allowPrivate": "allow_private"}
"""The names in rendered registrations, accepted in requests too."""
CHANGEABLE = (
    *("trust", "enabled", "token", "headers", "pin", "additions", "wire"),
    *("allow_private", "timeout_secs", "public", "credentials"),
)


class AgentRegistration(Struct, frozen=True, kw_only=True):
    id: str
    org: str
    slug: str
    source: str
    """CONFIG or API."""
    created: float
    updated: float
    entry: ExternalAgent


def create_registration(entry: ExternalAgent, at: float, source: str = API) -> AgentRegistration:
    slug = slug_from_name(entry.name)
    id = uuid5(_SPACE, f"{ORG}/{slug}") if source == CONFIG else uuid4()
    return AgentRegistration(
        id=str(id), org=ORG, slug=slug, source=source, created=at, updated=at, entry=entry
    )


# --- stored ---------------------------------------------------------------------------------------


_STORED = ("id", "org", "slug", "created", "updated")
_KNOWN = frozenset(ExternalAgent.__struct_fields__) - {"oauth"}
"""The API cannot set oauth, whose references only config.toml may contain."""


def encode_registration(row: AgentRegistration) -> dict[str, Any]:
    entry = {name: getattr(row.entry, name) for name in row.entry.__struct_fields__}
    return {**{name: getattr(row, name) for name in _STORED}, "entry": entry}


def decode_registration(kept: Mapping[str, Any]) -> AgentRegistration:
    """Raises `InvalidInput` for a registration that another version stored in another form."""
    try:
        values = {key: value for key, value in kept["entry"].items() if key in _KNOWN}
        if "wire" in values:
            values["wire"] = RENAMED_WIRES.get(values["wire"], values["wire"])
        entry = ExternalAgent(**values)
        return AgentRegistration(source=API, entry=entry, **{name: kept[name] for name in _STORED})
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"invalid registration in the registry: {error!r}") from None


# --- requests -------------------------------------------------------------------------------------


def parse_request(body: Mapping[str, Any]) -> dict[str, Any]:
    """Parses a request to register an agent, perhaps without a name. Raises `InvalidInput`."""
    values = _normalize_keys(body, ("url", "name", *CHANGEABLE))
    if not isinstance(values.get("url"), str):
        raise InvalidInput('an agent is registered by {"url": "https://…"}')
    values["url"] = _parse_url(values["url"])
    name = values.get("name")
    if name is not None:
        values["name"] = _parse_name(name)
    return {key: _parse_value(key, value) for key, value in values.items() if value is not None}


def apply_change(entry: ExternalAgent, body: Mapping[str, Any]) -> ExternalAgent:
    values = {
        key: _parse_value(key, value) for key, value in _normalize_keys(body, CHANGEABLE).items()
    }
    if not values:
        raise InvalidInput(f"say what to change: {', '.join(CHANGEABLE)}")
    fields = {name: getattr(entry, name) for name in entry.__struct_fields__}
    return build_entry({**fields, **values}, entry.name)


def build_entry(values: Mapping[str, Any], name: str) -> ExternalAgent:
    entry = ExternalAgent(**{**values, "name": name})
    names = {name.lower() for name in entry.headers} if isinstance(entry.headers, dict) else set()
    if entry.token is not None and "authorization" in names:
        raise InvalidInput("a token is sent as Authorization: give that or the header, not both")
    if entry.credentials == "user" and (entry.token is not None or "authorization" in names):
        raise InvalidInput('credentials = "user" means a login of each user: give no token as well')
    return entry


def _normalize_keys(body: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    values = {_KEYS.get(key, key): value for key, value in body.items()}
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise InvalidInput(f'unknown setting "{unknown[0][:60]}": use {", ".join(known)}')
    return values


def _parse_value(key: str, value: Any) -> Any:
    if key == "wire" and isinstance(value, str) and value in RENAMED_WIRES:
        new = RENAMED_WIRES[value]
        log.warning('wire: the value "%s" is now called "%s"; please send that', value, new)
        return new
    if key in _CHOICES:
        if value not in _CHOICES[key]:
            raise InvalidInput(f"{key} must be one of {', '.join(_CHOICES[key])}")
    elif key in ("enabled", "allow_private", "public"):
        if not isinstance(value, bool):
            raise InvalidInput(f"{key} must be true or false")
    elif key == "timeout_secs":
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value <= 86_400:
            raise InvalidInput("timeout_secs must be a number of seconds, at most 86400")
        return float(value)
    elif key == "token":
        _check_token(value)
    elif key == "headers":
        return _parse_headers(value)
    return value


def _check_token(value: Any) -> None:
    if value is not None and not (isinstance(value, str) and _TOKEN.fullmatch(value)):
        raise InvalidInput(
            "a token must be a reference, not its value: put it into the env file in the hub's "
            "home as DRAGOMAN_AGENT_NAME=… and give env:DRAGOMAN_AGENT_NAME (any env:NAME that is "
            "in [bridge] credential_env will do), or into a private file below tokens/ in its home "
            "and give file:tokens/NAME. See: dragoman docs registry"
        )


def _parse_headers(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MAX_HEADERS:
        raise InvalidInput(f"headers must be an object of at most {MAX_HEADERS} names and values")
    for name, said in value.items():
        if not _HEADER.fullmatch(name) or name.lower() in _FRAMING:
            raise InvalidInput(f'invalid header name "{name[:60]}"')
        if not isinstance(said, str) or not _VALUE.fullmatch(said):
            raise InvalidInput(
                f'the value of header "{name}" must be a reference, not its value: put it into '
                "the env file in the hub's home as DRAGOMAN_AGENT_NAME=… and give "
                "${DRAGOMAN_AGENT_NAME} (any ${NAME} that is in [bridge] credential_env will do), "
                "perhaps behind a word such as Bearer"
            )
    return {name.lower(): said for name, said in value.items()}


def _parse_url(url: str) -> str:
    """Only the address of a card may have a query: LangGraph's names the agent there."""
    if len(url) > MAX_URL or parse_origin(url) is None or "#" in url:
        raise InvalidInput(
            f'invalid agent address "{render_origin(url)}": use http:// or https://, a host and, '
            "if needed, a path"
        )
    parts = urlsplit(url)
    if parts.query and not parts.path.endswith(".json"):
        raise InvalidInput(
            f'"{render_origin(url)}" has a query, which only the address of a card may have '
            "(…/agent-card.json?…); pass a key as token or in headers"
        )
    return url


def _parse_name(name: Any) -> str:
    if not isinstance(name, str) or not is_valid_name(name):
        raise InvalidInput(
            f'an agent cannot be called "{str(name)[:80]}": up to {MAX_NAME} letters, digits, '
            'spaces, "-", "_", "(" and ")", beginning with a letter or digit, and none of '
            f"{', '.join(sorted({BUILTIN, HUB, *PATHS}))}"
        )
    return name


def is_valid_name(name: str) -> bool:
    return (
        len(name) <= MAX_NAME
        and _NAME.fullmatch(name) is not None
        and name == name.strip()
        and name not in PATHS
        and name != HUB
        and name.lower() != BUILTIN
    )


def name_from_card(card: Mapping[str, Any], url: str) -> str:
    """Chooses a name for an agent: that of its card, transliterated, or else its host."""
    for said in (_transliterate(str(card.get("name", ""))), _name_from_url(url)):
        words = " ".join(re.sub(r"[^A-Za-z0-9 _()-]+", " ", said).split())
        name = re.sub(r"^[^A-Za-z0-9]+", "", words)[:MAX_NAME].strip()
        if is_valid_name(name) and slug_from_name(name):
            return name
    raise InvalidInput(f'the card of "{render_origin(url)}" has no usable name; pass a name')


_LATIN = str.maketrans({
    "ß": "ss", "æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L",
    "đ": "d", "Đ": "D", "þ": "th", "Þ": "Th", "ð": "d",
})  # fmt: skip


def _transliterate(name: str) -> str:
    """Removes accents. Returns an empty text if half of the letters would be lost."""
    plain = unicodedata.normalize("NFKD", name.translate(_LATIN))
    kept = "".join(one for one in plain if not unicodedata.combining(one))
    letters = [one for one in kept if one.isalnum()]
    lost = sum(not one.isascii() for one in letters)
    return kept if letters and lost * 2 <= len(letters) else ""


def _name_from_url(url: str) -> str:
    """Returns the host, or `agent 9000` with its port for an IP address or localhost."""
    origin = parse_origin(url)
    if origin is None:
        return ""
    if ":" in origin.host or origin.host == "localhost" or origin.host.replace(".", "").isdigit():
        return f"agent {origin.port}"
    return origin.host


# --- rendered -------------------------------------------------------------------------------------


def render_time(at: float | None) -> str | None:
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def render_registration(row: AgentRegistration, *, secret: bool) -> dict[str, Any]:
    """Renders a registration without its credentials. `secret` includes the path of its URL."""
    entry = row.entry
    return {
        "id": row.id,
        "orgId": row.org,
        "name": entry.name,
        "slug": row.slug,
        "url": render_url(entry.url) if secret else render_origin(entry.url),
        "source": row.source,
        "enabled": entry.enabled,
        "trustLevel": entry.trust,
        "pin": entry.pin,
        "additions": entry.additions,
        "wire": entry.wire,
        "timeoutSecs": entry.timeout_secs,
        "allowPrivate": entry.allow_private,
        "public": entry.public,
        "createdAt": render_time(row.created),
        "updatedAt": render_time(row.updated),
    }


def render_card(
    raw: Mapping[str, Any] | None, card: Mapping[str, Any] | None, *, whole: bool
) -> dict[str, Any]:
    """`raw` is the card as received, `card` its form of 1.0 if it was parsed."""
    if raw is None:
        return {"card": None, "skills": []}
    said = card if card is not None else raw
    brief = {name: str(said.get(name, ""))[:BRIEF] for name in ("name", "version", "description")}
    theirs = {one["id"]: one for one in _list_skills(raw) if isinstance(one.get("id"), str)}
    most = WHOLE if whole else BRIEF
    return {
        "card": raw if whole else brief,
        "skills": [
            _render_skill(one, theirs.get(str(one.get("id")), one), most)
            for one in _list_skills(said)
        ],
    }


def _list_skills(card: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = card.get("skills")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _render_skill(skill: Mapping[str, Any], raw: Mapping[str, Any], most: int) -> dict[str, Any]:
    return {
        "id": skill.get("id"),
        "name": skill.get("name"),
        "description": str(skill.get("description") or "")[:most],
        "tags": skill.get("tags", []),
        "inputSchema": isinstance(raw.get("inputSchema"), dict),
    }
