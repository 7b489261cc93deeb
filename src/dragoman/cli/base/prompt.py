"""Asks the user at the terminal the questions of a tool or agent.

Questions come from servers: they are shown as escaped text, a URL is never opened, and Ctrl-D
declines.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import click

from dragoman.cli.base.errors import USAGE, fail, say
from dragoman.cli.base.output import clean

QUESTION_KINDS = ["form", "url"]
MAX_ROUNDS = 20

DECLINED: dict[str, Any] = {"action": "decline"}


yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def list_question_kinds() -> list[str]:
    """Returns the kinds of questions that can be asked here: none without a terminal."""
    return QUESTION_KINDS if sys.stdin.isatty() and sys.stderr.isatty() else []


def ask_questions(questions: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {key: _ask_question(question) for key, question in questions.items()}


def _ask_question(question: Mapping[str, Any]) -> dict[str, Any]:
    asked = clean(question.get("message", ""))
    say(f"the tool asks: {asked}")
    try:
        if question.get("kind") == "url":
            say(f"visit {clean(question.get('url', ''))}")
            click.prompt("Press Enter when done, Ctrl-D to decline", default="", **_ON_STDERR)
            return {"action": "accept"}
        return {"action": "accept", "content": _ask_form(question.get("requestedSchema"), asked)}
    except click.Abort:
        if _is_interrupted():
            raise
        say("declined")
        return DECLINED


def confirm(question: str) -> None:
    """Asks the user at the terminal, and ends the command unless the answer is yes."""
    try:
        agrees = click.confirm(question, err=True)
    except click.Abort:
        if _is_interrupted():
            raise
        fail("no answer; nothing was changed; use --yes to skip the question", USAGE)
    if not agrees:
        fail("nothing was changed")


_ON_STDERR: dict[str, Any] = {"err": True, "show_default": False}


def _is_interrupted() -> bool:
    """Whether an Abort was Ctrl-C: click raises the same exception for Ctrl-D."""
    return isinstance(sys.exc_info()[1].__context__, KeyboardInterrupt)  # type: ignore[union-attr]


def _ask_form(schema: Any, asked: str) -> dict[str, Any]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    required = schema.get("required") if isinstance(schema, dict) else None
    content: dict[str, Any] = {}
    for name, about in (properties if isinstance(properties, dict) else {}).items():
        about = about if isinstance(about, dict) else {}
        needed = isinstance(required, list) and name in required
        value = _ask_field(name, about, needed, asked)
        if value is not None:
            content[name] = value
    return content


def _ask_field(name: str, about: Mapping[str, Any], needed: bool, asked: str) -> Any:
    title = clean(about.get("title") or name)
    if title == asked:  # a plain-text question has one field with the question as its title
        title = "your answer"
    words = [clean(about["description"])] if about.get("description") else []
    if choices := _list_choices(about):
        words.append("one of " + ", ".join(clean(choice) for choice in choices))
    default = about.get("default")
    if default is not None:
        words.append(f"default {clean(json.dumps(default, ensure_ascii=False))}")
    elif not needed:
        words.append("optional")
    prompt = f"{title} ({'; '.join(words)})" if words else title
    while True:
        text = click.prompt(prompt, default="", **_ON_STDERR)
        if text == "" and (default is not None or not needed):
            return default
        value, problem = _parse_answer(text, about, choices)
        if problem is None:
            return value
        say(problem)


def _list_choices(about: Mapping[str, Any]) -> list[str]:
    if isinstance(about.get("enum"), list):
        return [str(choice) for choice in about["enum"]]
    titled = about.get("oneOf")
    if isinstance(titled, list):
        return [str(each["const"]) for each in titled if isinstance(each, dict) and "const" in each]
    return []


def _parse_answer(
    text: str, about: Mapping[str, Any], choices: list[str]
) -> tuple[Any, str | None]:
    """Returns the typed value, or what is wrong with it."""
    kind = about.get("type", "string")
    if choices and kind == "string" and text not in choices:
        return None, f"not one of the choices: {', '.join(map(clean, choices))}"
    if kind == "boolean":
        meant = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}
        value = meant.get(text.lower())
        return value, None if value is not None else "answer yes or no"
    if kind in ("integer", "number"):
        try:
            return (int if kind == "integer" else float)(text), None
        except ValueError:
            return None, f"not a valid {kind}"
    if kind == "array":
        return [part.strip() for part in text.split(",") if part.strip()], None
    return text, None if text else "a value is required"
