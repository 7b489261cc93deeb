"""One client scenario of the suite against the hub's own client.

The suite runs `python -m conformance.driver LABEL direct|hub URL` with the URL of its mock server.
This puts a hub in front of it and does, as a client of the hub, what makes the scenario happen; the
suite judges what the hub sends to its mock server. Without the hub it judges the SDK's own client.
"""

import asyncio
import json
import os
import sys
from contextlib import nullcontext
from typing import Any

import mcp.types as types
from mcp.client.client import Client
from mcp.client.context import ClientRequestContext
from mcp.shared.exceptions import MCPError

from conformance.paths import LOGS
from conformance.processes import stop_all
from conformance.targets import hub, remote

SECONDS = 40
CALLS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "tools_call": [("add_numbers", {"a": 5, "b": 3})],
    "request-metadata": [("add_numbers", {"a": 5, "b": 3})],
    "http-standard-headers": [("add_numbers", {"a": 5, "b": 3})],
    "sse-retry": [("test_reconnection", {})],
    "elicitation-sep1034-client-defaults": [("test_client_elicitation_defaults", {})],
    "sep-2322-client-request-state": [
        ("test_mrtr_echo_state", {}),
        ("test_mrtr_unrelated", {}),
        ("test_mrtr_no_state", {}),
        ("test_mrtr_no_result_type", {}),
    ],
}
EXAMPLES: dict[str, Any] = {
    "string": "x",
    "integer": 0,
    "number": 0,
    "boolean": False,
    "object": {},
    "array": [],
}


async def answer_form(
    context: ClientRequestContext, params: types.ElicitRequestParams
) -> types.ElicitResult:
    """Accepts with the defaults of the form, and confirms what has none."""
    content: dict[str, Any] = {}
    if isinstance(params, types.ElicitRequestFormParams):
        for name, schema in params.requested_schema.get("properties", {}).items():
            if "default" in schema:
                content[name] = schema["default"]
            elif schema.get("type") == "boolean":
                content[name] = True
    return types.ElicitResult(action="accept", content=content)


async def answer_sampling(
    context: ClientRequestContext, params: types.CreateMessageRequestParams
) -> types.CreateMessageResult:
    said = types.TextContent(type="text", text="An answer")
    return types.CreateMessageResult(role="assistant", content=said, model="none")


async def answer_roots(context: ClientRequestContext) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[])


def calls_of(scenario: str, tools: list[types.Tool]) -> list[tuple[str, dict[str, Any]]]:
    if scenario == "http-custom-headers":
        context = json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])
        return [(call["name"], call["arguments"]) for call in context["toolCalls"]]
    if scenario == "http-invalid-tool-headers":
        return [(tool.name, example_for(tool.input_schema)) for tool in tools]
    if scenario == "json-schema-2020-12-preservation":
        schema = next(t.input_schema for t in tools if t.name == "json_schema_2020_12_tool")
        return [("json_schema_echo", {"schema": schema})]
    return CALLS.get(scenario, [])


def example_for(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    return {
        name: EXAMPLES.get(properties.get(name, {}).get("type"), "x")
        for name in schema.get("required", [])
    }


async def drive(url: str, scenario: str, revision: str) -> None:
    client = Client(
        url,
        mode="auto" if revision >= "2026" else "legacy",
        read_timeout_seconds=20,
        elicitation_callback=answer_form,
        sampling_callback=answer_sampling,
        list_roots_callback=answer_roots,
    )
    async with client:
        tools = (await client.list_tools()).tools
        print("listed:", ", ".join(tool.name for tool in tools))
        for name, arguments in calls_of(scenario, tools):
            try:
                said = await client.call_tool(name, arguments)
                print(f"{name}: {said.model_dump_json(exclude_none=True)[:300]}")
            except MCPError as error:
                print(f"{name}: error {error.error.code} {error.error.message}")


def main() -> int:
    label, way, url = sys.argv[1:4]
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    revision = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "2025-11-25")
    # The suite shows what its client says only where that fails.
    sys.stdout = (LOGS / f"{label}.said").open("w", encoding="utf-8", buffering=1)
    try:
        with hub(label, remote(url)) if way == "hub" else nullcontext((url, None)) as (endpoint, _):
            asyncio.run(asyncio.wait_for(drive(endpoint, scenario, revision), SECONDS))
    finally:
        stop_all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
