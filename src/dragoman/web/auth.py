"""Authenticates requests and checks their Host and Origin headers.

A page in a browser can send requests to loopback under any DNS name. So the Host must be a name of
the hub, and an Origin, if present, must be the hub's or an allowed one.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol
from urllib.parse import urlsplit

from dragoman.core.access import HUB_PREFIXES
from dragoman.core.principal import Principal
from dragoman.core.scopes import EVERY_SCOPE

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})

FindKey = Callable[[str], Principal | None]
"""Finds the principal of a valid key of `dragoman keys`."""
API_KEY = Principal("key", "api_key", roles=("owner",), scopes=EVERY_SCOPE)
"""The principal of the key in the configuration."""


Found = Principal | Callable[[], Awaitable[Principal | None]] | None
"""A principal, None, or what finds out when it is called."""


class TokenFinder(Protocol):
    """Knows the access tokens of one origin: of the hub's users, or of identity providers."""

    version: int
    """Changes when tokens that were valid may be invalid."""

    def find(self, token: str) -> Found:
        """Finds the user of a token; None if the token is of another origin. Known tokens are found
        at once. For others, which cost more or need a request to the issuer, it may return what
        does so. Both raise `TokenRejected` for an invalid token of this origin and a `HubError` if
        that cannot be found out now."""

    def is_active(self) -> bool:
        """Whether the hub accepts its tokens, or has done so since it started: then it serves no
        requests without a key or token."""

    def list_issuers(self, base: str) -> Sequence[str]:
        """Lists the authorization servers of its tokens, where clients find their metadata. `base`
        is the URL by which the client reaches the hub."""

    def refresh(self) -> None:
        """Notices what other processes have changed."""

    def find_next_expiry(self, now: float) -> float:
        """Returns when the first of the tokens in use expires after `now`, which may be the past;
        called several times a second."""

    def explain_invalid(self, principal: Principal) -> str | None:
        """Explains why the credential of a user is refused: one of `RENEWABLE`, or a reason that
        ends its tasks and sessions too. Empty while it is valid, also for a user without
        `credential` who still exists; None if the user is of another origin."""


class Authenticator:
    def __init__(
        self,
        api_key: str | None,
        find_key: FindKey,
        any_key: Callable[[], bool],
        finders: Sequence[TokenFinder] = (),
    ) -> None:
        self._api_key = api_key.encode() if api_key else None
        self._find = find_key
        self.finders = tuple(finders)
        self.requires_key: Callable[[], bool] = any_key
        """Whether requests need a key or token: once the hub has one of either, all do."""
        if api_key:
            self.requires_key = lambda: True
        elif finders:
            self.requires_key = self._has_any
        self._any_key = any_key

    def _has_any(self) -> bool:
        if self._any_key():
            return True
        for finder in self.finders:  # noqa: SIM110 (a loop takes a third of the time of `any`)
            if finder.is_active():
                return True
        return False

    @property
    def has_api_key(self) -> bool:
        """Whether the configuration has a key."""
        return self._api_key is not None

    def authenticate(
        self, fields: Mapping[bytes, bytes], find_local: Callable[[], Principal | None]
    ) -> Found:
        """Finds the principal of a request; `find_local` identifies the sender of a request without
        a key, if none is required. Raises what `TokenFinder.find` raises."""
        scheme, _, token = fields.get(b"authorization", b"").partition(b" ")
        token = token.strip()
        found: Found = None
        if scheme.lower() == b"bearer" and token:
            if self._api_key is not None and hmac.compare_digest(token, self._api_key):
                return API_KEY
            try:
                text = token.decode("ascii")
            except UnicodeDecodeError:
                return None
            found = self._find(text)
            for finder in self.finders:
                if found is not None:
                    break
                found = finder.find(text)
            if found is None and text.startswith(HUB_PREFIXES):
                return None  # revoked, or another hub's: its sender wants to be no one else
        return found or (None if self.requires_key() else find_local())


def list_own_hosts(host: str, hosts: Sequence[str]) -> set[str]:
    """Lists the names of the hub's listener on `host`; `hosts` are further ones."""
    found = {_add_brackets(name).lower() for name in (*LOOPBACK, host, *hosts)}
    return found - {"0.0.0.0", "[::]", ""}


class AllowedNames:
    """The Host and Origin values that the hub accepts."""

    def __init__(
        self, host: str, public_url: str | None, hosts: list[str], origins: list[str]
    ) -> None:
        self._hosts = list_own_hosts(host, hosts)
        self._origins = {origin.rstrip("/").lower() for origin in origins}
        if public_url:
            parts = urlsplit(public_url)
            self._hosts.add(_add_brackets(parts.hostname or "").lower())
            self._origins.add(f"{parts.scheme}://{parts.netloc}".lower())
        self._hosts.discard("")
        self.seen: set[bytes] = set()
        """Accepted Host headers as clients write them."""
        self._origins.discard("")

    def knows_host(self, value: bytes | None) -> bool:
        if value is None or value in self.seen:
            return value is not None
        known = _remove_port(value.decode("latin-1")) in self._hosts
        if known and len(self.seen) < 64:
            self.seen.add(value)
        return known

    def allows_origin(self, origin: bytes, host: bytes) -> bool:
        """Whether the origin is the hub's own or allowed by the configuration."""
        text = origin.decode("latin-1").lower()
        own = host.decode("latin-1").lower()
        return text in self._origins or text in (f"http://{own}", f"https://{own}")


def _add_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _remove_port(value: str) -> str:
    name, colon, port = value.rpartition(":")
    if colon and port.isascii() and port.isdigit() and len(port) <= 5:
        value = name
    return value.lower()
