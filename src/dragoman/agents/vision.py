"""Looks at images with the model of the agent that asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dragoman.core.call import Call
from dragoman.core.local_agents import AgentProfile

if TYPE_CHECKING:
    from dragoman.agents.manifest_agents import LocalAgent


class AgentVision:
    """Implements `tools.media.VisionModel`."""

    def __init__(self, agents: Mapping[str, LocalAgent]) -> None:
        """`agents` are all local agents by name."""
        self._agents = agents

    async def describe_image(
        self, agent: AgentProfile, image: bytes, media_type: str, prompt: str, within: Call
    ) -> str | None:
        from dragoman.agents.model_agent import ModelAgent

        found = self._agents.get(agent.name)
        if not isinstance(found, ModelAgent):
            return None
        return await found.describe_image(image, media_type, prompt, within)
