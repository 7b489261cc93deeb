"""Function agents that a hub under test loads by `[[agents]]`.

`actor` does what its data tell it, step by step. The folder `$A2A_GATES` holds the files it waits
for, and those by which it leaves word: a test opens a gate, or sees what became of the work. With
`$A2A_QUICK` the hub that has loaded this does soon what it otherwise does now and then.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dragoman.a2a.server import http
from dragoman.agent import Ask, Decline, NeedsAuth, Reply, Request
from dragoman.core.task_registry import TaskRegistry

WAIT_SECONDS = 60.0

if "A2A_QUICK" in os.environ:
    http.HEARTBEAT_SECONDS = 0.2

    def start_sweeping(tasks: TaskRegistry[Any]) -> None:
        tasks._sweep_timer = asyncio.get_running_loop().call_later(0.1, tasks._sweep)

    # A test cannot wait for the next sweep, and the hub has no setting for it.
    TaskRegistry._start_sweeping = start_sweeping  # type: ignore[assignment, method-assign]


def gate(key: str) -> Path:
    return Path(os.environ["A2A_GATES"]) / key


async def passed(key: str) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not gate(key).exists():
        if time.monotonic() > end:
            raise TimeoutError(f"nobody has opened {key}")
        await asyncio.sleep(0.01)


async def echo(message: str) -> str:
    return message


def mirror(request: Request) -> dict[str, Any]:
    """What reached it; in a thread."""
    request.say("looking")
    return {
        "text": request.text,
        "parts": list(request.parts),
        "data": request.data,
        "metadata": dict(request.metadata),
        "context": request.context,
        "task": request.task,
        "message_id": request.message_id,
        "skill": request.skill,
        "turn": request.turn,
        "caller": request.caller,
    }


async def actor(request: Request) -> Any:
    """`{"do": [["say", "hello"], ["wait", "key"], ["reply", "done"]]}`; without that it says which
    turn it is, and what it heard."""
    steps = request.data.get("do") if isinstance(request.data, dict) else None
    if steps is None:
        return f"{request.turn}: {request.text}"
    try:
        for verb, *more in steps:
            done = await step(request, verb, more)
            if done is not None:
                return done
    except asyncio.CancelledError:
        gate(f"{request.task}.cancelled").touch()
        raise
    return "done"


async def step(request: Request, verb: str, more: list[Any]) -> Any:
    match verb, more:
        case "say", [words]:
            request.say(words)
        case "artifact", [content, keys]:
            request.artifact(content, **keys)
        case "wait", [key]:
            await passed(key)
        case "pause", [seconds]:
            await asyncio.sleep(seconds)
        case "mark", [key]:
            with gate(key).open("a", encoding="utf-8") as file:
                file.write("x")
        case "fail", [words]:
            raise RuntimeError(words)
        case "decline", [words]:
            raise Decline(words)
        case "ask", [question]:
            return Ask(question)
        case "ask", [question, schema]:
            return Ask(question, schema)
        case "auth", [words, url]:
            return NeedsAuth(words, url)
        case "reply", [content]:
            return Reply(content)
        case "direct", [content]:
            return Reply(content, direct=True)
        case "failed", [content]:
            return Reply(content, failed=True)
        case "odd", []:
            return 17
        case _:
            raise ValueError(f"there is no step {verb}")
    return None


async def maker(request: Request) -> None:
    """Hands out what it makes, and returns nothing."""
    if request.text != "nothing":
        request.artifact(request.text, name="made")


async def stubborn(request: Request) -> str:
    """Does not mind being cancelled."""
    gate(f"{request.task}.begun").touch()
    try:
        await passed("never")
    except asyncio.CancelledError:
        request.say("still here")
        request.artifact("late", name="late")
        gate(f"{request.task}.late").touch()
    return "late"


def oddly(request: Request) -> Any:
    """Does what no agent should do; in a thread."""
    match request.text:
        case "time":
            return {"at": datetime(2026, 1, 31, tzinfo=UTC), "of": {1}, "number": float("nan")}
        case "object":
            return {"it": object()}
        case "artifact":
            request.artifact({"it": object()})
        case "half":
            request.say("half \udce9")
            return "half \udce9"
        case "file":
            raise FileNotFoundError("no file caf\udce9")
        case "exit":
            sys.exit(3)
        case "stop":
            raise StopIteration
        case "hang":
            gate(f"{request.task}.hangs").touch()
            time.sleep(WAIT_SECONDS)
    return "well"


async def leaving(message: str) -> str:
    sys.exit(message)


def counter(request: Request) -> Any:
    """Asks once, and counts the answers."""
    if request.turn == 1 and not request.text.isdecimal():
        return Ask("How many?")
    for number in range(int(request.text)):
        request.say(f"{number + 1}")
    return {"n": int(request.text)}


def asking(message: str) -> Any:
    """By the door of MCP the answer comes as another message."""
    return f"Hello, {message}!" if message.istitle() else Ask("Your name?")
