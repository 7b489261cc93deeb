"""A model server that thinks no time: OpenAI's chat completions, streamed, over loopback.

Where the instructions say so, it answers to a message with a call of the tool that it is offered,
in fragments; else, and to the result of a tool, with a text in pieces of four characters.

usage: python -m bench.peers.scripted_model PORT
"""

import asyncio
import json
import sys

USE = "Use your tool"
"""In the instructions of an agent that shall call its tool."""
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def build_event(delta: dict, finish: str | None = None) -> dict:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}


def list_events(request: dict) -> list[dict]:
    last = request["messages"][-1]
    tools = request.get("tools")
    if last["role"] == "user" and USE in request["messages"][0]["content"]:
        if not tools:
            raise RuntimeError("no tool is offered")
        return [build_event({"role": "assistant", "content": None}), *list_call(last, tools)]
    text = last["content"] if last["role"] == "tool" else f"E:{last['content']}"
    pieces = [text[at : at + 4] for at in range(0, len(text), 4)]
    return [
        build_event({"role": "assistant", "content": ""}),
        *(build_event({"content": piece}) for piece in pieces),
        build_event({}, "stop"),
    ]


def list_call(last: dict, tools: list[dict]) -> list[dict]:
    arguments = json.dumps({"text": last["content"]})
    function = {"name": tools[0]["function"]["name"], "arguments": ""}
    begun = {"index": 0, "id": "call_1", "type": "function", "function": function}
    pieces = [arguments[at : at + 4] for at in range(0, len(arguments), 4)]
    return [
        build_event({"tool_calls": [begun]}),
        *(
            build_event({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
            for piece in pieces
        ),
        build_event({}, "tool_calls"),
    ]


def render_answer(request: dict) -> bytes:
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    events = [*list_events(request), {"id": "c1", "choices": [], "usage": usage}]
    texts = [f"data: {json.dumps(event)}\n\n".encode() for event in events]
    chunks = [*texts, b"data: [DONE]\n\n"]
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return HEAD + body + b"0\r\n\r\n"


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while b"\r\n\r\n" in self._data:
            head, _, rest = self._data.partition(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            lengths = [line.split(b":")[1] for line in lines if line.startswith(b"content-length")]
            length = int(lengths[0]) if lengths else 0
            if len(rest) < length:
                return
            body, self._data = rest[:length], rest[length:]
            if length:
                self._transport.write(render_answer(json.loads(body)))
            else:  # a probe
                self._transport.write(b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n")


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
