"""A hub on PostgreSQL: restarts, commands beside it, another hub, and a server that hangs."""

from __future__ import annotations

import json
import time
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from tests.live.a2a_hub import AGENTS, SEND, STREAM, V10, Caller, a2a_config, agents_env
from tests.live.conftest import DRAGOMAN, RunningHub, _written_config, put_on_postgres
from tests.live.module_hub import until
from tests.peers import wire
from tests.peers.forked import run_forked
from tests.peers.postgres_server import PostgresPeer, create_database, run_peer


@pytest.fixture(scope="module")
def peer() -> Iterator[PostgresPeer]:
    """A server of its own, because a test pauses it."""
    with run_peer() as peer:
        yield peer


@pytest.fixture
def home(short_tmp: Path, peer: PostgresPeer) -> Path:
    config = _written_config(a2a_config(AGENTS), [])
    (short_tmp / "config.toml").write_text(config, encoding="utf-8")
    (short_tmp / "config.toml").chmod(0o600)
    put_on_postgres(short_tmp, peer.url)
    return short_tmp


Start = Callable[[Path], RunningHub]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[RunningHub] = []

    def run(home: Path) -> RunningHub:
        started.append(RunningHub(home, [], agents_env(home)))
        return started[-1]

    yield run
    problems = [problem for hub in started for problem in hub.finish()]
    assert not problems, problems


def run(hub: RunningHub, *args: str) -> str:
    done = hub.command(*args)
    assert done.returncode == 0, done.stdout + done.stderr
    return f"{done.stdout}{done.stderr}"


def test_tasks_and_keys_are_there_after_a_crash_and_no_other_hub_gets_in(
    home: Path, tmp_path: Path, start: Start
) -> None:
    hub = start(home)
    with V10.stream(hub, STREAM, V10.params("again"), "echo") as stream:
        states = [json.dumps(value) for _, value in V10.events(stream)]
    assert "TASK_STATE_COMPLETED" in states[-1]
    made = json.loads(run(hub, "keys", "create", "ci", "--json"))
    hub.headers = {"Authorization": f"Bearer {made['key']}"}
    task = Caller(hub, "echo").send("hello")["id"]
    assert wire.get(f"{hub.url}/api/status", {}).status == 401  # the first key is in force

    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    (other / "config.toml").write_text((home / "config.toml").read_text())
    (other / "config.toml").chmod(0o600)
    with pytest.raises(RuntimeError, match=r"in use by another hub.*\[cluster\] secret"):
        start(other)

    hub.kill()
    again = start(home)
    again.headers = hub.headers
    assert Caller(again, "echo").get(task)["status"]["state"] == "TASK_STATE_COMPLETED"
    assert not {"hub.db", "pins.db", "tasks.db"} & {one.name for one in home.iterdir()}
    assert "ci" in run(again, "keys", "list")
    assert "answers; it needs its own backups" in run(again, "doctor", "--json")
    assert "unused" in run(again, "store", "check")  # some stores are created when they are needed
    assert "pg_dump" in run(again, "backup", str(tmp_path / "b.tar.gz"))
    run(again, "keys", "revoke", "ci")
    until(lambda: again.get("/api/status").status == 401)


def test_another_database_is_a_loss(home: Path, peer: PostgresPeer, start: Start) -> None:
    hub = start(home)
    assert hub.stop() == 0
    text = (home / "config.toml").read_text()
    empty = text[: text.index("[store]")]
    for config, why in (
        (empty, r'"\[store\] url" is missing'),
        (f'{empty}[store]\nurl = "{peer.url}"\n', "names another database than before"),
    ):
        (home / "config.toml").write_text(config)
        with pytest.raises(RuntimeError, match=why):
            start(home)
    run(hub, "stores", "accept-loss", "database", "--yes")
    start(home)


def test_a_hub_with_a_new_home_starts_once_a_person_has_accepted_the_rows(
    home: Path, tmp_path: Path, start: Start
) -> None:
    policies = home / "policies"
    policies.mkdir(mode=0o700)
    text = '@id("ann") permit (principal == Hub::User::"key:ann", action, resource);'
    (policies / "all.cedar").write_text(text, encoding="utf-8")
    (policies / "all.cedar").chmod(0o600)
    hub = start(home)
    made = json.loads(run(hub, "keys", "create", "ci", "--json"))
    hub.headers = {"Authorization": f"Bearer {made['key']}"}
    url = tomllib.loads((home / "config.toml").read_text(encoding="utf-8"))["store"]["url"]
    with psycopg.connect(url, autocommit=True) as db:
        until(lambda: db.execute("SELECT 1 FROM dragoman.policy_files").fetchone())
    assert hub.stop() == 0

    new = tmp_path / "new"
    new.mkdir(mode=0o700)
    text = (home / "config.toml").read_text(encoding="utf-8")
    secret = f'{text}\n[cluster]\nsecret = "{"s" * 32}"\n'
    (new / "config.toml").write_text(secret, encoding="utf-8")
    (new / "config.toml").chmod(0o600)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"policies among them: .* dragoman stores seal"):
            start(new)
    found = run_forked([*DRAGOMAN, "doctor", "--home", str(new)], 60, text=True).stdout
    assert 'key "ci" is refused' in found and "dragoman stores seal" in found, found
    done = run_forked([*DRAGOMAN, "stores", "seal", "--yes", "--home", str(new)], 60, text=True)
    assert done.returncode == 0, done.stderr
    again = start(new)
    again.headers = hub.headers
    assert again.get("/api/status").status == 200


def test_a_paused_server_delays_nothing_for_long_and_calls_continue_after_it(
    home: Path, peer: PostgresPeer, start: Start
) -> None:
    hub = start(home)
    key = json.loads(run(hub, "keys", "create", "ci", "--json"))["key"]
    hub.headers = {"Authorization": f"Bearer {key}"}
    caller = Caller(hub, "echo")
    task = caller.send("before")["id"]
    peer.pause()
    try:
        slowest, until_time = 0.0, time.monotonic() + 3.0
        refused = 0
        while time.monotonic() < until_time:
            begun = time.monotonic()
            answer = wire.post(f"{hub.url}/a2a/echo", {}, hub.headers)
            refused += answer.status >= 500
            slowest = max(slowest, time.monotonic() - begun)
            begun = time.monotonic()
            assert wire.get(f"{hub.url}/healthz").status == 200
            slowest = max(slowest, time.monotonic() - begun)
            time.sleep(0.02)
        assert slowest < 20.0 and refused, (slowest, refused)
        waiting = wire.get(f"{hub.url}/readyz")
        assert waiting.status == 503 and b"not available: the server did not" in waiting.body
    finally:
        peer.resume()
    until(lambda: hub.get("/api/status").status == 200)
    until(lambda: "available again" in hub.log())
    assert caller.get(task)["status"]["state"] == "TASK_STATE_COMPLETED"
    # A server on a busy machine may answer too late once more.
    assert caller.send_until_taken("after")["status"]["state"] == "TASK_STATE_COMPLETED"
    assert "Traceback" not in hub.log()
    assert_one_line_each(find_problems(hub))


def find_problems(hub: RunningHub) -> list[str]:
    """The lines of its log that an operator would look at, without those of the watchdog: a busy
    machine holds up the event loop, too."""
    lines = [line for line in hub.log().splitlines() if " ERROR " in line or " WARNING " in line]
    return [line for line in lines if "the event loop was held" not in line]


def assert_one_line_each(lines: list[str]) -> None:
    """Each outage has a line when it begins and one when it ends. The one that the test causes may
    have others after it on a busy machine."""
    begins, ends = lines[::2], lines[1::2]
    assert len(begins) == len(ends) > 0, "\n".join(lines)
    assert all("available again" in line for line in ends), "\n".join(lines)
    assert not any("available again" in line for line in begins), "\n".join(lines)


def is_answered(hub: RunningHub, status: int, text: bytes) -> bool:
    answer = hub.get("/readyz")
    return answer.status == status and text in answer.body


def test_a_hub_that_can_read_and_not_write_is_not_ready(
    home: Path, peer: PostgresPeer, start: Start
) -> None:
    hub = start(home)
    until(partial(is_answered, hub, 200, b"ready"))
    url = tomllib.loads((home / "config.toml").read_text())["store"]["url"]
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE dragoman.changes IN SHARE ROW EXCLUSIVE MODE")
        until(partial(is_answered, hub, 503, b"lock timeout"))
        problems = hub.api("/api/status")["store_problems"]
        assert "lock timeout" in problems[0], problems
        for headers in ({}, {"Idempotency-Key": "k1"}):
            sent = Caller(hub, "echo").ask(SEND, V10.params("lost"), headers=headers)
            assert sent.error is not None and sent.error["code"] == -32000, sent
            assert sent.error["data"][0]["reason"] == "UNAVAILABLE", sent.error
    until(partial(is_answered, hub, 200, b"ready"))
    assert Caller(hub, "echo").send("after")["status"]["state"] == "TASK_STATE_COMPLETED"


def test_a_hub_waits_for_a_database_that_is_not_there_yet(
    home: Path, peer: PostgresPeer, start: Start
) -> None:
    hub = start(home)  # the database has its schema
    assert hub.stop() == 0
    peer.stop()
    try:
        hub = start(home)
        assert wire.get(f"{hub.url}/healthz").status == 200
        for path in ("/readyz", "/api/status", "/mcp"):
            answer = wire.get(f"{hub.url}{path}")
            assert answer.status == 503 and b"Connection refused" in answer.body, answer
            assert b"127.0.0.1" not in answer.body
        shown = hub.command("status")
        assert shown.returncode != 0 and "waits for its database" in shown.stderr, shown
    finally:
        peer.start()
    record = home / "daemon.json"
    until(lambda: record.exists() and is_ready(hub, json.loads(record.read_text())["url"]))
    assert Caller(hub, "echo").send("after")["status"]["state"] == "TASK_STATE_COMPLETED"
    until(lambda: "available again" in hub.log())
    assert_one_line_each(find_problems(hub))


def is_ready(hub: RunningHub, url: str) -> bool:
    """Whether it serves, on the free port that it has then."""
    hub.url = url
    try:
        return hub.get("/readyz").status == 200
    except OSError:
        return False


def test_a_hub_that_waits_is_stopped_and_a_wrong_name_ends_it(
    home: Path, peer: PostgresPeer, start: Start
) -> None:
    peer.pause()
    try:
        hub = start(home)
        hub.checks = False  # it has no audit log yet
        assert b"did not answer" in hub.get("/readyz").body
        assert "has stopped" in run(hub, "stop")
    finally:
        peer.resume()
    config = (home / "config.toml").read_text()
    (home / "config.toml").write_text(f'{config.rpartition("/")[0]}/nowhere"\n')
    with pytest.raises(RuntimeError, match=r'(?s)ended with 7.*"nowhere" does not exist'):
        start(home)


def test_a_home_is_copied_and_its_hub_continues(
    short_tmp: Path, peer: PostgresPeer, start: Start
) -> None:
    config = _written_config(a2a_config(AGENTS), [])
    file = short_tmp / "config.toml"
    file.write_text(config, encoding="utf-8")
    file.chmod(0o600)
    hub = start(short_tmp)
    key = json.loads(run(hub, "keys", "create", "ci", "--json"))["key"]
    hub.headers = {"Authorization": f"Bearer {key}"}
    task = Caller(hub, "echo").send("hello")["id"]
    url = create_database(peer.url)
    busy = hub.command("store", "copy", url)
    assert busy.returncode == 3 and "dragoman stop" in busy.stderr
    assert hub.stop() == 0

    assert hub.command("store", "check", url).returncode == 1
    copied = json.loads(run(hub, "store", "copy", url, "--json"))
    rows = {one["store"]: one["rows"] for one in copied["stores"]}
    # The second row is the record that the hub knows of the key, if it had noticed it by then; a
    # task is stored when it begins and when it ends, or at once if it was quick.
    assert rows["keys"] in (1, 2) and rows["tasks"] in (2, 3)
    assert copied["audit"]["problem"] is None
    again = json.loads(run(hub, "store", "copy", url, "--json"))  # nothing is copied twice
    assert not any(one["new"] for one in again["stores"])
    assert "0 of" not in run(hub, "store", "migrate", url)  # the stores that the home never had
    checked = json.loads(run(hub, "store", "check", url, "--json"))
    assert {one["store"]: one["rows"] for one in checked["stores"]}["tasks"] == rows["tasks"]

    file.write_text(f'{config}\n[store]\nurl = "env:DATABASE_URL"\n', encoding="utf-8")
    (short_tmp / "env").write_text(f"DATABASE_URL={url}\n")
    (short_tmp / "env").chmod(0o600)
    after = start(short_tmp)
    after.headers = hub.headers
    assert Caller(after, "echo").get(task)["status"]["state"] == "TASK_STATE_COMPLETED"
    assert Caller(after, "echo").send("more")["status"]["state"] == "TASK_STATE_COMPLETED"
    assert url not in run(after, "config", "show", "--json")
