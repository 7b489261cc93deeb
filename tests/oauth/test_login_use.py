"""Logins as callers see them: link, page, the call that continues, and whose token it has."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.oauth.login_rig import URL_CLIENT, LoginBrowser, build_login_rig

from dragoman.stores.keys import KeyStore

pytestmark = pytest.mark.promise("U3")

NEEDS = "dragoman.hub/error"


async def test_a_server_that_asks_for_a_login_is_connected_after_it(short_tmp: Path) -> None:
    async with build_login_rig(short_tmp) as rig:
        state = await rig.until_state("needs_login")
        assert "dragoman servers login files" in state["reason"]
        page = await rig.log_in("root")
        assert page.status_code == 200 and "You are logged in" in page.text
        await rig.until_state("connected")
        result = await rig.call("anna", "hello")
        assert result["content"][0]["text"] == "hello"
        assert rig.server.calls == [("root", "hello")]


async def test_a_modern_call_continues_by_itself_after_consent(short_tmp: Path) -> None:
    async with build_login_rig(short_tmp, credentials="user", opens_lists=True) as rig:
        asked = await rig.call("anna", "one", features=URL_CLIENT)
        assert asked["resultType"] == "input_required"
        request = asked["inputRequests"]["login"]
        assert request["method"] == "elicitation/create" and request["params"]["mode"] == "url"
        url = request["params"]["url"]
        assert url.startswith(f"{rig.url}/oauth/connect/")
        # The client opens the link and repeats the request at once; it waits for the login.
        again = asyncio.ensure_future(
            rig.call(
                "anna", "one", features=URL_CLIENT,
                inputResponses={"login": {"action": "accept"}}, requestState=asked["requestState"],
            )
        )  # fmt: skip
        browser = LoginBrowser("anna")
        page = await browser.visit(url)
        await browser.close()
        assert "You are logged in" in page.text
        result = await asyncio.wait_for(again, 60)
        assert result["content"][0]["text"] == "one"
        assert rig.server.calls == [("anna", "one")]


async def test_a_client_that_cannot_be_asked_gets_the_link_in_an_error(short_tmp: Path) -> None:
    async with build_login_rig(short_tmp, credentials="user", opens_lists=True) as rig:
        result = await rig.call("anna", "one")
        error = result["_meta"][NEEDS]
        assert result["isError"] and error["kind"] == "LoginRequired"
        assert error["url"] in result["content"][0]["text"]
        body = {"arguments": {"text": "two"}}
        refused = await rig.api("POST", "/api/tools/files.mark/call", "anna", body)
        assert refused.status_code == 403
        told = refused.json()["error"]
        # One open login has one link, however many calls need it.
        assert told["kind"] == "LoginRequired" and told["url"] == error["url"]
        browser = LoginBrowser("anna")
        await browser.visit(error["url"])
        await browser.close()
        assert (await rig.call("anna", "three"))["content"][0]["text"] == "three"
        # Bob's own login is still missing.
        assert (await rig.call("bob", "four"))["isError"]
        assert rig.server.calls == [("anna", "three")]


async def test_a_declined_link_ends_the_call(short_tmp: Path) -> None:
    async with build_login_rig(short_tmp, credentials="user", opens_lists=True) as rig:
        asked = await rig.call("anna", "one", features=URL_CLIENT)
        ended = await rig.call(
            "anna", "one", features=URL_CLIENT,
            inputResponses={"login": {"action": "decline"}}, requestState=asked["requestState"],
        )  # fmt: skip
        assert ended["isError"] and "declined" in ended["content"][0]["text"]
        asked = await rig.call("anna", "one", features=URL_CLIENT)
        browser = LoginBrowser("anna", press="deny")
        page = await browser.visit(asked["inputRequests"]["login"]["params"]["url"])
        await browser.close()
        assert page.status_code == 400 and "access_denied" in page.text
        ended = await rig.call(
            "anna", "one", features=URL_CLIENT,
            inputResponses={"login": {"action": "accept"}}, requestState=asked["requestState"],
        )  # fmt: skip
        assert ended["isError"] and "access_denied" in ended["content"][0]["text"]
        assert rig.server.calls == []


async def test_lists_come_from_the_first_consent_and_are_marked_for_others(short_tmp: Path) -> None:
    async with build_login_rig(short_tmp, credentials="user") as rig:
        await rig.until_state("needs_login")
        await rig.log_in("anna")
        await rig.until_state("connected")
        mine = (await rig.rpc("anna", "tools/list"))["result"]
        theirs = (await rig.rpc("bob", "tools/list"))["result"]
        assert "dragoman.hub/logins" not in mine["_meta"]
        assert "login" not in mine["tools"][0]["description"]
        assert theirs["_meta"]["dragoman.hub/logins"] == ["files"]
        tool = theirs["tools"][0]
        assert tool["_meta"]["dragoman.hub/login"]["state"] == "needs_login"
        assert "Needs a login" in tool["description"]
        assert (await rig.call("bob", "x"))["isError"]
        await rig.log_in("bob")
        assert (await rig.call("bob", "x"))["content"][0]["text"] == "x"
        assert rig.server.calls == [("bob", "x")]
        # The list credential goes: another user's takes its place.
        gone = await rig.api("DELETE", "/api/mcp/servers/files/login", "anna")
        assert [one["revoked"] for one in gone.json()["removed"]] == [True]
        await rig.until_state("connected")
        assert (await rig.call("anna", "y"))["isError"]
        assert (await rig.call("bob", "z"))["content"][0]["text"] == "z"


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_each_call_leaves_with_the_token_of_its_user(short_tmp: Path, era: str) -> None:
    async with build_login_rig(short_tmp, credentials="user", era=era) as rig:
        await rig.log_in("anna")
        await rig.log_in("bob")
        await rig.until_state("connected")
        users = ["anna", "bob"]
        marks = [(users[number % 2], f"{users[number % 2]}-{number}") for number in range(60)]
        results = await asyncio.gather(*(rig.call(user, text) for user, text in marks))
        assert [one["content"][0]["text"] for one in results] == [text for _, text in marks]
        assert sorted(rig.server.calls) == sorted(marks)
        # No session has seen two users.
        assert all(len(seen) == 1 for seen in rig.server.sessions.values())
        assert bool(rig.server.sessions) == (era == "legacy")


async def test_each_call_over_sse_leaves_with_the_token_of_its_user(short_tmp: Path) -> None:
    async with build_login_rig(short_tmp, credentials="user", transport="sse") as rig:
        await rig.log_in("anna")
        await rig.log_in("bob")
        await rig.until_state("connected")
        marks = [("anna", "a1"), ("bob", "b1"), ("anna", "a2"), ("bob", "b2")]
        await asyncio.gather(*(rig.call(user, text) for user, text in marks))
        assert sorted(rig.server.calls) == sorted(marks)


async def test_many_calls_at_expiry_cause_one_refresh_and_no_failure(short_tmp: Path) -> None:
    async with build_login_rig(short_tmp) as rig:
        await rig.log_in("root")
        await rig.until_state("connected")
        before = rig.authority.refreshes
        rig.authority.expire()
        results = await asyncio.gather(*(rig.call("anna", str(n)) for n in range(100)))
        assert not [one for one in results if one.get("isError")]
        assert rig.authority.refreshes == before + 1


async def test_a_dead_refresh_token_is_one_state_and_message_everywhere(short_tmp: Path) -> None:
    async with build_login_rig(short_tmp) as rig:
        await rig.log_in("root")
        await rig.until_state("connected")
        rig.authority.kill_refresh_tokens()
        results = await asyncio.gather(*(rig.call("anna", str(n)) for n in range(5)))
        assert {one["_meta"][NEEDS]["kind"] for one in results} == {"LoginRequired"}
        state = await rig.until_state("needs_login")
        assert "dragoman servers login files" in state["reason"]
        later = await rig.call("anna", "later")
        assert later["_meta"][NEEDS]["kind"] == "LoginRequired"
        # The tools are still listed, with what to do.
        listed = (await rig.rpc("anna", "tools/list"))["result"]
        assert [tool["name"] for tool in listed["tools"]] == ["mcp_files_mark"]
        assert listed["_meta"]["dragoman.hub/logins"] == ["files"]
        assert rig.server.calls == []
        await rig.log_in("root")
        await rig.until_state("connected")
        assert (await rig.call("anna", "again"))["content"][0]["text"] == "again"


async def test_a_link_is_bound_to_its_browser_and_valid_once(short_tmp: Path) -> None:
    async with build_login_rig(short_tmp, credentials="user", opens_lists=True) as rig:
        begun = (await rig.api("POST", "/api/mcp/servers/files/login", "anna", {})).json()
        first, second = LoginBrowser("anna"), LoginBrowser("eve")
        page = await first.client.get(begun["url"])
        assert "anna" in page.text and "files" in page.text
        assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
        # A form without the token of the page starts nothing.
        origin = {"origin": rig.url}
        assert (await first.client.post(begun["url"], headers=origin)).status_code == 400
        started = await first.submit(page)
        assert started.status_code == 303
        # The link is used up.
        assert (await second.client.get(begun["url"])).status_code == 410
        # A browser that did not press the button cannot end the login.
        to_hub = await second.client.get(started.headers["location"])
        while "/oauth/callback" not in str(to_hub.headers.get("location", "")):
            to_hub = await (
                second.submit(to_hub)
                if "<form" in to_hub.text
                else second.client.get(httpx.URL(str(to_hub.url)).join(to_hub.headers["location"]))
            )
        stolen = await second.client.get(to_hub.headers["location"])
        assert stolen.status_code == 403
        assert (await rig.call("anna", "x"))["isError"]
        # The one that pressed it can.
        ended = await first.client.get(to_hub.headers["location"])
        assert ended.status_code == 200
        again = await first.client.get(to_hub.headers["location"])
        assert again.status_code == 400
        for browser in (first, second):
            await browser.close()


async def test_only_administrators_log_in_for_all(short_tmp: Path) -> None:
    async with build_login_rig(short_tmp) as rig:
        await rig.until_state("needs_login")
        refused = await rig.api("POST", "/api/mcp/servers/files/login", "anna", {})
        assert refused.status_code == 403
        forbidden = await rig.api("DELETE", "/api/mcp/servers/files/login?all=1", "anna")
        assert forbidden.status_code == 403
        absent = await rig.api("POST", "/api/mcp/servers/none/login", "root", {})
        assert absent.status_code == 404


async def test_a_server_that_was_never_connected_is_listed_with_what_to_do(short_tmp: Path) -> None:
    async with build_login_rig(short_tmp, credentials="user") as rig:
        await rig.until_state("needs_login")
        listed = (await rig.rpc("anna", "tools/list"))["result"]
        assert [tool["name"] for tool in listed["tools"]] == ["mcp_files_login"]
        assert listed["_meta"]["dragoman.hub/logins"] == ["files"]
        for name in ("mcp_files_login", "files.mark"):
            params: dict[str, Any] = {"name": name, "arguments": {}}
            answer = (await rig.rpc("anna", "tools/call", params, features=URL_CLIENT))["result"]
            assert answer["isError"] and answer["_meta"][NEEDS]["kind"] == "LoginRequired"
        browser = LoginBrowser("anna")
        await browser.visit(answer["_meta"][NEEDS]["url"])
        await browser.close()
        await rig.until_state("connected")
        listed = (await rig.rpc("anna", "tools/list"))["result"]
        assert [tool["name"] for tool in listed["tools"]] == ["mcp_files_mark"]


async def test_a_revoked_key_loses_its_logins(short_tmp: Path) -> None:
    async with build_login_rig(short_tmp, credentials="user", opens_lists=True) as rig:
        await rig.log_in("anna")
        await rig.log_in("bob")
        assert not (await rig.call("anna", "one")).get("isError")
        store = KeyStore(short_tmp)
        store.revoke("anna")

        async def is_gone() -> bool:
            found = await rig.api("GET", "/api/mcp/servers/files/login?all=1", "root")
            return [one["holder"] for one in found.json()["logins"]] == ["key:bob"]

        await rig.until(is_gone)
        assert rig.authority.revoked
        store.close()
        assert not (await rig.call("bob", "three")).get("isError")
