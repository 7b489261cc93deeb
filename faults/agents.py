"""External A2A agents on a thread: healthy ones, and ones that flood, hang or disconnect.

The first part of the path says how an agent behaves, so that one server plays any number of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.a2a.scripted_agent import Request, card_10, scripted_agent, task_10

STATUS = {
    "statusUpdate": {
        "taskId": "t1",
        "contextId": "c1",
        "status": {
            "state": "TASK_STATE_WORKING",
            "message": {
                "messageId": "m",
                "role": "ROLE_AGENT",
                "parts": [{"text": "on it " * 20}],
            },
        },
    }
}
FLOOD_SECONDS = 120.0


class Agents:
    """Its `url`; an agent is at `{url}/{manner}/{name}`."""

    def __init__(self) -> None:
        self.url = ""
        self.description = "Does it."
        """Of the skill in every card; change it, and the cards have changed."""

    async def handle(self, request: Request) -> None:
        manner, name = request.path.strip("/").split("/")[:2]
        if "/.well-known/" in request.path:
            skill = {"id": "do", "name": "do", "description": self.description, "tags": ["t"]}
            streams = {"streaming": manner != "silent"}
            base = f"{self.url}/{manner}/{name}"
            request.reply(200, card_10(base, name=name, skills=[skill], capabilities=streams))
        elif manner == "silent":
            await asyncio.Event().wait()
        elif manner == "closing":
            request.writer.close()
        elif request.rpc == "SendStreamingMessage":
            await self._stream(request, manner)
        elif request.rpc == "SendMessage":
            if manner == "comments":
                request.stream()
                await self._repeat(request, b": nothing\n\n", 0.05)
            request.result(
                {"task": task_10(artifacts=[{"artifactId": "a", "parts": [{"text": "x"}]}])}
            )
        else:
            request.fail(-32001)

    async def _stream(self, request: Request, manner: str) -> None:
        request.stream()
        await request.event({"task": task_10("WORKING")})
        if manner == "flooding":
            end = asyncio.get_running_loop().time() + FLOOD_SECONDS
            while asyncio.get_running_loop().time() < end:
                await request.event(STATUS)
        elif manner == "comments":
            await self._repeat(request, b": nothing\n\n", 0.05)
        elif manner == "hanging":
            await asyncio.Event().wait()
        done = task_10(artifacts=[{"artifactId": "a", "parts": [{"text": "x"}]}])
        await request.event({"task": done})

    async def _repeat(self, request: Request, data: bytes, pause: float) -> None:
        for _ in range(int(FLOOD_SECONDS / pause)):
            request.writer.write(data)
            await request.writer.drain()
            await asyncio.sleep(pause)


@contextmanager
def serving_agents() -> Iterator[Agents]:
    agents = Agents()
    loop = asyncio.new_event_loop()
    up, over = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with scripted_agent(agents.handle) as server:
            agents.url = server.url
            up.set()
            await over.wait()

    async def cancel_rest() -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def run() -> None:
        loop.set_exception_handler(lambda _, context: None)  # clients leave at any time
        try:
            loop.run_until_complete(serve())
            loop.run_until_complete(cancel_rest())
        finally:
            loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    if not up.wait(10):
        raise RuntimeError("the agents do not listen")
    try:
        yield agents
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(10)
