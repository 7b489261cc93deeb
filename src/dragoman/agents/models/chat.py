"""What an agent says to a model and what comes back, independent of the provider.

Messages are plain objects in the form of OpenAI's chat completions, which most servers speak.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dragoman.core.call import Question
from dragoman.core.errors import TargetFailed, WorkFailed
from dragoman.core.structs import Struct

Message = Mapping[str, Any]
"""`role` is `system`, `user`, `assistant` or `tool`. An answer of a model may have a `CARRY`."""
CARRY = "carry"
"""In an answer: what its server wants back unchanged with the next request, and no other server
understands: `{"origin": …, "data": …}`."""
SHOWN = "shown"
"""Set in a message of the hub that stands between those of an exchange: no user wrote it."""
CUT, REFUSED, FILTERED = "cut", "refused", "filtered"
"""How answers end that are not whole: at a limit of tokens, by a refusal of the model, or by a
content filter of its provider."""


def find_carried(message: Message, origin: str) -> Mapping[str, Any]:
    """Finds what a message carries for the model with that origin; empty if it has nothing."""
    carry = message.get(CARRY)
    if not isinstance(carry, Mapping) or carry.get("origin") != origin:
        return {}
    data = carry.get("data")
    return data if isinstance(data, Mapping) else {}


def drop_carried(message: Message) -> Message:
    return {name: value for name, value in message.items() if name != CARRY}


_ABOUT_CARRIED = re.compile(r"signature|thinking|thought|reasoning|encrypted.content")


def is_about_carried(messages: Sequence[Message], origin: str, error: str) -> bool:
    """Whether an error may be about what messages carry for the model with that origin: it does not
    take its reasoning back, or its server can no longer read it, as after a change of the account.
    """
    carried = [data for one in messages if (data := find_carried(one, origin))]
    extras = [extra for data in carried for extra in data.get("tool_calls") or ()]
    text = error.lower()
    is_named = any(name in text for extra in extras for name in extra)
    return bool(carried) and (is_named or _ABOUT_CARRIED.search(text) is not None)


class ToolRequest(Struct, frozen=True):
    """A tool call that a model asks for."""

    id: str
    name: str
    arguments: str
    """JSON, as the model wrote it: possibly invalid."""


class ModelUsage(Struct, frozen=True):
    """What a model reports that an answer took."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    """In US dollars, where the provider reports it."""


class ModelReply(Struct, frozen=True):
    text: str = ""
    tool_requests: Sequence[ToolRequest] = ()
    usage: ModelUsage = ModelUsage()
    model: str = ""
    """The model that answered."""
    ending: str = ""
    """`CUT`, `REFUSED` or `FILTERED`; empty for a whole answer."""
    carry: Mapping[str, Any] | None = None
    """The `CARRY` of its message."""


class OfferedTool(Struct, frozen=True):
    """A tool as a model sees it."""

    name: str
    description: str
    schema: Mapping[str, Any]


TakeText = Callable[[str], None]
"""Takes the text of an answer piece by piece."""


class ChatModel(Protocol):
    @property
    def name(self) -> str: ...

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[OfferedTool],
        on_text: TakeText,
        schema: Mapping[str, Any] | None = None,
    ) -> ModelReply:
        """Asks for the next message. With `schema` the answer is JSON that matches it. Raises
        `ModelUnavailable` if another try, or another model, may succeed, or else `WorkFailed`."""


class ModelUnavailable(TargetFailed):
    """The model cannot answer now: it is overloaded, limits the rate, or cannot be reached."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds after which the provider asks to try again; None if it has not said."""


class ClientNeeded(Exception):
    """The client that called must answer a question before the model's answer is known."""

    def __init__(self, question: Question) -> None:
        super().__init__("the client's model is needed")
        self.question = question


class ContextTooLong(WorkFailed):
    """The conversation does not fit into the model's context."""
