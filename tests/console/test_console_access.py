"""Who gets into the console, and what its session is good for: links, cookies, forged requests.

Without a browser: these are the requests that a browser would send for an attacker.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from tests.console.browser import create_link
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub, until
from tests.peers.browser import NO_TLS
from tests.peers.process import server_entry

from dragoman.cli.base.hub_client import HubProblem, request_json
from dragoman.core.principal import OWNER, Principal
from dragoman.web.console.sessions import ConsoleSessions, SessionLimits
from dragoman.web.console.static_files import StaticFiles, shorten

HELLO = Path(__file__).parents[2] / "examples" / "hello" / "hello_server.py"


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with run_module_hub([server_entry("hello", "stdio", sys.executable, HELLO)]) as running:
        running.wait_connected("hello")
        yield running


THIEF = """
import encodings.idna, http.client, os, sys  # before its user may not read them
os.setgroups([]); os.setgid(12346); os.setuid(12346)
url, code = sys.argv[1:]
there = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
there.request("POST", "/console/login", f"code={code}", {"origin": url})
answer = there.getresponse()
print(answer.status, answer.headers["set-cookie"])
"""
"""Another user's program that has read a link."""


class Visitor:
    """A browser without scripts that keeps cookies, as far as these tests need one."""

    def __init__(self, hub: RunningHub) -> None:
        self.hub = hub
        self.http = httpx.Client(base_url=hub.url, verify=NO_TLS, timeout=60)
        self.csrf = ""

    def __enter__(self) -> Visitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def post_form(self, path: str, origin: str = "", **fields: str) -> httpx.Response:
        return self.http.post(path, data=fields, headers={"origin": origin or self.hub.url})

    def sign_in(self) -> Visitor:
        code = create_link(self.hub).partition("code=")[2]
        done = self.post_form("/console/login", code=code)
        assert (done.status_code, done.headers["location"]) == (303, "/console/")
        page = self.http.get("/console/")
        found = re.search(r'name="csrf" content="([0-9a-f]{64})"', page.text)
        assert page.status_code == 200 and found is not None
        self.csrf = found.group(1)
        return self

    def change(self, csrf: str | None = None, **headers: str) -> httpx.Response:
        """Sends a change to the API as the console does; the arguments replace its headers."""
        sent = {
            "origin": self.hub.url,
            "x-csrf-token": self.csrf if csrf is None else csrf,
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        return self.http.post("/api/reload", headers={k: v for k, v in sent.items() if v})


@pytest.mark.promise("U7")
def test_a_link_works_once_in_one_browser_within_a_minute(hub: RunningHub) -> None:
    link = create_link(hub)
    path = link.removeprefix(hub.url)
    code = path.partition("code=")[2]
    with Visitor(hub) as first, Visitor(hub) as second:
        for _ in range(3):  # a page that prefetches the link does not use it up
            page = first.http.get(path)
            assert page.status_code == 200 and "set-cookie" not in page.headers
            assert code in page.text
        done = first.post_form("/console/login", code=code)
        cookie = done.headers["set-cookie"]
        port = hub.url.rpartition(":")[2]
        assert re.fullmatch(
            rf"dragoman-console-{port}=[\w-]{{43}}; Path=/; HttpOnly; SameSite=Strict", cookie
        )
        again = second.post_form("/console/login", code=code)
        assert again.status_code == 403 and "was used" in again.text
        assert "set-cookie" not in again.headers
        assert second.http.get("/console/").headers["location"] == "/console/login"
        for wrong in ("", "x", code[:-1]):
            assert second.post_form("/console/login", code=wrong).status_code == 403
        foreign = second.post_form(
            "/console/login", origin="https://evil.example", code=create_link(hub)
        )
        assert foreign.status_code == 403


@pytest.mark.promise("U7")
def test_a_link_for_the_own_browser_serves_no_other_user(hub: RunningHub) -> None:
    """The link is among the arguments of the browser, where all users of the machine see it."""
    socket = json.loads((hub.home / "daemon.json").read_bytes())["socket"]
    link = request_json(socket, "POST", "/api/console/link", {"local": True}, 10)["url"]
    code = link.partition("code=")[2]
    if os.geteuid() == 0:
        thief = [sys.executable, "-c", THIEF, hub.url, code]
        tried = subprocess.run(thief, capture_output=True, text=True, timeout=60, check=False)
        assert tried.stdout.strip() == "403 None", tried.stderr
    with Visitor(hub) as visitor:
        assert visitor.post_form("/console/login", code=code).status_code == 303
    with pytest.raises(HubProblem, match='"local" must be'):
        request_json(socket, "POST", "/api/console/link", {"local": "yes"}, 10)


@pytest.mark.promise("U7")
def test_links_and_sessions_expire_and_are_bounded() -> None:
    now = [1000.0]
    limits = SessionLimits(link_secs=60, idle_secs=100, absolute_secs=250, links=2, sessions=2)
    sessions = ConsoleSessions(limits, lambda: now[0])
    old, late, fresh = (sessions.create_link() for _ in range(3))
    assert not sessions.use_link(old, is_local=True)  # there are at most two
    assert sessions.use_link(fresh, is_local=False)
    assert not sessions.use_link(fresh, is_local=False)
    now[0] += 60
    assert not sessions.use_link(late, is_local=True)
    # Another user sees the link among the arguments of the browser, and neither uses it nor uses
    # it up.
    seen = sessions.create_link(is_local=True)
    assert not sessions.use_link(seen, is_local=False)
    assert sessions.use_link(seen, is_local=True) and not sessions.use_link(seen, is_local=True)

    cookie = sessions.open(OWNER, is_local=True)
    session = sessions.find(cookie)
    assert session is not None and session.principal == OWNER
    credential = session.principal.credential
    for _ in range(2):
        now[0] += 99
        assert sessions.find(cookie) is not None  # in use
    assert sessions.explain_ended(credential) == ""
    now[0] += 60
    assert sessions.find(cookie) is None  # in use, but too old
    version = sessions.version
    sessions.refresh()
    assert sessions.version > version and sessions.explain_ended(credential)
    idle = sessions.open(OWNER, is_local=True)
    now[0] += 100
    assert sessions.find(idle) is None
    sessions.refresh()

    cookies = [sessions.open(OWNER, is_local=True) for _ in range(2)]
    now[0] += 1
    assert sessions.find(cookies[1]) is not None
    third = sessions.open(OWNER, is_local=True)  # ends the one that was idle for longer
    assert [sessions.find(one) is not None for one in (*cookies, third)] == [False, True, True]
    assert sessions.close_all() == 2 and sessions.find(third) is None

    owners = sessions.open(OWNER, is_local=True)
    now[0] += 1
    keys = [sessions.open(Principal("key", "reader"), is_local=False) for _ in range(3)]
    # Who opens many ends their own.
    assert [sessions.find(one) is not None for one in (owners, *keys)] == [True, False, False, True]


@pytest.mark.promise("U7")
def test_a_forged_request_is_refused_whatever_it_has_of_the_session(hub: RunningHub) -> None:
    with Visitor(hub).sign_in() as visitor, Visitor(hub).sign_in() as other:
        assert visitor.change().status_code == 200
        for name, refused in {
            "no token": visitor.change(csrf=""),
            "a wrong token": visitor.change(csrf="0" * 64),
            "the token of another session": visitor.change(csrf=other.csrf),
            "a foreign Origin": visitor.change(origin="https://evil.example"),
            "another port": visitor.change(origin="http://127.0.0.1:1"),
            "no Origin": visitor.change(origin=""),
            "Origin null": visitor.change(origin="null"),
            "same site, other origin": visitor.change(sec_fetch_site="same-site"),
            "cross site": visitor.change(sec_fetch_site="cross-site"),
        }.items():
            assert refused.status_code == 403, (name, refused.status_code, refused.text)
        reading = visitor.http.get("/api/tools", headers={"sec-fetch-site": "same-site"})
        assert reading.status_code == 403
        assert visitor.http.get("/api/tools", headers={"host": "evil.example"}).status_code == 421
        signed_out = visitor.http.post(
            "/console/logout", headers={"origin": hub.url}, data={"csrf": "x"}
        )
        assert signed_out.status_code == 403
        session = visitor.http.get("/api/session").json()
        assert (session["principal"], session["admin"]) == ("owner:owner", True)


@pytest.mark.promise("U7")
def test_a_link_on_another_site_opens_its_page_with_the_session(hub: RunningHub) -> None:
    """Without the cookie, which browsers send only from the hub's own pages."""
    with Visitor(hub) as visitor:
        where = '/console/runs/x?tab="><script>1</script>&a=b'
        page = visitor.http.get(where, headers={"sec-fetch-site": "cross-site"})
        assert page.status_code == 200 and "<script>1" not in page.text
        found = re.search(r'http-equiv="refresh" content="0;url=(/console/[^"]+)"', page.text)
        assert found is not None and "&amp;a=b" in found[1]
        again = visitor.http.get(where, headers={"sec-fetch-site": "same-origin"})
        assert again.status_code == 303
        assert again.headers["location"].startswith("/console/login?next=%2Fconsole%2Fruns")


@pytest.mark.promise("U7")
def test_no_page_can_be_framed_or_run_a_script_of_others(hub: RunningHub) -> None:
    with Visitor(hub).sign_in() as visitor:
        page = visitor.http.get("/console/servers")
        static = set(re.findall(r"/console/static/[^\"]+", page.text))
        assert len(static) >= 4
        for path in ("/console/", "/console/login", "/console/nosuch", *static):
            headers = visitor.http.get(path).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy and "unsafe" not in policy
            assert "trusted-types 'none'" in policy
            assert headers["x-frame-options"] == "DENY"
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cross-origin-opener-policy"] == "same-origin"
            assert headers["referrer-policy"] == "same-origin"
        for path in ("/console/", "/api/session", "/api/tools", "/api/nosuch"):
            assert visitor.http.get(path).headers["cache-control"] == "no-store", path
        assert not re.search(r"<script(?! (type=\"module\" )?src=)|style=|\son\w+=", page.text)
        style = next(path for path in static if path.endswith("style.css"))
        whole = visitor.http.get(style)
        assert "immutable" in whole.headers["cache-control"]
        cached = visitor.http.get(style, headers={"if-none-match": whole.headers["etag"]})
        assert cached.status_code == 304
        base = style.rpartition("/")[0]
        for odd in (
            f"{base}/../render.py", f"{base}/%2e%2e/render.py", f"{base}//style.css",
            f"{base}/screens", f"{base}/", "/console/static/style.css",
        ):  # fmt: skip
            assert visitor.http.get(odd).status_code == 404, odd


@pytest.mark.promise("U7")
def test_all_files_of_the_console_weigh_less_than_300_kb() -> None:
    files = StaticFiles()
    total = sum(len(found.body) for _, found in files.list_files())
    assert 100_000 < total < 300_000
    text = "/**\n * x\n */\nlet a = `\n  // kept\n  b\n`; // kept\n  // omitted\n  a();\n\n"
    assert shorten(text) == "let a = `\n  // kept\n  b\n`; // kept\na();\n"


@pytest.mark.promise("U7")
def test_a_key_has_its_own_rights_in_the_console_and_ends_with_it(hub: RunningHub) -> None:
    home_key = json.loads(hub.command("keys", "create", "reader", "--json").stdout)["key"]
    try:
        with Visitor(hub) as visitor, Visitor(hub) as other:
            assert "not accepted" in visitor.post_form("/console/login", key="dgm_wrong").text
            done = visitor.post_form("/console/login", key=home_key)
            assert done.status_code == 303, done.text
            session = visitor.http.get("/api/session").json()
            assert (session["principal"], session["admin"]) == ("key:reader", False)
            assert visitor.http.get("/api/keys").status_code == 403
            page = visitor.http.get("/console/pins")
            assert page.status_code == 200 and "may not do this" in page.text
            # A browser that has no session and no key is shown the way in.
            start = other.http.get("/", headers={"accept": "text/html"})
            assert (start.status_code, start.headers["location"]) == (302, "/console/")
            assert other.http.get("/").status_code == 401
            assert other.http.get("/console/").headers["location"] == "/console/login"
            assert hub.command("keys", "revoke", "reader").returncode == 0
            until(lambda: visitor.http.get("/api/session").status_code == 401, 60)
    finally:
        hub.headers = {}


@pytest.mark.promise("U7")
def test_a_session_ends_with_its_streams(hub: RunningHub) -> None:
    printed = hub.command("console", "--link").stdout.strip()
    assert printed.startswith(f"{hub.url}/console/login?code=")
    with Visitor(hub).sign_in() as visitor:
        assert "owner:owner" in hub.command("console", "sessions").stdout
        # A session makes no links: they would outlive it.
        assert (
            visitor.http.post(
                "/api/console/link", headers={"origin": hub.url, "x-csrf-token": visitor.csrf}
            ).status_code
            == 403
        )
        with visitor.http.stream("GET", "/api/events") as stream:
            lines = stream.iter_lines()
            assert stream.status_code == 200 and next(lines).startswith("retry")
            began = time.monotonic()
            done = visitor.post_form("/console/logout", csrf=visitor.csrf)
            assert done.status_code == 303 and "Max-Age=0" in done.headers["set-cookie"]
            for _ in lines:
                pass
            assert time.monotonic() - began < 30
        verbs = [record["verb"] for record in hub.audit()]
        assert "console.login" in verbs and "console.logout" in verbs


@pytest.mark.promise("U7")
def test_a_hub_without_the_console_has_no_route_of_it() -> None:
    with run_module_hub([], "[console]\nenabled = false\n") as closed:
        for path in ("/console", "/console/", "/console/login", "/console/static/x/app.js"):
            answer = closed.get(path)
            assert answer.status == 404 and b"not found" in answer.body
        start = closed.get("/", {"accept": "text/html"})
        assert start.status == 200 and b"<pre>" in start.body
        assert start.headers["content-security-policy"] == "default-src 'none'"
        paths: dict[str, Any] = closed.api("/openapi.json")["paths"]
        assert not [path for path in paths if "console" in path]
        assert closed.get("/api/session").status == 404
        failed = closed.command("console", "--link")
        assert failed.returncode == 3 and "[console] enabled" in failed.stderr
