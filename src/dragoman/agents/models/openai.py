"""Models behind OpenAI's chat completions: OpenAI, Ollama, vLLM, llama.cpp, OpenRouter and others.

Answers are streamed. What a server sends is bounded and may be malformed; an answer that is not
streamed is accepted too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.agents.models.chat import (
    CUT,
    FILTERED,
    REFUSED,
    ContextTooLong,
    Message,
    ModelReply,
    ModelUnavailable,
    ModelUsage,
    OfferedTool,
    TakeText,
    ToolRequest,
    drop_carried,
    find_carried,
    is_about_carried,
)
from dragoman.agents.models.failures import build_failure, find_error, find_pause
from dragoman.agents.models.traits import (
    adapt_body,
    drop_members,
    find_refused,
    find_traits,
)
from dragoman.core.errors import BadReply, TargetFailed, TimedOut, Unreachable
from dragoman.core.structs import Struct
from dragoman.wire.http import HttpClient, HttpReply
from dragoman.wire.json import decode_reply, encode
from dragoman.wire.sse import EventTooLong, SseParser, split_pieces

log = logging.getLogger(__name__)

MAX_ADAPTED = 4
"""How often a request is adapted to what its server refuses: one member after the other."""
MAX_REPLY = 10 * 1024 * 1024
MAX_ERROR = 64 * 1024
MAX_TOOL_REQUESTS = 128
MAX_BLOCKS = 1_000
"""Blocks of reasoning in an answer."""
MAX_SPACE = 1_000
"""Characters of white space before thoughts."""


class OpenAiSettings(Struct, frozen=True, kw_only=True):
    model: str
    base_url: str
    """Up to `/v1`."""
    api_key: str = ""
    temperature: float | None = None
    max_tokens: int | None = None
    timeout: float = 120.0
    """Seconds until the answer begins."""
    idle_timeout: float = 60.0
    """Seconds between two pieces of it."""
    extra: Mapping[str, Any] = {}
    """Further members of the request."""
    omit: Sequence[str] = ()
    """Members that are left out of it."""


class OpenAiModel:
    """Implements `ChatModel`."""

    path = "/chat/completions"

    def __init__(self, settings: OpenAiSettings, http: HttpClient) -> None:
        self.settings = settings
        self.name = settings.model
        self._http = http
        self._url = f"{settings.base_url.rstrip('/')}{self.path}"
        self.origin = f"{self._url} {settings.model}"
        """What its answers carry is sent to the same address and model only."""
        self._traits = find_traits(settings.base_url)
        self._refused: frozenset[str] = frozenset()
        """Optional members that the server has refused."""
        self._headers = {"content-type": "application/json", "accept": "text/event-stream"}
        if settings.api_key:
            self._headers["authorization"] = f"Bearer {settings.api_key}"

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[OfferedTool],
        on_text: TakeText,
        schema: Mapping[str, Any] | None = None,
    ) -> ModelReply:
        reply = await self._send_until_accepted(messages, tools, schema)
        answer = self._open_answer(on_text, (self.settings.api_key, *reply.secrets))
        try:
            if "event-stream" in reply.headers.get("content-type", ""):
                await self._read_stream(reply, answer)
            else:
                answer.take_whole(decode_reply(await reply.body.read(MAX_REPLY)))
        except (Unreachable, TimedOut) as error:
            raise ModelUnavailable(f'the model "{self.name}" broke off: {error}') from error
        except (BadReply, ValueError, EventTooLong) as error:
            raise self._build_malformed(str(error)) from error
        finally:
            reply.body.close()
        return answer.build()

    async def _send_until_accepted(
        self,
        messages: Sequence[Message],
        tools: Sequence[OfferedTool],
        schema: Mapping[str, Any] | None,
    ) -> HttpReply:
        """Sends the request, and once more without the optional members that an error names, which
        the server is not sent again if that helped, or without what messages carry if the error is
        about that."""
        left_out: frozenset[str] = frozenset()
        for _ in range(MAX_ADAPTED):
            body = self._build_request(messages, tools, schema)
            body = adapt_body(body, self._traits.omitted | self._refused | left_out)
            reply = await self._send(body)
            if reply.status == 200:
                self._refused |= left_out
                return reply
            text = await self._read_error(reply)
            error = self._build_error(reply, text)
            if reply.status not in (400, 422) or isinstance(error, ContextTooLong):
                raise error
            if refused := find_refused(body, text):
                log.warning(
                    'the model "%s" is asked without %s, which its server refuses: %s',
                    self.name, ", ".join(sorted(refused)), error,
                )  # fmt: skip
                left_out |= refused
            elif is_about_carried(messages, self.origin, text):
                messages = [drop_carried(one) for one in messages]
            else:
                raise error
        raise error

    async def _send(self, body: Mapping[str, Any]) -> HttpReply:
        timeout = self.settings.timeout
        try:
            return await self._http.request(
                "POST", self._url, self._headers, encode(body), timeout=timeout
            )
        except (Unreachable, TimedOut) as error:
            raise ModelUnavailable(f'the model "{self.name}" cannot be reached: {error}') from error

    def _open_answer(self, on_text: TakeText, secrets: tuple[str, ...]) -> ChatAnswer:
        return ChatAnswer(self.name, on_text, secrets, self.origin)

    def _build_request(
        self,
        messages: Sequence[Message],
        tools: Sequence[OfferedTool],
        schema: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        settings = self.settings
        body: dict[str, Any] = {
            "stream_options": {"include_usage": True},
            **settings.extra,
            "model": settings.model,
            "messages": [build_message(one, self.origin) for one in messages],
            "stream": True,
        }
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        if settings.max_tokens is not None:
            body[self._traits.max_tokens] = settings.max_tokens
        if tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": one.name,
                        "description": one.description,
                        "parameters": one.schema,
                    },
                }
                for one in tools
            ]
        if schema is not None:
            named = {"name": "answer", "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        return drop_members(body, settings.omit)

    async def _read_stream(self, reply: HttpReply, answer: ChatAnswer) -> None:
        parser, size = SseParser(), 0
        chunks = reply.body.chunks()
        while not answer.is_done:
            try:
                async with asyncio.timeout(self.settings.idle_timeout):
                    chunk = await anext(chunks, b"")
            except TimeoutError:
                raise TimedOut(f"no data for {self.settings.idle_timeout:g} s") from None
            if not chunk:
                break
            size += len(chunk)
            if size > MAX_REPLY:
                raise BadReply(f"its answer is larger than {MAX_REPLY} bytes")
            for piece in split_pieces(chunk):
                for event in parser.feed(piece):
                    answer.take_event(event.data)
                await asyncio.sleep(0)
        if not answer.is_complete:
            raise Unreachable("the stream ended before the answer was complete", sent=True)

    async def _read_error(self, reply: HttpReply) -> str:
        try:
            return (await reply.body.read(MAX_ERROR)).decode("utf-8", "replace")
        except (BadReply, TimedOut, Unreachable):
            return ""
        finally:
            reply.body.close()

    def _build_error(self, reply: HttpReply, text: str) -> TargetFailed:
        words = find_error(text, self.settings.api_key, *reply.secrets)
        return build_failure(self.name, reply.status, words, find_pause(reply.headers, text))

    def _build_malformed(self, why: str) -> ModelUnavailable:
        return ModelUnavailable(f'the model "{self.name}" sent an invalid answer: {why[:300]}')


_OWN_MEMBERS = frozenset(
    ("role", "content", "tool_calls", "tool_call_id", "id", "type", "function")
)


def build_message(message: Message, origin: str) -> dict[str, Any]:
    """Builds a message as servers take it: with what it carries for this model, with arguments that
    are JSON, and never without content."""
    made = {name: value for name, value in message.items() if name in _OWN_MEMBERS}
    carried = find_carried(message, origin)
    made.update(carried.get("message") or {})
    calls = message.get("tool_calls")
    if not calls:
        if made.get("content") is None:
            made["content"] = ""
        return made
    extras = carried.get("tool_calls") or ()
    made["tool_calls"] = [
        {
            **(extras[place] if place < len(extras) else {}),
            **one,
            "function": {**one["function"], "arguments": mend_arguments(one["function"])},
        }
        for place, one in enumerate(calls)
    ]
    return made


def mend_arguments(function: Mapping[str, Any]) -> str:
    """Returns the arguments of an earlier call as JSON: a model may have written something else,
    which some servers do not take back."""
    text = str(function.get("arguments") or "")
    if _is_object(text):
        return text
    return encode({"malformed": text} if text.strip() else {}).decode()


class _Request:
    """A tool call whose pieces arrive."""

    def __init__(self, id: str, function: Mapping[str, Any]) -> None:
        self.id = self.name = ""
        self._arguments: list[str] = []
        self.extra: dict[str, Any] = {}
        """What the server wants back with the call."""
        self.add(id, function)
        self._is_whole = _is_object(self.arguments)
        """Whether its first piece has all of it."""

    def is_another(self, id: str, name: str) -> bool:
        """Whether a piece with this id and name begins another call. Some servers give all calls
        the same index, and some of these no ids."""
        if id and self.id:
            return id != self.id
        return bool(name) and self._is_whole

    def add(self, id: str, function: Mapping[str, Any]) -> None:
        self.id = id or self.id
        self.name = str(function.get("name") or self.name)
        arguments = function.get("arguments")
        if isinstance(arguments, dict):  # Ollama's own form
            arguments = encode(arguments).decode()
        if isinstance(arguments, str):
            self._arguments.append(arguments)

    @property
    def arguments(self) -> str:
        return "".join(self._arguments)


class ChatAnswer:
    """Puts the pieces of a streamed answer together."""

    def __init__(
        self, model: str, on_text: TakeText, secrets: tuple[str, ...], origin: str
    ) -> None:
        """`secrets` are removed from errors."""
        self._secrets = secrets
        self._origin = origin
        self._thoughts = ThoughtFilter()
        self._is_refused = False
        self._thought: list[str] = []
        self._has_thought = False
        """Whether there is a member for thoughts, which may be empty."""
        self._blocks = ReasoningBlocks()
        self.is_done = False
        self._name = self._model = model
        self._on_text = on_text
        self._text: list[str] = []
        self._requests: list[_Request] = []
        self._by_index: dict[int, _Request] = {}
        """The latest request of each index."""
        self._usage = ModelUsage()
        self._finish = ""

    @property
    def is_complete(self) -> bool:
        """Whether the server has said that the answer ends here."""
        return self.is_done or bool(self._finish)

    def take_event(self, data: bytes) -> None:
        if data.strip() == b"[DONE]":
            self.is_done = True
            return
        event = decode_reply(data)
        if not isinstance(event, dict):
            raise ValueError("an event is not an object")
        self._take_common(event)
        for choice in list_objects(event.get("choices")):
            if not choice.get("index"):  # further choices were not asked for
                self._take_choice(choice, choice.get("delta"))

    def take_whole(self, body: Any) -> None:
        if not isinstance(body, dict):
            raise ValueError("the answer is not an object")
        self._take_common(body)
        choices = list_objects(body.get("choices"))
        if not choices or not isinstance(message := choices[0].get("message"), dict):
            raise ValueError("the answer has no message")
        self._take_choice(choices[0], message)
        self.is_done = True

    def _take_common(self, body: Mapping[str, Any]) -> None:
        if (error := body.get("error")) is not None:
            raise self._build_error(error)
        if isinstance(model := body.get("model"), str) and model:
            self._model = model
        if isinstance(usage := body.get("usage"), dict):
            self._usage = ModelUsage(
                read_count(usage.get("prompt_tokens")),
                read_count(usage.get("completion_tokens")),
                _read_cost(usage.get("cost")),
            )

    def _build_error(self, error: Any) -> Exception:
        """Builds the error that comes with a status of 200: some have the status as a code."""
        text = encode({"error": error}).decode()
        words = find_error(text, *self._secrets)
        code = str(error.get("code")) if isinstance(error, dict) else ""
        status = int(code) if code.isascii() and code.isdigit() and len(code) == 3 else 500
        return build_failure(self._name, status, words, find_pause({}, text))

    def _take_choice(self, choice: Mapping[str, Any], delta: Any) -> None:
        if isinstance(delta, dict):
            self._take_delta(delta)
        self._finish = str(choice.get("finish_reason") or self._finish)
        if self._finish == "error":
            raise BadReply("it ended with an error, and gave no reason")

    def _take_delta(self, delta: Mapping[str, Any]) -> None:
        text = delta.get("content")
        if isinstance(text, list):  # content parts
            text = "".join(str(one.get("text") or "") for one in list_objects(text))
        if isinstance(text, str):
            self._take_text(self._thoughts.feed(text))
        if isinstance(refusal := delta.get("refusal"), str) and refusal:
            self._is_refused = True
            self._take_text(refusal)
        self._take_reasoning(delta)
        for place, piece in enumerate(list_objects(delta.get("tool_calls"))):
            index = piece.get("index")
            self._take_piece(index if isinstance(index, int) else place, piece)
        if isinstance(function := delta.get("function_call"), dict):  # before there were tools
            self._take_piece(0, {"function": function})

    def _take_piece(self, index: int, piece: Mapping[str, Any]) -> None:
        id, function = str(piece.get("id") or ""), piece.get("function")
        function = function if isinstance(function, dict) else {}
        request = self._by_index.get(index)
        if request is None or request.is_another(id, str(function.get("name") or "")):
            if len(self._requests) >= MAX_TOOL_REQUESTS:
                raise BadReply(f"it asks for more than {MAX_TOOL_REQUESTS} tool calls at once")
            request = self._by_index[index] = _Request(id, function)
            self._requests.append(request)
        else:
            request.add(id, function)
        more = {name: one for name, one in piece.items() if name not in _PIECE_MEMBERS}
        request.extra.update({name: one for name, one in more.items() if one is not None})

    def _take_text(self, text: str) -> None:
        if text:
            self._text.append(text)
            self._on_text(text)

    def _take_reasoning(self, delta: Mapping[str, Any]) -> None:
        thought = delta.get("reasoning_content")
        if isinstance(thought, str):
            self._has_thought = True
            self._thought.append(thought)
        for detail in list_objects(delta.get("reasoning_details")):
            self._blocks.add(detail)

    def build(self) -> ModelReply:
        made: dict[str, ToolRequest] = {}
        extras: list[dict[str, Any]] = []
        for number, one in enumerate(self._requests):
            if one.name or one.arguments:
                id = one.id if one.id and one.id not in made else f"{one.id or 'call'}_{number}"
                made[id] = ToolRequest(id, one.name, one.arguments)
                extras.append(one.extra)
        self._take_text(self._thoughts.finish())
        text, ending = "".join(self._text), self._find_ending()
        data = self._build_carried(extras)
        carry = {"origin": self._origin, "data": data} if data else None
        return ModelReply(text, list(made.values()), self._usage, self._model, ending, carry)

    def _find_ending(self) -> str:
        finish = self._finish.lower()
        if finish.startswith(_FILTERED):
            return FILTERED
        if self._is_refused or finish == "refusal":
            return REFUSED
        return CUT if finish in ("length", "max_tokens") else ""

    def _build_carried(self, extras: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        data: dict[str, Any] = {}
        message: dict[str, Any] = {}
        if self._has_thought:
            message["reasoning_content"] = "".join(self._thought)
        if blocks := self._blocks.build():
            message["reasoning_details"] = blocks
        if message:
            data["message"] = message
        if any(extras):
            data["tool_calls"] = extras
        return data


_PIECE_MEMBERS = frozenset(("index", "id", "type", "function"))


class ReasoningBlocks:
    """Puts the pieces of `reasoning_details` together: those with one type and index are one block,
    whose text comes in pieces and whose signature may come last."""

    def __init__(self) -> None:
        self._blocks: list[tuple[dict[str, Any], dict[str, list[str]]]] = []
        """The members of each, and the pieces of its texts."""
        self._latest: dict[tuple[str, int], int] = {}

    def add(self, piece: Mapping[str, Any]) -> None:
        kind, index = piece.get("type"), piece.get("index")
        key = (kind, index) if isinstance(kind, str) and isinstance(index, int) else None
        place = self._latest.get(key) if key is not None else None
        if place is None or not _continues(self._blocks[place][0], piece):
            if len(self._blocks) >= MAX_BLOCKS:
                raise BadReply(f"it has more than {MAX_BLOCKS} blocks of reasoning")
            place = len(self._blocks)
            self._blocks.append(({}, {}))
            if key is not None:
                self._latest[key] = place
        members, texts = self._blocks[place]
        for name, value in piece.items():
            if name in ("text", "summary") and isinstance(value, str):
                texts.setdefault(name, []).append(value)
                members[name] = ""  # in its place
            elif value is not None or name not in members:
                members[name] = value

    def build(self) -> list[dict[str, Any]]:
        return [
            {**members, **{name: "".join(pieces) for name, pieces in texts.items()}}
            for members, texts in self._blocks
        ]


def _continues(block: Mapping[str, Any], piece: Mapping[str, Any]) -> bool:
    if block.get("data") and piece.get("data"):
        return False  # encrypted data never comes in pieces
    return not (block.get("id") and piece.get("id") and block["id"] != piece["id"])


_FILTERED = ("content_filter", "safety", "recitation", "prohibited_content", "blocklist")
"""Reasons to finish, in lower case; the others are Google's."""


class ThoughtFilter:
    """Removes the thoughts that models write at the beginning of an answer if their server does not
    tell thoughts from text."""

    _OPEN, _CLOSE = "<think>", "</think>"

    def __init__(self) -> None:
        self._held = ""
        self._is_inside = False
        self._is_over = False
        """Whether everything that follows is the answer."""

    def feed(self, text: str) -> str:
        """Returns what is known to belong to the answer."""
        if self._is_over:
            return text
        self._held += text
        if not self._is_inside:
            begun = self._held.lstrip()
            if not begun.startswith(self._OPEN):
                is_open = self._OPEN.startswith(begun) and len(self._held) < MAX_SPACE
                return "" if is_open else self._end(self._held)
            self._is_inside, self._held = True, begun[len(self._OPEN) :]
        _, closed, rest = self._held.partition(self._CLOSE)
        if rest := rest.lstrip():
            return self._end(rest)
        # The rest of the thoughts is not kept; white space may follow them.
        self._held = self._CLOSE if closed else self._held[-len(self._CLOSE) :]
        return ""

    def finish(self) -> str:
        """Returns what was held back, at the end of the answer."""
        return "" if self._is_inside or self._is_over else self._end(self._held)

    def _end(self, text: str) -> str:
        self._is_over, self._held = True, ""
        return text


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(decode_reply(arguments.encode("utf-8", "replace")), dict)
    except ValueError:
        return False


def list_objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def read_count(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**53 else 0


def _read_cost(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 1e9 else 0.0
