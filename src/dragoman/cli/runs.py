"""`runs`: lists, shows and follows the runs of workflows; cancels, retries, decides and answers."""

from __future__ import annotations

import json
from typing import Any

import click

from dragoman.cli.base import prompt
from dragoman.cli.base.arguments import convert_pairs, parse_arguments
from dragoman.cli.base.errors import USAGE, fail
from dragoman.cli.base.hub_client import connect_hub
from dragoman.cli.base.output import (
    clean,
    common_options,
    print_json,
    print_result,
    print_table,
)
from dragoman.cli.base.schema_text import get_properties
from dragoman.cli.completion import complete_runs, complete_workflows
from dragoman.cli.run_progress import (
    build_path,
    finish,
    follow_run,
    print_hints,
    render_duration,
    render_output,
    render_state,
)

_STATES = (
    "queued", "running", "waiting", "needs_decision", "completed", "failed", "cancelled",
)  # fmt: skip
_DECISIONS = ("retry", "skip", "fail")


@click.group(invoke_without_command=True)
@common_options
@click.pass_context
def runs(ctx: click.Context, home: str | None, as_json: bool) -> None:
    """Show the runs of workflows, follow them, and decide what they wait for.

    \b
    dragoman runs                       the last runs
    dragoman runs show 3f1c9a07         steps, durations, output
    dragoman runs watch 3f1c9a07
    dragoman runs cancel 3f1c9a07
    dragoman runs retry 3f1c9a07        the failed steps again

    Start one with `dragoman workflows run NAME`. See `dragoman docs runs`.
    """
    if ctx.invoked_subcommand is None:
        _print_list(home, as_json, None, None, 20)


@runs.command("list", short_help="List runs, newest first.")
@click.option("--workflow", metavar="NAME", shell_complete=complete_workflows,
              help="Only runs of this workflow.")  # fmt: skip
@click.option("--state", type=click.Choice(_STATES), help="Only runs in this state.")
@click.option("--limit", type=click.IntRange(1, 200), default=20, show_default=True,
              help="At most so many.")  # fmt: skip
@common_options
def list_runs(
    workflow: str | None, state: str | None, limit: int, home: str | None, as_json: bool
) -> None:
    """List runs, newest first: your own, or all of the hub's for its owner.

    \b
    dragoman runs list --state needs_decision
    dragoman runs list --workflow review --limit 5 --json
    """
    _print_list(home, as_json, workflow, state, limit)


def _print_list(
    home: str | None, as_json: bool, workflow: str | None, state: str | None, limit: int
) -> None:
    from urllib.parse import urlencode

    wanted = {"workflow": workflow, "state": state, "limit": limit}
    query = urlencode({key: value for key, value in wanted.items() if value is not None})
    with connect_hub(home) as hub:
        found = hub.get(f"/api/runs?{query}")["runs"]
    if as_json:
        return print_json(found)
    if not found:
        print("no runs; start one with: dragoman workflows run NAME")
        return
    rows = [
        (
            one["id"],
            one["workflow"],
            one["state"].replace("_", " "),
            one["createdAt"][:19].replace("T", " "),
            one["startedBy"],
            one["problem"],
        )
        for one in found
    ]
    print_table(["RUN", "WORKFLOW", "STATE", "STARTED", "BY", "PROBLEM"], rows)


@runs.command(short_help="Show a run: steps, durations, output.")
@click.argument("id", metavar="RUN", shell_complete=complete_runs)
@common_options
def show(id: str, home: str | None, as_json: bool) -> None:
    """Show RUN: its state, its steps with their durations, and its output.

    \b
    dragoman runs show 3f1c9a07
    dragoman runs show 3f1c9a07 --json       with the outputs of all steps
    """
    with connect_hub(home) as hub:
        found = hub.get(build_path(id))
    if as_json:
        return print_json(found)
    run = found["run"]
    print(f"{clean(run['workflow'])} {clean(run['id'])}: {render_state(run['state'])}")
    print(f"  started {clean(run['createdAt'])} by {clean(run['startedBy'])}")
    print()
    print(_draw_steps(found), end="")
    loops = [one for one in found["steps"] if one["path"] != one["id"]]
    if loops:
        rows = [(one["path"], one["state"], render_duration(one), _about(one)) for one in loops]
        print_table(["IN LOOPS", "STATE", "TIME", "ABOUT"], rows)
    if run["state"] == "completed":
        print("\n" + render_output(found["output"]))
    else:
        print_hints(found)


def _about(one: dict[str, Any]) -> str:
    return str(one["problem"] or one["message"] or "")


def _draw_steps(found: dict[str, Any]) -> str:
    """Draws the graph of the run's version with the states of its steps."""
    from dragoman.workflows.graph import draw_graph
    from dragoman.workflows.loader import load_workflow

    steps = {one["path"]: one for one in found["steps"]}
    states = {path: render_state(one["state"]) for path, one in steps.items()}
    notes = {
        path: clean(" ".join(f"{render_duration(one)}  {_about(one)}".split("\n"))).strip()
        for path, one in steps.items()
    }
    if found.get("source"):
        workflow = load_workflow(found["source"], found["run"]["workflow"])
        return draw_graph(workflow, states, notes)
    return "".join(f"  {clean(path)}  {states[path]}  {notes[path]}\n" for path in steps)


@runs.command(short_help="Follow a run until it ends.")
@click.argument("id", metavar="RUN", shell_complete=complete_runs)
@common_options
def watch(id: str, home: str | None, as_json: bool) -> None:
    """Follow RUN until it ends or waits for a decision; on a terminal, questions are asked.

    \b
    dragoman runs watch 3f1c9a07

    Exit codes: 0 the run is completed, 1 it failed, was cancelled or waits, 5 unknown run.
    Ctrl-C stops following; the run goes on.
    """
    with connect_hub(home) as hub:
        found = follow_run(hub, id)
    finish(found, as_json)


@runs.command(short_help="Cancel a run and its running calls.")
@click.argument("id", metavar="RUN", shell_complete=complete_runs)
@common_options
def cancel(id: str, home: str | None, as_json: bool) -> None:
    """Cancel RUN and its running calls. Compensations do not run.

    \b
    dragoman runs cancel 3f1c9a07
    """
    _act(home, as_json, id, "cancel", {}, "cancelled")


@runs.command(short_help="Continue a failed run at its failed steps.")
@click.argument("id", metavar="RUN", shell_complete=complete_runs)
@common_options
def retry(id: str, home: str | None, as_json: bool) -> None:
    """Continue the failed RUN at the steps that failed; finished steps are not executed again.

    \b
    dragoman runs retry 3f1c9a07
    """
    _act(home, as_json, id, "retry", {}, "continues")


@runs.command(short_help="Decide about a step whose outcome is unknown.")
@click.argument("id", metavar="RUN", shell_complete=complete_runs)
@click.argument("step")
@click.argument("decision", metavar="DECISION", type=click.Choice(_DECISIONS))
@common_options
def resume(id: str, step: str, decision: str, home: str | None, as_json: bool) -> None:
    """Make a DECISION about a STEP of RUN of which it is unknown whether it was executed, since the
    hub stopped meanwhile: `retry` executes it again, `skip` continues as if it were done, and
    `fail` lets it fail.

    \b
    dragoman runs resume 3f1c9a07 deploy skip
    """
    _act(home, as_json, id, "resume", {"step": step, "decision": decision}, "continues")


@runs.command(short_help="Answer the questions of a step.")
@click.argument("id", metavar="RUN", shell_complete=complete_runs)
@click.argument("step")
@click.argument("values", nargs=-1, metavar="[KEY=VALUE]... | JSON | @FILE | -")
@click.option("--question", metavar="NAME", help="Which one, if the step asks several.")
@click.option("--decline", is_flag=True, help="Decline to answer.")
@common_options
def answer(
    id: str,
    step: str,
    values: tuple[str, ...],
    question: str | None,
    decline: bool,
    home: str | None,
    as_json: bool,
) -> None:
    """Answer the question of a STEP of RUN: with key=value pairs for the fields of its form, or at
    the terminal.

    \b
    dragoman runs answer 3f1c9a07 review
    dragoman runs answer 3f1c9a07 review branch=main
    dragoman runs answer 3f1c9a07 review --decline
    """
    with connect_hub(home) as hub:
        found = hub.get(build_path(id))
        asks = {one["path"]: one.get("questions") for one in found["steps"]}
        asked = asks.get(step)
        if not asked:
            fail(f'step "{clean(step)}" of run {clean(id)} asks nothing', USAGE)
        if values or decline:
            answers = _build_answers(asked, question, values, decline)
        elif prompt.list_question_kinds():
            answers = prompt.ask_questions(asked)
        else:
            fail("no terminal to ask at: give the answer as key=value, or --decline", USAGE)
        body = {"step": step, "answers": answers}
        run = hub.send("POST", build_path(id, "answer"), body)["run"]
    print_result(run, f"run {clean(id)} continues", as_json)


def _build_answers(
    asked: dict[str, Any], question: str | None, values: tuple[str, ...], decline: bool
) -> dict[str, Any]:
    name = question or next(iter(asked))
    if name not in asked or (question is None and len(asked) > 1):
        fail(f"name the question with --question: {', '.join(map(json.dumps, asked))}", USAGE)
    if decline:
        return {name: {"action": "decline"}}
    given = parse_arguments(values, "dragoman runs answer")
    if not isinstance(given, dict):
        schema = asked[name].get("requestedSchema")
        given = convert_pairs(given, get_properties(schema if isinstance(schema, dict) else {}))
    return {name: {"action": "accept", "content": given}}


def _act(
    home: str | None, as_json: bool, id: str, action: str, body: dict[str, Any], done: str
) -> None:
    with connect_hub(home) as hub:
        run = hub.send("POST", build_path(id, action), body)["run"]
        if hub.is_temporary and action != "cancel":
            return finish(follow_run(hub, id), as_json)
    print_result(run, f"run {clean(id)} {done}", as_json)
