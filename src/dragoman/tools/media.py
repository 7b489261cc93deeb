"""`image_analyze`: asks a model that can see about an image of the workspace."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Protocol

from dragoman.core.call import Call, Result
from dragoman.core.errors import InvalidInput, WorkFailed
from dragoman.core.local_agents import AgentProfile
from dragoman.tools.files import WorkspaceFiles
from dragoman.tools.tool_spec import BoundTool, ToolSpec, ToolUse, build_text_result
from dragoman.tools.workspace import MAX_PATH, parse_path

DEFAULT_PROMPT = "Describe this image."

IMAGE_ANALYZE = ToolSpec(
    name="image_analyze",
    title="Analyze an image",
    description="Answers a question about an image of your workspace: PNG, JPEG, GIF or WebP.",
    properties={
        "path": {"type": "string", "maxLength": MAX_PATH, "description": "The image."},
        "prompt": {
            "type": "string",
            "maxLength": 10_000,
            "description": f'What to find out. Default: "{DEFAULT_PROMPT}"',
        },
    },
    required=("path",),
    read_only=True,
)


class VisionModel(Protocol):
    """A model that can see."""

    async def describe_image(
        self, agent: AgentProfile, image: bytes, media_type: str, prompt: str, within: Call
    ) -> str | None:
        """Answers the prompt about the image with the agent's model; None if the agent has no model
        that can see. Raises a `HubError`."""


def find_image_type(data: bytes) -> str | None:
    """Finds the media type by the first bytes; None for anything but an image."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return None


class MediaTools:
    def __init__(self, files: WorkspaceFiles, model: VisionModel | None) -> None:
        self._files = files
        self._model = model

    def bind_tools(self) -> Iterable[BoundTool]:
        yield BoundTool(IMAGE_ANALYZE, self._analyze)

    async def _analyze(self, use: ToolUse) -> Result:
        parts = parse_path(use.arguments["path"])
        path = "/".join(parts)
        self._files.note_read(use, path)
        data = await self._files.threads.run(partial(self._files.open(use.agent).read, parts))
        media_type = find_image_type(data)
        if media_type is None:
            raise InvalidInput(f'"{path}" is not a PNG, JPEG, GIF or WebP image')
        prompt = use.arguments.get("prompt", DEFAULT_PROMPT)
        answer = None
        if self._model is not None:
            answer = await self._model.describe_image(use.agent, data, media_type, prompt, use.call)
        if answer is None:
            raise WorkFailed(
                "no model that can see is available: the agent's model must accept images"
            )
        return build_text_result(answer)
