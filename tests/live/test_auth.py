"""Access control: keys, Host and Origin on every route, addresses, sockets and files."""

from __future__ import annotations

import http.client
import json
import socket
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.live.conftest import DRAGOMAN, RunningHub, open_keys
from tests.live.module_hub import run_module_hub, until
from tests.live.unix_client import UnixClient
from tests.peers import wire
from tests.peers.forked import run_forked
from tests.peers.process import server_entry

API_KEY = "the key of the configuration"
ORIGIN = "https://app.example.com"

pytestmark = pytest.mark.promise("O1")


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    config = f"""api_key = "{API_KEY}"
[server]
allowed_origins = ["{ORIGIN}"]
allowed_hosts = ["hub.example.com"]
public_url = "https://public.example.com/hub"
[limits.rate]
address_per_minute = 1_000_000
address_burst = 100_000
"""
    with run_module_hub([server_entry("r", "faulty_server", "ok")], config) as running:
        running.wait_connected("r")
        yield running


def routes(hub: RunningHub) -> list[tuple[str, str]]:
    """Every route there is: those of the document, MCP's, a preflight and nothing at all."""
    described = hub.api("/openapi.json")["paths"]
    found = [
        (method.upper(), path.replace("{name}", "r.echo"))
        for path, item in described.items()
        for method in item
    ]
    found += [(method, "/mcp") for method in ("POST", "GET", "DELETE", "OPTIONS", "PUT")]
    return [*found, ("OPTIONS", "/api/tools"), ("GET", "/"), ("POST", "/no/such")]


def ask(
    hub: RunningHub, method: str, path: str, headers: Mapping[str, str | None]
) -> http.client.HTTPResponse:
    """A request with a good key; `headers` where None are left out, Host among them."""
    port = int(hub.url.rpartition(":")[2])
    sent: dict[str, str | None] = {
        "Host": f"127.0.0.1:{port}",
        "Authorization": f"Bearer {API_KEY}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        **headers,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        body = json.dumps(wire.request(1, "tools/list")).encode() if method == "POST" else b""
        for name, value in sent.items():
            if value is not None:
                connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        response.body = response.read()  # type: ignore[attr-defined]
        return response
    finally:
        connection.close()


# --- Host and Origin

PROBES = {"/healthz", "/readyz"}
EVIL: dict[str, dict[str, str | None]] = {
    "an evil host": {"Host": "evil.example"},
    "localhost.evil": {"Host": "localhost.evil"},
    "a host with a user": {"Host": "localhost@evil.example"},
    "a host by number": {"Host": "2130706433"},
    "no host": {"Host": None},
    "an empty host": {"Host": ""},
    "an evil origin": {"Origin": "https://evil.example"},
    "a null origin": {"Origin": "null"},
    "an empty origin": {"Origin": ""},
    "an origin on another port": {"Origin": "http://127.0.0.1:9"},
    "an origin like ours": {"Origin": ORIGIN + ".evil.example"},
    "our origin over http": {"Origin": ORIGIN.replace("https", "http")},
    "an evil host and its origin": {"Host": "evil.example", "Origin": "http://evil.example"},
}


@pytest.mark.parametrize("evil", EVIL)
def test_only_probes_answer_a_foreign_host_or_origin(hub: RunningHub, evil: str) -> None:
    for method, path in routes(hub):
        answer = ask(hub, method, path, EVIL[evil])
        if path in PROBES and (EVIL[evil].get("Host") or "Origin" not in EVIL[evil]):
            assert answer.status in {200, 400}, (method, path, evil)
            assert answer.body in (b"ok\n", b"ready\n") or answer.status == 400  # type: ignore[attr-defined]
        else:
            assert answer.status in {400, 403, 421}, (method, path, evil)
        assert "access-control-allow-origin" not in {
            name.lower() for name, _ in answer.getheaders()
        }
        if method != "HEAD":
            assert b"tools" not in answer.body  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "localhost"},
        {"Host": "[::1]:80"},
        {"Host": "HUB.example.com"},
        {"Host": "public.example.com:443"},
        {"Origin": ORIGIN},
        {"Origin": "https://public.example.com"},
        {"Host": "localhost:1234", "Origin": "http://localhost:1234"},
    ],
)
def test_own_hosts_and_origins_are_accepted(
    hub: RunningHub, headers: dict[str, str | None]
) -> None:
    for method, path in (("GET", "/healthz"), ("GET", "/api/tools"), ("POST", "/mcp")):
        answer = ask(hub, method, path, headers)
        assert answer.status == 200, (path, headers)
        assert answer.getheader("Access-Control-Allow-Origin") == headers.get("Origin")


def test_cors_preflight_of_an_allowed_origin_needs_no_key(hub: RunningHub) -> None:
    preflight: dict[str, str | None] = {
        "Origin": ORIGIN,
        "Authorization": None,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,mcp-method,mcp-name",
    }
    for path in ("/mcp", "/api/tools/r.echo/call"):
        answer = ask(hub, "OPTIONS", path, preflight)
        assert answer.status == 204
        assert answer.getheader("Access-Control-Allow-Origin") == ORIGIN
        assert answer.getheader("Vary") == "Origin"
        allowed = (answer.getheader("Access-Control-Allow-Headers") or "").lower()
        for name in ("authorization", "content-type", "mcp-session-id", "mcp-method", "mcp-name"):
            assert name in allowed
        for method in ("GET", "POST", "DELETE"):
            assert method in (answer.getheader("Access-Control-Allow-Methods") or "")
        assert answer.getheader("Access-Control-Allow-Credentials") is None
    refused = ask(hub, "POST", "/mcp", {"Origin": ORIGIN, "Authorization": None})
    assert refused.status == 401
    assert refused.getheader("Access-Control-Allow-Origin") == ORIGIN, "so that the page can tell"
    begun = ask(hub, "GET", "/mcp", {"Origin": ORIGIN})
    assert "mcp-session-id" in (begun.getheader("Access-Control-Expose-Headers") or "")


# --- keys


def test_only_health_is_served_without_a_valid_key(hub: RunningHub) -> None:
    bad = [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Basic {API_KEY}",
        f"bearer{API_KEY}",
        API_KEY,
        f"Bearer {API_KEY}x",
        f"Bearer {API_KEY[:-1]}",
        "Bearer dgm_aaaaaaaa_" + "A" * 43,
    ]
    for value in bad:
        for method, path in routes(hub):
            answer = ask(hub, method, path, {"Authorization": value})
            if path in PROBES:
                assert answer.status == 200
            else:
                assert answer.status == 401, (method, path, value)
                assert "Bearer" in (answer.getheader("WWW-Authenticate") or "")
    for query in (f"?api_key={API_KEY}", f"?key={API_KEY}", f"?token={API_KEY}"):
        path = "/api/tools" + query.replace(" ", "%20")
        assert ask(hub, "GET", path, {"Authorization": None}).status == 401
    for header in ("X-Api-Key", "Cookie", "Proxy-Authorization"):
        answer = ask(hub, "GET", "/api/tools", {"Authorization": None, header: API_KEY})
        assert answer.status == 401
    assert ask(hub, "GET", "/api/tools", {}).status == 200


def test_keys_are_created_listed_and_revoked_by_command(hub: RunningHub) -> None:
    made = hub.command("keys", "create", "ci", "--expires", "1h")
    key = made.stdout.strip()
    assert made.returncode == 0 and key.startswith("dgm_")

    def status() -> int:
        return ask(hub, "GET", "/api/tools", {"Authorization": f"Bearer {key}"}).status

    until(lambda: status() == 200, 60)
    shown = json.loads(hub.command("keys", "list", "--json").stdout)
    (record,) = [one for one in shown if one["name"] == "ci"]
    assert record["state"] == "active" and key not in json.dumps(shown)
    changed = key[:-1] + ("A" if key[-1] != "A" else "B")
    assert ask(hub, "GET", "/api/tools", {"Authorization": f"Bearer {changed}"}).status == 401
    wire.post(
        hub.mcp_url,
        wire.request(1, "tools/call", {"name": "r.echo"}),
        {"Authorization": f"Bearer {key}"},
    )
    calls = [record for record in hub.audit() if record["asked_as"] == "r.echo"]
    assert calls[-1]["caller"] == "key:ci"
    assert hub.command("keys", "revoke", "ci").returncode == 0
    until(lambda: status() == 401, 60)
    again = hub.command("keys", "create", "ci")
    assert again.returncode != 0 and "already" in again.stderr
    unknown = hub.command("keys", "revoke", "cj")
    assert unknown.returncode != 0 and "cj" in unknown.stderr
    assert key not in hub.log()


def test_expired_key_is_refused(hub: RunningHub) -> None:
    made = time.time()
    with open_keys(hub.home) as store:
        key = store.create("brief", owner="me", expires_at=made + 2.5, scopes=["call"])

    def status() -> int:
        return ask(hub, "GET", "/api/tools", {"Authorization": f"Bearer {key}"}).status

    until(lambda: status() == 200, 60)
    until(lambda: status() == 401, 60)
    assert time.time() >= made + 2.5


def test_hub_with_a_key_stays_closed_after_the_last_key_is_removed() -> None:
    with run_module_hub([]) as bare:

        def status(key: str | None = None) -> int:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            return wire.get(bare.url + "/api/tools", headers).status

        assert status() == 200, "on loopback, without any key"
        key = bare.command("keys", "create", "first").stdout.strip()
        until(lambda: status() == 401, 60)
        assert status(key) == 200
        assert bare.command("keys", "revoke", "first").returncode == 0
        until(lambda: status(key) == 401, 60)
        assert status() == 401
        assert bare.command("status").returncode == 0, "the owner comes in by the socket"


# --- addresses


def up(home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return run_forked([*DRAGOMAN, "up", "--home", str(home), *args], 20, text=True)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_hub_without_a_key_does_not_listen_publicly(short_tmp: Path, host: str) -> None:
    config = f'[server]\nhost = "{host}"\nport = 0\n'
    (short_tmp / "config.toml").write_text(config, encoding="utf-8")
    done = up(short_tmp)
    assert done.returncode != 0
    assert done.stdout == ""
    (said,) = done.stderr.strip().splitlines()
    assert f'host = "{host}"' in said and "key" in said and "dragoman keys create" in said
    assert not (short_tmp / "daemon.json").exists()


def test_hub_with_a_key_listens_publicly_and_checks_it() -> None:
    config = f'api_key = "{API_KEY}"\n[server]\nhost = "0.0.0.0"\n'
    with run_module_hub([], config) as open_:
        port = int(open_.url.rpartition(":")[2])
        mine = socket.gethostbyname(socket.gethostname())
        for address in {"127.0.0.1", mine}:
            url = f"http://{address}:{port}/api/tools"
            named = {"Host": f"localhost:{port}"}
            assert wire.get(url, named).status == 401
            assert wire.get(url, {**named, "Authorization": f"Bearer {API_KEY}"}).status == 200
            assert wire.get(url, {"Host": "0.0.0.0"}).status == 421


def test_used_port_is_reported_in_one_sentence(short_tmp: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (short_tmp / "config.toml").write_text(f"[server]\nport = {port}\n", encoding="utf-8")
        done = up(short_tmp)
        assert done.returncode != 0
        (said,) = done.stderr.strip().splitlines()
        assert str(port) in said and "in use" in said


# --- sockets and files


def test_unix_socket_authenticates_the_owner_without_a_key(hub: RunningHub) -> None:
    record = json.loads((hub.home / "daemon.json").read_bytes())
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(10)
        raw.connect(record["socket"])
        raw.sendall(b"GET /api/tools HTTP/1.1\r\nHost: whatever\r\nConnection: close\r\n\r\n")
        assert b" 200 " in raw.recv(64)
    before = len(hub.audit())
    with UnixClient(hub.home) as client:
        client.call("r.echo")
    assert hub.command("call", "r.echo", "text=x").stdout.strip() == "x"
    assert {r["caller"] for r in hub.audit()[before:]} == {"owner:owner"}


def test_files_of_the_hub_are_private_to_the_owner(hub: RunningHub) -> None:
    record = json.loads((hub.home / "daemon.json").read_bytes())
    private: list[Any] = [record["socket"], record["mcp_socket"], hub.home / "daemon.json"]
    private += [hub.home / name for name in ("hub.key", "hub.db", "lock")]
    for path in private:
        mode = stat.S_IMODE(Path(path).stat().st_mode)
        assert mode & 0o177 == 0, (path, oct(mode))
    for socket_path in (record["socket"], record["mcp_socket"]):
        assert stat.S_ISSOCK(Path(socket_path).stat().st_mode)
        assert stat.S_IMODE(Path(socket_path).parent.stat().st_mode) & 0o077 == 0
    others = [p for p in hub.home.rglob("*") if p.is_file() and p.name != "config.toml"]
    readable = [p for p in others if stat.S_IMODE(p.stat().st_mode) & 0o077]
    assert not readable, readable
