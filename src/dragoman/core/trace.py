"""The thread that ties the calls of one chain together: an id, and the verbs it went through.

It travels: `carried_in` reads what a request brought of it, `Trace.carried` is what goes with what
leaves, beside a message and, under the names of `headers_of`, as headers. The forms of W3C Trace
Context are among them, so that tracing libraries pass it on by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from random import getrandbits
from typing import Any, NamedTuple

from dragoman.core.fast_dataclass import record

TRACE_ID, PARENT, STATE, CHAIN = (
    "X-OpenStarry-Trace-ID",
    "traceparent",
    "tracestate",
    "dragoman.hub/chain",
)
"""Their names in `_meta` and in metadata."""
MEMBERS = (TRACE_ID, PARENT, STATE, CHAIN)
TRACE_HEADER, PARENT_HEADER, STATE_HEADER, CHAIN_HEADER = (
    "x-openstarry-trace-id",
    "traceparent",
    "tracestate",
    "x-dragoman-chain",
)
MAX_TOKEN = 4_096

NO_LABELS: frozenset[str] = frozenset()

_PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_ID = re.compile(r"[0-9a-f]{32}")
_STATE = re.compile(r"[ -~]{1,512}")
"""Trace Context, 3.3.1.5: at least so much of it is to be passed on."""


class TraceContext(NamedTuple):
    """What a request brought of a trace. Anybody can write anything there."""

    id: str
    """Empty where there was none that could be used."""
    span: str
    chain: str
    """The hub's own words about the chain, if that is what they are."""
    state: str = ""
    """What others, and the hub, have to say of the trace: printable, and not long."""


@record(frozen=True, slots=True)
class Trace:
    id: str
    chain: tuple[str, ...] = ()
    """The verbs of the calls that led to this one, the first of them first."""
    span: str = ""
    """Of this call alone."""
    verb: str = ""
    """What is called."""
    origin: str = ""
    """Who began the chain, where that is somebody else than the caller."""
    parent: Any = None
    """What `Chains` knows of the call it was made for."""
    sign: Callable[[Trace], str] | None = None
    state: str = ""

    @property
    def depth(self) -> int:
        return len(self.chain)

    @property
    def labels(self) -> frozenset[str]:
        """Where what its chain has seen so far came from."""
        return self.parent.labels if self.parent is not None else NO_LABELS

    def build_context(self) -> dict[str, str]:
        """What goes with what leaves on behalf of this call, beside a message."""
        id = self.id
        found = {TRACE_ID: id, PARENT: f"00-{id}-{self.span or id[:16]}-01"}
        if self.state:
            found[STATE] = self.state
        if self.sign is not None:
            found[CHAIN] = self.sign(self)
        return found

    def build_headers(self) -> dict[str, str]:
        """The same for a request over HTTP."""
        return trace_headers(self.build_context())


_HEADERS = dict(
    zip(MEMBERS, (TRACE_HEADER, PARENT_HEADER, STATE_HEADER, CHAIN_HEADER), strict=True)
)
_ID_FIELD, _PARENT_FIELD, _STATE_FIELD, _CHAIN_FIELD = (name.encode() for name in _HEADERS.values())


HEADERS = frozenset(_HEADERS.values())


def trace_headers(beside: Mapping[str, Any]) -> dict[str, str]:
    """What of a trace stands beside a message that leaves, as headers for the same message."""
    headers = {}
    for name, header in _HEADERS.items():
        if name in beside:
            headers[header] = beside[name]
    return headers


def parse_trace(
    fields: Mapping[bytes, bytes], beside: Mapping[str, Any] | None = None
) -> TraceContext | None:
    """From the headers of a request and what came with its message, which counts more: it was
    written by whoever wrote that. But the hub's own words count, wherever they stand. None where
    there is nothing, as mostly."""
    sent = _CHAIN_FIELD in fields
    if beside:
        own = CHAIN in beside
        if own or ((PARENT in beside or TRACE_ID in beside) and not sent):
            return _parse(*(beside.get(name) for name in MEMBERS))
    if sent or _PARENT_FIELD in fields or _ID_FIELD in fields:
        id, parent, state, chain = (
            fields.get(name, b"").decode("latin-1")
            for name in (_ID_FIELD, _PARENT_FIELD, _STATE_FIELD, _CHAIN_FIELD)
        )
        return _parse(id, parent, state, chain)
    return None


def _parse(id: Any, parent: Any, state: Any, chain: Any) -> TraceContext:
    found = _PARENT.fullmatch(parent) if isinstance(parent, str) else None
    chain = chain if isinstance(chain, str) and len(chain) <= MAX_TOKEN else ""
    if found is not None and found[1].strip("0") and found[2].strip("0"):
        said = isinstance(state, str) and _STATE.fullmatch(state)
        return TraceContext(found[1], found[2], chain, state if said else "")
    own = _ID.fullmatch(id[:64].replace("-", "").lower()) if isinstance(id, str) else None
    return TraceContext(own[0] if own is not None and own[0].strip("0") else "", "", chain)


def new_trace() -> Trace:
    """Of what the hub does for nobody in particular."""
    return Trace(f"{getrandbits(128):032x}")  # a name, not a secret
