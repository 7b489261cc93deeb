"""A runnable of BeeAI behind its A2A server, which keeps a memory for each A2A context."""

import sys
from typing import Any

from beeai_framework.adapters.a2a.serve.server import A2AServer, A2AServerConfig
from beeai_framework.backend import AssistantMessage, UserMessage
from beeai_framework.backend.message import AnyMessage
from beeai_framework.context import RunContext
from beeai_framework.emitter import Emitter
from beeai_framework.runnable import Runnable, RunnableOutput, runnable_entry
from beeai_framework.serve.utils import LRUMemoryManager
from scripted import answer


class Talker(Runnable[RunnableOutput]):
    """Counts the turns of a conversation."""

    def __init__(self) -> None:
        super().__init__()
        self._emitter = Emitter.root().child(namespace=["talker"], creator=self)

    @property
    def emitter(self) -> Emitter:
        return self._emitter

    @runnable_entry
    async def run(self, input: list[AnyMessage], /, **options: Any) -> RunnableOutput:
        async def work(context: RunContext) -> RunnableOutput:
            said = [message.text for message in input if isinstance(message, UserMessage)]
            return RunnableOutput(output=[AssistantMessage(answer(said))])

        return await work(RunContext.get())


port = int(sys.argv[1])
server = A2AServer(
    config=A2AServerConfig(host="127.0.0.1", port=port),
    memory_manager=LRUMemoryManager(maxsize=100),
)
server.register(Talker(), name="beeai talker", description="Counts the turns of a conversation")
server.serve()
