"""Starts runs for triggers: each occurrence once, as the principal of the workflow.

An occurrence has a key, and its run an id that follows from the key: a run that exists is not
started again, not after a crash either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

from dragoman.core.errors import NotFound
from dragoman.core.principal import Principal, principal_from_workflow
from dragoman.core.runs import DOOR, Run
from dragoman.core.structs import Struct
from dragoman.core.taint import NO_ORIGINS, LabelOrigin, Origins
from dragoman.workflows.model import Workflow
from dragoman.workflows.service import RunStart


class Occurrence(Struct, frozen=True, kw_only=True):
    """A reason to start a workflow."""

    key: str
    """Equal for the same occurrence, however often it is noticed."""
    inputs: Mapping[str, Any]
    trigger: Mapping[str, Any]
    """What the run says about it: `kind`, and what the kind adds."""
    labels: Origins = NO_ORIGINS


class StartedRun(NamedTuple):
    id: str
    is_new: bool


class RunStarter(Protocol):
    async def start(self, name: str, request: RunStart) -> Run: ...

    async def find(self, principal: Principal, id: str) -> Run: ...


class WorkflowSet(Protocol):
    """The workflows in force."""

    def list_workflows(self) -> list[Workflow]: ...

    def get(self, name: str) -> Workflow | None: ...


class TriggeredRuns:
    def __init__(self, runs: RunStarter) -> None:
        self._runs = runs
        self._starting: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """The same occurrence may be noticed twice at once."""

    async def start(self, workflow: Workflow, occurrence: Occurrence) -> StartedRun:
        """Starts the run of an occurrence, unless there is one. Raises a `HubError`."""
        id = build_run_id(workflow.name, occurrence.key)
        principal = principal_from_workflow(workflow.name)
        async with self._starting.setdefault(id, asyncio.Lock()):
            try:
                await self._runs.find(principal, id)
                return StartedRun(id, False)
            except NotFound:
                pass
            request = RunStart(
                principal=principal,
                door=DOOR,
                inputs=occurrence.inputs,
                trigger=occurrence.trigger,
                labels=occurrence.labels,
                id=id,
                is_occurrence=True,
            )
            await self._runs.start(workflow.name, request)
            return StartedRun(id, True)


def build_run_id(workflow: str, key: str) -> str:
    return sha256(f"{workflow}\0{key}".encode("utf-8", "replace")).hexdigest()[:24]


def build_labels(workflow: str, why: str, *labels: str) -> Origins:
    """The taint labels of inputs that come from outside."""
    return {label: LabelOrigin(f"workflow.{workflow}", "", why) for label in labels}


def select_inputs(workflow: Workflow, found: Mapping[str, Any]) -> dict[str, Any]:
    """Selects what the workflow declares from data that was made for others; all of it if the
    workflow declares no inputs."""
    if workflow.inputs is None:
        return dict(found)
    return {name: value for name, value in found.items() if name in workflow.inputs}


def has_members(data: Any, wanted: Mapping[str, Any]) -> bool:
    """Whether an object has these members, with these values; objects in it as well."""
    if not isinstance(data, Mapping):
        return False
    for name, value in wanted.items():
        if name not in data:
            return False
        if isinstance(value, Mapping):
            if not has_members(data[name], value):
                return False
        elif data[name] != value or isinstance(data[name], bool) != isinstance(value, bool):
            return False
    return True
