"""What every transport says of an A2A request beside its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.core.fast_dataclass import record
from dragoman.core.principal import Principal
from dragoman.core.trace import TraceContext


@record(frozen=True, slots=True)
class RequestContext:
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
