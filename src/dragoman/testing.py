"""Public test helpers for code on top of the bridge: a tool of a remote agent's skill without the
agent, and a bus that records its events.

A call runs through the hub's pipeline with every guard and the real policies; only requests to the
network go to a function of the test. Nothing is written to disk.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from dragoman import guards
from dragoman.a2a.cards.parse import parse_card
from dragoman.a2a.client.card_discovery import FoundCard
from dragoman.a2a.client.dialect_probe import ProbedAgent
from dragoman.a2a.client.endpoint import JSONRPC, Endpoint
from dragoman.a2a.config import RENAMED_WIRES, ExternalAgent
from dragoman.a2a.protocol.dialects.operations import V03
from dragoman.a2a.remote.remote_agent import RemoteAgent
from dragoman.core.bus import Bus
from dragoman.core.call import ABSENT, Result
from dragoman.core.call_chains import CallChains
from dragoman.core.catalog import admit_all, build_catalogs
from dragoman.core.errors import BadReply, TimedOut, Unreachable
from dragoman.core.event_payloads import render_verb_event
from dragoman.core.events import PostVerb, PreVerb, VerbError
from dragoman.core.hub import CallOptions, Hub
from dragoman.core.kept_results import KeptResults
from dragoman.core.local_agents import AgentProfiles
from dragoman.core.name_claims import NameClaims
from dragoman.core.principal import Principal
from dragoman.core.question_handles import QuestionHandles
from dragoman.core.rate_limiter import LocalRateLimiter
from dragoman.core.tool import TOOL, Tool
from dragoman.core.tool_filter import EVERYTHING
from dragoman.guards.carried_labels import CarriedLabels
from dragoman.guards.config import Limits, TaintSettings
from dragoman.guards.grants import GrantedAuthorizer
from dragoman.guards.tool_flows import ToolFlowTable
from dragoman.guards.validate import compile_schema
from dragoman.policy.engine import PolicyEngine
from dragoman.policy.loader import PolicyError, check_texts
from dragoman.stores.labels import MemoryLabels
from dragoman.wire.http import NO_HEADERS, HttpReply

__all__ = ["Fetched", "SkillTool", "VerbBus", "build_a2a_skill_tool", "create_in_memory_verb_bus"]

DOOR = "test"
SECONDS = 30.0


class VerbBus:
    """`events` has all events so far as subscribers get them: dictionaries with `phase`, `verb` and
    so on."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.bus = Bus()
        self.subscribe(self.events.append)

    def subscribe(self, callback: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        """Subscribes to events; the returned function unsubscribes."""

        def forward(event: Any) -> None:
            callback(render_verb_event(event))

        ends = [self.bus.observe(kind, forward) for kind in (PreVerb, PostVerb, VerbError)]

        def end() -> None:
            for each in ends:
                each()

        return end


def create_in_memory_verb_bus() -> VerbBus:
    return VerbBus()


class Fetched(NamedTuple):
    """A request that would have gone over the network."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes


Fetcher = Callable[..., Awaitable[Mapping[str, Any]]]
"""Takes a `Fetched`, or nothing if its first parameter has a default other than None or there is
none; returns `status` and `bodyText` (or `body_text`). An `OSError` stands for a failure of the
network."""


class SkillTool:
    """A skill as MCP clients list and call it."""

    def __init__(self, hub: Hub, tool: Tool, caller: Principal) -> None:
        self.name = tool.name
        self.alias = tool.other_names["alias"]
        self.description = tool.description
        self.input_schema: Mapping[str, Any] = tool.definition["inputSchema"]
        self._hub = hub
        self._caller = caller

    async def call(self, args: Mapping[str, Any], name: str = "") -> Result:
        """Calls the tool by its name, or by another name that it has."""
        options = CallOptions(door=DOOR, view=EVERYTHING)
        _, result = await self._hub.call(self._caller, name or self.name, args, options)
        return result

    async def handler(self, args: Mapping[str, Any]) -> Any:
        """Returns the object or the text of the agent's answer, or else its content blocks. Raises
        the errors that a client would get."""
        result = await self.call(args)
        if result.structured is not ABSENT:
            return result.structured
        texts = [block.get("text") for block in result.content]
        return texts[0] if len(texts) == 1 and texts[0] is not None else list(result.content)


def build_a2a_skill_tool(
    *,
    agent_row: Mapping[str, Any],
    card: Mapping[str, Any],
    skill: Mapping[str, Any],
    fetcher: Fetcher,
    verb_bus: VerbBus | None = None,
    policies: str | None = None,
    wire: str = "auto",
    timeout_secs: float = SECONDS,
) -> SkillTool:
    """Builds the tool. `agent_row` has `id`, `orgId` and `agentUrl`, and may have a `name`; the
    default is the card's. The principal is the owner of that org. `policies` is Cedar text that
    replaces the policies of a new hub."""
    if wire in RENAMED_WIRES:
        new = RENAMED_WIRES[wire]
        warnings.warn(f'wire="{wire}" is now called "{new}"', DeprecationWarning, stacklevel=2)
        wire = new
    org, url = str(_read_member(agent_row, "orgId")), str(_read_member(agent_row, "agentUrl"))
    name = str(agent_row.get("name") or card.get("name") or agent_row["id"])
    catalogs, bus = build_catalogs(admit_all, NameClaims()), (verb_bus or VerbBus()).bus
    catalog = catalogs[TOOL]
    agent = RemoteAgent(
        ExternalAgent(name=name, url=url, wire=wire, timeout_secs=timeout_secs),  # type: ignore[arg-type]
        lambda *_: _FetcherClient(fetcher),
        catalog,
        compile_schema,
        headers={},
        signatures="ignore",
        org=org,
    )
    judge = GrantedAuthorizer(_build_engine(policies, agent), AgentProfiles())
    handles, chains = QuestionHandles(os.urandom(32), SECONDS), CallChains(os.urandom(32))
    limits = Limits()
    kept = KeptResults(limits.kept_megabytes, limits.kept_secs)
    limiter = LocalRateLimiter(limits.rate.build_rules())
    stages = guards.build_stages(
        _NullAuditLog(), bus, limits, handles, chains, judge, kept, limiter,
        ToolFlowTable(TaintSettings()), CarriedLabels(MemoryLabels()),
    )  # fmt: skip
    hub = Hub(catalogs, bus, stages, chains, judge, results=kept, limiter=limiter)
    agent.offer(_build_probed_agent(url, card, skill, wire), str(agent_row["id"]))
    (tool,) = [tool for tool in catalog.list_tools() if tool.bridged is not None]
    return SkillTool(hub, tool, Principal("owner", "owner", org, roles=("owner",)))


def _read_member(row: Mapping[str, Any], name: str) -> Any:
    """Reads a member in camel case or snake case."""
    snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    return row[name] if name in row else row[snake]


def _build_probed_agent(
    url: str, card: Mapping[str, Any], skill: Mapping[str, Any], wire: str
) -> ProbedAgent:
    """Builds the agent as if it had been discovered; sends nothing."""
    raw = {**card, "skills": [skill]}
    peer = ProbedAgent(FoundCard(asked=url, url=url, raw=raw, card=parse_card(raw, url)))
    if wire == "auto":
        said = card.get("protocolVersion") or card.get("supportedInterfaces")
        default = Endpoint(JSONRPC, V03, url, declared=True)
        peer.use_endpoint(peer.endpoints[0] if said else default)
    return peer


def _build_engine(policies: str | None, agent: RemoteAgent) -> PolicyEngine:
    checked = check_texts(None if policies is None else {"test.cedar": policies})
    if checked.policy_set is None:
        raise PolicyError(checked.findings)
    facts = agent.traits.facts
    return PolicyEngine(checked.policy_set, facts=lambda name: facts, intact=lambda tool: True)


class _NullAuditLog:
    def __init__(self) -> None:
        self._last = 0

    def intend(self, entry: Mapping[str, Any]) -> int:
        self._last += 1
        return self._last

    def hash_arguments(self, arguments: bytes) -> str:
        return ""

    def conclude(self, intent: int, entry: Mapping[str, Any]) -> None:
        pass


class _FetcherClient:
    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        first = next(iter(inspect.signature(fetcher).parameters.values()), None)
        self._takes = first is not None and first.default in (first.empty, None)

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        timeout: float,
        extra_headers: Mapping[str, str] = NO_HEADERS,
    ) -> HttpReply:
        headers = {**headers, **extra_headers}
        try:
            asked = (Fetched(method, url, headers, body),) if self._takes else ()
            reply = await self._fetcher(*asked)
        except TimeoutError as error:
            raise TimedOut(f'"{url}" did not answer: {error}') from error
        except OSError as error:
            raise Unreachable(f'"{url}" cannot be reached: {error}') from error
        text = str(_read_member(reply, "bodyText"))
        return HttpReply(int(reply["status"]), {"content-type": "application/json"}, _Body(text))


class _Body:
    def __init__(self, text: str) -> None:
        self._data = text.encode()

    async def read(self, limit: int) -> bytes:
        if len(self._data) > limit:
            raise BadReply(f"the answer is longer than {limit} bytes")
        return self._data

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self._data

    async def reserve(self, size: int) -> None:
        pass

    def close(self) -> None:
        pass
