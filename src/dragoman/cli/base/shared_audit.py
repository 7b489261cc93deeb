"""Finds the audit logs of a home and the database that has those of several hubs, for commands that
work without a hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman import home as homes
from dragoman.config import load, load_variables
from dragoman.core.secret_references import SecretResolver
from dragoman.core.shared_settings import resolve_cluster_key, resolve_store_url

if TYPE_CHECKING:
    from dragoman.stores.audit.shared_keys import ChainKeys


AUDIT_FILES = ("audit.db", "audit.key", "audit.head")


def list_audit_homes(home: Path) -> list[Path]:
    """Lists the folders that have an audit log: the home, and those of its workers."""
    workers = sorted((home / homes.WORKERS).glob("*"), key=lambda one: (len(one.name), one.name))
    return [
        place for place in (home, *workers) if any((place / name).exists() for name in AUDIT_FILES)
    ]


@dataclass(frozen=True, slots=True)
class SharedAuditPlace:
    url: str
    keys: ChainKeys


def find_shared_audit(home: Path) -> SharedAuditPlace | None:
    """None for a home whose hub keeps its audit log to itself. Raises `ConfigError`."""
    url = resolve_store_url(load(home / "config.toml").store, _build_resolver(home))
    return SharedAuditPlace(url, build_keys(home)) if url is not None else None


def build_keys(home: Path) -> ChainKeys:
    """The keys of the chains that the hub of this home can read. Raises `ConfigError`."""
    from dragoman.stores.audit.shared_keys import ChainKeys

    settings = load(home / "config.toml").cluster
    file = home / homes.WORKERS_SECRET
    default = f"file:{file}" if file.exists() else None
    return ChainKeys(resolve_cluster_key(settings, _build_resolver(home), default))


def _build_resolver(home: Path) -> SecretResolver:
    return SecretResolver(load_variables(home), home)
