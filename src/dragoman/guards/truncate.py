"""Limits the size of results: long texts are cut with a marker, structured content keeps its shape,
binary data and programs stay whole. The whole text can be read as a resource for a while."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from dragoman.core import structs
from dragoman.core.call import ABSENT, Call, Result
from dragoman.core.errors import WorkFailed
from dragoman.core.kept_results import KeptResult, KeptResults
from dragoman.core.pipeline import Next
from dragoman.core.resource_uris import UI
from dragoman.core.tool import RESOURCE, TOOL
from dragoman.core.tool_identity import WORKFLOW
from dragoman.guards.config import Limits
from dragoman.guards.validate import compile_schema
from dragoman.wire.json import encode

TEXT, JSON = "text/plain", "application/json"
SHORTEST = 200
"""No text is cut to less than this many characters."""
ROUNDS = 30
CHECKED_ALONE = 32
"""Texts that are checked one by one if all together violate the schema."""

MARKED, BARE, WHOLE = "marked", "bare", "whole"
"""How a text is cut: with a marker at its end, without one, or not at all."""

_BASE64 = re.compile(r"[A-Za-z0-9+/_-]+={0,2}\s*")
_DATA_URL = re.compile(r"data:[^,]{0,200};base64,")
_LOOKED_AT = 4_096
_PROGRAM = re.compile(
    r"text/html\s*(?:;.*profile=\"?mcp-app|\+skybridge)|(?:application|text)/(?:x-)?"
    r"(?:(?:java|ecma|type|coffee)script|jsx|tsx|css|json5?|wasm|xml|sql|sh|shellscript|python|"
    r"ruby|perl|php|lua|java|kotlin|swift|go|rust|c|c\+\+|csharp|[\w.-]+\+(?:json|xml))\s*(?:;|$)",
    re.IGNORECASE,
)
"""Types of user interfaces (MCP Apps, OpenAI's Apps SDK), of code, and of data that cannot be
parsed if the end is missing."""

Mark = Callable[[int, int], str]
"""The marker for a text of `length` characters of which `left` remain."""
Fits = Callable[[Any], bool]


class Truncate:
    def __init__(self, limits: Limits, kept: KeptResults) -> None:
        self._kept = kept
        self.apply(limits)

    def apply(self, limits: Limits) -> None:
        """Applies to results from now on."""
        self.chars, self.data_chars = limits.result_chars, limits.data_chars
        self._least = min(self.chars, self.data_chars)

    async def __call__(self, next: Next, call: Call) -> Result:
        try:
            result = await next(call)
        except WorkFailed as error:
            self._cut_native(call, error)
            raise
        if 0 <= result.size <= self._least:
            return result  # nothing in it can be longer than the whole
        if isinstance(call.tool.target, KeptResult):
            return result  # it is read because it was cut
        if call.door == WORKFLOW:
            return result  # no model reads it; the run bounds it
        return await self._bound(call, result)

    async def _bound(self, call: Call, result: Result) -> Result:
        content: Sequence[Any] = result.content
        structured, failed = result.structured, result.failed
        if structured is not ABSENT:
            whole = encode(structured).decode()
            if not content and call.tool.kind == TOOL and len(whole) > self.chars:
                # The server would otherwise render all of it as text.
                content = [{"type": "text", "text": whole}]
            if len(whole) > self.data_chars:
                fits = _compile_fits(call.tool.definition)
                shorter = await self._shorten(call, structured, whole, fits)
                if isinstance(shorter, str):  # an error need not match the output schema
                    structured, failed = ABSENT, True
                    content = [*content, {"type": "text", "text": shorter}]
                else:
                    structured = shorter
            if content is not result.content or structured is not result.structured:
                result = structs.replace(
                    result, content=content, structured=structured, failed=failed
                )
        if any(self._is_long(call, block) for block in content):
            result = structs.replace(result, content=await self._bound_blocks(call, content))
        if any(self._is_long(call, block) for made in result.artifacts for block in made.content):
            artifacts = [
                replace(made, content=await self._bound_blocks(call, made.content))
                for made in result.artifacts
            ]
            result = structs.replace(result, artifacts=artifacts)
        return result

    async def _bound_blocks(self, call: Call, blocks: Sequence[Any]) -> list[Any]:
        return [
            await self._bound_block(call, block) if self._is_long(call, block) else block
            for block in blocks
        ]

    async def _bound_block(self, call: Call, block: Mapping[str, Any]) -> Mapping[str, Any]:
        if _is_data(block):
            whole = encode(block["data"]).decode()
            shorter = await self._shorten(call, block["data"], whole, _fits_anyhow)
            if isinstance(shorter, str):
                return {"type": "text", "text": shorter}
            block = {**block, "data": shorter}
        if isinstance(block.get("text"), str):
            block = {**block, "text": self._cut(call, block["text"], TEXT)}
        resource = block.get("resource")
        if isinstance(resource, dict) and isinstance(resource.get("text"), str):
            mime = resource.get("mimeType")
            if not self._is_whole(call, resource):
                mime = mime if isinstance(mime, str) else TEXT
                text = self._cut(call, resource["text"], mime, is_resource=True)
                block = {**block, "resource": {**resource, "text": text}}
        return block

    def _is_long(self, call: Call, block: Any) -> bool:
        if not isinstance(block, dict):
            return False
        resource, text = block.get("resource"), block.get("text")
        inner = resource.get("text") if isinstance(resource, dict) else None
        if inner is not None and self._is_whole(call, resource):
            inner = None
        return (
            (isinstance(text, str) and len(text) > self._limit_for(call)[0])
            or (isinstance(inner, str) and len(inner) > self.data_chars)
            or (_is_data(block) and len(encode(block["data"])) > self.data_chars)
        )  # fmt: skip

    def _is_whole(self, call: Call, resource: Any) -> bool:
        """Whether the size of messages alone limits it: a program that was requested by its
        address."""
        return call.tool.kind == RESOURCE and _is_program(resource)

    # --- texts -----------------------------------------------------------------------------------

    def _limit_for(self, call: Call, is_resource: bool = False) -> tuple[int, str]:
        """The maximum length of a text, and its setting. A text of a tool's result, which goes to a
        model, is shorter than a resource, whether that was read or is embedded in something."""
        if is_resource or call.tool.kind == RESOURCE:
            return self.data_chars, "data_chars"
        return self.chars, "result_chars"

    def _cut(self, call: Call, text: str, mime_type: str, is_resource: bool = False) -> str:
        most, setting = self._limit_for(call, is_resource)
        if len(text) <= most:
            return text
        where = self._keep(call, text, mime_type, most)
        return f"{text[:most]}\n{_marker(len(text), most, setting, most, where)}"

    def _cut_native(self, call: Call, error: WorkFailed) -> None:
        """Shortens the target's own error, which reaches the client, too."""
        native = error.native
        if native is None:
            return
        kept = dict(native)
        if "message" in kept:
            kept["message"] = self._cut(call, str(kept["message"]), TEXT)
        if "data" in kept and len(encode(kept["data"]).decode()) > self.chars:
            kept["data"] = f"[cut: more than {self.chars} characters left out]"
        error.native = kept

    def _keep(self, call: Call, text: str, mime_type: str, offset: int) -> str:
        """A sentence on where the whole can be read; empty if it is not kept. `offset` is that of
        the first missing part."""
        uri = self._kept.keep(call, text, mime_type)
        if uri is None:
            return ""
        seconds = self._kept.seconds
        time = f"{seconds / 60:g} minutes" if seconds >= 120 else f"{seconds:g} s"
        return (
            f"; for {time} the whole can be read as resource {uri}, and "
            f"parts of it with ?offset={offset}&limit={self.chars} after that address"
        )

    # --- structured content ----------------------------------------------------------------------

    async def _shorten(self, call: Call, value: Any, whole: str, fits: Fits) -> Any:
        """Cuts long texts in `value`; if that does not suffice, returns a text that says so."""
        most = self.data_chars
        if await asyncio.to_thread(count_chars, value) <= most:  # the rest is binary data
            return value
        where = self._keep(call, whole, JSON, 0)

        def mark(length: int, left: int) -> str:
            return _marker(length, left, "data_chars", most, where)

        # In a thread: measuring and validating megabytes takes a while.
        shorter = await asyncio.to_thread(partial(shorten, value, most, mark, fits))
        if shorter is not None:
            return shorter
        return (
            f'"{call.tool.name}" completed, but its structured result of {len(whole)} '
            f"characters is longer than [limits] data_chars = {most} and has no text that can be "
            f"cut; ask for less or raise the limit{where}"
        )


def _marker(length: int, left: int, setting: str, most: int, where: str) -> str:
    out = length - left
    return f"[cut: {out} of {length} characters left out, by [limits] {setting} = {most}{where}]"


def _is_program(resource: Mapping[str, Any]) -> bool:
    """Whether a part of the resource would be of no use: a user interface, code or JSON."""
    uri, mime = resource.get("uri"), resource.get("mimeType")
    if isinstance(uri, str) and uri.startswith(UI):
        return True
    return isinstance(mime, str) and _PROGRAM.match(mime) is not None


def _is_data(block: Mapping[str, Any]) -> bool:
    return block.get("type") == "data" and "data" in block


def _fits_anyhow(value: Any) -> bool:
    return True


def _compile_fits(definition: Mapping[str, Any]) -> Fits:
    """A check against the tool's output schema, as far as that can be compiled."""
    schema = definition.get("outputSchema")
    if not isinstance(schema, dict):
        return _fits_anyhow
    try:
        find_problem = compile_schema(schema)
    except ValueError:
        return _fits_anyhow
    return lambda value: find_problem(value) is None


# --- shortening structured content, pure ----------------------------------------------------------


def count_chars(value: Any) -> int:
    """The characters of `value` as JSON, without binary data."""
    binary = sum(len(text) for text, is_binary in _find_long(value) if is_binary)
    return len(encode(value).decode()) - binary


def shorten(value: Any, most: int, mark: Mark, fits: Fits) -> Any | None:
    """Shortens `value` to about `most` characters; None if cutting texts does not suffice.

    Base64 data stays whole, because a part of it is useless; so does a text that would violate the
    schema if cut. `fits` validates a value against its schema. If `value` itself is invalid, the
    result may be, too.
    """
    if count_chars(value) <= most:
        return value
    found = [text for text, is_binary in _find_long(value) if not is_binary]
    texts = sorted(enumerate(found), key=lambda one: len(one[1]))
    shorter = _cut_to_size(value, most, mark, texts, {})
    if shorter is None or fits(shorter) or not fits(value):
        return shorter
    modes = {number: WHOLE for number, _ in texts[:-CHECKED_ALONE]}
    for number, text in texts[-CHECKED_ALONE:]:
        modes[number] = _find_mode(value, number, text, mark, fits)
    movable = [one for one in texts if modes[one[0]] != WHOLE]
    shorter = _cut_to_size(value, most, mark, movable, modes)
    return shorter if shorter is not None and fits(shorter) else None


def _cut_to_size(
    value: Any, most: int, mark: Mark, texts: list[tuple[int, str]], modes: Mapping[int, str]
) -> Any | None:
    """Cuts all texts to one length: the largest at which the whole is short enough."""
    cap = _first_cap([len(text) for _, text in texts], count_chars(value) - most)
    for _ in range(ROUNDS):
        if cap < SHORTEST:
            return None
        shorter = _cut_texts(value, cap, mark, modes, MARKED)
        if count_chars(shorter) <= most:
            return shorter
        cap = cap * 3 // 4  # escapes and markers count, too
    return None


def _first_cap(lengths: list[int], over: int) -> int:
    """The length to which texts must be cut to save `over` characters; `lengths` are sorted."""
    longer = 0
    for taken, length in enumerate(reversed(lengths), 1):
        longer += length
        next_length = lengths[-taken - 1] if taken < len(lengths) else 0
        if longer - taken * next_length >= over:
            return (longer - over) // taken
    return 0


def _find_mode(value: Any, number: int, text: str, mark: Mark, fits: Fits) -> str:
    """How this text may be cut so that the value stays valid."""
    cap = max(SHORTEST, len(text) // 2)
    for mode in (MARKED, BARE):
        if fits(_cut_texts(value, cap, mark, {number: mode}, WHOLE)):
            return mode
    return WHOLE


def _cut_texts(value: Any, cap: int, mark: Mark, modes: Mapping[int, str], default: str) -> Any:
    """Cuts the long texts, numbered in the order of `_find_long`."""
    numbers = count()

    def cut(text: str) -> str:
        mode = modes.get(next(numbers), default)
        if len(text) <= cap or mode == WHOLE:
            return text
        return text[:cap] + mark(len(text), cap) if mode == MARKED else text[:cap]

    return _rebuild(value, cut)


def _rebuild(value: Any, cut: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return value if len(value) <= SHORTEST or _is_binary(value) else cut(value)
    if isinstance(value, list | tuple):
        return [_rebuild(item, cut) for item in value]
    if isinstance(value, dict):
        encoded = _find_binary_member(value)
        return {key: item if key == encoded else _rebuild(item, cut) for key, item in value.items()}
    return value


def _find_long(value: Any) -> Iterator[tuple[str, bool]]:
    """Finds long texts, and whether each is binary data, in the order of `_rebuild`."""
    if isinstance(value, str):
        if len(value) > SHORTEST:
            yield value, _is_binary(value)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _find_long(item)
    elif isinstance(value, dict):
        encoded = _find_binary_member(value)
        for key, item in value.items():
            if key == encoded:
                yield item, True
            else:
                yield from _find_long(item)


def _find_binary_member(value: Mapping[str, Any]) -> str | None:
    """The member with binary data of an image, audio or blob."""
    if isinstance(value.get("blob"), str):
        return "blob"
    if isinstance(value.get("data"), str) and isinstance(value.get("mimeType"), str):
        return "data"
    return None


def _is_binary(text: str) -> bool:
    """Whether a long text looks like base64."""
    if match := _DATA_URL.match(text):
        return _BASE64.fullmatch(text, match.end()) is not None
    if 60 <= text.find("\n") <= 80:  # MIME breaks it into lines
        text = text.replace("\r", "").replace("\n", "")
    seen = text[:_LOOKED_AT]
    mixed = any(c.isupper() for c in seen) and any(c.islower() for c in seen)
    mixed = mixed and any(c.isdigit() for c in seen)
    return mixed and _BASE64.fullmatch(text) is not None
