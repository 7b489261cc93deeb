"""Discovery: the order of paths, and metadata that is wrong, hostile, large or slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.oauth.authlib_authority import AuthlibAuthority
from tests.oauth.served import bind, serve
from tests.oauth.world import LIMITS, World

from dragoman.core.errors import BadReply, ConfigError, TimedOut, Unreachable
from dragoman.net.client import OutboundHttp
from dragoman.oauth.client.challenges import BearerChallenge
from dragoman.oauth.client.discovery import Discovery
from dragoman.oauth.client.records import SHARED
from dragoman.oauth.client.urls import check_url, covers
from dragoman.oauth.config import OAuthSettings

Answer = Callable[[str, str], "dict[str, Any] | Response | None"]
"""Answers a path, of the server with that base URL."""


class Site:
    """A server whose documents are a function of their paths."""

    def __init__(self, base: str, answer: Answer) -> None:
        self.base = base
        self.answer = answer
        self.paths: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = Request(scope).url.path
        self.paths.append(path)
        found = self.answer(self.base, path)
        response: ASGIApp = found if isinstance(found, Response) else JSONResponse(found)
        await (response if found is not None else Response(status_code=404))(scope, receive, send)


@asynccontextmanager
async def _open(
    answer: Answer, *, path: str = "/mcp", limits: Any = LIMITS, allow_private: bool = False
) -> AsyncIterator[tuple[Site, Discovery]]:
    async with AsyncExitStack() as stack:
        outbound = OutboundHttp()
        stack.push_async_callback(outbound.close)
        listener, base = bind()
        site = Site(base, answer)
        await stack.enter_async_context(serve(site, listener))
        url = f"{base}{path}"
        http = outbound.open_configured(url, allow_private=allow_private, follow=False)
        yield site, Discovery(http, url, limits)


def _server(base: str, **more: Any) -> dict[str, Any]:
    return {
        "issuer": base,
        "authorization_endpoint": f"{base}/authorize",
        "token_endpoint": f"{base}/token",
        "code_challenge_methods_supported": ["S256"],
        **more,
    }


RESOURCE = "/.well-known/oauth-protected-resource"
OAUTH, OPENID = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"


async def test_the_path_of_the_resource_comes_before_the_root() -> None:
    def answer(base: str, path: str) -> dict[str, Any] | None:
        if path == RESOURCE:
            return {"resource": base, "authorization_servers": [base]}
        return _server(base) if path == OAUTH else None

    async with _open(answer, path="/public/mcp") as (site, discovery):
        found = await discovery.discover(BearerChallenge())
    assert site.paths == [f"{RESOURCE}/public/mcp", RESOURCE, OAUTH]
    assert found.resource.resource == site.base


async def test_the_metadata_that_the_challenge_names_is_used_alone() -> None:
    def answer(base: str, path: str) -> dict[str, Any] | None:
        if path == "/about":
            return {"resource": f"{base}/mcp", "authorization_servers": [base]}
        return _server(base) if path == OAUTH else None

    async with _open(answer) as (site, discovery):
        await discovery.discover(BearerChallenge(f"{site.base}/about"))
        assert site.paths == ["/about", OAUTH]
        with pytest.raises(BadReply, match="there is none"):
            await discovery.discover(BearerChallenge(f"{site.base}/missing"))


async def test_an_issuer_with_a_path_is_tried_at_three_places() -> None:
    def answer(base: str, path: str) -> dict[str, Any] | None:
        if path.startswith(RESOURCE):
            return {"resource": f"{base}/mcp", "authorization_servers": [f"{base}/tenant"]}
        return _server(f"{base}/tenant") if path == f"/tenant{OPENID}" else None

    async with _open(answer) as (site, discovery):
        found = await discovery.discover(BearerChallenge())
    assert site.paths[1:] == [f"{OAUTH}/tenant", f"{OPENID}/tenant", f"/tenant{OPENID}"]
    assert found.server.issuer == f"{site.base}/tenant"


async def test_an_issuer_without_a_path_is_tried_at_two_places() -> None:
    def answer(base: str, path: str) -> dict[str, Any] | None:
        if path.startswith(RESOURCE):
            return {"resource": f"{base}/mcp", "authorization_servers": [base]}
        return _server(base) if path == OPENID else None

    async with _open(answer) as (site, discovery):
        await discovery.discover(BearerChallenge())
    assert site.paths[1:] == [OAUTH, OPENID]


@pytest.mark.parametrize("slash", ["", "/"])
async def test_a_server_of_the_oldest_revision_is_its_own_authorization_server(slash: str) -> None:
    def answer(base: str, path: str) -> dict[str, Any] | None:
        return _server(base) | {"issuer": f"{base}{slash}"} if path == OAUTH else None

    async with _open(answer, path="/v1/mcp") as (site, discovery):
        found = await discovery.discover(BearerChallenge())
    assert found.server.issuer == f"{site.base}{slash}"
    assert found.resource.resource == f"{site.base}/v1/mcp"


async def test_an_old_server_with_a_foreign_issuer_needs_a_setting() -> None:
    """Some publish the metadata of another server at their own origin."""

    def answer(base: str, path: str) -> dict[str, Any] | None:
        return _server(f"{base}/auth") if path in (OAUTH, f"{OAUTH}/auth") else None

    async with _open(answer) as (site, discovery):
        with pytest.raises(BadReply, match="set issuer"):
            await discovery.discover(BearerChallenge())
        found = await discovery.discover(BearerChallenge(), f"{site.base}/auth")
        assert found.server.issuer == f"{site.base}/auth"


async def test_without_any_metadata_the_default_paths_are_used() -> None:
    async with _open(lambda base, path: None, path="/v1/mcp") as (site, discovery):
        server = (await discovery.discover(BearerChallenge())).server
    assert server.authorization_endpoint == f"{site.base}/authorize"
    assert server.token_endpoint == f"{site.base}/token"
    assert server.registration_endpoint == f"{site.base}/register"
    assert server.issuer == site.base


async def test_a_failure_does_not_lead_to_the_oldest_revision() -> None:
    def answer(base: str, path: str) -> Response | None:
        return Response(status_code=503) if path.startswith(RESOURCE) else None

    async with _open(answer) as (site, discovery):
        with pytest.raises(Unreachable, match="503"):
            await discovery.discover(BearerChallenge())
        assert OAUTH not in site.paths


async def test_a_page_at_every_path_is_not_metadata() -> None:
    """As single-page applications answer."""
    async with _open(lambda base, path: Response("<html></html>")) as (_, discovery):
        found = await discovery.discover(BearerChallenge())
    assert not found.resource.is_published


@pytest.mark.parametrize(
    "resource",
    [
        "https://other.example/mcp",
        "{base}/mcp2",
        "{base}/mcp/below",
        "{base}/other",
        "http://127.0.0.1:1/mcp",
        "https://user@127.0.0.1/mcp",
        "javascript:alert(1)",
        None,
        7,
    ],
)
async def test_metadata_of_another_resource_is_refused(resource: object) -> None:
    def answer(base: str, path: str) -> dict[str, Any] | None:
        named = resource.format(base=base) if isinstance(resource, str) else resource
        if path.startswith(RESOURCE):
            return {"resource": named, "authorization_servers": [base]}
        return _server(base)

    async with _open(answer) as (site, discovery):
        with pytest.raises(BadReply):
            await discovery.discover(BearerChallenge())
        assert OAUTH not in site.paths


@pytest.mark.parametrize("issuer", ["{base}/", "HTTP://127.0.0.1", "https://evil.example", None, 1])
async def test_metadata_of_another_issuer_is_refused(issuer: object) -> None:
    def answer(base: str, path: str) -> dict[str, Any] | None:
        named = issuer.format(base=base) if isinstance(issuer, str) else issuer
        if path.startswith(RESOURCE):
            return {"resource": f"{base}/mcp", "authorization_servers": [base]}
        return _server(base) | {"issuer": named}

    async with _open(answer) as (_, discovery):
        with pytest.raises(BadReply, match="another issuer"):
            await discovery.discover(BearerChallenge())


HOSTILE = [
    "javascript:alert(1)",
    "file:///etc/passwd",
    "data:text/html,x",
    "http://auth.example/x",
    "ftp://auth.example/x",
    "https://user:pass@auth.example/x",
    "https:///x",
    "//auth.example/x",
    "-oProxyCommand=x",
    "https://auth.example/$(touch x) y",
    "https://auth.example/\u202ex",
    "https://auth.example/\nx",
    'https://auth.example/"x',
    "https://auth.example/x#fragment",
    "https://auth.example:99999/x",
    "https://auth.example/" + "x" * 3000,
    "",
    7,
    ["https://auth.example"],
]


@pytest.mark.parametrize(
    "name", ["authorization_endpoint", "token_endpoint", "registration_endpoint"]
)
async def test_no_hostile_endpoint_is_used(
    authlib_world: World, authority: AuthlibAuthority, name: str
) -> None:
    for value in HOSTILE:
        authority.metadata = {name: value}
        with pytest.raises(BadReply):
            await authlib_world.manage().begin_login(SHARED)
    assert authority.registrations == 0


@pytest.mark.parametrize("value", [one for one in HOSTILE if isinstance(one, str) and one])
def test_hostile_urls_are_refused_wherever_they_are_named(value: str) -> None:
    with pytest.raises(BadReply) as refused:
        check_url(value, "the URL", allow_loopback=False)
    assert str(refused.value).isprintable()
    assert "pass" not in str(refused.value).replace("/etc/passwd", "")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8080/x",
        "http://localhost/x",
        "https://[::1]/x",
        "https://localhost",
        "https://127.1.2.3/x",
        "https://[::ffff:127.0.0.1]/x",
    ],
)
def test_a_public_server_may_not_lead_to_this_machine(url: str) -> None:
    check_url(url, "the URL", allow_loopback=True)
    with pytest.raises(BadReply, match="this machine"):
        check_url(url, "the URL", allow_loopback=False)


@pytest.mark.parametrize(
    ("resource", "url", "is_covered"),
    [
        ("https://a.example", "https://a.example/mcp", True),
        ("https://a.example/", "https://a.example/mcp", True),
        ("https://a.example/mcp", "https://a.example/mcp/", True),
        ("https://A.example:443/mcp", "https://a.example/mcp", True),
        ("https://a.example/mcp", "https://a.example/mcp?key=1", True),
        ("https://a.example/mcp", "https://a.example/mcp2", False),
        ("https://a.example/mcp", "https://a.example", False),
        ("https://a.example/mcp", "http://a.example/mcp", False),
        ("https://a.example:444/mcp", "https://a.example/mcp", False),
        ("https://b.example/mcp", "https://a.example/mcp", False),
        ("https://a.example/MCP", "https://a.example/mcp", False),
    ],
)
def test_a_token_is_for_its_resource_and_what_is_below(
    resource: str, url: str, is_covered: bool
) -> None:
    assert covers(resource, url) is is_covered


@pytest.mark.parametrize(
    "address", ["https://10.0.0.1", "https://192.168.1.1/x", "https://169.254.169.254"]
)
@pytest.mark.parametrize("what", ["metadata", "server"])
async def test_metadata_at_private_addresses_is_not_fetched(address: str, what: str) -> None:
    def answer(base: str, path: str) -> dict[str, Any] | None:
        return {"resource": f"{base}/mcp", "authorization_servers": [address]}

    challenge = BearerChallenge(f"{address}/about") if what == "metadata" else BearerChallenge()
    async with _open(answer) as (_, discovery):
        with pytest.raises(Unreachable, match="will not connect"):
            await discovery.discover(challenge)


async def test_another_port_of_this_machine_needs_allow_private(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    authlib_world.allow_private = False
    with pytest.raises(Unreachable, match="allow_private"):
        await authlib_world.manage().begin_login(SHARED)
    assert authority.paths == []


async def test_a_redirect_within_the_origin_is_followed_and_others_are_not() -> None:
    targets = {"/near": "/about", "/far": "https://other.example/about", "/round": "/round"}

    def answer(base: str, path: str) -> dict[str, Any] | Response | None:
        if path in targets:
            return Response(status_code=302, headers={"location": targets[path]})
        if path == "/about":
            return {"resource": f"{base}/mcp", "authorization_servers": [base]}
        return _server(base) if path == OAUTH else None

    async with _open(answer) as (site, discovery):
        await discovery.discover(BearerChallenge(f"{site.base}/near"))
        with pytest.raises(BadReply, match="another origin"):
            await discovery.discover(BearerChallenge(f"{site.base}/far"))
        with pytest.raises(BadReply, match="more than 3 times"):
            await discovery.discover(BearerChallenge(f"{site.base}/round"))


async def test_a_redirected_token_request_is_not_repeated(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    listener, base = bind()
    received: list[bytes] = []

    async def thief(scope: Scope, receive: Receive, send: Send) -> None:
        received.append((await receive())["body"])
        await JSONResponse({})(scope, receive, send)

    def redirect(base_url: str, path: str) -> Response:
        return Response(status_code=307, headers={"location": f"{base}/token"})

    async with serve(thief, listener), _open(redirect) as (site, _):
        authority.metadata = {"token_endpoint": f"{site.base}/token"}
        with pytest.raises(BadReply, match="redirects"):
            await authlib_world.log_in(authlib_world.manage())
        assert site.paths == ["/token"]
    assert received == []


async def test_metadata_that_is_too_large_is_refused() -> None:
    def answer(base: str, path: str) -> Response:
        return Response(b'{"resource": "' + b"x" * 400_000 + b'"}')

    async with _open(answer) as (_, discovery):
        with pytest.raises(BadReply):
            await discovery.discover(BearerChallenge())


async def test_metadata_that_is_too_slow_times_out() -> None:
    never = asyncio.Event()

    async def stall(scope: Scope, receive: Receive, send: Send) -> None:
        await never.wait()

    listener, base = bind()
    outbound = OutboundHttp()
    async with serve(stall, listener):
        http = outbound.open_configured(f"{base}/mcp", allow_private=False, follow=False)
        each = Discovery(http, f"{base}/mcp", replace(LIMITS, request_seconds=0.05))
        with pytest.raises(TimedOut):
            await each.discover(BearerChallenge())
        whole = Discovery(http, f"{base}/mcp", replace(LIMITS, discovery_seconds=0.05))
        with pytest.raises(TimedOut, match="OAuth metadata"):
            await whole.discover(BearerChallenge())
        never.set()
        await outbound.close()


async def test_the_next_authorization_server_is_tried(authlib_world: World) -> None:
    good = authlib_world.authority.issuer
    authlib_world.resource.issuers = ["http://127.0.0.1:1/gone", "javascript:x", good]
    login = await authlib_world.manage().begin_login(SHARED)
    assert login.issuer == good


async def test_a_configured_issuer_must_be_one_that_the_resource_accepts(
    authlib_world: World,
) -> None:
    issuer = authlib_world.authority.issuer
    login = await authlib_world.manage(OAuthSettings(issuer=issuer)).begin_login(SHARED)
    assert login.issuer == issuer
    authlib_world.resource.issuers = ["https://other.example"]
    with pytest.raises(BadReply, match="correct `issuer`"):
        await authlib_world.manage(OAuthSettings(issuer=issuer)).begin_login(SHARED)


def test_tokens_are_not_sent_unencrypted(authlib_world: World) -> None:
    authlib_world.resource.url = "http://mcp.example/mcp"
    with pytest.raises(ConfigError, match="https"):
        authlib_world.manage()


async def test_the_server_of_openid_connect_is_found_and_used(short_tmp: Any) -> None:
    from tests.oauth.world import build_world

    async with build_world(short_tmp, has_openid_only=True) as world:
        tokens = world.manage()
        await world.log_in(tokens)
        assert (await world.call(world.open(tokens))).status == 200
