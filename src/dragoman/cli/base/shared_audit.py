"""Finds the database that has the audit logs of several hubs, for commands that work without a
hub."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.cli.base.files import read_bytes
from dragoman.config import load, read_env
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
    config = load(home / "config.toml")
    secrets = SecretResolver({**read_env(read_bytes(home / "env")), **os.environ}, home)
    url = resolve_store_url(config.store, secrets)
    if url is None:
        return None
    from dragoman.stores.audit.shared_keys import ChainKeys

    return SharedAuditPlace(url, ChainKeys(resolve_cluster_key(config.cluster, secrets)))
