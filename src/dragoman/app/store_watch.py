"""Keeps the stores of a running hub: pruning, checkpoints, and records of what changed in files."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from dragoman.app.build_stores import Stores
from dragoman.core.admin_audit import MAX_CHANGES, list_changes, record_done
from dragoman.core.errors import ConfigError, HubError, ShuttingDown, StorageFailed
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.mcp.config import ServerEntry
from dragoman.stores.audit.prune import DAY, prune_and_record
from dragoman.stores.config import AuditSettings
from dragoman.stores.keys import KeyChanges

log = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 600.0
"""How often the end of the audit log is noted outside of its own files."""
PRUNE_SECONDS = 3600.0
SEAL_SECONDS = 10.0
"""How often is looked whether all hubs of the cluster seal rows, until they do."""
CONFIG_CHANGE, SKILL_CHANGE = "config.change", "skill.change"
FILES = "files"
"""The principal of a change that was made by editing a file."""


class StoreWatch:
    def __init__(self, stores: Stores, policy_folder: Path) -> None:
        self._stores = stores
        self._witness, self._audit = stores.witness, stores.audit
        self._policy_folder = policy_folder
        self._key_changes = KeyChanges(stores.keys, self._record_key)
        self._reported: list[str] = []
        self._unwritten = ""

    def enroll(self, *, api_key_set: bool) -> None:
        """Notes in the record what this home must have from now on."""
        self._witness.update(api_key_set=api_key_set)
        self._note()
        self._witness.register_stores()

    def must_notify(self, notices: int) -> bool:
        """Notes that the owner gets the notices up to this number. Returns whether there are any
        to give: a new home has seen no earlier version. To be called before servers are recorded.
        """
        record = self._witness.record
        self._witness.update(notices=max(record.notices, notices))
        return record.servers is not None and record.notices < notices

    async def check(self) -> None:
        """Notes the first key and the first policies, records changes of keys, and reports files
        that were removed."""
        STORAGE_OUTAGE.check_end()
        with contextlib.suppress(HubError):  # the next check tries again
            self._key_changes.record_changes()
        self._stores.tally.flush()
        if self._note():
            await self._write()
        problems = self._witness.find_replaced()
        if problems != self._reported:
            self._reported = problems
            for problem in problems:
                log.error(
                    "%s while the hub runs: put it back, or restart the hub; nothing is written "
                    "there any more",
                    problem,
                )

    async def begin_sealing(self) -> None:
        """Seals the rows of a shared database once the last hub without seals has left. What a
        person has to accept was reported at the start; once accepted, it needs nothing here."""
        place = self._stores.place
        if isinstance(place, Path) or not place.seals.is_active:
            return
        from dragoman.stores.seal_database import begin_sealing

        while not place.seals.is_enforced:
            await asyncio.sleep(SEAL_SECONDS)
            with contextlib.suppress(HubError):  # tried again
                begin_sealing(place, self._witness.home)

    def find_problems(self) -> list[str]:
        away = self._stores.find_problem()
        return [
            *([away] if away else []),
            *(
                f"{problem} while the hub runs: put it back, or restart the hub"
                for problem in self._witness.find_replaced()
            ),
        ]

    async def checkpoint(self) -> None:
        """Notes where the audit log ends, once that is on the disk."""
        try:
            self._audit.flush()
        except HubError:
            return  # the log reports that it cannot be written
        tip = self._audit.tip
        if await asyncio.to_thread(self._audit.sync):
            self._witness.update_audit_tip(tip, self._stores.clock)
            await self._write()

    async def keep_checkpoints(self) -> None:
        while True:
            await self.checkpoint()
            await asyncio.sleep(CHECKPOINT_SECONDS)

    async def keep_pruning(self, find_settings: Callable[[], AuditSettings]) -> None:
        while True:
            try:
                await self.prune(find_settings())
                self._prune_seals()
            except HubError as error:
                log.warning("old records could not be deleted: %s", error)
            await asyncio.sleep(PRUNE_SECONDS)

    def _prune_seals(self) -> None:
        place = self._stores.place
        if not isinstance(place, Path) and place.seals.is_active:
            from dragoman.stores.seal_database import prune_seals

            prune_seals(place)

    async def prune(self, settings: AuditSettings) -> int:
        """Deletes and records what is too old or too much. Nothing counts as old while the clock is
        not trusted."""
        age = settings.keep_days * DAY
        if not self._stores.clock.is_steady():
            self._warn_of_clock(age)
            age = math.inf
        removed = await prune_and_record(self._audit, age, settings.max_entries, "hub")
        if removed:
            await self.checkpoint()
        return removed

    def _warn_of_clock(self, age: float) -> None:
        if self._audit.find_first()[1] < time.time() - age:
            log.warning(
                "the clock has jumped by more than a day since the hub last ran; records that look "
                "too old are kept until it has been steady for a day (to delete them now, stop the "
                "hub and run: dragoman audit prune)"
            )

    def record_servers(self, servers: Iterable[ServerEntry]) -> None:
        """Records which of the configured servers were added, changed or removed."""
        now = {server.name: self._witness.hash_value(server) for server in servers}
        self._record_changes(CONFIG_CHANGE, "config.toml", self._witness.record.servers, now)
        self._witness.update(servers=now)

    def record_skills(self, skills: Mapping[str, Any]) -> None:
        """Records which of the skills were added, changed or removed, by what identifies each."""
        known = self._witness.record.skills
        if known is None and not skills:
            return
        now = {name: self._witness.hash_value(one) for name, one in skills.items()}
        self._record_changes(SKILL_CHANGE, "skills", known or {}, now)
        self._witness.update(skills=now)

    def _record_changes(
        self, verb: str, what: str, known: Mapping[str, str] | None, now: Mapping[str, str]
    ) -> None:
        if known is not None and known != now:
            changes = list_changes(known, now)
            details: dict[str, Any] = {how: names for how, names in changes.items() if names}
            new = sorted([*changes["added"], *changes["changed"]])[:MAX_CHANGES]
            details["hmac"] = {name: now[name] for name in new}
            try:
                record_done(self._audit, verb, what, FILES, FILES, details)
            except (StorageFailed, ShuttingDown) as error:  # the file is in force all the same
                log.error('a change of "%s" is not in the audit log: %s', what, error)

    def _record_key(self, verb: str, name: str, details: Mapping[str, Any]) -> None:
        record_done(self._audit, verb, name, FILES, FILES, details)

    def _note(self) -> bool:
        record = self._witness.record
        try:
            keys_made = record.keys_made or self._stores.keys.has_keys()
        except HubError:  # requests with a key report it
            keys_made = record.keys_made
        policies_made = record.policies_made or self._policy_folder.exists()
        return self._witness.update(keys_made=keys_made, policies_made=policies_made)

    async def _write(self) -> None:
        try:
            await asyncio.to_thread(self._witness.write)
            self._unwritten = ""
        except ConfigError as error:
            if str(error) != self._unwritten:
                self._unwritten = str(error)
                log.warning("%s; the hub tries again", error)
