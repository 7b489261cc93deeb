"""Builds the pipeline between a call and its target: the policies, the stages, the hub."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman import guards
from dragoman.app.build_approvals import LazyApprovals
from dragoman.app.build_catalogs import Catalogs
from dragoman.app.build_redis import RedisParts
from dragoman.app.build_stores import Stores
from dragoman.app.build_telemetry import Telemetry
from dragoman.app.config_watch import LiveConfig
from dragoman.app.policy_admin.service import PolicyService, load_policies
from dragoman.app.targets import Targets
from dragoman.core.access import WhyEnded
from dragoman.core.bus import Bus
from dragoman.core.call_chains import CallChains
from dragoman.core.cluster import ClusterMember
from dragoman.core.hub import Hub
from dragoman.core.kept_results import KeptResults
from dragoman.core.local_agents import AgentProfiles
from dragoman.core.logins import LoginDesk
from dragoman.core.pipeline import Stage
from dragoman.core.ports import RateLimiter
from dragoman.core.principal import Principal
from dragoman.core.question_handles import QuestionHandles
from dragoman.core.rate_limiter import LocalRateLimiter
from dragoman.core.startup import Startup
from dragoman.guards.announce import Announce
from dragoman.guards.carried_labels import CarriedLabels
from dragoman.guards.config import Limits, TaintSettings
from dragoman.guards.grants import GrantedAuthorizer, OfferRule
from dragoman.guards.overload import Overload
from dragoman.guards.tool_flows import ToolFlowTable
from dragoman.mcp.client.upstream_manager import UpstreamManager

if TYPE_CHECKING:
    from dragoman.policy.shared_policies import SharedPolicies


@dataclass(frozen=True, slots=True)
class Guards:
    hub: Hub
    startup: Startup
    policies: PolicyService
    kept: KeptResults
    chains: CallChains
    stages: Sequence[Stage]
    limiter: RateLimiter
    flows: ToolFlowTable
    granted: GrantedAuthorizer
    approvals: LazyApprovals

    def apply_limits(self, limits: Limits) -> None:
        guards.apply_limits(self.stages, self.chains, self.kept, self.limiter, limits)

    def apply_taint(self, settings: TaintSettings) -> None:
        if settings != self.flows.settings:
            self.flows.apply(settings)
            self.policies.touch()  # policies read sources and sinks

    def count_running(self) -> int:
        """The calls in flight."""
        return sum(stage.running for stage in self.stages if isinstance(stage, Announce))

    async def watch_load(self) -> None:
        """Measures whether the hub is overloaded, without end."""
        await asyncio.gather(*(one.watch() for one in self.stages if isinstance(one, Overload)))

    def read_delay(self) -> float:
        """Returns by how many seconds the event loop has been late so far."""
        return sum(one.read_total() for one in self.stages if isinstance(one, Overload))

    async def close(self) -> None:
        self.kept.close()
        self.approvals.close()
        await self.policies.close()


def build_guards(
    home: Path,
    live: LiveConfig,
    stores: Stores,
    bus: Bus,
    catalogs: Catalogs,
    targets: Targets,
    upstreams: UpstreamManager,
    profiles: AgentProfiles,
    offers: OfferRule,
    why_ended: WhyEnded,
    logins: LoginDesk,
    renew: Callable[[Principal], Principal],
    cluster: ClusterMember,
    key: bytes,
    redis: RedisParts | None = None,
    telemetry: Telemetry | None = None,
) -> Guards:
    """Raises `ConfigError` if the policies are unusable: a hub does not start without any. `renew`
    takes from a principal what it does not have any more. `key` is the home's, or that of all
    hubs of a cluster. Without `redis`, this hub has rate limits of its own; without `telemetry`,
    calls are not traced."""
    limits = live.config.limits
    flows = ToolFlowTable(live.config.taint)
    shared = _share_policies(home, live, stores)
    loaded = load_policies(
        home,
        live,
        stores.keys,
        catalogs.callable,
        targets.find_facts,
        flows.find_names,
        stores.users.users if stores.users is not None else None,
        profiles,
    )
    authorizer = GrantedAuthorizer(loaded.engine, profiles, offers, why_ended, live.views)
    chains = CallChains(
        key,
        depth=limits.chain_depth,
        calls=limits.chain_calls,
        seconds=limits.chain_secs,
        at_once=limits.target_calls,
    )
    # A key of this run: which handles were used is forgotten at its end, so they must expire then.
    handles = QuestionHandles(
        os.urandom(32), limits.question_secs, lasting_key=key, ownership=cluster
    )
    kept = KeptResults(limits.kept_megabytes, limits.kept_secs, ownership=cluster)
    limiter: RateLimiter
    limiter = redis.limiter if redis else LocalRateLimiter(limits.rate.build_rules())
    stages = guards.build_stages(
        stores.audit, bus, limits, handles, chains, authorizer, kept, limiter, flows,
        CarriedLabels(stores.labels), logins, lambda: approvals.find_held(),
    )  # fmt: skip
    startup = Startup(targets.find_absent)
    hub = Hub(
        catalogs.offered,
        bus,
        stages if telemetry is None else telemetry.trace(stages),
        chains,
        authorizer,
        results=kept,
        startup=startup,
        refresher=upstreams,
        visibility=upstreams,
        limiter=limiter,
        logins=targets,
        views=live.views,
        cluster=cluster,
    )
    policies = PolicyService(
        home, stores.audit, bus, catalogs.callable, loaded, hub.find, authorizer.has_grant, shared
    )
    approvals = LazyApprovals(
        stores.place, live, stores.audit, hub, chains, authorizer, why_ended, renew
    )
    return Guards(
        hub, startup, policies, kept, chains, stages, limiter, flows, authorizer, approvals
    )


def _share_policies(home: Path, live: LiveConfig, stores: Stores) -> SharedPolicies | None:
    """Takes the policies of the hubs on the same database; None for a hub on its home."""
    if isinstance(stores.place, Path):
        return None
    from dragoman.policy.shared_policies import SharedPolicies
    from dragoman.stores.policy_files import PolicyFiles

    shared = SharedPolicies(PolicyFiles(stores.place), home, home / live.config.policy.folder)
    shared.prepare()
    return shared
