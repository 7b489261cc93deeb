"""An agent of Strands: `agent_factory` makes one for each A2A context."""

import sys
from collections.abc import AsyncIterator
from typing import Any

from scripted import answer
from strands import Agent
from strands.models.model import Model
from strands.multiagent.a2a import A2AServer


class Scripted(Model):
    def update_config(self, **model_config: Any) -> None: ...

    def get_config(self) -> dict[str, Any]:
        return {}

    def structured_output(self, *arguments: Any, **more: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *arguments: Any, **more: Any) -> AsyncIterator[Any]:
        said = [
            "".join(block.get("text", "") for block in message["content"])
            for message in messages
            if message["role"] == "user"
        ]
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": answer(said)}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


def make_agent(context_id: str) -> Agent:
    return Agent(
        model=Scripted(),
        name="strands talker",
        description="Counts the turns of a conversation",
        callback_handler=None,
    )


A2AServer(agent_factory=make_agent, host="127.0.0.1", port=int(sys.argv[1])).serve()
