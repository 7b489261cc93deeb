"""Limits the size of results: long texts are cut with a marker, structured content keeps its shape,
binary data stays whole. The whole text can be read as a resource for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from dragoman.core.call import ABSENT, Artifact, Call, Result
from dragoman.core.errors import WorkFailed
from dragoman.core.kept_results import KeptResult, KeptResults
from dragoman.core.pipeline import Next
from dragoman.core.tool import RESOURCE, TOOL
from dragoman.guards.config import Limits
from dragoman.guards.shorten_content import shorten
from dragoman.guards.validate import compile_schema
from dragoman.wire.json import encode

TEXT, JSON = "text/plain", "application/json"


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
                result = replace(result, content=content, structured=structured, failed=failed)
        if any(self._is_long(call, block) for block in content):
            result = replace(result, content=await self._bound_blocks(call, content))
        if any(self._is_long(call, block) for made in result.artifacts for block in made.content):
            artifacts = [await self._bound_artifact(call, one) for one in result.artifacts]
            result = replace(result, artifacts=artifacts)
        return result

    async def _bound_artifact(self, call: Call, made: Artifact) -> Artifact:
        return replace(made, content=await self._bound_blocks(call, made.content))

    async def _bound_blocks(self, call: Call, blocks: Sequence[Any]) -> list[Any]:
        bounded = []
        for block in blocks:
            if self._is_long(call, block):
                block = await self._bound_block(call, block)
            bounded.append(block)
        return bounded

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
            text = self._cut(call, resource["text"], mime if isinstance(mime, str) else TEXT)
            block = {**block, "resource": {**resource, "text": text}}
        return block

    def _is_long(self, call: Call, block: Any) -> bool:
        if not isinstance(block, dict):
            return False
        most = self._limit_for(call)[0]
        resource = block.get("resource")
        inner = resource.get("text") if isinstance(resource, dict) else None
        return (
            any(isinstance(text, str) and len(text) > most for text in (block.get("text"), inner))
            or (_is_data(block) and len(encode(block["data"])) > self.data_chars)
        )  # fmt: skip

    # --- texts -----------------------------------------------------------------------------------

    def _limit_for(self, call: Call) -> tuple[int, str]:
        """The maximum length of a text, and its setting. A tool's result, which goes to a model, is
        shorter than a document that was requested by its address."""
        if call.tool.kind == RESOURCE:
            return self.data_chars, "data_chars"
        return self.chars, "result_chars"

    def _cut(self, call: Call, text: str, mime_type: str) -> str:
        most, setting = self._limit_for(call)
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
        return (
            f"; for {_spell(self._kept.seconds)} the whole can be read as resource {uri}, and "
            f"parts of it with ?offset={offset}&limit={self.chars} after that address"
        )

    # --- structured content ----------------------------------------------------------------------

    async def _shorten(
        self, call: Call, value: Any, whole: str, fits: Callable[[Any], bool]
    ) -> Any:
        """Cuts long texts in `value`; if that does not suffice, returns a text that says so."""
        most = self.data_chars
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


def _spell(seconds: float) -> str:
    return f"{seconds / 60:g} minutes" if seconds >= 120 else f"{seconds:g} s"


def _is_data(block: Mapping[str, Any]) -> bool:
    return block.get("type") == "data" and "data" in block


def _fits_anyhow(value: Any) -> bool:
    return True


def _compile_fits(definition: Mapping[str, Any]) -> Callable[[Any], bool]:
    """A check against the tool's output schema, as far as that can be compiled."""
    schema = definition.get("outputSchema")
    if not isinstance(schema, dict):
        return _fits_anyhow
    try:
        find_problem = compile_schema(schema)
    except ValueError:
        return _fits_anyhow
    return lambda value: find_problem(value) is None
