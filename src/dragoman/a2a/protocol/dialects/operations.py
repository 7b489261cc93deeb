"""The operations of A2A, named as 1.0 names its methods, and the HTTP routes of a dialect."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

V01: Final = "0.1"
V03: Final = "0.3"
V10: Final = "1.0"
SKILL_ONLY_03: Final = "0.3 (skill-only)"
"""0.3 with bare skill calls."""

SKILL: Final = "urn:dragoman:a2a:skill:v1"
"""The extension by which a message names its skill: `{"skillId": …}`, and for a skill call also
`correlationId`."""

Op = str
SEND: Final = "SendMessage"
STREAM: Final = "SendStreamingMessage"
GET: Final = "GetTask"
LIST: Final = "ListTasks"
CANCEL: Final = "CancelTask"
SUBSCRIBE: Final = "SubscribeToTask"
PUSH_SET: Final = "CreateTaskPushNotificationConfig"
PUSH_GET: Final = "GetTaskPushNotificationConfig"
PUSH_LIST: Final = "ListTaskPushNotificationConfigs"
PUSH_DELETE: Final = "DeleteTaskPushNotificationConfig"
CARD: Final = "GetExtendedAgentCard"

OPS: Final = (
    SEND,
    STREAM,
    GET,
    LIST,
    CANCEL,
    SUBSCRIBE,
    PUSH_SET,
    PUSH_GET,
    PUSH_LIST,
    PUSH_DELETE,
    CARD,
)
STREAMING: Final = frozenset((STREAM, SUBSCRIBE))

TASK_ID: Final = "_taskId"
"""The member of a request, or of its answer, with the task id that a 0.1 client chose."""

RESPONSE: Final = "response"
"""The default name of the artifact with an agent's reply."""


@dataclass(frozen=True, slots=True)
class RestRoute:
    """`pattern` is the path below the interface's URL; a name in braces stands for one segment, or
    for the part of it before a colon."""

    http: str
    pattern: str
    op: Op


class RestRoutes:
    """The routes of one dialect: finds the operation of a request, and the values in its path."""

    def __init__(self, table: Sequence[tuple[str, str, Op]]) -> None:
        routes = [RestRoute(*row) for row in table]
        self.by_op = {route.op: route for route in reversed(routes)}
        """The first route of each operation, which the hub uses as a client."""
        self._plain: dict[str, dict[str, Op]] = {}
        self._patterns: dict[str, tuple[re.Pattern[str], dict[str, Op]]] = {}
        for route in routes:
            if "{" in route.pattern:
                held = self._patterns.setdefault(
                    route.pattern, (_compile_pattern(route.pattern), {})
                )
                held[1][route.http] = route.op
            else:
                self._plain.setdefault(route.pattern, {})[route.http] = route.op

    def find(self, http: str, path: str) -> tuple[Op, dict[str, str]] | None:
        """Returns the operation and the values in `path`, which is still percent-encoded."""
        found = self._match(path)
        if found is None or http not in found[0]:
            return None
        return found[0][http], found[1]

    def list_methods(self, path: str) -> tuple[str, ...]:
        """Lists the HTTP methods that `path` has, for the Allow header."""
        found = self._match(path)
        return tuple(sorted(found[0])) if found is not None else ()

    def _match(self, path: str) -> tuple[Mapping[str, Op], dict[str, str]] | None:
        plain = self._plain.get(path)
        if plain is not None:
            return plain, {}
        for pattern, ops in self._patterns.values():
            if match := pattern.fullmatch(path):
                return ops, {name: unquote(value) for name, value in match.groupdict().items()}
        return None


def _compile_pattern(pattern: str) -> re.Pattern[str]:
    # The verb comes after the last colon: an id may contain colons.
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+?)", re.escape(pattern)))
