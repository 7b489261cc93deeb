"""A plain ASGI application on uvicorn that passes calls on: what server and client choice cost.

usage: asgi_proxy.py PORT UPSTREAM_PORT pool|aiohttp
"""

import asyncio
import sys

import aiohttp
import msgspec
import uvicorn
from raw_http import FAILED, Pool

PORT, UPSTREAM_PORT, CLIENT = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
HEADERS = {
    "content-type": "application/json",
    "accept": "application/json, text/event-stream",
    "mcp-protocol-version": "2026-07-28",
}


class Params(msgspec.Struct):
    name: str
    arguments: msgspec.Raw


class Request(msgspec.Struct):
    method: str
    id: msgspec.Raw
    params: Params


decode = msgspec.json.Decoder(Request).decode
routes = {"echo": f"http://127.0.0.1:{UPSTREAM_PORT}/mcp"}


class PoolClient:
    def __init__(self) -> None:
        self.pool = Pool(UPSTREAM_PORT)

    async def post(self, url: str, body: bytes) -> bytes:
        replied: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self.pool.send(body, replied.set_result)
        return await replied or FAILED


class AiohttpClient:
    def __init__(self) -> None:
        self.session: aiohttp.ClientSession | None = None

    async def post(self, url: str, body: bytes) -> bytes:
        if self.session is None:  # a session belongs to the loop that runs
            connector = aiohttp.TCPConnector(limit=0)
            self.session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        async with self.session.post(url, data=body, headers=HEADERS) as response:
            return bytes(await response.read())


client = PoolClient() if CLIENT == "pool" else AiohttpClient()


async def app(scope, receive, send) -> None:
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    answer = await client.post(routes[decode(body).params.name], body)
    length = str(len(answer)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


uvicorn.run(
    app,
    host="127.0.0.1",
    port=PORT,
    loop="uvloop",
    http="httptools",
    lifespan="off",
    access_log=False,
    log_level="error",
)
