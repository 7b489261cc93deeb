"""Reviews the offers of targets again, after decisions on pins and failures of their store."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from dragoman.a2a.remote.registered_agents import RegisteredAgents
from dragoman.core.admin_audit import record_done
from dragoman.core.backoff import Backoff
from dragoman.core.catalog import Catalog
from dragoman.core.errors import ShuttingDown, StorageFailed
from dragoman.core.name_claims import NameClaims
from dragoman.core.ports import AuditLog, PinDecision
from dragoman.pins.review import PinReviewer

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
MAX_RETRY_SECONDS = 30.0


@dataclass(eq=False, slots=True)
class PinReviews:
    _pins: PinReviewer
    _claims: NameClaims
    _catalogs: Mapping[str, Catalog]
    _registered: RegisteredAgents
    _audit: AuditLog
    _backoff: Backoff = field(default_factory=lambda: Backoff(RETRY_SECONDS, MAX_RETRY_SECONDS))
    _retry_at: float = 0.0

    def review(self, target: str) -> None:
        for catalog in self._catalogs.values():
            catalog.review_again(target)

    def apply_decision(self, target: str) -> None:
        """Reviews a target after a decision on its pins; the card of an agent too."""
        self.review(target)
        self._registered.recheck(target)

    async def reload(self) -> None:
        """Applies what other hubs have decided, and their claims to names."""
        for target in self._pins.reload():
            self.apply_decision(target)
        if self._claims.reload():
            for catalog in self._catalogs.values():
                catalog.share_names()

    async def retry(self) -> None:
        """Reviews what is not offered because the store of pins failed, with growing pauses."""
        waiting = self._pins.unreviewed
        if not waiting:
            self._retry_at = 0.0
            self._backoff.reset()
            return
        now = time.monotonic()
        if not self._retry_at:
            self._retry_at = now + self._backoff.next_delay()
        if now < self._retry_at:
            return
        targets = list(waiting)
        waiting.clear()
        for target in targets:
            self.apply_decision(target)
        self._retry_at = now + self._backoff.next_delay()

    def describe_unreviewed(self, target: str) -> str:
        """Says why some offers of the target are missing; empty if none are."""
        why = self._pins.unreviewed.get(target)
        return f"its offers cannot be reviewed, which the hub tries again: {why}" if why else ""

    def list_problems(self) -> list[str]:
        return [
            f'"{target}": {self.describe_unreviewed(target)}' for target in self._pins.unreviewed
        ]

    def release_names(self, *targets: str) -> None:
        """Frees the listed names of targets that were removed or forgotten."""
        for target in targets:
            self._claims.release(target)
        for catalog in self._catalogs.values():
            catalog.share_names(*targets)

    def record(self, decision: PinDecision) -> None:
        verb, details = f"pin.{decision.action}", {"digest": decision.digest}
        what = f"{decision.target}: {decision.name}" if decision.name else decision.target
        try:
            record_done(self._audit, verb, what, decision.by, "api", details)
        except (StorageFailed, ShuttingDown) as error:  # the store of pins has it
            log.error("a decision about pins is not in the audit log: %s", error)
