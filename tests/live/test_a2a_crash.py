"""A hub that is killed at any moment keeps every task that anybody was told of, and ends those that
it was working on; one that cannot store says so."""

from __future__ import annotations

import os
import random
import resource
import socket
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.crash_ground import (
    Client,
    Hub,
    Load,
    Refused,
    Told,
    executions,
    said,
    write_home,
)

from dragoman.assembly import accept_losses

KILLS = 50
CLIENTS = 5
COMPLETED, FAILED, CANCELED, WAITS = (
    f"TASK_STATE_{state}" for state in ("COMPLETED", "FAILED", "CANCELED", "INPUT_REQUIRED")
)
ENDS = (COMPLETED, FAILED, CANCELED)
UNFINISHED = ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that nobody listens at, and nobody else takes."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def start(short_tmp: Path) -> Iterator[Callable[..., Hub]]:
    """Starts a hub in `short_tmp`; whichever still runs at the end is killed."""
    started: list[Hub] = []

    def begin(crash: str = "") -> Hub:
        started.append(Hub(short_tmp, crash))
        return started[-1]

    yield begin
    for hub in started:
        hub.kill()


def moment_of(chance: random.Random) -> tuple[str, float, float]:
    """When a hub is killed: by what is counted, after how many of these, and how much later.

    Answers are counted and time is taken outside of it; where agents begin and end, it ends itself.
    """
    kind = chance.choice(["answered", "time", "began", "ended", "ended", "thread"])
    count = chance.randint(1, 60 if kind != "thread" else 15)
    after = chance.choice([0.0, chance.uniform(0, 0.003)]) if kind != "thread" else 0.0
    if kind == "time":
        after = chance.uniform(0, 0.15)
    return kind, count, after


def run_until_killed(hub: Hub, load: Load, moment: tuple[str, float, float]) -> None:
    kind, count, after = moment
    threads = load.start(CLIENTS)
    if kind == "answered":
        for _ in range(int(count)):
            load.answered.acquire(timeout=5)
    if kind in ("answered", "time"):
        threading.Event().wait(after)
        hub.process.kill()
    try:
        hub.process.wait(60)  # it ends itself, as soon as it has done as much as the moment says
    finally:
        hub.process.kill()
        for thread in threads:
            thread.join(30)
    assert not load.broken, (load.broken, hub.log())


def check_task(client: Client, told: Told, ran: Counter[str]) -> str:
    """Holds what is there now against what was told; gives its state."""
    now = client.rpc("GetTask", {"id": told.id})
    state: str = now["status"]["state"]
    assert state not in UNFINISHED, now
    if told.state in ENDS and told.task is not None:
        assert now == told.task
    elif told.seed is not None:
        plain = {"content-type": "application/json"}
        assert client.answer("GET", f"/a2a/tasks/{told.id}", None, plain) == told.seed
    elif told.continued:
        assert state in (WAITS, COMPLETED, FAILED), now
    elif told.state in (*ENDS, WAITS):
        assert state == told.state, now
    else:
        assert state in (COMPLETED, FAILED) or (told.cancelled and state == CANCELED), now
    if state == FAILED:
        assert "interrupted" in now["status"]["message"]["parts"][0]["text"], now
    if state == COMPLETED:
        made = {one["name"]: one["parts"] for one in now["artifacts"]}
        assert made["response"] == [{"text": f"done {told.text}"}]
        if told.agent == "slow":
            assert made["report"] == [{"text": f"made {told.text}"}]
        assert ran[told.message] == 1 or not told.message, now
    if told.webhook is not None:
        wanted = {"taskId": told.id, "id": "hook"}
        assert client.rpc("GetTaskPushNotificationConfig", wanted) == told.webhook
    told.state, told.task, told.continued = state, now, False
    return state


def check_after_kill(client: Client, load: Load, home: Path) -> Counter[str]:
    """What is true of a hub that was started again, before anybody sends it anything."""
    for state in UNFINISHED:
        assert client.rpc("ListTasks", {"status": state})["totalSize"] == 0
    begun = [message for what, _, message in executions(home) if what in ("began", "thread")]
    ran = Counter(begun)
    assert not [message for message in ran if message and ran[message] > 1]
    found = Counter(check_task(client, told, ran) for told in load.told + load.touched)
    for name, message in load.keyed:  # sent again, since nobody knows what became of it
        key = {"idempotency-key": name}
        task = client.rpc("SendMessage", {"message": message}, "/a2a/quick", **key)["task"]
        assert task["status"]["state"] in (COMPLETED, FAILED)
    return found


@pytest.mark.promise("K2")
@pytest.mark.timeout(180)
def test_every_task_that_was_answered_survives_fifty_kills_none_is_left_at_work_and_none_runs_twice(
    short_tmp: Path, start: Callable[..., Hub], closed_port: int
) -> None:
    seed = int(os.environ.get("CRASH_SEED", random.randrange(10**6)))
    print(f"the moments are those of CRASH_SEED={seed}")
    chance = random.Random(seed)
    write_home(short_tmp)
    webhook = f"http://127.0.0.1:{closed_port}/hook"
    everything: list[Told] = []
    found: Counter[str] = Counter()
    before = Load(("", 0), "", webhook, [])
    for number in range(KILLS):
        moment = moment_of(chance)
        if number % 10 == 9:  # once in a while it is killed before it is up, and has to mend more
            unlucky = start()
            threading.Event().wait(chance.uniform(0.05, 0.35))
            unlucky.kill()
        hub = start(" ".join(map(str, moment)))
        where = hub.wait_until_up()
        found += check_after_kill(hub.client(), before, short_tmp)
        everything += before.told
        waiting = [told for told in everything if told.state == WAITS]
        before = Load(where, f"{seed}-{number}", webhook, waiting[-20:])
        run_until_killed(hub, before, moment)

    client = start().client()
    found += check_after_kill(client, before, short_tmp)
    everything += before.told
    ran = Counter(message for _, _, message in executions(short_tmp))
    for told in everything:
        check_task(client, told, Counter(dict.fromkeys(ran, 1)))
    for told in [told for told in everything if told.state == WAITS]:
        wanted = {"message": said(f"last {told.id}") | {"taskId": told.id}}
        task = client.rpc("SendMessage", wanted, "/a2a/asking")["task"]
        assert task["status"]["state"] == COMPLETED, task
        assert len(task["history"]) >= 3, task
    # How many calls fit between two kills is the machine's affair; every kind must have been met.
    assert all(found[state] for state in (FAILED, COMPLETED, WAITS)), found


def told_of(client: Client, text: str, agent: str = "quick") -> dict[str, Any]:
    task: dict[str, Any] = client.rpc("SendMessage", {"message": said(text)}, f"/a2a/{agent}")
    return task["task"]


def limit_files(hub: Hub, size: int) -> None:
    """As a disk that is full does it: no file of the hub's grows beyond this."""
    resource.prlimit(hub.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.mark.promise("K2")
def test_on_a_full_disk_sending_is_refused_before_anything_runs_and_nothing_answered_is_lost(
    short_tmp: Path, start: Callable[..., Hub]
) -> None:
    write_home(short_tmp)
    hub = start()
    client = hub.client()
    told = [told_of(client, f"before {n}") for n in range(3)]
    size = max(path.stat().st_size for path in short_tmp.iterdir() if path.is_file())
    limit_files(hub, size + 500_000)  # there is room for the audit's few bytes, not for these
    with pytest.raises(Refused, match="the task cannot be stored") as refused:
        for n in range(50):
            told.append(told_of(client, f"{n} {'x' * 100_000}"))
    assert len(told) > 3
    assert "tasks.db" in str(refused.value)

    ran = len(executions(short_tmp))
    for text in ("full", "full again"):
        with pytest.raises(Refused, match="the task cannot be stored"):
            told_of(client, text)
        with pytest.raises(Refused, match="the task cannot be stored"):
            next(client.events("slow", {"message": said(text)}))
    assert len(executions(short_tmp)) == ran
    assert all(client.rpc("GetTask", {"id": task["id"]}) == task for task in told)

    limit_files(hub, resource.RLIM_INFINITY)
    told.append(told_of(client, "there is room again"))
    limit_files(hub, size + 500_000)
    streamed = []
    with pytest.raises(Refused, match="the task cannot be stored"):
        for n in range(50):
            events = list(client.events("quick", {"message": said(f"{n} {'x' * 100_000}")}))
            streamed.append(events[0]["task"]["id"])
    hub.kill()

    client = start().client()
    assert all(client.rpc("GetTask", {"id": task["id"]}) == task for task in told)
    states = [client.rpc("GetTask", {"id": id})["status"]["state"] for id in streamed]
    assert set(states) <= {COMPLETED}
    for state in UNFINISHED:
        assert client.rpc("ListTasks", {"status": state})["totalSize"] == 0


def test_while_another_program_holds_the_tasks_sending_is_refused_and_goes_on_afterwards(
    short_tmp: Path, start: Callable[..., Hub]
) -> None:
    write_home(short_tmp)
    client = start().client()
    told = told_of(client, "before")
    other = sqlite3.connect(short_tmp / "tasks.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Refused, match=r"the task cannot be stored \(database is locked\)"):
        told_of(client, "held")
    assert client.rpc("GetTask", {"id": told["id"]}) == told
    other.execute("ROLLBACK")
    other.close()
    after = told_of(client, "after")
    assert after["status"]["state"] == COMPLETED
    assert client.rpc("ListTasks", {})["totalSize"] == 3


def damage_head(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.write(b"x" * 100)


def damage_middle(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.seek(4096)
        opened.write(b"\xa5" * (file.stat().st_size - 4096))


def damage_end(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size // 2)


def changed_by(statement: str) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        database = sqlite3.connect(file, isolation_level=None)
        database.execute(statement)
        database.close()

    return change


DAMAGES = {
    "head": damage_head,
    "middle": damage_middle,
    "end": damage_end,
    "no JSON": changed_by("UPDATE tasks SET about = x'7b'"),
    "other JSON": changed_by("UPDATE tasks SET about = x'7b7d'"),
    "no state": changed_by("UPDATE tasks SET state = 'asleep'"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_hub_whose_tasks_are_damaged_does_not_start_and_says_which_file_and_what_to_do(
    short_tmp: Path, start: Callable[..., Hub], damage: Callable[[Path], None]
) -> None:
    write_home(short_tmp)
    hub = start()
    client = hub.client()
    for n in range(20):
        told_of(client, f"{n} {'x' * 2000}")
    hub.process.terminate()
    assert hub.process.wait(10) == 0
    damage(short_tmp / "tasks.db")
    again = [sys.executable, "-m", "dragoman", "up", "--home", str(short_tmp)]
    done = subprocess.run(again, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode not in (0, None)
    assert "tasks.db" in done.stderr
    assert "estore it from a backup" in done.stderr
    assert "dragoman stores accept-loss tasks" in done.stderr
    assert "Traceback" not in done.stderr
    (short_tmp / "tasks.db").rename(short_tmp / "damaged.db")
    accept_losses(short_tmp, short_tmp / "policies", ["tasks"], "me")
    client = start().client()
    assert client.rpc("ListTasks", {})["totalSize"] == 0


@pytest.mark.promise("K2")
def test_tasks_in_memory_are_forgotten_with_the_hub(
    short_tmp: Path, start: Callable[..., Hub]
) -> None:
    write_home(short_tmp, store="memory")
    hub = start()
    client = hub.client()
    told = told_of(client, "hello")
    assert client.rpc("GetTask", {"id": told["id"]}) == told
    hub.kill()
    assert not (short_tmp / "tasks.db").exists()
    client = start().client()
    with pytest.raises(Refused, match="was not found"):
        client.rpc("GetTask", {"id": told["id"]})
