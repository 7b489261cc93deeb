"""Too many connections: which are closed, and which are still accepted."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from tests.web import mcp_http_fixture
from tests.web.mcp_http_fixture import ALICE, BOB, HubRig
from tests.web.test_listener import parsed

from dragoman.web.http import http1


class Peer:
    """A connection that is kept."""

    def __init__(self, here: HubRig, key: str = "") -> None:
        self._port = here.port
        lines = ["Host: localhost", *([f"Authorization: Bearer {key}"] if key else []), "", ""]
        self._rest = " HTTP/1.1\r\n" + "\r\n".join(lines)

    async def connect(self) -> Peer:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def get(self, path: str = "/healthz") -> int:
        self.writer.write(f"GET {path}{self._rest}".encode())
        async with asyncio.timeout(60):
            status, headers, _ = parsed(await self.reader.readuntil(b"\r\n\r\n"))
            await self.reader.readexactly(int(headers["content-length"]))
        return status

    async def is_closed(self) -> bool:
        """Waits for the end that must come."""
        async with asyncio.timeout(60):
            with suppress(ConnectionResetError):
                assert await self.reader.read() == b""
        return True

    def close(self) -> None:
        self.writer.close()


async def idle(here: HubRig, count: int, key: str = "") -> list[Peer]:
    """So many connections that have asked once, the first first."""
    peers = []
    for _ in range(count):
        peers.append(await Peer(here, key).connect())
        assert await peers[-1].get() == 200
    return peers


async def some_closed(peers: list[Peer], count: int) -> None:
    """Which of those go that became idle in the same millisecond is not said."""
    async with asyncio.timeout(60):
        while sum(peer.reader.at_eof() for peer in peers) != count:
            await asyncio.sleep(0.001)


@pytest.mark.promise("N1")
async def test_idle_keyless_connections_are_closed_for_new_ones() -> None:
    async with mcp_http_fixture.run_mcp_rig(connections=20) as here:
        (alice,) = await idle(here, 1, ALICE)
        strangers = await idle(here, 30)
        assert len(here.listener._connections) <= 11, "half of an address, and one with a key"
        await some_closed(strangers, 20)
        assert await strangers[-1].get() == 200
        (bob,) = await idle(here, 1, BOB)
        assert await alice.get("/api/tools") == await bob.get("/api/tools") == 200
        for peer in (*strangers, alice, bob):
            peer.close()


@pytest.mark.promise("N1")
async def test_silent_and_half_sent_connections_are_closed_for_new_ones() -> None:
    async with mcp_http_fixture.run_mcp_rig(connections=20) as here:
        silent = [await Peer(here).connect() for _ in range(30)]
        for peer in silent[::2]:
            peer.writer.write(b"GET /healthz HTTP/1.1\r\nHo")
        (alice,) = await idle(here, 1, ALICE)
        await some_closed(silent, 21)
        for peer in (*silent, alice):
            peer.close()


@pytest.mark.promise("N1")
async def test_principal_may_hold_half_of_the_connections() -> None:
    async with mcp_http_fixture.run_mcp_rig(connections=20) as here:
        alices = await idle(here, 14, ALICE)
        bobs = await idle(here, 8, BOB)
        await some_closed(alices, 4)
        assert await alices[-1].get() == 200
        assert [await peer.get() for peer in bobs] == [200] * 8
        for peer in (*alices, *bobs):
            peer.close()


@pytest.mark.promise("N1")
async def test_active_connection_is_never_closed_for_another() -> None:
    async with mcp_http_fixture.run_mcp_rig(connections=10) as here:
        busy = [await here.send("POST", message=PING_STREAM) for _ in range(5)]
        other = await Peer(here, ALICE).connect()
        assert await other.get() == 503
        assert await other.is_closed()
        (bob,) = await idle(here, 1, BOB)
        here.work.go.set()
        for answer in busy:
            assert (await answer.rest())[-1].data
        bob.close()
        other.close()


PING_STREAM = mcp_http_fixture.call(1, steps=[1], waits=True)


async def test_keyless_keep_alive_is_short_only_under_pressure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http1, "SCARCE_SECONDS", 0.05)
    async with mcp_http_fixture.run_mcp_rig(connections=20) as here:
        (early,) = await idle(here, 1)
        keyed = await idle(here, 10, ALICE) + await idle(here, 6, BOB)
        (late,) = await idle(here, 1)
        assert await late.is_closed()
        assert await early.get() == 200, "it came when there was room"
        assert await early.is_closed(), "and has asked again when there was none"
        assert [await peer.get() for peer in keyed] == [200] * 16
        for peer in (early, late, *keyed):
            peer.close()
