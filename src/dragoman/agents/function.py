"""Agents that are Python functions: their requests, their answers, and how they run.

`dragoman.agent` has the public names. A function that is not async runs in one of its agent's few
threads, so that one that hangs affects no other agent. Knows no protocol: input and output are
content blocks.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import logging
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from dragoman.agents.config import AgentEntry
from dragoman.agents.threads import AgentThreads
from dragoman.core.agent_tool import (
    SCHEMA,
    TEXT_SCHEMA,
    blocks_from_arguments,
    build_agent_tool,
    find_media_type,
    is_accepted,
)
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
from dragoman.core.conversations import (
    CONTEXT,
    Conversation,
    Conversations,
    add_context,
    find_context_in_meta,
    new_conversation_id,
)
from dragoman.core.errors import ConfigError, Declined, HubError, InvalidInput, WorkFailed
from dragoman.core.tool import AgentFacts, TargetFacts, TargetTraits, Validator
from dragoman.wire.json import decode_reply, encode

log = logging.getLogger(__name__)

MAX_THREADS = 16
RESPONSE = "response"
"""The id of the artifact with an agent's answer."""
KEPT = "kept by the function"
"""Stands for the agent's own conversation id: a function uses the client's."""
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


class FunctionAgent:
    """A target with one tool, which takes a message."""

    traits = TargetTraits(facts=TargetFacts(type="Agent"))

    def __init__(self, entry: AgentEntry, prefix: str, validate: Validator) -> None:
        self.entry = entry
        self.name = entry.name
        self._function, self._takes_text = _load_function(entry)
        self._async = inspect.iscoroutinefunction(self._function)
        self._threads = None if self._async else AgentThreads(MAX_THREADS, f"agent-{entry.name}")
        schema = TEXT_SCHEMA if self._takes_text else SCHEMA
        self.tool = build_agent_tool(self, _build_facts(entry), prefix, validate, schema)
        self._conversations = Conversations(entry.name)

    async def run(self, call: Call) -> Result:
        request: Request | None = None
        try:
            given: Any = _read_text(call)
            if not self._takes_text:
                blocks, context = self._build_blocks(call), self._find_context(call)
                given = request = _build_request(call, given, blocks, context)
            if self._threads is None:
                value = await self._function(given)
            else:
                value = await self._threads.run(self._function, given)
        except SystemExit as error:
            raise WorkFailed(f'agent "{self.name}" tried to exit the hub: {error!r}') from None
        except Decline as error:
            raise Declined(f'agent "{self.name}" declined: {error}') from None
        except HubError:
            raise
        except Exception as error:
            log.exception('agent "%s" failed', self.name)
            raise WorkFailed(f'agent "{self.name}" failed: {_describe_error(error)}') from error
        result = result_from_value(value, self.name)
        if request is None or not request._keeps_context or call.message is not None:
            return result
        id = self._conversations.keep(call, Conversation(request._context), KEPT)
        return result if result.questions else add_context(result, call, id, shown=True)

    def _find_context(self, call: Call) -> str:
        """Finds the id of the conversation, which the client knows too."""
        if call.message is not None:
            return call.message.context
        asked = find_context_in_meta(call) or call.arguments.get(CONTEXT) or ""
        return self._conversations.find(call, str(asked)).id or new_conversation_id()

    def _build_blocks(self, call: Call) -> list[Any]:
        if call.answers is not None:
            text = _read_text(call)
            return [{"type": "text", "text": text}] if text else []
        blocks = blocks_from_arguments(call.arguments)
        if call.message is None:  # the A2A server has checked those of a message
            self._check_media(blocks)
        return blocks if blocks != _EMPTY_MESSAGE else []

    def _check_media(self, blocks: list[Any]) -> None:
        for block in blocks:
            media = find_media_type(block) if isinstance(block, dict) else ""
            if media != "text/plain" and not is_accepted(self.entry.input_modes, media):
                raise InvalidInput(
                    f'agent "{self.name}" does not accept "{media}"; it accepts '
                    f"{', '.join(self.entry.input_modes)}"
                )

    def close(self) -> None:
        if self._threads is not None:
            self._threads.close()


def _build_facts(entry: AgentEntry) -> AgentFacts:
    return AgentFacts(
        name=entry.name,
        description=entry.description or f'The agent "{entry.name}".',
        version=entry.version,
        skills=[
            {
                "id": skill.id,
                "name": skill.name or skill.id.replace("_", " "),
                "description": skill.description or f"Can do {skill.id}.",
                "tags": skill.tags or ["agent"],
                "examples": skill.examples,
                "public": skill.public,
            }
            for skill in entry.skills
        ],
        input_modes=tuple(entry.input_modes),
        output_modes=tuple(entry.output_modes),
        streaming=entry.streaming,
        push=entry.push,
        extended=entry.extended_card,
        extensions=[
            {name: getattr(one, name) for name in one.__struct_fields__} for one in entry.extensions
        ],
        continues=True,
    )


# --- input --------------------------------------------------------------------------------------


def _read_text(call: Call) -> str:
    if call.answers is not None:  # to a question that another protocol carried
        return _read_answer(call.answers)
    return str(call.arguments.get("message", ""))


def _build_request(call: Call, text: str, parts: Blocks, context: str) -> Request:
    message = call.message or _NO_MESSAGE
    return Request(
        text=text,
        parts=parts,
        metadata=message.metadata,
        task=message.task,
        message_id=message.id,
        skill=message.skill,
        turn=message.turn,
        caller=call.principal.label,
        _context=context,
        accepts=message.configuration.get("acceptedOutputModes", ()),
        extensions=message.extensions,
        references=[here for here, _ in message.references],
        _updates=call.updates,
        _loop=asyncio.get_running_loop(),
    )


def _read_answer(answers: Mapping[str, Any]) -> str:
    answer = answers.get("reply", answers.get("auth"))
    if not isinstance(answer, dict) or answer.get("action", "accept") != "accept":
        raise Decline("its question was not answered")
    content = answer.get("content")
    if isinstance(content, dict) and set(content) == {"reply"}:
        return str(content["reply"])
    return json.dumps(content) if content else ""


def _load_function(entry: AgentEntry) -> tuple[Callable[[Any], Any], bool]:
    module, colon, name = entry.function.partition(":")
    where = f'the function "{entry.function}" of agent "{entry.name}"'
    if not colon or not module or not name:
        raise ConfigError(f'{where} is invalid: write "module:function"')
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        raise ConfigError(f"{where} cannot be loaded: {_describe_error(error)}") from error
    for step in name.split("."):
        found = getattr(found, step, None)
    if not callable(found):
        raise ConfigError(f'{where} does not exist: module "{module}" has no function "{name}"')
    try:
        parameters = list(inspect.signature(found).parameters.values())
        hints = typing.get_type_hints(found)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(f"{where} cannot be used: {_describe_error(error)}") from error
    if not parameters or any(one.default is one.empty for one in parameters[1:]):
        raise ConfigError(f"{where} must take one argument: the text, or a dragoman.agent.Request")
    hint = hints.get(parameters[0].name)
    by_name = hint is None and parameters[0].name in ("message", "text")
    return found, hint is str or by_name


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


def _describe_error(error: Exception) -> str:
    return _replace_surrogates(str(error) or type(error).__name__)
