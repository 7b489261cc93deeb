"""What is sent for a call of a skill, what its answer comes to, and what its errors are called.

Pure. An answer is what a program can use: the object, the text, or the whole artifact where it has
several parts, these in the agent's own dialect; the same in content blocks for models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dragoman.a2a.client.endpoint import A2aErrorStatus, AgentHttpStatus
from dragoman.a2a.protocol.dialects import operations, render_parts
from dragoman.a2a.protocol.errors import A2aError
from dragoman.a2a.protocol.parts import JSON, Part, block_from_part, find_structured_part
from dragoman.a2a.protocol.skill_tools import AS_BOTH, AS_TEXT
from dragoman.a2a.remote.remote_task import RemoteTask, build_artifact, read_parts
from dragoman.core.call import ABSENT, Artifact, Result
from dragoman.core.errors import (
    BadReply,
    HubError,
    RemoteA2AInvalidResponseError,
    RemoteA2ATaskFailedError,
    RemoteA2ATimeoutError,
    RemoteA2ATransportError,
    TimedOut,
    Unreachable,
    WorkFailed,
)
from dragoman.wire.json import encode

Parts = Sequence[Mapping[str, Any]]


def parts_from_arguments(arguments: Mapping[str, Any], form: str) -> list[Part]:
    """One part of data, one of text, or both. The text of one argument that is text is that; of
    others it is their JSON."""
    parts: list[Part] = [] if form == AS_TEXT else [{"data": arguments, "mediaType": JSON}]
    if form == AS_TEXT or (form == AS_BOTH and arguments):
        first = next(iter(arguments.values()), "")
        alone = len(arguments) <= 1 and isinstance(first, str)
        parts.append({"text": first if alone else encode(arguments).decode()})
    return parts


# --- answers --------------------------------------------------------------------------------------


def result_of(far: RemoteTask, handle: str, name: str, version: str) -> Result:
    """Of a task that is settled. Raises for one that failed; `version` is the agent's dialect."""
    if far.message is not None:
        return _of_words(read_parts(far.message), name, version, direct=True)
    if far.state != operations.COMPLETED:
        return far.result(handle)
    made = far.made()
    if not any(read_parts(one) for one in made):
        told = _of_words(far.last_words, name, version)
        return replace(told, artifacts=(), said=far.said())
    return replace(_of_made(far, made, version), said=far.said())


def _of_made(far: RemoteTask, made: list[dict[str, Any]], version: str) -> Result:
    artifacts = [build_artifact(one["artifactId"], one) for one in made]
    if len(made) > 1:
        whole = [_whole(one, version) for one in made]
        return _of_many({"artifacts": whole}, artifacts)
    parts = made[0]["parts"]
    if len(parts) > 1:
        if (data := find_structured_part(parts)) is not None and isinstance(data["data"], dict):
            others = [block_from_part(part) for part in parts if part is not data]
            return _of_many(data["data"], artifacts, others)
        return _of_many(_whole(made[0], version), artifacts)
    return _of_one(artifacts[0].content[0], artifacts, far.size)


def _of_words(parts: Parts, name: str, version: str, *, direct: bool = False) -> Result:
    """A message instead of a task, or what was said at its end. By the same rules."""
    blocks = [block_from_part(part) for part in parts]
    if not blocks:
        words = f'agent "{name}" has completed it and says nothing more'
        blocks = [{"type": "text", "text": words}]
    data = any(block["type"] == "data" for block in blocks)
    made = (
        [Artifact(id=operations.RESPONSE, name=operations.RESPONSE, content=blocks)] if data else []
    )
    if len(blocks) == 1:
        return _of_one(blocks[0], made, direct=direct)
    return _of_many({"parts": render_parts(version, parts)}, made, blocks, direct=direct)


def _of_one(
    block: Mapping[str, Any], artifacts: list[Artifact], size: int = -1, *, direct: bool = False
) -> Result:
    data = block["data"] if block["type"] == "data" else None
    return Result(
        content=[_shown(block)],
        structured=data if isinstance(data, dict) else ABSENT,
        artifacts=artifacts,
        size=size,
        direct=direct,
    )


def _of_many(
    structured: Mapping[str, Any],
    artifacts: list[Artifact],
    blocks: Sequence[Any] | None = None,
    *,
    direct: bool = False,
) -> Result:
    if blocks is None:
        blocks = [block for one in artifacts for block in one.content]
    return Result(
        content=[_shown(block) for block in blocks],
        structured=structured,
        artifacts=artifacts,
        direct=direct,
    )


def _whole(artifact: Mapping[str, Any], version: str) -> dict[str, Any]:
    return {**artifact, "parts": render_parts(version, artifact["parts"])}


def _shown(block: Mapping[str, Any]) -> Mapping[str, Any]:
    if block["type"] != "data":
        return block
    return {"type": "text", "text": encode(block["data"]).decode()}


# --- errors ---------------------------------------------------------------------------------------


def remote_error(error: HubError | A2aError, name: str) -> HubError:
    """The error by the name that it has for skills; those that have none of their own as they
    are."""
    if isinstance(error, A2aErrorStatus):
        said = f'agent "{name}" answered with HTTP {error.status}: {error.message}'
        return RemoteA2ATransportError(said)
    if isinstance(error, A2aError):  # the agent itself says that it failed at it
        return RemoteA2ATaskFailedError(f'agent "{name}" answered: {error.message}')
    if isinstance(error, AgentHttpStatus):
        return RemoteA2ATransportError(str(error))
    if isinstance(error, Unreachable):
        return RemoteA2ATransportError(str(error), sent=error.sent)
    if isinstance(error, TimedOut):
        return RemoteA2ATimeoutError(str(error))
    if isinstance(error, BadReply):
        return RemoteA2AInvalidResponseError(str(error))
    if isinstance(error, WorkFailed):
        return RemoteA2ATaskFailedError(str(error), error.native)
    return error
