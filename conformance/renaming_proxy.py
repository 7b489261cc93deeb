"""A proxy in front of a hub that prefixes names: the suite sees the names it knows.

`python -m conformance.renaming_proxy URL PREFIX`. Adds the prefix to names in requests and
removes it from names in lists; passes everything else byte for byte, streams unbuffered. A suite
run through it shows that a prefix changes names and nothing else.
"""

import argparse
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from conformance.fixture.process import listen

NAMED = ("tools/call", "prompts/get")
LISTS = ("tools/list", "prompts/list")
HOP_BY_HOP = ("connection", "content-length", "keep-alive", "transfer-encoding")


class Renaming:
    def __init__(self, url: str, prefix: str) -> None:
        self.url = url
        self.prefix = prefix
        self.client = httpx2.AsyncClient(timeout=60, trust_env=False)

    def request_body(self, body: bytes, headers: dict[str, str]) -> tuple[bytes, str | None]:
        try:
            message: Any = json.loads(body)
        except ValueError:
            return body, None
        if not isinstance(message, dict):
            return body, None
        method, params = message.get("method"), message.get("params")
        if not isinstance(params, dict):
            return body, method
        holder = params.get("ref") if method == "completion/complete" else params
        if method not in (*NAMED, "completion/complete") or not isinstance(holder, dict):
            return body, method
        if isinstance(holder.get("name"), str):
            if headers.get("mcp-name") == holder["name"]:
                headers["mcp-name"] = self.prefix + holder["name"]
            holder["name"] = self.prefix + holder["name"]
        return json.dumps(message).encode(), method

    async def serve(self, request: Request) -> Response:
        headers = {key: value for key, value in request.headers.items() if key not in HOP_BY_HOP}
        headers["accept-encoding"] = "identity"
        body, method = self.request_body(await request.body(), headers)
        sent = self.client.build_request(request.method, self.url, headers=headers, content=body)
        answer = await self.client.send(sent, stream=True)
        kept = {
            key: value for key, value in answer.headers.items() if key.lower() not in HOP_BY_HOP
        }
        if method in LISTS:
            text = (await answer.aread()).decode()
            for space in ("", " "):
                text = text.replace(f'"name":{space}"{self.prefix}', '"name":"')
            await answer.aclose()
            return Response(text.encode(), answer.status_code, kept)

        async def stream() -> AsyncIterator[bytes]:
            async for chunk in answer.aiter_raw():
                yield chunk

        closing = BackgroundTask(answer.aclose)
        return StreamingResponse(stream(), answer.status_code, kept, background=closing)


def main() -> None:
    parser = argparse.ArgumentParser("python -m conformance.renaming_proxy", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("prefix")
    arguments = parser.parse_args()
    renaming = Renaming(arguments.url, arguments.prefix)
    route = Route("/mcp", renaming.serve, methods=["GET", "POST", "DELETE", "PUT", "OPTIONS"])
    listen(Starlette(routes=[route]), 0, "/mcp")


if __name__ == "__main__":
    main()
