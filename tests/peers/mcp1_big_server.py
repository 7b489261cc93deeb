"""An MCP server made with the previous SDK (mcp 1.x) whose results are as long as they are asked to
be; to be run with the python of .venv-mcp1.
"""

from __future__ import annotations

import base64
from typing import Annotated

from mcp.server.fastmcp import FastMCP
from mcp.types import CallToolResult, ImageContent, TextContent
from pydantic import BaseModel, Field

server = FastMCP("mcp1-big", log_level="ERROR")


def make_text(chars: int) -> str:
    """Lines of numbers, so that every part is distinguishable."""
    lines = "".join(f"line {number}\n" for number in range(chars // 6 + 1))
    return lines[:chars]


def make_base64(size: int) -> str:
    return base64.b64encode(bytes(number * 7 % 251 for number in range(size))).decode()


class Record(BaseModel):
    kind: Annotated[str, Field(pattern="^(log|note)$")]
    body: str
    digits: Annotated[str, Field(pattern="^[0-9]*$")]
    number: int


class Rows(BaseModel):
    rows: list[int]


@server.tool()
def read_text(chars: int) -> str:
    """A text, which is the structured content too"""
    return make_text(chars)


@server.tool()
def read_record(chars: int) -> Record:
    """A record with long texts in it, one of which its schema binds"""
    return Record(kind="log", body=make_text(chars), digits="7" * chars, number=5)


@server.tool()
def read_rows(count: int) -> Rows:
    """Nothing that could be made shorter"""
    return Rows(rows=[1_000_000] * count)


@server.tool(structured_output=False)
def read_media(size: int) -> CallToolResult:
    """An image, which is in the structured content too"""
    image = ImageContent(type="image", data=make_base64(size), mimeType="image/png")
    return CallToolResult(
        content=[TextContent(type="text", text="an image"), image],
        structuredContent={"content": [image.model_dump()], "raw": image.data},
    )


@server.resource("big://{chars}", mime_type="text/markdown")
def read_resource(chars: int) -> str:
    return make_text(int(chars))


@server.prompt()
def long_prompt(chars: str) -> str:
    return make_text(int(chars))


if __name__ == "__main__":
    server.run("stdio")
