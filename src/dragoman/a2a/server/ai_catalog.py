"""The AI Catalog of this hub, which is also a manifest of Agentic Resource Discovery.

It lists the cards that the hub serves, the same for every client: its own, those of its agents, and
those of registered agents that are public; all of them while the hub needs no key.
https://ai-catalog.io (specVersion 1.0), https://agenticresourcediscovery.org (0.91, section 5.1).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

from dragoman import __version__
from dragoman.a2a.cards.build import MAX_AGE_SECS, build_etag
from dragoman.a2a.config import HUB, A2aSettings
from dragoman.a2a.protocol.skill_tools import slug_from_name
from dragoman.a2a.server.card_service import reply_cached
from dragoman.a2a.server.routing import HUB_FACTS, STRANGER, MessageRouter
from dragoman.core.principal import LOCAL, Principal
from dragoman.core.tool import AgentFacts
from dragoman.wire.http import JSON_HEADERS, HttpRequest
from dragoman.wire.json import encode

CATALOG_PATHS = ("/.well-known/ai-catalog.json", "/.well-known/ard.json")
CARD = "/.well-known/agent-card.json"
CARD_TYPE = "application/a2a-agent-card+json"
MAX_ENTRIES = 1_000
MAX_KEPT = 64
"""Clients choose the name by which they reach the hub."""
MAX_TEXT = 500
MAX_TAGS = 20
MAX_EXAMPLES = 5

_DOMAIN = re.compile(r"(?=.*[a-z])([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z][a-z0-9-]*[a-z0-9]")


class AiCatalog:
    def __init__(
        self,
        router: MessageRouter,
        settings: A2aSettings,
        find_base: Callable[[HttpRequest], str],
        is_secured: Callable[[], bool],
    ) -> None:
        """`is_secured` says whether clients need a key."""
        self._router = router
        self._path = settings.listen_path.rstrip("/")
        self._find_base = find_base
        self._kept: dict[tuple[str, bool], bytes] = {}
        self._kept_at: tuple[tuple[int, int], bool] | None = None
        self._is_secured = is_secured

    async def __call__(self, request: HttpRequest, principal: Principal | None) -> None:
        if request.method not in ("GET", "HEAD"):
            body = encode({"error": {"message": "use GET"}})
            request.reply(405, [*JSON_HEADERS, (b"allow", b"GET")], body)
            return
        public = self._is_secured() or principal is None
        body = self._encode_document(self._find_base(request), public)
        tag = build_etag(body)
        headers = [
            (b"content-type", b"application/ai-catalog+json"),
            (b"etag", tag.encode()),
            (b"cache-control", f"public, max-age={MAX_AGE_SECS}".encode()),
        ]
        reply_cached(request, headers, tag, body)

    def _encode_document(self, base: str, public: bool) -> bytes:
        now = self._router.version, self._is_secured()
        if self._kept_at != now or len(self._kept) >= MAX_KEPT:
            self._kept.clear()
            self._kept_at = now
        body = self._kept.get((base, public))
        if body is None:
            body = self._kept[base, public] = encode(self.build_document(base, public))
        return body

    def build_document(self, base: str, public: bool) -> dict[str, Any]:
        """`public`: only what clients without a key may see."""
        tools = self._router.list_agents(STRANGER if public else LOCAL)
        agents = [tool.agent for tool in tools if tool.agent is not None]
        return {
            "specVersion": "1.0",
            "host": {"displayName": "Dragoman", "identifier": urlsplit(base).netloc},
            "entries": [
                self._build_entry(facts, base) for facts in [HUB_FACTS, *agents[: MAX_ENTRIES - 1]]
            ],
        }

    def _build_entry(self, facts: AgentFacts, base: str) -> dict[str, Any]:
        """ARD requires a name beside the card: the card's own."""
        url = f"{base}{self._path}/{quote(facts.name, safe='')}{CARD}"
        skills = [one for one in facts.skills if one.get("public", True)]
        tags = dict.fromkeys(str(tag)[:100] for one in skills for tag in one.get("tags") or ())
        examples = [str(text) for one in skills for text in one.get("examples") or ()]
        entry: dict[str, Any] = {
            "identifier": build_identifier(base, facts.name, url),
            "displayName": facts.name,
            "type": CARD_TYPE,
            "url": url,
            "description": facts.description[:MAX_TEXT],
            "version": __version__ if facts is HUB_FACTS else facts.version,
        }
        if tags:
            entry["tags"] = list(tags)[:MAX_TAGS]
        if examples:
            entry["representativeQueries"] = [text[:MAX_TEXT] for text in examples[:MAX_EXAMPLES]]
        return entry


def build_identifier(base: str, name: str, url: str) -> str:
    """`urn:air:` needs a domain; without one it is the card's address, which is unique as well."""
    host = (urlsplit(base).hostname or "").lower()
    if not _DOMAIN.fullmatch(host):
        return url
    return f"urn:air:{host}:agent:{slug_from_name(name) or HUB}"
