"""Models by the direct interface of pydantic-ai, which translates to each provider's own API.

Loaded when such a model is used for the first time. Of the library, only the translation is used:
tools are called by the hub, tries and fallbacks are those of the agent's loop, and where a provider
allows it, requests leave through the hub's own HTTP client.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import httpx2
from pydantic_ai import direct, exceptions
from pydantic_ai import messages as theirs
from pydantic_ai.models import ModelRequestParameters, infer_model
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.providers import infer_provider_class
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

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
from dragoman.agents.models.openai import MAX_REPLY, MAX_TOOL_REQUESTS
from dragoman.agents.models.provider import ProviderSettings
from dragoman.core.errors import (
    AnswerFiltered,
    HubError,
    TargetFailed,
    TimedOut,
    Unreachable,
    WorkFailed,
)
from dragoman.wire.http import Body, HttpClient

_RETRYING = frozenset({"anthropic"})
"""Providers whose library tries again by itself, which the loop does already."""
_BUSY = (
    exceptions.ModelRateLimitError,
    exceptions.ModelUnavailableError,
    exceptions.ModelServerError,
    exceptions.ModelConnectionError,
    exceptions.ModelRequestTimeout,
)


class PydanticAiModel:
    """Implements `ChatModel`."""

    def __init__(self, settings: ProviderSettings, http: HttpClient | None) -> None:
        """`http` sends the requests; None for a provider whose library sends its own. Raises
        `WorkFailed` for settings that the provider does not accept."""
        self.settings = settings
        self.name = settings.model
        self.origin = f"{settings.provider} {settings.base_url} {settings.model}"
        """What its answers carry is sent to the same address and model only."""
        try:
            self._model = infer_model(
                f"{settings.provider}:{settings.model}",
                lambda provider: _build_provider(provider, settings, http),
            )
        except (exceptions.UserError, ImportError, TypeError, ValueError) as error:
            raise WorkFailed(f'the model "{self.name}" cannot be used: {error}') from error
        self._request_settings = _build_request_settings(settings)

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[OfferedTool],
        on_text: TakeText,
        schema: Mapping[str, Any] | None = None,
    ) -> ModelReply:
        try:
            return await self._complete(messages, tools, on_text, schema)
        except WorkFailed as error:
            cause = error.__cause__
            is_refused = isinstance(cause, exceptions.ModelHTTPError) and cause.status_code == 400
            if not is_refused or not is_about_carried(messages, self.origin, str(error)):
                raise
        return await self._complete([*map(drop_carried, messages)], tools, on_text, schema)

    async def _complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[OfferedTool],
        on_text: TakeText,
        schema: Mapping[str, Any] | None,
    ) -> ModelReply:
        clock = asyncio.get_running_loop().time
        with self._translating_errors():
            async with asyncio.timeout(self.settings.timeout) as limit:
                async with direct.model_request_stream(
                    self._model,
                    build_messages(messages, self.origin),
                    model_settings=self._request_settings,
                    model_request_parameters=self._build_parameters(tools, schema),
                    instrument=False,
                ) as stream:
                    async for event in stream:
                        limit.reschedule(clock() + self.settings.idle_timeout)
                        if text := _find_text(event):
                            on_text(text)
                    reply = _build_reply(stream.get(), self.name, self.origin)
        if len(reply.tool_requests) > MAX_TOOL_REQUESTS:
            raise ModelUnavailable(
                f'the model "{self.name}" asks for more than {MAX_TOOL_REQUESTS} tool calls at once'
            )
        return reply

    def _build_parameters(
        self, tools: Sequence[OfferedTool], schema: Mapping[str, Any] | None
    ) -> ModelRequestParameters:
        offered = [
            ToolDefinition(
                name=one.name,
                description=one.description,
                parameters_json_schema=dict(one.schema),
                strict=False,
            )
            for one in tools
        ]
        if schema is None:
            return ModelRequestParameters(function_tools=offered)
        is_native = self._model.profile.get("supports_json_schema_output", False)
        return ModelRequestParameters(
            function_tools=offered,
            output_mode="native" if is_native else "prompted",
            output_object=OutputObjectDefinition(dict(schema), "answer"),
        )

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise ModelUnavailable(
                f'the model "{self.name}" has sent nothing for too long (timeout_secs)'
            ) from error
        except exceptions.ModelAPIError as error:
            raise self._translate(error) from error
        except exceptions.ContentFilterError as error:
            raise AnswerFiltered(self._describe("was stopped by a filter", error)) from error
        except (exceptions.UnexpectedModelBehavior, ValueError, KeyError) as error:
            raise ModelUnavailable(self._describe("sent an invalid answer", error)) from error
        except exceptions.UserError as error:
            raise WorkFailed(self._describe("cannot be used", error)) from error

    def _translate(self, error: exceptions.ModelAPIError) -> TargetFailed:
        if isinstance(error, exceptions.ModelContextWindowExceededError):
            return ContextTooLong(self._describe("cannot read so much", error))
        if isinstance(error, exceptions.ModelQuotaExceededError):  # no wait helps: another model
            return ModelUnavailable(self._describe("has no quota left", error), math.inf)
        if isinstance(error, _BUSY):
            cause = error.__cause__
            while cause is not None and not isinstance(cause, HubError):
                cause = cause.__cause__
            words = self._describe("is unavailable", cause or error)
            return ModelUnavailable(words, _find_pause(error))
        if isinstance(error, exceptions.ModelHTTPError):
            words = self._find_words(error)
            return build_failure(self.name, error.status_code, words, _find_pause(error))
        return ModelUnavailable(self._describe("sent an invalid answer", error))

    def _describe(self, what: str, error: BaseException) -> str:
        return f'the model "{self.name}" {what}: {self._find_words(error)}'

    def _find_words(self, error: BaseException) -> str:
        return find_error(_render_error(error), self.settings.api_key)


def _render_error(error: BaseException) -> str:
    body = getattr(error, "body", None)
    return json.dumps(body) if isinstance(body, dict | list) else str(body or error)


def _find_pause(error: exceptions.ModelAPIError) -> float | None:
    """The library knows the headers, and not what Google says in the body."""
    return find_pause({}, _render_error(error)) if error.retry_after is None else error.retry_after


# --- requests -------------------------------------------------------------------------------------


def _build_provider(name: str, settings: ProviderSettings, http: HttpClient | None) -> Any:
    given: dict[str, Any] = {}
    if settings.api_key:
        given["api_key"] = settings.api_key
    if settings.base_url:
        given["base_url"] = settings.base_url
    if http is not None:
        transport = HubTransport(http, settings.timeout)
        given["http_client"] = httpx2.AsyncClient(
            transport=transport, timeout=settings.timeout, trust_env=False
        )
    return infer_provider_class(name)(**given)


def _build_request_settings(settings: ProviderSettings) -> ModelSettings:
    made: dict[str, Any] = {
        "temperature": settings.temperature,
        "max_tokens": settings.max_tokens,
        "max_retries": 0 if settings.provider in _RETRYING else None,
        "extra_body": dict(settings.extra) or None,
    }
    return cast(ModelSettings, {name: one for name, one in made.items() if one is not None})


def build_messages(messages: Sequence[Message], origin: str = "") -> list[theirs.ModelMessage]:
    """Translates from the form of OpenAI's chat completions, with what answers carry for the model
    with that origin."""
    made: list[theirs.ModelMessage] = []
    names: dict[str, str] = {}
    for message in messages:
        if message.get("role") == "assistant":
            answer = _restore_answer(message, origin) or theirs.ModelResponse(
                _build_answer(message)
            )
            names |= {one.tool_call_id: one.tool_name for one in answer.tool_calls}
            made.append(answer)
            continue
        part = _build_request_part(message, names)
        if made and isinstance(made[-1], theirs.ModelRequest):
            made[-1] = theirs.ModelRequest([*made[-1].parts, part])
        else:
            made.append(theirs.ModelRequest([part]))
    return made


def _build_request_part(message: Message, names: Mapping[str, str]) -> theirs.ModelRequestPart:
    content = message.get("content")
    if message.get("role") == "system":
        return theirs.SystemPromptPart(str(content))
    if message.get("role") == "tool":
        id = str(message.get("tool_call_id"))
        return theirs.ToolReturnPart(names.get(id, "unknown"), str(content or ""), id)
    if isinstance(content, list):
        return theirs.UserPromptPart([_build_content(one) for one in content])
    return theirs.UserPromptPart(str(content))


def _build_content(part: Mapping[str, Any]) -> theirs.UserContent:
    url = part.get("image_url")
    address = str(url.get("url") if isinstance(url, dict) else "")
    if address.startswith("data:"):
        return theirs.BinaryContent.from_data_uri(address)
    return str(part.get("text") or address)  # an address stays text: the library would fetch it


def _build_answer(message: Message) -> list[Any]:
    parts: list[Any] = []
    if text := message.get("content"):
        parts.append(theirs.TextPart(str(text)))
    for one in message.get("tool_calls") or ():
        function = one["function"]
        arguments = _parse_object(function["arguments"])
        parts.append(theirs.ToolCallPart(function["name"], arguments, one["id"]))
    return parts


def _restore_answer(message: Message, origin: str) -> theirs.ModelResponse | None:
    """Restores the answer that a message carries, with the ids that the hub gave the tool calls;
    None if it carries none, or the library no longer reads it."""
    stored = find_carried(message, origin).get("response")
    if stored is None:
        return None
    try:
        (answer,) = theirs.ModelMessagesTypeAdapter.validate_python([stored])
    except ValueError:
        return None
    calls = message.get("tool_calls") or ()
    if not isinstance(answer, theirs.ModelResponse) or len(answer.tool_calls) != len(calls):
        return None
    left = iter(calls)
    return replace(answer, parts=[_restore_part(one, left) for one in answer.parts])


def _restore_part(part: Any, calls: Iterator[Mapping[str, Any]]) -> Any:
    if not isinstance(part, theirs.ToolCallPart):
        return part
    call = next(calls)
    return replace(part, tool_call_id=call["id"], args=_parse_object(call["function"]["arguments"]))


def _has_more(part: Any) -> bool:
    """Whether a part has something that a message in the form of OpenAI has no place for."""
    if not isinstance(part, theirs.TextPart | theirs.ToolCallPart):
        return True
    return bool(part.provider_details or part.id)


def _parse_object(text: str) -> dict[str, Any]:
    """The arguments of an earlier call, which may have been malformed: providers want an object."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"malformed": text}


# --- answers --------------------------------------------------------------------------------------


def _find_text(event: Any) -> str:
    if isinstance(event, theirs.PartStartEvent) and isinstance(event.part, theirs.TextPart):
        return event.part.content
    if isinstance(event, theirs.PartDeltaEvent) and isinstance(event.delta, theirs.TextPartDelta):
        return event.delta.content_delta
    return ""


def _build_reply(response: theirs.ModelResponse, model: str, origin: str) -> ModelReply:
    requests = [
        ToolRequest(one.tool_call_id, one.tool_name, _render_arguments(one.args))
        for one in response.parts
        if isinstance(one, theirs.ToolCallPart)
    ]
    text = "".join(one.content for one in response.parts if isinstance(one, theirs.TextPart))
    if not text and not requests and response.state != "complete":
        raise exceptions.UnexpectedModelBehavior("the answer is empty")
    usage = ModelUsage(response.usage.input_tokens, response.usage.output_tokens)
    ending = _find_ending(response)
    if ending == REFUSED and not text:
        text = str((response.provider_details or {}).get("refusal") or "")
    carry = None
    if any(map(_has_more, response.parts)):
        (stored,) = theirs.ModelMessagesTypeAdapter.dump_python([response], mode="json")
        carry = {"origin": origin, "data": {"response": stored}}
    return ModelReply(text, requests, usage, response.model_name or model, ending, carry)


def _find_ending(response: theirs.ModelResponse) -> str:
    if response.finish_reason == "content_filter":
        told = str((response.provider_details or {}).get("finish_reason"))
        return REFUSED if told == "refusal" else FILTERED  # Anthropic's
    return CUT if response.finish_reason == "length" else ""


def _render_arguments(arguments: Any) -> str:
    """As the model wrote them; the library would complete what is malformed."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {})


# --- the hub's HTTP client ------------------------------------------------------------------------


class HubTransport(httpx2.AsyncBaseTransport):
    """Sends the library's requests by the hub's HTTP client, which checks every address."""

    def __init__(self, http: HttpClient, timeout: float) -> None:
        self._http = http
        self._timeout = timeout

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        headers = {
            name: value
            for name, value in request.headers.items()
            if name not in _OWN and not name.startswith("x-stainless-")
        }
        with _translating(request):
            reply = await self._http.request(
                request.method,
                str(request.url),
                headers,
                await request.aread(),
                timeout=self._timeout,
            )
        return httpx2.Response(
            reply.status, headers=dict(reply.headers), stream=_BodyStream(reply.body, request)
        )


_OWN = frozenset(
    ("accept-encoding", "connection", "content-length", "host", "keep-alive", "transfer-encoding")
)
"""Headers that the hub's client sets itself."""


class _BodyStream(httpx2.AsyncByteStream):
    def __init__(self, body: Body, request: httpx2.Request) -> None:
        self._body = body
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        with _translating(self._request):
            async for chunk in self._body.chunks():
                size += len(chunk)
                if size > MAX_REPLY:
                    raise httpx2.ReadError(f"its answer is larger than {MAX_REPLY} bytes")
                yield chunk

    async def aclose(self) -> None:
        self._body.close()


@contextmanager
def _translating(request: httpx2.Request) -> Iterator[None]:
    try:
        yield
    except TimedOut as error:
        raise httpx2.ReadTimeout(str(error), request=request) from error
    except Unreachable as error:
        raise httpx2.ConnectError(str(error), request=request) from error
    except HubError as error:
        raise httpx2.RemoteProtocolError(str(error), request=request) from error
