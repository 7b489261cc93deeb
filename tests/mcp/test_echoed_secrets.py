"""Servers that repeat the headers of a request: no error, result, progress text or record has the
credentials."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman import home as home_files
from dragoman.app.build import build_app
from dragoman.config import parse

pytestmark = pytest.mark.anyio
FIXED, CHANGING, WRITTEN = "canary-fixed-8d31f0", "canary-changing-77aa", "canary-written-1f"
KEY = "k" * 32
COOKIE = "canary+cookie/5d=="
TOOLS = ("error", "failed", "plain", "progress", "page")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class EchoingServer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._reply(405, b"")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        sent = [self.headers[name] for name in ("authorization", "x-key", "x-api-key")]
        session = self.headers["cookie"].removeprefix("session=")
        said = f"debug: {' '.join(sent)} unknown session {session}"
        method, name = asked["method"], asked.get("params", {}).get("name")
        if "id" not in asked:
            return self._reply(202, b"")
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"]}
        if method == "initialize":
            about = {"name": "echo", "version": "1"}
            answer["result"] = {"protocolVersion": "2025-11-25", "serverInfo": about,
                                "capabilities": {"tools": {}}}  # fmt: skip
        elif method == "tools/list":
            schema = {"type": "object"}
            answer["result"] = {"tools": [{"name": one, "inputSchema": schema} for one in TOOLS]}
        elif method != "tools/call" or name == "error":
            answer["error"] = {"code": -32000, "message": said, "data": {"headers": said}}
        elif name == "page":
            return self._reply(500, f"<html>{said}</html>".encode(), "text/html")
        else:
            block = {"type": "text", "text": said}
            answer["result"] = {"content": [block], "isError": name == "failed"}
        if name == "progress":
            token = asked["params"].get("_meta", {}).get("progressToken", 0)
            params = {"progressToken": token, "progress": 1, "message": said}
            note = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
            events = "".join(f"data: {json.dumps(one)}\n\n" for one in (note, answer))
            return self._reply(200, events.encode(), "text/event-stream")
        # As encoders of other languages do it.
        text = json.dumps(answer).replace("+", "\\u002B").replace("=", "\\u003d")
        self._reply(200, text.encode())

    def _reply(self, status: int, data: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Drops log output."""


@contextmanager
def run_server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), EchoingServer)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/mcp"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


async def test_credentials_that_a_server_repeats_are_masked_everywhere(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home_files.prepare(str(short_tmp))
    secret = short_tmp / "changing"
    secret.write_text(CHANGING)
    secret.chmod(0o600)
    with run_server() as url:
        config = parse(
            f"""
            api_key = "{KEY}"
            [server]
            port = 0
            [[mcp_servers]]
            name = "echo"
            [mcp_servers.transport]
            type = "http"
            url = "{url}"
            [mcp_servers.transport.headers]
            Authorization = "Bearer ${{FIXED}}"
            X-Key = "${{file:changing}}"
            X-Api-Key = "{WRITTEN}"
            Cookie = "session=${{SESSION}}"
            """
        )
        monkeypatch.setenv("FIXED", FIXED)
        monkeypatch.setenv("SESSION", COOKIE)
        app = build_app(short_tmp, config, "daemon")
        await app.start()
        seen = ""
        try:
            async with httpx.AsyncClient(
                base_url=str(app.parts.state.url), headers={"authorization": f"Bearer {KEY}"}
            ) as client:
                for tool in TOOLS:
                    answer = await client.post(f"/api/tools/echo.{tool}/call", json={}, timeout=60)
                    assert "debug:" in answer.text and "***" in answer.text, (tool, answer.text)
                    seen += answer.text
                seen += (await client.get("/api/audit")).text
        finally:
            await app.stop()
    secret.unlink()
    assert not [one for one in (FIXED, CHANGING, WRITTEN, COOKIE) if one in seen]
    for file in (one for one in short_tmp.rglob("*") if one.is_file()):
        data = file.read_bytes()
        assert not [one for one in (FIXED, CHANGING, WRITTEN, COOKIE) if one.encode() in data], file
