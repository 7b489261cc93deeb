"""The two services of the port, each with its types and its dialect: 1.0's, and 0.3's beside it.

0.3's messages are the JSON of its HTTP binding, but that a request names what it is about in one
word: `tasks/ID/pushNotificationConfigs/ID`. Knows no call and no face.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dragoman.a2a.protocol.dialects import v03, v10
from dragoman.a2a.protocol.dialects.card_shapes import render_card
from dragoman.a2a.protocol.dialects.operations import (
    CARD,
    PUSH_DELETE,
    PUSH_GET,
    PUSH_LIST,
    PUSH_SET,
    SEND,
    STREAM,
)
from dragoman.a2a.protocol.dialects.operations import V03 as VERSION_03
from dragoman.a2a.protocol.dialects.operations import V10 as VERSION_10
from dragoman.a2a.protocol.errors import A2aError, invalid
from dragoman.a2a.protocol.grpc.messages import TYPES_03, TYPES_10, MessageTypes
from dragoman.a2a.protocol.grpc.tables import METHODS_03, METHODS_10, SERVICE, V03, V10, GrpcMethod


@dataclass(frozen=True, slots=True)
class GrpcService:
    name: str
    version: str
    types: MessageTypes
    methods: Mapping[str, GrpcMethod]
    known_by: str
    """A method of the dialect, which says which it is where a client does not."""
    request: Callable[[str, dict[str, Any]], dict[str, Any]]
    """Of an operation: the message's plain form to the hub's own."""
    answer: Callable[[str, Any], Any]
    event: Callable[..., dict[str, Any]]
    words: Callable[[A2aError], str]


_ABOUT = re.compile(r"tasks?/([^/]+)(?:/pushNotificationConfigs(?:/([^/]+))?)?/?")
_OF_PUSH = (PUSH_SET, PUSH_GET, PUSH_LIST, PUSH_DELETE)


def _request_03(op: str, plain: dict[str, Any]) -> dict[str, Any]:
    if op in (SEND, STREAM):
        if "configuration" in plain:  # where what is false is not there
            plain["configuration"].setdefault("blocking", False)
        return v03.parse_rest_params(op, {}, {}, plain)
    if op == CARD:
        return {}
    field = "parent" if op in (PUSH_SET, PUSH_LIST) else "name"
    found = _ABOUT.fullmatch(plain.get(field, ""))
    if found is None:
        raise invalid(field, "is required, and begins with tasks/ID")
    task, config = found.groups()
    if op not in _OF_PUSH:
        return v03.parse_rest_params(op, {"id": task}, plain, None)
    path = {"taskId": task} if config is None else {"taskId": task, "id": config}
    return v03.parse_rest_params(op, path, {}, plain)


def _answer_03(op: str, value: Any) -> Any:
    if op != CARD:
        return v03.render_rest_result(op, value)
    card = render_card(value, VERSION_03)
    # These have in the proto the form that they have in 1.0.
    card["securitySchemes"] = value.get("securitySchemes", {})
    card["security"] = value.get("securityRequirements", [])
    card["skills"] = [
        {name: member for name, member in skill.items() if name != "security"}
        for skill in card["skills"]
    ]
    return card


def _words_03(error: A2aError) -> str:
    """Its SDKs know an error by its name, which is before the first colon."""
    return f"{v03.render_rest_error(error)[1]['error']}: {error.message}"


SERVICES = (
    GrpcService(
        name=f"{V10}.{SERVICE}",
        version=VERSION_10,
        types=TYPES_10,
        methods=METHODS_10,
        known_by=SEND,
        request=v10.parse_params,
        answer=v10.render_result,
        event=v10.render_event,
        words=lambda error: error.message,
    ),
    GrpcService(
        name=f"{V03}.{SERVICE}",
        version=VERSION_03,
        types=TYPES_03,
        methods=METHODS_03,
        known_by="message/send",
        request=_request_03,
        answer=_answer_03,
        event=v03.render_rest_event,
        words=_words_03,
    ),
)
