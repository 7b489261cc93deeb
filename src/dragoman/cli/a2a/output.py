"""Prints cards, tasks and answers of agents, with control characters escaped."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from dragoman.cli.base.errors import say
from dragoman.cli.base.output import clean, print_table, render_output, style
from dragoman.core.urls import render_url

STATES = {
    "TASK_STATE_SUBMITTED": "submitted",
    "TASK_STATE_WORKING": "working",
    "TASK_STATE_COMPLETED": "completed",
    "TASK_STATE_FAILED": "failed",
    "TASK_STATE_CANCELED": "cancelled",
    "TASK_STATE_INPUT_REQUIRED": "input required",
    "TASK_STATE_AUTH_REQUIRED": "login required",
    "TASK_STATE_REJECTED": "rejected",
}
ENDED = ("completed", "failed", "cancelled", "rejected")
WAITING = ("input required", "login required")
SHOWN_SKILLS = 100


def read_state(task: Mapping[str, Any]) -> str:
    status = task.get("status")
    state = status.get("state") if isinstance(status, dict) else None
    return STATES.get(str(state), "unknown")


def list_status_parts(task: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    status = task.get("status")
    message = status.get("message") if isinstance(status, dict) else None
    return list_parts(message)


def list_parts(holder: Any) -> list[Mapping[str, Any]]:
    parts = holder.get("parts") if isinstance(holder, dict) else None
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def join_text(parts: list[Mapping[str, Any]]) -> str:
    return " ".join(str(part["text"]) for part in parts if "text" in part)


# --- cards ----------------------------------------------------------------------------------------


def print_card(
    card: Mapping[str, Any], found_at: str, endpoint: str, findings: list[str], target: str
) -> None:
    print(f"{style(clean(card['name']), bold=True)}  (version {clean(card['version'])})")
    if card.get("description"):
        print(f"  {clean(card['description'])}")
    print(f"  card      {clean(render_url(found_at))}")
    print(f"  uses      {clean(endpoint)}")
    for one in card["supportedInterfaces"]:
        tenant = f", tenant {clean(one['tenant'])}" if one.get("tenant") else ""
        print(
            f"  declares  A2A {clean(one['protocolVersion'])} over {clean(one['protocolBinding'])} "
            f"at {clean(render_url(one['url']))}{tenant}"
        )
    print(f"  features  {', '.join(_list_features(card['capabilities'])) or 'none'}")
    print(f"  input     {clean(', '.join(map(str, card['defaultInputModes'])))}")
    print(f"  output    {clean(', '.join(map(str, card['defaultOutputModes'])))}")
    if card.get("securitySchemes"):
        print(f"  requires  {clean(', '.join(card['securitySchemes']))} (see --json)")
    print(f"  signed    {'yes' if card.get('signatures') else 'no'}")
    for finding in findings:
        print(f"  finding   {clean(finding)}")
    skills = card["skills"]
    if skills:
        print()
        rows = [(skill["id"], skill["description"] or skill["name"]) for skill in skills]
        print_table(["SKILL", "DESCRIPTION"], rows[:SHOWN_SKILLS])
        if len(skills) > SHOWN_SKILLS:
            print(f"and {len(skills) - SHOWN_SKILLS} more; see --json")
    print(f'\ntry: dragoman a2a send {clean(target)} "…"')


def _list_features(capabilities: Mapping[str, Any]) -> Iterator[str]:
    names = {
        "streaming": "streaming",
        "pushNotifications": "push notifications",
        "extendedAgentCard": "extended card",
    }
    for name, words in names.items():
        if capabilities.get(name):
            yield words
    for extension in capabilities.get("extensions") or []:
        needed = " (required)" if extension.get("required") else ""
        yield f"extension {clean(extension.get('uri'))}{needed}"


# --- tasks ----------------------------------------------------------------------------------------


def print_tasks(tasks: list[Mapping[str, Any]], more: bool) -> None:
    if not tasks:
        print("no tasks")
        return
    rows = []
    for task in tasks:
        status = task.get("status") or {}
        when = str(status.get("timestamp") or "-")[:19].replace("T", " ")
        words = join_text(list_status_parts(task))
        rows.append((task.get("id"), read_state(task), when, task.get("contextId"), words))
    print_table(["TASK", "STATE", "SINCE (UTC)", "CONTEXT", "LAST MESSAGE"], rows)
    if more:
        print("more tasks exist; see --limit")


def print_task(task: Mapping[str, Any]) -> None:
    print(f"task {clean(task.get('id'))}: {read_state(task)}")
    if task.get("contextId"):
        print(f"  context  {clean(task['contextId'])}")
    timestamp = (task.get("status") or {}).get("timestamp")
    if timestamp:
        print(f"  since    {clean(timestamp)}")
    for message in task.get("history") or []:
        who = "you" if message.get("role") == "ROLE_USER" else "agent"
        print(f"  {who}: {clean(join_text(list_parts(message)) or '[no text; see --json]')}")
    if words := join_text(list_status_parts(task)):
        print(f"  agent: {clean(words)}")
    print_answer(task, sys.stdout)


def print_answer(task: Mapping[str, Any], out: TextIO) -> None:
    """Prints the artifacts of a task."""
    for artifact in task.get("artifacts") or []:
        print_parts(list_parts(artifact), out)


def print_parts(parts: list[Mapping[str, Any]], out: TextIO) -> None:
    for part in parts:
        if "text" in part:
            print(render_output(str(part["text"]), out), file=out)
        elif "data" in part:
            print(json.dumps(part["data"], indent=2, ensure_ascii=False), file=out)
        else:
            name = clean(part.get("filename") or "file")
            kind = clean(part.get("mediaType") or "unknown type")
            if "url" in part:
                print(f"[{name}, {kind}: {clean(part['url'])}]", file=out)
            else:
                raw = str(part.get("raw", ""))
                size = len(raw) * 3 // 4 - raw[-2:].count("=")
                print(f"[{name}, {kind}, {size} bytes; --json has it]", file=out)


class ProgressPrinter:
    """Prints status messages of a task on stderr, each once; with `streams`, also its artifacts on
    stdout as they arrive."""

    def __init__(self, streams: bool) -> None:
        self._streams = streams
        self._words = ""
        self._open = ""
        self.has_output = False
        """Whether a part of the answer was printed."""

    def handle_event(self, event: Mapping[str, Any]) -> None:
        for member in ("task", "statusUpdate"):
            if isinstance(said := event.get(member), dict):
                state, words = read_state(said), join_text(list_status_parts(said))
                if words and words != self._words and state not in (*ENDED, *WAITING):
                    say(words)
                    self._words = words
        update = event.get("artifactUpdate")
        if self._streams and isinstance(update, dict):
            self._print_artifact(update)

    def _print_artifact(self, update: Mapping[str, Any]) -> None:
        """Prints an artifact update; text chunks continue the line of the previous one."""
        artifact = update.get("artifact") or {}
        id = str(artifact.get("artifactId"))
        if self._open and self._open != id:
            print()
        for part in list_parts(artifact):
            if "text" in part:
                print(render_output(str(part["text"]), sys.stdout), end="", flush=True)
                self._open = id
            else:
                self.end()
                print_parts([part], sys.stdout)
        self.has_output = True

    def end(self) -> None:
        if self._open:
            print(flush=True)
            self._open = ""
