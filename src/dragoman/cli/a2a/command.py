"""`a2a`: talks to A2A agents, by their name at the hub or by URL."""

from __future__ import annotations

import base64
import functools
import json
import mimetypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from dragoman.cli.a2a import output
from dragoman.cli.a2a.connection import AgentConnection, ConnectionOptions, run_with_agent
from dragoman.cli.a2a.conversation import AgentConversation, build_message
from dragoman.cli.base.errors import USAGE, fail, say
from dragoman.cli.base.output import home_option, json_option, print_json, print_result
from dragoman.cli.completion import complete_agents
from dragoman.core.errors import HubError
from dragoman.core.urls import render_url

SKILL = "urn:dragoman:a2a:skill:v1"
MAX_SENT = 7 * 1024 * 1024
"""Bytes of all files: base64 and the envelope then fit into the largest message."""


def add_connection_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of a connection to a command, which receives them as `options`."""

    @functools.wraps(command)
    def taken(
        home: str | None, headers: tuple[str, ...], allow_private: bool, timeout: float, **more: Any
    ) -> None:
        command(options=ConnectionOptions(home, headers, allow_private, timeout), **more)

    for option in (
        home_option,
        click.option("--timeout", metavar="SECONDS", type=click.FloatRange(0.1, 86_400),
                     default=30.0, show_default=True, help="Time to wait for each response."),
        click.option("--allow-private", is_flag=True,
                     help="Allow the host in a URL to resolve to a private address."),
        click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'",
                     help="Header to send to the origin of the URL only."),
    ):  # fmt: skip
        taken = option(taken)
    return taken


@click.group()
def a2a() -> None:
    """Talk to A2A agents of any version (0.1, 0.2, 0.3, 1.0).

    TARGET is the name of an agent at the hub or the URL of any agent; the default is the hub.

    \b
    dragoman a2a discover http://localhost:9999     show an agent's card
    dragoman a2a send echo "hello"                  send a message, print the answer
    dragoman a2a send echo --no-wait "long work"    print only the task id
    dragoman a2a tasks                              list tasks
    dragoman a2a watch TASK                         follow a task to its end

    \b
    Exit codes: 0 done, 1 the task failed, was rejected or cancelled, 2 invalid request, 4 refused,
    5 unknown agent or task, 6 the agent failed, timed out or sent an invalid response, or asks a
    question that was not answered.
    """


@a2a.command(short_help="Show an agent's card and its dialect.")
@click.argument("target", default="", metavar="[TARGET]", shell_complete=complete_agents)
@add_connection_options
@json_option
def discover(target: str, options: ConnectionOptions, as_json: bool) -> None:
    """Show the card of TARGET and probe which dialect it really speaks.

    \b
    dragoman a2a discover https://agents.example.com/weather
    dragoman a2a discover echo --json

    A finding is a contradiction between its card and its responses, or a likely mistake. --json
    prints the original card.
    """

    async def work(agent: AgentConnection) -> None:
        found = await agent.client.discover(agent.url)
        if as_json:
            return print_json(found.raw)
        peer = await agent.client.find_agent(agent.url)
        endpoint = "unknown"
        try:
            spoken = (await agent.client.find_probed(agent.url)).endpoint
            endpoint = spoken.describe(render_url(spoken.url)) if spoken is not None else "-"
        except HubError as error:
            peer.add_finding(str(error))
        output.print_card(found.card, found.url, endpoint, peer.findings, target or "''")

    run_with_agent(target, options, work)


@a2a.command(short_help="Send a message and print the answer.")
@click.argument("target", shell_complete=complete_agents)
@click.argument("text", default="", metavar="[TEXT | -]")
@click.option("--data", multiple=True, metavar="JSON", help="Add a data part; may be repeated.")
@click.option("--file", "files", multiple=True, metavar="PATH", type=click.Path(dir_okay=False),
              help="Add a file; may be repeated.")  # fmt: skip
@click.option("--skill", metavar="ID", help="Skill to use.")
@click.option("--context", metavar="ID", help="Continue this conversation.")
@click.option("--task", metavar="ID", help="Continue this task, which asked a question.")
@click.option("--no-wait", is_flag=True, help="Print the task id and do not wait for its end.")
@click.option("--stream", is_flag=True, help="Print artifacts as they arrive.")
@add_connection_options
@json_option
def send(target: str, text: str, options: ConnectionOptions, as_json: bool, **given: Any) -> None:
    """Send TEXT to TARGET and print the answer; status messages go to stderr.

    \b
    dragoman a2a send echo "hello"
    dragoman a2a send echo - < letter.txt
    dragoman a2a send dragoman --skill files.read --data '{"path": "/tmp/x"}'
    dragoman a2a send https://agents.example.com "summarize" --file report.pdf
    dragoman a2a send echo --task TASK "the answer to what it asked"

    On a terminal the agent's questions are asked here; otherwise the command prints how to answer.
    """
    no_wait, stream = given["no_wait"], given["stream"]
    if no_wait and stream:
        fail("--no-wait and --stream exclude each other", USAGE)
    parts = _build_parts(text, given["data"], given["files"])
    message = build_message(parts, given["context"], given["task"])
    if skill := given["skill"]:
        message["metadata"] = {SKILL: {"skillId": skill}}
        options = options._replace(extensions=(SKILL,))

    async def work(agent: AgentConnection) -> None:
        if no_wait:
            await _send_only(agent, message, as_json)
        else:
            await AgentConversation(agent, as_json, stream and not as_json).run(message)

    run_with_agent(target, options, work)


@a2a.command(short_help="List tasks.")
@click.argument("target", default="", metavar="[TARGET]", shell_complete=complete_agents)
@click.option("--context", metavar="ID", help="Only tasks of this conversation.")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True,
              help="Maximum number, newest first.")  # fmt: skip
@add_connection_options
@json_option
def tasks(
    target: str, context: str | None, limit: int, options: ConnectionOptions, as_json: bool
) -> None:
    """List your tasks at TARGET, or at the hub. Agents before A2A 1.0 cannot list tasks.

    \b
    dragoman a2a tasks
    dragoman a2a tasks echo --limit 5
    """

    async def work(agent: AgentConnection) -> None:
        found = await agent.client.list_tasks(agent.url, {"pageSize": limit, "contextId": context})
        if as_json:
            print_json(found)
        else:
            output.print_tasks(found["tasks"][:limit], bool(found.get("nextPageToken")))

    run_with_agent(target, options, work)


_TARGET_AND_ID = click.argument("where", nargs=-1, required=True, metavar="[TARGET] TASK")


def _split_target(where: tuple[str, ...]) -> tuple[str, str]:
    if len(where) > 2:
        fail(f'unexpected argument "{where[2][:60]}": write [TARGET] TASK', USAGE)
    return (where[0], where[1]) if len(where) == 2 else ("", where[0])


@a2a.command(short_help="Show a task.")
@_TARGET_AND_ID
@click.option("--history", type=click.IntRange(0, 10_000), metavar="N",
              help="Number of messages to include.")  # fmt: skip
@add_connection_options
@json_option
def task(
    where: tuple[str, ...], history: int | None, options: ConnectionOptions, as_json: bool
) -> None:
    """Show TASK of TARGET: its state, messages and artifacts.

    \b
    dragoman a2a task TASK
    dragoman a2a task echo TASK --history 10

    Without TARGET it is a task at the hub.
    """
    target, id = _split_target(where)

    async def work(agent: AgentConnection) -> None:
        found = await agent.client.get_task(agent.url, id, history)
        if as_json:
            print_json(found)
        else:
            output.print_task(found)

    run_with_agent(target, options, work)


@a2a.command(short_help="Cancel a task.")
@_TARGET_AND_ID
@add_connection_options
@json_option
def cancel(where: tuple[str, ...], options: ConnectionOptions, as_json: bool) -> None:
    """Cancel TASK of TARGET and the calls it started. An ended task cannot be cancelled.

    \b
    dragoman a2a cancel TASK

    Without TARGET it is a task at the hub.
    """
    target, id = _split_target(where)

    async def work(agent: AgentConnection) -> None:
        found = await agent.client.cancel_task(agent.url, id)
        print_result(found, f"task {id}: {output.read_state(found)}", as_json)

    run_with_agent(target, options, work)


@a2a.command(short_help="Follow a task to its end.")
@_TARGET_AND_ID
@add_connection_options
@json_option
def watch(where: tuple[str, ...], options: ConnectionOptions, as_json: bool) -> None:
    """Follow TASK of TARGET, or of the hub, until it ends or asks a question; print its artifacts.

    \b
    dragoman a2a watch TASK
    dragoman a2a watch echo TASK --json

    --json prints every event on a line of its own. A broken stream is resumed where it stopped, if
    the agent supports it.
    """
    target, id = _split_target(where)

    async def work(agent: AgentConnection) -> None:
        talking = AgentConversation(agent, False, True, events=as_json)
        await talking.watch(id)
        talking.finish()

    run_with_agent(target, options, work)


def _build_parts(text: str, data: tuple[str, ...], files: tuple[str, ...]) -> list[dict[str, Any]]:
    if text == "-":
        text = sys.stdin.buffer.read(MAX_SENT + 1).decode("utf-8", "replace")
        if len(text) > MAX_SENT:
            fail(f"the message is too large, over {MAX_SENT >> 20} MB", USAGE)
    parts: list[dict[str, Any]] = [{"text": text}] if text else []
    for each in data:
        try:
            parts.append({"data": json.loads(each), "mediaType": "application/json"})
        except (ValueError, RecursionError) as error:
            fail(f"--data is not valid JSON: {error or 'nested too deeply'}", USAGE)
    left = MAX_SENT
    for path in files:
        with open(path, "rb") as file:
            content = file.read(left + 1)
        left -= len(content)
        if left < 0:
            fail(f"the files are too large, over {MAX_SENT >> 20} MB", USAGE)
        kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
        raw = base64.b64encode(content).decode()
        parts.append({"raw": raw, "filename": Path(path).name, "mediaType": kind})
    if not parts:
        fail("nothing to send: give TEXT, --data or --file", USAGE)
    return parts


async def _send_only(agent: AgentConnection, message: dict[str, Any], as_json: bool) -> None:
    request = {"message": message, "configuration": {"returnImmediately": True}}
    answer = await agent.client.send_message(agent.url, request)
    made = answer.get("task")
    if as_json:
        print_json(answer)
    elif made is None:
        output.print_parts(output.list_parts(answer.get("message")), sys.stdout)
    else:
        print(made["id"])
        target = f"{agent.target} " if agent.target else ""
        say(f"{output.read_state(made)}; follow it with: dragoman a2a watch {target}{made['id']}")
