"""The HTTP client that puts tokens in: where they go, and where they never appear."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Mapping
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send
from tests.oauth.authlib_authority import AuthlibAuthority
from tests.oauth.served import Browser, bind, serve
from tests.oauth.world import HEADERS, World
from tests.wire.test_masked_replies import PiecedBody

from dragoman.core.errors import HubError, LoginRequired
from dragoman.core.logins import mark_issuer
from dragoman.oauth.client.http import OAuthHttpClient
from dragoman.oauth.client.records import SHARED
from dragoman.wire.http import AddressFinder, Body, FixedHeaders, HttpReply


class Echo:
    """Answers with the headers that it got."""

    def __init__(self, location: str = "") -> None:
        self.headers: list[dict[bytes, bytes]] = []
        self.location = location

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers.append(dict(scope["headers"]))
        response: Response = PlainTextResponse("ok")
        if self.location:
            response = Response(status_code=307, headers={"location": self.location})
        await response(scope, receive, send)


async def test_the_token_goes_to_the_origin_of_the_resource_alone(authlib_world: World) -> None:
    tokens = authlib_world.manage()
    await authlib_world.log_in(tokens)
    client = authlib_world.open(tokens)
    listener, base = bind()
    other = Echo()
    async with serve(other, listener):
        for url in (f"{base}/mcp", f"{base.replace('127.0.0.1', 'localhost')}/mcp"):
            reply = await client.request("POST", url, HEADERS, b"{}", timeout=60)
            assert reply.status == 200
            assert reply.secrets == ()
    assert all(b"authorization" not in headers for headers in other.headers)
    assert len(other.headers) == 2


async def test_a_redirect_to_another_origin_does_not_carry_the_token(authlib_world: World) -> None:
    tokens = authlib_world.manage()
    await authlib_world.log_in(tokens)
    (there, base), (here, own) = bind(), bind()
    thief, resource = Echo(), Echo(f"{base}/mcp")
    authlib_world.resource.url = f"{own}/mcp"
    async with serve(thief, there), serve(resource, here):
        tokens.resource_url = f"{own}/mcp"
        reply = await authlib_world.call(authlib_world.open(tokens))
        assert reply.status == 200
    assert b"authorization" in resource.headers[0]
    assert b"authorization" not in thief.headers[0]


async def test_another_credential_in_the_headers_is_replaced(authlib_world: World) -> None:
    tokens = authlib_world.manage()
    await authlib_world.log_in(tokens)
    client = authlib_world.open(tokens)
    headers = {"Authorization": "Bearer of-the-caller", "content-type": "application/json"}
    more = {"authorization": "Bearer of-the-caller"}
    url = authlib_world.resource.url
    reply = await client.request("POST", url, headers, b"{}", timeout=60, extra_headers=more)
    assert reply.status == 200
    assert authlib_world.resource.seen[-1] == (await tokens.find_token(SHARED)).header


class Counter:
    """An HTTP client that keeps what it is given."""

    def __init__(self) -> None:
        self.sent: list[object] = []

    async def request(
        self, method: str, url: str, headers: object, *_: object, **__: object
    ) -> HttpReply:
        self.sent.append(headers)
        body: Body = None  # type: ignore[assignment]
        return HttpReply(200, {}, body)


class SlowEcho:
    """An HTTP client whose replies repeat the token; the first one waits."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()

    async def request(
        self, method: str, url: str, headers: Mapping[str, str], *_: object, **__: object
    ) -> HttpReply:
        self.sent.append(headers["authorization"])
        if len(self.sent) == 1:
            self.begun.set()
            await self.may_end.wait()
        data = headers["authorization"].encode()
        return HttpReply(200, {}, PiecedBody(data, len(data)))


async def test_a_token_that_is_replaced_while_its_reply_is_awaited_is_masked(
    authlib_world: World,
) -> None:
    tokens = authlib_world.manage()
    await authlib_world.log_in(tokens)
    http = SlowEcho()
    client = OAuthHttpClient(http, tokens, SHARED)

    async def call() -> bytes:
        reply = await client.request("POST", authlib_world.resource.url, HEADERS, b"{}", timeout=60)
        return await reply.body.read(10_000)

    async with asyncio.timeout(60):
        first = asyncio.create_task(call())
        await http.begun.wait()
        await tokens.note_rejected(SHARED, await tokens.find_token(SHARED), "")
        assert await call() == b"Bearer ***"
        http.may_end.set()
        assert await first == b"Bearer ***" and len(set(http.sent)) == 2


async def test_headers_are_built_once_per_token(authlib_world: World) -> None:
    tokens = authlib_world.manage()
    await authlib_world.log_in(tokens)
    http = Counter()
    client = OAuthHttpClient(http, tokens, SHARED)
    for _ in range(3):
        await client.request("POST", authlib_world.resource.url, HEADERS, b"{}", timeout=60)
    assert len({id(one) for one in http.sent}) == 1
    assert isinstance(http.sent[0], FixedHeaders)


async def test_grpc_gets_the_token_too(authlib_world: World) -> None:
    tokens = authlib_world.manage()
    client = authlib_world.open(tokens)
    url = authlib_world.resource.url
    assert isinstance(client, AddressFinder)
    with pytest.raises(LoginRequired):
        await client.fill(url, {})
    await authlib_world.log_in(tokens)
    assert await client.find_addresses(url, 5) == ["127.0.0.1"]
    token = await tokens.find_token(SHARED)
    assert await client.fill(url, {"x": "y"}) == {"x": "y", "authorization": token.header}
    for other in ("https://evil.example/mcp", url.replace("127.0.0.1", "127.0.0.2"), "grpc:x"):
        assert await client.fill(other, {"x": "y"}) == {"x": "y"}


async def test_no_secret_appears_in_logs_errors_or_the_database(
    authlib_world: World, authority: AuthlibAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    """Canaries: every token, code, verifier and client secret that was in use."""
    caplog.set_level(logging.DEBUG)
    world = authlib_world
    authority.metadata = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
    tokens = world.manage(fresh_seconds=0.0)
    client = world.open(tokens)
    shown: list[str] = []
    login = await tokens.begin_login(SHARED)
    query = await Browser(world.redirect_uri).log_in(login.url)
    await tokens.finish_login(login.state, query, mark_issuer(login.issuer))
    shown += [repr(login), repr(tokens.get_status(SHARED)), repr(await tokens.find_token(SHARED))]
    for _ in range(2):
        authority.expire()
        await world.call(client)
    # A careless authorization server repeats what it was sent.
    authority.echoes = True
    authority.expire()
    try:
        await world.call(client)
    except HubError as error:
        shown += ["".join(traceback.format_exception(error)), repr(error)]
    authority.echoes = False
    again = world.manage()
    await world.log_in(again)
    await again.forget(SHARED)
    await world.log_in(again)
    shown += [repr(one) for one in (tokens, client, world.store)]
    shown += [repr(slot.stored) + repr(slot.token) for slot in again._slots.values()]
    shown += [str(change) for change in world.changes]
    canaries = {*authority.tokens, *(one.secret for one in authority.clients.values())}
    for form in authority.token_requests:
        canaries |= {form.get(name, "") for name in ("code", "code_verifier", "refresh_token")}
    canaries.discard("")
    assert len(canaries) > 12
    ours = [one for one in caplog.records if one.name.startswith("dragoman")]
    text = "\n".join([*shown, *(one.getMessage() for one in ours)])
    assert len(ours) >= 1
    stored = _read_all(world.home)
    for canary in canaries:
        assert canary not in text
        assert canary.encode() not in stored
    assert b"files" in stored  # what was read is the database


def _read_all(home: Path) -> bytes:
    return b"".join(path.read_bytes() for path in home.iterdir() if path.is_file())


async def test_the_cost_of_a_call_with_a_token_is_a_lookup(authlib_world: World) -> None:
    """No task is started and nothing is awaited for a token that is valid."""
    tokens = authlib_world.manage()
    await authlib_world.log_in(tokens)
    client = OAuthHttpClient(Counter(), tokens, SHARED)
    call = client.request("POST", authlib_world.resource.url, HEADERS, b"{}", timeout=60)
    with pytest.raises(StopIteration):
        call.send(None)  # ends at once, without the loop
