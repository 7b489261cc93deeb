"""Progress and log notifications of a running call, if the client wants them.

A call whose client wants none costs nothing: it gets no function to call. A client that wants
progress also learns that a silent call still runs.
"""

from __future__ import annotations

import asyncio
import math
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
REPORT_SECONDS = 20.0
"""After so many seconds without progress, the client learns that its call still runs."""
STEP = 1e-6
"""How much progress increases by such a report: nearly all targets count in larger steps."""
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
    return ClientUpdates(token, wanted, revision, push), wanted


class ClientUpdates:
    """Sends a client the updates of its call that it wants."""

    __slots__ = (
        "_begun", "_every", "_first", "_last", "_pieces", "_push", "_reached", "_reported",
        "_revision", "_seen", "_timer", "_token", "_wanted",
    )  # fmt: skip

    def __init__(self, token: Any, wanted: WantedUpdates, revision: Revision, push: Push) -> None:
        self._token = token
        self._wanted = wanted
        self._revision = revision
        self._push = push
        self._reached: float | None = None
        """The progress that the target has reported last."""
        self._last: float = 0
        """The progress that was sent last."""
        self._reported = False
        """Whether some of it was sent by `_report`."""
        self._pieces = 0
        self._first: Artifact | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._begun = self._seen = self._every = 0.0

    def __call__(self, update: Update) -> None:
        wanted = self._wanted
        if isinstance(update, Progress):
            if wanted.progress:
                self._send_progress(update)
        elif isinstance(update, LogMessage):
            level = wanted.log_level
            if level is not None and is_wanted(update, level):
                self._push(encode_note(update))
        elif isinstance(update, Artifact):
            # The second piece shows that the first was one: a whole artifact is the result, which
            # follows.
            for piece in (self._first, update) if wanted.progress and update.append else ():
                if piece is not None and piece.id == update.id:
                    self._pieces += 1
                    words = _find_text(piece)
                    self._send(
                        Progress(progress=(self._reached or 0) + self._pieces, message=words)
                    )
            self._first = None if update.append else update

    def _send_progress(self, update: Progress) -> None:
        before, self._reached = self._reached, update.progress
        if self._pieces:  # progress only ever increases
            update = replace(update, progress=update.progress + self._pieces, total=None)
        has_increased = before is None or self._reached >= before
        if self._reported and has_increased and update.progress <= self._last:
            update = replace(update, progress=_increase(self._last))
        self._send(update)

    def _send(self, update: Progress) -> None:
        self._last = update.progress
        if self._timer is not None:
            self._seen = asyncio.get_running_loop().time()
        params = build_progress(self._token, update, self._revision)
        self._push(rpc.encode_notification(PROGRESS, params))

    # --- reports that the call still runs ---------------------------------------------------------

    def start_reports(self, every: float) -> None:
        """Sends progress whenever there was none for `every` seconds, until `stop_reports`."""
        loop = asyncio.get_running_loop()
        self._every, self._begun = every, loop.time()
        self._seen = self._begun
        self._timer = loop.call_at(self._begun + every, self._report)

    def stop_reports(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _report(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() >= self._seen + self._every:
            self._reported = True
            words = f"still running, {loop.time() - self._begun:.0f} s"
            self._send(Progress(progress=_increase(self._last), message=words))
        self._timer = loop.call_at(self._seen + self._every, self._report)


def _increase(progress: float) -> float:
    """The next progress after that one: so little more that it comes before the target's next."""
    try:
        more = round(progress + STEP, 6)
        return more if more > progress else progress + math.ulp(progress)
    except OverflowError:  # an integer beyond all floats
        return progress + 1


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
