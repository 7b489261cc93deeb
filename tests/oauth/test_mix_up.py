"""Mix-up (RFC 9700, section 4.4): an authorization server that sends people to log in at another
one does not get the code of that one."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import ClassVar

import httpx
import pytest
from mcp.shared.auth import OAuthClientInformationFull
from pydantic import AnyUrl
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from tests.oauth.authlib_authority import AuthlibAuthority, Client
from tests.oauth.login_rig import LoginBrowser, LoginRig, build_login_rig
from tests.oauth.served import Browser, bind, serve
from tests.oauth.world import REDIRECT, World

from dragoman.core.errors import BadReply, Declined
from dragoman.oauth.client.records import SHARED
from dragoman.oauth.config import OAuthSettings

ELSEWHERE = "https://login.honest.example"


def mark(issuer: str) -> str:
    return hashlib.sha256(issuer.encode()).hexdigest()[:32]


class HostileAuthority(AuthlibAuthority):
    """Sends people to log in at another authorization server, as the client that the hub has
    there."""

    client = ""
    users: ClassVar[dict[str, str]] = {}

    async def _register(self, request: Request) -> Response:
        return JSONResponse({**await request.json(), "client_id": self.client}, 201)


def add_client(rig: LoginRig, id: str) -> None:
    """Adds the hub as a client of the honest server, with its redirect URIs there."""
    plain = f"{rig.url}/oauth/callback"
    uris = [AnyUrl(plain), AnyUrl(f"{plain}/{mark(rig.authority.issuer)}")]
    rig.authority.clients[id] = OAuthClientInformationFull(
        client_id=id,
        redirect_uris=uris,
        token_endpoint_auth_method="none",
        scope="read offline_access",
    )


async def test_a_code_of_another_authorization_server_is_sent_nowhere(short_tmp: Path) -> None:
    async with build_login_rig(short_tmp, credentials="user", opens_lists=True) as rig:
        listener, base = bind()
        hostile = HostileAuthority(base, sends_iss=False)
        hostile.metadata = {"authorization_endpoint": f"{rig.authority.base}/authorize"}
        hostile.client = "the-hub"
        add_client(rig, "the-hub")
        rig.server.authority = hostile  # type: ignore[assignment]
        async with serve(hostile.app, listener):
            begun = (await rig.api("POST", "/api/mcp/servers/files/login", "anna", {})).json()
            browser = LoginBrowser("anna")
            page = await browser.client.get(begun["url"])
            started = await browser.submit(page)
            refused = await browser.visit(started.headers["location"])
            assert hostile.token_requests == []
            assert refused.status_code == 400, refused.text
            assert str(refused.url).startswith(rig.authority.base), "the redirect URI was accepted"
            # An answer that arrives at the redirect URI of the honest server is refused as well.
            state = httpx.URL(started.headers["location"]).params["state"]
            at = f"{rig.url}/oauth/callback/{mark(rig.authority.issuer)}"
            ended = await browser.client.get(at, params={"state": state, "code": "honest-code"})
            assert ended.status_code == 400 and "another authorization server" in ended.text
            await browser.close()
        assert hostile.token_requests == []
        # The page has said where it leads, and that this is not where the server claims to be.
        assert rig.authority.base in page.text
        assert "Take care" in page.text and base in page.text


async def test_an_answer_is_accepted_at_the_uri_of_its_issuer_only(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    authority.sends_iss = False
    for wrong in ("", mark("https://honest.example"), "x"):
        tokens = authlib_world.manage()
        login = await tokens.begin_login(SHARED)
        query = await Browser(authlib_world.redirect_uri).log_in(login.url)
        with pytest.raises(BadReply, match="no code was sent"):
            await tokens.finish_login(login.state, query, wrong)
    assert authority.token_requests == []
    assert (await authlib_world.log_in(authlib_world.manage())).issuer == authority.issuer


@pytest.mark.parametrize(("callback", "end"), [("plain", ""), ("issuer", "/{mark}")])
async def test_a_configured_client_keeps_the_redirect_uri_that_it_is_registered_with(
    authlib_world: World, authority: AuthlibAuthority, callback: str, end: str
) -> None:
    authority.sends_iss = False
    uri = REDIRECT + end.format(mark=mark(authority.issuer))
    authority.clients["mine"] = Client("mine", redirect_uris=(uri,))
    settings = OAuthSettings(client_id="mine", callback=callback)  # type: ignore[arg-type]
    assert (await authlib_world.log_in(authlib_world.manage(settings))).issuer == authority.issuer
    assert authority.registrations == 0


async def test_the_plain_redirect_uri_is_not_used_where_people_log_in_elsewhere(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    authority.sends_iss = False
    authority.metadata = {"authorization_endpoint": f"{ELSEWHERE}/authorize"}
    settings = OAuthSettings(client_id="mine")
    uri = re.escape(f"{REDIRECT}/{mark(authority.issuer)}")
    with pytest.raises(Declined, match=f'redirect URI {uri} .*callback = "issuer"'):
        await authlib_world.manage(settings).begin_login(SHARED)
    # It is where the answer must name its issuer, or comes to a URI of that issuer alone.
    own = OAuthSettings(client_id="mine", callback="issuer")
    assert (await authlib_world.manage(own).begin_login(SHARED)).url.startswith(ELSEWHERE)
    authority.sends_iss = True
    assert (await authlib_world.manage(settings).begin_login(SHARED)).url.startswith(ELSEWHERE)
