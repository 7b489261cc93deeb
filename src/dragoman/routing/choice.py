"""Chooses an agent among candidates. Pure: equal input and an equal seed give an equal choice.

An agent that may not or cannot do the work is excluded, with every reason. Each of the others gets
a sample of the Beta distribution of its past outcomes, multiplied by its capability, health and
load; the highest product wins (Thompson sampling). Knows no hub and no store.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from random import Random

from dragoman.core.structs import Struct
from dragoman.core.tool_identity import fold_name
from dragoman.routing.outcomes import Outcomes

GENERAL = "general"
"""The work type of work without one: every agent has it."""

HEALTHY, DEGRADED, UNKNOWN, UNREACHABLE = "healthy", "degraded", "unknown", "unreachable"
HEALTH_FACTORS: Mapping[str, float] = {HEALTHY: 1.0, DEGRADED: 0.5, UNKNOWN: 0.8}
"""Agents in any other state are excluded."""
BUSY_FACTOR = 0.5

TAGGED, NAMED, MENTIONED = 1.0, 0.9, 0.6
"""How well an agent fits a work type: by a tag, by the id or name of a skill, by a word in a
description."""
OVERLAP_SHARE = 0.25
"""How much of the capability depends on the description of the work."""
ENOUGH_WORDS = 8
"""Words in common at which the overlap is complete."""

EXPLORATION, EXPLOITATION, ONLY = "exploration", "exploitation", "only candidate"

_WORD = re.compile(r"[^\W_]{3,}")
_COMMON = frozenset(
    {
        "and", "any", "are", "but", "can", "for", "from", "has", "have", "into", "its", "new",
        "not", "our", "out", "please", "run", "that", "the", "their", "them", "this", "use",
        "was", "were", "will", "with", "you", "your",
    }
)  # fmt: skip


class Work(Struct, frozen=True, kw_only=True):
    """What is to be done."""

    description: str
    work_type: str = GENERAL
    skills: tuple[str, ...] = ()
    """The ids of skills, all of which the agent must have."""
    max_cost: float | None = None
    """US dollars, on average, as far as the agent reports them."""
    max_tokens: float | None = None


class CandidateSkill(Struct, frozen=True, kw_only=True):
    id: str
    name: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()


class RoutingLimits(Struct, frozen=True, kw_only=True):
    soft_cap: int = 5
    hard_cap: int = 10


class Candidate(Struct, frozen=True, kw_only=True):
    """An agent, and what is known of it now."""

    agent: str
    kind: str
    """`local` or `external`."""
    skills: tuple[CandidateSkill, ...] = ()
    description: str = ""
    tags: tuple[str, ...] = ()
    """The tags of the agent itself."""
    health: str = HEALTHY
    active: int = 0
    """Its running calls."""
    outcomes: Outcomes = Outcomes()
    refusal: str = ""
    """Why the caller may not have the work done there."""
    is_visible: bool = True
    """Whether the caller may know of the agent."""


class JudgedCandidate(Struct, frozen=True, kw_only=True):
    """A candidate with its factors; with reasons, it is excluded."""

    candidate: Candidate
    reasons: tuple[str, ...] = ()
    fit: float = 0.0
    """How well it fits the work type."""
    overlap: float = 0.0
    capability: float = 0.0
    health: float = 0.0
    load: float = 0.0
    sample: float = 0.0
    score: float = 0.0

    @property
    def weight(self) -> float:
        return self.capability * self.health * self.load

    @property
    def expected(self) -> float:
        """The score if the sample were the mean of the past outcomes."""
        return self.candidate.outcomes.mean * self.weight


class Choice(Struct, frozen=True):
    ranked: tuple[JudgedCandidate, ...]
    """The best first."""
    excluded: tuple[JudgedCandidate, ...]

    @property
    def mode(self) -> str:
        """Whether the chosen agent is the one that past outcomes favour."""
        if len(self.ranked) < 2:
            return ONLY if self.ranked else ""
        best = max(one.expected for one in self.ranked)
        return EXPLOITATION if self.ranked[0].expected >= best else EXPLORATION


def choose(
    work: Work, candidates: Iterable[Candidate], limits: RoutingLimits, random: Random
) -> Choice:
    ranked: list[JudgedCandidate] = []
    excluded: list[JudgedCandidate] = []
    words = find_words(work.description)
    for candidate in sorted(candidates, key=lambda one: one.agent):
        judged = _judge(work, words, candidate, limits, random)
        (excluded if judged.reasons else ranked).append(judged)
    ranked.sort(key=lambda one: (-one.score, one.candidate.agent))
    return Choice(tuple(ranked), tuple(excluded))


def _judge(
    work: Work, words: frozenset[str], candidate: Candidate, limits: RoutingLimits, random: Random
) -> JudgedCandidate:
    if candidate.refusal:  # what else there is to say of it is not for this caller
        return JudgedCandidate(candidate=candidate, reasons=(candidate.refusal,))
    fit = find_fit(work.work_type, candidate)
    overlap = find_overlap(words, candidate)
    capability = fit * (1 - OVERLAP_SHARE + OVERLAP_SHARE * overlap)
    health = HEALTH_FACTORS.get(candidate.health, 0.0)
    load = _find_load(candidate.active, limits)
    reasons = tuple(_list_reasons(work, candidate, fit, health, load))
    sample = score = 0.0
    if not reasons:
        outcomes = candidate.outcomes
        sample = random.betavariate(outcomes.successes + 1, outcomes.failures + 1)
        score = sample * capability * health * load
    return JudgedCandidate(
        candidate=candidate,
        reasons=reasons,
        fit=fit,
        overlap=overlap,
        capability=capability,
        health=health,
        load=load,
        sample=sample,
        score=score,
    )


def _list_reasons(
    work: Work, candidate: Candidate, fit: float, health: float, load: float
) -> Iterable[str]:
    if not health:
        yield f"it is {candidate.health}"
        return  # an agent without a connection offers nothing to judge
    known = {fold_name(skill.id) for skill in candidate.skills}
    missing = [one for one in work.skills if fold_name(one) not in known]
    if missing:
        yield f"it has no skill {', '.join(map(_quote, missing))}"
    if not fit:
        yield f"no skill of it is for the work type {_quote(work.work_type)}"
    if not load:
        yield f"{candidate.active} calls to it are running"
    mean, most = candidate.outcomes.mean_cost, work.max_cost
    if mean is not None and most is not None and mean > most:
        yield f"it costs ${mean:.4g} on average, more than ${most:.4g}"
    mean, most = candidate.outcomes.mean_tokens, work.max_tokens
    if mean is not None and most is not None and mean > most:
        yield f"it uses {mean:.0f} tokens on average, more than {most:.0f}"


def _quote(text: str) -> str:
    return f'"{text[:100]}"'


def _find_load(active: int, limits: RoutingLimits) -> float:
    if active >= limits.hard_cap:
        return 0.0
    return BUSY_FACTOR if active >= limits.soft_cap else 1.0


def find_fit(work_type: str, candidate: Candidate) -> float:
    """How well the agent fits the work type; 0 if nothing says that it does such work."""
    wanted = fold_name(work_type)
    if wanted == GENERAL:
        return 1.0
    skills = candidate.skills
    tags = [*candidate.tags, *(tag for skill in skills for tag in skill.tags)]
    if any(fold_name(tag) == wanted for tag in tags):
        return TAGGED
    if any(wanted in (fold_name(skill.id), fold_name(skill.name)) for skill in skills):
        return NAMED
    texts = [candidate.agent, candidate.description]
    texts += [f"{skill.name} {skill.description}" for skill in skills]
    mentions = re.compile(rf"(?<!\w){re.escape(work_type)}(?!\w)", re.IGNORECASE)
    return MENTIONED if any(mentions.search(text) for text in texts) else 0.0


def find_overlap(words: frozenset[str], candidate: Candidate) -> float:
    """The share of the words of the work that the agent uses of itself, from 0 to 1."""
    if not words:
        return 0.0
    texts: Sequence[str] = [
        candidate.description,
        *candidate.tags,
        *(
            f"{one.id} {one.name} {one.description} {' '.join(one.tags)}"
            for one in candidate.skills
        ),
    ]
    known = find_words(" ".join(texts).replace("_", " "))
    return min(1.0, len(words & known) / min(len(words), ENOUGH_WORDS))


def find_words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower())) - _COMMON
