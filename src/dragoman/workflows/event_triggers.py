"""Starts workflows by events of the hub. Only events that a workflow names are observed.

Loops are bounded: what runs of workflows cause starts no further runs by the events of their calls,
a workflow does not react to its own runs, and each has a budget of starts for a minute.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from secrets import token_hex
from typing import Any, NamedTuple

from dragoman.core.background import Background
from dragoman.core.bus import Bus
from dragoman.core.call import Call
from dragoman.core.errors import HubError
from dragoman.core.event_payloads import EVENT_NAMES, redact_event, render_event
from dragoman.core.events import Event
from dragoman.core.principal import HUB_ORG
from dragoman.core.runs import DOOR
from dragoman.core.structs import Struct
from dragoman.workflows.event_waits import build_event_labels, list_event_labels
from dragoman.workflows.model import EVENT, Trigger, Workflow
from dragoman.workflows.templates import EVENT_DATA, compile_value
from dragoman.workflows.triggers import (
    Occurrence,
    TriggeredRuns,
    WorkflowSet,
    has_members,
    select_inputs,
)

log = logging.getLogger(__name__)

_KINDS = {name: kind for kind, name in EVENT_NAMES.items()}


class EventLimits(Struct, frozen=True, kw_only=True):
    per_minute: int = 60
    """Runs that events may start, for each workflow."""
    waiting: int = 1_000
    """Starts in progress; more are dropped."""


class _Listener(NamedTuple):
    workflow: Workflow
    trigger: Trigger


class WorkflowEvents:
    def __init__(
        self,
        workflows: WorkflowSet,
        runs: TriggeredRuns,
        bus: Bus,
        limits: EventLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workflows = workflows
        self._runs = runs
        self._bus = bus
        self._limits = limits or EventLimits()
        self._clock = clock
        self._background = Background("the events that start workflows")
        self._listeners: dict[str, list[_Listener]] = {}
        self._ends: dict[str, Callable[[], None]] = {}
        self._budgets: dict[str, tuple[float, int]] = {}
        """The beginning of a minute, and how many runs were started in it or refused."""

    def refresh(self) -> None:
        """Applies a change of the workflows: observes the events that they name, and no others."""
        self._listeners = {}
        for workflow in self._workflows.list_workflows():
            for trigger in workflow.triggers:
                if trigger.kind == EVENT:
                    one = _Listener(workflow, trigger)
                    self._listeners.setdefault(trigger.event, []).append(one)
        for name in [one for one in self._ends if one not in self._listeners]:
            self._ends.pop(name)()
        for name in self._listeners:
            kind = _KINDS.get(name)
            if kind is not None and name not in self._ends:
                take = partial(self._take, name)
                self._ends[name] = self._bus.observe(kind, take, "the workflows that it starts")
        names = {one.workflow.name for found in self._listeners.values() for one in found}
        self._budgets = {name: one for name, one in self._budgets.items() if name in names}

    async def close(self) -> None:
        for end in self._ends.values():
            end()
        self._ends.clear()
        await self._background.close()

    def _take(self, name: str, event: Event) -> None:
        call: Call | None = getattr(event, "call", None)
        if call is not None and (call.door == DOOR or call.principal.org != HUB_ORG):
            return
        if getattr(event, "org", HUB_ORG) != HUB_ORG:
            return
        rendered = render_event(event)
        if rendered is None:
            return
        payload = redact_event(rendered[1], call)
        for one in self._listeners.get(name, ()):
            own = getattr(event, "workflow", None) == one.workflow.name
            if own or not has_members(payload, one.trigger.match):
                continue
            if self._may_start(one.workflow.name):
                labels = list_event_labels(event)
                self._background.spawn(self._start(one, name, payload, labels))

    def _may_start(self, name: str) -> bool:
        now = self._clock()
        begun, count = self._budgets.get(name, (now, 0))
        if now - begun >= 60:
            begun, count = now, 0
        count += 1
        self._budgets[name] = begun, count
        if count <= self._limits.per_minute and len(self._background) < self._limits.waiting:
            return True
        if count == self._limits.per_minute + 1:
            log.warning(
                'events have started workflow "%s" %d times in a minute; further events of this '
                "minute start no run. Does it cause them itself?",
                name,
                self._limits.per_minute,
            )
        return False

    async def _start(
        self, one: _Listener, name: str, payload: Mapping[str, Any], labels: tuple[str, ...]
    ) -> None:
        workflow, trigger = one
        try:
            inputs = select_inputs(workflow, payload)
            if trigger.inputs:
                inputs = compile_value(trigger.inputs).render({EVENT_DATA: payload})
            occurrence = Occurrence(
                key=f"event {token_hex(12)}",
                inputs=inputs,
                trigger={"kind": EVENT, "event": name},
                labels=build_event_labels(workflow.name, name, labels),
            )
            await self._runs.start(workflow, occurrence)
        except HubError as error:
            log.warning('workflow "%s" was not started by an event: %s', workflow.name, error)
