"""The stores of a home, joined: the keys, the audit, and the record of what the home must have.
Part of `assembly`, which starts it and asks it to `look` from time to time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from dragoman.config import Config
from dragoman.config_layers import variable_of
from dragoman.core.admin_audit import Tally, record_done
from dragoman.core.errors import ConfigError, HubError, ShuttingDown, StorageFailed
from dragoman.stores.audit.chain import DATABASE
from dragoman.stores.audit.log import SqliteAuditLog, compact_database
from dragoman.stores.config import AuditSettings
from dragoman.stores.key_changes import KeyChanges
from dragoman.stores.keys import KeyStore
from dragoman.stores.sqlite import LOOP_BUSY_SECONDS
from dragoman.stores.steady_clock import SteadyClock
from dragoman.stores.store_inventory import HomeRecord, StoreInventory, survey_stores

log = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 600.0
"""How often the end of the audit is noted where its own files are not."""
PRUNE = "audit.prune"
PRUNE_SECONDS = 3600.0
DAY = 86_400.0
CONFIG_CHANGE, AUTH_FAILED, ADMIN_DENIED = "config.change", "auth.failed", "admin.denied"
FILES = "files"
"""Who did it, where somebody has changed a file."""
MAX_NAMES = 100
API_KEY_VARIABLE = variable_of("api_key")


class StoreSide:
    def __init__(self, place: Path, config: Config) -> None:
        """Raises `ConfigError` where a store was lost. The other stores are opened after this."""
        self._folder = place / config.policy.folder
        self.witness = StoreInventory(place, self._folder)
        refuse_lost_config(place, self.witness.record)
        self.keys = KeyStore(place, busy_seconds=LOOP_BUSY_SECONDS)
        try:
            self.keys.were_created = self.witness.record.keys_made
            self.audit = SqliteAuditLog(place, durable=config.audit.durable)
        except BaseException:
            self.keys.close()
            raise
        record = self.witness.record
        self.clock = SteadyClock(
            record.clock_seen or self.audit.previous_end_at, record.clock_new_since
        )
        self.tally = Tally(self.audit)
        self._api_key_set = config.api_key is not None
        self._key_changes = KeyChanges(self.keys, self._record_key)
        self._told: list[str] = []
        self._unwritten = ""

    def enroll(self) -> None:
        """Once all stores are open."""
        self.witness.update(api_key_set=self._api_key_set)
        self._note()
        self.witness.register_stores()

    async def look(self) -> None:
        """Notes the first key and the first policies, records what happened to keys, and tells of
        files that were taken away."""
        with contextlib.suppress(HubError):  # tried again at the next look
            self._key_changes.record_changes()
        self.tally.flush()
        if self._note():
            await self._write()
        problems = self.problems()
        if problems != self._told:
            self._told = problems
            for problem in problems:
                log.error("%s; nothing is written there any more", problem)

    def problems(self) -> list[str]:
        return [
            f"{problem} while the hub runs: put it back, or restart the hub"
            for problem in self.witness.find_replaced()
        ]

    async def checkpoint(self) -> None:
        """Notes where the audit ends, once that is on the disk."""
        try:
            self.audit.flush()
        except HubError:
            return  # it cannot be written, as it says itself
        tip = self.audit.tip
        if await asyncio.to_thread(self.audit.sync):
            self.witness.update_audit_tip(tip, self.clock)
            await self._write()

    async def keep_checkpoints(self) -> None:
        while True:
            await self.checkpoint()
            await asyncio.sleep(CHECKPOINT_SECONDS)

    async def keep_pruning(self, settings: Callable[[], AuditSettings]) -> None:
        while True:
            try:
                await self.prune(settings())
            except HubError as error:
                log.warning("old records could not be deleted: %s", error)
            await asyncio.sleep(PRUNE_SECONDS)

    async def prune(self, settings: AuditSettings) -> int:
        """Deletes what is too old or too much, and records that. While the clock is not trusted,
        nothing counts as old."""
        age = settings.keep_days * DAY
        if not self.clock.is_steady():
            self._tell_of_clock(age)
            age = math.inf
        removed = await prune_and_record(self.audit, age, settings.max_entries, "hub")
        if removed:
            await self.checkpoint()
        return removed

    def _tell_of_clock(self, age: float) -> None:
        if self.audit.find_first()[1] < time.time() - age:
            log.warning(
                "the clock has jumped by more than a day since the hub last ran; records that look "
                "too old are kept until it has been steady for a day (to delete them now, stop the "
                "hub and run: dragoman audit prune)"
            )

    def apply(self, servers: Iterable[Any]) -> None:
        """Records which of the configured servers are new, others than before, or gone."""
        known = self.witness.record.servers
        now = {server.name: self.witness.hash_value(server) for server in servers}
        if known is not None and known != now:
            both = known.keys() & now.keys()
            added, removed = now.keys() - known.keys(), known.keys() - now.keys()
            changed = {name for name in both if known[name] != now[name]}
            names = {"added": added, "removed": removed, "changed": changed}
            told: dict[str, Any] = {
                how: sorted(some)[:MAX_NAMES] for how, some in names.items() if some
            }
            new = sorted(added | changed)[:MAX_NAMES]
            told["hmac"] = {name: now[name] for name in new}
            try:
                record_done(self.audit, CONFIG_CHANGE, "config.toml", FILES, FILES, told)
            except (StorageFailed, ShuttingDown) as error:  # the files are the truth
                log.error("a change of the configuration is not in the audit: %s", error)
        self.witness.update(servers=now)

    def _record_key(self, verb: str, name: str, told: Mapping[str, Any]) -> None:
        record_done(self.audit, verb, name, FILES, FILES, told)

    def close(self) -> None:
        self.tally.flush(now=True)
        self.audit.close()
        if not self.audit.has_unsaved_entries and self.audit.sync():
            self.witness.update_audit_tip(self.audit.tip, self.clock)
            try:
                self.witness.write()
            except ConfigError as error:
                log.error("%s", error)
        self.keys.close()

    def _note(self) -> bool:
        record = self.witness.record
        try:
            keys_made = record.keys_made or self.keys.has_keys()
        except HubError:  # as its callers are told
            keys_made = record.keys_made
        policies_made = record.policies_made or self._folder.exists()
        return self.witness.update(keys_made=keys_made, policies_made=policies_made)

    async def _write(self) -> None:
        try:
            await asyncio.to_thread(self.witness.write)
            self._unwritten = ""
        except ConfigError as error:
            if str(error) != self._unwritten:
                self._unwritten = str(error)
                log.warning("%s; it is tried again", error)


async def prune_and_record(audit: SqliteAuditLog, age: float, most: int, by: str) -> int:
    """Deletes entries that are older than `age` seconds or more than `most`, and records how many
    and which. Says how many."""
    first = audit.find_first()[0]
    removed = await audit.prune(age, most)
    if removed:
        last = audit.last_pruned
        log.info("%d old entries of the audit were deleted, up to entry %d", removed, last.seq)
        told = {
            "count": removed,
            "first_seq": first,
            "last_seq": last.seq,
            "head": last.mac.hex(),
        }
        record_done(audit, PRUNE, "audit", by, "hub", told)
    return removed


def prune_offline(place: Path, settings: AuditSettings, by: str) -> int:
    """What `audit prune` does; the home must be held. Also gives the space back."""
    audit = SqliteAuditLog(place, durable=settings.durable)
    try:
        age, most = settings.keep_days * DAY, settings.max_entries
        removed = asyncio.run(prune_and_record(audit, age, most, by))
        audit.flush()
    finally:
        audit.close()
    compact_database(place / DATABASE)
    return removed


def refuse_lost_config(place: Path, record: HomeRecord | None = None) -> None:
    """Raises `ConfigError` for a home whose config.toml had a key and is lost: to take that for a
    file without a key would let everybody in. Reads the record where it is not given. A key in the
    environment is as good as one in the file."""
    if os.environ.get(API_KEY_VARIABLE):
        return
    file = place / "config.toml"
    try:
        how = "" if file.stat().st_size else "is empty"
    except FileNotFoundError:
        how = "is gone"
    if how and (record or survey_stores(place, place / "policies").record).api_key_set:
        raise ConfigError(
            f'the hub does not start: "{file}" {how}, and it had an api_key: without it nobody '
            "would be asked for a key. Restore it from a backup; to go on without api_key, write "
            "a config.toml that has at least a comment in it"
        )
