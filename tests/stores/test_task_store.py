"""Task storage on disk and in memory: saved tasks are complete or absent."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dragoman.core.errors import ConfigError, StorageFailed
from dragoman.core.ports import StoredPush, StoredTask, TaskChange
from dragoman.core.principal import Principal
from dragoman.core.tasks import Entry
from dragoman.stores.database import StorePlace, connect_server
from dragoman.stores.tasks import (
    _STILL_OWNED,
    DATABASE,
    PIECE_BYTES,
    TAKEN_BYTES,
    DatabaseTaskStore,
    MemoryTaskStore,
)

ALICE = Principal("key", "alice", "acme")


def change(
    key: int = 0, id: str = "one", entries: tuple[Entry, ...] = (), **rest: Any
) -> TaskChange:
    about = rest.pop("about", {"agent": "echo", "turn": 1})
    state = rest.pop("state", "working")
    return TaskChange(key, id, ALICE, state, 1.0, rest.pop("updated", 2.0), about, entries)


def said(number: int, words: str = "hello") -> Entry:
    return Entry(number, float(number), {"message": {"parts": [{"text": words}], "n": number}})


def test_long_logs_are_stored_in_pieces_of_bounded_size(store_place: StorePlace) -> None:
    store = DatabaseTaskStore(store_place)
    words = [9 * PIECE_BYTES // 10, 1, PIECE_BYTES // 2, PIECE_BYTES // 3, 2 * PIECE_BYTES, 1, 1]
    log = [said(number, "\n" * (length // 2)) for number, length in enumerate(words, 1)]
    before = store.statements
    [(key, size)] = store.save([change(entries=tuple(log))])
    pieces = store.statements - before - 3  # begin, task, commit
    assert pieces == 4  # the long entry has a piece of its own
    assert sum(words) < size < sum(words) + 100 * len(words)
    assert store.load_entries(key) == log
    assert store.load_entries(key, 4) == log[4:]
    store.close()


@pytest.mark.promise("K2")
def test_saved_tasks_are_read_after_reopening_the_store(store_place: StorePlace) -> None:
    store = DatabaseTaskStore(store_place)
    [(key, size)] = store.save([change(entries=(said(1), said(2)))])
    assert size > 0
    grown = store.save([change(key, state="completed", updated=3.0, entries=(said(3, "ä\n😀"),))])
    assert [one for one, _ in grown] == [key]
    store.close()

    again = DatabaseTaskStore(store_place)
    [task] = again.load()
    assert (task.key, task.id, task.owner, task.state) == (key, "one", ALICE, "completed")
    assert (task.created, task.updated, task.about) == (1.0, 3.0, {"agent": "echo", "turn": 1})
    assert (task.count, task.size) == (3, size + grown[0][1])
    assert again.load_entries(key) == [said(1), said(2), said(3, "ä\n😀")]
    assert again.load_entries(key + 1) == []
    again.close()


def test_save_cost_does_not_grow_with_stored_entries(store_place: StorePlace) -> None:
    store = DatabaseTaskStore(store_place)
    [(key, _)] = store.save([change(entries=(said(1),))])
    before = store.statements
    store.save([change(key, entries=tuple(said(n) for n in range(2, 1002)))])
    assert store.statements - before == 4  # begin, task, log, commit
    assert len(store.load_entries(key)) == 1001
    before = store.statements
    store.save([change(0, f"t{n}", entries=(said(1),)) for n in range(10)])
    assert store.statements - before == 2 + 10 * 2
    store.close()


def test_deleting_a_task_deletes_its_log_and_webhooks(store_place: StorePlace) -> None:
    store = DatabaseTaskStore(store_place)
    keys = [key for key, _ in store.save([change(0, id, (said(1),)) for id in ("a", "b")])]
    for key in keys:
        store.save_push(StoredPush(key, "hook", {"url": "http://x/"}, 0, 0, 0.0, ""))
    store.delete(keys[0])
    store.save([change(keys[1], "b", state="completed")])
    assert [task.id for task in store.load()] == ["b"]
    assert (store.load_entries(keys[0]), len(store.load_entries(keys[1]))) == ([], 1)
    assert [push.task for push in store.load_pushes()] == [keys[1]]
    before = store.statements
    store.save([change(keys[1], "b")])
    assert store.statements - before == 3, "it is deleted once"
    store.delete(keys[1])
    store.close()  # nothing was saved since, and it goes all the same
    again = DatabaseTaskStore(store_place)
    assert (again.load(), again.load_pushes()) == ([], [])
    again.close()


def test_keys_of_deleted_tasks_are_never_reused(store_place: StorePlace) -> None:
    """What is still on its way for the old one must not come to belong to the new one."""
    store = DatabaseTaskStore(store_place)
    [(first, _)] = store.save([change(0, "first")])
    store.delete(first)
    [(second, _)] = store.save([change(0, "second")])
    assert second > first
    store.delete(second)
    store.close()
    again = DatabaseTaskStore(store_place)
    [(third, _)] = again.save([change(0, "third")])
    assert third > second
    again.close()


def test_webhooks_are_kept_replaced_and_deleted(store_place: StorePlace) -> None:
    store = DatabaseTaskStore(store_place)
    [(key, _)] = store.save([change()])
    config = {"version": "1.0", "config": {"url": "http://x/", "token": "t"}}
    store.save_push(StoredPush(key, "a", config, 0, 0, 0.0, ""))
    store.save_push(StoredPush(key, "b", config, 4, 2, 99.5, "it answered 410"))
    store.save_push(StoredPush(key, "a", config, 7, 0, 0.0, ""))
    store.close()
    again = DatabaseTaskStore(store_place)
    assert again.load_pushes() == [
        StoredPush(key, "a", config, 7, 0, 0.0, ""),
        StoredPush(key, "b", config, 4, 2, 99.5, "it answered 410"),
    ]
    again.delete_push(key, "a")
    again.delete_push(key, "a")
    assert [push.id for push in again.load_pushes()] == ["b"]
    again.close()


def test_task_store_is_private_to_its_owner(tmp_path: Path) -> None:
    store = DatabaseTaskStore(tmp_path)
    store.save([change()])
    modes = {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {0o600}
    store.close()


class Strange:
    pass


def _ring() -> list[Any]:
    ring: list[Any] = []
    ring += [ring, ring]
    return ring


@pytest.mark.parametrize(
    ("made", "stored"),
    [
        ("half \ud800 a letter", "half ? a letter"),
        (
            {"x": Strange(), "y": [1, None, True, 1.5]},
            {"x": "<Strange>", "y": [1, None, True, 1.5]},
        ),
        ({(1, 2): "x", 3: "y"}, {"<tuple>": "x", "3": "y"}),
        (_ring(), ["<list>", "<list>"]),
    ],
)
def test_unserializable_agent_output_does_not_block_other_tasks(
    made: Any, stored: Any, store_place: StorePlace
) -> None:
    store = DatabaseTaskStore(store_place)
    event = Entry(1, 1.0, {"artifactUpdate": {"parts": [{"data": made}]}})
    keys = [
        key
        for key, _ in store.save(
            [change(0, "bad", (event,), about={"arguments": made}), change(0, "good", (said(1),))]
        )
    ]
    assert store.load_entries(keys[1]) == [said(1)]
    assert store.load_entries(keys[0])[0].event == {"artifactUpdate": {"parts": [{"data": stored}]}}
    assert store.load()[0].about == {"arguments": stored}
    store.close()


# --- when the disk or the file is not as it should be


def test_failed_save_saves_nothing_and_can_be_retried(
    tmp_path: Path,
) -> None:
    store = DatabaseTaskStore(tmp_path)
    [(key, _)] = store.save([change(entries=(said(1),))])
    twice = [change(0, "two", (said(1),)), change(key, entries=(said(1),))]  # number 1 is taken
    with pytest.raises(StorageFailed, match=r"cannot be stored \(UNIQUE.*see tasks\.db"):
        store.save(twice)
    assert [task.id for task in store.load()] == ["one"]
    store.save([change(0, "two", (said(1),)), change(key, entries=(said(2),))])
    assert [(task.id, task.count) for task in store.load()] == [("one", 2), ("two", 1)]
    store.close()


def test_locked_task_store_refuses_and_keeps_its_data(tmp_path: Path) -> None:
    store = DatabaseTaskStore(tmp_path)
    [(key, _)] = store.save([change()])
    other = sqlite3.connect(tmp_path / DATABASE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store.delete(key)
    with pytest.raises(StorageFailed, match="locked"):
        store.save([change(0, "two")])
    with pytest.raises(StorageFailed, match="locked"):
        store.save_push(StoredPush(key, "a", {}, 0, 0, 0.0, ""))
    other.execute("ROLLBACK")
    other.close()
    store.save([change(0, "two")])
    assert [task.id for task in store.load()] == ["two"]
    store.close()


FULL_DISK = """
import json, resource, sys
from pathlib import Path
from dragoman.core.errors import StorageFailed
from dragoman.core.ports import StoredPush, StoredTask, TaskChange
from dragoman.core.principal import OWNER
from dragoman.core.tasks import Entry
from dragoman.stores.tasks import DatabaseTaskStore

home = Path(sys.argv[1])
store = DatabaseTaskStore(home)

def change(id, key=0):
    entry = Entry(1, 1.0, {"text": "x" * 2000})
    return TaskChange(key, id, OWNER, "working", 1.0, 1.0, {}, [entry])

for n in range(20):
    store.save([change(f"before {n}")])
size = max(path.stat().st_size for path in home.glob("tasks.db*"))
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 8192, resource.RLIM_INFINITY))
passed = refused = 0
waiting = []
for n in range(60):
    waiting.append(change(f"during {n}"))
    try:
        store.save(waiting)
    except StorageFailed as error:
        message = str(error)
        refused += 1
    else:
        passed += len(waiting)
        waiting.clear()
try:
    for n in range(60):
        store.save_push(StoredPush(1, f"{n}", {"x": "y" * 4000}, 0, 0, 0.0, ""))
    push = "stored"
except StorageFailed:
    push = "refused"
seen = len(store.load())
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.save(waiting)
store.close()
print(json.dumps([passed, refused, len(waiting), seen, push, message]))
"""


@pytest.mark.promise("K2")
def test_full_disk_refuses_saves_and_recovers(
    tmp_path: Path,
) -> None:
    run = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(run, check=True, capture_output=True, text=True, timeout=60)
    passed, refused, waiting, seen, push, message = json.loads(done.stdout)
    assert refused > 40
    assert push == "refused"
    assert seen == 20 + passed
    assert "the task cannot be stored" in message
    store = DatabaseTaskStore(tmp_path)
    tasks = store.load()
    assert len(tasks) == 20 + passed + waiting == 80
    assert {len(store.load_entries(task.key)) for task in tasks} == {1}
    store.close()


def test_unwritable_task_store_refuses_saves_and_still_reads(tmp_path: Path) -> None:
    store = DatabaseTaskStore(tmp_path)
    [(key, _)] = store.save([change(entries=(said(1),))])
    store._db.execute("PRAGMA query_only=ON")  # as on a disk that was mounted to be read
    with pytest.raises(StorageFailed, match="readonly"):
        store.save([change(key, state="completed")])
    with pytest.raises(StorageFailed, match="readonly"):
        store.delete_push(key, "a")
    assert [(task.id, task.state) for task in store.load()] == [("one", "working")]
    assert store.load_entries(key) == [said(1)]
    store.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"this is no database at all, only a text file" * 100,
        lambda whole: whole[:100] + b"\xff" * (len(whole) - 100),
        lambda whole: whole[:4096] + b"\x00" * (len(whole) - 4096),
        lambda whole: whole[: len(whole) // 2],
    ],
)
def test_damaged_task_store_is_reported_to_the_operator(
    damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    store = DatabaseTaskStore(tmp_path)
    store.save([change(0, f"{n}", (said(1, "x" * 3000),)) for n in range(50)])
    store.close()
    path = tmp_path / DATABASE
    path.write_bytes(damage(path.read_bytes()))

    def read() -> None:
        store = DatabaseTaskStore(tmp_path)
        try:
            for task in store.load():
                store.load_entries(task.key)
            store.load_pushes()
        finally:
            store.close()

    with pytest.raises(ConfigError, match=r"tasks\.db.* backup"):
        read()


def test_unreadable_entry_is_reported_to_the_operator(tmp_path: Path) -> None:
    store = DatabaseTaskStore(tmp_path)
    [(key, _)] = store.save([change(entries=(said(1),))])
    store.save_push(StoredPush(key, "a", {}, 0, 0, 0.0, ""))
    db = sqlite3.connect(tmp_path / DATABASE)
    db.execute("UPDATE task_log SET body = ?", (b"[[1",))
    db.execute("UPDATE tasks SET about = ?", (b"\xff",))
    db.execute("UPDATE pushes SET config = ?", (b"",))
    db.commit()
    db.close()
    for read in (store.load, store.load_pushes, lambda: store.load_entries(key)):
        with pytest.raises(ConfigError, match=r"tasks\.db.* cannot be read .* backup"):
            read()
    store.close()


# --- when the hub is killed

WRITER = """
import os, sys
from pathlib import Path
from dragoman.core.ports import StoredPush, StoredTask, TaskChange
from dragoman.core.principal import OWNER
from dragoman.core.tasks import Entry
from dragoman.stores.tasks import DatabaseTaskStore

store = DatabaseTaskStore(Path(sys.argv[1]))

def change(key, id, count, entries):
    return TaskChange(key, id, OWNER, "working", 1.0, 1.0, {"count": count}, entries)

def entries(*numbers):
    return [Entry(number, 1.0, {"n": number, "filler": "x" * 500}) for number in numbers]

round = 0
while True:
    round += 1
    # Two tasks that are always saved together.
    if round == 1:
        (a, _), (b, _) = store.save([change(0, id, 2, entries(1, 2)) for id in "ab"])
    else:
        new = entries(2 * round - 1, 2 * round)
        store.save([change(a, "a", 2 * round, new), change(b, "b", 2 * round, new)])
        store.save_push(StoredPush(a, "hook", {}, 2 * round, 0, 0.0, ""))
    os.write(1, f"{round}\\n".encode())
"""


@pytest.mark.promise("K2")
def test_killed_hub_keeps_every_saved_task_completely(
    tmp_path: Path,
) -> None:
    for attempt, wait_for in enumerate((1, 2, 37, 150)):
        home = tmp_path / str(attempt)
        home.mkdir()
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(home)], stdout=subprocess.PIPE)
        timer = threading.Timer(20, writer.kill)
        timer.start()
        assert writer.stdout is not None
        for _ in range(wait_for):
            last = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split(b"\n")[:-1]
        writer.stdout.close()
        writer.wait(60)
        timer.cancel()
        last = int(rest[-1]) if rest else last

        store = DatabaseTaskStore(home)
        a, b = store.load()
        assert a.count == b.count >= 2 * last
        for task in (a, b):
            numbers = [entry.number for entry in store.load_entries(task.key)]
            assert numbers == list(range(1, task.count + 1))
            assert task.about == {"count": task.count}
        cursors = [push.cursor for push in store.load_pushes()]
        assert all(2 * last <= cursor <= a.count for cursor in cursors)
        store.close()


# --- in memory


def test_memory_store_keeps_the_log_until_the_task_is_deleted() -> None:
    store = MemoryTaskStore()
    (one, size), (two, _) = store.save([change(0, "one", (said(1),)), change(0, "two")])
    assert one != two and size > 0
    assert store.save([change(one, "one", (said(2),)), change(two, "two")])[1] == (two, 0)
    assert store.load_entries(one) == [said(1), said(2)]
    store.save_push(StoredPush(one, "a", {}, 0, 0, 0.0, ""))
    store.delete_push(one, "a")
    assert (store.load(), store.load_pushes()) == ([], [])
    store.delete(one)
    assert store.load_entries(one) == []
    [(three, _)] = store.save([change(0, "three")])
    assert three not in (one, two)
    store.close()


def test_each_hub_has_its_own_tasks_and_takes_over_those_of_another(postgres_url: str) -> None:
    with closing(connect_server(postgres_url)) as server:
        before = DatabaseTaskStore(server)
        before.save([change(id="old")])
        one, two = DatabaseTaskStore(server, hub="one"), DatabaseTaskStore(server, hub="two")
        assert [task.id for task in one.load()] == ["old"] and two.load() == []
        ((key, _),) = one.save([change(id="new")])
        one.save_push(StoredPush(key, "p", {}, 0, 0, 0.0, ""))
        push = StoredPush(key, "p", {}, 7, 0, 0.0, "")
        owner = change().owner
        assert two.find_hub(owner, "new") == "one"
        assert two.find_hub(Principal("key", "stranger"), "new") is None
        assert two.load() == [] and two.load_pushes() == []
        assert sorted(task.id for task in take_all(two, "one")) == ["new", "old"]
        assert two.load_ended("one") == [] and one.load() == []
        assert len(two.load_pushes()) == 1 and one.load_pushes() == []
        assert one.find_hub(owner, "new") == "two"
        # The first one was only paused: it must not change what the other has taken over.
        with pytest.raises(StorageFailed, match="taken the task over"):
            one.save([change(id="new", key=key, state="failed")])
        assert {task.state for task in two.load()} == {change().state}
        for hook in (lambda: one.save_push(push), lambda: one.delete_push(key, "p")):
            with pytest.raises(StorageFailed, match="taken the task over"):
                hook()
        assert [each.cursor for each in two.load_pushes()] == [0]
        two.save_push(push)
        assert [each.cursor for each in two.load_pushes()] == [7]
        two.delete_push(key, "p")
        assert two.load_pushes() == []
        two.delete_push(key + 100, "p")  # of a task that does not exist any more


def test_a_save_whose_answer_was_lost_is_repeated_without_doubles(postgres_url: str) -> None:
    with closing(connect_server(postgres_url)) as server:
        store = DatabaseTaskStore(server)
        run = store._base.run

        def lose(statements: Any) -> Any:
            run(statements)
            raise sqlite3.OperationalError("the answer was lost")

        def save_twice(key: int, first: tuple[Entry, ...], then: tuple[Entry, ...]) -> int:
            """The second attempt has more, as the hub has worked on meanwhile."""
            store._base.run = lose  # type: ignore[method-assign]
            with pytest.raises(StorageFailed, match="the answer was lost"):
                store.save([change(key, entries=first)])
            store._base.run = run  # type: ignore[method-assign]
            ((stored, _),) = store.save([change(key, entries=then)])
            return stored

        key = save_twice(0, (said(1),), (said(1),))
        save_twice(key, (said(2), said(3)), (said(2), said(3), said(4)))
        assert [task.key for task in store.load()] == [key]
        assert [entry.number for entry in store.load_entries(key)] == [1, 2, 3, 4]


def take_all(store: DatabaseTaskStore, hub: str) -> list[StoredTask]:
    found: list[StoredTask] = []
    while ended := store.load_ended(hub):
        taken = store.take_over(hub, [one.key for one in ended], [])
        found += [one.stored for one in ended if one.stored is not None and one.key in taken]
    return found


def test_a_takeover_whose_answer_was_lost_is_repeated(postgres_url: str) -> None:
    with closing(connect_server(postgres_url)) as server:
        one, two = DatabaseTaskStore(server, hub="one"), DatabaseTaskStore(server, hub="two")
        one.save([change(id="a"), change(id="b")])
        commit = two._writer.transaction

        @contextmanager
        def lose() -> Iterator[None]:
            with commit():
                yield
            raise sqlite3.OperationalError("the answer was lost")

        two._writer.transaction = lose  # type: ignore[method-assign]
        with pytest.raises(StorageFailed, match="the answer was lost"):
            take_all(two, "one")
        two._writer.transaction = commit  # type: ignore[method-assign]
        assert one.load() == []
        assert sorted(task.id for task in take_all(two, "one")) == ["a", "b"]
        assert take_all(two, "one") == []


def test_a_takeover_comes_in_parts_of_bounded_size(postgres_url: str) -> None:
    with closing(connect_server(postgres_url)) as server:
        one, two = DatabaseTaskStore(server, hub="one"), DatabaseTaskStore(server, hub="two")
        large = "x" * (TAKEN_BYTES // 2)
        one.save([
            *(change(id=f"large{n}", entries=(said(1, large),)) for n in range(3)),
            *(change(id=f"small{n}", updated=3.0, state="completed") for n in range(150)),
        ])  # fmt: skip
        sizes = []
        while ended := two.load_ended("one"):
            two.take_over("one", [each.key for each in ended], [])
            sizes.append([each.id[:5] for each in ended])
        assert [(part.count("large"), part.count("small")) for part in sizes] == [
            (1, 0), (1, 0), (1, 99), (0, 51)
        ]  # fmt: skip


def test_no_task_is_taken_over_while_its_hub_stores_it(postgres_url: str) -> None:
    """A hub that was paused between the check of its ownership and its write must not win."""
    with closing(connect_server(postgres_url)) as server:
        one, two = DatabaseTaskStore(server, hub="one"), DatabaseTaskStore(server, hub="two")
        ((key, _),) = one.save([change(id="a")])
        with psycopg.connect(postgres_url) as paused:
            paused.execute("SET search_path = dragoman")
            text = _STILL_OWNED.replace("?", "%s")
            assert paused.execute(text.encode(), (1, [key], "one")).fetchone() == (1,)
            with pytest.raises(StorageFailed, match="lock timeout"):
                take_all(two, "one")
        assert [task.key for task in take_all(two, "one")] == [key]
