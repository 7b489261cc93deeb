"""The entry point. `dragoman mcp` reaches the relay before anything else is loaded."""

from __future__ import annotations

import gc
import os
import sys

START_THRESHOLD = 100_000
"""Objects between two garbage collections. What imports create stays, and the default of 700 has
the collector look at all of it again and again: a sixth of the time of a start."""
MCP_USAGE = """\
Usage: dragoman mcp [--home DIR] [--view NAME]

Serves the hub to an IDE over stdin and stdout. Put this into the IDE's MCP configuration
(Cursor: .cursor/mcp.json; Claude Desktop: claude_desktop_config.json; VS Code: .vscode/mcp.json,
where the outer key is "servers"):

  {"mcpServers": {"dragoman": {"command": "dragoman", "args": ["mcp"]}}}

If a hub is running (`dragoman up`), this connects to it; otherwise the hub runs in this process,
and every other `dragoman mcp` shares it. Errors go to stderr, which the IDE shows in its log.

  --home DIR   the hub's home; default: $DRAGOMAN_HOME, or ~/.dragoman
  --view NAME  serve a view of the configuration instead of [mcp] stdio_expose
  -h, --help   show this text
"""


WINDOWS = """\
dragoman runs on Linux and macOS. On Windows run it in WSL (https://learn.microsoft.com/windows/wsl):
install it there, and let IDEs start it with: wsl dragoman mcp
"""


def main() -> int:
    if os.name == "nt":  # no flock, no Unix sockets, no process groups
        sys.stderr.write(WINDOWS)
        return 1
    gc.set_threshold(START_THRESHOLD, 10, 10)
    if sys.argv[1:2] == ["mcp"]:
        return mcp(sys.argv[2:])
    from dragoman.cli.main import main as cli

    return cli()


def mcp(argv: list[str]) -> int:
    if argv in (["-h"], ["--help"]):
        sys.stdout.write(MCP_USAGE)
        return 0
    from dragoman.home import HomeUnusable, find_home

    given: dict[str, str] = {}
    rest = [part for one in argv for part in (one.split("=", 1) if one[:2] == "--" else [one])]
    while len(rest) > 1 and rest[0] in ("--home", "--view") and rest[1] and rest[0] not in given:
        given[rest[0]] = rest[1]
        rest = rest[2:]
    if rest:
        sys.stderr.write(f"unknown arguments: dragoman mcp {' '.join(argv)}\n\n{MCP_USAGE}")
        return 2
    try:
        home = find_home(given.get("--home"))
    except HomeUnusable as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if os.isatty(0):
        sys.stderr.write(
            "dragoman mcp is started by an IDE and speaks MCP on stdin; press Ctrl-D to end it\n"
        )
    from dragoman.mcp.relay import main as relay

    return relay(home, *_take_stdio(), given.get("--view", ""))


def _take_stdio() -> tuple[int, int]:
    """Reserves stdin and stdout for the protocol: nothing else in this process can use them."""
    try:
        os.fstat(2)
    except OSError:  # closed by the IDE: the next open file would receive stderr
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    stdin, stdout = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    os.set_blocking(stdin, True)
    os.set_blocking(stdout, True)
    return stdin, stdout


if __name__ == "__main__":
    sys.exit(main())
