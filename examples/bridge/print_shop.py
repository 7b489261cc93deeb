"""An A2A agent in one file, with the standard library only: a print shop with two skills.

It speaks A2A 1.0 over JSON-RPC. Its card is card.json beside it, read anew whenever somebody asks,
so that an edit is a change of the agent. `order` asks a question before it is done.
"""

from __future__ import annotations

import json
import sys
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SKILL = "urn:dragoman:a2a:skill:v1"
"""Where a message says which skill it is for: A2A 1.0 has no member of its own for that."""
CARD = Path(__file__).with_name("card.json")

tasks: dict[str, dict[str, Any]] = {}


def price(data: dict[str, Any]) -> dict[str, Any]:
    total = data["pages"] * (25 if data.get("colour") else 5)
    return {"data": {"pages": data["pages"], "cents": total}, "mediaType": "application/json"}


def send_message(params: dict[str, Any]) -> dict[str, Any]:
    message = params["message"]
    parts = message["parts"]
    task = tasks.get(message.get("taskId", ""))
    if task is not None:  # the answer to our question
        paper = next((part["text"] for part in parts if "text" in part), "any")
        finish(task, {"text": f"Printed on {paper} paper; ready at five."})
        return {"task": task}
    task = {"id": str(uuid.uuid4()), "contextId": message.get("contextId") or str(uuid.uuid4())}
    tasks[task["id"]] = task
    skill = message.get("metadata", {}).get(SKILL, {}).get("skillId", "order")
    if skill == "price":
        finish(task, price(next(part["data"] for part in parts if "data" in part)))
    else:
        ask(task, "Which paper: plain or glossy?")
    return {"task": task}


def finish(task: dict[str, Any], part: dict[str, Any]) -> None:
    task["status"] = {"state": "TASK_STATE_COMPLETED"}
    task["artifacts"] = [{"artifactId": "result", "parts": [part]}]


def ask(task: dict[str, Any], question: str) -> None:
    says = {"messageId": str(uuid.uuid4()), "role": "ROLE_AGENT", "parts": [{"text": question}]}
    task["status"] = {"state": "TASK_STATE_INPUT_REQUIRED", "message": says}


def get_task(params: dict[str, Any]) -> dict[str, Any]:
    return tasks[params["id"]]


def cancel_task(params: dict[str, Any]) -> dict[str, Any]:
    tasks[params["id"]]["status"] = {"state": "TASK_STATE_CANCELED"}
    return tasks[params["id"]]


METHODS = {"SendMessage": send_message, "GetTask": get_task, "CancelTask": cancel_task}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    method = METHODS.get(request["method"])
    if method is None:
        return {"error": {"code": -32601, "message": f"there is no {request['method']}"}}
    try:
        return {"result": method(request["params"])}
    except KeyError as missing:
        code = -32001 if request["method"] != "SendMessage" else -32602
        return {"error": {"code": code, "message": f"not found: {missing}"}}


class Shop(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/.well-known/agent-card.json":
            card = json.loads(CARD.read_text(encoding="utf-8"))
            card["supportedInterfaces"][0]["url"] = f"http://{self.headers['Host']}/"
            self.reply(200, card)
        else:
            self.reply(404, {})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.reply(200, {"jsonrpc": "2.0", "id": request.get("id"), **answer(request)})

    def reply(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if sys.argv[1:] else 9310), Shop)
    print(f"the print shop is at http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
