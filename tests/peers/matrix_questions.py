"""Questions of the matrix server, in the form of the client's era.

By requests of its own in the handshake era, by `InputRequiredResult` in the modern one; whatever
the client declared, except for the tool that is polite. In the log: `event` "answered" with the
answers, and "lost" for questions that got none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import anyio
import mcp.types as t
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from tests.peers.sdk_server import Arguments, Context, note, text

MISSING_CAPABILITY, URL_REQUIRED = -32021, -32042


def modern(ctx: Context) -> bool:
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


class NotYet(Exception):
    """In the modern era: the questions are the result."""

    def __init__(self, questions: Mapping[str, Any], state: str) -> None:
        self.result = {
            "resultType": "input_required",
            "inputRequests": dict(questions),
            "requestState": state,
        }


def form(message: str) -> dict[str, Any]:
    properties = {
        "name": {"type": "string", "title": "Name"},
        "size": {"type": "string", "oneOf": [{"const": "s", "title": "S"}]},
    }
    schema = {"type": "object", "properties": properties, "required": ["name"]}
    params = {"mode": "form", "message": message, "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


def page(message: str) -> dict[str, Any]:
    params = {"mode": "url", "message": message, "url": "https://example.com/sign-in?x=1"}
    return {"method": "elicitation/create", "params": params}


def sample(words: str) -> dict[str, Any]:
    message = {"role": "user", "content": {"type": "text", "text": words}}
    params = {"messages": [message], "maxTokens": 100, "systemPrompt": "Be brief."}
    return {"method": "sampling/createMessage", "params": params}


FOLDERS = {"method": "roots/list"}


async def answers(
    ctx: Context, key: Any, questions: Mapping[str, Any], state: str = "the server's own"
) -> dict[str, Any]:
    if modern(ctx):
        params = ctx.params or {}
        came = params.get("inputResponses") or {}
        if params.get("requestState") != state or not questions.keys() <= came.keys():
            raise NotYet(questions, state)
        got = {name: came[name] for name in questions}
    else:
        got = {}

        async def push(name: str, question: Mapping[str, Any]) -> None:
            params = dict(question.get("params", {}))
            if params.get("mode") == "url":
                params["elicitationId"] = f"{name} {key}"
            # the SDK's own way knows only its models
            channel: Any = ctx.session._request_outbound
            got[name] = await channel.send_raw_request(
                question["method"], params or None, {"timeout": 60}
            )

        try:
            async with anyio.create_task_group() as group:
                for name, question in questions.items():
                    group.start_soon(push, name, question)
        except BaseException as problem:
            note(event="lost", key=key, why=repr(problem))
            if isinstance(problem, ExceptionGroup):
                raise MCPError(t.INTERNAL_ERROR, f"no answer: {problem.exceptions[0]}") from None
            raise
    note(event="answered", key=key, answers=got)
    return got


async def ask_form(ctx: Context, a: Arguments) -> dict[str, Any]:
    got = await answers(ctx, a["key"], {"who": form("What is your name?")})
    return text(json.dumps(got["who"]))


async def ask_url(ctx: Context, a: Arguments) -> dict[str, Any]:
    got = await answers(ctx, a["key"], {"page": page("Please sign in.")})
    if not modern(ctx):
        await ctx.session.send_elicit_complete(f"page {a['key']}", ctx.request_id)
    return text(json.dumps(got["page"]))


async def ask_sampling(ctx: Context, a: Arguments) -> dict[str, Any]:
    got = await answers(ctx, a["key"], {"model": sample("What is the capital of France?")})
    return text(json.dumps(got["model"]))


async def ask_roots(ctx: Context, a: Arguments) -> dict[str, Any]:
    got = await answers(ctx, a["key"], {"folders": FOLDERS})
    return text(json.dumps(got["folders"]))


async def ask_several(ctx: Context, a: Arguments) -> dict[str, Any]:
    got = await answers(ctx, a["key"], {"who": form("And you?"), "folders": FOLDERS})
    return text(json.dumps(got, sort_keys=True))


async def ask_rounds(ctx: Context, a: Arguments) -> dict[str, Any]:
    state = str((ctx.params or {}).get("requestState", ""))
    if state.startswith("second "):
        first = state.removeprefix("second ")
    else:
        got = await answers(ctx, a["key"], {"who": form("First?")}, "first")
        first = got["who"].get("content", {}).get("name", "nobody")
    got = await answers(ctx, a["key"], {"who": form("Second?")}, f"second {first}")
    return text(f"{first} and {got['who'].get('content', {}).get('name', 'nobody')}")


async def ask_politely(ctx: Context, a: Arguments) -> dict[str, Any]:
    if "elicitation" not in declared_by(ctx):
        if modern(ctx):
            needed: dict[str, Any] = {"requiredCapabilities": {"elicitation": {"form": {}}}}
            raise MCPError(MISSING_CAPABILITY, "A form is needed here", needed)
        return text("This client cannot be asked for a form", isError=True)
    return await ask_form(ctx, a)


SIGNED_IN: set[str] = set()


async def need_url(ctx: Context, a: Arguments) -> dict[str, Any]:
    """The handshake era's other way: an error, and the client calls again."""
    if modern(ctx):
        return await ask_url(ctx, a)
    if a["key"] in SIGNED_IN:
        await ctx.session.send_elicit_complete(f"needed {a['key']}")
        return text("signed in")
    SIGNED_IN.add(a["key"])
    asked = {**page("Please sign in.")["params"], "elicitationId": f"needed {a['key']}"}
    raise MCPError(URL_REQUIRED, "Sign in first", {"elicitations": [asked]})


def declared_by(ctx: Context) -> dict[str, Any]:
    capabilities = ctx.session.client_capabilities
    return capabilities.model_dump(by_alias=True, exclude_none=True) if capabilities else {}


async def declared(ctx: Context, a: Arguments) -> dict[str, Any]:
    """What the client of this very call said that it can do."""
    return text(json.dumps(declared_by(ctx)))


TOOLS = (
    ask_form,
    ask_url,
    ask_sampling,
    ask_roots,
    ask_several,
    ask_rounds,
    ask_politely,
    need_url,
)
