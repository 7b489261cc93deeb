"""Sends a message to an agent or watches a task until it ends: prints events and the answer, and
asks the user the agent's questions."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping
from typing import Any
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
from dragoman.core.backoff import Backoff
from dragoman.core.errors import HubError, TimedOut, Unreachable

_KEPT = ("artifacts", "history")


class ObservedTask:
    def __init__(self, id: str = "") -> None:
        self.id = id
        self.message: Mapping[str, Any] | None = None
        """The event of a direct answer, instead of a task."""
        self._task: dict[str, Any] = {}

    @property
    def answer(self) -> Mapping[str, Any]:
        """`{"message": …}`, `{"task": …}`, or {} before the first event."""
        if self.message is not None:
            return self.message
        return {"task": self._task} if self._task else {}

    @property
    def has_content(self) -> bool:
        """Whether the task has an artifact or a status message."""
        return bool(self._task.get("artifacts") or list_status_parts(self._task))

    def apply_event(self, event: Mapping[str, Any]) -> None:
        """Applies a StreamResponse; ignores events of other tasks."""
        if "message" in event:
            self.message = event
        elif isinstance(task := event.get("task"), dict):
            if self._is_own(task.get("id")):
                kept = {name: self._task[name] for name in _KEPT if self._task.get(name)}
                said = {name: value for name, value in task.items() if name not in kept or value}
                self._task = {**self._task, **kept, **said}
        elif isinstance(update := event.get("statusUpdate"), dict):
            if self._is_own(update.get("taskId")):
                self._update(status=update.get("status"), contextId=update.get("contextId"))
        elif isinstance(update := event.get("artifactUpdate"), dict) and self._is_own(
            update.get("taskId")
        ):
            self._update(contextId=update.get("contextId"))
            self._add_artifact(update.get("artifact"), update.get("append") is True)

    def start_turn(self) -> None:
        """Drops the status after a question was answered."""
        self._task.pop("status", None)

    def _is_own(self, id: Any) -> bool:
        if isinstance(id, str) and id:
            if self.id and id != self.id:
                return False
            self.id = id
        return True

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
    """Appends parts to an artifact, joining adjacent text parts."""
    parts = list(list_parts(one))
    for part in list_parts(more):
        if parts and set(part) == {"text"} == set(parts[-1]):
            parts[-1] = {"text": f"{parts[-1]['text']}{part['text']}"}
        else:
            parts.append(part)
    return {**one, "parts": parts}


MAX_RESUMES = 5
FIRST_POLL, LONGEST_POLL = 0.1, 3.0
INPUT_REQUIRED = 6
"""Exit code: the agent asks a question that was not answered."""


def build_message(
    parts: list[dict[str, Any]], context: str | None, task: str | None
) -> dict[str, Any]:
    ids = {"contextId": context, "taskId": task}
    message = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": parts}
    return message | {name: value for name, value in ids.items() if value}


class AgentConversation:
    """Follows one message or task to its end."""

    def __init__(
        self, agent: AgentConnection, as_json: bool, streams: bool, *, events: bool = False
    ) -> None:
        self._agent = agent
        self._as_json = as_json
        self._events = events
        self._progress = ProgressPrinter(streams and not events)
        self._task = ObservedTask()

    async def run(self, message: dict[str, Any]) -> None:
        client, url = self._agent.client, self._agent.url
        streams = (await client.find_probed(url)).can_stream
        # An agent without streaming is polled.
        how = {} if streams else {"configuration": {"returnImmediately": True}}
        for _ in range(prompt.MAX_ROUNDS):
            stream = await client.stream_message(url, {"message": message, **how})
            await self._read_stream(stream)
            await self._follow(stream.last_id)
            task = self._task.answer.get("task")
            if task is None or read_state(task) not in WAITING or not prompt.list_question_kinds():
                break
            parts = self._ask_user(task)
            message = build_message(parts, task.get("contextId"), self._task.id)
            self._task.start_turn()
        self.finish()

    async def watch(self, id: str) -> None:
        self._task = ObservedTask(id)
        await self._follow(None)

    async def _read_stream(self, stream: Any) -> bool:
        """Handles the events of a stream; returns whether any came. A lost connection is an error
        only before the task is known."""
        has_events = False
        try:
            async for event in stream:
                has_events = True
                self._handle_event(event)
        except (Unreachable, TimedOut):
            if not self._task.id:
                raise
        finally:
            await stream.close()
        return has_events

    def _handle_event(self, event: Mapping[str, Any]) -> None:
        if self._events:
            print_json_line(event)
        else:
            self._progress.handle_event(event)
        self._task.apply_event(event)

    def _is_settled(self) -> bool:
        if "message" in self._task.answer:
            return True
        return read_state(self._task.answer.get("task", {})) in (*ENDED, *WAITING)

    async def _follow(self, last: str | None) -> None:
        """Follows the task to its end: resubscribes to a broken stream, else polls. Fetches an
        ended task only if no result was seen, because agents need not keep it."""
        from dragoman.a2a.protocol.errors import A2aError

        client, url = self._agent.client, self._agent.url
        failures = 0
        retry = Backoff(0.4, LONGEST_POLL)
        id = self._task.id
        while not self._is_settled() and id and failures < MAX_RESUMES:
            try:
                stream = await client.subscribe(url, id, last)
            except (Unreachable, TimedOut):
                failures += 1
                await asyncio.sleep(retry.delay(failures))
                continue
            except A2aError:  # it cannot stream
                break
            has_events = await self._read_stream(stream)
            failures = 0 if has_events and stream.last_id != last else failures + 1
            last = stream.last_id or last
        poll = Backoff(FIRST_POLL, LONGEST_POLL, factor=1.6)
        while id and not self._is_settled():
            self._task.apply_event({"task": await client.get_task(url, id)})
            if self._is_settled():
                return
            self._progress.handle_event(self._task.answer)
            await asyncio.sleep(poll.next_delay())
        if id and "message" not in self._task.answer and not self._task.has_content:
            with contextlib.suppress(A2aError, HubError):
                self._task.apply_event({"task": await client.get_task(url, id)})

    def _ask_user(self, task: Mapping[str, Any]) -> list[dict[str, Any]]:
        self._progress.end()
        answer = prompt.ask_questions({"reply": _build_question(task)})["reply"]
        if answer["action"] != "accept":
            say(f"the task waits for input; {self._render_next_command(task)}")
            raise SystemExit(INPUT_REQUIRED)
        content = answer.get("content") or {"reply": "It is done; please go on."}
        if set(content) == {"reply"}:
            return [{"text": str(content["reply"])}]
        return [{"data": content, "mediaType": "application/json"}]

    def _render_next_command(self, task: Mapping[str, Any]) -> str:
        target = self._agent.target or "''"
        return f'answer with: dragoman a2a send {target} --task {task.get("id")} "…"'

    def finish(self) -> None:
        self._progress.end()
        if self._as_json:
            print_json(self._task.answer)
        if "message" in self._task.answer:
            if not self._as_json and not self._events:
                print_parts(list_parts(self._task.answer["message"]), sys.stdout)
            return
        task = self._task.answer.get("task", {})
        state = read_state(task)
        if state in WAITING:
            words = join_text(list_status_parts(task)) or "no question given"
            say(f"{state}: {words}; {self._render_next_command(task)}")
            raise SystemExit(INPUT_REQUIRED)
        if not self._as_json and not self._events and not self._progress.has_output:
            print_answer(task, sys.stdout)
            if state == "completed" and not task.get("artifacts"):
                print_parts(list_status_parts(task), sys.stdout)
        if state != "completed":
            words = join_text(list_status_parts(task))
            ended = state if state == "failed" else f"was {state}"
            fail(f"the task {ended}" + (f": {words}" if words else " without a reason"), FAILED)


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
