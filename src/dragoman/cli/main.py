"""The command line. Each group of commands is a module, loaded when one of them is asked for.

Whatever goes wrong ends as one line on stderr and an exit code; what that line cannot explain is a
bug, and DRAGOMAN_DEBUG=1 shows where.
"""

from __future__ import annotations

import difflib
import os
import sys
from importlib import import_module

import click

from dragoman import __version__
from dragoman.cli.errors import FAILED, INTERRUPTED, say

COMMANDS = {
    "up": ("dragoman.cli.hub", "up"),
    "stop": ("dragoman.cli.hub", "stop_command"),
    "status": ("dragoman.cli.hub", "status"),
    "init": ("dragoman.cli.configure", "init"),
    "config": ("dragoman.cli.configure", "config"),
    "import": ("dragoman.cli.import_", "import_command"),
    "install": ("dragoman.cli.install", "install"),
    "servers": ("dragoman.cli.servers", "servers"),
    "tools": ("dragoman.cli.tools", "tools"),
    "call": ("dragoman.cli.tools", "call"),
    "keys": ("dragoman.cli.keys", "keys"),
    "audit": ("dragoman.cli.audit", "audit"),
    "doctor": ("dragoman.cli.doctor", "doctor"),
    "mcp": ("dragoman.cli.main", "mcp"),
}

HELP = """Dragoman, an agent interoperability hub: every MCP server behind one guarded road.

\b
First steps:
  dragoman import            take over the servers of an IDE you already use
  dragoman up                run the hub
  dragoman install cursor    put the hub into an IDE (vscode, claude-desktop, …)
  dragoman tools             what can be called
  dragoman call NAME k=v     call it
  dragoman doctor            what is wrong, and how to fix it
"""
EPILOG = """\b
Exit codes: 0 done, 1 failed, 2 wrong usage or arguments, 3 no hub, 4 refused, 5 not found,
6 the far side failed, 7 configuration, 8 a file that must be edited by hand, 130 interrupted.
"""


class Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            ctx.fail(f'there is no command "{args[0]}"{hint}')
        return super().resolve_command(ctx, args)


@click.group(
    cls=Lazy,
    help=HELP,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="dragoman", message="%(prog)s %(version)s")
def cli() -> None:
    pass


@click.command()
def mcp() -> None:
    """What an IDE starts: the hub over stdin and stdout (see: dragoman mcp --help)."""
    # `__main__` has taken this way already; here it only stands in the list.


def main() -> int:
    try:
        result = cli.main(prog_name="dragoman", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except BrokenPipeError:
        # Whoever read it has enough (`| head`): nothing more may be written, at the end neither.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        say(_sentence(error))
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        say("interrupted")
        return INTERRUPTED
    except OSError as error:
        if _debugging():
            raise
        what = f'"{error.filename}": ' if error.filename else ""
        say(f"{what}{error.strerror or error}")
        return FAILED
    except Exception as error:
        if _debugging():
            raise
        say(f"this is a bug ({type(error).__name__}: {error}); DRAGOMAN_DEBUG=1 shows where")
        return FAILED


def _sentence(error: click.ClickException) -> str:
    """click's words on one line, with where to read more."""
    message = error.format_message()
    if not isinstance(error, click.UsageError):
        return message
    path = error.ctx.command_path if error.ctx else "dragoman"
    message = message[0].lower() + message[1:].rstrip(".")
    joint = " " if message.endswith("?") else "; "
    return f"{message}{joint}see: {path} --help"


def _debugging() -> bool:
    return bool(os.environ.get("DRAGOMAN_DEBUG"))
