"""Decides by the active policies who may do what, and caches decisions.

A cached decision applies to all principals and tools that differ only in what no policy reads. The
active policy set changes atomically: each decision is made by one set from beginning to end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar

from dragoman.core.call import Call
from dragoman.core.ports import (
    A2A_DISCOVER,
    ADMIN_ACTIONS,
    TASK_CANCEL,
    TASK_READ,
    Decision,
)
from dragoman.core.principal import HUB_ORG, Principal
from dragoman.core.scopes import APPROVE
from dragoman.core.tool import DEFAULT_ORG, EVERY_ORG, TargetFacts, Tool
from dragoman.policy.cedar import CedarEvaluator, decide_call, decide_right
from dragoman.policy.context import OWNER_CONTEXT, CallContext, context_from_call
from dragoman.policy.entities import (
    AGENT,
    LIST,
    FindFlows,
    PolicyRequest,
    PrincipalEntity,
    ResourceEntity,
    check_writable,
    entity_from_org,
    entity_from_principal,
    entity_from_target,
    entity_from_tool,
    find_declared_flows,
)
from dragoman.policy.policy_set import PolicySet

log = logging.getLogger(__name__)

ENFORCE, SHADOW = "enforce", "shadow"

MAX_KEPT = 10_000
"""The most cached decisions, principals and tools, each."""
NO_CONTEXT = "{}"
_GENERATION = 2**32
_ALWAYS_ENFORCED = ADMIN_ACTIONS | {APPROVE}
TIME_STEP = 60.0
"""Seconds after which lists are decided anew if policies read the time."""

FindFacts = Callable[[str], TargetFacts | None]
Args = ParamSpec("Args")
Answer = TypeVar("Answer")


class _ActivePolicySet:
    """The active policy set with everything derived from it: replaced as one."""

    def __init__(self, evaluator: CedarEvaluator) -> None:
        self.evaluator = evaluator
        self.policy_set = evaluator.policy_set
        self.read = self.policy_set.read
        self.reads_door = "via" in self.read.context or self.read.opaque
        self.reads_time = self.policy_set.reads_time
        self.decisions: dict[Hashable, Decision] = {}
        self.principals: dict[Hashable, tuple[TargetFacts | None, PrincipalEntity]] = {}
        self.resources: dict[str, tuple[Tool, TargetFacts, ResourceEntity]] = {}
        self.latest: tuple[Principal, TargetFacts | None, PrincipalEntity] | None = None
        """The last principal: many calls in a row come from one."""
        self.numbers: dict[Hashable, int] = {}
        self._last = 0

    def assign_number(self, key: Hashable) -> int:
        """Returns the number of a class of principals or tools."""
        found = self.numbers.get(key)
        if found is None:
            self._last += 1  # never reuse a number: an entity may still hold it
            found = self.numbers[key] = self._last
        return found

    def make_room(self) -> None:
        principals, resources = len(self.principals), len(self.resources)
        if max(principals, resources, len(self.decisions), len(self.numbers)) >= MAX_KEPT:
            self.decisions, self.principals, self.resources, self.numbers = {}, {}, {}, {}
            self.latest = None

    def keep(self, key: Hashable, decision: Decision) -> None:
        """Caches a decision that was made without errors."""
        if not decision.errors and (decision.shadow is None or not decision.shadow.errors):
            self.make_room()
            self.decisions[key] = decision


class PolicyEngine:
    def __init__(
        self,
        policy_set: PolicySet,
        *,
        facts: FindFacts,
        intact: Callable[[Tool], bool],
        mode: str = ENFORCE,
        depth: int = 5,
        flows: FindFlows = find_declared_flows,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`facts` returns the facts of a target by its name, even if it offers nothing now;
        `intact` tells whether a tool is as approved; `depth` is the maximum depth of chains;
        `flows` returns the sources and sinks of a tool."""
        if mode not in (ENFORCE, SHADOW):
            raise ValueError(f"unknown policy mode {mode!r}: use {ENFORCE} or {SHADOW}")
        self.mode = mode
        self._facts, self._intact, self._depth, self._clock = facts, intact, depth, clock
        self._flows = flows
        self._version = 0
        """A multiple of `_GENERATION`: `version` adds the time to it."""
        self._active = _ActivePolicySet(CedarEvaluator(policy_set))

    @property
    def policy_set(self) -> PolicySet:
        return self._active.policy_set

    @property
    def version(self) -> int:
        if self._active.reads_time:
            return self._version + int(self._clock() // TIME_STEP)
        return self._version

    def swap(self, policy_set: PolicySet) -> None:
        """Activates `policy_set` for all later decisions."""
        self._active = _ActivePolicySet(CedarEvaluator(policy_set))
        self._version += _GENERATION

    def set_mode(self, mode: str) -> None:
        self.mode = mode
        self.invalidate()

    def invalidate(self) -> None:
        """Drops cached decisions: the facts of a target, or approvals, have changed."""
        self.swap(self.policy_set)

    def copy_with(self, policy_set: PolicySet) -> PolicyEngine:
        """Returns an engine for the same hub with other policies, to try them."""
        return PolicyEngine(
            policy_set,
            facts=self._facts,
            intact=self._intact,
            depth=self._depth,
            flows=self._flows,
            clock=self._clock,
        )

    # --- decisions --------------------------------------------------------------------------------

    def decide(self, call: Call) -> Decision:
        active, tool = self._active, call.tool
        try:  # as `_guard`, without its frames: every call passes here
            who = self._find_principal(active, call.principal)
            what = self._find_resource(active, tool, call.principal.org)
            if what.volatile or call.is_approved:
                context = context_from_call(call, self._depth, self._clock())
                return self._decide_call(active, who, what, context)
            trace = call.trace
            chain = trace.chain
            door = call.door if active.reads_door else ""
            cyclic = bool(chain) and tool.name in chain
            labels = trace.parent.labels if trace.parent is not None else call.notes.labels
            itself = _calls_itself(who, what)
            key = who.number, what.number, chain, cyclic, labels, door, itself
            decision = active.decisions.get(key)
            if decision is None:
                context = context_from_call(call, self._depth, 0.0)
                decision = self._decide_call(active, who, what, context)
                active.keep(key, decision)
            return decision
        except Exception as error:
            return self._deny(active, error)

    def reads_arguments(self, tool: Tool) -> bool:
        """Whether a call of the tool may be denied because of its arguments. In shadow mode only
        guardrails deny, and they do not read arguments."""
        if self.mode == SHADOW:
            return False
        found = self._guard(self._find_resource, tool, DEFAULT_ORG)
        return isinstance(found, Decision) or "args" in found.volatile

    def can_list(self, caller: Principal, tool: Tool) -> bool:
        return self._guard(self._decide_about, caller, LIST, self._find_resource, tool).allowed

    def can_see(self, caller: Principal, tool: Tool, door: str) -> bool:
        return self.can_list(caller, tool) and self.decide_first(caller, tool, door).allowed

    def decide_first(self, caller: Principal, tool: Tool, door: str) -> Decision:
        """Decides on a first call in a chain, by that door, without arguments."""
        return self.decide_hypothetical(caller, tool, self.build_first_context(caller, door))

    def decide_hypothetical(self, caller: Principal, tool: Tool, context: CallContext) -> Decision:
        """Decides on a call that is not made."""
        return self._guard(self._decide_in_context, caller, tool, context)

    def group_of_principal(self, caller: Principal) -> Hashable:
        found = self._guard(self._find_group, caller)
        return (caller, "undecided") if isinstance(found, Decision) else found

    def decide_action(
        self, caller: Principal, action: str, tool: Tool | None = None, *, owner: bool = False
    ) -> Decision:
        """`owner` is whether the task to read or cancel, or the request to approve, is the
        principal's own. `approve` without a tool is about the principal's org."""
        if action in ADMIN_ACTIONS:

            def decide(part: str) -> Decision:
                # Of the hub, not of the caller's org: an owner there must not administer others.
                return self._guard(self._decide_about, caller, part, self._find_org, HUB_ORG)

            return decide_right(decide, action)
        if action == APPROVE and tool is None:
            context = OWNER_CONTEXT[owner]
            return self._guard(
                self._decide_about, caller, action, self._find_org, caller.org, context
            )
        if tool is None or action not in (A2A_DISCOVER, TASK_READ, TASK_CANCEL, APPROVE):
            return self._deny(self._active, LookupError(f"unknown action {action!r} of {tool!r}"))
        if action == A2A_DISCOVER:
            return self._guard(self._decide_about, caller, action, self._find_target, tool)
        return self._guard(
            self._decide_about, caller, action, self._find_resource, tool, OWNER_CONTEXT[owner]
        )

    def build_first_context(self, caller: Principal, door: str) -> CallContext:
        return CallContext(
            max_depth=self._depth, scopes=frozenset(caller.scopes), via=door, now=self._clock()
        )

    # --- entities: these raise LookupError for what is unknown ------------------------------------

    def find_principal(self, caller: Principal) -> PrincipalEntity:
        return self._find_principal(self._active, caller)

    def find_resource(self, tool: Tool, org: str = DEFAULT_ORG) -> ResourceEntity:
        """`org` is that of the principal that asks."""
        return self._find_resource(self._active, tool, org)

    def find_target(self, tool: Tool, org: str = DEFAULT_ORG) -> ResourceEntity:
        """Returns the server or agent of the tool."""
        return self._find_target(self._active, tool, org)

    def find_org(self, org: str) -> ResourceEntity:
        return self._find_org(self._active, org, org)

    # --- how it is decided ------------------------------------------------------------------------

    def _guard(
        self,
        work: Callable[Concatenate[_ActivePolicySet, Args], Answer],
        *args: Args.args,
        **named: Args.kwargs,
    ) -> Answer | Decision:
        """Runs `work` with the active policy set. Fails closed: an exception is a denial."""
        active = self._active
        try:
            return work(active, *args, **named)
        except Exception as error:
            return self._deny(active, error)

    @staticmethod
    def _deny(active: _ActivePolicySet, error: Exception) -> Decision:
        log.warning("denied, because the decision failed: %r", error)
        words = f"{type(error).__name__}: {error}"[:300]
        return Decision(False, (), active.policy_set.hash, (words,))

    def _decide_in_context(
        self, active: _ActivePolicySet, caller: Principal, tool: Tool, context: CallContext
    ) -> Decision:
        who = self._find_principal(active, caller)
        what = self._find_resource(active, tool, caller.org)
        if what.volatile:
            return self._decide_call(active, who, what, context)
        key = (
            who.number,
            what.number,
            what.action,
            context.render((), tool.name),
            _calls_itself(who, what),
        )
        decision = active.decisions.get(key)
        if decision is None:
            decision = self._decide_call(active, who, what, context)
            active.keep(key, decision)
        return decision

    def _decide_call(
        self,
        active: _ActivePolicySet,
        who: PrincipalEntity,
        what: ResourceEntity,
        context: CallContext,
    ) -> Decision:
        def decide(request: PolicyRequest) -> Decision:
            return self._evaluate(active, request)

        return decide_call(decide, active.policy_set, who, what, context, what.volatile)

    def _decide_about(
        self,
        active: _ActivePolicySet,
        caller: Principal,
        action: str,
        find: Callable[[_ActivePolicySet, Any, str], ResourceEntity],
        of: Tool | str,
        context: str = NO_CONTEXT,
    ) -> Decision:
        who, what = self._find_principal(active, caller), find(active, of, caller.org)
        return self._decide_cached(active, PolicyRequest(who, action, what, context))

    def _decide_cached(self, active: _ActivePolicySet, request: PolicyRequest) -> Decision:
        who, action, what, context = request
        key = who.number, what.number, action, context, _calls_itself(who, what)
        decision = active.decisions.get(key)
        if decision is None:
            decision = self._evaluate(active, request)
            active.keep(key, decision)
        return decision

    def _evaluate(self, active: _ActivePolicySet, request: PolicyRequest) -> Decision:
        # Shadow mode does not cover the administration of the hub, nor who may approve: both are
        # always enforced.
        if self.mode == SHADOW and request.action not in _ALWAYS_ENFORCED:
            return active.evaluator.decide_in_shadow(request)
        return active.evaluator.decide(request)

    def _find_group(self, active: _ActivePolicySet, caller: Principal) -> Hashable:
        who = self._find_principal(active, caller)
        # An agent differs from all others by the tools that are its own.
        return who.build_key(active.read), who.uid if who.uid[0] == AGENT else None

    def _find_principal(self, active: _ActivePolicySet, caller: Principal) -> PrincipalEntity:
        facts = self._facts(caller.serves) if caller.serves else None
        latest = active.latest
        if latest is not None and latest[0] is caller and latest[1] is facts:
            return latest[2]
        # Principals of one name are equal, and may yet have other roles than before.
        key = caller, caller.roles, caller.scopes, caller.behalf, caller.serves
        found = active.principals.get(key)
        if found is not None and found[0] is facts:
            active.latest = caller, facts, found[1]
            return found[1]
        active.make_room()
        who = entity_from_principal(caller, facts)
        check_writable(who.list_entities())
        who.number = active.assign_number(("who", who.build_key(active.read)))
        active.principals[key] = facts, who
        return who

    def _find_resource(self, active: _ActivePolicySet, tool: Tool, org: str) -> ResourceEntity:
        facts, name = tool.target.traits.facts, tool.name
        if facts.org == EVERY_ORG:
            name = f"{name}\0{org}"
        found = active.resources.get(name)
        if found is not None and found[0] is tool and found[1] is facts:
            return found[2]
        active.make_room()
        own = _move_to(facts, org)
        what = _number(active, entity_from_tool(tool, own, self._intact(tool), self._flows))
        what.volatile = active.policy_set.find_volatile(what)
        if what.is_short:
            active.resources[name] = tool, facts, what
        return what

    def _find_org(self, active: _ActivePolicySet, org: str, _: str) -> ResourceEntity:
        return _number(active, entity_from_org(org))

    def _find_target(self, active: _ActivePolicySet, tool: Tool, org: str) -> ResourceEntity:
        active.make_room()
        facts = _move_to(tool.target.traits.facts, org)
        return _number(active, entity_from_target(tool.target.name, facts))


def _move_to(facts: TargetFacts, org: str) -> TargetFacts:
    """A target of every org is in that of the principal that asks."""
    return replace(facts, org=org) if facts.org == EVERY_ORG else facts


def _number(active: _ActivePolicySet, what: ResourceEntity) -> ResourceEntity:
    check_writable(what.list_entities())
    what.number = active.assign_number(("what", what.build_key(active.read)))
    return what


def _calls_itself(who: PrincipalEntity, what: ResourceEntity) -> bool:
    """Whether an agent calls itself: the only thing policies can tell of a pair that is not an
    attribute of either."""
    return who.uid[0] == AGENT and who.uid in (what.parent, what.uid)
