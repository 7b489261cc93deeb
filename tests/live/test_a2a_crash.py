"""A hub that cannot store its tasks reports it, runs nothing, and loses nothing it acknowledged.
faults/kills.py covers a killed hub; tests/faults runs it briefly.

faults/kills.py has the hub that is killed; tests/faults runs it."""

from __future__ import annotations

import resource
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faults.kills import COMPLETED, UNFINISHED
from tests.live.crashing_hub import Client, Hub, Refused, build_message, executions, write_home
from tests.peers.forked import run_forked

from dragoman.stores.store_inventory import accept_losses


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


def send_text(client: Client, text: str, agent: str = "quick") -> dict[str, Any]:
    sent = client.rpc("SendMessage", {"message": build_message(text)}, f"/a2a/{agent}")
    task: dict[str, Any] = sent["task"]
    return task


def limit_files(hub: Hub, size: int) -> None:
    """As a disk that is full does it: no file of the hub's grows beyond this."""
    resource.prlimit(hub.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.mark.promise("K2")
def test_full_disk_refuses_sends_before_execution_and_loses_nothing(
    short_tmp: Path, start: Callable[..., Hub]
) -> None:
    write_home(short_tmp)
    hub = start()
    client = hub.client()
    told = [send_text(client, f"before {n}") for n in range(3)]
    size = max(path.stat().st_size for path in short_tmp.iterdir() if path.is_file())
    limit_files(hub, size + 500_000)  # there is room for the audit's few bytes, not for these
    with pytest.raises(Refused, match="the task cannot be stored") as refused:
        for n in range(50):
            told.append(send_text(client, f"{n} {'x' * 100_000}"))
    assert len(told) > 3
    assert "tasks.db" in str(refused.value)

    ran = len(executions(short_tmp))
    for text in ("full", "full again"):
        with pytest.raises(Refused, match="the task cannot be stored"):
            send_text(client, text)
        with pytest.raises(Refused, match="the task cannot be stored"):
            next(client.events("slow", {"message": build_message(text)}))
    assert len(executions(short_tmp)) == ran
    assert all(client.rpc("GetTask", {"id": task["id"]}) == task for task in told)

    limit_files(hub, resource.RLIM_INFINITY)
    told.append(send_text(client, "there is room again"))
    limit_files(hub, size + 500_000)
    streamed = []
    with pytest.raises(Refused, match="the task cannot be stored"):
        for n in range(50):
            events = list(
                client.events("quick", {"message": build_message(f"{n} {'x' * 100_000}")})
            )
            streamed.append(events[0]["task"]["id"])
    hub.kill()

    client = start().client()
    assert all(client.rpc("GetTask", {"id": task["id"]}) == task for task in told)
    states = [client.rpc("GetTask", {"id": id})["status"]["state"] for id in streamed]
    assert set(states) <= {COMPLETED}
    for state in UNFINISHED:
        assert client.rpc("ListTasks", {"status": state})["totalSize"] == 0


def test_locked_task_store_refuses_sends_and_recovers(
    short_tmp: Path, start: Callable[..., Hub]
) -> None:
    write_home(short_tmp)
    client = start().client()
    told = send_text(client, "before")
    other = sqlite3.connect(short_tmp / "tasks.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Refused, match=r"the task cannot be stored \(database is locked\)"):
        send_text(client, "held")
    assert client.rpc("GetTask", {"id": told["id"]}) == told
    other.execute("ROLLBACK")
    other.close()
    after = send_text(client, "after")
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


def test_damaged_task_store_stops_the_start_with_a_remedy(
    short_tmp: Path, start: Callable[..., Hub]
) -> None:
    write_home(short_tmp)
    hub = start()
    client = hub.client()
    for n in range(20):
        send_text(client, f"{n} {'x' * 2000}")
    hub.process.terminate()
    assert hub.process.wait(60) == 0
    whole = (short_tmp / "tasks.db").read_bytes()
    again = [sys.executable, "-m", "dragoman", "up", "--home", str(short_tmp)]
    for kind, damage in DAMAGES.items():
        (short_tmp / "tasks.db").write_bytes(whole)
        damage(short_tmp / "tasks.db")
        done = run_forked(again, 20, text=True)
        assert done.returncode not in (0, None), kind
        assert "tasks.db" in done.stderr, kind
        assert "estore it from a backup" in done.stderr, kind
        assert "dragoman stores accept-loss tasks" in done.stderr, kind
        assert "Traceback" not in done.stderr, kind
    (short_tmp / "tasks.db").rename(short_tmp / "damaged.db")
    accept_losses(short_tmp, short_tmp / "policies", ["tasks"], "me")
    client = start().client()
    assert client.rpc("ListTasks", {})["totalSize"] == 0


@pytest.mark.promise("K2")
def test_memory_tasks_end_with_the_hub(short_tmp: Path, start: Callable[..., Hub]) -> None:
    write_home(short_tmp, store="memory")
    hub = start()
    client = hub.client()
    told = send_text(client, "hello")
    assert client.rpc("GetTask", {"id": told["id"]}) == told
    hub.kill()
    assert not (short_tmp / "tasks.db").exists()
    client = start().client()
    with pytest.raises(Refused, match="was not found"):
        client.rpc("GetTask", {"id": told["id"]})
