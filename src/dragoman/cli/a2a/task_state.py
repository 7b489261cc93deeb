"""What was heard of a task so far, joined from events and snapshots into one task of 1.0's form.

A snapshot may have less than what was heard before it: agents drop artifacts and history from what
they send at the end, or from what they answer when they are asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.cli.a2a.output import list_parts, list_status_parts

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
