"""`workflows`: lists, checks, shows, draws, creates and runs the workflows of the home."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from dragoman import home as homes
from dragoman.cli.base.arguments import convert_pairs, parse_arguments
from dragoman.cli.base.errors import FAILED, NOT_FOUND, USAGE, fail, say
from dragoman.cli.base.hub_client import connect_hub, resolve_home
from dragoman.cli.base.output import (
    clean,
    common_options,
    print_json,
    print_result,
    print_table,
    style,
)
from dragoman.cli.base.schema_text import get_properties
from dragoman.cli.completion import complete_workflows
from dragoman.cli.run_progress import finish, follow_run
from dragoman.core.errors import ConfigError

if TYPE_CHECKING:
    from dragoman.core.secret_rules import ReferenceRules
    from dragoman.workflows.folder import DefinitionFile, WorkflowFolder
    from dragoman.workflows.loader import InvalidDefinition
    from dragoman.workflows.model import Workflow


@click.group()
def workflows() -> None:
    """Manage workflows: steps that call tools and agents, each a YAML file in the hub's home.

    \b
    dragoman workflows new hello        write a commented file
    dragoman workflows check            find mistakes, with file and line
    dragoman workflows graph hello      draw its steps
    dragoman workflows run hello --follow
    dragoman workflows list

    A running hub follows changes of the files; one with a mistake leaves its workflow as it was.
    See `dragoman docs workflows`.
    """


@workflows.command("list", short_help="List the workflows.")
@common_options
def list_workflows(home: str | None, as_json: bool) -> None:
    """List the workflows of the hub's home, and why some cannot be used.

    \b
    dragoman workflows list
    dragoman workflows list --json
    """
    found = [_describe(one) for one in _read_folder(home).list_files()]
    if as_json:
        return print_json(found)
    if not found:
        say("there are no workflows; write one with: dragoman workflows new NAME")
        return
    print_table(
        ["WORKFLOW", "STEPS", "TRIGGERS", "DESCRIPTION"],
        [
            [
                one["name"],
                one["steps"] if one["state"] == "active" else "-",
                ", ".join(_name_trigger(trigger) for trigger in one["triggers"]) or "-",
                one["description"] if one["state"] == "active" else f"invalid: {one['problem']}",
            ]
            for one in found
        ],
        whole=True,
    )


@workflows.command(short_help="Run a workflow.")
@click.argument("name", shell_complete=complete_workflows)
@click.argument("inputs", nargs=-1, metavar="[KEY=VALUE]... | JSON | @FILE | -")
@click.option("--agent", "agents", multiple=True, metavar="REFERENCE=NAME",
              help="The agent for a reference of the workflow; may be repeated.")  # fmt: skip
@click.option("--follow", "-f", is_flag=True, help="Follow the run until it ends.")
@common_options
def run(
    name: str,
    inputs: tuple[str, ...],
    agents: tuple[str, ...],
    follow: bool,
    home: str | None,
    as_json: bool,
) -> None:
    """Start a run of workflow NAME with key=value inputs or one JSON object, and print its id.

    \b
    dragoman workflows run hello name=World --follow
    dragoman workflows run review prUrl=https://… --agent agent-ref="Code Reviewer"
    dragoman workflows run hello '{"name": "World"}' --json

    With --follow, the steps are shown as they go, and the output is printed at the end. Exit codes
    then: 0 the run is completed, 1 it failed, was cancelled or waits. See `dragoman runs`.
    """
    given = parse_arguments(inputs, "dragoman workflows run")
    chosen = dict(one.partition("=")[::2] for one in agents)
    if not all(chosen) or not all(chosen.values()):
        fail("write --agent REFERENCE=NAME", USAGE)
    with connect_hub(home) as hub:
        path = f"/api/workflows/{quote(name, safe='')}"
        if not isinstance(given, dict):
            schema = hub.get(path).get("inputs") if given else None
            given = convert_pairs(given, get_properties(schema or {}))
        started = hub.send("POST", f"{path}/run", {"inputs": given, "agents": chosen})["run"]
        if follow or hub.is_temporary:  # a hub of this command ends with it
            return finish(follow_run(hub, started["id"]), as_json)
    id = clean(started["id"])
    if as_json:
        return print_json(started)
    print(id)
    say(f"follow it with: dragoman runs watch {id}")


@workflows.command(short_help="Check workflows; every problem has a line.")
@click.argument("names", metavar="[NAME|FILE]…", nargs=-1)
@common_options
def check(names: tuple[str, ...], home: str | None, as_json: bool) -> None:
    """Check the definitions of workflows: all of the home, or each NAME or FILE.

    \b
    dragoman workflows check
    dragoman workflows check hello
    dragoman workflows check ./review.yaml ./deploy.yml

    Exit codes: 0 no problems, 1 problems were found, 5 unknown workflow.
    """
    found = _check_named(home, names) if names else _check_all(home)
    if as_json:
        print_json({"workflows": found, "ok": not any(one["problems"] for one in found)})
    elif not found:
        print("no workflows; see: dragoman workflows new --help")
    for one in found if not as_json else ():
        for problem in one["problems"]:
            place = f"{one['file']}:{problem['line']}"
            print(f"{style('error', fg='red')}: {clean(place)}: {clean(problem['message'])}")
        if not one["problems"]:
            count = one["steps"]
            steps = "1 step" if count == 1 else f"{count} steps"
            print(f"{style('ok', fg='green')}: {clean(one['file'])}: {clean(one['name'])}, {steps}")
            if one["missingAgents"]:
                agents = ", ".join(one["missingAgents"])
                print(f'  a run must be given these agents, or "agents" declare them: {agents}')
    if any(one["problems"] for one in found):
        raise SystemExit(FAILED)


@workflows.command(short_help="Draw the steps of a workflow.")
@click.argument("name", metavar="NAME|FILE")
@click.option("--mermaid", is_flag=True, help="Print Mermaid, which renders in Markdown.")
@common_options
def graph(name: str, mermaid: bool, home: str | None, as_json: bool) -> None:
    """Draw the steps of workflow NAME, or of a file, and what depends on what, from top to bottom.

    \b
    dragoman workflows graph hello
    dragoman workflows graph ./review.yaml --mermaid
    """
    from dragoman.workflows.graph import draw_graph, list_nodes, render_mermaid

    workflow = _load(home, name)
    if as_json:
        return print_json({"name": workflow.name, "nodes": list_nodes(workflow)})
    print(render_mermaid(workflow) if mermaid else draw_graph(workflow), end="")


@workflows.command(short_help="Show a workflow.")
@click.argument("name", metavar="NAME|FILE")
@common_options
def show(name: str, home: str | None, as_json: bool) -> None:
    """Show what workflow NAME, or a file, needs and does: its triggers, inputs, agents and steps.

    \b
    dragoman workflows show hello
    dragoman workflows show hello --json
    """
    from dragoman.workflows.describe import describe_workflow

    workflow = _load(home, name)
    found = describe_workflow(workflow)
    if as_json:
        return print_json(found)
    print(style(clean(workflow.name), bold=True))
    if workflow.description:
        print(clean(workflow.description))
    print(f"  version: {workflow.digest[:12]}")
    for trigger in found["triggers"]:
        print(f"  trigger: {clean(_name_trigger(trigger))}")
    for key, one in (workflow.inputs or {}).items():
        needed = "required" if one.required else "optional"
        about = clean(one.schema.get("description") or "")
        print(f"  input {clean(key)} ({needed}){': ' + about if about else ''}")
    for key, agent in workflow.agents.items():
        print(f"  agent {clean(key)}: {clean(agent)}")
    for key in workflow.missing_agents:
        print(f"  agent {clean(key)}: a run must be given it")
    if workflow.env:
        print(f"  variables: {', '.join(workflow.env)}")
    print()
    from dragoman.workflows.graph import draw_graph

    print(draw_graph(workflow), end="")


@workflows.command(short_help="Write a commented workflow.")
@click.argument("name")
@common_options
def new(name: str, home: str | None, as_json: bool) -> None:
    """Write workflows/NAME.yaml into the home: a commented workflow to edit.

    \b
    dragoman workflows new hello
    dragoman workflows check hello
    """
    import dragoman.workflows
    from dragoman.core.secret_rules import Author
    from dragoman.workflows.folder import FOLDER, WorkflowFolder

    starter = Path(dragoman.workflows.__file__).parent / "starter.yaml"
    place = Path(resolve_home(home))
    homes.prepare(str(place))
    folder = WorkflowFolder(place / FOLDER)
    folder.check()
    if any(name in (one.name, Path(one.file).stem) for one in folder.list_files()):
        fail(f'there is a workflow "{clean(name)}" already; edit it, or choose another name')
    folder.write(name, starter.read_text(encoding="utf-8").replace("NAME", name), Author.OWNER)
    file = folder.path / folder.find_file(name).file
    print_result(
        {"name": name, "file": str(file)},
        f"wrote {file}\nnext: edit the file; dragoman workflows check {name}",
        as_json,
    )


# --- reading --------------------------------------------------------------------------------------


def _read_folder(home: str | None) -> WorkflowFolder:
    from dragoman.workflows.folder import FOLDER, WorkflowFolder

    place = Path(resolve_home(home))
    folder = WorkflowFolder(place / FOLDER, check=_find_rules(place).check)
    folder.check()
    return folder


def _find_rules(place: Path) -> ReferenceRules:
    """What definitions that the API wrote may refer to, as the configuration of the home says."""
    from dragoman.config import load
    from dragoman.core.secret_rules import ReferenceRules

    try:
        config = load(place / "config.toml")
    except ConfigError:  # other commands report it
        return ReferenceRules((), place)
    return ReferenceRules(config.bridge.credential_env, place, config.secrets.allow)


def _is_file(name: str) -> bool:
    return "/" in name or name.endswith((".yaml", ".yml"))


def _load(home: str | None, name: str) -> Workflow:
    """Loads a workflow of the home by its name, or a file."""
    from dragoman.workflows.folder import load_file

    if _is_file(name):
        return load_file(_find_path(name))
    return _read_folder(home).find(name)


def _find_path(name: str) -> Path:
    path = Path(name)
    if not path.is_file():
        fail(f'there is no file "{clean(name)}"', NOT_FOUND)
    return path


def _check_all(home: str | None) -> list[dict[str, Any]]:
    return [_describe_checked(one, str(one.file)) for one in _read_folder(home).list_files()]


def _check_named(home: str | None, names: Sequence[str]) -> list[dict[str, Any]]:
    from dragoman.workflows.folder import load_file
    from dragoman.workflows.loader import InvalidDefinition

    found = []
    for name in names:
        if not _is_file(name):
            entry = _read_folder(home).find_file(name)
            found.append(_describe_checked(entry, entry.file))
            continue
        try:
            found.append(_build_report(name, load_file(_find_path(name))))
        except InvalidDefinition as error:
            found.append({"file": name, "name": Path(name).stem, **_list_problems(error)})
    return found


def _describe_checked(entry: DefinitionFile, file: str) -> dict[str, Any]:
    if entry.workflow is not None and not entry.problems:
        return _build_report(file, entry.workflow)
    return {"file": file, "name": entry.name, **_list_problems(entry)}


def _build_report(file: str, workflow: Workflow) -> dict[str, Any]:
    return {
        "file": file,
        "name": workflow.name,
        "steps": _count_steps(workflow),
        "missingAgents": list(workflow.missing_agents),
        "problems": [],
    }


def _list_problems(source: DefinitionFile | InvalidDefinition) -> dict[str, Any]:
    return {"problems": [{"line": one.line, "message": one.message} for one in source.problems]}


def _describe(entry: DefinitionFile) -> dict[str, Any]:
    from dragoman.workflows.describe import describe_file

    return describe_file(entry)


def _count_steps(workflow: Workflow) -> int:
    from dragoman.workflows.graph import list_nodes

    return len(list_nodes(workflow))


def _name_trigger(trigger: dict[str, Any]) -> str:
    about = trigger.get("schedule") or trigger.get("event") or ""
    return f"{trigger['kind']} {about}".strip()
