"""One webhook: its state, one delivery to it, and what the response means. `push_delivery` decides
when and how often to deliver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from time import time
from typing import Any

from dragoman.a2a.protocol.dialects import BY_VERSION, DialectTraits, find_traits
from dragoman.a2a.protocol.headers import USER_AGENT
from dragoman.a2a.server.task import A2aTask, read_events, render_task
from dragoman.core.errors import HubError
from dragoman.core.fast_dataclass import record
from dragoman.core.ports import StoredPush
from dragoman.core.tasks import Entry
from dragoman.core.urls import render_origin
from dragoman.wire.http import HttpClient, Reply
from dragoman.wire.json import encode

MAX_REPLY = 64 * 1024
READ_BYTES = 256 * 1024
"""Bytes that are read from the store for one turn."""


@record(frozen=True, slots=True)
class DeliveryFailure:
    why: str
    final: bool = False
    wait: float = 0.0
    """Seconds that the receiver asks to wait (`Retry-After`)."""


class Webhook:
    """A webhook of a task, and how much it has got."""

    def __init__(
        self, task: A2aTask, id: str, config: Mapping[str, Any], version: str, cursor: int
    ) -> None:
        self.task = task
        self.id = id
        self.config = config
        """`url`, `token` and `authentication`, as in 1.0."""
        self.version = version
        """The dialect of its deliveries."""
        self.cursor = cursor
        """The number of the last entry that was delivered."""
        self.attempts = 0
        self.next_at = 0.0
        self.dead = ""
        """Why nothing is delivered any more; empty while it is."""
        self.queued = False
        self.sending: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    @property
    def traits(self) -> DialectTraits:
        return find_traits(self.version)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to deliver, ever."""
        return bool(self.dead) or (self.task.finished and self.cursor >= self.task.record.count)

    @property
    def label(self) -> str:
        """For logs: without the path, which may be a secret."""
        return f'the webhook at {render_origin(self.config["url"])} of task "{self.task.id}"'

    def render(self) -> dict[str, Any]:
        """The configuration as clients see it."""
        return {"taskId": self.task.id, "id": self.id, **self.config}

    def build_row(self) -> StoredPush:
        config = {"version": self.version, "config": self.config}
        return StoredPush(
            self.task.key, self.id, config, self.cursor, self.attempts, self.next_at, self.dead
        )

    def find_due_entries(self) -> list[Entry]:
        """The entries to deliver, in order."""
        if self.traits.pushes_events:
            return read_events(self.task, self.cursor, READ_BYTES)
        # The task as it is now is sent: once for all that has happened.
        return read_events(self.task, self.cursor)[-1:]

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def stop(self) -> None:
        self.cancel_timer()
        if self.sending is not None:
            self.sending.cancel()


async def deliver(
    http: HttpClient, hook: Webhook, entry: Entry, seconds: float
) -> DeliveryFailure | None:
    """Returns None when the receiver has accepted it."""
    task: Mapping[str, Any] = {} if hook.traits.pushes_events else render_task(hook.task)
    hook.task.record.shown = True  # so it is not answered as a mere message
    body = encode(BY_VERSION[hook.version].render_push(dict(entry.event), task))
    url, headers = hook.config["url"], _build_headers(hook)
    try:
        reply = await http.request("POST", url, headers, body, timeout=seconds)
    except HubError as error:
        return DeliveryFailure(str(error))
    await _discard_body(reply)
    status = reply.status
    if 200 <= status < 300:
        return None
    if 300 <= status < 400:
        return DeliveryFailure(f"it responded with {status}, and redirects are not followed")
    wait = _parse_retry_after(reply.headers.get("retry-after", ""))
    return DeliveryFailure(f"it responded with {status}", final=status == 410, wait=wait)


def _build_headers(hook: Webhook) -> dict[str, str]:
    headers = {"content-type": hook.traits.media_type, "user-agent": USER_AGENT}
    authentication = hook.config.get("authentication", {})
    if credentials := authentication.get("credentials"):
        headers["authorization"] = f"{authentication['scheme']} {credentials}"
    if token := hook.config.get("token"):
        headers["x-a2a-notification-token"] = token
    return headers


async def _discard_body(reply: Reply) -> None:
    """Reads the body so that the connection can be reused; its content does not matter."""
    try:
        await reply.body.read(MAX_REPLY)
    except HubError:
        reply.body.close()


def _parse_retry_after(value: str) -> float:
    """RFC 9110, 10.2.3: seconds, or a date."""
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        return max(parsedate_to_datetime(value).timestamp() - time(), 0.0)
    except (ValueError, OverflowError, OSError):
        return 0.0
