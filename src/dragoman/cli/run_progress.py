"""Follows a run on the terminal: its steps as they go, with durations and last messages."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from dragoman.cli.base import prompt
from dragoman.cli.base.errors import FAILED, say
from dragoman.cli.base.hub_client import HubClient
from dragoman.cli.base.output import clean, get_terminal_width, print_json, render_json, style
from dragoman.core.safe_text import escape_controls

POLL_SECONDS = 0.25
ENDED = ("completed", "failed", "cancelled")
_COLOURS = {
    "completed": "green", "running": "cyan", "waiting": "yellow", "needs_decision": "magenta",
    "failed": "red", "cancelled": "red", "skipped": "bright_black", "pending": "bright_black",
    "queued": "bright_black",
}  # fmt: skip
MAX_SHOWN = 40
"""Steps that are drawn again and again."""


def follow_run(hub: HubClient, id: str) -> dict[str, Any]:
    """Prints the progress of a run on stderr until it ends or needs a decision; questions are asked
    at the terminal. Returns the run as the API shows it."""
    screen = _LiveSteps() if sys.stderr.isatty() else _PlainSteps()
    while True:
        found: dict[str, Any] = hub.get(build_path(id))
        screen.show(found)
        if found["run"]["state"] in ENDED:
            return found
        asking = [one for one in found["steps"] if "questions" in one]
        if asking and prompt.list_question_kinds():
            for one in asking:
                answers = prompt.ask_questions(one["questions"])
                hub.send(
                    "POST", build_path(id, "answer"), {"step": one["path"], "answers": answers}
                )
            screen.forget()
            continue
        if not _may_end_by_itself(found):
            return found
        time.sleep(POLL_SECONDS)


def _may_end_by_itself(found: Mapping[str, Any]) -> bool:
    """Whether a run is worth waiting for: something runs, or has its time, or others decide it."""
    if found["run"]["state"] not in ("waiting", "needs_decision"):
        return True
    waiting = [one for one in found["steps"] if one["state"] in ("waiting", "pending")]
    return found["run"]["state"] == "waiting" and not all("questions" in one for one in waiting)


def build_path(id: str, action: str = "") -> str:
    return f"/api/runs/{quote(id, safe='')}" + (f"/{action}" if action else "")


def render_output(output: Any) -> str:
    """Renders a text for people, and anything else as JSON."""
    return escape_controls(output) if isinstance(output, str) else render_json(output)


def finish(found: Mapping[str, Any], as_json: bool) -> None:
    """Prints how a followed run stands, and ends the command with 1 unless it is completed."""
    run = found["run"]
    if as_json:
        print_json(found)
    elif run["state"] == "completed":
        print(render_output(found["output"]))
    else:
        print_hints(found)
    if run["state"] != "completed":
        raise SystemExit(FAILED)


def print_hints(found: Mapping[str, Any]) -> None:
    run = found["run"]
    id = clean(run["id"])
    why = f": {run['problem']}" if run["problem"] else ""
    say(f"run {id} is {run['state'].replace('_', ' ')}{why}")
    for one in found["steps"]:
        path = clean(one["path"])
        if one["state"] == "needs_decision":
            say(f'step "{path}": {clean(one["problem"])}')
            say(f"decide with: dragoman runs resume {id} {path} retry|skip|fail")
        elif "questions" in one:
            for name, question in one["questions"].items():
                say(f'step "{path}" asks "{clean(name)}": {clean(question.get("message", ""))}')
            say(f"answer with: dragoman runs answer {id} {path}")
        elif one["state"] == "waiting" and one["approval"]:
            approval = clean(one["approval"])
            say(f'step "{path}" waits for: dragoman approvals approve {approval}')
    if run["state"] == "failed":
        say(f"try the failed steps again with: dragoman runs retry {id}")


def render_duration(one: Mapping[str, Any]) -> str:
    begun = _parse(one.get("startedAt"))
    if begun is None:
        return ""
    seconds = ((_parse(one.get("endedAt")) or datetime.now(UTC)) - begun).total_seconds()
    if seconds < 60:
        return f"{max(0.0, seconds):.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def render_state(state: str, out: Any = None) -> str:
    return style(state.replace("_", " "), out, fg=_COLOURS.get(state))


def _parse(text: Any) -> datetime | None:
    return datetime.fromisoformat(text) if isinstance(text, str) else None


def _render_about(one: Mapping[str, Any]) -> str:
    return " ".join(clean(one["problem"] or one["message"] or "").split())


class _PlainSteps:
    """A line for each change, where there is no terminal."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, str]] = {}

    def forget(self) -> None:
        pass

    def show(self, found: Mapping[str, Any]) -> None:
        for one in found["steps"]:
            now = one["state"], _render_about(one)
            if one["state"] == "pending" or self._seen.get(one["path"]) == now:
                continue
            self._seen[one["path"]] = now
            took = f" ({render_duration(one)})" if one["endedAt"] and one["startedAt"] else ""
            about = f": {now[1]}" if now[1] else ""
            say(f"{clean(one['path'])}: {one['state'].replace('_', ' ')}{took}{about}")


class _LiveSteps:
    """All steps, drawn again after each change."""

    def __init__(self) -> None:
        self._drawn: list[str] = []

    def forget(self) -> None:
        """Other lines were printed since."""
        self._drawn = []

    def show(self, found: Mapping[str, Any]) -> None:
        run, steps = found["run"], found["steps"]
        width = get_terminal_width()
        lines = [f"{clean(run['workflow'])} {clean(run['id'])}: {run['state'].replace('_', ' ')}"]
        shown = steps if len(steps) <= MAX_SHOWN else _select(steps)
        longest = max((len(clean(one["path"])) for one in shown), default=0)
        for one in shown:
            head = f"  {clean(one['path']).ljust(longest)}  "
            state = one["state"].replace("_", " ").ljust(14)
            rest = f"{render_duration(one).ljust(10)} {_render_about(one)}"
            room = max(10, width - len(head) - len(state))
            colour = _COLOURS.get(one["state"])
            lines.append(head + style(state, sys.stderr, fg=colour) + rest[: room - 1].rstrip())
        if lines == self._drawn:
            return
        up = f"\033[{len(self._drawn)}A" if self._drawn else ""
        text = "".join(f"\033[2K{line}\n" for line in lines)
        more = "\033[J" if len(lines) < len(self._drawn) else ""
        print(f"{up}{text}{more}", end="", file=sys.stderr, flush=True)
        self._drawn = lines


def _select(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of many steps, those that are not settled, and the last of the others."""
    open = [one for one in steps if one["state"] not in ("completed", "skipped", "pending")]
    return open[:MAX_SHOWN] or steps[-MAX_SHOWN:]
