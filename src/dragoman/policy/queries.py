"""Queries about policies: why, who can, what can, and what another set would decide. They have no
effect, and use the engine that decides calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dragoman.core.call import NOTHING
from dragoman.core.errors import InvalidInput
from dragoman.core.ports import (
    A2A_DISCOVER,
    ADMIN_ACTIONS,
    TASK_CANCEL,
    TASK_READ,
    Decision,
)
from dragoman.core.principal import HUB_ORG, Principal
from dragoman.core.scopes import ADMIN, APPROVE
from dragoman.core.tool import Tool
from dragoman.core.tool_identity import fold_id
from dragoman.policy.analysis import VOLATILE
from dragoman.policy.cedar import CedarEvaluator, decide_call, decide_right
from dragoman.policy.context import OWNER_CONTEXT, CallContext, context_from_input
from dragoman.policy.engine import PolicyEngine
from dragoman.policy.entities import LIST, PolicyRequest, ResourceEntity, render_uid
from dragoman.policy.policy_set import ADMIN_NAMES, CALLS, Policy

PERMIT, DENY, APPROVAL = "permit", "deny", "approval"
CALL = "call"
"""Stands for the action of a call of the tool: `mcp_call` or `a2a_invoke`."""
MAX_FLIPS = 1_000

Record = Mapping[str, Any]


def explain(
    policies: PolicyEngine,
    caller: Principal,
    action: str,
    tool: Tool | None,
    context: Mapping[str, Any] = NOTHING,
) -> dict[str, Any]:
    """Explains a decision: the deciding policies, those that nearly apply, and the attributes."""
    snapshot = policies.policy_set
    try:
        who, what = policies.find_principal(caller), _find_resource(policies, caller, action, tool)
    except LookupError as error:
        raise InvalidInput(f"cannot be explained: {error}") from error
    action = _resolve_action(action, what)
    said = _build_context(policies, caller, action, context)
    text = said.render(VOLATILE, what.name) if isinstance(said, CallContext) else said
    judge, request = CedarEvaluator(snapshot), PolicyRequest(who, action, what, text)
    requests = [request]
    if isinstance(said, CallContext):
        decision = decide_call(judge.decide, snapshot, who, what, said, VOLATILE)
    elif action in ADMIN_ACTIONS:  # policies about `admin` decide on its parts too
        decision = decide_right(lambda part: judge.decide(request._replace(action=part)), action)
        requests = [request._replace(action=one) for one in dict.fromkeys((action, ADMIN))]
    else:
        decision = judge.decide(request)
    concerned = [
        policy
        for policy in snapshot.policies
        if any(policy.can_match(who, one.action, what) for one in requests)
    ]
    holding = {
        policy.id
        for policy in concerned
        if any(policy.id in judge.decide_alone(policy, one).policies for one in requests)
    }
    permits = [one for one in concerned if one.effect == PERMIT and one.id in holding]
    forbids = [one for one in concerned if one.effect != PERMIT and one.id in holding]
    nearly = [one for one in concerned if one.effect == PERMIT and one.id not in holding]
    return {
        "decision": PERMIT if decision.allowed else DENY,
        "policy_set": snapshot.hash,
        "mode": policies.mode,
        "principal": render_uid(who.uid),
        "action": action,
        "resource": render_uid(what.uid),
        "why": _explain_decision(decision, permits, forbids),
        "permits": [one.render() for one in permits],
        "forbids": [one.render() for one in forbids],
        "nearly": [one.render() for one in nearly],
        "attributes": _collect_attributes(concerned, request, said),
        "errors": list(decision.errors),
        "approval": _render_approval(decision),
    }


def _render_approval(decision: Decision) -> dict[str, Any] | None:
    """The approval that a permitted call needs; None if it needs none."""
    rule = decision.approval
    if rule is None:
        return None
    return {
        "reason": rule.reason,
        "approvers": list(rule.approvers),
        "expiresSecs": rule.seconds or None,
    }


def _find_resource(
    policies: PolicyEngine, caller: Principal, action: str, tool: Tool | None
) -> ResourceEntity:
    if action in ADMIN_ACTIONS:
        return policies.find_org(HUB_ORG)
    if action == APPROVE and tool is None:
        return policies.find_org(caller.org)
    if tool is None:
        raise InvalidInput(f'"{action}" needs a tool: name one')
    if action == A2A_DISCOVER:
        return policies.find_target(tool, caller.org)
    return policies.find_resource(tool, caller.org)


def _resolve_action(action: str, what: ResourceEntity) -> str:
    if action == CALL:
        return what.action
    if action in CALLS and action != what.action:
        raise InvalidInput(f"{render_uid(what.uid)} is called by {what.action}, not by {action}")
    known = (*CALLS, LIST, A2A_DISCOVER, TASK_READ, TASK_CANCEL, APPROVE, *ADMIN_NAMES)
    if action not in known:
        raise InvalidInput(f'unknown action "{action}"; use call, {", ".join(known)}')
    return action


def _build_context(
    policies: PolicyEngine, caller: Principal, action: str, words: Mapping[str, Any]
) -> CallContext | str:
    found = context_from_input(words, policies.build_first_context(caller, "api"))
    if action in CALLS:
        return found
    if action in (TASK_READ, TASK_CANCEL, APPROVE):
        return OWNER_CONTEXT[words.get("owner") is True]
    return "{}"


def _explain_decision(decision: Decision, permits: list[Policy], forbids: list[Policy]) -> str:
    if decision.errors:
        return f"denied, because the decision failed: {decision.errors[0]}"
    if decision.approval is not None:
        names = ", ".join(f'"{id}"' for id in decision.policies)
        return f"permitted by {names} with an approval: {decision.approval.reason}"
    if forbids:
        return "; ".join(_describe_policy(one, "forbids") for one in forbids)
    if permits:
        return "; ".join(_describe_policy(one, "permits") for one in permits)
    return "no policy permits it"


def _describe_policy(policy: Policy, verb: str) -> str:
    why = policy.annotations.get("why", "")
    return f'"{policy.id}" {verb} it' + (f": {why}" if why else "")


def _collect_attributes(
    policies: Iterable[Policy], request: PolicyRequest, context: CallContext | str
) -> dict[str, Any]:
    """Collects the values that these policies read."""
    who, what = request.who, request.what
    found: dict[str, Any] = {}
    for path in sorted({path for one in policies for path in one.read.paths}):
        root, _, rest = path.partition(".")
        if root == "principal" and rest in who.attributes:
            found[path] = _render_value(who.attributes[rest])
        elif root == "resource":
            own, theirs = what.attributes, what.parent_attributes
            if rest in own:
                found[path] = _render_value(own[rest])
            elif rest.startswith("agent.") and rest[6:] in theirs:
                found[path] = _render_value(theirs[rest[6:]])
        elif root == "context" and isinstance(context, CallContext):
            value = getattr(context, rest, None)
            if rest == "depth" and value is None:
                value = len(context.chain)
            elif rest == "cyclic":
                value = what.name in context.chain
            if value is not None:
                found[path] = _render_value(value)
    return found


def _render_value(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple) and len(value) == 2 and value[0] in ("Org", "RemoteAgent"):
        return render_uid(value)
    return list(value) if isinstance(value, tuple) else value


# --- who and what ---------------------------------------------------------------------------------


def list_who_can(
    policies: PolicyEngine, tool: Tool, callers: Iterable[Principal], door: str = "api"
) -> list[dict[str, Any]]:
    return [{"caller": one.label, **_decide_both(policies, one, tool, door)} for one in callers]


def list_what_can(
    policies: PolicyEngine, caller: Principal, tools: Iterable[Tool], door: str = "api"
) -> list[dict[str, Any]]:
    return [
        {"tool": one.name, "kind": one.kind, **_decide_both(policies, caller, one, door)}
        for one in tools
    ]


def _decide_both(
    policies: PolicyEngine, caller: Principal, tool: Tool, door: str
) -> dict[str, Any]:
    decision = policies.decide_first(caller, tool, door)
    return {
        "call": _name_decision(decision),
        "list": PERMIT if policies.can_list(caller, tool) else DENY,
        "policies": list(decision.policies),
        "errors": list(decision.errors),
    }


def _name_decision(decision: Decision) -> str:
    return APPROVAL if decision.approval is not None else PERMIT if decision.allowed else DENY


# --- what would have been -------------------------------------------------------------------------


def replay(
    records: Iterable[Record],
    draft: PolicyEngine,
    callers: Callable[[Record], Principal | None],
    tools: Callable[[Record], Tool | None],
) -> dict[str, Any]:
    """Decides recorded calls by a draft and lists the decisions that differ. `callers` and `tools`
    find the principal and tool of a record as of today. Records have no arguments: if the draft
    reads them, a flip is unsure."""
    judged = flipped = 0
    skipped: dict[str, int] = {}
    flips: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in records:
        was, caller, tool = record.get("decision"), callers(record), tools(record)
        if was not in (PERMIT, DENY) or caller is None or tool is None:
            why = _explain_skip(was, caller)
            skipped[why] = skipped.get(why, 0) + 1
            continue
        judged += 1
        decision = draft.decide_hypothetical(
            caller, tool, _context_from_record(record, draft.build_first_context(caller, ""))
        )
        was = APPROVAL if was == PERMIT and record.get("approval") else was
        now = _name_decision(decision)
        if now == was:
            continue
        flipped += 1
        key = caller.label, tool.name, tool.kind, was, decision.policies, decision.errors
        if key in flips:
            _count_flip(flips[key], record)
        elif len(flips) < MAX_FLIPS:
            flips[key] = {
                "caller": caller.label,
                "verb": tool.name,
                "kind": tool.kind,
                "was": was,
                "now": now,
                "policies": list(decision.policies),
                "errors": list(decision.errors),
                "was_policies": list(record.get("policies") or ()),
                "count": 1,
                "first_at": record.get("at"),
                "last_at": record.get("at"),
                "trace": record.get("trace", ""),
                "unsure": not decision.errors and "args" in draft.find_resource(tool).volatile,
            }
    return {
        "judged": judged,
        "same": judged - flipped,
        "flipped": flipped,
        "flips": list(flips.values()),
        "skipped": skipped,
    }


def _explain_skip(was: Any, caller: Principal | None) -> str:
    if was not in (PERMIT, DENY):
        return "no policy was asked"
    return "the caller is not known any more" if caller is None else "there is no such tool now"


def _context_from_record(record: Record, first: CallContext) -> CallContext:
    """Builds the context of a recorded call, as far as it was recorded."""
    chain = record.get("chain")
    labels = record.get("labels")
    return CallContext(
        chain=tuple(fold_id(str(one)) for one in chain) if isinstance(chain, list | tuple) else (),
        depth=int(record.get("depth") or 0),
        max_depth=first.max_depth,
        labels=frozenset(str(one) for one in labels) if labels else frozenset(),
        scopes=first.scopes,
        via=str(record.get("door", "")),
        trace_id=str(record.get("trace", "")),
        now=float(record.get("at") or 0.0),
    )


def _count_flip(flip: dict[str, Any], record: Record) -> None:
    flip["count"] += 1
    at = record.get("at")
    if at is not None:
        flip["first_at"] = min(at, flip["first_at"] if flip["first_at"] is not None else at)
        flip["last_at"] = max(at, flip["last_at"] if flip["last_at"] is not None else at)
