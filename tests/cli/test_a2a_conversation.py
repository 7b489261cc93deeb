"""`a2a send` prints the answer it received, even if the agent later drops it from the task."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.a2a.scripted_agent import WELL_KNOWN, Request, card_10, scripted_agent, task_10
from tests.cli.terminal import Terminal

MADE = {"artifactId": "a", "parts": [{"text": "the answer"}]}
DONE = {"state": "TASK_STATE_COMPLETED"}


def update(task: str = "t1", **more: Any) -> dict[str, Any]:
    return {"artifactUpdate": {"taskId": task, "contextId": "c1", "artifact": MADE, **more}}


def ended(task: str = "t1") -> dict[str, Any]:
    return {"statusUpdate": {"taskId": task, "contextId": "c1", "status": DONE}}


PIECES = [
    update(artifact={"artifactId": "a", "parts": [{"text": "the "}]}),
    update(artifact={"artifactId": "a", "parts": [{"text": "answer"}]}, append=True),
]
STREAMS: dict[str, list[dict[str, Any]]] = {
    "updates": [{"task": task_10("WORKING")}, update(), ended()],
    "pieces": [{"task": task_10("WORKING")}, *PIECES, ended()],
    "a last snapshot without artifacts": [
        {"task": task_10("WORKING")},
        update(),
        {"task": task_10()},
    ],
    "updates of another task": [
        {"task": task_10("WORKING")},
        update("t2", artifact={"artifactId": "a", "parts": [{"text": "not mine"}]}),
        ended("t2"),
        update(),
        ended(),
    ],
    "one snapshot": [{"task": task_10(artifacts=[MADE])}],
}


async def test_conversation_prints_streamed_text_and_not_the_later_task(terminal: Terminal) -> None:
    """Half of the agents keep no tasks, the others answer without what they made."""
    events: list[dict[str, Any]] = []
    keeps = False

    async def handle(request: Request) -> None:
        if request.path == WELL_KNOWN:
            streaming = {"capabilities": {"streaming": True}}
            request.reply(200, card_10(f"http://{request.headers['host']}", **streaming))
        elif request.rpc == "SendStreamingMessage":
            request.stream()
            for event in events:
                await request.event(event)
        elif request.rpc == "GetTask" and request.params["id"] == "t1" and keeps:
            words = {"role": "ROLE_AGENT", "messageId": "m", "parts": [{"text": "all went well"}]}
            request.result(task_10(status={**DONE, "message": words}))
        else:
            request.fail(-32001, "Task not found")

    async with scripted_agent(handle) as agent:
        send = ("a2a", "send", agent.url, "hi")
        for name, told in STREAMS.items():
            events = told
            done = await asyncio.to_thread(terminal.run, *send)
            assert (done.code, done.out) == (0, "the answer\n"), (name, done)
            keeps = not keeps
        whole = (await asyncio.to_thread(terminal.run, *send, "--json")).json()
        assert whole["task"]["artifacts"] == [MADE]
        assert whole["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
