"""Opens the stores of a home."""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from dragoman.config import Config
from dragoman.config_layers import variable_from_path
from dragoman.core.admin_audit import Tally
from dragoman.core.environment import read_environment
from dragoman.core.errors import ConfigError, HubError, StorageFailed
from dragoman.core.secret_references import SecretResolver
from dragoman.stores.audit.log import SqliteAuditLog
from dragoman.stores.client_grants import ClientGrantStore
from dragoman.stores.conversations import DatabaseConversations
from dragoman.stores.database import StorePlace, open_place
from dragoman.stores.fence import Fence
from dragoman.stores.keys import KeyStore
from dragoman.stores.labels import DatabaseLabels
from dragoman.stores.pins import DatabasePins
from dragoman.stores.registry import RegistryStore
from dragoman.stores.sqlite import LOOP_BUSY_SECONDS
from dragoman.stores.steady_clock import SteadyClock
from dragoman.stores.store_inventory import (
    AS_RECORDED,
    HomeRecord,
    StoreInventory,
    survey_stores,
)
from dragoman.stores.tasks import DatabaseTaskStore, MemoryTaskStore
from dragoman.stores.usage import DatabaseUsage
from dragoman.stores.users import UsersDatabase, UserStore

log = logging.getLogger(__name__)

API_KEY_VARIABLE = variable_from_path("api_key")


@dataclass(frozen=True, slots=True)
class UserStores:
    """The stores of the hub's own authorization server."""

    base: UsersDatabase
    users: UserStore
    grants: ClientGrantStore


@dataclass(frozen=True, slots=True)
class Stores:
    witness: StoreInventory
    """The record of what the home must contain, and the home's key."""
    keys: KeyStore
    audit: SqliteAuditLog
    clock: SteadyClock
    tally: Tally
    pins: DatabasePins
    labels: DatabaseLabels
    usage: DatabaseUsage
    registry: RegistryStore
    tasks: DatabaseTaskStore | MemoryTaskStore
    conversations: DatabaseConversations
    users: UserStores | None
    """None while `[auth.server]` is not enabled."""
    place: StorePlace
    """Where all of them are, except for the audit log: the home, or a database server."""

    def find_problem(self) -> str:
        """Finds why the database of `[store] url` is not available; empty while it is."""
        place = self.place
        if isinstance(place, Path) or not place.problem:
            return ""
        return f'the database at "{place.place}" is not available: {place.problem}'

    async def try_transaction(self) -> None:
        """Tries whether the database of `[store] url` can be written, for `find_problem`."""
        if not isinstance(self.place, Path):
            self.place.try_transaction()

    def close(self) -> None:
        """Closes the audit log before the keys, and notes where it ends."""
        self.conversations.close()
        for store in (self.tasks, self.registry, self.usage, self.labels, self.pins):
            try:
                store.close()
            except HubError as error:
                log.error("%s", error)
        if self.users is not None:
            self.users.base.close()
        self.tally.flush(now=True)
        self.audit.close()
        if not self.audit.has_unsaved_entries and self.audit.sync():
            self.witness.update_audit_tip(self.audit.tip, self.clock)
            try:
                self.witness.write()
            except ConfigError as error:
                log.error("%s", error)
        self.keys.close()
        close_place(self.place)


def build_stores(
    home: Path,
    config: Config,
    secrets: SecretResolver,
    hub: str = "",
    fence: Fence | None = None,
    key: bytes | None = None,
) -> Stores:
    """`hub` is the id of this hub where several share the database of `[store] url`, `fence` what
    its write transactions begin with, and `key` what it seals rows with; without them it uses that
    database alone. Raises `ConfigError` if a store of the home was lost."""
    with ExitStack() as undo:
        place = open_place(home, config.store.url, secrets, fence=fence)
        undo.callback(close_place, place)
        identity = None
        if not isinstance(place, Path):
            place.watch(exclusive=not hub)
            identity = place.read_identity()
            if key is not None:
                from dragoman.stores.seal_database import attach_seals

                attach_seals(place, key, home)
        witness = StoreInventory(home, home / config.policy.folder, identity)
        record = witness.record
        refuse_lost_config(home, record)
        keys = KeyStore(place, busy_seconds=LOOP_BUSY_SECONDS, had_keys=record.keys_made)
        undo.callback(keys.close)
        audit = undo.enter_context(closing(SqliteAuditLog(home, durable=config.audit.durable)))
        pins = undo.enter_context(closing(DatabasePins(place)))
        labels = undo.enter_context(closing(DatabaseLabels(place)))
        usage = undo.enter_context(closing(DatabaseUsage(place)))
        registry = undo.enter_context(closing(RegistryStore(place)))
        tasks: DatabaseTaskStore | MemoryTaskStore = MemoryTaskStore()
        if config.a2a.enabled and config.a2a.store == "sqlite":
            tasks = DatabaseTaskStore(place, durable=config.audit.durable, hub=hub)
            undo.callback(tasks.close)
        users = _open_users(place) if config.auth.server.enabled else None
        if not isinstance(place, Path) and place.seals.is_active:
            from dragoman.stores.seal_database import begin_sealing

            try:
                begin_sealing(place, home)
            except StorageFailed:
                if place.seals.is_unconfirmed:
                    raise
                # Otherwise the watch of the stores tries again.
        undo.pop_all()
    clock = SteadyClock(record.clock_seen or audit.previous_end_at, record.clock_new_since)
    conversations = DatabaseConversations(place, witness.register_stores, is_shared=bool(hub))
    return Stores(
        witness, keys, audit, clock, Tally(audit), pins, labels, usage, registry, tasks,
        conversations, users, place,
    )  # fmt: skip


def close_place(place: StorePlace) -> None:
    if not isinstance(place, Path):
        place.close()


def _open_users(place: StorePlace) -> UserStores:
    base = UsersDatabase(place, busy_seconds=LOOP_BUSY_SECONDS)
    users = UserStore(base)
    return UserStores(base, users, ClientGrantStore(base, users))


def refuse_lost_config(home: Path, record: HomeRecord | None = None) -> None:
    """Raises `ConfigError` for a home whose config.toml had an api_key or `[auth.server]` and is
    missing or empty: to take that for a file without a key would let everyone in. A key in the
    environment is as good as one in the file. Reads the record of the stores if it is not given."""
    if read_environment().get(API_KEY_VARIABLE):
        return
    file = home / "config.toml"
    try:
        problem = "" if file.stat().st_size else "is empty"
    except FileNotFoundError:
        problem = "is missing"
    if (
        problem
        and (record or survey_stores(home, home / "policies", AS_RECORDED).record).api_key_set
    ):
        raise ConfigError(
            f'the hub does not start: "{file}" {problem}, and it had an api_key or '
            "[auth.server]: without them no client would need a key. Restore it from a backup; to "
            "run without them, write a config.toml with at least a comment in it"
        )
