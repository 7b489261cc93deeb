"""Three agents, each a Python function: no model and no key is needed."""

from __future__ import annotations

import asyncio

from dragoman.agent import Ask, Decline, Request


def greet(message: str) -> str:
    """The simplest one: the text of the message in, a text out."""
    return f"Hello, {message}!"


async def countdown(request: Request) -> str:
    """Tells how the work goes, and hands out what it makes before it is done."""
    start = int(request.text)
    if start > 10:
        raise Decline("ten is as high as it counts")
    for number in range(start, 0, -1):
        request.say(f"{number} …")
        await asyncio.sleep(0.1)
    request.artifact({"counted_from": start}, name="log")
    return "Lift-off!"


def order(request: Request) -> str | Ask | dict[str, object]:
    """Asks before it acts. The answer is the next request of the same task."""
    if request.turn == 1:
        return Ask(f"How many of {request.text} shall it be?")
    return {"ordered": int(request.text)}
