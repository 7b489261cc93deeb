"""An agent of A2A 0.3 over JSON-RPC, handwritten without an SDK.

    a2a_v03_agent.py [--log F]

It prints where it is as one line of JSON. What it does depends on the first word of the argument
`text`, or of a text: see `Agent`. With --log it writes down what it was asked, one line of JSON
each, as a2a_sdk_agent does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

FINAL = ("completed", "canceled", "failed", "input-required")
SKILLS = ("echo", "ask")


def said(words: str) -> dict[str, Any]:
    parts = [{"kind": "text", "text": words}]
    return {"kind": "message", "messageId": uuid4().hex, "role": "agent", "parts": parts}


class Agent:
    def __init__(self, url: str, log: str | None, more: list[str]) -> None:
        """`more` are further skills, as `ID:TAG`."""
        self._url = url
        self._file = log
        self._skills: list[tuple[str, list[str]]] = [(id, []) for id in SKILLS] + [
            (id, [tag]) for id, _, tag in (one.partition(":") for one in more)
        ]
        self._tasks: dict[str, dict[str, Any]] = {}
        self._working: set[asyncio.Task[None]] = set()
        self._cancelled: dict[str, asyncio.Event] = {}

    def log(self, **entry: Any) -> None:
        if self._file:
            with open(self._file, "a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")

    async def card(self, request: Request) -> Response:
        skills = [
            {"id": id, "name": id, "description": f"does {id}", "tags": tags}
            for id, tags in self._skills
        ]
        return JSONResponse(
            {
                "protocolVersion": "0.3.0",
                "name": "Old agent",
                "description": "Does what the first word says.",
                "version": "1",
                "url": f"{self._url}/rpc",
                "preferredTransport": "JSONRPC",
                "capabilities": {"streaming": True},
                "defaultInputModes": ["application/json"],
                "defaultOutputModes": ["text/plain"],
                "skills": skills,
            }
        )

    async def rpc(self, request: Request) -> Response:
        asked = await request.json()
        method, params, id = asked["method"], asked["params"], asked["id"]
        trace = request.headers.get("x-openstarry-trace-id", "")
        self.log(event="request", path=request.url.path, method=method, trace=trace)
        if method not in ("message/stream", "message/send"):
            return self._about(method, params.get("id"), id)
        if method == "message/send":
            last = [event async for event in self._work(params["message"])][-1]
            return self._answer(id, self._tasks[last["taskId"]])

        async def events() -> AsyncIterator[str]:
            async for event in self._work(params["message"]):
                told = {"jsonrpc": "2.0", "id": id, "result": event}
                yield f"data: {json.dumps(told)}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    def _about(self, method: str, task: Any, id: Any) -> Response:
        if task not in self._tasks or method not in ("tasks/get", "tasks/cancel"):
            error = {"code": -32001, "message": "Task not found"}
            return JSONResponse({"jsonrpc": "2.0", "id": id, "error": error})
        if method == "tasks/cancel":
            self.log(event="cancel", task=task)
            self._tasks[task]["status"] = {"state": "canceled"}
            self._cancelled[task].set()
        return self._answer(id, self._tasks[task])

    def _answer(self, id: Any, result: Any) -> Response:
        return JSONResponse({"jsonrpc": "2.0", "id": id, "result": result})

    # --- what it does

    async def _work(self, message: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        words = ""
        for part in message["parts"]:
            data = part.get("data", {})
            words = part["text"] if part["kind"] == "text" else data.get("text", words)
            words = words or data.get("prUrl", "")
        word, _, rest = words.partition(" ")
        id = message.get("taskId") or uuid4().hex
        goes_on = id in self._tasks
        context = message.get("contextId") or uuid4().hex
        task = self._tasks.setdefault(
            id, {"kind": "task", "id": id, "contextId": context, "status": {"state": "submitted"}}
        )
        self.log(event="execute", word=word, task=id, context=task["contextId"])
        if not goes_on:
            yield dict(task)
        if goes_on:
            yield self._made(task, f"you said: {words}")
        elif word == "ask":
            yield self._now(task, "input-required", said("which colour?"))
            return
        elif word == "hang":
            self._cancelled[id] = asyncio.Event()
            yield self._now(task, "working", said("this takes long"))
            await asyncio.wait_for(self._cancelled[id].wait(), 60)
            yield self._now(task, "canceled", None)
            return
        elif word == "long":
            # Whether or not the client follows it.
            events: asyncio.Queue[Any] = asyncio.Queue()
            self._cancelled[id] = asyncio.Event()
            work = asyncio.ensure_future(self._obey(task, Path(rest), events))
            self._working.add(work)
            while (event := await events.get()) is not None:
                yield event
            return
        elif word == "slow":
            for number in range(3):
                yield self._now(task, "working", said(f"step {number}"))
            yield self._made(task, "all steps done")
        else:
            yield self._made(task, f"echo: {rest or word}")
        yield self._now(task, "completed", None)

    async def _obey(self, task: dict[str, Any], path: Path, events: asyncio.Queue[Any]) -> None:
        """Does what the file says, and again when it says something else, until the task ends."""
        done, end = "", asyncio.get_running_loop().time() + 60
        states = {"say": "working", "fail": "failed", "ask": "input-required", "reject": "rejected"}
        while not self._cancelled[task["id"]].is_set():
            said_now = path.read_text(encoding="utf-8") if path.exists() else ""
            if said_now != done:
                done = said_now
                word, _, words = said_now.partition(" ")
                if word == "complete":
                    events.put_nowait(self._made(task, words))
                    events.put_nowait(self._now(task, "completed", None))
                elif word:
                    events.put_nowait(self._now(task, states[word], said(words)))
                if word not in ("", "say"):
                    break
            await asyncio.sleep(0.02)
            assert asyncio.get_running_loop().time() < end, "nothing ends the task"
        events.put_nowait(None)

    def _now(self, task: dict[str, Any], state: str, message: Any) -> dict[str, Any]:
        status = {"state": state, **({"message": message} if message else {})}
        task["status"] = status
        ids = {"taskId": task["id"], "contextId": task["contextId"]}
        return {"kind": "status-update", **ids, "status": status, "final": state in FINAL}

    def _made(self, task: dict[str, Any], words: str) -> dict[str, Any]:
        artifact = {"artifactId": "a", "name": "made", "parts": [{"kind": "text", "text": words}]}
        task["artifacts"] = [artifact]
        ids = {"taskId": task["id"], "contextId": task["contextId"]}
        return {"kind": "artifact-update", **ids, "artifact": artifact, "lastChunk": True}


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--skill", action="append", default=[])
    options.add_argument("--log")
    given = options.parse_args()
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    agent = Agent(url, given.log, given.skill)
    app = Starlette(
        routes=[
            Route("/.well-known/agent-card.json", agent.card),
            Route("/rpc", agent.rpc, methods=["POST"]),
        ]
    )
    sock.listen(128)
    print(json.dumps({"port": port, "url": url}), flush=True)
    config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[sock])


if __name__ == "__main__":
    main()
