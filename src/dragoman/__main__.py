"""Where `dragoman` begins. `dragoman mcp` goes to the relay before anything else is loaded."""

from __future__ import annotations

import os
import sys

MCP_USAGE = """\
Usage: dragoman mcp [--home DIR]

Serves the hub to an IDE over stdin and stdout. Put this into the IDE's MCP configuration
(Cursor: .cursor/mcp.json; Claude Desktop: claude_desktop_config.json; VS Code: .vscode/mcp.json,
where the outer key is "servers"):

  {"mcpServers": {"dragoman": {"command": "dragoman", "args": ["mcp"]}}}

If a hub runs (`dragoman up`), this speaks for it; else the hub runs in here, and every other
`dragoman mcp` shares it. What goes wrong is said on stderr, which the IDE shows in its log.

  --home DIR   the hub's home; else $DRAGOMAN_HOME, else ~/.dragoman
  -h, --help   this text
"""


WINDOWS = """\
dragoman runs on Linux and macOS. On Windows run it in WSL (https://learn.microsoft.com/windows/wsl):
install it there, and let IDEs start it with: wsl dragoman mcp
"""


def main() -> int:
    if os.name == "nt":  # no flock, no Unix sockets, no process groups
        sys.stderr.write(WINDOWS)
        return 1
    if sys.argv[1:2] == ["mcp"]:
        return mcp(sys.argv[2:])
    from dragoman.cli.main import main as cli

    return cli()


def mcp(argv: list[str]) -> int:
    if argv in (["-h"], ["--help"]):
        sys.stdout.write(MCP_USAGE)
        return 0
    from dragoman.home import Unfit, home_path

    given: str | None = None
    if len(argv) == 1 and argv[0].startswith("--home="):
        argv = ["--home", argv[0].removeprefix("--home=")]
    if len(argv) == 2 and argv[0] == "--home" and argv[1]:
        given = argv[1]
    elif argv:
        sys.stderr.write(f'"dragoman mcp {" ".join(argv)}" is not understood.\n\n{MCP_USAGE}')
        return 2
    try:
        home = home_path(given)
    except Unfit as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if os.isatty(0):
        sys.stderr.write("dragoman mcp is what an IDE starts: it speaks MCP here; Ctrl-D ends it\n")
    from dragoman.mcp.relay import main as relay

    return relay(home, *_take_stdio())


def _take_stdio() -> tuple[int, int]:
    """stdin and stdout for the protocol alone: nothing else in this process can read or print."""
    try:
        os.fstat(2)
    except OSError:  # closed by the IDE: the next file opened would get what is said on stderr
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
