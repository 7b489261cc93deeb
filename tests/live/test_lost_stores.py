"""A store deleted from the home: behaviour of the running hub and of the next start."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.live.conftest import RunningHub
from tests.peers import wire
from tests.peers.process import server_entry

WAIT_SECONDS = 60.0


def status_without_key(hub: RunningHub) -> int:
    return wire.get(f"{hub.url}/api/policies").status


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_hub_that_lost_its_keys_stays_closed(
    hub: Callable[..., RunningHub], short_tmp: Path
) -> None:
    home = short_tmp / "home"
    first = hub(home=home)
    made = first.command("keys", "create", "laptop", "--role", "owner")
    assert made.returncode == 0
    until(lambda: status_without_key(first) == 401)
    assert first.stop() == 0
    (home / "hub.db").unlink()
    refused = first.command("up")
    assert refused.returncode == 7
    assert str(home / "hub.db") in refused.stderr
    assert "dragoman stores accept-loss keys" in refused.stderr
    made = first.command("keys", "create", "in-vain")  # no hub would take it
    assert made.returncode == 7 and "dragoman stores accept-loss keys" in made.stderr
    unanswered = first.command("stores", "accept-loss", "keys")  # no terminal to prompt on
    assert unanswered.returncode == 2 and "--yes" in unanswered.stderr
    assert not (home / "hub.db").exists()
    assert first.command("stores", "accept-loss", "keys", "--yes").returncode == 0
    second = hub(home=home)
    assert status_without_key(second) == 401
    held = second.command("stores", "accept-loss", "keys", "--yes")
    assert held.returncode == 3 and "is locked by" in held.stderr
    made = second.command("keys", "create", "desktop", "--role", "owner")
    bearer = {"Authorization": f"Bearer {made.stdout.strip()}"}
    until(lambda: second.get("/api/policies", bearer).status == 200)
    assert status_without_key(second) == 401
    (record,) = [one for one in second.audit() if one["verb"] == "stores.accept_loss"]
    assert record["asked_as"] == "keys"


def test_hub_that_lost_its_configured_key_stays_closed(
    hub: Callable[..., RunningHub], short_tmp: Path
) -> None:
    home = short_tmp / "home"
    first = hub(home=home, config='api_key = "a-key-that-is-long-enough"\n')
    assert status_without_key(first) == 401
    assert first.stop() == 0
    config = home / "config.toml"
    whole = config.read_text()
    config.write_bytes(b"")
    for how in ("is empty", "is missing"):
        refused = first.command("up")
        assert refused.returncode == 7
        assert how in refused.stderr and "a comment" in refused.stderr
        config.unlink(missing_ok=True)
    config.write_text("".join(line for line in whole.splitlines(True) if "api_key" not in line))
    assert status_without_key(hub(home=home)) == 200  # the operator has taken it out


def test_running_hub_reports_a_deleted_store_and_closes_without_keys(
    hub: Callable[..., RunningHub],
) -> None:
    running = hub()
    (running.home / "registry.db").unlink()
    said = "registry.db was removed while the hub runs"
    until(lambda: said in running.log())
    assert running.api("/api/status")["store_problems"] == [
        f"{said}: put it back, or restart the hub"
    ]
    (running.home / "hub.db").rename(running.home / "away.db")
    until(lambda: running.get("/api/status").status == 503)
    assert "hub.db was removed" in running.command("status").stdout
    (running.home / "away.db").rename(running.home / "hub.db")
    until(lambda: running.get("/api/status").status == 200)


def test_server_is_listed_once_its_pins_can_be_stored(
    hub: Callable[..., RunningHub],
) -> None:
    running = hub()
    locked = sqlite3.connect(running.home / "pins.db", isolation_level=None, timeout=5)
    locked.execute("BEGIN EXCLUSIVE")
    config = running.home / "config.toml"
    config.write_text(config.read_text() + server_entry("peer", "faulty_server", "ok"))

    def state() -> dict[str, Any]:
        found = running.api("/api/mcp/servers")["connected"]
        return dict(found[0]) if found else {}

    until(lambda: bool(state().get("problems")))
    assert state()["connected"] and state()["tools_count"] == 0
    assert "pins.db" in " ".join(state()["problems"])
    assert "pins.db" in " ".join(running.api("/api/status")["store_problems"])
    locked.execute("ROLLBACK")
    locked.close()
    until(lambda: state()["tools_count"] == 3 and "problems" not in state())
    assert not running.api("/api/status")["store_problems"]
    assert "error" not in running.call("peer.pid")


def test_storage_failure_is_an_internal_error_without_retry(
    hub: Callable[..., RunningHub],
) -> None:
    running = hub(config=server_entry("peer", "faulty_server", "ok"))
    running.wait_connected("peer")
    locked = sqlite3.connect(running.home / "pins.db", isolation_level=None, timeout=5)
    locked.execute("BEGIN EXCLUSIVE")
    answer = wire.post(f"{running.url}/api/pins/forget", {"target": "peer"}, running.headers)
    assert answer.status == 503 and "retry-after" not in answer.headers
    assert answer.json()["error"]["kind"] == "StorageFailed"
    assert "pins.db" in answer.json()["error"]["message"]
    forgotten = running.command("pins", "forget", "peer")
    assert forgotten.returncode == 1 and "pins.db" in forgotten.stderr
    locked.execute("ROLLBACK")
    locked.close()
    (running.home / "audit.db").rename(running.home / "away.db")
    until(lambda: "error" in running.call("peer.pid"))
    error = running.call("peer.pid")["error"]
    assert error["code"] == -32603 and error["data"]["kind"] == "StorageFailed"
    assert "audit" in error["message"]
    (running.home / "away.db").rename(running.home / "audit.db")
    until(lambda: "error" not in running.call("peer.pid"))
