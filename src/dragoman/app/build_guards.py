"""What stands between a call and its target, joined: the stages of the road, the chains, the
policies, the pins. Part of `assembly`, which starts it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dragoman import guards
from dragoman.app.policy_admin.service import PolicySide
from dragoman.config import Config
from dragoman.core.backoff import Backoff
from dragoman.core.bus import Bus
from dragoman.core.call_chains import CallChains
from dragoman.core.catalog import build_catalogs
from dragoman.core.errors import ShuttingDown, StorageFailed
from dragoman.core.events import PinAdded, PinHeld
from dragoman.core.hub import Hub
from dragoman.core.kept_results import KeptResults
from dragoman.core.name_claims import NameClaims
from dragoman.core.ports import AuditLog, PinDecision
from dragoman.core.question_handles import QuestionHandles
from dragoman.core.tool import Nowhere, Tool
from dragoman.guards.config import Limits
from dragoman.pins.approvals import PinApprovals
from dragoman.pins.review import PinReviewer
from dragoman.stores.keys import KeyStore
from dragoman.stores.pins import SqlitePins
from dragoman.web.api import ApiPart
from dragoman.web.api_pins import PinsApi
from dragoman.web.api_policies import PoliciesApi

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
MAX_RETRY_SECONDS = 30.0


class GuardSide:
    def __init__(
        self,
        place: Path,
        config: Config,
        key: bytes,
        keys: KeyStore,
        audit: AuditLog,
        pin_of: Callable[[str], str],
        holds_additions: Callable[[str], bool],
        namespaces: Callable[[], Mapping[str, str]],
    ) -> None:
        """`pin_of` says how what a target offers is held, `holds_additions` whether what it adds
        later is."""
        limits = config.limits
        self._audit = audit
        self.bus = Bus(config.bus.gate_secs)
        self.policies = PolicySide(place, config, keys, audit, _intact)
        self._pin_store = SqlitePins(place)
        self.pins = PinReviewer(
            self._pin_store,
            pin_of,
            told=self._held,
            holds_additions=holds_additions,
            told_added=self._added,
        )
        self.approvals = PinApprovals(self.pins, self._approved, self._decided, self.release_names)
        self._chains = chains = CallChains(
            key,
            depth=limits.chain_depth,
            calls=limits.chain_calls,
            seconds=limits.chain_secs,
            at_once=limits.target_calls,
        )
        # Not the home's key: which handles were used is forgotten at the end, and so must they be.
        handles = QuestionHandles(os.urandom(32), limits.question_secs)
        judge = self.policies.policies
        self.kept = KeptResults(limits.kept_megabytes, limits.kept_secs)
        stages = guards.build_stages(audit, self.bus, limits, handles, chains, judge, self.kept)
        self._stages = stages
        catalogs = build_catalogs(self.pins.review, NameClaims(self._pin_store, namespaces))
        self.hub = Hub(catalogs, self.bus, stages, chains, judge, results=self.kept)
        self._approve: Callable[[str], None] = lambda target: None
        self._retry_at = 0.0
        self._retry_backoff = Backoff(RETRY_SECONDS, MAX_RETRY_SECONDS, jitter=0)

    def join(self, target: Callable[[str], Any], approved: Callable[[str], None]) -> None:
        """`target` finds a server or an agent by its name; `approved` is told of one of which
        something was approved that it may not have offered."""
        self.policies.join(self.hub, target)
        self._approve = approved

    @property
    def parts(self) -> list[ApiPart]:
        return [PoliciesApi(self.hub, self.policies), PinsApi(self.hub, self.approvals)]

    def apply_limits(self, limits: Limits) -> None:
        guards.apply_limits(self._stages, self._chains, self.kept, limits)

    def review_again(self, target: str) -> None:
        for catalog in self.hub.offered.values():
            catalog.review_again(target)

    async def retry_reviews(self) -> None:
        """Reviews again what is not offered because the store of pins failed, with longer and
        longer pauses. Asked for from time to time."""
        waiting = self.pins.unreviewed
        if not waiting:
            self._retry_at = 0.0
            self._retry_backoff.reset()
            return
        now = time.monotonic()
        if not self._retry_at:
            self._retry_at = now + self._retry_backoff.next_delay()
        if now < self._retry_at:
            return
        targets = list(waiting)
        waiting.clear()
        for target in targets:
            self._approved(target)
        self._retry_at = now + self._retry_backoff.next_delay()

    def describe_unreviewed(self, target: str) -> str:
        """Why some of what the target has is not offered; empty where that is not so."""
        why = self.pins.unreviewed.get(target)
        return f"what it offers cannot be reviewed, which is tried again: {why}" if why else ""

    def release_names(self, *targets: str) -> None:
        """The names of targets that are gone, or are to be seen anew, are free again."""
        for target in targets:
            self.hub.catalog.claims.release(target)
        for catalog in self.hub.catalogs.values():
            catalog.share_names(*targets)

    def _approved(self, target: str) -> None:
        self.review_again(target)
        self._approve(target)

    def _held(self, target: str, name: str, why: str) -> None:
        self.bus.emit(PinHeld(target, name, why))

    def _added(self, target: str, name: str, why: str) -> None:
        self.bus.emit(PinAdded(target, name, why))

    def _decided(self, decision: PinDecision) -> None:
        verb = f"pin.{decision.action}"
        asked = f"{decision.target}: {decision.name}" if decision.name else decision.target
        entry = {"verb": verb, "asked_as": asked[:200], "caller": decision.by, "door": "api"}
        conclusion = {"outcome": "completed", "digest": decision.digest, "duration_ms": 0}
        try:
            self._audit.conclude(self._audit.intend({**entry, "depth": 0}), conclusion)
        except (StorageFailed, ShuttingDown) as error:  # the pins have it
            log.error("a decision about pins is not in the audit: %s", error)

    async def close(self) -> None:
        self.kept.close()
        await self.policies.close()
        with contextlib.suppress(StorageFailed):
            self._pin_store.close()


def _intact(tool: Tool) -> bool:
    """What is not as it was approved leads nowhere: the catalog does not have it."""
    return not isinstance(tool.target, Nowhere)
