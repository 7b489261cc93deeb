"""Builds, signs and caches the cards of the hub and its agents, until the catalog changes.

The hub's own card shows each principal the tools that it may see, and none to a client without a
key where one is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from email.utils import formatdate
from itertools import islice
from typing import Any
from urllib.parse import quote, urlsplit

from dragoman import __version__
from dragoman.a2a.cards.build import (
    CardAddresses,
    build_card,
    build_etag,
    is_unchanged,
    skill_from_tool,
)
from dragoman.a2a.cards.canonical import MAX_DEPTH
from dragoman.a2a.cards.parse import SCHEMAS
from dragoman.a2a.config import A2aSettings
from dragoman.a2a.protocol.dialects.card_shapes import render_card
from dragoman.a2a.server.routing import HUB_FACTS, MessageRouter, key_of_principal
from dragoman.core.principal import Principal
from dragoman.core.tool import AgentFacts, Tool
from dragoman.wire.http import HttpRequest
from dragoman.wire.json import encode, is_deeper_than

MAX_KEPT, MAX_LISTED = 256, 16
MAX_KEPT_BYTES = 16 * 1024 * 1024
"""Of both caches together: clients choose the name and port by which they reach the hub."""
MAX_SKILLS = 1_000
MAX_SCHEMA_BYTES = 256 * 1024
"""Of all schemas on a card; skills beyond it are listed without theirs."""
MAX_SCHEMA_DEPTH = MAX_DEPTH - 4
"""Readers reject cards that are nested deeper than `MAX_DEPTH`."""

Sign = Callable[[Mapping[str, Any]], dict[str, Any]]
_Key = tuple[str, Hashable, str, str, bool, bool, bool]
"""The agent, who looks, the address, the shape, whether keys are needed (which may change), whether
gRPC is listed, and whether it is the card of the default agent."""


class CardService:
    def __init__(
        self,
        router: MessageRouter,
        settings: A2aSettings,
        sign: Sign | None,
        is_secured: Callable[[], bool] = lambda: True,
        find_grpc_port: Callable[[str], int | None] = lambda agent: None,
    ) -> None:
        """`is_secured` says whether callers need a key, `find_grpc_port` where
        gRPC is served for that agent alone, or for all if the name is empty."""
        self._router = router
        self._settings = settings
        self._sign = sign
        self._is_secured = is_secured
        self._find_grpc_port = find_grpc_port
        self._kept: dict[_Key, tuple[bytes, str, str]] = {}
        self._listed: dict[_Key, bytes] = {}
        self._since: dict[str, str] = {}
        self._kept_at = (-1, -1)
        self._bytes = 0

    def has_extended_card(self, facts: AgentFacts) -> bool:
        """Whether authenticated clients get another card than the public one."""
        return facts.extended and (facts.extended_facts is not None or self._is_secured())

    def build_card(
        self,
        facts: AgentFacts,
        principal: Principal | None,
        base: str,
        *,
        grpc: bool = True,
        is_default: bool = False,
    ) -> dict[str, Any]:
        """The card in the form of 1.0, as `principal` may see it; None for the public card. `grpc`
        says whether it lists gRPC, if that is served. Its addresses are the agent's own, also as
        the default agent: a client that keeps the card must never reach another agent by it."""
        described = replace(
            facts,
            version=__version__ if facts is HUB_FACTS else facts.version,
            skills=self._build_skills(facts, principal),
            extended=self.has_extended_card(facts),
            extensions=self._build_extensions(facts, principal),
        )
        urls = CardAddresses(
            url=f"{base}{self._settings.listen_path}/{quote(facts.name)}",
            grpc=self._find_grpc_address(base, "") if grpc else None,
            grpc_03=self._find_grpc_03(base, facts.name, is_default) if grpc else None,
            tenant=facts.name,
        )
        return build_card(described, urls=urls, security=self._is_secured())

    def _find_grpc_03(self, base: str, agent: str, is_default: bool) -> str | None:
        """The address of the agent's own port, where no other agent will answer; for the default
        agent otherwise the common one."""
        own = self._find_grpc_address(base, agent)
        return own or (self._find_grpc_address(base, "") if is_default else None)

    def _find_grpc_address(self, base: str, agent: str) -> str | None:
        """The address of gRPC for clients that reach the hub at `base`: on the same host."""
        port = self._find_grpc_port(agent)
        if port is None:
            return None
        host = urlsplit(base).hostname or "localhost"
        if named := self._settings.grpc_address:
            if not agent:
                return named
            host = named.rpartition(":")[0].strip("[]")
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def encode_card(
        self, agent: str | None, principal: Principal | None, base: str, version: str, grpc: bool
    ) -> tuple[bytes, str, str]:
        """Returns a card encoded in the shape of `version`, its ETag, and since when it is so.
        Raises for an agent that is unknown, or unknown to that principal. With `grpc` it lists
        gRPC even where other cards do not."""
        grpc = grpc or self._settings.grpc_on_cards == "always"
        facts = self._router.get_visible_facts(principal, agent)
        self._drop_stale()
        wanted = version or self._settings.card
        if facts is not HUB_FACTS and (self._is_secured() or facts.extended_facts is not None):
            principal = None  # all clients get the same public card
        reader, is_default = _find_reader(principal), agent is None
        key = facts.name, reader, base, wanted, self._is_secured(), grpc, is_default
        kept = self._kept.get(key)
        if kept is None:
            card = self.build_card(facts, principal, base, grpc=grpc, is_default=is_default)
            body = encode(self.shape_card(card, wanted))
            tag = build_etag(body)
            if len(self._since) >= MAX_KEPT:
                self._since.clear()
            since = self._since.setdefault(tag, formatdate(usegmt=True))
            self._kept[key] = kept = body, tag, since
            self._bytes += len(body)
        return kept

    def shape_card(self, card: Mapping[str, Any], version: str) -> Mapping[str, Any]:
        return render_card(self._sign(card) if self._sign is not None else card, version)

    def encode_agent_list(self, principal: Principal, base: str, version: str) -> bytes:
        """Encodes the cards of all agents and their number; the hub's own if there are none."""
        self._drop_stale()
        wanted = version or self._settings.card
        grpc = self._settings.grpc_on_cards == "always"
        key = "", _find_reader(principal), base, wanted, self._is_secured(), grpc, False
        kept = self._listed.get(key)
        if kept is None:
            tools = self._router.list_agents(principal)
            found = [tool.agent for tool in tools if tool.agent is not None]
            cards = [
                self.shape_card(self.build_card(facts, principal, base, grpc=grpc), wanted)
                for facts in found or [HUB_FACTS]
            ]
            kept = encode({"agents": cards, "total": len(cards)})
            self._listed[key] = kept
            self._bytes += len(kept)
        return kept

    def _drop_stale(self) -> None:
        """Empties a cache that is out of date or too large."""
        stale = self._kept_at != self._router.version or self._bytes > MAX_KEPT_BYTES
        if stale:
            self._kept_at, self._bytes = self._router.version, 0
        if stale or len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        if stale or len(self._listed) >= MAX_LISTED:
            self._listed.clear()

    def _build_extensions(
        self, facts: AgentFacts, principal: Principal | None
    ) -> list[Mapping[str, Any]]:
        """The hub's own extension lists the schemas of its skills: a skill has no member for it."""
        extra = {}
        if facts is HUB_FACTS and principal is not None:
            extra["params"] = {SCHEMAS: _collect_schemas(self._router.list_skills(principal))}
        return [
            {key: value for key, value in {**one, **extra}.items() if value or key == "uri"}
            for one in facts.extensions
        ]

    def build_extended_card(
        self, facts: AgentFacts, principal: Principal, base: str, *, is_default: bool
    ) -> dict[str, Any]:
        """The card in the form of 1.0 with all that the principal may see."""
        if (more := facts.extended_facts) is not None:
            facts = replace(more, skills=facts.skills, extended=True, extended_facts=more)
        return self.build_card(facts, principal, base, is_default=is_default)

    def _build_skills(
        self, facts: AgentFacts, principal: Principal | None
    ) -> list[Mapping[str, Any]]:
        if facts is not HUB_FACTS:
            if principal is None:
                shown = [one for one in facts.skills if one.get("public", True)]
            else:
                shown = self._router.select_visible_skills(facts, principal)
            return [{key: one[key] for key in one if key != "public"} for one in shown]
        if principal is None:
            return []
        skills: list[Mapping[str, Any]] = []
        for tool in islice(self._router.list_skills(principal), MAX_SKILLS):
            described = tool.description if tool.definition.get("description") else ""
            schema = tool.definition.get("inputSchema")
            skills.append(skill_from_tool(tool.name, described, schema))
        return skills


def _find_reader(principal: Principal | None) -> Hashable:
    """What a card depends on of its reader."""
    return None if principal is None else key_of_principal(principal)


def _collect_schemas(tools: Iterable[Tool]) -> dict[str, Any]:
    """The schemas of the first tools, as many as fit on a card."""
    found: dict[str, Any] = {}
    size = 0
    for tool in tools:
        schema = tool.definition.get("inputSchema")
        if isinstance(schema, Mapping) and not is_deeper_than(schema, MAX_SCHEMA_DEPTH):
            size += len(encode(schema))
            if size > MAX_SCHEMA_BYTES or len(found) >= MAX_SKILLS:
                break
            found[tool.name] = schema
    return found


def reply_cached(
    request: HttpRequest, headers: list[tuple[bytes, bytes]], tag: str, body: bytes
) -> None:
    """Responds with the body, or with 304 to a client that has it already."""
    asked = request.fields.get(b"if-none-match")
    known = asked is not None and is_unchanged(tag, asked.decode("latin-1"))
    request.reply(304 if known else 200, headers, b"" if known else body)
