"""`completion`: prints the shell script, and completes names from the running hub.

A shell asks while the user types: nothing here prints, waits or starts a hub.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from dragoman import home
from dragoman.cli.base.hub_client import request_json
from dragoman.cli.clients.known_clients import CLIENTS

VARIABLE = "_DRAGOMAN_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL")
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a completion script for SHELL: bash, zsh or fish.

    \b
    eval "$(dragoman completion bash)"                                in ~/.bashrc
    eval "$(dragoman completion zsh)"                                 in ~/.zshrc
    dragoman completion fish > ~/.config/fish/completions/dragoman.fish

    It completes commands, options and names. Names of servers come from config.toml; those of
    tools, prompts, resources, agents and pins come from the running hub.
    """
    made = get_completion_class(shell)
    assert made is not None
    root = ctx.find_root().command
    print(made(root, {}, "dragoman", VARIABLE).source())


ANSWER_SECONDS = 0.5
_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_.:/@%+=,~-]*")
"""Servers choose names, and a shell inserts them as they are: names with characters special to a
shell or terminal are not completed."""

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _find_home(ctx: click.Context) -> str:
    found: str | None = None
    context: click.Context | None = ctx
    while context is not None and not found:
        found = context.params.get("home")
        context = context.parent
    return home.find_home(found)


def _build_completer(find: Callable[[click.Context], Iterable[str]]) -> Complete:
    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        try:
            found = dict.fromkeys(find(ctx))
        except Exception:  # a traceback would appear on the user's command line
            return []
        given = ctx.params.get(str(param.name))
        taken = set(given) if isinstance(given, tuple) else set()
        return [
            CompletionItem(name)
            for name in found
            if name.startswith(incomplete) and name not in taken and _PLAIN.fullmatch(name)
        ]

    return complete


def _list_servers(ctx: click.Context) -> Iterable[str]:
    """Lists the configured servers, including disabled ones."""
    from dragoman.cli.configure import list_server_names

    return list_server_names((Path(_find_home(ctx)) / "config.toml").read_text(encoding="utf-8"))


def _list_views(ctx: click.Context) -> Iterable[str]:
    from dragoman.config import load

    return [view.name for view in load(Path(_find_home(ctx)) / "config.toml").views]


def _build_lister(path: str, member: str, *fields: str) -> Callable[[click.Context], Iterable[str]]:
    """Builds a function that lists these fields of what the running hub has at `path`."""

    def find(ctx: click.Context) -> Iterable[str]:
        daemon = home.read_daemon(_find_home(ctx))
        if daemon is not None:
            found = request_json(daemon.socket, "GET", path, None, ANSWER_SECONDS)
            for one in found.get(member, ()):
                yield from (one[name] for name in fields)

    return find


_list_agents = _build_lister("/api/a2a/agents", "agents", "slug")
complete_servers = _build_completer(_list_servers)
complete_tools = _build_completer(_build_lister("/api/tools", "tools", "id", "name"))
complete_agents = _build_completer(_list_agents)
complete_workflows = _build_completer(_build_lister("/api/workflows", "workflows", "name"))
complete_runs = _build_completer(_build_lister("/api/runs", "runs", "id"))
complete_chat_agents = _build_completer(
    lambda ctx: [*_build_lister("/api/agents", "agents", "name")(ctx), *_list_agents(ctx)]
)
complete_targets = _build_completer(lambda ctx: [*_list_servers(ctx), *_list_agents(ctx)])
complete_quarantined = _build_completer(_build_lister("/api/pins?state=held", "pins", "name"))
complete_approvals = _build_completer(
    _build_lister("/api/approvals?state=pending", "approvals", "id")
)
complete_prompts = _build_completer(_build_lister("/api/prompts", "prompts", "id", "name"))
complete_resources = _build_completer(_build_lister("/api/resources", "resources", "uri"))
complete_views = _build_completer(_list_views)
complete_clients = _build_completer(lambda ctx: CLIENTS)
