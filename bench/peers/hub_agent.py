"""The hub's echo agent. A message that ends in "in 10" makes ten events."""

import asyncio

from dragoman.agent import Request


async def echo(request: Request) -> str:
    words, _, events = request.text.partition(" in ")
    for number in range(int(events or 0) - 4):  # beside the first, its start, its answer, its end
        request.say(f"step {number}")
        await asyncio.sleep(0)
    return f"E:{words}"
