"""The agent of `a2a_sdk_agent` over gRPC alone: only its card is had over HTTP.

    a2a_grpc_agent.py [--version 1.0] [--log F] [--token T]

It serves 1.0's service and 0.3's; --version is the one that its card names. With --token it answers
only calls that show it. With --log it writes down the words and the metadata of each call.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
from pathlib import Path
from typing import Any

import grpc
import uvicorn
from a2a.compat.v0_3.a2a_v0_3_pb2_grpc import add_A2AServiceServicer_to_server as add_old
from a2a.compat.v0_3.grpc_handler import CompatGrpcHandler
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.request_handlers.grpc_handler import GrpcHandler
from a2a.server.routes import create_agent_card_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import AgentInterface
from a2a.types.a2a_pb2_grpc import add_A2AServiceServicer_to_server as add_new
from starlette.applications import Starlette

sys.path.append(str(Path(__file__).resolve().parents[2]))  # it is run as a script, anywhere
from tests.peers.a2a_sdk_agent import Agent, card


async def serve(given: argparse.Namespace) -> None:
    def log(**entry: Any) -> None:
        if given.log:
            with open(given.log, "a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")

    async def seen(handle: Any, details: Any) -> Any:
        metadata = dict(details.invocation_metadata or ())
        log(event="call", method=details.method, **metadata)
        if given.token and metadata.get("authorization") != f"Bearer {given.token}":

            async def refuse(request: Any, context: Any) -> None:
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you?")

            handler = await handle(details)
            if handler is not None and handler.response_streaming:
                return grpc.unary_stream_rpc_method_handler(refuse)
            return grpc.unary_unary_rpc_method_handler(refuse)
        return await handle(details)

    class Seen(grpc.aio.ServerInterceptor):  # type: ignore[misc]
        async def intercept_service(self, continuation: Any, details: Any) -> Any:
            return await seen(continuation, details)

    server = grpc.aio.server(interceptors=[Seen()])
    port = server.add_insecure_port("127.0.0.1:0")
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    described = card(url, [], True)
    described.supported_interfaces.append(
        AgentInterface(
            url=f"127.0.0.1:{port}", protocol_binding="GRPC", protocol_version=given.version
        )
    )
    handler = DefaultRequestHandler(
        agent_executor=Agent(log), task_store=InMemoryTaskStore(), agent_card=described
    )
    add_new(GrpcHandler(handler), server)
    add_old(CompatGrpcHandler(handler), server)
    await server.start()
    app = Starlette(routes=[*create_agent_card_routes(described)])
    sock.listen(128)
    print(json.dumps({"port": port, "url": url}), flush=True)
    config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    await uvicorn.Server(config).serve(sockets=[sock])


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--version", default="1.0")
    options.add_argument("--log")
    options.add_argument("--token", default="")
    asyncio.run(serve(options.parse_args()))
