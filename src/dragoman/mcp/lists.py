"""The four lists, as a client sees them: encoded once for each view, revision and style of naming,
and kept until that catalog changes. Knows nothing of who asks beyond that.

A list is one page unless it would pass the size of a message. A cursor names the last entry that
was given, so that it holds while entries come and go; it is sealed, so that nobody makes one up.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable, Mapping
from typing import Any

from dragoman.core.hub import Hub
from dragoman.core.principal import Principal
from dragoman.core.tool import PROMPT, RESOURCE, TEMPLATE, TOOL, Tool
from dragoman.core.view import View
from dragoman.mcp.revisions import list_tail, shape_prompt, shape_resource, shape_tool
from dragoman.wire.json import encode

PAGE_BYTES = 8 * 1024 * 1024
MAX_KEPT = 64
"""Forms of one list that are kept; in use there are a few."""
MAC_BYTES = 16

METHODS = {
    "tools/list": TOOL,
    "prompts/list": PROMPT,
    "resources/list": RESOURCE,
    "resources/templates/list": TEMPLATE,
}
_MEMBER = {
    TOOL: b"tools",
    PROMPT: b"prompts",
    RESOURCE: b"resources",
    TEMPLATE: b"resourceTemplates",
}
_SHAPE: Mapping[str, Callable[[Mapping[str, Any], int], dict[str, Any]]] = {
    TOOL: shape_tool,
    PROMPT: shape_prompt,
    RESOURCE: shape_resource,
    TEMPLATE: shape_resource,
}
_NAMED = {TOOL: "name", PROMPT: "name", RESOURCE: "uri", TEMPLATE: "uriTemplate"}
"""The member that a client calls it by."""

Pages = list[tuple[str, bytes]]
"""Encoded results, each with the name of its last entry."""


class Lists:
    def __init__(self, hub: Hub, key: bytes) -> None:
        self._hub = hub
        self._key = hmac.digest(key, b"cursors of lists", "sha256")
        self._kept: dict[str, dict[tuple[View, int, str], Pages]] = {kind: {} for kind in _MEMBER}
        self._kept_of = dict.fromkeys(_MEMBER, -1)

    def page(
        self, kind: str, cursor: Any, caller: Principal, view: View, revision: int, style: str
    ) -> bytes | None:
        """The encoded result; None for a cursor that is none of ours."""
        pages = self.pages(kind, caller, view, revision, style)
        if cursor is None:
            return pages[0][1]
        after = self._opened(cursor, kind)
        if after is None:
            return None
        return next((page for last, page in pages if last > after), pages[-1][1])

    def pages(self, kind: str, caller: Principal, view: View, revision: int, style: str) -> Pages:
        version = self._hub.catalogs[kind].version
        kept = self._kept[kind]
        if self._kept_of[kind] != version or len(kept) > MAX_KEPT:
            kept.clear()
            self._kept_of[kind] = version
        key = (view, revision, style)
        pages = kept.get(key)
        if pages is None:
            entries = [
                (tool.name, encode(self._shown(tool, kind, revision, style)))
                for tool in self._hub.tools(caller, view, kind)
            ]
            pages = kept[key] = self._paged(kind, entries, list_tail(revision))
        return pages

    def _shown(self, tool: Tool, kind: str, revision: int, style: str) -> dict[str, Any]:
        shown = self._hub.catalogs[kind].shown(tool, style)
        definition = {"name": shown, **tool.definition, _NAMED[kind]: shown}
        if tool.description or kind == TOOL:
            definition["description"] = tool.description
        return _SHAPE[kind](definition, revision)

    def _paged(self, kind: str, entries: Pages, tail: Mapping[str, Any]) -> Pages:
        pages: Pages = []
        start = size = 0
        for index, (_, entry) in enumerate(entries):
            if size + len(entry) > PAGE_BYTES and index > start:
                last = entries[index - 1][0]
                rest = {**tail, "nextCursor": self._sealed(last, kind)}
                pages.append((last, _page(kind, entries[start:index], rest)))
                start, size = index, 0
            size += len(entry) + 1
        pages.append((entries[-1][0] if entries else "", _page(kind, entries[start:], tail)))
        return pages

    # --- cursors -----------------------------------------------------------------------------

    def _sealed(self, name: str, kind: str) -> str:
        body = name.encode()
        return base64.urlsafe_b64encode(self._mac(body, kind) + body).decode()

    def _opened(self, cursor: Any, kind: str) -> str | None:
        if not isinstance(cursor, str):
            return None
        try:
            raw = base64.b64decode(cursor, b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        mac, body = raw[:MAC_BYTES], raw[MAC_BYTES:]
        return body.decode() if hmac.compare_digest(mac, self._mac(body, kind)) else None

    def _mac(self, body: bytes, kind: str) -> bytes:
        return hmac.digest(self._key, kind.encode() + b"\n" + body, "sha256")[:MAC_BYTES]


def _page(kind: str, entries: Pages, rest: Mapping[str, Any]) -> bytes:
    members = encode(rest)[1:] if rest else b"}"
    joined = b",".join(entry for _, entry in entries)
    comma = b"," if rest else b""
    return b'{"' + _MEMBER[kind] + b'":[' + joined + b"]" + comma + members
