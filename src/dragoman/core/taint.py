"""Taint labels: what data may be, where it came from, and where it may go.

A source puts labels on a result; a chain of calls collects them; a sink is a place that some labels
must not reach. Labels belong to chains and to stored data, not to strings: rewriting data does not
remove them. Knows neither rules nor how tools are classified.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from dragoman.core.structs import Struct
from dragoman.core.trace import NO_LABELS

if TYPE_CHECKING:
    pass

EXTERNAL_NETWORK: Final = "external_network"
"""Comes from the network, where anyone may have written it."""
USER_INPUT: Final = "user_input"
"""Is the message of a client to an agent."""
PII: Final = "pii"
"""Has personal data."""
SECRET: Final = "secret"
"""Has a credential."""
UNTRUSTED_AGENT: Final = "untrusted_agent"
"""Was written by an agent that the operator does not trust."""
LABELS = (EXTERNAL_NETWORK, USER_INPUT, PII, SECRET, UNTRUSTED_AGENT)

EXEC: Final = "exec"
"""Runs commands or code."""
WRITE: Final = "write"
"""Changes or deletes data."""
NET: Final = "net"
"""Sends data to the network."""
AGENT: Final = "agent"
"""Gives data to an agent."""
SINKS = (EXEC, WRITE, NET, AGENT)


class LabelOrigin(Struct, frozen=True):
    """The call that brought a label."""

    tool: str
    trace: str
    why: str = ""


Origins = Mapping[str, LabelOrigin]
"""The origin of each label."""
NO_ORIGINS: Origins = MappingProxyType({})


class FlowRule(Struct, frozen=True):
    """What happens if a label meets a sink."""

    mode: str
    """`enforce`, `ask` or `observe`."""
    sink: str


class ToolFlows(Struct, frozen=True, kw_only=True):
    """How data flows through a tool. The values of `sources` and `sinks` are the reasons."""

    sources: Mapping[str, str]
    sinks: Mapping[str, str]
    rules: Mapping[str, FlowRule]
    """The strictest rule for each label that meets one of the sinks."""
    labels: frozenset[str] = NO_LABELS
    """The names of `sources`."""
    reads_only: bool = False
    stored_by: tuple[str, ...] = ()
    """The arguments that name stored data; `*` stands for all data of the target."""
    secret_fields: frozenset[str] = NO_LABELS
    pii_fields: frozenset[str] = NO_LABELS
    detects: bool = True


class LabelStore(Protocol):
    """Keeps the labels of data that outlives a chain of calls: conversations with agents, files and
    other data that tools store. All methods block and may raise `StorageFailed`."""

    @property
    def is_empty(self) -> bool: ...

    def check(self) -> None:
        """Raises `StorageFailed` if it is known that labels cannot be stored now."""

    def find_labels(self, keys: list[str]) -> dict[str, LabelOrigin]:
        """Finds the labels of all these together."""

    def add_labels(self, key: str, origins: Origins) -> None:
        """Adds labels; the origin of a label that it already has stays."""

    def remove_labels(self, key: str, label: str | None) -> list[str]:
        """Removes one label or all of them; returns those that it had."""

    def list_labels(self, prefix: str, most: int) -> list[dict[str, Any]]:
        """Lists the newest: `key`, `label`, `tool`, `trace`, `why`, `at`."""


def list_strings(value: Any, most: int) -> Iterator[tuple[str, str]]:
    """Lists the strings of a JSON value with the names of their members, at most `most` values."""
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting and most > 0:
        name, one = waiting.pop()
        most -= 1
        if isinstance(one, str):
            yield name, one
        elif isinstance(one, Mapping):
            waiting.extend((str(key), each) for key, each in one.items())
        elif isinstance(one, list | tuple):
            waiting.extend((name, each) for each in one)
        elif one is not None and not isinstance(one, bool):
            yield name, str(one)
