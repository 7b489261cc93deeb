"""The context of a request that policies see: the chain, the entry point, the time, arguments.

It is rendered as JSON for Cedar. Values that no policy reads are constant, so that requests that
agree in what is read are equal.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from dragoman.core.call import Call, empty_mapping
from dragoman.core.errors import InvalidInput
from dragoman.core.nearest_names import find_nearest
from dragoman.core.structs import Struct, field
from dragoman.core.tool_identity import fold_id

MAX_ARGUMENT = 256
"""Characters of `name=value` that policies can compare. A longer one is cut, but stays longer than
any text in a policy, so that it equals none."""
MAX_ARGUMENTS = 128
AT_REST = "1970-01-01T00:00:00Z"
OWNER_CONTEXT = {True: '{"owner":true}', False: '{"owner":false}'}
"""The context of an action on a task, by whether the task is the principal's own."""

_encode = msgspec.json.Encoder().encode


class CallContext(Struct, frozen=True, kw_only=True):
    """The defaults are those of a first call in a chain."""

    chain: tuple[str, ...] = ()
    depth: int | None = None
    """None: the length of the chain."""
    max_depth: int
    labels: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    via: str = ""
    trace_id: str = ""
    now: float = 0.0
    """Seconds of wall time."""
    approved: bool = False
    args: Mapping[str, Any] = field(default_factory=empty_mapping)

    def render(self, read: Collection[str], verb: str) -> str:
        """Renders the context of a call of `verb`; `read` names the volatile attributes that are
        read."""
        now = AT_REST
        if "now" in read:
            now = datetime.fromtimestamp(self.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        found: dict[str, Any] = {
            "trace_id": self.trace_id if "trace_id" in read else "",
            "depth": len(self.chain) if self.depth is None else self.depth,
            "max_depth": self.max_depth,
            "chain": list(self.chain),
            "cyclic": verb in self.chain,
            "labels": list(self.labels),
            "taints": list(self.labels),  # its former name
            "scopes": list(self.scopes),
            "via": self.via,
            "now": {"__extn": {"fn": "datetime", "arg": now}},
            "approved": self.approved,
            "args": list(list_arguments(self.args)) if "args" in read else [],
        }
        return _encode(found).decode()


def context_from_call(call: Call, max_depth: int, now: float) -> CallContext:
    trace = call.trace
    return CallContext(
        chain=trace.chain,
        max_depth=max_depth,
        labels=trace.labels if trace.parent is not None else call.notes.labels,
        scopes=frozenset(call.principal.scopes),
        via=call.door,
        trace_id=trace.id,
        now=now,
        approved=call.is_approved,
        args=call.arguments,
    )


def list_arguments(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Lists each argument as `name=value`. None is omitted, so policies can test them all."""
    if len(arguments) > MAX_ARGUMENTS:
        raise InvalidInput(
            f"too many arguments: policies read them, and at most {MAX_ARGUMENTS} are supported"
        )
    for name, value in arguments.items():
        # Otherwise {"a=b": "c"} could pass for {"a": "b=c"}.
        text = f"{str(name).replace('%', '%25').replace('=', '%3D')}={_render_argument(value)}"
        yield text if len(text) <= MAX_ARGUMENT else text[: MAX_ARGUMENT + 1]


def _render_argument(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float) or value is None:
        return json.dumps(value)
    return "{…}" if isinstance(value, Mapping) else "[…]"


SETS = ("chain", "labels", "scopes")
RENAMED = {"taints": "labels"}
"""Former names, still accepted."""
_KINDS: Mapping[str, tuple[type, ...]] = {
    "via": (str,),
    "trace_id": (str,),
    "depth": (int,),
    "max_depth": (int,),
    "approved": (bool,),
    "args": (dict,),
}
NAMES = (*SETS, *_KINDS, "now", "owner")
EARLIEST, LATEST = -62_135_596_800, 253_402_300_799
"""The years 1 to 9999 in seconds since 1970, which Python's calendar supports."""


def context_from_input(words: Mapping[str, Any], first: CallContext) -> CallContext:
    """Builds the context of a hypothetical call from given values; the rest is as in `first`.
    `owner` is not an attribute of calls and is ignored."""
    found: dict[str, Any] = {name: getattr(first, name) for name in NAMES if name != "owner"}
    for name, value in words.items():
        name = RENAMED.get(name, name)
        if name not in NAMES:
            near = find_nearest(name, NAMES)
            hint = f'; did you mean "{near}"?' if near else f"; use {', '.join(NAMES)}"
            raise InvalidInput(f'unknown context attribute "{name}"{hint}')
        if name != "owner":
            found[name] = _check_value(name, value)
    return CallContext(**found)


def _check_value(name: str, value: Any) -> Any:
    if name == "now":
        return _parse_seconds(value)
    if name in SETS and isinstance(value, list | tuple):
        if all(isinstance(one, str) for one in value):
            return tuple(map(fold_id, value)) if name == "chain" else frozenset(value)
    elif name in _KINDS and type(value) in _KINDS[name]:
        return value
    raise InvalidInput(f'invalid value of context attribute "{name}": {value!r}')


def _parse_seconds(value: Any) -> float:
    """Parses an RFC 3339 time, or seconds since 1970."""
    seconds: float | None = None
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value
    elif isinstance(value, str | datetime):
        try:
            when = datetime.fromisoformat(value) if isinstance(value, str) else value
            seconds = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
        except ValueError:
            pass
    if seconds is None or not EARLIEST <= seconds <= LATEST:
        raise InvalidInput(f'"now" must be a time like 2026-11-15T12:00:00Z, not {value!r:.40}')
    return float(seconds)
