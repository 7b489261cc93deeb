"""Workflows and runs as the API shows them. Implements `web.api_workflows.WorkflowsPort`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dragoman.app.build_workflows import LazyWorkflows, WorkflowParts
from dragoman.core.admin_audit import record_done
from dragoman.core.errors import NotFound
from dragoman.core.logs import render_time
from dragoman.core.principal import Principal
from dragoman.core.runs import ENDED, PENDING, RUNNING, SKIPPED, WAITING, Run, StepRecord
from dragoman.core.scopes import WORKFLOWS
from dragoman.core.secret_rules import find_author
from dragoman.core.tool import Tool

if TYPE_CHECKING:
    from dragoman.workflows.model import Step, Workflow

API = "api"
SHOWN_TO_ADMINS = ("definition", "source")


@dataclass(frozen=True, slots=True)
class WorkflowsView:
    _lazy: LazyWorkflows

    # --- workflows -------------------------------------------------------------------------------

    async def list_workflows(self, principal: Principal) -> list[dict[str, Any]]:
        parts = await self._lazy.wait_loaded()
        if parts is None:
            return []
        from dragoman.workflows.describe import describe_file

        is_admin = self._is_admin(principal)
        return [
            describe_file(one, parts.triggers.find_state)
            for one in parts.folder.list_files()
            if is_admin or (one.workflow and self._may_list(principal, parts, one.workflow))
        ]

    async def describe(self, principal: Principal, name: str) -> dict[str, Any]:
        from dragoman.workflows.describe import describe_file, describe_workflow

        parts, is_admin = await self._require_visible(principal, name), self._is_admin(principal)
        entry = parts.folder.find_file(name)
        workflow = entry.workflow
        found = describe_file(entry, parts.triggers.find_state)
        if workflow is None:
            return found
        more = {**describe_workflow(workflow), **found}
        return {key: more[key] for key in more if is_admin or key not in SHOWN_TO_ADMINS}

    async def write(self, principal: Principal, name: str, source: str) -> dict[str, Any]:
        from dragoman.workflows.folder import prepare_definition

        parts = await self._lazy.require()
        prepare = partial(prepare_definition, name, source, find_author(principal), principal)
        parts.folder.save(name, await self._lazy.checks.run(principal.key, prepare))
        record_done(self._lazy.audit, "workflow.write", name, principal.label, API, {})
        return await self.describe(principal, name)

    async def remove(self, principal: Principal, name: str) -> None:
        (await self._require(name)).folder.remove(name)
        record_done(self._lazy.audit, "workflow.remove", name, principal.label, API, {})

    async def check(self, principal: Principal, source: str) -> list[dict[str, Any]]:
        from dragoman.workflows.loader import check_definition

        check = partial(check_definition, source, "workflow")
        found = await self._lazy.checks.run(principal.key, check)
        return [{"line": one.line, "message": one.message} for one in found]

    # --- runs ------------------------------------------------------------------------------------

    async def start(
        self,
        principal: Principal,
        name: str,
        inputs: Mapping[str, Any],
        agents: Mapping[str, str],
    ) -> dict[str, Any]:
        from dragoman.workflows.service import RunStart

        request = RunStart(principal=principal, door=API, inputs=inputs, agents=agents)
        service = (await self._require_visible(principal, name)).service
        run = await service.start(name, request)
        told = {"workflow": run.workflow}
        record_done(
            self._lazy.audit, "run.start", run.id, principal.label, API, told, org=principal.org
        )
        return render_run(run)

    async def list_runs(
        self,
        principal: Principal,
        workflow: str,
        states: tuple[str, ...],
        limit: int,
        cursor: str,
    ) -> tuple[list[dict[str, Any]], str]:
        parts = await self._lazy.wait_loaded()
        if parts is None:
            return [], ""
        found, following = await parts.service.list_runs(principal, workflow, states, limit, cursor)
        return [render_run(one) for one in found], following

    async def get_run(self, principal: Principal, id: str) -> dict[str, Any]:
        parts = await self._require_runs(id)
        run = await parts.service.find(principal, id)
        records = await parts.service.load_steps(id)
        workflow = await parts.service.find_workflow(run)
        shown = {
            "run": render_run(run),
            "steps": list(render_steps(run, records, workflow)),
            "inputs": run.inputs,
            "output": run.output,
        }
        if workflow is not None and self._is_admin(principal):
            shown["source"] = workflow.source
        return shown

    async def may_watch(self, principal: Principal, id: str) -> None:
        """Raises `NotFound` unless the principal may see the run."""
        await (await self._require_runs(id)).service.find(principal, id)

    async def cancel(self, principal: Principal, id: str) -> dict[str, Any]:
        return render_run(await (await self._require_runs(id)).service.cancel(principal, id))

    async def retry(self, principal: Principal, id: str) -> dict[str, Any]:
        return render_run(await (await self._require_runs(id)).service.retry(principal, id))

    async def resume(
        self, principal: Principal, id: str, path: str, decision: str
    ) -> dict[str, Any]:
        service = (await self._require_runs(id)).service
        return render_run(await service.resume(principal, id, path, decision))

    async def answer(
        self, principal: Principal, id: str, path: str, answers: Mapping[str, Any]
    ) -> dict[str, Any]:
        service = (await self._require_runs(id)).service
        return render_run(await service.answer(principal, id, path, answers))

    # --- who may see what ------------------------------------------------------------------------

    async def _require(self, name: str) -> WorkflowParts:
        if (parts := await self._lazy.wait_loaded()) is None:
            raise NotFound(f'there is no workflow "{name[:80]}"')
        return parts

    async def _require_visible(self, principal: Principal, name: str) -> WorkflowParts:
        """Raises `NotFound`, which names no other workflow, unless the principal may know of it:
        what is said about names and files is for those who may see them."""
        parts = await self._require(name)
        if not self._is_admin(principal):
            workflow = parts.folder.get(name)
            if workflow is None or not self._may_list(principal, parts, workflow):
                raise NotFound(f'there is no workflow "{name[:80]}"')
        return parts

    async def _require_runs(self, id: str) -> WorkflowParts:
        if (parts := await self._lazy.wait_loaded()) is None:
            raise NotFound(f'there is no run "{id[:64]}"')
        return parts

    def _is_admin(self, principal: Principal) -> bool:
        return self._lazy.hub.authorizer.decide_action(principal, WORKFLOWS).allowed

    def _may_list(self, principal: Principal, parts: WorkflowParts, workflow: Workflow) -> bool:
        tool: Tool = parts.tools.build_tool(workflow)
        return self._lazy.hub.authorizer.can_list(principal, tool)


def render_run(run: Run) -> dict[str, Any]:
    origin = run.origin
    return {
        "id": run.id,
        "workflow": run.workflow,
        "digest": run.digest,
        "state": run.state,
        "startedBy": run.owner,
        "behalf": origin.starter.behalf or None,
        "trigger": dict(origin.trigger),
        "createdAt": render_time(run.created_at),
        "endedAt": render_time(run.ended_at) if run.ended_at else None,
        "problem": run.problem,
        "trace": origin.trace,
        "parent": origin.parent or None,
    }


def render_steps(
    run: Run, records: list[StepRecord], workflow: Workflow | None
) -> Iterator[dict[str, Any]]:
    """Renders the executions of steps, in the order of the workflow, with those that have not
    begun."""
    by_step: dict[str, list[StepRecord]] = {}
    for record in records:
        by_step.setdefault(record.step, []).append(record)
    for step, is_in_loop in _walk(workflow.steps if workflow is not None else ()):
        for record in by_step.pop(step.id, ()):
            yield _render_step(record)
        if not is_in_loop and not any(one.step == step.id for one in records):
            state = SKIPPED if run.state in ENDED else PENDING
            empty = StepRecord(path=step.id, step=step.id, node=step.node, state=state)
            yield _render_step(empty)
    for rest in by_step.values():
        yield from map(_render_step, rest)


def _walk(steps: tuple[Step, ...], is_in_loop: bool = False) -> Iterator[tuple[Step, bool]]:
    for one in steps:
        yield one, is_in_loop
        yield from _walk(one.body, is_in_loop or one.node == "foreach")


def _render_step(record: StepRecord) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": record.step,
        "path": record.path,
        "node": record.node,
        "state": record.state,
        "attempt": record.attempt,
        "startedAt": render_time(record.started_at) if record.started_at else None,
        "endedAt": render_time(record.ended_at) if record.ended_at else None,
        "tool": record.tool or None,
        "agent": record.agent or None,
        "approval": record.approval or None,
        "child": record.child or None,
        "problem": record.problem,
        "message": record.message,
        "output": record.output,
    }
    if record.state == WAITING and "questions" in record.detail:
        shown["questions"] = record.detail["questions"]
    if record.state in (RUNNING, WAITING) and "task" in record.detail:
        task = record.detail["task"]
        shown["task"] = {"id": task["id"], "at": task["place"]}
    elif record.wake_at and record.state in (WAITING, PENDING):
        shown["wakesAt"] = render_time(record.wake_at)
    return shown
