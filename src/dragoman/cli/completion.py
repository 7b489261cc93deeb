"""`completion`: the script that teaches a shell to complete commands and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

VARIABLE = "_DRAGOMAN_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL")
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script for SHELL (bash, zsh, fish) that completes commands, options and names.

    \b
    eval "$(dragoman completion bash)"                                in ~/.bashrc
    eval "$(dragoman completion zsh)"                                 in ~/.zshrc
    dragoman completion fish > ~/.config/fish/completions/dragoman.fish

    Names of servers come from config.toml, those of tools, prompts, resources, agents and pins from
    the hub that runs; where none runs they are not completed.
    """
    made = get_completion_class(shell)
    assert made is not None
    root = ctx.find_root().command
    print(made(root, {}, "dragoman", VARIABLE).source())
