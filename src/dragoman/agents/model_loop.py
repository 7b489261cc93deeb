"""The loop of an agent that thinks with a model: ask, call tools, ask again, until it answers.

Every tool call is a call of the hub on behalf of the call that the agent serves. Knows neither
targets nor conversations: it works on a list of messages and can be suspended while a tool asks a
question.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.agents.models.chat import (
    CARRY,
    CUT,
    FILTERED,
    REFUSED,
    SHOWN,
    ChatModel,
    ClientNeeded,
    ContextTooLong,
    Message,
    ModelReply,
    ModelUnavailable,
    OfferedTool,
    TakeText,
    ToolRequest,
    drop_carried,
)
from dragoman.agents.models.client import ClientModel
from dragoman.core.backoff import Backoff
from dragoman.core.call import ABSENT, Question, Result
from dragoman.core.errors import (
    AnswerFiltered,
    AnswerRefused,
    EmptyAnswer,
    HubError,
    TargetFailed,
    WorkFailed,
)
from dragoman.core.logins import render_problem
from dragoman.core.structs import Struct, replace
from dragoman.wire.json import decode_reply

log = logging.getLogger(__name__)

TRIES = 3
MAX_PAUSE = 20.0
"""Seconds that a provider may ask to wait; beyond that, another model is asked."""
_BACKOFF = Backoff(first=0.5, longest=MAX_PAUSE, jitter=0.5)
CHARS_PER_TOKEN = 4
SHORTENED = 400
"""Characters that are left of an old tool result."""
MAX_REFUSAL = 300
"""Characters of a refusal in its error."""
MARK = 50
"""Characters by which a shortened text says so."""
NEWEST_SHARE = 4
"""The newest results have this part of the context at least: older tool calls go for them."""
PICTURE_TOKENS = 1_000
"""What a picture takes of a model's context, whatever its size in bytes."""
MODEL = "model"
"""The name of the question to the client's model."""
SEPARATOR = "/"
"""Between the id of a tool call and the name of its question."""


class LoopLimits(Struct, frozen=True, kw_only=True):
    turns: int = 25
    """Answers of the model in one run."""
    tool_calls: int = 100
    parallel: int = 8
    context_tokens: int = 100_000
    """Size of the conversation, beyond which old results are shortened and old messages dropped."""


BeginText = Callable[[], TakeText]
"""Begins the text of an answer, which replaces that of an earlier try or turn."""
CallTool = Callable[
    [str, Mapping[str, Any], Mapping[str, Any] | None, str | None], Awaitable[Result]
]
"""Calls a tool by the name that the model uses, with arguments, answers and a handle."""


class LoopUsage(Struct):
    model_calls: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    model: str = ""
    """The one that answered last."""
    tokens_of: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Tokens in and out of each model that did not report a cost."""

    def add(self, reply: ModelReply) -> None:
        self.model_calls += 1
        self.model = reply.model
        if not reply.usage.cost:
            read, written = self.tokens_of.get(reply.model, (0, 0))
            read, written = read + reply.usage.input_tokens, written + reply.usage.output_tokens
            self.tokens_of[reply.model] = read, written
        self.input_tokens += reply.usage.input_tokens
        self.output_tokens += reply.usage.output_tokens
        self.cost += reply.usage.cost


class PendingTool(Struct, frozen=True):
    """A tool call that has asked a question."""

    request: ToolRequest
    handle: str | None
    questions: Mapping[str, Question]


class LoopState(Struct):
    """A run between two steps; it can be suspended and continued."""

    messages: list[Message]
    """The conversation, without the instructions. Messages are only ever added."""
    tools: Sequence[OfferedTool]
    schema: Mapping[str, Any] | None = None
    begun: int = 0
    """How many messages the conversation had before the run."""
    turns: int = 0
    tool_calls: int = 0
    usage: LoopUsage = msgspec.field(default_factory=LoopUsage)
    """Since the run was begun or continued."""
    results: dict[str, str] = msgspec.field(default_factory=dict)
    """The results of the tool calls of this turn, by id."""
    requests: Sequence[ToolRequest] = ()
    pending: list[PendingTool] = msgspec.field(default_factory=list)
    client_model: ClientModel | None = None
    """The client's model, while its answer is awaited."""


class ModelLoop:
    def __init__(
        self,
        models: Sequence[ChatModel],
        instructions: str,
        limits: LoopLimits,
        name: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """The first of `models` is asked first, the others where it cannot answer."""
        self._models = models
        self._instructions = instructions
        self._limits = limits
        self._name = name
        self._sleep = sleep

    async def run(
        self,
        state: LoopState,
        call_tool: CallTool,
        begin_text: BeginText,
        answers: Mapping[str, Any] | None = None,
    ) -> ModelReply | Mapping[str, Question]:
        """Runs until the model answers, or a tool asks; then continues with the `answers`. The
        names of the questions begin with the ids of their tool calls."""
        if state.pending:
            await self._continue_tools(state, call_tool, answers or {})
        elif state.client_model is not None:
            reply = state.client_model.read_answer((answers or {}).get(MODEL), begin_text())
            state.client_model = None
            if await self._take_reply(state, reply, call_tool):
                return reply
        while True:
            if state.pending:
                return {
                    f"{one.request.id}{SEPARATOR}{name}": question
                    for one in state.pending
                    for name, question in one.questions.items()
                }
            self._finish_turn(state)
            if state.turns >= self._limits.turns:
                raise WorkFailed(
                    f'agent "{self._name}" has not answered after {state.turns} turns '
                    "(limits.turns)"
                )
            state.turns += 1
            try:
                reply = await self._ask(state, begin_text)
            except ClientNeeded as needed:
                return {MODEL: needed.question}
            if await self._take_reply(state, reply, call_tool):
                return reply

    async def _take_reply(self, state: LoopState, reply: ModelReply, call_tool: CallTool) -> bool:
        """Adds the model's message and calls the tools it asks for; True if it is the answer."""
        state.usage.add(reply)
        _check_ending(reply)
        reply = replace(reply, tool_requests=_make_unique(reply.tool_requests))
        state.messages.append(_build_message(reply))
        if not reply.tool_requests:
            return True
        await self._call_tools(state, reply.tool_requests, call_tool)
        return False

    # --- the model --------------------------------------------------------------------------------

    async def _ask(self, state: LoopState, begin_text: BeginText) -> ModelReply:
        problems: list[TargetFailed] = []
        for model in self._models:
            try:
                return await self._ask_one(model, state, begin_text)
            except (ModelUnavailable, EmptyAnswer) as error:
                problems.append(error)
                log.warning('agent "%s": %s', self._name, error)
        is_empty = all(isinstance(one, EmptyAnswer) for one in problems)
        kind = EmptyAnswer if is_empty and problems else WorkFailed
        raise kind(
            f'agent "{self._name}" has no model that answers: {"; ".join(map(str, problems))}'
        )

    async def _ask_one(
        self, model: ChatModel, state: LoopState, begin_text: BeginText
    ) -> ModelReply:
        budget = self._limits.context_tokens
        tries, is_asked_again = 0, False
        while True:
            messages = [*self._build_instructions(), *compact(state.messages, budget)]
            try:
                reply = await model.complete(messages, state.tools, begin_text(), state.schema)
            except ClientNeeded:
                assert isinstance(model, ClientModel)
                state.client_model = model
                raise
            except ContextTooLong:
                if budget < 1_000:
                    raise
                budget //= 2
            except ModelUnavailable as error:
                tries += 1
                if tries >= TRIES:
                    raise
                pause = error.retry_after
                if pause is not None and pause > MAX_PAUSE:
                    raise
                await self._sleep(_BACKOFF.delay(tries) if pause is None else pause)
            else:
                if not _is_empty(reply):
                    return reply
                state.usage.add(reply)
                if is_asked_again or reply.ending == CUT:
                    raise _build_empty(reply)
                is_asked_again = True

    def _build_instructions(self) -> list[Message]:
        text = self._instructions
        return [{"role": "system", "content": text}] if text else []

    # --- tools ------------------------------------------------------------------------------------

    async def _call_tools(
        self, state: LoopState, requests: Sequence[ToolRequest], call_tool: CallTool
    ) -> None:
        state.requests, state.results = requests, {}
        allowed = self._limits.tool_calls - state.tool_calls
        made = min(max(allowed, 0), len(requests))
        state.tool_calls += made
        state.usage.tool_calls += made
        gate = asyncio.Semaphore(self._limits.parallel)

        async def call_one(request: ToolRequest) -> None:
            async with gate:
                await self._call_one(state, request, call_tool, None, None)

        await asyncio.gather(*(call_one(one) for one in requests[: max(allowed, 0)]))
        for one in requests[max(allowed, 0) :]:
            state.results[one.id] = (
                f"Error: this run may make {self._limits.tool_calls} tool calls, and has made them "
                "all (limits.tool_calls). Answer with what you know"
            )

    async def _continue_tools(
        self, state: LoopState, call_tool: CallTool, answers: Mapping[str, Any]
    ) -> None:
        pending, state.pending = state.pending, []
        for one in pending:
            prefix = f"{one.request.id}{SEPARATOR}"
            own = {
                name.removeprefix(prefix): answer
                for name, answer in answers.items()
                if name.startswith(prefix)
            }
            await self._call_one(state, one.request, call_tool, own, one.handle)

    async def _call_one(
        self,
        state: LoopState,
        request: ToolRequest,
        call_tool: CallTool,
        answers: Mapping[str, Any] | None,
        handle: str | None,
    ) -> None:
        try:
            arguments = _parse_arguments(request.arguments)
        except ValueError as error:
            state.results[request.id] = f"Error: the arguments are not a JSON object: {error}"
            return
        try:
            result = await call_tool(request.name, arguments, answers, handle)
        except HubError as error:
            state.results[request.id] = f"Error: {render_problem(error)}"
            return
        if result.questions is not None:
            state.pending.append(PendingTool(request, result.handle, result.questions))
            return
        state.results[request.id] = render_result(result)

    def _finish_turn(self, state: LoopState) -> None:
        """Adds the results of the turn to the conversation, in the order of the requests."""
        for one in state.requests:
            text = state.results.get(one.id, "")
            state.messages.append({"role": "tool", "tool_call_id": one.id, "content": text})
        state.requests, state.results = (), {}


def _make_unique(requests: Sequence[ToolRequest]) -> list[ToolRequest]:
    """Gives each request an id of its own: results and answers belong to ids."""
    seen: set[str] = set()
    found = []
    for number, request in enumerate(requests):
        id = request.id.replace(SEPARATOR, "_")
        while id in seen or not id:
            id = f"{id[:100]}_{number}"
        seen.add(id)
        found.append(replace(request, id=id))
    return found


def _is_empty(reply: ModelReply) -> bool:
    return not (reply.text.strip() or reply.tool_requests or reply.ending in (REFUSED, FILTERED))


def _build_empty(reply: ModelReply) -> EmptyAnswer:
    what = "answered with nothing"
    if reply.ending == CUT:
        what = "used its limit of tokens (model.max_tokens) up before it gave an answer"
    return EmptyAnswer(f'the model "{reply.model}" {what}')


def _check_ending(reply: ModelReply) -> None:
    """Raises the error of an answer that the model or its provider did not give."""
    words = " ".join(reply.text.split())[:MAX_REFUSAL]
    if reply.ending == REFUSED:
        raise AnswerRefused(f'the model "{reply.model}" refused to answer: {words or "no reason"}')
    if reply.ending == FILTERED:
        raise AnswerFiltered(
            f'a content filter of the provider of the model "{reply.model}" stopped the answer'
        )
    if _is_empty(reply):
        raise _build_empty(reply)


def _build_message(reply: ModelReply) -> Message:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.tool_requests:
        message["tool_calls"] = [
            {
                "id": one.id,
                "type": "function",
                "function": {"name": one.name, "arguments": one.arguments},
            }
            for one in reply.tool_requests
        ]
    if reply.carry:
        message[CARRY] = reply.carry
    return message


def _parse_arguments(text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    arguments = decode_reply(text.encode("utf-8", "replace"))
    if not isinstance(arguments, dict):
        raise ValueError(f"found {type(arguments).__name__}")
    return arguments


def render_result(result: Result) -> str:
    """Renders the result of a tool as text for a model."""
    texts: list[str] = []
    for block in result.content:
        if not isinstance(block, dict):
            continue
        text = block.get("text")
        resource = block.get("resource")
        if text is None and isinstance(resource, dict):
            text = resource.get("text")
        if isinstance(text, str):
            texts.append(text)
        else:
            where = block.get("uri") or block.get("mimeType") or ""
            texts.append(f"[{block.get('type', 'data')} {where}]".replace(" ]", "]"))
    if not texts and result.structured is not ABSENT:
        texts.append(msgspec.json.encode(result.structured).decode())
    text = "\n".join(texts)
    return f"Error: {text}" if result.failed else text


def compact(messages: Sequence[Message], tokens: int) -> list[Message]:
    """Fits a conversation into a number of tokens. The current question stays as it is. Of what was
    before it go the pictures, the results of tools, then the oldest messages; of what follows it
    the ends of older results, of the newest ones, then the oldest tool calls. A result is never
    left without its request."""
    limit = tokens * CHARS_PER_TOKEN
    place = _find_last_question(messages)
    before, question, after = (
        [*messages[:place]],
        [*messages[place : place + 1]],
        [*messages[place + 1 :]],
    )
    room = limit - _weigh(question) - _weigh(after)
    _change_oldest(before, len(before), _remove_pictures, room, weigh_message)
    _change_oldest(before, len(before), _shorten_result, room, weigh_message)
    dropped = _count_dropped(before, len(before), room)
    room = limit - _weigh(question) - _weigh(before[dropped:])
    newest = _find_newest_request(after)
    _change_oldest(after, newest, _remove_pictures, room, weigh_message)
    _change_oldest(after, newest, _shorten_result, room, weigh_message)
    _share_room(after, newest, room, limit // NEWEST_SHARE)
    undone = _count_dropped(after, newest, room)
    kept = [*before[dropped:], *question, *after[undone:]]
    if dropped:
        kept.insert(0, {"role": "user", "content": f"[{dropped} earlier messages were removed]"})
    if undone:
        text = f"[{undone} messages with earlier tool calls for this question were removed]"
        note = {"role": "user", "content": text, SHOWN: True}
        kept.insert(len(kept) - len(after) + undone, note)
    return kept


def _change_oldest(
    messages: list[Message],
    end: int,
    change: Callable[[Message], Message],
    limit: int,
    measure: Callable[[Message], int],
) -> None:
    """Changes messages before the place `end`, the oldest first, until all fit into the limit."""
    size = sum(map(measure, messages))
    for place in range(end):
        if size <= limit:
            return
        changed = change(messages[place])
        size += measure(changed) - measure(messages[place])
        messages[place] = changed


def _count_dropped(messages: Sequence[Message], end: int, limit: int) -> int:
    """Counts how many of the messages before the place `end` must go, the oldest first, so that the
    others fit; with a request go its results."""
    size, dropped = _weigh(messages), 0
    while dropped < end and (size > limit or (dropped and _is_result(messages[dropped]))):
        size -= weigh_message(messages[dropped])
        dropped += 1
    return dropped


def _share_room(messages: list[Message], newest: int, limit: int, least: int) -> None:
    """Shortens the newest results if they do not fit: each has an equal share of what is left, or
    of `least`, for which older tool calls go."""
    results = [
        place
        for place in range(newest, len(messages))
        if messages[place].get("role") == "tool" and isinstance(messages[place]["content"], str)
    ]
    results.sort(key=lambda place: len(messages[place]["content"]))
    left = limit - _weigh(messages) + sum(len(messages[place]["content"]) for place in results)
    left = max(left, least)
    for number, place in enumerate(results):  # a short one leaves more to the others
        share = max(left // (len(results) - number), SHORTENED)
        text = messages[place]["content"]
        if len(text) > share:
            text = _shorten(text, share - MARK)
            messages[place] = {**messages[place], "content": text}
        left -= len(text)


def _find_newest_request(messages: Sequence[Message]) -> int:
    """Finds the last message that is not a result."""
    place = len(messages) - 1
    while place > 0 and _is_result(messages[place]):
        place -= 1
    return max(place, 0)


def _is_result(message: Message) -> bool:
    return message.get("role") == "tool" or SHOWN in message


def fit_conversation(messages: list[Message], count: int, size: int) -> list[Message]:
    """Fits a conversation into a number of messages and of characters, to be continued later: first
    removes the pictures before the last message of the user and shortens tool results, then drops
    the oldest exchanges, then the oldest tool calls of the last one. The last message of the user
    and the answer to it always stay. A result is never left without its request."""
    kept = list(messages)
    first = last = _find_last_question(kept)
    _change_oldest(kept, last, _remove_pictures, size, measure_message)
    _change_oldest(kept, len(kept), _shorten_result, size, measure_message)
    rest = _measure(kept)
    for place, message in enumerate(kept[:last]):
        if message.get("role") == "user" and len(kept) - place <= count and rest <= size:
            first = place
            break
        rest -= measure_message(message)
    begin, end = kept[first : last + 1], kept[last + 1 :]
    total = _measure(begin) + _measure(end)
    dropped = 0
    while dropped < len(end) - 1 and (
        total > size or len(begin) + len(end) - dropped > count or end[dropped]["role"] == "tool"
    ):
        total -= measure_message(end[dropped])
        dropped += 1
    kept = begin + end[dropped:]
    if total > size:
        kept = [_shorten_message(message, size // len(kept)) for message in kept]
    return kept


def _find_last_question(messages: Sequence[Message]) -> int:
    place = len(messages) - 1
    while place > 0 and (messages[place].get("role") != "user" or SHOWN in messages[place]):
        place -= 1
    return max(place, 0)


def _measure(messages: Sequence[Message]) -> int:
    return sum(map(measure_message, messages))


def _weigh(messages: Sequence[Message]) -> int:
    return sum(map(weigh_message, messages))


def _shorten_result(message: Message) -> Message:
    text = message.get("content")
    if message.get("role") != "tool" or not isinstance(text, str) or len(text) <= SHORTENED:
        return message
    return {**message, "content": _shorten(text, SHORTENED)}


def _remove_pictures(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, list) or not any(map(_is_picture, content)):
        return message
    removed = {"type": "text", "text": "[a picture was removed]"}
    return {**message, "content": [removed if _is_picture(one) else one for one in content]}


def _is_picture(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image_url"


def _shorten(text: str, length: int) -> str:
    return f"{text[:length]} [… {len(text) - length} characters were removed]"


def _shorten_message(message: Message, size: int) -> Message:
    """Shortens a message that is too large by itself: images go, what it carries (which fits the
    whole message only), and the end of a long text."""
    if measure_message(message) <= size:
        return message
    message = drop_carried(message)
    content = message.get("content")
    if not isinstance(content, str):
        texts = [str(part.get("text") or f"[{part.get('type')} removed]") for part in content or ()]
        content = "\n".join(texts)
    return {**message, "content": _shorten(content, size) if len(content) > size else content}


def measure_message(message: Message) -> int:
    """Measures what a message takes where it is stored."""
    content = message.get("content")
    size = len(content) if isinstance(content, str) else len(str(content or ""))
    return size + _measure_others(message)


def weigh_message(message: Message) -> int:
    """Measures what a message takes of a model's context, in characters of text."""
    content = message.get("content")
    if not isinstance(content, list):
        return measure_message(message)
    pictures = sum(map(_is_picture, content))
    texts = sum(len(str(one)) for one in content if not _is_picture(one))
    return texts + pictures * PICTURE_TOKENS * CHARS_PER_TOKEN + _measure_others(message)


def _measure_others(message: Message) -> int:
    others = (message.get("tool_calls"), message.get(CARRY))
    return sum(len(str(one)) for one in others if one) + 10
