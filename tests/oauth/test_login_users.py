"""Users who sign in at the hub, and log in at a server through it."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.oauth.login_rig import LoginBrowser, LoginRig, build_login_rig
from tests.peers.browser import PASSWORD, App, Browser

from dragoman.core.ports import TASK_READ
from dragoman.core.principal import Principal
from dragoman.core.tool_filter import EVERYTHING
from dragoman.oauth.authority.passwords import build_hasher
from dragoman.stores.users import UsersDatabase, UserStore

pytestmark = [pytest.mark.promise("U3"), pytest.mark.promise("U4"), pytest.mark.promise("U5")]

MORE = """
[auth.server]
enabled = true
[[views]]
name = "nothing"
include = ["none.*"]
[[views]]
name = "files"
servers = ["files"]
"""


def connect(rig: LoginRig, user: str, path: str = "/mcp") -> str:
    """Signs a user in with an app, and returns the access token of the app."""
    app = App(rig.url).register()
    with Browser(rig.url) as browser:
        page = browser.sign_in(user, url=app.build_url(resource=f"{rig.url}{path}"))
        answer = app.read_answer(browser.allow(page))
    return str(app.exchange(answer["code"], resource=f"{rig.url}{path}").json()["access_token"])


def open_link(rig: LoginRig, url: str, user: str = "") -> tuple[int, str]:
    """Opens a link in the browser of a user, or in one in which no user has signed in."""
    with Browser(rig.url) as browser:
        if user:
            browser.sign_in(user)
        page = browser.get(url.removeprefix(rig.url))
        return page.status_code, page.headers.get("location", "")


def follow_link(rig: LoginRig, url: str, user: str) -> None:
    """Signs in because the link asks for it, and is led back to it."""
    with Browser(rig.url) as browser:
        sign_in = browser.get(url.removeprefix(rig.url)).headers["location"]
        page = browser.sign_in(user, url=sign_in)
        assert page.status_code == 200 and "files" in page.text and user in page.text, page.text


async def log_in(rig: LoginRig, url: str, user: str) -> None:
    """Logs in at the server, in the browser in which the user has signed in at the hub."""
    other = LoginBrowser(user)
    with Browser(rig.url) as browser:
        await asyncio.to_thread(browser.sign_in, user)
        other.client.cookies.update(browser.cookies)
    try:
        page = await other.visit(url)
        assert "You are logged in" in page.text, page.text
    finally:
        await other.close()


async def test_a_link_works_in_the_browser_of_its_user_alone(short_tmp: Path) -> None:
    async with build_login_rig(short_tmp, credentials="user", more=MORE) as rig:
        await _add_users(rig, "cleo", "dora")
        rig.keys["cleo"] = await asyncio.to_thread(connect, rig, "cleo")
        refused: Any = await rig.call("cleo", "hello")
        assert refused["isError"], refused
        begun = await rig.api("POST", "/api/mcp/servers/files/login", "cleo", {})
        url = begun.json()["url"]
        status, where = await asyncio.to_thread(open_link, rig, url)
        assert status == 303 and where.startswith("/oauth/login?next=%2Foauth%2Fconnect%2F")
        assert (await asyncio.to_thread(open_link, rig, url, "dora"))[0] == 403
        await asyncio.to_thread(follow_link, rig, url, "cleo")
        assert not rig.server.calls


async def test_a_token_for_a_view_is_bound_to_it_at_every_door(short_tmp: Path) -> None:
    async with build_login_rig(short_tmp, opens_lists=True, more=MORE) as rig:
        await _add_users(rig, "cleo")
        for path, seen in (("/mcp", 1), ("/mcp/v/nothing", 0)):
            rig.keys["cleo"] = await asyncio.to_thread(connect, rig, "cleo", path)
            listed = (await rig.api("GET", "/api/tools", "cleo")).json()
            assert listed["total"] == seen, (path, listed)
            found = await rig.rpc("cleo", "tools/list")
            assert len(found["result"]["tools"]) == seen, (path, found)
        unknown = await rig.api("POST", "/api/tools/files.mark/call", "cleo", {"arguments": {}})
        assert unknown.status_code == 404, unknown.text


async def test_a_token_for_a_view_logs_in_at_no_server_outside_of_it(short_tmp: Path) -> None:
    async with build_login_rig(
        short_tmp, credentials="user", opens_lists=True, more=MORE, agent=["JSONRPC:1.0"]
    ) as rig:
        await _add_users(rig, "cleo")
        login = "/api/mcp/servers/files/login"
        for path, status in (("/mcp", 200), ("/mcp/v/files", 200), ("/mcp/v/nothing", 404)):
            rig.keys["cleo"] = await asyncio.to_thread(connect, rig, "cleo", path)
            for method, body in (("POST", {}), ("GET", None), ("DELETE", None)):
                answer = await rig.api(method, login, "cleo", body)
                assert answer.status_code == status, (path, method, answer.text)
        for kind, name in (("mcp/servers", "files"), ("a2a/agents", "helper")):
            hidden = await rig.api("GET", f"/api/{kind}/{name}/login", "cleo")
            unknown = await rig.api("GET", f"/api/{kind}/{name}s/login", "cleo")
            assert hidden.text == unknown.text.replace(f"{name}s", name), hidden.text


async def test_a_token_for_a_view_finds_no_tasks_of_other_tools(short_tmp: Path) -> None:
    """The tasks of a user were perhaps started with a token that is bound to no view."""
    async with build_login_rig(short_tmp, opens_lists=True, more=MORE) as rig:
        assert rig.app is not None
        hub = rig.app.parts.guards.hub
        for view, seen in (("", True), ("files", True), ("nothing", False), ("unknown", False)):
            cleo = Principal("user", "cleo", view=view)
            served = hub.views.get_bound(view) if view else EVERYTHING
            assert hub.can_act_on_task(cleo, TASK_READ, "files.mark", served) is seen, view
        for view, seen in (("", True), ("nothing", False)):  # a tool that is not there any more
            cleo = Principal("user", "cleo", view=view)
            assert hub.can_act_on_task(cleo, TASK_READ, "files.old", EVERYTHING) is seen, view


async def test_the_card_of_the_hub_shows_a_token_the_skills_of_its_view(short_tmp: Path) -> None:
    async with build_login_rig(
        short_tmp, opens_lists=True, more=MORE + "[a2a]\nenabled = true\n"
    ) as rig:
        await _add_users(rig, "cleo")
        for path, seen in (("/mcp", True), ("/mcp/v/nothing", False), ("/mcp", True)):
            rig.keys["cleo"] = await asyncio.to_thread(connect, rig, "cleo", path)
            card = await rig.api("GET", "/.well-known/agent-card.json", "cleo")
            assert ("files.mark" in card.text) is seen, (path, card.text)


async def test_the_logins_of_a_removed_user_end(short_tmp: Path) -> None:
    async with build_login_rig(short_tmp, credentials="user", opens_lists=True, more=MORE) as rig:
        await _add_users(rig, "cleo", "dora")
        assert rig.app is not None
        account = rig.app.parts.logins.desk.get_account("files")
        for user in ("cleo", "dora"):
            rig.keys[user] = await asyncio.to_thread(connect, rig, user)
            begun = await rig.api("POST", "/api/mcp/servers/files/login", user, {})
            await log_in(rig, begun.json()["url"], user)
        assert account.find_list_holder().startswith("user:cleo")
        with closing(UsersDatabase(rig.home)) as base:
            UserStore(base).remove("cleo")

        async def is_gone() -> bool:
            return len(account.list_holders()) == 1

        await rig.until(is_gone)
        assert account.find_list_holder().startswith("user:dora") and rig.authority.revoked


async def _add_users(rig: LoginRig, *names: str) -> None:
    hashed = await asyncio.to_thread(build_hasher().hash, PASSWORD)
    with closing(UsersDatabase(rig.home)) as base:
        for name in names:
            UserStore(base).add(name, password=hashed)
