"""No token, code or link of a login appears where it could be read later; no token moves on."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.oauth.login_rig import URL_CLIENT, LoginBrowser, build_login_rig
from tests.peers.process import server_entry

from dragoman.core.event_payloads import render_event
from dragoman.core.events import (
    Event,
    LoginChanged,
    LoginNeeded,
    PostVerb,
    ServerChanged,
    VerbError,
)

QUIET = {"login-needed", "login-changed"}


def read_child_environments() -> list[str]:
    """The environments of the processes that the hub in this process has started."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split()
    found = []
    for pid in listed:
        with contextlib.suppress(OSError):  # it has just ended
            found.append(Path(f"/proc/{pid}/environ").read_text(encoding="utf-8"))
    assert any("PATH=" in one for one in found)
    return found


async def test_secrets_of_logins_are_written_nowhere(
    short_tmp: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Canaries: every token, code, state, cookie and link that was in use."""
    caplog.set_level(logging.DEBUG)
    for noisy in ("httpx", "httpcore", "mcp", "sse_starlette"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    canaries: set[str] = set()
    shown: list[str] = []
    events: list[Any] = []

    def note(event: Event) -> None:
        events.append(render_event(event))

    child = server_entry("child", "faulty_server", "ok", env=["PATH"])
    async with build_login_rig(short_tmp, credentials="user", more=child) as rig:
        assert rig.app is not None
        hub = rig.app.parts.guards.hub
        for kind in (LoginNeeded, LoginChanged, ServerChanged, PostVerb, VerbError):
            hub.bus.observe(kind, note)
        await rig.until_state("needs_login")
        for user in ("anna", "bob"):
            refused = await rig.call(user, "before")
            link = refused["_meta"]["dragoman.hub/error"]["url"]
            canaries.add(link.rpartition("/")[2])
            browser = LoginBrowser(user)
            await browser.visit(link)
            for page in browser.pages:
                query = page.url.params
                canaries.update(query.get_list("state") + query.get_list("code"))
                canaries.update(query.get_list("token"))
            canaries.update(value for value in browser.client.cookies.values())
            await browser.close()
        await rig.until_state("connected")
        await rig.call("anna", "one")
        rig.authority.expire()
        await rig.call("anna", "two")
        canaries.update(rig.authority.users)
        rig.authority.kill_refresh_tokens()
        failed = await rig.call("anna", "three", features=URL_CLIENT)
        canaries.add(failed["inputRequests"]["login"]["params"]["url"].rpartition("/")[2])
        for path in ("mcp/servers", "mcp/servers/files/login?all=1", "status", "a2a/agents"):
            shown.append((await rig.api("GET", f"/api/{path}", "root")).text)
        shown.append((await rig.api("GET", "/metrics", "root")).text)
        shown.append((await rig.rpc("bob", "tools/list"))["result"]["tools"][0]["description"])
        await rig.api("DELETE", "/api/mcp/servers/files/login", "bob")
        shown += read_child_environments()
        own = {header.removeprefix("Bearer ") for header in rig.server.headers}
        keys = set(rig.keys.values())
    canaries = {one for one in canaries if len(one) > 8}
    assert len(canaries) > 12
    assert {event[0] for event in events} >= QUIET
    logs = caplog.text
    files = {path: path.read_bytes() for path in short_tmp.rglob("*") if path.is_file()}
    assert any(path.name == "credentials.db" for path in files)
    for canary in canaries:
        assert canary not in logs
        assert not [text for text in shown if canary in text]
        assert canary not in repr(events)
        assert not [path for path, data in files.items() if canary.encode() in data], canary
    # A key of the hub, which its callers send, is never passed on.
    assert not own & keys
    with sqlite3.connect(short_tmp / "credentials.db") as db:
        assert db.execute("SELECT count(*) FROM credentials").fetchone()[0] > 0


async def test_a_token_reaches_no_other_server(short_tmp: Path) -> None:
    """Each server, agent and authorization server gets what was issued for it."""
    async with build_login_rig(
        short_tmp, credentials="user", opens_lists=True, agent=["JSONRPC:1.0"]
    ) as rig:
        assert rig.agent is not None
        await rig.log_in("anna")
        await rig.log_in("anna", at="a2a/agents/helper")
        params = {"name": "helper.message", "arguments": {"message": "echo hi"}}
        await rig.rpc("anna", "tools/call", params)
        await rig.call("anna", "hi")
        mine = {one.removeprefix("Bearer ") for one in rig.server.headers if one}
        theirs = {one.removeprefix("Bearer ") for one in rig.agent.headers if one}
        assert mine and theirs and not mine & theirs
        assert {rig.authority.access[one].resource for one in mine} == {rig.server.url}
