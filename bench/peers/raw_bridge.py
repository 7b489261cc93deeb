"""The limit of a bridge: a tool call in, an A2A message out, and no guard of any kind.

usage: raw_bridge.py PORT AGENT_PORT
"""

import itertools
import sys

import msgspec
from raw_http import A2A, Pool, ServerConnection, serve


class Arguments(msgspec.Struct):
    text: str


class Params(msgspec.Struct):
    name: str
    arguments: Arguments


class Request(msgspec.Struct):
    id: msgspec.Raw
    params: Params


class Part(msgspec.Struct):
    text: msgspec.Raw


class Message(msgspec.Struct):
    parts: list[Part]


class Result(msgspec.Struct):
    message: Message


class Answer(msgspec.Struct):
    result: Result


ASK = (
    b'{"jsonrpc":"2.0","id":%d,"method":"SendMessage","params":{"message":'
    b'{"messageId":"m%d","role":"ROLE_USER","parts":[{"text":%b}]}}}'
)
TELL = (
    b'{"jsonrpc":"2.0","id":%b,"result":{"content":[{"type":"text","text":%b}],'
    b'"isError":false,"resultType":"complete"}}'
)
decode_request = msgspec.json.Decoder(Request).decode
decode_answer = msgspec.json.Decoder(Answer).decode
encode = msgspec.json.Encoder().encode
pool = Pool(int(sys.argv[2]), A2A)
numbers = itertools.count(1)


def on_request(connection: ServerConnection, body: bytes) -> None:
    request = decode_request(body)
    number = next(numbers)

    def on_reply(answer: bytes | None) -> None:
        if answer is None:
            connection.reply(None)
            return
        said = decode_answer(answer).result.message.parts[0].text
        connection.reply(TELL % (bytes(request.id), bytes(said)))

    pool.send(ASK % (number, number, encode(request.params.arguments.text)), on_reply)


serve(int(sys.argv[1]), on_request)
