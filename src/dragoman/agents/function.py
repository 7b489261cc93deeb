"""Agents that are Python functions: what they are asked, what they may answer, and how it runs.

The names a function needs are in `dragoman.agent`. A function that is not async runs in a thread of
its agent's own, of which there are few: one that hangs hangs alone. Knows no protocol: what comes
in and goes out are blocks of content.
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
"""Of one agent."""
RESPONSE = "response"
"""What the artifact is called that is an agent's answer."""
KEPT = "kept by the function"
_EMPTY_MESSAGE = [{"type": "text", "text": ""}]
_NO_MESSAGE = MessageOrigin()
"""Of a call that was not made by a message."""
"""In the place of an agent's own id of a conversation: a function knows it by the caller's."""

Blocks = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Ask:
    """Returned: the agent needs to know something before it can go on. The answer comes as the next
    request of the same task."""

    question: str
    schema: Mapping[str, Any] | None = None
    """A JSON Schema of the answer, for those who fill in a form; default: one line of text."""


@dataclass(frozen=True, slots=True)
class NeedsAuth:
    """Returned: somebody must log in somewhere first."""

    words: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """Returned: an answer that is more than a text or some data."""

    content: str | Mapping[str, Any] | Blocks = ()
    direct: bool = False
    """Whether it is a word of answer and not the outcome of some work."""
    failed: bool = False


class Decline(Exception):
    """Raised: the agent will not do it, for the reason it gives."""


@dataclass(slots=True)
class Request:
    """What an agent is asked."""

    text: str
    """All the text of the message."""
    parts: Blocks
    """All parts of it, as blocks of content: text, image, audio, resource, resource_link, data."""
    metadata: Mapping[str, Any]
    task: str
    """The task it belongs to, if it does."""
    message_id: str
    skill: str
    """The skill that was asked for, if one was named."""
    turn: int
    """Counts the messages of the task, from 1."""
    caller: str
    _context: str
    _updates: Updates
    _loop: asyncio.AbstractEventLoop
    _keeps_context: bool = field(default=False, repr=False)
    """Whether the function has asked which conversation this is."""
    _said: int = field(default=0, repr=False)
    _refused: HubError | None = field(default=None, repr=False)
    """Why nothing more is taken of it."""
    accepts: Sequence[str] = ()
    """The media types that the caller would like best; none where it did not say."""
    extensions: Sequence[str] = ()
    """The extensions that the caller has activated, by their names."""
    references: Sequence[str] = ()
    """Other tasks of the caller's that the message refers to."""

    @property
    def context(self) -> str:
        """The conversation it belongs to."""
        self._keeps_context = True
        return self._context

    @property
    def data(self) -> Any:
        """The first data in the message; None without any."""
        return next((part.get("data") for part in self.parts if part.get("type") == "data"), None)

    def say(self, words: str) -> None:
        """Tells the caller how the work goes."""
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
        """Hands out something that was made, or a further piece of it under the same id."""
        id = id or str(uuid4())
        try:
            blocks = blocks_from_content(content)
        except InvalidInput as error:  # the agent's mistake, not its caller's
            raise TypeError(f"it made {error}") from None
        self._send(
            Artifact(
                id=id,
                name=name,
                content=blocks,
                append=append,
                last=last,
                description=description,
            )
        )
        return id

    def _send(self, update: Progress | Artifact) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # the function's own thread, which hears of it the next time
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
    """A target that has one tool: to be sent a message."""

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
                given = request = _build_request(
                    call, given, self._build_blocks(call), self._find_context(call)
                )
            if self._threads is None:
                value = await self._function(given)
            else:
                value = await self._threads.run(self._function, given)
        except SystemExit as error:
            raise WorkFailed(f'agent "{self.name}" wanted to end the hub: {error!r}') from None
        except Decline as error:
            raise Declined(f'agent "{self.name}" will not do it: {error}') from None
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
        """The id of the conversation, which the caller knows by the same."""
        if call.message is not None:
            return call.message.context
        asked = find_context_in_meta(call) or call.arguments.get(CONTEXT) or ""
        return self._conversations.find(call, str(asked)).id or new_conversation_id()

    def _build_blocks(self, call: Call) -> list[Any]:
        if call.answers is not None:
            text = _read_text(call)
            return [{"type": "text", "text": text}] if text else []
        blocks = blocks_from_arguments(call.arguments)
        if call.message is None:  # those of an A2A message have been checked
            self._check_media(blocks)
        return blocks if blocks != _EMPTY_MESSAGE else []

    def _check_media(self, blocks: list[Any]) -> None:
        for block in blocks:
            media = find_media_type(block) if isinstance(block, dict) else ""
            if media != "text/plain" and not is_accepted(self.entry.input_modes, media):
                raise InvalidInput(
                    f'agent "{self.name}" does not take "{media}"; it takes '
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
            {
                "uri": one.uri,
                "description": one.description,
                "required": one.required,
                "params": one.params,
            }
            for one in entry.extensions
        ],
        continues=True,
    )


# --- in -----------------------------------------------------------------------------------------


def _read_text(call: Call) -> str:
    if call.answers is not None:  # to what it asked by the door of another protocol
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
    """The function, and whether it takes the text alone."""
    module, colon, name = entry.function.partition(":")
    where = f'the function "{entry.function}" of agent "{entry.name}"'
    if not colon or not module or not name:
        raise ConfigError(f'{where} must be written "module:function"')
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
        raise ConfigError(f"{where} must take one thing: the text, or a dragoman.agent.Request")
    hint = hints.get(parameters[0].name)
    by_name = hint is None and parameters[0].name in ("message", "text")
    return found, hint is str or by_name


# --- out ----------------------------------------------------------------------------------------


def result_from_value(value: Any, agent: str) -> Result:
    """What a function returned, as the road carries it."""
    if isinstance(value, str):  # as most do
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
        raise WorkFailed(f'agent "{agent}" answered with what is no answer: {error}') from None
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
"""What a block of each type must have."""


def blocks_from_content(content: Any) -> list[Mapping[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": _replace_surrogates(content)}]
    content = _convert_to_json(content)
    if isinstance(content, Mapping):
        if content.get("type") in _MEMBERS and _MEMBERS[content["type"]] in content:
            return [content]
        return [{"type": "data", "data": content}]
    if not isinstance(content, Sequence):
        raise InvalidInput(f"a {type(content).__name__}; return text, a dict or a list of blocks")
    blocks = []
    for block in content:
        if isinstance(block, str):
            block = {"type": "text", "text": block}
        if not isinstance(block, Mapping) or _MEMBERS.get(block.get("type", "")) not in block:
            raise InvalidInput(f"a list with {str(block)[:60]!r} in it, which is no block")
        blocks.append(block)
    return blocks


def _render_block(block: Mapping[str, Any]) -> Mapping[str, Any]:
    if block["type"] != "data":
        return block
    return {"type": "text", "text": json.dumps(block["data"], ensure_ascii=False)}


def _convert_to_json(content: Any) -> Any:
    """The same as JSON has it: a time as its text, a set as a list. Nothing goes on that could not
    be written when somebody reads it."""
    if not isinstance(content, Mapping | Sequence) or isinstance(content, bytes):
        return content
    try:
        return decode_reply(encode(content))
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidInput(f"what is no JSON: {error}") from None


def _replace_surrogates(text: str) -> str:
    """Half a character, as in the name of a file, is none."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _describe_error(error: Exception) -> str:
    return _replace_surrogates(str(error) or type(error).__name__)
