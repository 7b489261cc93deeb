"""A faulty HTTP server on raw sockets; standard library only.

The path says how it misbehaves: `/MODE` at every request, `/after/MODE` only at `tools/call`, being
a plain Streamable HTTP server of the handshake era (2025-11-25, answers in JSON) until then. `/ok`
is that server alone. Each request goes to `--log`, and whether its sender hung up (`event` "gone").
Says where it is in one line of JSON.

    hang-headers    takes the request, says nothing     html-500       an error page
    hang-body       the head, then nothing              html-200       a page where JSON belongs
    hang-mid        half of the body, then nothing      big            a body of ?megabytes (100)
    reset           RST instead of an answer            gzip           compressed, and cut short
    reset-mid       half of the body, then RST          redirect       ?status=307&to=URL
    close           the end instead of an answer        redirect-loop  to itself, for ever
    drip            the answer, a byte every ?seconds   404-session    forgets each session once
    endless-sse     events without end, no answer       401            asks for a token
    204             no content                          bad-chunks     a chunk length that is none
    not-http        a line that is no HTTP              gzip-bomb      ?megabytes (200) of blanks
    endless-body    a body without end, ?rate bytes/s   flood-sse      events, ?rate bytes/s in all
    slow            the answer after ?seconds           big-500        an error of ?megabytes (100)
    short           less than its length, then the end  long           more than its length
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import socket
import struct
import sys
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

OPTIONS = argparse.Namespace()
SESSIONS: set[str] = set()
TOOLS = [{"name": "echo", "inputSchema": {"type": "object"}}]
FOREVER = 3600
BOMBS: dict[int, bytes] = {}


@dataclass
class Exchange:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    message: Any
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(
        self, status: str, kind: str = "", length: int | None = None, **more: str
    ) -> None:
        lines = [f"HTTP/1.1 {status}"]
        if kind:
            lines.append(f"Content-Type: {kind}")
        if length is not None:
            lines.append(f"Content-Length: {length}")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in more.items()]
        await self.send("\r\n".join([*lines, "", ""]).encode())

    async def whole(self, status: str, kind: str, body: bytes, **more: str) -> None:
        await self.head(status, kind, len(body), **more)
        await self.send(body)

    def reset(self) -> None:
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


def note(**entry: Any) -> None:
    if OPTIONS.log:
        with open(OPTIONS.log, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


# --- the good manners


def result(message: Any) -> Any:
    method, params = message.get("method"), message.get("params") or {}
    if method == "initialize":
        return {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "rude-http", "version": "0"},
        }
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        words = str((params.get("arguments") or {}).get("text", ""))
        return {"content": [{"type": "text", "text": words}]}
    return {} if method == "ping" else None


def reply(message: Any) -> bytes:
    body = {"jsonrpc": "2.0", "id": message.get("id")}
    if (good := result(message)) is not None:
        return json.dumps({**body, "result": good}).encode()
    return json.dumps({**body, "error": {"code": -32601, "message": "Method not found"}}).encode()


async def ok(x: Exchange) -> None:
    if x.method != "POST":
        await x.whole("405 Method Not Allowed", "text/plain", b"no\n", Allow="POST")
    elif not isinstance(x.message, dict):
        await x.whole("400 Bad Request", "text/plain", b"no\n")
    elif "id" not in x.message:
        await x.head("202 Accepted", length=0)
    elif x.message.get("method") == "initialize":
        session = uuid.uuid4().hex
        SESSIONS.add(session)
        kind = "application/json"
        await x.whole("200 OK", kind, reply(x.message), Mcp_Session_Id=session)
    elif x.headers.get("mcp-session-id") not in SESSIONS:
        await x.whole("400 Bad Request", "text/plain", b"no session\n")
    else:
        await x.whole("200 OK", "application/json", reply(x.message))


# --- the bad ones


async def hang_headers(x: Exchange) -> None:
    await asyncio.sleep(FOREVER)


async def hang_body(x: Exchange) -> None:
    await x.head("200 OK", "application/json", 100)
    await asyncio.sleep(FOREVER)


async def half(x: Exchange) -> None:
    body = reply(x.message or {})
    await x.head("200 OK", "application/json", len(body))
    await x.send(body[: len(body) // 2])


async def hang_mid(x: Exchange) -> None:
    await half(x)
    await asyncio.sleep(FOREVER)


async def reset(x: Exchange) -> None:
    x.reset()


async def reset_mid(x: Exchange) -> None:
    await half(x)
    x.reset()


async def close(x: Exchange) -> None:
    x.writer.close()


async def drip(x: Exchange) -> None:
    body = reply(x.message or {})
    await x.head("200 OK", "application/json", len(body))
    for byte in body:
        await x.send(bytes([byte]))
        await asyncio.sleep(float(x.query.get("seconds", "0.5")))


async def endless_sse(x: Exchange) -> None:
    await x.head("200 OK", "text/event-stream")
    line = {"jsonrpc": "2.0", "method": "notifications/message"}
    event = f"event: message\ndata: {json.dumps(line)}\n\n".encode()
    while True:
        await x.send(event)
        await asyncio.sleep(float(x.query.get("seconds", "0.01")))


async def send_paced(x: Exchange, piece: bytes) -> None:
    """The piece again and again, `rate` bytes a second."""
    loop = asyncio.get_running_loop()
    rate, begun, sent = float(x.query.get("rate", "1e9")), loop.time(), 0
    while True:
        await x.send(piece)
        sent += len(piece)
        await asyncio.sleep(max(0.0, begun + sent / rate - loop.time()))


async def endless_body(x: Exchange) -> None:
    await x.head("200 OK", "application/json", Transfer_Encoding="chunked")
    await send_paced(x, b"10000\r\n" + b" " * (1 << 16) + b"\r\n")


async def flood_sse(x: Exchange) -> None:
    await x.head("200 OK", "text/event-stream")
    line = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x" * 900}}
    await send_paced(x, f"event: message\ndata: {json.dumps(line)}\n\n".encode() * 64)


async def gzip_bomb(x: Exchange) -> None:
    size = int(float(x.query.get("megabytes", "200")) * (1 << 20))
    if size not in BOMBS:
        BOMBS[size] = gzip.compress(b" " * size)
    await x.whole("200 OK", "application/json", BOMBS[size], Content_Encoding="gzip")


async def no_content(x: Exchange) -> None:
    await x.head("204 No Content")


async def html_500(x: Exchange) -> None:
    page = b"<html><body><h1>It is down</h1></body></html>\n"
    await x.whole("500 Internal Server Error", "text/html", page)


async def html_200(x: Exchange) -> None:
    await x.whole("200 OK", "text/html", b"<html><body>Sign in</body></html>\n")


async def short(x: Exchange) -> None:
    await half(x)
    x.writer.close()


async def long(x: Exchange) -> None:
    body = reply(x.message or {})
    await x.head("200 OK", "application/json", len(body))
    await x.send(body + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


async def slow(x: Exchange) -> None:
    await asyncio.sleep(float(x.query.get("seconds", "0.5")))
    await ok(x)


async def big_500(x: Exchange) -> None:
    await big(x, "500 Internal Server Error")


async def big(x: Exchange, status: str = "200 OK") -> None:
    size = int(float(x.query.get("megabytes", "100")) * (1 << 20))
    await x.head(status, "application/json", size)
    chunk = b" " * (1 << 16)
    sent = 0
    while sent < size:
        await x.send(chunk[: size - sent])
        sent += len(chunk)


async def gzipped(x: Exchange) -> None:
    body = gzip.compress(reply(x.message or {}))[:-8]
    await x.whole("200 OK", "application/json", body, Content_Encoding="gzip")


async def redirect(x: Exchange) -> None:
    status = x.query.get("status", "307")
    await x.head(f"{status} Elsewhere", length=0, Location=x.query["to"])


async def redirect_loop(x: Exchange) -> None:
    await x.head("307 Temporary Redirect", length=0, Location=x.path)


async def forget_session(x: Exchange) -> None:
    """As if the server were started anew: each session is unknown once, the next one lives."""
    SESSIONS.discard(x.headers.get("mcp-session-id", ""))
    await x.whole("404 Not Found", "text/plain", b"session not found\n")


async def unauthorized(x: Exchange) -> None:
    await x.whole("401 Unauthorized", "text/plain", b"who?\n", WWW_Authenticate="Bearer")


async def bad_chunks(x: Exchange) -> None:
    await x.head("200 OK", "application/json", Transfer_Encoding="chunked")
    await x.send(b"zz\r\n{}\r\n0\r\n\r\n")


async def not_http(x: Exchange) -> None:
    await x.send(b"220 mail.example.com ESMTP\r\n\r\n")
    x.writer.close()


MODES: dict[str, Callable[[Exchange], Awaitable[None]]] = {
    "ok": ok,
    "hang-headers": hang_headers,
    "hang-body": hang_body,
    "hang-mid": hang_mid,
    "reset": reset,
    "reset-mid": reset_mid,
    "close": close,
    "drip": drip,
    "endless-sse": endless_sse,
    "endless-body": endless_body,
    "flood-sse": flood_sse,
    "gzip-bomb": gzip_bomb,
    "204": no_content,
    "html-500": html_500,
    "html-200": html_200,
    "big": big,
    "big-500": big_500,
    "short": short,
    "long": long,
    "slow": slow,
    "gzip": gzipped,
    "redirect": redirect,
    "redirect-loop": redirect_loop,
    "404-session": forget_session,
    "401": unauthorized,
    "bad-chunks": bad_chunks,
    "not-http": not_http,
}


# --- the server


async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Exchange | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *rest = head.removesuffix("\r\n\r\n").split("\r\n")
        method, target, _ = line.split(" ")
        headers = {k.lower(): v.strip() for k, v in (one.split(":", 1) for one in rest)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    try:
        message = json.loads(body) if body else None
    except ValueError:
        message = None
    parts = urlsplit(target)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    return Exchange(method, parts.path, query, headers, message, reader, writer)


async def answer(x: Exchange) -> None:
    first, _, second = x.path.strip("/").partition("/")
    if first not in MODES and not (first == "after" and second in MODES):
        await x.whole("404 Not Found", "text/plain", b"no such mode\n")
        return
    calling = isinstance(x.message, dict) and x.message.get("method") == "tools/call"
    mode = first if first != "after" else second if calling else "ok"
    if mode == "404-session" and x.headers.get("mcp-session-id") not in SESSIONS:
        mode = "ok"
    await MODES[mode](x)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection: the requests in turn, each until it is answered or its sender hangs up."""
    try:
        while x := await read(reader, writer):
            note(event="request", method=x.method, path=x.path, headers=x.headers, body=x.message)
            work = asyncio.ensure_future(answer(x))
            while not work.done() and not reader.at_eof() and not reader.exception():
                await asyncio.wait({work}, timeout=0.02)
            # Who writes without end may learn of it by writing before the reader does.
            if not work.done() or isinstance(work.exception(), ConnectionError):
                note(event="gone", path=x.path, query=x.query)
                work.cancel()
                return
            await work
    finally:
        writer.close()


async def run() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", OPTIONS.port)
    port = server.sockets[0].getsockname()[1]
    ready = json.dumps({"port": port, "url": f"http://127.0.0.1:{port}"}) + "\n"
    if OPTIONS.ready:
        with open(OPTIONS.ready, "w", encoding="utf-8") as file:
            file.write(ready)
    else:
        sys.stdout.write(ready)
        sys.stdout.flush()
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(epilog=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ready", help="a file for the line that says where the server is")
    parser.add_argument("--log", help="a file for what it sees")
    parser.parse_args(namespace=OPTIONS)
    asyncio.run(run())


if __name__ == "__main__":
    main()
