"""The face that MCP clients talk to, free of transports: a message in, the answer out.

Shapes everything for the revision of the one who asks. Does nothing itself: calls go to
`Hub.call`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from dragoman.core.call import Progress, Updates, discard
from dragoman.core.errors import HubError
from dragoman.core.hub import Hub
from dragoman.core.principal import Principal
from dragoman.core.tool import Tool
from dragoman.core.view import View
from dragoman.mcp.errors import as_error, as_result
from dragoman.mcp.revisions import (
    CAPABILITIES_KEY,
    MODERN,
    MODERN_KEY,
    NAMES,
    NUMBERS,
    R2024,
    R2503,
    R2607,
    discover_result,
    initialize_result,
    knows,
    list_tail,
    shape_result,
    shape_tool,
)
from dragoman.mcp.translate import mcp_from_result, meta_to_pass
from dragoman.wire import rpc
from dragoman.wire.json import encode

log = logging.getLogger(__name__)

PAGE_BYTES = 8 * 1024 * 1024
"""A list is one page unless it would pass the size of a message."""
UNSUPPORTED_VERSION = -32022
LIST_CHANGED = rpc.notification("notifications/tools/list_changed")

Push = Callable[[bytes], None]
"""Sends a message that belongs to the request under way."""


class Peer:
    """One client, as far as it is known."""

    __slots__ = ("door", "principal", "revision", "view")

    def __init__(self, principal: Principal, door: str, view: View, revision: int = R2024) -> None:
        self.principal = principal
        self.door = door
        self.view = view
        self.revision = revision
        """Of a client that shakes hands; each request of a modern one brings its own."""


class Face:
    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self._lists: dict[tuple[View, int], list[tuple[str, bytes]]] = {}
        self._lists_of = -1

    async def answer(self, message: Any, peer: Peer, push: Push | None = None) -> bytes | None:
        """The encoded answer; None where none is due."""
        begun = self.begin(message, peer, push)
        return begun if begun is None or isinstance(begun, bytes) else await begun

    def begin(
        self, message: Any, peer: Peer, push: Push | None = None
    ) -> bytes | Coroutine[Any, Any, bytes] | None:
        """The same, where only what takes time, a call, is still to be awaited."""
        problem = rpc.flaw(message)
        if problem is not None:
            return rpc.error(rpc.id_of(message), rpc.INVALID_REQUEST, problem)
        if "id" not in message or "method" not in message:
            return None
        id, method = message["id"], message["method"]
        params = message.get("params") or {}
        revision = revision_of(params, peer)
        if revision is None:
            return unsupported(id, params["_meta"][MODERN_KEY])
        if revision == R2607 and (problem := _lacking(params)):
            return rpc.error(id, rpc.INVALID_PARAMS, problem)
        if not knows(revision, method):
            return rpc.error(id, rpc.METHOD_NOT_FOUND, f'method "{method[:100]}" is not known here')
        if method == "tools/call":
            return self._call(id, params, peer, revision, push)
        return self._at_once(id, method, params, peer, revision)

    def _at_once(
        self, id: rpc.Id, method: str, params: Mapping[str, Any], peer: Peer, revision: int
    ) -> bytes:
        if method == "tools/list":
            return self._list(id, params, peer, revision)
        if method == "initialize":
            result = initialize_result(params)
            peer.revision = NUMBERS[result["protocolVersion"]]
            return rpc.result(id, result)
        if method == "server/discover":
            return rpc.result(id, discover_result())
        return rpc.result(id, {})  # ping

    # --- calls -------------------------------------------------------------------------------

    async def _call(
        self, id: rpc.Id, params: Mapping[str, Any], peer: Peer, revision: int, push: Push | None
    ) -> bytes:
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str):
            return rpc.error(id, rpc.INVALID_PARAMS, '"name" must be the name of a tool')
        if arguments is None:
            arguments = {}
        elif not isinstance(arguments, dict):
            return rpc.error(id, rpc.INVALID_PARAMS, '"arguments" must be an object')
        try:
            result = await self.hub.call(
                peer.principal,
                name,
                arguments,
                door=peer.door,
                view=peer.view,
                extra={"_meta": meta_to_pass(params)},
                updates=_updates(params, revision, push),
            )
            return rpc.result(id, shape_result(mcp_from_result(result), revision))
        except HubError as error:
            shown = as_result(error, revision)
            if shown is None:
                return as_error(id, error, revision)
            return rpc.result(id, shape_result(shown, revision))
        except Exception:
            log.exception("a call of %r crashed", name)
            problem = f'"{name[:200]}" failed inside the hub; see its log'
            return rpc.error(id, rpc.INTERNAL_ERROR, problem)

    # --- lists -------------------------------------------------------------------------------

    def _list(self, id: rpc.Id, params: Mapping[str, Any], peer: Peer, revision: int) -> bytes:
        pages = self._pages(peer, revision)
        cursor = params.get("cursor")
        if cursor is None:
            return rpc.result_encoded(id, pages[0][1])
        after = _name_in(cursor)
        if after is None:
            return rpc.error(id, rpc.INVALID_PARAMS, '"cursor" is none that was given out here')
        following = next((page for last, page in pages if last > after), pages[-1][1])
        return rpc.result_encoded(id, following)

    def _pages(self, peer: Peer, revision: int) -> list[tuple[str, bytes]]:
        """The list as this peer sees it, in encoded pages, each with its last name."""
        if self._lists_of != self.hub.catalog.version:
            self._lists.clear()
            self._lists_of = self.hub.catalog.version
        key = (peer.view, revision)
        pages = self._lists.get(key)
        if pages is None:
            tools = self.hub.tools(peer.principal, peer.view)
            entries = [(tool.name, encode(self._shown(tool, revision))) for tool in tools]
            pages = self._lists[key] = _paged(entries, list_tail(revision))
        return pages

    def _shown(self, tool: Tool, revision: int) -> dict[str, Any]:
        definition = {
            **tool.definition,
            "name": tool.name if self.hub.catalog.shared(tool) else tool.alias,
            "description": tool.description,
        }
        return shape_tool(definition, revision)


def revision_of(params: Mapping[str, Any], peer: Peer) -> int | None:
    """The revision a request is of; None for one that is unknown."""
    meta = params.get("_meta")
    version = meta.get(MODERN_KEY) if isinstance(meta, dict) else None
    if version is None:
        return peer.revision
    return NUMBERS[version] if version in MODERN else None


def _lacking(params: Mapping[str, Any]) -> str | None:
    """What every request of the new era must say of its sender."""
    meta = params.get("_meta")
    if not isinstance(meta, dict) or MODERN_KEY not in meta:
        return f'"_meta" needs "{MODERN_KEY}"'
    if not isinstance(meta.get(CAPABILITIES_KEY), dict):
        return f'"_meta" needs "{CAPABILITIES_KEY}"'
    return None


def unsupported(id: rpc.Id, requested: Any) -> bytes:
    requested = str(requested)[:40]
    return rpc.error(
        id,
        UNSUPPORTED_VERSION,
        f"revision {requested!r} is not spoken here, or not asked for like this",
        {"supported": list(NAMES), "requested": requested},
    )


def _updates(params: Mapping[str, Any], revision: int, push: Push | None) -> Updates:
    meta = params.get("_meta")
    token = meta.get("progressToken") if isinstance(meta, dict) else None
    if push is None or not isinstance(token, str | int):
        return discard

    def update(progress: Progress) -> None:
        told: dict[str, Any] = {"progressToken": token, "progress": progress.progress}
        if progress.total is not None:
            told["total"] = progress.total
        if progress.message is not None and revision >= R2503:
            told["message"] = progress.message
        push(rpc.notification("notifications/progress", told))

    return update


def _paged(entries: list[tuple[str, bytes]], tail: Mapping[str, Any]) -> list[tuple[str, bytes]]:
    pages: list[tuple[str, bytes]] = []
    start = size = 0
    for index, (_, entry) in enumerate(entries):
        if size + len(entry) > PAGE_BYTES and index > start:
            pages.append(_page(entries[start:index], tail, entries[index - 1][0]))
            start, size = index, 0
        size += len(entry) + 1
    last = entries[-1][0] if entries else ""
    pages.append(_page(entries[start:], tail, None))
    return [*pages[:-1], (last, pages[-1][1])]


def _page(
    entries: list[tuple[str, bytes]], tail: Mapping[str, Any], cursor: str | None
) -> tuple[str, bytes]:
    members = dict(tail)
    if cursor is not None:
        members["nextCursor"] = base64.urlsafe_b64encode(cursor.encode()).decode()
    rest = encode(members)[1:] if members else b"}"
    joined = b",".join(entry for _, entry in entries)
    return cursor or "", b'{"tools":[' + joined + b"]" + (b"," if members else b"") + rest


def _name_in(cursor: Any) -> str | None:
    if not isinstance(cursor, str):
        return None
    try:
        return base64.b64decode(cursor, b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return None


async def answer_batch(
    face: Face, messages: list[Any], peer: Peer, push: Push | None = None
) -> bytes | None:
    """2025-03-26 alone has batches; from a client of another revision a list is no message."""
    if peer.revision != R2503 or not messages:
        return rpc.error(None, rpc.INVALID_REQUEST, "a message is a JSON object, not a list")
    if len(messages) > 100:
        return rpc.error(None, rpc.INVALID_REQUEST, "a batch holds at most 100 messages")
    answers = await asyncio.gather(*(face.answer(item, peer, push) for item in messages))
    due = [answer for answer in answers if answer is not None]
    return b"[" + b",".join(due) + b"]" if due else None
