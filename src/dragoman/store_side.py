"""The stores of a home, joined: the keys, the audit, and the record of what the home must have.
Part of `assembly`, which starts it and asks it to `look` from time to time.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from dragoman.config import Config
from dragoman.core.errors import ConfigError, HubError
from dragoman.stores.audit import SqliteAudit
from dragoman.stores.keys import KeyStore
from dragoman.stores.sqlite import LOOP_BUSY_SECONDS
from dragoman.stores.witness import Witness

log = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 600.0
"""How often the end of the audit is noted where its own files are not."""


class StoreSide:
    def __init__(self, place: Path, config: Config) -> None:
        """Raises `ConfigError` where a store was lost. The other stores are opened after this."""
        self._folder = place / config.policy.folder
        self.witness = Witness(place, self._folder)
        self.keys = KeyStore(place, busy_seconds=LOOP_BUSY_SECONDS)
        try:
            self.keys.were_made = self.witness.record.keys_made
            self.audit = SqliteAudit(place, durable=config.audit.durable)
        except BaseException:
            self.keys.close()
            raise
        self._told: list[str] = []
        self._unwritten = ""

    def enroll(self) -> None:
        """Once all stores are open."""
        self._note()
        self.witness.enroll()

    async def look(self) -> None:
        """Notes the first key and the first policies; tells of files that were taken away."""
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
            self.witness.note_audit(tip)
            await self._write()

    async def keep_checkpoints(self) -> None:
        while True:
            await self.checkpoint()
            await asyncio.sleep(CHECKPOINT_SECONDS)

    def close(self) -> None:
        self.audit.close()
        if not self.audit.unsaved and self.audit.sync():
            self.witness.note_audit(self.audit.tip)
            try:
                self.witness.write()
            except ConfigError as error:
                log.error("%s", error)
        self.keys.close()

    def _note(self) -> bool:
        record = self.witness.record
        try:
            keys_made = record.keys_made or self.keys.any()
        except HubError:  # as its callers are told
            keys_made = record.keys_made
        policies_made = record.policies_made or self._folder.exists()
        return self.witness.note(keys_made=keys_made, policies_made=policies_made)

    async def _write(self) -> None:
        try:
            await asyncio.to_thread(self.witness.write)
            self._unwritten = ""
        except ConfigError as error:
            if str(error) != self._unwritten:
                self._unwritten = str(error)
                log.warning("%s; it is tried again", error)
