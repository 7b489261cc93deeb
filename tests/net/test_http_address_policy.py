"""Where the client connects and where it refuses, with lying resolvers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

import pytest
from tests.net.raw_server import BOUND, OK, a_client, always, get, listening

from dragoman.core.errors import ConfigError, Unreachable
from dragoman.net.dialing import Resolve

pytestmark = pytest.mark.promise("B11")


def resolving(*answers: Sequence[str]) -> tuple[Resolve, list[str]]:
    """A resolver that gives `answers` one lookup after the other, and the names it was asked."""
    asked: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return answers[min(len(asked), len(answers)) - 1]

    return resolve, asked


async def test_a_name_that_resolves_to_a_private_address_is_refused() -> None:
    resolve, _ = resolving(["127.0.0.1"])
    async with listening(always(OK)) as peer, a_client(resolve) as client:
        url = f"http://x:{peer.port}/"
        with pytest.raises(Unreachable) as caught:
            await get(client, url)
        assert not caught.value.sent
        assert str(caught.value) == (
            f'will not connect to "{url}": "x" resolves to 127.0.0.1, a loopback address; '
            "set allow_private = true for it if that is intended"
        )
        assert peer.connections == 0


async def test_a_name_that_resolves_to_a_private_address_is_reached_where_that_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve, _ = resolving(["127.0.0.1"])
    async with listening(always(OK)) as peer, a_client(resolve) as client:
        dialled = _watch(monkeypatch)
        url = f"http://x:{peer.port}/"
        outlet = client.open_configured(url, allow_private=True)
        reply = await outlet.request("GET", url, {}, timeout=BOUND)
        assert await reply.body.read(10) == b"ok"
        assert dialled == ["127.0.0.1"]
        assert f"host: x:{peer.port}\r\n".encode() in peer.requests[0]


@pytest.mark.parametrize("host", ["127.0.0.1", "[::ffff:127.0.0.1]", "localhost", "LOCALHOST"])
async def test_local_address_in_the_configuration_is_reached(host: str) -> None:
    async with listening(always(OK)) as peer, a_client() as client:
        assert await get(client, f"http://{host}:{peer.port}/") == (200, b"ok")


async def test_local_address_other_than_the_configured_one_is_refused() -> None:
    async with listening(always(OK), host="127.0.0.2") as peer, a_client() as client:
        outlet = client.open_configured(f"http://127.0.0.1:{peer.port}/", allow_private=False)
        with pytest.raises(Unreachable, match=r"127\.0\.0\.2 is a loopback address; set allow_"):
            await outlet.request("GET", f"http://127.0.0.2:{peer.port}/", {}, timeout=BOUND)
        assert peer.connections == 0


async def test_localhost_names_are_equivalent_and_other_ports_are_refused() -> None:
    async with listening(always(OK)) as peer, listening(always(OK)) as other, a_client() as client:
        for configured, reached in (("127.0.0.1", "localhost"), ("localhost", "127.0.0.1")):
            outlet = client.open_configured(
                f"http://{configured}:{peer.port}/", allow_private=False
            )
            url = f"http://{reached}:{peer.port}/"
            assert (await outlet.request("GET", url, {}, timeout=BOUND)).status == 200
            for host in (configured, reached):
                with pytest.raises(Unreachable, match=r"other ports.*set allow_private") as caught:
                    url = f"http://{host}:{other.port}/"
                    await outlet.request("GET", url, {}, timeout=BOUND)
                assert not caught.value.sent
        assert other.connections == 0
        allowed = client.open_configured(peer.url, allow_private=True)
        assert (await allowed.request("GET", other.url, {}, timeout=BOUND)).status == 200


async def test_public_name_does_not_permit_a_local_address() -> None:
    async with listening(always(OK)) as peer, a_client() as client:
        outlet = client.open_configured("https://example.com/", allow_private=False)
        with pytest.raises(Unreachable, match="is a loopback address"):
            await outlet.request("GET", peer.url, {}, timeout=BOUND)
        assert peer.connections == 0


async def test_localhost_is_loopback_and_no_other_private_address() -> None:
    resolve, _ = resolving(["10.0.0.5"])
    async with a_client(resolve) as client:
        with pytest.raises(Unreachable, match=r"resolves to 10\.0\.0\.5, a private address"):
            await get(client, "http://localhost:1/")


@pytest.mark.parametrize(
    "address",
    ["169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254",
     "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::", "::ffff:169.254.169.254", "0.0.0.0", "::",
     "fe80::1%lo", "224.0.0.1", "not an address"],
)  # fmt: skip
async def test_forbidden_address_is_refused_where_private_ones_are_allowed(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve, asked = resolving([address])
    async with a_client(resolve) as client:
        dialled = _watch(monkeypatch)
        outlet = client.open_configured("http://x/", allow_private=True)
        with pytest.raises(
            Unreachable, match=r'will not connect to "http://x/".*never allowed'
        ) as e:
            await outlet.request("GET", "http://x/", {}, timeout=BOUND)
        assert not e.value.sent
        assert asked == ["x"]
        assert not dialled


@pytest.mark.parametrize("host", ["169.254.169.254", "[fd00:ec2::254]", "0.0.0.0", "[::]"])
async def test_forbidden_address_is_refused_even_if_configured(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_client() as client:
        dialled = _watch(monkeypatch)
        for allow_private in (False, True):
            outlet = client.open_configured(f"http://{host}/", allow_private=allow_private)
            with pytest.raises(Unreachable, match="which is never allowed"):
                await outlet.request("GET", f"http://{host}/", {}, timeout=BOUND)
        assert not dialled


@pytest.mark.parametrize(
    "answers",
    [["127.0.0.1", "169.254.169.254"], ["169.254.169.254", "127.0.0.1"], ["127.0.0.1", "::"]],
)
async def test_one_forbidden_dns_answer_refuses_all(answers: list[str]) -> None:
    resolve, _ = resolving(answers)
    async with listening(always(OK)) as peer, a_client(resolve) as client:
        url = f"http://x:{peer.port}/"
        outlet = client.open_configured(url, allow_private=True)
        with pytest.raises(Unreachable, match="never allowed"):
            await outlet.request("GET", url, {}, timeout=BOUND)
        assert peer.connections == 0


async def test_mixed_dns_answer_is_refused_where_private_addresses_are() -> None:
    resolve, _ = resolving(["8.8.8.8", "127.0.0.1"])
    async with listening(always(OK)) as peer, a_client(resolve) as client:
        with pytest.raises(Unreachable, match=r"resolves to 127\.0\.0\.1"):
            await get(client, f"http://x:{peer.port}/")
        assert peer.connections == 0


async def test_dialed_address_is_the_checked_one_despite_dns_rebinding() -> None:
    """One lookup for each connection: a second one could be answered differently."""
    resolve, asked = resolving(["127.0.0.1"], ["169.254.169.254"])
    async with listening(always(OK)) as peer, a_client(resolve) as client:
        url = f"http://x:{peer.port}/"
        outlet = client.open_configured(url, allow_private=True)
        for _ in range(3):  # over the one connection, without another lookup
            reply = await outlet.request("GET", url, {}, timeout=BOUND)
            assert await reply.body.read(10) == b"ok"
        assert asked == ["x"]
        (found,) = client._pools.values()
        for connection in tuple(found._open):
            connection.abort()
        with pytest.raises(Unreachable, match="a cloud metadata address, which is never allowed"):
            await outlet.request("GET", url, {}, timeout=BOUND)
        assert asked == ["x", "x"]
        assert peer.connections == 1


async def test_next_address_is_tried_when_one_fails() -> None:
    resolve, _ = resolving(["127.0.0.3", "127.0.0.1"])
    async with listening(always(OK)) as peer, a_client(resolve) as client:
        url = f"http://x:{peer.port}/"
        outlet = client.open_configured(url, allow_private=True)
        reply = await outlet.request("GET", url, {}, timeout=BOUND)
        assert await reply.body.read(10) == b"ok"


async def test_refused_connection_is_reported_as_not_sent() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}/"
        async with a_client() as client:
            with pytest.raises(Unreachable, match=r"could not connect.*nothing listens") as caught:
                await get(client, url)
            assert not caught.value.sent


async def test_a_name_without_addresses_is_unreachable() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async with a_client(resolve) as client:
        with pytest.raises(Unreachable, match="Name or service not known") as caught:
            await get(client, "http://nowhere.invalid/")
        assert not caught.value.sent
    none, _ = resolving([])
    async with a_client(none) as client:
        with pytest.raises(Unreachable, match="has no addresses"):
            await get(client, "http://nowhere.invalid/")


async def test_hanging_dns_lookup_times_out_as_not_sent() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    async with a_client(resolve) as client:
        outlet = client.open_configured("http://x/", allow_private=False)
        with pytest.raises(Unreachable, match=r"no connection within 0\.05 s") as caught:
            await outlet.request("GET", "http://x/", {}, timeout=0.05)
        assert not caught.value.sent


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    async with listening(always(OK)) as peer, a_client() as client:
        assert await get(client, peer.url) == (200, b"ok")


@pytest.mark.parametrize(
    "url",
    ["http://2130706433/", "http://0x7f000001/", "http://127.1/", "http://0177.0.0.1/",
     "http://user:secret@127.0.0.1/", "http://\uff11\uff12\uff17.0.0.1/", "file:///etc/passwd", ""],
)  # fmt: skip
async def test_ambiguous_url_is_neither_configured_nor_requested(url: str) -> None:
    async with a_client() as client:
        with pytest.raises(ConfigError, match="cannot be used") as configured:
            client.open_configured(url, allow_private=True)
        outlet = client.open_configured("http://127.0.0.1/", allow_private=True)
        with pytest.raises(Unreachable, match="will not connect") as caught:
            await outlet.request("GET", url, {}, timeout=BOUND)
        assert not caught.value.sent
        assert "secret" not in str(configured.value) + str(caught.value)


def _watch(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that are dialled from here on."""
    dialled: list[str] = []
    loop: Any = type(asyncio.get_running_loop())
    connect = loop.create_connection

    async def watched(self: Any, make: Any, host: str, *args: Any, **options: Any) -> Any:
        dialled.append(host)
        return await connect(self, make, host, *args, **options)

    monkeypatch.setattr(loop, "create_connection", watched)
    return dialled
