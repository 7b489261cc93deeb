"""The login desk: device flows, whose link it is, and how many there may be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.oauth.authlib_authority import AuthlibAuthority
from tests.oauth.world import World

from dragoman.core.access import USER_REMOVED
from dragoman.core.bus import Bus
from dragoman.core.errors import Denied, NotFound, Overloaded
from dragoman.core.events import LoginChanged
from dragoman.core.principal import OWNER, Principal
from dragoman.oauth.logins.accounts import SERVER, AccountSpec, LoginAccount, OAuthServices
from dragoman.oauth.logins.desk import MAX_LINKS, MAX_LINKS_EACH, HubLoginDesk, Login
from dragoman.oauth.logins.pages import LoginPages
from dragoman.wire.http import HttpClient

BASE = "http://127.0.0.1:4150"
ANNA, BOB = Principal("user", "anna"), Principal("user", "bob")


class Rig:
    def __init__(self, world: World) -> None:
        self.events: list[LoginChanged] = []
        self.noted: list[str] = []
        bus = Bus()
        bus.observe(LoginChanged, self.events.append)
        self.desk = HubLoginDesk(
            bus,
            lambda: BASE,
            lambda principal: principal == OWNER,
            lambda account, holder: self.noted.append(holder),
        )

        def open_http(url: str, private: bool, follow: bool) -> HttpClient:
            return world.outbound.open_configured(url, allow_private=private, follow=follow)

        services = OAuthServices(
            open_http,
            lambda: world.store,
            lambda: True,
            world._resolve,
            lambda issuer: world.redirect_uri,
            lambda issuer: "",
        )
        spec = AccountSpec(
            name="files",
            kind=SERVER,
            url=world.resource.url,
            allow_private=True,
            is_per_user=True,
        )
        self.account = LoginAccount(spec, services, self.desk.note_status)
        self.account._tokens = world.manage()  # with the short times of the tests
        self.desk.add_account(self.account)


@asynccontextmanager
async def build_rig(world: World) -> AsyncIterator[Rig]:
    rig = Rig(world)
    yield rig
    await rig.desk.close()


async def test_logins_on_other_devices_are_bounded_and_end_with_their_user(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    async with build_rig(authlib_world) as rig:
        for _ in range(MAX_LINKS_EACH):
            login, shown = await rig.desk.begin_device(rig.account, ANNA, shared=False)
        with pytest.raises(Overloaded):
            await rig.desk.begin_device(rig.account, ANNA, shared=False)
        rig.desk.end_principals(lambda principal: USER_REMOVED)
        authority.decisions[shown["user_code"]] = True
        assert USER_REMOVED in await asyncio.wait_for(login.done, 60)
        await rig.desk._background.close()
        assert not rig.account.list_holders() and not rig.noted.count(BOB.key)


async def test_a_login_on_another_device_is_followed(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    async with build_rig(authlib_world) as rig:
        login, shown = await rig.desk.begin_device(rig.account, ANNA, shared=False)
        assert shown["user_code"] and shown["verification_uri"].startswith("http")
        assert rig.desk.get_own_login(login.id, ANNA).render()["state"] == "started"
        with pytest.raises(NotFound):
            rig.desk.get_own_login(login.id, BOB)
        authority.decisions[shown["user_code"]] = True
        assert await asyncio.wait_for(login.done, 60) == ""
        assert rig.desk.describe(rig.account, ANNA.key)["state"] == "valid"
        assert rig.noted == [ANNA.key]
        assert [event.action for event in rig.events] == ["login"]
        assert rig.account.has_login(ANNA.key) and not rig.account.has_login(BOB.key)


async def test_links_are_bounded_and_reused(authlib_world: World) -> None:
    async with build_rig(authlib_world) as rig:
        first = rig.desk.begin(rig.account, ANNA, shared=False)
        assert rig.desk.begin(rig.account, ANNA, shared=False) is first
        assert rig.desk.begin(rig.account, BOB, shared=False) is not first
        for number in range(MAX_LINKS_EACH - 1):
            rig.desk.begin(rig.account, ANNA, (f"scope{number}",), shared=False)
        with pytest.raises(Overloaded):
            rig.desk.begin(rig.account, ANNA, ("more",), shared=False)
        rig.desk.begin(rig.account, BOB, ("more",), shared=False)
        for principal in (ANNA, Principal("agent", "a", serves="a")):
            with pytest.raises(Denied):
                rig.desk.begin(rig.account, principal, shared=principal == ANNA)


async def test_ended_logins_of_one_user_leave_room_for_others(authlib_world: World) -> None:
    async with build_rig(authlib_world) as rig:
        for number in range(MAX_LINKS + 1):
            login = rig.desk.begin(rig.account, ANNA, (f"scope{number}",), shared=False)
            rig.desk._fail(login, "denied")
        assert rig.desk.begin(rig.account, BOB, shared=False).is_pending
        assert len(rig.desk._logins) <= MAX_LINKS


class PageRequest:
    """A request for a page, and its response."""

    def __init__(self, login: Login, method: str = "GET", query: bytes = b"") -> None:
        self.method, self.path, self.query = method, f"/oauth/connect/{login.id}", query
        self.fields: dict[bytes, bytes] = {}
        self.status, self.body = 0, b""
        self.headers: dict[bytes, bytes] = {}

    def reply(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.status, self.headers, self.body = status, dict(headers), body


async def test_a_signed_in_browser_must_be_the_users_own(authlib_world: World) -> None:
    """A link of one user in the browser of another starts no login: account-linking CSRF."""
    async with build_rig(authlib_world) as rig:
        signed_in: list[Principal | None] = [None]
        pages = LoginPages(
            rig.desk,
            lambda issuer: {},
            lambda request: signed_in[0],
            lambda principal, path: f"/oauth/login?next={path}",
        )
        login = rig.desk.begin(rig.account, ANNA, shared=False)

        async def ask(method: str = "GET", query: bytes = b"") -> Any:
            request: Any = PageRequest(login, method, query)
            work = pages.serve(request, None)
            if work is not None:
                await work
            return request

        assert (await ask()).headers[b"location"].startswith(b"/oauth/login?next=/oauth/connect/")
        signed_in[0] = BOB
        token = f"token={login.token}".encode()
        for method, query in (("GET", b""), ("POST", token)):
            refused = await ask(method, query)
            assert refused.status == 403 and login.state == "open"
        signed_in[0] = ANNA
        assert b"<form" in (await ask()).body
        assert (await ask("POST", token)).status == 303 and login.state == "started"
