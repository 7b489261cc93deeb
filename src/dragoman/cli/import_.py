"""`dragoman import`: takes the MCP servers of other clients over into the hub's `config.toml`.

A client writes secrets into its file; the hub's configuration only names them. So values go to
`<home>/env`, a file of NAME=value lines that nobody else may read, and `config.toml` gets the
names. Neither file loses a byte that was there.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from dragoman.cli.clients import (
    CLIENTS,
    Client,
    Unreadable,
    config_file,
    decode,
    is_hub,
    parse,
    parse_toml,
    read_bytes,
    servers_at,
)
from dragoman.cli.install import Failed, append_toml, toml_value, unknown, write
from dragoman.config import parse as check_config
from dragoman.core.errors import ConfigError

FIRST_LINES = """\
# The hub's configuration. Every key is explained in docs/configuration.md.

[mcp]
stdio_expose = ["*"]
"""
HARMLESS_HEADERS = {"accept", "accept-language", "content-type", "user-agent"}
GIVEN_BY_THE_HUB = {"PATH", "HOME", "TMPDIR"}
NOT_HERE = {"workspaceFolder", "workspaceFolderBasename", "workspaceRoot", "pathSeparator", "cwd"}


class Skip(Exception):
    """Why a server is not taken over."""


@dataclass(frozen=True, slots=True)
class Found:
    name: str
    entry: Any
    client: Client
    source: str


@dataclass(slots=True)
class Plan:
    """A server as the hub will have it, and the values that go to the env file."""

    name: str
    source: str
    env: list[str] = field(default_factory=list)
    transport: dict[str, Any] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def block(self) -> str:
        lines = ["[[mcp_servers]]", f"name = {toml_value(self.name)}"]
        lines += [f"env = {toml_value(self.env)}"] if self.env else []
        lines += ["", "[mcp_servers.transport]"]
        lines += [f"{key} = {toml_value(value)}" for key, value in self.transport.items()]
        return "\n".join(lines) + "\n"

    def brief(self) -> dict[str, Any]:
        """What may be shown: arguments and the rest of an address can hold secrets."""
        where = self.transport.get("command") or urlsplit(self.transport["url"]).hostname
        return {
            "name": self.name,
            "from": self.source,
            "type": self.transport["type"],
            "where": where,
            "env": self.env,
            "notes": self.notes,
        }


# --- references in values -----------------------------------------------------------------------

Part = tuple[str, str]
"""("text", …), ("variable", NAME), ("input", id) or ("other", as it was written)."""

_REFERENCE = {
    "gemini-cli": re.compile(r"\$\{([^}]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)"),
    "opencode": re.compile(r"\$\{([^}]*)\}|\{((?:env|file):[^}]*)\}"),
}
_PLAIN_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parts(value: str, client: Client) -> list[Part]:
    """The literal pieces of a value and what it refers to, in this client's ways of writing it."""
    found: list[Part] = []
    at = 0
    for match in _REFERENCE.get(client.name, _PLAIN_REFERENCE).finditer(value):
        if match.start() > at:
            found.append(("text", value[at : match.start()]))
        found.append(_reference(next(filter(None, match.groups()), ""), match.group()))
        at = match.end()
    if at < len(value) or not found:
        found.append(("text", value[at:]))
    return found


def _reference(inside: str, written: str) -> Part:
    kind, _, rest = inside.partition(":")
    name = rest if kind == "env" else inside.partition(":-")[0]
    if name in ("userHome", "HOME"):
        return "text", str(Path.home())
    if kind == "input" and rest:
        return "input", rest
    if _VARIABLE.fullmatch(name) and name not in NOT_HERE:
        return "variable", name
    return "other", written


def _text(value: Any, client: Client, what: str) -> str:
    """A value that `config.toml` holds as it is."""
    pieces = parts(_string(value, what), client)
    if any(kind != "text" for kind, _ in pieces):
        raise Skip(
            f"{what} uses a reference ({', '.join(t for k, t in pieces if k != 'text')}) that only "
            "headers and env can hold here; add the server by hand with the value in its place"
        )
    return "".join(text for _, text in pieces)


def _string(value: Any, what: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise Skip(f"{what} is not text")


# --- a client's entry in the hub's terms --------------------------------------------------------


def plan_for(found: Found) -> Plan:
    """Raises Skip with the reason where the hub cannot have this server."""
    entry = found.entry
    if not isinstance(entry, dict):
        raise Skip("its entry is no object")
    if is_hub(entry):
        raise Skip("it is this hub itself")
    if entry.get("disabled") is True or entry.get("enabled") is False:
        raise Skip("it is switched off there")
    name = re.sub(r"[^A-Za-z0-9 _-]+", "-", found.name).strip(" -_")[:64]
    if not name:
        raise Skip("its name has no letter or digit that a server's name here may have")
    plan = Plan(name, found.source)
    if name != found.name:
        plan.notes.append(f'it is called "{found.name}" there')
    if entry.get("command"):
        _stdio(entry, found.client, plan)
    else:
        _remote(entry, found.client, plan)
    for key in ("envFile", "oauth", "auth", "headersHelper"):
        if entry.get(key):
            plan.notes.append(f'its "{key}" has no counterpart here and was left out')
    try:
        check_config(plan.block(), "its entry")
    except ConfigError as error:
        raise Skip(f"the hub would refuse it: {error}") from None
    return plan


def _stdio(entry: dict[str, Any], client: Client, plan: Plan) -> None:
    command, args = entry["command"], entry.get("args") or []
    env = entry.get("env") or entry.get("environment") or {}
    if isinstance(command, dict):  # Zed's older form
        args, env = command.get("args") or [], command.get("env") or env
        command = command.get("path")
    if isinstance(command, list) and command:
        command, args = command[0], [*command[1:], *args]
    if not isinstance(args, list) or not isinstance(env, dict):
        raise Skip("its args are no list, or its env is no object")
    plan.transport = {"type": "stdio", "command": _text(command, client, "its command")}
    plan.transport["args"] = [_text(arg, client, "an argument") for arg in args]
    if entry.get("cwd"):
        plan.transport["cwd"] = _text(entry["cwd"], client, "its cwd")
    if re.search(
        r"(?i)(key|token|secret|passw)[^=]*=.|://[^/\s]*:[^/\s]*@",
        "\n".join(
            f"{a}={b}" if a.startswith("--") and "=" not in a else a
            for a, b in zip(plan.transport["args"], [*plan.transport["args"][1:], ""], strict=True)
        ),
    ):
        plan.notes.append("its arguments seem to hold a secret, which config.toml now holds too")
    for name, value in env.items():
        _environment(name, _string(value, f"its variable {name}"), client, plan)
    for name in entry.get("env_vars") or []:  # Codex
        if isinstance(name, str) and _VARIABLE.fullmatch(name):
            plan.env.append(name)


def _environment(name: str, value: str, client: Client, plan: Plan) -> None:
    if not _VARIABLE.fullmatch(name):
        raise Skip(f'"{name}" is no name of a variable')
    if name in GIVEN_BY_THE_HUB:
        plan.notes.append(f"its own {name} was left out: the hub gives every server one")
        return
    plan.env.append(name)
    pieces = parts(value, client)
    if all(kind == "text" for kind, _ in pieces):
        plan.values[name] = _one_line(name, "".join(text for _, text in pieces))
    elif pieces != [("variable", name)]:
        plan.notes.append(f"set {name} in the env file or the environment: there it is {value}")


def _one_line(name: str, value: str) -> str:
    if re.search(r"[\x00\r\n]", value):
        raise Skip(f"the value of {name} has a line break, which the env file cannot hold")
    return value


def _remote(entry: dict[str, Any], client: Client, plan: Plan) -> None:
    key = next((k for k in ("httpUrl", "serverUrl", "url", "uri") if entry.get(k)), None)
    if key is None:
        raise Skip("it has neither a command nor a url")
    url = _text(entry[key], client, "its url")
    kind = str(entry.get("type") or entry.get("transport") or "").lower()
    if kind == "sse" or (not kind and _looks_sse(url, key, client)):
        plan.transport = {"type": "sse", "url": url}
    else:
        plan.transport = {"type": "http", "url": url}
    if re.search(r"(?i)[?&][^=]*(key|token|secret)[^=]*=.|://[^/]*@", url):
        plan.notes.append("its url seems to hold a secret, which config.toml now holds too")
    headers = {**(entry.get("headers") or {}), **(entry.get("http_headers") or {})}
    for name, variable in (entry.get("env_http_headers") or {}).items():  # Codex
        headers[name] = f"${{{variable}}}"
    if bearer := entry.get("bearer_token_env_var"):
        headers["Authorization"] = f"Bearer ${{{bearer}}}"
    if headers:
        plan.transport["headers"] = {
            name: _header(name, _string(value, f"its header {name}"), client, plan)
            for name, value in headers.items()
        }
    if _is_private(url):
        plan.transport["allow_private"] = True


def _looks_sse(url: str, key: str, client: Client) -> bool:
    path = urlsplit(url).path.rstrip("/")
    return path.endswith("/sse") or (key == "url" and client.plain_url == "sse")


def _is_private(url: str) -> bool:
    """An address that the user wrote down as a private one; link-local ones are never allowed."""
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_private and not address.is_link_local


def _header(header: str, value: str, client: Client, plan: Plan) -> str:
    """The header as `config.toml` has it: with references, never with a secret."""
    if header.lower() in HARMLESS_HEADERS and "${" not in value:
        return value
    pieces = parts(value, client)
    if all(kind == "text" for kind, _ in pieces):
        variable = _variable(plan.name, header)
        plan.values[variable] = _one_line(variable, "".join(text for _, text in pieces))
        return f"${{{variable}}}"
    out = ""
    for kind, text in pieces:
        if kind == "text" and re.fullmatch(r"[A-Za-z]{0,12} ?", text):
            out += text
        elif kind == "variable":
            out += f"${{{text}}}"
        elif kind == "input":
            variable = _variable(plan.name, text)
            plan.notes.append(f"set {variable} in the env file: VS Code asks for it ({text})")
            out += f"${{{variable}}}"
        else:
            raise Skip(f"its header {header} cannot be written with references to variables only")
    return out


def _variable(server: str, what: str) -> str:
    name = re.sub(r"[^A-Z0-9]+", "_", f"{server}_{what}".upper()).strip("_")
    return f"_{name}" if name[:1].isdigit() else name


# --- where servers are found --------------------------------------------------------------------


def found_in(client: Client, path: Path, source: str) -> list[Found]:
    if client.format == "yaml" or path.suffix in (".yaml", ".yml"):
        raise Unreadable(f'"{path}" is YAML, which is not read here; add its servers by hand')
    data = read_bytes(path)
    if data is None:
        return []
    try:
        document = parse("toml" if path.suffix == ".toml" else client.format, data)
    except Unreadable as error:
        raise Unreadable(f'"{path}" cannot be read: {error}') from None
    servers = dict(servers_at(document, client)[1])
    if client.name == "claude-code" and isinstance(document, dict):
        # `claude mcp add` without a scope puts a server under the folder it was run in.
        here = (document.get("projects") or {}).get(str(Path.cwd())) or {}
        servers = {**(here.get("mcpServers") or {}), **servers}
    return [Found(name, entry, client, source) for name, entry in servers.items()]


def found_in_client(client: Client) -> list[Found]:
    path = config_file(client)
    if path is None or (client.format == "yaml" and not path.exists()):
        return []
    if client.name == "continue":
        files = sorted(path.parent.glob("*.json")) if path.parent.is_dir() else []
        return [found for file in files for found in found_in(client, file, client.title)]
    return found_in(client, path, client.title)


def found_in_file(path: Path) -> list[Found]:
    """A file is read as that of the client whose place or whose keys it has."""
    absolute = str(path.absolute())
    placed = [c for c in CLIENTS.values() if any(absolute.endswith(f"/{p}") for p in c.project)]
    found: list[Found] = []
    for client in [*placed, *CLIENTS.values()]:
        if (client.format == "toml") == (path.suffix == ".toml") and client.format != "yaml":
            found = found or found_in(client, path, str(path))
    if not found:
        raise Unreadable(f'"{path}" names no MCP servers under any key that a client uses')
    return found


# --- what to do ---------------------------------------------------------------------------------


def home_path(given: Path | None) -> Path:
    return given or Path(os.environ.get("DRAGOMAN_HOME") or "~/.dragoman").expanduser()


def _namespace(name: str) -> str:
    return name.lower().replace("-", "_").replace(" ", "_")


def read_env(data: bytes | None) -> dict[str, str]:
    """NAME=value lines; everything after the first "=" is the value, as it stands."""
    lines = (line for line in decode(data or b"")[1].splitlines() if not line.startswith("#"))
    return {name: value for name, sign, value in (line.partition("=") for line in lines) if sign}


@dataclass(slots=True)
class Work:
    """What an import does: decided first, shown, and then written in one go."""

    home: Path
    plans: list[Plan] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    config: bytes | None = None
    env: bytes | None = None

    @property
    def config_path(self) -> Path:
        return self.home / "config.toml"

    @property
    def env_path(self) -> Path:
        return self.home / "env"

    def decide(self, found: list[Found]) -> None:
        self.config, self.env = read_bytes(self.config_path), read_bytes(self.env_path)
        try:
            document = parse_toml(decode(self.config or b"")[1])
        except Unreadable as error:
            raise Failed(
                f'"{self.config_path}" cannot be read: {error}. Nothing was changed; correct it.'
            ) from None
        listed = document.get("mcp_servers", [])
        taken = {
            _namespace(str(s.get("name"))): "config.toml" for s in listed if isinstance(s, dict)
        }
        values = read_env(self.env)
        for server in found:
            try:
                plan = plan_for(server)
                self._fits(plan, taken, values)
            except Skip as reason:
                skip = {"name": server.name, "from": server.source, "reason": str(reason)}
                self.skipped.append(skip)
                continue
            taken[_namespace(plan.name)] = plan.source
            values |= plan.values
            self.plans.append(plan)

    def _fits(self, plan: Plan, taken: dict[str, str], values: dict[str, str]) -> None:
        holder = taken.get(_namespace(plan.name))
        if holder is not None:
            raise Skip(f"a server of this name is already in {holder}")
        for name, value in plan.values.items():
            if values.get(name, value) != value:
                raise Skip(
                    f"{name} has another value in {self.env_path} already; make them one, or give "
                    "this server's variable another name by hand"
                )

    def write(self) -> Path | None:
        """The env file first: a server without its secret would fail, a secret alone is idle."""
        if not self.plans:
            return None
        if not self.home.exists():
            self.home.mkdir(parents=True, mode=0o700)
        self._write_env()
        mark, text = decode(self.config if self.config is not None else FIRST_LINES.encode())
        new = text
        for plan in self.plans:
            new = append_toml(new, plan.block())
        before, after = parse_toml(text), parse_toml(new)
        blocks = parse_toml("\n".join(plan.block() for plan in self.plans))
        before["mcp_servers"] = [*before.get("mcp_servers", []), *blocks["mcp_servers"]]
        if repr(after) != repr({key: before[key] for key in after}) or len(after) != len(before):
            raise Unreadable(
                f'"{self.config_path}" has mcp_servers in a form that cannot be added to'
            )
        return write(self.config_path, (mark + new).encode(), self.config)

    def _write_env(self) -> None:
        known = read_env(self.env)
        fresh = {n: v for plan in self.plans for n, v in plan.values.items() if n not in known}
        if not fresh:
            return
        old = self.env or b""
        gap = b"" if not old or old.endswith(b"\n") else b"\n"
        lines = "".join(f"{name}={value}\n" for name, value in fresh.items())
        write(self.env_path, old + gap + lines.encode(), self.env, backup=False)
        if os.name == "posix":
            os.chmod(os.path.realpath(self.env_path), 0o600)


def _collect(source: str | None, work: Work) -> list[Found]:
    if source is not None and source not in CLIENTS:
        if not Path(source).exists():
            raise unknown(source, " and no file")
        return found_in_file(Path(source))
    if source is not None:
        found = found_in_client(CLIENTS[source])
        if not found:
            path = config_file(CLIENTS[source])
            raise Failed(f"{CLIENTS[source].title} has no MCP servers in {path}; nothing to import")
        return found
    everything: list[Found] = []
    for client in CLIENTS.values():
        try:
            everything += found_in_client(client)
        except Unreadable as error:
            work.problems.append(f"{client.title}: {error}")
    return everything


def _only(found: list[Found], only: str) -> list[Found]:
    wanted = {_namespace(name.strip()): name.strip() for name in only.split(",") if name.strip()}
    chosen = [server for server in found if _namespace(server.name) in wanted]
    missing = wanted.keys() - {_namespace(server.name) for server in chosen}
    if missing or not wanted:
        names = ", ".join(dict.fromkeys(server.name for server in found)) or "none"
        raise Failed(
            f"--only: no server is called {', '.join(wanted[m] for m in missing)}; found: {names}"
        )
    return chosen


def _report(work: Work, done: bool, backup: Path | None, as_json: bool) -> None:
    after = "dragoman servers" if done and work.plans else None
    if as_json:
        brief = [plan.brief() for plan in work.plans]
        answer = {
            "added": brief if done else [],
            "found": brief,
            "skipped": work.skipped,
            "problems": work.problems,
            "config": str(work.config_path),
            "env_file": str(work.env_path),
            "backup": str(backup) if backup else None,
            "next": after,
        }
        click.echo(json.dumps(answer, indent=2))
        return
    for problem in work.problems:
        click.echo(f"Not read: {problem}")
    for skip in work.skipped:
        click.echo(f'Skipped "{skip["name"]}" from {skip["from"]}: {skip["reason"]}.')
    if not work.plans:
        click.echo("Nothing new to import; nothing was changed.")
        return
    if done:
        kept = f" (backup: {backup.name})" if backup else ""
        names = ", ".join(plan.name for plan in work.plans)
        click.echo(f"Added {len(work.plans)} to {work.config_path}{kept}: {names}.")
        if any(plan.values for plan in work.plans):
            click.echo(f"Their secrets are in {work.env_path}, which only you can read.")
        click.echo("See how they do with: dragoman servers")


def _show(work: Work) -> None:
    for plan in work.plans:
        brief = plan.brief()
        click.echo(f"{brief['name']:<24} {brief['type']:<6} {brief['where']}  from {plan.source}")
        for note in plan.notes:
            click.echo(f"  note: {note}")


def _printed(work: Work) -> None:
    click.echo(f"# To be added to {work.config_path}:")
    for plan in work.plans:
        click.echo("\n" + "".join(f"# {note}\n" for note in plan.notes) + plan.block(), nl=False)
    names = dict.fromkeys(name for plan in work.plans for name in plan.values)
    if names:
        click.echo(f"\n# Values to be added to {work.env_path}: {', '.join(names)}")


def _sure(explicit: bool, as_json: bool, work: Work) -> bool:
    if explicit or not work.plans:
        return True
    if not as_json and sys.stdin.isatty() and sys.stdout.isatty():
        return click.confirm(f"Add these to {work.config_path}?", default=True)
    if not as_json:
        click.echo("Nothing was changed; run it again with --all to add these.")
    return False


@click.command("import")
@click.argument("source", metavar="[CLIENT|FILE]", required=False)
@click.option("--print", "printed", is_flag=True, help="Show what would be added; touch nothing.")
@click.option("--all", "everything", is_flag=True, help="Add all that is found without asking.")
@click.option("--only", metavar="NAME,…", help="Only the servers of these names.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    help="The hub's home; default: $DRAGOMAN_HOME, else ~/.dragoman.",
)
@click.pass_context
def import_command(
    ctx: click.Context,
    source: str | None,
    printed: bool,
    everything: bool,
    only: str | None,
    as_json: bool,
    home: Path | None,
) -> None:
    """Take over the MCP servers that other clients already have.

    From one CLIENT ("dragoman install" lists them), from a FILE in any of their formats, or, with
    neither, from all known clients after you confirmed it (--all: without asking).

    Servers go to config.toml in the hub's home. Values of variables and headers, which may be
    secrets, go to the file "env" beside it, and config.toml only names them. Nothing that is
    there is changed or overwritten: a name or a value that is taken is reported and that server
    skipped.

    Exit codes: 0 done or nothing to do, 1 failed, 2 wrong usage.
    """
    work = Work(home_path(home))
    try:
        found = _collect(source, work)
        work.decide(_only(found, only) if only is not None else found)
        if not as_json and not printed:
            _show(work)
        explicit = everything or source is not None or only is not None
        done = not printed and _sure(explicit, as_json, work)
        backup = work.write() if done else None
    except (click.ClickException, Unreadable, OSError) as error:
        failure = error if isinstance(error, click.ClickException) else Failed(f"{error}.")
        if not as_json:
            raise failure from None
        click.echo(json.dumps({"error": failure.message}))
        ctx.exit(failure.exit_code)
    if printed and not as_json:
        _printed(work)
    _report(work, done, backup, as_json)
