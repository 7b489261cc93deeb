"""What every transport says of an A2A request beside its parameters, and how it is read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from dragoman.a2a.protocol.errors import INTERNAL, INVALID_REQUEST, A2aError, error_from_hub
from dragoman.core.errors import HubError
from dragoman.core.principal import Principal
from dragoman.core.structs import Struct
from dragoman.core.trace import TraceContext

log = logging.getLogger(__name__)

GRPC_PART = "a2a-grpc"
"""How hubs of a cluster name their gRPC servers to each other."""
MAX_EXTENSIONS = 32
MAX_KEY = 256


class RequestContext(Struct, frozen=True):
    """Who sends a request, in which dialect, and to which agent."""

    principal: Principal
    agent: str | None
    """The agent that the path names; None if it names none."""
    version: str
    """The version of the dialect."""
    extensions: frozenset[str]
    base: str
    """The address at which the client sees the hub; for cards."""
    key: str = ""
    """The idempotency key of a message that is to be handled once, however often it is sent."""
    trace_context: TraceContext | None = None


def merge_metadata(request: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The metadata of a request and of its message, where a trace context may stand; the members of
    the message's take precedence."""
    outer = request.get("metadata")
    message = request.get("message")
    inner = message.get("metadata") if message is not None else None
    return {**outer, **inner} if outer and inner else outer or inner


def parse_extensions(named: str) -> frozenset[str]:
    found = [uri for part in named.split(",") if 0 < len(uri := part.strip()) <= 512]
    return frozenset(found[:MAX_EXTENSIONS])


def check_idempotency_key(key: str) -> str:
    if len(key) > MAX_KEY or not key.isprintable():
        raise A2aError(INVALID_REQUEST, f"an Idempotency-Key has at most {MAX_KEY} characters")
    return key


def error_from_exception(error: Exception, what: str) -> A2aError:
    """The outer boundary of a transport: every error of `what` becomes one of the protocol."""
    if isinstance(error, HubError):
        error = error_from_hub(error)
    if isinstance(error, A2aError):
        return error
    log.error("%s crashed", what, exc_info=error)
    return A2aError(INTERNAL, "internal error: see the hub's log")
