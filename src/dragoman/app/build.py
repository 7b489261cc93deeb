"""The composition root: builds a hub from a home and its configuration, in the order of need."""

from __future__ import annotations

import contextlib
import logging
from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.a2a.remote.registered_agents import RegisteredAgents
from dragoman.a2a.remote.registry_view import RegistryView
from dragoman.agents.manifest_agents import LocalAgent
from dragoman.agents.skills.skill_book import SkillTable
from dragoman.agents.vision import AgentVision
from dragoman.app.agent_endpoints import AgentEndpoints
from dragoman.app.app import App
from dragoman.app.build_agents import (
    DOOR,
    AgentsBuilder,
    LocalAgents,
    build_manifest_agents,
    build_meter,
    load_function_agents,
)
from dragoman.app.build_auth import build_auth
from dragoman.app.build_authority import build_authority
from dragoman.app.build_catalogs import build_pinned_catalogs
from dragoman.app.build_console import build_console
from dragoman.app.build_events import build_events
from dragoman.app.build_guards import Guards, build_guards
from dragoman.app.build_logins import build_logins
from dragoman.app.build_mcp import build_mcp, build_upstreams
from dragoman.app.build_redis import RedisParts, build_redis
from dragoman.app.build_routing import LazyRouting
from dragoman.app.build_secrets import resolve_local_api_key
from dragoman.app.build_skills import build_skills, find_command_runner
from dragoman.app.build_stores import Stores, build_stores
from dragoman.app.build_telemetry import Telemetry, build_telemetry
from dragoman.app.build_workflows import LazyWorkflows
from dragoman.app.config_apply import ConfigApplier
from dragoman.app.config_watch import ConfigWatch, LiveConfig
from dragoman.app.hub_parts import HubParts
from dragoman.app.hub_reports import HubReportsView
from dragoman.app.lazy_tools import LazyTools, build_access
from dragoman.app.local_agents_view import LocalAgentsView
from dragoman.app.login_admin import LoginAdmin
from dragoman.app.pin_reviews import PinReviews
from dragoman.app.policy_admin import known_ids
from dragoman.app.record_queries import RecordQueries
from dragoman.app.scope_reports import SCOPES_LIMIT, describe_changes
from dragoman.app.secret_variables import withhold_secrets
from dragoman.app.server_editing import ServerEditor
from dragoman.app.status import HubStatus
from dragoman.app.store_watch import StoreWatch
from dragoman.app.taint_admin import TaintAdmin
from dragoman.app.targets import Targets
from dragoman.app.view_reports import HubViewReports
from dragoman.app.workflows_view import WorkflowsView
from dragoman.config import Config, load_variables
from dragoman.config_layers import Override
from dragoman.core.bus import Bus
from dragoman.core.cluster import SINGLE_HUB, ClusterMember
from dragoman.core.events import REMOVED, AgentChanged
from dragoman.core.local_agents import AgentProfiles
from dragoman.core.principal import USER, Principal
from dragoman.core.scopes import CALL, REGISTRY
from dragoman.guards.grants import GrantedTools
from dragoman.mcp.protocol.elicitation import TASKS_ONLY
from dragoman.mcp.server.connected_clients import ConnectedClients
from dragoman.net.client import OutboundHttp
from dragoman.oauth.logins.desk import HubLoginDesk
from dragoman.policy.engine import PolicyEngine
from dragoman.processes.own_commands import OwnCommands
from dragoman.stores.database import StorePlace
from dragoman.stores.keys import KeyStore
from dragoman.web.access_watch import AccessWatch
from dragoman.web.api import Api
from dragoman.web.api_agents import AgentsApi
from dragoman.web.api_approvals import ApprovalsApi
from dragoman.web.api_cluster import ClusterApi
from dragoman.web.api_console import ConsoleApi
from dragoman.web.api_dispatches import DispatchesApi
from dragoman.web.api_hub import HubApi
from dragoman.web.api_limits import LimitsApi
from dragoman.web.api_local_agents import LocalAgentsApi
from dragoman.web.api_logins import LoginsApi
from dragoman.web.api_offers import PromptsAndResourcesApi
from dragoman.web.api_pins import PinsApi
from dragoman.web.api_policies import PoliciesApi
from dragoman.web.api_records import RecordsApi
from dragoman.web.api_servers import ServersApi
from dragoman.web.api_skills import SkillsApi
from dragoman.web.api_taint import TaintApi
from dragoman.web.api_usage import UsageApi
from dragoman.web.api_views import ViewsApi
from dragoman.web.api_workflows import WorkflowsApi
from dragoman.web.auth import API_KEY
from dragoman.web.console.gate import ConsoleGate

if TYPE_CHECKING:
    from dragoman.app.build_cluster import ClusterParts
    from dragoman.app.shared_audit import SharedAudit
    from dragoman.stores.fence import Fence

log = logging.getLogger(__name__)


def build_app(
    home: Path,
    config: Config,
    mode: str,
    given: Sequence[Override] = (),
    api_key: str | None = None,
) -> App:
    """Builds a hub inside a running event loop. `given` are the settings of the command line, which
    take precedence over the file when it changes. `api_key` is the value behind a reference in the
    configuration that could not be read here. Raises `ConfigError`, with everything closed."""
    watch, live = ConfigWatch(home, given), LiveConfig(config, load_variables(home), home)
    api_key = resolve_local_api_key(config, live.secrets) if api_key is None else api_key
    bus, net, clients = Bus(config.bus.gate_secs), _build_net(config), ConnectedClients()
    registered, skill_table = RegisteredAgents(), SkillTable()
    cluster, member, fence, shared_key = _build_cluster(home, live)
    with contextlib.ExitStack() as undo:  # this process may try again
        stores = build_stores(home, config, live.secrets, member.mark, fence, shared_key)
        undo.callback(stores.close)
        key, share = _share_audit(home, stores, cluster)
        store_watch = StoreWatch(stores, home / config.policy.folder)
        auth = build_auth(mode, live, stores, net, api_key)
        state, access_watch = auth.state, AccessWatch(stores.keys, auth.authenticator)
        authority = build_authority(live, auth, stores, net, key, member)
        local: dict[str, LocalAgent] = {}
        names = known_ids.list_names(home, config, stores.place)
        catalogs = build_pinned_catalogs(live, stores, bus, registered, local, skill_table, names)
        logins = build_logins(
            home, stores.place, live, state, net, bus, shared_key,
            lambda principal: hub.authorizer.decide_action(principal, REGISTRY).allowed,
            lambda account, holder: targets.note_login(account.name, holder), authority, member,
        )  # fmt: skip
        open_account = logins.open_server_account
        upstreams = build_upstreams(home, live, net, catalogs, bus, clients, open_account, cluster)
        failures: dict[str, str] = {}
        load_function_agents(home, config, catalogs.tools, local, failures, stores.conversations)
        targets = Targets(upstreams, local, registered, skill_table)
        profiles, renew = AgentProfiles(), partial(renew_principal, stores.keys)
        access, io = build_access(home, config.tools, profiles), _build_outer(live, net, cluster)
        guards = build_guards(
            home, live, stores, bus, catalogs, targets, upstreams, profiles, access,
            access_watch.explain_ended, logins.desk, renew, member, key, *io,
        )  # fmt: skip
        hub, touch, review_card = guards.hub, guards.policies.touch, catalogs.pins.review_card
        mcp = build_mcp(live, hub, key, clients, cluster)
        granted = GrantedTools(guards.hub, guards.chains, guards.granted, DOOR)
        meter, runner = build_meter(live, stores.usage, profiles), find_command_runner(home, live)
        note_skills = partial(_note_skills, store_watch, live, skill_table, touch)
        skills = build_skills(
            home, live, skill_table, catalogs, runner, local, registered, note_skills
        )
        manifests = build_manifest_agents(
            home, live, guards, net, local, profiles, targets, granted, meter, runner, skills,
            stores.conversations,
        )  # fmt: skip
        endpoints = AgentEndpoints(guards, manifests, granted, key)
        agents = AgentsBuilder(
            home, live, state, stores, hub, net,
            LocalAgents(local, ChainMap(failures, manifests.failures)),
            profiles, registered, review_card, touch, logins.open_agent_account, guards.read_delay,
        ).build()  # fmt: skip
        tools = LazyTools(
            home, stores.place, config.tools, hub, net, manifests, access, stores.witness, runner,
            AgentVision(local), live.secrets, renew,
        )  # fmt: skip
        _check_tools(tools, undo)
        _enroll(store_watch, config, skill_table, stores.keys, guards.policies.engine)
        routing = _build_routing(stores.place, config, guards, registered, undo)
        workflows = LazyWorkflows(
            home, stores.place, live, guards, registered, stores.audit, renew,
            access_watch.explain_ended, routing.offer, cluster,
        )  # fmt: skip
        events = build_events(stores.place, config, hub)
        undo.pop_all()
    parts = HubParts(
        home, live, state, stores, store_watch, catalogs, guards, upstreams, mcp, agents,
        manifests, endpoints, skills, events, tools, routing, workflows, auth, authority, logins,
        cluster, share, *io,
    )  # fmt: skip
    return _assemble(parts, watch, access_watch, net)


def _build_net(config: Config) -> OutboundHttp:
    return OutboundHttp(room_bytes=config.limits.result_megabytes * 1024 * 1024)


def _build_outer(
    live: LiveConfig, net: OutboundHttp, cluster: ClusterParts | None
) -> tuple[RedisParts | None, Telemetry | None]:
    """Builds the connections to servers of the operator, where some are configured."""
    hubs = cluster.hubs if cluster is not None else None
    return build_redis(live, hubs), build_telemetry(live, net)


def _build_cluster(
    home: Path, live: LiveConfig
) -> tuple[ClusterParts | None, ClusterMember, Fence | None, bytes | None]:
    """None for a single hub, which loads nothing of it."""
    if live.config.cluster.secret is None:
        return None, SINGLE_HUB, None, None
    from dragoman.app.build_cluster import build_cluster

    cluster = build_cluster(home, live)
    return cluster, cluster.hubs, cluster.hubs.fence, cluster.key


def _share_audit(
    home: Path, stores: Stores, cluster: ClusterParts | None
) -> tuple[bytes, SharedAudit | None]:
    """Returns the key of the hub's seals, and what copies the audit log to the database."""
    key = cluster.key if cluster is not None else None
    if isinstance(stores.place, Path):
        return key or stores.witness.key, None
    from dragoman.app.shared_audit import SharedAudit

    shared = SharedAudit(stores.audit, stores.clock, home, stores.place.url, key)
    return key or stores.witness.key, shared


def _assemble(
    parts: HubParts, watch: ConfigWatch, access_watch: AccessWatch, net: OutboundHttp
) -> App:
    hub, reviews, desk = parts.guards.hub, parts.catalogs.reviews, parts.logins.desk
    hub.bus.observe(AgentChanged, lambda event: _release_removed(event, reviews, desk))
    catalog, count = hub.catalog, parts.events.dispatches.count_active
    view = RegistryView(parts.agents.registry, parts.stores.registry, catalog, count)
    applier, status = ConfigApplier(parts, watch), HubStatus(parts, watch, view)
    console = build_console(parts)
    api = _build_api(parts, applier, status, view, console)
    return App(parts, status, applier, access_watch, api, net, console)


def _build_routing(
    place: StorePlace,
    config: Config,
    guards: Guards,
    registered: RegisteredAgents,
    undo: contextlib.ExitStack,
) -> LazyRouting:
    routing = LazyRouting(place, config.routing, guards, registered)
    undo.callback(routing.close)
    routing.check()
    return routing


def _check_tools(tools: LazyTools, undo: contextlib.ExitStack) -> None:
    """Loads the built-in tools if a principal can use them."""
    tools.check()
    for built in tools.built:
        undo.callback(built.stores.close)


def _build_api(
    parts: HubParts,
    applier: ConfigApplier,
    status: HubStatus,
    view: RegistryView,
    console: ConsoleGate | None,
) -> Api:
    hub, stores, guards = parts.guards.hub, parts.stores, parts.guards
    granted = GrantedTools(hub, guards.chains, guards.granted, DOOR)
    commands, rules = OwnCommands(parts.home), parts.live.secrets.rules
    apis: list[object] = [
        PoliciesApi(guards.policies),
        PinsApi(parts.catalogs.approvals),
        AgentsApi(hub, view, stores.audit),
        LocalAgentsApi(hub, LocalAgentsView(parts, granted), stores.audit, TASKS_ONLY),
        DispatchesApi(hub, parts.events.dispatches, parts.routing, TASKS_ONLY),
        ServersApi(applier, ServerEditor(commands, applier.reload, rules), stores.audit),
        RecordsApi(hub, RecordQueries(parts, view, stores.usage)),
        HubApi(HubReportsView(parts, commands)),
        LoginsApi(
            hub, LoginAdmin(parts.logins.desk, view.agents, hub, parts.upstreams), stores.audit
        ),
        PromptsAndResourcesApi(hub, TASKS_ONLY),
        LimitsApi(hub, status.find_concurrency),
        UsageApi(hub, stores.usage),
        SkillsApi(parts.skills.describe),
        ViewsApi(HubViewReports(hub, parts.mcp.server.lists, parts.live.find_style)),
        TaintApi(TaintAdmin(hub, guards.flows, stores.labels, stores.audit)),
        ApprovalsApi(guards.approvals),
        WorkflowsApi(WorkflowsView(parts.workflows)),
        ClusterApi(status.describe_cluster),
    ]
    if console is not None:
        apis.append(ConsoleApi(hub, console, lambda: parts.state.base))
    return Api(hub, status, TASKS_ONLY, apis)


def _enroll(
    store_watch: StoreWatch,
    config: Config,
    skills: SkillTable,
    keys: KeyStore,
    engine: PolicyEngine,
) -> None:
    if store_watch.must_notify(SCOPES_LIMIT):
        for notice in describe_changes(config, keys.list(), engine):
            log.warning("since the last start: %s", notice)
    store_watch.record_servers(config.mcp_servers)
    store_watch.record_skills(skills.list_identities())
    closed = config.api_key is not None or config.auth.server.enabled
    store_watch.enroll(api_key_set=closed)


def _note_skills(
    store_watch: StoreWatch, live: LiveConfig, table: SkillTable, touch: Callable[[], None]
) -> None:
    """Called after every change of the skills."""
    touch()
    store_watch.record_skills(table.list_identities())
    withhold_secrets(live.config, table.list_variables())


def renew_principal(keys: KeyStore, principal: Principal) -> Principal:
    """Takes from a principal what its key does not have any more. One that was stored before scopes
    limited what credentials may be used for has begun its work nevertheless."""
    if principal.kind == USER and CALL not in principal.rights:
        return replace(principal, scopes=(*principal.scopes, CALL))
    if principal == API_KEY:
        return API_KEY
    if principal.kind == "key":
        keys.refresh()  # it may have been revoked a moment ago
    for record in keys.list() if principal.kind == "key" else ():
        if (record.name, record.org) == (principal.id, principal.org):
            now = known_ids.principal_from_key(record)
            roles = tuple(one for one in principal.roles if one in now.roles)
            scopes = tuple(one for one in principal.scopes if one in now.scopes)
            return replace(now, roles=roles, scopes=scopes)
    return principal


def _release_removed(event: AgentChanged, reviews: PinReviews, desk: HubLoginDesk) -> None:
    if event.state == REMOVED:
        reviews.release_names(event.agent)
        desk.remove_account(event.agent)
