"""Progress and log notifications of a running call, if the client wants them. Pure.

A call whose client wants none costs nothing: it gets no function to call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from dragoman.core.call import (
    LEVELS,
    NO_UPDATES,
    Artifact,
    LogMessage,
    Progress,
    Update,
    Updates,
    WantedUpdates,
    discard_update,
)
from dragoman.mcp.protocol.notifications import PROGRESS
from dragoman.mcp.protocol.revisions import Revision
from dragoman.mcp.server.client_state import Push
from dragoman.wire import rpc

MAX_WORDS = 4_000
"""Characters of a piece of an artifact that is sent as progress."""
DEFAULT_LEVEL = "info"
"""The log level of a client with a session that has not set one."""
_SEVERITY = {level: number for number, level in enumerate(LEVELS)}


def is_wanted(note: LogMessage, level: str) -> bool:
    """Whether a client that asked for that level wants the message."""
    return _SEVERITY.get(note.level, -1) >= _SEVERITY[level]


def build_updates(
    params: Mapping[str, Any], level: str | None, revision: Revision, push: Push | None
) -> tuple[Updates, WantedUpdates]:
    """Returns the function for the updates of a call, and which updates the client wants."""
    if push is None:
        return discard_update, NO_UPDATES
    meta = params.get("_meta")
    token = meta.get("progressToken") if isinstance(meta, dict) else None
    wanted = _choose_updates(isinstance(token, str | int), level)
    if wanted is NO_UPDATES:
        return discard_update, wanted

    reached: float = 0
    pieces = 0
    first: Artifact | None = None

    def update(sent: Update) -> None:
        nonlocal reached, pieces, first
        if isinstance(sent, Progress):
            if wanted.progress:
                reached = sent.progress
                if pieces:  # progress only ever increases
                    sent = replace(sent, progress=reached + pieces, total=None)
                push(rpc.encode_notification(PROGRESS, build_progress(token, sent, revision)))
        elif isinstance(sent, LogMessage) and level is not None and is_wanted(sent, level):
            push(encode_note(sent))
        elif isinstance(sent, Artifact):
            # The second piece shows that the first was one: a whole artifact is the result, which
            # follows.
            for piece in (first, sent) if wanted.progress and sent.append else ():
                if piece is not None and piece.id == sent.id:
                    pieces += 1
                    words = Progress(progress=reached + pieces, message=_find_text(piece))
                    push(rpc.encode_notification(PROGRESS, build_progress(token, words, revision)))
            first = None if sent.append else sent

    return update, wanted


@lru_cache(maxsize=32)
def _choose_updates(progress: bool, notes: str | None) -> WantedUpdates:
    if not progress and notes is None:
        return NO_UPDATES
    return WantedUpdates(progress=progress, log_level=notes)


def _find_text(piece: Artifact) -> str | None:
    texts = [one["text"] for one in piece.content if isinstance(one.get("text"), str)]
    return "".join(texts)[:MAX_WORDS] or piece.name or None


def build_progress(token: Any, update: Progress, revision: Revision) -> dict[str, Any]:
    """Builds the parameters of `notifications/progress`."""
    params: dict[str, Any] = {"progressToken": token, "progress": update.progress}
    if update.total is not None:
        params["total"] = update.total
    if update.message is not None and revision.has_progress_messages:
        params["message"] = update.message
    if update.meta:
        params["_meta"] = update.meta
    return params


def encode_note(update: LogMessage) -> bytes:
    params: dict[str, Any] = {"level": update.level, "data": update.data}
    if update.logger is not None:
        params["logger"] = update.logger
    if update.meta:
        params["_meta"] = update.meta
    return rpc.encode_notification("notifications/message", params)
