"""An MCP server and an A2A agent that send the hub mutated messages, in a process of its own.

    fuzzing_peer.py stdio SEED    an MCP server on its pipes
    fuzzing_peer.py http SEED     prints its URL in one line of JSON

Below that URL: /mcp and /sse (servers), /streams and /answers (agents), /card/N (agents whose card
changes), /lists/N (a server with other lists in its first N answers).

A call says in its arguments which cases it wants: `number` is the first, `count` how many. They are
followed by a good answer, where the transport allows that, so that no call has to wait.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
from itertools import count
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.a2a.scripted_agent import card_10, task_10

from faults.mutations import mutate, mutate_bytes
from faults.upstream_seeds import A2A, ID, LISTS, MCP, SKILL, build_cards

WANTED = re.compile(rb"number\D+(\d+)\D+count\D+(\d+)")
STARTS = (
    b"data: ", b"data: ", b"data: ", b"data: ", b"data:", b"\xef\xbb\xbfdata: ", b": c\ndata: ",
    b"retry: 1\ndata: ", b"event: x\ndata: ", b"id: \0\ndata: ", b"id: 5\nevent: message\ndata: ",
    b"data: \ndata: ", b"data", b"x: y\ndata: ", b"event: message\r\ndata: ",
)  # fmt: skip
ENDS = (b"\n\n", b"\n\n", b"\n\n", b"\r\n\r\n", b"\r\r", b"\n", b"\n\n\n")
KINDS = (
    *["application/json"] * 12, "application/json; charset=utf-8", "text/html", "",
    "application/a2a+json", "text/event-stream",
)  # fmt: skip
STATUSES = (*["200 OK"] * 16, "202 Accepted", "400 Bad Request", "500 Internal Server Error")


def place_id(value: Any, id: Any) -> Any:
    if isinstance(value, dict):
        return {name: place_id(member, id) for name, member in value.items()}
    if isinstance(value, list):
        return [place_id(one, id) for one in value]
    return id if value == ID else value


def build_message(wire: str, seed: int, number: int, id: Any) -> bytes:
    """One mutated message to the hub."""
    chance = random.Random(f"{wire}:{seed}:{number}")
    begun = chance.choice(MCP if wire in ("stdio", "mcp") else A2A)
    if wire not in ("stdio", "mcp"):
        begun = {"jsonrpc": "2.0", "id": ID, "result": begun}
    return mutate_bytes(json.dumps(mutate(place_id(begun, id), chance)).encode(), chance)


def build_event(wire: str, seed: int, number: int, id: Any) -> bytes:
    chance = random.Random(f"event:{wire}:{seed}:{number}")
    data = build_message(wire, seed, number, id)
    return chance.choice(STARTS) + data + chance.choice(ENDS)


def build_card(seed: int, number: int, url: str) -> bytes:
    chance = random.Random(f"card:{seed}:{number}")
    return mutate_bytes(
        json.dumps(mutate(chance.choice(build_cards(url)), chance)).encode(), chance
    )


def build_list(seed: int, number: int, method: str, id: Any) -> bytes:
    """The result of a handshake or a list; that of the handshake is good at most times."""
    chance = random.Random(f"list:{seed}:{number}")
    answer = {"jsonrpc": "2.0", "id": id, "result": LISTS[method]}
    if method == "initialize" and chance.random() < 0.8:
        return json.dumps(answer).encode()
    answer["result"] = mutate(LISTS[method], chance)
    return mutate_bytes(json.dumps(answer).encode(), chance)


def find_wanted(body: bytes) -> tuple[int, int]:
    found = WANTED.search(body)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def answer_mcp(message: Any) -> Any:
    """The good answer; None for a notification."""
    method = message.get("method")
    if "id" not in message or method is None:
        return None
    results = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}, "logging": {}},
            "serverInfo": {"name": "fuzzing", "version": "1"},
        },
        "tools/list": {
            "tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("t", "good")]
        },
        "tools/call": {"content": [{"type": "text", "text": "done"}]},
        "ping": {},
        "logging/setLevel": {},
    }
    head = {"jsonrpc": "2.0", "id": message["id"]}
    if method in results:
        return {**head, "result": results[method]}
    return {**head, "error": {"code": -32601, "message": "Method not found"}}


def serve_stdio(seed: int) -> None:
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        message = json.loads(line)
        answer = answer_mcp(message)
        if answer is None:
            continue
        if message["method"] == "tools/call":
            first, wanted = find_wanted(line)
            for number in range(first, first + wanted):
                data = build_message("stdio", seed, number, message["id"])
                framed = b"Content-Length: %d\r\n\r\n%s" % (len(data), data)
                out.write(framed if number % 10 == 0 else data + b"\n")
        out.write(b"\n" + json.dumps(answer).encode() + b"\n")
        out.flush()


class FuzzingServer:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.url = ""
        self.cards: dict[str, count[int]] = {}
        self.lists = 0
        self.streams: dict[str, asyncio.StreamWriter] = {}
        self.numbers = count()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, path = head.split()[:2]
            size = re.search(r"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
            body = await reader.readexactly(int(size[1])) if size else b""
            if path == "/sse":
                await self._keep_stream(reader, writer)
            else:
                writer.write(self.respond(method, path, body))
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError, ValueError, KeyError):
            pass
        finally:
            writer.close()

    async def _keep_stream(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """The stream of HTTP+SSE: answers to what is posted to the place that it names."""
        place = str(next(self.numbers))
        self.streams[place] = writer
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        writer.write(f"event: endpoint\ndata: /posts/{place}\n\n".encode())
        try:
            await reader.read()  # until the hub closes it
        finally:
            del self.streams[place]

    def _post(self, place: str, body: bytes) -> bytes:
        message = json.loads(body)
        if (answer := answer_mcp(message)) is not None:
            first, wanted = find_wanted(body)
            for number in range(first, first + wanted):
                event = build_event("mcp", self.seed, number, message["id"])
                self.streams[place].write(event)
            self.streams[place].write(b"\n\ndata: " + json.dumps(answer).encode() + b"\n\n")
        return self._build_response(b"", "", "202 Accepted")

    def respond(self, method: str, path: str, body: bytes) -> bytes:
        where = path.strip("/").split("/")[0]
        if where == "posts":
            return self._post(path.rpartition("/")[2], body)
        if "/.well-known/" in path:
            return self._respond_with_card(path)
        if method != "POST":
            return self._build_response(b"no", "text/plain", "405 Method Not Allowed")
        message = json.loads(body)
        if where == "lists" and message.get("method") in LISTS and "id" in message:
            self.lists += 1
            if self.lists <= int(path.strip("/").split("/")[1]):
                return self._build_response(
                    build_list(self.seed, self.lists, message["method"], message["id"])
                )
        good = answer_mcp(message) if where in ("mcp", "lists") else self._answer_a2a(message)
        if good is None:
            return self._build_response(b"", "", "202 Accepted")
        data = json.dumps(good).encode()
        first, wanted = find_wanted(body)
        if not wanted and message["method"] != "SendStreamingMessage":
            return self._build_response(data)
        wire = where if where == "mcp" else "a2a"
        id = message["id"]
        if message["method"] == "SendMessage" or (wire == "mcp" and wanted == 1):
            chance = random.Random(f"answer:{wire}:{self.seed}:{first}")
            kind, status = chance.choice(KINDS), chance.choice(STATUSES)
            return self._build_response(build_message(wire, self.seed, first, id), kind, status)
        events = [build_event(wire, self.seed, first + each, id) for each in range(wanted)]
        last = b"\n\ndata: " + data + b"\n\n"
        return self._build_response(b"".join(events) + last, "text/event-stream")

    def _answer_a2a(self, message: Any) -> Any:
        head = {"jsonrpc": "2.0", "id": message.get("id")}
        done = task_10(artifacts=[{"artifactId": "a", "parts": [{"text": "done"}]}])
        if message["method"] == "GetTask" and message["params"].get("id") == done["id"]:
            return {**head, "result": done}
        if message["method"] == "GetTask":
            return {**head, "error": {"code": -32001, "message": "Task not found"}}
        if message["method"] in ("SendMessage", "SendStreamingMessage"):
            return {**head, "result": {"task": done}}
        return {**head, "error": {"code": -32601, "message": "Method not found"}}

    def _respond_with_card(self, path: str) -> bytes:
        base, _, place = path.partition("/.well-known/")
        streams = {"streaming": base.endswith("streams")}
        card = card_10(self.url + base, name="fuzzing", skills=[SKILL], capabilities=streams)
        card["skills"] = [{**SKILL, "securityRequirements": []}]
        if base.startswith("/card/") and place == "agent-card.json":
            first = int(base.split("/")[2])
            numbers = self.cards.setdefault(base, count(first))
            if (number := next(numbers)) > first:  # the first one is good, to be registered
                return self._build_response(build_card(self.seed, number, self.url + base))
        return self._build_response(json.dumps(card).encode())

    def _build_response(
        self, body: bytes, kind: str = "application/json", status: str = "200 OK"
    ) -> bytes:
        lines = [f"HTTP/1.1 {status}", "Connection: close", f"Content-Length: {len(body)}"]
        lines += [f"Content-Type: {kind}"] if kind else []
        return "\r\n".join([*lines, "", ""]).encode() + body


async def serve_http(seed: int) -> None:
    fuzzing = FuzzingServer(seed)
    server = await asyncio.start_server(fuzzing.serve, "127.0.0.1", 0, backlog=500)
    port = server.sockets[0].getsockname()[1]
    fuzzing.url = f"http://127.0.0.1:{port}"
    print(json.dumps({"url": fuzzing.url}), flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        serve_stdio(int(sys.argv[2]))
    else:
        asyncio.run(serve_http(int(sys.argv[2])))
