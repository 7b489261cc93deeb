"""Asks clients the questions of servers, in the form of the client's revision.

A client of 2026-07-28 gets the questions as the result (`InputRequiredResult`) and repeats the call
with its answers. A client with a session gets requests while its own request waits. The client's
capabilities and revision decide which questions it can be asked.

A client may answer with an error. A server that waits for the answer gets that error. A server of
2026-07-28 cannot receive one: a form or URL then counts as cancelled, and a call that needs the
client's model or folders fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from secrets import token_hex
from typing import Any

from dragoman.core.background import resolve
from dragoman.core.call import FORM, NOTHING, ROOTS, SAMPLING, URL, AnswerError, Question
from dragoman.core.errors import NeedsInput, Overloaded, TimedOut
from dragoman.mcp.protocol.notifications import COMPLETED
from dragoman.mcp.protocol.revisions import LATEST, SERVER_KEY, Revision, build_server_info
from dragoman.mcp.server.client_state import ClientState, Push
from dragoman.wire import rpc
from dragoman.wire.json import encode

MAX_ASKED = 64
"""Questions that one client may have open."""
MAX_FEATURES = 16 * 1024
"""Bytes of a client's capabilities; a client that declares more cannot be asked anything."""
ROUNDS = 20
"""How often one call may ask questions."""
AGAIN_SECONDS = 0.1
MAX_REASON = 2_000
"""Characters of a client's error message that are passed on."""

METHOD = {
    FORM: "elicitation/create",
    URL: "elicitation/create",
    SAMPLING: "sampling/createMessage",
    ROOTS: "roots/list",
}
_ACTIONS = ("accept", "decline", "cancel")

# --- capabilities --------------------------------------------------------------------------------


def parse_capabilities(capabilities: Any, revision: Revision) -> Mapping[str, Any]:
    """Returns the capabilities of a client, as far as its revision has them."""
    if not isinstance(capabilities, dict) or len(encode(capabilities)) > MAX_FEATURES:
        return NOTHING
    features = dict(capabilities)
    if not revision.has_sampling_tools and isinstance(features.get("sampling"), dict):
        features["sampling"] = {}  # no tools, no context
    if not revision.has_elicitation_modes and isinstance(features.get("elicitation"), dict):
        features["elicitation"] = {}  # forms only
    if not revision.has_elicitation:
        features.pop("elicitation", None)
    return features


def check_features(questions: Mapping[str, Question], features: Mapping[str, Any]) -> None:
    """Raises `NeedsInput` for a client whose model would need tools that it does not support."""
    sampling = features.get("sampling")
    if isinstance(sampling, dict) and isinstance(sampling.get("tools"), dict):
        return
    for question in questions.values():
        if question.kind == SAMPLING and not question.body.keys().isdisjoint(_WITH_TOOLS):
            problem = "the server needs sampling with tools, which this client does not support"
            raise NeedsInput(problem, {"sampling": {"tools": {}}})


_WITH_TOOLS = frozenset({"tools", "toolChoice"})

# --- questions as a result -----------------------------------------------------------------------


def render_questions(
    questions: Mapping[str, Question],
    handle: str | None,
    revision: Revision,
    features: Mapping[str, Any],
) -> dict[str, Any]:
    result: dict[str, Any] = {"resultType": "input_required", "_meta": _OWN_META}
    if questions:
        result["inputRequests"] = {
            key: {
                "method": METHOD[question.kind],
                "params": _build_body(question, revision, features),
            }
            for key, question in questions.items()
        }
    if handle is not None:
        result["requestState"] = handle
    return result


_OWN_META = {SERVER_KEY: build_server_info(LATEST)}


def parse_answers(params: Mapping[str, Any]) -> tuple[dict[str, Any], str | None] | str:
    """Returns the answers and the handle in a repeated request, or what is wrong with them."""
    answers, handle = params.get("inputResponses", {}), params.get("requestState", "")
    if not isinstance(answers, dict) or not all(isinstance(one, dict) for one in answers.values()):
        return '"inputResponses" must be an object of objects'
    if not isinstance(handle, str):
        return '"requestState" must be the text of the previous result'
    return answers, handle if "requestState" in params else None


# --- questions as requests -----------------------------------------------------------------------


class ClientRequest:
    """A question as the request that a client received."""

    __slots__ = ("_client", "_push", "answer", "completed", "id", "params", "question")

    def __init__(
        self, question: Question, client: ClientState, revision: Revision, push: Push
    ) -> None:
        self.question = question
        self.id = token_hex(8)
        self.params = _build_body(question, revision, client.features)
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.completed = False
        """Whether the client was notified that the elicitation is complete."""
        self._client = client
        self._push = push
        client.pending[rpc.build_key(self.id)] = self.answer

    def send(self) -> None:
        question = self.question
        if not self._push(rpc.encode_request(self.id, METHOD[question.kind], self.params)):
            raise NeedsInput(f"the client could not be asked: {question.text}")
        if question.withdrawn is not None:
            question.withdrawn.add_done_callback(self._withdraw)
        if question.completed is not None and "elicitationId" in self.params:
            question.completed.add_done_callback(self._complete)

    def _complete(self, completed: asyncio.Future[Any]) -> None:
        if not completed.cancelled():
            self.complete(completed.result() or NOTHING)

    def complete(self, meta: Mapping[str, Any] = NOTHING) -> None:
        """Notifies the client once that the elicitation is complete."""
        if not self.completed:
            self.completed = True
            self._push(encode_elicitation_complete(self.params["elicitationId"], meta))

    def _withdraw(self, withdrawn: asyncio.Future[None]) -> None:
        self.cancel()
        resolve(self.answer, _WITHDRAWN)

    def cancel(self) -> None:
        """Cancels the request at the client, unless it has answered."""
        if self._client.pending.pop(rpc.build_key(self.id), None) is not None:
            params = {"requestId": self.id, "reason": "the answer is no longer needed"}
            self._push(rpc.encode_notification("notifications/cancelled", params))

    def is_visited(self, answer: dict[str, Any] | AnswerError) -> bool:
        """Whether the user visited the URL of an elicitation whose completion is announced."""
        if isinstance(answer, AnswerError) or "elicitationId" not in self.params:
            return False
        return bool(answer["action"] == "accept")


_WITHDRAWN: Mapping[str, Any] = {}


def encode_elicitation_complete(id: str, meta: Mapping[str, Any] = NOTHING) -> bytes:
    """Encodes the notification that a url elicitation is complete (2025-11-25)."""
    params: dict[str, Any] = {"elicitationId": id}
    return rpc.encode_notification(COMPLETED, {**params, "_meta": meta} if meta else params)


async def ask(
    questions: Mapping[str, Question],
    client: ClientState,
    revision: Revision,
    push: Push,
    seconds: float,
) -> tuple[dict[str, Any], list[ClientRequest]]:
    """Waits for all answers; returns them and the elicitations whose URL was visited.
    A question that is withdrawn meanwhile is cancelled at the client and has no answer."""
    if not questions:  # the server asks to be called again, later
        await asyncio.sleep(AGAIN_SECONDS)
        return {}, []
    if len(client.pending) + len(questions) > MAX_ASKED:
        raise Overloaded(f"this client has {MAX_ASKED} questions to answer first; ask again later")
    waiting: dict[str, ClientRequest] = {}
    try:
        for key, question in questions.items():
            waiting[key] = ClientRequest(question, client, revision, push)
            waiting[key].send()
        answers: dict[str, Any] = {}
        visited = []
        async with asyncio.timeout(seconds):
            for key, request in waiting.items():
                message = await request.answer
                if message is _WITHDRAWN:
                    continue
                answers[key] = answer = _parse_answer(request.question, message)
                if request.is_visited(answer):
                    visited.append(request)
        return answers, visited
    except TimeoutError:
        asked = "; ".join(question.text for question in questions.values())[:1000]
        raise TimedOut(f"the client gave no answer in {seconds:g} s when asked: {asked}") from None
    finally:
        for request in waiting.values():
            request.cancel()


def deliver_response(message: Mapping[str, Any], client: ClientState) -> None:
    """Delivers the client's response to a pushed request."""
    resolve(client.pending.pop(rpc.build_key(message.get("id")), None), message)


def drop_pending(client: ClientState) -> None:
    """Ends all pending questions of a client that has disconnected."""
    for future in client.pending.values():
        resolve(future, None)
    client.pending.clear()


def _parse_answer(
    question: Question, message: Mapping[str, Any] | None
) -> dict[str, Any] | AnswerError:
    result = message.get("result") if message is not None else None
    if question.withdrawn is not None and message is not None and not isinstance(result, dict):
        return _error_from_refusal(message.get("error"))
    if question.kind in (FORM, URL):
        is_valid = isinstance(result, dict) and result.get("action") in _ACTIONS
        return result if is_valid and isinstance(result, dict) else {"action": "cancel"}
    if isinstance(result, dict):
        return result
    error = message.get("error") if message is not None else None
    why = error.get("message") if isinstance(error, dict) else "" if message else "it disconnected"
    raise NeedsInput(f"the client gave no answer when asked for {question.text}: {str(why)[:500]}")


def _error_from_refusal(error: Any) -> AnswerError:
    """Returns the client's error for the server; an invalid answer is an error, too."""
    if not isinstance(error, dict):
        return AnswerError(rpc.INTERNAL_ERROR, "invalid answer of the client")
    code, message = error.get("code"), error.get("message")
    return AnswerError(
        code if type(code) is int else rpc.INTERNAL_ERROR,
        message[:MAX_REASON] if isinstance(message, str) else "the client refused",
        error.get("data"),
    )


# --- questions per revision ----------------------------------------------------------------------


def _build_body(
    question: Question, revision: Revision, features: Mapping[str, Any]
) -> dict[str, Any]:
    body = dict(question.body)
    if question.kind == SAMPLING:
        return _build_sampling(body, revision, features)
    if question.kind == URL:
        body["mode"] = "url"
        if revision.has_elicitation_ids:
            body.setdefault("elicitationId", token_hex(16))
        else:  # no other revision has them
            body.pop("elicitationId", None)
    elif question.kind == FORM and not revision.has_elicitation_modes:
        body.pop("mode", None)
        if "requestedSchema" in body:
            body["requestedSchema"] = _downgrade_form(body["requestedSchema"])
    return body


def _downgrade_form(schema: Any) -> Any:
    """2025-06-18 has `enum` and `enumNames` for choices with titles."""
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        return schema
    properties = {name: _downgrade_choice(one) for name, one in schema["properties"].items()}
    kept = {key: value for key, value in schema.items() if key != "$schema"}
    return {**kept, "properties": properties}


def _downgrade_choice(schema: Any) -> Any:
    choices = schema.get("oneOf") if isinstance(schema, dict) else None
    if not isinstance(choices, list) or not all(isinstance(one, dict) for one in choices):
        return schema
    older = {key: value for key, value in schema.items() if key != "oneOf"}
    older["enum"] = [one.get("const") for one in choices]
    older["enumNames"] = [str(one.get("title", one.get("const"))) for one in choices]
    return older


def _build_sampling(
    body: dict[str, Any], revision: Revision, features: Mapping[str, Any]
) -> dict[str, Any]:
    if revision.has_sampling_tools:
        sampling = features.get("sampling")
        if not (isinstance(sampling, dict) and "context" in sampling):
            body.pop("includeContext", None)  # 2025-11-25: only if declared
        return body
    messages = body.get("messages")
    if isinstance(messages, list):
        body["messages"] = [
            one for message in messages for one in _split_message(message, revision)
        ]
    return body


def _split_message(message: Any, revision: Revision) -> list[Any]:
    """Before 2025-11-25 a message has one block of content."""
    if not isinstance(message, dict):
        return [message]
    content = message.get("content")
    blocks = content if isinstance(content, list) else [content]
    rest = {key: value for key, value in message.items() if key != "_meta"}
    return [{**rest, "content": _downgrade_block(block, revision)} for block in blocks]


def _downgrade_block(block: Any, revision: Revision) -> Any:
    kind = str(block.get("type")) if isinstance(block, dict) else ""
    known = {"text", "image", "audio"} if revision.has_audio else {"text", "image"}
    if kind in known or not isinstance(block, dict):
        return block
    if kind == "audio":
        return {"type": "text", "text": f"[audio: {block.get('mimeType', 'unknown')}]"}
    return {"type": "text", "text": encode(block).decode()}
