"""`dragoman.dispatch`: has work done by the agent that the router chooses.

The call of the chosen agent is a call of the hub on behalf of the caller: every guard sees it. If
the agent fails before anything has left the hub, the next one is tried once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace as replace_dataclass
from typing import Any, NamedTuple

from dragoman.core.bus import Bus
from dragoman.core.call import Call, Result, RoutedBy, TaskNamed, TaskStarted, Update, Updates
from dragoman.core.errors import (
    PASSING,
    HubError,
    InvalidInput,
    NeedsInput,
    TargetFailed,
    Unreachable,
)
from dragoman.core.events import CostReported
from dragoman.core.hub import CallOptions, Hub
from dragoman.core.ports import SchemaCompiler
from dragoman.core.routing import RoutingDecision
from dragoman.core.structs import replace
from dragoman.core.taint import AGENT
from dragoman.core.tool import TargetFacts, TargetTraits, Tool
from dragoman.core.tool_filter import EVERYTHING
from dragoman.core.tool_identity import HUB, KEY_META, WORKFLOW, build_portable_names
from dragoman.core.trace import Trace
from dragoman.routing.choice import GENERAL, Work
from dragoman.routing.decisions import build_no_candidate, render_decision
from dragoman.routing.router import PlannedCall, Router, build_message

DISPATCH = "dispatch"
NAME = f"{HUB}.{DISPATCH}"
META = "dragoman.hub/dispatch"
"""Key in the `_meta` of a result: the decision, and the agent that was chosen."""
MAX_DESCRIPTION = 100_000
MAX_REPORTED = 1_000
COMPLETED, FAILED, REFUSED, ASKED, PARKED, CANCELLED = (
    "completed", "failed", "refused", "asked", "parked", "cancelled",
)  # fmt: skip

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "description": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_DESCRIPTION,
            "description": "The work, with everything that the agent needs: it does not see your "
            "conversation.",
        },
        "workType": {
            "type": "string",
            "pattern": r"^\w[\w .:/-]{0,63}$",
            "description": 'The kind of work, as agents have it in their tags: "qa", "review".',
        },
        "requiredSkills": {
            "type": "array",
            "maxItems": 20,
            "items": {"type": "string", "minLength": 1, "maxLength": 200},
            "description": "The ids of skills that the agent must have, all of them.",
        },
        "args": {
            "type": "object",
            "description": "The arguments of the skill, if one is required; otherwise data that is "
            "sent with the description.",
        },
        "maxCost": {
            "type": "number",
            "exclusiveMinimum": 0,
            "description": "US dollars that such work may cost on average, for agents that report "
            "the cost.",
        },
        "maxTokens": {
            "type": "number",
            "exclusiveMinimum": 0,
            "description": "Tokens that such work may use on average, for agents that report them.",
        },
        "dryRun": {
            "type": "boolean",
            "description": "Whether to show only which agent would be chosen, and why.",
        },
    },
    "required": ["description"],
    "additionalProperties": False,
}
DESCRIPTION = (
    "Has work done by the best agent for it, and returns its answer. The hub chooses among the "
    "agents that you may call, by skills, health, load and past outcomes."
)


class DispatchState(NamedTuple):
    """What a question of the agent keeps until it is answered, and a task until it has ended."""

    decision: str
    work_type: str
    agent: str
    agent_id: str
    tool: str
    is_message: bool
    handle: str


class DispatchTool:
    """The target of the tool. It holds nothing while the agent works: chains may return to it."""

    name = HUB
    traits = TargetTraits(
        facts=TargetFacts(type="Server", transport="hub"),
        may_last=True,
        is_published=False,
        is_reentrant=True,
    )

    def __init__(
        self, hub: Hub, find_router: Callable[[], Router], compile: SchemaCompiler
    ) -> None:
        """`find_router` builds the router at the first use."""
        self._hub = hub
        self._find_router = find_router
        self._reported: dict[str, Mapping[str, Any]] = {}
        """What agents have reported to use, by decision, until the outcome is recorded."""
        self.tool = self._build_tool(compile)

    def observe(self, bus: Bus) -> Callable[[], None]:
        return bus.observe(CostReported, self._record_usage, "the observer of routed calls")

    def _record_usage(self, event: CostReported) -> None:
        routed = event.call.routed
        if routed is not None and len(self._reported) < MAX_REPORTED:
            self._reported[routed.decision] = event.usage

    async def run(self, call: Call) -> Result:
        if call.handle is not None:
            return await self._continue(call, call.handle)
        call.notes.has_left = False  # before an agent is called
        router = self._find_router()
        work, data = _read_arguments(call.arguments)
        plan = router.plan(call, _find_parent(call), work, data)
        if call.arguments.get("dryRun"):
            return _build_dry_result(router.build_decision(call, work, plan.choice))
        decision = router.record_decision(call, work, plan.choice)
        if not plan.calls:
            raise build_no_candidate(work, plan.choice.excluded, decision.id)
        first, *others = plan.calls
        try:
            return await self._call_agent(call, first, decision.id, work.work_type)
        except Unreachable as error:
            if error.sent or not others:
                raise
        return await self._call_agent(call, others[0], decision.id, work.work_type)

    async def _continue(self, call: Call, handle: str) -> Result:
        """Passes the answers to the agent that has asked, or asks for its task."""
        try:
            state = DispatchState(*json.loads(handle))
        except (ValueError, TypeError):  # it was sealed, so another version has made it
            raise InvalidInput("the question has expired; start the call again") from None
        work, data = _read_arguments(call.arguments)
        arguments = build_message(work, data) if state.is_message else data
        planned = PlannedCall(state.agent, state.agent_id, state.tool, arguments, state.is_message)
        inner = replace(call, handle=state.handle)
        return await self._call_agent(inner, planned, state.decision, state.work_type)

    # --- the call of the agent --------------------------------------------------------------------

    async def _call_agent(
        self, within: Call, planned: PlannedCall, decision: str, work_type: str
    ) -> Result:
        """Calls the agent and records how that ended."""
        state = DispatchState(
            decision,
            work_type,
            planned.agent,
            planned.agent_id,
            planned.tool,
            planned.is_message,
            "",
        )
        options = CallOptions(
            door=within.door,
            view=EVERYTHING,
            meta=_select_key(within),
            updates=within.updates if within.task is None else _wrap_named(within.updates, state),
            wanted_updates=within.wanted_updates,
            client=within.client,
            revision=within.revision,
            features=within.features,
            answers=within.answers,
            handle=within.handle,
            routed=RoutedBy(decision, work_type, planned.agent_id),
            task=within.task,
            attempt=within.attempt,
        )
        within.updates(TaskStarted(is_timed=True))  # the time of a task begins anew
        parent, who = _find_parent(within), within.principal
        outcome, problem, is_success = CANCELLED, "", None
        try:
            _, result = await self._hub.call_within(
                parent, who, planned.tool, planned.arguments, options
            )
            outcome = _find_outcome(within, result)
            if outcome in (COMPLETED, FAILED):
                is_success = not (result.failed or result.ending)
        except HubError as error:
            within.notes.has_left = error.has_left
            outcome = FAILED if isinstance(error, TargetFailed) else REFUSED
            problem = error.kind
            if within.polls and isinstance(error, PASSING):
                outcome = PARKED  # nothing is known of its task
            elif outcome == FAILED and not isinstance(error, NeedsInput) and not within.cancels:
                is_success = False
            raise
        finally:
            usage = self._reported.pop(decision, {})
            router = self._find_router()
            if not (within.polls and outcome == PARKED):
                router.record_attempt(decision, planned, outcome, problem)
            if is_success is not None:
                router.record_outcome(who.org, planned.agent, work_type, is_success, usage)
        return _build_result(result, state._replace(handle=result.handle or ""))

    def _build_tool(self, compile: SchemaCompiler) -> Tool:
        safe = f"{HUB}_{DISPATCH}"
        return Tool(
            name=NAME,
            alias=NAME,
            other_names={"dotted": NAME, "safe": safe, **build_portable_names(NAME, safe, NAME)},
            remote_name=DISPATCH,
            description=DESCRIPTION,
            definition={
                "name": DISPATCH,
                "title": "Dispatch work to an agent",
                "description": DESCRIPTION,
                "inputSchema": SCHEMA,
                "annotations": {
                    "title": "Dispatch work to an agent",
                    "readOnlyHint": False,
                    "destructiveHint": False,
                    "idempotentHint": False,
                    "openWorldHint": False,  # the call of the agent is judged by itself
                },
            },
            validate=compile(SCHEMA),
            sinks=frozenset({AGENT}),
            target=self,
        )


def _find_outcome(within: Call, result: Result) -> str:
    if within.cancels:
        return CANCELLED
    if result.questions:
        return ASKED
    if result.unfinished:
        return PARKED
    return FAILED if result.failed else COMPLETED


def _wrap_named(updates: Updates, state: DispatchState) -> Updates:
    """Adds the decision to the handle by which a later call continues the agent's task."""

    def pass_on(update: Update) -> None:
        if isinstance(update, TaskNamed):
            handle = json.dumps(state._replace(handle=update.handle))
            update = replace_dataclass(update, handle=handle)
        updates(update)

    return pass_on


def _select_key(within: Call) -> Mapping[str, Any] | None:
    """The idempotency key of a workflow's step, for the agent."""
    if within.door != WORKFLOW or not within.meta or KEY_META not in within.meta:
        return None
    return {KEY_META: within.meta[KEY_META]}


def _find_parent(within: Call) -> Trace:
    """The call on whose behalf the agent is called: a chain goes from agent to agent, so that the
    call of an agent stands beside its dispatch and not below it."""
    above = within.trace.parent
    return above.trace if above is not None else within.trace


def _read_arguments(arguments: Mapping[str, Any]) -> tuple[Work, Any]:
    work = Work(
        description=arguments["description"],
        work_type=str(arguments.get("workType") or GENERAL).lower(),
        skills=tuple(dict.fromkeys(arguments.get("requiredSkills") or ())),
        max_cost=arguments.get("maxCost"),
        max_tokens=arguments.get("maxTokens"),
    )
    return work, arguments.get("args")


def _build_result(result: Result, state: DispatchState) -> Result:
    """Adds the decision to the agent's answer."""
    meta = result.extra.get("_meta")
    about = {"decisionId": state.decision, "agent": state.agent, "tool": state.tool}
    extra = {**result.extra, "_meta": {**(meta if isinstance(meta, dict) else {}), META: about}}
    handle = json.dumps(state) if result.questions or result.unfinished else None
    return replace(result, extra=extra, handle=handle, artifacts=(), size=-1)


def _build_dry_result(decision: RoutingDecision) -> Result:
    said = {**render_decision(decision, whole=False), "dryRun": True}
    del said["decisionId"], said["attempts"]  # nothing is stored or called
    return Result(content=[{"type": "text", "text": json.dumps(said)}], structured=said)
