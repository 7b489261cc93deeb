// A call as text to copy: for a shell, for Python, and as a test. The key is in DRAGOMAN_KEY.
import { quote } from "./copy.js";

/** As an agent of the hub, if `agent` names one. */
export function buildCurl(origin, tool, given, agent = "") {
  const body = JSON.stringify({ ...(agent ? { tool } : {}), arguments: given });
  const path = agent ? `agents/${encodeURIComponent(agent)}` : `tools/${encodeURIComponent(tool)}`;
  return `curl -s ${quote(`${origin}/api/${path}/call`)} \\
  \${DRAGOMAN_KEY:+-H "Authorization: Bearer $DRAGOMAN_KEY"} \\
  -H 'Content-Type: application/json' \\
  -d ${quote(body)}`;
}

export function buildShell(tool, given) {
  return `dragoman call ${quote(tool)} ${quote(JSON.stringify(given))}`;
}

/** With the MCP SDK (pip install mcp), as any MCP client would call it. */
export function buildPython(origin, tool, given) {
  return `import asyncio

${connect(origin)}

async def main() -> None:
    async with connect() as client:
        result = await client.call_tool(
            ${JSON.stringify(tool)},
            ${toPython(given, 12)},
        )
        print(result.structured_content or result.content)


asyncio.run(main())
`;
}

/** A test (pip install mcp pytest) that the tool still answers as it did. */
export function buildTest(origin, tool, given, result) {
  const expected = [];
  const text = result?.content?.find((one) => one.type === "text")?.text;
  if (result?.structured !== undefined) expected.push(`assert result.structured_content == ${toPython(result.structured, 4)}`);
  else if (typeof text === "string" && text.length <= 500) expected.push(`assert result.content[0].text == ${JSON.stringify(text)}`);
  return `import asyncio

${connect(origin)}

async def call():
    async with connect() as client:
        return await client.call_tool(
            ${JSON.stringify(tool)},
            ${toPython(given, 12)},
        )


def test_${tool.replace(/[^a-zA-Z0-9]+/g, "_").toLowerCase()}():
    result = asyncio.run(call())
    assert ${result?.failed ? "" : "not "}result.is_error
${expected.map((one) => `    ${one}\n`).join("")}`;
}

function connect(origin) {
  return `import os
from contextlib import asynccontextmanager

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

URL = ${JSON.stringify(`${origin}/mcp`)}


@asynccontextmanager
async def connect():
    key = os.environ.get("DRAGOMAN_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        async with Client(streamable_http_client(URL, http_client=http)) as client:
            yield client

`;
}

export function toPython(value, indent = 0) {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const entries = Array.isArray(value) ? value.map((one) => toPython(one, indent + 4)) : Object.entries(value).map(([key, one]) => `${JSON.stringify(key)}: ${toPython(one, indent + 4)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const line = `${open}${entries.join(", ")}${close}`;
  if (line.length + indent <= 88 && !line.includes("\n")) return line;
  const pad = " ".repeat(indent + 4);
  return `${open}\n${entries.map((one) => `${pad}${one},\n`).join("")}${" ".repeat(indent)}${close}`;
}
