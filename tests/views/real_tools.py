"""The tools of public MCP servers, and tasks for them in the words of users.

`real_tools.jsonl` was recorded from the packages that it names, by `tools/list`: the names and the
descriptions of tools and parameters, the size of the definition that a model gets, and the tokens
that OpenAI's tokenizers count in it. `recall.jsonl` was written for the purposes of these tools,
without their texts; where several tools serve a task, one of them has to be found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.core.call import Call, Result
from dragoman.core.tool import DEFAULT_TRAITS, Tool

HERE = Path(__file__).parent


class Task(NamedTuple):
    text: str
    tools: list[str]


class SilentTarget:
    traits = DEFAULT_TRAITS

    def __init__(self, name: str) -> None:
        self.name = name

    async def run(self, call: Call) -> Result:
        return Result(content=[{"type": "text", "text": f"ran {call.tool.name}"}])


def load_rows() -> list[dict[str, Any]]:
    lines = (HERE / "real_tools.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def load_tasks() -> list[Task]:
    lines = (HERE / "recall.jsonl").read_text(encoding="utf-8").splitlines()
    return [Task(one["task"], one["tools"]) for one in map(json.loads, lines)]


def build_tool(row: Mapping[str, Any], target: SilentTarget) -> Tool:
    properties = {
        name: {"type": "string", "description": text} for name, text in row["parameters"].items()
    }
    name = f"{target.name}.{row['name']}"
    return Tool(
        name=name,
        alias=name,
        remote_name=row["name"],
        description=row["description"],
        definition={
            "name": row["name"],
            "description": row["description"],
            "inputSchema": {"type": "object", "properties": properties},
        },
        target=target,
    )


def build_tools() -> list[Tool]:
    targets: dict[str, SilentTarget] = {}
    return [
        build_tool(row, targets.setdefault(row["server"], SilentTarget(row["server"])))
        for row in load_rows()
    ]
