"""`apply_patch`: changes several files of the workspace at once, all or none.

The format is the one that models know: sections that add, update, move or delete a file between
`*** Begin Patch` and `*** End Patch`. The first half of this module is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from dragoman.core.call import Result
from dragoman.core.errors import HubError, InvalidInput, NotFound
from dragoman.core.taint import WRITE
from dragoman.tools.files import WorkspaceFiles
from dragoman.tools.tool_spec import BoundTool, ToolSpec, ToolUse, build_text_result
from dragoman.tools.workspace import Workspace, WorkspaceEdit, parse_path

MAX_PATCH = 5_000_000
MAX_SECTIONS = 200
MAX_COMPARED = 20_000_000
"""Line comparisons of one patch: a hunk is looked for at every line of its file."""

BEGIN, END = "*** Begin Patch", "*** End Patch"
ADD, UPDATE, DELETE = "*** Add File: ", "*** Update File: ", "*** Delete File: "
MOVE = "*** Move to: "
END_OF_FILE = "*** End of File"
KEPT, REMOVED, ADDED = " ", "-", "+"

APPLY_PATCH = ToolSpec(
    name="apply_patch",
    title="Apply a patch",
    description=(
        "Changes several files of your workspace at once: adds, updates, moves and deletes. If one "
        "part does not fit, nothing is changed. The format:\n"
        "*** Begin Patch\n"
        "*** Add File: notes/new.md\n"
        "+each line of the new file\n"
        "*** Update File: src/main.py\n"
        "*** Move to: src/app.py\n"
        "@@ def main():\n"
        " an unchanged line before\n"
        "-the line that goes\n"
        "+the line that comes\n"
        " an unchanged line after\n"
        "*** Delete File: old.txt\n"
        "*** End Patch\n"
        '"Move to" is optional. Each hunk begins with "@@", optionally with a line that precedes '
        "it, such as the function's; about three unchanged lines around a change are enough to "
        "find it."
    ),
    properties={"patch": {"type": "string", "description": "The whole patch."}},
    required=("patch",),
    destructive=True,
    sinks=frozenset({WRITE}),
)


@dataclass(slots=True)
class Hunk:
    anchor: str = ""
    """A line that precedes it."""
    lines: list[tuple[str, str]] = field(default_factory=list)
    """Each with its mark: `KEPT`, `REMOVED` or `ADDED`."""
    at_end: bool = False

    @property
    def before(self) -> list[str]:
        """The lines that the file must have."""
        return [text for mark, text in self.lines if mark != ADDED]


@dataclass(slots=True)
class PatchSection:
    kind: str
    """ADD, UPDATE or DELETE."""
    path: str
    move_to: str = ""
    lines: list[str] = field(default_factory=list)
    """Of an added file."""
    hunks: list[Hunk] = field(default_factory=list)


def parse_patch(text: str) -> list[PatchSection]:
    """Raises `InvalidInput` with the number of the line."""
    if len(text) > MAX_PATCH:
        raise InvalidInput(f"the patch is too large: at most {MAX_PATCH} characters")
    lines = text.strip("\r\n").split("\n")
    lines = [line.removesuffix("\r") for line in lines]
    if lines[0].strip() != BEGIN or lines[-1].strip() != END or len(lines) < 2:
        raise InvalidInput(f'a patch begins with "{BEGIN}" and ends with "{END}"')
    sections: list[PatchSection] = []
    for number, line in enumerate(lines[1:-1], 2):
        header = next((kind for kind in (ADD, UPDATE, DELETE) if line.startswith(kind)), None)
        if header is not None:
            path = line[len(header) :].strip()
            if not path:
                raise InvalidInput(f"line {number} of the patch names no file")
            sections.append(PatchSection(header, path))
        elif not sections:
            if line.strip():
                raise InvalidInput(
                    f'line {number} of the patch is outside a file; begin with "{UPDATE}PATH"'
                )
        else:
            _read_line(sections[-1], line, number)
    if not sections:
        raise InvalidInput("the patch has no file")
    if len(sections) > MAX_SECTIONS:
        raise InvalidInput(f"the patch has more than {MAX_SECTIONS} files")
    for section in sections:
        _check_section(section)
    return sections


def _read_line(section: PatchSection, line: str, number: int) -> None:
    if section.kind == ADD:
        if not line.startswith("+"):
            raise InvalidInput(
                f'line {number} of the patch must begin with "+", as each line of an added file'
            )
        section.lines.append(line[1:])
    elif section.kind == DELETE:
        if line.strip():
            raise InvalidInput(f"line {number} of the patch: a deleted file has no lines")
    elif line.startswith(MOVE):
        if section.hunks or section.move_to:
            raise InvalidInput(f'line {number} of the patch: "{MOVE.strip()}" follows its file')
        section.move_to = line[len(MOVE) :].strip()
    elif line.startswith("@@"):
        section.hunks.append(Hunk(line[2:].strip().removesuffix("@@").strip()))
    elif line.strip() == END_OF_FILE:
        if not section.hunks:
            raise InvalidInput(f"line {number} of the patch: no hunk precedes it")
        section.hunks[-1].at_end = True
    else:
        if not section.hunks:
            section.hunks.append(Hunk())  # the first hunk may have no "@@"
        _read_change(section.hunks[-1], line, number)


def _read_change(hunk: Hunk, line: str, number: int) -> None:
    mark = line[:1] or KEPT  # models leave out the mark of an empty line
    if mark not in (KEPT, REMOVED, ADDED):
        raise InvalidInput(f'line {number} of the patch begins with "{mark}"; use " ", "-" or "+"')
    hunk.lines.append((mark, line[1:]))


def _check_section(section: PatchSection) -> None:
    if section.kind != UPDATE:
        return
    if not section.hunks and not section.move_to:
        raise InvalidInput(f'the patch changes nothing of "{section.path[:200]}"')
    for place, hunk in enumerate(section.hunks, 1):
        while hunk.lines and hunk.lines[-1] == (KEPT, ""):  # an empty line before the next part
            hunk.lines.pop()
        if not hunk.lines:
            raise InvalidInput(f'hunk {place} of "{section.path[:200]}" is empty')


# --- finding the place of a hunk ------------------------------------------------------------------

_LENIENT: tuple[Callable[[str], str], ...] = (lambda line: line, str.rstrip, str.strip)
"""How lines are compared: as they are, then without spaces at the end, then without indentation."""


class _Budget:
    def __init__(self, most: int) -> None:
        self.left = most

    def spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise InvalidInput("the patch is too large for its files; split it")


def apply_hunks(path: str, text: str, hunks: Sequence[Hunk], budget: _Budget | None = None) -> str:
    """Returns the text with all hunks applied, in order. Raises `InvalidInput` for one that does
    not fit."""
    budget = budget or _Budget(MAX_COMPARED)
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.replace("\r\n", "\n").split("\n")
    ends = lines[-1] == ""
    if ends:
        lines.pop()
    place = 0
    done: list[str] = []
    for number, hunk in enumerate(hunks, 1):
        start, before = place, hunk.before
        if hunk.anchor:
            found = _find_lines(lines, [hunk.anchor], place, False, budget)
            if found is None:
                raise InvalidInput(
                    f'hunk {number} of "{path}" does not fit: the line "{hunk.anchor[:100]}" is '
                    "not in the rest of the file"
                )
            start = found + 1
        if before:
            found = _find_lines(lines, before, start, hunk.at_end, budget)
            if found is None and hunk.anchor:  # the anchor may be the first line of the hunk
                found = _find_lines(lines, before, start - 1, hunk.at_end, budget)
            if found is None:
                raise InvalidInput(
                    f'hunk {number} of "{path}" does not fit: its unchanged and removed lines are '
                    "not in the rest of the file in this order. Read the file again"
                )
        else:
            found = start if hunk.anchor and not hunk.at_end else len(lines)
        done += lines[place:found]
        place = found
        for mark, line in hunk.lines:
            if mark == ADDED:
                done.append(line)
                continue
            if mark == KEPT:
                done.append(lines[place])  # as the file has it
            place += 1
    done += lines[place:]
    return newline.join(done) + (newline if done and (ends or not text) else "")


def _find_lines(
    lines: Sequence[str], wanted: Sequence[str], start: int, at_end: bool, budget: _Budget
) -> int | None:
    last = len(lines) - len(wanted)
    if last < start:
        return None
    places = range(last, last + 1) if at_end else range(start, last + 1)
    for relax in _LENIENT:
        budget.spend(len(lines) + len(wanted))
        have, want = [relax(line) for line in lines], [relax(line) for line in wanted]
        for place in places:
            if have[place] == want[0]:
                budget.spend(len(want))
                if have[place : place + len(want)] == want:
                    return place
    return None


# --- the tool -------------------------------------------------------------------------------------


class PatchTools:
    def __init__(self, files: WorkspaceFiles) -> None:
        self._files = files

    def bind_tools(self) -> Iterable[BoundTool]:
        yield BoundTool(APPLY_PATCH, self._apply, self._list_written)

    def _list_written(self, use: ToolUse) -> Iterable[str]:
        try:
            sections = parse_patch(str(use.arguments.get("patch", "")))
        except HubError:
            return []
        paths = [one.move_to or one.path for one in sections if one.kind != DELETE]
        return self._files.list_written_keys(use.agent, paths)

    async def _apply(self, use: ToolUse) -> Result:
        sections = parse_patch(use.arguments["patch"])
        for section in sections:
            parse_path(section.path)
            if section.move_to:
                parse_path(section.move_to)
        workspace = self._files.open(use.agent)
        self._files.note_read(use, *(one.path for one in sections if one.kind == UPDATE))
        done = await self._files.threads.run(partial(apply_sections, workspace, sections))
        return build_text_result("\n".join(done))


def apply_sections(workspace: Workspace, sections: Sequence[PatchSection]) -> list[str]:
    budget = _Budget(MAX_COMPARED)
    with workspace.edit() as edit:
        return [_apply_section(edit, section, budget) for section in sections]


def _apply_section(edit: WorkspaceEdit, section: PatchSection, budget: _Budget) -> str:
    parts = parse_path(section.path)
    path = "/".join(parts)
    if section.kind == ADD:
        if edit.exists(parts):
            raise InvalidInput(f'"{path}" exists already; use "{UPDATE.strip()}" to change it')
        text = "".join(f"{line}\n" for line in section.lines)
        edit.write(parts, text.encode("utf-8", "replace"))
        return f"added {path}"
    if not edit.exists(parts):
        raise NotFound(f'there is no file "{path}"')
    if section.kind == DELETE:
        edit.delete(parts)
        return f"deleted {path}"
    content = edit.read(parts)
    if section.hunks:
        try:
            text = content.decode()
        except UnicodeDecodeError:
            raise InvalidInput(f'"{path}" is not text, so it cannot be patched') from None
        content = apply_hunks(path, text, section.hunks, budget).encode("utf-8", "replace")
    moved = parse_path(section.move_to) if section.move_to else parts
    if moved == parts:
        edit.write(parts, content)
        return f"updated {path}"
    if edit.exists(moved):
        raise InvalidInput(f'"{"/".join(moved)}" exists already, so "{path}" cannot be moved there')
    edit.delete(parts)
    edit.write(moved, content, mode_of=parts)
    return f"moved {path} to {'/'.join(moved)}"
