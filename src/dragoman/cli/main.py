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
from click.shell_completion import CompletionItem

from dragoman import __version__
from dragoman.cli.base.errors import FAILED, INTERRUPTED, build_error, say
from dragoman.cli.base.output import home_option, render_json

COMMANDS = {
    "up": ("dragoman.cli.hub", "up", "Run the hub."),
    "stop": ("dragoman.cli.hub", "stop_command", "Stop it; what is under way may finish."),
    "status": ("dragoman.cli.hub", "status", "Whether one runs, and what it has."),
    "init": ("dragoman.cli.configure", "init", "Write a commented config.toml."),
    "config": ("dragoman.cli.configure", "config", "Check and show the configuration."),
    "import": (
        "dragoman.cli.clients.import_command",
        "import_command",
        "Take over the servers of an IDE.",
    ),
    "install": (
        "dragoman.cli.clients.install",
        "install",
        "Put the hub into an IDE, or take it out.",
    ),
    "servers": ("dragoman.cli.servers", "servers", "The servers, and what is wrong with them."),
    "tools": ("dragoman.cli.tools", "tools", "The tools, and what they take."),
    "call": ("dragoman.cli.tools", "call", "Call a tool."),
    "prompts": ("dragoman.cli.prompts", "prompts", "The prompts, and filling one in."),
    "resources": ("dragoman.cli.resources", "resources", "The resources, and reading one."),
    "a2a": (
        "dragoman.cli.a2a.command",
        "a2a",
        "Agents: their cards, messages to them, their tasks.",
    ),
    "agents": ("dragoman.cli.agents", "agents", "The agents of others, whose skills are tools."),
    "pins": ("dragoman.cli.pins", "pins", "What has changed since it was approved."),
    "policy": ("dragoman.cli.policy", "policy", "Who may call what: files, checks, questions."),
    "keys": ("dragoman.cli.keys", "keys", "Keys for callers over HTTP."),
    "audit": ("dragoman.cli.audit", "audit", "The record of every call, and its proof."),
    "logs": ("dragoman.cli.logs", "logs", "The hub's log, also as it is written."),
    "stores": ("dragoman.cli.stores", "stores", "The databases of the home, and lost ones."),
    "completion": ("dragoman.cli.completion", "completion", "Teach your shell to complete."),
    "backup": ("dragoman.cli.backup", "backup", "Copy the home into a file."),
    "restore": ("dragoman.cli.backup", "restore", "Make a home of such a file."),
    "service": ("dragoman.cli.service", "service", "Run the hub as a service of your user."),
    "docs": ("dragoman.cli.docs", "docs", "Print the documentation."),
    "doctor": ("dragoman.cli.doctor.command", "doctor", "What is wrong, and how to fix it."),
    "mcp": ("dragoman.cli.main", "mcp", "What an IDE starts (see: dragoman mcp --help)."),
}
"""Each with its module, its name there, and its line in the list of commands."""

HELP = """Dragoman, an agent interoperability hub: MCP servers and A2A agents on one guarded road.

\b
First steps:
  dragoman import            take over the servers of an IDE you already use
  dragoman up                run the hub
  dragoman install cursor    put the hub into an IDE (vscode, claude-desktop, …)
  dragoman agents add URL    register an A2A agent; each of its skills is a tool
  dragoman tools             what can be called
  dragoman call NAME k=v     call it
"""
EPILOG = """\b
Exit codes: 0 done, 1 failed, 2 wrong usage or arguments, 3 no hub, 4 refused, 5 not found,
6 the far side failed, 7 configuration, 8 a file that must be edited by hand, 130 interrupted.
"""


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(module), name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Without loading every command."""
        items = [
            CompletionItem(name, help=line)
            for name, (_, _, line) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            ctx.fail(f'there is no command "{args[0]}"{hint}')
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    help=HELP,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="dragoman", message="%(prog)s %(version)s")
@home_option
def cli(home: str | None) -> None:
    pass  # what comes after inherits the home


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("rest", nargs=-1)
def mcp(rest: tuple[str, ...]) -> None:
    """What an IDE starts; `__main__` takes this way, and here it only stands in the list.

    \b
    dragoman mcp --home DIR
    """
    raise click.UsageError('write "mcp" first: dragoman mcp --home DIR')


def main() -> int:
    try:
        result = cli.main(prog_name="dragoman", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except SystemExit as ended:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            _discard_stdout()
        return ended.code if isinstance(ended.code, int) else FAILED
    except BrokenPipeError:
        _discard_stdout()
        return FAILED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        if "--json" in sys.argv[1:]:
            print(render_json(build_error(_render_error(error), error.exit_code)))
        say(_render_error(error))
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        say("interrupted")
        return INTERRUPTED
    except OSError as error:
        if _is_debugging():
            raise
        what = f'"{error.filename}": ' if error.filename else ""
        say(f"{what}{error.strerror or error}")
        return FAILED
    except Exception as error:
        if _is_debugging():
            raise
        say(f"this is a bug ({type(error).__name__}: {error}); DRAGOMAN_DEBUG=1 shows where")
        return FAILED


def _discard_stdout() -> None:
    """The reader has enough (`| head`): the interpreter must not try again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _render_error(error: click.ClickException) -> str:
    """click's words on one line, with where to read more."""
    message = error.format_message()
    if not isinstance(error, click.UsageError):
        return message
    path = error.ctx.command_path if error.ctx else "dragoman"
    message = message[0].lower() + message[1:].rstrip(".")
    joint = " " if message.endswith("?") else "; "
    return f"{message}{joint}see: {path} --help"


def _is_debugging() -> bool:
    return bool(os.environ.get("DRAGOMAN_DEBUG"))
