"""A task: a call that the hub runs for a principal who need not wait for it.

`Task` runs the call and knows in which state it is; the table below says which states may follow.
`TaskRecord` is what a protocol keeps of it: an append-only log, and what that adds up to. Knows no
protocol and no storage; `task_registry` keeps tasks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from secrets import token_hex
from time import time
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from dragoman.core.background import start_task
from dragoman.core.backoff import Backoff
from dragoman.core.call import (
    FOLLOW,
    Artifact,
    LogMessage,
    Progress,
    Question,
    Result,
    TaskNamed,
    TaskStarted,
    Update,
    Updates,
    discard_update,
)
from dragoman.core.errors import (
    BadReply,
    HubError,
    InvalidInput,
    ShuttingDown,
    WorkFailed,
    is_own_trouble,
    is_stopping,
)
from dragoman.core.principal import Principal
from dragoman.core.structs import Struct
from dragoman.core.tool import Tool

if TYPE_CHECKING:
    from dragoman.core.task_registry import OwnedTasks, TaskRegistry

log = logging.getLogger(__name__)

SUBMITTED, WORKING = "submitted", "working"
INPUT_REQUIRED, AUTH_REQUIRED = "input_required", "auth_required"
COMPLETED, FAILED, CANCELLED, REJECTED = "completed", "failed", "cancelled", "rejected"

ENDS = frozenset({COMPLETED, FAILED, CANCELLED, REJECTED})
WAITS = frozenset({INPUT_REQUIRED, AUTH_REQUIRED})
"""The task waits for its client."""

MOVES: Mapping[str, frozenset[str]] = {
    SUBMITTED: frozenset({WORKING}) | WAITS | ENDS,
    WORKING: WAITS | ENDS,
    **dict.fromkeys(WAITS, frozenset({WORKING}) | ENDS),
    **dict.fromkeys(ENDS, frozenset[str]()),
}
"""Which states may follow each. FAILED is for a call without a result, REJECTED for one that its
target declined."""

MAX_ROUNDS = 500
"""How often one task may ask."""
AGAIN_SECONDS = 0.1
TROUBLE_PAUSES = Backoff(first=0.5, longest=30.0)
"""Between the attempts to make a call that the hub itself cannot make now."""
MAX_MESSAGE = 1_000

NOTHING_GIVEN = None, None

Outcome: TypeAlias = tuple[Tool, Result]
"""What `Hub.call` returns."""
Work = Callable[[Any, Updates, Mapping[str, Any] | None, str | None], Coroutine[Any, Any, Outcome]]
"""Makes the call of a task, or the one that continues it: the task, where updates go, the answers,
the handle. A handle without answers says that no answer will come: the target frees what it keeps
for it."""


class Entry(Struct, frozen=True):
    """An event of a task. Numbers count from 1 and are never reused."""

    number: int
    at: float
    event: Mapping[str, Any]
    """In the terms of the protocol that the task belongs to."""


class TaskRecord:
    """What a protocol keeps of a task. This base logs the states; protocols override the hooks.

    A `take_` hook is called when something happens to the call, before watchers are notified. It
    logs the event, and returns the state that follows from it, which it has logged as well.
    """

    __slots__ = ("count", "entries", "header")

    keeps_result = False
    """Whether `Task.result` is all there is of the result: the log does not have it."""

    def __init__(self) -> None:
        self.header: Any = {}
        """What is stored beside the log: anything that encodes to a JSON object."""
        self.entries: list[Entry] = []
        self.count = 0
        """How many entries it has; those of a finished task may be in the store only."""

    def append(self, event: Mapping[str, Any]) -> None:
        self.count += 1
        self.entries.append(Entry(self.count, time(), event))

    def restore(self, entries: list[Entry]) -> None:
        """Continues with the stored log of an unfinished task."""
        self.entries = entries

    def release(self) -> None:
        """Frees the memory of a finished and stored task; its log is read from the store."""
        self.entries = []

    def log_state(self, state: str, words: str) -> None:
        """`words` are for the client; empty where the state says everything."""
        self.append({"state": state, "message": words})

    def take_update(self, task: Task[Any], update: Update) -> bool:
        """Returns whether watchers need to be notified."""
        if task.finished or isinstance(update, LogMessage | Artifact | TaskNamed):
            return False
        if isinstance(update, TaskStarted):
            task.lasting = True
        if message := render_update(update):
            task.message = message[:MAX_MESSAGE]
        return True

    def take_result(self, task: Task[Any], result: Result) -> str:
        """A tool that ran and reports an error has completed."""
        self.log_state(COMPLETED, "")
        return COMPLETED

    def take_error(self, task: Task[Any], error: BaseException) -> str:
        self.log_state(FAILED, render_error(error))
        return FAILED

    def take_questions(self, task: Task[Any], words: str) -> str:
        self.log_state(INPUT_REQUIRED, words)
        return INPUT_REQUIRED

    def is_promised(self, task: Task[Any]) -> bool:
        """Whether a client knows of the task and relies on it. A call that the hub itself cannot
        make now is then made later; otherwise its client gets the error and may call again."""
        return task.registry is not None

    def can_follow(self, asked: Result) -> bool:
        """Whether the call continues by itself once its question is settled elsewhere."""
        return False


R = TypeVar("R", bound=TaskRecord)


class Task(Generic[R]):
    """Runs one call. It can be found by its id once `TaskRegistry.insert` has taken it."""

    __slots__ = (
        "__weakref__", "_answers", "_following", "_given", "_names", "_rounds", "_work", "asked",
        "call", "created", "error", "finished", "id", "is_put_back", "key", "lasting", "message",
        "owned", "owner", "partial_answers", "questions", "record", "registry", "result", "resumed",
        "saved", "size", "state", "troubles", "ttl", "updated", "waiters", "watchers",
    )  # fmt: skip

    def __init__(
        self, owner: Principal, work: Work, record: R, id: str = "", state: str = WORKING
    ) -> None:
        self.id = id or token_hex(16)
        self.owner = owner
        self.record = record
        self.created = self.updated = time()
        self.ttl = 0.0
        """Seconds from its creation until it is removed; 0 for a task that does not expire."""
        self.state = state
        self.finished = False
        """Whether no state follows the one it is in."""
        self.message = ""
        """What it is doing or how it ended, for people."""
        self.lasting = False
        """Whether the target has said that this takes long."""
        self.questions: dict[str, Question] = {}
        """The open ones. A name stands for one question as long as the task lives."""
        self.asked: Result | None = None
        """The questions as the call put them, with their handle, while they are open."""
        self.partial_answers: dict[str, Any] = {}
        """The answers so far where the client has answered a part of a form."""
        self.result: Result | None = None
        self.error: BaseException | None = None
        self.resumed = False
        """Whether the running call answers a question."""
        self.troubles = 0
        """How often in a row the hub itself could not make the call, which is tried again."""
        self.is_put_back = False
        """Whether the call waits for the next attempt: nothing of it has left."""
        self.call: asyncio.Task[Any] | None = None
        """The running call, until its outcome is taken; perhaps still after it was cancelled."""
        self.watchers: list[Callable[[], None]] = []
        self.waiters: list[asyncio.Future[None]] = []
        """Futures that resolve when the task has ended or waits for its client. The function that
        appends one removes it after awaiting it."""
        self.registry: TaskRegistry[R] | None = None
        self.owned: OwnedTasks[R] | None = None
        """Where the registry keeps it, beside the others of its owner."""
        self.key = 0
        """Its key in the store; 0 until it was saved."""
        self.saved = 0
        """How many of its entries are stored."""
        self.size = 0
        """Bytes that these take."""
        self._work: Work | None = work
        self._given: tuple[Mapping[str, Any] | None, str | None] = NOTHING_GIVEN
        """The answers and the handle of the running call."""
        self._following: asyncio.Task[Outcome] | None = None
        """The call that waits until the open question is settled elsewhere."""
        self._names: dict[str, str] = {}
        """Every question there was, by the name it has here, and its name in the call."""
        self._rounds = 0
        self._answers: dict[str, Any] = {}

    @property
    def attempt(self) -> str:
        """Names its call, in each attempt to make it. Clients may choose ids, and use them again
        later."""
        return f"task {self.id} {self.created!r}"

    @property
    def running(self) -> bool:
        return self.call is not None or self._following is not None

    def start(self, answers: Mapping[str, Any] | None = None, handle: str | None = None) -> None:
        """Makes the call. `answers` and `handle` are those of a question that was asked before."""
        assert self._work is not None
        self.resumed = handle is not None
        self._given = (answers, handle) if self.resumed else NOTHING_GIVEN
        try:
            call = self._work(self, self._take_update, answers, handle)
        except Exception as error:
            self._take_failure(error)
        else:
            self.call = start_task(call)
            self.call.add_done_callback(self._take_outcome)

    def begin(self) -> None:
        """Makes the call, again if the task has waited."""
        if self.state in WAITS:
            self._stop_following()
            self._drop_questions()
        self.error = None
        self.update_status(WORKING, "")
        self.start()

    # --- watching ------------------------------------------------------------------------------

    def watch(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Calls `watcher` after every change, until the returned function is called."""
        self.watchers.append(watcher)

        def stop() -> None:
            if watcher in self.watchers:
                self.watchers.remove(watcher)

        return stop

    async def until(self, is_true: Callable[[Task[R]], bool], seconds: float | None = None) -> bool:
        """Waits until `is_true` of the task, for at most `seconds`; returns whether it is."""
        if is_true(self):
            return True
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def look() -> None:
            if not reached.done() and is_true(self):
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
        return is_true(self)

    def notify(self) -> None:
        """Has what was logged stored, and calls the watchers."""
        self.updated = time()
        if self.registry is not None:
            self.registry.note_change(self)
        if self.waiters and (self.finished or self.state in WAITS):
            for waiter in self.waiters:
                if not waiter.done():
                    waiter.set_result(None)
        if self.watchers:
            for watcher in tuple(self.watchers):
                watcher()

    # --- what clients do -----------------------------------------------------------------------

    def answer(self, answers: Mapping[str, Any]) -> None:
        """Takes the answers to open questions, by their names here, and ignores others. The call
        continues after the last one."""
        self._stop_following()
        if self.state not in WAITS:
            return
        for name in [name for name in answers if name in self.questions]:
            del self.questions[name]
            self._answers[self._names[name]] = answers[name]
        self._continue()

    def _withdraw(self, name: str, withdrawn: asyncio.Future[None]) -> None:
        """The call does not need an answer to this question any more."""
        if self.state in WAITS and self.questions.pop(name, None) is not None:
            self._continue()

    def _continue(self) -> None:
        if self.questions:
            self.notify()
            return
        given, handle = self._answers, self._handle
        self._answers, self.asked = {}, None
        self.update_status(WORKING, "")
        self.start(given, handle)

    def ask(self, words: str) -> None:
        """Waits for the client without a question of the target's, or repeats what is missing."""
        if self.state in WAITS:
            self.record.log_state(self.state, words)
            self.notify()
        else:
            self.update_status(INPUT_REQUIRED, words, words)

    def cancel(self, why: str = "") -> bool:
        """Stops the call at once; False if the task has ended. `why` is for the record, where it
        is not the client that cancels."""
        message = f"it was cancelled: {why}" if why else "it was cancelled"
        return self._stop(CANCELLED, message, message if why else "", why)

    def fail(self, error: HubError) -> bool:
        """Stops the call because of `error`; False if the task has ended."""
        if not self.finished:
            self.error = error
        return self._stop(FAILED, str(error), str(error))

    def interrupt(self) -> None:
        """Fails a task whose call the hub cannot finish because it stops, or has stopped."""
        if self.is_put_back:
            self.fail(ShuttingDown("it was not begun: the hub was stopped before it could begin"))
        else:
            self.fail(WorkFailed("it was interrupted: the hub was stopped while it worked on this"))

    def _stop(self, state: str, message: str, words: str, why: str = "") -> bool:
        self._stop_following()
        if self.finished:
            return False
        call, handle, work = self.call, self._handle, self._work
        waiting = self.state in WAITS
        self.update_status(state, message, words)
        if waiting and work is not None and handle is not None:
            # No call runs here, but the target waits.
            self.call = start_task(_drop_handle(work(self, discard_update, None, handle)))
            self.call.add_done_callback(self._take_outcome)
        elif call is not None:
            call.cancel(why or None)
        return True

    @property
    def _handle(self) -> str | None:
        return self.asked.handle if self.asked is not None else None

    # --- what the call does --------------------------------------------------------------------

    def _take_update(self, update: Update) -> None:
        if self.record.take_update(self, update):
            self.notify()

    def _take_outcome(self, call: asyncio.Task[Outcome]) -> None:
        if call is self.call:
            self.call = None
        if call.cancelled():
            if not self.finished:
                self.update_status(CANCELLED, "it was stopped")
            return
        error = call.exception()
        if self.finished:
            return  # it was stopped, and the call came to its end all the same
        if error is not None:
            self._take_failure(error)
        else:
            self._take_result(call.result()[1])

    def _take_failure(self, error: BaseException) -> None:
        """Makes the call later if it was the hub itself that could not make it, and takes any other
        error. A hub that stops ends its tasks."""
        is_put_back = is_own_trouble(error) and not is_stopping(error)
        if not is_put_back or not self.record.is_promised(self):
            self._take_error(error)
            return
        self.troubles += 1
        if self.troubles == 1:
            self.message = f"it waits, and is tried again: {error}"[:MAX_MESSAGE]
            self.record.log_state(self.state, self.message)
            self.notify()
        self.call = start_task(self._try_again(TROUBLE_PAUSES.delay(self.troubles)))
        self.call.add_done_callback(self._take_outcome)

    async def _try_again(self, pause: float) -> Outcome:
        self.is_put_back = True
        await asyncio.sleep(pause)
        self.is_put_back = False
        assert self._work is not None
        outcome = await self._work(self, self._take_update, *self._given)
        self.troubles = 0
        return outcome

    def _take_result(self, result: Result) -> None:
        try:
            self._apply_result(result)
        except Exception as error:  # the task would wait for ever
            self._take_error(error)

    def _apply_result(self, result: Result) -> None:
        if result.questions is None:
            self.complete(result)
            return
        self._rounds += 1
        if self._rounds > MAX_ROUNDS:
            self._take_error(BadReply("it asks again and again, and was stopped"))
        elif result.questions:
            self._take_questions(result, result.questions)
        else:  # it asks nothing in particular: it wants to be called again, and not at once
            self.call = start_task(self._call_again(result.handle))
            self.call.add_done_callback(self._take_outcome)

    async def _call_again(self, handle: str | None) -> Outcome:
        self._given = {}, handle
        await asyncio.sleep(AGAIN_SECONDS)
        assert self._work is not None
        return await self._work(self, self._take_update, {}, handle)

    def complete(self, result: Result) -> None:
        self.result = result
        try:
            state = self.record.take_result(self, result)
        except Exception as error:
            self._take_error(error)
        else:
            self._enter(state, "")

    def _take_error(self, error: BaseException) -> None:
        if not isinstance(error, HubError):
            log.error("the call of a task crashed", exc_info=error)
        self.error = error
        self._enter(self.record.take_error(self, error), render_error(error))

    def _take_questions(self, asked: Result, questions: Mapping[str, Question]) -> None:
        for theirs, question in questions.items():
            name, again = theirs, 2
            while name in self._names:
                name, again = f"{theirs}-{again}", again + 1
            self._names[name] = theirs
            self.questions[name] = question
        self.asked = asked
        words = "; ".join(one.text for one in self.questions.values())
        self._enter(self.record.take_questions(self, words), words)
        for name, question in list(self.questions.items()):
            if question.withdrawn is not None:
                question.withdrawn.add_done_callback(partial(self._withdraw, name))
        if asked.settles_itself and self.record.can_follow(asked) and self._work is not None:
            call = self._work(self, self._update_following, FOLLOW, asked.handle)
            self._following = start_task(call)
            self._following.add_done_callback(self._take_followed)

    # --- questions that are settled elsewhere ----------------------------------------------------

    def _stop_following(self) -> None:
        if self._following is not None:
            self._following.cancel()
            self._following = None

    def _update_following(self, update: Update) -> None:
        if self._following is not None:  # the question is settled: this is the task's call now
            self.call, self._following = self._following, None
            self._drop_questions()
            self.update_status(WORKING, "")
        self._take_update(update)

    def _take_followed(self, following: asyncio.Task[Outcome]) -> None:
        if following is self.call:
            self._take_outcome(following)
            return
        error = None if following.cancelled() else following.exception()
        if following is not self._following:
            return  # the client has answered first
        self._following = None
        if following.cancelled():
            return
        if error is not None:  # it waits for its client, as it would without this
            log.info('task "%s": stopped following its question: %s', self.id, error)
            return
        self._drop_questions()
        self.update_status(WORKING, "")
        self._take_result(following.result()[1])

    def _drop_questions(self) -> None:
        self.questions, self.asked, self.partial_answers = {}, None, {}

    # --- states --------------------------------------------------------------------------------

    def update_status(self, state: str, message: str, words: str = "") -> None:
        """Moves it to `state`; raises `InvalidInput` where the table does not allow that."""
        if state not in MOVES[self.state]:
            raise InvalidInput(f'a task that is "{self.state}" cannot become "{state}"')
        self.record.log_state(state, words)
        self._enter(state, message)

    def _enter(self, state: str, message: str) -> None:
        """The state is logged by now."""
        self.state = state
        self.message = message[:MAX_MESSAGE]
        if state in ENDS:
            self.finished = True
            self._work = self.asked = None
            self.questions, self._answers = {}, {}
        self.notify()

    def entries_after(self, number: int, most: int | None = None) -> list[Entry]:
        """Where they are read from the store, at least one and no more than about `most` bytes."""
        record = self.record
        if not record.entries and record.count and self.registry is not None:
            return self.registry.read_entries(self, number, most)
        return record.entries[number:]


def is_settled(task: Task[Any]) -> bool:
    """Whether it has ended, or waits for its client."""
    return task.finished or task.state in WAITS


async def _drop_handle(call: Coroutine[Any, Any, Any]) -> None:
    """Runs the call that says that no answer will come."""
    try:
        await call
    except HubError as error:
        log.debug("a question was withdrawn: %s", error)
    except Exception:
        log.exception("a question could not be withdrawn")


def render_update(update: Progress | TaskStarted) -> str:
    """What an update says to people."""
    if update.message or not isinstance(update, Progress):
        return update.message or ""
    return f"{update.progress:g} of {update.total:g}" if update.total else f"{update.progress:g}"


def render_error(error: BaseException) -> str:
    return str(error) if isinstance(error, HubError) else "it crashed"
