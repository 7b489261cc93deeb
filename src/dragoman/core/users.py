"""Users of the hub's own authorization server and what they grant to clients: records and ports.

`stores` keeps them in `users.db`; `oauth` and `web` use them through the ports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dragoman.core.principal import Principal
from dragoman.core.scopes import EVERY_SCOPE


@dataclass(frozen=True, slots=True)
class UserRecord:
    name: str
    org: str
    roles: tuple[str, ...]
    scopes: tuple[str, ...]
    password: str = field(repr=False)
    """An Argon2id hash; empty if the user has no password."""
    subject: str
    """Issuer and subject of the identity provider, as `render_subject` writes them; or empty."""
    handle: bytes = field(repr=False)
    """The user's id at authenticators: random, since it must not contain the name."""
    created_at: float
    signed_in_at: float | None
    enrolment_until: float | None
    """When the open enrolment link expires."""

    def build_principal(
        self, scopes: Sequence[str] = EVERY_SCOPE, credential: str = "", view: str = ""
    ) -> Principal:
        """`scopes`, `credential` and `view` are those of a token: a browser session has none, and
        its user may use all that the policies permit."""
        return Principal(
            "user",
            self.name,
            self.org,
            roles=self.roles,
            scopes=tuple(scopes),
            behalf=self.name,
            credential=credential,
            view=view,
        )


def render_subject(issuer: str, subject: str) -> str:
    """Writes the identity of a user at a provider as one text."""
    return f"{issuer}\n{subject}"


@dataclass(frozen=True, slots=True)
class Passkey:
    id: bytes
    user: str
    public_key: bytes
    sign_count: int
    created_at: float
    used_at: float | None


@dataclass(frozen=True, slots=True)
class EndedAccess:
    """How much of a user's access was ended."""

    sessions: int = 0
    apps: int = 0
    passkeys: int = 0
    browsers: int = 0
    """Browsers that were known to have signed in before."""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A browser in which a user has signed in."""

    hash: bytes
    user: str
    created_at: float
    expires_at: float


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """The session of a browser that sent a request."""

    id: str = field(repr=False)
    user: UserRecord
    record: SessionRecord


@dataclass(frozen=True, slots=True)
class ClientRecord:
    """A client that has registered itself."""

    id: str
    metadata: Mapping[str, Any]
    secret: bytes = field(repr=False)
    """The hash of the client's secret; empty for a public client."""
    created_at: float
    used_at: float | None


@dataclass(frozen=True, slots=True)
class GrantRecord:
    """What one user gave one client at one time."""

    id: str
    user: str
    client: str
    client_name: str
    scopes: tuple[str, ...]
    resource: str
    """The URL of the hub that the tokens are for."""
    created_at: float
    used_at: float


@dataclass(frozen=True, slots=True)
class IssuedCode:
    """A code that was taken, and the grant that it stands for."""

    grant: GrantRecord
    redirect_uri: str
    challenge: str


@dataclass(frozen=True, slots=True)
class IssuedTokens:
    access: str = field(repr=False)
    refresh: str = field(repr=False)
    grant: GrantRecord


class BrowserSessionStore(Protocol):
    """All methods raise `StorageFailed` if the store cannot be used."""

    def open_session(self, user: str, seconds: float) -> str:
        """Returns the id of a new browser session, which is stored as a hash."""

    def find_session(self, id: str) -> SessionRecord | None: ...

    def close_session(self, id: str) -> None: ...

    def remember_browser(self, user: str) -> str:
        """Returns an id by which a browser is recognised that the user has signed in with."""

    def is_known_browser(self, id: str, user: str) -> bool: ...

    def find(self, name: str) -> UserRecord | None: ...


class Users(BrowserSessionStore, Protocol):
    def add(
        self,
        name: str,
        *,
        org: str = "default",
        roles: Sequence[str] = (),
        scopes: Sequence[str] = ("call",),
        password: str = "",
        subject: str = "",
        by: str = "cli",
        restore: bool = False,
    ) -> UserRecord: ...

    def find_by_subject(self, subject: str) -> UserRecord | None: ...

    def bind_subject(self, name: str, subject: str) -> None:
        """Binds a user without a password to an identity of a provider, once. Raises
        `InvalidInput`."""

    def note_sign_in(self, name: str, how: str) -> None: ...

    def find_enrolment(self, code: str) -> UserRecord | None: ...

    def finish_enrolment(self, code: str, password: str) -> UserRecord | None:
        """Sets the hash of a password; None if the code is not valid any more."""

    def add_passkey(self, user: str, id: bytes, public_key: bytes, sign_count: int) -> None: ...

    def find_passkey(self, id: bytes) -> Passkey | None: ...

    def list_passkeys(self, user: str) -> Sequence[Passkey]: ...

    def note_passkey_used(self, id: bytes, sign_count: int) -> None: ...

    def remove_passkeys(self, user: str) -> None: ...


class UserGrants(Protocol):
    """All methods raise `StorageFailed` if the store cannot be used."""

    def register_client(self, metadata: Mapping[str, Any], secret: str) -> ClientRecord:
        """Stores a client under a new id. Raises `RateLimited` while too many are unused."""

    def find_client(self, id: str) -> ClientRecord | None: ...

    def remember_consent(
        self,
        session: SessionRecord,
        client: str,
        redirect_uri: str,
        scopes: Sequence[str],
        resource: str,
    ) -> None:
        """Remembers a consent for the rest of the browser session in which it was given."""

    def has_consent(
        self,
        session: SessionRecord,
        client: str,
        redirect_uri: str,
        scopes: Sequence[str],
        resource: str,
    ) -> bool: ...

    def open_grant(
        self,
        user: str,
        client: str,
        client_name: str,
        scopes: Sequence[str],
        resource: str,
        redirect_uri: str,
        challenge: str,
    ) -> str:
        """Creates a grant and returns the code that stands for it."""

    def take_code(self, code: str) -> IssuedCode | None:
        """Uses a code up. A code that was used before ends its grant: it may be stolen."""

    def issue_tokens(
        self, grant: GrantRecord, access_seconds: float, refresh_seconds: float
    ) -> IssuedTokens:
        """Issues the first tokens of a grant."""

    def rotate(
        self, token: str, client: str, access_seconds: float, refresh_seconds: float
    ) -> IssuedTokens | None:
        """Exchanges a refresh token for new ones; None if it is not valid for that client. One that
        was used before ends its grant: it may be stolen."""

    def revoke_token(self, token: str, client: str) -> bool:
        """Ends the grant of a token of that client (RFC 7009); whether there was one."""

    def revoke(self, id: str, why: str = "by command") -> GrantRecord: ...

    def list(self, user: str | None = None) -> Sequence[GrantRecord]:
        """Lists the grants that have valid tokens, of one user or of all."""
