"""What a server says beside its answers, and whose it is: progress, lines of its log, questions.

Knows neither how messages travel nor what is done with a question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dragoman.core.call import LEVELS, NO_UPDATES, Call, Note, Progress, Updates, discard
from dragoman.wire import rpc

LISTEN = "subscriptions/listen"

NotificationSink = Callable[[str, Mapping[str, Any]], None]
"""Takes what belongs to no request: notifications, and the questions that had to be refused."""

SEVERITY = {level: number for number, level in enumerate(LEVELS)}


class ServerRequest:
    """A request of the server's, to be answered once, unless the server cancels it."""

    __slots__ = ("_id", "_reply", "method", "on_cancel", "on_complete", "on_reply", "params")

    def __init__(
        self, id: rpc.Id, method: str, params: Mapping[str, Any], reply: Callable[[bytes], None]
    ) -> None:
        self.method = method
        self.params = params
        self.on_cancel: Callable[[], None] | None = None
        """Called when the server cancels the request. No answer is due then."""
        self.on_complete: Callable[[], None] | None = None
        """Called when the server says that the user has been at the address it asked for."""
        self._id = id
        self._reply = reply
        self.on_reply: Callable[[], None] | None = None
        """Called when it has been answered or refused."""

    def answer(self, result: Mapping[str, Any]) -> None:
        self._reply(rpc.result(self._id, result))
        self._finish()

    def _finish(self) -> None:
        if self.on_reply is not None:
            self.on_reply()
            self.on_reply = None

    def refuse(self, code: int, words: str, data: Any = None) -> None:
        self._reply(rpc.error(self._id, code, words, data))
        self._finish()
        # A call keeps what was asked in vain for as long as it lasts: only what is told of it.
        told = {key: self.params.get(key) for key in ("mode", "message", "url")}
        self.params = {key: text[:1000] for key, text in told.items() if isinstance(text, str)}


class PendingServerRequests:
    """The requests of one server that wait for an answer, so that its cancellations find them."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._open: dict[Any, ServerRequest] = {}

    def open(self, id: rpc.Id, method: str, params: Mapping[str, Any]) -> ServerRequest:
        key = rpc.key_of(id)

        def reply(message: bytes) -> None:
            if self._open.get(key) is asked:
                del self._open[key]
                self._send(message)

        asked = self._open[key] = ServerRequest(id, method, params, reply)
        return asked

    def cancel(self, params: Mapping[str, Any]) -> None:
        """Handles `notifications/cancelled`."""
        id = params.get("requestId")
        known = isinstance(id, str | int | float)
        asked = self._open.pop(rpc.key_of(id), None) if known else None
        if asked is not None and asked.on_cancel is not None:
            asked.on_cancel()

    def complete(self, params: Mapping[str, Any]) -> bool:
        """Handles `notifications/elicitation/complete`; whether it is about one of these."""
        id, found = params.get("elicitationId"), False
        for asked in list(self._open.values()):
            is_meant = isinstance(id, str) and asked.params.get("elicitationId") == id
            found = found or is_meant
            if is_meant and asked.on_complete is not None:
                asked.on_complete()
        return found


class RequestListener:
    """To whom it goes what a server says beside the answer to one request.

    A request that wants nothing of the kind has none.
    """

    __slots__ = ("acknowledged", "ask", "client", "highest", "notes", "progress", "updates")

    def __init__(
        self,
        updates: Updates = discard,
        *,
        progress: bool = False,
        notes: str | None = None,
        client: str = "",
        ask: Callable[[ServerRequest], bool] | None = None,
        acknowledged: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.updates = updates
        self.progress = progress
        self.notes = notes
        self.client = client
        self.ask = ask
        """Takes a question; says whether it will be answered."""
        self.acknowledged = acknowledged
        """Of a listen: told what the server will tell of."""
        self.highest = float("-inf")

    def report_progress(self, params: Mapping[str, Any]) -> bool:
        """Passes progress on, where it is some: it goes forwards only."""
        update = progress_from_params(params) if self.progress else None
        if update is None or update.progress <= self.highest:
            return False
        self.highest = update.progress
        self.updates(update)
        return True

    def report_note(self, params: Mapping[str, Any]) -> bool:
        """Passes a line of the log on, where it is one that was wanted."""
        note = note_from_params(params)
        if self.notes is None or note is None or SEVERITY[note.level] < SEVERITY[self.notes]:
            return False
        self.updates(note)
        return True


def listener_from_call(call: Call) -> RequestListener | None:
    """None for a call that wants nothing but its answer, as most."""
    wanted = call.wanted
    if wanted is NO_UPDATES or not (wanted.progress or wanted.notes):
        return None
    notes = wanted.notes if wanted.notes in SEVERITY else None
    return RequestListener(call.updates, progress=wanted.progress, notes=notes, client=call.client)


def progress_from_params(params: Mapping[str, Any]) -> Progress | None:
    progress, total = _number(params.get("progress")), _number(params.get("total"))
    message = params.get("message")
    if progress is None:
        return None
    words = message[:1000] if isinstance(message, str) else None
    return Progress(progress=progress, total=total, message=words)


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def note_from_params(params: Mapping[str, Any]) -> Note | None:
    level, logger = params.get("level"), params.get("logger")
    if level not in SEVERITY or "data" not in params:
        return None
    name = logger[:200] if isinstance(logger, str) else None
    return Note(level=str(level), data=params["data"], logger=name)


def render_note(note: Note) -> str:
    """A note as a line of a log."""
    words = note.data if isinstance(note.data, str) else repr(note.data)
    where = f" {note.logger}" if note.logger else ""
    return f"[{note.level}{where}] {' '.join(words[:2000].split())}"
