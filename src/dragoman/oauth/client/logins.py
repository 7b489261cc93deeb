"""Logins that have begun: what the hub must remember until the browser returns. In memory: a login
does not survive a restart."""

from __future__ import annotations

import secrets
import time
from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Generic, TypeVar

from msgspec import Struct

from dragoman.core.errors import InvalidInput
from dragoman.oauth.client.client_auth import ClientIdentity
from dragoman.oauth.client.discovery import ServerMetadata
from dragoman.oauth.client.limits import OAuthLimits


class PendingLogin(Struct, frozen=True):
    """`server` is recorded before the browser leaves, so that the answer can be compared to it."""

    holder: str
    server: ServerMetadata
    client: ClientIdentity
    resource: str
    scopes: tuple[str, ...]
    redirect_uri: str
    mark: str
    """The end of the redirect URI, which tells the issuer; empty for the plain one."""
    verifier: str
    expires_at: float

    def __repr__(self) -> str:
        return "<PendingLogin>"


class PendingDevice(Struct):
    holder: str
    server: ServerMetadata
    client: ClientIdentity
    resource: str
    scopes: tuple[str, ...]
    device_code: str
    expires_at: float
    interval: float
    next_at: float

    def __repr__(self) -> str:
        return "<PendingDevice>"


Pending = TypeVar("Pending", PendingLogin, PendingDevice)


class PendingLogins(Generic[Pending]):
    """Bounded in number and time, by an unguessable id."""

    def __init__(self, limits: OAuthLimits) -> None:
        self._limits = limits
        self._by_id: dict[str, Pending] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, pending: Pending) -> str:
        now = time.time()
        expired = [id for id, one in self._by_id.items() if one.expires_at <= now]
        for id in expired:
            del self._by_id[id]
        while len(self._by_id) >= self._limits.max_logins:
            del self._by_id[next(iter(self._by_id))]
        id = self._limits.mark + secrets.token_urlsafe(32)
        self._by_id[id] = pending
        return id

    def take(self, id: str) -> Pending:
        """Removes and returns a login: each is for one use."""
        pending = self._by_id.pop(id, None)
        if pending is None or pending.expires_at <= time.time():
            raise InvalidInput(
                "this login is unknown, has expired or was used before; start it again"
            )
        return pending

    def put_back(self, id: str, pending: Pending) -> None:
        self._by_id[id] = pending

    def drop(self, holder: str) -> None:
        """Drops the logins of a holder."""
        for id in [id for id, one in self._by_id.items() if one.holder == holder]:
            del self._by_id[id]


def make_verifier() -> tuple[str, str]:
    """Makes a PKCE verifier and its S256 challenge (RFC 7636)."""
    verifier = secrets.token_urlsafe(64)
    digest = sha256(verifier.encode("ascii")).digest()
    return verifier, urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")
