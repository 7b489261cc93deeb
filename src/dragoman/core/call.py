"""One request to have something done, whatever brought it in, and what came of it.

Knows no protocol: content is plain JSON objects with a `type` (text, image, audio, resource,
resource_link, …), and what a far side said beside it travels in `extra`, untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from dragoman.core.principal import Principal
from dragoman.core.trace import Trace

if TYPE_CHECKING:
    from dragoman.core.tool import Tool


class _Absent:
    """No value at all, where None is one."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ABSENT"

    def __bool__(self) -> bool:
        return False


ABSENT: Final = _Absent()

NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a running call has come."""

    progress: float
    total: float | None = None
    message: str | None = None


Updates = Callable[[Progress], None]


def discard(update: Progress) -> None:
    """Where updates go that nobody asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    caller: Principal
    tool: Tool
    asked_as: str
    """The name it was asked by, perhaps an alias; `tool.name` is the verb."""
    arguments: Mapping[str, Any]
    trace: Trace
    door: str
    """The face that brought it: `mcp-http`, `mcp-stdio`, `api`."""
    extra: Mapping[str, Any]
    """What the caller's protocol carried beside the arguments, for targets that can carry it on."""
    updates: Updates = discard


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    content: Sequence[Any] = ()
    structured: Any = ABSENT
    failed: bool = False
    """The tool ran and says that it failed; the content says why."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    size: int = -1
    """Bytes it took on the wire it came by, where known: lets small results pass unweighed."""
