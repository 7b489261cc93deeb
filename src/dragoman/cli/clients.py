"""The MCP clients that are known by name: where their files are, and how those are read.

Every path and shape here is documented by the client's maker or read in its source. The reader
takes JSON with comments and trailing commas and remembers where each member stands, so that
`install` can edit the text around it. Nothing here writes.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

MAX_BYTES = 32 * 1024 * 1024
"""~/.claude.json grows to megabytes; what is larger than this is no configuration."""
MAX_DEPTH = 200


class Unreadable(Exception):
    """One sentence: what is wrong with the file, and where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    name: str
    title: str
    files: tuple[str, ...]
    """The first that exists is meant, else the first; `{…}` are the places of `_places`."""
    windows: tuple[str, ...] = ()
    """Where Windows has other ones."""
    project: tuple[str, ...] = ()
    keys: tuple[str, ...] = ("mcpServers",)
    newer_keys: tuple[str, ...] = ()
    """Used instead of `keys` where the file already has them."""
    format: Literal["json", "toml", "yaml"] = "json"
    first: tuple[tuple[str, Any], ...] = ()
    last: tuple[tuple[str, Any], ...] = ()
    """Fields of this client's own, before and after command, arguments and environment."""
    joined: bool = False
    """Whether command and arguments are one list, and the environment is `environment`."""
    plain_url: Literal["http", "sse"] = "http"
    """What a `url` without a type means here."""
    gui: bool = True
    """Started from a dock or a menu, so with another PATH than the shell's."""
    then: str = ""

    @property
    def next_step(self) -> str:
        return self.then or f"Restart {self.title}; the hub's tools are then there."


_STDIO = (("type", "stdio"),)
_EXTENSIONS = "{support}/Code/User/globalStorage"
_VSCODE = 'Run "MCP: List Servers" in the command palette and start it, or reload the window.'
_RELOAD = 'Run "Developer: Reload Window" in VS Code; the hub\'s tools are then there.'
_SESSION = "Start a new session; /mcp shows the hub there."

CLIENTS: dict[str, Client] = {
    client.name: client
    for client in (
        Client(
            name="cursor",
            title="Cursor",
            files=("{home}/.cursor/mcp.json",),
            project=(".cursor/mcp.json",),
        ),
        Client(
            name="vscode",
            title="VS Code",
            files=("{support}/Code/User/mcp.json",),
            project=(".vscode/mcp.json",),
            keys=("servers",),
            first=_STDIO,
            then=_VSCODE,
        ),
        Client(
            name="vscode-insiders",
            title="VS Code Insiders",
            files=("{support}/Code - Insiders/User/mcp.json",),
            project=(".vscode/mcp.json",),
            keys=("servers",),
            first=_STDIO,
            then=_VSCODE,
        ),
        Client(
            name="claude-desktop",
            title="Claude Desktop",
            files=("{support}/Claude/claude_desktop_config.json",),
            then="Quit Claude Desktop completely and start it again.",
        ),
        Client(
            name="claude-code",
            title="Claude Code",
            files=("{claude}/.claude.json",),
            project=(".mcp.json",),
            first=_STDIO,
            gui=False,
            then=_SESSION,
        ),
        Client(
            name="windsurf",
            title="Windsurf",
            files=("{home}/.codeium/windsurf/mcp_config.json",),
        ),
        Client(
            name="zed",
            title="Zed",
            files=("{config}/zed/settings.json",),
            windows=("{support}/Zed/settings.json",),
            project=(".zed/settings.json",),
            keys=("context_servers",),
            first=(("source", "custom"),),
            then="Zed starts it at once; the Agent Panel's settings show a green dot.",
        ),
        Client(
            name="gemini-cli",
            title="Gemini CLI",
            files=("{home}/.gemini/settings.json",),
            project=(".gemini/settings.json",),
            plain_url="sse",
            gui=False,
            then=_SESSION,
        ),
        Client(
            name="codex",
            title="Codex",
            files=("{codex}/config.toml",),
            project=(".codex/config.toml",),
            keys=("mcp_servers",),
            format="toml",
            gui=False,
            then=_SESSION,
        ),
        Client(
            name="cline",
            title="Cline (VS Code)",
            files=(f"{_EXTENSIONS}/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",),
            then=_RELOAD,
        ),
        Client(
            name="cline-cli",
            title="Cline CLI",
            files=("{home}/.cline/data/settings/cline_mcp_settings.json",),
            gui=False,
            then="Start Cline again.",
        ),
        Client(
            name="roo-code",
            title="Roo Code (VS Code)",
            files=(f"{_EXTENSIONS}/rooveterinaryinc.roo-cline/settings/mcp_settings.json",),
            project=(".roo/mcp.json",),
            then=_RELOAD,
        ),
        # Continue's own config.yaml is left alone: it also reads every JSON file of this folder.
        Client(
            name="continue",
            title="Continue",
            files=("{home}/.continue/mcpServers/dragoman.json",),
            project=(".continue/mcpServers/dragoman.json",),
            then="Reload Continue; MCP tools are there in agent mode.",
        ),
        # Version 2 has `mcp.servers` and still reads the older form.
        Client(
            name="opencode",
            title="OpenCode",
            files=("{xdg}/opencode/opencode.json", "{xdg}/opencode/opencode.jsonc"),
            project=("opencode.json", "opencode.jsonc"),
            keys=("mcp",),
            newer_keys=("mcp", "servers"),
            first=(("type", "local"),),
            last=(("enabled", True),),
            joined=True,
            gui=False,
            then="Start OpenCode again.",
        ),
        Client(
            name="copilot-cli",
            title="GitHub Copilot CLI",
            files=("{home}/.copilot/mcp-config.json",),
            first=(("type", "local"),),
            last=(("tools", ["*"]),),
            gui=False,
            then=_SESSION,
        ),
        Client(
            name="amp",
            title="Amp",
            files=("{home}/.config/amp/settings.json", "{home}/.config/amp/settings.jsonc"),
            project=(".amp/settings.json", ".amp/settings.jsonc"),
            keys=("amp.mcpServers",),
            gui=False,
            then="Start Amp again.",
        ),
        Client(
            name="goose",
            title="Goose",
            files=("{home}/.config/goose/config.yaml",),
            windows=("{support}/Block/goose/config/config.yaml",),
            keys=("extensions",),
            format="yaml",
        ),
        Client(
            name="lm-studio",
            title="LM Studio",
            files=("{home}/.lmstudio/mcp.json", "{home}/.cache/lm-studio/mcp.json"),
        ),
        Client(
            name="amazon-q",
            title="Amazon Q Developer",
            files=("{home}/.aws/amazonq/mcp.json",),
            project=(".amazonq/mcp.json",),
        ),
        Client(
            name="kiro",
            title="Kiro",
            files=("{home}/.kiro/settings/mcp.json",),
            project=(".kiro/settings/mcp.json",),
            then="Kiro connects by itself; the MCP servers tab shows the hub.",
        ),
        Client(
            name="junie",
            title="Junie (JetBrains)",
            files=("{home}/.junie/mcp/mcp.json",),
            project=(".junie/mcp/mcp.json",),
            then="Restart the IDE, or start Junie again.",
        ),
        Client(
            name="antigravity",
            title="Antigravity",
            files=(
                "{home}/.gemini/config/mcp_config.json",
                "{home}/.gemini/antigravity/mcp_config.json",
            ),
            project=(".agents/mcp_config.json",),
        ),
    )
}


def config_file(
    client: Client,
    project: Path | None = None,
    *,
    platform: str = sys.platform,
    environ: Mapping[str, str] = os.environ,
) -> Path | None:
    """The file to look into; None where the client has none for a project."""
    if project is not None:
        candidates = [project / name for name in client.project]
    else:
        templates = (client.windows if platform == "win32" else ()) or client.files
        places = _places(platform, environ)
        candidates = [Path(template.format(**places)) for template in templates]
    return next(
        (path for path in candidates if path.exists()), candidates[0] if candidates else None
    )


def _places(platform: str, environ: Mapping[str, str]) -> dict[str, str]:
    home = environ.get("USERPROFILE" if platform == "win32" else "HOME") or str(Path.home())
    xdg = environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    if platform == "win32":
        support = environ.get("APPDATA") or f"{home}/AppData/Roaming"
    elif platform == "darwin":
        support = f"{home}/Library/Application Support"
    else:
        support = xdg
    return {
        "home": home,
        "xdg": xdg,
        "config": xdg if platform not in ("win32", "darwin") else f"{home}/.config",
        "support": support,
        "claude": environ.get("CLAUDE_CONFIG_DIR") or home,
        "codex": environ.get("CODEX_HOME") or f"{home}/.codex",
    }


def entry_for(
    client: Client, command: str, args: list[str], env: Mapping[str, str]
) -> dict[str, Any]:
    """The hub as this client writes a server down."""
    if client.joined:
        body: dict[str, Any] = {"command": [command, *args]}
    else:
        body = {"command": command, "args": args}
    if env:
        body["environment" if client.joined else "env"] = dict(env)
    return {**dict(client.first), **body, **dict(client.last)}


def is_hub(entry: object) -> bool:
    """Whether a server entry starts `dragoman mcp`, in whatever way."""
    if not isinstance(entry, dict):
        return False
    start: Any = entry.get("command")
    inner = start if isinstance(start, dict) else {"path": start, "args": entry.get("args")}
    words = [inner.get("path"), inner.get("args")]  # an object is Zed's older form
    words = [word for part in words for word in (part if isinstance(part, list) else [part])]
    names = [re.split(r"[\\/]", str(word))[-1].lower().removesuffix(".exe") for word in words]
    return ("dragoman", "mcp") in pairwise(names)


def servers_at(document: object, client: Client) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The keys that lead to the client's servers in this document, and what is there."""
    for keys in (client.newer_keys, client.keys):
        found = document
        for key in keys:
            found = _field(found, key)
        # OpenCode's older form may hold a server that is called "servers".
        is_server = keys == client.newer_keys and isinstance(_field(found, "type"), str)
        if keys and isinstance(found, dict) and not is_server:
            return keys, found
    return client.keys, {}


def _field(value: object, key: str) -> object:
    return value.get(key) if isinstance(value, dict) else None


# --- reading ------------------------------------------------------------------------------------


def read_bytes(path: Path) -> bytes | None:
    """The file's bytes; None where there is none."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a FIFO would wait for a writer
            raise Unreadable(f'"{path}" is no regular file, so it is left alone')
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unreadable(f'"{path}" cannot be read: {error.strerror}') from None
    if len(data) > MAX_BYTES:
        raise Unreadable(f'"{path}" is larger than {MAX_BYTES >> 20} MiB, so it is left alone')
    return data


def decode(data: bytes) -> tuple[str, str]:
    """The byte order mark, or nothing, and the text after it."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(f"byte {error.start}: it is not UTF-8") from None
    return ("\ufeff", text[1:]) if text.startswith("\ufeff") else ("", text)


def parse(format: str, data: bytes) -> Any:
    """What a configuration file says, as plain values; an empty file says {}."""
    text = decode(data)[1]
    if format == "toml":
        return parse_toml(text)
    node = parse_jsonc(text)
    return {} if node is None else node.value


def parse_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(str(error) or "it is nested too deeply") from None


@dataclass(slots=True)
class Node:
    """A value of a JSON text and where it stands."""

    value: Any
    start: int
    end: int
    members: list[Member] = field(default_factory=list)


@dataclass(slots=True)
class Member:
    key: str
    start: int
    node: Node
    comma: int | None = None
    """Where the comma after it stands."""


_SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"')
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")


def parse_jsonc(text: str) -> Node | None:
    """JSON with comments and trailing commas; None where there is nothing but space."""
    start = _skip(text, 0)
    if start == len(text):
        return None
    node = _value(text, start, 0)
    end = _skip(text, node.end)
    if end != len(text):
        raise _wrong(text, end, "there is more after the end of the document")
    return node


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _value(text: str, at: int, depth: int) -> Node:
    if depth > MAX_DEPTH:
        raise _wrong(text, at, f"it is nested more than {MAX_DEPTH} deep")
    if text.startswith("{", at):
        return _object(text, at, depth)
    if text.startswith("[", at):
        return _array(text, at, depth)
    if text.startswith('"', at):
        value, end = _string(text, at)
        return Node(value, at, end)
    if found := _SCALAR.match(text, at):
        try:
            return Node(json.loads(found.group()), at, found.end())
        except ValueError:  # Python's bound on the digits of an integer
            return Node(found.group(), at, found.end())
    raise _wrong(text, at, f"a value is expected, not {_shown(text, at)}")


def _string(text: str, at: int) -> tuple[str, int]:
    if found := _STRING.match(text, at):
        try:
            return str(json.loads(found.group())), found.end()
        except ValueError:
            pass
    raise _wrong(text, at, "this string has no end, or a character or escape JSON does not allow")


def _object(text: str, at: int, depth: int) -> Node:
    node = Node({}, at, at)
    place = _skip(text, at + 1)
    while not text.startswith("}", place):
        if node.members and node.members[-1].comma is None:
            raise _wrong(text, place, f"',' or '}}' is expected, not {_shown(text, place)}")
        if not text.startswith('"', place):
            raise _wrong(text, place, f"a name in quotes is expected, not {_shown(text, place)}")
        key, end = _string(text, place)
        colon = _skip(text, end)
        if not text.startswith(":", colon):
            raise _wrong(text, colon, f"':' is expected, not {_shown(text, colon)}")
        child = _value(text, _skip(text, colon + 1), depth + 1)
        member = Member(key, place, child)
        node.value[key] = child.value
        node.members.append(member)
        place = _skip(text, child.end)
        if text.startswith(",", place):
            member.comma = place
            place = _skip(text, place + 1)
    node.end = place + 1
    return node


def _array(text: str, at: int, depth: int) -> Node:
    node = Node([], at, at)
    place = _skip(text, at + 1)
    comma = True
    while not text.startswith("]", place):
        if not comma:
            raise _wrong(text, place, f"',' or ']' is expected, not {_shown(text, place)}")
        child = _value(text, place, depth + 1)
        node.value.append(child.value)
        place = _skip(text, child.end)
        comma = text.startswith(",", place)
        if comma:
            place = _skip(text, place + 1)
    node.end = place + 1
    return node


def _shown(text: str, at: int) -> str:
    return repr(text[at]) if at < len(text) else "the end of the file"


def _wrong(text: str, at: int, what: str) -> Unreadable:
    line = text.count("\n", 0, at) + 1
    column = at - text.rfind("\n", 0, at)
    return Unreadable(f"line {line}, column {column}: {what}")
