"""The target of one skill: each of its tools runs the skill's program in a process of its own.

The program gets `{"tool", "input"}` as JSON on stdin, in a cleared environment and a sandbox, and
prints JSON or text. Another exit status than 0 is a failed result with the end of its stderr.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from dragoman.agents.skills.installation import InstalledSkill
from dragoman.agents.skills.manifest import NODE, PYTHON, SkillManifest, SkillToolEntry
from dragoman.core.call import ABSENT, Call, Result
from dragoman.core.errors import BadReply, Quarantined, TimedOut, Unreachable
from dragoman.core.ports import SchemaCompiler
from dragoman.core.tool import ISOLATED, TargetFacts, TargetTraits, Tool
from dragoman.core.tool_identity import (
    append_digest,
    build_identity,
    build_portable_names,
    fold_name,
    fold_server_name,
    shorten,
)
from dragoman.processes.command_runner import CommandOutcome, CommandRunner, CommandSpec
from dragoman.processes.config import SandboxLevel
from dragoman.wire.json import Malformed, decode_reply, encode

PREFIX = "skill_"
"""Of the names of skill tools in lists."""
TRANSPORT = "skill"
"""The transport of its facts, by which policies and grants tell skills from MCP servers."""
OUTPUT_BYTES = 4 * 1024 * 1024
STDERR_CHARS = 4_000
MAX_SAFE = 64
VARIABLES = {"PYTHONIOENCODING": "utf-8", "PYTHONDONTWRITEBYTECODE": "1"}
"""Compiled modules beside the program would change the digest."""


class SkillTarget:
    def __init__(
        self,
        skill: InstalledSkill,
        manifest: SkillManifest,
        runner: CommandRunner,
        compile_schema: SchemaCompiler,
    ) -> None:
        """Raises `ValueError` if the schema of a tool is invalid."""
        self.name = skill.name
        self._skill = skill
        self._runner = runner
        self._spec = CommandSpec(
            name=skill.name,
            command=_build_command(manifest.runtime, skill.folder / manifest.entry),
            cwd=str(skill.folder),
            env=skill.record.env,
            variables=VARIABLES,
            sandbox=_find_level(skill.sandbox),
            readable=(str(skill.folder),),
            seconds=manifest.seconds,
            output_bytes=OUTPUT_BYTES,
        )
        reach = ISOLATED if skill.sandbox == "strict" else ""
        self.traits = TargetTraits(
            facts=TargetFacts(type="Server", transport=TRANSPORT, reach=reach)
        )
        self.tools = [self._build_tool(entry, compile_schema) for entry in manifest.tools]

    def _build_tool(self, entry: SkillToolEntry, compile_schema: SchemaCompiler) -> Tool:
        definition: dict[str, Any] = {
            "name": entry.name,
            "description": entry.description,
            "inputSchema": entry.input_schema,
        }
        if entry.annotations:
            definition["annotations"] = entry.annotations
        return Tool(
            name=build_identity(self.name, entry.name),
            alias=build_alias(self.name, entry.name),
            other_names=_build_other_names(self.name, entry.name),
            remote_name=entry.name,
            description=entry.description,
            definition=definition,
            validate=compile_schema(entry.input_schema),
            destructive=entry.annotations.get("destructiveHint") is True,
            target=self,
        )

    async def run(self, call: Call) -> Result:
        skill, tool = self._skill, call.tool.remote_name
        where = f'tool "{tool}" of skill "{skill.name}"'
        if not await asyncio.to_thread(skill.is_unchanged):
            raise Quarantined(
                f'skill "{skill.name}" has changed since it was approved; see: dragoman skills list'
            )
        payload = encode({"tool": tool, "input": call.arguments})
        try:
            outcome = await self._runner.run(self._spec, payload)
        except Unreachable as error:
            raise Unreachable(f"{where} could not be run: {error}", sent=error.sent) from None
        if outcome.timed_out:
            raise TimedOut(
                f"{where} took longer than {self._spec.seconds:g} s; its manifest may raise "
                "timeout_secs"
            )
        if outcome.flooded:
            raise BadReply(f"{where} printed too much: {outcome.describe()}")
        return result_from_outcome(outcome)


def _find_level(sandbox: str) -> SandboxLevel:
    return "strict" if sandbox == "strict" else "off" if sandbox == "off" else "net"


def _build_command(runtime: str, entry: Path) -> list[str]:
    if runtime == PYTHON:
        return [_find_python(), str(entry)]
    if runtime == NODE:
        return ["node", str(entry)]
    if os.access(entry, os.X_OK):  # it names its shell itself
        return [str(entry)]
    return ["sh", str(entry)]


def _find_python() -> str:
    """The Python of the PATH, as an author expects; else that of the hub."""
    return "python3" if shutil.which("python3") else sys.executable


# --- names ----------------------------------------------------------------------------------------


def build_alias(skill: str, tool: str) -> str:
    """Returns `skill_{skill}_{tool}`, the name in lists."""
    return shorten(f"{PREFIX}{fold_server_name(skill)}_{fold_name(tool)}")


def _build_other_names(skill: str, tool: str) -> dict[str, str]:
    canonical, spelled = build_identity(skill, tool), shorten(f"{skill}.{tool}")
    joined = f"{skill}_{tool}".replace(".", "_")
    safe = shorten(joined, MAX_SAFE, canonical)
    names = {"dotted": spelled, "safe": safe, "safe!": append_digest(safe, canonical, MAX_SAFE)}
    if spelled != canonical:
        names["spelled"] = spelled
    return names | build_portable_names(build_alias(skill, tool), safe, canonical)


# --- results --------------------------------------------------------------------------------------


def result_from_outcome(outcome: CommandOutcome) -> Result:
    """Converts what a skill's program printed, or how it failed."""
    if not outcome.succeeded:
        said = outcome.stderr.read_text().strip() or outcome.stdout.read_text().strip()
        text = f"{outcome.describe()}\n{said[-STDERR_CHARS:]}".strip()
        return Result(content=[{"type": "text", "text": text}], failed=True)
    text = outcome.stdout.read_text()
    try:
        value = decode_reply(outcome.stdout.read_bytes())
    except Malformed:
        value = None
    structured = value if isinstance(value, dict) and not outcome.stdout.omitted else ABSENT
    shown = value if isinstance(value, str) else text.strip("\n")
    return Result(content=[{"type": "text", "text": shown}], structured=structured)
