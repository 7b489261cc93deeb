"""Agents and servers that call the hub back while serving a call: with the received trace, without
it, or with a forged one.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.peers.process import server_entry, toml

MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"
MEMBERS = ("traceparent", "tracestate", "X-OpenStarry-Trace-ID", "dragoman.hub/chain")
HEADERS = ("traceparent", "tracestate", "x-openstarry-trace-id", "x-dragoman-chain")
SECONDS = 20.0


@dataclass
class ReceivedTrace:
    """The trace that a peer received, in `_meta` or metadata and in headers."""

    beside: dict[str, Any]
    headers: dict[str, str]


Manner = Callable[["ReceivedTrace", int], tuple[dict[str, Any], dict[str, str]]]
"""The trace that a peer sends with its own nth call: in `_meta` or metadata, and in headers."""


def intact(received: ReceivedTrace, number: int) -> tuple[dict[str, Any], dict[str, str]]:
    return received.beside, received.headers


def headers_only(received: ReceivedTrace, number: int) -> tuple[dict[str, Any], dict[str, str]]:
    return {}, received.headers


def as_tracing_libraries_do(
    received: ReceivedTrace, number: int
) -> tuple[dict[str, Any], dict[str, str]]:
    """W3C Trace Context: a span of its own, the state as it was, nothing else."""
    found = {**received.headers, **received.beside}
    trace = found["traceparent"].split("-")[1]
    parent = f"00-{trace}-{number + 1:016x}-01"
    return {"traceparent": parent, "tracestate": found["tracestate"]}, {}


def stripped(received: ReceivedTrace, number: int) -> tuple[dict[str, Any], dict[str, str]]:
    return {}, {}


def forged(received: ReceivedTrace, number: int) -> tuple[dict[str, Any], dict[str, str]]:
    """A new trace each time, an unsigned chain, and forged depths."""
    depth = (-1, 10**9, "5", 0, None)[number % 5]
    signed = received.beside.get("dragoman.hub/chain", "")
    other = signed[:-1] + ("1" if signed.endswith("0") else "0")
    words = ("v1.W10=.00", "", other)[number % 3]
    parent = f"00-{number + 1:032x}-{number + 1:016x}-01"
    beside = {"traceparent": parent, "dragoman.hub/chain": words, "traceDepth": depth, "depth": 0}
    return beside, {"x-dragoman-depth": str(depth), "traceparent": parent, "baggage": "depth=0"}


@dataclass
class Peers:
    """A number of agents and servers, by their names; `calls` says whom each calls in turn."""

    port: int = 0
    hub: str = ""
    trace_mode: Manner = intact
    keys: dict[str, str] = field(default_factory=dict)
    calls: dict[str, Sequence[str]] = field(default_factory=dict)
    """Of each peer, what it calls: `mcp:TOOL` or `a2a:AGENT`. A peer in mode `hold` does nothing
    until the gate is open, and then calls what stands there under `NAME hold`."""
    at_once: bool = False
    served: Counter[str] = field(default_factory=Counter)
    """How often each was called."""
    most: int = 0
    """Calls that were being served at the same time, at most."""
    sent: int = 0
    received: list[ReceivedTrace] = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)
    """A peer is holding."""
    gate: threading.Event = field(default_factory=threading.Event)
    _done: int = 0

    def forget(self) -> None:
        """All that was done, for the next test."""
        self.trace_mode, self.keys, self.calls, self.at_once = intact, {}, {}, False
        self.served, self.most, self.sent, self.received, self._done = Counter(), 0, 0, [], 0
        self.held.clear()
        self.gate.clear()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.port}/{name}"

    def agent(self, name: str, **keys: Any) -> str:
        entry = {"name": name, "url": self.url(name), "allow_private": True, **keys}
        return "\n".join(
            ["[[a2a.external_agents]]", *(f"{key} = {toml(value)}" for key, value in entry.items())]
        )

    def server(self, name: str) -> str:
        return server_entry(name, "http", self.url(name))

    # --- what they do -----------------------------------------------------------------------------

    async def work(self, name: str, received: ReceivedTrace, text: str) -> str:
        self.served[name] += 1
        self.received.append(received)
        under_way = sum(self.served.values()) - self._done
        self.most = max(self.most, under_way)
        try:
            paths = self.calls.get(name, ())
            if text == "hold":
                self.held.set()
                await asyncio.to_thread(self.gate.wait, SECONDS)
                paths = self.calls.get(f"{name} hold", ())
            todo = [self._call(name, path, received) for path in paths]
            if self.at_once:
                said = await asyncio.gather(*todo)
            else:
                said = [await one for one in todo]
            return f"{name}({', '.join(said)})"
        finally:
            self._done += 1

    async def _call(self, name: str, path: str, received: ReceivedTrace) -> str:
        door, _, target = path.partition(":")
        beside, headers = self.trace_mode(received, self.sent)
        self.sent += 1
        headers = {**headers, "content-type": "application/json"}
        if name in self.keys:
            headers["authorization"] = f"Bearer {self.keys[name]}"
        if door == "a2a":
            message: dict[str, Any] = {
                "messageId": f"m{self.sent}",
                "role": "ROLE_USER",
                "parts": [{"text": "go"}],
            }
            if beside:
                message["metadata"] = beside
            asked = envelope("SendMessage", {"message": message})
            answer = await post(self.hub + f"/a2a/{target}", asked, headers)
            return text_from_a2a(answer)
        meta = {META + "protocolVersion": MODERN, META + "clientCapabilities": {}, **beside}
        arguments = {"message": "go"} if target.endswith(".message") else {}
        params = {"name": target, "arguments": arguments, "_meta": meta}
        headers |= {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": target}
        headers["accept"] = "application/json, text/event-stream"
        return text_from_mcp(await post(f"{self.hub}/mcp", envelope("tools/call", params), headers))

    # --- as servers and agents --------------------------------------------------------------------

    async def answer(self, name: str, path: str, headers: dict[str, str], asked: Any) -> Any:
        if path == "/.well-known/agent-card.json":
            return card(name, self.url(name))
        if asked is None:
            return None
        method, params = asked.get("method", ""), asked.get("params", {})
        found = {one: headers[one] for one in HEADERS if one in headers}
        if method == "SendMessage":
            received = ReceivedTrace(select_trace(params["message"].get("metadata", {})), found)
            asks = params["message"]["parts"][0].get("text", "")
            text = await self.work(name, received, asks)
            message = {"messageId": "a", "role": "ROLE_AGENT", "parts": [{"text": text}]}
            return {"message": message}
        whole = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        if method == "server/discover":
            return {**whole, "supportedVersions": [MODERN], "capabilities": {"tools": {}}}
        if method == "tools/list":
            tool = {"name": "go", "inputSchema": {"type": "object"}}
            return {**whole, "tools": [tool]}
        if method == "tools/call":
            asks = params.get("arguments", {}).get("message", "")
            text = await self.work(name, ReceivedTrace(select_trace(params["_meta"]), found), asks)
            return {**whole, "content": [{"type": "text", "text": text}]}
        # GetTask among them: health probes ask for a task that does not exist.
        return {"error": {"code": -32001, "message": "there is no such thing"}}


def select_trace(beside: Mapping[str, Any]) -> dict[str, Any]:
    return {name: beside[name] for name in MEMBERS if name in beside}


def envelope(method: str, params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def card(name: str, url: str) -> dict[str, Any]:
    return {
        "name": name,
        "description": "calls back",
        "version": "1",
        "supportedInterfaces": [
            {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        ],
        "capabilities": {},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "go", "name": "go", "description": "goes on", "tags": ["ring"]}],
    }


def text_from_mcp(answer: Any) -> str:
    if "error" in answer:
        return f"error {answer['error']['code']}: {answer['error']['message']}"
    return "\n".join(str(block.get("text")) for block in answer["result"]["content"])


def text_from_a2a(answer: Any) -> str:
    if "error" in answer:
        return f"error {answer['error']['code']}: {answer['error']['message']}"
    found = answer["result"]
    if "message" in found:
        return str(found["message"]["parts"][0]["text"])
    task = found["task"]
    shown = task.get("artifacts") or [task["status"].get("message", {"parts": [{}]})]
    return f"{task['status']['state']} " + str(shown[0]["parts"][0].get("text"))


async def post(url: str, body: Any, headers: Mapping[str, str]) -> Any:
    where, _, path = url.removeprefix("http://").partition("/")
    host, _, port = where.partition(":")
    data = json.dumps(body).encode()
    lines = [f"POST /{path} HTTP/1.1", f"host: {where}", "connection: close"]
    lines += [f"content-length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write("\r\n".join([*lines, "", ""]).encode() + data)
            answer = await reader.read()
        finally:
            writer.close()
    return json.loads(answer.partition(b"\r\n\r\n")[2])


@contextmanager
def peers() -> Iterator[Peers]:
    """All of them on one port, below their names."""
    made = Peers()
    loop = asyncio.new_event_loop()
    busy: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        busy.add(task)
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n"):
                pairs = (line.partition(":") for line in head[1:] if line)
                headers = {name.lower(): value.strip() for name, _, value in pairs}
                data = await reader.readexactly(int(headers.get("content-length", "0")))
                _, name, *rest = head[0].split()[1].split("/")
                asked = json.loads(data) if data else None
                found = await made.answer(name, "/" + "/".join(rest), headers, asked)
                body = b"" if found is None else json.dumps(wrapped(asked, found)).encode()
                status = "404 no" if found is None else "200 OK"
                kind = "content-type: application/json"
                lines = [f"HTTP/1.1 {status}", kind, f"content-length: {len(body)}", "", ""]
                writer.write("\r\n".join(lines).encode() + body)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            busy.discard(task)
            writer.close()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20)

    server = loop.run_until_complete(start())
    made.port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def stop() -> None:
        server.close()
        for task in list(busy):
            task.cancel()
        if busy:
            await asyncio.wait(list(busy), timeout=60)

    try:
        yield made
    finally:
        made.gate.set()
        asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def wrapped(asked: Any, found: Any) -> Any:
    if asked is None:
        return found
    outcome = found if "error" in found else {"result": found}
    return {"jsonrpc": "2.0", "id": asked.get("id"), **outcome}
