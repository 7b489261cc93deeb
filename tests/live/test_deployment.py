"""Operation of a hub: environment, probes, machine-readable logs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub, until
from tests.peers import wire
from tests.peers.process import server_entry

KEY = "a-key-from-the-environment"
ENVIRONMENT = {
    "DRAGOMAN_API_KEY": KEY,
    "DRAGOMAN_SERVER__HOST": "0.0.0.0",
    "DRAGOMAN_SERVER__PORT": "0",
    "DRAGOMAN_LOG__FORMAT": "json",
    "DRAGOMAN_MCP_SERVERS__1__NAME": "absent",
    "DRAGOMAN_MCP_SERVERS__1__TRANSPORT__TYPE": "http",
    "DRAGOMAN_MCP_SERVERS__1__TRANSPORT__URL": "http://127.0.0.1:9/mcp",
}
FILE = f'[server]\nport = 50051\nhost = "127.0.0.1"\n{server_entry("near", "faulty_server", "ok")}'


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    """Its file says less than its environment."""
    with run_module_hub([], FILE, ENVIRONMENT) as running:
        running.headers = {"Authorization": f"Bearer {KEY}"}
        running.wait_connected("near")
        yield running


def records(hub: RunningHub) -> list[dict[str, object]]:
    return [json.loads(line) for line in hub.log().splitlines()]


def test_environment_overrides_the_file_and_its_changes(
    hub: RunningHub,
) -> None:
    assert not hub.url.endswith(":50051")
    assert wire.get(f"{hub.url}/api/tools").status == 401
    assert hub.get("/api/tools").status == 200

    (hub.home / "config.toml").write_text(
        FILE.replace("50051", "50052") + "\n[audit]\nkeep_days = 5\n", encoding="utf-8"
    )

    def read_again() -> bool:
        return any("was reloaded: 2 servers" in str(one["message"]) for one in records(hub))

    until(read_again)
    changed = [str(one["message"]) for one in records(hub) if "next start" in str(one["message"])]
    assert changed == []  # neither the port nor the key are other ones now
    assert hub.get("/api/tools").status == 200


def test_every_log_line_is_a_timed_record_without_secrets(
    hub: RunningHub,
) -> None:
    hub.call("near.echo", {"text": "s3cret-argument"})

    def ended() -> list[dict[str, object]]:
        return [one for one in records(hub) if one["logger"] == "dragoman.calls"]

    call = until(ended)[-1]
    assert (call["verb"], call["outcome"], call["level"]) == ("near.echo", "completed", "info")
    assert re.fullmatch("[0-9a-f]{32}", str(call["trace"])) and call["caller"] == "key:api_key"
    times = [str(one["time"]) for one in records(hub)]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time) for time in times)
    assert all({"time", "level", "logger", "message"} <= one.keys() for one in records(hub))
    assert KEY not in hub.log() and "s3cret-argument" not in hub.log()


def test_unchanged_failure_is_logged_once(hub: RunningHub) -> None:
    def has_failed() -> bool:
        state = hub.api("/api/mcp/servers")["connected"]
        (one,) = [each for each in state if each["name"] == "absent"]
        return bool(one["state"] == "failed")

    until(has_failed)
    for _ in range(3):  # each asks for it, which tries again
        hub.call("absent.anything")
        until(has_failed)
    told = [one for one in records(hub) if 'server "absent" is not' in str(one["message"])]
    assert len(told) == 1, told


def test_probes_accept_any_host_and_other_routes_do_not(hub: RunningHub) -> None:
    for host in ("10.0.0.7:50152", "hub.default.svc.cluster.local", "evil.example"):
        for path, body in (("/healthz", b"ok\n"), ("/readyz", b"ready\n")):
            answer = wire.get(hub.url + path, {"Host": host, "Origin": f"http://{host}"})
            assert (answer.status, answer.body) == (200, body)
            assert "access-control-allow-origin" not in answer.headers
        for path in ("/", "/metrics", "/api/status", "/healthz/", "/mcp"):
            assert hub.get(path, {"Host": host}).status == 421
        assert wire.post(hub.url + "/healthz", {}, {"Host": host}).status == 421
