"""Tasks: calls that go on after the one who made them has let go of the line.

A task is a running call held by the hub, nothing else; its states and their allowed moves are the
table below, and what happened to it is an append-only log. It belongs to one principal, to everyone
else there is no such task. It has an end (its time is over, and whatever still runs is stopped),
and so has the number of tasks that are kept: in memory here, on disk in `tasklist`.
Knows no protocol: how a task looks on a wire, and what it is called there, is each face's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from secrets import token_hex
from time import time
from typing import Any

from dragoman.core.access import WhyEnded
from dragoman.core.call import (
    Artifact,
    LogMessage,
    Progress,
    Question,
    Result,
    TaskStarted,
    Update,
    Updates,
    discard_update,
)
from dragoman.core.errors import BadReply, HubError, InvalidInput, NotFound, Overloaded
from dragoman.core.fast_dataclass import record
from dragoman.core.principal import Principal

log = logging.getLogger(__name__)

SUBMITTED, WORKING = "submitted", "working"
INPUT_REQUIRED, AUTH_REQUIRED = "input_required", "auth_required"
COMPLETED, FAILED, CANCELLED, REJECTED = "completed", "failed", "cancelled", "rejected"

ENDS = frozenset({COMPLETED, FAILED, CANCELLED, REJECTED})
WAITS = frozenset({INPUT_REQUIRED, AUTH_REQUIRED})
"""Where it is somebody's turn to say something."""

MOVES: Mapping[str, frozenset[str]] = {
    SUBMITTED: frozenset({WORKING}) | WAITS | ENDS,
    WORKING: WAITS | ENDS,
    INPUT_REQUIRED: frozenset({WORKING}) | ENDS,
    AUTH_REQUIRED: frozenset({WORKING}) | ENDS,
    COMPLETED: frozenset(),
    FAILED: frozenset(),
    CANCELLED: frozenset(),
    REJECTED: frozenset(),
}
"""Which states may follow each. FAILED is for a call that came to no result, REJECTED for one that
its target would not take up."""

MAX_ROUNDS = 500
"""How often one task may ask."""
AGAIN_SECONDS = 0.1
MAX_MESSAGE = 1_000
MAX_HELD_BYTES = 64 * 1024 * 1024
"""All results together; beyond it the oldest go before their time."""

Work = Callable[[Updates, Mapping[str, Any] | None, str | None], Coroutine[Any, Any, Result]]
"""Makes the call, or the one that continues it: where its updates go, the answers, the handle. A
handle without answers says that nobody will answer: the target lets go of what it holds for it."""


@record(frozen=True, slots=True)
class Entry:
    """Something that happened to a task. Numbers count from 1 and are never used again."""

    number: int
    at: float
    event: Mapping[str, Any]
    """What it was, in the words of the face that the task belongs to."""


class Task:
    """Made for a call that may last; `start` makes the call. Nobody can find it by its id until
    `Tasks.keep` has taken it."""

    # Subclasses come to more than 30 attributes, with which a `__dict__` is slow.
    __slots__ = (
        "__weakref__", "_answers", "_asked", "_rounds", "_running", "_watchers", "_work", "asked",
        "created", "entries", "error", "finished", "id", "lasting", "message", "owner", "questions",
        "result", "state", "ttl", "updated",
    )  # fmt: skip

    def __init__(self, owner: Principal, work: Work, id: str = "") -> None:
        self.id = id or token_hex(16)
        self.owner = owner
        self.created = self.updated = time()
        self.ttl = 0.0
        """Seconds from its creation, once it is kept."""
        self.state = WORKING
        self.finished = False
        """Whether no state follows the one it is in."""
        self.message = ""
        """What it is doing or came to, for people."""
        self.lasting = False
        """Whether the far side has said that this goes on for long."""
        self.questions: dict[str, Question] = {}
        """Those that are open. A name stands for one question as long as the task lives."""
        self.asked: Result | None = None
        """The questions as the call put them, with their handle, while they are open."""
        self.result: Result | None = None
        self.error: Exception | None = None
        self.entries: list[Entry] = []
        """What happened to it, in order."""
        self._work: Work | None = work
        self._running: asyncio.Task[None] | None = None
        self._watchers: list[Callable[[], None]] = []
        self._asked: dict[str, str] = {}
        """Every question there was, by the name it has here, and its name in the call."""
        self._rounds = 0
        self._answers: dict[str, Any] = {}

    @property
    def running(self) -> bool:
        """Whether a call of it is under way; perhaps still after it was cancelled."""
        return self._running is not None and not self._running.done()

    def start(self, answers: Mapping[str, Any] | None = None, handle: str | None = None) -> None:
        """The answers and the handle are of a question that was asked before there was a task."""
        self._running = asyncio.get_running_loop().create_task(self._run(answers, handle))

    # --- hearing of it -------------------------------------------------------------------------

    def watch(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Calls `watcher` after every change, until what this returns is called."""
        self._watchers.append(watcher)

        def stop() -> None:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

        return stop

    async def until(self, true: Callable[[Task], bool], seconds: float | None = None) -> bool:
        """Waits until `true` of the task, at most so long; says whether it is."""
        if true(self):
            return True
        loop = asyncio.get_running_loop()
        reached: asyncio.Future[None] = loop.create_future()

        def look() -> None:
            if not reached.done() and true(self):
                reached.set_result(None)

        stop = self.watch(look)
        try:
            if seconds is None:
                await reached
            else:
                await asyncio.wait([reached], timeout=seconds)
        finally:
            stop()
            reached.cancel()
        return true(self)

    # --- having it done ------------------------------------------------------------------------

    def answer(self, answers: Mapping[str, Any]) -> None:
        """Takes the answers to open questions, by their names here, and leaves others aside. When
        the last one is answered the call goes on."""
        if self.state not in WAITS:
            return
        for name in [name for name in answers if name in self.questions]:
            del self.questions[name]
            self._answers[self._asked[name]] = answers[name]
        self._continue()

    def _withdraw(self, name: str, withdrawn: asyncio.Future[None]) -> None:
        """The call does not want an answer to this question any more."""
        if self.state in WAITS and self.questions.pop(name, None) is not None:
            self._continue()

    def _continue(self) -> None:
        """Goes on with the call unless it still waits for answers."""
        if self.questions:
            self._tell()
            return
        given, handle = self._answers, self._handle
        self._answers, self.asked = {}, None
        self._move(WORKING, "")
        self.start(given, handle)

    def cancel(self, why: str = "") -> bool:
        """Stops the call at once; False when there is nothing left to stop. `why` is for the
        record, where it is not its client that wants so."""
        return self._stop(CANCELLED, f"it was cancelled: {why}" if why else "it was cancelled", why)

    def fail(self, error: HubError) -> bool:
        """The same, for a reason: its questions cannot be answered."""
        if not self.finished:
            self.error = error
        return self._stop(FAILED, str(error))

    def _stop(self, state: str, message: str, why: str = "") -> bool:
        if self.finished:
            return False
        running, handle, work = self._running, self._handle, self._work
        waiting = self.state in WAITS
        self._move(state, message)
        if waiting and work is not None and handle is not None:
            # Nothing runs here, but the far side waits.
            giving_up = _give_up(work(discard_update, None, handle))
            self._running = asyncio.get_running_loop().create_task(giving_up)
        elif running is not None:
            running.cancel(why or None)
        return True

    async def ended(self) -> None:
        """Until nothing of it runs any more."""
        if self._running is not None:
            await asyncio.wait([self._running])

    @property
    def _handle(self) -> str | None:
        return self.asked.handle if self.asked is not None else None

    async def _run(self, answers: Mapping[str, Any] | None, handle: str | None) -> None:
        assert self._work is not None
        try:
            result = await self._work(self._update, answers, handle)
            if result.questions is not None:
                result = await self._asked_again(self._work, result)
        except asyncio.CancelledError:
            if not self.finished:
                self._move(CANCELLED, "it was stopped")
            raise
        except Exception as error:
            self._fail(error)
        else:
            if self.finished:
                return  # cancelled; the call came to its end all the same
            if result.questions is not None:
                self._ask(result, result.questions)
            else:
                self._finish(result)

    def _finish(self, result: Result) -> None:
        """A call that ran and says that it failed is completed all the same."""
        self.result = result
        self._move(COMPLETED, "")

    async def _asked_again(self, work: Work, result: Result) -> Result:
        """What comes of a call that asks. One that asks for nothing in particular wants to be made
        again, and not at once."""
        while result.questions is not None:
            self._rounds += 1
            if self._rounds > MAX_ROUNDS:
                raise BadReply("it asks again and again, and was stopped")
            if result.questions:
                break
            await asyncio.sleep(AGAIN_SECONDS)
            result = await work(self._update, {}, result.handle)
        return result

    def _fail(self, error: Exception) -> None:
        if self.finished:
            return
        if not isinstance(error, HubError):
            log.error("a call held as a task crashed", exc_info=error)
        self.error = error
        self._move(FAILED, str(error) if isinstance(error, HubError) else "it crashed")

    def _ask(self, asked: Result, questions: Mapping[str, Question]) -> None:
        for theirs, question in questions.items():
            name, again = theirs, 2
            while name in self._asked:
                name, again = f"{theirs}-{again}", again + 1
            self._asked[name] = theirs
            self.questions[name] = question
        self.asked = asked
        self._wait("; ".join(one.text for one in self.questions.values()))
        for name, question in list(self.questions.items()):
            if question.withdrawn is not None:
                question.withdrawn.add_done_callback(partial(self._withdraw, name))

    def _wait(self, words: str) -> None:
        self._move(INPUT_REQUIRED, words)

    def _update(self, update: Update) -> None:
        if self.finished or isinstance(update, LogMessage | Artifact):
            return
        if isinstance(update, TaskStarted):
            self.lasting = True
        message = words_of(update)
        if message:
            self.message = message[:MAX_MESSAGE]
        self._tell()

    def _move(self, state: str, message: str) -> None:
        if state not in MOVES[self.state]:
            raise InvalidInput(f'a task that is "{self.state}" cannot become "{state}"')
        self.state = state
        self.finished = state in ENDS
        self.message = message[:MAX_MESSAGE]
        self._moved()
        if self.finished:
            self._work = None
            self.asked = None
            self.questions = {}
            self._answers = {}
        self._tell()

    def _moved(self) -> None:
        """It has another state now, which belongs into the log."""
        self.append({"state": self.state, "message": self.message})

    def append(self, event: Mapping[str, Any]) -> Entry:
        """Writes down what happened, before anybody hears of it."""
        entry = Entry(len(self.entries) + 1, time(), event)
        self.entries.append(entry)
        return entry

    def _tell(self) -> None:
        self.updated = time()
        for watcher in list(self._watchers):
            watcher()


async def _give_up(call: Coroutine[Any, Any, Result]) -> None:
    try:
        await call
    except HubError as error:
        log.debug("a question was given up: %s", error)
    except Exception:
        log.exception("a question could not be given up")


def words_of(update: Progress | TaskStarted) -> str:
    """What is told of the work, for people."""
    if update.message or not isinstance(update, Progress):
        return update.message or ""
    return f"{update.progress:g} of {update.total:g}" if update.total else f"{update.progress:g}"


class Tasks:
    """Those that can be found by their ids."""

    def __init__(self, *, most: int, most_each: int, ttl: float) -> None:
        self._most = most
        self._most_each = most_each
        self.ttl = ttl
        """Seconds a task lives unless it asks for less."""
        self._tasks: dict[str, Task] = {}
        self._of: dict[Principal, dict[str, Task]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._bytes: dict[str, int] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def keep(self, task: Task, ttl: float | None = None) -> None:
        """From now on it can be found. Raises `Overloaded` where there is no room for it."""
        self._make_room(task.owner)
        task.ttl = min(max(ttl, 1.0), self.ttl) if ttl is not None else self.ttl
        self._tasks[task.id] = task
        self._of.setdefault(task.owner, {})[task.id] = task
        left = task.created + task.ttl - time()
        loop = asyncio.get_running_loop()
        self._timers[task.id] = loop.call_later(max(left, 0.0), self._drop, task)
        task.watch(lambda: self._weigh(task))
        self._weigh(task)

    def find(self, owner: Principal, id: Any) -> Task:
        task = self._tasks.get(id) if isinstance(id, str) else None
        if task is None or task.owner != owner:
            raise no_task(id)
        return task

    def of(self, owner: Principal) -> list[Task]:
        """The oldest first."""
        return list(self._of.get(owner, {}).values())

    def end_principals(self, why_ended: WhyEnded) -> None:
        for owner, tasks in list(self._of.items()):
            if why := why_ended(owner):
                for task in list(tasks.values()):
                    task.cancel(why)

    def __len__(self) -> int:
        return len(self._tasks)

    async def close(self) -> None:
        """Stops what runs, and waits until it has stopped."""
        for task in list(self._tasks.values()):
            self._drop(task)
        if self._ending:
            await asyncio.wait(list(self._ending))

    def _make_room(self, owner: Principal) -> None:
        mine = self._of.get(owner, {})
        if len(mine) >= self._most_each and not self._drop_finished(mine):
            raise Overloaded(
                f"{len(mine)} tasks of this caller are under way, and no more are allowed; "
                "wait for one or cancel it"
            )
        if len(self._tasks) >= self._most and not (
            self._drop_finished(self._of.get(owner, {})) or self._drop_finished(self._tasks)
        ):
            raise Overloaded(
                f"{len(self._tasks)} tasks are under way here, which is all there may be"
            )

    def _drop_finished(self, tasks: Mapping[str, Task]) -> bool:
        task = next((task for task in tasks.values() if task.finished), None)
        if task is None:
            return False
        self._drop(task)
        return True

    def _drop(self, task: Task) -> None:
        """Nobody finds it any more; if it runs it is stopped."""
        self._tasks.pop(task.id, None)
        self._bytes.pop(task.id, None)
        if timer := self._timers.pop(task.id, None):
            timer.cancel()
        if (mine := self._of.get(task.owner)) is not None:
            mine.pop(task.id, None)
            if not mine:
                del self._of[task.owner]
        task.cancel()
        if task.running:  # perhaps cancelled long ago: it ends when it ends
            ending = asyncio.get_running_loop().create_task(task.ended())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    def _weigh(self, task: Task) -> None:
        if task.result is None or task.id in self._bytes or task.id not in self._tasks:
            return
        self._bytes[task.id] = _weight(task.result)
        while sum(self._bytes.values()) > MAX_HELD_BYTES and len(self._bytes) > 1:
            self._drop(self._tasks[next(iter(self._bytes))])


def _weight(result: Result) -> int:
    if result.size >= 0:
        return result.size
    return len(repr(result.content)) + len(repr(result.structured)) + len(repr(result.extra))


def no_task(id: Any) -> NotFound:
    """For one that there is not, and for one that somebody may not know of."""
    return NotFound(f'there is no task "{str(id)[:100]}", or its time is over')
