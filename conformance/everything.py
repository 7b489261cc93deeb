"""Uses npm's server-everything through the hub as a client of one era; a line of JSON a result.

`python -m conformance.everything URL legacy|modern`.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import mcp.types as types
from mcp.client.client import Client
from mcp.client.context import ClientRequestContext

SECONDS = 20
asked: list[str] = []


async def answer_form(
    context: ClientRequestContext, params: types.ElicitRequestParams
) -> types.ElicitResult:
    asked.append("elicitation")
    content: dict[str, Any] = {}
    if isinstance(params, types.ElicitRequestFormParams):
        properties = params.requested_schema.get("properties", {})
        for name in params.requested_schema.get("required", []):
            content[name] = properties[name].get("default", "x")
    return types.ElicitResult(action="accept", content=content)


async def answer_sampling(
    context: ClientRequestContext, params: types.CreateMessageRequestParams
) -> types.CreateMessageResult:
    asked.append("sampling")
    said = types.TextContent(type="text", text="An answer of the model")
    return types.CreateMessageResult(role="assistant", content=said, model="none")


async def answer_roots(context: ClientRequestContext) -> types.ListRootsResult:
    asked.append("roots")
    root = types.Root.model_validate({"uri": "file:///somewhere", "name": "somewhere"})
    return types.ListRootsResult(roots=[root])


async def lists(client: Client) -> str:
    tools = [tool.name for tool in (await client.list_tools()).tools]
    prompts = [prompt.name for prompt in (await client.list_prompts()).prompts]
    resources = (await client.list_resources()).resources
    missing = {"echo", "get-sum", "trigger-sampling-request"} - set(tools)
    if missing or not prompts or not resources:
        return f"missing {missing}, {len(prompts)} prompts, {len(resources)} resources"
    return ""


async def echo(client: Client) -> str:
    return contains(await client.call_tool("echo", {"message": "hello"}), "hello")


async def total(client: Client) -> str:
    return contains(await client.call_tool("get-sum", {"a": 2, "b": 40}), "42")


async def structured(client: Client) -> str:
    said = await client.call_tool("get-structured-content", {"location": "New York"})
    return "" if said.structured_content else f"no structured content: {said}"


async def image(client: Client) -> str:
    said = await client.call_tool("get-tiny-image", {})
    return "" if any(block.type == "image" for block in said.content) else "no image"


async def progress(client: Client) -> str:
    seen: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    arguments = {"duration": 1, "steps": 4}
    name = "trigger-long-running-operation"
    said = await client.call_tool(name, arguments, progress_callback=note)
    return contains(said, "completed") if seen else "no progress came"


async def sampling(client: Client) -> str:
    said = await client.call_tool("trigger-sampling-request", {"prompt": "Hi", "maxTokens": 10})
    return contains(said, "An answer of the model")


async def elicitation(client: Client) -> str:
    said = await client.call_tool("trigger-elicitation-request", {})
    return contains(said, "") if "elicitation" in asked else f"was not asked: {said}"


async def roots(client: Client) -> str:
    return contains(await client.call_tool("get-roots-list", {}), "file:///somewhere")


async def prompt(client: Client) -> str:
    said = await client.get_prompt("simple-prompt")
    return "" if said.messages else "no messages"


async def resource(client: Client) -> str:
    uri = (await client.list_resources()).resources[0].uri
    return "" if (await client.read_resource(str(uri))).contents else "no contents"


def contains(said: Any, wanted: str) -> str:
    text = " ".join(block.text for block in said.content if block.type == "text")
    if said.is_error or wanted not in text:
        return f"{wanted!r} expected, {text[:200]!r} came"
    return ""


USES: tuple[Callable[[Client], Awaitable[str]], ...] = (
    lists, echo, total, structured, image, progress, sampling, elicitation, roots, prompt,
    resource,
)  # fmt: skip


async def use(url: str, era: str) -> None:
    client = Client(
        url,
        mode="legacy" if era == "legacy" else "2026-07-28",
        read_timeout_seconds=15,
        elicitation_callback=answer_form,
        sampling_callback=answer_sampling,
        list_roots_callback=answer_roots,
    )
    async with client:
        for each in USES:
            try:
                problem = await asyncio.wait_for(each(client), SECONDS)
            except Exception as error:  # any failure of any kind is a result
                problem = f"{type(error).__name__}: {error}"
            print(json.dumps({"name": each.__name__, "problem": problem or None}), flush=True)


if __name__ == "__main__":
    asyncio.run(use(sys.argv[1], sys.argv[2]))
