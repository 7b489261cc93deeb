"""The half of the hub that has to do with policies, joined: the engine that judges, the folder it
goes by, whoever there is to be judged, and what is answered about it. Part of `assembly`, which
asks it to `look` from time to time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dragoman.app.policy_admin.policy_folder import (
    Folder,
    Names,
    judged,
    named,
    principals,
    registered,
    shown,
    tested,
)
from dragoman.app.policy_admin.queries import (
    PROPOSED,
    Records,
    Today,
    caller_named,
    described,
    headline,
    needed,
    proposed,
    tool_named,
    verdict,
)
from dragoman.config import Config
from dragoman.core.background import Background
from dragoman.core.errors import ConfigError, InvalidInput, Overloaded, ShuttingDown, StorageFailed
from dragoman.core.events import PolicyChanged
from dragoman.core.hub import Hub
from dragoman.core.ports import ADMIN, AuditLog
from dragoman.core.principal import Principal
from dragoman.core.tool import Target, TargetFacts, Tool
from dragoman.policy import loader, queries
from dragoman.policy.engine import PolicyEngine
from dragoman.policy.lint import EntityLookup
from dragoman.policy.loader import CheckedPolicies, PolicyError
from dragoman.policy.policy_set import WARNING, PolicyFinding, PolicySet
from dragoman.policy.reloader import PolicyReloader
from dragoman.stores.keys import KeyStore

log = logging.getLogger(__name__)

CALL = "call"
CHANGE = "policy.change"
"""The verb of a change, in the audit."""
CHANGE_SECONDS = 1.0
"""How long a change in progress may take when the hub stops."""
FILES = "files"
"""Who changed it, where somebody has edited the folder."""
AT_ONCE = 200
"""Tools that are judged in one turn of the loop, where somebody asks about all."""


class PolicySide:
    """Made before the hub, which takes `policies` for its authorizer; then the two are joined."""

    def __init__(
        self,
        place: Path,
        config: Config,
        keys: KeyStore,
        audit: AuditLog,
        intact: Callable[[Tool], bool],
    ) -> None:
        """`intact` tells whether a tool is as it was approved. Raises `ConfigError` where what is
        in the folder cannot be used: a hub does not start without policies."""
        self._place = place
        self._config = config
        self._keys = keys
        self._audit = audit
        self._hub: Hub | None = None
        self._target: Callable[[str], Target | None] = lambda name: None
        self._by = FILES
        self._changing = asyncio.Lock()
        self._background = Background("policy administration")
        self._replaying = False
        self._closed = False
        self._told = ""
        self._named_at: Any = None
        """What there was when `_names` were found."""
        self._names: EntityLookup = lambda type, id: False
        self.folder = Folder(place / config.policy.folder)
        self.folder.clean()
        snapshot = loader.load_policies(self.folder.path, self._known())
        self.policies = PolicyEngine(
            snapshot,
            facts=self._facts,
            intact=intact,
            mode=config.policy.mode,
            depth=config.limits.chain_depth,
        )
        self.reloader = PolicyReloader(
            self.policies, self.folder.path, self._is_known, self._changed
        )
        for warning in snapshot.warnings:
            log.warning("%s", warning)

    def join(self, hub: Hub, target: Callable[[str], Target | None]) -> None:
        """`target` finds a server or an agent by its name, one that offers nothing too; None where
        there is none."""
        self._hub = hub
        self._target = target

    async def close(self) -> None:
        """Finishes a change that is being made."""
        self._closed = True
        await self._background.close(CHANGE_SECONDS, timeout=CHANGE_SECONDS)

    # --- the files, live -------------------------------------------------------------------------

    async def look(self) -> None:
        """Takes up what has changed in the folder, all of it or nothing. Never raises: whoever asks
        for it asks again."""
        try:
            if self.reloader.is_stale:
                self._known()  # only then is it asked for, by another thread
            await self.reloader.poll()
            problem = self.reloader.problem
        except Exception as error:
            problem = f"they could not be looked at: {error!r}"
        if problem != self._told:
            self._told = problem
            if problem:
                log.error("the new policies are not used: %s", problem)
                self._tell(self.policies.policy_set, problem)

    def apply(self, config: Config) -> None:
        """A configuration that is new. The folder it names counts at the next start."""
        if config.policy.mode != self._config.policy.mode:
            log.warning("policies: mode is %s now", config.policy.mode)
            self.policies.mode = config.policy.mode
            self.touch()
        if config.policy.folder != self._config.policy.folder:
            log.warning("[policy] folder has changed; that is used from the next start on")
        self._config = config

    def touch(self) -> None:
        """What is known of targets has changed."""
        self.policies.invalidate()
        self._touch_lists()

    def _touch_lists(self) -> None:
        if self._hub is not None:
            for catalog in self._hub.catalogs.values():
                catalog.mark_changed()

    def _changed(self, old: PolicySet, new: PolicySet) -> None:
        before = {each.id: each.text for each in old.policies}
        after = {each.id: each.text for each in new.policies}
        both = before.keys() & after.keys()
        self._record(
            {
                "outcome": "completed",
                "was": old.hash,
                "policy_set": new.hash,
                "added": sorted(after.keys() - before.keys())[:100],
                "removed": sorted(before.keys() - after.keys())[:100],
                "changed": sorted(id for id in both if before[id] != after[id])[:100],
                "duration_ms": 0,
            }
        )
        log.info("policies %s are in force, by %s", new.hash, self._by)
        for warning in new.warnings:
            log.warning("%s", warning)
        self._tell(new, "")
        self._touch_lists()

    def _record(self, conclusion: Mapping[str, Any]) -> None:
        door = FILES if self._by == FILES else "api"
        entry = {"verb": CHANGE, "asked_as": CHANGE, "caller": self._by, "door": door, "depth": 0}
        try:
            self._audit.conclude(self._audit.intend(entry), conclusion)
        except (
            StorageFailed,
            ShuttingDown,
        ) as error:  # it is in force all the same: the files are the truth
            log.error("a change of the policies is not in the audit: %s", error)

    def _tell(self, snapshot: PolicySet, problem: str) -> None:
        if self._hub is not None:
            self._hub.bus.emit(PolicyChanged(snapshot.hash, problem))

    # --- who and what there is -------------------------------------------------------------------

    def callers(self) -> list[Principal]:
        return principals(self._config, self._keys.list(), time.time())

    def _caller(self, name: str, roles: tuple[str, ...] | None) -> Principal:
        return caller_named(name, self.callers(), roles)

    def _tool(self, name: str) -> Tool:
        assert self._hub is not None
        return tool_named(name, self._hub)

    def _facts(self, target: str) -> TargetFacts | None:
        found = self._target(target)
        return found.traits.facts if found is not None else None

    def _is_known(self, type: str, id: str) -> bool | str:
        return self._names(type, id)  # from other threads too

    def _known(self) -> EntityLookup:
        """As it is now."""
        catalogs = list(self._hub.catalogs.values()) if self._hub is not None else []
        records = self._keys.list()
        state = [catalog.version for catalog in catalogs], records, self._config
        if state != self._named_at:
            callers = principals(self._config, records, time.time())
            names = Names(self._config, callers, registered(self._place))
            for tool in (tool for catalog in catalogs for tool in catalog.list_tools()):
                names.add(tool)
            self._names, self._named_at = names.known, state
        return self._names

    # --- changes ---------------------------------------------------------------------------------

    async def write(self, name: str, text: str, by: Principal, *, force: bool) -> dict[str, Any]:
        folder = self.folder
        return await self._change(
            lambda: folder.written(name, text), lambda: folder.write(name, text), name, by, force
        )

    async def enable(
        self, name: str, enabled: bool, by: Principal, *, force: bool
    ) -> dict[str, Any]:
        folder = self.folder
        return await self._change(
            lambda: folder.switched(name, enabled),
            lambda: folder.switch(name, enabled),
            name,
            by,
            force,
        )

    async def remove(self, name: str, by: Principal, *, force: bool) -> dict[str, Any]:
        folder = self.folder
        return await self._change(
            lambda: folder.removed(name), lambda: folder.remove(name), name, by, force
        )

    async def _change(
        self,
        then: Callable[[], Mapping[str, str]],
        do: Callable[[], str | None],
        name: str,
        by: Principal,
        force: bool,
    ) -> dict[str, Any]:
        """Whoever leaves before it is done has done it, and is on record for it."""
        return await self._background.run_to_completion(self._changed_by(then, do, name, by, force))

    async def _changed_by(
        self,
        then: Callable[[], Mapping[str, str]],
        do: Callable[[], str | None],
        name: str,
        by: Principal,
        force: bool,
    ) -> dict[str, Any]:
        """`then` tells what will be there: it is tried before anything is done."""
        async with self._changing:
            if not self.policies.policy_set.default and not self.folder.exists:
                # A new folder would begin with the default policies, which permit more.
                raise StorageFailed(
                    f'the folder of policies "{self.folder.path}" is gone: put it back'
                )
            checked = await self._checked(then())
            if checked.policy_set is None:
                return judged(checked)
            draft = self.policies.copy_with(checked.policy_set)
            if not force and not draft.decide_action(by, ADMIN).allowed:
                raise InvalidInput(
                    f'then no policy would permit "{by.label}" the action "admin", and it could '
                    'not be changed back this way; send "force" if that is what you want'
                )
            self._by = by.label
            try:
                left = await asyncio.to_thread(do)
                await self.reloader.reload()
            finally:
                self._by = FILES
        done = {**judged(checked), "name": named(name)}
        if left:
            log.warning("%s", left)
            done["findings"].append(shown(PolicyFinding(WARNING, "", 0, "", left)))
        return done

    async def _checked(self, texts: Mapping[str, str]) -> CheckedPolicies:
        known = self._known()
        return await asyncio.to_thread(loader.check_texts, texts, known)

    # --- answers ---------------------------------------------------------------------------------

    async def overview(self) -> dict[str, Any]:
        snapshot, problem = self.policies.policy_set, self.reloader.problem
        try:
            files = await asyncio.to_thread(self.folder.files)
        except ConfigError as error:
            files, problem = [], problem or str(error)
        return {
            "folder": str(self.folder.path),
            "default": snapshot.default,
            "mode": self.policies.mode,
            "snapshot": snapshot.hash,
            "problem": problem,
            "files": files,
            "guardrails": [
                {"id": each.id, "description": described(each.annotations)}
                for each in snapshot.policies
                if each.guardrail
            ],
            "warnings": [str(each) for each in snapshot.warnings],
        }

    async def one(self, name: str) -> dict[str, Any]:
        text, enabled = self.folder.text(name)
        files = await asyncio.to_thread(self.folder.files)
        found = [
            entry for entry in files if entry["name"] == named(name) and entry["enabled"] == enabled
        ]
        return {**found[0], "text": text}

    async def validate(self, texts: Mapping[str, str] | None) -> dict[str, Any]:
        try:
            return judged(await self._checked(self.folder.texts() if texts is None else texts))
        except PolicyError as error:  # the folder cannot even be read
            return judged(CheckedPolicies(None, error.findings, ()))

    async def test(self, texts: Mapping[str, str] | None) -> dict[str, Any]:
        return await asyncio.to_thread(tested, self.folder.texts() if texts is None else texts)

    def explain(
        self,
        principal: str,
        tool: str,
        action: str | None,
        context: Mapping[str, Any],
        roles: tuple[str, ...] | None,
    ) -> dict[str, Any]:
        caller = self._caller(principal, roles)
        on = None if action == ADMIN else self._tool(tool)
        try:
            found = queries.explain(self.policies, caller, action or CALL, on, context)
        except LookupError as error:
            raise InvalidInput(f"it cannot be told: {error}") from None
        listed = self.policies.can_see(caller, on, "api") if on is not None else None
        allowed = found["decision"] == "permit"
        return {
            **found,
            "allowed": allowed,
            "words": headline(found, caller.label, on.name if on is not None else ""),
            "caller": caller.label,
            "tool": on.name if on is not None else "",
            "listed": listed,
            **needed(found),
        }

    def who_can(self, tool: str) -> dict[str, Any]:
        on = self._tool(tool)
        callers = self.callers()
        rows = queries.list_who_can(self.policies, on, callers)
        verdicts = [
            {**verdict(row["caller"], row), "agent": caller.serves}
            for caller, row in zip(callers, rows, strict=True)
        ]
        return {"tool": on.name, **self._by_which(), "principals": verdicts}

    async def what_can(self, principal: str) -> dict[str, Any]:
        assert self._hub is not None
        caller = self._caller(principal, None)
        tools = [tool for catalog in self._hub.catalogs.values() for tool in catalog.list_tools()]
        rows: list[dict[str, Any]] = []
        for begin in range(0, len(tools), AT_ONCE):
            rows += queries.list_what_can(self.policies, caller, tools[begin : begin + AT_ONCE])
            await asyncio.sleep(0)  # calls go on
        verdicts = [{**verdict(row["tool"], row), "kind": row["kind"]} for row in rows]
        return {"principal": caller.label, **self._by_which(), "tools": verdicts}

    def brief(self) -> dict[str, Any]:
        """For the hub's status."""
        return {
            **self._by_which(),
            "default": self.policies.policy_set.default,
            "problem": self.reloader.problem or None,
        }

    def _by_which(self) -> dict[str, str]:
        return {"snapshot": self.policies.policy_set.hash, "mode": self.policies.mode}

    async def replay(
        self, texts: Mapping[str, str], since: float, until: float, limit: int
    ) -> dict[str, Any]:
        checked = await self._checked(texts)
        if checked.policy_set is None:
            return judged(checked)
        draft = self.policies.copy_with(checked.policy_set)
        async with self._reading(since, until, limit) as (records, today):
            found = await asyncio.to_thread(
                queries.replay, records, draft, today.caller, today.tool
            )
        about = {"draft": checked.policy_set.hash, "since": since, "until": until}
        return {**found, **about, "more": records.more}

    async def propose(self, since: float, until: float, limit: int) -> dict[str, Any]:
        """The least that would have done, tried on the same calls."""
        async with self._reading(since, until, limit) as (records, today):
            # Beside: what the engine keeps is for one thread.
            beside = self.policies.copy_with(self.policies.policy_set)
            found = await asyncio.to_thread(proposed, records, beside, today)
        tried = await self.replay({PROPOSED: found["text"]}, since, until, limit)
        denied = [flip for flip in tried.get("flips", ()) if flip["now"] != queries.PERMIT]
        about = {"ok": tried.get("ok", True), "findings": tried.get("findings", [])}
        return {**found, **about, "denied": denied, "more": records.more}

    @asynccontextmanager
    async def _reading(
        self, since: float, until: float, limit: int
    ) -> AsyncIterator[tuple[Records, Today]]:
        """The records of a period, for one at a time: they may be many."""
        if self._replaying:
            raise Overloaded(
                "recorded calls are just being decided anew; try again when that is done"
            )
        assert self._hub is not None
        self._replaying = True
        try:
            records = Records(self._place, since, until, limit, lambda: self._closed)
            yield records, Today(self._hub, self.callers())
        finally:
            self._replaying = False
