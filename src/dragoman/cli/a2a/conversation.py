"""One conversation with an agent: a message goes out, or a task is taken up, and is followed to its
end; events are told, questions asked, the answer printed."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping
from typing import Any, NoReturn
from uuid import uuid4

from dragoman.cli.a2a.connection import AgentConnection
from dragoman.cli.a2a.output import (
    ENDED,
    WAITING,
    ProgressPrinter,
    join_text,
    list_parts,
    list_status_parts,
    print_answer,
    print_parts,
    read_state,
)
from dragoman.cli.base import prompt
from dragoman.cli.base.errors import FAILED, fail, say
from dragoman.cli.base.output import print_json, print_json_line
from dragoman.core.errors import HubError, TimedOut, Unreachable

_KEPT = ("artifacts", "history")


class ObservedTask:
    def __init__(self, id: str = "") -> None:
        self.id = id
        self.message: Mapping[str, Any] | None = None
        """The event of an answer in words, instead of a task."""
        self._task: dict[str, Any] = {}

    @property
    def answer(self) -> Mapping[str, Any]:
        """`{"message": …}`, `{"task": …}`, or nothing where nothing was heard."""
        if self.message is not None:
            return self.message
        return {"task": self._task} if self._task else {}

    @property
    def has_content(self) -> bool:
        """Whether it was told what came of the task, and not only that it ended."""
        return bool(self._task.get("artifacts") or list_status_parts(self._task))

    def apply_event(self, event: Mapping[str, Any]) -> None:
        """A StreamResponse. What it says of another task is none of this one's."""
        if "message" in event:
            self.message = event
        elif isinstance(task := event.get("task"), dict):
            if self._is_own(task.get("id")):
                self._merge_snapshot(task)
        elif isinstance(update := event.get("statusUpdate"), dict):
            if self._is_own(update.get("taskId")):
                self._update(status=update.get("status"), contextId=update.get("contextId"))
        elif isinstance(update := event.get("artifactUpdate"), dict) and self._is_own(
            update.get("taskId")
        ):
            self._update(contextId=update.get("contextId"))
            self._add_artifact(update.get("artifact"), update.get("append") is True)

    def start_turn(self) -> None:
        """A question was answered: what was asked is heard no more."""
        self._task.pop("status", None)

    def _is_own(self, id: Any) -> bool:
        if isinstance(id, str) and id:
            if self.id and id != self.id:
                return False
            self.id = id
        return True

    def _merge_snapshot(self, task: Mapping[str, Any]) -> None:
        kept = {name: self._task[name] for name in _KEPT if self._task.get(name)}
        said = {name: value for name, value in task.items() if name not in kept or value}
        self._task = {**self._task, **kept, **said}

    def _update(self, **members: Any) -> None:
        self._task.setdefault("id", self.id)
        self._task.update({name: value for name, value in members.items() if value})

    def _add_artifact(self, artifact: Any, append: bool) -> None:
        if not isinstance(artifact, dict):
            return
        made = [one for one in self._task.get("artifacts") or () if isinstance(one, dict)]
        for at, one in enumerate(made):
            if one.get("artifactId") == artifact.get("artifactId"):
                made[at] = _append_parts(one, artifact) if append else artifact
                break
        else:
            made.append(artifact)
        self._task["artifacts"] = made


def _append_parts(one: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Text that comes in pieces is one text."""
    parts = list(list_parts(one))
    for part in list_parts(more):
        if parts and set(part) == {"text"} == set(parts[-1]):
            parts[-1] = {"text": f"{parts[-1]['text']}{part['text']}"}
        else:
            parts.append(part)
    return {**one, "parts": parts}


RESUMES = 5
FIRST_POLL, LONGEST_POLL = 0.1, 3.0
ASKED = 6
"""The agent asks something, and nobody is here to answer."""


def build_message(
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


class AgentConversation:
    """From a message, or a task, to its end: events told, questions asked, the answer printed."""

    def __init__(
        self, agent: AgentConnection, as_json: bool, aloud: bool, *, events: bool = False
    ) -> None:
        self._agent = agent
        self._as_json = as_json
        self._events = events
        self._progress = ProgressPrinter(aloud and not events)
        self._task = ObservedTask()

    async def run(self, message: dict[str, Any]) -> None:
        client, url = self._agent.client, self._agent.url
        streams = (await client.find_probed(url)).can_stream
        # Without a stream it is asked how far it is, however long it takes.
        how = {} if streams else {"configuration": {"returnImmediately": True}}
        for _ in range(prompt.MAX_ROUNDS):
            stream = await client.stream_message(url, {"message": message, **how})
            await self._read_stream(stream)
            await self._follow(stream.last_id)
            task = self._answer.get("task")
            if task is None or read_state(task) not in WAITING or not prompt.list_question_kinds():
                break
            parts = self._ask_user(task)
            message = build_message(parts, task.get("contextId"), self._task.id)
            self._task.start_turn()
        self.finish()

    async def watch(self, id: str) -> None:
        self._task = ObservedTask(id)
        await self._follow(None)

    # --- following -----------------------------------------------------------------------------

    async def _read_stream(self, stream: Any) -> bool:
        """Whether anything came. A line that breaks is no error yet."""
        heard = False
        try:
            async for event in stream:
                heard = True
                self._handle_event(event)
        except (Unreachable, TimedOut):
            if not self._task.id:
                raise
        finally:
            await stream.close()
        return heard

    def _handle_event(self, event: Mapping[str, Any]) -> None:
        if self._events:
            print_json_line(event)
        else:
            self._progress.handle_event(event)
        self._task.apply_event(event)

    @property
    def _answer(self) -> Mapping[str, Any]:
        return self._task.answer

    def _is_settled(self) -> bool:
        if "message" in self._answer:
            return True
        return read_state(self._answer.get("task", {})) in (*ENDED, *WAITING)

    async def _follow(self, last: str | None) -> None:
        """By its stream again where that broke, else by asking. A task that has ended is asked for
        only where nothing was heard of what came of it: agents need not keep it."""
        from dragoman.app.app import A2aError

        client, url = self._agent.client, self._agent.url
        fruitless = 0
        id = self._task.id
        while not self._is_settled() and id and fruitless < RESUMES:
            try:
                stream = await client.subscribe(url, id, last)
            except (Unreachable, TimedOut):
                fruitless += 1
                await asyncio.sleep(min(0.2 * 2**fruitless, LONGEST_POLL))
                continue
            except A2aError:  # it has none
                break
            fruitless = (
                0 if await self._read_stream(stream) and stream.last_id != last else fruitless + 1
            )
            last = stream.last_id or last
        pause = FIRST_POLL
        while id and not self._is_settled():
            self._task.apply_event({"task": await client.get_task(url, id)})
            if self._is_settled():
                return
            self._progress.handle_event(self._answer)
            await asyncio.sleep(pause)
            pause = min(pause * 1.6, LONGEST_POLL)
        if id and "message" not in self._answer and not self._task.has_content:
            with contextlib.suppress(A2aError, HubError):
                self._task.apply_event({"task": await client.get_task(url, id)})

    # --- asking --------------------------------------------------------------------------------

    def _ask_user(self, task: Mapping[str, Any]) -> list[dict[str, Any]]:
        self._progress.end()
        answer = prompt.ask_questions({"reply": _build_question(task)})["reply"]
        if answer["action"] != "accept":
            say(f"the task waits; {self._render_next_command(task)}")
            raise SystemExit(ASKED)
        content = answer.get("content") or {"reply": "It is done; please go on."}
        if set(content) == {"reply"}:
            return [{"text": str(content["reply"])}]
        return [{"data": content, "mediaType": "application/json"}]

    def _render_next_command(self, task: Mapping[str, Any]) -> str:
        target = self._agent.target or "''"
        return f'answer with: dragoman a2a send {target} --task {task.get("id")} "…"'

    # --- the end -------------------------------------------------------------------------------

    def finish(self) -> None:
        self._progress.end()
        if self._as_json:
            print_json(self._answer)
        if "message" in self._answer:
            if not self._as_json and not self._events:
                print_parts(list_parts(self._answer["message"]), sys.stdout)
            return
        task = self._answer.get("task", {})
        state = read_state(task)
        if state in WAITING:
            words = join_text(list_status_parts(task)) or "the agent does not say what"
            say(f"{state}: {words}; {self._render_next_command(task)}")
            raise SystemExit(ASKED)
        if not self._as_json and not self._events and not self._progress.has_output:
            self._print(task, state)
        if state != "completed":
            _fail_task(task, state)

    def _print(self, task: Mapping[str, Any], state: str) -> None:
        print_answer(task, sys.stdout)
        if state == "completed" and not task.get("artifacts"):
            print_parts(list_status_parts(task), sys.stdout)


def _build_question(task: Mapping[str, Any]) -> dict[str, Any]:
    parts = list_status_parts(task)
    words = join_text(parts)
    for part in parts:
        said = part.get("data")
        if isinstance(said, dict) and isinstance(said.get("url"), str):
            return {"kind": "url", "message": words, "url": said["url"]}
        if isinstance(said, dict) and isinstance(said.get("schema"), dict):
            return {"kind": "form", "message": words, "requestedSchema": said["schema"]}
    schema = {"properties": {"reply": {"type": "string", "title": "answer"}}, "required": ["reply"]}
    return {"kind": "form", "message": words, "requestedSchema": schema}


def _fail_task(task: Mapping[str, Any], state: str) -> NoReturn:
    words = join_text(list_status_parts(task))
    ended = state if state == "failed" else f"was {state}"
    fail(f"the task {ended}" + (f": {words}" if words else "; no reason is given"), FAILED)
