"""What the random experiments are built of: the plan, the ledger's judgement, the proxies."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import psycopg
import pytest
from faults.chaos import DECK, plan_faults
from faults.chaos_loads import (
    Approvals,
    Messages,
    Runs,
    find_effects,
    judge_schedules,
    list_gaps,
    list_repeated,
)
from faults.chaos_rig import TICKS, ChaosRig
from faults.harness import Outcome
from faults.hub_logs import judge_logs
from faults.ledger import count_effects, note
from faults.links import CUT, PASS, run_links
from faults.statements import CLOSED_AFTER, CLOSED_BEFORE, CODES, StatementLink
from psycopg.pq import TransactionStatus
from tests.live.cluster_rig import find_shared_server
from tests.peers.postgres_server import create_database

MINUTE = 1_800_000_000.0 // 60 * 60


def test_plan_of_a_seed_is_repeated_and_has_every_fault() -> None:
    plans = [[draw() for _ in DECK] for draw in (plan_faults(7, 3), plan_faults(7, 3))]
    assert plans[0] == plans[1]
    assert Counter(fault.kind for fault in plans[0]) == Counter(DECK)
    assert all(fault.seconds >= 1.0 for fault in plans[0])


@pytest.mark.parametrize(
    ("moments", "repeated"),
    [
        ([0.2, 60.2, 120.4], 0),
        ([0.2, 33.0, 60.2], 1),
        ([0.2, 0.9], 1),
        ([0.2, 119.9, 120.6], 0),
        ([0.2, 120.3, 121.5], 0),  # the first of both is that of the minute before, and late
    ],
)
def test_run_of_a_schedule_in_a_minute_that_had_one_is_a_repetition(
    moments: list[float], repeated: int
) -> None:
    assert len(list_repeated([MINUTE + moment for moment in moments])) == repeated


@pytest.mark.parametrize(
    ("why", "effects"),
    [
        ("it was interrupted: the hub was stopped while it worked on this", (0, 1)),
        ("it was not begun: the hub was stopped before it could begin", (0,)),
        ("keys cannot be checked: the server did not answer", ()),
    ],
)
def test_failed_task_is_excused_by_a_stop_of_its_hub_alone(
    why: str, effects: tuple[int, ...]
) -> None:
    assert find_effects(why, "0123abcd-1", {"99999999"}) == effects
    assert find_effects(why, "0123abcd-1", {"0123abcd"}) == ()  # it has not ended


class RigOfOneRun(ChaosRig):
    """Its run has two steps that need a decision, of which the answers are lost."""

    def get(self, place: Any, path: str, seconds: float = 0.0) -> Any:
        waiting = [{"path": step, "state": "needs_decision"} for step in "ab"]
        run = {"id": "r", "state": "completed"}
        body = {"runs": [run], "run": run, "steps": waiting}
        return SimpleNamespace(json=lambda: body)

    def post(self, place: Any, path: str, body: Any, *more: Any, **named: Any) -> Any:
        raise OSError("the answer was lost")


@pytest.mark.parametrize(
    ("made", "wrong"), [("bc", []), ("abc", []), ("b", ["c"]), ("abbc", ["b"]), ("ac", ["b"])]
)
def test_step_that_was_not_skipped_has_its_effect(made: str, wrong: list[str]) -> None:
    none: Any = None
    place: Any = LoggedHub(0)
    rig = RigOfOneRun(Path(), [place], none, "", none, none, none, none, None, Outcome())
    runs = Runs(rig, 0, 1)
    runs.started.append("r")
    for _ in range(2):
        with pytest.raises(OSError, match="lost"):
            runs.decide()
    runs.judge(Counter(f"run r {step}" for step in made))
    assert [text.split("step ")[1][0] for text in rig.outcome.failures] == wrong


def test_gap_between_times_of_a_schedule_is_found() -> None:
    assert list_gaps([120.0, 0.0, 60.1], 60.0) == []
    assert list_gaps([0.0, 60.0, 180.0], 60.0) == [120.0]


@dataclass
class LoggedHub:
    number: int
    log: str = ""

    def read_log(self) -> str:
        return self.log


def build_rig(*hubs: Any) -> ChaosRig:
    """A rig of hubs that only log."""
    none: Any = None
    places: Any = list(hubs)
    return ChaosRig(Path(), places, none, "", none, none, none, none, None, Outcome())


def judge_lines(*parts: str, seconds: float = 0.0) -> list[str]:
    """The failures of a hub that logs each part from one fault to the next, and so long ago."""
    hub = LoggedHub(0)
    rig = build_rig(hub)
    for part in parts:
        rig.mark_logs()
        hub.log += part
    rig.log_marks = [(faults, at - seconds, begins) for faults, at, begins in rig.log_marks]
    judge_logs(rig)
    return rig.outcome.failures


class RigOfEnds(ChaosRig):
    """The second hub has other ends of a task and an approved call than the first one."""

    ends = ("completed", "interrupted")
    interrupted: Mapping[str, str] = MappingProxyType({})

    def list_members(self) -> set[str]:
        return {"alive"}

    def list_interrupted(self) -> dict[str, str]:
        return dict(self.interrupted)

    def post(self, place: Any, path: str, body: Any, *more: Any, **named: Any) -> Any:
        state = f"TASK_STATE_{self.ends[place.number].upper()}"
        return SimpleNamespace(json=lambda: {"result": {"id": "t", "status": {"state": state}}})

    def get(self, place: Any, path: str, *more: Any, **named: Any) -> Any:
        outcome = self.ends[place.number]
        return SimpleNamespace(json=lambda: {"state": "approved", "outcome": outcome})


@pytest.mark.parametrize(
    ("ends", "wrong"),
    [
        (("completed", "completed"), []),
        (("completed", "rejected"), ["approval", "task"]),
        (("rejected", "completed"), ["approval", "task"]),
    ],
)
def test_end_that_one_hub_has_alone_is_found(ends: tuple[str, str], wrong: list[str]) -> None:
    none: Any = None
    places: Any = [LoggedHub(0), LoggedHub(1)]
    rig = RigOfEnds(Path(), places, none, "", none, none, none, none, None, Outcome())
    rig.ends = ends
    messages, approvals = Messages(rig, 0, 1), Approvals(rig, 1, 1)
    messages.tasks["k"] = "t"
    approvals.requested["a"] = "k"
    for load in (messages, approvals):
        load.judge(Counter({"k": 1}))
    assert sorted(text.split()[2] for text in rig.outcome.failures) == wrong


def test_call_that_is_interrupted_although_its_hub_lives_is_found() -> None:
    none: Any = None
    places: Any = [LoggedHub(0), LoggedHub(1)]
    rig = RigOfEnds(Path(), places, none, "", none, none, none, none, None, Outcome())
    rig.interrupted = {"a": "alive", "b": "ended"}
    Approvals(rig, 1, 1).judge(Counter())
    assert [text.split()[1] for text in rig.outcome.failures] == ["a"]


class RigOfSchedules(ChaosRig):
    """Its schedules of workflows have runs for these seconds, in pages of two."""

    seconds: list[int]

    def get(self, place: Any, path: str, *more: Any, **named: Any) -> Any:
        at = int(path.partition("cursor=")[2] or 0)
        texts = [datetime.fromtimestamp(one, UTC).isoformat() for one in self.seconds[at : at + 2]]
        runs = [{"id": text, "state": "completed", "trigger": {"at": text}} for text in texts]
        body = {"runs": runs, "nextCursor": str(at + 2) if self.seconds[at + 2 :] else None}
        return SimpleNamespace(json=lambda: body)


@pytest.mark.parametrize(
    ("workflows", "agents", "lost", "wrong"),
    [
        pytest.param(range(650, 50, -60), range(60, 660, 60), 0, set(), id="all"),
        pytest.param(range(650, 50, -60), range(60, 660, 60), 1, {"run"}, id="no effect"),
        pytest.param(range(350, 50, -60), range(60, 660, 60), 0, {"tick"}, id="workflows stop"),
        pytest.param(range(650, 350, -60), range(60, 660, 60), 0, {"tick"}, id="late workflows"),
        pytest.param((), range(60, 660, 60), 0, {"tick"}, id="no workflow"),
        pytest.param(range(650, 50, -60), range(60, 360, 60), 0, {"schedule"}, id="agents stop"),
        pytest.param(range(650, 50, -60), range(360, 660, 60), 0, {"schedule"}, id="late agents"),
    ],
)
def test_schedule_without_a_run_or_a_run_without_an_effect_is_found(
    tmp_path: Path, workflows: Sequence[int], agents: Sequence[int], lost: int, wrong: set[str]
) -> None:
    none: Any = None
    place: Any = LoggedHub(0)
    rig = RigOfSchedules(tmp_path, [place], none, "", none, none, none, none, None, Outcome())
    rig.seconds = list(workflows)
    noted = [(at, f"schedule clock{number}") for number in range(TICKS) for at in agents]
    noted += [(at, f"run {datetime.fromtimestamp(at, UTC).isoformat()} a") for at in workflows]
    del noted[len(noted) - lost :]
    lines = [json.dumps({"at": at, "event": "begun", "key": key}) for at, key in noted]
    (tmp_path / "ledger").write_text("\n".join(lines))
    judge_schedules(rig, 60.0, 660.0)
    assert {re.split(r"\W|\d", text)[0] for text in rig.outcome.failures} == wrong


def test_complaint_is_allowed_twice_from_one_fault_to_the_next() -> None:
    line = "2026-11-18 WARNING the database is away: no answer within {} s\n"
    assert not judge_lines(line.format(1) + line.format(2), line.format(3))
    (failure,) = judge_lines(line.format(1), line.format(2) * 3, "")
    assert "3 times in 0 s after 1 faults" in failure
    assert judge_lines(line.format(2) * 3, seconds=59)
    assert not judge_lines(line.format(2) * 4, seconds=61)
    assert judge_lines(line.format(2) * 5, seconds=61)
    assert any("traceback" in one for one in judge_lines("Traceback (most recent call last):\n"))


@pytest.mark.parametrize("code", [None, 0, 1])
@pytest.mark.parametrize("gently", [False, True])
def test_hub_that_has_ended_before_it_is_ended_is_reported(code: int | None, gently: bool) -> None:
    hub: Any = SimpleNamespace(
        process=SimpleNamespace(poll=lambda: code),
        problems=[],
        log=lambda: "its log",
        stop=lambda: 0,
        kill=lambda: None,
        finish=list,
    )
    place: Any = SimpleNamespace(number=1, hub=hub, logs=[])
    rig = build_rig(place)
    rig.end_hub(place, gently=gently)
    assert len(rig.outcome.failures) == (code is not None) and place.logs == ["its log"]


def test_thread_that_ends_by_an_error_fails_the_experiment() -> None:
    rig = build_rig()
    with rig.reporting("the load"):
        int("of a client")
    assert "the load ended" in rig.outcome.failures[0]


def test_ledger_counts_what_has_begun(tmp_path: Path) -> None:
    for event, key in (("begun", "a"), ("ended", "a"), ("begun", "b"), ("begun", "a")):
        note(tmp_path / "ledger", event, key)
    assert count_effects(tmp_path / "ledger") == Counter({"a": 2, "b": 1})


@pytest.fixture
def proxied() -> Iterator[tuple[StatementLink, str]]:
    """A proxy before a database with one row, and its address."""
    database = create_database(find_shared_server())
    port = database.rpartition(":")[2].partition("/")[0]
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE things (x INTEGER)")
        connection.execute("INSERT INTO things VALUES (1)")
    link = StatementLink()
    link.target = int(port)
    with run_links() as links:
        links.start(link)
        yield link, database.replace(f":{port}/", f":{link.port}/")


def count_rows(connection: psycopg.Connection[tuple[int]]) -> int:
    row = connection.execute("SELECT count(*) FROM things").fetchone()
    return row[0] if row else -1


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("prepared", [False, True])
def test_server_itself_fails_the_statement(
    proxied: tuple[StatementLink, str], code: str, prepared: bool
) -> None:
    """The transaction is aborted as by a real error, and the connection goes on."""
    link, url = proxied
    insert = "INSERT INTO things VALUES (%s)"
    with psycopg.connect(url, autocommit=True, prepare_threshold=0 if prepared else 5) as database:
        database.execute(insert, (2,), prepare=prepared)
        with database.transaction(force_rollback=True):
            link.arm("INSERT INTO things VALUES ($1)", code)
            with pytest.raises(psycopg.Error) as failure:
                database.execute(insert, (3,), prepare=prepared)
            assert failure.value.sqlstate == code and link.fired.is_set()
            assert database.info.transaction_status == TransactionStatus.INERROR
        database.execute(insert, (4,), prepare=prepared)
        assert count_rows(database) == 3


def test_part_of_a_query_fails_after_the_parts_before_it(
    proxied: tuple[StatementLink, str],
) -> None:
    link, url = proxied
    with psycopg.connect(url, autocommit=True) as database:
        link.arm("UPDATE things SET x = 2", "55P03")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            database.execute("BEGIN; UPDATE things SET x = 2")
        assert database.info.transaction_status == TransactionStatus.INERROR
        database.execute("ROLLBACK")


def test_failed_commit_ends_the_transaction_without_its_changes(
    proxied: tuple[StatementLink, str],
) -> None:
    link, url = proxied
    with psycopg.connect(url, autocommit=True) as database, database.pipeline():
        database.execute("BEGIN")
        database.execute("INSERT INTO things VALUES (2)")
        link.arm("COMMIT", "40001")
        with pytest.raises(psycopg.errors.SerializationFailure):
            database.execute("COMMIT").fetchone()
    with psycopg.connect(url, autocommit=True) as database:
        assert count_rows(database) == 1


@pytest.mark.parametrize(("fault", "rows"), [(CLOSED_BEFORE, 1), (CLOSED_AFTER, 2)])
def test_connection_is_closed_before_or_after_the_statement_is_executed(
    proxied: tuple[StatementLink, str], fault: str, rows: int
) -> None:
    link, url = proxied
    with psycopg.connect(url, autocommit=True) as database:
        link.arm("INSERT INTO things VALUES (2)", fault)
        with pytest.raises(psycopg.OperationalError):
            database.execute("INSERT INTO things VALUES (2)")
    with psycopg.connect(url, autocommit=True) as database:
        assert count_rows(database) == rows


def test_link_that_is_cut_resets_and_refuses_until_it_passes_again() -> None:
    database = create_database(find_shared_server())
    port = database.rpartition(":")[2].partition("/")[0]
    with run_links() as links:
        link = links.add(int(port))
        url = database.replace(f":{port}/", f":{link.port}/")
        with psycopg.connect(url, autocommit=True) as connection:
            links.set(link, CUT)
            with pytest.raises(psycopg.OperationalError):
                while True:
                    connection.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url)
        links.set(link, PASS)
        while True:
            try:
                psycopg.connect(url).close()
                break
            except psycopg.OperationalError:
                continue
