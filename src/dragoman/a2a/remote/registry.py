"""The registry of remote agents: those in the configuration and those registered by the API.

Each has a registration, a target and a health watch. Registering discovers the agent first: one
that cannot be found or understood is not stored. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from dragoman.a2a.client.card_discovery import FoundCard
from dragoman.a2a.client.dialect_probe import check_supported
from dragoman.a2a.config import WIRE_SKILL_ONLY, ExternalAgent
from dragoman.a2a.protocol.errors import A2aError
from dragoman.a2a.protocol.skill_tools import slug_from_name
from dragoman.a2a.remote.credentials import list_references
from dragoman.a2a.remote.health_watch import UNKNOWN, CheckSlots, HealthWatch, ReviewCard
from dragoman.a2a.remote.registered_agents import RegisteredAgent, RegisteredAgents
from dragoman.a2a.remote.registration import (
    API,
    CONFIG,
    AgentRegistration,
    apply_change,
    build_entry,
    create_registration,
    decode_registration,
    encode_registration,
    name_from_card,
    parse_request,
)
from dragoman.a2a.remote.remote_agent import RemoteAgent
from dragoman.core.background import Background, start_task
from dragoman.core.bus import Bus
from dragoman.core.cluster import SINGLE_HUB, ClusterMember
from dragoman.core.errors import (
    AmbiguousName,
    ConfigError,
    HubError,
    InvalidInput,
    Overloaded,
    StorageFailed,
)
from dragoman.core.events import REMOVED, AgentChanged
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.loop_turns import LoopTurns
from dragoman.core.secret_rules import Author, CredentialOrigins, ReferenceRules, SecretUse
from dragoman.core.structs import replace
from dragoman.core.urls import render_full_origin, render_origin
from dragoman.wire.json import encode

log = logging.getLogger(__name__)

HEALTH_LEASE = "health"
GROUP = 100
"""Agents whose watches begin or end in the same turn of the event loop."""
MAX_JOINING = 200
"""Concurrent registrations."""
SECONDS = 30.0
"""Default timeout of the discovery."""
CHANGE_SECONDS = 1.0
"""How long a change in progress may take when the hub stops."""
_IN_PLACE = frozenset({"trust", "pin", "additions"})
"""Settings that change without another connection."""


OtherNames = dict[str, tuple[str, str]]
"""The kinds and names of servers and local agents, by the prefix of their tools."""


class AgentStore(CredentialOrigins, Protocol):
    """Stores registrations and cards. May raise `StorageFailed`."""

    def iterate_agents(self) -> Iterator[dict[str, Any]]: ...
    def save_agent(self, row: Mapping[str, Any]) -> None: ...
    def delete_agent(self, id: str) -> None: ...
    def save_card(self, agent: str, digest: str, card: bytes, at: float) -> None: ...
    def list_cards(self, agent: str) -> list[tuple[str, float, int]]:
        """Lists digest, time and size of each, the newest first."""

    def load_card(self, agent: str, digest: str) -> bytes | None: ...


class Registry:
    def __init__(
        self,
        agents: RegisteredAgents,
        store: AgentStore,
        build_target: Callable[[ExternalAgent, str], RemoteAgent],
        bus: Bus,
        *,
        others: Callable[[], Iterable[tuple[str, str]]],
        reserved: Sequence[str],
        review_card: ReviewCard,
        facts_changed: Callable[[], None],
        every: float,
        most: int,
        read_delay: Callable[[], float],
        references: ReferenceRules,
        cluster: ClusterMember = SINGLE_HUB,
    ) -> None:
        """Fills `agents`. `build_target` takes an entry and its source; `others` lists the kinds
        and names of servers and local agents; `reserved` are the prefixes of their listed names;
        `facts_changed` is called when the facts that policies know of an agent change; `most` is
        the number of agents; `read_delay` returns by how many seconds the event loop has been late
        so far. One hub of the `cluster` checks the healthy agents, and tells the others of
        changes."""
        self._cluster = cluster
        self._store = store
        self._build_target = build_target
        self._bus = bus
        self._others = others
        self._reserved = reserved
        self._review_card = review_card
        self._facts_changed = facts_changed
        self._every = every
        self._most = most
        self._read_delay = read_delay
        self._slots = CheckSlots()
        self._references = references
        self.agents = agents
        self._joining = 0
        self._changing = asyncio.Lock()
        self._background = Background("the agent registry")
        self._running = False
        self.failures: dict[str, str] = {}
        """The agents that could not be loaded, and why."""
        self._excess = 0
        """How many agents were not loaded because there are too many."""

    # --- lifecycle --------------------------------------------------------------------------------

    def load(self, entries: Iterable[ExternalAgent]) -> None:
        """Loads the configured agents, before those that are stored: they win where a name is used
        twice."""
        now, others = time.time(), self._index_others()
        for entry in entries:
            self._bind(entry)
            self._load(create_registration(entry, now, CONFIG), others)

    async def load_stored(self) -> None:
        """Loads the stored agents, which may be many."""
        others, turns = self._index_others(), LoopTurns()
        for kept in self._store.iterate_agents():
            await turns.give_way()
            if len(self.agents) >= self._most:  # not decoded: there may be many
                self._note_excess(str(kept.get("slug")))
                continue
            try:
                row = decode_registration(kept)
            except InvalidInput as error:
                log.error("%s; the hub runs without it", error)
                continue
            self._bind(row.entry)
            self._load(row, others, self._find_refusal(row.entry))
        self._report_excess()

    def _find_refusal(self, entry: ExternalAgent) -> str:
        """Finds why a stored agent is not used: another version allowed its references."""
        try:
            self._check_references(entry)
        except InvalidInput as error:
            log.error('agent "%s" is not used: %s', entry.name, error)
            return str(error)
        return ""

    def _load(self, row: AgentRegistration, others: OtherNames, refusal: str = "") -> None:
        if len(self.agents) >= self._most:
            self._note_excess(row.entry.name)
            return
        try:
            self._check_free(row.entry.name, row.slug, others)
            self._join(row, refusal)
        except (ConfigError, AmbiguousName) as error:
            self.failures[row.entry.name] = str(error)
            log.error("%s; the hub runs without it", error)

    def _note_excess(self, name: str) -> None:
        self._excess += 1
        if self._excess == 1:  # one stands for all
            self.failures[name] = self._explain_excess()

    def _explain_excess(self) -> str:
        return (
            f"the hub uses {self._most} external agents at most, and there are more: remove some, "
            "or raise [bridge] max_agents in config.toml and restart"
        )

    def _report_excess(self) -> None:
        if self._excess:
            log.error("%d agents are not used: %s", self._excess, self._explain_excess())

    async def start(self) -> None:
        self._running = True
        self._cluster.subscribe(HEALTH_LEASE, self._check_changed)
        for group in self._group_watches():
            for watch in group:
                watch.start()
            await asyncio.sleep(0)  # their tasks begin

    async def wait_until_checked(self) -> None:
        """Waits until the first check of each agent is done."""
        for group in self._group_watches():
            for watch in group:
                await watch.wait_for_first_check()

    async def stop(self) -> None:
        self._running = False
        stops = []
        for group in self._group_watches():
            stops += [start_task(watch.stop()) for watch in group]
            await asyncio.sleep(0)  # none waits for those before it
        await asyncio.gather(*stops, return_exceptions=True)
        await self._background.close(CHANGE_SECONDS, timeout=CHANGE_SECONDS)

    def _group_watches(self) -> Iterator[list[HealthWatch]]:
        """Divides the watches into groups, each of which one turn of the event loop can bear."""
        watches = [one.watch for one in self.agents if one.watch is not None]
        for begin in range(0, len(watches), GROUP):
            yield watches[begin : begin + GROUP]

    def _join(self, row: AgentRegistration, refusal: str = "") -> RegisteredAgent:
        """Builds its target and its watch, without starting them."""
        member = RegisteredAgent(row)
        member.refusal = refusal
        if row.entry.enabled and not refusal:
            agent = self._build_target(row.entry, row.source)
            member.watch = HealthWatch(
                agent,
                row.id,
                every=self._every,
                review_card=self._review_card,
                save_card=lambda found: self._save_card(row.id, found),
                publish=lambda state, reason: self._publish(row.entry.name, state, reason),
                facts_changed=self._facts_changed,
                slots=self._slots,
                read_delay=self._read_delay,
                is_watched=lambda: not self._cluster.holds(HEALTH_LEASE),
            )
        self.agents.put(member)
        return member

    def _save_card(self, id: str, found: FoundCard) -> None:
        digest = hashlib.sha256(found.data).hexdigest()
        try:
            known = self._store.list_cards(id)
            if not known or known[0][0] != digest:
                self._store.save_card(id, digest, found.data, time.time())
        except StorageFailed as error:
            STORAGE_OUTAGE.note(f'a card of "{render_origin(found.url)}" is not saved: {error}')

    def _publish(self, name: str, state: str, reason: str) -> None:
        self._bus.emit(AgentChanged(name, state, reason))
        if self._cluster.holds(HEALTH_LEASE):
            self._cluster.publish(HEALTH_LEASE, {"agent": name})

    def _check_changed(self, hub: str, data: Mapping[str, Any]) -> None:
        """Checks an agent whose state another hub has seen change."""
        self.agents.recheck(str(data.get("agent")))

    # --- credentials ------------------------------------------------------------------------------

    def _check_references(self, entry: ExternalAgent) -> None:
        """Raises `InvalidInput` for a reference that is not allowed, or that was first registered
        for another origin."""
        use = SecretUse(Author.API, f'agent "{entry.name}"', render_full_origin(entry.url))
        for reference in list_references(entry, self._references):
            self._references.check(reference, use)

    def _bind(self, entry: ExternalAgent) -> None:
        for reference in list_references(entry, self._references):
            self._references.bind(reference, render_full_origin(entry.url))

    # --- names ------------------------------------------------------------------------------------

    def _index_others(self) -> OtherNames:
        others: OtherNames = {}
        for kind, name in self._others():
            others.setdefault(slug_from_name(name), (kind, name))
        return others

    def _check_free(self, name: str, slug: str, others: OtherNames) -> None:
        """Raises `AmbiguousName` if another agent, or one of `others`, uses the tool prefix."""
        member = self.agents.find_slug(slug)
        if member is not None:
            raise AmbiguousName(
                f'the tools of agent "{name}" would begin with "{slug}.", as those of agent '
                f'"{member.name}" at {render_origin(member.registration.entry.url)} do; rename '
                "one of them"
            )
        if slug in others:
            kind, other = others[slug]
            raise AmbiguousName(
                f'the tools of agent "{name}" would begin with "{slug}.", as those of {kind} '
                f'"{other}" do; rename one of them'
            )

    def _check_reserved(self, name: str, slug: str) -> None:
        """Raises `InvalidInput` if listed names could begin with a reserved prefix."""
        for prefix in self._reserved:
            if f"{slug}_".startswith(prefix) or prefix.startswith(f"{slug}_"):
                raise InvalidInput(
                    f'an agent cannot be registered as "{name}": its tools could be listed under '
                    f'names that begin with "{prefix}", as those of others do; pass another name'
                )

    def _check_card_name(self, name: str, slug: str) -> None:
        """Raises `InvalidInput` if a name from a card, which is its author's choice, could make its
        tools look like another's."""
        members = [("agent", member.name) for member in self.agents]
        for kind, other in (*self._others(), *members):
            space = slug_from_name(other)
            if slug.startswith(f"{space}_") or space.startswith(f"{slug}_"):
                raise InvalidInput(
                    f'the card says that the agent is called "{name}", and tools of {kind} '
                    f'"{other}" could be listed under the same names; pass a name for it'
                )

    # --- operations -------------------------------------------------------------------------------

    async def add(self, body: Mapping[str, Any]) -> RegisteredAgent:
        """Registers an agent; one that is registered already is changed or checked again."""
        values = parse_request(body)
        self._check_references(build_entry(values, _choose_provisional_name(values)))
        known = self._find_same(values["url"], values.get("name"))
        if known is not None:
            return await self._register_again(known, values)
        if "name" in values:  # refuse before waiting for the agent
            self._check_free(values["name"], slug_from_name(values["name"]), self._index_others())
            self._check_reserved(values["name"], slug_from_name(values["name"]))
        if len(self.agents) >= self._most:
            raise Overloaded(f"{len(self.agents)} agents are registered: {self._explain_excess()}")
        if self._joining >= MAX_JOINING:
            raise Overloaded(f"{self._joining} agents are being registered; try again shortly")
        self._joining += 1
        try:
            return await self._discover_and_join(values)
        finally:
            self._joining -= 1

    async def _register_again(
        self, member: RegisteredAgent, values: Mapping[str, Any]
    ) -> RegisteredAgent:
        entry = member.registration.entry
        wanted = {
            name: value
            for name, value in values.items()
            if name != "url" and getattr(entry, name) != value
        }
        if wanted:
            return await self.change(member.registration.id, wanted)
        return await self.refetch(member.registration.id)

    async def _discover_and_join(self, values: dict[str, Any]) -> RegisteredAgent:
        """Discovers the agent, whose card may name it, then joins and checks it."""
        seconds = values.get("timeout_secs", SECONDS)
        until = asyncio.get_running_loop().time() + seconds
        found = await self._discover(values, seconds)
        row = create_registration(
            build_entry(values, values.get("name") or name_from_card(found.card, values["url"])),
            time.time(),
        )
        known = self._find_same(row.entry.url, row.entry.name)
        if known is not None:  # registered meanwhile
            return known
        self._check_free(row.entry.name, row.slug, self._index_others())
        self._check_reserved(row.entry.name, row.slug)
        if "name" not in values:
            self._check_card_name(row.entry.name, row.slug)
        self._check_references(row.entry)  # another registration may have bound them meanwhile
        self._bind(row.entry)
        self._store.save_agent(encode_registration(row))
        member = self._join(row)
        log.info('agent "%s" at %s is registered', member.name, render_origin(row.entry.url))
        self._start_watch(member)
        await self._wait_for_first_check(member, until - asyncio.get_running_loop().time())
        return member

    def _start_watch(self, member: RegisteredAgent) -> None:
        if member.watch is not None and self._running:
            member.watch.start()

    async def _wait_for_first_check(self, member: RegisteredAgent, seconds: float) -> None:
        if member.watch is not None and self._running:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await member.watch.wait_for_first_check()

    async def _discover(self, values: Mapping[str, Any], seconds: float) -> FoundCard:
        url = values["url"]
        try:
            probe = self._build_target(build_entry(values, _choose_provisional_name(values)), API)
            async with asyncio.timeout(seconds):
                found = await probe.client.discover(url)
            if values.get("wire") != WIRE_SKILL_ONLY:
                check_supported(found)
            return found
        except TimeoutError:
            why = f"it did not answer within {seconds:g} s"
        except (HubError, A2aError) as error:
            why = str(error)
        raise InvalidInput(f'no agent was registered: "{render_origin(url)}" cannot be used: {why}')

    def _find_same(self, url: str, name: str | None) -> RegisteredAgent | None:
        for member in self.agents:
            same = member.registration.entry.url.rstrip("/") == url.rstrip("/")
            if same and name in (None, member.name):
                return member
        return None

    async def change(self, key: str, body: Mapping[str, Any]) -> RegisteredAgent:
        """Changes an agent even if the caller is cancelled. The wait for its check is outside the
        lock, so that an agent that does not answer blocks no other change."""
        member = await self._background.run_to_completion(self._change(key, body))
        await self._wait_for_first_check(member, member.registration.entry.timeout_secs)
        return member

    async def _change(self, key: str, body: Mapping[str, Any]) -> RegisteredAgent:
        async with self._changing:
            member = self.agents.find(key)
            old = member.registration
            if old.source == CONFIG:
                raise InvalidInput(
                    f'agent "{member.name}" is in config.toml: change it there, under '
                    "[[a2a.external_agents]]"
                )
            entry = apply_change(old.entry, body)
            refusal = self._check_change(member, entry)
            row = replace(old, entry=entry, updated=time.time())
            self._store.save_agent(encode_registration(row))
            fields = entry.__struct_fields__
            differs = {one for one in fields if getattr(entry, one) != getattr(old.entry, one)}
            if member.watch is not None and differs <= _IN_PLACE:
                member.registration, member.watch.agent.entry = row, entry
                member.watch.apply_trust()
                if "pin" in differs:
                    member.watch.apply_pin_mode()
                return member
            return await self._replace(member, row, refusal)

    def _check_change(self, member: RegisteredAgent, entry: ExternalAgent) -> str:
        """Returns why the agent is still refused: it may be changed in other respects. Raises
        `InvalidInput` for new references that are not allowed."""
        old = member.registration.entry
        if member.refusal and (entry.token, entry.headers) == (old.token, old.headers):
            return member.refusal
        self._check_references(entry)
        self._bind(entry)
        return ""

    async def _replace(
        self, member: RegisteredAgent, row: AgentRegistration, refusal: str
    ) -> RegisteredAgent:
        if member.watch is not None:
            await member.watch.stop()
        member = self._join(row, refusal)
        if member.watch is None:
            self._publish(member.name, UNKNOWN, refusal or "it was disabled")
        self._start_watch(member)
        return member

    async def remove(self, key: str) -> None:
        await self._background.run_to_completion(self._remove(key))

    async def _remove(self, key: str) -> None:
        async with self._changing:
            member = self.agents.find(key)
            if member.registration.source == CONFIG:
                raise InvalidInput(
                    f'agent "{member.name}" is in config.toml: remove it there, or set '
                    "enabled = false"
                )
            self._store.delete_agent(member.registration.id)
            await self._leave(member)

    async def reload(self) -> None:
        """Applies what other hubs have registered, changed or removed."""
        await self._background.run_to_completion(self._reload())

    async def _reload(self) -> None:
        async with self._changing:
            turns, members = LoopTurns(), list(self.agents)  # before others are stored and added
            stored: dict[str, dict[str, Any]] = {}
            for kept in self._store.iterate_agents():
                stored[str(kept.get("id"))] = kept
                await turns.give_way()
            for member in members:
                row = member.registration
                if row.source != CONFIG and row.id not in stored:
                    await self._leave(member)
            others, excess, self._excess = self._index_others(), self._excess, 0
            for id, kept in stored.items():
                await turns.give_way()
                known = self.agents.find_id(id)
                if known is None:
                    await self._load_stored(kept, others)
                elif encode(kept) != encode(encode_registration(known.registration)):
                    await self._leave(known, announce=False)
                    await self._load_stored(kept, others)
            if self._excess != excess:
                self._report_excess()

    async def _load_stored(self, kept: Mapping[str, Any], others: OtherNames) -> None:
        try:
            row = decode_registration(kept)
        except InvalidInput as error:
            log.error("%s; the hub runs without it", error)
            return
        self._load(row, others, self._find_refusal(row.entry))
        member = self.agents.find_slug(row.slug)
        if member is not None and member.registration is row:
            self._start_watch(member)

    async def _leave(self, member: RegisteredAgent, announce: bool = True) -> None:
        self.agents.remove(member)
        if member.watch is not None:
            await member.watch.stop()
        if announce:
            self._publish(member.name, REMOVED, "it was removed")

    async def refetch(self, key: str) -> RegisteredAgent:
        member = self.agents.find(key)
        if member.watch is not None:
            await member.watch.refresh()
        return member


def _choose_provisional_name(values: Mapping[str, Any]) -> str:
    """Names an agent in messages before its card is known."""
    return str(values.get("name") or render_origin(values["url"]))
