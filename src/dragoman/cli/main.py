"""The entry point of the command line. Loads the module of a command when the command runs.

Every failure ends as one line on stderr and an exit code; DRAGOMAN_DEBUG=1 shows the traceback of
an unexpected one.
"""

from __future__ import annotations

import difflib
import os
import sys
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from dragoman import __version__
from dragoman.cli.base.errors import FAILED, INTERRUPTED, NO_HUB, build_error, fail, fail_with, say
from dragoman.cli.base.output import home_option, render_json
from dragoman.core.errors import HubError
from dragoman.home import HomeLocked, HomeUnusable

COMMANDS = {
    "up": ("hub", "up", "Run the hub."),
    "stop": ("hub", "stop_command", "Stop the hub; calls in progress may finish."),
    "status": ("hub", "status", "Show whether a hub is running, and its state."),
    "console": ("console", "console", "Open the console in the browser."),
    "init": ("configure", "init", "Write a commented config.toml."),
    "config": ("configure", "config", "Check and show the configuration."),
    "import": (
        "clients.import_command",
        "import_command",
        "Import MCP servers from an IDE's configuration.",
    ),
    "install": ("clients.install", "install", "Add the hub to an IDE, or remove it."),
    "servers": ("servers", "servers", "Manage MCP servers."),
    "tools": ("tools", "tools", "List, search and describe tools."),
    "call": ("tools", "call", "Call a tool."),
    "prompts": ("prompts", "prompts", "List prompts and fill one in."),
    "resources": ("resources", "resources", "List and read resources."),
    "chat": ("chat", "chat", "Talk to an agent."),
    "dispatch": ("dispatch", "dispatch", "Have work done by the agent that the hub chooses."),
    "a2a": ("a2a.command", "a2a", "Talk to A2A agents: cards, messages, tasks."),
    "agents": ("agents", "agents", "Create, check and list agents; manage external ones."),
    "skills": ("skills", "skills", "Manage skills: programs that give tools, texts for agents."),
    "workflows": ("workflows", "workflows", "Check, show, draw and run workflows: steps in YAML."),
    "runs": ("runs", "runs", "Show, follow and control the runs of workflows."),
    "demo": ("demo.command", "demo", "Try the hub with agents that need no key and no network."),
    "approvals": ("approvals", "approvals", "Approve or deny calls that wait for a person."),
    "pins": ("pins", "pins", "Review changed definitions and approve them."),
    "policy": ("policy", "policy", "Edit, check and query the Cedar policies."),
    "views": ("views", "views", "Show views: the tools of a client, and their cost in tokens."),
    "keys": ("keys", "keys", "Manage API keys for HTTP clients."),
    "users": ("users", "users", "Manage the users who sign in at the hub itself."),
    "audit": ("audit", "audit", "Read and verify the audit log."),
    "limits": ("limits", "limits", "Show rate and concurrency limits, and what is left."),
    "usage": ("usage", "usage", "Show the tokens, cost and time that agents have used."),
    "taint": ("taint", "taint", "Show which labelled data may go where, and what was refused."),
    "logs": ("logs", "logs", "Show and follow the hub's log."),
    "cluster": ("cluster", "cluster", "Show the hubs that share a database."),
    "stores": ("stores", "stores", "List the home's databases; accept a lost one."),
    "store": ("store", "store", "Keep the data in PostgreSQL: copy a home, check, migrate."),
    "completion": ("completion", "completion", "Print a shell completion script."),
    "backup": ("backup", "backup", "Back up the home to a file."),
    "restore": ("backup", "restore", "Restore a home from a backup."),
    "service": ("service", "service", "Run the hub as a systemd or launchd service."),
    "docs": ("docs", "docs", "Print the documentation."),
    "doctor": ("doctor.command", "doctor", "Find problems and suggest fixes."),
    "mcp": ("main", "mcp", "Serve MCP over stdio; IDEs start this."),
}
"""Module below `dragoman.cli`, attribute and one-line summary of each command."""

HELP = """Dragoman, an agent interoperability hub: MCP servers and A2A agents behind one endpoint.

\b
First steps:
  dragoman import            import the MCP servers of an IDE
  dragoman up                run the hub
  dragoman install cursor    add the hub to an IDE (vscode, claude-desktop, …)
  dragoman agents add URL    register an A2A agent; each of its skills becomes a tool
  dragoman tools             list the tools
  dragoman call NAME k=v     call a tool
  dragoman agents new NAME   write an agent; dragoman chat NAME talks to it
"""
EPILOG = """\b
Exit codes: 0 done, 1 failed, 2 invalid usage or arguments, 3 no hub, 4 refused, 5 not found,
6 a server or agent failed, 7 invalid configuration, 8 a file must be edited by hand,
130 interrupted.
"""


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"dragoman.cli.{module}"), name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes command names without loading the commands."""
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
            ctx.fail(f'unknown command "{args[0]}"{hint}')
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; an error of the hub or its home ends it with one line."""
        try:
            return super().invoke(ctx)
        except HomeLocked as error:
            fail(str(error), NO_HUB)
        except HomeUnusable as error:
            fail(str(error))
        except HubError as error:
            fail_with(error)


@click.group(
    cls=LazyGroup,
    help=HELP,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="dragoman", message="%(prog)s %(version)s")
@home_option
def cli(home: str | None) -> None:
    pass  # subcommands inherit --home


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("rest", nargs=-1)
def mcp(rest: tuple[str, ...]) -> None:
    """Serve MCP over stdio. An IDE starts this; see `dragoman install`.

    \b
    dragoman mcp --home DIR

    Connects to the running hub, or runs one inside this process.
    """
    # `__main__` handles `dragoman mcp` itself; this command is for the list and its help.
    raise click.UsageError('"mcp" must be the first argument: dragoman mcp --home DIR')


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
            print(render_json(build_error(_render_error(error), error.exit_code), None))
        say(_render_error(error))
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        say("interrupted")
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("DRAGOMAN_DEBUG"):
            raise
        if isinstance(error, OSError):
            what = f'"{error.filename}": ' if error.filename else ""
            say(f"{what}{error.strerror or error}")
        else:
            say(f"internal error ({type(error).__name__}: {error}); DRAGOMAN_DEBUG=1 shows where")
        return FAILED


def _discard_stdout() -> None:
    """Redirects stdout after its reader closed (`| head`), so that the final flush cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _render_error(error: click.ClickException) -> str:
    """Renders a click error on one line, with the help to read for a usage error."""
    message = error.format_message()
    if not isinstance(error, click.UsageError):
        return message
    path = error.ctx.command_path if error.ctx else "dragoman"
    message = message[0].lower() + message[1:].rstrip(".")
    joint = " " if message.endswith("?") else "; "
    return f"{message}{joint}see: {path} --help"
