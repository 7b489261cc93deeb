"""What agents of every runtime are sent and what they answer: requests, questions, results.

`dragoman.agent` has the public names. Knows no protocol: input and output are content blocks.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from dragoman.core.agent_tool import blocks_from_arguments, find_media_type, is_accepted
from dragoman.core.call import (
    ABSENT,
    FORM,
    URL,
    Artifact,
    Call,
    MessageOrigin,
    Progress,
    Question,
    Result,
    Updates,
)
from dragoman.core.errors import HubError, InvalidInput, WorkFailed
from dragoman.wire.json import decode_reply, encode

RESPONSE = "response"
"""The id of the artifact with an agent's answer."""
_EMPTY_MESSAGE = [{"type": "text", "text": ""}]
_NO_MESSAGE = MessageOrigin()
"""The origin of a call that was not made by a message."""

Blocks = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Ask:
    """Return it to ask a question. The answer is the next request of the same task."""

    question: str
    schema: Mapping[str, Any] | None = None
    """A JSON Schema of the answer, for clients with forms; default: one line of text."""


@dataclass(frozen=True, slots=True)
class NeedsAuth:
    """Return it if the user must log in somewhere first."""

    words: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """Return it for an answer that is more than text or data."""

    content: str | Mapping[str, Any] | Blocks = ()
    direct: bool = False
    """Whether it is a plain message and not the outcome of a task."""
    failed: bool = False


class Decline(Exception):
    """Raise it to refuse a request, with the reason."""


@dataclass(slots=True)
class Request:
    """A request to an agent."""

    text: str
    parts: Blocks
    """Its parts as content blocks: text, image, audio, resource, resource_link, data."""
    metadata: Mapping[str, Any]
    task: str
    """The id of its task; empty without one."""
    message_id: str
    skill: str
    """The requested skill; empty if none was named."""
    turn: int
    """The number of the message in its task, from 1."""
    caller: str
    _context: str
    _updates: Updates
    _loop: asyncio.AbstractEventLoop
    _keeps_context: bool = field(default=False, repr=False)
    """Whether the function has read `context`."""
    _said: int = field(default=0, repr=False)
    _refused: HubError | None = field(default=None, repr=False)
    """Why further updates are refused."""
    accepts: Sequence[str] = ()
    """The media types that the client prefers; empty if it named none."""
    extensions: Sequence[str] = ()
    """The URIs of the extensions that the client has activated."""
    references: Sequence[str] = ()
    """Other tasks of the client that the message refers to."""

    @property
    def context(self) -> str:
        """The id of its conversation."""
        self._keeps_context = True
        return self._context

    @property
    def data(self) -> Any:
        """The first data part of the message; None without any."""
        return next((part.get("data") for part in self.parts if part.get("type") == "data"), None)

    def say(self, words: str) -> None:
        """Sends a progress message."""
        self._said += 1
        self._send(Progress(progress=self._said, message=_replace_surrogates(str(words))))

    def artifact(
        self,
        content: str | Mapping[str, Any] | Blocks,
        *,
        name: str = "",
        id: str | None = None,
        append: bool = False,
        last: bool = True,
        description: str = "",
    ) -> str:
        """Sends an artifact, or a further piece of one under the same id. Returns the id."""
        id = id or str(uuid4())
        try:
            blocks = blocks_from_content(content)
        except InvalidInput as error:  # an error of the agent, not of its caller
            raise TypeError(f"invalid artifact: {error}") from None
        self._send(
            Artifact(
                id=id, name=name, content=blocks, append=append, last=last, description=description
            )
        )
        return id

    def _send(self, update: Progress | Artifact) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            # In the function's thread, where the next update raises a refusal.
            if self._refused is not None:
                raise self._refused from None
            self._loop.call_soon_threadsafe(self._deliver, update)
        else:
            self._updates(update)

    def _deliver(self, update: Progress | Artifact) -> None:
        try:
            if self._refused is None:
                self._updates(update)
        except HubError as error:
            self._refused = error


# --- input --------------------------------------------------------------------------------------


def read_text(call: Call) -> str:
    if call.answers is not None:  # to a question that another protocol carried
        return _read_answer(call.answers)
    return str(call.arguments.get("message", ""))


def find_turn(call: Call) -> int:
    """1 for the message, and one more for each answer; the handle of a question may begin with the
    turn that asked it."""
    if call.message is not None:
        return call.message.turn
    if call.answers is None:
        return 1
    asked = (call.handle or "").partition(" ")[0]
    return int(asked) + 1 if asked.isdigit() else 2


def build_request(call: Call, text: str, parts: Blocks, context: str) -> Request:
    message = call.message or _NO_MESSAGE
    return Request(
        text=text,
        parts=parts,
        metadata=message.metadata,
        task=message.task,
        message_id=message.id,
        skill=message.skill,
        turn=find_turn(call),
        caller=call.principal.label,
        _context=context,
        accepts=message.configuration.get("acceptedOutputModes", ()),
        extensions=message.extensions,
        references=[here for here, _ in message.references],
        _updates=call.updates,
        _loop=asyncio.get_running_loop(),
    )


def build_blocks(call: Call, agent: str, modes: Sequence[str]) -> list[Any]:
    """Builds the parts of the message; `modes` are the media types that the agent accepts."""
    if call.answers is not None:
        text = read_text(call)
        return [{"type": "text", "text": text}] if text else []
    blocks = blocks_from_arguments(call.arguments)
    if call.message is None:  # the A2A server has checked those of a message
        _check_media(blocks, agent, modes)
    return blocks if blocks != _EMPTY_MESSAGE else []


def _check_media(blocks: list[Any], agent: str, modes: Sequence[str]) -> None:
    for block in blocks:
        media = find_media_type(block) if isinstance(block, dict) else ""
        if media != "text/plain" and not is_accepted(modes, media):
            raise InvalidInput(
                f'agent "{agent}" does not accept "{media}"; it accepts {", ".join(modes)}'
            )


def _read_answer(answers: Mapping[str, Any]) -> str:
    answer = answers.get("reply", answers.get("auth"))
    if not isinstance(answer, dict) or answer.get("action", "accept") != "accept":
        raise Decline("its question was not answered")
    content = answer.get("content")
    if isinstance(content, dict) and set(content) == {"reply"}:
        return str(content["reply"])
    return json.dumps(content) if content else ""


# --- output -------------------------------------------------------------------------------------


def result_from_value(value: Any, agent: str) -> Result:
    """Converts the return value of a function into a result."""
    if isinstance(value, str):  # the most common case
        text = _replace_surrogates(value)
        size = len(text) if text.isascii() else -1
        return Result(content=[{"type": "text", "text": text}], size=size)
    if isinstance(value, Ask):
        schema = value.schema or {
            "type": "object",
            "properties": {"reply": {"type": "string", "title": value.question[:200]}},
            "required": ["reply"],
        }
        body = {"message": value.question, "requestedSchema": schema}
        return Result(questions={"reply": Question(FORM, body)}, handle="")
    if isinstance(value, NeedsAuth):
        return Result(questions={"auth": _build_login(value)}, handle="")
    direct = failed = False
    if isinstance(value, Reply):
        value, direct, failed = value.content, value.direct, value.failed
    if value is None:
        value = ()
    try:
        blocks = blocks_from_content(value)
    except InvalidInput as error:
        raise WorkFailed(f'agent "{agent}" returned an invalid answer: {error}') from None
    data = [block["data"] for block in blocks if block["type"] == "data"]
    artifacts = [Artifact(id=RESPONSE, name=RESPONSE, content=blocks)] if data else []
    return Result(
        content=[_render_block(block) for block in blocks],
        structured=data[0] if len(data) == 1 and isinstance(data[0], dict) else ABSENT,
        artifacts=artifacts,
        direct=direct,
        failed=failed,
    )


def _build_login(wanted: NeedsAuth) -> Question:
    if wanted.url:
        body = {"message": wanted.words, "url": wanted.url, "elicitationId": str(uuid4())}
        return Question(URL, body)
    schema = {"type": "object", "properties": {}}
    return Question(FORM, {"message": wanted.words, "requestedSchema": schema})


_MEMBERS = {"text": "text", "image": "data", "audio": "data", "data": "data",
            "resource": "resource", "resource_link": "uri"}  # fmt: skip
"""The member that a block of each type must have."""


def blocks_from_content(content: Any) -> list[Mapping[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": _replace_surrogates(content)}]
    content = _convert_to_json(content)
    if isinstance(content, Mapping):
        if _MEMBERS.get(str(content.get("type"))) in content:
            return [content]
        return [{"type": "data", "data": content}]
    if not isinstance(content, Sequence):
        raise InvalidInput(f"a {type(content).__name__}; return text, a dict or a list of blocks")
    blocks = []
    for block in content:
        if isinstance(block, str):
            block = {"type": "text", "text": block}
        if not isinstance(block, Mapping) or _MEMBERS.get(str(block.get("type"))) not in block:
            raise InvalidInput(f"a list with an invalid block: {str(block)[:60]!r}")
        blocks.append(block)
    return blocks


def _render_block(block: Mapping[str, Any]) -> Mapping[str, Any]:
    if block["type"] != "data":
        return block
    return {"type": "text", "text": json.dumps(block["data"], ensure_ascii=False)}


def _convert_to_json(content: Any) -> Any:
    """Converts to what JSON has: a time to text, a set to a list. What cannot be encoded must fail
    here, not when a client reads it."""
    if not isinstance(content, Mapping | Sequence) or isinstance(content, bytes):
        return content
    try:
        return decode_reply(encode(content))
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidInput(f"a value that is not JSON: {error}") from None


def _replace_surrogates(text: str) -> str:
    """Replaces lone surrogates, which names of files may have."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def describe_error(error: Exception) -> str:
    return _replace_surrogates(str(error) or type(error).__name__)
