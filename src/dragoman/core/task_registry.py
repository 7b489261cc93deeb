"""The tasks of the hub by owner and id; a change is stored before any client hears of it.

A change is saved with all others in one transaction: before the next response that could tell of
it, or after some milliseconds. Bounded per owner and in all, in number and in bytes: the oldest
finished task is removed first, and if none is finished the new one is refused. Knows neither a
protocol nor a database.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from time import time
from typing import Any, Generic

from dragoman.core.access import WhyEnded, explain_lost_access
from dragoman.core.errors import (
    HubError,
    InvalidInput,
    NotFound,
    Overloaded,
    ShuttingDown,
    WorkFailed,
)
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.ports import EndedTask, StoredPush, StoredTask, TaskChange, TaskStore
from dragoman.core.principal import Principal
from dragoman.core.structs import Struct
from dragoman.core.tasks import ENDS, WAITS, Entry, R, Task

log = logging.getLogger(__name__)

TAKEN_OVER = (
    "this hub was paused or cut off while it worked on the task, and another hub has taken over "
    "what it owned: get the task there. If it is unknown there, it was not stored, and may or may "
    "not have been carried out"
)


class TaskLimits(Struct, frozen=True):
    count: int
    count_per_owner: int
    stored_bytes: int = 512 * 1024 * 1024
    owner_share: float = 0.25
    """The share of `stored_bytes` that one owner may use."""
    held_bytes: int = 64 * 1024 * 1024
    """What finished tasks may take in memory; beyond it the oldest are released, or removed if
    nothing else has their result (`TaskRecord.keeps_result`)."""
    idle_seconds: float = 86_400.0
    """A task that waits for its client for so long has failed."""
    ttl: float = 0.0
    """Seconds after which a task is removed whatever it does; 0 for never."""
    save_seconds: float = 0.02
    retry_seconds: float = 1.0
    sweep_seconds: float = 30.0


class OwnedTasks(Generic[R]):
    """The tasks of one owner."""

    __slots__ = ("finished", "size", "tasks")

    def __init__(self) -> None:
        self.tasks: dict[str, Task[R]] = {}
        """The one that changed last is the last."""
        self.finished: OrderedDict[Task[R], None] = OrderedDict()
        """Of these the finished ones, the first to finish first. A plain dict that loses its first
        item again and again takes ever longer to find it."""
        self.size = 0
        """Bytes that they take in the store."""


class TaskRegistry(Generic[R]):
    def __init__(
        self,
        store: TaskStore,
        limits: TaskLimits,
        clock_is_steady: Callable[[], bool] = lambda: True,
    ) -> None:
        """`clock_is_steady` says whether the wall clock may decide that a task has waited too long:
        one that has jumped would end all of them at once."""
        self._store = store
        self._limits = limits
        self._clock_is_steady = clock_is_steady
        self._ttl = limits.ttl
        self._owners: dict[Principal, OwnedTasks[R]] = {}
        self._finished: OrderedDict[Task[R], None] = OrderedDict()
        """All that are finished, the first to finish first."""
        self._count = 0
        self._bytes = 0
        self._unsaved: dict[Task[R], None] = {}
        self._held: OrderedDict[Task[R], int] = OrderedDict()
        """Finished and stored tasks that are not released yet, with the bytes of each."""
        self._held_bytes = 0
        self._expiries: dict[Task[R], asyncio.TimerHandle] = {}
        self._save_timer: asyncio.TimerHandle | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[Any]] = set()
        """Calls that were stopped and have not ended yet."""
        self._failing = False
        """Whether the last save failed."""
        self._on_remove: list[Callable[[Task[R]], None]] = []
        self._closed = False

    # --- start and stop ------------------------------------------------------------------------

    def load(self, build: Callable[[StoredTask], Task[R]]) -> None:
        """Loads what an earlier hub has stored; tasks that ran then have failed."""
        found = []
        for stored in sorted(self._store.load(), key=lambda one: one.updated):
            task = build(stored)  # all of it may fail: none is admitted before
            if stored.state not in ENDS:
                task.record.restore(self._store.load_entries(stored.key))
            found.append((stored, task))
        self._admit(found)
        self.flush()
        self._start_sweeping()

    async def take_over(
        self,
        hub: str,
        build: Callable[[StoredTask], Task[R]],
        note: Callable[[Sequence[Task[R]]], None],
    ) -> None:
        """Takes over the tasks of another hub that has ended, as after a restart: some at a time,
        so that this hub works on meanwhile. `note` gets those that it owns from now on. If it
        fails, it can be repeated."""
        while found := self._store.load_ended(hub):
            readable, damaged = [], []
            for one in found:
                try:
                    if one.stored is None:
                        raise ValueError("its row cannot be decoded")
                    task = build(one.stored)
                    if one.stored.state not in ENDS:
                        task.record.restore(list(one.entries))
                except Exception as error:  # one damaged task must not hold up the others
                    log.error(
                        'task "%s" (key %d) of hub %s is damaged and was set aside: %s',
                        one.id[:100], one.key, hub, error,
                    )  # fmt: skip
                    damaged.append(one.key)
                else:
                    readable.append((one.stored, task))
            owned = self._store.take_over(hub, [stored.key for stored, _ in readable], damaged)
            admitted = [pair for pair in readable if pair[0].key in owned]
            self._admit(admitted)
            note([task for _, task in admitted])
            try:
                self.flush()
            except HubError as error:  # what has happened to them is stored later
                STORAGE_OUTAGE.note(f"tasks cannot be stored: {error}")
            await asyncio.sleep(0)

    def _admit(self, found: Sequence[tuple[StoredTask, Task[R]]]) -> None:
        interrupted = []
        for stored, task in found:
            task.state, task.finished = stored.state, stored.state in ENDS
            task.created, task.updated = stored.created, stored.updated
            task.key, task.saved, task.record.count = stored.key, stored.count, stored.count
            owned = self._owners.setdefault(task.owner, OwnedTasks())
            self._put(task, owned)
            self._add_size(task, stored.size)
            if task.finished:
                self._note_end(task, owned)
                continue
            if task.state not in WAITS or stored.about.get("handle"):
                interrupted.append(task)  # only the hub that sealed a handle can open it
        for task in interrupted:
            task.interrupt()

    def abandon(self, hub: str) -> None:
        """Other hubs own all these tasks: stops their calls, and stores nothing more of them. This
        hub has another id from now on."""
        unsaved, self._unsaved = self._unsaved, {}
        for task in list(self):
            if task.call is not None:
                task.call.cancel(TAKEN_OVER)
            if task.finished and task in unsaved:
                task.error = WorkFailed(TAKEN_OVER)  # its heir does not know how it ended
            task.key = 0  # so that nothing is deleted
            # Not cancelled: no client asked for that, and the heir knows how it ends.
            self.remove(task, WorkFailed(TAKEN_OVER))
        self._unsaved.clear()
        self._store.rename_hub(hub)

    async def close(self) -> None:
        """Stops the running calls, which have failed, and stores that. Tasks that would expire
        anyway are removed."""
        self._closed = True
        for task in list(self):
            if task.ttl:
                self.remove(task)
            elif task.running:
                task.interrupt()
                self._await_end(task)
        if self._ending:
            await asyncio.wait(list(self._ending))
        for timer in (self._save_timer, self._sweep_timer):
            if timer is not None:
                timer.cancel()
        self._save_timer = self._sweep_timer = None
        try:
            self.flush()
        except HubError as error:
            log.error("tasks could not be stored at the end: %s", error)

    # --- finding -------------------------------------------------------------------------------

    def get(self, owner: Principal, id: Any) -> Task[R]:
        """Raises `NotFound`, whatever is passed as the id."""
        owned = self._owners.get(owner)
        task = owned.tasks.get(id) if owned is not None and isinstance(id, str) else None
        if task is None:
            raise task_not_found(id)
        return task

    def find_left(self, hubs: Sequence[str]) -> set[str]:
        """Finds those of the hubs that still own stored tasks."""
        return self._store.find_left(hubs)

    def find_hub(self, owner: Principal, id: str) -> str | None:
        """Finds the hub that owns a stored task, where several share the store."""
        return self._store.find_hub(owner, id)

    def list_elsewhere(
        self, owner: Principal, build: Callable[[StoredTask], Task[R]]
    ) -> list[Task[R]]:
        """Lists the tasks of other hubs as they are stored, to be shown and not to be changed."""
        found = []
        for stored in self._store.load_elsewhere(owner):
            task = build(stored)
            task.state, task.finished = stored.state, stored.state in ENDS
            task.created, task.updated = stored.created, stored.updated
            task.key, task.saved, task.record.count = stored.key, stored.count, stored.count
            task.size, task.registry = stored.size, self
            found.append(task)
        return found

    def claim_key(self, task: Task[R], key: str) -> str:
        """Claims an idempotency key for a new task; returns the id of the task that has it."""
        return self._store.claim_key(task.owner, key, task.id)

    def list_owned(self, owner: Principal) -> Iterator[Task[R]]:
        """The one that changed last comes first."""
        owned = self._owners.get(owner)
        return reversed(owned.tasks.values()) if owned is not None else iter(())

    def end_principals(self, why_ended: WhyEnded) -> None:
        for task in [one for one in self if not one.finished]:
            if why := explain_lost_access(why_ended, task.owner):
                task.cancel(why)

    def __iter__(self) -> Iterator[Task[R]]:
        for owned in list(self._owners.values()):
            yield from list(owned.tasks.values())

    def __len__(self) -> int:
        return self._count

    @property
    def unsaved(self) -> int:
        """How many have something new that is not stored yet."""
        return len(self._unsaved)

    def read_entries(self, task: Task[R], after: int = 0, most: int | None = None) -> list[Entry]:
        return self._store.load_entries(task.key, after, most)

    # --- keeping -------------------------------------------------------------------------------

    def set_ttl(self, ttl: float) -> None:
        """Sets the seconds that a new task lives unless it asks for less."""
        self._ttl = ttl

    def insert(self, task: Task[R], ttl: float | None = None) -> None:
        """From now on it can be found. Raises `Overloaded` if there is no room for it."""
        if self._closed:
            raise ShuttingDown("the hub is shutting down")
        owned = self._owners.get(task.owner) or OwnedTasks()
        if task.id in owned.tasks:
            raise InvalidInput(f'task "{task.id[:100]}" already exists; choose another id')
        self._store.check()  # nothing is started that cannot be stored
        if self._failing:
            self.flush()
        self._make_room(owned)
        self._owners[task.owner] = owned  # without tasks until now, or since room was made
        self._put(task, owned)
        if self._ttl:
            task.ttl = self._ttl if ttl is None else min(max(ttl, 1.0), self._ttl)
            left = max(task.created + task.ttl - time(), 0.0)
            self._expiries[task] = asyncio.get_running_loop().call_later(left, self.remove, task)
        self.note_change(task)
        if self._sweep_timer is None:
            self._start_sweeping()

    def on_remove(self, listener: Callable[[Task[R]], None]) -> None:
        """Calls `listener` with every task that is removed."""
        self._on_remove.append(listener)

    def remove(self, task: Task[R], why: HubError | None = None) -> None:
        """Forgets a task and stops its call, which is cancelled or has failed for a reason."""
        owned = task.owned
        if owned is None:
            return
        del owned.tasks[task.id]
        if not owned.tasks:
            del self._owners[task.owner]
        self._count -= 1
        self._add_size(task, -task.size)
        for kept in (owned.finished, self._finished, self._unsaved):
            kept.pop(task, None)
        self._held_bytes -= self._held.pop(task, 0)
        if (expiry := self._expiries.pop(task, None)) is not None:
            expiry.cancel()
        task.registry = task.owned = None
        if task.key:
            self._store.delete(task.key)
        for listener in self._on_remove:
            listener(task)
        if not task.finished:
            task.cancel() if why is None else task.fail(why)
        self._await_end(task)

    def note_change(self, task: Task[R]) -> None:
        self._unsaved[task] = None
        owned = task.owned
        assert owned is not None
        if next(reversed(owned.tasks)) != task.id:
            owned.tasks[task.id] = owned.tasks.pop(task.id)
        if task.finished and task not in owned.finished:
            self._note_end(task, owned)
        if self._save_timer is None:
            loop = asyncio.get_running_loop()
            self._save_timer = loop.call_later(self._limits.save_seconds, self._save)

    def flush(self, least: Task[R] | None = None) -> None:
        """Stores everything that has happened, or at least everything that has to that task. Raises
        `StorageFailed` when it cannot."""
        if not self._unsaved or (least is not None and least not in self._unsaved):
            return
        changes = []
        for task in self._unsaved:
            kept, saved = task.record, task.saved
            changes.append(
                TaskChange(
                    task.key, task.id, task.owner, task.state, task.created, task.updated,
                    kept.header, kept.entries[saved - kept.count :] if saved < kept.count else (),
                )
            )  # fmt: skip
        self._failing = True
        stored = self._store.save(changes)
        self._failing = False
        tasks, self._unsaved = self._unsaved, {}
        for task, (key, size) in zip(tasks, stored, strict=True):
            # Calls nothing: this is on the path of every message.
            task.key = key
            task.saved = task.record.count
            task.size += size
            self._bytes += size
            if task.owned is not None:
                task.owned.size += size
            if not task.finished:
                continue
            if task.record.keeps_result:
                self._hold_result(task)
                continue
            if not (task.watchers or task.waiters):
                task.result = None
                task.record.entries = []  # the view stays, for clients that get the task soon
            self._held_bytes += task.size - self._held.get(task, 0)
            self._held[task] = task.size
        if self._held_bytes > self._limits.held_bytes:
            self._free_memory()

    def _save(self) -> None:
        self._save_timer = None
        try:
            self.flush()
        except Exception as error:
            if isinstance(error, HubError):
                STORAGE_OUTAGE.note(f"tasks cannot be stored: {error}")
            else:
                log.exception("tasks cannot be stored")
            loop = asyncio.get_running_loop()
            self._save_timer = loop.call_later(self._limits.retry_seconds, self._save)

    def _add_size(self, task: Task[R], size: int) -> None:
        task.size += size
        self._bytes += size
        if task.owned is not None:
            task.owned.size += size

    def _put(self, task: Task[R], owned: OwnedTasks[R]) -> None:
        owned.tasks[task.id] = task
        self._count += 1
        task.registry, task.owned = self, owned

    def _note_end(self, task: Task[R], owned: OwnedTasks[R]) -> None:
        owned.finished[task] = self._finished[task] = None

    def _hold_result(self, task: Task[R]) -> None:
        result = task.result
        if result is None or task in self._held:
            return
        size = result.size
        if size < 0:
            parts = (result.content, result.structured, result.extra)
            size = sum(len(repr(part)) for part in parts)
        self._held[task] = size
        self._held_bytes += size

    def _free_memory(self) -> None:
        for task in list(self._held)[:-1]:
            if self._held_bytes <= self._limits.held_bytes:
                return
            if task.record.keeps_result:
                self.remove(task)
            elif not _is_needed(task):
                self._release(task)

    def _release(self, task: Task[R]) -> None:
        self._held_bytes -= self._held.pop(task)
        task.result = None
        task.record.release()

    # --- bounds --------------------------------------------------------------------------------

    def _make_room(self, owned: OwnedTasks[R]) -> None:
        """For one more task of that owner."""
        limits = self._limits
        # More than one too many, where the limit was lowered.
        while len(owned.tasks) >= limits.count_per_owner:
            if not self._remove_first(owned.finished):
                raise Overloaded(
                    f"{len(owned.tasks)} tasks of this caller are unfinished, and no more are "
                    "kept; wait for one, answer it or cancel it"
                )
        while self._count >= limits.count:
            if not self._remove_first(owned.finished or self._finished):
                raise Overloaded(
                    f"{self._count} tasks are unfinished on this hub, which is the limit"
                )
        self.make_space(owned)

    def make_space(self, owned: OwnedTasks[R]) -> None:
        """So that a task of that owner may grow. Raises `Overloaded` if there is no space."""
        most = self._limits.stored_bytes
        while owned.size >= most * self._limits.owner_share:
            if not self._remove_first(owned.finished):
                raise Overloaded(
                    "the unfinished tasks of this caller take all the space there is for one; "
                    "wait for one, answer it or cancel it"
                )
        while self._bytes >= most:
            if not self._remove_first(owned.finished or self._finished):
                raise Overloaded("the unfinished tasks take all the space there is on this hub")

    def _remove_first(self, finished: OrderedDict[Task[R], None]) -> bool:
        if finished:
            self.remove(next(iter(finished)))
            return True
        return False

    def _start_sweeping(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep_timer = loop.call_later(self._limits.sweep_seconds, self._sweep)

    def _sweep(self) -> None:
        """Releases finished tasks without watchers, and fails those that have waited too long for
        their client."""
        self._sweep_timer = None
        if self._closed:
            return
        for task in list(self._held):
            if not (task.record.keeps_result or _is_needed(task)):
                self._release(task)
        idle = self._limits.idle_seconds
        before = time() - idle if self._clock_is_steady() else 0.0
        for task in self:
            if not task.finished and not task.running and task.updated < before:
                task.fail(NotFound(f"it expired: no answer came for {idle:g} s"))
        self._start_sweeping()

    def _await_end(self, task: Task[R]) -> None:
        if task.call is not None:
            self._ending.add(task.call)
            task.call.add_done_callback(self._ending.discard)


class VolatileTaskStore:
    """A `TaskStore` for tasks whose records keep everything in memory: it stores nothing."""

    def load(self) -> list[StoredTask]:
        return []

    def load_entries(self, key: int, after: int = 0, most: int | None = None) -> list[Entry]:
        return []

    def check(self) -> None: ...

    def save(self, changes: Sequence[TaskChange]) -> list[tuple[int, int]]:
        return [(0, 0)] * len(changes)

    def delete(self, key: int) -> None: ...

    def load_pushes(self) -> list[StoredPush]:
        return []

    def save_push(self, push: StoredPush) -> None: ...

    def delete_push(self, task: int, id: str) -> None: ...

    def find_hub(self, owner: Principal, id: str) -> str | None:
        return None

    def find_left(self, hubs: Sequence[str]) -> set[str]:
        return set()

    def load_elsewhere(self, owner: Principal) -> list[StoredTask]:
        return []

    def load_ended(self, hub: str) -> list[EndedTask]:
        return []

    def take_over(self, hub: str, keys: Sequence[int], damaged: Sequence[int]) -> set[int]:
        return set()

    def claim_key(self, owner: Principal, key: str, id: str) -> str:
        return id

    def rename_hub(self, hub: str) -> None: ...


def _is_needed(task: Task[Any]) -> bool:
    """Whether a response or a stream is about to read it from memory."""
    return bool(task.watchers or task.waiters)


def task_not_found(id: Any) -> NotFound:
    """For a task that does not exist, and for one that the caller may not know of."""
    return NotFound(f'task "{str(id)[:100]}" was not found, or has expired')
