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
from itertools import pairwise
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
from dragoman.home import Unfit, home_path, prepare

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


def _clean(text: object) -> str:
    """Without what a terminal would obey: names and values come out of other people's files."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "?", str(text))


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
            "where": _clean(where),
            "env": self.env,
            "notes": [_clean(note) for note in self.notes],
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
    if _seem_secret(plan.transport["args"]):
        plan.notes.append("its arguments seem to hold a secret, which config.toml now holds too")
    for name, value in env.items():
        _environment(name, _string(value, f"its variable {name}"), client, plan)
    for name in entry.get("env_vars") or []:  # Codex
        if isinstance(name, str) and _VARIABLE.fullmatch(name) and name not in plan.env:
            plan.env.append(name)


def _seem_secret(args: list[str]) -> bool:
    """`--api-key=x`, `--api-key x`, `TOKEN=x`, `scheme://user:password@host`."""
    joined = [f"{a}={b}" if a.startswith("-") else a for a, b in pairwise([*args, ""])]
    return any(re.search(r"(?i)(key|token|secret|passw)[^=]*=.|://[^/]*:.*@", a) for a in joined)


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
        made = " ".join(
            text if kind == "other" else f"{kind} {text}" for kind, text in pieces if kind != "text"
        )
        plan.notes.append(f"set {name} in the env file: there it is made of {made}")


def _one_line(name: str, value: str) -> str:
    if re.search(r"[\x00\r\n]", value):
        raise Skip(f"the value of {name} has a line break, which the env file cannot hold")
    return value


def _remote(entry: dict[str, Any], client: Client, plan: Plan) -> None:
    key = next((k for k in ("httpUrl", "serverUrl", "url", "uri") if entry.get(k)), None)
    if key is None:
        raise Skip("it has neither a command nor a url")
    url = _text(entry[key], client, "its url")
    try:
        urlsplit(url)
    except ValueError:
        raise Skip("its url is none") from None
    kind = str(entry.get("type") or entry.get("transport") or "").lower()
    if kind == "sse" or (not kind and _looks_sse(url, key, client)):
        plan.transport = {"type": "sse", "url": url}
    else:
        plan.transport = {"type": "http", "url": url}
    if re.search(r"(?i)[?&][^=]*(key|token|secret)[^=]*=.|://[^/]*@", url):
        plan.notes.append("its url seems to hold a secret, which config.toml now holds too")
    headers = {**_object(entry, "headers"), **_object(entry, "http_headers")}
    for name, variable in _object(entry, "env_http_headers").items():  # Codex
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


def _object(entry: Any, key: str) -> dict[str, Any]:
    value = entry.get(key) if isinstance(entry, dict) else None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Skip(f'its "{key}" is no object')
    return value


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
        try:
            here = _object(_object(document, "projects"), str(Path.cwd()))
            servers = {**_object(here, "mcpServers"), **servers}
        except Skip:
            pass
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


def _namespace(name: str) -> str:
    return name.lower().replace("-", "_").replace(" ", "_")


def read_env(data: bytes | None) -> dict[str, str]:
    """NAME=value lines; everything after the first "=" is the value, as it stands."""
    lines = (line.removesuffix("\r") for line in decode(data or b"")[1].split("\n"))
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    return {name: value for name, sign, value in pairs if sign}


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
                names = {"name": _clean(server.name), "from": server.source}
                self.skipped.append({**names, "reason": _clean(reason)})
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
        prepare(str(self.home))
        mark, text = decode(self.config if self.config is not None else FIRST_LINES.encode())
        new = text
        for plan in self.plans:
            new = append_toml(new, plan.block())
        old = parse_toml(text)
        blocks = parse_toml("\n".join(plan.block() for plan in self.plans))["mcp_servers"]
        try:
            expected = old | {"mcp_servers": [*old.get("mcp_servers", []), *blocks]}
            same = repr(parse_toml(new)) == repr(expected)
        except Unreadable:
            same = False
        if not same:
            raise Failed(
                f'"{self.config_path}" lists mcp_servers in a form that cannot be added to; '
                "nothing was changed. Write each as a [[mcp_servers]] table, or see --print."
            )
        self._write_env()
        return write(self.config_path, (mark + new).encode(), self.config)

    def _write_env(self) -> None:
        known = read_env(self.env)
        fresh = {n: v for plan in self.plans for n, v in plan.values.items() if n not in known}
        if not fresh:
            return
        old = self.env or b""
        gap = b"" if not old or old.endswith(b"\n") else b"\n"
        lines = "".join(f"{name}={value}\n" for name, value in fresh.items())
        if self.env is not None and os.name == "posix":
            os.chmod(self.env_path, 0o600)
        write(self.env_path, old + gap + lines.encode(), self.env, backup=False)


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
        what = ", ".join(wanted[name] for name in missing) or "(nothing)"
        raise Failed(f"--only {what}: no such server; found: {names}")
    return chosen


def _answer(work: Work, done: bool, backup: Path | None) -> dict[str, Any]:
    brief = [plan.brief() for plan in work.plans]
    after = "dragoman servers" if done else "dragoman import --all"
    return {
        "added": brief if done else [],
        "found": brief,
        "skipped": work.skipped,
        "problems": work.problems,
        "config": str(work.config_path),
        "env_file": str(work.env_path),
        "backup": str(backup) if backup else None,
        "next": after if work.plans else None,
    }


def _show(work: Work, mark: str = "") -> None:
    for problem in work.problems:
        click.echo(f"{mark}Not read: {problem}")
    for skip in work.skipped:
        click.echo(f'{mark}Skipped "{skip["name"]}" from {skip["from"]}: {skip["reason"]}.')
    for plan in [] if mark else work.plans:
        brief = plan.brief()
        click.echo(f"{brief['name']:<24} {brief['type']:<6} {brief['where']}  from {plan.source}")
        for note in brief["notes"]:
            click.echo(f"  note: {note}")


def _summary(work: Work, backup: Path | None) -> None:
    kept = f" (backup: {backup.name})" if backup else ""
    names = ", ".join(plan.name for plan in work.plans)
    click.echo(f"Added {len(work.plans)} to {work.config_path}{kept}: {names}.")
    if any(plan.values for plan in work.plans):
        click.echo(f"Their secrets are in {work.env_path}, which only you can read.")
    click.echo("See how they do with: dragoman servers")


def _printed(work: Work) -> None:
    _show(work, "# ")
    click.echo(f"# To be added to {work.config_path}:")
    for plan in work.plans:
        notes = "".join(f"# {note}\n" for note in plan.brief()["notes"])
        click.echo(f"\n{notes}{plan.block()}", nl=False)
    names = dict.fromkeys(name for plan in work.plans for name in plan.values)
    if names:
        click.echo(f"\n# Values to be added to {work.env_path}: {', '.join(names)}")


def _sure(work: Work) -> bool:
    if sys.stdin.isatty() and sys.stdout.isatty():
        return click.confirm(f"Add these to {work.config_path}?", default=True)
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
    try:
        work = Work(Path(home_path(str(home) if home else None)))
        found = _collect(source, work)
        work.decide(_only(found, only) if only is not None else found)
        if not as_json and not printed:
            _show(work)
        explicit = everything or source is not None or only is not None
        done = not printed and bool(work.plans) and (explicit or (not as_json and _sure(work)))
        backup = work.write() if done else None
    except (click.ClickException, Unreadable, Unfit, OSError) as error:
        message = str(error).rstrip(".") + "."
        failure = error if isinstance(error, click.ClickException) else Failed(message)
        if not as_json:
            raise failure from None
        click.echo(json.dumps({"error": failure.message}))
        ctx.exit(failure.exit_code)
    if as_json:
        click.echo(json.dumps(_answer(work, done, backup), indent=2))
    elif printed:
        _printed(work)
    elif done:
        _summary(work, backup)
    elif work.plans:
        click.echo("Nothing was changed; to add these, run it again with --all.")
    else:
        click.echo("Nothing new to import; nothing was changed.")
