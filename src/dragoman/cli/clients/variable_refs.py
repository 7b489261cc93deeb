"""What the values of a client's file refer to: variables, inputs, folders. Does no I/O."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from dragoman.cli.clients.known_clients import KnownClient

NOT_HERE = {"workspaceFolder", "workspaceFolderBasename", "workspaceRoot", "pathSeparator", "cwd"}

Part = tuple[str, str]
"""("text", …), ("variable", NAME), ("input", id) or ("other", as it was written)."""


class SkipServer(Exception):
    """Why a server is not taken over."""


_REFERENCE = {
    "gemini-cli": re.compile(r"\$\{([^}]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)"),
    "opencode": re.compile(r"\$\{([^}]*)\}|\{((?:env|file):[^}]*)\}"),
}
_PLAIN_REFERENCE = re.compile(r"\$\{([^}]*)\}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def split_references(value: str, client: KnownClient) -> list[Part]:
    """The literal pieces of a value and what it refers to, in this client's ways of writing it."""
    found: list[Part] = []
    at = 0
    for match in _REFERENCE.get(client.name, _PLAIN_REFERENCE).finditer(value):
        if match.start() > at:
            found.append(("text", value[at : match.start()]))
        found.append(_parse_reference(next(filter(None, match.groups()), ""), match.group()))
        at = match.end()
    if at < len(value) or not found:
        found.append(("text", value[at:]))
    return found


def _parse_reference(inside: str, written: str) -> Part:
    kind, _, rest = inside.partition(":")
    name = rest if kind == "env" else inside.partition(":-")[0]
    if name in ("userHome", "HOME"):
        return "text", str(Path.home())
    if kind == "input" and rest:
        return "input", rest
    if VARIABLE.fullmatch(name) and name not in NOT_HERE:
        return "variable", name
    return "other", written


def resolve_text(value: Any, client: KnownClient, what: str) -> str:
    """A value that `config.toml` holds as it is."""
    pieces = split_references(convert_to_string(value, what), client)
    if any(kind != "text" for kind, _ in pieces):
        raise SkipServer(
            f"{what} uses a reference ({', '.join(t for k, t in pieces if k != 'text')}) that only "
            "headers and env can hold here; add the server by hand with the value in its place"
        )
    return "".join(text for _, text in pieces)


def convert_to_string(value: Any, what: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise SkipServer(f"{what} is not text")
