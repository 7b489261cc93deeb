"""What policies may know of a request beside who and what: the chain, the door, the time.

It is written as JSON for Cedar, with what no policy reads left at rest, so that requests which
agree in what is read are one request.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from datetime import UTC, datetime
from typing import Any

import msgspec

from dragoman.core.call import Call, empty_mapping
from dragoman.core.errors import InvalidInput
from dragoman.core.fast_dataclass import record
from dragoman.core.tool_identity import fold_id

MAX_ARGUMENT = 256
"""Characters of `name=value` that policies can speak of. A longer one is cut, and still longer than
any text that a policy may have, so that it is equal to none."""
MAX_ARGUMENTS = 128
AT_REST = "1970-01-01T00:00:00Z"

_encode = msgspec.json.Encoder().encode


@record(frozen=True, slots=True, kw_only=True)
class CallContext:
    """The defaults are those of a first call."""

    chain: tuple[str, ...] = ()
    depth: int | None = None
    """None for as deep as the chain is long."""
    max_depth: int
    taints: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    via: str = ""
    trace_id: str = ""
    now: float = 0.0
    """Seconds of wall time."""
    approved: bool | None = None
    args: Mapping[str, Any] = field(default_factory=empty_mapping)

    def render(self, read: Collection[str], verb: str) -> str:
        """Of a call of `verb`; `read` is what policies read of what changes with every call."""
        found: dict[str, Any] = {
            "trace_id": self.trace_id if "trace_id" in read else "",
            "depth": len(self.chain) if self.depth is None else self.depth,
            "max_depth": self.max_depth,
            "chain": list(self.chain),
            "cyclic": verb in self.chain,
            "taints": list(self.taints),
            "scopes": list(self.scopes),
            "via": self.via,
            "now": {"__extn": {"fn": "datetime", "arg": self._render_now(read)}},
            "args": list(list_arguments(self.args)) if "args" in read else [],
        }
        if self.approved is not None:
            found["approved"] = self.approved
        return _encode(found).decode()

    def _render_now(self, read: Collection[str]) -> str:
        if "now" not in read:
            return AT_REST
        return datetime.fromtimestamp(self.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def context_from_call(call: Call, max_depth: int, now: float) -> CallContext:
    trace = call.trace
    return CallContext(
        chain=trace.chain,
        max_depth=max_depth,
        taints=trace.labels,
        scopes=frozenset(call.principal.scopes),
        via=call.door,
        trace_id=trace.id,
        now=now,
        args=call.arguments,
    )


def list_arguments(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Each as `name=value`. None is left out, so that `only these` can be said of all of them."""
    if len(arguments) > MAX_ARGUMENTS:
        raise InvalidInput(f"more than {MAX_ARGUMENTS} arguments, of which policies read some")
    for name, value in arguments.items():
        # Else {"a=b": "c"} could pass for {"a": "b=c"}.
        text = f"{str(name).replace('%', '%25').replace('=', '%3D')}={_render_argument(value)}"
        yield text if len(text) <= MAX_ARGUMENT else text[: MAX_ARGUMENT + 1]


def _render_argument(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float) or value is None:
        return json.dumps(value)
    return "{…}" if isinstance(value, Mapping) else "[…]"


SETS = ("chain", "taints", "scopes")
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
"""The years 1 to 9999 in seconds since 1970: no calendar here knows others."""


def context_from_input(words: Mapping[str, Any], first: CallContext) -> CallContext:
    """What somebody says of a call that is not made; the rest is as in `first`. `owner` is not of a
    call and left alone."""
    found: dict[str, Any] = {name: getattr(first, name) for name in NAMES if name != "owner"}
    for name, value in words.items():
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, 1)
            hint = f'; did you mean "{near[0]}"?' if near else f"; there are {', '.join(NAMES)}"
            raise InvalidInput(f'"{name}" is nothing that policies know of a call{hint}')
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
    raise InvalidInput(f'"{name}" of a call cannot be {value!r}')


def _parse_seconds(value: Any) -> float:
    """Of an RFC 3339 time, or as they are."""
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
