"""What a built-in tool declares, and how its function is called."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from dragoman.core.call import ABSENT, Call, Result
from dragoman.core.label_keys import build_stored_key
from dragoman.core.local_agents import AgentProfile
from dragoman.core.principal import Principal
from dragoman.core.structs import Struct
from dragoman.core.tool_identity import BUILTIN
from dragoman.tools.builtin_names import FALLBACK_NAMES
from dragoman.wire.json import encode

NOTHING: frozenset[str] = frozenset()

FindProfile = Callable[[Principal], AgentProfile | None]
"""Finds the agent that a principal is; None for other principals."""


class ToolSpec(Struct, frozen=True, kw_only=True):
    """The definition of a built-in tool, as clients, policies and the taint guard see it."""

    name: str
    title: str
    description: str
    """For the model that chooses it."""
    properties: Mapping[str, Any] = {}
    """The JSON Schema of each argument."""
    required: tuple[str, ...] = ()
    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False
    open_world: bool = False
    """Whether it exchanges data with systems outside the hub."""
    sources: frozenset[str] = NOTHING
    sinks: frozenset[str] = NOTHING

    @property
    def fallback_names(self) -> tuple[str, ...]:
        """The names that other agent systems have for it."""
        return FALLBACK_NAMES[self.name]

    def build_definition(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "object", "properties": dict(self.properties)}
        if self.required:
            schema["required"] = list(self.required)
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": {**schema, "additionalProperties": False},
            "annotations": {
                "title": self.title,
                "readOnlyHint": self.read_only,
                "destructiveHint": self.destructive,
                "idempotentHint": self.idempotent or self.read_only,
                "openWorldHint": self.open_world,
            },
        }


class ToolUse(NamedTuple):
    """A call of a built-in tool, and the agent that uses it."""

    call: Call
    agent: AgentProfile

    @property
    def arguments(self) -> Mapping[str, Any]:
        return self.call.arguments

    def note_read(self, *names: str) -> None:
        """Reports stored data that the result has: its taint labels come with it."""
        keys = [build_stored_key(BUILTIN, name) for name in names]
        self.call.notes.read_keys = [*self.call.notes.read_keys, *keys]


Run = Callable[[ToolUse], Awaitable[Result]]
ListWritten = Callable[[ToolUse], Iterable[str]]


def list_nothing(use: ToolUse) -> Iterable[str]:
    """For a tool that stores nothing."""
    return ()


class BoundTool(NamedTuple):
    spec: ToolSpec
    run: Run
    """Raises a `HubError`; a result with `failed` is a failure that the model reads."""
    list_written: ListWritten = list_nothing
    """Lists the label keys of what a call stores. Never raises: the input may be invalid."""


class ToolFamily(Protocol):
    """The tools that share a module and their ports."""

    def bind_tools(self) -> Iterable[BoundTool]: ...


def build_text_result(text: str, structured: Any = ABSENT, *, failed: bool = False) -> Result:
    return Result(content=[{"type": "text", "text": text}], structured=structured, failed=failed)


def build_json_result(value: Mapping[str, Any]) -> Result:
    """An object as structured content, and as text for clients that know no other."""
    return build_text_result(encode(value).decode(), value)
