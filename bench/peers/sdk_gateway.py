"""The gateway one writes from the official SDK: a low-level server before, a kept client behind.

usage: sdk_gateway.py PORT http URL
       sdk_gateway.py PORT stdio COMMAND [ARGUMENT...]
"""

import sys

import mcp_types as types
import uvicorn
import uvloop
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.server.lowlevel.server import Server

PORT, KIND, WHERE = int(sys.argv[1]), sys.argv[2], sys.argv[3:]


async def main() -> None:
    target: StdioServerParameters | str
    if KIND == "stdio":
        target = StdioServerParameters(command=WHERE[0], args=WHERE[1:])
    else:
        target = WHERE[0]
    async with Client(target) as upstream:
        # Given to the server, or it lists all tools at each call to find one schema.
        schemas = {tool.name: tool.input_schema for tool in (await upstream.list_tools()).tools}

        async def list_tools(context, params) -> types.ListToolsResult:
            return types.ListToolsResult(tools=(await upstream.list_tools()).tools)

        async def call_tool(context, params) -> types.CallToolResult:
            return await upstream.call_tool(params.name, params.arguments)

        server = Server(
            "gateway",
            version="1",
            on_list_tools=list_tools,
            on_call_tool=call_tool,
            get_tool_input_schema=schemas.get,
        )
        app = server.streamable_http_app(json_response=True, stateless_http=True)
        config = uvicorn.Config(
            app, host="127.0.0.1", port=PORT, http="httptools", access_log=False, log_level="error"
        )
        await uvicorn.Server(config).serve()


uvloop.run(main())
