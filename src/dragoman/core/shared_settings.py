"""The settings of hubs that share a database, with their secrets: `[store]` and `[cluster]`."""

from __future__ import annotations

import hmac
import re
from typing import Protocol

from dragoman.core.errors import ConfigError
from dragoman.core.secret_references import SecretResolver, is_reference
from dragoman.core.secret_rules import Author, SecretUse

SECRET_CHARS = 32
STORE_URL = "[store] url"
_ADDRESS = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")
_ANY_HOST = ("0.0.0.0", "::")
_TEXT = r"(?:[^\s%@/?\x00-\x20]|%[0-9A-Fa-f]{2})"
_HOST = rf"(?:\[[0-9A-Fa-f:.%]+\]|(?:(?![:,]){_TEXT})*)(?::[0-9]+)?"
_VALUE = r"(?:[^\s%&]|%[0-9A-Fa-f]{2})*"
_DATABASE_URL = re.compile(
    rf"postgres(?:ql)?://(?:{_TEXT}*@)?{_HOST}(?:,{_HOST})*(?:/{_TEXT}*)?"
    rf"(?:\?[a-z_]+={_VALUE}(?:&[a-z_]+={_VALUE})*)?"
)


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
        url = secrets.resolve_local(url, SecretUse(Author.OWNER, STORE_URL))
    if url is not None:
        check_database_url(url)
    return url


def check_database_url(url: str, setting: str = STORE_URL) -> None:
    """Raises `ConfigError`, which does not contain the address: the errors of the driver about an
    invalid one repeat its password."""
    if _DATABASE_URL.fullmatch(url) is None:
        raise ConfigError(
            f"{setting} is invalid: write postgresql://USER:PASSWORD@HOST:PORT/NAME, with special "
            "characters of the password as %XX (@ is %40, / is %2F, % is %25), or a reference to "
            "it such as env:DATABASE_URL"
        )


def resolve_cluster_key(
    settings: _Cluster, secrets: SecretResolver, default: str | None = None
) -> bytes | None:
    """The key that the hubs of a cluster derive from their secret; None for a single hub. `default`
    is the secret, or a reference to it, where none is set. Raises `ConfigError`."""
    secret = settings.secret or default
    if secret is None:
        return None
    if is_reference(secret):
        secret = secrets.resolve_local(secret, SecretUse(Author.OWNER, "[cluster] secret"))
    if len(secret) < SECRET_CHARS:
        raise ConfigError(f"[cluster] secret is too short: at least {SECRET_CHARS} characters")
    return derive_key(secret)


def parse_listen(text: str) -> tuple[str, int] | None:
    """Returns the host and port of `[cluster] listen`; None for the path of a Unix socket. Raises
    `ConfigError`."""
    if text.startswith("/"):
        return None
    found = _parse_address(text)
    if found is None:
        raise ConfigError(
            f'[cluster] listen = "{text[:100]}" is invalid: write HOST:PORT, or the path of a Unix '
            "socket"
        )
    return found


def check_advertise(advertise: str | None) -> None:
    """Raises `ConfigError` if other hubs could not use the address."""
    if advertise is not None:
        found = _parse_address(advertise)
        if found is None or not found[1] or found[0] in _ANY_HOST:
            raise ConfigError(
                f'[cluster] advertise = "{advertise[:100]}" is invalid: write the HOST:PORT by '
                "which other hubs reach this one"
            )


def check_addresses(listen: str, advertise: str | None) -> None:
    """Raises `ConfigError` if other hubs could not reach this one."""
    check_advertise(advertise)
    address = parse_listen(listen)
    if advertise is None and address is not None and address[0] in _ANY_HOST:
        raise ConfigError(
            f'[cluster] listen = "{listen}" needs [cluster] advertise: other hubs have to know by '
            "which address they reach this one"
        )


def _parse_address(text: str) -> tuple[str, int] | None:
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found[2]) > 65_535:
        return None
    return found[1].strip("[]"), int(found[2])


def derive_key(secret: str) -> bytes:
    """The key of the cluster by HKDF (RFC 5869), one block of SHA-256."""
    extracted = hmac.digest(b"dragoman cluster", secret.encode(), "sha256")
    return hmac.digest(extracted, b"seals\x01", "sha256")
