"""Who asks something of the A2A face, whatever transport brought it."""

from __future__ import annotations

from dragoman.core.fast_dataclass import record
from dragoman.core.principal import Principal
from dragoman.core.trace import TraceContext


@record(frozen=True, slots=True)
class RequestContext:
    """Who asks, how, and of whom."""

    principal: Principal
    agent: str | None
    """Of the path; None where it names none."""
    version: str
    """The dialect's."""
    extensions: frozenset[str]
    base: str
    """The address that the client sees the hub at."""
    key: str = ""
    """Of a send that is to be done once, however often it comes."""
    carried: TraceContext | None = None
