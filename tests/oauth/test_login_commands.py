"""`dragoman servers login|logout` and `agents login|logout` at a running hub."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import pytest
from tests.oauth.login_rig import LoginBrowser, LoginRig, build_login_rig

from dragoman.cli.logins import is_safe_link

pytestmark = pytest.mark.promise("U3")

LINK = re.compile(r"http://\S+/oauth/connect/\S+")


class Command:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.stderr = ""

    @classmethod
    async def start(cls, rig: LoginRig, *words: str, browser: str = "") -> Command:
        env = {**os.environ, "BROWSER": browser, "NO_COLOR": "1"}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dragoman", *words, "--home", str(rig.home)),
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        return cls(process)

    async def read_link(self) -> str:
        assert self.process.stderr is not None
        async with asyncio.timeout(60):
            while (found := LINK.search(self.stderr)) is None:
                line = await self.process.stderr.readline()
                assert line, self.stderr
                self.stderr += line.decode()
        return found[0]

    async def finish(self) -> tuple[int, str, str]:
        out, err = await asyncio.wait_for(self.process.communicate(), 60)
        return self.process.returncode or 0, out.decode(), self.stderr + err.decode()


async def run(rig: LoginRig, *words: str) -> tuple[int, str, str]:
    return await (await Command.start(rig, *words)).finish()


async def test_login_waits_for_the_browser_and_logout_revokes(short_tmp: Path) -> None:
    async with build_login_rig(short_tmp, own_process=True) as rig:
        await rig.until_state("needs_login")
        code, out, _ = await run(rig, "servers")
        assert code == 0 and "needs_login" in out and "dragoman servers login files" in out
        command = await Command.start(rig, "servers", "login", "files", "--no-browser")
        browser = LoginBrowser("anna")
        await browser.visit(await command.read_link())
        await browser.close()
        code, out, _ = await command.finish()
        assert code == 0
        assert out == 'logged in at server "files" for all users; scopes: read\n'
        await rig.until_state("connected")
        code, out, err = await run(rig, "servers", "logout", "files")
        assert (code, out) == (0, 'logged out at server "files": all users, revoked\n'), err
        assert rig.authority.revoked
        await rig.until_state("needs_login")


async def test_login_opens_the_browser_without_a_shell(short_tmp: Path) -> None:
    async with build_login_rig(short_tmp, own_process=True) as rig:
        opened = short_tmp / "opened"
        script = short_tmp / "browser"
        script.write_text(f'#!/bin/sh\nprintf "%s" "$1" > {opened}\n', encoding="utf-8")
        script.chmod(0o700)
        words = ("servers", "login", "files", "--json", "--timeout", "20")
        command = await Command.start(rig, *words, browser=str(script))
        url = await command.read_link()

        async def is_open() -> str:
            return opened.read_text(encoding="utf-8") if opened.exists() else ""

        assert await rig.until(is_open) == url
        browser = LoginBrowser("anna", press="deny")
        await browser.visit(url)
        await browser.close()
        code, out, err = await command.finish()
        assert code == 6 and "access_denied" in json.loads(out)["error"]["message"], err


async def test_commands_explain_what_they_cannot_do(short_tmp: Path) -> None:
    async with build_login_rig(short_tmp, agent=["JSONRPC:1.0"], own_process=True) as rig:
        code, _, err = await run(rig, "servers", "login", "none")
        assert code == 5 and '"none"' in err
        code, _, err = await run(rig, "servers", "login", "files", "--device")
        assert code == 6 and "no login by code" in err
        code, out, _ = await run(rig, "servers", "logout", "files")
        assert code == 0 and "there was no login" in out
        code, out, _ = await run(rig, "agents", "logout", "helper")
        assert code == 0 and "there was no login" in out
        command = await Command.start(rig, "agents", "login", "helper", "--no-browser")
        browser = LoginBrowser("anna")
        await browser.visit(await command.read_link())
        await browser.close()
        code, out, err = await command.finish()
        assert code == 0 and out.startswith('logged in at agent "helper"'), err


@pytest.mark.parametrize(
    ("url", "is_safe"),
    [
        ("https://hub.example.com/oauth/connect/x", True),
        ("http://127.0.0.1:4150/oauth/connect/x", True),
        ("http://hub.example.com/oauth/connect/x", False),
        ("javascript:alert(1)", False),
        ("file:///etc/passwd", False),
        ("--version", False),
        ("$(touch x)", False),
    ],
)
def test_only_web_pages_are_given_to_a_browser(url: str, is_safe: bool) -> None:
    assert is_safe_link(url) == is_safe
