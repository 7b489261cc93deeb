"""`[server] workers`: several processes behind one port."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tests.live.conftest import DRAGOMAN, RunningHub
from tests.live.module_hub import until
from tests.peers import wire
from tests.peers.forked import run_forked
from tests.peers.process import server_entry, wait_until_gone

from dragoman.home import read_daemon
from dragoman.stores.audit.verify import verify

CONFIG = '[server]\nworkers = 2\n[store]\nurl = "{}"\n[cluster]\nlease_secs = 3\n'


def list_workers(hub: RunningHub) -> dict[str, str]:
    """The ready workers, with their nodes."""
    found = hub.api("/api/cluster")["hubs"]
    return {one["id"]: one["node"] for one in found if one["state"] == "ready"}


def test_two_workers_share_a_port_and_a_dead_one_is_replaced(
    hub: Callable[..., RunningHub], postgres_url: str
) -> None:
    servers = [server_entry("new", "sdk_server", "--era", "modern")]
    drain = "drain_secs = 0.5\n"
    running = hub(servers, f'api_key = "{"k" * 32}"\n{CONFIG.format(postgres_url)}{drain}')
    running.wait_connected("new")
    before = until(lambda: list_replaced(running, {}), 60) or {}
    assert len(before) == 2
    sessions = [wire.Session(running.mcp_url, headers=running.headers) for _ in range(6)]
    owners = {one.headers["Mcp-Session-Id"][3:11] for one in sessions}
    assert owners <= set(before)
    for session in sessions:  # each request is a connection, which any worker may get
        answer = session.request("tools/call", {"name": "new.add", "arguments": {"a": 1, "b": 2}})
        assert answer["result"]["structuredContent"] == {"sum": 3}, answer
    assert running.command("keys", "create", "ann").returncode == 0
    victim = int(next(iter(before.values())).rpartition(":")[2])
    os.kill(victim, signal.SIGKILL)
    after = until(lambda: list_replaced(running, before), 60)
    assert len(set(after or ()) - set(before)) == 1
    answer = sessions[0].request("tools/list", timeout=60)
    assert "result" in answer, answer
    check_audit(running)
    check_backup(running)
    left = list_pids(running)
    record = read_daemon(str(running.home))
    assert record is not None and record.stop_secs == 20.5
    done = running.command("stop")
    assert done.returncode == 0, done
    wait_until_gone(left, 1)
    for hub_run in (running, again := hub(home=running.home)):
        hub_run.checks = False  # each worker has an audit log of its own
    left = list_pids(again)
    again.kill()
    wait_until_gone(left, 15)
    check_audit(running)
    entry = running.home / "workers" / "1" / "audit.db"
    with closing(sqlite3.connect(entry)) as db, db:
        db.execute("UPDATE entries SET body = ? WHERE seq = 2", (b"{}",))
    done = running.command("audit", "verify")
    assert done.returncode == 1 and "workers/1: entry 2" in done.stderr, done


def check_audit(hub: RunningHub) -> None:
    """The commands read the audit logs of all workers, whether or not they run."""
    assert "of 2 chains" in hub.command("audit", "verify").stdout
    assert "of 2 chains" in hub.command("audit", "verify", "--local").stdout
    for how in ((), ("--local",)):
        lines = hub.command("audit", "tail", "--json", "--verb", "new.add", *how).stdout
        rows = [json.loads(line) for line in lines.splitlines()]
        assert len(rows) == 6, rows
        assert [one["at"] for one in rows] == sorted(one["at"] for one in rows)
    found = json.loads(hub.command("doctor", "--json").stdout)["checks"]
    said = [one["said"] for one in found if one["check"] == "audit"]
    assert len(said) == 2 and all("entries verified" in one for one in said), said


def list_pids(hub: RunningHub) -> list[int]:
    """The processes of the ready workers."""
    nodes = until(lambda: list_replaced(hub, {}), 60) or {}
    return [int(one.rpartition(":")[2]) for one in nodes.values()]


def check_backup(hub: RunningHub) -> None:
    """A backup of a running hub has the audit log of each worker, and none of their links."""
    file, home = hub.home / "copy.tar.gz", hub.home.with_name(f"{hub.home.name}-restored")
    assert hub.command("backup", str(file)).returncode == 0
    command = [*DRAGOMAN, "restore", str(file), "--yes", "--home", str(home)]
    done = run_forked(command, 30, text=True)
    file.unlink()
    assert done.returncode == 0, done
    for number in "01":
        worker = home / "workers" / number
        assert verify(worker).ok and not (worker / "config.toml").exists()
    shutil.rmtree(home)


def list_replaced(hub: RunningHub, before: dict[str, str]) -> dict[str, str] | None:
    try:
        found = list_workers(hub)
    except (OSError, AssertionError):
        return None
    return found if len(found) == 2 and set(found) != set(before) else None


def test_workers_need_a_database(short_tmp: Path) -> None:
    (short_tmp / "config.toml").write_text("[server]\nport = 0\nworkers = 2\n", encoding="utf-8")
    done = run_forked([*DRAGOMAN, "up", "--home", str(short_tmp)], 30, text=True)
    assert done.returncode != 0
    assert "[store] url" in done.stderr
