"""Steps that wait: for a time, an event, an approval or another run. Nothing is held in memory for
them; the journal says what is awaited, and what ends the wait finds it there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from dragoman.core.approvals import (
    APPROVED,
    PENDING,
    STEP,
    Approval,
    ApprovalRequest,
    Approvals,
)
from dragoman.core.errors import HubError, InvalidInput, TimedOut, TooDeep, WorkFailed
from dragoman.core.runs import (
    APPROVAL,
    CANCELLED,
    CHILD,
    COMPLETED,
    EVENT,
    WAITING,
    Run,
    RunOrigin,
    StepRecord,
    build_awaited,
)
from dragoman.core.structs import replace
from dragoman.workflows import model
from dragoman.workflows.active_run import PARKED, ActiveRun, build_id, clip
from dragoman.workflows.durations import parse_duration

APPROVAL_SECONDS: Final = 7 * 86_400.0
"""How long an approval step waits if it does not say."""
MAX_APPROVERS: Final = 100

BuildChild = Callable[[str, Mapping[str, Any], RunOrigin], tuple[Run, str]]
"""Builds a run of the workflow of that name, with those inputs; returns it with the source of its
definition. Raises a `HubError`."""


class StepWaits:
    def __init__(
        self, find_approvals: Callable[[], Approvals], build_child: BuildChild, max_depth: int
    ) -> None:
        """`find_approvals` builds the approvals at the first use; `max_depth` is how deep runs may
        start runs."""
        self._find_approvals = find_approvals
        self._build_child = build_child
        self._max_depth = max_depth

    def begin(
        self, active: ActiveRun, record: StepRecord, config: Mapping[str, Any], now: float
    ) -> None:
        """Begins to wait; the step may also end at once. Raises a `HubError`."""
        step = active.find_compiled(record).step
        limit = now + step.timeout_secs if step.timeout_secs is not None else 0.0
        if record.node == model.WAIT:
            self._begin_wait(active, record, config, now, limit)
        elif record.node == model.APPROVAL:
            self._begin_approval(active, record, config, now, limit)
        else:
            self._begin_child(active, record, config, limit)

    def check(self, active: ActiveRun, record: StepRecord, now: float) -> None:
        """Ends a wait whose end has come: its time, or what it waits for."""
        path = record.path
        if record.state != WAITING:
            return  # it has ended already
        if record.approval:
            approval = self._find_approvals().find(record.approval)
            if approval is not None and approval.state != PENDING:
                self._end_approval(active, path, approval, now)
            elif record.wake_at and record.wake_at <= now:
                self.withdraw(record)
                active.take_error(path, WorkFailed("the approval expired without a decision"), now)
        elif record.wake_at and record.wake_at <= now:
            if record.node == model.WAIT and not record.awaited:
                active.complete(path, {}, now)
                return
            what = record.awaited.replace(" ", ' "', 1) + '"'
            active.take_error(path, TimedOut(f"it waited in vain for {what}"), now)

    def withdraw(self, record: StepRecord) -> None:
        """Nothing waits any more for the approval of a step."""
        if record.approval:
            self._find_approvals().withdraw(record.approval)

    # --- time and events -------------------------------------------------------------------------

    def _begin_wait(
        self,
        active: ActiveRun,
        record: StepRecord,
        config: Mapping[str, Any],
        now: float,
        limit: float,
    ) -> None:
        if (name := config.get("event")) is not None:
            if (timeout := config.get("timeout")) is not None:
                limit = now + parse_duration(timeout)
            awaited = build_awaited(EVENT, str(name))
            detail = {"match": dict(config.get("match") or {})}
            record = replace(record, awaited=awaited, detail=detail, wake_at=limit)
        elif (until := config.get("until")) is not None:
            record = replace(record, wake_at=_parse_time(until))
        else:
            record = replace(record, wake_at=now + parse_duration(config.get("seconds")))
        active.put(replace(record, state=WAITING))
        self.check(active, active.steps[record.path], now)

    @staticmethod
    def take_event(active: ActiveRun, path: str, payload: Mapping[str, Any], now: float) -> bool:
        """Ends the wait for an event; False if this one does not match."""
        record = active.steps.get(path)
        if record is None or record.state != WAITING:
            return False
        match = record.detail.get("match") or {}
        if any(payload.get(name) != value for name, value in match.items()):
            return False
        active.complete(path, dict(payload), now)
        return True

    # --- approvals -------------------------------------------------------------------------------

    def _begin_approval(
        self,
        active: ActiveRun,
        record: StepRecord,
        config: Mapping[str, Any],
        now: float,
        limit: float,
    ) -> None:
        run, path, config = active.run, record.path, active.secrets.mask(config)
        expires = config.get("expires")
        seconds = parse_duration(expires) if expires is not None else APPROVAL_SECONDS
        until = min(now + seconds, limit) if limit else now + seconds
        approvers = config.get("approvers") or ()
        if not isinstance(approvers, list | tuple) or len(approvers) > MAX_APPROVERS:
            raise InvalidInput(f'"approvers" must be a list of at most {MAX_APPROVERS} texts')
        details = config.get("details")
        request = ApprovalRequest(
            id=_build_approval_id(active, record),
            kind=STEP,
            title=clip(str(config.get("title") or f"{run.workflow}: {record.step}")),
            reason=clip(str(config.get("reason", config.get("message")) or "")),
            requester=run.origin.starter.build_principal(),
            arguments=details if isinstance(details, Mapping) else _wrap(details),
            expires_at=until,
            trace=run.origin.trace,
            run=run.id,
            step=path,
            approvers=tuple(map(str, approvers)),
        )
        approval = self._find_approvals().request(request)
        active.put(
            replace(
                record,
                state=WAITING,
                approval=request.id,
                awaited=build_awaited(APPROVAL, request.id),
                wake_at=until,
                message=request.title,
            )
        )
        if approval.state != PENDING:
            self._end_approval(active, path, approval, now)

    def _end_approval(self, active: ActiveRun, path: str, approval: Approval, now: float) -> None:
        if approval.state == APPROVED and PARKED in active.steps[path].detail:
            active.make_parked(path)
            return
        if approval.state == APPROVED:
            output = {"approved": True, "by": approval.decided_by, "comment": approval.comment}
            active.complete(path, output, now)
            return
        by = f" by {approval.decided_by}" if approval.decided_by else ""
        why = f": {approval.comment}" if approval.comment else ""
        active.take_error(path, WorkFailed(f"the approval was {approval.state}{by}{why}"), now)

    # --- other runs ------------------------------------------------------------------------------

    def _begin_child(
        self, active: ActiveRun, record: StepRecord, config: Mapping[str, Any], limit: float
    ) -> None:
        run, origin = active.run, active.run.origin
        if origin.depth + 1 >= self._max_depth:
            raise TooDeep(f"runs would be {origin.depth + 2} deep, and {self._max_depth} may be")
        inputs = active.secrets.mask(config.get("inputs") or {})
        if not isinstance(inputs, Mapping):
            raise InvalidInput('"inputs" must be an object')
        above = replace(
            origin,
            trigger={"kind": "run", "run": run.id, "step": record.path},
            agents={},
            parent=run.id,
            parent_path=record.path,
            depth=origin.depth + 1,
        )
        built, source = self._build_child(str(config.get("workflow")), inputs, above)
        # The id is that of the step: a run that was started before a crash is found again.
        id = build_id(f"{record.key} run {record.attempt}")
        child = replace(built, id=id, labels=run.labels)
        active.children.append((child, source))
        active.put(
            replace(
                record,
                state=WAITING,
                child=child.id,
                awaited=build_awaited(CHILD, child.id),
                wake_at=limit,
            )
        )

    @staticmethod
    def take_child(active: ActiveRun, path: str, child: Run, now: float) -> None:
        """Ends the wait for a run that has ended."""
        record = active.steps.get(path)
        if record is None or record.state != WAITING or record.child != child.id:
            return
        active.run = replace(active.run, labels={**active.run.labels, **child.labels})
        if child.state == COMPLETED:
            active.complete(path, child.output, now)
            return
        why = f": {child.problem}" if child.problem else ""
        ended = "was cancelled" if child.state == CANCELLED else child.state
        error: HubError = WorkFailed(f'run "{child.id}" {ended}{why}')
        active.take_error(path, error, now)


def _build_approval_id(active: ActiveRun, record: StepRecord) -> str:
    """What a person types; another attempt, and a retry of the run, ask again."""
    retries = active.find_generation(record) - 1
    id = f"{active.run.id}.{record.path}" + (f".retry{retries}" if retries else "")
    return f"{id}.{record.attempt}" if record.attempt > 1 else id


def _wrap(details: Any) -> Mapping[str, Any]:
    return {} if details is None else {"details": details}


def _parse_time(value: Any) -> float:
    try:
        at = datetime.fromisoformat(str(value))
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise InvalidInput(
            f'"until" must be a time with its zone, such as 2027-01-31T09:00:00Z, not '
            f'"{str(value)[:40]}"'
        )
    return at.timestamp()
