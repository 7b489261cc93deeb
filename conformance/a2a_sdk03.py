"""The official SDK 0.3, both ends: `python -m conformance.a2a_sdk03 client URL` or `server PORT`.

Runs in an environment of its own. The client does what it can over each of its transports; the
server is an agent that echoes, asks on "ask", and works until stopped on "slow".
"""

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import uvicorn
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2ARESTFastAPIApplication, A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Message,
    Part,
    PushNotificationConfig,
    Role,
    Task,
    TaskIdParams,
    TaskPushNotificationConfig,
    TaskQueryParams,
    TaskState,
    TextPart,
    TransportProtocol,
)
from a2a.utils import new_agent_text_message, new_task
from starlette.applications import Starlette
from starlette.routing import Mount

from conformance.a2a_output import expect, trying

TRANSPORTS = {"JSON-RPC": TransportProtocol.jsonrpc, "REST": TransportProtocol.http_json}


def message(words: str, **ids: str) -> Message:
    part = Part(root=TextPart(text=words))
    return Message(message_id=uuid.uuid4().hex, role=Role.user, parts=[part], **ids)


def text_of(task: Task) -> str:
    found = [part.root for artifact in task.artifacts or [] for part in artifact.parts]
    return "".join(part.text for part in found if isinstance(part, TextPart))


async def tasks_of(events: AsyncIterator[Any]) -> list[Task]:
    """The task as it was after each event; a message in place of a task ends it."""
    return [event[0] if isinstance(event, tuple) else event async for event in events]


async def last_of(events: AsyncIterator[Any]) -> Any:
    return (await tasks_of(events))[-1]


async def use(http: httpx.AsyncClient, card: AgentCard, name: str) -> None:
    def client(streaming: bool) -> Client:
        config = ClientConfig(
            streaming=streaming,
            httpx_client=http,
            supported_transports=[TRANSPORTS[name]],
            use_client_preference=True,
        )
        return ClientFactory(config).create(card)

    plain, streaming = client(False), client(True)
    with trying(f"{name}: send"):
        done = await last_of(plain.send_message(message("hello")))
        expect(done.status.state == TaskState.completed, done.status.state)
        expect(text_of(done) == "echo: hello", text_of(done))
    with trying(f"{name}: get"):
        again = await plain.get_task(TaskQueryParams(id=done.id))
        expect(again.id == done.id and text_of(again) == "echo: hello", again)
    with trying(f"{name}: a message in reply"):
        said = await last_of(plain.send_message(message("tck-message-response")))
        expect(isinstance(said, Message), said)
    with trying(f"{name}: stream"):
        seen = await tasks_of(streaming.send_message(message("tck-stream-basic")))
        expect(len(seen) >= 3, len(seen))
        expect(seen[-1].status.state == TaskState.completed, seen[-1].status.state)
        expect(text_of(seen[-1]) == "Streamed text content", text_of(seen[-1]))
    with trying(f"{name}: asked and answered"):
        asked = await last_of(plain.send_message(message("tck-multi-turn")))
        expect(asked.status.state == TaskState.input_required, asked.status.state)
        ids = {"task_id": asked.id, "context_id": asked.context_id}
        end = await last_of(plain.send_message(message("done", **ids)))
        expect(end.id == asked.id and end.status.state == TaskState.completed, end.status)
    with trying(f"{name}: cancel, and a second stream sees it"):
        await cancel(streaming)
    with trying(f"{name}: push configuration"):
        waiting = await last_of(plain.send_message(message("tck-input-required")))
        hook = PushNotificationConfig(url="http://127.0.0.1:9/hook", token="t")
        config = TaskPushNotificationConfig(task_id=waiting.id, push_notification_config=hook)
        made = await plain.set_task_callback(config)
        expect(made.push_notification_config.url == hook.url, made)
    with trying(f"{name}: an unknown task is an error"):
        try:
            found = await plain.get_task(TaskQueryParams(id=str(uuid.uuid4())))
        except Exception as error:
            expect("32001" in repr(error) or "404" in repr(error), repr(error))
        else:
            expect(False, found)


async def cancel(client: Client) -> None:
    first = client.send_message(message("tck-cancel"))
    task, _ = await asyncio.wait_for(anext(first), 10)
    second = client.resubscribe(TaskIdParams(id=task.id))
    await asyncio.wait_for(anext(second), 10)
    stopped = await client.cancel_task(TaskIdParams(id=task.id))
    expect(stopped.status.state == TaskState.canceled, stopped.status.state)
    for stream in (first, second):
        seen = await asyncio.wait_for(tasks_of(stream), 10)
        expect(seen[-1].status.state == TaskState.canceled, seen[-1].status.state)


async def run_client(url: str) -> None:
    async with httpx.AsyncClient(timeout=20) as http:
        card = None
        with trying("card"):
            card = await A2ACardResolver(http, url).get_agent_card()
            expect(card.protocol_version.startswith("0.3"), card.protocol_version)
        for name in TRANSPORTS:
            if card is not None:
                await use(http, card, name)


class Echo(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        task = context.current_task or new_task(context.message)
        if context.current_task is None:
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        words = context.get_user_input()
        if words == "ask":
            question = new_agent_text_message("What else?", task.context_id, task.id)
            await updater.update_status(TaskState.input_required, question, final=True)
            return
        await updater.start_work()
        if words == "slow":
            await asyncio.sleep(60)
        await updater.add_artifact([Part(root=TextPart(text=f"echo: {words}"))], name="echo")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None and context.context_id is not None
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def run_server(port: int) -> None:
    base = f"http://127.0.0.1:{port}"
    skill = AgentSkill(id="echo", name="Echo", description="Says it again", tags=["echo"])
    card = AgentCard(
        name="sdk03",
        description="Made with the SDK 0.3",
        version="1.0.0",
        url=f"{base}/",
        preferred_transport=TransportProtocol.jsonrpc,
        additional_interfaces=[
            AgentInterface(url=f"{base}/", transport=TransportProtocol.jsonrpc),
            AgentInterface(url=f"{base}/rest", transport=TransportProtocol.http_json),
        ],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[skill],
    )
    handler = DefaultRequestHandler(Echo(), InMemoryTaskStore())
    rest = A2ARESTFastAPIApplication(card, handler).build(rpc_url="")
    rpc = A2AStarletteApplication(card, handler)
    app = Starlette(routes=[Mount("/rest", rest), *rpc.routes()])
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    if sys.argv[1] == "server":
        run_server(int(sys.argv[2]))
    else:
        asyncio.run(run_client(sys.argv[2]))
