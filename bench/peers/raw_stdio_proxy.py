"""The limit over stdio: one child, its ids ours, answers put back under the caller's ids.

usage: raw_stdio_proxy.py PORT COMMAND [ARGUMENT...]
"""

import asyncio
import sys

import msgspec
from raw_http import ServerConnection, serve


class Request(msgspec.Struct):
    id: msgspec.Raw
    method: str
    params: msgspec.Raw


class Reply(msgspec.Struct):
    id: int
    result: msgspec.Raw = msgspec.Raw(b"")
    error: msgspec.Raw = msgspec.Raw(b"")


decode_request = msgspec.json.Decoder(Request).decode
decode_reply = msgspec.json.Decoder(Reply).decode


class Child(asyncio.SubprocessProtocol):
    def __init__(self) -> None:
        self.buffer = b""
        self.waiting: dict[int, tuple[ServerConnection, bytes]] = {}
        self.last_id = 0

    def connection_made(self, transport) -> None:
        self.stdin = transport.get_pipe_transport(0)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            reply = decode_reply(line)
            connection, caller_id = self.waiting.pop(reply.id)
            result = bytes(reply.result)
            outcome = b',"result":' + result if result else b',"error":' + bytes(reply.error)
            connection.reply(b'{"jsonrpc":"2.0","id":' + caller_id + outcome + b"}")

    def on_request(self, connection: ServerConnection, body: bytes) -> None:
        request = decode_request(body)
        self.last_id += 1
        self.waiting[self.last_id] = connection, bytes(request.id)
        self.stdin.write(
            b'{"jsonrpc":"2.0","id":%d,"method":"%b","params":%b}\n'
            % (self.last_id, request.method.encode(), bytes(request.params))
        )


child = Child()


async def start_child() -> None:
    loop = asyncio.get_running_loop()
    await loop.subprocess_exec(lambda: child, *sys.argv[2:], stderr=None)


serve(int(sys.argv[1]), child.on_request, start_child)
