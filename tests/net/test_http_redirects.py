"""Redirects: which are followed, with which headers, and where they may lead."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest
from tests.net.raw_server import BOUND, OK, Talk, a_client, always, get, listening

from dragoman.core.errors import BadReply, TimedOut, Unreachable
from dragoman.wire.http import FixedHeaders

HEADERS = {
    "Authorization": "Bearer secret",
    "Cookie": "a=b",
    "X-Api-Key": "secret",
    "Mcp-Session-Id": "secret",
    "Accept": "application/json",
    "Content-Type": "application/json",
    "MCP-Protocol-Version": "2025-11-25",
    "Mcp-Param-Region": "eu",
}


def moved(status: int, location: str) -> bytes:
    return f"HTTP/1.1 {status} Moved\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n".encode()


def by_path(**answers: bytes) -> Callable[[Talk], Awaitable[None]]:
    """The answer that is named like the request's path."""

    async def talk(connection: Talk) -> None:
        while True:
            request = await connection.request()
            path = request.split(b" ")[1].decode().strip("/").partition("?")[0]
            await connection.say(answers.get(path, OK))

    return talk


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_get_redirect_within_an_origin_keeps_all_headers(status: int) -> None:
    async with listening(by_path(old=moved(status, "/new?x"))) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        reply = await outlet.request("GET", peer.url + "old", HEADERS, timeout=BOUND)
        assert (reply.status, await reply.body.read(10)) == (200, b"ok")
        assert peer.requests[1].startswith(b"GET /new?x HTTP/1.1\r\n")
        assert b"Authorization: Bearer secret\r\n" in peer.requests[1]
        assert peer.connections == 1


@pytest.mark.parametrize("status", [307, 308])
async def test_post_redirect_keeps_body_where_the_method_is_kept(status: int) -> None:
    async with listening(by_path(old=moved(status, "new"))) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        reply = await outlet.request("POST", peer.url + "old", {}, b"body", timeout=BOUND)
        assert (reply.status, await reply.body.read(10)) == (200, b"ok")
        assert peer.requests[1].startswith(b"POST /new HTTP/1.1\r\n")
        assert peer.requests[1].endswith(b"\r\n\r\nbody")


@pytest.mark.parametrize("status", [301, 302, 303])
async def test_post_redirect_never_changes_the_method(status: int) -> None:
    async with listening(by_path(old=moved(status, "/new"))) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        reply = await outlet.request("POST", peer.url + "old", {}, b"body", timeout=BOUND)
        assert (reply.status, reply.headers["location"]) == (status, "/new")
        assert len(peer.requests) == 1


@pytest.mark.parametrize("answer", [b"HTTP/1.1 307 x\r\ncontent-length: 0\r\n\r\n",
                                    b"HTTP/1.1 304 x\r\nlocation: /new\r\n\r\n"])  # fmt: skip
async def test_response_without_a_usable_redirect_is_returned_unchanged(answer: bytes) -> None:
    async with listening(always(answer)) as peer, a_client() as client:
        status, _ = await get(client, peer.url)
        assert status == int(answer[9:12])
        assert len(peer.requests) == 1


@pytest.mark.promise("B11")
async def test_credentials_are_dropped_for_another_origin_and_stay_dropped() -> None:
    async with listening(always(OK)) as first, a_client() as client:
        back = f"http://127.0.0.1:{first.port}/back"
        async with listening(always(moved(307, back))) as second:
            away = f"http://127.0.0.1:{second.port}/away"
            async with listening(always(moved(307, away))) as start:
                outlet = client.open_configured(start.url, allow_private=True)
                reply = await outlet.request(
                    "POST",
                    start.url,
                    FixedHeaders(HEADERS),
                    b"body",
                    timeout=BOUND,
                    extra_headers={"traceparent": "00-secret"},
                )
                assert reply.status == 200
        assert b"Bearer secret" in start.requests[0] and b"00-secret" in start.requests[0]
        for request in (second.requests[0], first.requests[0]):
            lower = request.lower()
            assert b"secret" not in lower
            assert b"cookie" not in lower
            for kept in (b"accept: application/json", b"content-type: application/json",
                         b"mcp-protocol-version: 2025-11-25", b"mcp-param-region: eu"):  # fmt: skip
                assert kept in lower


@pytest.mark.promise("B11")
async def test_a_redirect_to_another_port_of_a_private_host_is_refused() -> None:
    async with listening(always(OK)) as inside, a_client() as client:
        async with listening(always(moved(307, inside.url))) as peer:
            with pytest.raises(Unreachable, match=r"other ports.*redirected") as caught:
                await get(client, peer.url)
            assert caught.value.sent
        assert inside.connections == 0


@pytest.mark.promise("B11")
async def test_every_redirect_hop_is_checked_and_reported_as_possibly_sent() -> None:
    async with listening(always(OK), host="127.0.0.2") as inside, a_client() as client:
        location = f"http://127.0.0.2:{inside.port}/"
        async with listening(always(moved(307, location))) as peer:
            with pytest.raises(Unreachable, match=r"127\.0\.0\.2 is a loopback.*redirected") as e:
                await get(client, peer.url)
            assert e.value.sent
        assert inside.connections == 0


@pytest.mark.promise("B11")
@pytest.mark.parametrize(
    "location",
    ["http://169.254.169.254/latest/meta-data/", "http://[fd00:ec2::254]/", "//169.254.169.254/"],
)
async def test_a_redirect_to_a_metadata_address_is_refused_even_where_private_is_allowed(
    location: str,
) -> None:
    async with listening(always(moved(302, location))) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=True)
        with pytest.raises(Unreachable, match="a cloud metadata address, which is never allowed"):
            await outlet.request("GET", peer.url, {}, timeout=BOUND)


@pytest.mark.promise("B11")
async def test_redirect_target_name_is_resolved_and_checked() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    async with listening(always(OK)) as inside, a_client(resolve) as client:
        location = f"http://inside.test:{inside.port}/"
        async with listening(always(moved(302, location))) as peer:
            with pytest.raises(Unreachable, match=r'"inside\.test" resolves to 127'):
                await get(client, peer.url)
        assert inside.connections == 0


@pytest.mark.parametrize(
    "location",
    ["http://user:pass@127.0.0.1/", "ftp://127.0.0.1/", "file:///etc/passwd", "http://127.1/",
     "javascript:alert(1)", "http://[::1", "http://x/\u00fc"],
)  # fmt: skip
async def test_redirect_to_an_unusable_url_is_a_bad_reply(location: str) -> None:
    answer = moved(302, "X").replace(b"X", location.encode("latin-1"))
    async with listening(always(answer)) as peer, a_client() as client:
        with pytest.raises(BadReply, match="redirects to an invalid URL"):
            await get(client, peer.url)


async def test_at_most_three_redirects_are_followed() -> None:
    answers = {f"h{i}": moved(302, f"/h{i + 1}") for i in range(4)}
    async with listening(by_path(**answers)) as peer, a_client() as client:
        assert await get(client, peer.url, "h1") == (200, b"ok")
        with pytest.raises(BadReply, match="redirects more than 3 times"):
            await get(client, peer.url, "h0")
        assert len(peer.requests) == 4 + 4


async def test_response_with_two_location_headers_is_rejected() -> None:
    answer = moved(302, "/a").replace(b"\r\n\r\n", b"\r\nlocation: /b\r\n\r\n")
    async with listening(always(answer)) as peer, a_client() as client:
        with pytest.raises(BadReply, match='two "location" headers'):
            await get(client, peer.url)


async def test_redirects_share_the_timeout_of_one_request() -> None:
    async def talk(connection: Talk) -> None:
        await connection.request()
        await connection.say(moved(302, "/again"))
        await connection.request()
        await connection.gone()

    async with listening(talk) as peer, a_client() as client:
        outlet = client.open_configured(peer.url, allow_private=False)
        with pytest.raises(TimedOut, match=r"/…\" did not answer within 0\.1 s"):
            await outlet.request("GET", peer.url, {}, timeout=0.1)
