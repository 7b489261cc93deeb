"""The agents of others: those of the configuration, and those that were registered since.

One row, one target and one watch for each. To register is to find the agent first: what cannot be
found or understood is not kept. Knows no HTTP: `web` and `assembly` hand on what is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from dragoman.a2a.client.card_discovery import Found, origin_of
from dragoman.a2a.client.client import SEED_WIRE
from dragoman.a2a.client.dialect_probe import check_spoken
from dragoman.a2a.config import ExternalAgent
from dragoman.a2a.protocol.errors import A2aError
from dragoman.a2a.protocol.skill_tools import slug_of
from dragoman.a2a.remote.credentials import ReferenceRules
from dragoman.a2a.remote.health_watch import UNKNOWN, CardPins, Watch, Watched
from dragoman.a2a.remote.registration import (
    API,
    CONFIG,
    Row,
    changed,
    configured,
    entry_of,
    from_stored,
    given,
    name_in,
    registered,
    stored,
)
from dragoman.core.background import Background
from dragoman.core.bus import Bus
from dragoman.core.errors import (
    AmbiguousName,
    ConfigError,
    Full,
    HubError,
    InvalidInput,
    NotFound,
)
from dragoman.core.events import REMOVED, AgentChanged
from dragoman.core.urls import render_origin

log = logging.getLogger(__name__)

MAX_AGENTS = 1_000
MAX_JOINING = 200
"""Registrations under way at once."""
SECONDS = 30.0
"""For an agent to be found in, where nothing else is said."""
CHANGE_SECONDS = 1.0
"""How long a change in progress may take when the hub stops."""
_IN_PLACE = frozenset({"trust", "pin", "additions"})
"""What may change without another connection."""


class AgentStore(Protocol):
    """Where rows and cards are when the hub is not. May raise `Full`."""

    def rows(self) -> list[dict[str, Any]]: ...

    def save(self, row: Mapping[str, Any]) -> None: ...

    def delete(self, id: str) -> None: ...

    def keep_card(self, agent: str, digest: str, card: bytes, at: float) -> None: ...

    def cards(self, agent: str) -> list[tuple[str, float, int]]:
        """The digest of each, when it was seen, and its bytes; the newest first."""

    def card(self, agent: str, digest: str) -> bytes | None: ...

    def bind(self, reference: str, origin: str) -> None:
        """The credential may be sent to that origin. A binding outlives its agent."""

    def bound_origins(self, reference: str) -> list[str]: ...


class Member:
    def __init__(self, row: Row) -> None:
        self.row = row
        self.watch: Watch | None = None
        """None for one that is not enabled, or refused."""
        self.refusal = ""
        """Why the hub keeps the agent but does not use it."""

    @property
    def name(self) -> str:
        return self.row.entry.name


class Registry:
    def __init__(
        self,
        store: AgentStore,
        make: Callable[[ExternalAgent, str], Watched],
        bus: Bus,
        *,
        others: Callable[[], Iterable[tuple[str, str]]],
        reserved: Sequence[str],
        pins: CardPins,
        changed: Callable[[], None],
        every: float,
        references: ReferenceRules,
    ) -> None:
        """`make` makes the target of an entry and its source; `others` are the kinds and names of
        all else that tools are called by, servers and the hub's own agents; `reserved` are what
        their listed names begin with; `changed` is called when policies know something else of an
        agent."""
        self._store = store
        self._make = make
        self._bus = bus
        self._others = others
        self._reserved = reserved
        self._pins = pins
        self._facts_changed = changed
        self._every = every
        self._references = references
        self._members: dict[str, Member] = {}
        """By slug."""
        self._joining = 0
        self._changing = asyncio.Lock()
        self._background = Background("the agent registry")
        self._running = False
        self.failures: dict[str, str] = {}
        """The agents that cannot be used, and why."""

    # --- from start to end ---------------------------------------------------------------------

    def load(self, entries: Iterable[ExternalAgent]) -> None:
        """Those of the configuration first: a name that is in both is theirs."""
        now = time.time()
        for entry in entries:
            self._bind(entry)
            self._load(configured(entry, now))
        for kept in self._store.rows():
            try:
                row = from_stored(kept)
            except InvalidInput as error:
                log.error("%s; the hub runs without it", error)
                continue
            self._bind(row.entry)
            self._load(row, self._refusal(row.entry))

    def _refusal(self, entry: ExternalAgent) -> str:
        """Why a stored agent is not used: another version of the hub accepted its references."""
        try:
            self._check_references(entry)
        except InvalidInput as error:
            log.error('agent "%s" is not used: %s', entry.name, error)
            return str(error)
        return ""

    def _load(self, row: Row, refusal: str = "") -> None:
        try:
            self._check_free(row.entry.name, row.slug)
            self._join(row, refusal)
        except (ConfigError, AmbiguousName) as error:
            self.failures[row.entry.name] = str(error)
            log.error("%s; the hub runs without it", error)

    def start(self) -> None:
        self._running = True
        for member in self._members.values():
            if member.watch is not None:
                member.watch.start()

    async def settled(self) -> None:
        """Until each has been found once, or has failed once."""
        watches = [one.watch for one in self._members.values() if one.watch is not None]
        await asyncio.gather(*(watch.tried() for watch in watches))

    async def stop(self) -> None:
        self._running = False
        watches = [one.watch for one in self._members.values() if one.watch is not None]
        await asyncio.gather(*(watch.stop() for watch in watches), return_exceptions=True)
        await self._background.close(CHANGE_SECONDS, timeout=CHANGE_SECONDS)

    def _join(self, row: Row, refusal: str = "") -> Member:
        """Makes its target and its watch; nothing is done yet."""
        member = Member(row)
        member.refusal = refusal
        if row.entry.enabled and not refusal:
            agent = self._make(row.entry, row.source)
            member.watch = Watch(
                agent,
                row.id,
                every=self._every,
                pins=self._pins,
                keep=lambda found: self._keep(row.id, found),
                told=lambda state, reason: self._told(row.entry.name, state, reason),
                changed=self._facts_changed,
            )
        self._members[row.slug] = member
        return member

    def _keep(self, id: str, found: Found) -> None:
        digest = hashlib.sha256(found.data).hexdigest()
        try:
            known = self._store.cards(id)
            if not known or known[0][0] != digest:
                self._store.keep_card(id, digest, found.data, time.time())
        except Full as error:
            log.error('a card of "%s" is not kept: %s', render_origin(found.url), error)

    def _told(self, name: str, state: str, reason: str) -> None:
        self._bus.emit(AgentChanged(name, state, reason))

    # --- credentials -----------------------------------------------------------------------------

    def _check_references(self, entry: ExternalAgent) -> None:
        """A reference must be allowed, and goes only to the origin it was first registered for:
        who may register agents must not be able to have a credential sent to another host."""
        origin = _origin_text(entry.url)
        for reference in self._references.find_in(entry):
            self._references.check(reference)
            bound = self._store.bound_origins(reference)
            if bound and origin not in bound:
                raise InvalidInput(
                    f'"{reference}" is kept for {" and ".join(bound)}, where it was registered '
                    f"first, and is not sent to {origin}: put the credential for {origin} under "
                    "another name, or write the agent into config.toml. See: dragoman docs registry"
                )

    def _bind(self, entry: ExternalAgent) -> None:
        for reference in self._references.find_in(entry):
            self._store.bind(reference, _origin_text(entry.url))

    def refused(self) -> dict[str, str]:
        """The agents that are kept but not used, and why."""
        return {one.name: one.refusal for one in self._members.values() if one.refusal}

    # --- names -----------------------------------------------------------------------------------

    def _check_free(self, name: str, slug: str, mine: str = "") -> None:
        """Tools of two owners must not be called alike; `mine` is the id of one that may be."""
        member = self._members.get(slug)
        if member is not None and member.row.id != mine:
            raise AmbiguousName(
                f'agent "{name}" would have its tools under "{slug}.", and so has agent '
                f'"{member.name}" at {render_origin(member.row.entry.url)}; give one of them '
                "another name"
            )
        for kind, other in self._others():
            if slug_of(other) == slug:
                raise AmbiguousName(
                    f'agent "{name}" would have its tools under "{slug}.", which is the name of '
                    f'{kind} "{other}"; give one of them '
                    "another name"
                )

    def _check_reserved(self, name: str, slug: str) -> None:
        """The listed names of others begin so."""
        for prefix in self._reserved:
            if f"{slug}_".startswith(prefix) or prefix.startswith(f"{slug}_"):
                raise InvalidInput(
                    f'an agent cannot be registered as "{name}": its tools could be listed under '
                    f'names that begin with "{prefix}", as those of others do; pass another name'
                )

    def _check_card_name(self, name: str, slug: str) -> None:
        """What a card says is its author's choice: its tools must not be listed as another's."""
        members = [("agent", member.name) for member in self._members.values()]
        for kind, other in (*self._others(), *members):
            space = slug_of(other)
            if slug.startswith(f"{space}_") or space.startswith(f"{slug}_"):
                raise InvalidInput(
                    f'the card says that the agent is called "{name}", and tools of {kind} '
                    f'"{other}" could be listed under the same names; pass a name for it'
                )

    def find(self, key: str) -> Member:
        """By id, slug or name."""
        for member in self._members.values():
            if key in (member.row.id, member.row.slug, member.name):
                return member
        names = [one.name for one in self._members.values()]
        near = difflib.get_close_matches(key, names, n=1)
        hint = f'; did you mean "{near[0]}"?' if near else ""
        raise NotFound(f'there is no registered agent "{key[:100]}"{hint}')

    def pin_of(self, name: str) -> str | None:
        member = self._named(name)
        return member.row.entry.pin if member is not None else None

    def additions_of(self, name: str) -> str | None:
        member = self._named(name)
        return member.row.entry.additions if member is not None else None

    def target(self, name: str) -> Watched | None:
        member = self._named(name)
        return member.watch.agent if member is not None and member.watch is not None else None

    def _named(self, name: str) -> Member | None:
        return next((one for one in self._members.values() if one.name == name), None)

    def names(self) -> list[str]:
        return [member.name for member in self._members.values()]

    # --- what is asked ---------------------------------------------------------------------------

    async def add(self, body: Mapping[str, Any]) -> Member:
        """Registering what is there already looks at it again."""
        values = given(body)
        self._check_references(entry_of(values, _provisional_name(values)))
        known = self._same(values["url"], values.get("name"))
        if known is not None:
            return await self._again(known, values)
        if "name" in values:  # or one would wait for an answer that is known
            self._check_free(values["name"], slug_of(values["name"]))
            self._check_reserved(values["name"], slug_of(values["name"]))
        if len(self._members) >= MAX_AGENTS or self._joining >= MAX_JOINING:
            raise Full(f"{len(self._members)} agents are registered; remove some, or wait")
        self._joining += 1
        try:
            return await self._find_and_join(values)
        finally:
            self._joining -= 1

    async def _again(self, member: Member, values: Mapping[str, Any]) -> Member:
        entry = member.row.entry
        wanted = {
            name: value
            for name, value in values.items()
            if name != "url" and getattr(entry, name) != value
        }
        if wanted:
            return await self.change(member.row.id, wanted)
        return await self.refetch(member.row.id)

    async def _find_and_join(self, values: dict[str, Any]) -> Member:
        """The agent is found before it has a name, and with that name it is looked at again."""
        seconds = values.get("timeout_secs", SECONDS)
        until = asyncio.get_running_loop().time() + seconds
        found = await self._discovered(values, seconds)
        row = registered(
            entry_of(values, values.get("name") or name_in(found.card, values["url"])), time.time()
        )
        known = self._same(row.entry.url, row.entry.name)
        if known is not None:  # meanwhile
            return known
        self._check_free(row.entry.name, row.slug)
        self._check_reserved(row.entry.name, row.slug)
        if "name" not in values:
            self._check_card_name(row.entry.name, row.slug)
        self._check_references(row.entry)  # another registration may have bound them meanwhile
        self._bind(row.entry)
        self._store.save(stored(row))
        member = self._join(row)
        log.info('agent "%s" at %s is registered', member.name, render_origin(row.entry.url))
        self._begin(member)
        await self._tried(member, until - asyncio.get_running_loop().time())
        return member

    def _begin(self, member: Member) -> None:
        if member.watch is not None and self._running:
            member.watch.start()

    async def _tried(self, member: Member, seconds: float) -> None:
        """The first look is waited for so long."""
        if member.watch is not None and self._running:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await member.watch.tried()

    async def _discovered(self, values: Mapping[str, Any], seconds: float) -> Found:
        url = values["url"]
        try:
            probe = self._make(entry_of(values, _provisional_name(values)), API)
            async with asyncio.timeout(seconds):
                found = await probe.client.discover(url)
            if values.get("wire") != SEED_WIRE:
                check_spoken(found)
            return found
        except TimeoutError:
            why = f"it did not answer within {seconds:g} s"
        except (HubError, A2aError) as error:
            why = str(error)
        raise InvalidInput(f'no agent was registered: "{render_origin(url)}" cannot be used: {why}')

    def _same(self, url: str, name: str | None) -> Member | None:
        for member in self._members.values():
            same = member.row.entry.url.rstrip("/") == url.rstrip("/")
            if same and name in (None, member.name):
                return member
        return None

    async def change(self, key: str, body: Mapping[str, Any]) -> Member:
        """Whoever leaves before it is done has changed it all the same; and nobody who wants to
        change another waits for an agent that does not answer."""
        member = await self._background.run_to_completion(self._change(key, body))
        await self._tried(member, member.row.entry.timeout_secs)
        return member

    async def _change(self, key: str, body: Mapping[str, Any]) -> Member:
        async with self._changing:
            member = self.find(key)
            old = member.row
            if old.source == CONFIG:
                raise InvalidInput(
                    f'agent "{member.name}" is in config.toml: change it there, under '
                    "[[a2a.external_agents]]"
                )
            entry = changed(old.entry, body)
            refusal = self._refusal_after(member, entry)
            row = replace(old, entry=entry, updated=time.time())
            self._store.save(stored(row))
            fields = entry.__struct_fields__
            differs = {one for one in fields if getattr(entry, one) != getattr(old.entry, one)}
            if member.watch is not None and differs <= _IN_PLACE:
                member.row, member.watch.agent.entry = row, entry
                member.watch.retrust()
                if "pin" in differs:
                    member.watch.repin()
                return member
            return await self._replaced(member, row, refusal)

    def _refusal_after(self, member: Member, entry: ExternalAgent) -> str:
        """A refused agent may be changed in other respects and stays refused. Raises `InvalidInput`
        for new references that are not allowed."""
        old = member.row.entry
        if member.refusal and (entry.token, entry.headers) == (old.token, old.headers):
            return member.refusal
        self._check_references(entry)
        self._bind(entry)
        return ""

    async def _replaced(self, member: Member, row: Row, refusal: str) -> Member:
        if member.watch is not None:
            await member.watch.stop()
        member = self._join(row, refusal)
        if member.watch is None:
            self._told(member.name, UNKNOWN, refusal or "it was disabled")
        self._begin(member)
        return member

    async def remove(self, key: str) -> None:
        await self._background.run_to_completion(self._remove(key))

    async def _remove(self, key: str) -> None:
        async with self._changing:
            member = self.find(key)
            if member.row.source == CONFIG:
                raise InvalidInput(
                    f'agent "{member.name}" is in config.toml: remove it there, or set '
                    "enabled = false"
                )
            self._store.delete(member.row.id)
            self._members.pop(member.row.slug, None)
            if member.watch is not None:
                await member.watch.stop()
            self._told(member.name, REMOVED, "it was removed")

    def find_absent(self, name: str) -> tuple[Watched, str] | None:
        """The agent in whose namespace `name` is, of those that were not found since the start."""
        folded = name.lower().replace("-", "_")
        for member in self._members.values():
            if member.watch is None or member.watch.agent.was_found:
                continue
            slug, agent = member.row.slug.replace("-", "_"), member.watch.agent
            starts = (f"{slug}.", f"a2a_{slug}_", f"{slug}_")
            if folded == slug or folded.startswith(starts) or folded.endswith(f"_agent_{slug}"):
                return agent, f'agent "{member.name}" is not found yet: {agent.reason}'
        return None

    async def refetch(self, key: str) -> Member:
        member = self.find(key)
        if member.watch is not None:
            await member.watch.refresh()
        return member

    def reconsider(self, name: str) -> None:
        """After what its pins hold was decided on."""
        member = self._named(name)
        if member is not None and member.watch is not None:
            member.watch.reconsider()

    # --- what is told ----------------------------------------------------------------------------

    def all(self) -> list[Member]:
        """Those of the configuration first, in its order."""
        return list(self._members.values())


def _origin_text(url: str) -> str:
    origin = origin_of(url)
    if origin is None:
        return render_origin(url)
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    return f"{origin.scheme}://{host}:{origin.port}"


def _provisional_name(values: Mapping[str, Any]) -> str:
    """What an agent is called in messages before its card has said its name."""
    return str(values.get("name") or render_origin(values["url"]))
