"""`memory_store` and `memory_recall`: what agents remember, for themselves and for one another.

`self.` begins the keys of the agent alone, `shared.` those of all agents of its org.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from dragoman.core.call import Result
from dragoman.core.errors import HubError, InvalidInput, NotFound
from dragoman.core.label_keys import build_stored_key
from dragoman.core.local_agents import AgentProfile, matches_any
from dragoman.core.ports import AgentMemory, MemoryEntry
from dragoman.core.taint import WRITE
from dragoman.core.tool_identity import BUILTIN
from dragoman.tools.tool_spec import (
    BoundTool,
    ToolSpec,
    ToolUse,
    build_json_result,
    build_text_result,
)

SELF, SHARED = "self.", "shared."
MAX_KEY = 200
MAX_SEARCHED = 200
"""Matches that are checked against the grants."""

MEMORY_STORE = ToolSpec(
    name="memory_store",
    title="Remember something",
    description="Stores a text under a key, so that you can recall it later. Keys begin with "
    '"self." (only you) or "shared." (all agents); without either, "self." is added. An earlier '
    "value of the key is replaced.",
    properties={
        "key": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_KEY,
            "description": 'Such as "self.plan" or "shared.release-date".',
        },
        "value": {"type": "string", "description": "What to remember."},
    },
    required=("key", "value"),
    destructive=True,
    idempotent=True,
    sinks=frozenset({WRITE}),
)
MEMORY_RECALL = ToolSpec(
    name="memory_recall",
    title="Recall something",
    description='Recalls what was stored under a "key", or searches everything that you may recall '
    'for the words of a "query". Without either, lists the keys.',
    properties={
        "key": {"type": "string", "minLength": 1, "maxLength": MAX_KEY},
        "query": {"type": "string", "minLength": 1, "maxLength": 1_000},
        "limit": {
            "type": "integer",
            "minimum": 1,
            "maximum": 50,
            "description": "How many matches of a query to return. Default: 5.",
        },
    },
    read_only=True,
)


@dataclass(frozen=True, slots=True)
class MemoryValueLimits:
    value_bytes: int = 100_000


class MemoryTools:
    def __init__(self, memory: AgentMemory, limits: MemoryValueLimits) -> None:
        self._memory = memory
        self._limits = limits

    def bind_tools(self) -> Iterable[BoundTool]:
        yield BoundTool(MEMORY_STORE, self._store, self._list_written)
        yield BoundTool(MEMORY_RECALL, self._recall)

    def _list_written(self, use: ToolUse) -> Iterable[str]:
        try:
            key = normalize_key(str(use.arguments.get("key", "")))
        except HubError:
            return []
        return [build_stored_key(BUILTIN, _build_name(find_owner(use.agent, key), key))]

    async def _store(self, use: ToolUse) -> Result:
        key, value = normalize_key(use.arguments["key"]), use.arguments["value"]
        if not matches_any(key, use.agent.memory_write):
            raise InvalidInput(_render_refusal("store", key, use.agent.memory_write))
        if len(value.encode("utf-8", "replace")) > self._limits.value_bytes:
            raise InvalidInput(f"the value is larger than {self._limits.value_bytes} bytes")
        value = value.encode("utf-8", "replace").decode()
        is_new = self._memory.store(find_owner(use.agent, key), key, value)
        return build_text_result(f'{"stored" if is_new else "replaced"} "{key}"')

    async def _recall(self, use: ToolUse) -> Result:
        key, query = use.arguments.get("key"), use.arguments.get("query")
        if key is not None and query is not None:
            raise InvalidInput('pass "key" or "query", not both')
        if key is not None:
            return self._find(use, normalize_key(key))
        if query is not None:
            return self._search(use, query, use.arguments.get("limit", 5))
        keys = [
            key
            for owner in _list_owners(use.agent)
            for key in self._memory.list_keys(owner, MAX_SEARCHED)
            if matches_any(key, use.agent.memory_read)
        ]
        use.note_read(*(_build_name(find_owner(use.agent, key), key) for key in keys))
        return build_json_result({"keys": keys})

    def _find(self, use: ToolUse, key: str) -> Result:
        if not matches_any(key, use.agent.memory_read):
            raise InvalidInput(_render_refusal("recall", key, use.agent.memory_read))
        found = self._memory.find(find_owner(use.agent, key), key)
        if found is None:
            raise NotFound(f'nothing is stored under "{key}"')
        use.note_read(_build_name(found.owner, found.key))
        return build_text_result(found.value)

    def _search(self, use: ToolUse, query: str, most: int) -> Result:
        matches = self._memory.search(_list_owners(use.agent), query, MAX_SEARCHED)
        found = [one for one in matches if matches_any(one.key, use.agent.memory_read)][:most]
        use.note_read(*(_build_name(one.owner, one.key) for one in found))
        return build_json_result({"matches": [_render_entry(one) for one in found]})


def normalize_key(key: str) -> str:
    """Adds the namespace of the agent to a key without one. Raises `InvalidInput`."""
    if not key.isprintable() or key != key.strip():
        raise InvalidInput("the key has characters that are not allowed")
    if not key.startswith((SELF, SHARED)):
        key = f"{SELF}{key}"
    if key in (SELF, SHARED):
        raise InvalidInput(f'the key has nothing after "{key}"')
    return key


def find_owner(agent: AgentProfile, key: str) -> str:
    return f"{agent.org}/{agent.name}" if key.startswith(SELF) else _build_shared(agent)


def _build_shared(agent: AgentProfile) -> str:
    return f"{agent.org}/*"  # no agent has that name


def _list_owners(agent: AgentProfile) -> list[str]:
    return [f"{agent.org}/{agent.name}", _build_shared(agent)]


def _build_name(owner: str, key: str) -> str:
    """The name of an entry for its taint labels."""
    return f"memory {owner} {key}"


def _render_entry(entry: MemoryEntry) -> dict[str, str]:
    at = datetime.fromtimestamp(entry.at, UTC).isoformat(timespec="seconds")
    return {"key": entry.key, "value": entry.value, "storedAt": at}


def _render_refusal(verb: str, key: str, patterns: Iterable[str]) -> str:
    granted = ", ".join(patterns) or "none"
    return f'you were not granted to {verb} "{key}"; granted keys: {granted}'
