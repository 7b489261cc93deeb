"""One conversation with an agent: a message goes out, or a task is taken up, and is followed to its
end; events are told, questions asked, the answer printed."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping
from typing import Any, NoReturn
from uuid import uuid4

from dragoman.cli.a2a.connection import Agent
from dragoman.cli.a2a.output import (
    ENDED,
    WAITING,
    Teller,
    parts_of,
    print_answer,
    print_parts,
    state_of,
    status_parts,
    words_of,
)
from dragoman.cli.a2a.task_state import HeardTask
from dragoman.cli.base import prompt
from dragoman.cli.base.errors import FAILED, say, stop
from dragoman.cli.base.output import print_json, print_json_line
from dragoman.core.errors import HubError, TimedOut, Unreachable

RESUMES = 5
FIRST_POLL, LONGEST_POLL = 0.1, 3.0
ASKED = 6
"""The agent asks something, and nobody is here to answer."""


def new_message(
    parts: list[dict[str, Any]], context: str | None, task: str | None
) -> dict[str, Any]:
    message: dict[str, Any] = {
        "messageId": str(uuid4()),
        "role": "ROLE_USER",
        "parts": parts,
        "contextId": context,
        "taskId": task,
    }
    return {name: value for name, value in message.items() if value}


class Talk:
    """From a message, or a task, to its end: events told, questions asked, the answer printed."""

    def __init__(self, agent: Agent, as_json: bool, aloud: bool, *, events: bool = False) -> None:
        self._agent = agent
        self._as_json = as_json
        self._events = events
        self._teller = Teller(aloud and not events)
        self._heard = HeardTask()

    async def run(self, message: dict[str, Any]) -> None:
        client, url = self._agent.client, self._agent.url
        streams = (await client.settled(url)).streams
        # Without a stream it is asked how far it is, however long it takes.
        how = {} if streams else {"configuration": {"returnImmediately": True}}
        for _ in range(prompt.ROUNDS):
            stream = await client.stream(url, {"message": message, **how})
            await self._hear(stream)
            await self._settle(stream.last_id)
            task = self._answer.get("task")
            if task is None or state_of(task) not in WAITING or not prompt.can_ask():
                break
            parts = self._asked(task)
            message = new_message(parts, task.get("contextId"), self._heard.id)
            self._heard.next_turn()
        self.finish()

    async def watch(self, id: str) -> None:
        self._heard = HeardTask(id)
        await self._settle(None)

    # --- following -----------------------------------------------------------------------------

    async def _hear(self, stream: Any) -> bool:
        """Whether anything came. A line that breaks is no error yet."""
        heard = False
        try:
            async for event in stream:
                heard = True
                self._take(event)
        except (Unreachable, TimedOut):
            if not self._heard.id:
                raise
        finally:
            await stream.close()
        return heard

    def _take(self, event: Mapping[str, Any]) -> None:
        if self._events:
            print_json_line(event)
        else:
            self._teller.hear(event)
        self._heard.hear(event)

    @property
    def _answer(self) -> Mapping[str, Any]:
        return self._heard.answer

    def _is_settled(self) -> bool:
        if "message" in self._answer:
            return True
        return state_of(self._answer.get("task", {})) in (*ENDED, *WAITING)

    async def _settle(self, last: str | None) -> None:
        """By its stream again where that broke, else by asking. A task that has ended is asked for
        only where nothing was heard of what came of it: agents need not keep it."""
        from dragoman.app.app import A2aError

        client, url = self._agent.client, self._agent.url
        fruitless = 0
        id = self._heard.id
        while not self._is_settled() and id and fruitless < RESUMES:
            try:
                stream = await client.subscribe(url, id, last)
            except (Unreachable, TimedOut):
                fruitless += 1
                await asyncio.sleep(min(0.2 * 2**fruitless, LONGEST_POLL))
                continue
            except A2aError:  # it has none
                break
            fruitless = 0 if await self._hear(stream) and stream.last_id != last else fruitless + 1
            last = stream.last_id or last
        pause = FIRST_POLL
        while id and not self._is_settled():
            self._heard.hear({"task": await client.get(url, id)})
            if self._is_settled():
                return
            self._teller.hear(self._answer)
            await asyncio.sleep(pause)
            pause = min(pause * 1.6, LONGEST_POLL)
        if id and "message" not in self._answer and not self._heard.has_content:
            with contextlib.suppress(A2aError, HubError):
                self._heard.hear({"task": await client.get(url, id)})

    # --- asking --------------------------------------------------------------------------------

    def _asked(self, task: Mapping[str, Any]) -> list[dict[str, Any]]:
        self._teller.end()
        answer = prompt.answered({"reply": _question(task)})["reply"]
        if answer["action"] != "accept":
            say(f"the task waits; {self._how_to_go_on(task)}")
            raise SystemExit(ASKED)
        content = answer.get("content") or {"reply": "It is done; please go on."}
        if set(content) == {"reply"}:
            return [{"text": str(content["reply"])}]
        return [{"data": content, "mediaType": "application/json"}]

    def _how_to_go_on(self, task: Mapping[str, Any]) -> str:
        target = self._agent.target or "''"
        return f'answer with: dragoman a2a send {target} --task {task.get("id")} "…"'

    # --- the end -------------------------------------------------------------------------------

    def finish(self) -> None:
        self._teller.end()
        if self._as_json:
            print_json(self._answer)
        if "message" in self._answer:
            if not self._as_json and not self._events:
                print_parts(parts_of(self._answer["message"]), sys.stdout)
            return
        task = self._answer.get("task", {})
        state = state_of(task)
        if state in WAITING:
            words = words_of(status_parts(task))
            say(f"{state}: {words or 'the agent does not say what'}; {self._how_to_go_on(task)}")
            raise SystemExit(ASKED)
        if not self._as_json and not self._events and not self._teller.told:
            self._print(task, state)
        if state != "completed":
            _failed(task, state)

    def _print(self, task: Mapping[str, Any], state: str) -> None:
        print_answer(task, sys.stdout)
        if state == "completed" and not task.get("artifacts"):
            print_parts(status_parts(task), sys.stdout)


def _question(task: Mapping[str, Any]) -> dict[str, Any]:
    parts = status_parts(task)
    words = words_of(parts)
    for part in parts:
        said = part.get("data")
        if isinstance(said, dict) and isinstance(said.get("url"), str):
            return {"kind": "url", "message": words, "url": said["url"]}
        if isinstance(said, dict) and isinstance(said.get("schema"), dict):
            return {"kind": "form", "message": words, "requestedSchema": said["schema"]}
    schema = {"properties": {"reply": {"type": "string", "title": "answer"}}, "required": ["reply"]}
    return {"kind": "form", "message": words, "requestedSchema": schema}


def _failed(task: Mapping[str, Any], state: str) -> NoReturn:
    words = words_of(status_parts(task))
    ended = state if state == "failed" else f"was {state}"
    stop(f"the task {ended}" + (f": {words}" if words else "; no reason is given"), FAILED)
