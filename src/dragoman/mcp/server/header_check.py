"""The headers of 2026-07-28, which say what the body says, or the request is refused.

Those of older revisions are trusted for nothing but the revision itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.core.hub import Hub
from dragoman.core.tool import Nowhere
from dragoman.core.tool_filter import EVERYTHING, View
from dragoman.mcp.protocol.mirrored_headers import (
    NAMED,
    Path,
    decode_value,
    find_argument,
    find_mirrored_params,
    is_equal,
    render_value,
)
from dragoman.mcp.protocol.revisions import MODERN_KEY


def find_named_version(message: Any) -> Any:
    """The revision that a message says it is of."""
    params = message.get("params") if isinstance(message, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    return meta.get(MODERN_KEY) if isinstance(meta, dict) else None


class HeaderCheck:
    """What clients must say in headers, for one hub's tools."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._version = -1
        self._params: dict[str | tuple[View, str], dict[str, Path]] = {}
        """Which arguments of a tool have a header of their own."""

    def find_mismatch(
        self, message: Any, fields: Mapping[bytes, bytes], version: str, named: Any, view: View
    ) -> str | None:
        """What a header says other than the body; `named` is the revision that this names."""
        if not isinstance(message, dict):
            return None
        method = message.get("method")
        if not isinstance(method, str):
            return None
        said = fields.get(b"mcp-method")
        if "id" not in message:  # of notifications nothing is demanded
            return None if said is None or said == method.encode() else _METHOD
        if named is not None and version != named:
            return f'MCP-Protocol-Version and "{MODERN_KEY}" must be the same'
        if said != method.encode():
            return _METHOD
        member = NAMED.get(method)
        if member is None:
            return None
        params = message.get("params")
        name = params.get(member) if isinstance(params, dict) else None
        if not isinstance(name, str | None):
            return None  # which is said better elsewhere
        if not _says(fields.get(b"mcp-name"), name):
            return f'Mcp-Name and "{member}" must be the same'
        if name is None or method != "tools/call" or not (mirrored := self._of(name, view)):
            return None
        return _unlike(mirrored, fields, message["params"].get("arguments"))

    def _of(self, name: str, view: View) -> dict[str, Path]:
        version = self._hub.catalog.version
        if version != self._version:
            self._version = version
            self._params.clear()
        key = name if view is EVERYTHING else (view, name)
        found = self._params.get(key)
        if found is None:
            tool = self._hub.find(name, view)
            if isinstance(tool.target, Nowhere):
                return {}  # and not kept: there are any number of wrong names
            try:
                found = find_mirrored_params(tool.definition.get("inputSchema"))
            except ValueError:
                found = {}
            self._params[key] = found
        return found


_METHOD = 'Mcp-Method and "method" must be the same'


def _says(sent: bytes | None, name: str | None) -> bool:
    """Whether a header says just that; one that is not there says None."""
    if sent is None or name is None:
        return sent is None and name is None
    if sent == name.encode() and sent[:2] != b"=?" and sent.isascii():
        return True
    return _text(sent) == name


def _text(sent: bytes) -> str | None:
    """What a header says; None for what it must not hold."""
    return decode_value(sent.decode("ascii")) if sent.isascii() else None


def _unlike(
    mirrored: Mapping[str, Path], fields: Mapping[bytes, bytes], arguments: Any
) -> str | None:
    """What an `Mcp-Param-*` says other than the arguments."""
    if not isinstance(arguments, dict):
        arguments = {}
    for header, path in mirrored.items():
        sent = fields.get(header.encode())
        value = find_argument(path, arguments)
        if sent is None:
            if render_value(value) is not None:
                return f'{header} is missing, and "{".".join(path)}" has a value'
            continue
        text = _text(sent)
        if text is None or not is_equal(text, value):
            return f'{header} and "{".".join(path)}" must be the same'
    return None
