"""The official SDK 0.2, both ends: `python -m conformance.a2a_sdk02 client URL` or `server PORT`.

Runs in an environment of its own. It speaks JSON-RPC and finds the card at the older path.
"""

import asyncio
import sys
import uuid
from typing import Any

import httpx
import uvicorn
from a2a.client import A2ACardResolver, A2AClient
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentSkill,
    CancelTaskRequest,
    GetTaskPushNotificationConfigParams,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    Message,
    MessageSendConfiguration,
    MessageSendParams,
    Part,
    PushNotificationConfig,
    Role,
    SendMessageRequest,
    SendStreamingMessageRequest,
    SetTaskPushNotificationConfigRequest,
    Task,
    TaskIdParams,
    TaskPushNotificationConfig,
    TaskQueryParams,
    TaskState,
    TaskStatusUpdateEvent,
    TextPart,
)
from a2a.utils import new_agent_text_message, new_task

from conformance.a2a_output import expect, trying


def params(words: str, **ids: str) -> MessageSendParams:
    part = Part(root=TextPart(text=words))
    sent = Message(messageId=uuid.uuid4().hex, role=Role.user, parts=[part], **ids)
    modes = ["text/plain", "application/json"]
    settings = MessageSendConfiguration(acceptedOutputModes=modes, blocking=True)
    return MessageSendParams(message=sent, configuration=settings)


def one() -> str:
    return uuid.uuid4().hex


def result(answer: Any) -> Any:
    if hasattr(answer.root, "error"):
        raise AssertionError(f"error {answer.root.error}")
    return answer.root.result


def text_of(task: Task) -> str:
    found = [part.root for artifact in task.artifacts or [] for part in artifact.parts]
    return "".join(part.text for part in found if isinstance(part, TextPart))


async def send(client: A2AClient, words: str, **ids: str) -> Any:
    request = SendMessageRequest(id=one(), params=params(words, **ids))
    return result(await client.send_message(request))


async def run_client(url: str) -> None:
    async with httpx.AsyncClient(timeout=20) as http:
        card = None
        with trying("card"):
            card = await A2ACardResolver(http, url).get_agent_card()
        if card is not None:
            await use(A2AClient(http, agent_card=card))


async def use(client: A2AClient) -> None:
    with trying("send"):
        done = await send(client, "hello")
        expect(done.status.state == TaskState.completed, done.status.state)
        expect(text_of(done) == "echo: hello", text_of(done))
    with trying("get"):
        request = GetTaskRequest(id=one(), params=TaskQueryParams(id=done.id))
        again = result(await client.get_task(request))
        expect(again.id == done.id and text_of(again) == "echo: hello", again)
    with trying("a message in reply"):
        said = await send(client, "tck-message-response")
        expect(isinstance(said, Message), said)
    with trying("stream"):
        request = SendStreamingMessageRequest(id=one(), params=params("tck-stream-basic"))
        events = [result(event) async for event in client.send_message_streaming(request)]
        expect(isinstance(events[0], Task) and len(events) >= 4, events)
        last = events[-1]
        expect(isinstance(last, TaskStatusUpdateEvent) and last.final, last)
        expect(last.status.state == TaskState.completed, last.status.state)
    with trying("asked and answered"):
        asked = await send(client, "tck-multi-turn")
        expect(asked.status.state == TaskState.input_required, asked.status.state)
        end = await send(client, "done", taskId=asked.id, contextId=asked.contextId)
        expect(end.id == asked.id and end.status.state == TaskState.completed, end.status)
    with trying("push configuration"):
        waiting = await send(client, "tck-input-required")
        hook = PushNotificationConfig(url="http://127.0.0.1:9/hook", token="t")
        wanted = TaskPushNotificationConfig(taskId=waiting.id, pushNotificationConfig=hook)
        setting = SetTaskPushNotificationConfigRequest(id=one(), params=wanted)
        made = result(await client.set_task_callback(setting))
        expect(made.pushNotificationConfig.url == hook.url, made)
        which = GetTaskPushNotificationConfigParams(id=waiting.id)
        getting = GetTaskPushNotificationConfigRequest(id=one(), params=which)
        kept = result(await client.get_task_callback(getting))
        expect(kept.pushNotificationConfig.url == hook.url, kept)
    with trying("cancel"):
        stopping = CancelTaskRequest(id=one(), params=TaskIdParams(id=waiting.id))
        stopped = result(await client.cancel_task(stopping))
        expect(stopped.status.state == TaskState.canceled, stopped.status.state)
    with trying("an unknown task is an error"):
        request = GetTaskRequest(id=one(), params=TaskQueryParams(id=one()))
        answer = await client.get_task(request)
        expect(answer.root.error.code == -32001, answer)


class Echo(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        task = context.current_task or new_task(context.message)
        if context.current_task is None:
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.contextId)
        words = context.get_user_input()
        if words == "ask":
            question = new_agent_text_message("What else?", task.contextId, task.id)
            await updater.update_status(TaskState.input_required, question, final=True)
            return
        await updater.start_work()
        if words == "slow":
            await asyncio.sleep(60)
        await updater.add_artifact([Part(root=TextPart(text=f"echo: {words}"))], name="echo")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None and context.context_id is not None
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.update_status(TaskState.canceled, final=True)


def run_server(port: int) -> None:
    skill = AgentSkill(id="echo", name="Echo", description="Says it again", tags=["echo"])
    card = AgentCard(
        name="sdk02",
        description="Made with the SDK 0.2",
        version="1.0.0",
        url=f"http://127.0.0.1:{port}/",
        capabilities=AgentCapabilities(streaming=True),
        defaultInputModes=["text/plain"],
        defaultOutputModes=["text/plain"],
        skills=[skill],
    )
    handler = DefaultRequestHandler(Echo(), InMemoryTaskStore())
    app = A2AStarletteApplication(card, handler).build()
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    if sys.argv[1] == "server":
        run_server(int(sys.argv[2]))
    else:
        asyncio.run(run_client(sys.argv[2]))
