"""A hub in this process, an authorization server with several users, and an MCP server of the SDK
that accepts its tokens alone: everything that a login needs, over real sockets."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import (
    create_agent_card_routes,
    create_jsonrpc_routes,
    create_rest_routes,
)
from a2a.server.tasks import InMemoryTaskStore
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthToken
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tests.live.conftest import RunningHub
from tests.oauth.sdk_authority import SdkAuthority
from tests.oauth.served import bind, serve
from tests.peers import a2a_sdk_agent, wire

from dragoman import home as home_files
from dragoman.app.app import App
from dragoman.app.build import build_app
from dragoman.config import load
from dragoman.stores.keys import KeyStore

CARDS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
URL_CLIENT: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}
CLIENT_KEY = "io.modelcontextprotocol/clientCapabilities"


class ManyUsersAuthority(SdkAuthority):
    """Remembers which user has consented to each token, through all refreshes."""

    def __init__(self, base: str, *, lifetime: int = 3600) -> None:
        super().__init__(base, lifetime=lifetime)
        self.user = ""
        """Who consents next."""
        self.users: dict[str, str] = {}
        """By code and token."""

    async def _consent(self, request: Request) -> Response:
        before = set(self.codes)
        if request.method == "POST":
            self.user = str((await request.form()).get("user", ""))
        response = await super()._consent(request)
        self.users |= dict.fromkeys(set(self.codes) - before, self.user)
        return response

    async def exchange_authorization_code(self, client: Any, authorization_code: Any) -> OAuthToken:
        issued = await super().exchange_authorization_code(client, authorization_code)
        return self._note(issued, authorization_code.code)

    async def exchange_refresh_token(
        self, client: Any, refresh_token: Any, scopes: list[str]
    ) -> OAuthToken:
        issued = await super().exchange_refresh_token(client, refresh_token, scopes)
        return self._note(issued, refresh_token.token)

    def _note(self, issued: OAuthToken, before: str) -> OAuthToken:
        user = self.users[before]
        self.users |= {issued.access_token: user, str(issued.refresh_token): user}
        return issued

    def kill_refresh_tokens(self) -> None:
        """Lets all tokens die."""
        self.access.clear()
        self.refresh.clear()


@dataclass
class ProtectedServer:
    """Checks the token of every request to an MCP server, and notes whose it is."""

    url: str
    authority: ManyUsersAuthority
    app: ASGIApp
    calls: list[tuple[str, str]] = field(default_factory=list)
    """The user of the token, and the argument `text`, of every tool call."""
    requests: list[tuple[str, str]] = field(default_factory=list)
    """The user and the JSON-RPC method of every request."""
    sessions: dict[str, set[str]] = field(default_factory=dict)
    """The users of each session of the handshake era."""
    headers: list[str] = field(default_factory=list)
    """All authorization headers."""
    opens_lists: bool = False
    """Whether everything but a tool call needs no token."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        request = Request(scope, receive)
        if request.url.path in CARDS:
            return await self.app(scope, receive, send)
        if request.url.path.startswith("/.well-known/oauth-protected-resource"):
            about = {"resource": self.url, "authorization_servers": [self.authority.issuer]}
            body = json.dumps({**about, "scopes_supported": ["read"]})
            return await Response(body, media_type="application/json")(scope, receive, send)
        body_bytes = await request.body()
        message = json.loads(body_bytes) if body_bytes else {}
        header = request.headers.get("authorization", "")
        self.headers.append(header)
        token = header.removeprefix("Bearer ")
        found = self.authority.find(token)
        is_open = self.opens_lists and message.get("method") != "tools/call"
        if not is_open and (found is None or not found["active"] or found["resource"] != self.url):
            base = "/".join(self.url.split("/")[:3])
            path = "/".join(self.url.split("/")[3:])
            where = f"{base}/.well-known/oauth-protected-resource/{path}"
            challenge = f'Bearer resource_metadata="{where}"'
            refusal = Response(status_code=401, headers={"www-authenticate": challenge})
            return await refusal(scope, receive, send)
        self._note(self.authority.users.get(token, ""), message, request.headers)
        await self.app(scope, _replay(body_bytes, receive), send)

    def _note(self, user: str, message: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        method = str(message.get("method", ""))
        self.requests.append((user, method))
        if session := headers.get("mcp-session-id"):
            self.sessions.setdefault(session, set()).add(user)
        said = message.get("params", message).get("message", {})
        if method == "tools/call":
            self.calls.append((user, message["params"]["arguments"].get("text", "")))
        elif parts := said.get("parts") or said.get("content"):
            self.calls.append((user, parts[0].get("text", "")))


def _replay(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def again() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def build_server(transport: str) -> Any:
    server = MCPServer("protected", log_level="ERROR")

    @server.tool()
    async def mark(text: str) -> str:
        """Returns the text."""
        await asyncio.sleep(0)
        return text

    return server.sse_app() if transport == "sse" else server.streamable_http_app()


def build_agent(base: str, declared: list[str]) -> Starlette:
    """The agent of the A2A SDK, whose card is public."""
    described = a2a_sdk_agent.card(base, declared, True)
    handler = DefaultRequestHandler(
        agent_executor=a2a_sdk_agent.Agent(lambda **entry: None),
        task_store=InMemoryTaskStore(),
        agent_card=described,
    )
    return Starlette(
        routes=[
            *create_agent_card_routes(described),
            *create_jsonrpc_routes(handler, "/rpc", enable_v0_3_compat=True),
            *create_rest_routes(handler, path_prefix="/rest", enable_v0_3_compat=True),
        ]
    )


class LoginBrowser:
    """A browser with cookies: follows redirects, and presses the button of each page."""

    def __init__(self, user: str = "", press: str = "approve") -> None:
        self.user = user
        self.press = press
        self.pages: list[httpx.Response] = []
        self.client = httpx.AsyncClient(timeout=60)

    async def visit(self, url: str, most: int = 12) -> httpx.Response:
        """Returns the last page, which has no form."""
        reply = await self.client.get(url)
        for _ in range(most):
            self.pages.append(reply)
            if reply.status_code in (302, 303, 307):
                to = httpx.URL(str(reply.url)).join(reply.headers["location"])
                reply = await self.client.get(to)
            elif "<form" in reply.text and reply.status_code == 200:
                reply = await self.submit(reply)
            else:
                return reply
        raise AssertionError("the browser was sent around in circles")

    async def submit(self, page: httpx.Response) -> httpx.Response:
        action = re.search(r'action="([^"]*)"', page.text)
        url = httpx.URL(str(page.url)).join(action[1].replace("&amp;", "&") if action else "")
        data = {"decision": self.press, "user": self.user}
        origin = f"{url.scheme}://{url.host}:{url.port}"
        return await self.client.post(url, data=data, headers={"origin": origin})

    async def close(self) -> None:
        await self.client.aclose()


@dataclass
class LoginRig:
    home: Path
    url: str
    app: App | None
    """The hub in this process."""
    authority: ManyUsersAuthority
    server: ProtectedServer
    keys: dict[str, str]
    http: httpx.AsyncClient
    agent: ProtectedServer | None = None

    def _headers(self, user: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.keys[user]}"} if user else {}

    async def api(self, method: str, path: str, user: str = "", body: Any = None) -> httpx.Response:
        return await self.http.request(
            method, f"{self.url}{path}", json=body, headers=self._headers(user), timeout=60
        )

    async def rpc(
        self, user: str, method: str, params: Mapping[str, Any] | None = None, *,
        features: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """A request of the modern era."""
        sent = wire.modern_params(params)
        sent["_meta"][CLIENT_KEY] = features or {}
        headers = {"accept": wire.ACCEPT, **self._headers(user)}
        headers |= wire.modern_headers(method, params)
        reply = await self.http.post(
            f"{self.url}/mcp", json=wire.request(1, method, sent), headers=headers, timeout=60
        )
        if reply.headers["content-type"].startswith("text/event-stream"):
            lines = [line for line in reply.text.splitlines() if line.startswith("data:")]
            return dict(json.loads(lines[-1].removeprefix("data:")))
        return dict(reply.json())

    async def call(
        self, user: str, text: str, *, features: Mapping[str, Any] | None = None, **more: Any
    ) -> dict[str, Any]:
        params = {"name": "files.mark", "arguments": {"text": text}, **more}
        answer = await self.rpc(user, "tools/call", params, features=features)
        return dict(answer.get("result") or answer)

    async def log_in(
        self, user: str, *, press: str = "approve", at: str = "mcp/servers/files", **body: Any
    ) -> httpx.Response:
        """Logs in as the command line does; returns the last page."""
        begun = await self.api("POST", f"/api/{at}/login", user, body)
        assert begun.status_code == 200, begun.text
        browser = LoginBrowser(user, press)
        try:
            return await browser.visit(begun.json()["url"])
        finally:
            await browser.close()

    async def state(self) -> dict[str, Any]:
        found = (await self.api("GET", "/api/mcp/servers", "root")).json()
        return dict(found["connected"][0])

    async def until(self, is_so: Callable[[], Awaitable[Any]], seconds: float = 60.0) -> Any:
        async with asyncio.timeout(seconds):
            while not (found := await is_so()):
                await asyncio.sleep(0.02)
        return found

    async def until_state(self, wanted: str) -> dict[str, Any]:
        async def is_so() -> dict[str, Any] | None:
            state = await self.state()
            return state if state["state"] == wanted else None

        return dict(await self.until(is_so))


@asynccontextmanager
async def build_login_rig(
    home: Path,
    *,
    credentials: str = "shared",
    transport: str = "http",
    era: str = "auto",
    lifetime: int = 3600,
    more: str = "",
    opens_lists: bool = False,
    agent: list[str] | None = None,
    own_process: bool = False,
    users: tuple[str, ...] = ("anna", "bob"),
) -> AsyncIterator[LoginRig]:
    async with AsyncExitStack() as stack:
        listener, base = bind()
        authority = ManyUsersAuthority(base, lifetime=lifetime)
        await stack.enter_async_context(serve(authority.app, listener))
        listener, base = bind()
        inner = build_server(transport)
        await stack.enter_async_context(inner.router.lifespan_context(inner))
        url = f"{base}/sse" if transport == "sse" else f"{base}/mcp"
        server = ProtectedServer(url, authority, inner, opens_lists=opens_lists)
        await stack.enter_async_context(serve(server, listener))
        protected: ProtectedServer | None = None
        if agent is not None:
            listener, base = bind()
            protected = ProtectedServer(base, authority, build_agent(base, agent))
            await stack.enter_async_context(serve(protected, listener))
            more += f"""
[a2a]
enabled = true
[[a2a.external_agents]]
name = "helper"
url = "{base}"
credentials = "{credentials}"
allow_private = true
"""
        home_files.prepare(str(home))
        (home / "config.toml").write_text(
            f"""
[server]
port = 0
[oauth]
credential_key = "file"
[limits.rate]
per_minute = 1000000
burst = 100000
address_per_minute = 1000000
address_burst = 100000
[[mcp_servers]]
name = "files"
credentials = "{credentials}"
era = "{era}"
transport = {{ type = "{transport}", url = "{url}", allow_private = true }}
{more}
""",
            encoding="utf-8",
        )
        (home / "config.toml").chmod(0o600)
        store = KeyStore(home)
        keys = {
            user: store.create(user, owner=user, expires_at=None, scopes=["call"]) for user in users
        }
        keys["root"] = store.create(
            "root", owner="root", expires_at=None, scopes=["call", "admin"], roles=["owner"]
        )
        store.close()
        app: App | None = None
        if own_process:
            running = await asyncio.to_thread(RunningHub, home, [], {})
            stack.push_async_callback(asyncio.to_thread, running.finish)
            url = running.url
        else:
            app = build_app(home, load(home / "config.toml"), "daemon")
            await app.start()
            stack.push_async_callback(app.stop)
            url = str(app.parts.state.url)
        http = await stack.enter_async_context(
            httpx.AsyncClient(limits=httpx.Limits(max_connections=200))
        )
        if app is not None:
            await app.parts.upstreams.wait_settled()
            await app.parts.agents.registry.wait_until_checked()
        yield LoginRig(home, url, app, authority, server, keys, http, protected)
