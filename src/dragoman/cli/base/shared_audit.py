"""Finds the database that has the audit logs of several hubs, for commands that work without a
hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.config import load, load_variables
from dragoman.core.secret_references import SecretResolver
from dragoman.core.shared_settings import resolve_cluster_key, resolve_store_url

if TYPE_CHECKING:
    from dragoman.stores.audit.shared_keys import ChainKeys


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
    return ChainKeys(resolve_cluster_key(settings, _build_resolver(home)))


def _build_resolver(home: Path) -> SecretResolver:
    return SecretResolver(load_variables(home), home)
