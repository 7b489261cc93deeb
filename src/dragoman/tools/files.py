"""`file_read`, `file_write`, `file_list`: the files of the agent's workspace."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from functools import partial

from dragoman.core.call import Result
from dragoman.core.errors import HubError, InvalidInput
from dragoman.core.label_keys import build_stored_key
from dragoman.core.local_agents import AgentProfile
from dragoman.core.taint import WRITE
from dragoman.core.tool_identity import BUILTIN
from dragoman.tools.threads import ToolThreads
from dragoman.tools.tool_spec import BoundTool, ToolSpec, ToolUse, build_text_result
from dragoman.tools.workspace import MAX_PATH, Workspace, WorkspaceLimits, parse_path

TEXT, BASE64 = "text", "base64"

_PATH = {
    "type": "string",
    "maxLength": MAX_PATH,
    "description": 'A path relative to your workspace, such as "notes/plan.md".',
}
_ENCODING = {"type": "string", "enum": [TEXT, BASE64]}

FILE_READ = ToolSpec(
    name="file_read",
    title="Read a file",
    description="Reads a text file of your workspace. For a long file, read a range of lines with "
    '"offset" and "limit". A file that is not text can be read as base64.',
    properties={
        "path": _PATH,
        "offset": {
            "type": "integer",
            "minimum": 1,
            "description": "The first line to read, from 1. Default: 1.",
        },
        "limit": {
            "type": "integer",
            "minimum": 1,
            "description": "How many lines to read. Default: all.",
        },
        "encoding": {**_ENCODING, "description": 'Default: "text", which is UTF-8.'},
    },
    required=("path",),
    read_only=True,
)
FILE_WRITE = ToolSpec(
    name="file_write",
    title="Write a file",
    description="Writes a file of your workspace: creates it with its folders, or replaces all of "
    'its contents. To change a part of a file, use "apply_patch".',
    properties={
        "path": _PATH,
        "content": {"type": "string", "description": "The new contents of the file."},
        "encoding": {
            **_ENCODING,
            "description": 'How "content" is encoded. Default: "text", which is written as UTF-8.',
        },
    },
    required=("path", "content"),
    destructive=True,
    idempotent=True,
    sinks=frozenset({WRITE}),
)
FILE_LIST = ToolSpec(
    name="file_list",
    title="List files",
    description="Lists the files and folders of a folder of your workspace, with their sizes. Use "
    '"pattern" to find files, such as "**/*.py".',
    properties={
        "path": {**_PATH, "description": 'A folder of your workspace. Default: ".", all of it.'},
        "pattern": {
            "type": "string",
            "maxLength": MAX_PATH,
            "description": 'A glob relative to "path": "*.md" in the folder, "**/*.md" below it.',
        },
        "recursive": {
            "type": "boolean",
            "description": "Whether to list the folders inside too. Default: false.",
        },
    },
    read_only=True,
)


class WorkspaceFiles:
    """The workspaces of agents, and the label keys of what is in them.

    A command can change and read every file of the workspace. So the labels of commands come with
    every file, and the labels of all files with the output of a command.
    """

    def __init__(self, limits: WorkspaceLimits, threads: ToolThreads) -> None:
        self.limits = limits
        self.threads = threads

    def open(self, agent: AgentProfile) -> Workspace:
        return Workspace(agent.workspace, self.limits)

    def list_written_keys(self, agent: AgentProfile, paths: Iterable[str]) -> list[str]:
        """Lists the keys of files that are written; invalid paths have none."""
        keys = []
        for path in paths:
            try:
                keys.append(_build_file_key(agent, "/".join(parse_path(path))))
            except HubError:
                continue
        return [*keys, _build_file_key(agent, "*")] if keys else []

    def list_command_keys(self, agent: AgentProfile) -> list[str]:
        """Lists the keys of what a command may write."""
        return [_build_file_key(agent, "*commands*")]

    def note_read(self, use: ToolUse, *paths: str) -> None:
        root = use.agent.workspace
        use.note_read(*(str(root / path) for path in paths), str(root / "*commands*"))

    def note_command(self, use: ToolUse) -> None:
        root = use.agent.workspace
        use.note_read(str(root / "*"), str(root / "*commands*"))


def _build_file_key(agent: AgentProfile, path: str) -> str:
    return build_stored_key(BUILTIN, str(agent.workspace / path))


class FileTools:
    def __init__(self, files: WorkspaceFiles) -> None:
        self._files = files

    def bind_tools(self) -> Iterable[BoundTool]:
        yield BoundTool(FILE_READ, self._read)
        yield BoundTool(FILE_WRITE, self._write, self._list_written)
        yield BoundTool(FILE_LIST, self._list)

    def _list_written(self, use: ToolUse) -> Iterable[str]:
        return self._files.list_written_keys(use.agent, [str(use.arguments.get("path", ""))])

    async def _read(self, use: ToolUse) -> Result:
        arguments = use.arguments
        parts = parse_path(arguments["path"])
        path = "/".join(parts)
        self._files.note_read(use, path)
        data = await self._files.threads.run(partial(self._files.open(use.agent).read, parts))
        if arguments.get("encoding", TEXT) == BASE64:
            return build_text_result(base64.b64encode(data).decode())
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise InvalidInput(
                f'"{path}" is not text: it has {len(data)} bytes. Read it with "encoding": "base64"'
            )
        return _select_lines(path, text, arguments.get("offset"), arguments.get("limit"))

    async def _write(self, use: ToolUse) -> Result:
        parts, content = parse_path(use.arguments["path"]), use.arguments["content"]
        if use.arguments.get("encoding", TEXT) == BASE64:
            try:
                data = base64.b64decode(content, validate=True)
            except (binascii.Error, ValueError):
                raise InvalidInput('the "content" is not base64') from None
        else:
            data = content.encode("utf-8", "replace")
        workspace = self._files.open(use.agent)
        is_new = await self._files.threads.run(partial(workspace.write, parts, data))
        done = "created" if is_new else "replaced"
        return build_text_result(f'{done} "{"/".join(parts)}" ({len(data)} bytes)')

    async def _list(self, use: ToolUse) -> Result:
        arguments = use.arguments
        parts = parse_path(arguments.get("path", "."), may_be_root=True)
        pattern = arguments.get("pattern")
        recursive = bool(arguments.get("recursive")) or (pattern is not None and "/" in pattern)
        self._files.note_command(use)  # names are data too
        workspace = self._files.open(use.agent)
        found, has_more = await self._files.threads.run(
            partial(workspace.list_entries, parts, pattern, recursive)
        )
        lines = [
            f"{one.path}/" if one.kind == "folder" else f"{one.path}  {_describe_entry(one.kind)}"
            if one.kind != "file" else f"{one.path}  {one.size}"
            for one in found
        ]  # fmt: skip
        if has_more:
            lines.append(f"[only the first {len(found)}: narrow the pattern to see the others]")
        structured = {
            "entries": [{"path": e.path, "kind": e.kind, "size": e.size} for e in found],
            "complete": not has_more,
        }
        return build_text_result("\n".join(lines) or "(no files)", structured)


def _describe_entry(kind: str) -> str:
    return "(symbolic link, not followed)" if kind == "link" else "(not a regular file)"


def _select_lines(path: str, text: str, offset: int | None, limit: int | None) -> Result:
    if offset is None and limit is None:
        return build_text_result(text)
    lines = text.splitlines(keepends=True)
    first = offset or 1
    if first > len(lines) and lines:
        raise InvalidInput(f'"{path}" has {len(lines)} lines, so there is no line {first}')
    chosen = lines[first - 1 : None if limit is None else first - 1 + limit]
    last = first - 1 + len(chosen)
    result = build_text_result("".join(chosen))
    note = {"type": "text", "text": f"[lines {first} to {last} of {len(lines)}]"}
    return Result(content=[*result.content, note])
