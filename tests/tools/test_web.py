"""`web_fetch` and `web_search`: granted hosts, redirects, limits, readable text."""

from __future__ import annotations

import builtins
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.tools.small_http import HttpAsked, SmallHttp, serve_http
from tests.tools.tool_rig import ToolRig, read_object, read_text

from dragoman.core.errors import BadReply, HubError, InvalidInput, NotFound, TimedOut, Unreachable
from dragoman.tools.html_text import extract_text, strip_tags

pytestmark = pytest.mark.promise("T2")

PAGE = b"""<!doctype html><html><head><title>Dragomans</title><script>alert(1)</script></head>
<body><nav><a href="/">Home</a></nav><h1>History</h1><p>A <b>dragoman</b> was an interpreter.</p>
<ul><li>one<li>two</ul><p><a href="https://example.org/more">More</a></p></body></html>"""
HTML = {"content-type": "text/html; charset=utf-8"}
ZIPPED = {
    "/zipped": gzip.compress(b"plain words"),
    "/torn": b"x",
    "/bomb": gzip.compress(b"x" * 20_000_000),
}
PRIVATE = "allow_private = true\n"


def answer(asked: HttpAsked) -> tuple[int, dict[str, str], bytes]:
    path = asked.path.partition("?")[0]
    if path == "/page":
        return 200, HTML, PAGE
    if path == "/json":
        return 200, {"content-type": "application/json"}, b'{"a": 1}'
    if path == "/echo":
        said = {"method": asked.method, "headers": asked.headers, "body": asked.body.decode()}
        return 200, {"content-type": "application/json"}, json.dumps(said).encode()
    if path.startswith("/to/"):
        return 302, {"location": path.removeprefix("/to/")}, b""
    if path.startswith("/keep/"):
        return 307, {"location": path.removeprefix("/keep/")}, b""
    if path == "/loop":
        return 302, {"location": "/loop"}, b""
    if path == "/large":
        return 200, {"content-type": "text/plain"}, b"x" * 2_000_000
    if path == "/binary":
        return 200, {"content-type": "image/png"}, bytes(range(256)) * 10
    if path == "/latin":
        return 200, {"content-type": "text/plain; charset=latin-1"}, "Süß\x1b[2J".encode("latin-1")
    if path in ZIPPED:
        return 200, {"content-type": "text/plain", "content-encoding": "gzip"}, ZIPPED[path]
    if path == "/hang":
        return 0, {}, b""
    if path == "/search":
        rows: list[Any] = [
            {"title": f"Result {n}", "url": f"https://example.org/{n}", "content": "words"}
            for n in range(8)
        ]
        return (
            200,
            {"content-type": "application/json"},
            json.dumps({"results": ["odd", *rows]}).encode(),
        )
    return 404, {"content-type": "text/plain"}, b"no such page"


@pytest.fixture
async def server() -> AsyncIterator[SmallHttp]:
    async with serve_http(answer) as served:
        yield served


@pytest.fixture
async def rig(tmp_path: Path, server: SmallHttp) -> AsyncIterator[ToolRig]:
    limits = "fetch_secs = 2\nfetch_megabytes = 1\n"
    made = ToolRig(tmp_path, f'{PRIVATE}{limits}search_url = "{server.url}/search"\n')
    yield made
    await made.close()


async def test_page_becomes_readable_text_with_its_address(rig: ToolRig, server: SmallHttp) -> None:
    found = await rig.use("web_fetch", url=f"{server.url}/page")
    text = read_text(found)
    assert text.startswith(f"[200 {server.url}/page (text/html); written by others")
    assert "dragoman" in text and "# History" in text and "alert" not in text
    assert read_object(found)["url"] == f"{server.url}/page"
    raw = await rig.use("web_fetch", url=f"{server.url}/page", raw=True)
    assert "<script>" in read_text(raw)
    assert '{"a": 1}' in read_text(await rig.use("web_fetch", url=f"{server.url}/json"))


async def test_request_is_sent_as_asked(rig: ToolRig, server: SmallHttp) -> None:
    found = await rig.use(
        "web_fetch", url=f"{server.url}/echo", method="POST", headers={"X-Token": "t"}, body="böy"
    )
    echoed = json.loads(read_object(found)["text"])
    assert (echoed["method"], echoed["body"]) == ("POST", "böy")
    assert echoed["headers"]["x-token"] == "t"
    assert echoed["headers"]["user-agent"].startswith("Dragoman/")
    for headers in ({"Host": "x"}, {"Transfer-Encoding": "chunked"}, {"a": "b\r\nc: d"}):
        with pytest.raises(InvalidInput):
            await rig.use("web_fetch", url=f"{server.url}/echo", headers=headers)


@pytest.mark.parametrize(
    ("path", "problem", "kind"),
    [
        ("/loop", "redirects more than 5 times", BadReply),
        ("/large", "cannot be read", BadReply),
        ("/torn", "cannot be read", BadReply),
        ("/bomb", "cannot be read", BadReply),
        ("/hang", "longer than 2 s|did not answer", TimedOut),
        ("/to/ftp://127.0.0.1/x", "invalid URL", InvalidInput),
        ("/to/http://localhost/x", '"localhost".* was not granted', BadReply),
        ("/to/http://127.0.0.2/x", '"127.0.0.2".* was not granted', BadReply),
    ],
)
async def test_hostile_page_is_refused_in_time(
    rig: ToolRig, server: SmallHttp, path: str, problem: str, kind: type[HubError]
) -> None:
    with pytest.raises(kind, match=problem):
        await rig.use("web_fetch", url=f"{server.url}{path}")


async def test_redirect_is_followed_within_the_granted_hosts(
    rig: ToolRig, server: SmallHttp
) -> None:
    found = await rig.use("web_fetch", url=f"{server.url}/to//page")
    assert read_object(found)["url"] == f"{server.url}/page"
    async with serve_http(answer) as other:
        moved = await rig.use(
            "web_fetch",
            url=f"{server.url}/keep/{other.url}/echo",
            method="PUT",
            headers={"Authorization": "Bearer t", "Accept": "text/plain"},
            body="b",
        )
        echoed = json.loads(read_object(moved)["text"])
    assert echoed["method"] == "PUT" and echoed["body"] == "b"
    assert "authorization" not in echoed["headers"] and echoed["headers"]["accept"] == "text/plain"
    turned = await rig.use("web_fetch", url=f"{server.url}/to//echo", method="POST", body="b")
    echoed = json.loads(read_object(turned)["text"])
    assert (echoed["method"], echoed["body"]) == ("GET", "")


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "http://127.0.0.1@example.com/",
        "http://localhost/",
        "http://2130706433/",
        "http://127.1/",
        "http://[::1]/",
        "file:///etc/passwd",
        "gopher://127.0.0.1/",
        "//127.0.0.1/",
        "http://127.0.0.1\\@example.com/",
        "http://127.0.0.1:99999/",
    ],
)
async def test_other_host_is_not_reached(rig: ToolRig, url: str) -> None:
    with pytest.raises(InvalidInput, match=r"not granted|cannot be used"):
        await rig.use("web_fetch", url=url)


@pytest.mark.parametrize(
    ("network", "granted"),
    [
        ((), False),
        (("*",), True),
        (("127.0.0.*",), True),
        (("127.0.0.1:1",), False),
        (("127.0.0.1:*",), True),
        (("example.org",), False),
    ],
)
async def test_patterns_of_hosts(
    rig: ToolRig, server: SmallHttp, network: tuple[str, ...], granted: bool
) -> None:
    rig.add_agent(rig.build_profile("other", network=network))
    if granted:
        await rig.use("web_fetch", "other", url=f"{server.url}/json")
    else:
        with pytest.raises(InvalidInput, match="was not granted"):
            await rig.use("web_fetch", "other", url=f"{server.url}/json")


async def test_private_address_is_not_reached_unless_allowed(
    tmp_path: Path, server: SmallHttp
) -> None:
    rig = ToolRig(tmp_path)
    try:
        with pytest.raises(Unreachable):
            await rig.use("web_fetch", url=f"{server.url}/page")
        assert not server.asked
        with pytest.raises(NotFound):
            await rig.use("web_search", query="x")
    finally:
        await rig.close()


async def test_text_of_other_kinds(rig: ToolRig, server: SmallHttp) -> None:
    latin = read_text(await rig.use("web_fetch", url=f"{server.url}/latin"))
    assert "Süß" in latin and "\x1b" not in latin
    binary = await rig.use("web_fetch", url=f"{server.url}/binary")
    assert "2560 bytes that are not text" in read_text(binary)
    zipped = await rig.use("web_fetch", url=f"{server.url}/zipped")
    assert "plain words" in read_text(zipped)
    missing = await rig.use("web_fetch", url=f"{server.url}/nothing")
    assert missing.failed and "404" in read_text(missing)


async def test_search_returns_results(rig: ToolRig, server: SmallHttp) -> None:
    found = await rig.use("web_search", query="what's a dragoman? & more", max_results=3)
    rows = read_object(found)["results"]
    assert [row["title"] for row in rows] == ["Result 0", "Result 1", "Result 2"]
    assert "1. Result 0\n   https://example.org/0\n   words" in read_text(found)
    assert server.asked[-1].path == "/search?q=what%27s+a+dragoman%3F+%26+more&format=json"


@pytest.mark.parametrize(
    ("reply", "problem"),
    [((500, b""), "status 500"), ((200, b"<html>"), "cannot be read"), ((200, b"{}"), "results")],
)
async def test_broken_search_engine_is_named(
    tmp_path: Path, reply: tuple[int, bytes], problem: str
) -> None:
    async with serve_http(lambda asked: (reply[0], {}, reply[1])) as broken:
        rig = ToolRig(tmp_path, f'search_url = "{broken.url}/search"')
        try:
            with pytest.raises(BadReply, match=problem):
                await rig.use("web_search", query="x")
        finally:
            await rig.close()


def test_text_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name == "html_to_markdown":
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    text = extract_text(PAGE.decode())
    assert text.startswith("# Dragomans") and "- one" in text and "alert" not in text
    assert "More (https://example.org/more)" in text and "Home" not in text


@pytest.mark.parametrize("html", ["", "<", "</p></p>", "<p" * 10_000, "&#xD800;", "<!--" * 5_000])
def test_broken_html_is_stripped(html: str) -> None:
    assert isinstance(strip_tags(html), str)
    assert isinstance(extract_text(html), str)
