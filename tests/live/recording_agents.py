"""Any number of 1.0 agents, each on its own port, that record every byte they receive. Plain
sockets on a thread; tests change their cards at run time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

CARD = "/.well-known/agent-card.json"
NO_TASK = {"code": -32001, "message": "no such task"}


def skill(id: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "name": id, "description": f"does {id}", "tags": ["t"], **more}


class RecordingAgent:
    def __init__(self, name: str, *skills: Any, hangs: bool = False) -> None:
        """Skills are ids, or what a card says of them."""
        self.name = name
        self.skills: list[Any] = [one if isinstance(one, dict) else skill(one) for one in skills]
        self.more: dict[str, Any] = {}
        """Of its card, in the place of what is there."""
        self.hangs = hangs
        self.gone = False
        """Closes every connection without an answer, those too that hang."""
        self.delay: Callable[[], float] = lambda: 0.0
        """Seconds until it answers a message."""
        self.url = ""
        self.received = bytearray()
        self.sent: list[dict[str, Any]] = []
        """The messages that it was sent."""
        self.at_once = self.most = 0
        """Running messages, and their maximum number."""

    def card(self) -> dict[str, Any]:
        address = {"url": self.url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        return {
            "name": self.name,
            "description": "one of many",
            "version": "1",
            "supportedInterfaces": [address],
            "capabilities": {},
            "defaultInputModes": ["application/json"],
            "defaultOutputModes": ["application/json"],
            "skills": self.skills,
            **self.more,
        }

    async def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["method"] != "SendMessage":
            return {"error": NO_TASK}
        self.sent.append(asked["params"]["message"])
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await asyncio.sleep(self.delay())
        finally:
            self.at_once -= 1
        said = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "done"}]}
        return {"result": {"message": said}}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.received += head
                lines = head.decode().split("\r\n")
                pairs = (line.partition(":") for line in lines[1:])
                headers = {name.lower(): value.strip() for name, _, value in pairs}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                self.received += body
                while self.hangs and not self.gone:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.05):
                            await reader.read()
                            return
                if self.gone:
                    return
                status, answer = 200, self.card()
                if body:
                    asked = json.loads(body)
                    answer = {"jsonrpc": "2.0", "id": asked["id"], **await self._answer(asked)}
                elif lines[0].split()[1] != CARD:
                    status = 404
                data = json.dumps(answer).encode()
                said = f"HTTP/1.1 {status} -\r\ncontent-type: application/json\r\n"
                writer.write(f"{said}content-length: {len(data)}\r\n\r\n".encode() + data)
                await writer.drain()


class TaskAgent(RecordingAgent):
    """Answers every message with a task, which ends by itself after `seconds`, or by `settle`. It
    does not stream, and has no list of tasks. In 0.1, the client names the task."""

    METHODS: Mapping[str, Mapping[str, str]] = {
        "1.0": {"SendMessage": "send", "GetTask": "get", "CancelTask": "cancel"},
        "0.1": {"tasks/send": "send", "tasks/get": "get", "tasks/cancel": "cancel"},
    }

    def __init__(self, name: str, *skills: Any, version: str = "1.0") -> None:
        super().__init__(name, *skills)
        self.version = version
        if version == "0.1":
            self.more = {"supportedInterfaces": [], "protocolVersion": "0.1"}
        self.seconds: Callable[[], float] | None = None
        self.state = "working"
        """Of new tasks."""
        self.held: set[str] = set()
        """`send`, `get` or `answer` wait while they are in here."""
        self.waiting: set[str] = set()
        """Of these, those that wait."""
        self.tasks: dict[str, tuple[str, str, float]] = {}
        """The state and text of each, and when it ends by itself."""
        self.polls = 0
        self.most_polls = 0
        """At once."""
        self._polling = 0
        self.cancelled: list[str] = []

    def card(self) -> dict[str, Any]:
        return {**super().card(), "url": self.url}

    def settle(self, state: str, text: str = "") -> None:
        """Has all tasks in this state."""
        self.tasks = dict.fromkeys(self.tasks, (state, text, 0.0))

    async def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        method = self.METHODS[self.version].get(asked["method"])
        if method is None:
            return {"error": {"code": -32601, "message": "unknown method"}}
        params = asked["params"]
        if method == "send":
            return await self._begin(params)
        if params["id"] not in self.tasks:
            return {"error": NO_TASK}
        if method == "cancel":
            self.cancelled.append(params["id"])
            self.tasks[params["id"]] = ("canceled", "", 0.0)
        else:
            self.polls += 1
            self._polling += 1
            self.most_polls = max(self.most_polls, self._polling)
            try:
                await asyncio.sleep(0.002)
                await self._hold("get")
            finally:
                self._polling -= 1
        return {"result": self._render(params["id"])}

    async def _begin(self, params: dict[str, Any]) -> dict[str, Any]:
        message = params["message"]
        self.sent.append(message)
        id = message.get("taskId") or params.get("id") or f"task-{len(self.sent)}"
        if id in self.tasks:
            await self._hold("answer")
            self.tasks[id] = ("completed", "answered", 0.0)
        else:
            due = time.monotonic() + self.seconds() if self.seconds is not None else 0.0
            self.tasks[id] = (self.state, "at it", due)
            await self._hold("send")
        task = self._render(id)
        return {"result": task if self.version == "0.1" else {"task": task}}

    async def _hold(self, method: str) -> None:
        end = time.monotonic() + 60
        while method in self.held and time.monotonic() < end:
            self.waiting.add(method)
            await asyncio.sleep(0.005)
        self.waiting.discard(method)

    def _render(self, id: str) -> dict[str, Any]:
        state, text, due = self.tasks[id]
        if state == "working" and 0 < due <= time.monotonic():
            state, text = "completed", "done"
        kind = {"text": text} if self.version == "1.0" else {"type": "text", "text": text}
        name = f"TASK_STATE_{state.upper()}" if self.version == "1.0" else state
        said = {"messageId": "m", "role": "ROLE_AGENT", "parts": [kind]}
        status: dict[str, Any] = {"state": name.replace("-", "_"), "message": said}
        if self.version == "0.1":
            status = {"state": state, "message": {"role": "agent", "parts": [kind]}}
        task: dict[str, Any] = {"id": id, "contextId": f"c-{id}", "status": status}
        if state == "completed":
            task["artifacts"] = [{"artifactId": "a", "name": "a", "index": 0, "parts": [kind]}]
        return task


@contextmanager
def run_agents(*members: RecordingAgent) -> Iterator[None]:
    ready, over = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serving() -> None:
        tasks: set[asyncio.Task[None]] = set()

        def taking(member: RecordingAgent) -> Any:
            async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                task = asyncio.current_task()
                assert task is not None
                tasks.add(task)
                try:
                    await member.serve(reader, writer)
                except asyncio.CancelledError:
                    pass  # it is over
                finally:
                    tasks.discard(task)
                    writer.close()

            return take

        servers = []
        for member in members:
            server = await asyncio.start_server(taking(member), "127.0.0.1", 0, backlog=1024)
            member.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            servers.append(server)
        ready.set()
        await over.wait()
        for server in servers:
            server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def run() -> None:
        try:
            loop.run_until_complete(serving())
        finally:
            loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(60), "the agents do not listen"
        yield
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(60)
        assert not thread.is_alive()
