"""An agent of crewAI behind the A2A SDK that crewAI uses.

crewAI gives its agents no memory of a context; what was said in it is kept here.
"""

import sys
from typing import Any

import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore
from crewai import Agent
from crewai.a2a import A2AServerConfig
from crewai.a2a.utils.task import execute
from crewai.llms.base_llm import BaseLLM
from scripted import answer

conversations: dict[str, list[str]] = {}


class Scripted(BaseLLM):
    def call(self, messages: Any, *arguments: Any, **more: Any) -> str:
        text = messages if isinstance(messages, str) else str(messages[-1]["content"])
        context, _, _ = text.partition("context=")[2].partition(" ")
        return f"Final Answer: {answer(conversations[context])}"

    async def acall(self, messages: Any, *arguments: Any, **more: Any) -> str:
        return self.call(messages)

    def supports_function_calling(self) -> bool:
        return False


class Executor(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        said = conversations.setdefault(str(context.context_id), [])
        said.append(context.get_user_input())
        part = context.message.parts[0].root
        part.text = f"context={context.context_id} {part.text}"
        await execute(agent, context, event_queue)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


port = int(sys.argv[1])
url = f"http://127.0.0.1:{port}/"
agent = Agent(
    role="crewai talker",
    goal="Count the turns of a conversation",
    backstory="Counts.",
    llm=Scripted(model="scripted"),
    a2a=A2AServerConfig(name="crewai talker", url=url),
)
handler = DefaultRequestHandler(agent_executor=Executor(), task_store=InMemoryTaskStore())
app = A2AStarletteApplication(agent_card=agent.to_agent_card(url), http_handler=handler).build()
uvicorn.run(app, host="127.0.0.1", port=port)
