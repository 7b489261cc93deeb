"""The settings of hubs that share a database, with their secrets: `[store]` and `[cluster]`."""

from __future__ import annotations

import hmac
from typing import Protocol

from dragoman.core.errors import ConfigError
from dragoman.core.secret_references import SecretResolver, is_reference

SECRET_CHARS = 32


class _Store(Protocol):
    @property
    def url(self) -> str | None: ...


class _Cluster(Protocol):
    @property
    def secret(self) -> str | None: ...


def resolve_store_url(settings: _Store, secrets: SecretResolver) -> str | None:
    """The address of the database; None for a hub on SQLite. Raises `ConfigError`."""
    url = settings.url
    if url is not None and is_reference(url):
        return secrets.resolve_local(url, "[store] url")
    return url


def resolve_cluster_key(
    settings: _Cluster, secrets: SecretResolver, default: str | None = None
) -> bytes | None:
    """The key that the hubs of a cluster derive from their secret; None for a single hub. `default`
    is the secret, or a reference to it, where none is set. Raises `ConfigError`."""
    secret = settings.secret or default
    if secret is None:
        return None
    if is_reference(secret):
        secret = secrets.resolve_local(secret, "[cluster] secret")
    if len(secret) < SECRET_CHARS:
        raise ConfigError(f"[cluster] secret is too short: at least {SECRET_CHARS} characters")
    return derive_key(secret)


def derive_key(secret: str) -> bytes:
    """The key of the cluster by HKDF (RFC 5869), one block of SHA-256."""
    extracted = hmac.digest(b"dragoman cluster", secret.encode(), "sha256")
    return hmac.digest(extracted, b"seals\x01", "sha256")
