"""Converts requests of servers to clients to the hub's questions, and answers back. Pure.

A server of 2026-07-28 returns questions as a result (multi round-trip requests). An older one sends
a request or, for a URL to visit, an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.core.call import FORM, ROOTS, SAMPLING, URL, Question
from dragoman.core.errors import BadReply
from dragoman.core.question_handles import MAX_QUESTIONS, can_answer
from dragoman.mcp.protocol.revisions import CARRIED, R2506, R2511, TASKS, Revision
from dragoman.mcp.protocol.translate import select_server_meta

URL_REQUIRED = -32042
"""2025-11-25, elicitation: the error that names URLs to be visited first."""
ASKING = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})
_HOP = frozenset({"_meta", "task", "elicitationId"})
"""Members of one hop, or that the latest revision does not have; `_meta` has members of both."""

NO_STATE, STATE, PARKED, AGAIN = "none:", "state:", "parked:", "again:"
"""How the handle of questions begins: it says what the continuing call does."""


def question_from_request(method: Any, params: Any) -> Question | None:
    """Returns the question in a server's request, as the latest revision has it; None if it is not
    one."""
    params = params if isinstance(params, dict) else {}
    meta = select_server_meta(params)
    carried = {"_meta": meta} if meta else {}
    if method == "roots/list":
        return Question(ROOTS, carried)
    body = {key: value for key, value in params.items() if key not in _HOP} | carried
    if method == "sampling/createMessage":
        return Question(SAMPLING, body)
    if method != "elicitation/create":
        return None
    if params.get("mode") == "url":
        return Question(URL, body)
    return Question(FORM, body)


def questions_from_result(value: Mapping[str, Any], server: str) -> tuple[dict[str, Question], str]:
    """Returns the questions of an `InputRequiredResult`, and the handle that goes with them."""
    requests, state = value.get("inputRequests"), value.get("requestState")
    if not isinstance(requests, dict | None) or not isinstance(state, str | None):
        raise BadReply(f'server "{server}" sent an invalid input_required result')
    if requests is None and state is None:
        raise BadReply(f'server "{server}" sent an input_required result without requests or state')
    questions = {key: parse_input_request(one, server) for key, one in (requests or {}).items()}
    return questions, NO_STATE if state is None else STATE + state


def parse_input_request(request: Any, server: str) -> Question:
    """Returns the question in one of the `inputRequests` of a result or a task."""
    asked = request if isinstance(request, dict) else {}
    question = question_from_request(asked.get("method"), asked.get("params"))
    if question is None:
        method = str(asked.get("method"))[:100]
        raise BadReply(f'server "{server}" asks for "{method}", which is unknown')
    return question


def questions_from_url_error(native: Mapping[str, Any] | None) -> dict[str, Question]:
    """Returns the URLs that an error -32042 of a 2025-11-25 server wants visited first."""
    if native is None or native.get("code") != URL_REQUIRED:
        return {}
    data = native.get("data")
    wanted = data.get("elicitations") if isinstance(data, dict) else None
    questions = {}
    for number, params in enumerate(wanted[:MAX_QUESTIONS] if isinstance(wanted, list) else []):
        if isinstance(params, dict) and isinstance(params.get("url"), str):
            question = question_from_request("elicitation/create", {**params, "mode": "url"})
            if question is not None:
                questions[f"url-{number + 1}"] = question
    return questions


def is_answerable(question: Question, features: Mapping[str, Any]) -> bool:
    """Whether a client with these capabilities can be asked that."""
    if not can_answer(question.kind, features):
        return False
    wants_tools = "tools" in question.body or "toolChoice" in question.body
    return question.kind != SAMPLING or not wants_tools or "tools" in features["sampling"]


TASKS_ONLY: Mapping[str, Any] = {"extensions": {TASKS: {}}}
"""Capabilities forwarded for a client with a session that cannot be asked anything."""


def add_task_support(features: Mapping[str, Any]) -> Mapping[str, Any]:
    """Adds the tasks extension: the hub waits for tasks of servers in the client's place."""
    if not features:
        return TASKS_ONLY
    extensions = features.get("extensions")
    known = extensions if isinstance(extensions, dict) else {}
    return {**features, "extensions": {**known, TASKS: {}}}


def select_declared(features: Mapping[str, Any], revision: Revision) -> dict[str, Any]:
    """Returns the capabilities that a client's own upstream session declares: those to be asked
    that `revision` has, and extensions that a server may look for. Empty for a client that a server
    cannot tell from others."""
    declared: dict[str, Any] = {}
    if can_answer(SAMPLING, features):
        known = ("tools", "context") if revision >= R2511 else ()
        declared["sampling"] = {
            name: {} for name in known if isinstance(features["sampling"].get(name), dict)
        }
    if can_answer(ROOTS, features):
        told = features["roots"].get("listChanged") is True
        declared["roots"] = {"listChanged": True} if told else {}
    forms, urls = can_answer(FORM, features), can_answer(URL, features)
    if revision >= R2511 and (forms or urls):
        declared["elicitation"] = {
            name: {} for name, can in (("form", forms), ("url", urls)) if can
        }
    elif revision == R2506 and forms:
        declared["elicitation"] = {}
    if extensions := select_carried(features):
        declared["extensions"] = extensions
    experimental = features.get("experimental")
    if declared and experimental and isinstance(experimental, dict):
        declared["experimental"] = experimental
    return declared


def select_carried(features: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the extensions of the client that any server may know of, whether or not it declares
    them itself: servers of MCP Apps look for the client's alone."""
    extensions = features.get("extensions")
    if not isinstance(extensions, dict):
        return {}
    return {name: extensions[name] for name in CARRIED & extensions.keys()}


def build_answer(question: Question, answer: Any, revision: Revision) -> dict[str, Any] | None:
    """Returns the result for a server of `revision`; None for an invalid answer."""
    if not isinstance(answer, dict):
        return None
    content = answer.get("content")
    if question.kind == SAMPLING and revision < R2511 and isinstance(content, list):
        block = content[0] if content else {"type": "text", "text": ""}
        return {**answer, "content": block}  # a message had one block
    return answer
