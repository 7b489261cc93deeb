"""Policy administration: loads the policies of a home and reloads the folder when it changes, makes
changes, answers questions.

Knows neither the hub nor the API: it is given the engine, the folder and the catalogs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dragoman.app.config_watch import LiveConfig
from dragoman.app.policy_admin.known_ids import LiveKnownIds
from dragoman.app.policy_admin.queries import (
    PROPOSED,
    CurrentNames,
    FindTool,
    HasGrant,
    RecordedCalls,
    describe_need,
    find_principal,
    find_tool,
    propose_policies,
    refuse_grant,
    refuse_scope,
    render_headline,
    render_verdict,
)
from dragoman.config import Config
from dragoman.core.admin_audit import list_changes, record_done
from dragoman.core.background import Background
from dragoman.core.bus import Bus
from dragoman.core.catalog import Catalog
from dragoman.core.errors import ConfigError, InvalidInput, Overloaded, ShuttingDown, StorageFailed
from dragoman.core.events import PolicyChanged
from dragoman.core.local_agents import AGENT, AgentProfiles
from dragoman.core.ports import ADMIN_ACTIONS, AuditLog
from dragoman.core.principal import Principal
from dragoman.core.scopes import LIST, POLICIES
from dragoman.core.tool import Nowhere, TargetFacts, Tool
from dragoman.policy import loader, queries
from dragoman.policy.engine import PolicyEngine
from dragoman.policy.entities import FindFlows, find_declared_flows
from dragoman.policy.folder import (
    ENABLED,
    PolicyFolder,
    parse_name,
    read_default_texts,
    render_checked,
    render_finding,
    run_tests,
)
from dragoman.policy.loader import CheckedPolicies, PolicyError
from dragoman.policy.policy_set import WARNING, PolicyFinding, PolicySet
from dragoman.policy.reloader import PolicyReloader
from dragoman.stores.keys import KeyStore
from dragoman.stores.users import UserStore

if TYPE_CHECKING:
    from dragoman.policy.shared_policies import SharedPolicies

log = logging.getLogger(__name__)

CALL = "call"
CHANGE = "policy.change"
"""The verb of a change, in the audit log."""
FILES = "files"
"""The principal of a change that was made by editing the folder."""
BATCH = 200
"""Tools that are decided on in one turn of the loop."""
CHANGE_SECONDS = 1.0
"""How long a change in progress may take when the hub stops."""


@dataclass(frozen=True, slots=True)
class LoadedPolicies:
    folder: PolicyFolder
    known_ids: LiveKnownIds
    engine: PolicyEngine


def load_policies(
    home: Path,
    live: LiveConfig,
    keys: KeyStore,
    catalogs: Mapping[str, Catalog],
    find_facts: Callable[[str], TargetFacts | None],
    find_flows: FindFlows = find_declared_flows,
    users: UserStore | None = None,
    profiles: AgentProfiles | None = None,
) -> LoadedPolicies:
    config = live.config
    folder = PolicyFolder(home / config.policy.folder)
    folder.clean()
    known_ids = LiveKnownIds(home, live, keys, catalogs, users, profiles)
    engine = PolicyEngine(
        loader.load_policies(folder.path, known_ids.is_known),
        facts=find_facts,
        # A tool that differs from what was approved is not in the catalog: it leads nowhere.
        intact=lambda tool: not isinstance(tool.target, Nowhere),
        mode=config.policy.mode,
        depth=config.limits.chain_depth,
        flows=find_flows,
    )
    return LoadedPolicies(folder, known_ids, engine)


class PolicyChange(NamedTuple):
    plan: Callable[[], Mapping[str, str]]
    """Returns the texts after the change, which are checked before `make` changes a file."""
    make: Callable[[], str | None]
    name: str
    by: Principal
    force: bool


class PolicyService:
    def __init__(
        self,
        home: Path,
        audit: AuditLog,
        bus: Bus,
        catalogs: Mapping[str, Catalog],
        loaded: LoadedPolicies,
        find_tool: FindTool,
        has_grant: HasGrant,
        shared: SharedPolicies | None = None,
    ) -> None:
        """`find_tool` resolves a name as a call would. `has_grant` tells whether the grants of an
        agent name a tool. `shared` keeps the folder the same as those of other hubs."""
        self._shared = shared
        self._home = home
        self._audit = audit
        self._bus = bus
        self._catalogs = catalogs
        self.engine, self.folder, self._known_ids = loaded.engine, loaded.folder, loaded.known_ids
        self._find_tool = find_tool
        self._has_grant = has_grant
        self._author = FILES
        """Who makes the change that is being reloaded."""
        self._changing = asyncio.Lock()
        self._checking = asyncio.Lock()
        """One question about policies is computed at a time: threads that compute slow down the
        event loop."""
        self._background = Background("policy administration")
        self._is_replaying = False
        self._is_closed = False
        self._reported = ""
        self.reloader = PolicyReloader(
            self.engine, self.folder.path, self._known_ids.is_known, self._on_reload
        )
        for warning in self.engine.policy_set.warnings:
            log.warning("%s", warning)

    async def close(self) -> None:
        """Finishes a change in progress."""
        self._is_closed = True
        await self._background.close(CHANGE_SECONDS, timeout=CHANGE_SECONDS)
        if self._shared is not None:
            self._shared.close()

    # --- the files, live -------------------------------------------------------------------------

    async def check(self) -> None:
        """Puts a change of the folder in force, all of it or nothing. Never raises."""
        try:
            if self.reloader.is_stale:
                self._known_ids.refresh()  # here: the linter reads them from its thread
            await self.reloader.poll()
            if self._shared is not None:
                async with self._changing:
                    await self._shared.check(self.reloader)
            problem = self.reloader.problem
        except Exception as error:
            problem = f"the folder could not be checked: {error!r}"
        if problem != self._reported:
            self._reported = problem
            if problem:
                log.error("the new policies are not used: %s", problem)
                self._bus.emit(PolicyChanged(self.engine.policy_set.hash, problem))

    def apply(self, old: Config, new: Config) -> None:
        """Applies a new configuration. Another folder takes effect at the next start."""
        if new.policy.mode != old.policy.mode:
            log.warning("policies: mode is %s now", new.policy.mode)
            self.engine.set_mode(new.policy.mode)
            self._touch_catalogs()
        if new.policy.folder != old.policy.folder:
            log.warning("[policy] folder has changed; that takes effect at the next start")

    def touch(self) -> None:
        """Drops cached decisions: the facts about a target have changed."""
        self.engine.invalidate()
        self._touch_catalogs()

    def _touch_catalogs(self) -> None:
        for catalog in self._catalogs.values():
            catalog.mark_changed()

    def _on_reload(self, old: PolicySet, new: PolicySet) -> None:
        before = {each.id: each.text for each in old.policies}
        after = {each.id: each.text for each in new.policies}
        details = {"was": old.hash, "policy_set": new.hash, **list_changes(before, after)}
        author, door = self._author, FILES if self._author == FILES else "api"
        try:
            record_done(self._audit, CHANGE, CHANGE, author, door, details)
        except (StorageFailed, ShuttingDown) as error:  # the files are in force all the same
            log.error("a change of the policies is not in the audit log: %s", error)
        log.info("policies %s are in force, by %s", new.hash, author)
        known = set(map(str, old.warnings))
        for warning in new.warnings:
            if str(warning) not in known:  # of a policy that has not changed, it was logged before
                log.warning("%s", warning)
        self._bus.emit(PolicyChanged(new.hash, ""))
        self._touch_catalogs()

    # --- changes ---------------------------------------------------------------------------------

    async def write(self, name: str, text: str, by: Principal, *, force: bool) -> dict[str, Any]:
        folder = self.folder
        plan, make = partial(folder.plan_write, name, text), partial(folder.write, name, text)
        return await self._change(PolicyChange(plan, make, name, by, force))

    async def enable(
        self, name: str, enabled: bool, by: Principal, *, force: bool
    ) -> dict[str, Any]:
        plan = partial(self.folder.plan_enable, name, enabled)
        make = partial(self.folder.enable, name, enabled)
        return await self._change(PolicyChange(plan, make, name, by, force))

    async def remove(self, name: str, by: Principal, *, force: bool) -> dict[str, Any]:
        plan, make = partial(self.folder.plan_remove, name), partial(self.folder.remove, name)
        return await self._change(PolicyChange(plan, make, name, by, force))

    async def _change(self, change: PolicyChange) -> dict[str, Any]:
        """Completes the change even if its author disconnects: it is recorded as theirs."""
        return await self._background.run_to_completion(self._check_and_change(change))

    async def _check_and_change(self, change: PolicyChange) -> dict[str, Any]:
        by = change.by
        async with self._changing:
            if not self.engine.policy_set.default and not self.folder.exists:
                # A new folder would begin with the default policies, which permit more.
                raise StorageFailed(
                    f'the policy folder "{self.folder.path}" is missing: restore it'
                )
            checked = await self._check_texts(change.plan())
            if checked.policy_set is None:
                return render_checked(checked)
            draft = self.engine.copy_with(checked.policy_set)
            if not change.force and not draft.decide_action(by, POLICIES).allowed:
                raise InvalidInput(
                    f'no policy would permit "{by.label}" the action "policies" or "admin" any '
                    'more, and it could not undo the change here; send "force" to make it anyway'
                )
            self._author = by.label
            try:
                remainder = await asyncio.to_thread(change.make)
                await self.reloader.reload()
            finally:
                self._author = FILES
        done = {**render_checked(checked), "name": parse_name(change.name)}
        if remainder:
            log.warning("%s", remainder)
            done["findings"].append(render_finding(PolicyFinding(WARNING, "", 0, "", remainder)))
        return done

    async def _check_texts(self, texts: Mapping[str, str]) -> CheckedPolicies:
        known = self._known_ids.refresh()
        async with self._checking:
            return await asyncio.to_thread(loader.check_texts, texts, known)

    # --- answers ---------------------------------------------------------------------------------

    async def overview(self) -> dict[str, Any]:
        snapshot, problem = self.engine.policy_set, self.reloader.problem
        try:
            files = await asyncio.to_thread(self.folder.list_files)
        except ConfigError as error:
            files, problem = [], problem or str(error)
        return {
            "folder": str(self.folder.path),
            "default": snapshot.default,
            "mode": self.engine.mode,
            "snapshot": snapshot.hash,
            "problem": problem,
            "files": files,
            "guardrails": [
                {"id": each.id, "description": each.annotations.get("why", "")}
                for each in snapshot.policies
                if each.guardrail
            ],
            "warnings": [str(each) for each in snapshot.warnings],
        }

    async def one(self, name: str) -> dict[str, Any]:
        text, enabled = self.folder.read(name)
        files = await asyncio.to_thread(self.folder.list_files)
        wanted = parse_name(name), enabled
        found = [entry for entry in files if (entry["name"], entry["enabled"]) == wanted]
        return {**found[0], "text": text}

    def plan(self, name: str, text: str) -> Mapping[str, str]:
        if not self.folder.exists:
            return {**read_default_texts(), f"{parse_name(name)}{ENABLED}": text}
        return self.folder.plan_write(name, text)

    async def validate(self, texts: Mapping[str, str] | None) -> dict[str, Any]:
        try:
            texts = self.folder.read_texts() if texts is None else texts
            return render_checked(await self._check_texts(texts))
        except PolicyError as error:  # the folder is unreadable
            return render_checked(CheckedPolicies(None, error.findings, ()))

    async def test(self, texts: Mapping[str, str] | None) -> dict[str, Any]:
        texts = self.folder.read_texts() if texts is None else texts
        async with self._checking:
            return await asyncio.to_thread(run_tests, texts)

    async def explain(
        self,
        principal: str,
        tool: str,
        action: str | None,
        context: Mapping[str, Any],
        roles: tuple[str, ...] | None,
    ) -> dict[str, Any]:
        caller = self._find_principal(principal, roles)
        on = None if action in ADMIN_ACTIONS else self._get_tool(tool)
        try:
            async with self._checking:
                # A copy: the caches of an engine are for one thread.
                copy = self.engine.copy_with(self.engine.policy_set)
                found = await asyncio.to_thread(
                    queries.explain, copy, caller, action or CALL, on, context
                )
        except LookupError as error:
            raise InvalidInput(f"invalid question: {error}") from None
        listed = None
        if on is not None:
            listed = LIST in caller.rights and self.engine.can_see(caller, on, "api")
            listed = listed and self._has_grant(caller, on)
        name = on.name if on is not None else ""
        return {
            **found,
            "allowed": found["decision"] == "permit",
            "words": render_headline(found, caller.label, name),
            "caller": caller.label,
            "tool": name,
            "listed": listed,
            **describe_need(found),
            # Assumed roles are a question about the policies alone.
            **(refuse_scope(found, caller, context.get("scopes", ())) if roles is None else {}),
            **(refuse_grant(found, caller, on) if self._lacks_grant(caller, on) else {}),
        }

    def _lacks_grant(self, caller: Principal, tool: Tool | None) -> bool:
        return tool is not None and not self._has_grant(caller, tool)

    def _find_principal(self, name: str, roles: tuple[str, ...] | None) -> Principal:
        known = self._known_ids
        return find_principal(name, known.list_principals(), roles, known.find_user)

    async def who_can(self, tool: str) -> dict[str, Any]:
        on = self._get_tool(tool)
        callers = self._known_ids.list_principals()
        rows: list[dict[str, Any]] = []
        for begin in range(0, len(callers), BATCH):
            rows += queries.list_who_can(self.engine, on, callers[begin : begin + BATCH])
            await asyncio.sleep(0)  # lets calls proceed
        verdicts = [
            {
                **render_verdict(row["caller"], row, caller, has_grant=self._has_grant(caller, on)),
                "agent": caller.serves if caller.kind != AGENT else "",
            }
            for caller, row in zip(callers, rows, strict=True)
        ]
        return {"tool": on.name, **self._describe_set(), "principals": verdicts}

    async def what_can(self, principal: str) -> dict[str, Any]:
        caller = self._find_principal(principal, None)
        tools = [tool for catalog in self._catalogs.values() for tool in catalog.list_tools()]
        rows: list[dict[str, Any]] = []
        for begin in range(0, len(tools), BATCH):
            rows += queries.list_what_can(self.engine, caller, tools[begin : begin + BATCH])
            await asyncio.sleep(0)  # lets calls proceed
        verdicts = [
            {
                **render_verdict(row["tool"], row, caller, has_grant=self._has_grant(caller, tool)),
                "kind": row["kind"],
            }
            for tool, row in zip(tools, rows, strict=True)
        ]
        return {"principal": caller.label, **self._describe_set(), "tools": verdicts}

    def describe(self) -> dict[str, Any]:
        """The part of the hub's status."""
        return {
            **self._describe_set(),
            "default": self.engine.policy_set.default,
            "problem": self.reloader.problem or None,
        }

    def _describe_set(self) -> dict[str, str]:
        return {"snapshot": self.engine.policy_set.hash, "mode": self.engine.mode}

    def _get_tool(self, name: str) -> Tool:
        return find_tool(name, self._find_tool, self._catalogs)

    async def replay(
        self, texts: Mapping[str, str], since: float, until: float, limit: int
    ) -> dict[str, Any]:
        checked = await self._check_texts(texts)
        if checked.policy_set is None:
            return render_checked(checked)
        draft = self.engine.copy_with(checked.policy_set)
        async with self._open_records(since, until, limit) as (records, names):
            found = await asyncio.to_thread(
                queries.replay, records, draft, names.find_principal, names.find_tool
            )
        about = {"draft": checked.policy_set.hash, "since": since, "until": until}
        return {**found, **about, "more": records.more}

    async def propose(self, since: float, until: float, limit: int) -> dict[str, Any]:
        """Returns the least policies that permit the recorded calls, replayed on these calls."""
        async with self._open_records(since, until, limit) as (records, names):
            # A copy: the caches of an engine are for one thread.
            copy = self.engine.copy_with(self.engine.policy_set)
            found = await asyncio.to_thread(propose_policies, records, copy, names)
        tried = await self.replay({PROPOSED: found["text"]}, since, until, limit)
        denied = [flip for flip in tried.get("flips", ()) if flip["now"] != queries.PERMIT]
        about = {"ok": tried.get("ok", True), "findings": tried.get("findings", [])}
        return {**found, **about, "denied": denied, "more": records.more}

    @asynccontextmanager
    async def _open_records(
        self, since: float, until: float, limit: int
    ) -> AsyncIterator[tuple[RecordedCalls, CurrentNames]]:
        """The records of a period, for one request at a time: they may be many."""
        if self._is_replaying:
            raise Overloaded("another replay of recorded calls is running; try again later")
        self._is_replaying = True
        try:
            records = RecordedCalls(self._home, since, until, limit, lambda: self._is_closed)
            known = self._known_ids
            yield records, CurrentNames(self._find_tool, known.list_principals(), known.find_user)
        finally:
            self._is_replaying = False
