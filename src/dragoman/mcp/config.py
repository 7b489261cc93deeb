"""`[[mcp_servers]]` and `[mcp]`: the MCP servers behind the hub, and the hub as an MCP server."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct
from msgspec.structs import replace

from dragoman.core.tool import ISOLATED, NETWORK
from dragoman.core.tool_limits import find_known_limit
from dragoman.oauth.config import OAuthSettings
from dragoman.processes.config import ProcessLimits, SandboxLevel

ANSWER_SECONDS = 30.0
"""The timeout of handshakes and lists for a server without a `timeout_secs`."""


class StdioTransport(Struct, frozen=True, kw_only=True, tag="stdio", tag_field="type"):
    command: Annotated[str, Meta(min_length=1, description="The program to start.")]
    args: Annotated[list[str], Meta(description="Its arguments.")] = []
    cwd: Annotated[str | None, Meta(description="The folder it starts in; default: its home.")] = (
        None
    )


class SseTransport(Struct, frozen=True, kw_only=True, tag="sse", tag_field="type"):
    url: Annotated[str, Meta(min_length=1, description="The URL of the server.")]
    headers: Annotated[
        dict[str, str] | list[str],
        Meta(
            description="Headers to send; ${NAME} takes a value from the environment, "
            "${REFERENCE} from a file, the keyring or a command."
        ),
    ] = {}
    allow_private: Annotated[
        bool, Meta(description="Whether the name in `url` may lead to a private address.")
    ] = False


class HttpTransport(SseTransport, frozen=True, kw_only=True, tag="http", tag_field="type"):
    pass


Transport = StdioTransport | SseTransport | HttpTransport


class ServerEntry(Struct, frozen=True, kw_only=True):
    name: Annotated[
        str, Meta(min_length=1, max_length=64, description="The name of the server in the hub.")
    ]
    transport: Annotated[Transport, Meta(description="How to reach it.")]
    timeout_secs: Annotated[
        Annotated[float, Meta(gt=0, le=86_400)] | None,
        Meta(
            description="Seconds to wait for each of its responses; default: 30 for the handshake "
            "and its lists, and [limits] tool_timeout_secs for calls, which progress extends."
        ),
    ] = None
    env: Annotated[
        list[str],
        Meta(
            description="Names of environment variables that a stdio server gets, besides those "
            "for the language, the time zone and certificates; NAME=REFERENCE gives it a secret "
            "under that name (env:, file:, keyring: or exec:)."
        ),
    ] = []
    home: Annotated[
        Literal["private", "user"],
        Meta(
            description="The home folder of a stdio server: one of its own in the hub's home "
            "(private), or that of the user who runs the hub, with its settings, credentials and "
            "caches (user)."
        ),
    ] = "private"
    sandbox: Annotated[
        SandboxLevel,
        Meta(
            description="What a stdio server is kept from, with bubblewrap on Linux: your home, "
            "the hub's and your secrets (net), the network too (strict), or nothing (off). "
            "Without bubblewrap, net means off, and strict does not start."
        ),
    ] = "off"
    sandbox_paths: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=4_096)]],
        Meta(
            max_length=100,
            description="Files and folders that a server in a sandbox may read and write, besides "
            "its own, cwd, and absolute paths in args and in the variables in env.",
        ),
    ] = []
    limits: Annotated[
        ProcessLimits, Meta(description="Resource limits of the processes of a stdio server.")
    ] = ProcessLimits()
    message_megabytes: Annotated[
        int,
        Meta(
            ge=1,
            le=30,
            description="Megabytes of one message from it, such as a result with images. "
            "Structured content that repeats the rest of a result does not count.",
        ),
    ] = 10
    idle_secs: Annotated[
        float,
        Meta(ge=0, description="Seconds after which an unused stdio server is stopped; 0: never."),
    ] = 0
    refresh_secs: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="Seconds after which its lists are read again, while it is used, if it "
            "does not announce changes of them; 0: never.",
        ),
    ] = 60
    enabled: Annotated[bool, Meta(description="Whether to connect to it at all.")] = True
    added_by: Annotated[
        Literal["owner", "api"],
        Meta(
            description="Who wrote the entry. The secrets of one that the API added are read only "
            "as far as [secrets] allow permits."
        ),
    ] = "owner"
    org: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=200,
            description="The org that it belongs to: only principals of the same org see it.",
        ),
    ] = "default"
    prefix: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        Meta(
            description="The prefix of its names in lists, instead of its own name; "
            '"" leaves its names unchanged.'
        ),
    ] = None
    pin: Annotated[
        Literal["strict", "first", "off"],
        Meta(
            description="What it offers is quarantined until it is approved: from the start "
            "(strict), when it has changed since it was first seen (first), or never (off)."
        ),
    ] = "first"
    additions: Annotated[
        Literal["show", "hold"] | None,
        Meta(
            description="What it adds after it was first listed: offered and reported (show), or "
            "quarantined until it is approved (hold); default: as [policy] says."
        ),
    ] = None
    check_arguments: Annotated[
        Literal["lenient", "strict", "off"],
        Meta(
            description="Which arguments are rejected: those that a server cannot interpret "
            "(lenient), all that do not match its schemas (strict), or none (off)."
        ),
    ] = "lenient"
    interactive: Annotated[
        bool | None,
        Meta(
            description="Whether it asks its clients questions or keeps state for each of them. "
            "true: each client has a session of its own with it; false: all clients share one and "
            "none is asked; default: clients that can be asked have their own, and so do the "
            "others once the server turns out to depend on what a client can be asked, unless it "
            "speaks both eras."
        ),
    ] = None
    tags: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=64)]],
        Meta(max_length=100, description="Keywords by which [[views]] select it."),
    ] = []
    placement: Annotated[
        Literal["each", "one"],
        Meta(
            description="Where a stdio server runs if there are several hubs: at each of them, or "
            "at one, through which the others use it. All clients share that one process, and none "
            "is asked, unless interactive = true."
        ),
    ] = "each"
    era: Annotated[
        Literal["auto", "modern", "legacy"],
        Meta(
            description="The protocol era to speak with it: modern (2026-07-28), legacy (the "
            "revisions with a handshake, up to 2025-11-25), or the one that suits each client "
            "(auto)."
        ),
    ] = "auto"

    oauth: Annotated[
        OAuthSettings | None,
        Meta(
            description="How the hub gets tokens for it. Needed only where something cannot be "
            "discovered: a server that asks for a login gets one with `dragoman servers login`."
        ),
    ] = None
    credentials: Annotated[
        Literal["shared", "user"],
        Meta(
            description="Whose login its calls use: one for all callers (shared), or that of each "
            "user (user)."
        ),
    ] = "shared"

    @property
    def has_user_home(self) -> bool:
        """HOME among the variables in `env` has the same effect as `home = "user"`."""
        return self.home == "user" or "HOME" in self.env

    @property
    def env_names(self) -> list[str]:
        """The names of the variables in `env`."""
        return [one.partition("=")[0] for one in self.env]

    @property
    def env_references(self) -> dict[str, str]:
        """The references in `env`, by the names of their variables."""
        pairs = (one.partition("=") for one in self.env)
        return {name: reference for name, given, reference in pairs if given}

    def find_reach(self) -> str:
        """Where it is, as in `TargetFacts.reach`."""
        if isinstance(self.transport, StdioTransport):
            return ISOLATED if self.sandbox == "strict" else ""
        try:
            host = urlsplit(self.transport.url).hostname or ""
        except ValueError:
            host = ""
        is_local = host in ("localhost", "::1") or host.startswith("127.")
        return "" if is_local else NETWORK

    def change_sandbox(self, level: SandboxLevel) -> ServerEntry:
        return replace(self, sandbox=level)


_Globs = list[Annotated[str, Meta(min_length=1, max_length=256)]]


class ViewEntry(Struct, frozen=True, kw_only=True):
    name: Annotated[
        str,
        Meta(
            pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$",
            description="The name of the view: it is served at /mcp/v/NAME.",
        ),
    ]
    description: Annotated[str, Meta(max_length=1_000, description="For people.")] = ""
    include: Annotated[
        _Globs,
        Meta(
            max_length=1_000,
            description="Globs of names of tools, prompts and resources. What include, servers, "
            "agents or tags select is in the view; without any of the four, everything is.",
        ),
    ] = []
    exclude: Annotated[
        _Globs,
        Meta(max_length=1_000, description="Globs of names that are not in the view in any case."),
    ] = []
    servers: Annotated[
        _Globs, Meta(max_length=1_000, description="Globs of servers, with all that they offer.")
    ] = []
    agents: Annotated[_Globs, Meta(max_length=1_000, description="Globs of agents.")] = []
    tags: Annotated[
        _Globs,
        Meta(
            max_length=1_000,
            description="Globs of the tags that servers and agents have in this file, and local "
            "agents in their manifests.",
        ),
    ] = []
    rename: Annotated[
        dict[str, Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]],
        Meta(description="Names of tools in this view, by their own names."),
    ] = {}
    describe: Annotated[
        dict[str, Annotated[str, Meta(max_length=4_000)]],
        Meta(description="Descriptions of tools in this view, by their names."),
    ] = {}
    description_chars: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Characters of a description, of a tool or a parameter, before it is cut; "
            "0: all.",
        ),
    ] = 0
    token_budget: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000_000,
            description="Estimated tokens that the list of tools may cost a client; 0: any number.",
        ),
    ] = 0
    search: Annotated[
        Literal["auto", "always", "never"],
        Meta(
            description="Whether clients get two tools, find_tools and call_tool, instead of all: "
            "if the list would exceed token_budget (auto), always, or never."
        ),
    ] = "auto"


Style = Literal["legacy", "dotted", "safe", "portable"]
RENAMED_STYLES = {"seed": "legacy"}
"""Former values, still accepted with a warning."""

MAX_CLIENT = 200
"""Characters of a client's name that decide the style of its tool names."""
PORTABLE_CLIENTS = (
    "amazon*", "amp*", "antigravity*", "augment*", "chatgpt*", "claude*", "cline*", "codeium*",
    "codex*", "continue*", "copilot*", "cursor*", "gemini*", "github*copilot*", "goose*", "grok*",
    "jetbrains*", "kilo*", "kiro*", "librechat*", "lm*studio*", "openai*", "opencode*", "q-dev*",
    "qwen*", "raycast*", "roo*", "trae*", "visual*studio*", "vscode*", "warp*", "windsurf*", "zed*",
)  # fmt: skip
"""Names of clients whose models reject dots and long names; the page on MCP has the sources."""


class McpSettings(Struct, frozen=True, kw_only=True):
    stdio_expose: Annotated[
        list[str],
        Meta(
            description="Globs of tool names: what `dragoman mcp` lists besides agents. "
            'Absent: agents only. ["*"] shows everything.'
        ),
    ] = []
    names: Annotated[
        Style,
        Meta(
            description="The names of tools in lists: legacy (mcp_server_tool), dotted "
            "(server.tool), safe (server_tool, at most 64 of A-Z a-z 0-9 _ -) or portable (the "
            "same, without mcp at the beginning of the server's name). Clients that are known to "
            "refuse other names get portable instead of legacy. Calls may use any."
        ),
    ] = "legacy"
    names_for: Annotated[
        dict[str, Style], Meta(description="The same for single clients, by globs of client names.")
    ] = {}
    tool_limits: Annotated[
        dict[str, Annotated[int, Meta(ge=0)]],
        Meta(
            description="How many tools single clients take, by globs of client names; 0: any "
            "number. One that would be listed more gets find_tools and call_tool instead. The "
            "limits of VS Code, Copilot (128) and Windsurf (100) are known."
        ),
    ] = {}
    views_for: Annotated[
        dict[str, str],
        Meta(
            description="The view of single clients, by globs of client names; a client chooses "
            "its name itself, so bind a key where a view must hold."
        ),
    ] = {}
    agent_prefix: Annotated[
        str,
        Meta(
            max_length=32,
            pattern="^[A-Za-z0-9_-]*$",
            description="The prefix of the names of agents in lists of tools.",
        ),
    ] = "dragoman_agent_"
    task_after_secs: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="Seconds after which a call becomes a task, for clients with tasks.",
        ),
    ] = 5

    instructions_chars: Annotated[
        int,
        Meta(
            ge=0,
            le=65_536,
            description="Characters of the instructions of one server that clients get; 0: none.",
        ),
    ] = 4_000
    instructions_total_chars: Annotated[
        int, Meta(ge=0, le=1_000_000, description="The same for all servers together.")
    ] = 16_000

    def find_style(self, client: str) -> Style:
        """Returns the style of tool names for the client of that name."""
        for pattern, style in self.names_for.items():
            if fnmatchcase(client.lower(), pattern.lower()):
                return style
        is_known = self.names == "legacy" and _refuses_long_names(client[:MAX_CLIENT])
        return "portable" if is_known else self.names

    def find_tool_limit(self, client: str) -> int:
        """Returns how many tools the client of that name takes; 0: any number."""
        for pattern, most in self.tool_limits.items():
            if fnmatchcase(client.lower(), pattern.lower()):
                return most
        return find_known_limit(client[:MAX_CLIENT])


@lru_cache(maxsize=256)  # every list asks for it
def _refuses_long_names(client: str) -> bool:
    return any(fnmatchcase(client.lower(), pattern) for pattern in PORTABLE_CLIENTS)


def parse_headers(headers: dict[str, str] | list[str]) -> Iterator[tuple[str, str]]:
    """Yields the headers of a table, or of lines of "Name: value"."""
    if isinstance(headers, dict):
        yield from headers.items()
    else:
        for line in headers:
            header, _, value = line.partition(":")
            yield header.strip(), value.strip()
