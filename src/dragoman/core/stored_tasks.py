"""Tasks that outlive the hub: what happens to them is stored before anybody hears of it.

A change is noted and saved with all others in one transaction: before the next answer that could
tell of it, or after some milliseconds. Bounded for each caller and in all, in number and in bytes:
the oldest finished task goes first, and where none is finished the new one is refused. Knows
neither a protocol nor a database; how a task is made again from what is stored, its owner says.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from time import time
from typing import Any

from dragoman.core.access import WhyEnded
from dragoman.core.errors import (
    HubError,
    InvalidInput,
    NotFound,
    Overloaded,
    ShuttingDown,
    StorageFailed,
)
from dragoman.core.ports import StoredTask, TaskChange, TaskStore
from dragoman.core.principal import Principal
from dragoman.core.tasks import ENDS, WAITS, Entry, Task, Work

log = logging.getLogger(__name__)

SAVE_SECONDS = 0.02
RETRY_SECONDS = 1.0
SHARE = 4
"""One caller may fill a quarter of the space."""
LOOK_SECONDS = 30.0
"""How often is looked for tasks that nobody has touched for long."""


class Owned:
    """What is kept of one caller."""

    __slots__ = ("finished", "size", "tasks")

    def __init__(self) -> None:
        self.tasks: dict[str, LoggedTask] = {}
        """The one that something happened to last is the last."""
        self.finished: OrderedDict[str, LoggedTask] = OrderedDict()
        """Those of them that are, the first to finish first, and the first to go: a plain dict that
        loses its first again and again takes ever longer to find it."""
        self.size = 0
        """Bytes that they take."""


class LoggedTask(Task):
    """A task whose log is stored."""

    __slots__ = ("count", "key", "owned", "saved", "size", "tasks")

    def __init__(self, owner: Principal, work: Work, id: str = "") -> None:
        super().__init__(owner, work, id)
        self.key = 0
        """Its place in the store; 0 until it was saved."""
        self.saved = 0
        """How many of its entries are stored."""
        self.size = 0
        self.count = 0
        """How many entries it has; those of one that is finished may be in the store alone."""
        self.tasks: StoredTasks | None = None
        self.owned: Owned | None = None
        """Where it is kept, beside the others of its owner."""

    def about(self) -> dict[str, object]:
        """What else must be known to make it again."""
        raise NotImplementedError

    def restore(self, entries: list[Entry]) -> None:
        """Takes up what happened to it before."""
        self.entries = entries

    def interrupt(self) -> None:
        """Ends what the hub was doing when it ended itself."""
        raise NotImplementedError

    def forget(self) -> None:
        """It is finished, stored and unwatched: what it came to is read from there when asked."""
        self.entries = []

    def append(self, event: Mapping[str, Any]) -> Entry:
        self.count += 1
        entry = Entry(self.count, time(), event)
        self.entries.append(entry)
        return entry

    @property
    def watched(self) -> bool:
        return bool(self._watchers)

    def entries_after(self, number: int, most: int | None = None) -> list[Entry]:
        """Where they are read from the store, at least one and no more than about `most` bytes."""
        if not self.entries and self.count and self.tasks is not None:
            return self.tasks.stored(self, number, most)
        return self.entries[number:]

    def _tell(self) -> None:
        self.updated = time()
        if self.tasks is not None:
            self.tasks.changed(self)
        for watcher in tuple(self._watchers):
            watcher()


class StoredTasks:
    def __init__(
        self,
        store: TaskStore,
        *,
        most: int,
        most_each: int,
        max_bytes: int,
        idle: float,
        clock_is_steady: Callable[[], bool] = lambda: True,
    ) -> None:
        """`clock_is_steady` tells whether the wall clock may say that a task has waited too long:
        one that has jumped would end all of them at once."""
        self._store = store
        self._most = most
        self._most_each = most_each
        self._max_bytes = max_bytes
        self._idle = idle
        self._clock_is_steady = clock_is_steady
        self._of: dict[Principal, Owned] = {}
        self._ended: OrderedDict[int, LoggedTask] = OrderedDict()
        """All that are finished, by their keys, the first to finish first."""
        self._count = 0
        self._bytes = 0
        self._dirty: dict[LoggedTask, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._heard: dict[LoggedTask, None] = {}
        """Those that were finished and stored while somebody still listened."""
        self._failing = False
        """Whether the last time that something was to be stored, it could not be."""
        self._on_remove: list[Callable[[LoggedTask], None]] = []
        self._closed = False

    # --- from start to end ---------------------------------------------------------------------

    def load(self, make: Callable[[StoredTask], LoggedTask]) -> None:
        """Takes up what an earlier hub has stored; what ran then has failed."""
        interrupted = []
        for stored in sorted(self._store.load(), key=lambda one: one.updated):
            task = make(stored)
            task.finished = task.state in ENDS
            task.key, task.saved = stored.key, stored.count
            task.count = stored.count
            owned = self._put(task)
            self._weigh(task, stored.size)
            if task.finished:
                self._note_end(owned, task)
                continue
            task.restore(self._store.load_entries(task.key))
            if task.state not in WAITS or stored.about.get("handle"):
                interrupted.append(task)  # a handle is good for the hub that sealed it alone
        for task in interrupted:
            task.interrupt()
        self.flush()
        self._begin_looking()

    async def close(self) -> None:
        """Stops what runs: it has failed, and that is stored."""
        self._closed = True
        for task in list(self):
            if task.running:
                task.interrupt()
                self._stopping(task)
        if self._ending:
            await asyncio.wait(list(self._ending))
        for timer in (self._timer, self._looking):
            if timer is not None:
                timer.cancel()
        self._timer = self._looking = None
        try:
            self.flush()
        except StorageFailed as error:
            log.error("tasks could not be stored at the end: %s", error)

    # --- finding -------------------------------------------------------------------------------

    def get(self, owner: Principal, id: str) -> LoggedTask:
        owned = self._of.get(owner)
        task = owned.tasks.get(id) if owned is not None else None
        if task is None:
            raise NotFound(f'there is no task "{id[:100]}"')
        return task

    def of(self, owner: Principal) -> Iterator[LoggedTask]:
        """The one that something happened to last comes first."""
        owned = self._of.get(owner)
        return reversed(owned.tasks.values()) if owned is not None else iter(())

    def end_principals(self, why_ended: WhyEnded) -> None:
        for owner, owned in list(self._of.items()):
            if why := why_ended(owner):
                for task in [one for one in owned.tasks.values() if not one.finished]:
                    task.cancel(why)

    def __iter__(self) -> Iterator[LoggedTask]:
        for owned in list(self._of.values()):
            yield from list(owned.tasks.values())

    def __len__(self) -> int:
        return self._count

    @property
    def unsaved(self) -> int:
        """How many have something new that is not stored yet."""
        return len(self._dirty)

    def stored(self, task: LoggedTask, after: int = 0, most: int | None = None) -> list[Entry]:
        return self._store.load_entries(task.key, after, most)

    # --- keeping -------------------------------------------------------------------------------

    def insert(self, task: LoggedTask) -> None:
        """From now on it can be found. Raises `Overloaded` where there is no room for it."""
        if self._closed:
            raise ShuttingDown("the hub is going down")
        owned = self._of.get(task.owner)
        if owned is not None and task.id in owned.tasks:
            raise InvalidInput(f'there is a task "{task.id[:100]}" already; choose another id')
        if self._failing:
            self.flush()  # nothing is begun that cannot be kept
        self._make_room(owned)
        self._put(task)
        self.changed(task)
        self._begin_looking()

    def on_remove(self, told: Callable[[LoggedTask], None]) -> None:
        """Calls `told` of every task that is removed."""
        self._on_remove.append(told)

    def remove(self, task: LoggedTask) -> None:
        """Nobody finds it any more; if it runs it is stopped."""
        owned = task.owned
        if owned is None:
            return
        del owned.tasks[task.id]
        owned.finished.pop(task.id, None)
        if not owned.tasks:
            del self._of[task.owner]
        self._count -= 1
        self._weigh(task, -task.size)
        self._dirty.pop(task, None)
        self._heard.pop(task, None)
        task.tasks = task.owned = None
        if task.key:
            self._ended.pop(task.key, None)
            self._store.delete(task.key)
        for told in self._on_remove:
            told(task)
        if not task.finished:
            task.cancel()
        if task.running:
            self._stopping(task)

    def changed(self, task: LoggedTask) -> None:
        self._dirty[task] = None
        owned = task.owned
        assert owned is not None
        if next(reversed(owned.tasks)) != task.id:
            owned.tasks[task.id] = owned.tasks.pop(task.id)
        if task.finished and task.id not in owned.finished:
            self._note_end(owned, task)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SAVE_SECONDS, self._save)

    def flush(self, least: LoggedTask | None = None) -> None:
        """All that has happened is stored when this returns, or at least all that has to that one.
        Raises `StorageFailed` when it cannot be."""
        if not self._dirty or (least is not None and least not in self._dirty):
            return
        tasks = list(self._dirty)
        changes = [
            TaskChange(
                task.key, task.id, task.owner, task.state, task.created, task.updated,
                task.about(), task.entries[task.saved - task.count :]
                if task.saved < task.count else (),
            )
            for task in tasks
        ]  # fmt: skip
        self._failing = True
        saved = self._store.save(changes)
        self._failing = False
        self._dirty.clear()
        for task, (key, size) in zip(tasks, saved, strict=True):
            task.key = key
            task.saved = task.count
            self._weigh(task, size)
            if task.finished:
                self._ended[key] = task
                if task.watched:
                    self._heard[task] = None
                else:
                    task.forget()

    def _save(self) -> None:
        self._timer = None
        try:
            self.flush()
        except Exception as error:
            broken = not isinstance(error, HubError)
            log.error("tasks cannot be stored: %s", error, exc_info=broken)
            self._timer = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._save)

    def _weigh(self, task: LoggedTask, size: int) -> None:
        task.size += size
        self._bytes += size
        if task.owned is not None:
            task.owned.size += size

    def _put(self, task: LoggedTask) -> Owned:
        owned = self._of.get(task.owner)
        if owned is None:
            owned = self._of[task.owner] = Owned()
        owned.tasks[task.id] = task
        self._count += 1
        task.tasks, task.owned = self, owned
        return owned

    def _note_end(self, owned: Owned, task: LoggedTask) -> None:
        owned.finished[task.id] = task
        if task.key:
            self._ended[task.key] = task

    # --- bounds --------------------------------------------------------------------------------

    def _make_room(self, owned: Owned | None) -> None:
        """For one more of that caller's; None for one of whom nothing is kept."""
        if owned is not None:
            # More than one too many, where the bound was lowered.
            while len(owned.tasks) >= self._most_each:
                if not self._drop_finished(owned):
                    raise Overloaded(
                        f"{len(owned.tasks)} tasks of this caller are unfinished, and no more are "
                        "kept; wait for one, answer it or cancel it"
                    )
        while self._count >= self._most:
            if not (self._drop_finished(owned) or self._drop_oldest()):
                raise Overloaded(
                    f"{self._count} tasks are unfinished here, which is all there may be"
                )
        self.make_space(owned)

    def make_space(self, owned: Owned | None) -> None:
        """Makes room for one task to grow. Raises `Overloaded` where there is none."""
        while owned is not None and owned.size >= self._max_bytes // SHARE:
            if not self._drop_finished(owned):
                raise Overloaded(
                    "the unfinished tasks of this caller take all the space there is for one; "
                    "wait for one, answer it or cancel it"
                )
        while self._bytes >= self._max_bytes:
            if not (self._drop_finished(owned) or self._drop_oldest()):
                raise Overloaded("the unfinished tasks take all the space that there is here")

    def _drop_finished(self, owned: Owned | None) -> bool:
        if owned is None or not owned.finished:
            return False
        self.remove(next(iter(owned.finished.values())))
        return True

    def _drop_oldest(self) -> bool:
        if not self._ended:
            return False
        self.remove(next(iter(self._ended.values())))
        return True

    def _begin_looking(self) -> None:
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """Those that wait for somebody who does not come, and those that nobody hears any more."""
        self._looking = None
        if self._closed:
            return
        for task in [task for task in self._heard if not task.watched]:
            del self._heard[task]
            task.forget()
        before = time() - self._idle if self._clock_is_steady() else 0.0
        for task in self:
            if not task.finished and not task.running and task.updated < before:
                task.fail(
                    NotFound(f"nobody has answered it for {self._idle:g} s, and it has expired")
                )
        self._begin_looking()

    def _stopping(self, task: LoggedTask) -> None:
        if task.running:  # it ends when it ends
            ending = asyncio.get_running_loop().create_task(task.ended())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
