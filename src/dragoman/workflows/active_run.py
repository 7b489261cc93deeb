"""A run that is being advanced: its journal in memory, and how outcomes and decisions change it.

Nothing here waits, stores or calls. What changes is noted for the next save.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from dragoman.core.backoff import Backoff
from dragoman.core.call import NOTHING, Result
from dragoman.core.errors import (
    ApprovalPending,
    HubError,
    InvalidInput,
    Overloaded,
    RateLimited,
    WorkFailed,
    is_own_trouble,
)
from dragoman.core.logs import render_time
from dragoman.core.runs import (
    ANSWER,
    APPROVAL,
    CANCELLED,
    COMPLETED,
    DECIDED,
    DECISIONS,
    ENDED,
    FAIL,
    FAILED,
    NEEDS_DECISION,
    PENDING,
    RETRY,
    RUNNING,
    SKIPPED,
    TASK,
    WAITING,
    Run,
    StepRecord,
    build_awaited,
)
from dragoman.core.secret_rules import Author
from dragoman.core.secret_values import NO_SECRETS, SecretValues
from dragoman.core.structs import replace
from dragoman.core.taint import SECRET, LabelOrigin, Origins
from dragoman.core.tool_identity import WORKFLOW, build_identity
from dragoman.wire.json import encode
from dragoman.workflows.compiled import AGENTS, CompiledStep, CompiledWorkflow
from dragoman.workflows.machine import Plan, SettledLoops, plan_run
from dragoman.workflows.model import ACTING, CONTINUE, FOREACH, PARALLEL
from dragoman.workflows.run_calls import RunCall
from dragoman.workflows.step_calls import (
    DISPATCH_TOOL,
    describe_failure,
    may_retry,
    output_from_result,
)
from dragoman.workflows.templates import ENV, RUN, TRIGGER

MAX_VALUE: Final = 1024 * 1024
"""Bytes of the JSON of one input, output or question."""
MAX_JOURNAL: Final = 32 * 1024 * 1024
"""Bytes of all outputs of a run, which are in memory while it is advanced."""
MAX_TEXT: Final = 2_000
"""Characters of a problem or a message."""
TOO_LARGE: Final = "TooLarge"
INTERRUPTED: Final = (
    "the hub stopped while the step was executed; it is unknown whether it was done"
)
TROUBLE_PAUSES: Final = Backoff(first=0.5, longest=30.0)
"""Between the attempts of a step while the hub itself cannot make its call."""
TROUBLES: Final = "troubles"
"""In the detail of a step: how often in a row the hub was not able to make its call."""
PARKED: Final = "parked"
"""In the detail of a step: its call, which is made later as it is."""
TAKE_UP: Final = "takeUp"
"""In the detail of a step whose call was interrupted: since when its task is searched."""


class ActiveRun:
    def __init__(
        self,
        run: Run,
        compiled: CompiledWorkflow,
        steps: Mapping[str, StepRecord],
        variables: Mapping[str, str],
    ) -> None:
        """`steps` are as they were stored, without secrets; `variables` are the values of the
        environment variables that the workflow declares."""
        self.run = run
        """Without secrets: what it returns has references in their place."""
        self.compiled = compiled
        declared = compiled.workflow.env
        self.secrets = SecretValues(variables, declared) if declared else NO_SECRETS
        self.steps = {path: self._restore(one) for path, one in steps.items()}
        """With secrets: templates read them."""
        self.changed: dict[str, StepRecord] = {}
        """Records that are not stored yet."""
        self.children: list[tuple[Run, str]] = []
        """Runs to be started with the next save, each with the source of its definition."""
        self.prepared: dict[str, RunCall] = {}
        """Calls to be made after the next save."""
        self.abandoned: list[StepRecord] = []
        """Steps whose tasks are to be cancelled after the next save."""
        self._quiet: set[str] = set()
        """Changed records that are stored without being announced."""
        self.stored_state = run.state
        self._settled: SettledLoops = {}
        self._size = sum(measure(one.output) for one in steps.values())
        self.scope: dict[str, Any] = {
            TRIGGER: run.inputs,
            ENV: dict(variables),
            RUN: {
                "id": run.id,
                "workflow": run.workflow,
                "startedBy": run.owner,
                "trigger": dict(run.origin.trigger),
            },
            AGENTS: run.origin.agents,
        }

    @property
    def is_ended(self) -> bool:
        return self.run.state in ENDED

    def put(self, record: StepRecord) -> StepRecord:
        self.steps[record.path] = self.changed[record.path] = record
        self._quiet.discard(record.path)
        return record

    def put_quietly(self, record: StepRecord) -> None:
        """Stores a change that is of no interest to others."""
        if record.path not in self.changed:
            self._quiet.add(record.path)
        self.steps[record.path] = self.changed[record.path] = record

    def take_changes(self) -> tuple[dict[str, StepRecord], set[str]]:
        """Returns the records to be stored, and which of them are not announced."""
        changed, quiet = self.changed, self._quiet
        self.changed, self._quiet = {}, set()
        return changed, quiet

    def hide(self, record: StepRecord) -> StepRecord:
        """The record as it is stored and shown: with references in the place of secrets."""
        if not self.compiled.workflow.env:
            return record
        secrets = self.secrets
        return replace(
            record,
            tool=secrets.seal(record.tool),
            agent=secrets.seal(record.agent),
            awaited=secrets.seal(record.awaited),
            problem=secrets.mask(record.problem),
            message=secrets.mask(record.message),
            detail=secrets.seal(record.detail),
            output=secrets.seal(record.output),
        )

    def _restore(self, record: StepRecord) -> StepRecord:
        if not self.compiled.workflow.env:
            return record
        secrets = self.secrets
        return replace(
            record,
            tool=secrets.unseal(record.tool),
            agent=secrets.unseal(record.agent),
            awaited=secrets.unseal(record.awaited),
            detail=secrets.unseal(record.detail),
            output=secrets.unseal(record.output),
        )

    def find_leak(self, step: CompiledStep, arguments: Mapping[str, Any]) -> str:
        """Returns a variable whose value is in the arguments, although the author of the workflow
        has not written it there: it came with the output of another step. What the API writes is
        not the owner's word."""
        named = {one.path[0] for one in step.config.references if one.root == ENV and one.path}
        if self.compiled.workflow.author is not Author.OWNER:
            named = set()
        return min(self.secrets.find_in(arguments) - named, default="")

    def abandon(self, record: StepRecord) -> None:
        """Nothing waits for the task of a step any more."""
        if "task" in record.detail:
            self.abandoned.append(record)

    def get_step(self, path: str) -> StepRecord:
        """Raises `InvalidInput` for a step that has not begun."""
        if (record := self.steps.get(path)) is None:
            raise InvalidInput(f'run "{self.run.id}" has no step "{path[:200]}" that has begun')
        return record

    def find_compiled(self, record: StepRecord) -> CompiledStep:
        return self.compiled.by_id[record.step]

    def build_key(self, path: str, generation: int = 1) -> str:
        """The idempotency key of a step: that of its repetitions too, until a person has the failed
        step tried again."""
        return f"{self.run.id}:{path}" + (f":{generation}" if generation > 1 else "")

    def find_generation(self, record: StepRecord) -> int:
        """How often people have had the step tried, from 1: what an earlier one has asked for or
        started is not used again."""
        suffix = record.key.removeprefix(self.build_key(record.path)).removeprefix(":")
        return int(suffix) if suffix.isdecimal() else 1

    # --- planning --------------------------------------------------------------------------------

    def plan(self, now: float) -> Plan:
        plan = plan_run(self.compiled, self.steps, self.scope, now, self._settled)
        for path, record in plan.changed.items():
            self.changed[path] = self._bound(record)
            self._quiet.discard(path)
            if record.state == CANCELLED:
                self.abandon(record)
        return plan

    def conclude(self, plan: Plan, now: float) -> None:
        """Ends the run as planned."""
        state, problem, output = plan.state, plan.problem, None
        if state == COMPLETED:
            try:
                output = self._render_output(plan)
                check_size(output, "the output of the run")
            except HubError as error:
                state, problem, output = FAILED, str(error), None
        self.end(state, now, problem, output)

    def end(self, state: str, now: float, problem: str = "", output: Any = None) -> None:
        self.run = replace(
            self.run,
            state=state,
            problem=clip(self.secrets.mask(problem)),
            output=self.secrets.mask(output),
            ended_at=now,
            wake_at=0.0,
        )

    def _render_output(self, plan: Plan) -> Any:
        compiled = self.compiled
        if compiled.output is not None:
            return compiled.output.render({**self.scope, "nodes": plan.nodes})
        return {id: plan.nodes[id] for id in compiled.find_ends() if id in plan.nodes}

    def _bound(self, record: StepRecord) -> StepRecord:
        """Fails a step whose output, or whose items, are too large."""
        try:
            self._size += check_size(record.output, f'the output of step "{record.path}"')
            check_size(record.detail, f'the items of step "{record.path}"')
            if self._size > MAX_JOURNAL:
                raise InvalidInput(
                    f"the outputs of the run have {self._size} bytes, and {MAX_JOURNAL} are allowed"
                )
        except InvalidInput as error:
            record = self.steps[record.path] = replace(
                record, state=FAILED, problem=str(error), kind=TOO_LARGE, output=None, detail={}
            )
        return record

    # --- outcomes --------------------------------------------------------------------------------

    def add_labels(self, labels: Origins) -> None:
        """Adds the taint labels of what the run has received; the origin of a known one stays."""
        if not labels.keys() <= self.run.labels.keys():
            self.run = replace(self.run, labels={**labels, **self.run.labels})

    def complete(self, path: str, output: Any, now: float) -> None:
        record = replace(
            self.steps[path],
            state=COMPLETED,
            output=output,
            ended_at=now,
            wake_at=0.0,
            awaited="",
            detail=NOTHING,
            problem="",
            kind="",
        )
        self.put(record)
        self.changed[path] = self._bound(record)

    def take_result(self, path: str, call: RunCall, result: Result, agent: str, now: float) -> None:
        """Records the result of a call: an output, a failure or a question."""
        output = output_from_result(result)
        if call.tool == DISPATCH_TOOL:
            agent = str(output.get("agent", ""))
        if agent:
            self.steps[path] = replace(self.steps[path], agent=agent)
        if result.questions is not None:
            self._ask(path, call, result)
        elif result.failed:
            said = describe_failure(result)
            self.take_error(path, WorkFailed(f'"{call.tool}" failed: {said}'), now)
        else:
            self.complete(path, output, now)

    def _ask(self, path: str, call: RunCall, result: Result) -> None:
        questions = {
            name: {"kind": one.kind, **one.body} for name, one in (result.questions or {}).items()
        }
        detail = {
            **_keep_task(self.steps[path]),
            "questions": questions,
            "handle": result.handle,
            "tool": call.tool,
            "arguments": dict(call.arguments),
        }
        said = "; ".join(one.text for one in (result.questions or {}).values())
        record = replace(
            self.steps[path],
            state=WAITING,
            awaited=build_awaited(ANSWER, self.run.id),
            wake_at=0.0,
            message=clip(said),
            detail=detail,
        )
        self.put(record)
        self.changed[path] = self._bound(record)

    def park(self, path: str, call: RunCall, error: ApprovalPending) -> None:
        """A policy wants a person to approve the call, which is made after that."""
        record = replace(
            self.steps[path],
            state=WAITING,
            approval=error.id,
            awaited=build_awaited(APPROVAL, error.id),
            wake_at=error.expires_at,
            message=clip(str(error)),
            detail={**_keep_task(self.steps[path]), PARKED: _build_parked(call)},
        )
        self.put(record)
        self.changed[path] = self._bound(record)

    def make_parked(self, path: str) -> None:
        """Makes the call that was parked: the hub lets an approved one pass once."""
        record = self.steps[path]
        parked = record.detail[PARKED]
        self.prepared[path] = RunCall(
            tool=parked["tool"],
            arguments=parked["arguments"],
            key=record.key,
            timeout=self.find_compiled(record).step.timeout_secs,
            answers=parked["answers"],
            handle=parked["handle"],
            approval=parked.get("approval") or record.approval,
            attempt=build_attempt(record),
        )
        detail = {**_keep_task(record), **_keep_troubles(record)}
        self.put(replace(record, state=RUNNING, awaited="", wake_at=0.0, detail=detail))

    def take_error(
        self, path: str, error: HubError, now: float, call: RunCall | None = None
    ) -> None:
        """Records a failed attempt: the step is tried again if it may be, or fails. `call` is the
        call that was made for it."""
        record = old = self.steps[path]
        step = self.find_compiled(record).step
        retry, attempt = step.retry, max(record.attempt, 1)
        record = replace(
            record,
            problem=clip(str(error)),
            kind=error.kind,
            attempt=attempt,
            awaited="",
            detail=NOTHING,
        )
        # Of what a run may start and wait for: if runs waited for room that their own starters
        # take, none would end.
        is_limit = call is None and isinstance(error, Overloaded)
        if isinstance(error, RateLimited):  # nothing has left, and it says when it can
            self._put_back(old, record, now + max(error.retry_after, 0.1), call, NOTHING)
        elif is_own_trouble(error) and not is_limit:  # until the run times out or is cancelled
            troubles = old.detail.get(TROUBLES, 0) + 1
            wake = now + TROUBLE_PAUSES.delay(troubles)
            self._put_back(old, record, wake, call, {TROUBLES: troubles})
        elif attempt < retry.attempts and may_retry(error, step.repeatable or record.can_repeat):
            pause = min(retry.backoff_secs * 2 ** (attempt - 1), retry.max_backoff_secs)
            self.put(replace(record, state=PENDING, wake_at=now + pause))
        else:
            self.put(replace(record, state=FAILED, ended_at=now, wake_at=0.0))

    def _put_back(
        self,
        old: StepRecord,
        record: StepRecord,
        wake_at: float,
        call: RunCall | None,
        detail: Mapping[str, Any],
    ) -> None:
        """Has a step tried again of which nothing has left, which counts as no attempt. A call that
        carries answers is made again as it is: they were given once."""
        if call is not None and call.answers is not None:
            detail = {**detail, **_keep_task(old), PARKED: _build_parked(call)}
        back = replace(record, state=PENDING, attempt=record.attempt - 1, wake_at=wake_at)
        self.put(replace(back, detail=detail))

    def recover(self, now: float) -> None:
        """Judges the calls that ran when the hub stopped: what is known to work elsewhere is taken
        up again."""
        for record in list(self.steps.values()):
            if record.state != RUNNING or record.node not in ACTING:
                continue
            if "task" in record.detail:
                awaited = build_awaited(TASK, record.agent or record.tool)
                self.put(replace(record, state=WAITING, awaited=awaited, wake_at=now))
            elif record.can_repeat:
                self.put(replace(record, state=PENDING, wake_at=0.0, detail=NOTHING))
            elif record.can_find:
                detail = {TAKE_UP: record.detail.get(TAKE_UP, now)}
                self.put(replace(record, state=PENDING, wake_at=0.0, detail=detail))
            else:
                problem = INTERRUPTED
                self.put(replace(record, state=NEEDS_DECISION, problem=problem, ended_at=now))

    # --- what people decide ----------------------------------------------------------------------

    def cancel(self, now: float, why: str = "", state: str = CANCELLED) -> None:
        """Ends the run and all of its steps. Compensations do not run."""
        if self.is_ended:
            raise InvalidInput(f'run "{self.run.id}" has ended already: it is {self.run.state}')
        for record in list(self.steps.values()):
            if record.state in (RUNNING, WAITING, PENDING, NEEDS_DECISION):
                if record.state == WAITING:  # the calls that run cancel their tasks themselves
                    self.abandon(record)
                self.put(replace(record, state=CANCELLED, ended_at=now, wake_at=0.0, awaited=""))
        self.prepared.clear()
        self.end(state, now, why)

    @property
    def deadline(self) -> float:
        """When the time of the run is over; 0: never."""
        seconds = self.compiled.workflow.timeout_secs
        return self.run.created_at + seconds if seconds is not None else 0.0

    def retry(self, now: float) -> None:
        """Continues a failed run at the steps that failed."""
        if self.run.state != FAILED:
            raise InvalidInput(f'run "{self.run.id}" has not failed: it is {self.run.state}')
        if 0 < self.deadline <= now:
            raise InvalidInput(
                f'run "{self.run.id}" cannot continue: the "timeout" of its workflow passed at '
                f"{render_time(self.deadline)}; start another run"
            )
        self._settled.clear()
        for record in list(self.steps.values()):
            one = self.find_compiled(record)
            is_handled = one.step.on_error == CONTINUE and record.state == FAILED
            if (record.state not in (FAILED, CANCELLED) and not one.compensates) or is_handled:
                continue
            if record.node in (FOREACH, PARALLEL):
                has_begun = record.node == PARALLEL or "items" in record.detail
                if has_begun:
                    self.put(replace(record, state=RUNNING, ended_at=0.0, problem="", kind=""))
                    continue
            generation = self.find_generation(record) + 1
            self.put(
                replace(
                    record,
                    state=PENDING,
                    attempt=0,
                    ended_at=0.0,
                    wake_at=0.0,
                    problem="",
                    kind="",
                    awaited="",
                    approval="",
                    child="",
                    output=None,
                    detail=NOTHING,
                    key=self.build_key(record.path, generation),
                )
            )
        self.run = replace(self.run, state=RUNNING, problem="", ended_at=0.0, output=None)

    def decide(self, path: str, decision: str, by: str, now: float) -> None:
        """Applies what a person has decided about a step whose outcome is unknown."""
        record = self.get_step(path)
        if record.state != NEEDS_DECISION:
            raise InvalidInput(f'step "{path}" needs no decision: it is {record.state}')
        if decision not in DECISIONS:
            raise InvalidInput(f"the decision must be one of {', '.join(DECISIONS)}")
        if decision == RETRY:
            again = replace(record, state=PENDING, ended_at=0.0, wake_at=0.0, problem="")
            self.put(replace(again, detail=NOTHING))
            return
        state = FAILED if decision == FAIL else SKIPPED
        said = f"{by} has decided to {decision} it: {INTERRUPTED}"
        self.put(
            replace(record, state=state, kind=DECIDED, problem=said, ended_at=now, wake_at=0.0)
        )

    def answer(self, path: str, answers: Mapping[str, Any]) -> None:
        """Continues a step that has asked, with the answers."""
        record = self.get_step(path)
        questions = record.detail.get("questions")
        if record.state != WAITING or not isinstance(questions, Mapping):
            raise InvalidInput(f'step "{path}" asks nothing: it is {record.state}')
        if unknown := answers.keys() - questions.keys():
            asked = ", ".join(sorted(questions))
            raise InvalidInput(f'step "{path}" has not asked "{min(unknown)[:100]}", but: {asked}')
        check_size(dict(answers), "the answers")
        step = self.find_compiled(record).step
        self.prepared[path] = RunCall(
            tool=str(record.detail["tool"]),
            arguments=record.detail["arguments"],
            key=record.key,
            timeout=step.timeout_secs,
            answers=dict(answers),
            handle=record.detail["handle"],
            approval=build_id(f"{record.key} answer {record.detail['handle']}"),
            attempt=build_attempt(record),
        )
        # The handle is used up, and is not stored any more; that of the task can be polled. Its
        # time begins anew.
        task = record.detail.get("task")
        detail = {"task": {**task, "since": 0.0, "until": 0.0}} if task is not None else NOTHING
        again = replace(record, state=RUNNING, awaited="", wake_at=0.0, detail=detail)
        self.put(replace(again, message=""))


def clip(text: str) -> str:
    """Shortens a text, and makes it one that can be stored."""
    return text[:MAX_TEXT].encode("utf-8", "replace").decode()


def add_leak(run: Run, call: RunCall) -> Origins:
    """The labels of a call: those of the run, and `secret` if its arguments have a value of the
    environment that another step has returned."""
    if not call.leaks:
        return run.labels
    why = f"$env.{call.leaks} in its arguments"
    origin = LabelOrigin(build_identity(WORKFLOW, run.workflow), run.origin.trace, why)
    return {SECRET: origin, **run.labels}


def drop_leak(run: Run, call: RunCall, labels: Origins) -> Origins:
    """The labels that stay with the run: the values of the environment are found in the arguments
    of each call again."""
    if not call.leaks or SECRET in run.labels:
        return labels
    return {name: origin for name, origin in labels.items() if name != SECRET}


def find_run_of_key(key: str) -> str:
    """The id of the run whose step has this key."""
    return key.partition(":")[0]


def _build_parked(call: RunCall) -> dict[str, Any]:
    """What the journal keeps of a call that is made later."""
    return {
        "tool": call.tool,
        "arguments": dict(call.arguments),
        "handle": call.handle,
        "answers": None if call.answers is None else dict(call.answers),
        "approval": call.approval,
    }


def _keep_troubles(record: StepRecord) -> dict[str, Any]:
    return {TROUBLES: record.detail[TROUBLES]} if TROUBLES in record.detail else {}


def _keep_task(record: StepRecord) -> dict[str, Any]:
    """What a step still needs of its detail: the task that does its work."""
    return {"task": record.detail["task"]} if "task" in record.detail else {}


def build_attempt(record: StepRecord) -> str:
    """Names an attempt of a step; the same after a crash."""
    return build_id(f"{record.key} call {record.attempt}")


def build_id(key: str) -> str:
    """Builds the id of what a step starts from its key."""
    return sha256(f"workflow step\0{key}".encode()).hexdigest()[:32]


def check_size(value: Any, what: str) -> int:
    """Returns the bytes of a value's JSON. Raises `InvalidInput` for one that is too large, or is
    no JSON."""
    try:
        size = measure(value)
    except (TypeError, ValueError, RecursionError, OverflowError):
        raise InvalidInput(f"{what} cannot be written as JSON") from None
    if size > MAX_VALUE:
        raise InvalidInput(f"{what} has {size} bytes, and {MAX_VALUE} are allowed")
    return size


def measure(value: Any) -> int:
    return len(encode(value)) if value else 0
