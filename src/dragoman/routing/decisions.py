"""Decisions of the router as they are stored and shown: every candidate with factors and reasons.

A caller is shown the agents that it may know of. The text of the work is not stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman.core.errors import NoCandidate
from dragoman.core.logs import render_time
from dragoman.core.routing import RoutingDecision
from dragoman.routing.choice import Choice, JudgedCandidate, Work

MAX_NAMED = 20
"""Excluded agents that an error names."""
DIGITS = 4


def build_decision(
    id: str, org: str, caller: str, at: float, work: Work, choice: Choice
) -> RoutingDecision:
    candidates = [_render_candidate(one) for one in (*choice.ranked, *choice.excluded)]
    body = {
        "workType": work.work_type,
        "requiredSkills": list(work.skills),
        "maxCost": work.max_cost,
        "maxTokens": work.max_tokens,
        "chosen": choice.ranked[0].candidate.agent if choice.ranked else None,
        "mode": choice.mode or None,
        "candidates": candidates,
    }
    return RoutingDecision(id=id, org=org, caller=caller, at=at, body=body)


def _render_candidate(judged: JudgedCandidate) -> dict[str, Any]:
    candidate, outcomes = judged.candidate, judged.candidate.outcomes
    said: dict[str, Any] = {
        "agent": candidate.agent,
        "kind": candidate.kind,
        "eligible": not judged.reasons,
        "reasons": list(judged.reasons),
        "visible": candidate.is_visible,
    }
    if candidate.refusal:
        return said
    said |= {
        "health": candidate.health,
        "active": candidate.active,
        "successes": round(outcomes.successes, DIGITS),
        "failures": round(outcomes.failures, DIGITS),
        "observations": outcomes.total,
        "meanCost": outcomes.mean_cost,
        "meanTokens": outcomes.mean_tokens,
        "factors": {
            "workType": judged.fit,
            "overlap": round(judged.overlap, DIGITS),
            "capability": round(judged.capability, DIGITS),
            "health": judged.health,
            "load": judged.load,
        },
    }
    if not judged.reasons:
        said |= {
            "expected": round(judged.expected, DIGITS),
            "sample": round(judged.sample, DIGITS),
            "score": round(judged.score, DIGITS),
        }
    return said


def render_decision(decision: RoutingDecision, *, whole: bool) -> dict[str, Any]:
    """Renders a decision for its caller; with `whole`, with the agents that the caller may not know
    of."""
    candidates = [
        {name: value for name, value in one.items() if name != "visible"}
        for one in decision.body["candidates"]
        if whole or one["visible"]
    ]
    return {
        "decisionId": decision.id,
        "at": render_time(decision.at),
        "caller": decision.caller,
        **decision.body,
        "candidates": candidates,
        "attempts": list(decision.attempts),
    }


def build_no_candidate(work: Work, excluded: Sequence[JudgedCandidate], id: str) -> NoCandidate:
    """Builds the error for work that no agent can take, without agents that the caller may not know
    of."""
    wanted = f'work type "{work.work_type}"'
    if work.skills:
        wanted += f", skills {', '.join(work.skills)}"
    known = [one for one in excluded if one.candidate.is_visible]
    whys = [f'"{one.candidate.agent}": {" and ".join(one.reasons)}' for one in known[:MAX_NAMED]]
    if len(known) > MAX_NAMED:
        whys.append(f"and {len(known) - MAX_NAMED} more")
    why = "; ".join(whys) or "you may call no agent"
    explain = f"; see: dragoman dispatch explain {id}" if id else ""
    return NoCandidate(f"no agent can take this work ({wanted}): {why}{explain}")
