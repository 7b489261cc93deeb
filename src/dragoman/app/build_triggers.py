"""Builds what starts workflows by itself, once a workflow has a trigger that needs it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dragoman.core.background import Background
from dragoman.core.bus import Bus
from dragoman.core.cluster import Leases
from dragoman.core.errors import HubError
from dragoman.core.secret_rules import SecretUse
from dragoman.core.triggers import ScheduleState

if TYPE_CHECKING:
    from dragoman.stores.database import StorePlace
    from dragoman.stores.triggers import DatabaseTriggers
    from dragoman.workflows.event_triggers import WorkflowEvents
    from dragoman.workflows.folder import WorkflowFolder
    from dragoman.workflows.model import Trigger
    from dragoman.workflows.schedules import WorkflowSchedules
    from dragoman.workflows.service import RunService
    from dragoman.workflows.webhooks import WorkflowWebhooks

log = logging.getLogger(__name__)

DATABASE = "triggers.db"


class TriggerParts(NamedTuple):
    store: DatabaseTriggers
    schedules: WorkflowSchedules
    webhooks: WorkflowWebhooks
    events: WorkflowEvents


@dataclass(frozen=True, slots=True)
class LazyTriggers:
    place: StorePlace
    folder: WorkflowFolder
    service: RunService
    bus: Bus
    resolve: Callable[[str, SecretUse], Awaitable[str]]
    """Reads the secret of a reference."""
    leases: Leases
    built: list[TriggerParts] = field(default_factory=list)
    """The parts, once they are needed."""
    _loops: Background = field(default_factory=lambda: Background("triggers of workflows"))

    def find(self) -> TriggerParts | None:
        return self.built[0] if self.built else None

    def find_state(self, workflow: str, trigger: Trigger) -> ScheduleState | None:
        """Finds how far a schedule is."""
        return self.built[0].schedules.find_state(workflow, trigger) if self.built else None

    def open(self) -> None:
        """Begins to start workflows, and follows their changes."""
        self.folder.observe(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        """Applies a change of the workflows."""
        if not self.built and not self._build_if_needed():
            return
        parts = self.built[0]
        unreadable = frozenset(one.name for one in self.folder.list_files() if one.problem)
        parts.schedules.refresh(unreadable)
        parts.events.refresh()

    async def close(self) -> None:
        await self._loops.close()
        for parts in self.built:
            await parts.events.close()
            parts.store.close()

    def _build_if_needed(self) -> bool:
        if not self._is_needed():
            return False
        try:
            self.built.append(self._build())
        except HubError as error:
            log.error("the triggers of workflows cannot work: %s", error)
            return False
        self._loops.spawn(self.built[0].schedules.run())
        return True

    def _is_needed(self) -> bool:
        from dragoman.workflows.model import MANUAL

        place = self.place
        has_store = (
            (place / DATABASE).exists() if isinstance(place, Path) else "triggers" in place.known
        )
        return has_store or any(
            trigger.kind != MANUAL
            for workflow in self.folder.list_workflows()
            for trigger in workflow.triggers
        )

    def _build(self) -> TriggerParts:
        from dragoman.stores.triggers import DatabaseTriggers
        from dragoman.workflows.event_triggers import WorkflowEvents
        from dragoman.workflows.schedules import WorkflowSchedules
        from dragoman.workflows.triggers import TriggeredRuns
        from dragoman.workflows.webhooks import WorkflowWebhooks

        folder, runs, store = self.folder, TriggeredRuns(self.service), DatabaseTriggers(self.place)
        return TriggerParts(
            store,
            WorkflowSchedules(folder, runs, store, leases=self.leases),
            WorkflowWebhooks(folder, runs, store, self.resolve),
            WorkflowEvents(folder, runs, self.bus),
        )
