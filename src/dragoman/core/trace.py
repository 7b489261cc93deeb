"""The trace of a chain of calls: its id, and the tools it went through.

`parse_trace` reads it from a request; `Trace.build_context` and `trace_headers` render it for what
leaves, as metadata and as HTTP headers. W3C Trace Context is among the forms, so that tracing
libraries pass it on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from random import getrandbits
from typing import Any, NamedTuple

from dragoman.core.secret_values import NO_SECRETS, SecretValues
from dragoman.core.structs import Struct

TRACE_ID, PARENT, STATE = "X-OpenStarry-Trace-ID", "traceparent", "tracestate"
CHAIN = "dragoman.hub/chain"
MEMBERS = (TRACE_ID, PARENT, STATE, CHAIN)
"""Their names in `_meta` and in metadata."""
_ID_HEADER, _CHAIN_HEADER = TRACE_ID.lower(), "x-dragoman-chain"
_HEADERS = {TRACE_ID: _ID_HEADER, PARENT: PARENT, STATE: STATE, CHAIN: _CHAIN_HEADER}
HEADERS = frozenset(_HEADERS.values())
_ID_FIELD, _PARENT_FIELD, _STATE_FIELD, _CHAIN_FIELD = (name.encode() for name in _HEADERS.values())
MAX_TOKEN = 4_096

NO_LABELS: frozenset[str] = frozenset()

_PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_ID = re.compile(r"[0-9a-f]{32}")
_STATE = re.compile(r"[ -~]{1,512}")
"""Trace Context 3.3.1.5: at least this much must be passed on."""


class TraceContext(NamedTuple):
    """The trace that a request brought. Untrusted."""

    id: str
    """Empty if there is no valid one."""
    span: str
    chain: str
    """The hub's own token about the chain, unverified."""
    state: str = ""
    """The tracestate: printable and bounded."""


class Trace(Struct, frozen=True):
    id: str
    chain: tuple[str, ...] = ()
    """The tools whose calls led to this one, the first one first."""
    span: str = ""
    """The id of this call alone."""
    verb: str = ""
    """The tool that is called."""
    origin: str = ""
    """Who started the chain, if not the calling principal."""
    parent: Any = None
    """What `CallChains` knows of the call on whose behalf this one is made."""
    sign: Callable[[Trace], str] | None = None
    state: str = ""
    is_sent: bool = False
    """Whether the client has sent the id: then its further calls may have the same one."""
    is_ambiguous: bool = False
    """Whether `parent` is one of several calls of different users that may have led to this one."""
    caller_span: str = ""
    """The span in the client's own trace that made this call; empty if it is unknown."""

    @property
    def depth(self) -> int:
        return len(self.chain)

    @property
    def labels(self) -> frozenset[str]:
        """The taint labels that the chain has collected."""
        return self.parent.labels if self.parent is not None else NO_LABELS

    @property
    def secrets(self) -> SecretValues:
        """The secrets that the arguments of the chain's calls may have."""
        return self.parent.chain.secrets if self.parent is not None else NO_SECRETS

    def build_context(self) -> dict[str, str]:
        """Renders the trace as metadata of a message."""
        id = self.id
        found = {TRACE_ID: id, PARENT: f"00-{id}-{self.span or id[:16]}-01"}
        if self.state:
            found[STATE] = self.state
        if self.sign is not None:
            found[CHAIN] = self.sign(self)
        return found

    def build_headers(self) -> dict[str, str]:
        """Renders the trace as HTTP headers."""
        return trace_headers(self.build_context())


def trace_headers(beside: Mapping[str, Any]) -> dict[str, str]:
    """Converts trace metadata to HTTP headers."""
    try:  # a display takes a third of the time of a comprehension, and every call has all of them
        return {
            _ID_HEADER: beside[TRACE_ID],
            PARENT: beside[PARENT],
            STATE: beside[STATE],
            _CHAIN_HEADER: beside[CHAIN],
        }
    except KeyError:
        return {header: beside[name] for name, header in _HEADERS.items() if name in beside}


def parse_trace(
    fields: Mapping[bytes, bytes], beside: Mapping[str, Any] | None = None
) -> TraceContext | None:
    """Reads the trace from the metadata of a message, or else from the headers. Metadata takes
    precedence, because the author of the message wrote it, unless only the headers have the hub's
    own token. Returns None without any."""
    sent = _CHAIN_FIELD in fields
    if beside and (CHAIN in beside or ((PARENT in beside or TRACE_ID in beside) and not sent)):
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
        has_state = isinstance(state, str) and _STATE.fullmatch(state)
        return TraceContext(found[1], found[2], chain, state if has_state else "")
    own = _ID.fullmatch(id[:64].replace("-", "").lower()) if isinstance(id, str) else None
    return TraceContext(own[0] if own is not None and own[0].strip("0") else "", "", chain)


def new_trace() -> Trace:
    """A trace for what the hub does by itself."""
    return Trace(f"{getrandbits(128):032x}")  # an id, not a secret
