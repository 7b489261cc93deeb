"""0.3 with bare skill calls: the skill, one part and the correlation id, and none of the members
that 0.3 added. Only for the hub as client of agents registered with this wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dragoman.a2a.protocol.dialects import v03
from dragoman.a2a.protocol.dialects.operations import SEND, SKILL_ONLY_03, Op
from dragoman.a2a.protocol.dialects.traits import DialectTraits
from dragoman.a2a.protocol.dialects.v03_shapes import find_skill_call, render_part_03

VERSION: Final = SKILL_ONLY_03
TRAITS: Final = DialectTraits(
    shares_methods=True,
    numbers_skill_calls=True,
    negotiable=False,
    sends_version=False,
    versioned_paths=True,
    can_stream=False,
)
METHODS = v03.METHODS
parse_params = v03.parse_params
parse_result = v03.parse_result
parse_event = v03.parse_event
parse_error = v03.parse_error
parse_rest_error = v03.parse_rest_error
render_result = v03.render_result
render_event = v03.render_event
render_error = v03.render_error
render_push = v03.render_push
build_rest_request = v03.build_rest_request


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
