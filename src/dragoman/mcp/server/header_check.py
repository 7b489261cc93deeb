"""Checks the headers of 2026-07-28 that repeat the body; a request whose headers differ is refused.

Older revisions have no such headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.core.call import NOTHING
from dragoman.core.hub import Hub
from dragoman.core.tool import Nowhere
from dragoman.core.tool_filter import EVERYTHING
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
from dragoman.mcp.server.client_state import ClientState

_METHOD = 'Mcp-Method and "method" must be the same'


class HeaderCheck:
    """Knows which headers the calls of one hub's tools must have."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._version = -1
        self._params: dict[str, dict[str, Path]] = {}
        """The arguments of each tool that have a header of their own."""

    def find_mismatch(
        self, message: Any, fields: Mapping[bytes, bytes], client: ClientState
    ) -> str | None:
        """Finds a header that contradicts the message, or that it must have and has not. Says
        nothing of the arguments of a tool that the client may not know of."""
        method = message.get("method") if isinstance(message, dict) else None
        if not isinstance(method, str):
            return None
        sent = fields.get(b"mcp-method")
        if "id" not in message:  # notifications need no headers
            return None if sent is None or sent == method.encode() else _METHOD
        params = message.get("params")
        if not isinstance(params, dict):
            params = NOTHING
        meta = params.get("_meta")
        version = meta.get(MODERN_KEY) if isinstance(meta, dict) else None
        header = fields.get(b"mcp-protocol-version", b"")
        if version is not None and header.decode("latin-1") != version:
            return f'MCP-Protocol-Version and "{MODERN_KEY}" must be the same'
        if sent != method.encode():
            return _METHOD
        member = NAMED.get(method)
        if member is None:
            return None
        name = params.get(member)
        if name is not None and not isinstance(name, str):
            return None  # parsing the request says what is wrong
        if not _says(fields.get(b"mcp-name"), name):
            return f'Mcp-Name and "{member}" must be the same'
        if name is None or method != "tools/call":
            return None
        if self._hub.catalog.version != self._version:
            self._version = self._hub.catalog.version
            self._params.clear()
        mirrored = self._params.get(name)
        if mirrored is None:
            mirrored = self._find_params(name)
        problem = _find_wrong_param(mirrored, fields, params) if mirrored else None
        return problem if problem is None or self._is_known(name, client) else None

    def _is_known(self, name: str, client: ClientState) -> bool:
        hub, principal = self._hub, client.principal
        tool = hub.find_visible(principal, name, client.view)
        return not isinstance(tool.target, Nowhere) and hub.authorizer.can_list(principal, tool)

    def _find_params(self, name: str) -> dict[str, Path]:
        tool = self._hub.find(name, EVERYTHING)
        if isinstance(tool.target, Nowhere):
            return {}  # not cached: there are any number of unknown names
        try:
            found = find_mirrored_params(tool.definition.get("inputSchema"))
        except ValueError:
            found = {}
        self._params[name] = found
        return found


def _says(sent: bytes | None, value: Any) -> bool:
    """Whether a header has that value; a missing one has None."""
    if sent is None or not isinstance(value, str):
        return sent is None and value is None
    if sent == value.encode() and sent[:2] != b"=?" and sent.isascii():
        return True
    return _decode(sent) == value


def _decode(sent: bytes) -> str | None:
    """Returns the text of a header; None for invalid ones."""
    return decode_value(sent.decode("ascii")) if sent.isascii() else None


def _find_wrong_param(
    mirrored: Mapping[str, Path], fields: Mapping[bytes, bytes], params: Mapping[str, Any]
) -> str | None:
    """Finds an `Mcp-Param-*` that contradicts the arguments."""
    arguments = params.get("arguments")
    arguments = arguments if isinstance(arguments, dict) else {}
    for header, path in mirrored.items():
        sent = fields.get(header.encode())
        value = find_argument(path, arguments)
        if sent is None:
            if render_value(value) is not None:
                return f'{header} is missing, and "{".".join(path)}" has a value'
            continue
        text = _decode(sent)
        if text is None or not is_equal(text, value):
            return f'{header} and "{".".join(path)}" must be the same'
    return None
