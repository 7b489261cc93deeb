"""The matrix server: `sdk_server` with every other MCP feature, in either era.

Resources, prompts, completion, logs, changes, and in `matrix_questions` what it asks. `--scheme`
is that of its resources' addresses.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import mcp.types as t
from mcp.server.subscriptions import (
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError

sys.path.append(str(Path(__file__).resolve().parents[2]))  # it is run as a script, anywhere
from tests.peers import matrix_questions as questions
from tests.peers import sdk_server
from tests.peers.matrix_questions import NotYet, answers, form, modern
from tests.peers.sdk_server import BUS, CODE, OPTIONS, TOOLS, Arguments, Context, taking, text

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
LOGGED: tuple[t.LoggingLevel, ...] = ("debug", "info", "warning", "error")
BLOB = "AAECAwT/"
SHARED = "shared://everywhere"
RESOURCE_NOT_FOUND = -32002
OWN_ERROR = 7001
CITIES = {"fr": ["Lyon", "Paris", "Pau"], "pt": ["Porto"]}


# --- what a handshake session asked to hear


class SessionSubscriptions:
    def __init__(self) -> None:
        self.uris: set[str] = set()
        self.level = "debug"


HEARD: WeakKeyDictionary[Any, SessionSubscriptions] = WeakKeyDictionary()


def heard(ctx: Context) -> SessionSubscriptions:
    return HEARD.setdefault(ctx.session._connection, SessionSubscriptions())


# --- the rest of the tools


async def refuse(ctx: Context, a: Arguments) -> dict[str, Any]:
    raise MCPError(OWN_ERROR, "There is no such order", {"order": 7})


async def pick(ctx: Context, a: Arguments) -> dict[str, Any]:
    return text("[1, 2]", structuredContent=[1, 2])


async def log(ctx: Context, a: Arguments) -> dict[str, Any]:
    for level in LOGGED:
        if not modern(ctx) and LEVELS.index(level) < LEVELS.index(heard(ctx).level):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MCPDeprecationWarning)
            data = {"said": level, "key": a.get("key")}
            await ctx.session.send_log_message(level, data, "matrix", ctx.request_id)
    return text("logged")


async def change(ctx: Context, a: Arguments) -> dict[str, Any]:
    """Adds or takes away a tool, prompt or resource, or changes the one that can be followed. It
    announces that to each session, or to the caller alone; `nothing` changes no tool."""
    what = a["what"]
    is_private = a.get("to") == "caller"
    sessions = [ctx.session._connection] if is_private else list(sdk_server.SESSIONS)
    if what == "watched":
        uri = address("watched")
        VERSION["watched"] += 1
        await BUS.publish(ResourceUpdated(uri=uri))
        for connection in sessions:
            if uri in HEARD.setdefault(connection, SessionSubscriptions()).uris:
                await connection.send_resource_updated(uri)
        return text(f"version {VERSION['watched']}")
    if what in ("tools", "nothing"):
        if what == "tools":
            swap(TOOLS, "extra", {"name": "extra", "inputSchema": taking()})
        await BUS.publish(ToolsListChanged())
        for connection in sessions:
            await connection.send_tool_list_changed()
    elif what == "prompts":
        swap(PROMPTS, "extra", {"name": "extra"})
        await BUS.publish(PromptsListChanged())
        for connection in sessions:
            await connection.send_prompt_list_changed()
    else:
        swap(RESOURCES, "extra", {"name": "extra", "uri": address("extra")})
        await BUS.publish(ResourcesListChanged())
        for connection in sessions:
            await connection.send_resource_list_changed()
    return text("changed")


def swap(things: dict[str, Any], name: str, thing: dict[str, Any]) -> None:
    if things.pop(name, None) is None:
        things[name] = thing


SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    # nothing that JSON can be written in two ways: the bytes are compared
    "x-zeta": {"later": [1.0, 0.25, 12345678901234567, None, True], "earlier": "</a>"},
    "$defs": {
        "zebra": {"$anchor": "stripes", "type": "string", "minLength": 0},
        "ape": {"type": ["integer", "null"], "x-alpha": {}},
    },
    "properties": {
        "z": {"$ref": "#stripes"},
        "a": {"$ref": "#/$defs/ape", "description": "beside a $ref"},
    },
    "dependentRequired": {"z": ["a"]},
    "$comment": "keys are in no order at all",
    "if": {"required": ["a"]},
    "then": {"minProperties": 1},
}


def bomb() -> dict[str, Any]:
    """A short schema that comes to 2^40 parts when its references are followed."""
    layers: dict[str, Any] = {
        f"l{n}": {"allOf": [{"$ref": f"#/$defs/l{n + 1}"}, {"$ref": f"#/$defs/l{n + 1}"}]}
        for n in range(40)
    }
    layers["l40"] = {"type": "object"}
    return {"type": "object", "$defs": layers, "allOf": [{"$ref": "#/$defs/l0"}]}


def add_tools() -> None:
    for tool in questions.TOOLS:
        CODE[tool.__name__] = tool
        schema = taking(key="string")
        TOOLS[tool.__name__] = {"name": tool.__name__, "inputSchema": schema}
    for tool in (questions.declared, refuse, log):
        CODE[tool.__name__] = tool
        TOOLS[tool.__name__] = {"name": tool.__name__, "inputSchema": taking()}
    CODE["change"] = change
    TOOLS["change"] = {"name": "change", "inputSchema": taking(what="string")}
    TOOLS["faithful"] = {"name": "faithful", "inputSchema": SCHEMA, "outputSchema": SCHEMA}
    CODE["faithful"] = lambda ctx, a: faithful(a)
    if OPTIONS.era == "modern":  # the models of the handshake era refuse a list that has it
        CODE["pick"] = pick
        output = {
            "type": "array",
            "items": {"$ref": "#/$defs/n"},
            "$defs": {"n": {"type": "number"}},
        }
        TOOLS["pick"] = {"name": "pick", "inputSchema": taking(), "outputSchema": output}
    if OPTIONS.refer_to:
        reference = {"type": "object", "properties": {"x": {"$ref": OPTIONS.refer_to}}}
        TOOLS["refers"] = {"name": "refers", "inputSchema": reference}
    if OPTIONS.bomb:
        wide = {"type": "object", "properties": {f"p{n}": {} for n in range(20_001)}}
        TOOLS["bomb"] = {"name": "bomb", "inputSchema": bomb()}
        TOOLS["wide"] = {"name": "wide", "inputSchema": wide}
        deep: dict[str, Any] = {}
        for _ in range(70):
            deep = {"not": deep}
        TOOLS["deep"] = {"name": "deep", "inputSchema": {"type": "object", "not": deep}}


async def faithful(a: Arguments) -> dict[str, Any]:
    return text(json.dumps(a), structuredContent=a)


# --- prompts, resources, completion

PROMPTS: dict[str, dict[str, Any]] = {
    "plain": {"name": "plain", "description": "A prompt without arguments"},
    "travel": {
        "name": "travel",
        "title": "Travel",
        "description": "A prompt with arguments",
        "arguments": [
            {"name": "country", "title": "Country", "required": True},
            {"name": "city", "description": "Where to"},
        ],
    },
    "asks": {"name": "asks", "description": "A prompt that asks for a form"},
}
RESOURCES: dict[str, dict[str, Any]] = {}
VERSION = {"watched": 1}


def address(name: str) -> str:
    return f"{OPTIONS.scheme}://{name}"


def add_resources() -> None:
    for name, kind in {
        "text": "text/plain",
        "blob": "application/octet-stream",
        "watched": "text/plain",
        "asks": "text/plain",
    }.items():
        RESOURCES[name] = {"name": name, "uri": address(name), "mimeType": kind}
    RESOURCES["text"] |= {"title": "Text", "annotations": {"audience": ["user"], "priority": 0.5}}
    RESOURCES["shared"] = {"name": "shared", "uri": SHARED}


def complete(ctx: Context, result: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**result, "resultType": "complete", **more} if modern(ctx) else result


KEPT = {"ttlMs": 0, "cacheScope": "private"}


async def list_prompts(ctx: Context, params: Any) -> Any:
    return complete(ctx, {"prompts": [PROMPTS[name] for name in sorted(PROMPTS)]}, **KEPT)


async def get_prompt(ctx: Context, params: t.GetPromptRequestParams) -> Any:
    if params.name not in PROMPTS:
        raise MCPError(t.INVALID_PARAMS, f"Unknown prompt: {params.name}")
    words = params.name
    if params.name == "travel":
        words = f"To {(params.arguments or {}).get('city', 'anywhere')}"
    elif params.name == "asks":
        try:
            got = await answers(ctx, (params.arguments or {}).get("key"), {"who": form("Who?")})
        except NotYet as asked:
            return asked.result
        words = json.dumps(got["who"])
    said = [
        {"role": "user", "content": {"type": "text", "text": words}},
        {"role": "assistant", "content": {"type": "image", "data": BLOB, "mimeType": "image/png"}},
    ]
    return complete(ctx, {"description": f"The prompt {params.name}", "messages": said})


async def list_resources(ctx: Context, params: Any) -> Any:
    return complete(ctx, {"resources": [RESOURCES[name] for name in sorted(RESOURCES)]}, **KEPT)


async def list_templates(ctx: Context, params: Any) -> Any:
    template = {"name": "item", "title": "Item", "uriTemplate": address("item/{id}/{part}")}
    return complete(ctx, {"resourceTemplates": [template]}, **KEPT)


async def read(ctx: Context, params: t.ReadResourceRequestParams) -> Any:
    uri = str(params.uri)
    content: dict[str, Any] = {"uri": uri, "mimeType": "text/plain"}
    if uri == address("blob"):
        content |= {"mimeType": "application/octet-stream", "blob": BLOB}
    elif uri == address("watched"):
        content["text"] = f"version {VERSION['watched']}"
    elif uri.startswith(address("item/")) and not uri.endswith("/none"):
        content["text"] = uri.removeprefix(address("item/"))
    elif uri in (address("text"), address("extra"), SHARED):
        content["text"] = f"the text of {OPTIONS.scheme}"
    elif uri == address("asks"):
        try:
            got = await answers(ctx, "resource", {"who": form("Who reads?")})
        except NotYet as asked:
            return asked.result
        content["text"] = json.dumps(got["who"])
    else:
        code = t.INVALID_PARAMS if modern(ctx) else RESOURCE_NOT_FOUND
        raise MCPError(code, "Resource not found", {"uri": uri})
    return complete(ctx, {"contents": [content]}, **KEPT)


async def subscribe(ctx: Context, params: t.SubscribeRequestParams) -> t.EmptyResult:
    heard(ctx).uris.add(str(params.uri))
    return t.EmptyResult()


async def unsubscribe(ctx: Context, params: t.UnsubscribeRequestParams) -> t.EmptyResult:
    heard(ctx).uris.discard(str(params.uri))
    return t.EmptyResult()


async def set_level(ctx: Context, params: t.SetLevelRequestParams) -> t.EmptyResult:
    heard(ctx).level = params.level
    return t.EmptyResult()


async def on_completion(ctx: Context, params: t.CompleteRequestParams) -> Any:
    name, value = params.argument.name, params.argument.value
    if isinstance(params.ref, t.PromptReference):
        known = params.context.arguments if params.context and params.context.arguments else {}
        cities = CITIES.get(known.get("country", ""), [*CITIES["fr"], *CITIES["pt"]])
        found = {"country": list(CITIES), "city": cities}[name]
    else:
        found = ["one", "other", "two"] if name == "id" else []
    values = [one for one in found if one.startswith(value)]
    completion = {"values": values, "total": len(values), "hasMore": False}
    return complete(ctx, {"completion": completion})


# --- the server


async def on_call(ctx: Context, params: t.CallToolRequestParams) -> Any:
    try:
        return await sdk_server.on_call(ctx, params)
    except NotYet as asked:
        return asked.result


def server() -> sdk_server.PeerServer:
    made = sdk_server.PeerServer(
        "matrix",
        version="1",
        on_list_tools=sdk_server.on_list,
        on_call_tool=on_call,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=unsubscribe,
        on_completion=on_completion,
        on_subscriptions_listen=ListenHandler(BUS),
        get_tool_input_schema=lambda name: TOOLS[name]["inputSchema"] if name in TOOLS else None,
    )
    made.add_request_handler("logging/setLevel", t.SetLevelRequestParams, set_level)
    made.middleware.append(sdk_server.watch)
    return made


def main() -> None:
    parser = sdk_server.arguments()
    parser.add_argument("--scheme", default="matrix", help="of the addresses of its resources")
    parser.add_argument("--refer-to", help="one tool has a schema that refers to this address")
    parser.add_argument("--bomb", action="store_true", help="three tools have unbearable schemas")
    parser.parse_args(namespace=OPTIONS)
    add_tools()
    add_resources()
    sdk_server.run(server())


if __name__ == "__main__":
    main()
