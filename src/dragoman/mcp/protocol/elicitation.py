"""What servers ask of clients, as the hub's questions, and the answers as servers take them. Pure.

A server of the new era returns what it asks (multi round-trip requests); one of the old era sends a
request, or, for an address to visit, an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.core.call import FORM, ROOTS, SAMPLING, URL, Question
from dragoman.core.errors import BadReply
from dragoman.core.question_handles import MAX_QUESTIONS, can_answer
from dragoman.mcp.protocol.revisions import R2506, R2511, TASKS

URL_REQUIRED = -32042
"""2025-11-25, elicitation: the error that names addresses to be visited first."""
ASKING = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})
_HOP = frozenset({"_meta", "task", "elicitationId"})
"""Members that belong to one hop, or that the newest revision has no more."""

NO_STATE, STATE, PARKED, AGAIN = "none:", "state:", "parked:", "again:"
"""How the handle begins that is given out with questions: what the continuing call then does."""


def question_from_request(method: Any, params: Any) -> Question | None:
    """A server's request in the words of the newest revision; None for what is no question."""
    params = params if isinstance(params, dict) else {}
    if method == "roots/list":
        return Question(ROOTS, {})
    body = {key: value for key, value in params.items() if key not in _HOP}
    if method == "sampling/createMessage":
        return Question(SAMPLING, body)
    if method != "elicitation/create":
        return None
    if params.get("mode") == "url":
        return Question(URL, body)
    return Question(FORM, body)


def questions_from_result(value: Mapping[str, Any], server: str) -> tuple[dict[str, Question], str]:
    """What an `InputRequiredResult` asks, and the handle to give out with it."""
    requests, state = value.get("inputRequests"), value.get("requestState")
    if not isinstance(requests, dict | None) or not isinstance(state, str | None):
        raise BadReply(f'server "{server}" asks for something in a way that cannot be understood')
    if requests is None and state is None:
        raise BadReply(f'server "{server}" asks for something but does not say what')
    questions = {}
    for key, request in (requests or {}).items():
        asked = request if isinstance(request, dict) else {}
        question = question_from_request(asked.get("method"), asked.get("params"))
        if question is None:
            raise BadReply(f'server "{server}" asks for "{str(asked.get("method"))[:100]}"')
        questions[key] = question
    return questions, NO_STATE if state is None else STATE + state


def questions_from_url_error(native: Mapping[str, Any] | None) -> dict[str, Question]:
    """The addresses that an error of a 2025-11-25 server wants visited first, if it is that one."""
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
    """Whether who has these features can be asked that."""
    if not can_answer(question.kind, features):
        return False
    wants_tools = "tools" in question.body or "toolChoice" in question.body
    return question.kind != SAMPLING or not wants_tools or "tools" in features["sampling"]


TASKS_ONLY: Mapping[str, Any] = {"extensions": {TASKS: {}}}
"""What is passed on of a client that shakes hands and can be asked nothing."""


def add_task_support(features: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same, of one that can: the hub waits in its place for what servers make tasks of."""
    if not features:
        return TASKS_ONLY
    extensions = features.get("extensions")
    known = extensions if isinstance(extensions, dict) else {}
    return {**features, "extensions": {**known, TASKS: {}}}


def select_askable(features: Mapping[str, Any], revision: int) -> dict[str, Any]:
    """What a session of a client's own declares: the features to be asked by that a server of
    `revision` knows, in its words. Empty where the client can be asked nothing there."""
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
    return declared


def build_answer(question: Question, answer: Any, revision: int) -> dict[str, Any] | None:
    """The result that a server of `revision` is sent; None for an answer that is none."""
    if not isinstance(answer, dict):
        return None
    content = answer.get("content")
    if question.kind == SAMPLING and revision < R2511 and isinstance(content, list):
        block = content[0] if content else {"type": "text", "text": ""}
        return {**answer, "content": block}  # a message had one block then
    return answer
