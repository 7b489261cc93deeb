"""Judges who may do what, by the policies in force, and keeps what it has decided.

A decision is kept for all callers and tools that differ only in what no policy reads. Which set of
policies is in force changes as one: a decision is made by one set from beginning to end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from typing import Any

from dragoman.core.call import Call
from dragoman.core.ports import A2A_DISCOVER, ADMIN, TASK_CANCEL, TASK_READ, Decision
from dragoman.core.principal import Principal
from dragoman.core.tool import TargetFacts, Tool
from dragoman.policy.cedar import Judge
from dragoman.policy.context import Context, context_from_call
from dragoman.policy.entities import (
    AGENT,
    LIST,
    What,
    Who,
    check_writable,
    facts_of,
    what_from_org,
    what_from_target,
    what_from_tool,
    who_from_caller,
)
from dragoman.policy.policy_set import Snapshot

log = logging.getLogger(__name__)

ENFORCE, SHADOW = "enforce", "shadow"

MAX_KEPT = 10_000
"""Decisions, callers and tools that are kept, of each."""
NO_CONTEXT = "{}"
OWNER_CONTEXT = {True: '{"owner":true}', False: '{"owner":false}'}
MOVES = 60.0
"""Seconds after which lists are judged anew where policies read the time."""

Facts = Callable[[str], TargetFacts | None]


class _Force:
    """A set in force, and all that was made of it: left behind as one."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.snapshot = judge.snapshot
        self.read = judge.snapshot.read
        self.via = "via" in self.read.context or self.read.opaque
        self.decisions: dict[Hashable, Decision] = {}
        self.whos: dict[Hashable, tuple[TargetFacts | None, Who]] = {}
        self.latest: tuple[Principal | None, TargetFacts | None, Who | None] = None, None, None
        """The caller that was looked up last: many calls in a row come from one."""
        self.whats: dict[str, tuple[Tool, TargetFacts, What]] = {}
        self.numbers: dict[Hashable, int] = {}
        self.last = 0

    def number(self, key: Hashable) -> int:
        """Of a class of callers or tools."""
        found = self.numbers.get(key)
        if found is None:
            self.last += 1  # never one that was given before: somebody may still hold that
            found = self.numbers[key] = self.last
        return found

    def room(self) -> None:
        most = max(len(self.whos), len(self.whats), len(self.decisions), len(self.numbers))
        if most >= MAX_KEPT:
            self.decisions, self.whos, self.whats, self.numbers = {}, {}, {}, {}
            self.latest = None, None, None


class Policies:
    def __init__(
        self,
        snapshot: Snapshot,
        *,
        facts: Facts,
        intact: Callable[[Tool], bool],
        mode: str = ENFORCE,
        depth: int = 5,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`facts` are those of a target by its name, also of one that offers nothing now; `intact`
        tells whether a tool is what was approved; `depth` is how deep chains may be."""
        if mode not in (ENFORCE, SHADOW):
            raise ValueError(f"policies are enforced or in shadow, not {mode!r}")
        self.mode = mode
        self._facts, self._intact, self._depth, self._clock = facts, intact, depth, clock
        self._version = 0
        self._force = _Force(Judge(snapshot))

    @property
    def snapshot(self) -> Snapshot:
        return self._force.snapshot

    @property
    def version(self) -> int:
        if self._force.snapshot.timed:
            return self._version * 2**32 + int(self._clock() // MOVES)
        return self._version * 2**32

    def swap(self, snapshot: Snapshot) -> None:
        """From here on these policies decide."""
        self._force = _Force(Judge(snapshot))
        self._version += 1

    def touch(self) -> None:
        """The facts of a target, or what is approved, have changed."""
        self.swap(self.snapshot)

    def beside(self, snapshot: Snapshot) -> Policies:
        """The same hub under other policies: to try them."""
        return Policies(
            snapshot, facts=self._facts, intact=self._intact, depth=self._depth, clock=self._clock
        )

    # --- what is asked ----------------------------------------------------------------------------

    def decide(self, call: Call) -> Decision:
        force = self._force
        try:
            who, what = self._who(force, call.principal), self._what(force, call.tool)
            if what.volatile:
                context = context_from_call(call, self._depth, self._clock())
                text = context.written(what.volatile, call.tool.name)
                return self._judged(force, who, what.action, what, text)
            trace = call.trace
            chain = trace.chain
            door = call.door if force.via else ""
            cyclic = bool(chain) and call.tool.name in chain
            key = (
                who.number, what.number, chain, cyclic, trace.labels, door, _itself(who, what),
            )  # fmt: skip
            decision = force.decisions.get(key)
            if decision is None:
                context = context_from_call(call, self._depth, 0.0)
                text = context.written((), call.tool.name)
                decision = self._judged(force, who, what.action, what, text)
                _keep(force, key, decision)
            return decision
        except Exception as error:
            return _failed(force, error)

    def reads_arguments(self, tool: Tool) -> bool:
        """Whether a call of the tool may be refused for its arguments. In shadow only guardrails
        refuse, and none of these reads arguments."""
        if self.mode == SHADOW:
            return False
        try:
            return "args" in self._what(self._force, tool).volatile
        except Exception as error:
            _failed(self._force, error)
            return True

    def can_list(self, caller: Principal, tool: Tool) -> bool:
        return self._other(caller, LIST, lambda force: self._what(force, tool)).allowed

    def can_see(self, caller: Principal, tool: Tool, door: str) -> bool:
        return self.can_list(caller, tool) and self.first(caller, tool, door).allowed

    def first(self, caller: Principal, tool: Tool, door: str) -> Decision:
        """Of a call that nothing led to, by that door, with no arguments."""
        return self.would(caller, tool, self.beginning(caller, door))

    def group_of_principal(self, caller: Principal) -> Hashable:
        force = self._force
        try:
            who = self._who(force, caller)
            # An agent is told apart from others by what is its own.
            return who.key(force.read), who.uid if who.uid[0] == AGENT else None
        except Exception as error:
            _failed(force, error)
            return caller, "undecided"

    def decide_action(
        self, caller: Principal, action: str, tool: Tool | None = None, *, owner: bool = False
    ) -> Decision:
        """`owner` is whether the task that is read or cancelled is the caller's own."""
        if action == ADMIN:
            return self._other(caller, action, lambda force: self._org(force, caller.org))
        if tool is None or action not in (A2A_DISCOVER, TASK_READ, TASK_CANCEL):
            return _failed(self._force, LookupError(f"nothing is known of {action!r} of {tool!r}"))
        if action == A2A_DISCOVER:
            return self._other(caller, action, lambda force: self._target(force, tool))
        context = OWNER_CONTEXT[owner]
        return self._other(caller, action, lambda force: self._what(force, tool), context)

    def would(self, caller: Principal, tool: Tool, context: Context) -> Decision:
        """Of a call that is not made."""
        force = self._force
        try:
            who, what = self._who(force, caller), self._what(force, tool)
            text = context.written(what.volatile, tool.name)
            if what.volatile:
                return self._judged(force, who, what.action, what, text)
            key = who.number, what.number, text, _itself(who, what)
            decision = force.decisions.get(key)
            if decision is None:
                decision = self._judged(force, who, what.action, what, text)
                _keep(force, key, decision)
            return decision
        except Exception as error:
            return _failed(force, error)

    def beginning(self, caller: Principal, door: str) -> Context:
        """What is known of a call that nothing led to."""
        return Context(
            max_depth=self._depth, scopes=frozenset(caller.scopes), via=door, now=self._clock()
        )

    def who(self, caller: Principal) -> Who:
        """The caller as policies see it. Raises LookupError where nothing is known of it."""
        return self._who(self._force, caller)

    def what(self, tool: Tool) -> What:
        return self._what(self._force, tool)

    def target(self, tool: Tool) -> What:
        """What the tool belongs to."""
        return self._target(self._force, tool)

    def org(self, org: str) -> What:
        return self._org(self._force, org)

    # --- how it is decided ------------------------------------------------------------------------

    def _judged(self, force: _Force, who: Who, action: str, what: What, context: str) -> Decision:
        # Who may change the hub is not tried out: it is in force from the first.
        if self.mode == SHADOW and action != ADMIN:
            return force.judge.shadow(who, action, what, context)
        return force.judge.decide(who, action, what, context)

    def _other(
        self,
        caller: Principal,
        action: str,
        find: Callable[[_Force], What],
        context: str = NO_CONTEXT,
    ) -> Decision:
        force = self._force
        try:
            who, what = self._who(force, caller), find(force)
            key = who.number, what.number, action, context, _itself(who, what)
            decision = force.decisions.get(key)
            if decision is None:
                decision = self._judged(force, who, action, what, context)
                _keep(force, key, decision)
            return decision
        except Exception as error:
            return _failed(force, error)

    def _who(self, force: _Force, caller: Principal) -> Who:
        facts = self._facts(caller.serves) if caller.serves else None
        latest = force.latest
        if latest[0] is caller and latest[1] is facts and latest[2] is not None:
            return latest[2]
        # Callers of one name are equal, and may yet have other roles than before.
        key = caller, caller.roles, caller.scopes, caller.behalf, caller.serves
        found = force.whos.get(key)
        if found is not None and found[0] is facts:
            force.latest = caller, facts, found[1]
            return found[1]
        force.room()
        who = who_from_caller(caller, facts)
        check_writable(who.entities())
        who.number = force.number(("who", who.key(force.read)))
        force.whos[key] = facts, who
        return who

    def _what(self, force: _Force, tool: Tool) -> What:
        facts = facts_of(tool)
        found = force.whats.get(tool.name)
        if found is not None and found[0] is tool and found[1] is facts:
            return found[2]
        force.room()
        what = what_from_tool(tool, facts, self._intact(tool))
        check_writable(what.entities())
        what.number = force.number(("what", what.key(force.read)))
        what.volatile = force.snapshot.volatile(what)
        if what.short:
            force.whats[tool.name] = tool, facts, what
        return what

    def _org(self, force: _Force, org: str) -> What:
        what = what_from_org(org)
        what.number = force.number(("what", what.key(force.read)))
        return what

    def _target(self, force: _Force, tool: Tool) -> What:
        force.room()
        what = what_from_target(tool.target.name, facts_of(tool))
        check_writable(what.entities())
        what.number = force.number(("what", what.key(force.read)))
        return what


def _itself(who: Who, what: What) -> bool:
    """Whether an agent calls itself: the one thing policies can tell of two that is of neither."""
    return who.uid[0] == AGENT and who.uid in (what.parent, what.uid)


def _keep(force: _Force, key: Any, decision: Decision) -> None:
    if not decision.errors and (decision.shadow is None or not decision.shadow.errors):
        force.room()
        force.decisions[key] = decision


def _failed(force: _Force, error: Exception) -> Decision:
    log.warning("denied, for it could not be decided: %r", error)
    return Decision(False, (), force.snapshot.hash, (f"{type(error).__name__}: {error}"[:300],))
