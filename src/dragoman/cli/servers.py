"""`servers`: lists, adds, switches and removes the MCP servers in config.toml.

A running hub applies each change immediately; without one, `add` starts a temporary hub to connect
to the new server.
"""

from __future__ import annotations

import logging
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import click

from dragoman.cli.base.arguments import parse_arguments, parse_header
from dragoman.cli.base.errors import (
    NO_HUB,
    NOT_FOUND,
    TARGET_FAILED,
    USAGE,
    CommandFailed,
    UnreadableFile,
    fail,
    say,
)
from dragoman.cli.base.files import decode_text, read_bytes
from dragoman.cli.base.hub_client import (
    FIRST_START_SECONDS,
    HubClient,
    connect_hub,
    connect_running,
    resolve_home,
    suggest,
)
from dragoman.cli.base.output import (
    StatusLine,
    clean,
    common_options,
    print_json,
    print_result,
    print_table,
)
from dragoman.cli.base.token_costs import render_heavy_list
from dragoman.cli.clients import import_plan
from dragoman.cli.clients.import_command import ImportJob
from dragoman.cli.clients.import_plan import FoundServer, ServerPlan
from dragoman.cli.clients.known_clients import KnownClient
from dragoman.cli.completion import complete_servers
from dragoman.cli.configure import (
    edit_config,
    list_server_names,
    remove_server,
    set_enabled,
    set_sandbox,
)
from dragoman.cli.logins import log_in, log_out, login_options, logout_options
from dragoman.config import StdioTransport, load, slug_from_name
from dragoman.core.errors import ConfigError
from dragoman.core.package_runners import is_container_command
from dragoman.core.safe_text import escape_controls
from dragoman.home import HomeUnusable
from dragoman.processes.bubblewrap import NoBubblewrap, find_bubblewrap

if TYPE_CHECKING:
    from dragoman.app.sandbox_trial import SandboxTrial

LOOK_SECONDS = 2.0


@click.group(invoke_without_command=True)
@click.pass_context
@common_options
def servers(ctx: click.Context, home: str | None, as_json: bool) -> None:
    """Manage MCP servers. Without a subcommand, lists them with state, tools and problems.

    \b
    dragoman servers                                   list all servers
    dragoman servers add files npx -y SOME-PACKAGE     add a server and list its tools
    dragoman servers add notes https://example.com/mcp
    dragoman servers show files                        show entry, state and tools
    dragoman servers logs files                        show its stderr
    dragoman servers restart files                     stop it and connect again
    dragoman servers disable files                     switch it off; enable switches it on
    dragoman servers harden files                      try it in a sandbox and keep it there
    dragoman servers login github                      log in with the browser; logout ends it
    dragoman servers remove files

    \b
    States: connected; starting; failed (retried with increasing delays, and immediately when one of
    its tools is called); needs_login (run: dragoman servers login NAME); idle (unused for
    idle_secs; the next call starts it); off (enabled = false).

    A server is a [[mcp_servers]] block in config.toml. `dragoman import` imports those of an IDE.
    """
    if ctx.invoked_subcommand is not None:
        return
    with connect_hub(home) as hub:
        # A running hub has usually tried all servers, so "starting" is an answer there.
        hub.wait_until_connected(
            FIRST_START_SECONDS if hub.is_temporary else LOOK_SECONDS, agents=False
        )
        found = hub.get("/api/mcp/servers")
        remark = render_heavy_list(hub)
    if as_json:
        return print_json(found)
    if not found["connected"]:
        print("no servers configured; see: dragoman import, dragoman servers add --help")
        return
    rows = []
    for server in found["connected"]:
        notes = [server.get("reason", ""), *_list_remarks(server)]
        words, revision = "; ".join(filter(None, notes)), describe_revision(server)
        sandbox, tools = server.get("sandbox", "-"), server["tools_count"]
        rows.append((server["name"], server["state"], revision, sandbox, tools, words))
    headings = ["NAME", "STATE", "REVISION", "SANDBOX", "TOOLS", "REMARKS"]
    print_table(headings, rows, whole=True)
    if remark is not None:
        say(remark)


@servers.command(short_help="Show a server's entry, state and tools.")
@click.argument("name", shell_complete=complete_servers)
@common_options
def show(name: str, home: str | None, as_json: bool) -> None:
    """Show the configuration entry, state and tools of server NAME.

    \b
    dragoman servers show files
    dragoman servers show files --json
    """
    with connect_hub(home) as hub:
        if hub.is_temporary:
            hub.wait_for_server(name)
        found = hub.get("/api/mcp/servers")
    states = {state["name"]: state for state in found["connected"]}
    if name not in states:
        fail(f'unknown server "{name}"; {suggest(name, states) or _SEE}', NOT_FOUND)
    entry = next(one for one in found["configured"] if one["name"] == name)
    if as_json:
        print_json({"configured": entry, "state": states[name]})
    else:
        print_server(entry, states[name])


@servers.command(short_help="Show a server's stderr.")
@click.argument("name", shell_complete=complete_servers)
@common_options
def logs(name: str, home: str | None, as_json: bool) -> None:
    """Show the last 64 KB that server NAME wrote to stderr since the hub started it.

    \b
    dragoman servers logs files
    """
    with connect_hub(home) as hub:
        if hub.is_temporary:
            hub.wait_until_connected(agents=False)
        found = hub.get_server_log(name)
    if as_json:
        print_json(found)
    elif not found["stderr"]:
        print(f'server "{name}" has written nothing to stderr')
    else:
        print(escape_controls(found["stderr"].rstrip("\n")))


@servers.command(short_help="Stop a server and connect again.")
@click.argument("name", shell_complete=complete_servers)
@common_options
def restart(name: str, home: str | None, as_json: bool) -> None:
    """Stop server NAME in the running hub and connect to it again.

    \b
    dragoman servers restart files

    Its calls in progress fail. Exit codes: 0 connected, 3 no hub running, 5 unknown or disabled
    server, 6 not connected.
    """
    place = resolve_home(home)
    hub = connect_running(place)
    if hub is None:
        fail(f"no hub is running on {place}; there is nothing to restart", NO_HUB)
    hub.restart_server(name)
    state = hub.wait_for_server(name)
    if as_json:
        print_json(state)
    elif state["connected"]:
        print_connected(state)
    if not state["connected"]:
        fail(f'server "{name}" is not connected: {state.get("reason", "")}', TARGET_FAILED)


@servers.command(short_help="Log in at a server with the browser.")
@click.argument("name", shell_complete=complete_servers)
@login_options
@common_options
def login(name: str, home: str | None, as_json: bool, **options: Any) -> None:
    """Log in at server NAME with OAuth: your browser opens a page of the running hub, from there
    the page of the server, and returns. Waits for that, and prints what was granted.

    \b
    dragoman servers login github
    dragoman servers login github --no-browser       print the link
    dragoman servers login github --device           enter a code on another device
    dragoman servers login github --scope repo

    Exit codes: 0 logged in, 3 no hub running, 4 not permitted, 5 unknown server, 6 not logged in.
    """
    log_in("server", name, home, as_json, **options)


@servers.command(short_help="Remove and revoke a login.")
@click.argument("name", shell_complete=complete_servers)
@logout_options
@common_options
def logout(name: str, home: str | None, as_json: bool, **options: Any) -> None:
    """Remove the login at server NAME, and revoke it there.

    \b
    dragoman servers logout github
    dragoman servers logout github --holder user:anna     as an administrator
    dragoman servers logout github --all
    """
    log_out("server", name, home, as_json, **options)


_SEE = "see: dragoman servers"


COMMAND_LINE = KnownClient(import_plan.COMMAND_LINE, "the command line", ())
_URL = re.compile(r"https?://", re.IGNORECASE)
_OTHER_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class PassThroughCommand(click.Command):
    """Passes everything from the server's program on to that program, as `env` and `sudo` do."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        valued = {
            option
            for param in self.params
            if isinstance(param, click.Option) and not param.is_flag
            for option in param.opts
        }
        words = 0
        at = 0
        while at < len(args) and args[at] != "--":
            word = args[at]
            if word.startswith("-") and len(word) > 1:
                at += 2 if word in valued else 1
                continue
            words += 1
            if words == 2 and not _URL.match(word):
                return super().parse_args(ctx, [*args[:at], "--", *args[at:]])
            at += 1
        return super().parse_args(ctx, args)


@servers.command(cls=PassThroughCommand, short_help="Add a server, connect and list its tools.")
@click.argument("name")
@click.argument("where", nargs=-1, required=True, metavar="PROGRAM... | URL")
@click.option("--env", "env", multiple=True, metavar="NAME[=VALUE]",
              help="Environment variable of the program; VALUE is stored in env, a reference such "
              "as keyring:SERVICE/NAME in config.toml.")  # fmt: skip
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'",
              help="HTTP header for a URL. Write a secret as ${VARIABLE} or ${REFERENCE}, such as "
              "${keyring:SERVICE/NAME}; other values are stored "
              "in the file env.")  # fmt: skip
@click.option("--headers-stdin", is_flag=True,
              help="Read the headers as one JSON object from the standard input; they are written "
              "exactly so, or not at all.")  # fmt: skip
@click.option("--cwd", metavar="DIR", help="Working directory of the program.")
@click.option("--prefix", help='Prefix of its tool names in lists; "" for none.')
@click.option("--sse", is_flag=True, help="Use the older HTTP+SSE transport for the URL.")
@click.option("--allow-private", is_flag=True,
              help="Allow the host in URL to resolve to a private address.")  # fmt: skip
@click.option("--sandbox", type=click.Choice(["strict", "net", "off"]),
              help="Sandbox of the program; default: net, and off for a container.")  # fmt: skip
@click.option("--set", "more", multiple=True, metavar="KEY=VALUE",
              help="Set any other key of [[mcp_servers]] to a TOML value: --set pin='\"strict\"', "
              "--set timeout_secs=60.")  # fmt: skip
@click.option("--replace", is_flag=True, help="Replace the server of that name.")
@click.option("--no-connect", is_flag=True, help="Only write config.toml; do not connect.")
@common_options
def add(name: str, where: tuple[str, ...], home: str | None, as_json: bool, **options: Any) -> None:
    """Add server NAME to config.toml: a PROGRAM... with its arguments, or a URL.

    \b
    dragoman servers add files npx -y @modelcontextprotocol/server-filesystem ~/docs
    dragoman servers add github --env GITHUB_TOKEN=ghp_… docker run -i --rm ghcr.io/github/…
    dragoman servers add notes https://example.com/mcp --header 'Authorization: Bearer ${NOTES}'

    Put options before the program: everything after it is passed to the program. Values may be
    secrets, so they are stored in the file env in the hub's home and config.toml refers to them by
    name. The hub then connects to the server and lists its tools. A server that cannot be reached
    stays in config.toml, to be corrected there or removed with `dragoman servers remove NAME`.

    On Linux a program runs in a sandbox that hides your home and your secrets, if bubblewrap is
    installed (--sandbox net); see `dragoman docs sandbox`.

    Exit codes: 0 connected, 1 nothing was changed, 2 invalid usage, 6 added but not connected.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 _-]{0,63}", name):
        fail(
            f'invalid server name "{name[:80]}": use at most 64 letters, digits, spaces, "-" and '
            '"_", beginning with a letter or digit',
            USAGE,
        )
    _refuse_skill_name(Path(resolve_home(home)), name)
    entry, private = _build_entry(where, options), options["allow_private"]
    prefix = {} if options["prefix"] is None else {"prefix": options["prefix"]}
    sandbox = {} if options["sandbox"] is None else {"sandbox": options["sandbox"]}
    settings = {**prefix, **sandbox, **_parse_settings(options["more"])}
    if sandbox and "url" in entry:
        fail("--sandbox needs a program", USAGE)
    if private and "url" not in entry:
        fail("--allow-private needs a URL", USAGE)
    title = COMMAND_LINE.title
    found = FoundServer(name, entry, COMMAND_LINE, title, Path.cwd(), settings, private)
    job = ImportJob(Path(resolve_home(home)), replaces=name if options["replace"] else None)
    exact = entry if options["headers_stdin"] else None
    plan, backup = _add_server(job, found, exact)
    state = None if options["no_connect"] else _connect(home, name)
    if as_json:
        answer = {"added": name, "config": str(job.config_path), "notes": plan.notes}
        print_json({**answer, "backup": str(backup) if backup else None, "server": state})
    else:
        kept = f" (backup: {backup.name})" if backup else ""
        print(f'added "{name}" to {job.config_path}{kept}')
        for note in plan.notes:
            print(f"  note: {clean(note)}")
        if plan.values:
            print(f"  {', '.join(plan.values)}: stored in {job.env_path}, readable only by you")
    _report_state(name, state, as_json)


def _refuse_skill_name(place: Path, name: str) -> None:
    """Servers and skills share names."""
    from dragoman.agents.skills.installation import SkillStore

    for skill in SkillStore(place).list_names():
        if slug_from_name(skill) == slug_from_name(name):
            fail(f'the name "{name}" is taken by the skill "{skill}"; use another', USAGE)


def _build_entry(where: tuple[str, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    """Builds the entry in the form that clients use in their files."""
    env, headers, cwd, sse = (options[name] for name in ("env", "headers", "cwd", "sse"))
    if len(where) == 1 and _URL.match(where[0]):
        if env or cwd:
            fail("--env and --cwd need a program; use --header with a URL", USAGE)
        kind = "sse" if sse else "http"
        given = dict(map(parse_header, headers))
        if options["headers_stdin"]:
            given |= _read_headers()
        return {"url": where[0], "type": kind, "headers": given}
    if _URL.match(where[0]):
        fail(f'unexpected argument "{where[1][:60]}" after the URL', USAGE)
    if _OTHER_URL.match(where[0]):
        fail(
            f'"{where[0][:80]}" is no URL of an MCP server: write http:// or https://, or a '
            "program with its arguments",
            USAGE,
        )
    if headers or sse or options["headers_stdin"]:
        fail("--header and --sse need a URL; use --env with a program", USAGE)
    pairs = [variable.partition("=") for variable in env]
    return {
        "command": where[0],
        "args": list(where[1:]),
        "env": {variable: value for variable, equals, value in pairs if equals},
        "env_vars": [variable for variable, equals, _ in pairs if not equals],
        **({"cwd": os.path.abspath(os.path.expanduser(cwd))} if cwd else {}),
    }


def _read_headers() -> dict[str, str]:
    """Reads the headers from the standard input, where names and values are apart."""
    headers = parse_arguments(("-",), "dragoman servers add")
    if not isinstance(headers, dict) or not all(isinstance(one, str) for one in headers.values()):
        fail("the headers must be one JSON object whose values are strings", USAGE)
    return headers


def _check_written(plan: ServerPlan, wanted: Mapping[str, Any]) -> None:
    """Fails unless the entry, read back from what will be written, has the URL and the headers that
    were asked for."""
    [entry] = tomllib.loads(plan.render_block())["mcp_servers"]
    transport = entry["transport"]
    written = transport["url"], transport.get("headers", {})
    if written != (wanted["url"], wanted["headers"]):
        fail(
            f'"{plan.name}" was not added: a header has a value that cannot be written as it is; '
            "refer to it as ${VARIABLE}; nothing was changed"
        )


def _parse_settings(pairs: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not re.fullmatch(r"[a-z_]+", key):
            fail(f'invalid --set "{pair[:60]}": write KEY=VALUE', USAGE)
        try:
            found |= tomllib.loads(f"{key} = {text}")
        except tomllib.TOMLDecodeError:
            found[key] = text  # a word without quotes
    return found


def _add_server(
    job: ImportJob, found: FoundServer, exact: Mapping[str, Any] | None
) -> tuple[ServerPlan, Path | None]:
    """With `exact`, the entry must be written with these members."""
    try:
        listed = list_server_names(decode_text(read_bytes(job.config_path) or b"")[1])
        if job.replaces not in listed:
            job.replaces = None
        job.plan_servers([found])
        for skip in job.skipped:
            taken = "; use --replace to replace it" if "of this name" in skip["reason"] else ""
            fail(f'"{found.name}" was not added: {skip["reason"]}{taken}; nothing was changed')
        if exact is not None:
            _check_written(job.plans[0], exact)
        return job.plans[0], job.write()
    except (UnreadableFile, HomeUnusable, ConfigError) as error:
        raise CommandFailed(f"{str(error).rstrip('.')}; nothing was changed") from None


@servers.command(short_help="Remove a server.")
@click.argument("name", shell_complete=complete_servers)
@common_options
def remove(name: str, home: str | None, as_json: bool) -> None:
    """Remove server NAME from config.toml; a running hub stops it.

    \b
    dragoman servers remove files

    Keeps a backup of config.toml beside it. Values in the file env stay: other servers may use
    them.
    """
    file = Path(resolve_home(home)) / "config.toml"
    backup = edit_config(file, lambda text: remove_server(text, name))
    _reload(home)
    done = {"removed": name, "config": str(file), "backup": str(backup)}
    kept = backup.name if backup else "-"
    print_result(done, f'removed "{name}" from {file} (backup: {kept})', as_json)


@servers.command(short_help="Enable a server.")
@click.argument("name", shell_complete=complete_servers)
@common_options
def enable(name: str, home: str | None, as_json: bool) -> None:
    """Enable server NAME (enabled = true); a running hub connects to it.

    \b
    dragoman servers enable files
    """
    _set_enabled(name, True, home, as_json)


@servers.command(short_help="Disable a server and keep its entry.")
@click.argument("name", shell_complete=complete_servers)
@common_options
def disable(name: str, home: str | None, as_json: bool) -> None:
    """Disable server NAME (enabled = false); a running hub stops it and removes its tools.

    \b
    dragoman servers disable files
    """
    _set_enabled(name, False, home, as_json)


@servers.command(short_help="Try a server in a sandbox and turn it on.")
@click.argument("name", shell_complete=complete_servers)
@click.option("--strict", is_flag=True, help="Use the sandbox without a network.")
@click.option("--dry-run", is_flag=True, help="Only try it; do not change config.toml.")
@common_options
def harden(name: str, strict: bool, dry_run: bool, home: str | None, as_json: bool) -> None:
    """Start server NAME as it is configured and in a sandbox, and compare what it offers.

    \b
    dragoman servers harden files
    dragoman servers harden files --strict --dry-run

    If it offers the same tools, prompts and resources, `sandbox` is set in config.toml and a
    running hub restarts the server. Otherwise nothing is changed, and the command says what is
    missing. Its tools are not called: one that needs a file of yours later finds it only if the
    file is in args, env, cwd or sandbox_paths. See `dragoman docs sandbox`.

    Exit codes: 0 hardened, 1 no sandbox here, 2 not a program, 5 unknown server, 6 it loses
    something.
    """
    place = Path(resolve_home(home))
    level: Literal["strict", "net"] = "strict" if strict else "net"
    entry = _find_program(place, name, level)
    logging.basicConfig(level=logging.CRITICAL)  # the command reports problems itself
    from dragoman.app.sandbox_trial import try_sandbox

    status = StatusLine()
    status.show(f"trying {name} in the sandbox {level} …")
    try:
        trial = try_sandbox(place, entry, level)
    finally:
        status.clear()
    changed = trial.succeeded and not dry_run and entry.sandbox != level
    if changed:
        edit_config(place / "config.toml", lambda text: set_sandbox(text, name, level))
        _reload(home)
    if as_json:
        print_json(
            {
                "server": name,
                "sandbox": level,
                "hardened": trial.succeeded,
                "changed": changed,
                "problem": trial.before.problem or trial.within.problem,
                "lost": trial.lost,
                "missing_paths": trial.missing_paths,
            }
        )
    elif trial.succeeded:
        count = sum(map(len, trial.within.names.values()))
        done = "set in config.toml" if changed else "not changed in config.toml"
        print(f'server "{name}" offers the same {count} in the sandbox "{level}": {done}')
    if not trial.succeeded:
        _fail_trial(name, level, trial)


def _find_program(place: Path, name: str, level: str) -> Any:
    """Returns the entry of a server that can be run in a sandbox here."""
    configured = {one.name: one for one in load(place / "config.toml").mcp_servers}
    if name not in configured:
        fail(f'unknown server "{name}"; {suggest(name, configured) or _SEE}', NOT_FOUND)
    entry = configured[name]
    if not isinstance(entry.transport, StdioTransport):
        fail(f'server "{name}" is reached by a URL; only a program has a sandbox', USAGE)
    if is_container_command(entry.transport.command):
        fail(f'server "{name}" runs in a container, which is its sandbox', USAGE)
    if level == "strict" and entry.has_user_home:
        fail(f'server "{name}" has your home; set home = "private" for the sandbox strict', USAGE)
    try:
        find_bubblewrap()
    except NoBubblewrap as error:
        fail(f"there is no sandbox on this machine: {error}")
    return entry


def _fail_trial(name: str, level: str, trial: SandboxTrial) -> NoReturn:
    if trial.before.problem:
        fail(
            f'server "{name}" cannot be connected as it is configured: {trial.before.problem}; '
            "nothing was changed",
            TARGET_FAILED,
        )
    lost = [f"{kind} {one}" for kind, names in trial.lost.items() for one in names]
    more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
    why = trial.within.problem or f"it no longer offers {', '.join(lost[:5])}{more}"
    if trial.missing_paths:
        paths = ", ".join(f'"{clean(path)}"' for path in trial.missing_paths)
        need = f"it may need sandbox_paths = [{paths}]"
    elif level == "strict":
        need = "it may need the network: try without --strict"
    else:
        need = f"see what it needs in its stderr: {clean(trial.within.stderr[-300:].strip())}"
    fail(
        f'server "{name}" does not work in the sandbox "{level}": {clean(why)}; nothing was '
        f"changed; {need}",
        TARGET_FAILED,
    )


def _set_enabled(name: str, enabled: bool, home: str | None, as_json: bool) -> None:
    file = Path(resolve_home(home)) / "config.toml"
    changed = edit_config(file, lambda text: set_enabled(text, name, enabled))
    hub = _reload(home)
    state = hub.wait_for_server(name) if hub is not None and enabled else None
    done = {"server": name, "enabled": enabled, "changed": changed is not None, "state": state}
    word = f"{'' if changed else 'already '}{'enabled' if enabled else 'disabled'}"
    print_result(done, f'server "{name}" is {word} in {file}', as_json)
    _report_state(name, state, as_json)


def _connect(home: str | None, name: str) -> dict[str, Any] | None:
    """Returns the server's state, or None if the hub rejected the configuration."""
    if connect_running(resolve_home(home)) is not None:
        hub = _reload(home)
        return hub.wait_for_server(name) if hub is not None else None
    with connect_hub(home) as own:
        return own.wait_for_server(name)


def _reload(home: str | None) -> HubClient | None:
    """Makes a running hub reload; returns None if none runs or it rejected the configuration."""
    hub = connect_running(resolve_home(home))
    if hub is not None and (problem := hub.send("POST", "/api/reload")["problem"]):
        say(f"the running hub rejected the new config.toml and keeps the old one: {problem}")
        return None
    return hub


def _report_state(name: str, state: dict[str, Any] | None, as_json: bool) -> None:
    """Prints a connected server; exits with 6 if it is not connected."""
    if state is None:
        return
    if not as_json and state["connected"]:
        print_connected(state)
    if not state["connected"] and state["state"] != "off":
        problem = f'server "{name}" is not connected: {state.get("reason", "")}'
        if state["state"] != "needs_login":  # which says what to do
            problem += "; correct its entry in config.toml, or remove it: "
            problem += f"dragoman servers remove {name}{_hint_sandbox(state)}"
        fail(problem, TARGET_FAILED)


def _hint_sandbox(state: Mapping[str, Any]) -> str:
    level = state.get("sandbox", "off")
    if level == "off":
        return ""
    return (
        f'. It runs in the sandbox "{level}": if it needs files of yours, add them to its '
        'sandbox_paths, or set sandbox = "off" (dragoman docs sandbox)'
    )


_COUNTED = (
    ("tools_count", "tool"),
    ("prompts_count", "prompt"),
    ("resources_count", "resource"),
    ("templates_count", "resource template"),
)


def describe_offers(state: Mapping[str, Any]) -> str:
    counts = [(state.get(key, 0), noun) for key, noun in _COUNTED]
    return ", ".join(
        f"{count} {noun}{'s' * (count != 1)}" for count, noun in counts if count or noun == "tool"
    )


def describe_revision(state: Mapping[str, Any]) -> str:
    return str(state.get("protocol_version") or state.get("era") or "-")


def print_connected(state: Mapping[str, Any]) -> None:
    print(
        f'server "{clean(state["name"])}" is connected: {describe_revision(state)}, '
        f"{describe_offers(state)}"
    )
    _print_remarks(state)
    _print_tools(state)


def print_server(entry: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Prints the configuration entry, state and tools of one server."""
    transport = dict(entry.get("transport", {}))
    kind = transport.pop("type", "-")
    info = state.get("server_info") or {}
    reason = f": {state['reason']}" if state.get("reason") else ""
    rows = [
        ("state", f"{state['state']}{reason}"),
        ("protocol", f"{describe_revision(state)} over {kind}"),
        ("server info", f"{info.get('name', '-')} {info.get('version', '')}" if info else ""),
        *(
            (key, _render_value(value))
            for key, value in transport.items()
            if value not in (None, [], {})
        ),
        *(
            (key, _render_value(value) if key != "sandbox" else _describe_sandbox(value, state))
            for key, value in entry.items()
            if key not in ("name", "transport") and (kind == "stdio" or key not in _STDIO_ONLY)
        ),
        ("offers", describe_offers(state) if state.get("tools_count") is not None else ""),
        ("restarts", state["restarts"] if state.get("restarts") else ""),
    ]
    print(clean(state["name"]))
    for name, value in rows:
        if value != "":
            print(f"  {name:<13} {clean(value)}")
    _print_remarks(state)
    if state.get("tools"):
        print()
        _print_tools(state)


_STDIO_ONLY = ("sandbox", "sandbox_paths", "limits")


def _describe_sandbox(configured: str, state: Mapping[str, Any]) -> str:
    in_force = state.get("sandbox", configured)
    return configured if in_force == configured else f"{in_force} (configured: {configured})"


def _print_remarks(state: Mapping[str, Any]) -> None:
    for remark in _list_remarks(state):
        print(f"  {'remark':<13} {clean(remark)}")


def _list_remarks(state: Mapping[str, Any]) -> list[str]:
    problem = state.get("sandbox_problem")
    sandbox = [f"it runs without its sandbox: {problem}"] if problem else []
    return [*state.get("problems", ()), *sandbox, *state.get("remarks", ())]


def _print_tools(state: Mapping[str, Any]) -> None:
    if tools := state.get("tools"):
        rows = [(tool["name"], tool["description"]) for tool in tools]
        print_table(["NAME", "DESCRIPTION"], rows)


def _render_value(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {item}" for key, item in value.items()) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)
