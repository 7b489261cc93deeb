"""0.3 with bare skill calls: the skill, one part and the correlation id, and none of the members
that 0.3 added. Only for the hub as client of agents registered with this wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dragoman.a2a.protocol.dialects import v03
from dragoman.a2a.protocol.dialects.operations import SEND, SKILL_ONLY_03, Op
from dragoman.a2a.protocol.dialects.traits import DialectTraits
from dragoman.a2a.protocol.dialects.v03 import (
    METHODS,
    build_rest_request,
    parse_error,
    parse_event,
    parse_params,
    parse_rest_error,
    parse_result,
    render_error,
    render_event,
    render_push,
    render_result,
)
from dragoman.a2a.protocol.dialects.v03_shapes import find_skill_call, render_part_03

__all__ = [
    "METHODS",
    "TRAITS",
    "VERSION",
    "build_request",
    "build_rest_request",
    "parse_error",
    "parse_event",
    "parse_params",
    "parse_rest_error",
    "parse_result",
    "render_error",
    "render_event",
    "render_push",
    "render_result",
]

VERSION: Final = SKILL_ONLY_03
TRAITS: Final = DialectTraits(
    shares_methods=True,
    numbers_skill_calls=True,
    negotiable=False,
    sends_version=False,
    versioned_paths=True,
    can_stream=False,
)


def build_request(op: Op, request: Mapping[str, Any]) -> tuple[str, Any]:
    called = find_skill_call(request["message"]) if op == SEND else None
    if called is None:
        return v03.build_request(op, request)
    skill, session = called
    given = request["message"]
    message: dict[str, Any] = {
        "skill": {"skillId": skill},
        "parts": [render_part_03(part) for part in given["parts"]],
    }
    if given.get("taskId"):  # answers a question of the task
        message["taskId"] = given["taskId"]
        if given.get("contextId"):
            message["contextId"] = given["contextId"]
    return "message/send", {"message": message, "correlationId": session, "taskId": session}
