"""A scripted browser: cookies, forms and redirects, as a person at the hub's pages would use them.

Follows no redirect by itself, runs no script, and sends the Origin of the hub with its forms.
"""

from __future__ import annotations

import atexit
import base64
import hashlib
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

import httpx2 as httpx

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""One for all clients: to make one takes longer than a request."""
HTTP = httpx.Client(verify=NO_TLS, timeout=60.0)
"""For requests without cookies."""
atexit.register(HTTP.close)
CALLBACK = "https://app.example/callback"
PASSWORD = "correct horse battery"


@dataclass
class Form:
    action: str
    fields: dict[str, str] = field(default_factory=dict)
    """The hidden fields."""
    attributes: dict[str, str] = field(default_factory=dict)


class _Forms(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        if tag == "form":
            self.forms.append(Form(found["action"], attributes=found))
        elif tag == "input" and found.get("type") == "hidden" and self.forms:
            self.forms[-1].fields[found["name"]] = found.get("value", "")


def read_forms(page: str) -> list[Form]:
    parser = _Forms()
    parser.feed(page)
    return parser.forms


def list_tags(page: str) -> list[str]:
    parser = _Forms()
    parser.feed(page)
    return parser.tags


class Browser:
    """Use it with `with`."""

    def __init__(self, hub: str) -> None:
        self.hub = hub
        self._client = httpx.Client(base_url=hub, verify=NO_TLS, timeout=60.0)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    @property
    def cookies(self) -> dict[str, str]:
        return dict(self._client.cookies)

    def get(self, url: str, **headers: str) -> httpx.Response:
        return self._client.get(url, headers=headers)

    def post(
        self, url: str, fields: Mapping[str, str], origin: str | None = "own"
    ) -> httpx.Response:
        headers = {} if origin is None else {"origin": self.hub if origin == "own" else origin}
        return self._client.post(url, data=dict(fields), headers=headers)

    def submit(self, page: httpx.Response, action: str, **fields: str) -> httpx.Response:
        """Sends the form of a page whose action begins with `action`."""
        form = next(one for one in read_forms(page.text) if one.action.startswith(action))
        return self.post(form.action, {**form.fields, **fields})

    def sign_in(self, user: str, password: str = PASSWORD, url: str = "/oauth/account") -> Any:
        """Opens `url`, signs in, and returns the page that follows."""
        page = self.get(url)
        assert page.status_code == 200, page.text
        done = self.submit(page, "/oauth/login", user=user, password=password)
        assert done.status_code == 303, (done.status_code, done.text)
        return self.get(done.headers["location"])

    def allow(self, page: httpx.Response, decision: str = "allow") -> str:
        """Submits the consent page and returns where it leads."""
        done = self.submit(page, "/oauth/authorize", decision=decision)
        assert done.status_code == 303, (done.status_code, done.text)
        return str(done.headers["location"])


@dataclass
class App:
    """A client that has registered itself, and a run of the code flow."""

    hub: str
    redirect_uri: str = CALLBACK
    id: str = ""
    secret: str = ""
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(48))
    state: str = field(default_factory=lambda: secrets.token_urlsafe(12))

    def register(self, name: str = "Test app", method: str = "none", **more: Any) -> App:
        body = {
            "client_name": name,
            "redirect_uris": [self.redirect_uri],
            "token_endpoint_auth_method": method,
            **more,
        }
        done = HTTP.post(f"{self.hub}/oauth/register", json=body)
        assert done.status_code == 201, done.text
        self.id, self.secret = done.json()["client_id"], done.json().get("client_secret", "")
        return self

    @property
    def challenge(self) -> str:
        digest = hashlib.sha256(self.verifier.encode()).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    def build_url(self, **changes: str | None) -> str:
        """The URL that the app sends the browser to; None leaves a parameter out."""
        query: dict[str, str | None] = {
            "response_type": "code",
            "client_id": self.id,
            "redirect_uri": self.redirect_uri,
            "state": self.state,
            "code_challenge": self.challenge,
            "code_challenge_method": "S256",
            "resource": f"{self.hub}/mcp",
            **changes,
        }
        chosen = {name: value for name, value in query.items() if value is not None}
        return f"/oauth/authorize?{urlencode(chosen)}"

    def read_answer(self, location: str) -> dict[str, str]:
        assert urljoin(location, urlsplit(location).path) == self.redirect_uri, location
        return dict(parse_qsl(urlsplit(location).query))

    def exchange(self, code: str, **changes: str | None) -> httpx.Response:
        form: dict[str, str | None] = {
            "grant_type": "authorization_code",
            "code": code,
            "client_id": self.id,
            "redirect_uri": self.redirect_uri,
            "code_verifier": self.verifier,
            "client_secret": self.secret or None,
            **changes,
        }
        return self.post_form("/oauth/token", form)

    def refresh(self, token: str, **changes: str | None) -> httpx.Response:
        form = {"grant_type": "refresh_token", "refresh_token": token, "client_id": self.id}
        return self.post_form("/oauth/token", {**form, **changes})

    def post_form(self, path: str, form: Mapping[str, str | None]) -> httpx.Response:
        chosen = {name: value for name, value in form.items() if value is not None}
        return HTTP.post(f"{self.hub}{path}", data=chosen)

    def connect(self, browser: Browser, user: str) -> dict[str, Any]:
        """Signs in, consents and returns the response of the token endpoint."""
        page = browser.sign_in(user, url=self.build_url())
        answer = self.read_answer(browser.allow(page))
        assert answer["state"] == self.state and answer["iss"] == self.hub
        done = self.exchange(answer["code"])
        assert done.status_code == 200, done.text
        tokens: dict[str, Any] = done.json()
        return tokens
