"""Puts the demo into a home and takes it out again: two agents, an MCP server, and a record.

The record has the digest of each file and the text that was added to config.toml, so that exactly
that is removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.cli.base.errors import CommandFailed, UnreadableFile
from dragoman.cli.base.files import decode_text, read_bytes, replace_file
from dragoman.cli.base.toml_edit import append_toml, parse_toml, render_value
from dragoman.cli.configure import (
    list_server_names,
    list_servers,
    remove_server,
    write_first_config,
)
from dragoman.cli.docs import find_folder

RECORD = "demo.json"
AGENTS = ("guide", "librarian")
SERVER = "glossary"
QUESTION = "What is a pin?"
SOURCES = Path(__file__).parent
WORKSPACE = "workspace"
PRIVATE = "servers"
"""The folder of the private homes of servers."""

ShouldRemove = Callable[[Path], bool]
"""Asks whether a file that was changed is to be removed."""


class DemoState(NamedTuple):
    is_installed: bool
    changed: list[str]
    """Files that differ from those that were installed."""
    missing: list[str]


def read_record(home: Path) -> dict[str, Any] | None:
    """Reads the record of an installed demo."""
    try:
        found = json.loads((home / RECORD).read_bytes())
        return {"files": dict(found["files"]), "config": str(found["config"])}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandFailed(f'"{home / RECORD}" cannot be read: {error}; delete it') from None


def find_state(home: Path) -> DemoState:
    record = read_record(home)
    if record is None:
        return DemoState(False, [], [])
    changed, missing = [], []
    for name, digest in record["files"].items():
        data = read_bytes(home / name)
        if data is None:
            missing.append(name)
        elif _digest(data) != digest:
            changed.append(name)
    if record["config"] not in _read_config(home)[1]:
        changed.append("config.toml")
    return DemoState(True, changed, missing)


# --- add ------------------------------------------------------------------------------------------


def add_demo(home: Path) -> list[str]:
    """Installs the demo into a home that exists; returns notes. Nothing is overwritten."""
    if read_record(home) is not None:
        raise CommandFailed("the demo is installed already; see: dragoman demo status")
    files = {f"agents/{name}/agent.toml": (SOURCES / f"{name}.toml") for name in AGENTS}
    for name in AGENTS:
        if any((home / "agents" / name).glob("agent.*")):
            raise CommandFailed(f'there is an agent "{name}" already: {home / "agents" / name}')
    write_first_config(home)
    before, text = _read_config(home)
    document = parse_toml(text)
    _refuse_taken_names(document)
    a2a = document.get("a2a", {})
    new = append_toml(text, _render_block(with_a2a="a2a" not in document))
    contents = {name: source.read_bytes() for name, source in files.items()}
    record = {
        "files": {name: _digest(data) for name, data in contents.items()},
        "config": new[len(text) :],
    }
    _write(home / RECORD, json.dumps(record, indent=2).encode() + b"\n")
    replace_file(home / "config.toml", new.encode(), before, backup=False)
    for name, data in contents.items():
        for folder in ((home / name).parent.parent, (home / name).parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        _write(home / name, data)
    is_off = "a2a" in document and not a2a.get("enabled")
    return ["A2A is off in config.toml: set enabled = true below [a2a]"] if is_off else []


def _refuse_taken_names(document: Any) -> None:
    taken = {str(one.get("name")) for one in list_servers(document)}
    for key in ("agents", "a2a"):
        listed = document.get(key, [])
        listed = listed.get("external_agents", []) if isinstance(listed, dict) else listed
        taken |= {str(one.get("name")) for one in listed if isinstance(one, dict)}
    for name in (SERVER, *AGENTS):
        if name in taken:
            raise CommandFailed(f'config.toml has a server or agent "{name}" already')


def _render_block(with_a2a: bool) -> str:
    args = [str(SOURCES / "glossary_server.py"), str(find_folder() / "glossary.md")]
    lines = ["# Added by `dragoman demo add`; `dragoman demo remove` removes this block."]
    if with_a2a:
        lines += ["[a2a]", "enabled = true", ""]
    lines += [
        "[[mcp_servers]]",
        f'name = "{SERVER}"',
        'pin = "off"                # its program comes with the hub',
        "interactive = false        # it never asks a question",
        "",
        "[mcp_servers.transport]",
        'type = "stdio"',
        f"command = {render_value(sys.executable)}",
        f"args = {render_value(args)}",
    ]
    return "\n".join(lines) + "\n"


# --- remove ---------------------------------------------------------------------------------------


def remove_demo(home: Path, should_remove: ShouldRemove) -> tuple[list[str], list[str]]:
    """Removes what the record names; `should_remove` is asked about files that were changed.
    Returns the names of what was removed, and of what was kept."""
    record = read_record(home)
    if record is None:
        raise CommandFailed("the demo is not installed")
    removed, kept = [], []
    for name, digest in record["files"].items():
        data = read_bytes(home / name)
        if data is None:
            continue
        if _digest(data) != digest and not should_remove(home / name):
            kept.append(name)
            continue
        (home / name).unlink()
        removed.append(name)
    if _remove_config(home, record["config"]):
        removed.append(f'the server "{SERVER}" in config.toml')
    (home / RECORD).unlink()
    return removed, kept


def remove_empty_folders(home: Path) -> None:
    """Removes the folders of the demo that are empty, once no hub uses them."""
    for name in AGENTS:
        _remove_empty(home / "agents" / name)
    _remove_empty(home / PRIVATE / SERVER)
    for above in (home / "agents", home / PRIVATE):
        if above.is_dir() and not any(above.iterdir()):
            above.rmdir()


def _remove_empty(folder: Path) -> None:
    """Removes a folder with the empty folders in it; anything else stays."""
    if not folder.is_dir() or folder.is_symlink():
        return
    for one in folder.iterdir():
        _remove_empty(one)
    if not any(folder.iterdir()):
        folder.rmdir()


def _remove_config(home: Path, added: str) -> bool:
    before, text = _read_config(home)
    if text.count(added) == 1:
        replace_file(home / "config.toml", text.replace(added, "").encode(), before, backup=False)
        return True
    try:
        if SERVER not in list_server_names(text):
            return False
        new = remove_server(text, SERVER)
    except UnreadableFile as error:
        raise CommandFailed(f"cannot edit config.toml: {error}; edit it by hand") from None
    replace_file(home / "config.toml", new.encode(), before)
    return True


def _read_config(home: Path) -> tuple[bytes | None, str]:
    try:
        data = read_bytes(home / "config.toml")
        mark, text = decode_text(data or b"")
    except UnreadableFile as error:
        raise CommandFailed(str(error)) from None
    return data, mark + text


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _write(file: Path, data: bytes) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(data)
