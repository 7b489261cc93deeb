"""A pytest plugin for the kit, which knows no authentication: each of its requests shows a key."""

import collections
import os
from typing import Any

import grpc
import httpx

SHOWN = f"Bearer {os.environ['A2A_KIT_KEY']}"

send, channel = httpx.Client.send, grpc.insecure_channel


def send_with_key(client: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
    request.headers.setdefault("Authorization", SHOWN)
    return send(client, request, **options)


class Details(
    collections.namedtuple("Details", "method timeout metadata credentials wait_for_ready"),
    grpc.ClientCallDetails,
):
    pass


class Key(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    def intercept_unary_unary(self, go_on: Any, details: Any, request: Any) -> Any:
        metadata = [*(details.metadata or ()), ("authorization", SHOWN)]
        return go_on(
            Details(details.method, details.timeout, metadata, details.credentials, None), request
        )

    intercept_unary_stream = intercept_unary_unary


httpx.Client.send = send_with_key  # type: ignore[method-assign]
grpc.insecure_channel = lambda *args, **options: grpc.intercept_channel(
    channel(*args, **options), Key()
)
