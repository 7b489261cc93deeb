"""The agent registry of a hub, wired as in a hub, and agents that tests change at run time."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.a2a.scripted_agent import WELL_KNOWN, Request, ScriptedAgent, card_10, scripted_agent
from tests.permissive_hub import build_permissive_hub

from dragoman.a2a.remote.registered_agents import RegisteredAgents
from dragoman.a2a.remote.registry_view import RegistryView
from dragoman.app.build_agents import Agents, AgentsBuilder, LocalAgents, build_a2a_mounts
from dragoman.app.config_watch import LiveConfig
from dragoman.app.run_state import RunState
from dragoman.config import Config, parse
from dragoman.core.bus import Bus
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.events import AgentChanged
from dragoman.core.hub import Hub
from dragoman.core.local_agents import AgentProfiles
from dragoman.core.tool import Tool
from dragoman.net.client import OutboundHttp
from dragoman.stores.audit.log import SqliteAuditLog
from dragoman.stores.registry import RegistryStore
from dragoman.stores.steady_clock import SteadyClock
from dragoman.stores.tasks import MemoryTaskStore
from dragoman.web.app import PathMount

NOT_FOUND = -32001


def skill(id: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "name": id, "description": f"does {id}", "tags": ["t"], **more}


class ChangeableAgent:
    """An agent whose card and behaviour tests change at run time."""

    def __init__(self, *skills: str, name: str = "Moody") -> None:
        self.card: dict[str, Any] = {"name": name, "skills": [skill(id) for id in skills]}
        self.mode = "well"
        """well, gone (503 to everything), deaf (its card alone), locked, confused, knows (every
        task)."""
        self.wants = ""
        """The token that must be shown."""
        self.place = WELL_KNOWN
        self.served = ScriptedAgent()

    @property
    def url(self) -> str:
        return self.served.url

    def handle(self, request: Request) -> None:
        self.served.requests.append(request)
        told = request.headers.get("authorization", "")
        if self.mode == "gone":
            request.reply(503, {})
        elif self.wants and told != f"Bearer {self.wants}":
            request.reply(401, {})
        elif request.path == self.place:
            self._card(request)
        elif "/.well-known/" in request.path:
            request.reply(404, {})
        elif self.mode == "deaf":
            request.reply(503, {})
        elif self.mode == "confused":
            request.fail(-32603, "out of order")
        elif self.mode == "locked":
            request.reply(403, {})
        elif self.mode == "knows":
            state = {"state": "TASK_STATE_COMPLETED", "timestamp": "2026-01-01T00:00:00Z"}
            request.result({"id": request.params["id"], "contextId": "c", "status": state})
        elif request.rpc == "GetTask":
            request.fail(NOT_FOUND, "no such task")
        else:
            said = [{"text": "done"}]
            request.result({"message": {"role": "ROLE_AGENT", "messageId": "m", "parts": said}})

    def _card(self, request: Request) -> None:
        body = json.dumps(card_10(f"http://{request.headers['host']}", **self.card)).encode()
        tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        if request.headers.get("if-none-match") == tag:
            request.reply(304, b"", etag=tag)
        else:
            request.reply(200, body, etag=tag)


@asynccontextmanager
async def run_changeable_agent(*skills: str, name: str = "Moody") -> AsyncIterator[ChangeableAgent]:
    made = ChangeableAgent(*skills, name=name)
    async with scripted_agent(made.handle) as served:
        made.served.url = served.url
        yield made


class Pins:
    """Quarantines the cards that a test names."""

    def __init__(self) -> None:
        self.holds: Callable[[Mapping[str, Any]], str | None] = lambda raw: None
        self.asked: list[tuple[str, str]] = []

    def review_card(
        self, agent: str, raw: Mapping[str, Any], mode: str, is_extended: bool
    ) -> str | None:
        self.asked.append((agent, mode))
        return self.holds(raw)


@dataclass(frozen=True)
class AgentStores:
    registry: RegistryStore
    tasks: MemoryTaskStore
    clock: SteadyClock
    conversations: None = None


class RegistryRig:
    def __init__(
        self,
        hub: Hub,
        config: Config,
        state: RunState,
        agents: Agents,
        store: RegistryStore,
        pins: Pins,
        audit: SqliteAuditLog,
    ) -> None:
        self.hub = hub
        self.audit = audit
        self.config, self.state, self.agents = config, state, agents
        self.pins = pins
        self.events: list[tuple[str, str]] = []
        self.reasons: list[str] = []
        self.fact_changes = 0
        self.registry = agents.registry
        self.listed = RegistryView(agents.registry, store, hub.catalog, lambda name: 0)
        self._moved = asyncio.Event()
        hub.bus.observe(AgentChanged, self._heard)
        hub.catalog.on_change(self._moved.set)

    def _heard(self, event: AgentChanged) -> None:
        self.events.append((event.agent, event.state))
        self.reasons.append(event.reason)
        self._moved.set()

    def build_mounts(self) -> list[PathMount]:
        return build_a2a_mounts(self.config, self.agents.a2a)

    def one(self, key: str) -> dict[str, Any]:
        return self.listed.get_agent(key, permit_all, secret=True)

    def tools(self) -> list[str]:
        return [tool.name for tool in self.hub.catalog.list_tools()]

    async def until(self, true: Callable[[], bool]) -> None:
        """Looks whenever an agent or the catalog has changed."""
        async with asyncio.timeout(60):
            while not true():
                self._moved.clear()
                await self._moved.wait()


def permit_all(tool: Tool) -> bool:
    return True


@asynccontextmanager
async def run_registry(
    home: Path,
    config: str = "",
    *,
    every: float = 30.0,
    lookup: Mapping[str, str] | None = None,
    catalog: Catalog | None = None,
    start: bool = True,
    bridge: str = "",
    read_delay: Callable[[], float] = lambda: 0.0,
) -> AsyncIterator[RegistryRig]:
    written = f"[bridge]\nprobe_secs = {every}\n{bridge}[a2a]\nenabled = true\nstore = 'memory'\n"
    written += config
    tools = catalog if catalog is not None else Catalog(review=admit_all)
    hub, net, pins = build_permissive_hub(tools, Bus(), []), OutboundHttp(), Pins()
    changes: list[None] = []
    audit = SqliteAuditLog(home)
    parsed = parse(written)
    live, state, local = (
        LiveConfig(parsed, lookup or {}, home),
        RunState("mcp", None),
        LocalAgents({}, {}),
    )
    store = RegistryStore(home)
    stores = AgentStores(store, MemoryTaskStore(), SteadyClock(0, 0))
    touch, registered = (lambda: changes.append(None)), RegisteredAgents()
    agents = AgentsBuilder(
        home, live, state, stores, hub, net, local, AgentProfiles(), registered, pins.review_card,
        touch, lambda entry: None, read_delay,
    ).build()  # fmt: skip
    made = RegistryRig(hub, parsed, state, agents, store, pins, audit)
    try:
        await agents.registry.load_stored()
        if start:
            await agents.start(parsed, state, None, lambda principal: "", None)
        yield made
        made.fact_changes = len(changes)
    finally:
        agents.begin_stop()
        async with asyncio.timeout(60):
            await agents.stop()
            await net.close()
        store.close()
        audit.close()


def external(name: str, url: str, **more: str) -> str:
    """`[[a2a.external_agents]]`."""
    lines = [f'name = "{name}"', f'url = "{url}"', *(f"{key} = {more[key]}" for key in more)]
    return "\n".join(["[[a2a.external_agents]]", *lines, ""])
