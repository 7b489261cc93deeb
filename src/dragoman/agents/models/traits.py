"""What servers with OpenAI's interfaces refuse in a request: by their host, or by what they say.

Compatible servers differ in optional members, and some answer an unknown one with an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from typing import Any
from urllib.parse import urlsplit

from dragoman.core.structs import Struct

MAX_TOKENS, MAX_COMPLETION_TOKENS = "max_tokens", "max_completion_tokens"
_OTHER_NAME = {MAX_TOKENS: MAX_COMPLETION_TOKENS, MAX_COMPLETION_TOKENS: MAX_TOKENS}
"""One member under its older and its newer name."""


class ServerTraits(Struct, frozen=True, kw_only=True):
    max_tokens: str = MAX_TOKENS
    """The name of the limit of an answer."""
    omitted: frozenset[str] = frozenset()
    """Optional members that it refuses."""


_OPENAI = ServerTraits(max_tokens=MAX_COMPLETION_TOKENS)
_HOSTS: Mapping[str, ServerTraits] = {
    "api.openai.com": _OPENAI,
    "openai.azure.com": _OPENAI,
    "services.ai.azure.com": _OPENAI,
    "cognitiveservices.azure.com": _OPENAI,
    "mistral.ai": ServerTraits(omitted=frozenset(("stream_options",))),
}
"""By host or domain."""


def find_traits(base_url: str) -> ServerTraits:
    host = urlsplit(base_url).hostname or ""
    for name, traits in _HOSTS.items():
        if host == name or host.endswith(f".{name}"):
            return traits
    return ServerTraits()


def drop_members(body: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in {*names}}


def adapt_body(body: Mapping[str, Any], left_out: Set[str]) -> dict[str, Any]:
    """Leaves members out; one that has another name is sent under that, unless it is left out
    too."""
    made = drop_members(body, left_out)
    for name, other in _OTHER_NAME.items():
        if name in body and name in left_out and other not in left_out:
            made.setdefault(other, body[name])
    return made


_NAMED: Mapping[str, re.Pattern[str]] = {
    "stream_options": re.compile(r"\bstream_options\b"),
    MAX_TOKENS: re.compile(r"\bmax_tokens\b"),
    MAX_COMPLETION_TOKENS: re.compile(r"\bmax_completion_tokens\b"),
    "max_output_tokens": re.compile(r"\bmax_output_tokens\b"),
    "temperature": re.compile(r"\btemperature\b"),
    "include": re.compile(r"[\"'`]include[\"'`]|\bencrypted content is not supported\b"),
}
"""How errors name the optional members that the hub sends. What the `extra` of a manifest adds is
not among them: its errors are for its author."""
_WRONG_VALUE = re.compile(
    r"too (?:large|high|big|many|small|low)|at (?:most|least)|must be|maximum|minimum|exceed"
    r"|(?:less|greater|more|larger|smaller) than"
)
"""What errors say about the value of a limit, which would be lost with its member."""


def find_refused(sent: Mapping[str, Any], error: str) -> frozenset[str]:
    """Finds the optional members of a request that its error names."""
    text = error.lower()
    named = {name for name, pattern in _NAMED.items() if name in sent and pattern.search(text)}
    if _WRONG_VALUE.search(text):
        named -= {MAX_TOKENS, MAX_COMPLETION_TOKENS, "max_output_tokens"}
    return frozenset(named)
