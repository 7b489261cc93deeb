"""Evaluates requests with Cedar. Anything but a clean Allow is a denial."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import reduce
from typing import Any

from dragoman.core.approvals import join_rules
from dragoman.core.ports import Decision
from dragoman.core.scopes import ADMIN
from dragoman.core.structs import replace as replace_struct
from dragoman.core.urls import render_uri
from dragoman.policy.approvals import combine_rules
from dragoman.policy.context import CallContext
from dragoman.policy.entities import (
    PolicyRequest,
    PrincipalEntity,
    ResourceEntity,
    build_slice,
    render_reference,
    render_uid,
)
from dragoman.policy.policy_set import ACTIONS, CALLS, Policy, PolicySet, render_action_uid

log = logging.getLogger(__name__)

MAX_SLICES = 2_048
MAX_ERROR = 300
_ACTION_UIDS = {action: render_action_uid(action) for action in ACTIONS}


class CedarEvaluator:
    """Evaluates one policy set. Caches prepared entities, and no decisions."""

    def __init__(self, snapshot: PolicySet) -> None:
        import cedarpy  # imported here: it takes longer to load than the rest of the hub

        self.policy_set = snapshot
        self._ask = cedarpy.is_authorized
        self._prepare = cedarpy.Entities.from_json_str
        self._allow = cedarpy.Decision.Allow
        self._denied = cedarpy.Decision.Deny
        self._slices: dict[tuple[PrincipalEntity, ResourceEntity], Any] = {}

    def decide(self, request: PolicyRequest) -> Decision:
        decision, plain = self._evaluate(self.policy_set.all, request), request.what.plain
        if decision.allowed and plain is not None and plain in self.policy_set.read.uids:
            decision = self._narrow(decision, request)
        rules = self.policy_set.approvals
        if rules and decision.allowed and request.action in CALLS:
            return replace_struct(decision, approval=combine_rules(decision.policies, rules))
        return decision

    def _narrow(self, permitted: Decision, request: PolicyRequest) -> Decision:
        """A policy names the tool that has the name of this prompt, resource or template. What is
        forbidden of the tool is forbidden of this too, and a permit with an exception for the tool
        has it for this."""
        what = request.what
        assert what.plain is not None
        tool = replace(what, uid=what.plain, plain=None)
        decision = self._evaluate(self.policy_set.all, request._replace(what=tool))
        if decision.errors or (not decision.allowed and decision.policies):
            return decision
        excepting = {one.id for one in self.policy_set.policies if what.plain in one.read.tested}
        also = decision.policies if decision.allowed else ()
        if any(id not in excepting or id in also for id in permitted.policies):
            return permitted
        return Decision(False, (), self.policy_set.hash)

    def decide_in_shadow(self, request: PolicyRequest) -> Decision:
        """Decides by the guardrails alone, with the decision of all policies beside it."""
        would = self.decide(request)
        held = self._evaluate(self.policy_set.guardrails, request)
        return Decision(held.allowed, held.policies, held.snapshot, held.errors, would)

    def decide_alone(self, policy: Policy, request: PolicyRequest) -> Decision:
        """Evaluates one policy alone: it is among the decision's `policies` if it applies."""
        from cedarpy import PolicySet

        form = {"staticPolicies": {"policy0": policy.form}, "templates": {}, "templateLinks": []}
        alone = PolicySet.from_json_str(json.dumps(form))
        decision, what = self._evaluate(alone, request), request.what
        if policy.effect == "forbid" and what.plain is not None and not decision.policies:
            tool = replace(what, uid=what.plain)
            return self._evaluate(alone, request._replace(what=tool))
        return decision

    def _evaluate(self, policies: Any, request: PolicyRequest) -> Decision:
        who, action, what, context = request
        try:
            asked = {
                "principal": render_reference(who.uid),
                "action": _ACTION_UIDS[action],
                "resource": render_reference(what.uid),
                "context": context,
            }
            # With the schema: without it, a context of the wrong type would only skip a policy.
            entities = self._prepare_entities(who, what)
            result = self._ask(asked, policies, entities, self.policy_set.schema)
            said, answer = result.diagnostics, result.decision
        except Exception as error:
            return self._deny(request, [f"{type(error).__name__}: {error}"])
        errors = said.errors
        if errors or (answer is not self._allow and answer is not self._denied):
            return self._deny(request, errors or ["Cedar returned no decision"])
        names = said.id_annotations_by_reason
        reasons = tuple(sorted([names.get(one, one) for one in said.reasons]))
        return Decision(answer is self._allow, reasons, self.policy_set.hash)

    def _prepare_entities(self, who: PrincipalEntity, what: ResourceEntity) -> Any:
        found = self._slices.get((who, what))
        if found is None:
            if len(self._slices) >= MAX_SLICES:
                self._slices.clear()
            text = json.dumps(build_slice(who, what))
            found = self._prepare(text, self.policy_set.schema)
            if what.is_short:
                self._slices[who, what] = found
        return found

    def _deny(self, request: PolicyRequest, errors: list[str]) -> Decision:
        said = tuple(error[:MAX_ERROR] for error in errors[:8])
        kind, name = request.what.uid
        what = render_uid((kind, render_uri(name) if "://" in name else name))
        who, why = render_uid(request.who.uid), "; ".join(said)
        log.warning(
            "denied, because the decision failed: %s %s %s: %s", who, request.action, what, why
        )
        return Decision(False, (), self.policy_set.hash, said)


def decide_call(
    decide: Callable[[PolicyRequest], Decision],
    policy_set: PolicySet,
    who: PrincipalEntity,
    what: ResourceEntity,
    context: CallContext,
    read: Collection[str],
) -> Decision:
    """Decides on a call. One that is forbidden unless it is approved needs an approval if a forbid
    or the permits ask for one."""
    request = PolicyRequest(who, what.action, what, context.render(read, what.name))
    decision = decide(request)
    is_final = decision.allowed or decision.errors or context.approved
    if is_final or not policy_set.asks_unless_approved:
        return decision
    approved = replace_struct(context, approved=True)
    again = decide(request._replace(context=approved.render(read, what.name)))
    rules = policy_set.approvals
    lifted = [rules[id] for id in decision.policies if id in rules] if again.allowed else []
    rule = reduce(join_rules, lifted, again.approval)
    return decision if rule is None else replace_struct(again, approval=rule)


def decide_right(decide: Callable[[str], Decision], action: str) -> Decision:
    """Decides one of `ADMIN_ACTIONS`. A policy that permits `admin` permits all of its parts, and
    one that forbids it forbids them; a part can also be permitted or forbidden alone."""
    whole = decide(ADMIN)
    if action == ADMIN or whole.errors or (whole.policies and not whole.allowed):
        return whole
    part = decide(action)
    is_forbidden = part.errors or (part.policies and not part.allowed)
    return whole if whole.allowed and not is_forbidden else part
