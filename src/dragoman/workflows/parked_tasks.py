"""Steps whose work is a task elsewhere: of a remote agent, of a server, or another run.

The journal has what continues the task: `detail["task"]` of the step's record, from the moment when
the task has an id. While a step is parked, nothing is held in memory; the task is polled when the
step is due. Nothing here waits, stores or calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dragoman.core.call import BEGIN, CANCEL, NOTHING, POLL, Result, TaskNamed
from dragoman.core.errors import PASSING, HubError, NotFound, TargetFailed, TaskLost, TimedOut
from dragoman.core.runs import (
    NEEDS_DECISION,
    PENDING,
    TASK,
    WAITING,
    StepRecord,
    build_awaited,
)
from dragoman.core.structs import Struct, replace
from dragoman.workflows.active_run import INTERRUPTED, PARKED, TAKE_UP, ActiveRun, clip
from dragoman.workflows.run_calls import CallOutcome, RunCall

TASK_DETAIL: Final = "task"
POLL_CALL_SECS: Final = 60.0
"""How long one poll may take."""
FIRST_POLL: Final = 1.0
SHARE: Final = 0.2
"""The next poll is after this share of the time that the task has taken so far."""
FIND_SECS: Final = 600.0
"""How long an agent that is away is asked for a task of which only the message is known."""


class PollLimits(Struct, frozen=True, kw_only=True):
    longest: float = 60.0
    """Seconds between two polls, at most."""
    task_secs: float = 7 * 86_400.0
    """How long a task may take whose step has no timeout."""


class ParkedTasks:
    """How the outcomes of calls and polls change the steps whose work is a task."""

    def __init__(self, limits: PollLimits, vary: Callable[[float], float]) -> None:
        """`vary` changes a delay a little, so that many steps are not polled at once."""
        self._limits = limits
        self._vary = vary

    def find_end(self, timeout: float | None, now: float) -> float:
        """When a task that begins now has to be done."""
        return now + (self._limits.task_secs if timeout is None else timeout)

    # --- calls that begin a task ------------------------------------------------------------------

    def note_name(self, active: ActiveRun, path: str, call: RunCall, named: TaskNamed) -> None:
        """Journals what continues the task of a running call."""
        record = active.steps[path]
        detail = {
            "handle": named.handle,
            "tool": call.tool,
            "arguments": dict(call.arguments),
            "id": clip(named.id),
            "place": clip(named.place),
            "since": call.begun,
            "until": call.until,
        }
        agent = named.agent or record.agent
        active.put_quietly(replace(record, agent=agent, detail={TASK_DETAIL: detail}))

    def park(self, active: ActiveRun, path: str, call: RunCall, result: Result, now: float) -> None:
        """Leaves a task to itself: it is polled from now on."""
        record = active.steps[path]
        if TASK_DETAIL not in record.detail:  # a target that did not name it before
            named = TaskNamed(handle=result.handle or "", id="")
            self.note_name(active, path, call, named)
        record = self._set_times(active, active.steps[path], now)
        name = record.agent or record.tool
        waiting = replace(record, state=WAITING, awaited=build_awaited(TASK, name))
        active.put(replace(waiting, wake_at=self._find_next(record, now)))

    def watch_question(self, active: ActiveRun, path: str, result: Result, now: float) -> None:
        """Polls a task that asks something which may be settled elsewhere, such as a login."""
        record = active.steps[path]
        if result.settles_itself and is_polled(record):
            record = self._set_times(active, record, now)
            active.put(replace(record, wake_at=self._find_next(record, now)))

    def _set_times(self, active: ActiveRun, record: StepRecord, now: float) -> StepRecord:
        """Sets the time of a task that begins anew after an answer."""
        task = record.detail[TASK_DETAIL]
        if task["until"]:
            return record
        until = self.find_end(active.find_compiled(record).step.timeout_secs, now)
        renewed = {**record.detail, TASK_DETAIL: {**task, "since": now, "until": until}}
        return replace(record, detail=renewed)

    def _find_next(self, record: StepRecord, now: float, is_soon: bool = False) -> float:
        """When the task of a step is polled next, or has to be done."""
        task = record.detail[TASK_DETAIL]
        since, until = float(task["since"]), float(task["until"])
        waited = 0.0 if is_soon else now - since
        pause = min(max(FIRST_POLL, waited * SHARE), self._limits.longest)
        return min(now + self._vary(pause), max(until, now + 0.001))

    # --- polls ------------------------------------------------------------------------------------

    def build_poll(self, active: ActiveRun, record: StepRecord, now: float) -> RunCall | None:
        """Builds the next poll of a step that is due; None if its time is over."""
        record = self._set_times(active, record, now)
        task = record.detail[TASK_DETAIL]
        if task["until"] > now:
            active.steps[record.path] = record
            return build_task_call(record, POLL)
        if "questions" in record.detail:  # it waits for the answer alone
            active.put_quietly(replace(record, wake_at=0.0))
            return None
        active.abandon(record)
        seconds = task["until"] - task["since"]
        error = TimedOut(
            f'"{record.tool}" took longer than the {seconds:g} s of its step and was cancelled'
        )
        active.take_error(record.path, error, now)
        return None

    def postpone(
        self,
        active: ActiveRun,
        record: StepRecord,
        now: float,
        message: str,
        is_soon: bool = False,
    ) -> None:
        """Polls the task later, or soon. A new message is announced, another time is not."""
        record = self._set_times(active, record, now)
        due = replace(record, wake_at=self._find_next(record, now, is_soon))
        if message and clip(message) != record.message:
            active.put(replace(due, message=clip(message)))
        else:
            active.put_quietly(due)

    def take_poll(
        self, active: ActiveRun, path: str, call: RunCall, outcome: CallOutcome, now: float
    ) -> None:
        record = active.steps[path]
        task = record.detail.get(TASK_DETAIL)
        if record.state != WAITING or task is None or task["handle"] != call.handle:
            return  # it was cancelled or answered meanwhile
        error, result = outcome.error, outcome.result
        if isinstance(error, PASSING):
            self.postpone(active, record, now, str(error))
        elif error is not None:
            self._take_error(active, record, error, now)
        elif result.unfinished or _asks_the_same(record, result):
            self.postpone(active, record, now, "")
        else:
            active.take_result(path, call, result, outcome.agent, now)
            self.watch_question(active, path, result, now)

    def _take_error(
        self, active: ActiveRun, record: StepRecord, error: HubError, now: float
    ) -> None:
        """Ends a step by what its agent, or a guard, says of its task."""
        if isinstance(error, TaskLost) and record.can_repeat and record.attempt < MAX_REPEATED:
            problem = clip(str(error))
            again = replace(record, state=PENDING, problem=problem, kind=error.kind, awaited="")
            active.put(replace(again, wake_at=now + FIRST_POLL, detail=NOTHING))
            return
        if not isinstance(error, TargetFailed):  # a guard stops it
            active.abandon(record)
            error = _explain_stop(record, error)
        active.take_error(record.path, error, now)

    # --- after a crash ----------------------------------------------------------------------------

    def take_find_error(
        self, active: ActiveRun, path: str, error: HubError, is_away: bool, now: float
    ) -> None:
        """Judges a search for the task of a call that was interrupted: it is repeated for a while
        if the agent does not answer; then people decide."""
        record = active.steps[path]
        since = record.detail.get(TAKE_UP, 0.0)
        if (isinstance(error, PASSING) or is_away) and now - since < FIND_SECS:
            pause = self._vary(max(FIRST_POLL, (now - since) * SHARE))
            waiting = replace(record, state=PENDING, wake_at=now + pause)
            active.put(replace(waiting, message=clip(str(error))))
            return
        problem = f"{INTERRUPTED} ({error})"
        decided = replace(record, state=NEEDS_DECISION, problem=clip(problem), detail=NOTHING)
        active.put(replace(decided, ended_at=now, wake_at=0.0))


MAX_REPEATED: Final = 3
"""Attempts of a repeatable step whose agent loses its task."""


def build_task_call(record: StepRecord, action: str) -> RunCall:
    """Builds a call about the task of a step."""
    task: dict[str, Any] = record.detail[TASK_DETAIL]
    assert action != BEGIN
    return RunCall(
        tool=task["tool"],
        arguments=task["arguments"],
        key=record.key,
        timeout=POLL_CALL_SECS,
        handle=task["handle"],
        action=action,
    )


def build_cancel(record: StepRecord) -> RunCall | None:
    """Builds the call that ends the task of a step; None if it has none."""
    has_task = TASK_DETAIL in record.detail
    return build_task_call(record, CANCEL) if has_task else None


def is_polled(record: StepRecord) -> bool:
    """Whether a waiting step is polled when it is due: its task works, or asks what may be settled
    elsewhere."""
    is_held = PARKED in record.detail  # until a person approves the call
    return record.state == WAITING and TASK_DETAIL in record.detail and not is_held


def _asks_the_same(record: StepRecord, result: Result) -> bool:
    asked = record.detail.get("questions")
    if result.questions is None or not asked:
        return False
    return {name: one.body.get("message") for name, one in result.questions.items()} == {
        name: one.get("message") for name, one in asked.items()
    }


def _explain_stop(record: StepRecord, error: HubError) -> HubError:
    if isinstance(error, NotFound):
        task = record.detail[TASK_DETAIL]
        return NotFound(
            f'"{record.tool}" is not offered any more, so its task "{task["id"]}" is not waited '
            f"for; whether it is done is unknown ({error})"
        )
    return error
