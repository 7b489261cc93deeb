"""Builds approvals when something first needs one; a hub that never does opens no database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dragoman.app.config_watch import LiveConfig
from dragoman.app.store_place import follow_store, has_store
from dragoman.core.access import WhyEnded
from dragoman.core.call_chains import CallChains
from dragoman.core.errors import ConfigError, StorageFailed
from dragoman.core.hub import Hub
from dragoman.core.ports import AuditLog
from dragoman.core.principal import Principal
from dragoman.core.tool import Tool
from dragoman.core.tool_filter import EVERYTHING
from dragoman.guards.config import ApprovalSettings
from dragoman.guards.grants import GrantedAuthorizer
from dragoman.stores.database import StorePlace

if TYPE_CHECKING:
    from dragoman.app.approval_runner import ApprovalRunner
    from dragoman.guards.approval_desk import ApprovalDesk
    from dragoman.guards.held_calls import HeldCalls
    from dragoman.stores.approvals import DatabaseApprovals

DATABASE = "approvals.db"
STOP_SECONDS = 2.0


class ApprovalParts(NamedTuple):
    store: DatabaseApprovals
    desk: ApprovalDesk
    held: HeldCalls
    runner: ApprovalRunner


@dataclass(frozen=True, slots=True)
class LazyApprovals:
    place: StorePlace
    live: LiveConfig
    audit: AuditLog
    hub: Hub
    chains: CallChains
    authorizer: GrantedAuthorizer
    why_ended: WhyEnded
    renew: Callable[[Principal], Principal]
    built: list[ApprovalParts] = field(default_factory=list)

    def find_desk(self) -> ApprovalDesk:
        """Returns the desk, and builds it if there is none yet. Raises `StorageFailed` if its store
        cannot be opened."""
        return self._find().desk

    def find_held(self) -> HeldCalls:
        return self._find().held

    def find_existing(self) -> ApprovalDesk | None:
        """Returns the desk if this home has ever needed an approval."""
        if not self.built and not has_store(self.place, DATABASE):
            return None
        return self._find().desk

    def start(self) -> None:
        """Continues what was approved before the hub stopped. Raises `ConfigError` if the store
        cannot be opened."""
        try:
            desk = self.find_existing()
        except StorageFailed as error:
            raise ConfigError(str(error)) from error
        if desk is not None:
            desk.start_ready()

    def take_over(self, hub: str) -> None:
        """Another hub has ended, and the calls that it made for approvals. Raises
        `StorageFailed`."""
        desk = self.find_existing()
        if desk is not None:
            desk.take_over(hub)

    def find_left(self, hubs: Sequence[str]) -> set[str]:
        """Finds those of the hubs, which have ended, whose calls are not marked as interrupted.
        Raises `StorageFailed`."""
        return {hub for parts in self.built for hub in parts.store.find_left(hubs)}

    def rename_hub(self) -> None:
        """This hub has another id in the cluster from now on."""
        for parts in self.built:
            parts.store.rename_hub(self.hub.cluster.mark)

    async def follow(self) -> None:
        """Announces requests that have expired."""
        for parts in self.built:
            parts.desk.sweep()

    async def stop(self) -> None:
        """Ends the waiting for decisions, and what the hub makes by itself."""
        for parts in self.built:
            parts.desk.close()
            await parts.runner.close(STOP_SECONDS)

    def close(self) -> None:
        for parts in self.built:
            parts.desk.store_endings()
            parts.store.close()

    def _find(self) -> ApprovalParts:
        if not self.built:
            self.built.append(self._build())
        return self.built[0]

    def _build(self) -> ApprovalParts:
        from dragoman.app.approval_runner import ApprovalRunner, RequesterRights
        from dragoman.guards.approval_desk import ApprovalDesk
        from dragoman.guards.held_calls import HeldCalls
        from dragoman.stores.approvals import DatabaseApprovals

        try:
            store = DatabaseApprovals(self.place, self.hub.cluster.mark)
        except ConfigError as error:
            raise StorageFailed(str(error)) from error
        rights = RequesterRights(self.hub, self.authorizer, self.why_ended, self.renew)
        runner = ApprovalRunner(self.hub, self.chains, rights, self.find_desk)
        desk = ApprovalDesk(
            store,
            self.hub.bus,
            self.audit,
            self.authorizer,
            self._find_tool,
            self._get_settings,
            runner.start,
        )
        held = HeldCalls(desk, self.chains, rights.recheck, self._get_settings)
        if not isinstance(self.place, Path):
            follow_store(self.place, "approvals", desk.note_changes)
        return ApprovalParts(store, desk, held, runner)

    def _find_tool(self, name: str, kind: str) -> Tool:
        return self.hub.find(name, EVERYTHING, kind)

    def _get_settings(self) -> ApprovalSettings:
        return self.live.config.approvals
