"""Client ID metadata documents: fetched by the guarded client over TLS, checked, kept, bounded."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.net.test_http_tls import certificate

from dragoman.core.errors import RateLimited
from dragoman.net.client import OutboundHttp
from dragoman.oauth.authority import client_documents
from dragoman.oauth.authority.client_documents import ClientDocuments
from dragoman.oauth.authority.clients import InvalidClient
from dragoman.oauth.authority.config import AuthServerSettings

pytestmark = pytest.mark.promise("U4")

HOST = "app.test"

RESTRICTED = AuthServerSettings(redirect_hosts=["app.example"])


class DocumentServer:
    """Serves documents at `https://app.test:PORT`; `answers` maps a path to status, headers and
    body."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[str] = []
        self.open = threading.Event()
        self.open.set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                assert server.open.wait(60)
                status, headers, body = server.answers.get(self.path, (404, {}, b""))
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.base = f"https://{HOST}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def put(self, path: str, change: dict[str, Any] | None = None, age: str = "") -> str:
        url = self.base + path
        document = {
            "client_id": url,
            "client_name": "Good <app>",
            "redirect_uris": ["https://app.example/cb"],
            "token_endpoint_auth_method": "none",
            **(change or {}),
        }
        headers = {"cache-control": age} if age else {}
        self.answers[path] = 200, headers, json.dumps(document).encode()
        return url

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join(60)
        self._server.server_close()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DocumentServer]:
    tls = certificate(tmp_path, HOST)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    made = DocumentServer(tls)
    yield made
    made.close()


async def resolve_here(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


def spend_nothing() -> None:
    """The budget of the user is large."""


async def test_a_document_is_fetched_once_and_kept(server: DocumentServer) -> None:
    net, now = OutboundHttp(resolve_here), [0.0]
    documents = ClientDocuments(
        net.open_public(allow_private=True), AuthServerSettings(), lambda: now[0]
    )
    url = server.put("/client.json", age="max-age=600")
    found = await asyncio.gather(*(documents.find(url, spend_nothing) for _ in range(5)))
    assert {one.name for one in found} == {"Good <app>"} and found[0].host == HOST
    assert found[0].allows("https://app.example/cb") and not found[0].secret
    now[0] = 599
    await documents.find(url, spend_nothing)
    assert server.asked == ["/client.json"]
    now[0] = 601
    await documents.find(url, spend_nothing)
    assert len(server.asked) == 2
    await net.close()


async def test_documents_that_do_not_identify_a_public_client_are_refused(
    server: DocumentServer,
) -> None:
    net = OutboundHttp(resolve_here)
    documents = ClientDocuments(net.open_public(allow_private=True), RESTRICTED)
    bad = [
        server.put("/other", {"client_id": server.base + "/client.json"}),
        server.put("/secret", {"client_secret": "x"}),
        server.put("/method", {"token_endpoint_auth_method": "client_secret_post"}),
        server.put("/redirect", {"redirect_uris": ["https://evil.example/cb"]}),
        server.put("/none", {"redirect_uris": []}),
        server.put("/large", {"padding": "x" * 20_000}),
        server.base + "/missing",
    ]
    server.answers["/moved"] = 302, {"location": server.put("/good")}, b""
    server.answers["/html"] = 200, {}, b"<html>"
    server.answers["/list"] = 200, {}, b"[]"
    for url in (*bad, *(server.base + path for path in ("/moved", "/html", "/list"))):
        for _ in range(2):
            with pytest.raises(InvalidClient):
                await documents.find(url, spend_nothing)
    assert len(server.asked) == len(set(server.asked)) == 10  # a failure is kept for a moment too
    assert "/good" not in server.asked  # redirects are not followed
    await net.close()


async def test_redirects_that_are_not_allowed_here_are_left_out(server: DocumentServer) -> None:
    net = OutboundHttp(resolve_here)
    documents = ClientDocuments(net.open_public(allow_private=True), RESTRICTED)
    uris = ["https://evil.example/cb", "javascript:x", 1, "https://app.example/cb", "http://[::1]/"]
    found = await documents.find(server.put("/many", {"redirect_uris": uris}), spend_nothing)
    assert found.redirect_uris == ("https://app.example/cb", "http://[::1]/")
    await net.close()


async def test_a_document_on_a_private_address_is_not_fetched(server: DocumentServer) -> None:
    net = OutboundHttp(resolve_here)
    documents = ClientDocuments(net.open_public(allow_private=False), AuthServerSettings())
    with pytest.raises(InvalidClient, match="will not connect"):
        await documents.find(server.put("/client.json"), spend_nothing)
    assert server.asked == []
    await net.close()


async def test_fetches_are_charged_and_bounded(server: DocumentServer) -> None:
    net = OutboundHttp(resolve_here)
    documents = ClientDocuments(net.open_public(allow_private=True), AuthServerSettings())

    def refuse() -> None:
        raise RateLimited("too many")

    with pytest.raises(RateLimited):
        await documents.find(server.put("/a"), refuse)
    server.open.clear()
    urls = [server.put(f"/{number}") for number in range(client_documents.MAX_FETCHES)]
    waiting = [asyncio.create_task(documents.find(url, spend_nothing)) for url in urls]
    await asyncio.sleep(0)
    with pytest.raises(InvalidClient, match="try again"):
        await documents.find(server.put("/more"), spend_nothing)
    server.open.set()
    async with asyncio.timeout(60):
        await asyncio.gather(*waiting)
    assert (await documents.find(urls[0], refuse)).id == urls[0]  # a kept one costs nothing
    await net.close()
