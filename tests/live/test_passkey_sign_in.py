"""Passkeys on the pages of a running hub with a host name: adding one, and signing in with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.live.module_hub import run_module_hub
from tests.peers.authenticator import SoftAuthenticator
from tests.peers.browser import PASSWORD, Browser, Form, read_forms

from dragoman.oauth.authority.passwords import build_hasher
from dragoman.stores.users import UsersDatabase, UserStore
from dragoman.web.http.sockets import tcp_socket

pytestmark = pytest.mark.promise("U4")


@pytest.fixture(scope="module")
def started() -> Iterator[tuple[str, UsersDatabase]]:
    with closing(tcp_socket("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://localhost:{port}"
    config = f'[server]\nport = {port}\npublic_url = "{url}"\n[auth.server]\nenabled = true\n'
    with run_module_hub([], config) as hub, closing(UsersDatabase(hub.home)) as database:
        UserStore(database).add("anna", password=build_hasher().hash(PASSWORD))
        yield url, database


@pytest.fixture
def base(started: tuple[str, UsersDatabase]) -> str:
    return started[0]


@pytest.fixture
def users(started: tuple[str, UsersDatabase]) -> UsersDatabase:
    return started[1]


def find_form(page: str, kind: str) -> Form:
    return next(one for one in read_forms(page) if one.attributes.get("data-passkey") == kind)


def test_a_user_adds_a_passkey_and_signs_in_with_it(base: str) -> None:
    authenticator = SoftAuthenticator(base)
    with Browser(base) as browser:
        page = browser.sign_in("anna")
        assert "script-src 'self'" in page.headers["content-security-policy"]
        form = find_form(page.text, "create")
        made = authenticator.create(form.attributes["data-options"])
        fields = {**form.fields, "credential": made, "do": "add-passkey"}
        assert browser.post(form.action, fields).status_code == 303
        again = browser.post(form.action, fields)  # the same passkey again
        assert again.status_code == 200 and "already in use" in again.text
        assert "Passkeys: 1" in browser.get("/oauth/account").text
    with Browser(base) as browser:
        form = find_form(browser.get("/oauth/login").text, "get")
        answer = authenticator.get(form.attributes["data-options"])
        wrong = browser.post(form.action, {**form.fields, "credential": answer, "token": "0"})
        assert wrong.status_code == 403
        with Browser(base) as other:  # the answer is for one browser
            foreign = find_form(other.get("/oauth/login").text, "get")
            refused = other.post(foreign.action, {**foreign.fields, "credential": answer})
            assert refused.status_code == 401
        done = browser.post(form.action, {**form.fields, "credential": answer})
        assert done.status_code == 303
        account = browser.get("/oauth/account")
        assert "anna" in account.text
        remove = next(one for one in read_forms(account.text) if one.action == "/oauth/account")
        assert (
            browser.post(remove.action, {**remove.fields, "do": "remove-passkeys"}).status_code
            == 303
        )
    with Browser(base) as browser:
        form = find_form(browser.get("/oauth/login").text, "get")
        answer = authenticator.get(form.attributes["data-options"])
        assert browser.post(form.action, {**form.fields, "credential": answer}).status_code == 401


def test_a_passkey_is_added_soon_after_a_sign_in_only(base: str, users: UsersDatabase) -> None:
    """A stolen session must not leave a passkey behind, which outlives it."""
    authenticator = SoftAuthenticator(base)
    with Browser(base) as browser:
        form = find_form(browser.sign_in("anna").text, "create")
        made = authenticator.create(form.attributes["data-options"])
        with users.transact() as db:
            db.execute("UPDATE sessions SET created_at = created_at - 400")
        fields = {**form.fields, "credential": made, "do": "add-passkey"}
        refused = browser.post(form.action, fields)
        assert refused.status_code == 200 and "sign in again" in refused.text
        assert not UserStore(users).list_passkeys("anna")
        # The page offers the way: signed out, and back at the account after the next sign-in.
        again = next(one for one in read_forms(refused.text) if one.fields.get("next"))
        sent = browser.post(again.action, again.fields)
        assert sent.status_code == 303 and sent.headers["location"] == "/oauth/account"
        form = find_form(browser.sign_in("anna").text, "create")
        made = authenticator.create(form.attributes["data-options"])
        added = browser.post(form.action, {**form.fields, "credential": made, "do": "add-passkey"})
        assert added.status_code == 303 and len(UserStore(users).list_passkeys("anna")) == 1
