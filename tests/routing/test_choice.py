"""Choices among candidates: factors, exclusions, and what sampling learns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any

import pytest

from dragoman.core.routing import OutcomeKey, OutcomeRow, RoutingDecision
from dragoman.routing.choice import (
    EXPLOITATION,
    EXPLORATION,
    ONLY,
    Candidate,
    CandidateSkill,
    Choice,
    RoutingLimits,
    Work,
    choose,
    find_fit,
    find_overlap,
    find_words,
)
from dragoman.routing.outcomes import Outcomes, OutcomeTable

LIMITS = RoutingLimits()
QA = Work(description="Run integration tests for the new feature", work_type="qa")


def build(agent: str, *, tags: tuple[str, ...] = ("qa",), **more: Any) -> Candidate:
    skills = (CandidateSkill(id="typescript", tags=tags), CandidateSkill(id="python"))
    return Candidate(agent=agent, kind="external", skills=skills, **more)


def pick(work: Work, *candidates: Candidate, seed: int = 1) -> Choice:
    return choose(work, candidates, LIMITS, Random(seed))


def explain(choice: Choice) -> dict[str, str]:
    return {one.candidate.agent: "; ".join(one.reasons) for one in choice.excluded}


# --- factors --------------------------------------------------------------------------------------


@pytest.mark.promise("R13")
@pytest.mark.parametrize(
    ("health", "factor"), [("healthy", 1.0), ("degraded", 0.5), ("unknown", 0.8)]
)
def test_health_multiplies_the_sample(health: str, factor: float) -> None:
    (judged,) = pick(QA, build("a", health=health)).ranked
    assert judged.health == factor
    assert judged.score == pytest.approx(judged.sample * judged.capability * factor)


@pytest.mark.promise("R13")
@pytest.mark.parametrize(("active", "factor"), [(0, 1.0), (4, 1.0), (5, 0.5), (9, 0.5)])
def test_load_halves_the_score_from_the_soft_cap_on(active: int, factor: float) -> None:
    (judged,) = pick(QA, build("a", active=active)).ranked
    assert judged.load == factor


@pytest.mark.promise("R13")
def test_candidates_that_cannot_do_the_work_are_excluded_with_every_reason() -> None:
    work = Work(
        description="x",
        work_type="qa",
        skills=("typescript", "Deploy"),
        max_cost=0.5,
        max_tokens=1_000,
    )
    deploys = CandidateSkill(id="deploy", tags=("qa",))
    both = (deploys, CandidateSkill(id="typescript"))

    def skilled(agent: str, **more: Any) -> Candidate:
        return Candidate(agent=agent, kind="local", skills=both, **more)

    choice = pick(
        work,
        skilled("fit", outcomes=Outcomes(mean_cost=0.5, mean_tokens=1_000)),
        skilled("away", health="unreachable"),
        skilled("held", health="quarantined"),
        skilled("full", active=10),
        skilled("denied", refusal="no policy permits it"),
        skilled("dear", outcomes=Outcomes(mean_cost=0.6)),
        skilled("wordy", outcomes=Outcomes(mean_tokens=1_001)),
        build("half", tags=("cooking",)),
    )
    assert [one.candidate.agent for one in choice.ranked] == ["fit"]
    assert choice.mode == ONLY
    assert explain(choice) == {
        "away": "it is unreachable",
        "held": "it is quarantined",
        "full": "10 calls to it are running",
        "denied": "no policy permits it",
        "dear": "it costs $0.6 on average, more than $0.5",
        "wordy": "it uses 1001 tokens on average, more than 1000",
        "half": 'it has no skill "Deploy"; no skill of it is for the work type "qa"',
    }


@pytest.mark.promise("R13")
@pytest.mark.parametrize(
    ("candidate", "fit"),
    [
        (build("a", tags=("QA",)), 1.0),
        (Candidate(agent="a", kind="local", tags=("qa",)), 1.0),
        (Candidate(agent="a", kind="local", skills=(CandidateSkill(id="Qa"),)), 0.9),
        (Candidate(agent="a", kind="local", description="Does QA, and nothing else."), 0.6),
        (Candidate(agent="a", kind="local", description="From Qatar."), 0.0),
        (build("a", tags=()), 0.0),
    ],
)
def test_work_type_is_found_in_tags_then_skills_then_descriptions(
    candidate: Candidate, fit: float
) -> None:
    assert find_fit("qa", candidate) == fit
    assert find_fit("general", candidate) == 1.0


@pytest.mark.promise("R13")
def test_description_of_the_work_favours_the_agent_that_uses_its_words() -> None:
    near = build("near", description="Writes and runs integration tests of web features")
    far = build("far", description="Cooks")
    words = find_words(QA.description)
    assert words == {"integration", "tests", "feature"}
    assert find_overlap(words, near) == pytest.approx(2 / 3) and find_overlap(words, far) == 0.0
    even = Outcomes(successes=1e9, failures=1e9)  # samples are all but equal
    choice = pick(QA, build("z", description=near.description, outcomes=even), far)
    by_name = {one.candidate.agent: one for one in choice.ranked}
    assert by_name["z"].capability == pytest.approx(0.75 + 0.25 * 2 / 3)
    assert by_name["far"].capability == 0.75


@pytest.mark.promise("R13")
def test_same_seed_gives_the_same_choices() -> None:
    candidates = [build(name, outcomes=Outcomes(successes=3, failures=2)) for name in "abcde"]

    def run(seed: int, given: Iterable[Candidate]) -> list[tuple[str, float]]:
        random, given = Random(seed), list(given)
        chosen = (choose(QA, given, LIMITS, random).ranked[0] for _ in range(50))
        return [(one.candidate.agent, one.sample) for one in chosen]

    assert run(7, candidates) == run(7, reversed(candidates)) != run(8, candidates)


def test_mode_tells_whether_the_choice_follows_past_outcomes() -> None:
    good = build("good", outcomes=Outcomes(successes=20, failures=2))
    new = build("new")
    modes = Counter(
        (choice.ranked[0].candidate.agent, choice.mode)
        for choice in (pick(QA, good, new, seed=seed) for seed in range(200))
    )
    assert set(modes) == {("good", EXPLOITATION), ("new", EXPLORATION)}
    assert pick(QA).mode == ""


# --- learning -------------------------------------------------------------------------------------


class MemoryStore:
    """A `RoutingStore` for outcomes, which it keeps in memory."""

    def __init__(self) -> None:
        self.rows: dict[OutcomeKey, OutcomeRow] = {}

    def load_outcomes(self) -> list[tuple[OutcomeKey, OutcomeRow]]:
        return list(self.rows.items())

    def save_outcome(self, key: OutcomeKey, row: OutcomeRow) -> None:
        self.rows[key] = row

    def delete_outcomes(self, keys: Iterable[OutcomeKey]) -> None:
        for key in keys:
            del self.rows[key]

    def add_decision(self, decision: RoutingDecision) -> None:
        raise NotImplementedError

    def add_attempt(self, decision: str, attempt: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def find_decision(self, id: str) -> RoutingDecision | None:
        raise NotImplementedError


class Simulation:
    """Dispatches to stub agents that succeed at given rates, one dispatch a minute."""

    def __init__(self, seed: int, rates: dict[str, float]) -> None:
        self.rates = rates
        self.now = 0.0
        self._choices, self._luck = Random(seed), Random(seed + 1)
        self.table = OutcomeTable(
            MemoryStore(), window=100, half_life_seconds=86_400.0, clock=lambda: self.now
        )

    def run(self, count: int) -> Counter[str]:
        chosen: Counter[str] = Counter()
        for _ in range(count):
            self.now += 60.0
            candidates = [
                build(agent, outcomes=self.table.find(OutcomeKey("o", agent, "qa")))
                for agent in self.rates
            ]
            agent = choose(QA, candidates, LIMITS, self._choices).ranked[0].candidate.agent
            chosen[agent] += 1
            is_success = self._luck.random() < self.rates[agent]
            self.table.record(OutcomeKey("o", agent, "qa"), is_success, None)
        return chosen


RATES = {"good": 0.9, "fair": 0.6, "poor": 0.2}


@pytest.mark.promise("R13")
@pytest.mark.parametrize("seed", range(10))
def test_best_agent_gets_most_of_the_work_and_the_others_are_still_tried(seed: int) -> None:
    simulation = Simulation(seed, dict(RATES))
    simulation.run(100)
    chosen = simulation.run(500)
    assert chosen["good"] > 400, chosen
    assert chosen["fair"] > 0 and chosen["poor"] > 0, chosen


@pytest.mark.promise("R13")
@pytest.mark.parametrize("seed", range(5))
def test_agent_that_fails_loses_the_work_and_gets_it_back_when_it_has_recovered(seed: int) -> None:
    simulation = Simulation(seed, dict(RATES))
    simulation.run(200)
    simulation.rates["good"] = 0.0
    simulation.run(100)
    broken = simulation.run(200)
    assert broken["good"] < 20 and broken["fair"] > 140, broken
    simulation.rates["good"] = 0.95
    simulation.run(300)
    recovered = simulation.run(200)
    assert recovered["good"] > 140, recovered


@pytest.mark.promise("R13")
def test_agents_that_may_not_be_chosen_never_are() -> None:
    best = Outcomes(successes=1_000.0)
    spoiled: dict[str, Callable[[], Candidate]] = {
        "unreachable": lambda: build("bad", outcomes=best, health="unreachable"),
        "overloaded": lambda: build("bad", outcomes=best, active=10),
        "denied": lambda: build("bad", outcomes=best, refusal="denied"),
        "unskilled": lambda: build("bad", outcomes=best, tags=()),
    }
    worst = build("left", outcomes=Outcomes(failures=1_000.0))
    random = Random(3)
    for _ in range(200):
        for why, spoil in spoiled.items():
            choice = choose(QA, [spoil(), worst], LIMITS, random)
            assert [one.candidate.agent for one in choice.ranked] == ["left"], why


# --- outcomes -------------------------------------------------------------------------------------


def build_table(store: MemoryStore, clock: Callable[[], float], most: int = 10) -> OutcomeTable:
    return OutcomeTable(store, window=100, half_life_seconds=100.0, clock=clock, most=most)


def test_outcomes_lose_weight_with_time_and_with_further_dispatches() -> None:
    now = [1_000.0]
    table = build_table(MemoryStore(), lambda: now[0])
    key, other = OutcomeKey("o", "a", "qa"), OutcomeKey("o", "b", "qa")
    for _ in range(3):
        table.record(key, True, None)
    table.record(key, False, None)
    found = table.find(key)
    assert 2.9 < found.successes < 3 and found.failures == 1 and found.total == 4
    now[0] += 100
    halved = table.find(key)
    assert halved.successes == pytest.approx(found.successes / 2) and halved.failures == 0.5
    for _ in range(100):
        table.record(other, True, None)
    assert table.find(key).failures == pytest.approx(0.5 * 0.3679, rel=0.01)
    table.record(OutcomeKey("o", "b", "review"), True, None)  # of another work type
    assert table.find(key).failures == pytest.approx(0.5 * 0.3679, rel=0.01)
    assert table.find(key).total == 4
    now[0] -= 5_000  # a clock that was set back
    assert table.find(key).failures == pytest.approx(0.3679, rel=0.01)


def test_outcomes_survive_a_restart_and_end_with_their_agent() -> None:
    store, key = MemoryStore(), OutcomeKey("o", "a", "qa")
    table = build_table(store, lambda: 50.0)
    usage = {"input_tokens": 10, "output_tokens": 5, "cost": 0.25, "odd": True}
    table.record(key, True, usage)
    table.record(key, False, {"totalTokens": 45, "cost": -1})
    before = table.find(key)
    assert before.mean_cost == pytest.approx(0.25)
    assert before.mean_tokens == pytest.approx(30, rel=0.01)
    again = build_table(store, lambda: 50.0)
    assert again.find(key) == before
    again.forget("a")
    assert again.find(key) == Outcomes() and not store.rows


def test_least_recent_work_types_are_forgotten_beyond_the_limit() -> None:
    store, now = MemoryStore(), [0.0]
    table = build_table(store, lambda: now[0], most=3)
    for number in range(20):
        now[0] += 1
        table.record(OutcomeKey("o", "a", f"kind {number}"), True, None)
        table.record(OutcomeKey("o", "a", "kept"), True, None)
    assert {key.work_type for key in store.rows} == {"kind 18", "kind 19", "kept"}
    assert len(table._ticks) == 3
