"""The hub's own authorization server, at a running hub: clients connect by URL, attacks do not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub, until
from tests.peers import wire
from tests.peers.browser import (
    CALLBACK,
    HTTP,
    NO_TLS,
    PASSWORD,
    App,
    Browser,
    list_tags,
    read_forms,
)
from tests.peers.process import server_entry

from dragoman.app.store_place import open_offline_place
from dragoman.oauth.authority.passwords import build_hasher
from dragoman.stores.client_grants import ClientGrantStore
from dragoman.stores.users import UsersDatabase, UserStore

pytestmark = pytest.mark.promise("U4")

ENABLED = "[auth.server]\nenabled = true\n"
CONFIG = f'api_key = "{"k" * 32}"\n{ENABLED}'
SOON = 20.0
HASHED = build_hasher().hash(PASSWORD)


class Team:
    """A hub whose users are added beside it, as `dragoman users` does."""

    def __init__(self, hub: RunningHub) -> None:
        self.hub = hub
        self.url = hub.url
        self._number = 0
        self._place = open_offline_place(hub.home)
        self.base = UsersDatabase(self._place.__enter__())
        self.users = UserStore(self.base)
        self.grants = ClientGrantStore(self.base, self.users)

    def add(self, name: str = "", **options: Any) -> str:
        self._number += 1
        name = name or f"user{self._number}"
        return self.users.add(name, password=HASHED, **options).name

    def close(self) -> None:
        self.base.close()
        self._place.__exit__(None, None, None)

    def is_served(self, token: str) -> bool:
        reply = HTTP.get(f"{self.url}/api/tools", headers={"authorization": f"Bearer {token}"})
        assert reply.status_code in (200, 401), reply.text
        return reply.status_code == 200


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    with (
        run_module_hub([server_entry("sdk", "sdk_server")], CONFIG) as hub,
        closing(Team(hub)) as made,
    ):
        hub.wait_connected("sdk")
        yield made


@pytest.fixture
def browser(team: Team) -> Iterator[Browser]:
    with Browser(team.url) as opened:
        yield opened


# --- connecting -----------------------------------------------------------------------------------


class MemoryStorage:
    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


async def test_the_sdk_client_connects_by_url_alone(team: Team, browser: Browser) -> None:
    team.add("anna")
    answers: list[dict[str, str]] = []
    app = App(team.url, redirect_uri="http://localhost:4711/callback")

    async def open_browser(url: str) -> None:
        page = browser.sign_in("anna", url=url)
        answers.append(app.read_answer(browser.allow(page)))

    async def wait_for_callback() -> AuthorizationCodeResult:
        answer = answers.pop()
        return AuthorizationCodeResult(
            code=answer["code"], state=answer["state"], iss=answer["iss"]
        )

    storage = MemoryStorage()
    metadata = OAuthClientMetadata(client_name="SDK", redirect_uris=[AnyUrl(app.redirect_uri)])
    url = f"{team.url}/mcp"
    auth = OAuthClientProvider(url, metadata, storage, open_browser, wait_for_callback)
    async with (
        httpx.AsyncClient(auth=auth, verify=NO_TLS, timeout=SOON) as http,
        streamable_http_client(url, http_client=http) as streams,
        ClientSession(streams[0], streams[1]) as session,
    ):
        await session.initialize()
        tools = [tool.name for tool in (await session.list_tools()).tools]
        called = await session.call_tool("mcp_sdk_echo", {"text": "hello"})
    assert "mcp_sdk_echo" in tools and "hello" in str(called.content)
    assert storage.tokens is not None and storage.tokens.access_token.startswith("dgt_")
    calls = [entry for entry in team.hub.audit() if entry["asked_as"] == "mcp_sdk_echo"]
    assert [call["caller"] for call in calls] == ["user:anna"]


def test_metadata_says_what_the_specification_asks_for(team: Team) -> None:
    challenge = HTTP.post(f"{team.url}/mcp", json={}).headers["www-authenticate"]
    assert f'resource_metadata="{team.url}/.well-known/oauth-protected-resource/mcp"' in challenge
    resource = HTTP.get(f"{team.url}/.well-known/oauth-protected-resource/mcp").json()
    assert resource["authorization_servers"] == [team.url]
    for path in ("oauth-authorization-server", "openid-configuration"):
        found = HTTP.get(f"{team.url}/.well-known/{path}").json()
        assert found["issuer"] == team.url
        assert found["code_challenge_methods_supported"] == ["S256"]
        assert found["client_id_metadata_document_supported"] is True
        assert found["authorization_response_iss_parameter_supported"] is True
        assert found["registration_endpoint"] == f"{team.url}/oauth/register"


def test_a_user_enrols_by_a_link_that_works_once(team: Team, browser: Browser) -> None:
    team.users.add("elena")
    code = team.users.open_enrolment("elena", 60)
    link = f"/oauth/enroll?code={code}"
    for _ in range(2):  # looking at it does not use it up
        page = browser.get(link)
        assert page.status_code == 200 and "elena" in page.text
    short = browser.submit(page, "/oauth/enroll", password="short", again="short")
    assert short.status_code == 400 and "10 to 256" in short.text
    differ = browser.submit(page, "/oauth/enroll", password=PASSWORD, again=PASSWORD + "x")
    assert differ.status_code == 400 and "differ" in differ.text
    done = browser.submit(page, "/oauth/enroll", password=PASSWORD, again=PASSWORD)
    assert done.status_code == 303 and done.headers["location"] == "/oauth/account"
    assert browser.get(link).status_code == 404
    with Browser(team.url) as other:
        assert "elena" in other.sign_in("elena").text


def test_a_confidential_client_needs_its_secret(team: Team, browser: Browser) -> None:
    app = App(team.url).register(method="client_secret_post")
    page = browser.sign_in(team.add(), url=app.build_url())
    code = app.read_answer(browser.allow(page))["code"]
    for secret in (None, "wrong"):
        refused = app.exchange(code, client_secret=secret)
        assert refused.status_code == 401 and refused.json()["error"] == "invalid_client"
    tokens = app.exchange(code)
    assert tokens.status_code == 200
    basic = App(team.url).register(method="client_secret_basic")
    form = {"grant_type": "refresh_token", "refresh_token": tokens.json()["refresh_token"]}
    reply = HTTP.post(f"{team.url}/oauth/token", data=form, auth=(basic.id, basic.secret))
    assert reply.status_code == 400 and reply.json()["error"] == "invalid_grant"  # another client's


# --- the confused deputy --------------------------------------------------------------------------


def test_a_replayed_authorization_url_gives_no_code_in_another_browser(
    team: Team, browser: Browser
) -> None:
    """Threat 5: an attacker sends a victim the URL of a flow that the attacker has begun."""
    attacker = App(team.url).register("Evil app")
    url = attacker.build_url()
    page = browser.sign_in(team.add("mallory"), url=url)
    assert "code" in attacker.read_answer(browser.allow(page))
    # The attacker's own browser session remembers the consent.
    again = browser.get(url)
    assert again.status_code == 303 and "code=" in again.headers["location"]
    with Browser(team.url) as stranger:  # has not signed in
        shown = stranger.get(url)
        assert shown.status_code == 200 and "/oauth/login" in shown.text
    with Browser(team.url) as victim:
        victim.sign_in(team.add("victim"))
        shown = victim.get(url)
        assert shown.status_code == 200 and "Let “Evil app” use the hub as you?" in shown.text
        assert "app.example" in shown.text
        # The attacker's form token is of no use in the victim's session.
        stolen = read_forms(page.text)[0]
        refused = victim.post(stolen.action, {**stolen.fields, "decision": "allow"})
        assert refused.status_code == 403 and "location" not in refused.headers
    with Browser(team.url) as second:  # the same user, in another browser
        shown = second.sign_in("mallory", url=url)
        assert shown.status_code == 200 and "Let “Evil app”" in shown.text


def test_consent_is_remembered_for_the_same_request_only(team: Team, browser: Browser) -> None:
    app = App(team.url).register(redirect_uris=[CALLBACK, "https://app.example/other"])
    browser.allow(
        browser.sign_in(team.add(scopes=["call", "metrics"]), url=app.build_url(scope="call"))
    )
    assert browser.get(app.build_url(scope="call")).status_code == 303
    for change in (
        {"redirect_uri": "https://app.example/other"},
        {"scope": "call metrics"},
        {"resource": f"{team.url}/mcp/v/small"},
    ):
        assert browser.get(app.build_url(**{"scope": "call", **change})).status_code == 200, change
    local = App(team.url, redirect_uri="http://127.0.0.1:9/cb").register()
    browser.allow(browser.get(local.build_url()))
    assert browser.get(local.build_url()).status_code == 200  # any program could ask for it


def test_a_token_serves_for_what_the_consent_page_named(team: Team, browser: Browser) -> None:
    name = team.add(scopes=["call", "metrics", "admin"], roles=["owner"])
    app = App(team.url).register()
    page = browser.sign_in(name, url=app.build_url(scope="metrics"))
    assert "read the metrics" in page.text and "use the tools" not in page.text
    token = app.exchange(app.read_answer(browser.allow(page))["code"]).json()["access_token"]
    headers = {"Authorization": f"Bearer {token}"}
    assert wire.get(f"{team.url}/metrics", headers).status == 200
    refused = [
        wire.get(f"{team.url}/api/tools", headers),
        wire.post(f"{team.url}/api/tools/any.tool/call", {"arguments": {}}, headers),
        wire.get(f"{team.url}/api/pins", headers),
        wire.modern_request(f"{team.url}/mcp", "tools/list", {}, headers),
    ]
    for answer in refused:
        assert answer.status == 403, answer
        assert 'error="insufficient_scope"' in answer.headers["www-authenticate"]
    assert "resource_metadata=" in refused[-1].headers["www-authenticate"]


def test_a_denied_consent_returns_an_error_and_state(team: Team, browser: Browser) -> None:
    app = App(team.url).register()
    page = browser.sign_in(team.add(), url=app.build_url())
    answer = app.read_answer(browser.allow(page, "deny"))
    assert answer["error"] == "access_denied" and answer["state"] == app.state
    assert "code" not in answer and answer["iss"] == team.url


# --- requests that are refused --------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"code_challenge": None, "code_challenge_method": None},
        {"code_challenge_method": "plain"},
        {"code_challenge_method": None},
        {"code_challenge": "short"},
        {"response_type": "token"},
        {"resource": "https://other.example/mcp"},
        {"resource": "HUB.evil.example/mcp"},
        {"resource": "HUB@evil.example"},
        {"scope": "admin"},
        {"request": "e30.e30."},
    ],
    ids=lambda changes: ",".join(f"{name}={value}" for name, value in changes.items()),
)
def test_an_invalid_authorization_request_gives_no_code(
    team: Team, browser: Browser, changes: dict[str, str | None]
) -> None:
    if (resource := changes.get("resource")) is not None:
        changes = {"resource": resource.replace("HUB", team.url)}
    app = App(team.url).register()
    page = browser.sign_in(team.add(), url=app.build_url(**changes))
    assert page.status_code == 400 and "location" not in page.headers
    assert "error=" in page.text and "code=" not in page.text  # a link back, to be clicked


EVIL_REDIRECTS = (
    CALLBACK + "/",
    CALLBACK + "?x=1",
    CALLBACK + "#x",
    CALLBACK + "/../evil",
    CALLBACK + "%2f..",
    "https://app.example.evil.example/callback",
    "https://app.example@evil.example/callback",
    "https://user@app.example/callback",
    "https://app.example:8443/callback",
    "https://APP.example/callback",
    "https://app.example\\@evil.example/callback",
    "http://app.example/callback",
    "https://app.exampl/callback",
    "javascript:alert(1)",
    "//app.example/callback",
    "https://app.example/callback\r\nset-cookie: a=b",
)


def test_only_the_exact_redirect_uri_is_used(team: Team, browser: Browser) -> None:
    app = App(team.url).register()
    browser.sign_in(team.add())
    for uri in EVIL_REDIRECTS:
        page = browser.get(app.build_url(redirect_uri=uri))
        assert page.status_code == 400 and "location" not in page.headers, uri
        assert "did not register" in page.text and "<a " not in page.text, uri
    local = App(team.url, redirect_uri="http://127.0.0.1:1234/cb").register()
    assert "Let “" in browser.get(local.build_url(redirect_uri="http://127.0.0.1:9/cb")).text
    for uri in (
        "http://127.0.0.1:9/cb2",
        "http://localhost:9/cb",
        "http://127.0.0.1.evil.example/cb",
    ):
        assert browser.get(local.build_url(redirect_uri=uri)).status_code == 400, uri


def test_a_code_is_good_for_its_client_verifier_and_redirect_once(
    team: Team, browser: Browser
) -> None:
    app, other = App(team.url).register(), App(team.url).register()
    browser.sign_in(team.add())

    def get_code() -> str:
        page = browser.get(app.build_url())
        location = page.headers.get("location") or browser.allow(page)
        return app.read_answer(location)["code"]

    for changes in (
        {"code_verifier": "x" * 64},
        {"code_verifier": None},
        {"code_verifier": app.challenge},
        {"client_id": other.id},
        {"redirect_uri": "https://app.example/other"},
        {"redirect_uri": None},
        {"resource": f"{team.url}/other"},
    ):
        code = get_code()
        refused = app.exchange(code, **changes)
        assert refused.status_code == 400, changes
        assert refused.json()["error"] in ("invalid_grant", "invalid_target"), changes
        assert app.exchange(code).status_code == 400, changes  # there is one try
    code = get_code()
    tokens = app.exchange(code).json()
    assert team.is_served(tokens["access_token"])
    replayed = app.exchange(code)
    assert replayed.status_code == 400 and replayed.json()["error"] == "invalid_grant"
    assert not team.is_served(tokens["access_token"])  # the code may have been stolen
    assert app.refresh(tokens["refresh_token"]).status_code == 400


def test_a_reused_refresh_token_ends_the_connection(team: Team, browser: Browser) -> None:
    app = App(team.url).register()
    first = app.connect(browser, team.add())
    second = app.refresh(first["refresh_token"], resource=f"{team.url}/mcp").json()
    assert second["refresh_token"] != first["refresh_token"]
    # A response may be lost: the previous token is accepted for a moment. Make that moment pass.
    with team.base.transact() as db:
        db.execute("UPDATE tokens SET used_at = used_at - 60 WHERE used_at IS NOT NULL")
    third = app.refresh(second["refresh_token"]).json()
    assert team.is_served(third["access_token"])
    assert app.refresh(first["refresh_token"]).json()["error"] == "invalid_grant"
    for tokens in (second, third):
        assert not team.is_served(tokens["access_token"])
        assert app.refresh(tokens["refresh_token"]).status_code == 400
    other = App(team.url).register()
    with Browser(team.url) as fresh:
        again = app.connect(fresh, team.add())
    assert other.refresh(again["refresh_token"]).status_code == 400  # another client's
    assert app.refresh(again["refresh_token"]).status_code == 200  # which does not end it


def test_revocation_by_the_client_ends_its_tokens_and_no_others(
    team: Team, browser: Browser
) -> None:
    app, other = App(team.url).register(), App(team.url).register()
    name = team.add()
    mine = app.connect(browser, name)
    with Browser(team.url) as second:
        theirs = other.connect(second, name)
    token = {"token": mine["refresh_token"]}
    assert app.post_form("/oauth/revoke", {**token, "client_id": other.id}).status_code == 200
    assert team.is_served(mine["access_token"])
    assert app.post_form("/oauth/revoke", {**token, "client_id": app.id}).status_code == 200
    assert not team.is_served(mine["access_token"]) and team.is_served(theirs["access_token"])
    assert app.post_form("/oauth/revoke", {**token, "client_id": app.id}).status_code == 200


# --- pages ----------------------------------------------------------------------------------------


def test_the_pages_cannot_be_framed_or_run_foreign_code(team: Team, browser: Browser) -> None:
    evil = '"><script>alert(1)</script><img src=x onerror=alert(2)>\u202e'
    app = App(team.url).register(evil)
    name = team.add()
    login = browser.get(app.build_url())
    consent = browser.sign_in(name, url=app.build_url())
    location = browser.allow(consent)
    app.exchange(app.read_answer(location)["code"])
    account = browser.get("/oauth/account")
    problem = browser.get("/oauth/authorize?client_id=<script>alert(1)</script>&redirect_uri=x")
    for page in (login, consent, account, problem):
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "base-uri 'none'" in policy
        assert page.headers["x-frame-options"] == "DENY"
        assert page.headers["cache-control"] == "no-store"
        assert page.headers["x-content-type-options"] == "nosniff"
        assert not {"img", "iframe", "object"} & set(list_tags(page.text))
        assert "<script>" not in page.text and "\u202e" not in page.text
    assert "form-action 'self' https://app.example;" in consent.headers["content-security-policy"]
    assert "alert(1)" in consent.text  # as text
    script = browser.get("/oauth/passkeys.js")
    assert script.headers["content-type"].startswith("text/javascript")


def test_forms_of_other_sites_and_sessions_are_refused(team: Team, browser: Browser) -> None:
    app = App(team.url).register()
    name = team.add()
    page = browser.sign_in(name, url=app.build_url())
    form = next(one for one in read_forms(page.text) if one.action.startswith("/oauth/authorize"))
    for fields in ({}, {"token": ""}, {"token": "0" * 64}, {"token": "é"}):
        refused = browser.post(form.action, {**fields, "decision": "allow"})
        assert refused.status_code == 403 and "location" not in refused.headers, fields
    # A token is for one request: an attacker cannot change the redirect or the client.
    other = App(team.url, redirect_uri="https://evil.example/cb").register()
    refused = browser.post(other.build_url(), {**form.fields, "decision": "allow"})
    assert refused.status_code == 403
    evil = browser.post(form.action, {**form.fields, "decision": "allow"}, "https://evil.example")
    assert evil.status_code == 403
    account = browser.get("/oauth/account")
    assert browser.post("/oauth/logout", {"token": "0" * 64}).status_code == 403
    assert browser.post("/oauth/account", {"do": "remove-passkeys"}).status_code == 403
    assert browser.submit(account, "/oauth/logout").status_code == 200
    assert "/oauth/login" in browser.get("/oauth/account").text
    with Browser(team.url) as fresh:  # signing a victim in as the attacker
        fields = {"user": name, "password": PASSWORD, "token": "0" * 64, "next": "/oauth/account"}
        refused = fresh.post("/oauth/login", fields)
        assert refused.status_code == 403 and not any("session" in one for one in fresh.cookies)


def test_a_sign_in_leads_to_pages_of_the_hub_only(team: Team, browser: Browser) -> None:
    name = team.add()
    for next in (
        "https://evil.example/",
        "//evil.example/oauth/account",
        "/\\evil.example",
        "/oauth/authorize",
        "/oauth/account/../../evil",
        "/oauth/authorize?x\r\nlocation: https://evil.example",
        "javascript:alert(1)",
    ):
        with Browser(team.url) as fresh:
            page = fresh.get("/oauth/login")
            done = fresh.submit(page, "/oauth/login", user=name, password=PASSWORD, next=next)
            assert done.status_code == 303 and done.headers["location"] == "/oauth/account", next


def test_the_session_cookie_is_private_and_new_at_each_sign_in(team: Team) -> None:
    name = team.add()
    seen = set()
    with Browser(team.url) as browser:
        for _ in range(2):
            page = browser.get("/oauth/login")
            done = browser.submit(page, "/oauth/login", user=name, password=PASSWORD)
            cookie = next(one for one in done.headers.get_list("set-cookie") if "session" in one)
            assert "HttpOnly" in cookie and "SameSite=Lax" in cookie and "Path=/" in cookie
            seen.add(cookie.partition(";")[0])
        jar = browser.cookies
    assert len(seen) == 2
    old = min(seen - {f"{key}={value}" for key, value in jar.items()})
    assert "/oauth/login" in HTTP.get(f"{team.url}/oauth/account", headers={"cookie": old}).text
    session = next(f"{key}={value}" for key, value in jar.items() if "session" in key)
    twice = {"cookie": f"{session}; {session}"}
    assert "/oauth/login" in HTTP.get(f"{team.url}/oauth/account", headers=twice).text
    stored = (team.hub.home / "users.db").read_bytes()
    for value in jar.values():
        assert value.encode() not in stored


def test_wrong_passwords_are_limited_from_one_address_only(team: Team, browser: Browser) -> None:
    name = team.add()
    own = Browser(team.url)
    account = own.sign_in(name)
    own.submit(account, "/oauth/logout")
    page = browser.get("/oauth/login")
    for wrong in ("wrong", ""):
        answers = [
            browser.submit(page, "/oauth/login", user=who, password=wrong)
            for who in (name, "nobody-there")
        ]
        assert {one.status_code for one in answers} == {401}
        assert len({one.text.replace(name, "nobody-there") for one in answers}) == 1
    codes = [
        browser.submit(page, "/oauth/login", user=name, password="wrong").status_code
        for _ in range(12)
    ]
    assert codes.count(429) >= 2 and codes[-1] == 429
    other = browser.submit(page, "/oauth/login", user=team.add(), password=PASSWORD)
    assert other.status_code == 303  # other users are not affected
    with own:  # and neither is the user in a browser of their own
        assert name in own.sign_in(name).text


# --- the end of access ----------------------------------------------------------------------------


def test_removing_a_user_ends_everything_of_theirs_within_a_second(
    team: Team, browser: Browser
) -> None:
    app = App(team.url).register()
    gone, stays = team.add(), team.add()
    tokens = app.connect(browser, gone)
    with Browser(team.url) as other:
        kept = App(team.url).register().connect(other, stays)
        ended, heard = threading.Event(), threading.Event()

        def hear(token: str, done: threading.Event) -> None:
            headers = {"Authorization": f"Bearer {token}"}
            with wire.stream("GET", f"{team.url}/api/events", None, headers, 60) as stream:
                heard.set()
                try:
                    while True:
                        stream.next()
                except EOFError:
                    done.set()

        threading.Thread(target=hear, args=(tokens["access_token"], ended), daemon=True).start()
        assert heard.wait(SOON)
        done = team.hub.command("users", "remove", gone)
        assert done.returncode == 0, done.stderr
        assert ended.wait(SOON)
        assert not team.is_served(tokens["access_token"])
        assert app.refresh(tokens["refresh_token"]).status_code == 400
        assert "/oauth/login" in browser.get("/oauth/account").text
        page = browser.get("/oauth/login")
        assert browser.submit(page, "/oauth/login", user=gone, password=PASSWORD).status_code == 401
        assert team.is_served(kept["access_token"])
        assert stays in other.get("/oauth/account").text
    recorded = {"user.add", "user.sign_in", "token.grant", "user.remove"}
    until(lambda: recorded <= _verbs(team, gone))


@pytest.mark.promise("U7")
@pytest.mark.parametrize("end", ["a sign-out", "a new password"])
def test_the_console_of_a_user_ends_with_the_session_of_the_browser(
    team: Team, browser: Browser, end: str
) -> None:
    name = team.add()
    account = browser.sign_in(name)
    assert f"Continue as user:{name}" in browser.get("/console/login").text
    opened = browser.post("/console/login", {"user": "1"})
    assert opened.status_code == 303, opened.text
    assert browser.get("/api/session").json()["principal"] == f"user:{name}"
    stolen = "; ".join(f"{cookie}={value}" for cookie, value in browser.cookies.items())
    with Browser(team.url) as thief:
        assert thief.get("/api/session", cookie=stolen).status_code == 200
        if end == "a sign-out":
            assert browser.submit(account, "/oauth/logout").status_code == 200
        else:
            team.users.set_password(name, HASHED)
        for user in (thief, browser):
            refused = user.get("/api/session", **({"cookie": stolen} if user is thief else {}))
            assert refused.status_code == 401, refused.text


def _verbs(team: Team, name: str) -> set[str]:
    return {entry["verb"] for entry in team.hub.audit() if entry["caller"] == f"user:{name}"}


def test_a_user_disconnects_an_app_and_the_operator_lists_and_revokes(
    team: Team, browser: Browser
) -> None:
    app = App(team.url).register("First")
    name = team.add()
    tokens = app.connect(browser, name)
    page = browser.get("/oauth/account")
    assert "First" in page.text
    form = next(one for one in read_forms(page.text) if "grant" in one.fields)
    with Browser(team.url) as other:  # another user cannot disconnect it
        account = other.sign_in(team.add())
        own = next(one for one in read_forms(account.text) if one.action == "/oauth/logout")
        foreign = {**own.fields, "grant": form.fields["grant"], "do": "disconnect"}
        other.post("/oauth/account", foreign)
        assert team.is_served(tokens["access_token"])
    assert browser.post("/oauth/account", {**form.fields, "do": "disconnect"}).status_code == 303
    assert not team.is_served(tokens["access_token"])
    with Browser(team.url) as fresh:
        tokens = App(team.url).register("Second").connect(fresh, name)
    grant = team.grants.list(name)[0]
    assert team.hub.command("users", "tokens", "--revoke", grant.id).returncode == 0
    until(lambda: not team.is_served(tokens["access_token"]), 60)


def test_registrations_are_checked_and_limited(team: Team) -> None:
    def register(**metadata: Any) -> httpx.Response:
        body = {"redirect_uris": [CALLBACK], **metadata}
        return HTTP.post(f"{team.url}/oauth/register", json=body)

    unusable: list[dict[str, Any]] = [
        {"redirect_uris": []},
        {"redirect_uris": ["http://app.example/cb"]},
        {"redirect_uris": ["javascript:alert(1)"]},
        {"redirect_uris": ["https://a.example/cb#x"]},
        {"redirect_uris": [CALLBACK] * 11},
        {"redirect_uris": "x"},
        {"grant_types": ["password"]},
        {"token_endpoint_auth_method": "private_key_jwt"},
        {"client_name": {}},
    ]
    for bad in unusable:
        assert register(**bad).status_code == 400, bad
    large = register(client_name="x" * 40_000)
    assert large.status_code == 413
    chunked = HTTP.post(f"{team.url}/oauth/register", content=iter([b"{}"]))
    assert chunked.status_code == 411
    statuses = [register().status_code for _ in range(80)]
    assert 429 in statuses


def test_the_hub_needs_https_beyond_loopback(tmp_path: Path) -> None:
    from dragoman.config import parse
    from dragoman.core.errors import ConfigError

    for server in (
        'host = "0.0.0.0"',
        'public_url = "http://hub.example.com"',
        'public_url = "https://hub.example.com/path"',
        'public_url = "https://user@hub.example.com"',
    ):
        with pytest.raises(ConfigError):
            parse(f"[server]\n{server}\n{ENABLED}")
    for server in ('public_url = "https://hub.example.com"', 'public_url = "http://localhost:8"'):
        assert parse(f"[server]\n{server}\n{ENABLED}").auth.server.enabled
