"""The manifest of a skill: `skill.toml`, or `SKILL.md` with a front matter.

A skill with a runtime gives tools, which a program in its folder runs. A skill without one is a
text for the prompts of agents. Knows neither where skills are installed nor how they run.
"""

from __future__ import annotations

import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from dragoman.agents.skills.front_matter import parse_front_matter
from dragoman.core.errors import InvalidInput
from dragoman.core.tool_identity import fold_name

SKILL_TOML, SKILL_MD = "skill.toml", "SKILL.md"
PYTHON, NODE, SHELL, PROMPT = "python", "node", "shell", "prompt"
"""The runtimes; a skill for prompts has none."""
_RUNTIMES = {
    **{name: name for name in (PYTHON, NODE, SHELL, PROMPT)},
    "promptonly": PROMPT,
    "prompt_only": PROMPT,
    "prompt-only": PROMPT,
}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MAX_MANIFEST = 1024 * 1024
MAX_TOOLS = 100
MAX_DESCRIPTION = 4_096
DEFAULT_SECONDS, MAX_SECONDS = 60.0, 3_600.0
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}

_KNOWN = {
    "skill": {"name", "version", "description", "author", "license", "tags"},
    "runtime": {"type", "entry", "network", "timeout_secs"},
    "tools": {"provided"},
    "requirements": {"tools", "capabilities"},
    "prompt_context": set(),
}
_MEANINGLESS = {"source", "config"}
"""Tables of other hubs that only say where a skill came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillToolEntry:
    name: str
    description: str = ""
    input_schema: Mapping[str, Any]
    annotations: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillManifest:
    name: str
    version: str = ""
    description: str = ""
    author: str = ""
    license: str = ""
    tags: tuple[str, ...] = ()
    runtime: str = PROMPT
    entry: str = ""
    """The program, relative to the folder."""
    network: bool = True
    """Whether its program needs the network."""
    seconds: float = DEFAULT_SECONDS
    tools: tuple[SkillToolEntry, ...] = ()
    required_tools: tuple[str, ...] = ()
    """Tools that an agent needs to follow it."""
    capabilities: tuple[str, ...] = ()
    prompt: str = ""
    """The text for prompts."""
    warnings: tuple[str, ...] = ()
    """What the manifest says without effect."""


def read_manifest(folder: Path) -> SkillManifest:
    """Reads the manifest in a folder. Raises `InvalidInput`."""
    if not folder.is_dir():
        raise InvalidInput(f'"{folder}" is not a folder')
    found = _read_file(folder / SKILL_MD)
    toml = _read_file(folder / SKILL_TOML)
    if toml is None and found is None:
        raise InvalidInput(f'"{folder}" has neither {SKILL_TOML} nor {SKILL_MD}')
    try:
        if toml is None:
            return _parse_markdown(found or "")
        manifest = _parse_toml(toml, _read_body(found))
    except InvalidInput as error:
        file = SKILL_MD if toml is None else SKILL_TOML
        raise InvalidInput(f"{folder / file} is invalid: {error}") from None
    if manifest.runtime != PROMPT:
        _check_entry(folder, manifest.entry)
    return manifest


def _read_file(file: Path) -> str | None:
    try:
        found = file.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_MANIFEST:
            raise InvalidInput(f"{file} is not a file of at most {MAX_MANIFEST} bytes")
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}") from None


def _read_body(markdown: str | None) -> str:
    """Returns SKILL.md beside skill.toml without its front matter, which it need not have."""
    if markdown is None:
        return ""
    try:
        return parse_front_matter(markdown)[1]
    except InvalidInput:
        return markdown


def _check_entry(folder: Path, entry: str) -> None:
    path = PurePosixPath(entry)
    if not entry or path.is_absolute() or ".." in path.parts or not entry.isprintable():
        raise InvalidInput(f'the entry "{entry[:80]}" of {folder / SKILL_TOML} is not a path in it')
    try:
        is_file = stat.S_ISREG((folder / path).lstat().st_mode)
    except OSError:
        is_file = False
    if not is_file:
        raise InvalidInput(f'the entry "{entry[:80]}" of {folder / SKILL_TOML} does not exist')


# --- SKILL.md -------------------------------------------------------------------------------------


def _parse_markdown(text: str) -> SkillManifest:
    front, body = parse_front_matter(text)
    metadata = front.read_mapping("metadata")
    version = front.read_text("version") or str(metadata.get("version") or "")
    description = front.read_text("description")
    if not description:
        raise InvalidInput('its front matter has no "description"')
    return SkillManifest(
        name=_check_name(front.read_text("name")),
        version=version[:64],
        description=description[:MAX_DESCRIPTION],
        author=str(metadata.get("author") or "")[:256],
        license=front.read_text("license")[:256],
        required_tools=tuple(front.read_list("allowed-tools")[:MAX_TOOLS]),
        prompt=body,
    )


# --- skill.toml -----------------------------------------------------------------------------------


def _parse_toml(text: str, body: str) -> SkillManifest:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"it is not TOML: {error}") from None
    skill, runtime = _read_table(document, "skill"), _read_table(document, "runtime")
    needs = _read_table(document, "requirements")
    said = runtime.get("type", PROMPT)
    kind = _RUNTIMES.get(str(said).lower())
    if kind is None:
        raise InvalidInput(
            f'runtime.type "{str(said)[:40]}" is not supported; use python, node, shell or prompt'
        )
    tools = tuple(_parse_tools(_read_table(document, "tools").get("provided", [])))
    warnings = list(_list_unknown(document))
    if kind == PROMPT and tools:
        warnings.append("its tools are not offered: it has no runtime")
        tools = ()
    if kind != PROMPT and not tools:
        raise InvalidInput("it has a runtime, but no [[tools.provided]]")
    prompt = document.get("prompt_context", "")
    return SkillManifest(
        name=_check_name(skill.get("name")),
        version=_read_text(skill, "version", 64),
        description=_read_text(skill, "description", MAX_DESCRIPTION),
        author=_read_text(skill, "author", 256),
        license=_read_text(skill, "license", 256),
        tags=_read_texts(skill, "tags"),
        runtime=kind,
        entry=_read_text(runtime, "entry", 256),
        network=_read_flag(runtime, "network"),
        seconds=_read_seconds(runtime),
        tools=tools,
        required_tools=_read_texts(needs, "tools"),
        capabilities=_read_texts(needs, "capabilities"),
        prompt=prompt if isinstance(prompt, str) and prompt else body,
        warnings=tuple(warnings),
    )


def _list_unknown(document: Mapping[str, Any]) -> Iterator[str]:
    for name, value in document.items():
        if name in _MEANINGLESS or name not in _KNOWN:
            yield f'"{name[:64]}" has no meaning here'
        elif isinstance(value, dict):
            for member in value.keys() - _KNOWN[name]:
                yield f'"{name}.{member[:64]}" has no meaning here'


def _parse_tools(entries: Any) -> Iterator[SkillToolEntry]:
    if not isinstance(entries, list) or len(entries) > MAX_TOOLS:
        raise InvalidInput(f"tools.provided must be a list of at most {MAX_TOOLS} tables")
    seen: set[str] = set()
    for number, entry in enumerate(entries, 1):
        where = f"tool {number}"
        if not isinstance(entry, dict):
            raise InvalidInput(f"{where} is not a table")
        name = entry.get("name")
        if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
            raise InvalidInput(
                f"{where} needs a name of at most 64 letters, digits, '_', '-' and '.'"
            )
        if fold_name(name) in seen:
            raise InvalidInput(f'two of its tools are called "{name}"')
        seen.add(fold_name(name))
        schema = entry.get("input_schema", ANY_OBJECT)
        if not isinstance(schema, dict) or schema.get("type", "object") != "object":
            raise InvalidInput(f'the input_schema of tool "{name}" is not that of an object')
        hints = entry.get("annotations", {})
        yield SkillToolEntry(
            name=name,
            description=_read_text(entry, "description", MAX_DESCRIPTION),
            input_schema={**ANY_OBJECT, **schema},
            annotations=hints if isinstance(hints, dict) else {},
        )


def _check_name(name: Any) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidInput(
            'it needs a name of at most 64 letters, digits, "-" and "_" that begins with a letter '
            "or digit"
        )
    return name


def _read_table(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name, {})
    if not isinstance(value, dict):
        raise InvalidInput(f'"{name}" is not a table')
    return value


def _read_text(table: Mapping[str, Any], name: str, most: int) -> str:
    value = table.get(name, "")
    if not isinstance(value, str):
        raise InvalidInput(f'"{name}" is not a text')
    return value[:most]


def _read_texts(table: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = table.get(name, [])
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise InvalidInput(f'"{name}" is not a list of texts')
    return tuple(one[:256] for one in value[:MAX_TOOLS])


def _read_flag(table: Mapping[str, Any], name: str) -> bool:
    value = table.get(name, True)
    if not isinstance(value, bool):
        raise InvalidInput(f'"{name}" is neither true nor false')
    return value


def _read_seconds(table: Mapping[str, Any]) -> float:
    value = table.get("timeout_secs", DEFAULT_SECONDS)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value <= MAX_SECONDS
    ):
        raise InvalidInput(f'"timeout_secs" is not a number of at most {MAX_SECONDS:g}')
    return float(value)
