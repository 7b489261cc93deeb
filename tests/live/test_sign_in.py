"""Access tokens at a running hub: challenges, users, sessions, and the end of a token."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from a2a.types import a2a_pb2 as pb
from a2a.types.a2a_pb2_grpc import A2AServiceStub
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub, until
from tests.peers import wire
from tests.peers.identity_provider import (
    ANN,
    HUB,
    IdentityProvider,
    make_key,
    run_identity_provider,
)
from tests.peers.process import server_entry

pytestmark = pytest.mark.promise("O1", "U4")

KEY = "the key of the configuration"
SOON = 20.0
SCOPE = "hub:use"

CONFIG = """api_key = "{key}"
[server]
public_url = "https://hub.example.com"
[auth]
required_scopes = ["{scope}"]
[[auth.jwt.issuers]]
name = "corp"
issuer = "{issuer}"
leeway_secs = 0
roles_claim = "realm_access.roles"
owner_roles = ["hub-admin"]
owner_claim = "email"
[auth.introspection]
name = "opaque"
issuer = "{issuer}/opaque"
url = "{issuer}/introspect"
client_id = "hub"
client_secret = "env:HUB_SECRET"
cache_secs = 0
leeway_secs = 0
[a2a]
enabled = true
grpc_port = 0
[limits.rate]
address_per_minute = 1_000_000
address_burst = 100_000
"""


@dataclass(frozen=True)
class Rig:
    hub: RunningHub
    provider: IdentityProvider

    def sign(self, **changes: Any) -> str:
        return self.provider.sign(**{"scope": f"openid {SCOPE}", **changes})

    def ask(self, token: str, path: str = "/api/tools") -> wire.Answer:
        return wire.get(f"{self.hub.url}{path}", {"Authorization": f"Bearer {token}"})

    def challenge(self, token: str = "", path: str = "/mcp") -> tuple[int, str, str]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = wire.get(f"{self.hub.url}{path}", headers)
        return answer.status, answer.headers.get("www-authenticate", ""), answer.body.decode()


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with run_identity_provider() as provider:
        config = CONFIG.format(key=KEY, issuer=provider.issuer, scope=SCOPE)
        servers = [server_entry("r", "faulty_server", "ok")]
        with run_module_hub(servers, config, {"HUB_SECRET": "s&cret"}) as running:
            running.wait_connected("r")
            yield Rig(running, provider)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# --- who may come in ------------------------------------------------------------------------------


def test_user_with_a_token_lists_and_calls_tools(rig: Rig) -> None:
    token = rig.sign()
    answer = rig.ask(token)
    assert answer.status == 200 and "r.echo" in answer.body.decode()
    session = wire.Session(rig.hub.mcp_url, headers=bearer(token))
    called = session.request("tools/call", {"name": "r.echo", "arguments": {"text": "hi"}})
    assert called["result"]["content"][0]["text"] == "hi", called
    record = until(lambda: [one for one in rig.hub.audit() if one["asked_as"] == "r.echo"])[-1]
    assert record["caller"] == f"user:corp/{ANN}"


def test_sdk_client_with_a_token(rig: Rig) -> None:
    script = Path(__file__).parent.parent / "peers" / "sdk_client.py"
    command = [sys.executable, str(script), "--http", rig.hub.mcp_url]
    command += ["--header", f"Authorization: Bearer {rig.sign()}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert any(tool["name"].endswith("echo") for tool in json.loads(done.stdout)["tools"])


def test_request_without_a_token_learns_where_to_get_one(rig: Rig) -> None:
    status, challenge, _ = rig.challenge()
    assert status == 401
    where = "https://hub.example.com/.well-known/oauth-protected-resource/mcp"
    assert f'resource_metadata="{where}"' in challenge and f'scope="{SCOPE}"' in challenge
    assert "error=" not in challenge
    _, challenge, _ = rig.challenge(path="/api/tools")
    assert 'oauth-protected-resource"' in challenge


def test_metadata_names_the_resource_and_its_issuers(rig: Rig) -> None:
    base = f"{rig.hub.url}/.well-known/oauth-protected-resource"
    for path in ("", "/mcp", "/mcp/v/small", "/agents/nurse/mcp", "/a2a", "/a2a/nurse"):
        found = wire.get(base + path).json()
        assert found == {
            "resource": f"https://hub.example.com{path}",
            "authorization_servers": [rig.provider.issuer, f"{rig.provider.issuer}/opaque"],
            "bearer_methods_supported": ["header"],
            "resource_name": "Dragoman",
            "scopes_supported": [SCOPE],
        }
    for path in ("/no/such", "/mcp/../api", "/mcp/v/", '/mcp/v/"'):
        assert wire.get(base + path).status in (400, 404), path
    assert wire.http_request("POST", base, b"{}").status == 405


def test_invalid_token_is_named_in_the_challenge(rig: Rig) -> None:
    cases = {
        "the token has expired": rig.sign(exp=1),
        "the token is for another audience": rig.sign(aud="https://other.example.com"),
        "the signature of the token is wrong": rig.sign(key=make_key("ES256", 7)),
    }
    for why, token in cases.items():
        status, challenge, body = rig.challenge(token)
        assert status == 401 and why in body
        assert 'error="invalid_token"' in challenge and why in challenge
        assert "resource_metadata=" in challenge and token not in body + challenge


def test_missing_scope_is_forbidden_and_named(rig: Rig) -> None:
    weak = rig.sign(scope="openid")
    status, challenge, _ = rig.challenge(weak)
    assert status == 403
    assert 'error="insufficient_scope"' in challenge and f'scope="{SCOPE}"' in challenge
    assert "resource_metadata=" in challenge
    for path in ("/healthz", "/.well-known/oauth-protected-resource"):
        assert rig.ask(weak, path).status == 200


def test_token_of_every_endpoint_of_the_hub_counts(rig: Rig) -> None:
    for path in ("", "/", "/mcp", "/mcp/v/small", "/a2a/nurse"):
        assert rig.ask(rig.sign(aud=f"https://hub.example.com{path}")).status == 200, path
    local = rig.hub.url + "/mcp"  # with a public URL, loopback may be another hub's
    for other in ("https://hub.example.com.evil/mcp", "http://hub.example.com/mcp", local):
        assert rig.ask(rig.sign(aud=other)).status == 401, other


def test_role_of_the_owner_needs_the_configured_role(rig: Rig) -> None:
    for roles, status in ((["owner", "admin"], 403), (["hub-admin"], 200)):
        token = rig.sign(realm_access={"roles": roles})
        assert rig.ask(token, "/api/mcp/servers/r/logs").status == status, roles


def test_issuer_that_does_not_answer_means_later_not_invalid(rig: Rig) -> None:
    rig.provider.active["sleepy"] = {}
    rig.provider.change = lambda path, body: 500
    try:
        answer = rig.ask("sleepy")
    finally:
        rig.provider.change = lambda path, body: body
    assert answer.status == 503 and "cannot be checked" in answer.body.decode()
    assert answer.headers.get("retry-after")


def test_opaque_token_is_introspected(rig: Rig) -> None:
    claims = {"sub": "bob", "aud": HUB, "scope": SCOPE, "iss": f"{rig.provider.issuer}/opaque"}
    rig.provider.active["letmein"] = {**claims, "exp": int(time.time()) + 600}
    assert rig.ask("letmein").status == 200
    cases: dict[str, dict[str, Any]] = {
        "expired": {"exp": 1}, "audience": {"aud": "x"}, "none": {"aud": None},
        "issuer": {"iss": "x"}, "subject": {"sub": None},
    }  # fmt: skip
    for name, change in cases.items():
        rig.provider.active[name] = {**claims, **change}
        assert rig.challenge(name)[0] == 401, name
    asked = rig.provider.count("/introspect")
    assert rig.challenge("unknown")[0] == rig.challenge("unknown")[0] == 401
    assert rig.provider.count("/introspect") == asked + 1, "a refusal is remembered"


def test_token_counts_over_grpc(rig: Rig) -> None:
    port = rig.hub.api("/api/status")["agents"]["grpc_port"]
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        ask = A2AServiceStub(channel).ListTasks
        for token, code in (
            (rig.sign(), None),
            (rig.sign(exp=1), grpc.StatusCode.UNAUTHENTICATED),
            (rig.sign(scope="x"), grpc.StatusCode.PERMISSION_DENIED),
        ):
            metadata = [("authorization", f"Bearer {token}")]
            if code is None:
                ask(pb.ListTasksRequest(), metadata=metadata, timeout=SOON)
                continue
            with pytest.raises(grpc.RpcError) as caught:
                ask(pb.ListTasksRequest(), metadata=metadata, timeout=SOON)
            assert caught.value.code() == code


def test_token_appears_in_no_log_and_no_record(rig: Rig) -> None:
    tokens = [rig.sign(jti="canary"), rig.sign(exp=1)]
    for token in tokens:
        rig.ask(token)
    rig.provider.active["opaque-canary-token"] = {}
    rig.ask("opaque-canary-token")
    texts = [rig.hub.log(), json.dumps(rig.hub.audit())]
    texts += [
        one.read_bytes().decode("latin-1") for one in rig.hub.home.rglob("*") if one.is_file()
    ]
    for text in texts:
        assert not any(token.rpartition(".")[2] in text for token in tokens)
        assert "opaque-canary-token" not in text and "s&cret" not in text


# --- the end of a token ---------------------------------------------------------------------------


class Listening:
    """A stream of events, and when it ended."""

    def __init__(self, rig: Rig, token: str) -> None:
        self.ended_at = 0.0
        self._ended, opened = threading.Event(), threading.Event()

        def run() -> None:
            try:
                with wire.stream(
                    "GET", f"{rig.hub.url}/api/events", None, bearer(token), 60
                ) as stream:
                    opened.set()
                    while True:
                        stream.next()
            except Exception:
                pass  # it may end in any way
            self.ended_at = time.time()
            self._ended.set()

        threading.Thread(target=run, daemon=True).start()
        assert opened.wait(SOON)

    @property
    def is_open(self) -> bool:
        return not self._ended.is_set()

    def wait(self) -> float:
        assert self._ended.wait(SOON), "the stream is still open"
        return self.ended_at


def test_stream_ends_with_its_token_and_no_other(rig: Rig) -> None:
    expires = int(time.time()) + 2
    brief, lasting = rig.sign(exp=expires), rig.sign(jti="other")
    session = wire.Session(rig.hub.mcp_url, headers=bearer(brief))
    one, two = Listening(rig, brief), Listening(rig, lasting)
    assert expires <= one.wait() and two.is_open
    assert rig.challenge(brief)[0] == 401
    # The session is the user's: it goes on with the token that replaces the expired one.
    session.headers = {**session.headers, **bearer(lasting)}
    assert session.request("tools/list", {})["result"]["tools"]


def test_stream_ends_when_the_issuer_revokes_an_opaque_token(rig: Rig) -> None:
    claims = {"sub": "eve", "aud": HUB, "scope": SCOPE, "exp": int(time.time()) + 600}
    rig.provider.active["stolen"] = claims
    stream = Listening(rig, "stolen")
    asked = rig.provider.count("/introspect")
    until(lambda: rig.provider.count("/introspect") > asked)
    assert stream.is_open
    del rig.provider.active["stolen"]
    stream.wait()
    assert rig.challenge("stolen")[0] == 401


def test_session_has_the_roles_of_the_token_of_each_request(rig: Rig) -> None:
    strong = rig.sign(realm_access={"roles": ["hub-admin"]})
    session = wire.Session(rig.hub.mcp_url, headers=bearer(strong))
    before = session.request("tools/list", {})
    session.headers = {**session.headers, **bearer(rig.sign())}
    after = session.request("tools/list", {})
    assert before["result"]["tools"] == after["result"]["tools"]
    # Another user cannot continue it.
    session.headers = {**session.headers, **bearer(rig.sign(sub="mallory"))}
    assert session.post(wire.request(9, "tools/list", {})).status == 404


def test_streams_end_when_their_issuer_is_removed(hub: Callable[..., RunningHub]) -> None:
    with run_identity_provider() as provider:
        issuer = f'[[auth.jwt.issuers]]\nname = "corp"\nissuer = "{provider.issuer}"\n'
        running = hub(config='[server]\npublic_url = "https://hub.example.com"\n' + issuer)
        rig = Rig(running, provider)
        stream = Listening(rig, rig.sign())
        file = running.home / "config.toml"
        file.write_text(file.read_text(encoding="utf-8").replace(issuer, ""), encoding="utf-8")
        stream.wait()
        assert rig.challenge(rig.sign())[0] == 401
        assert wire.get(f"{running.url}/api/tools").status == 401, "it does not become open"


# --- starting -------------------------------------------------------------------------------------


def test_tokens_are_enough_to_listen_for_others(hub: Callable[..., RunningHub]) -> None:
    with run_identity_provider() as provider:
        outside = '[server]\nhost = "0.0.0.0"\npublic_url = "https://hub.example.com"\n'
        with pytest.raises(RuntimeError, match=r"auth\.jwt"):
            hub(config=outside)
        issuer = f'[[auth.jwt.issuers]]\nissuer = "{provider.issuer}"\n'
        running = hub(config=outside + issuer)
        rig = Rig(running, provider)
        assert rig.ask(rig.sign()).status == 200
        assert rig.challenge()[0] == 401


def test_flood_of_invalid_tokens_is_refused_before_it_is_verified(
    hub: Callable[..., RunningHub],
) -> None:
    """Known tokens and keys are served all the same."""
    with run_identity_provider() as provider:
        issuer = f'[[auth.jwt.issuers]]\nissuer = "{provider.issuer}"\n'
        public = '[server]\npublic_url = "https://hub.example.com"\n'
        rate = "[limits.rate]\naddress_per_minute = 1\naddress_burst = 5\n"
        rig = Rig(hub(config=public + issuer + rate), provider)
        known = rig.sign()
        assert rig.ask(known).status == 200
        forged = [rig.sign(jti=str(n), key=make_key("ES256", 7)) for n in range(7)]
        assert [rig.challenge(one)[0] for one in forged] == [401] * 5 + [429] * 2
        fetched = provider.count("/keys")
        unseen = rig.ask(rig.sign(jti="unseen"))
        assert unseen.status == 429 and unseen.headers.get("retry-after")
        assert rig.ask(known).status == 200 and provider.count("/keys") == fetched
