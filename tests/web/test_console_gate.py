"""Which requests the gate of the console takes for its own, and whose it says they are."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dragoman.core.access import SESSION_ENDED
from dragoman.core.principal import LOCAL, OWNER, Principal, principal_from_server
from dragoman.web.console.config import ConsoleSettings
from dragoman.web.console.gate import ConsoleGate
from dragoman.web.console.sessions import ConsoleSessions
from dragoman.web.resource_metadata import ResourceMetadata

BASE = "http://127.0.0.1:50051"


def build_gate(base: str = BASE) -> tuple[ConsoleGate, ConsoleSessions]:
    sessions = ConsoleSessions()
    gate = ConsoleGate(lambda: base)
    gate.connect(lambda: cast(Any, SimpleNamespace(sessions=sessions)))
    assert gate.site.sessions is sessions
    return gate, sessions


def build_request(
    path: str, peer: Principal | None = LOCAL, method: str = "GET", **fields: str
) -> Any:
    named = {name.replace("_", "-").encode(): value.encode() for name, value in fields.items()}
    return SimpleNamespace(
        path=path,
        method=method,
        fields={b"host": b"127.0.0.1:50051", **named},
        find_peer=lambda identify: peer,
        extra=[],
    )


@pytest.mark.promise("U7")
@pytest.mark.parametrize(
    ("peer", "is_local", "serves"),
    [
        (LOCAL, True, True),
        (None, True, False),  # another user of this machine, who has seen the cookie
        (principal_from_server("evil"), True, False),  # a process that a server started
        (None, False, True),  # opened from another machine, or where the kernel cannot say
    ],
)
def test_a_session_serves_the_user_who_opened_it(
    peer: Principal | None, is_local: bool, serves: bool
) -> None:
    gate, sessions = build_gate()
    cookie = f"dragoman-console-50051={sessions.open(is_local=is_local)}"
    found = gate.admit(build_request("/api/tools", peer, cookie=cookie), lambda _: None)
    assert found is not None
    principal, refusal = found
    if serves:
        assert principal == OWNER and refusal is None
        assert principal is not None and not gate.explain_ended(principal.credential)
    else:
        assert principal is None and refusal is not None and refusal.status == 401


@pytest.mark.promise("U7")
def test_other_paths_and_other_cookies_are_not_the_consoles() -> None:
    gate, sessions = build_gate()
    cookie = f"dragoman-console-50051={sessions.open(is_local=True)}"
    for path in ("/mcp", "/mcp/v/ide", "/a2a", "/agents/x/mcp", "/sse", "/metricsx", "/healthz"):
        assert gate.admit(build_request(path, cookie=cookie), lambda _: None) is None
    assert gate.admit(build_request("/api/tools"), lambda _: None) is None
    assert gate.admit(build_request("/api/tools", cookie="theme=dark"), lambda _: None) is None
    assert gate.admit(build_request("/", accept="text/plain"), lambda _: None) is None
    for odd in (f"{cookie}; {cookie}", "dragoman-console-50051=x", "dragoman-console-50051="):
        found = gate.admit(build_request("/api/tools", cookie=odd), lambda _: None)
        assert found is not None and found[1] is not None and found[1].status == 401
        found = gate.admit(build_request("/console/", cookie=odd), lambda _: None)
        assert found == (None, None)
    # A page whose session is over is not served as the local user instead.
    found = gate.admit(build_request("/api/tools", x_csrf_token="x"), lambda _: None)
    assert found is not None and found[1] is not None and found[1].status == 401
    assert gate.explain_ended("console:unknown") == SESSION_ENDED


@pytest.mark.promise("U7")
def test_required_scopes_are_those_of_tokens() -> None:
    metadata = ResourceMetadata((), lambda request: BASE, lambda: ("hub",), "/a2a")
    user = Principal("user", "anna")
    sessions = ConsoleSessions()
    session = sessions.find(sessions.open(user, is_local=False))
    assert session is not None and not metadata.find_missing_scopes(session.principal)
    assert metadata.find_missing_scopes(user) == ("hub",)
    assert metadata.find_missing_scopes(replace(user, credential="grant.token")) == ("hub",)
    assert not metadata.find_missing_scopes(replace(user, scopes=("hub",)))


@pytest.mark.promise("U7")
def test_the_cookie_is_bound_to_the_host_over_https() -> None:
    gate, _ = build_gate("https://hub.example")
    name, value = gate.build_cookie("x" * 43)
    assert (name, value) == (
        b"set-cookie",
        b"__Host-dragoman-console=" + b"x" * 43 + b"; Path=/; HttpOnly; SameSite=Strict; Secure",
    )
    assert b"Max-Age=0" in gate.build_cookie("")[1]


@pytest.mark.promise("U7")
@pytest.mark.parametrize(
    ("origin", "site", "is_own"),
    [
        ("https://hub.example", "same-origin", True),
        ("https://hub.example", "cross-site", False),
        ("https://evil.example", "same-origin", False),
        ("null", "same-origin", False),
        ("", "same-origin", False),
    ],
)
def test_a_proxy_may_replace_the_host_but_not_the_origin(
    origin: str, site: str, is_own: bool
) -> None:
    gate, _ = build_gate("https://hub.example")
    request = build_request("/console/login", None, "POST", origin=origin, sec_fetch_site=site)
    assert gate.is_same_origin(request) is is_own


@pytest.mark.promise("U7")
@pytest.mark.parametrize(
    ("enabled", "is_loopback", "served"),
    [(None, True, True), (None, False, False), (True, False, True), (False, True, False)],
)
def test_it_is_served_on_loopback_unless_the_setting_says_otherwise(
    enabled: bool | None, is_loopback: bool, served: bool
) -> None:
    assert ConsoleSettings(enabled=enabled).is_served(is_loopback) is served
