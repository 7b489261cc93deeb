"""Sign-in at an identity provider in front of the hub's users; it is made with Authlib."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import jwt
import pytest
from joserfc.jwk import ECKey
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub
from tests.peers.browser import HTTP, App, Browser
from tests.peers.oidc_provider import CLIENT_ID, SECRET, OidcProvider, run_oidc_provider

from dragoman.stores.users import UsersDatabase, UserStore

pytestmark = pytest.mark.promise("U4")

CONFIG = """
[auth.server]
enabled = true
[auth.server.oidc]
issuer = "ISSUER"
client_id = "dragoman"
client_secret = "env:OIDC_SECRET"
name = "Example"
allowed_domains = ["example.com"]
required_claims = { department = "tools" }
roles_claim = "groups"
create_users = true
org = "example"
"""


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[RunningHub, OidcProvider]]:
    with run_oidc_provider() as provider:
        config = CONFIG.replace("ISSUER", provider.issuer)
        with run_module_hub([], config, {"OIDC_SECRET": SECRET}) as hub:
            provider.redirect_uri = f"{hub.url}/oauth/oidc/callback"
            yield hub, provider


@pytest.fixture
def hub(running: tuple[RunningHub, OidcProvider]) -> RunningHub:
    return running[0]


@pytest.fixture
def provider(running: tuple[RunningHub, OidcProvider]) -> Iterator[OidcProvider]:
    made = running[1]
    made.person = {
        **{"sub": "1", "email": "Anna@example.com", "email_verified": True},
        **{"department": ["tools", "other"], "groups": ["editors", "owner", "not a role"]},
    }
    yield made
    made.change_claims, made.sign, made.denies = (lambda claims: claims), None, False


@pytest.fixture
def users(hub: RunningHub) -> Iterator[UserStore]:
    base = UsersDatabase(hub.home)
    with closing(base):
        yield UserStore(base)


def begin(browser: Browser, url: str = "/oauth/account") -> str:
    """Follows the sign-in page to the provider and returns where that sends the browser."""
    page = browser.get(url)
    assert "Sign in with Example" in page.text
    start = page.text.partition('class="button" href="')[2].partition('"')[0].replace("&amp;", "&")
    sent = browser.get(start)
    assert sent.status_code == 303, sent.text
    back = HTTP.get(sent.headers["location"], follow_redirects=False)
    assert back.status_code == 302, back.text
    return str(back.headers["location"])


def test_the_first_sign_in_adds_the_user_and_the_app_connects(
    hub: RunningHub, provider: OidcProvider, users: UserStore
) -> None:
    app = App(hub.url).register()
    with Browser(hub.url) as browser:
        done = browser.get(begin(browser, app.build_url()))
        assert done.status_code == 303, done.text
        page = browser.get(done.headers["location"])
        answer = app.read_answer(browser.allow(page))
    tokens = app.exchange(answer["code"]).json()
    headers = {"authorization": f"Bearer {tokens['access_token']}"}
    assert HTTP.get(f"{hub.url}/api/tools", headers=headers).status_code == 200
    added = users.get("anna@example.com")
    assert added.org == "example" and added.roles == ("editors",)  # never the role owner
    provider.person["email"] = "other@example.com"  # the subject counts, not the address
    with Browser(hub.url) as browser:
        browser.get(begin(browser))
        assert "anna@example.com" in browser.get("/oauth/account").text
    assert users.find("other@example.com") is None


@pytest.mark.parametrize(
    "change",
    [
        {"email": "eve@evil.example"},
        {"email": "eve@example.com.evil.example"},
        {"email": "<img src=x onerror=alert(1)>eve@example.com"},
        {"email": "eve@<img src=x onerror=alert(1)>"},
        {"email_verified": False},
        {"email_verified": "true"},
        {"email": None},
        {"department": "sales"},
        {"department": None},
        {"nonce": "another"},
        {"nonce": None},
        {"aud": "another-client"},
        {"aud": [CLIENT_ID, "other"], "azp": "other"},
        {"iss": "https://evil.example"},
        {"exp": 1},
        {"exp": None},
        {"sub": None},
        {"iat": None},
    ],
    ids=str,
)
def test_claims_that_do_not_fit_open_no_session(
    hub: RunningHub, provider: OidcProvider, users: UserStore, change: dict[str, Any]
) -> None:
    provider.person["sub"] = "eve"
    provider.person["email"] = "eve@example.com"

    def change_claims(claims: dict[str, Any]) -> dict[str, Any]:
        changed = {**claims, **change}
        return {name: value for name, value in changed.items() if value is not None}

    provider.change_claims = change_claims
    with Browser(hub.url) as browser:
        refused = browser.get(begin(browser))
        assert refused.status_code == 403, refused.text
        assert "<img" not in refused.text
        assert not any("session" in name for name in browser.cookies)
    assert not [one for one in users.list() if "eve" in one.name]


def test_an_id_token_that_the_provider_did_not_sign_is_refused(
    hub: RunningHub, provider: OidcProvider
) -> None:
    other: Any = ECKey.generate_key("P-256")
    none: Any = None
    public = provider.key.as_pem(private=False)
    heads = {"kid": "first"}
    forgeries = {
        "another key": lambda claims: jwt.encode(claims, other.private_key, "ES256", headers=heads),
        "another kid": lambda claims: jwt.encode(
            claims, other.private_key, "ES256", headers={"kid": "other"}
        ),
        "no signature": lambda claims: jwt.encode(claims, none, "none", headers=heads),
        "the public key as secret": lambda claims: _forge_hs256(claims, public),
        "no token": lambda claims: "x.y.z",
    }
    for what, sign in forgeries.items():
        provider.sign = sign
        with Browser(hub.url) as browser:
            refused = browser.get(begin(browser))
            assert refused.status_code == 403, what
            assert not any("session" in name for name in browser.cookies), what


def _forge_hs256(claims: dict[str, Any], key: bytes) -> str:
    import base64
    import hashlib
    import hmac
    import json

    def encode(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    head = encode(json.dumps({"alg": "HS256", "typ": "JWT", "kid": "first"}).encode())
    signed = f"{head}.{encode(json.dumps(claims).encode())}"
    return f"{signed}.{encode(hmac.new(key, signed.encode(), hashlib.sha256).digest())}"


def test_the_answer_of_the_provider_belongs_to_one_browser_and_counts_once(
    hub: RunningHub, provider: OidcProvider
) -> None:
    with Browser(hub.url) as browser, Browser(hub.url) as victim:
        victim.get("/oauth/login")
        location = begin(browser)
        # An attacker's answer in the victim's browser would sign the victim in as the attacker.
        assert victim.get(location).status_code == 403
        assert browser.get(location).status_code == 403  # it has been used
        location = begin(browser)
        assert browser.get(location.replace("state=", "state=x")).status_code == 403
        assert browser.get(location + "&iss=https%3A%2F%2Fevil.example").status_code == 403
        location = begin(browser)
        assert browser.get(location).status_code == 303
        assert browser.get(location).status_code == 403


def test_a_denied_sign_in_leads_back_to_the_sign_in_page(
    hub: RunningHub, provider: OidcProvider
) -> None:
    provider.denies = True
    with Browser(hub.url) as browser:
        location = begin(browser)
        assert dict(parse_qsl(urlsplit(location).query))["error"] == "access_denied"
        page = browser.get(location)
    assert page.status_code == 403 and "Example did not sign you in" in page.text


def test_an_identity_takes_over_no_user_with_another_way_in(
    hub: RunningHub, provider: OidcProvider, users: UserStore
) -> None:
    users.add("bob@example.com", password="$argon2id$x", roles=["owner"])
    users.add("carol@example.com", roles=["editor"])
    for name, expected in (("bob", 403), ("carol", 303)):
        provider.person |= {"sub": name, "email": f"{name}@example.com"}
        with Browser(hub.url) as browser:
            assert browser.get(begin(browser)).status_code == expected, name
    assert users.get("bob@example.com").subject == ""
    assert users.get("carol@example.com").roles == ("editor",)
    users.remove("carol@example.com")
    with Browser(hub.url) as browser:  # a removed user does not come back
        assert browser.get(begin(browser)).status_code == 403
