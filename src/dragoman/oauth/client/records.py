"""The records of the OAuth client. No I/O. No `repr` shows a token, a code or a secret."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

from msgspec import Struct

from dragoman.core.secret_rules import SecretUse
from dragoman.oauth.client.urls import get_origin, render_base

SHARED = "shared"
"""The holder of the credential that all callers share. Other holders are keys of principals."""

ResolveSecret = Callable[[str, SecretUse], Awaitable[str]]
"""Resolves a reference to a secret, for a use that errors name."""

CredentialState = Literal["none", "valid", "expired", "needs_login"]


class AccessToken(Struct, frozen=True, eq=False):
    """A token that was issued for one resource."""

    value: str
    expires_at: float
    """By the wall clock; infinity if the authorization server did not say."""
    scopes: tuple[str, ...] = ()
    issued_at: float = 0.0

    @property
    def header(self) -> str:
        return f"Bearer {self.value}"

    def __repr__(self) -> str:
        return f"<AccessToken until {self.expires_at:.0f}>"


class LoginRequest(Struct, frozen=True):
    """The address at which a person consents. `state` names the login when the browser returns."""

    url: str
    state: str
    expires_at: float
    issuer: str
    scopes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<LoginRequest at {self.issuer}>"


class LoginDestination(Struct, frozen=True):
    """Where a person is sent to log in."""

    issuer: str
    authorization_endpoint: str

    @property
    def issuer_base(self) -> str:
        return render_base(self.issuer)

    @property
    def base(self) -> str:
        return render_base(self.authorization_endpoint)

    def is_reached_by(self, url: str) -> bool:
        return get_origin(url) == get_origin(self.authorization_endpoint)

    @property
    def is_foreign(self) -> bool:
        """Whether it is another origin than the issuer's."""
        return not self.is_reached_by(self.issuer)


class DeviceLogin(Struct, frozen=True):
    """What a person enters on another device (RFC 8628); `id` is for `poll_device_login`."""

    id: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str
    expires_at: float
    interval: float
    """Seconds between two polls."""
    issuer: str
    scopes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<DeviceLogin at {self.issuer}>"


class Grant(Struct, frozen=True):
    """What a login has brought."""

    holder: str
    issuer: str
    scopes: tuple[str, ...]
    expires_at: float
    can_refresh: bool


class ForgottenLogin(Struct, frozen=True):
    """What a logout has done. `problem` says why the authorization server may still accept the
    tokens."""

    found: bool
    is_revoked: bool
    problem: str = ""


class CredentialStatus(Struct, frozen=True):
    """`expired`: it will be refreshed at the next use. `problem` is a sentence, empty if none."""

    state: CredentialState
    scopes: tuple[str, ...] = ()
    expires_at: float = 0.0
    problem: str = ""
    issuer: str = ""
