"""Delivers the events of tasks to registered webhooks.

Each webhook has a cursor into the log of its task. The entries after it are delivered in order, one
at a time; the cursor moves when the receiver has accepted one, and is stored, so that a restarted
hub continues there and delivers twice rather than never. A failed delivery is retried with backoff
and finally abandoned. No task waits for its webhooks. Knows neither sockets nor addresses: the HTTP
client refuses those that webhooks may not have.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from time import time
from typing import Any
from uuid import uuid4

from dragoman.a2a.config import A2aSettings
from dragoman.a2a.protocol.dialects import BY_VERSION, find_traits
from dragoman.a2a.protocol.dialects.traits import DialectTraits
from dragoman.a2a.protocol.errors import TASK_NOT_FOUND, A2aError, invalid
from dragoman.a2a.protocol.headers import USER_AGENT
from dragoman.a2a.protocol.validation import validate_push_config
from dragoman.a2a.server.task import A2aTask, A2aTaskRegistry, read_events, render_task
from dragoman.core.access import WhyEnded, explain_lost_access
from dragoman.core.background import start_task
from dragoman.core.backoff import Backoff
from dragoman.core.cluster import SINGLE_HUB, Ownership
from dragoman.core.errors import HubError, LeaseExpired, Overloaded, StorageFailed
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.ports import StoredPush, TaskStore
from dragoman.core.principal import Principal
from dragoman.core.structs import Struct
from dragoman.core.tasks import Entry
from dragoman.core.urls import render_origin
from dragoman.wire.http import HttpClient
from dragoman.wire.json import encode

log = logging.getLogger(__name__)

AT_ONCE, AT_ONCE_EACH = 16, 8
"""Concurrent deliveries, in all and per principal: slow webhooks of one do not block the others."""
TURN, TURN_SECONDS = 20, 1.0
"""The events, or the time, after which a webhook gives its place to another."""
MOST, MOST_EACH = 10_000, 2_000
"""Webhooks of all tasks, in all and per principal."""
PAGE = 50

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 60.0
STORE_SECONDS = 1.0
CHECK_SECONDS = 3.0
CHECKS = 4
MAX_WHY = 500
MAX_REPLY = 64 * 1024
READ_BYTES = 256 * 1024
"""Bytes that are read from the store for one turn."""

Check = Callable[[str], Awaitable[str | None]]
"""Returns why an address is refused as a webhook; None if it is not, or cannot be judged yet."""


class PushNotifier:
    def __init__(
        self,
        tasks: A2aTaskRegistry,
        store: TaskStore,
        http: HttpClient,
        settings: A2aSettings,
        *,
        check: Check,
        first_seconds: float = FIRST_SECONDS,
        cluster: Ownership = SINGLE_HUB,
    ) -> None:
        """`http` follows no redirects and refuses addresses that no webhook may have, whenever it
        dials; `check` applies the same rules early, and returns why an address is refused.
        `cluster` says whether this hub still owns its tasks."""
        self._tasks = tasks
        self._store = store
        self._http = http
        self._settings = settings
        self._check = check
        self._cluster = cluster
        self._checks = asyncio.Semaphore(CHECKS)
        self._backoff = Backoff(first_seconds, LONGEST_SECONDS)
        self._hooks: dict[A2aTask, dict[str, Webhook]] = {}
        """By task and id, the last one set at the end."""
        self._by_owner: dict[Principal, dict[Webhook, None]] = {}
        self._count = 0
        self._watches: dict[A2aTask, Callable[[], None]] = {}
        self._ready: dict[Principal, deque[Webhook]] = {}
        """Webhooks with something to deliver that wait for a place; the next one first."""
        self._busy: dict[Principal, int] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._closed = False
        tasks.on_remove(self._forget_task)

    # --- from start to end ---------------------------------------------------------------------

    def load(self) -> None:
        """Loads what an earlier hub has stored, after its tasks."""
        by_key = {task.key: task for task in self._tasks}
        for stored in self._store.load_pushes():
            task, version = by_key.get(stored.task), stored.config.get("version", "")
            if task is not None and stored.id in self._hooks.get(task, ()):
                continue  # loaded before
            if task is None or version not in BY_VERSION:
                self._store.delete_push(stored.task, stored.id)
                continue
            hook = Webhook(task, stored.id, stored.config["config"], version, stored.cursor)
            hook.attempts, hook.next_at, hook.dead = stored.attempts, stored.next_at, stored.dead
            self._put(hook)
            wait = min(stored.next_at - time(), LONGEST_SECONDS)
            if wait > 0 and not hook.dead:
                self._wake_later(hook, wait)
            else:
                self._wake(hook)

    def end_principals(self, why_ended: WhyEnded) -> None:
        """Parks the webhooks of principals that have lost access: nothing is delivered any more.
        What is stored of them stays, and they are parked again at every start."""
        for owner, hooks in self._by_owner.items():
            parked = ""
            for hook in [one for one in hooks if not one.dead]:
                if why := explain_lost_access(why_ended, hook.task.owner):
                    hook.stop()
                    hook.dead = parked = why
            if parked:
                log.warning("webhooks of %s are parked: %s", owner, parked)

    async def close(self) -> None:
        """Cancels running deliveries; the next hub repeats them."""
        self._closed = True
        for stop in self._watches.values():
            stop()
        for hooks in self._hooks.values():
            for hook in hooks.values():
                hook.stop()
        if self._sending:
            await asyncio.wait(list(self._sending))

    # --- webhooks as clients see them ------------------------------------------------------------

    async def set(
        self, task: A2aTask, config: Mapping[str, Any], version: str, *, after: int | None = None
    ) -> dict[str, Any]:
        """Registers a webhook for the entries after number `after`, by default for those from now
        on, in the dialect `version`. One with the same id is replaced and keeps its cursor."""
        cursor = task.record.count if after is None else after
        found = validate_push_config(config)
        # Clients of older dialects refer to a webhook without an id by this one.
        id = found.pop("id", None) or find_traits(version).default_push_id or str(uuid4())
        why = await self._find_refusal(found["url"])
        if why is not None:
            raise invalid("url", f"is not permitted: {why}")
        if task.registry is None:
            raise A2aError(TASK_NOT_FOUND, f'task "{task.id}" was removed')
        self._tasks.flush()  # the webhook refers to its key in the store
        hook = self._hooks.get(task, {}).get(id)
        if hook is None:
            self._make_room(task)
            hook = Webhook(task, id, found, version, cursor)
            self._store.save_push(hook.build_row())
        else:
            self._store.save_push(Webhook(task, id, found, version, hook.cursor).build_row())
            hook.config, hook.version = found, version
            hook.attempts, hook.next_at, hook.dead = 0, 0.0, ""
            hook.cancel_timer()
            self._drop(hook, stop=False)
        self._put(hook)
        self._wake(hook)
        return hook.render()

    def get(self, task: A2aTask, id: str) -> dict[str, Any]:
        """Without an id, as older clients ask, the last one that was set."""
        hooks = self._hooks.get(task, {})
        hook = hooks.get(id) if id else next(reversed(hooks.values()), None)
        if hook is None:
            which = f'"{id[:100]}"' if id else "at all"
            raise A2aError(
                TASK_NOT_FOUND, f'task "{task.id}" has no push notification configuration {which}'
            )
        return hook.render()

    def list(self, task: A2aTask, size: int = PAGE, token: str = "") -> dict[str, Any]:
        hooks = self._hooks.get(task, {})
        ids = sorted(id for id in hooks if id > token)
        page = ids[: size if size > 0 else PAGE]
        return {
            "configs": [hooks[id].render() for id in page],
            "nextPageToken": page[-1] if len(page) < len(ids) else "",
        }

    def delete(self, task: A2aTask, id: str) -> None:
        """Does nothing for an unknown id."""
        hook = self._hooks.get(task, {}).get(id)
        if hook is not None:
            self._store.delete_push(task.key, id)
            self._drop(hook)

    async def _find_refusal(self, url: str) -> str | None:
        """A name that does not resolve yet, or slowly, is accepted: the address is checked again at
        every delivery, and this only reports an address early that can never be reached."""
        try:
            async with asyncio.timeout(CHECK_SECONDS), self._checks:
                return await self._check(url)
        except TimeoutError:
            return None

    # --- keeping webhooks --------------------------------------------------------------------

    def _make_room(self, task: A2aTask) -> None:
        most = self._settings.push_configs
        if len(self._hooks.get(task, ())) >= most:
            raise Overloaded(
                f'task "{task.id}" has {most} webhooks, which is all it may; delete one'
            )
        mine = self._by_owner.get(task.owner, {})
        if len(mine) >= MOST_EACH and not self._drop_done(task.owner):
            raise Overloaded(
                f"{len(mine)} webhooks of this caller are in use, and no more are kept"
            )
        if self._count >= MOST and not any(map(self._drop_done, list(self._by_owner))):
            raise Overloaded(f"{self._count} webhooks are in use here, and no more are kept")

    def _drop_done(self, owner: Principal) -> bool:
        """Drops the oldest webhook with nothing left to deliver; False if there is none."""
        hook = next((one for one in self._by_owner.get(owner, ()) if one.is_done), None)
        if hook is None:
            return False
        self._store.delete_push(hook.task.key, hook.id)
        self._drop(hook)
        return True

    def _put(self, hook: Webhook) -> None:
        task = hook.task
        self._hooks.setdefault(task, {})[hook.id] = hook
        self._by_owner.setdefault(task.owner, {})[hook] = None
        self._count += 1
        if not task.finished and task not in self._watches:
            self._watches[task] = task.watch(partial(self._wake_all, task))

    def _drop(self, hook: Webhook, *, stop: bool = True) -> None:
        task = hook.task
        hooks, mine = self._hooks[task], self._by_owner[task.owner]
        del hooks[hook.id], mine[hook]
        self._count -= 1
        if not mine:
            del self._by_owner[task.owner]
        if not hooks:
            del self._hooks[task]
            self._unwatch(task)
        if stop:
            hook.stop()

    def _forget_task(self, task: A2aTask) -> None:
        """A removed task takes its webhooks with it; the store deletes them as well."""
        for hook in list(self._hooks.get(task, {}).values()):
            self._drop(hook)

    def _wake_all(self, task: A2aTask) -> None:
        for hook in self._hooks.get(task, {}).values():
            self._wake(hook)
        if task.finished:
            self._unwatch(task)  # else its log would stay in memory

    def _unwatch(self, task: A2aTask) -> None:
        stop = self._watches.pop(task, None)
        if stop is not None:
            stop()

    def _is_kept(self, hook: Webhook) -> bool:
        return self._hooks.get(hook.task, {}).get(hook.id) is hook

    # --- scheduling ----------------------------------------------------------------------------

    def _wake(self, hook: Webhook) -> None:
        """Queues the webhook if it has something to deliver."""
        waits = hook.queued or hook.sending is not None or hook.timer is not None
        if self._closed or waits or hook.dead or hook.cursor >= hook.task.record.count:
            return
        hook.queued = True
        self._ready.setdefault(hook.task.owner, deque()).append(hook)
        self._start()

    def _start(self) -> None:
        while len(self._sending) < AT_ONCE and not self._closed:
            free = (one for one in self._ready if self._busy.get(one, 0) < AT_ONCE_EACH)
            owner = next(free, None)
            if owner is None:
                return
            queue = self._ready.pop(owner)
            hook = queue.popleft()
            if queue:
                self._ready[owner] = queue  # behind the others
            hook.queued = False
            if hook.dead or not self._is_kept(hook):
                continue
            self._busy[owner] = self._busy.get(owner, 0) + 1
            hook.sending = start_task(self._send(hook))
            self._sending.add(hook.sending)
            hook.sending.add_done_callback(partial(self._end_turn, hook))

    def _end_turn(self, hook: Webhook, sending: asyncio.Task[None]) -> None:
        self._sending.discard(sending)
        hook.sending = None
        owner = hook.task.owner
        self._busy[owner] -= 1
        if not self._busy[owner]:
            del self._busy[owner]
        if self._is_kept(hook):
            self._wake(hook)
        self._start()

    def _wake_later(self, hook: Webhook, seconds: float) -> None:
        hook.timer = asyncio.get_running_loop().call_later(seconds, self._retry, hook)

    def _retry(self, hook: Webhook) -> None:
        hook.timer = None
        self._wake(hook)

    # --- sending -------------------------------------------------------------------------------

    async def _send(self, hook: Webhook) -> None:
        """One turn: the due entries, up to a limit."""
        try:
            if hook.task.saved < hook.task.record.count:
                self._tasks.flush()  # an event is stored before it is delivered
        except StorageFailed:
            self._wake_later(hook, STORE_SECONDS)
            return
        try:
            failure = await self._send_due(hook)
        except LeaseExpired:  # the owner of the task by then continues at the cursor
            self._wake_later(hook, STORE_SECONDS)
            return
        except Exception as error:
            log.exception("delivery to %s crashed", hook.label)
            failure = DeliveryFailure(f"its delivery crashed ({type(error).__name__})")
        if failure is not None:
            self._schedule_retry(hook, failure)

    async def _send_due(self, hook: Webhook) -> DeliveryFailure | None:
        due = hook.find_due_entries()
        if not due:
            hook.cursor = hook.task.record.count  # only the client's own messages
        loop = asyncio.get_running_loop()
        until = loop.time() + TURN_SECONDS
        for entry in due[:TURN]:
            seconds = self._settings.push_timeout_secs
            self._cluster.check_lease()
            failure = await deliver(self._http, hook, entry, seconds)
            if failure is not None:
                return failure
            hook.cursor, hook.attempts, hook.next_at = entry.number, 0, 0.0
            self._store_cursor(hook)
            if loop.time() > until:
                break
        return None

    def _schedule_retry(self, hook: Webhook, failure: DeliveryFailure) -> None:
        hook.attempts += 1
        if failure.final or hook.attempts >= self._settings.push_attempts:
            hook.dead = failure.why[:MAX_WHY]
            log.warning("%s was abandoned: %s", hook.label, hook.dead)
        else:
            delay = self._backoff.delay(hook.attempts)
            seconds = min(max(delay, failure.wait), LONGEST_SECONDS)
            hook.next_at = time() + seconds
            self._wake_later(hook, seconds)
            log.info("%s is retried in %.1f s: %s", hook.label, seconds, failure.why)
        self._store_cursor(hook)

    def _store_cursor(self, hook: Webhook) -> None:
        try:
            self._store.save_push(hook.build_row())
        except StorageFailed as error:
            STORAGE_OUTAGE.note(f"the cursor of {hook.label} cannot be stored: {error}")


# --- one webhook -----------------------------------------------------------------------------


class DeliveryFailure(Struct, frozen=True):
    why: str
    final: bool = False
    wait: float = 0.0
    """Seconds that the receiver asks to wait (`Retry-After`)."""


@dataclass(slots=True, eq=False)
class Webhook:
    """A webhook of a task, and how much it has got."""

    task: A2aTask
    id: str
    config: Mapping[str, Any]
    """`url`, `token` and `authentication`, as in 1.0."""
    version: str
    """The dialect of its deliveries."""
    cursor: int
    """The number of the last entry that was delivered."""
    attempts: int = 0
    next_at: float = 0.0
    dead: str = ""
    """Why nothing is delivered any more; empty while it is."""
    queued: bool = False
    sending: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None

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
    try:  # the connection can be reused once the body was read
        await reply.body.read(MAX_REPLY)
    except HubError:
        reply.body.close()
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


def _parse_retry_after(value: str) -> float:
    """RFC 9110, 10.2.3: seconds, or a date."""
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        return max(parsedate_to_datetime(value).timestamp() - time(), 0.0)
    except (ValueError, OverflowError, OSError):
        return 0.0
