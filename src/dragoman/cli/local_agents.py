"""`agents new` and `agents check`: the agents of the home, each a folder with a manifest."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from dragoman import home as homes
from dragoman.cli.base.errors import FAILED, NOT_FOUND, USAGE, fail, say
from dragoman.cli.base.hub_client import HubClient, connect_running, resolve_home, suggest
from dragoman.cli.base.output import clean, common_options, print_json, print_table, style
from dragoman.core.errors import ConfigError

LOCAL_AGENTS = "/api/agents"
READY_SECONDS = 10.0
"""How long `new` waits until a running hub has found the agent."""
TEMPLATES = ("assistant", "researcher", "code-reviewer", "script")
PLACEHOLDER = "NAME"
SHOWN_TOOLS = 12


@click.command("new", short_help="Write the manifest of a new agent from a template.")
@click.argument("name")
@click.option("--from", "template", metavar="TEMPLATE", default=TEMPLATES[0], show_default=True,
              type=click.Choice(TEMPLATES), help=f"One of {', '.join(TEMPLATES)}.")  # fmt: skip
@click.option("--model", metavar="PROVIDER/MODEL",
              help="Model to write into the manifest, such as ollama/llama3.2.")  # fmt: skip
@common_options
def new(name: str, template: str, model: str | None, home: str | None, as_json: bool) -> None:
    """Write agents/NAME/agent.toml into the home, from a commented template.

    \b
    dragoman agents new helper
    dragoman agents new helper --model ollama/llama3.2
    dragoman agents new reviewer --from code-reviewer
    dragoman agents new parrot --from script              needs no model and no key

    A running hub starts the agent by itself, and follows changes of the file. `dragoman agents
    check NAME` finds mistakes, `dragoman chat NAME` talks to it. To remove the agent, delete its
    folder.
    """
    from dragoman.agents.manifest import NAME, find_manifest, parse_manifest
    from dragoman.agents.manifest_agents import FILES, FOLDER

    if not NAME.fullmatch(name):
        fail(
            f'invalid agent name "{name[:80]}": use letters, digits, spaces, "_", "-" and ".", at '
            "most 64",
            USAGE,
        )
    place = resolve_home(home)
    homes.prepare(place)
    folder = Path(place) / FOLDER / name
    if (existing := find_manifest(folder)) is not None:
        fail(f'there is an agent "{name}" already: {existing}; edit it, or choose another name')
    text = _set_model(_read_template(template).replace(PLACEHOLDER, name), model)
    file = folder / FILES[0]
    parse_manifest(text, file)
    for one in (folder.parent, folder):
        one.mkdir(mode=0o700, exist_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)
    running = connect_running(place)
    state = _wait_until_found(running, name) if running is not None else None
    warnings = _check_manifest(Path(place), name, file)["warnings"]
    if as_json:
        made = {"name": name, "file": str(file), "template": template, "warnings": warnings}
        return print_json({**made, "hub": state})
    print(f"wrote {file}")
    if state is not None and state["ready"]:
        print(f'the running hub has the agent "{clean(name)}"')
    elif state is not None:
        say(state["problem"])
    for warning in warnings:
        say(warning)
    quoted = shlex.quote(name)
    print(f"next: edit the file; dragoman agents check {quoted}; dragoman chat {quoted}")


def _read_template(name: str) -> str:
    import dragoman.agents

    folder = Path(dragoman.agents.__file__).parent / "templates"
    return (folder / f"{name}.toml").read_text(encoding="utf-8")


def _set_model(text: str, model: str | None) -> str:
    """Puts another provider and model into the text of a template."""
    if model is None:
        return text
    provider, slash, name = model.partition("/")
    if not slash or not provider or not name or not model.isprintable() or '"' in model:
        fail(
            f'invalid --model "{model[:80]}": write PROVIDER/MODEL, such as ollama/llama3.2', USAGE
        )
    lines = text.splitlines(keepends=True)
    table = ""
    kept = []
    for line in lines:
        if line.startswith("["):
            table = line.strip()
        if table == "[model]" and line.startswith("provider = "):
            line = f'provider = "{provider}"\nmodel = "{name}"\n'
        elif table == "[model]" and line.startswith(("model = ", "# The key is taken from ")):
            continue
        kept.append(line)
    return "".join(kept)


def _wait_until_found(hub: HubClient, name: str) -> dict[str, Any]:
    """Waits until the hub has loaded the agent, or has said why not."""
    until = time.monotonic() + READY_SECONDS
    while True:
        found = hub.get(LOCAL_AGENTS)
        if any(one["name"] == name for one in found["agents"]):
            return {"ready": True, "problem": None}
        if name in found["failed"]:
            return {"ready": False, "problem": found["failed"][name]}
        if time.monotonic() > until:
            return {"ready": False, "problem": "the running hub has not found it yet"}
        time.sleep(0.05)


# --- check ----------------------------------------------------------------------------------------


@click.command("check", short_help="Check the manifests of the home's agents.")
@click.argument("name", required=False)
@common_options
def check(name: str | None, home: str | None, as_json: bool) -> None:
    """Check the manifest of agent NAME, or of all agents, as the hub would load it.

    \b
    dragoman agents check
    dragoman agents check reviewer
    dragoman agents check --json

    It shows the model that the agent would use and whether its key is set and, if a hub is running,
    the tools that its grants match now. Exit codes: 0 no errors, 1 errors were found, 5 unknown
    agent.
    """
    from dragoman.agents.manifest import list_manifests
    from dragoman.agents.manifest_agents import FOLDER

    place = Path(resolve_home(home))
    files = list_manifests(place)
    found = [_check_manifest(place, folder, file) for folder, file in files.items()]
    if name is not None:
        known = [str(key) for one in found for key in {one["name"], one["folder"]}]
        found = [one for one in found if name in (one["name"], one["folder"])]
        if not found:
            hint = suggest(name, known) or f"see: dragoman agents new {name}"
            fail(f'there is no agent "{name}" in {place / FOLDER}; {hint}', NOT_FOUND)
    running = connect_running(str(place))
    if running is not None:
        _add_hub_view(running, found)
    if as_json:
        print_json({"agents": found, "ok": not any(one["errors"] for one in found)})
    elif not found:
        print(f"no manifests in {place / FOLDER}; see: dragoman agents new --help")
    for one in found if not as_json else ():
        _print_checked(one, running is not None)
    if any(one["errors"] for one in found):
        raise SystemExit(FAILED)


def _check_manifest(place: Path, folder: str, file: Path) -> dict[str, Any]:
    """Loads a manifest and builds its models, without asking them."""
    from dragoman.agents.manifest import load_manifest
    from dragoman.agents.model_factory import ModelKeys, build_models, describe_models
    from dragoman.config import load_variables
    from dragoman.core.secret_references import SecretResolver
    from dragoman.net.client import OutboundHttp
    from dragoman.tools.wide_grants import list_wide_grants

    found: dict[str, Any] = {
        "name": folder,
        "folder": folder,
        "file": str(file),
        "models": [],
        "tools": None,
        "schedules": [],
        "errors": [],
        "warnings": [],
    }
    try:
        variables = load_variables(place)
        loaded = load_manifest(file)
        manifest = loaded.manifest
        found |= {"name": manifest.name, "warnings": list(loaded.warnings)}
        profile = loaded.build_profile()
        if profile.schedules:
            from dragoman.tools.manifest_schedules import check_schedules

            check_schedules(manifest.name, profile.schedules)
            found["schedules"] = [
                {"schedule": one.time, "timeZone": one.zone, "description": one.message}
                for one in profile.schedules
            ]
        net = OutboundHttp()
        build_models(
            manifest,
            lambda url, private: net.open_configured(url, allow_private=private),
            ModelKeys(variables, SecretResolver(variables, place)),
        )
    except ConfigError as error:
        found["errors"].append(str(error))
        return found
    for model in describe_models(manifest):
        variable = model.key_variable
        is_set = bool(variables.get(variable)) if variable else None
        found["models"].append(
            {"model": model.label, "url": model.url, "key": variable or None, "keyIsSet": is_set}
        )
        if is_set is False:
            found["warnings"].append(
                f'the variable "{variable}" is not set: put the line {variable}=… into '
                f"{place / 'env'}"
            )
    found["warnings"] += list_wide_grants(profile.shell)
    granted = manifest.capabilities
    found["grants"] = {
        "tools": list(profile.tools),
        "mcp_servers": granted.mcp_servers,
        "agents": granted.agents,
    }
    return found


def _add_hub_view(hub: HubClient, found: list[dict[str, Any]]) -> None:
    """Adds what a running hub knows: the tools that grants match, and why it has no such agent."""
    state = hub.get(LOCAL_AGENTS)
    agents = {one["name"]: one for one in state["agents"]}
    names = _list_names(hub)
    for one in found:
        problem = state["failed"].get(one["folder"])
        if one["errors"]:
            continue
        if problem is not None:
            one["errors"].append(problem)
        elif one["name"] in agents:
            one["tools"] = granted = agents[one["name"]].get("grants")
            one["schedules"] = agents[one["name"]].get("schedules") or one["schedules"]
            seen = {**names, "tools": names["tools"] | set(granted or ())}
            one["warnings"] += _list_idle_grants(one["grants"], seen, one["name"])
        else:
            one["warnings"].append("the running hub has not loaded it yet")


def _list_names(hub: HubClient) -> Mapping[str, set[str]]:
    tools = hub.get("/api/tools")["tools"]
    servers = {one["server"] for one in tools if one["source"] == "mcp"}
    configured = {one["name"] for one in hub.get("/api/mcp/servers")["configured"]}
    return {
        "tools": {name for one in tools for name in (one["name"], one["id"])},
        "mcp_servers": servers | configured,
        "agents": {one["server"] for one in tools if one["source"] == "agent"},
    }


def _list_idle_grants(
    grants: Mapping[str, list[str]], names: Mapping[str, set[str]], own: str
) -> list[str]:
    """Lists the patterns that match nothing that the hub has now."""
    from fnmatch import fnmatchcase

    idle = []
    for field, patterns in grants.items():
        known = names[field] - {own}
        for pattern in patterns:
            if pattern == "*" or any(fnmatchcase(name, pattern) for name in known):
                continue
            near = suggest(pattern, known) if not set(pattern) & set("*?[") else ""
            hint = f"; {near}" if near else ""
            idle.append(f'capabilities.{field}: "{pattern}" matches nothing now{hint}')
    return idle


def _print_checked(one: Mapping[str, Any], has_hub: bool) -> None:
    verdict = style("error", fg="red") if one["errors"] else style("ok", fg="green")
    print(f"{clean(one['name'])}: {verdict}  {one['file']}")
    for model in one["models"]:
        where = f" at {clean(model['url'])}" if model["url"] else ""
        key = ""
        if model["key"]:
            key = f", key in {clean(model['key'])} ({'set' if model['keyIsSet'] else 'not set'})"
        print(f"  model    {clean(model['model'])}{where}{key}")
    if one["tools"] is not None:
        shown = [clean(tool) for tool in one["tools"][:SHOWN_TOOLS]]
        more = len(one["tools"]) - len(shown)
        print(f"  tools    {', '.join(shown) or 'none'}" + (f" and {more} more" if more else ""))
    elif not has_hub and not one["errors"]:
        print("  tools    not known without a running hub (dragoman up)")
    for schedule in one["schedules"]:
        print(f"  schedule {_render_schedule(schedule)}")
    where = f'"{one["file"]}": '  # printed above
    for kind in ("warning", "error"):
        for problem in one[f"{kind}s"]:
            print(f"  {kind:<8} {clean(problem.removeprefix(where))}")


def _render_schedule(schedule: Mapping[str, Any]) -> str:
    text = f"{schedule['schedule']} ({schedule['timeZone']}): {schedule['description']}"
    if schedule.get("nextRun"):
        text += f"; next {schedule['nextRun']}"
    if schedule.get("lastOutcome"):
        text += f"; last {schedule['lastRun']}, {schedule['lastOutcome']}"
    return clean(text)


# --- list -----------------------------------------------------------------------------------------


def print_local_agents(agents: list[dict[str, Any]], failed: Mapping[str, str]) -> None:
    """Prints the table of local agents; those that could not be loaded with the reason."""
    has_schedules = any(map(_list_times, agents))
    rows = [
        (
            one["name"],
            one.get("model") or one.get("runtime") or "-",
            "-" if one.get("grants") is None else len(one["grants"]),
            *([", ".join(_list_times(one)) or "-"] if has_schedules else []),
            one["description"],
        )
        for one in agents
    ]
    gap = ["-"] if has_schedules else []
    rows += [(name, "failed", "-", *gap, problem) for name, problem in failed.items()]
    header = ["LOCAL AGENT", "MODEL", "TOOLS", *(["SCHEDULE"] if has_schedules else [])]
    print_table([*header, "DESCRIPTION"], rows, whole=bool(failed))


def _list_times(agent: Mapping[str, Any]) -> list[str]:
    return [one["schedule"] for one in agent.get("schedules", ())]


def find_local_agent(hub: HubClient, name: str) -> dict[str, Any] | None:
    """Finds an agent that runs in the hub."""
    return next((one for one in hub.get(LOCAL_AGENTS)["agents"] if one["name"] == name), None)


def print_local_agent(agent: Mapping[str, Any]) -> None:
    print(f"{clean(agent['name'])}  (version {clean(agent['version'])})")
    grants = agent.get("grants")
    rows = [
        ("about", agent["description"]),
        ("runtime", agent.get("runtime", "")),
        ("model", ", then ".join([agent.get("model") or "-", *agent.get("fallbacks", ())])),
        ("manifest", agent.get("source", "-")),
        ("started by", agent.get("parent") or ""),
        ("tool", agent["tool"]),
        ("may call", "" if grants is None else ", ".join(grants) or "nothing"),
    ]
    rows += [("schedule", _render_schedule(one)) for one in agent.get("schedules", ())]
    for name, value in rows:
        if value:
            print(f"  {name:<10} {clean(value)}")
    print(f"  {'try':<10} dragoman chat {clean(agent['name'])}")
