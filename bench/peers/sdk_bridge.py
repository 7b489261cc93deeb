"""The bridge one writes from both official SDKs: an MCP server before, one kept A2A client behind.

usage: sdk_bridge.py low|high PORT AGENT_URL
"""

import sys
import uuid

import httpx
import mcp_types as types
import uvicorn
import uvloop
from a2a.client import Client, ClientConfig, create_client
from a2a.types import Message, Part, Role, SendMessageRequest
from mcp.server.lowlevel.server import Server
from mcp.server.mcpserver import MCPServer

KIND, PORT, AGENT = sys.argv[1], int(sys.argv[2]), sys.argv[3]
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
POOLED = httpx.Limits(max_connections=200, max_keepalive_connections=200)


async def ask(agent: Client, text: str) -> str:
    message = Message(message_id=uuid.uuid4().hex, role=Role.ROLE_USER, parts=[Part(text=text)])
    async for event in agent.send_message(SendMessageRequest(message=message)):
        if event.HasField("message"):
            return str(event.message.parts[0].text)
        if event.HasField("task") and event.task.artifacts:
            return str(event.task.artifacts[0].parts[0].text)
    raise RuntimeError("the agent said nothing")


def low_level(agent: Client) -> Server:
    tool = types.Tool(name="echo", description="Ask the agent", input_schema=SCHEMA)

    async def list_tools(context, params) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[tool])

    async def call_tool(context, params) -> types.CallToolResult:
        said = await ask(agent, params.arguments["text"])
        return types.CallToolResult(content=[types.TextContent(type="text", text=said)])

    return Server(
        "bridge",
        version="1",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema={"echo": SCHEMA}.get,
    )


def high_level(agent: Client) -> MCPServer:
    server = MCPServer("bridge", log_level="ERROR")

    @server.tool()
    async def echo(text: str) -> str:
        """Ask the agent"""
        return await ask(agent, text)

    return server


async def main() -> None:
    async with httpx.AsyncClient(limits=POOLED, timeout=30) as pool:
        agent = await create_client(AGENT, ClientConfig(streaming=False, httpx_client=pool))
        server = high_level(agent) if KIND == "high" else low_level(agent)
        app = server.streamable_http_app(json_response=True, stateless_http=True)
        config = uvicorn.Config(
            app, host="127.0.0.1", port=PORT, http="httptools", access_log=False, log_level="error"
        )
        await uvicorn.Server(config).serve()


uvloop.run(main())
