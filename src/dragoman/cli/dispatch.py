"""`dispatch`: has work done by the agent that the hub chooses, and explains the choice."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import click

from dragoman.cli.base import prompt
from dragoman.cli.base.errors import FAILED, USAGE, fail, say
from dragoman.cli.base.hub_client import HubClient, connect_hub
from dragoman.cli.base.output import clean, common_options, print_json, print_table
from dragoman.cli.tools import print_call_result

SEND, EXPLAIN = "send", "explain"
FLAGS = ("-h", "--help")


class DispatchGroup(click.Group):
    """Without the name of a command, sends the text."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *FLAGS):
            args = [SEND, *args]
        return super().parse_args(ctx, args)


@click.group(cls=DispatchGroup)
def dispatch() -> None:
    """Have work done by the agent that the hub chooses among its own and the external ones.

    \b
    dragoman dispatch "Test the login page" --work-type qa
    dragoman dispatch "Review this" --skill review --args '{"prUrl": "https://…"}'
    dragoman dispatch "Test the login page" --work-type qa --dry-run
    dragoman dispatch explain ID

    The hub chooses by skills, work type, health, load and past outcomes; see: dragoman docs
    routing.
    """


@dispatch.command(SEND, short_help="Send TEXT to the agent that the hub chooses.")
@click.argument("text")
@click.option("--work-type", metavar="NAME", help="The kind of work, as agents have it in tags.")
@click.option("--skill", "skills", multiple=True, metavar="ID,…",
              help="Skills that the agent must have, all of them; may be repeated.")  # fmt: skip
@click.option("--args", "data", metavar="JSON",
              help="Arguments of the one skill, or else data for the agent.")  # fmt: skip
@click.option("--max-cost", type=click.FloatRange(min=0, min_open=True), metavar="USD",
              help="What it may cost on average, for agents that report it.")  # fmt: skip
@click.option("--max-tokens", type=click.FloatRange(min=0, min_open=True), metavar="N",
              help="Tokens that it may use on average, for agents that report them.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show which agent would be chosen, and why.")
@common_options
def send(
    text: str,
    skills: tuple[str, ...],
    data: str | None,
    dry_run: bool,
    home: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Send TEXT to the agent that the hub chooses, and print its answer.

    \b
    dragoman dispatch send "Test the login page" --work-type qa
    dragoman dispatch "Test the login page" --work-type qa         the same
    dragoman dispatch "Review this" --skill review,typescript --dry-run
    """
    body: dict[str, Any] = {"description": text}
    names = {"work_type": "workType", "max_cost": "maxCost", "max_tokens": "maxTokens"}
    body |= {names[key]: value for key, value in options.items() if value is not None}
    if wanted := [one.strip() for given in skills for one in given.split(",") if one.strip()]:
        body["requiredSkills"] = wanted
    if data is not None:
        body["args"] = _parse_object(data)
    with connect_hub(home) as hub:
        if dry_run:
            found = hub.dispatch({**body, "dryRun": True})
            return print_json(found) if as_json else _print_decision(found)
        result = _dispatch(hub, body, [] if as_json else prompt.list_question_kinds())
    if as_json:
        print_json(result)
    else:
        print_call_result(result)
        say(
            f'agent "{clean(result["agent"])}" was chosen; why: '
            f"dragoman dispatch explain {result['decisionId']}"
        )
    if result["failed"]:
        raise SystemExit(FAILED)


def _dispatch(hub: HubClient, body: dict[str, Any], can: list[str]) -> Any:
    """Has the work done, and asks the user the agent's questions, if any."""
    body = {**body, "can": can} if can else body
    result = hub.dispatch(body)
    for _ in range(prompt.MAX_ROUNDS):
        if "questions" not in result:
            return result
        answers = prompt.ask_questions(result["questions"])
        result = hub.dispatch({**body, "answers": answers, "handle": result["handle"]})
    fail(f"the agent asked more than {prompt.MAX_ROUNDS} rounds of questions", FAILED)


def _parse_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        fail(f"--args is not valid JSON: {error}", USAGE)
    if not isinstance(found, dict):
        fail("--args must be one JSON object", USAGE)
    return found


@dispatch.command(EXPLAIN, short_help="Show why an agent was chosen.")
@click.argument("id")
@common_options
def explain(id: str, home: str | None, as_json: bool) -> None:
    """Show why the hub chose the agent of a dispatch. ID is that of the decision, as `dragoman
    dispatch` prints it, or of the dispatch, as `dragoman agents calls --json` lists it.

    \b
    dragoman dispatch explain 5f1e…

    SCORE is SAMPLE x CAPABILITY x HEALTH x LOAD. SAMPLE is random, by the past outcomes: OK and
    FAILED are how many there were, weighted by age.
    """
    with connect_hub(home) as hub:
        found = hub.get(f"/api/a2a/dispatches/{quote(id, safe='')}/decision")
    return print_json(found) if as_json else _print_decision(found)


_HEADS = (
    "AGENT", "KIND", "SCORE", "SAMPLE", "CAPABILITY", "HEALTH", "LOAD", "OK", "FAILED", "REMARKS",
)  # fmt: skip


def _print_decision(found: dict[str, Any]) -> None:
    skills = f", skills {', '.join(found['requiredSkills'])}" if found["requiredSkills"] else ""
    verb = "would be chosen" if found.get("dryRun") else "was chosen"
    said = f'"{found["chosen"]}" {verb} ({found["mode"]})' if found["chosen"] else "no agent fits"
    print(clean(f"{said} for work type {found['workType']}{skills}"))
    print_table(_HEADS, [_build_row(one) for one in found["candidates"]], whole=True)
    for attempt in found.get("attempts", ()):
        why = f" ({attempt['error']})" if attempt["error"] else ""
        print(clean(f"{attempt['tool']}: {attempt['outcome']}{why}"))


def _build_row(one: dict[str, Any]) -> tuple[Any, ...]:
    factors = one.get("factors") or {}

    def show(value: Any) -> str:
        return "-" if value is None else f"{value:.3g}"

    return (
        one["agent"],
        one["kind"],
        show(one.get("score")),
        show(one.get("sample")),
        show(factors.get("capability")),
        show(factors.get("health")),
        show(factors.get("load")),
        show(one.get("successes")),
        show(one.get("failures")),
        "; ".join(one["reasons"]),
    )
