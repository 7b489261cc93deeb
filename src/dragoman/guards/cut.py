"""Keeps results to a size, on the way back: text is cut with a marker, structure never broken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dragoman.core.call import ABSENT, Artifact, Call, Result
from dragoman.core.errors import BadReply, WorkFailed
from dragoman.core.pipeline import Next
from dragoman.wire.json import encode


class Cut:
    def __init__(self, chars: int) -> None:
        self.chars = chars

    async def __call__(self, call: Call, next: Next) -> Result:
        try:
            result = await next(call)
        except WorkFailed as error:
            self._cut_native(error)
            raise
        if 0 <= result.size <= self.chars:
            return result  # nothing in it can be longer than the whole
        if result.structured is not ABSENT and self._too_long(result.structured):
            raise BadReply(
                f'"{call.tool.name}" answered with a structured result of more than {self.chars} '
                "characters, which cannot be cut; ask for less or raise [limits] result_chars"
            )
        if any(self._long(block) for block in result.content):
            result = replace(result, content=[self._cut(block) for block in result.content])
        if result.artifacts:
            result = replace(
                result, artifacts=[self._cut_made(call, one) for one in result.artifacts]
            )
        return result

    def _cut_made(self, call: Call, made: Artifact) -> Artifact:
        for block in made.content:
            if block.get("type") == "data" and self._too_long(block.get("data")):
                raise BadReply(
                    f'"{call.tool.name}" made data of more than {self.chars} characters, which '
                    "cannot be cut; ask for less or raise [limits] result_chars"
                )
        if not any(self._long(block) for block in made.content):
            return made
        return replace(made, content=[self._cut(block) for block in made.content])

    def _cut_native(self, error: WorkFailed) -> None:
        """The far side's own error reaches the caller too, and is as long as it likes."""
        native = error.native
        if native is None:
            return
        kept = dict(native)
        if "message" in kept:
            kept["message"] = self._cut({"text": str(kept["message"])})["text"]
        if "data" in kept and self._too_long(kept["data"]):
            kept["data"] = f"[cut: more than {self.chars} characters left out]"
        error.native = kept

    def _too_long(self, value: Any) -> bool:
        encoded = encode(value)
        return len(encoded) > self.chars and len(encoded.decode()) > self.chars

    def _long(self, block: Any) -> bool:
        return any(len(text) > self.chars for _, text in _texts(block))

    def _cut(self, block: Any) -> Any:
        for holder, text in _texts(block):
            if len(text) > self.chars:
                marker = f"\n[cut: {len(text) - self.chars} of {len(text)} characters left out]"
                cut = text[: self.chars] + marker
                if holder == "text":
                    block = {**block, "text": cut}
                else:
                    block = {**block, "resource": {**block["resource"], "text": cut}}
        return block


def _texts(block: Any) -> list[tuple[str, str]]:
    """The texts in a block of content: its own, or that of the resource inside it."""
    if not isinstance(block, dict):
        return []
    found = []
    if isinstance(block.get("text"), str):
        found.append(("text", block["text"]))
    resource = block.get("resource")
    if isinstance(resource, dict) and isinstance(resource.get("text"), str):
        found.append(("resource", resource["text"]))
    return found
