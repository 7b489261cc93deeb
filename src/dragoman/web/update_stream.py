"""Sends the updates of an API call as server-sent events before its response.

A client requests them with `Accept: text/event-stream`. The stream begins with the first update; a
call without updates gets a plain JSON response with its own status.
"""

from __future__ import annotations

from dragoman.core.call import Progress, TaskStarted, Update
from dragoman.web.api import ApiResponse
from dragoman.wire import sse
from dragoman.wire.http import HttpRequest
from dragoman.wire.json import encode

_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]


def wants_updates(request: HttpRequest) -> bool:
    accepts = request.fields.get(b"accept", b"")
    return b"text/event-stream" in accepts and request.path.endswith("/call")


class UpdateStream:
    def __init__(self, request: HttpRequest) -> None:
        self._request = request
        self.has_started = False

    def send(self, update: Update) -> None:
        """Sends progress; a client that does not read misses some."""
        if isinstance(update, Progress):
            told = {"progress": update.progress, "total": update.total, "message": update.message}
        elif isinstance(update, TaskStarted):
            told = {"message": update.message}
        else:
            return
        if not self.has_started:
            self.has_started = True
            self._request.start(200, _HEADERS)
        known = {name: value for name, value in told.items() if value is not None}
        self._request.send(sse.encode_event(encode(known), name="progress"))

    async def finish(self, response: ApiResponse) -> None:
        """Sends the response body as the event `result` or `error`."""
        name = "result" if response.status < 400 else "error"
        await self._request.write(sse.encode_event(response.body, name=name))
        self._request.end()
