"""The hub: finds tools and runs calls through the pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from dragoman.core import kept_results, resource_uris, structs
from dragoman.core.bus import Bus
from dragoman.core.call import (
    NO_UPDATES,
    NOTHING,
    Call,
    MessageOrigin,
    Notes,
    Result,
    RoutedBy,
    TaskHandling,
    Updates,
    WantedUpdates,
    caller,
    discard_update,
)
from dragoman.core.call_chains import CallChains
from dragoman.core.catalog import Catalog, find_represented
from dragoman.core.cluster import SINGLE_HUB, ClusterMember
from dragoman.core.errors import AmbiguousName, HubError, NotFound, WorkFailed
from dragoman.core.kept_results import KeptResult, KeptResults
from dragoman.core.logins import LoginNeeds
from dragoman.core.pipeline import Stage, build_pipeline
from dragoman.core.ports import Authorizer, ListRefresher, ListVisibility, RateLimiter
from dragoman.core.principal import Principal
from dragoman.core.rate_limiter import LocalRateLimiter
from dragoman.core.resource_uris import (
    LINK,
    LINKING,
    UI,
    OpenedApps,
    ResourceOwners,
    ReturnedUris,
)
from dragoman.core.startup import Startup
from dragoman.core.structs import Struct
from dragoman.core.tool import (
    COMPLETION,
    INSTRUCTIONS,
    PROMPT,
    RESOURCE,
    SUBSCRIPTION,
    TEMPLATE,
    TOOL,
    Nowhere,
    Target,
    Tool,
    accept_anything,
    build_missing_tool,
    build_unknown_tool,
)
from dragoman.core.tool_filter import EVERYTHING, View
from dragoman.core.trace import Trace, TraceContext
from dragoman.core.views import Views

MAX_NAMED = 20
"""Tools that an error names."""
_NO_NAMES: frozenset[str] = frozenset()


def _is_unknown(tool: Tool) -> bool:
    target = tool.target
    return isinstance(target, Nowhere) and isinstance(target.error, NotFound)


def _mask_error(call: Call, error: HubError) -> None:
    """Takes the secrets of the call's arguments out of an error that its target reports."""
    if (secrets := call.trace.secrets) and error.args:
        error.args = (secrets.mask(str(error)), *error.args[1:])


def _hide_secrets(trace: Trace, tool: Tool, name: str) -> tuple[Trace, Tool, str]:
    """Takes the secrets that arguments may have out of the name of a tool, which guards, records
    and logs have in the clear."""
    hidden = trace.secrets.mask(name)
    if hidden != name and isinstance(tool.target, Nowhere):
        error = copy(tool.target.error)
        error.args = (trace.secrets.mask(str(error)), *error.args[1:])
        tool = build_missing_tool(hidden, error, tool.kind, tool.target.stands_for)
        trace = structs.replace(trace, verb=hidden)
    return trace, tool, hidden


class CallOptions(Struct, frozen=True):
    """What a server passes beside the tool and its arguments; `Call` documents the fields it takes
    over."""

    door: str
    view: View
    """The tools that this entry point offers."""
    kind: str = TOOL
    trace_context: TraceContext | None = None
    """The trace that the request brought."""
    meta: Mapping[str, Any] | None = None
    session: str | None = None
    message: MessageOrigin | None = None
    updates: Updates = discard_update
    wanted_updates: WantedUpdates = NO_UPDATES
    client: str = ""
    revision: str = ""
    features: Mapping[str, Any] = NOTHING
    answers: Mapping[str, Any] | None = None
    handle: str | None = None
    routed: RoutedBy | None = None
    approval: str | None = None
    task: TaskHandling | None = None
    attempt: str = ""


class Hub:
    def __init__(
        self,
        catalogs: Mapping[str, Catalog],
        bus: Bus,
        stages: Sequence[Stage],
        chains: CallChains,
        authorizer: Authorizer,
        *,
        results: KeptResults | None = None,
        startup: Startup | None = None,
        refresher: ListRefresher | None = None,
        visibility: ListVisibility | None = None,
        limiter: RateLimiter | None = None,
        logins: LoginNeeds | None = None,
        views: Views | None = None,
        cluster: ClusterMember = SINGLE_HUB,
    ) -> None:
        """`catalogs` has one of every kind (`core.catalog.build_catalogs`). `results` keeps
        truncated results, `startup` knows the targets that have not connected yet, `refresher`
        reads their lists again, `visibility` says which of them single clients are listed,
        `logins` which of them need a login, and `cluster` what belongs to other hubs."""
        self.cluster = cluster
        self.offered = catalogs
        """Everything that a target may offer: what can be called, and its instructions."""
        self.catalogs = {kind: one for kind, one in catalogs.items() if kind != INSTRUCTIONS}
        self.catalog = catalogs[TOOL]
        self.instructions = catalogs[INSTRUCTIONS]
        self.chains = chains
        self.authorizer = authorizer
        self.bus = bus
        self.results = results
        self.startup = startup
        self.refresher = refresher
        self.visibility = visibility
        self.logins = logins
        self.limiter: RateLimiter = LocalRateLimiter() if limiter is None else limiter
        """Servers charge the requests to it that make no call; a stage charges the calls."""
        self.views = Views() if views is None else views
        self._owners_at: tuple[tuple[int, ...], ResourceOwners] = (), ResourceOwners((), ())
        """The owners of resource addresses, at these versions of the catalogs."""
        self._mentions = ReturnedUris()
        self._opened_apps = OpenedApps()
        run = self._run if cluster is SINGLE_HUB else self._run_with_lease
        self._pipeline = build_pipeline(stages, run)

    async def call(
        self, principal: Principal, name: str, arguments: Mapping[str, Any], options: CallOptions
    ) -> tuple[Tool, Result]:
        """Calls a tool and returns it with its result. Servers, agents, the command line and tests
        all use it; no target can be reached otherwise."""
        view, kind, handle = options.view, options.kind, options.handle
        if principal.view:
            view = self.views.narrow(view, principal.view)
        if kind == RESOURCE:  # kept results are unknown to all but their owners
            tool = self.find_visible(principal, name, view, kind)
            if name.startswith(UI) and not isinstance(tool.target, Nowhere):
                self._opened_apps.add(options.client or principal, tool.target.name)
        else:
            tool = self.find(name, view, kind)
        if isinstance(tool.target, Nowhere):
            tool = await self._find_late(principal, name, options)
        trace = self.chains.start_trace(
            principal, tool.name, tool.target.name, options.trace_context, handle
        )
        if trace.parent is not None and trace.secrets:
            trace, tool, name = _hide_secrets(trace, tool, name)
        call = Call(  # by position: by name it takes half as long again
            principal,
            tool,
            name,
            arguments,
            trace,
            options.door,
            options.meta,
            options.session,
            options.message,
            options.updates,
            options.wanted_updates,
            options.client,
            options.revision,
            options.features,
            options.answers,
            handle,
            Notes(),
            options.routed,
            options.approval,
            False,
            options.task,
            options.attempt,
        )
        try:
            result = await self._pipeline(call)
        except HubError as error:
            error.trace = trace.id
            error.has_left = call.notes.has_left
            raise
        if call.notes.flush is not None:
            await call.notes.flush()
        return tool, result

    async def call_within(
        self, parent: Trace, principal: Principal, name: str, arguments: Mapping[str, Any],
        options: CallOptions,
    ) -> tuple[Tool, Result]:  # fmt: skip
        """Calls a tool on behalf of a running call, whose trace is `parent`."""
        within = TraceContext(parent.id, parent.span, "", parent.state)
        return await self.call(
            principal, name, arguments, structs.replace(options, trace_context=within)
        )

    async def _run_with_lease(self, call: Call) -> Result:
        """The end of the pipeline of a hub in a cluster: one that was paused meanwhile may not do
        what its heir does."""
        self.cluster.check_lease()
        return await self._run(call)

    async def _run(self, call: Call) -> Result:
        """The end of the pipeline. An unexpected exception of a target counts as its failure."""
        call.notes.has_left = True
        token = caller.set(call.principal)
        try:
            result = await call.tool.target.run(call)
        except HubError as error:
            _mask_error(call, error)
            raise
        except Exception as error:
            failure = WorkFailed(f'"{call.tool.name}" failed: {error!r}')
            _mask_error(call, failure)
            raise failure from error
        finally:
            caller.reset(token)  # a task whose context has changed serves no other request
        for block in result.content:
            if isinstance(block, dict) and block.get("type") in LINKING:
                return self._rewrite_links(call, result)
        return result

    async def _find_late(self, principal: Principal, name: str, options: CallOptions) -> Tool:
        """Resolves an unknown name again: as a fallback, and after targets have started and stale
        lists were read."""
        tool = self.find_visible(principal, name, options.view, options.kind)
        if not _is_unknown(tool):
            return tool
        is_settled = self.startup is None or self.startup.is_settled
        # Apps call often: lists are not read again for each call.
        fallback = self.find_fallback(principal, name, options) if is_settled else None
        if fallback is not None:
            return fallback
        tool = await self._find_refreshed(principal, name, options.view, options.kind, tool)
        if not _is_unknown(tool):
            return tool
        return self.find_fallback(principal, name, options) or tool

    async def _find_refreshed(
        self, principal: Principal, name: str, view: View, kind: str, tool: Tool
    ) -> Tool:
        if self.startup is not None and _is_unknown(tool):
            tool = await self._find_starting(self.startup, principal, name, view, kind)
        if self.refresher is None or not _is_unknown(tool):
            return tool
        again = await self.refresher.refresh_for(name, kind)
        return self.find_visible(principal, name, view, kind) if again else tool

    def find_fallback(self, principal: Principal, name: str, options: CallOptions) -> Tool | None:
        """Finds the tool that a name stands for which no tool has: the user interface of a server's
        tool (MCP Apps) calls the tools of its own server by the server's names. If several servers
        have that name, the one counts whose user interface the client has read last."""
        view = options.view
        if options.kind != TOOL:
            return None
        if principal.view:
            view = self.views.narrow(view, principal.view)
        found = self.catalog.find_fallbacks(name, view)
        declared = [tool for tool in found if name in tool.fallback_names]
        judge, door = self.authorizer, options.door
        found = [tool for tool in found if judge.can_list(principal, find_represented(tool))]
        if len(found) > 1:  # a denial says more than "not found"
            sees = judge.can_see
            found = [
                tool for tool in found if sees(principal, find_represented(tool), door)
            ] or found[:1]
        if len(found) <= 1:
            return next(iter((*found, *declared)), None)
        of_target = {find_represented(tool).target.name: tool for tool in found}
        for target in self._opened_apps.list_targets(options.client or principal):
            if target in of_target:
                return of_target[target]
        if declared:
            return declared[0]
        names = ", ".join(sorted(f'"{find_represented(tool).name}"' for tool in found)[:MAX_NAMED])
        problem = f'there is no tool "{name[:200]}", and several servers have one: call {names}'
        return build_missing_tool(name, AmbiguousName(problem), TOOL, found)

    async def _find_starting(
        self, startup: Startup, principal: Principal, name: str, view: View, kind: str
    ) -> Tool:
        """Resolves a name once its target has connected. If the target is still absent, returns a
        `Nowhere` tool that says so, for principals that may know of the target's tools."""

        def is_known() -> bool:
            return not _is_unknown(self.find(name, view, kind))

        await startup.wait_for(is_known, self.catalogs.values())
        tool = self.find_visible(principal, name, view, kind)
        absent = startup.find_absent(name) if _is_unknown(tool) else None
        if absent is None:
            return tool
        target = absent[0]
        guess = Tool(
            name=f"{target.name}.{name}", alias=name, remote_name=name, kind=kind, target=target
        )
        if not self.authorizer.can_list(principal, guess):
            return tool
        await startup.try_now(target)
        tool = self.find_visible(principal, name, view, kind)
        if not _is_unknown(tool):
            return tool
        absent = startup.find_absent(name)  # None if it connected meanwhile and has no such tool
        return build_missing_tool(name, absent[1], kind) if absent is not None else tool

    def list_tools(
        self,
        principal: Principal,
        view: View,
        kind: str = TOOL,
        door: str = "",
        hidden: frozenset[str] | None = None,
    ) -> list[Tool]:
        """Lists the tools of `view` that the principal may see at that entry point, in the
        order of the catalog, without `hidden` ones: by default those of single clients."""
        sees = self.authorizer.can_see
        if principal.view:
            view = self.views.narrow(view, principal.view)
        if hidden is None:
            hidden = self.list_client_only_names(kind)
        return [
            tool
            for tool in self.catalogs[kind].list_tools()
            if (view is EVERYTHING or view.includes(tool))
            and tool.name not in hidden
            and sees(principal, tool, door)
        ]

    def list_client_only_names(self, kind: str) -> frozenset[str]:
        """Lists the canonical names of tools that single clients alone have."""
        visibility = self.visibility
        return visibility.list_client_only_names(kind) if visibility is not None else _NO_NAMES

    def can_act_on_task(self, principal: Principal, action: str, name: str, view: View) -> bool:
        """Whether policy allows `action` on the principal's own task of tool `name`. If the tool no
        longer exists, ownership alone decides, except for a principal that is bound to a view: one
        user may have tokens with and without a view."""
        tool = self.find(name, EVERYTHING if principal.view else view)
        if isinstance(tool.target, Nowhere):
            return not principal.view
        return self.authorizer.decide_action(principal, action, tool, owner=True).allowed

    def find_visible(self, principal: Principal, name: str, view: View, kind: str = TOOL) -> Tool:
        """Like `find`, but unknown for a principal that may not list what the name stands for."""
        if principal.view:
            view = self.views.narrow(view, principal.view)
        tool = self.find(name, view, kind)
        target = tool.target
        if isinstance(target, KeptResult) and target.owner != principal:
            return kept_results.build_missing_result(name)
        if not isinstance(target, Nowhere) or not target.stands_for:
            return tool
        known = any(self.authorizer.can_list(principal, one) for one in target.stands_for)
        return tool if known else build_unknown_tool(name, kind)

    def find(self, name: str, view: View, kind: str = TOOL) -> Tool:
        """Resolves `name` to a tool; returns a `Nowhere` tool if unknown."""
        if kind == TOOL:  # the common case
            catalog = self.catalog
            return catalog.find(name) if view is EVERYTHING else catalog.find_within(name, view)
        tool = self._find_other_kind(name, view, kind)
        return tool if tool.kind == kind else replace(tool, kind=kind, validate=accept_anything)

    def _find_in(self, kind: str, name: str, view: View) -> Tool:
        catalog = self.catalogs[kind]
        return catalog.find(name) if view is EVERYTHING else catalog.find_within(name, view)

    def _find_other_kind(self, name: str, view: View, kind: str) -> Tool:
        if kind == COMPLETION:
            prompt = self._find_in(PROMPT, name, view)
            template = self._find_in(TEMPLATE, name, view)
            is_address = ":" in name or not _is_unknown(template)
            return template if isinstance(prompt.target, Nowhere) and is_address else prompt
        if kind not in (RESOURCE, SUBSCRIPTION):
            return self._find_in(kind, name, view)
        if name.startswith(kept_results.PREFIX):  # the hub's own: no server is asked for them
            return self._find_kept_result(name, view, kind)
        tool = self._find_in(RESOURCE, name, view)
        if _is_unknown(tool):
            unlisted = self._find_unlisted(name, kind)
            if unlisted is not None and (view is EVERYTHING or view.includes(unlisted)):
                return unlisted
        return tool

    def _find_kept_result(self, uri: str, view: View, kind: str) -> Tool:
        if self.results is None or kind == SUBSCRIPTION:
            return build_unknown_tool(uri, kind)
        tool = self.results.find(uri)
        if isinstance(tool.target, KeptResult) and not view.includes(tool.target.origin):
            return build_unknown_tool(uri, kind)
        return tool

    # --- unlisted resources --------------------------------------------------------------------

    def _find_unlisted(self, uri: str, kind: str) -> Tool | None:
        """Finds the owner of a resource that no list has: a template may lead to it, a tool may
        name it, a result may link to it. It need not be listed, or readable, to be subscribed to.
        """
        found = self._get_owners().find_owner(
            uri, self._mentions.find_owner(uri), to_subscribe=kind == SUBSCRIPTION
        )
        if found is None:
            return None
        target, remote = found
        name = f"{target.name}.{remote}"
        claimed = self.catalogs[RESOURCE].claims.find_owner(RESOURCE, uri)
        if claimed is not None and claimed != name:
            return None  # it belongs to another server, which is absent
        listed = self.catalogs[RESOURCE].find(name)  # the address names its server
        if not _is_unknown(listed):
            return listed
        return Tool(name=name, alias=uri, remote_name=remote, kind=RESOURCE, target=target)

    def _get_owners(self) -> ResourceOwners:
        version = tuple(catalog.version for catalog in self.catalogs.values())
        if self._owners_at[0] != version:
            templates, resources = self.catalogs[TEMPLATE], self.catalogs[RESOURCE]
            listing = [tool.target for tool in resources.list_targets()]
            others = [one.target for each in self.catalogs.values() for one in each.list_targets()]
            tools = [tool for tool in self.catalog.list_tools() if tool.resources]
            owners = ResourceOwners(templates.list_tools(), listing, others, tools)
            self._owners_at = version, owners
        return self._owners_at[1]

    def find_readable_uri(self, target: Target, uri: str) -> str:
        """The address at which clients read the target's `uri`: its own if no other owns that."""
        if self._leads_to(uri, target):
            return uri
        own = resource_uris.build_own_uri(target.name, uri)
        return own if self._leads_to(own, target) else f"{target.name}.{uri}"

    def _leads_to(self, uri: str, target: Target) -> bool:
        found = self.find(uri, EVERYTHING, RESOURCE).target
        if isinstance(found, Nowhere):
            return any(one.target.name == target.name for one in found.stands_for)
        return found.name == target.name

    def _rewrite_links(self, call: Call, result: Result) -> Result:
        """Remembers the addresses that a server returned, and makes links lead to that server."""
        tool, content = call.tool, list(result.content)
        for place, block in enumerate(content):
            uri = resource_uris.find_uri(block)
            if not uri:
                continue
            shown = uri
            if tool.kind == RESOURCE and uri == tool.remote_name:
                shown = call.requested_name
            elif tool.target.traits.has_resources:
                self._remember_uri(tool.target, uri)
                if block["type"] == LINK:
                    shown = self.find_readable_uri(tool.target, uri)
            if shown != uri:
                content[place] = resource_uris.replace_uri(block, shown)
        return structs.replace(result, content=content)

    def _remember_uri(self, target: Target, uri: str) -> None:
        owner = self._mentions.find_owner(uri)
        if owner is not None and self._get_owners().find_target(owner) is None:
            self._mentions.forget(owner)  # that server was removed
        self._mentions.add(target.name, uri)
