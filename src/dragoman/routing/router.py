"""Collects the candidates for a piece of work, chooses one, and records decisions and outcomes.

Whether the caller may call an agent is asked before the choice, of the same grants, policies, taint
rules and chain limits that the call itself passes afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from random import Random
from secrets import token_hex
from time import time
from typing import Any, NamedTuple, Protocol

from dragoman.core.agent_tool import DATA, MESSAGE
from dragoman.core.call import Call, Notes
from dragoman.core.errors import StorageFailed
from dragoman.core.hub import Hub
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.routing import OutcomeKey, RoutingDecision, RoutingStore
from dragoman.core.structs import Struct, replace
from dragoman.core.tool import Tool
from dragoman.core.tool_identity import fold_name
from dragoman.core.trace import Trace, TraceContext
from dragoman.routing.choice import (
    HEALTHY,
    Candidate,
    CandidateSkill,
    Choice,
    RoutingLimits,
    Work,
    choose,
)
from dragoman.routing.decisions import (
    build_decision,
    render_decision,
)
from dragoman.routing.outcomes import OutcomeTable

log = logging.getLogger(__name__)

DENIED = "no policy or grant permits this caller to call it"

FindRefusal = Callable[[Call], str]
"""Why the guards would refuse a call if it were made; empty if they would not."""


class RoutableAgent(NamedTuple):
    """An agent of the hub or an external one, connected or not."""

    name: str
    kind: str
    tool: Tool
    """Takes a message; of an agent that is not connected, what policies decide on."""
    is_offered: bool
    skill_tools: Mapping[str, Tool] = {}
    """The tools of its skills, by folded skill id."""
    tags: tuple[str, ...] = ()
    health: str = HEALTHY
    agent_id: str = ""
    """The registration of an external agent."""


class RoutableAgents(Protocol):
    def list_agents(self) -> Iterable[RoutableAgent]:
        """Lists all agents, also those that are unreachable or disabled."""


class PlannedCall(Struct, frozen=True):
    """The call that has the work done at an agent."""

    agent: str
    agent_id: str
    tool: str
    arguments: Mapping[str, Any]
    is_message: bool
    """Whether the tool is the agent itself, not a skill of it."""


class RoutingPlan(NamedTuple):
    choice: Choice
    calls: tuple[PlannedCall, ...]
    """Of the ranked candidates, the best first."""


class Router:
    def __init__(
        self,
        hub: Hub,
        agents: RoutableAgents,
        find_refusal: FindRefusal,
        outcomes: OutcomeTable,
        decisions: RoutingStore,
        limits: RoutingLimits,
        random: Random,
    ) -> None:
        self._hub = hub
        self._agents = agents
        self._find_refusal = find_refusal
        self._outcomes = outcomes
        self._decisions = decisions
        self._limits = limits
        self._random = random

    def plan(self, within: Call, parent: Trace, work: Work, data: Any) -> RoutingPlan:
        """Chooses among all agents for the caller of `within`. The calls are made on behalf of the
        call with the trace `parent`. `data` are the arguments of the required skill, or come with
        the message."""
        candidates: list[Candidate] = []
        planned: dict[str, PlannedCall] = {}
        for agent in self._agents.list_agents():
            tool, arguments = choose_tool(agent, work, data)
            refusal, is_visible = self._judge_access(within, parent, agent, work, tool, arguments)
            candidates.append(self._build_candidate(within, agent, work, refusal, is_visible))
            planned[agent.name] = PlannedCall(
                agent.name, agent.agent_id, tool.name, arguments, tool is agent.tool
            )
        choice = choose(work, candidates, self._limits, self._random)
        calls = tuple(planned[one.candidate.agent] for one in choice.ranked)
        return RoutingPlan(choice, calls)

    def record_decision(self, within: Call, work: Work, choice: Choice) -> RoutingDecision:
        """Stores the decision before anything is called. Raises `StorageFailed`."""
        decision = self.build_decision(within, work, choice)
        self._decisions.add_decision(decision)
        return decision

    def build_decision(self, within: Call, work: Work, choice: Choice) -> RoutingDecision:
        who = within.principal
        return build_decision(token_hex(16), who.org, who.label, time(), work, choice)

    def record_attempt(
        self, decision: str, planned: PlannedCall, outcome: str, problem: str
    ) -> None:
        """Adds the call of an agent to its decision. `problem` is the kind of its error."""
        attempt = {
            "agent": planned.agent,
            "tool": planned.tool,
            "outcome": outcome,
            "error": problem or None,
        }
        try:
            self._decisions.add_attempt(decision, attempt)
        except StorageFailed as error:  # the work is done; the audit log has the call
            STORAGE_OUTAGE.note(f"the end of a dispatch cannot be stored: {error}")

    def record_outcome(
        self, org: str, agent: str, work_type: str, is_success: bool, usage: Mapping[str, Any]
    ) -> None:
        try:
            self._outcomes.record(OutcomeKey(org, agent, work_type), is_success, usage)
        except StorageFailed as error:
            STORAGE_OUTAGE.note(f"the outcome of a dispatch cannot be stored: {error}")

    def explain(self, id: str, org: str, caller: str | None) -> dict[str, Any] | None:
        """Finds a decision of an org. `caller` is the reader; None: an administrator, who sees the
        decisions of all callers, with all agents."""
        found = self._decisions.find_decision(id)
        if found is None or found.org != org or caller not in (None, found.caller):
            return None
        return render_decision(found, whole=caller is None)

    # --- candidates -------------------------------------------------------------------------------

    def _build_candidate(
        self, within: Call, agent: RoutableAgent, work: Work, refusal: str, is_visible: bool
    ) -> Candidate:
        facts = agent.tool.agent
        key = OutcomeKey(within.principal.org, agent.name, work.work_type)
        return Candidate(
            agent=agent.name,
            kind=agent.kind,
            skills=tuple(map(_read_skill, facts.skills)) if facts is not None else (),
            description=facts.description if facts is not None else "",
            tags=agent.tags,
            health=agent.health,
            active=self._hub.chains.count_running(agent.name),
            outcomes=self._outcomes.find(key),
            refusal=refusal,
            is_visible=is_visible,
        )

    def _judge_access(
        self,
        within: Call,
        parent: Trace,
        agent: RoutableAgent,
        work: Work,
        tool: Tool,
        arguments: Mapping[str, Any],
    ) -> tuple[str, bool]:
        """Returns why the caller may not have the work done there, empty if it may, and whether it
        may know of the agent."""
        hub, principal = self._hub, within.principal
        authorizer = hub.authorizer
        if not authorizer.can_list(principal, tool):
            return DENIED, False
        for one in _list_required(agent, work):
            if not authorizer.can_see(principal, one, within.door):
                return DENIED, authorizer.can_list(principal, one)
        if not agent.is_offered:
            may = authorizer.can_see(principal, tool, within.door)
            return ("" if may else DENIED), True  # its health says the rest
        context = TraceContext(parent.id, parent.span, "", parent.state)
        trace = hub.chains.start_trace(principal, tool.name, tool.target.name, context)
        if obstacle := hub.chains.find_obstacle(trace, tool.target.name):
            return obstacle, True
        call = replace(
            within,
            tool=tool,
            requested_name=tool.name,
            arguments=arguments,
            trace=trace,
            answers=None,
            handle=None,
            notes=Notes(),
        )
        if refusal := self._find_refusal(call):
            return refusal, True
        if tool.validate(arguments) is not None:  # whose message may have values of arguments
            return f'"{tool.name}" does not accept these arguments', True
        return "", True


def choose_tool(agent: RoutableAgent, work: Work, data: Any) -> tuple[Tool, dict[str, Any]]:
    """Chooses the tool of an agent, and its arguments: that of the one required skill if there are
    arguments for it, or else the agent itself, which gets a message."""
    if data is not None and len(work.skills) == 1:
        tool = agent.skill_tools.get(fold_name(work.skills[0]))
        if tool is not None:
            return tool, data
    return agent.tool, build_message(work, data)


def build_message(work: Work, data: Any) -> dict[str, Any]:
    message = {MESSAGE: work.description}
    return message if data is None else {**message, DATA: data}


def _list_required(agent: RoutableAgent, work: Work) -> list[Tool]:
    found = (agent.skill_tools.get(fold_name(skill)) for skill in work.skills)
    return [tool for tool in found if tool is not None]


def _read_skill(skill: Mapping[str, Any]) -> CandidateSkill:
    tags = skill.get("tags")
    return CandidateSkill(
        id=str(skill.get("id", "")),
        name=str(skill.get("name", "")),
        description=str(skill.get("description", "")),
        tags=tuple(str(tag) for tag in tags) if isinstance(tags, list | tuple) else (),
    )
