"""Translates a server entry of a client into a `[[mcp_servers]]` block and values for `env`.

Clients keep secrets in their files; here config.toml gets only references to them. Reads and writes
nothing.
"""

from __future__ import annotations

import ipaddress
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dragoman.cli.base.output import clean
from dragoman.cli.base.toml_edit import render_value
from dragoman.cli.clients.known_clients import KnownClient, is_hub_entry
from dragoman.config import parse as check_config
from dragoman.core.errors import ConfigError
from dragoman.core.package_runners import (
    explain_unpinned,
    find_unpinned_package,
    is_container_command,
)
from dragoman.core.secret_references import is_reference

NOT_HERE = {"workspaceFolder", "workspaceFolderBasename", "workspaceRoot", "pathSeparator", "cwd"}

Part = tuple[str, str]
"""("text", …), ("variable", NAME), ("input", id) or ("other", original text)."""


class SkipServer(Exception):
    """A server cannot be imported; the message says why."""


_REFERENCE = {
    "gemini-cli": re.compile(r"\$\{([^}]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)"),
    "opencode": re.compile(r"\$\{([^}]*)\}|\{((?:env|file):[^}]*)\}"),
}
_PLAIN_REFERENCE = re.compile(r"\$\{([^}]*)\}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def split_references(value: str, client: KnownClient) -> list[Part]:
    """Splits a value into literal text and references, in this client's syntax."""
    found: list[Part] = []
    at = 0
    for match in _REFERENCE.get(client.name, _PLAIN_REFERENCE).finditer(value):
        if match.start() > at:
            found.append(("text", value[at : match.start()]))
        found.append(_parse_reference(next(filter(None, match.groups()), ""), match.group()))
        at = match.end()
    if at < len(value) or not found:
        found.append(("text", value[at:]))
    return found


def _parse_reference(inside: str, written: str) -> Part:
    kind, _, rest = inside.partition(":")
    name = rest if kind == "env" else inside.partition(":-")[0]
    if name in ("userHome", "HOME"):
        return "text", str(Path.home())
    if kind == "input" and rest:
        return "input", rest
    if VARIABLE.fullmatch(name) and name not in NOT_HERE:
        return "variable", name
    return "other", written


def resolve_text(value: Any, client: KnownClient, what: str) -> str:
    """Returns a value without references, for `config.toml`."""
    pieces = split_references(convert_to_string(value, what), client)
    if any(kind != "text" for kind, _ in pieces):
        raise SkipServer(
            f"{what} uses a reference ({', '.join(t for k, t in pieces if k != 'text')}), which is "
            "supported only in headers and env; add the server by hand with the value instead"
        )
    return "".join(text for _, text in pieces)


def convert_to_string(value: Any, what: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise SkipServer(f"{what} is not text")


HARMLESS_HEADERS = {"accept", "accept-language", "content-type", "user-agent"}
SET_BY_HUB = {"PATH", "HOME", "TMPDIR"}
COMMAND_LINE = "typed"
"""The name of the client that stands for the command line."""
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@dataclass(frozen=True, slots=True)
class FoundServer:
    name: str
    entry: Any
    client: KnownClient
    source: str
    base: Path | None = None
    """The folder for relative paths; None if the file belongs to no folder."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further keys for its entry in `config.toml`."""
    allow_private: bool = False
    """Whether the operator permits its host to resolve to a private address."""
    path: Path | None = None
    """The file that contains it, below `keys`."""
    keys: tuple[str, ...] = ()


@dataclass(slots=True)
class ServerPlan:
    """A server's entry for `config.toml`, and its values for the env file."""

    name: str
    source: str
    settings: dict[str, Any] = field(default_factory=dict)
    env: list[str] = field(default_factory=list)
    transport: dict[str, Any] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def render_block(self) -> str:
        lines = ["[[mcp_servers]]", f"name = {render_value(self.name)}"]
        lines += [f"env = {render_value(self.env)}"] if self.env else []
        lines += [f"{key} = {render_value(value)}" for key, value in self.settings.items()]
        lines += ["", "[mcp_servers.transport]"]
        lines += [f"{key} = {render_value(value)}" for key, value in self.transport.items()]
        return "\n".join(lines) + "\n"

    def summarize(self) -> dict[str, Any]:
        """Returns what may be shown: arguments and the rest of a URL can hold secrets."""
        where = self.transport.get("command") or urlsplit(self.transport["url"]).hostname
        return {
            "name": self.name,
            "from": self.source,
            "type": self.transport["type"],
            "where": clean(where),
            "env": self.env,
            "home": self.settings.get("home"),
            "notes": [clean(note) for note in self.notes],
        }


def plan_server(found: FoundServer) -> ServerPlan:
    """Plans the import of a server; raises SkipServer if it cannot be imported."""
    entry = found.entry
    if not isinstance(entry, dict):
        raise SkipServer("its entry is not an object")
    if is_hub_entry(entry):
        raise SkipServer("it is this hub itself")
    if entry.get("disabled") is True or entry.get("enabled") is False:
        raise SkipServer("it is disabled there")
    name = re.sub(r"[^A-Za-z0-9 _-]+", "-", found.name).strip(" -_")[:64]
    if not name:
        raise SkipServer("its name has no ASCII letter or digit")
    plan = ServerPlan(name, found.source, dict(found.settings))
    if name != found.name:
        plan.notes.append(f'renamed from "{found.name}"')
    if entry.get("command"):
        _plan_stdio(entry, found, plan)
    else:
        _plan_remote(entry, found.client, plan)
        if found.allow_private:
            plan.transport["allow_private"] = True
    for key in ("envFile", "oauth", "auth", "headersHelper"):
        if entry.get(key):
            plan.notes.append(f'its "{key}" is not supported and was omitted')
    try:
        check_config(plan.render_block(), "its entry")
    except ConfigError as error:
        raise SkipServer(f"the hub would reject it: {error}") from None
    return plan


def _plan_stdio(entry: dict[str, Any], found: FoundServer, plan: ServerPlan) -> None:
    client = found.client
    command, args = entry["command"], entry.get("args") or []
    env = entry.get("env") or entry.get("environment") or {}
    if isinstance(command, dict):  # Zed's older form
        args, env = command.get("args") or [], command.get("env") or env
        command = command.get("path")
    if isinstance(command, list) and command:
        command, args = command[0], [*command[1:], *args]
    if not isinstance(args, list) or not isinstance(env, dict):
        raise SkipServer("its args are not a list, or its env is not an object")
    plan.transport = {"type": "stdio", "command": resolve_text(command, client, "its command")}
    plan.transport["args"] = [resolve_text(arg, client, "an argument") for arg in args]
    if entry.get("cwd"):
        plan.transport["cwd"] = resolve_text(entry["cwd"], client, "its cwd")
    if found.base is not None:
        _make_absolute(plan, found.base)
    if _has_secret(plan.transport["args"]):
        plan.notes.append("its arguments seem to contain a secret, which is now in config.toml too")
    for name, value in env.items():
        _plan_variable(name, convert_to_string(value, f"its variable {name}"), client, plan)
    for name in entry.get("env_vars") or []:  # Codex
        if isinstance(name, str) and VARIABLE.fullmatch(name) and name not in plan.env:
            plan.env.append(name)
    _keep_surroundings(found, plan)
    if client.name == COMMAND_LINE:
        _choose_sandbox(plan)
    package = find_unpinned_package(plan.transport["command"], plan.transport["args"])
    if package is not None and client.name == COMMAND_LINE:
        plan.notes.append("; ".join(explain_unpinned(plan.transport["command"], package)))


def _keep_surroundings(found: FoundServer, plan: ServerPlan) -> None:
    """Keeps the user's home and the shell's proxies for an imported server, since most clients pass
    them. A new server gets a private home."""
    if found.client.name == COMMAND_LINE:
        if "home" not in plan.settings and "HOME" not in plan.env:
            plan.notes.append(
                "it runs with a private home folder; --set home='\"user\"' gives it yours and its "
                "settings"
            )
        return
    plan.settings.setdefault("home", "user")
    names = [one for name in PROXIES for one in (name, name.lower()) if os.environ.get(one)]
    given = [name for name in names if name not in plan.env]
    if given:
        plan.env += given
        plan.notes.append(f"it receives {', '.join(given)} from this shell")


def _choose_sandbox(plan: ServerPlan) -> None:
    """A new server starts in a sandbox, if it is not in a container anyway."""
    if "sandbox" in plan.settings or sys.platform != "linux":
        return
    if is_container_command(plan.transport["command"]):
        plan.notes.append(
            "its container is its sandbox; bubblewrap would hide the container engine"
        )
        return
    plan.settings["sandbox"] = "net"
    plan.notes.append(
        'it runs in a sandbox without your home and secrets (sandbox = "net"); paths in its '
        "arguments are visible to it"
    )


def _make_absolute(plan: ServerPlan, base: Path) -> None:
    """Makes relative paths absolute: clients start servers in the project folder, the hub in a
    private home."""
    transport = plan.transport
    if "cwd" in transport:
        transport["cwd"] = str(base / os.path.expanduser(transport["cwd"]))
        return
    if "/" in transport["command"]:
        transport["command"] = _resolve_path(transport["command"], base)
    transport["args"] = [_resolve_path(arg, base) for arg in transport["args"]]


def _resolve_path(word: str, base: Path) -> str:
    if not word or word.startswith(("-", "~", "/")):
        return word
    try:
        path = base / word
        return os.path.normpath(path) if path.is_file() or ("/" in word and path.exists()) else word
    except (OSError, ValueError):  # too long for a path, or a NUL in it
        return word


def _has_secret(args: list[str]) -> bool:
    """Whether an argument looks like `--api-key=x`, `--api-key x`, `TOKEN=x` or has a password."""
    joined = [f"{a}={b}" if a.startswith("-") else a for a, b in pairwise([*args, ""])]
    return any(re.search(r"(?i)(key|token|secret|passw)[^=]*=.|://[^/]*:.*@", a) for a in joined)


def _plan_variable(name: str, value: str, client: KnownClient, plan: ServerPlan) -> None:
    if not VARIABLE.fullmatch(name):
        raise SkipServer(f'invalid variable name "{name}"')
    if name in SET_BY_HUB:
        plan.notes.append(f"its {name} was omitted: the hub sets it")
        return
    if client.name == COMMAND_LINE and is_reference(value):
        plan.env.append(f"{name}={value}")
        return
    plan.env.append(name)
    pieces = split_references(value, client)
    if all(kind == "text" for kind, _ in pieces):
        plan.values[name] = _check_single_line(name, "".join(text for _, text in pieces))
    elif pieces != [("variable", name)]:
        made = " ".join(
            text if kind == "other" else f"{kind} {text}" for kind, text in pieces if kind != "text"
        )
        plan.notes.append(f"set {name} in the env file: the client builds it from {made}")


def _check_single_line(name: str, value: str) -> str:
    if re.search(r"[\x00\r\n]", value):
        raise SkipServer(
            f"the value of {name} has a line break, which the env file does not support"
        )
    return value


def _plan_remote(entry: dict[str, Any], client: KnownClient, plan: ServerPlan) -> None:
    key = next((k for k in ("httpUrl", "serverUrl", "url", "uri") if entry.get(k)), None)
    if key is None:
        raise SkipServer("it has neither a command nor a url")
    url = resolve_text(entry[key], client, "its url")
    try:
        urlsplit(url)
    except ValueError:
        raise SkipServer("its url is invalid") from None
    kind = str(entry.get("type") or entry.get("transport") or "").lower()
    if not kind:
        is_sse = urlsplit(url).path.rstrip("/").endswith("/sse")
        kind = "sse" if is_sse or (key == "url" and client.plain_url == "sse") else "http"
    plan.transport = {"type": "sse" if kind == "sse" else "http", "url": url}
    if re.search(r"(?i)[?&][^=]*(key|token|secret)[^=]*=.|://[^/]*@", url):
        plan.notes.append("its url seems to contain a secret, which is now in config.toml too")
    headers = {**get_object(entry, "headers"), **get_object(entry, "http_headers")}
    for name, variable in get_object(entry, "env_http_headers").items():  # Codex
        headers[name] = f"${{{variable}}}"
    if bearer := entry.get("bearer_token_env_var"):
        headers["Authorization"] = f"Bearer ${{{bearer}}}"
    if headers:
        plan.transport["headers"] = {
            name: _plan_header(name, convert_to_string(value, f"its header {name}"), client, plan)
            for name, value in headers.items()
        }
    if _is_private(url):
        plan.transport["allow_private"] = True


def get_object(entry: Any, key: str) -> dict[str, Any]:
    value = entry.get(key) if isinstance(entry, dict) else None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SkipServer(f'its "{key}" is not an object')
    return value


def _is_private(url: str) -> bool:
    """Whether the URL names a private address itself; link-local ones are never allowed."""
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_private and not address.is_link_local


_REFERRING = re.compile(r"(?:[A-Za-z]{1,12} )?\$\{(?:env|file|keyring|exec):(?:(?!\$\{)[^}])+\}")
"""A header whose value is a reference to a secret, perhaps behind a word such as Bearer."""


def _plan_header(header: str, value: str, client: KnownClient, plan: ServerPlan) -> str:
    """Returns the header for `config.toml`: with references, never with a secret."""
    if header.lower() in HARMLESS_HEADERS and "${" not in value:
        return value
    if client.name == COMMAND_LINE and _REFERRING.fullmatch(value):
        return value
    pieces = split_references(value, client)
    if all(kind == "text" for kind, _ in pieces):
        variable = _build_variable_name(plan.name, header)
        plan.values[variable] = _check_single_line(variable, "".join(text for _, text in pieces))
        return f"${{{variable}}}"
    out = ""
    for kind, text in pieces:
        if kind == "text" and re.fullmatch(r"[A-Za-z]{0,12} ?", text):
            out += text
        elif kind == "variable":
            out += f"${{{text}}}"
        elif kind == "input":
            variable = _build_variable_name(plan.name, text)
            plan.notes.append(f"set {variable} in the env file: VS Code asks for it ({text})")
            out += f"${{{variable}}}"
        else:
            raise SkipServer(
                f"its header {header} cannot be expressed with variable references only"
            )
    return out


def _build_variable_name(server: str, what: str) -> str:
    name = re.sub(r"[^A-Z0-9]+", "_", f"{server}_{what}".upper()).strip("_")
    return f"_{name}" if name[:1].isdigit() else name
