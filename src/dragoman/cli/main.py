"""The command line. Each group of commands is a module, loaded when one of them is asked for."""

from __future__ import annotations

import difflib
from importlib import import_module

import click

from dragoman import __version__

COMMANDS = {
    "up": ("dragoman.cli.hub", "up"),
    "stop": ("dragoman.cli.hub", "stop_command"),
    "status": ("dragoman.cli.hub", "status"),
    "init": ("dragoman.cli.configure", "init"),
    "config": ("dragoman.cli.configure", "config"),
    "install": ("dragoman.cli.install", "install"),
    "import": ("dragoman.cli.import_", "import_command"),
    "servers": ("dragoman.cli.servers", "servers"),
    "tools": ("dragoman.cli.tools", "tools"),
    "call": ("dragoman.cli.tools", "call"),
    "keys": ("dragoman.cli.keys", "keys"),
    "audit": ("dragoman.cli.audit", "audit"),
    "doctor": ("dragoman.cli.doctor", "doctor"),
}

HELP = """Dragoman, an agent interoperability hub: every MCP server behind one guarded road.

\b
First steps:
  dragoman import            take over the servers of an IDE you already use
  dragoman up                run the hub
  dragoman install cursor    put the hub into an IDE (vscode, claude-desktop, …)
  dragoman tools             what can be called
  dragoman call NAME k=v     call it
  dragoman mcp               what an IDE starts (see: dragoman mcp --help)

Exit codes: 0 done, 1 failed, 2 wrong usage or arguments, 3 no hub, 4 refused, 5 not found,
6 the far side failed, 7 configuration, 8 a file that must be edited by hand.
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
            hint = f' Did you mean "{near[0]}"?' if near else " See: dragoman --help"
            ctx.fail(f'there is no command "{args[0]}".{hint}')
        return super().resolve_command(ctx, args)


@click.group(cls=Lazy, help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dragoman")
def cli() -> None:
    pass


def main() -> int:
    cli(prog_name="dragoman")
    return 0
