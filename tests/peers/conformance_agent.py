"""The agent that the official A2A kits talk to: the beginning of a message selects its behaviour.

Branch 1.0-dev of the kit puts the word at the head of the message id, the drafted conformance test
specification (ACTS) at the head of the text; here either works, and the longest that fits counts.
`agent` finishes what it is given, `patient` is what branch 0.3.x needs: its tasks are still open
when the kit comes back to them. `conformance_profiles` has the settings it runs with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from dragoman.agent import Ask, Decline, NeedsAuth, Reply, Request

STREAMING_SECONDS = 2.0
"""What both kits take as their streaming timeout where nothing is said."""
ENDLESS_SECONDS = 120.0

Block = dict[str, Any]
Answer = str | Reply | Ask | NeedsAuth | None
Does = Callable[[Request], Awaitable[Answer]]

FILE: Block = {
    "type": "resource",
    "resource": {"uri": "file:///output.txt", "mimeType": "text/plain", "blob": "dGNr"},
}
LINK: Block = {
    "type": "resource_link",
    "uri": "https://example.com/output.txt",
    "name": "output.txt",
    "mimeType": "text/plain",
}
DATA: Block = {"type": "data", "data": {"key": "value", "count": 42}}


def text(words: str) -> Block:
    return {"type": "text", "text": words}


def completes(words: str) -> Does:
    """At once, with an answer and nothing else."""

    async def does(request: Request) -> Answer:
        return words

    return does


def makes(block: Block) -> Does:
    """One artifact, between a first sign of work and the end."""

    async def does(request: Request) -> Answer:
        request.say("Working on it.")
        request.artifact([block], name="output")
        return None

    return does


def asks(words: str) -> Does:
    async def does(request: Request) -> Answer:
        return Ask(words)

    return does


def takes(seconds: float, words: str, steps: int = 1) -> Does:
    async def does(request: Request) -> Answer:
        request.say("Working on it.")
        for step in range(steps):
            await asyncio.sleep(seconds / steps)
            if step + 1 < steps:
                request.say(f"Step {step + 1} of {steps} is done.")
        return words

    return does


async def answers(request: Request) -> Answer:
    return Reply([text("Direct message response")], direct=True)


async def chunks(request: Request) -> Answer:
    request.say("Working on it.")
    request.artifact([text("chunk-1 ")], id="chunked", name="output", last=False)
    request.artifact([text("chunk-2")], id="chunked", name="output", append=True)
    return None


async def wants_permission(request: Request) -> Answer:
    return NeedsAuth("Permit this at the address given.", url="https://idp.example/permit")


async def declines(request: Request) -> Answer:
    raise Decline("rejected")


async def fails(request: Request) -> Answer:
    raise RuntimeError("This task fails because it was told to.")


TRIGGERS: dict[str, Does] = {
    "tck-complete-task": completes("Hello from TCK"),
    "tck-delayed-complete": takes(STREAMING_SECONDS, "Done after delay"),
    "tck-artifact-text": makes(text("Generated text content")),
    "tck-artifact-file": makes(FILE),
    "tck-artifact-file-url": makes(LINK),
    "tck-artifact-data": makes(DATA),
    "tck-message-response": answers,
    "tck-input-required": asks("What else is there to know?"),
    "tck-multi-turn": asks("Go on; say done to finish."),
    "tck-auth-required": wants_permission,
    "tck-reject-task": declines,
    "tck-task-failure": fails,
    "tck-cancel": takes(ENDLESS_SECONDS, "Nobody cancelled it."),
    "tck-long-running": takes(STREAMING_SECONDS, "It took a while.", steps=4),
    "tck-stream-001": makes(text("Stream hello from TCK")),
    "tck-stream-002": completes("Stream of one status"),
    "tck-stream-003": makes(text("Stream task lifecycle")),
    "tck-stream-ordering-001": makes(text("Ordered output")),
    "tck-stream-basic": makes(text("Streamed text content")),
    "tck-stream-chunked": chunks,
    "tck-stream-artifact-text": makes(text("Streamed text content")),
    "tck-stream-artifact-file": makes(FILE),
    "tck-stream-artifact-chunked": chunks,
    "test-resubscribe-message-id": takes(3 * STREAMING_SECONDS, "Still here.", steps=12),
}


def triggered(request: Request) -> Does | None:
    """The message id first: people repeat texts from turn to turn, ids are never repeated."""
    for words in (request.message_id, request.text):
        known = [prefix for prefix in TRIGGERS if words.startswith(prefix)]
        if known:
            return TRIGGERS[max(known, key=len)]
    return None


async def agent(request: Request) -> Answer:
    """Echoes a message without a known trigger; a follow-up completes the task."""
    does = triggered(request)
    if does is not None:
        return await does(request)
    if request.turn > 1 and not request.text.lower().startswith("done"):
        return Ask("Go on; say done to finish.")
    return f"echo: {request.text}"


async def patient(request: Request) -> Answer:
    """Works briefly, then waits for input, whatever the message."""
    does = triggered(request)
    if does is not None:
        return await does(request)
    request.say("Working on it.")
    await asyncio.sleep(0.2)
    return Ask("Hello world! What else?")
