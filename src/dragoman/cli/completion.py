"""`completion`: prints the shell script, and completes names from the running hub.

A shell asks while the user types: nothing here prints, waits or starts a hub.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

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


def _request(ctx: click.Context, path: str) -> Any:
    daemon = home.read_daemon(_find_home(ctx))
    if daemon is None:
        return {}
    return request_json(daemon.socket, "GET", path, None, ANSWER_SECONDS)


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


def _list_tools(ctx: click.Context) -> Iterable[str]:
    for tool in _request(ctx, "/api/tools").get("tools", ()):
        yield from (tool["id"], tool["name"])


def _list_agents(ctx: click.Context) -> Iterable[str]:
    return [agent["slug"] for agent in _request(ctx, "/api/a2a/agents").get("agents", ())]


def _list_targets(ctx: click.Context) -> Iterable[str]:
    yield from _list_servers(ctx)
    yield from _list_agents(ctx)


def _list_quarantined(ctx: click.Context) -> Iterable[str]:
    return [pin["name"] for pin in _request(ctx, "/api/pins?state=held").get("pins", ())]


def _list_prompts(ctx: click.Context) -> Iterable[str]:
    for prompt in _request(ctx, "/api/prompts").get("prompts", ()):
        yield from (prompt["id"], prompt["name"])


def _list_resources(ctx: click.Context) -> Iterable[str]:
    return [one["uri"] for one in _request(ctx, "/api/resources").get("resources", ())]


complete_servers = _build_completer(_list_servers)
complete_tools = _build_completer(_list_tools)
complete_agents = _build_completer(_list_agents)
complete_targets = _build_completer(_list_targets)
complete_quarantined = _build_completer(_list_quarantined)
complete_prompts = _build_completer(_list_prompts)
complete_resources = _build_completer(_list_resources)
complete_clients = _build_completer(lambda ctx: CLIENTS)
