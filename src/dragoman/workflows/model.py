"""A workflow as it was loaded from its definition. Plain values; nothing here runs or reads files.

Values of `config`, `when`, `output` and the like are JSON in which strings may contain templates;
`workflows.templates` renders them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dragoman.core.call import NOTHING
from dragoman.core.runs import RunPrincipal
from dragoman.core.secret_rules import Author
from dragoman.core.structs import Struct

INVOKE, DISPATCH, TOOL_CALL = "agent.invoke", "agent.dispatch", "tool.call"
APPROVAL, WAIT, TRANSFORM = "approval", "wait", "transform"
FOREACH, PARALLEL, CHILD = "foreach", "parallel", "workflow.run"
NODES: Final = (
    INVOKE, DISPATCH, TOOL_CALL, APPROVAL, WAIT, TRANSFORM, FOREACH, PARALLEL, CHILD,
)  # fmt: skip
ACTING: Final = frozenset({INVOKE, DISPATCH, TOOL_CALL})
"""The nodes whose steps are calls of the hub."""

FAIL, CONTINUE, COMPENSATE = "fail", "continue", "compensate"
MANUAL, WEBHOOK, SCHEDULE, EVENT = "manual", "webhook", "schedule", "event"
SKIP, ONCE, ALL = "skip", "once", "all"
"""How a schedule catches up on the runs that it missed."""


class Retry(Struct, frozen=True, kw_only=True):
    """How often a step is tried. Only failures before anything has left the hub, and steps that are
    `repeatable`, are retried."""

    attempts: int = 1
    backoff_secs: float = 1.0
    """Before the second attempt; doubled for each further one."""
    max_backoff_secs: float = 60.0


NO_RETRY: Final = Retry()


class Step(Struct, frozen=True, kw_only=True):
    id: str
    node: str
    """One of `NODES`."""
    config: Mapping[str, Any] = NOTHING
    """The node's settings, checked against its schema. The steps inside `foreach` and `parallel`
    are in `body`."""
    body: tuple[Step, ...] = ()
    """`foreach`: the steps for each item, with `{{ $item }}` and `{{ $index }}`. `parallel`: the
    steps that run at once. Ids are unique in the whole workflow."""
    depends_on: tuple[str, ...] = ()
    """Steps of the same level; without any, the step starts at once."""
    when: Any = None
    """A template or a value; the step is skipped if it is false. None: always."""
    retry: Retry = NO_RETRY
    timeout_secs: float | None = None
    """None: the hub's own limits for the target apply."""
    on_error: str = FAIL
    """FAIL, CONTINUE or COMPENSATE."""
    compensate_by: str = ""
    """With COMPENSATE: the step that runs if this one fails; it runs for no other reason."""
    repeatable: bool = False
    """Whether the step may be executed again if it is unknown whether it was executed."""
    line: int = 0
    """The line of the definition, from 1."""


class Input(Struct, frozen=True, kw_only=True):
    schema: Mapping[str, Any]
    """A JSON Schema."""
    required: bool = True
    default: Any = None


class Trigger(Struct, frozen=True, kw_only=True):
    kind: str
    """MANUAL, WEBHOOK, SCHEDULE or EVENT."""
    secret: str = ""
    """WEBHOOK: the reference of the secret that signs requests, such as `env:HOOK_SECRET`."""
    schedule: str = ""
    """SCHEDULE: a cron expression or an interval such as `every 15m`."""
    zone: str = "UTC"
    catch_up: str = ONCE
    """SCHEDULE: SKIP, ONCE or ALL."""
    event: str = ""
    """EVENT: the name of the event."""
    match: Mapping[str, Any] = NOTHING
    """EVENT: members of the event that must have these values."""
    inputs: Mapping[str, Any] = NOTHING
    """SCHEDULE: the inputs of the run."""
    line: int = 0


class Workflow(Struct, frozen=True, kw_only=True):
    name: str
    description: str = ""
    inputs: Mapping[str, Input] | None = None
    """None: the definition declares none, and a run accepts any."""
    triggers: tuple[Trigger, ...] = ()
    steps: tuple[Step, ...] = ()
    output: Any = None
    """What a run returns, a template; None: the outputs of the steps on which no other depends."""
    agents: Mapping[str, str] = NOTHING
    """Agent references: `{{ nodes.NAME.agentCardId }}` is the id of this agent."""
    missing_agents: tuple[str, ...] = ()
    """References that the steps use and the definition lacks: a run must be given them."""
    env: tuple[str, ...] = ()
    """The environment variables that templates may read."""
    expose: bool = False
    """Whether it is a tool `workflow.NAME` for MCP clients, agents and A2A clients."""
    concurrency: int = 10
    """How many of its steps run at once in one run."""
    timeout_secs: float | None = None
    author: Author = Author.STORED
    """Who wrote the definition, and so which secrets it may refer to."""
    writer: RunPrincipal | None = None
    """The caller of the API that wrote it, with the rights that it had then."""
    digest: str = ""
    """SHA-256 of the source: runs finish on the version that they began with."""
    source: str = ""
