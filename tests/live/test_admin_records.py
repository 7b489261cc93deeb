"""Administrative actions in the audit: keys, servers, wrong keys, refused requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.live.conftest import RunningHub, open_keys
from tests.peers import wire

from dragoman.stores.audit.reader import AuditReader

WAIT_SECONDS = 60.0
SERVER = """
[[mcp_servers]]
name = "{name}"
enabled = false
[mcp_servers.transport]
type = "stdio"
command = "{command}"
"""


def records(hub: RunningHub, verb: str) -> list[dict[str, Any]]:
    reader = AuditReader(hub.home)
    try:
        found = reader.list_records(1000, verb=verb)
    finally:
        reader.close()
    return [{**one.intent, **one.conclusion} for one in found if one.conclusion]


def until_recorded(hub: RunningHub, verb: str, count: int) -> list[dict[str, Any]]:
    end = time.monotonic() + WAIT_SECONDS
    while len(found := records(hub, verb)) < count:
        assert time.monotonic() < end, verb
        time.sleep(0.05)
    assert len(found) == count
    return found


def test_administrative_actions_are_audited(
    hub: Callable[..., RunningHub], short_tmp: Path
) -> None:
    home = short_tmp / "home"
    first = hub(home=home, config=SERVER.format(name="old", command="true"))
    assert first.command("keys", "create", "ci", "--role", "deployer").returncode == 0
    (made,) = until_recorded(first, "key.create", 1)
    assert made["asked_as"] == "ci" and made["roles"] == ["deployer"]
    assert first.stop() == 0

    # While no hub runs: the next one finds it.
    with open_keys(home) as store:
        key = store.create("guest", owner="me", expires_at=None, scopes=["call"])
        store.revoke("ci")
    config = (home / "config.toml").read_text()
    (home / "config.toml").write_text(
        config.replace('"true"', '"false"') + SERVER.format(name="new", command="SECRET")
    )
    second = hub(home=home)
    assert {one["asked_as"] for one in until_recorded(second, "key.create", 2)} == {"ci", "guest"}
    (revoked,) = until_recorded(second, "key.revoke", 1)
    assert revoked["asked_as"] == "ci"
    (changed,) = until_recorded(second, "config.change", 1)
    assert (changed["added"], changed["changed"]) == (["new"], ["old"])
    assert set(changed["hmac"]) == {"new", "old"} and "SECRET" not in str(changed)

    bearer = {"Authorization": f"Bearer {key}"}
    end = time.monotonic() + WAIT_SECONDS
    while wire.get(f"{second.url}/api/policies", bearer).status != 403:
        assert time.monotonic() < end
    wrong = {"Authorization": "Bearer dgm_aaaaaaaa_" + "a" * 43}
    for _ in range(5):
        assert wire.get(f"{second.url}/api/pins", wrong).status == 401
        assert wire.post(f"{second.url}/api/pins/approve", {"all": True}, bearer).status == 403
    wire.get(f"{second.url}/api/pins")  # to show no key is no wrong key
    assert second.stop() == 0
    failed = records(second, "auth.failed")
    assert [one["asked_as"] for one in failed] == ["127.0.0.1"] * len(failed)
    assert sum(one["count"] for one in failed) == 5 and len(failed) == 2
    denied = [one for one in records(second, "admin.denied") if "pins" in one["asked_as"]]
    assert {(one["asked_as"], one["caller"]) for one in denied} == {
        ("POST /api/pins/approve", "key:guest")
    }
    assert sum(one["count"] for one in denied) == 5 and len(denied) == 2
