"""Cookies of browser sessions, over https and on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.stores.users import UsersDatabase, UserStore
from dragoman.web.browser_sessions import BrowserSessions

pytestmark = pytest.mark.promise("U4")


@pytest.fixture
def users(tmp_path: Path) -> Iterator[UserStore]:
    base = UsersDatabase(tmp_path)
    store = UserStore(base)
    store.add("anna", roles=["editor"], org="sales")
    yield store
    base.close()


def request(cookie: str = "") -> Any:
    return SimpleNamespace(fields={b"cookie": cookie.encode()} if cookie else {})


def test_cookies_are_bound_to_the_host_over_https(users: UserStore) -> None:
    sessions = BrowserSessions(users, lambda: "https://hub.example.com", 60)
    anna = users.get("anna")
    (name, value), (_, known) = sessions.open(request(), anna)
    cookie, *rest = value.decode().split("; ")
    assert name == b"set-cookie" and cookie.startswith("__Host-dragoman-session=")
    assert {"Secure", "HttpOnly", "SameSite=Lax", "Path=/", "Max-Age=60"} == set(rest)
    found = sessions.find(request(f"other=1; {cookie}; more=2"))
    assert found is not None and found.user == anna
    principal = sessions.find_user(request(cookie))
    assert principal is not None and principal.label == "user:anna"
    assert principal.org == "sales" and principal.roles == ("editor",)
    assert sessions.find(request(cookie.removeprefix("__Host-"))) is None
    assert sessions.find(request(f"{cookie}; {cookie}")) is None
    assert sessions.find(request(f"{cookie}x")) is None and sessions.find(request()) is None
    remembered = known.decode().partition(";")[0]
    assert sessions.find_known(request(remembered), "anna")
    assert not sessions.find_known(request(remembered), "bob")
    assert len(sessions.open(request(remembered), anna)) == 1  # known already
    cleared = sessions.close(request(cookie))
    assert all(b"Max-Age=0" in header for _, header in cleared)
    assert sessions.find(request(cookie)) is None


def test_hubs_on_one_machine_have_cookies_of_their_own(users: UserStore) -> None:
    one = BrowserSessions(users, lambda: "http://127.0.0.1:5001", 60)
    two = BrowserSessions(users, lambda: "http://127.0.0.1:5002", 60)
    cookie = one.open(request(), users.get("anna"))[0][1].decode().partition(";")[0]
    assert "Secure" not in cookie and one.find(request(cookie)) is not None
    assert two.find(request(cookie)) is None


def test_a_form_token_is_for_one_browser_and_purpose(users: UserStore) -> None:
    sessions = BrowserSessions(users, lambda: "https://hub.example.com", 60)
    id, headers = sessions.identify(request())
    cookie = headers[0][1].decode().partition(";")[0]
    assert sessions.identify(request(cookie)) == (id, []) and sessions.find(request(cookie)) is None
    token = sessions.build_form_token(id, "login")
    assert sessions.is_form_token(token, id, "login")
    assert not sessions.is_form_token(token, id, "consent")
    assert not sessions.is_form_token(token, id + "x", "login")
    empty = sessions.build_form_token("", "login")
    assert not sessions.is_form_token(empty, "", "login")
