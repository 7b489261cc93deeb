"""A server that makes tasks, written by hand: no SDK has both forms. The standard library only.

`--form new` speaks 2026-07-28 with the extension io.modelcontextprotocol/tasks, `--form old` the
experimental tasks of 2025-11-25. Over stdio, or with `--transport http` over HTTP, saying where it
is in one line of JSON. Every message that it gets goes to `--log`.

    greet(name)       never a task                    must(label)    only as a task
    slow(seconds)     a task if it may be one         fails()        a task that says it failed
    plain(seconds)    slow, and never a task          panics()       a task that ends in an error
    asks(count)       a task that asks so often       forgets()      a task that it knows no more
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

EXTENSION = "io.modelcontextprotocol/tasks"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
RELATED = "io.modelcontextprotocol/related-task"
OPTIONS = argparse.Namespace()
LOCK = threading.Lock()
JOBS: dict[str, Job] = {}
ASKED: dict[str, Future[Any]] = {}
"""Requests to the client, by their id."""

Send = Callable[[dict[str, Any]], None]

SUPPORT = {
    "greet": None,
    "plain": None,
    "slow": "optional",
    "must": "required",
    "fails": "required",
    "panics": "required",
    "asks": "required",
    "forgets": "required",
}


class Problem(Exception):
    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message, **({"data": data} if data else {})}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}], **more}


def log(entry: dict[str, Any]) -> None:
    if OPTIONS.log:
        with LOCK, open(OPTIONS.log, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


# --- jobs


class Job:
    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        self.id = str(uuid.uuid4())
        self.status = "working"
        self.message = ""
        self.created = now()
        self.result: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        self.open: dict[str, str] = {}
        self.answers: dict[str, Any] = {}
        self.changed = threading.Condition()
        if name != "forgets":
            JOBS[self.id] = self
        threading.Thread(target=self.run, args=(name, arguments), daemon=True).start()

    @property
    def over(self) -> bool:
        return self.status in ("completed", "failed", "cancelled")

    def become(self, status: str, message: str = "") -> None:
        with self.changed:
            if not self.over:
                self.status, self.message = status, message
            self.changed.notify_all()

    def until(self, true: Callable[[], bool], seconds: float = 60.0) -> bool:
        with self.changed:
            return self.changed.wait_for(true, seconds)

    def run(self, name: str, arguments: dict[str, Any]) -> None:
        if name == "panics":
            self.error = {"code": -32603, "message": "panic", "data": {"why": "told to"}}
            return self.become("failed", "panic")
        if name == "fails":
            self.result = text("it failed", isError=True)
            return self.become("failed" if OPTIONS.form == "old" else "completed", "it failed")
        if name == "asks":
            for turn in range(int(arguments.get("count", 1))):
                self.open = {f"q{turn}": f"question {turn}"}
                self.become("input_required", "a question")
                if not self.until(lambda: not self.open or self.over) or self.over:
                    return None
                self.become("working")
            self.result = text(json.dumps(self.answers, sort_keys=True))
            return self.become("completed")
        self.become("working", "half way")
        if "file" in arguments:  # until it exists
            for _ in range(3_000):
                if os.path.exists(arguments["file"]) or self.until(lambda: self.over, 0.02):
                    break
        if not self.until(lambda: self.over, float(arguments.get("seconds", 0))):
            self.result = text(f"{name} is done")
            self.become("completed", "done")
        return None

    def answer(self, answers: dict[str, Any]) -> None:
        with self.changed:
            for key in [key for key in answers if key in self.open]:
                del self.open[key]
                self.answers[key] = answers[key]
            self.changed.notify_all()

    def task(self) -> dict[str, Any]:
        new = OPTIONS.form == "new"
        members = {
            "taskId": self.id,
            "status": self.status,
            "createdAt": self.created,
            "lastUpdatedAt": now(),
            "ttlMs" if new else "ttl": 60_000,
            "pollIntervalMs" if new else "pollInterval": 20,
        }
        return {**members, **({"statusMessage": self.message} if self.message else {})}

    def detailed(self) -> dict[str, Any]:
        members: dict[str, Any] = {**self.task(), "resultType": "complete"}
        if self.status == "completed":
            members["result"] = {"resultType": "complete", **(self.result or {})}
        elif self.status == "failed":
            members["error"] = self.error
        elif self.status == "input_required":
            members["inputRequests"] = {
                key: {"method": "elicitation/create", "params": form(words)}
                for key, words in self.open.items()
            }
        return members


def form(words: str) -> dict[str, Any]:
    properties = {"yes": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties}
    return {"mode": "form", "message": words, "requestedSchema": schema}


def now() -> str:
    return datetime.now(UTC).isoformat()


# --- what it answers


def answer(method: str, params: dict[str, Any], send: Send) -> dict[str, Any]:
    if method == "tools/list":
        return {"tools": [tool(name, support) for name, support in SUPPORT.items()]}
    if method == "tools/call":
        return call(params)
    if method.startswith("tasks/"):
        return tasks(method, params, send)
    if OPTIONS.form == "old":
        return greet_old(method)
    if method == "server/discover":
        capabilities: dict[str, Any] = {"tools": {}, "extensions": {EXTENSION: {}}}
        return {"supportedVersions": ["2026-07-28"], "capabilities": capabilities}
    raise Problem(-32601, f"no {method}")


def greet_old(method: str) -> dict[str, Any]:
    if method == "ping":
        return {}
    if method != "initialize":
        raise Problem(-32601, f"no {method}")
    able: dict[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
    return {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}, "tasks": able},
        "serverInfo": {"name": "task_server", "version": "0"},
    }


def tool(name: str, support: str | None) -> dict[str, Any]:
    definition: dict[str, Any] = {"name": name, "inputSchema": {"type": "object"}}
    if support and OPTIONS.form == "old":
        definition["execution"] = {"taskSupport": support}
    return definition


def knows_tasks(params: dict[str, Any]) -> bool:
    capabilities = params.get("_meta", {}).get(CAPABILITIES, {})
    return EXTENSION in capabilities.get("extensions", {})


def missing() -> Problem:
    needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
    return Problem(-32021, "Missing required client capability", needed)


def call(params: dict[str, Any]) -> dict[str, Any]:
    name, arguments = params["name"], params.get("arguments") or {}
    support, new = SUPPORT[name], OPTIONS.form == "new"
    asked = knows_tasks(params) if new else "task" in params
    if support == "required" and not asked:
        raise missing() if new else Problem(-32601, f"{name} must be called as a task")
    if support and asked:
        job = Job(name, arguments)
        return {"resultType": "task", **job.task()} if new else {"task": job.task()}
    if not new and asked:
        raise Problem(-32601, f"{name} must not be called as a task")
    threading.Event().wait(float(arguments.get("seconds", 0)))
    return text(f"Hello, {arguments.get('name')}!" if name == "greet" else f"{name} is done")


def tasks(method: str, params: dict[str, Any], send: Send) -> dict[str, Any]:
    if OPTIONS.form == "new" and not knows_tasks(params):
        raise missing()
    job = JOBS.get(str(params.get("taskId")))
    if job is None:
        raise Problem(-32602, "Failed to retrieve task: Task not found")
    if method == "tasks/cancel":
        job.become("cancelled")
        return {} if OPTIONS.form == "new" else job.task()
    if method == "tasks/get":
        return job.detailed() if OPTIONS.form == "new" else job.task()
    if method == "tasks/update" and OPTIONS.form == "new":
        job.answer(params.get("inputResponses", {}))
        return {}
    if method == "tasks/result" and OPTIONS.form == "old":
        return result(job, send)
    raise Problem(-32601, f"no {method}")


def result(job: Job, send: Send) -> dict[str, Any]:
    """2025-11-25: waits for the end, and asks with requests meanwhile."""
    related = {RELATED: {"taskId": job.id}}
    while True:
        job.until(lambda: job.over or bool(job.open))
        if job.over:
            break
        for key, words in list(job.open.items()):
            id = str(uuid.uuid4())
            ASKED[id] = Future()
            params = {**form(words), "_meta": related}
            send({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": params})
            job.answer({key: ASKED[id].result(60)})
    if job.error is not None:
        raise Problem(job.error["code"], job.error["message"], job.error.get("data"))
    if job.result is None:
        raise Problem(-32603, "cancelled")
    return {**job.result, "_meta": related}


def handle(message: dict[str, Any], send: Send) -> None:
    """Sends the answer to a message, where one is due."""
    if "method" not in message:
        waiting = ASKED.pop(str(message.get("id")), None)
        if waiting is not None:
            waiting.set_result(message.get("result", message.get("error")))
        return
    if "id" not in message:
        return
    answered: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        value = answer(message["method"], message.get("params") or {}, send)
        if OPTIONS.form == "new":
            value = {"resultType": "complete", **value}
        answered["result"] = value
    except Problem as problem:
        answered["error"] = problem.error
    send(answered)


# --- how it is reached


def serve_stdio() -> None:
    writing = threading.Lock()

    def send(message: dict[str, Any]) -> None:
        with writing:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()

    for line in sys.stdin:
        message = json.loads(line)
        log(message)
        threading.Thread(target=handle, args=(message, send), daemon=True).start()


class Http(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        log({**message, "name": self.headers.get("Mcp-Name")})
        if "id" not in message or "method" not in message:
            handle(message, lambda answer: None)
            return self.head(202)
        if message["method"] == "tasks/result":
            self.head(200, "text/event-stream")
            handle(message, lambda m: self.write(b"data: " + json.dumps(m).encode() + b"\n\n"))
            self.close_connection = True
            return None
        answers: list[dict[str, Any]] = []
        handle(message, answers.append)
        body = json.dumps(answers[-1]).encode()
        missing = OPTIONS.form == "new" and "error" in answers[-1]
        self.head(400 if missing else 200, "application/json", len(body))
        self.write(body)

    def do_GET(self) -> None:
        self.head(405)

    def head(self, status: int, kind: str = "", length: int = 0) -> None:
        self.send_response(status)
        if kind:
            self.send_header("Content-Type", kind)
        if kind == "text/event-stream":
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def write(self, data: bytes) -> None:
        self.wfile.write(data)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def serve_http() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Http)
    server.daemon_threads = True
    port = server.server_address[1]
    print(json.dumps({"port": port, "url": f"http://127.0.0.1:{port}/mcp"}), flush=True)
    server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--form", choices=["new", "old"], default="new")
    parser.add_argument("--transport", choices=["stdio", "http"], default="stdio")
    parser.add_argument("--log")
    parser.parse_args(namespace=OPTIONS)
    serve_http() if OPTIONS.transport == "http" else serve_stdio()


if __name__ == "__main__":
    main()
