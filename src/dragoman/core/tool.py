"""What can be called, and where the calls end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from dragoman.core.call import Call, Result, empty_mapping
from dragoman.core.errors import HubError, NotFound, TimedOut

TOOL, PROMPT, RESOURCE, TEMPLATE = "tool", "prompt", "resource", "template"
"""The kinds there is a catalog of."""
INSTRUCTIONS = "instructions"
"""What a server tells models about its use as a whole: reviewed like a tool, and never called."""
COMPLETION, SUBSCRIPTION = "completion", "subscription"
"""Other kinds of calls: to complete an argument of a prompt or template, to follow a resource."""

Validator = Callable[[Mapping[str, Any]], str | None]
"""Arguments in, the first thing wrong with them out, in words; None when they fit."""


def accept_anything(arguments: Mapping[str, Any]) -> str | None:
    """The validator of a tool that accepts any arguments."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFacts:
    """What can be said of an agent to those who choose one."""

    name: str
    description: str
    version: str = "1.0.0"
    skills: Sequence[Mapping[str, Any]] = ()
    """Each with `id`, `name`, `description`, `tags` and `examples`."""
    input_modes: Sequence[str] = ("text/plain", "application/json")
    output_modes: Sequence[str] = ("text/plain", "application/json")
    streaming: bool = True
    push: bool = True
    extended: bool = False
    """Whether those who are known are told more."""
    extensions: Sequence[Mapping[str, Any]] = ()
    """Each with `uri`, `description`, `required` and `params`."""
    continues: bool = False
    """Whether a further message to it is a call of its own, that needs no handle."""


EXTERNAL, TRUSTED = 1, 2
"""How far a target is trusted; more is more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """What policies may know of a target."""

    type: str
    """`Server`, `RemoteAgent` or `Agent` (one of the hub's own)."""
    org: str = "default"
    trust: int = TRUSTED
    transport: str = ""
    signed: bool = False
    """Whether its card is signed by a key that is known here."""
    healthy: bool = True
    pinned: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTraits:
    """What the hub knows of a target. A target whose traits change replaces the whole record."""

    facts: TargetFacts = TargetFacts(type="Server", trust=EXTERNAL, pinned=False)
    may_last: bool = False
    """Whether a call may become a task there and take longer than others."""
    timeout: float | None = None
    """How many seconds the target itself gives to a call of a skill."""
    timeout_error: type[TimedOut] = TimedOut
    """What a call of a skill that takes too long raises."""
    ends_questions: bool = False
    """Whether a continued call without any answers ends what waits for them."""
    has_resources: bool = False
    """Whether it has resources, listed or not."""
    announces_resources: bool = False
    """Whether it may announce changes of resources, even if it has none."""
    extensions: Mapping[str, Any] = field(default_factory=empty_mapping)
    """The protocol extensions that it declares, with their settings."""
    is_published: bool = True
    """Whether clients without a key may know of it."""


DEFAULT_TRAITS = TargetTraits()


class Target(Protocol):
    """Where a call ends. `run` turns whatever goes wrong behind it into `TargetFailed`."""

    traits: TargetTraits

    @property
    def name(self) -> str:
        """Its namespace: one target, one name."""

    async def run(self, call: Call) -> Result: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridged:
    """What is said of the skill of a registered agent, wherever it is spoken of."""

    agent: str
    """The name that the agent has here."""
    card_id: str
    url: str
    skill_id: str
    alias: str
    """`a2a_{slug}_{skill}`"""


NO_FLOWS: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Anything callable by name: a tool, a prompt to be filled in, a resource to be read."""

    name: str
    """Canonical, `target.tool`, the identity of the tool (see `core.identity`): in pins, policies,
    events and the audit, whatever alias was used and however its target spells it."""
    alias: str
    """`mcp_{server}_{tool}`; a resource's own address. Leads to the tool that had it first."""
    other_names: Mapping[str, str] = field(default_factory=empty_mapping)
    """What it is called in other styles of naming; each may be used to call it. `spelled` is the
    canonical name as its target spells it, where that is another."""
    kind: str = TOOL
    remote_name: str
    """What its target calls it."""
    description: str = ""
    definition: Mapping[str, Any] = field(default_factory=dict)
    """Everything the far side said of it, faithful."""
    validate: Validator = accept_anything
    agent: AgentFacts | None = None
    """Of an agent, which takes a message, works by judgement and may take its time."""
    bridged: Bridged | None = None
    """Of a skill of a registered agent."""
    sources: frozenset[str] = NO_FLOWS
    """The labels of what comes out of it."""
    sinks: frozenset[str] = NO_FLOWS
    """Where what goes into it may end: `exec`, `write`, `net`, `agent`."""
    destructive: bool = False
    """Whether it says of itself that it may destroy."""
    resources: tuple[str, ...] = ()
    """Addresses of resources that belong to it, which need not be listed."""
    target: Target


class Nowhere:
    """The target of a name that leads to nothing, so that such calls are recorded like others."""

    name = "nowhere"
    traits = DEFAULT_TRAITS

    def __init__(self, error: HubError, stands_for: Sequence[Tool] = ()) -> None:
        self.error = error
        self.stands_for = stands_for
        """What the error speaks of: there is no such thing for those who may not know of it."""

    async def run(self, call: Call) -> NoReturn:
        # A new one: raised, it holds on to its frames, and they to the call that leads here.
        raise copy(self.error)


def build_unknown_tool(asked_as: str, kind: str = TOOL) -> Tool:
    return build_missing_tool(asked_as, NotFound(f'there is no {kind} "{asked_as[:200]}"'), kind)


def build_missing_tool(
    asked_as: str, error: HubError, kind: str = TOOL, stands_for: Sequence[Tool] = ()
) -> Tool:
    target = Nowhere(error, stands_for)
    return Tool(name=asked_as, alias=asked_as, remote_name=asked_as, kind=kind, target=target)
