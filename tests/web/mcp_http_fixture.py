"""The HTTP transports on a real socket in this process, with a scripted target and a client that
sees bytes.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.permissive_hub import build_permissive_hub

from dragoman.core.body_budget import BodyBudget
from dragoman.core.bus import Bus
from dragoman.core.call import FORM, Call, Progress, Question, Result
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.principal import Principal
from dragoman.core.question_handles import QuestionHandles
from dragoman.core.tool import DEFAULT_TRAITS, Tool
from dragoman.guards.questions import Questions
from dragoman.mcp.server.dispatcher import McpServer
from dragoman.mcp.server.legacy_sse import LegacySseTransport
from dragoman.mcp.server.progress import REPORT_SECONDS
from dragoman.mcp.server.streamable_http import StreamableHttpTransport
from dragoman.web.api import Api
from dragoman.web.app import TcpApp
from dragoman.web.auth import AllowedNames, Authenticator
from dragoman.web.http.listener import HttpListener
from dragoman.web.peer_process import ALONE
from dragoman.wire.sse import ServerEvent, SseParser

ALICE, BOB = "alice", "bob"
BOTH = "application/json, text/event-stream"
MODERN = "2026-07-28"


class Sources:
    """What the API would tell of: nothing."""

    def ready(self) -> str | None:
        return None

    async def status(self) -> Mapping[str, Any]:
        return {}

    def server_states(self) -> Mapping[str, Any]:
        return {}

    def note_denied(self, principal: Principal | None, what: str) -> None:
        pass

    def server_log(self, name: str) -> str | None:
        return None

    def metrics(self) -> str:
        return ""


class Work:
    """The target of every tool. A call tells its steps, asks if it is to, waits if it is to."""

    traits = DEFAULT_TRAITS
    name = "work"

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.running = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.calls: list[Call] = []

    async def run(self, call: Call) -> Result:
        self.calls.append(call)
        wants = call.arguments
        for step in wants.get("steps", ()):
            call.updates(Progress(progress=step, message=wants.get("padding")))
        if wants.get("asks") and call.answers is None:
            question = Question(FORM, {"message": "your name?", "requestedSchema": {}})
            return Result(questions={"q": question}, handle="h")
        self.running.set()
        try:
            if wants.get("waits"):
                await self.go.wait()
                call.updates(Progress(progress=99))
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        said = wants.get("text", "done") if call.answers is None else json.dumps(call.answers["q"])
        return Result(content=[{"type": "text", "text": said}])


REGION = {"type": "string", "x-mcp-header": "Region"}
DEEP = {"type": "object", "properties": {"count": {"type": "integer", "x-mcp-header": "Count"}}}
SCHEMAS: dict[str, dict[str, Any]] = {
    "do": {"type": "object"},
    "mirrored": {"type": "object", "properties": {"region": REGION, "deep": DEEP}},
    "spoilt": {"type": "object", "properties": {"x": {"type": "number", "x-mcp-header": "X"}}},
}


class HubRig:
    def __init__(
        self,
        port: int,
        listener: HttpListener,
        mcp_server: McpServer,
        http: StreamableHttpTransport,
        sse: LegacySseTransport,
        work: Work,
    ) -> None:
        self.port = port
        self.listener = listener
        self.mcp_server = mcp_server
        self.http = http
        self.sse = sse
        self.work = work
        self.answers: list[Answer] = []

    async def send(
        self,
        method: str,
        path: str = "/mcp",
        message: Any = None,
        *,
        who: str = ALICE,
        **headers: str,
    ) -> Answer:
        """Sends and waits for the head of the answer. Headers are named with underscores."""
        body = message if isinstance(message, bytes) else b""
        if message is not None and not body:
            body = json.dumps(message).encode()
        sent = {"Host": "localhost", "Authorization": f"Bearer {who}", "Accept": BOTH}
        if body:
            sent |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        answer = Answer(reader, writer)
        self.answers.append(answer)
        await answer.begin()
        return answer

    async def session(
        self, version: str = "2025-11-25", who: str = ALICE, **capabilities: Any
    ) -> dict[str, str]:
        """The headers of a session that has just begun."""
        params = {"protocolVersion": version, "capabilities": capabilities}
        hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        answer = await self.send("POST", message=hello, who=who)
        assert (await answer.json())["result"]["protocolVersion"] == version
        return {"Mcp_Session_Id": answer.headers["mcp-session-id"], "Mcp_Protocol_Version": version}


class Answer:
    """The answer to one request, as it comes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._parser = SseParser()
        self._events: list[ServerEvent] = []
        self.status = 0
        self.headers: dict[str, str] = {}
        self.retry: int | None = None
        self.ended = False
        """Properly."""

    async def begin(self) -> None:
        async with asyncio.timeout(60):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status, *lines = head.split("\r\n")
        self.status = int(status.split()[1])
        pairs = (line.partition(": ") for line in lines if line)
        self.headers = {name.lower(): value for name, _, value in pairs}

    @property
    def streams(self) -> bool:
        return self.headers.get("content-type") == "text/event-stream"

    async def body(self) -> bytes:
        async with asyncio.timeout(60):
            data = await self._reader.readexactly(int(self.headers["content-length"]))
        self.close()
        return data

    async def json(self) -> Any:
        assert not self.streams, "a stream"
        return json.loads(await self.body())

    async def event(self) -> ServerEvent:
        """The next one; EOFError at the end."""
        async with asyncio.timeout(60):
            while not self._events:
                line = await self._reader.readline()
                if not line or line == b"0\r\n":
                    self.ended = bool(line)
                    raise EOFError
                size = int(line, 16)
                chunk = await self._reader.readexactly(size + 2)
                self._events += self._parser.feed(chunk[:-2])
                self.retry = self._parser.retry
        return self._events.pop(0)

    async def message(self) -> Any:
        """The next event that says something."""
        while not (event := await self.event()).data:
            pass
        return json.loads(event.data)

    async def rest(self) -> list[ServerEvent]:
        events = []
        try:
            while True:
                events.append(await self.event())
        except EOFError:
            return events
        finally:
            self.close()

    def close(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        """Hangs up."""
        self._writer.transport.abort()


@asynccontextmanager
async def run_mcp_rig(
    budget: BodyBudget | None = None,
    connections: int = 10_000,
    report_seconds: float = REPORT_SECONDS,
) -> AsyncIterator[HubRig]:
    catalog, work = Catalog(review=admit_all), Work()
    catalog.offer(
        "work",
        [
            Tool(
                name=f"work.{name}",
                alias=f"mcp_work_{name}",
                remote_name=name,
                definition={"inputSchema": schema},
                target=work,
            )
            for name, schema in SCHEMAS.items()
        ],
    )
    hub = build_permissive_hub(catalog, Bus(), [Questions(QuestionHandles(bytes(32), 60))])
    mcp_server = McpServer(hub, report_seconds=report_seconds)
    http, sse = StreamableHttpTransport(mcp_server, bytes(32)), LegacySseTransport(mcp_server)
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    auth = Authenticator(None, lambda key: Principal("key", key), lambda: True)
    names = AllowedNames("127.0.0.1", None, [], [])
    app = TcpApp(auth, names, {"/mcp": http, **sse.mounts}, Api(hub, Sources()), peers=ALONE)
    listener = HttpListener(app, sock, budget, connections)
    await listener.start()
    made = HubRig(sock.getsockname()[1], listener, mcp_server, http, sse, work)
    try:
        yield made
    finally:
        work.go.set()
        mcp_server.subscriptions.close()
        http.close()
        sse.close()
        await listener.drain(0.5)
        listener.abort()
        for answer in made.answers:
            answer.close()


def call(id: Any = 1, tool: str = "work.do", **arguments: Any) -> dict[str, Any]:
    params: dict[str, Any] = {"name": tool, "arguments": arguments}
    if "steps" in arguments or arguments.get("waits"):
        params["_meta"] = {"progressToken": "t"}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}


def request(id: Any, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def notification(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def modern(message: dict[str, Any], version: str = MODERN, **headers: str) -> dict[str, Any]:
    """What `send` needs for a message of the new era; headers given here replace the right ones,
    and an empty one is left out."""
    params = message["params"]
    meta = {
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    right = {"Mcp_Protocol_Version": version, "Mcp_Method": message["method"]}
    name = params.get("name", params.get("uri", params.get("taskId")))
    if name is not None:
        right["Mcp_Name"] = name
    sent = {key: value for key, value in {**right, **headers}.items() if value}
    full = {**message, "params": {**params, "_meta": {**params.get("_meta", {}), **meta}}}
    return {"message": full, **sent}
