"""The known MCP clients: where their files are, and how they write a server entry.

Every path and shape is documented by the client's vendor or taken from its source. Reads and writes
nothing.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from dragoman.core.tool_limits import find_known_limit


@dataclass(frozen=True, slots=True)
class KnownClient:
    name: str
    title: str
    files: tuple[str, ...]
    """The first that exists is used, else the first; `{…}` are keys of `_list_places`."""
    _: KW_ONLY
    windows: tuple[str, ...] = ()
    """Replaces `files` on Windows."""
    project: tuple[str, ...] = ()
    keys: tuple[str, ...] = ("mcpServers",)
    newer_keys: tuple[str, ...] = ()
    """Used instead of `keys` where the file already has them."""
    format: Literal["json", "toml", "yaml"] = "json"
    first: tuple[tuple[str, Any], ...] = ()
    last: tuple[tuple[str, Any], ...] = ()
    """Client-specific fields before and after command, arguments and environment."""
    joined: bool = False
    """Whether command and arguments are one list, with the variables under `environment`."""
    plain_url: Literal["http", "sse"] = "http"
    """The transport of a `url` without a type."""
    gui: bool = True
    """Started from a dock or menu, with another PATH than the shell's."""
    then: str = ""
    reports: str = ""
    """Its name in `clientInfo`, if a limit of its tools is known by it."""

    @property
    def tool_limit(self) -> int:
        """How many tools it takes; 0: any number that is known of."""
        return find_known_limit(self.reports)

    @property
    def next_step(self) -> str:
        step = self.then or f"Restart {self.title} to see the hub's tools."
        if not self.tool_limit:
            return step
        return (
            f"{step} It takes at most {self.tool_limit} tools: of more, the hub offers find_tools "
            "and call_tool instead."
        )


_STDIO = (("type", "stdio"),)
_EXTENSIONS = "{support}/Code/User/globalStorage"
_VSCODE = 'Run "MCP: List Servers" in the command palette and start it, or reload the window.'
_RELOAD = 'Run "Developer: Reload Window" in VS Code to see the hub\'s tools.'
_SESSION = "Start a new session; /mcp lists the hub."

# fmt: off
_TABLE = (
    KnownClient("cursor", "Cursor", ("{home}/.cursor/mcp.json",), project=(".cursor/mcp.json",)),
    KnownClient("vscode", "VS Code", ("{support}/Code/User/mcp.json",),
                project=(".vscode/mcp.json",), keys=("servers",), first=_STDIO, then=_VSCODE,
                reports="Visual Studio Code"),
    KnownClient("vscode-insiders", "VS Code Insiders", ("{support}/Code - Insiders/User/mcp.json",),
                project=(".vscode/mcp.json",), keys=("servers",), first=_STDIO, then=_VSCODE,
                reports="Visual Studio Code - Insiders"),
    KnownClient("claude-desktop", "Claude Desktop",
                ("{support}/Claude/claude_desktop_config.json",),
                then="Quit Claude Desktop completely and start it again."),
    KnownClient("claude-code", "Claude Code", ("{claude}/.claude.json",), project=(".mcp.json",),
                first=_STDIO, gui=False, then=_SESSION),
    KnownClient("windsurf", "Windsurf", ("{home}/.codeium/windsurf/mcp_config.json",),
                reports="windsurf-client"),
    KnownClient("zed", "Zed", ("{config}/zed/settings.json",),
                windows=("{support}/Zed/settings.json",), project=(".zed/settings.json",),
                keys=("context_servers",), first=(("source", "custom"),),
                then="Zed starts it immediately; the Agent Panel's settings show a green dot."),
    KnownClient("gemini-cli", "Gemini CLI", ("{home}/.gemini/settings.json",),
                project=(".gemini/settings.json",), plain_url="sse", gui=False, then=_SESSION),
    KnownClient("codex", "Codex", ("{codex}/config.toml",), project=(".codex/config.toml",),
                keys=("mcp_servers",), format="toml", gui=False, then=_SESSION),
    KnownClient("cline", "Cline (VS Code)",
                (f"{_EXTENSIONS}/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",),
                then=_RELOAD),
    KnownClient("cline-cli", "Cline CLI", ("{home}/.cline/data/settings/cline_mcp_settings.json",),
                gui=False, then="Start Cline again."),
    KnownClient("roo-code", "Roo Code (VS Code)",
                (f"{_EXTENSIONS}/rooveterinaryinc.roo-cline/settings/mcp_settings.json",),
                project=(".roo/mcp.json",), then=_RELOAD),
    # Continue's config.yaml is not edited: Continue also reads the JSON files in this folder.
    KnownClient("continue", "Continue", ("{home}/.continue/mcpServers/dragoman.json",),
                project=(".continue/mcpServers/dragoman.json",),
                then="Reload Continue; MCP tools are available in agent mode."),
    # Version 2 has `mcp.servers` and still reads the older form.
    KnownClient("opencode", "OpenCode",
                ("{xdg}/opencode/opencode.json", "{xdg}/opencode/opencode.jsonc"),
                project=("opencode.json", "opencode.jsonc"),
                keys=("mcp",), newer_keys=("mcp", "servers"), first=(("type", "local"),),
                last=(("enabled", True),), joined=True, gui=False, then="Start OpenCode again."),
    KnownClient("copilot-cli", "GitHub Copilot CLI", ("{home}/.copilot/mcp-config.json",),
                first=(("type", "local"),), last=(("tools", ["*"]),), gui=False, then=_SESSION),
    KnownClient("amp", "Amp",
                ("{home}/.config/amp/settings.json", "{home}/.config/amp/settings.jsonc"),
                project=(".amp/settings.json", ".amp/settings.jsonc"), keys=("amp.mcpServers",),
                gui=False, then="Start Amp again."),
    KnownClient("goose", "Goose", ("{home}/.config/goose/config.yaml",),
                windows=("{support}/Block/goose/config/config.yaml",), keys=("extensions",),
                format="yaml"),
    KnownClient("lm-studio", "LM Studio",
                ("{home}/.lmstudio/mcp.json", "{home}/.cache/lm-studio/mcp.json")),
    KnownClient("amazon-q", "Amazon Q Developer", ("{home}/.aws/amazonq/mcp.json",),
                project=(".amazonq/mcp.json",)),
    KnownClient("kiro", "Kiro", ("{home}/.kiro/settings/mcp.json",),
                project=(".kiro/settings/mcp.json",),
                then="Kiro connects automatically; the MCP servers tab lists the hub."),
    KnownClient("junie", "Junie (JetBrains)", ("{home}/.junie/mcp/mcp.json",),
                project=(".junie/mcp/mcp.json",), then="Restart the IDE, or start Junie again."),
    KnownClient("antigravity", "Antigravity",
                ("{home}/.gemini/config/mcp_config.json",
                 "{home}/.gemini/antigravity/mcp_config.json"),
                project=(".agents/mcp_config.json",)),
)
# fmt: on
CLIENTS = {client.name: client for client in _TABLE}


def find_config_file(
    client: KnownClient,
    project: Path | None = None,
    *,
    platform: str = sys.platform,
    environ: Mapping[str, str] = os.environ,
) -> Path | None:
    """Returns the client's file; None if it has none for a project."""
    if project is not None:
        candidates = [project / name for name in client.project]
    else:
        templates = (client.windows if platform == "win32" else ()) or client.files
        places = _list_places(platform, environ)
        candidates = [Path(template.format(**places)) for template in templates]
    return next(
        (path for path in candidates if path.exists()), candidates[0] if candidates else None
    )


def _list_places(platform: str, environ: Mapping[str, str]) -> dict[str, str]:
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


def build_entry(
    client: KnownClient, command: str, args: list[str], env: Mapping[str, str]
) -> dict[str, Any]:
    """Builds the hub's entry in the form of this client."""
    if client.joined:
        body: dict[str, Any] = {"command": [command, *args]}
    else:
        body = {"command": command, "args": args}
    if env:
        body["environment" if client.joined else "env"] = dict(env)
    return {**dict(client.first), **body, **dict(client.last)}


def is_hub_entry(entry: object) -> bool:
    """Whether a server entry starts `dragoman mcp`, in any form."""
    if not isinstance(entry, dict):
        return False
    start: Any = entry.get("command")
    inner = start if isinstance(start, dict) else {"path": start, "args": entry.get("args")}
    words = [inner.get("path"), inner.get("args")]  # an object is Zed's older form
    words = [word for part in words for word in (part if isinstance(part, list) else [part])]
    names = [re.split(r"[\\/]", str(word))[-1].lower().removesuffix(".exe") for word in words]
    return ("dragoman", "mcp") in pairwise(names)


def find_program(entry: Any) -> str | None:
    """Returns the program of a server entry, in any client's form."""
    start = entry.get("command")
    if isinstance(start, dict):
        start = start.get("path")
    if isinstance(start, list):
        start = start[0] if start else None
    return start if isinstance(start, str) else None


def find_servers(document: object, client: KnownClient) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Returns the path of keys to the client's servers in this document, and the servers."""
    for keys in (client.newer_keys, client.keys):
        found = document
        for key in keys:
            found = _get_field(found, key)
        # In OpenCode's older form a server may be named "servers".
        is_server = keys == client.newer_keys and isinstance(_get_field(found, "type"), str)
        if keys and isinstance(found, dict) and not is_server:
            return keys, found
    return client.keys, {}


def _get_field(value: object, key: str) -> object:
    return value.get(key) if isinstance(value, dict) else None
