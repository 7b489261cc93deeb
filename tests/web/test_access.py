"""Principals that lose access: the key watch, and long-running requests."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from tests.permissive_hub import build_permissive_hub
from tests.web.test_listener import Plain

from dragoman.core.access import (
    SETTINGS_CHANGED,
    TOKEN_EXPIRED,
    TokenRejected,
    WhyEnded,
    explain_lost_access,
)
from dragoman.core.bus import Bus
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.errors import StorageFailed
from dragoman.core.principal import LOCAL, OWNER, Principal
from dragoman.stores.keys import LOOK_SECONDS, KeyStore
from dragoman.web import access_watch
from dragoman.web.access_watch import AccessWatch
from dragoman.web.api import Api
from dragoman.web.app import Mounted, TcpApp
from dragoman.web.auth import API_KEY, AllowedNames, Authenticator, Found
from dragoman.web.http import http1
from dragoman.web.http.listener import HttpListener
from dragoman.web.peer_process import ALONE
from dragoman.wire.http import HttpRequest

pytestmark = pytest.mark.promise("O1")

ANN, BOB = Principal("key", "ann"), Principal("key", "bob")


class Part:
    """Hears who is not served any more, of those it is asked about."""

    def __init__(self, *asked: Principal) -> None:
        self.asked = asked
        self.told: list[dict[str, str]] = []
        self.came = asyncio.Event()

    def end_principals(self, why_ended: WhyEnded) -> None:
        self.told.append({str(one): why for one in self.asked if (why := why_ended(one))})
        self.came.set()

    async def next(self) -> dict[str, str]:
        async with asyncio.timeout(60):
            await self.came.wait()
        self.came.clear()
        return self.told[-1]


class Broken:
    def end_principals(self, why_ended: WhyEnded) -> None:
        raise RuntimeError("out of order")


@asynccontextmanager
async def watching(
    keys: KeyStore, *parts: Part | Broken, api_key: str | None = None
) -> AsyncIterator[AccessWatch]:
    auth = Authenticator(api_key, lambda key: None, keys.has_keys)
    watch = AccessWatch(keys, auth)
    task = asyncio.create_task(watch.watch(list(parts)))
    try:
        yield watch
    finally:
        task.cancel()
        watch.close()
        keys.close()


def test_open_requests_end_within_a_second_of_revocation() -> None:
    soonest = max(access_watch.KEY_SECONDS, LOOK_SECONDS)
    assert soonest + access_watch.AGAIN_SECONDS[0] + http1.ENDING_SECONDS < 1


async def test_every_component_is_notified_of_key_changes_by_other_processes(
    tmp_path: Path,
) -> None:
    part = Part(LOCAL, OWNER, ANN, BOB)
    async with watching(KeyStore(tmp_path), Broken(), part):
        other = KeyStore(tmp_path)
        for name in ("ann", "bob"):
            other.create(name, owner="me", expires_at=None, scopes=["call"])
        assert (await part.next()).get("local:local") == "a key is needed now"
        other.revoke("ann")
        other.close()
        while (told := await part.next()).get("key:ann") is None:
            pass
        assert told == {"local:local": "a key is needed now", "key:ann": "the key was revoked"}


class Unstored(Part):
    """One whose store fails a number of times."""

    failures = 2 * len(access_watch.AGAIN_SECONDS) + 2

    def end_principals(self, why_ended: WhyEnded) -> None:
        if self.failures:
            self.failures -= 1
            raise StorageFailed("the database is away")
        super().end_principals(why_ended)


async def test_requests_are_ended_once_a_store_that_is_away_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = KeyStore(tmp_path)
    keys.create("ann", owner="me", expires_at=None, scopes=["call"])
    part = Unstored(ANN, BOB)
    async with watching(keys, part):
        other = KeyStore(tmp_path)
        other.revoke("ann")
        other.close()
        assert (await part.next())["key:ann"] == "the key was revoked"
    assert not [record for record in caplog.records if record.exc_info]


async def test_key_expiry_is_noticed_without_a_request(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path)
    for name, lasts in (("ann", 0.3), ("bob", 3600)):
        keys.create(name, owner="me", expires_at=time.time() + lasts, scopes=["call"])
    part = Part(ANN, BOB, API_KEY)
    async with watching(keys, part, api_key="k"):
        assert await part.next() == {"key:ann": "the key has expired"}


def test_request_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path)
    keys.create("ann", owner="me", expires_at=None, scopes=["call"])
    watch = AccessWatch(keys, Authenticator(None, lambda key: None, keys.has_keys))
    assert watch.explain_ended(ANN) == "" and watch.explain_ended(OWNER) == ""
    for stranger in (BOB, API_KEY, Principal("key", "ann", "elsewhere"), Principal("new", "ann")):
        assert watch.explain_ended(stranger), stranger
    keys.close()


# --- access tokens --------------------------------------------------------------------------------


class Tokens:
    """Some tokens of users, each with the reason why it is refused."""

    version = 0

    def __init__(self, **why: str) -> None:
        self.why = why
        self.expiry = float("inf")

    def find(self, token: str) -> Found:
        if token not in self.why:
            return None
        if self.why[token]:
            raise TokenRejected(self.why[token])
        return user(token)

    def is_active(self) -> bool:
        return True

    def list_issuers(self, base: str) -> list[str]:
        return ["https://login.example.com"]

    def refresh(self) -> None:
        pass

    def find_next_expiry(self, now: float) -> float:
        return self.expiry if self.expiry > now else float("inf")

    def explain_invalid(self, principal: Principal) -> str | None:
        return self.why.get(principal.credential)


def user(credential: str, id: str = "ann") -> Principal:
    return Principal("user", id, credential=credential)


async def test_tokens_of_one_user_end_apart(tmp_path: Path) -> None:
    """They are equal principals, and only one of them has ended."""
    keys, tokens = KeyStore(tmp_path), Tokens(one="", two="")
    told: list[dict[str, str]] = []
    came = asyncio.Event()

    class Asking:
        def end_principals(self, why_ended: WhyEnded) -> None:
            told.append({name: why_ended(user(name)) for name in ("one", "two", "one")})
            came.set()

    watch = AccessWatch(keys, Authenticator(None, lambda key: None, keys.has_keys, [tokens]))
    task = asyncio.create_task(watch.watch([Asking()]))
    try:
        tokens.why["one"] = TOKEN_EXPIRED
        tokens.expiry = time.time() + 0.1  # no version changes: only time passes
        await asyncio.wait_for(came.wait(), 60)
        assert told[0] == {"one": TOKEN_EXPIRED, "two": ""}
        tokens.why["two"] = "the access token was revoked"
        tokens.version += 1
        async with asyncio.timeout(60):
            while not told[-1]["two"]:
                came.clear()
                await came.wait()
    finally:
        task.cancel()
        watch.close()
        keys.close()


def test_user_of_no_finder_is_not_served(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path)
    watch = AccessWatch(keys, Authenticator(None, lambda key: None, keys.has_keys, [Tokens(a="")]))
    assert watch.explain_ended(user("a")) == ""
    assert "no more tokens" in watch.explain_ended(user("of another finder"))
    assert watch.explain_ended(LOCAL), "a hub with tokens requires them"
    without = AccessWatch(keys, Authenticator(None, lambda key: None, keys.has_keys))
    assert "no more tokens" in without.explain_ended(user("a"))
    assert without.explain_ended(LOCAL) == ""
    keys.close()


def test_what_outlives_a_request_ends_with_the_user_and_not_with_an_expired_token() -> None:
    reasons = {"old": TOKEN_EXPIRED, "changed": SETTINGS_CHANGED, "stolen": "it was revoked"}

    def why_ended(principal: Principal) -> str:
        return reasons.get(principal.credential, "")

    expected = {"old": "", "changed": "", "stolen": "it was revoked", "new": ""}
    for credential, why in expected.items():
        assert explain_lost_access(why_ended, user(credential)) == why


# --- requests that do not end by themselves -------------------------------------------------------


class Served:
    def __init__(self) -> None:
        self.good = {"ann", "bob"}
        self.running: list[str] = []
        self.cancelled: list[object] = []

    def why_ended(self, principal: Principal) -> str:
        return "" if principal.id in self.good else "the key was revoked"

    async def answer(self, request: HttpRequest, principal: Principal) -> None:
        """Never, whatever becomes of the caller."""
        if request.path == "/stream":
            request.start(200, [])
            request.send(b"first")
        self.running.append(request.path)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            self.cancelled.append(error.args)
            raise


@asynccontextmanager
async def listening(served: Served) -> AsyncIterator[tuple[HttpListener, int]]:
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)

    def find(key: str) -> Principal | None:
        return Principal("key", key) if key in served.good else None

    auth = Authenticator(None, find, lambda: True)
    mounts: dict[str, Mounted] = {"/plain": served.answer, "/stream": served.answer}
    api = Api(build_permissive_hub(Catalog(review=admit_all), Bus(), []), Plain())
    made = HttpListener(
        TcpApp(auth, AllowedNames("127.0.0.1", None, [], []), mounts, api, peers=ALONE), sock
    )
    await made.start()
    try:
        yield made, sock.getsockname()[1]
    finally:
        await made.drain(0)
        made.abort()


def head(path: str, key: str, length: int = 0) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {key}"]
    lines += ["Content-Type: application/json", f"Content-Length: {length}", "", ""]
    return "\r\n".join(lines).encode()


@pytest.mark.parametrize("path", ["/plain", "/stream"])
async def test_long_running_request_is_ended_on_revocation(path: str) -> None:
    """With a status where nothing was said yet; else it breaks off, so as not to look whole."""
    served = Served()
    async with listening(served) as (listener, port), asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        _, theirs = await asyncio.open_connection("127.0.0.1", port)
        theirs.write(head("/plain", "bob"))
        writer.write(head(path, "ann"))
        while len(served.running) < 2:
            await asyncio.sleep(0.01)
        if path == "/stream":
            await reader.readuntil(b"first\r\n")
        served.good.discard("ann")
        listener.end_principals(served.why_ended)
        if path == "/stream":
            with suppress(ConnectionError):
                assert await reader.read() == b""
        else:
            assert (await reader.readline()).startswith(b"HTTP/1.1 401")
            await reader.readuntil(b"the key was revoked\n")
        while not served.cancelled:
            await asyncio.sleep(0.01)
        assert served.cancelled == [("the key was revoked",)]
        for one in (writer, theirs):
            one.close()


async def test_request_is_refused_if_its_key_is_revoked_before_the_body() -> None:
    served = Served()
    async with listening(served) as (listener, port), asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head("/plain", "ann", 2))
        while not [one for one in listener._connections if one._reading is not None]:
            await asyncio.sleep(0.01)
        served.good.discard("ann")
        listener.end_principals(served.why_ended)
        writer.write(b"{}")
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")
        assert not served.running
        writer.close()
