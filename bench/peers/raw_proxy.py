"""The limit over HTTP: decode as much as routing needs, pass the bytes on, no guard of any kind.

usage: raw_proxy.py PORT UPSTREAM_PORT
"""

import sys

import msgspec
from raw_http import Pool, ServerConnection, serve


class Params(msgspec.Struct):
    name: str
    arguments: msgspec.Raw


class Request(msgspec.Struct):
    method: str
    id: msgspec.Raw
    params: Params


decode = msgspec.json.Decoder(Request).decode
pool = Pool(int(sys.argv[2]))
routes = {"echo": pool}


def on_request(connection: ServerConnection, body: bytes) -> None:
    routes[decode(body).params.name].send(body, connection.reply)


serve(int(sys.argv[1]), on_request)
