"""References to secrets that callers of the API write: none runs a program, none reads what the
configuration does not set aside, and what is written is what was checked."""

from __future__ import annotations

import asyncio
import hmac
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from dragoman import home as home_files
from dragoman.a2a.config import A2aSettings, ExternalAgent
from dragoman.app.app import App
from dragoman.app.build import build_app
from dragoman.config import Config, SecretSettings
from dragoman.core.secret_rules import Author
from dragoman.mcp.config import HttpTransport, ServerEntry
from dragoman.web.config import ServerSettings

pytestmark = pytest.mark.anyio
KEY = "k" * 32
SECRET = "canary-77120001"
HOOK = (
    'triggers: [{type: webhook, secret: "%s"}]\n'
    "steps: [{id: a, nodeId: transform, config: {value: 1}}]"
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def run_hub(home: Path, **settings: Any) -> AsyncIterator[tuple[App, httpx.AsyncClient]]:
    """A hub, and a client with a key that may administer it."""
    home_files.prepare(str(home))
    (home / "config.toml").touch(0o600)
    config = Config(
        server=ServerSettings(port=0),
        api_key=KEY,
        secrets=SecretSettings(allow=["env:TEAM_*"]),
        **settings,
    )
    app = build_app(home, config, "daemon")
    await app.start()
    try:
        async with httpx.AsyncClient(
            base_url=str(app.parts.state.url), headers={"authorization": f"Bearer {KEY}"}
        ) as client:
            yield app, client
    finally:
        await app.stop()


async def test_no_workflow_of_the_api_runs_a_program(short_tmp: Path) -> None:
    async with run_hub(short_tmp) as (app, client):
        ran = short_tmp / "ran"
        for secret in (f"exec:touch {ran}", "env:AWS_SECRET_ACCESS_KEY", "file:/etc/hostname"):
            body = {"name": "pwn", "source": HOOK % secret}
            answer = await client.post("/api/workflows", json=body)
            assert answer.status_code == 400 and "written by the API" in answer.text, answer.text
        body = {"name": "pwn", "source": HOOK % "env:TEAM_HOOK"}
        assert (await client.post("/api/workflows", json=body)).status_code == 200

        # Even a definition that got past the writing and the loading resolves nothing.
        parts = app.parts.workflows.find()
        assert parts is not None
        parts.folder._check_reference = lambda reference, use: None
        parts.folder.write("pwn", HOOK % f"exec:touch {ran}", Author.API)
        signature = {"x-hub-signature-256": f"sha256={'00' * 32}"}
        assert (await client.post("/api/hooks/pwn", headers=signature)).status_code == 401
        assert not ran.exists()


async def test_headers_of_a_new_server_are_written_as_they_were_checked(short_tmp: Path) -> None:
    config = short_tmp / "config.toml"
    async with run_hub(short_tmp) as (_, client):

        async def add(name: str, headers: Any) -> httpx.Response:
            body = {"name": name, "url": "http://127.0.0.1:9/mcp", "headers": headers}
            return await client.post("/api/mcp/servers", json=body, timeout=60)

        team = "${TEAM_TOKEN}"
        for headers in (
            {"Y: ${exec:touch x": team}, {"Y: ${exec:touch x": "}"}, {"a b": team}, {"": team},
            {"A\r\nB": team}, {"A=B": team}, {"A\u00e9": team},
            {"X": "${env:TEAM_${exec:id}"}, {"X": "${exec:id}"}, {"X": "${AWS_SECRET}"},
            {"X": "${TEAM_TOKEN}\r\nZ: 1"}, {"X": "${TEAM_TOKEN:-${exec:id}}"},
            {"X": "${env:TEAM_{exec:id}"}, {"X": "$TEAM_TOKEN ${TEAM_TOKEN}"},
        ):  # fmt: skip
            answer = await add("b2", headers)
            assert answer.status_code == 400, (headers, answer.text)
            assert "X" in headers or "the name of the header" in answer.text, answer.text
        assert config.read_bytes() == b""

        headers = {"Authorization": "Bearer ${TEAM_TOKEN}", "X-Other": "${env:TEAM_OTHER}"}
        answer = await add("b2", headers)
        assert answer.status_code == 200, answer.text
        [entry] = tomllib.loads(config.read_text())["mcp_servers"]
        assert entry["transport"]["headers"] == headers and entry["added_by"] == "api"


OPS = "DRAGOMAN_AGENT_OPS"
OTHER = "http://127.0.0.1:9"
AT_HOME = "http://127.0.0.1:1"


@pytest.fixture
def ops(monkeypatch: pytest.MonkeyPatch) -> A2aSettings:
    """An agent of the owner, and the variable with its token."""
    monkeypatch.setenv(OPS, SECRET)
    entry = ExternalAgent(name="ops", url=f"{AT_HOME}/", allow_private=True, token=f"env:{OPS}")
    return A2aSettings(enabled=True, external_agents=[entry])


async def test_a_credential_of_an_agent_is_sent_to_no_other_host_by_a_server(
    short_tmp: Path, ops: A2aSettings
) -> None:
    config = short_tmp / "config.toml"
    async with run_hub(short_tmp, a2a=ops) as (_, client):
        for reference in (OPS, f"env:{OPS}"):
            body = {"name": "b", "url": f"{OTHER}/mcp", "headers": {"X-Key": f"${{{reference}}}"}}
            answer = await client.post("/api/mcp/servers", json=body, timeout=60)
            assert answer.status_code == 400, answer.text
            assert f"is reserved for {AT_HOME}" in answer.text and OTHER in answer.text
        url = {"url": f"{OTHER}/${{{OPS}}}/mcp"}
        answer = await client.post("/api/mcp/servers", json={"name": "b", **url}, timeout=60)
        assert answer.status_code == 400 and "is reserved" in answer.text, answer.text
        assert config.read_bytes() == b""
        body |= {"url": f"{AT_HOME}/mcp"}
        answer = await client.post("/api/mcp/servers", json=body, timeout=60)
        assert answer.status_code == 200, answer.text


async def test_a_credential_of_an_agent_is_no_variable_of_a_workflow_of_the_api(
    short_tmp: Path, ops: A2aSettings
) -> None:
    steps = f"env: [{OPS}]\nsteps: [{{id: a, nodeId: transform, config: {{value: 1}}}}]"
    async with run_hub(short_tmp, a2a=ops) as (app, client):
        for source in (steps, HOOK % f"env:{OPS}"):
            answer = await client.post("/api/workflows", json={"name": "w", "source": source})
            assert answer.status_code == 400, answer.text
            assert 'not given to workflow \\"w\\"' in answer.text
        parts = await app.parts.workflows.require()
        parts.folder.write("own", steps, Author.OWNER)


async def test_a_credential_is_reserved_for_the_origin_where_it_is_used(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is checked when it is written is checked again when it leaves."""
    monkeypatch.setenv(OPS, SECRET)
    async with listen() as (own, _), listen() as (thief, heard):
        home_files.prepare(str(short_tmp))
        servers = [build_server("own", own, "owner")]
        async with run_hub(short_tmp, mcp_servers=servers) as (_, client):
            await wait_failed(client, "own")
            answer = await client.post(
                "/api/a2a/agents", json={"url": f"{thief}/", "token": f"env:{OPS}"}
            )
            assert answer.status_code == 400 and f"is reserved for {own}" in answer.text
        (short_tmp / "config.toml").write_text("# not empty\n", encoding="utf-8")
        servers.append(build_server("thief", thief, "api"))
        async with run_hub(short_tmp, mcp_servers=servers) as (_, client):
            assert f"is reserved for {own}" in await wait_failed(client, "thief")
        assert not heard


def build_server(name: str, origin: str, author: Literal["owner", "api"]) -> ServerEntry:
    headers = {"X-Key": f"${{{OPS}}}"}
    transport = HttpTransport(url=f"{origin}/mcp", headers=headers, allow_private=True)
    return ServerEntry(name=name, transport=transport, added_by=author)


async def wait_failed(client: httpx.AsyncClient, name: str) -> str:
    """Waits until the server could not be connected, and returns why."""
    async with asyncio.timeout(30):
        while True:
            states = (await client.get("/api/mcp/servers")).json()["connected"]
            state = next(one for one in states if one["name"] == name)
            if state["state"] == "failed":
                return str(state["reason"])
            await asyncio.sleep(0.02)


@asynccontextmanager
async def listen() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that closes each connection, and what it was sent."""
    heard: list[bytes] = []

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(65_536))
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heard


async def test_floods_without_a_signature_are_refused_and_signed_requests_are_not(
    short_tmp: Path,
) -> None:
    async with run_hub(short_tmp) as (app, client):
        (short_tmp / "hook.secret").write_text("secret")
        (short_tmp / "hook.secret").chmod(0o600)
        parts = await app.parts.workflows.require()
        parts.folder.write("hook", HOOK % "file:hook.secret", Author.OWNER)
        codes = [(await client.post("/api/hooks/hook")).status_code for _ in range(80)]
        assert codes[:60] == [401] * 60 and set(codes[61:]) <= {401, 429} and codes[-1] == 429
        signature = hmac.digest(b"secret", b"{}", "sha256").hex()
        signed = {"x-hub-signature-256": f"sha256={signature}"}
        answer = await client.post("/api/hooks/hook", content=b"{}", headers=signed)
        assert answer.status_code == 202
