"""Tools, and the targets that run them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from dragoman.core.call import Call, Result, empty_mapping
from dragoman.core.errors import HubError, NotFound, TimedOut

TOOL, PROMPT, RESOURCE, TEMPLATE = "tool", "prompt", "resource", "template"
"""The kinds with a catalog."""
INSTRUCTIONS = "instructions"
"""A server's instructions for models: reviewed like a tool, never called."""
COMPLETION, SUBSCRIPTION = "completion", "subscription"
"""Other kinds of calls: completing an argument, subscribing to a resource."""

Validator = Callable[[Mapping[str, Any]], str | None]
"""Takes arguments and returns the first problem as text; None if they are valid."""


def accept_anything(arguments: Mapping[str, Any]) -> str | None:
    """Validates arguments of any form."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFacts:
    """What is published about an agent."""

    name: str
    description: str
    version: str = "1.0.0"
    skills: Sequence[Mapping[str, Any]] = ()
    """Each with `id`, `name`, `description`, `tags` and `examples`."""
    has_live_skills: bool = False
    """Whether the list changes by itself, with tools that were reviewed already."""
    input_modes: Sequence[str] = ("text/plain", "application/json")
    output_modes: Sequence[str] = ("text/plain", "application/json")
    streaming: bool = True
    push: bool = True
    extended: bool = False
    """Whether authenticated clients are shown more."""
    extended_facts: AgentFacts | None = None
    """What the extended card of an agent elsewhere says of it, besides its skills: those that are
    not on its public card have `public` false in `skills`."""
    extensions: Sequence[Mapping[str, Any]] = ()
    """Each with `uri`, `description`, `required` and `params`."""
    judges_media: bool = False
    """Whether the agent itself refuses what it does not accept: many take more than their cards
    say."""
    continues: bool = False
    """Whether a further message is a call of its own, without a handle."""


EXTERNAL, TRUSTED = 1, 2
"""Trust levels; higher is more."""
DEFAULT_ORG, EVERY_ORG = "default", "*"
NETWORK, ISOLATED = "network", "isolated"
"""Where a target is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """What policies may know of a target."""

    type: str
    """`Server`, `RemoteAgent` or `Agent` (a local one)."""
    org: str = "default"
    """EVERY_ORG for a target that is in the org of each principal, such as the built-in tools."""
    trust: int = TRUSTED
    transport: str = ""
    signed: bool = False
    """Whether its card is signed by a known key."""
    healthy: bool = True
    pinned: bool = True
    reach: str = ""
    """NETWORK for a target on another machine, ISOLATED for a process without network, empty for
    others."""


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
    has_apps: bool = False
    """Whether a tool of it has a user interface, whose code calls the target's tools by the names
    that the target gives them (MCP Apps)."""
    finds_tasks: bool = False
    """Whether it can find the task of a call that was interrupted: see `FIND` in `core.call`."""
    is_published: bool = True
    """Whether clients without a key may know of it."""
    is_reentrant: bool = False
    """Whether a chain of calls may return to it while it waits: it holds nothing meanwhile, and
    cannot be the reason that a chain waits for itself."""


DEFAULT_TRAITS = TargetTraits()


class Target(Protocol):
    """Where a call ends. `run` converts whatever goes wrong behind it into `TargetFailed`."""

    traits: TargetTraits

    @property
    def name(self) -> str:
        """Its namespace: one target, one name."""

    async def run(self, call: Call) -> Result: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridged:
    """A skill of a registered agent."""

    agent: str
    """The agent's name in the hub."""
    card_id: str
    url: str
    skill_id: str
    alias: str
    """`a2a_{slug}_{skill}`"""


NO_FLOWS: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Anything callable by name: a tool, a prompt, a resource."""

    name: str
    """Canonical, `target.tool`: the tool's identity in pins, policies, events and the audit,
    whatever alias is used and however its target spells it (see `core.tool_identity`)."""
    alias: str
    """`mcp_{server}_{tool}`, or the address of a resource. Leads to the first tool that had it."""
    other_names: Mapping[str, str] = field(default_factory=empty_mapping)
    """Its names in other naming styles; each can be called. `spelled` is the canonical name in its
    target's spelling, if different."""
    fallback_names: tuple[str, ...] = ()
    """Names that lead to it as long as no other tool has them; never listed."""
    kind: str = TOOL
    remote_name: str
    """The target's own name for it."""
    description: str = ""
    definition: Mapping[str, Any] = field(default_factory=dict)
    """The definition as its target gave it, unchanged."""
    validate: Validator = accept_anything
    agent: AgentFacts | None = None
    """Set for an agent, which takes a message and may take long."""
    bridged: Bridged | None = None
    """Set for a skill of a registered agent."""
    sources: frozenset[str] = NO_FLOWS
    """Taint labels of its output."""
    sinks: frozenset[str] = NO_FLOWS
    """Where its input may go: `exec`, `write`, `net`, `agent`."""
    list_written: Callable[[Call], Iterable[str]] | None = None
    """Lists the keys of the data that a call of it stores (see `core.label_keys`); its target then
    reports in `Notes.read_keys` what it read. None: the arguments name both."""
    destructive: bool = False
    """Whether it declares itself destructive."""
    resources: tuple[str, ...] = ()
    """Addresses of its resources, which need not be listed."""
    is_for_models: bool = True
    """Whether models are offered it; others are called by a user interface alone (MCP Apps)."""
    origin: Tool | None = None
    """The tool that it passes its calls on to, if it is another tool under a further name."""
    target: Target


class Nowhere:
    """The target of an unknown name, so that such calls pass the guards and are recorded."""

    name = "nowhere"
    traits = DEFAULT_TRAITS

    def __init__(self, error: HubError, stands_for: Sequence[Tool] = ()) -> None:
        self.error = error
        self.stands_for = stands_for
        """The tools that the error speaks of: it is "not found" for principals that may not list
        them."""

    async def run(self, call: Call) -> NoReturn:
        call.notes.has_left = False
        # A copy: a raised exception keeps its frames alive, and they the call.
        raise copy(self.error)


def build_unknown_tool(asked_as: str, kind: str = TOOL) -> Tool:
    return build_missing_tool(asked_as, NotFound(f'there is no {kind} "{asked_as[:200]}"'), kind)


def build_missing_tool(
    asked_as: str, error: HubError, kind: str = TOOL, stands_for: Sequence[Tool] = ()
) -> Tool:
    target = Nowhere(error, stands_for)
    return Tool(name=asked_as, alias=asked_as, remote_name=asked_as, kind=kind, target=target)
