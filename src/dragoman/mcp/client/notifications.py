"""Messages of a server beside its responses: progress, log messages and requests (questions).

Knows neither how messages travel nor how a question is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dragoman.core.call import (
    LEVELS,
    NO_UPDATES,
    Call,
    LogMessage,
    Progress,
    Updates,
    discard_update,
)
from dragoman.mcp.protocol.translate import select_server_meta
from dragoman.wire import rpc

LISTEN = "subscriptions/listen"

NotificationSink = Callable[[str, Mapping[str, Any]], None]
"""Receives what belongs to no request: notifications, and questions that had to be refused."""

MAX_VISITED = 64
SEVERITY = {level: number for number, level in enumerate(LEVELS)}


class UpstreamRequest:
    """A request of the server, answered once unless the server cancels it."""

    __slots__ = ("_id", "_reply", "method", "on_cancel", "on_complete", "on_reply", "params")

    def __init__(
        self, id: rpc.Id, method: str, params: Mapping[str, Any], reply: Callable[[bytes], None]
    ) -> None:
        self.method = method
        self.params = params
        self.on_cancel: Callable[[], object] | None = None
        """Called when the server cancels the request: it then expects no response."""
        self.on_complete: Callable[[Mapping[str, Any]], None] | None = None
        """Called when the server reports that the user has finished the URL elicitation, with the
        `_meta` of that report."""
        self.on_reply: Callable[[], None] | None = None
        """Called when the request has been answered or refused."""
        self._id = id
        self._reply = reply

    def answer(self, result: Mapping[str, Any]) -> None:
        self._reply(rpc.encode_result(self._id, result))
        self._finish()

    def refuse(self, code: int, message: str, data: Any = None) -> None:
        self._reply(rpc.encode_error(self._id, code, message, data))
        self._finish()
        # A call keeps its refused question until it ends: keep only what its error will mention.
        kept = {key: self.params.get(key) for key in ("mode", "message", "url")}
        self.params = {key: text[:1000] for key, text in kept.items() if isinstance(text, str)}

    def _finish(self) -> None:
        if self.on_reply is not None:
            self.on_reply()
            self.on_reply = None


class PendingServerRequests:
    """The requests of one server that wait for a response, so that it can cancel them."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._open: dict[Any, UpstreamRequest] = {}
        self._visited: dict[str, UpstreamRequest] = {}
        """Answered URL elicitations, by their id: the server reports later that they are done."""

    def open(self, id: rpc.Id, method: str, params: Mapping[str, Any]) -> UpstreamRequest:
        key = rpc.build_key(id)

        def reply(message: bytes) -> None:
            if self._open.get(key) is request:
                del self._open[key]
                if isinstance(id := params.get("elicitationId"), str):
                    self._visited[id] = request
                    if len(self._visited) > MAX_VISITED:
                        del self._visited[next(iter(self._visited))]
                self._send(message)

        request = self._open[key] = UpstreamRequest(id, method, params, reply)
        return request

    def cancel(self, params: Mapping[str, Any]) -> None:
        """Handles `notifications/cancelled`."""
        id = params.get("requestId")
        is_valid = isinstance(id, str | int | float)
        request = self._open.pop(rpc.build_key(id), None) if is_valid else None
        if request is not None and request.on_cancel is not None:
            request.on_cancel()

    def complete(self, params: Mapping[str, Any]) -> bool:
        """Handles `notifications/elicitation/complete`; False if it matches no open request."""
        id = params.get("elicitationId")
        if not isinstance(id, str):
            return False
        found = [one for one in self._open.values() if one.params.get("elicitationId") == id]
        if (visited := self._visited.pop(id, None)) is not None:
            found.append(visited)
        for request in found:
            if request.on_complete is not None:
                request.on_complete(select_server_meta(params))
        return bool(found)


class RequestListener:
    """Receives the messages that accompany one request of the hub. Most requests have none."""

    __slots__ = ("acknowledged", "ask", "client", "highest", "log_level", "progress", "updates")

    def __init__(
        self,
        updates: Updates = discard_update,
        *,
        progress: bool = False,
        log_level: str | None = None,
        client: str = "",
        ask: Callable[[UpstreamRequest], bool] | None = None,
        acknowledged: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.updates = updates
        self.progress = progress
        self.log_level = log_level
        """The lowest level of log messages that the request wants."""
        self.client = client
        self.ask = ask
        """Accepts a question; False if it cannot be put to the client."""
        self.acknowledged = acknowledged
        """Of `subscriptions/listen`: receives what the server has agreed to announce."""
        self.highest = float("-inf")

    def report_progress(self, params: Mapping[str, Any]) -> bool:
        """Forwards valid progress that increases; False for any other."""
        update = progress_from_params(params) if self.progress else None
        if update is None or update.progress <= self.highest:
            return False
        self.highest = update.progress
        self.updates(update)
        return True

    def report_log_message(self, params: Mapping[str, Any]) -> bool:
        """Forwards a log message of a level that the request wants; False for any other."""
        message = log_message_from_params(params)
        if (
            self.log_level is None
            or message is None
            or SEVERITY[message.level] < SEVERITY[self.log_level]
        ):
            return False
        self.updates(message)
        return True


def listener_from_call(call: Call) -> RequestListener | None:
    """None for a call that wants only its result, as most do."""
    wanted = call.wanted_updates
    if wanted is NO_UPDATES or not (wanted.progress or wanted.log_level):
        return None
    log_level = wanted.log_level if wanted.log_level in SEVERITY else None
    return RequestListener(
        call.updates, progress=wanted.progress, log_level=log_level, client=call.client
    )


def progress_from_params(params: Mapping[str, Any]) -> Progress | None:
    progress, total = _read_number(params.get("progress")), _read_number(params.get("total"))
    message = params.get("message")
    if progress is None:
        return None
    text = message[:1000] if isinstance(message, str) else None
    return Progress(progress=progress, total=total, message=text, meta=select_server_meta(params))


def _read_number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def log_message_from_params(params: Mapping[str, Any]) -> LogMessage | None:
    level, logger = params.get("level"), params.get("logger")
    if not isinstance(level, str) or level not in SEVERITY or "data" not in params:
        return None
    name = logger[:200] if isinstance(logger, str) else None
    return LogMessage(
        level=level, data=params["data"], logger=name, meta=select_server_meta(params)
    )


def render_log_message(message: LogMessage) -> str:
    """Renders a log message as one line."""
    text = message.data if isinstance(message.data, str) else repr(message.data)
    logger = f" {message.logger}" if message.logger else ""
    return f"[{message.level}{logger}] {' '.join(text[:2000].split())}"
