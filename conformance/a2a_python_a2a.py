"""python-a2a, the 0.1 dialect, both ends: `python -m conformance.a2a_python_a2a client URL` or
`server PORT`.

Runs in an environment of its own. Its client swallows most errors, so each answer is looked at, and
what it says it cancelled is fetched again.
"""

import asyncio
import logging
import sys
import threading
import time
from typing import Any

from python_a2a import (
    A2AClient,
    A2AServer,
    Message,
    MessageRole,
    Task,
    TaskState,
    TaskStatus,
    TextContent,
    agent,
    run_server,
    skill,
)

from conformance.a2a_output import expect, trying


def message(words: str) -> Message:
    return Message(content=TextContent(text=words), role=MessageRole.USER)


def text_of(task: Task) -> str:
    found = [part for artifact in task.artifacts or [] for part in artifact.get("parts", [])]
    return "".join(part.get("text", "") for part in found)


def run_client(url: str) -> None:
    client = None
    with trying("card"):
        client = A2AClient(url)
        card = client.agent_card
        expect(card.name not in ("", "Unknown Agent") and bool(card.skills), card.to_dict())
    if client is None:
        return
    with trying("ask"):
        said = client.ask("hello")
        expect(said == "echo: hello", said)
    with trying("send a message"):
        answer = client.send_message(message("hello"))
        expect(getattr(answer.content, "text", "") == "echo: hello", answer.to_dict())
    done = client._create_task(message("hello"))
    with trying("send a task"):
        sent = client._send_task(done)
        expect(sent.status.state == TaskState.COMPLETED, sent.to_dict())
        expect(sent.id == done.id and text_of(sent) == "echo: hello", sent.to_dict())
    with trying("get"):
        again = client.get_task(done.id)
        expect(again.status.state == TaskState.COMPLETED, again.to_dict())
        expect(again.id == done.id and text_of(again) == "echo: hello", again.to_dict())
    with trying("asked"):
        waiting = client._send_task(client._create_task(message("tck-input-required")))
        expect(waiting.status.state == TaskState.INPUT_REQUIRED, waiting.to_dict())
    with trying("cancel"):
        client.cancel_task(waiting.id)
        expect(client.get_task(waiting.id).status.state == TaskState.CANCELED, waiting.id)
    with trying("cancel what is running"):
        cancel_running(client)
    with trying("stream"):
        chunks = asyncio.run(stream(client))
        expect("Streamed text content" in "".join(map(str, chunks)), chunks)


def cancel_running(client: A2AClient) -> None:
    """Its send waits for the end, so that it is cancelled from beside."""
    task = client._create_task(message("tck-cancel"))
    came: list[Any] = []
    sending = threading.Thread(target=lambda: came.append(client._send_task(task)), daemon=True)
    sending.start()
    end = time.monotonic() + 10
    while sending.is_alive() and time.monotonic() < end:
        client.cancel_task(task.id)
        sending.join(0.2)
    expect(bool(came) and came[0].status.state == TaskState.CANCELED, came)


async def stream(client: A2AClient) -> list[Any]:
    async with asyncio.timeout(15):
        return [chunk async for chunk in client.stream_response(message("tck-stream-basic"))]


@agent(name="python-a2a", description="Made with python-a2a", version="1.0.0")
class Echo(A2AServer):
    @skill(name="Echo", description="Says it again", tags=["echo"])
    def echo(self, words: str) -> str:
        return words

    def handle_task(self, task: Task) -> Task:
        given = task.message or {}
        content = given.get("content", {})
        words = content.get("text", "") if isinstance(content, dict) else ""
        words = words or "".join(part.get("text", "") for part in given.get("parts", []))
        if words == "ask":
            task.status = TaskStatus(state=TaskState.INPUT_REQUIRED)
            return task
        task.artifacts = [{"parts": [{"type": "text", "text": f"echo: {words}"}]}]
        task.status = TaskStatus(state=TaskState.COMPLETED)
        return task


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    if sys.argv[1] == "server":
        run_server(
            Echo(url=f"http://127.0.0.1:{sys.argv[2]}"), host="127.0.0.1", port=int(sys.argv[2])
        )
    else:
        run_client(sys.argv[2])
