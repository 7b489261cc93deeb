"""What users let clients do: registered clients, consents, codes, and tokens, all in `users.db`.

A grant is what one user gave one client at one time; its codes and tokens end with it. Tokens are
random and stored as hashes. Looking up a known token takes no query. Does not know HTTP, and does
not decide who gets a grant.
"""

from __future__ import annotations

import hmac
import math
import re
import secrets
import string
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dragoman.core.access import TOKEN_EXPIRED, USER_REMOVED, TokenRejected
from dragoman.core.errors import NotFound, RateLimited
from dragoman.core.principal import USER, Principal
from dragoman.core.users import ClientRecord, GrantRecord, IssuedCode, IssuedTokens, SessionRecord
from dragoman.core.views import find_view_name
from dragoman.stores.users import (
    CLIENTS,
    CODES,
    CONSENTS,
    GRANTS,
    LOOK_SECONDS,
    TOKENS,
    UsersDatabase,
    UserStore,
    decode_texts,
    hash_secret,
    note_change,
)

GRANT, REVOKE = "token.grant", "token.revoke"
ACCESS, REFRESH = "access", "refresh"
PREFIXES = {ACCESS: "dgt_", REFRESH: "dgr_"}
_ID_LETTERS = string.ascii_lowercase + string.digits
_TOKEN = re.compile(r"dg[tr]_([a-z0-9]{12})_[A-Za-z0-9_-]{43}", re.ASCII)

_TIMES = "created_at, used_at"

DAY = 86_400.0
SEED_BYTES = 32
_UNKNOWN = "the access token is unknown, or was revoked"


@dataclass(frozen=True, slots=True)
class GrantLimits:
    """Bounds of what clients and users can store."""

    unused_clients: int = 500
    """Registered clients that no user has consented to."""
    unused_seconds: float = 3_600.0
    """After which such a client is forgotten."""
    settled_seconds: float = 600.0
    """After which such a client may make room for another."""
    idle_seconds: float = 180 * DAY
    """After which a client without grants is forgotten."""
    code_seconds: float = 60.0
    replay_seconds: float = DAY
    """How long a used code is remembered: using it again ends its grant."""
    grants: int = 200
    """Of one user; a new one ends the oldest."""
    access_tokens: int = 10
    """Valid ones of one grant; a new one ends the oldest."""
    used_tokens: int = 500
    """Used refresh tokens of one grant that are remembered."""
    leeway_seconds: float = 10.0
    """How long a used refresh token may be used again: a client may have lost the response, or
    have refreshed twice at once."""
    cached_tokens: int = 10_000


@dataclass(frozen=True, slots=True)
class _CachedToken:
    hash: bytes = field(repr=False)
    principal: Principal
    expires_at: float


class ClientGrantStore:
    """All methods raise `StorageFailed` if the database cannot be used."""

    def __init__(
        self, base: UsersDatabase, users: UserStore, limits: GrantLimits | None = None
    ) -> None:
        self._base = base
        self._users = users
        self._limits = limits or GrantLimits()
        self._cache: dict[str, _CachedToken] = {}
        self._seen = self.version = base.version
        self._find_issuer: Callable[[], str] | None = None
        self._expiry = 0.0
        """When the next access token expires; a time that has passed means unknown."""

    # --- clients ---------------------------------------------------------------------------------

    def register_client(self, metadata: Mapping[str, Any], secret: str) -> ClientRecord:
        """Stores a client under a new id. Raises `RateLimited` while too many are unused."""
        now, limits = time.time(), self._limits
        id = f"dgc_{secrets.token_urlsafe(18)}"
        hashed = hash_secret(secret) if secret else b""
        with self._base.transact() as db:
            db.execute(
                "DELETE FROM clients WHERE used_at IS NULL AND created_at <= ?",
                (now - limits.unused_seconds,),
            )
            db.execute(
                "DELETE FROM clients WHERE used_at <= ? AND NOT EXISTS "
                "(SELECT 1 FROM grants WHERE client = clients.id)",
                (now - limits.idle_seconds,),
            )
            unused = db.execute("SELECT count(*) FROM clients WHERE used_at IS NULL").fetchone()[0]
            if unused >= limits.unused_clients:
                made_room = db.execute(
                    "DELETE FROM clients WHERE id = (SELECT id FROM clients WHERE used_at IS NULL "
                    "AND created_at <= ? ORDER BY created_at LIMIT 1)",
                    (now - limits.settled_seconds,),
                )
                if made_room.rowcount == 0:
                    raise RateLimited(
                        "too many clients were registered and not used; try again later",
                        limits.settled_seconds,
                    )
            row = (id, msgspec.json.encode(metadata).decode(), hashed, now)
            db.execute("INSERT INTO clients VALUES (?, ?, ?, ?, NULL)", row)
            self._base.seals.put(db, CLIENTS, row)
        return ClientRecord(id, metadata, hashed, now, None)

    def find_client(self, id: str) -> ClientRecord | None:
        rows = self._base.read_sealed(CLIENTS, "clients WHERE id = ?", (id[:200],), "used_at")
        if not rows:
            return None
        record = ClientRecord(rows[0][0], msgspec.json.decode(rows[0][1]), *rows[0][2:])
        is_stale = record.created_at <= time.time() - self._limits.unused_seconds
        return None if record.used_at is None and is_stale else record

    # --- consents --------------------------------------------------------------------------------

    def remember_consent(
        self,
        session: SessionRecord,
        client: str,
        redirect_uri: str,
        scopes: Sequence[str],
        resource: str,
    ) -> None:
        """Remembers a consent for the rest of the browser session in which it was given."""
        row = (session.hash, client, redirect_uri, resource, session.user, _encode(scopes))
        with self._base.transact() as db:
            db.execute(
                "INSERT INTO consents (session, client, redirect_uri, resource, user, scopes, at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (session, client, redirect_uri, resource) DO UPDATE SET "
                "user = excluded.user, scopes = excluded.scopes, at = excluded.at",
                (*row, time.time()),
            )
            self._base.seals.put(db, CONSENTS, row)

    def has_consent(
        self,
        session: SessionRecord,
        client: str,
        redirect_uri: str,
        scopes: Sequence[str],
        resource: str,
    ) -> bool:
        rows = self._base.read_sealed(
            CONSENTS,
            "consents WHERE session = ? AND client = ? AND redirect_uri = ? AND resource = ?",
            (session.hash, client, redirect_uri, resource),
        )
        return bool(rows) and set(scopes) <= set(decode_texts(rows[0][5]))

    # --- codes -----------------------------------------------------------------------------------

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
        id, code, now = _make_id(), secrets.token_urlsafe(32), time.time()
        limits = self._limits
        with self._base.transact() as db:
            db.execute(
                "DELETE FROM grants WHERE id IN "
                "(SELECT grant_id FROM codes WHERE expires_at <= ? AND used_at IS NULL)",
                (now,),
            )
            db.execute("DELETE FROM codes WHERE used_at <= ?", (now - limits.replay_seconds,))
            # A grant whose tokens have all expired is over.
            db.execute(
                "DELETE FROM grants WHERE id NOT IN (SELECT grant_id FROM tokens WHERE "
                "expires_at > ?) AND id NOT IN (SELECT grant_id FROM codes)",
                (now,),
            )
            grant = (id, user, client, client_name, _encode(scopes), resource)
            db.execute("INSERT INTO grants VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*grant, now, now))
            self._base.seals.put(db, GRANTS, grant)
            row = (hash_secret(code), id, redirect_uri, challenge, now + limits.code_seconds)
            db.execute("INSERT INTO codes VALUES (?, ?, ?, ?, ?, NULL)", row)
            self._base.seals.put(db, CODES, row)
            db.execute("UPDATE clients SET used_at = ? WHERE id = ?", (now, client))
            dropped = db.execute(
                "DELETE FROM grants WHERE user = ? AND id NOT IN (SELECT id FROM grants "
                "WHERE user = ? ORDER BY created_at DESC LIMIT ?)",
                (user, user, limits.grants),
            ).rowcount
        if dropped:
            self._base.note_revoked()
        return code

    def take_code(self, code: str) -> IssuedCode | None:
        """Uses a code up. A code that was used before ends its grant: it may be stolen."""
        now = time.time()
        with self._base.transact() as db:
            rows = self._base.read_sealed(
                CODES, "codes WHERE hash = ?", (hash_secret(code),), "used_at"
            )
            if not rows:
                return None
            _, id, redirect_uri, challenge, expires_at, used_at = rows[0]
            found = self._read_grant(id)
            replayed = used_at is not None
            if replayed:
                self._delete_grant(id, "code used twice")
            else:
                db.execute("UPDATE codes SET used_at = ? WHERE hash = ?", (now, hash_secret(code)))
        if replayed:
            self._base.note_revoked()
            return None
        if found is None or expires_at <= now:
            return None
        return IssuedCode(found, redirect_uri, challenge)

    # --- tokens ----------------------------------------------------------------------------------

    def issue_tokens(
        self, grant: GrantRecord, access_seconds: float, refresh_seconds: float
    ) -> IssuedTokens:
        """Issues the first tokens of a grant."""
        # No token comes before the first ones: they are derived from chance alone.
        issued = _derive_tokens(secrets.token_urlsafe(32), secrets.token_bytes(SEED_BYTES), grant)
        with self._base.transact() as db:
            self._insert_tokens(issued, access_seconds, refresh_seconds)
            told = {"client": grant.client_name, "grant": grant.id, "scopes": list(grant.scopes)}
            note_change(db, GRANT, grant.user, told)
        return issued

    def rotate(
        self, token: str, client: str, access_seconds: float, refresh_seconds: float
    ) -> IssuedTokens | None:
        """Exchanges a refresh token for new ones; None if it is not valid for that client. One that
        was used a moment ago is exchanged for the same ones again, and one that was used earlier
        ends its grant: the token may be stolen."""
        now, reused = time.time(), False
        issued: IssuedTokens | None = None
        with self._base.transact() as db:
            found = self._read_token(token, REFRESH)
            if found is not None:
                id, grant, expires_at, used_at, successor = found
                reused = used_at is not None and now - used_at > self._limits.leeway_seconds
                if grant.client != client or expires_at <= now:
                    reused = False
                elif reused:
                    self._delete_grant(grant.id, "refresh token used twice")
                elif used_at is not None and successor:
                    issued = _derive_tokens(token, successor, grant)
                else:
                    successor = secrets.token_bytes(SEED_BYTES)
                    db.execute(
                        "UPDATE tokens SET used_at = coalesce(used_at, ?), successor = ? "
                        "WHERE id = ?",
                        (now, successor, id),
                    )
                    issued = _derive_tokens(token, successor, grant)
                    self._insert_tokens(issued, access_seconds, refresh_seconds)
        if reused:
            self._base.note_revoked()
        return issued

    def find(self, token: str) -> Principal | None:
        """Finds the user of an access token; None if it is no token of this store. Raises
        `TokenRejected` if it is unknown, expired or revoked (`TokenFinder`)."""
        if not token.startswith(PREFIXES[ACCESS]):
            return None
        self._base.refresh(LOOK_SECONDS)
        if self._seen != self._base.version:
            self._seen = self._base.version
            self._cache.clear()
        id = token[4:16]
        cached = self._cache.get(id)
        if cached is None:
            cached = self._load(token)
            if len(self._cache) >= self._limits.cached_tokens:
                self._cache.clear()
            self._cache[id] = cached
        elif not hmac.compare_digest(cached.hash, hash_secret(token)):
            raise TokenRejected(_UNKNOWN)
        if cached.expires_at <= time.time():
            raise TokenRejected(TOKEN_EXPIRED)
        return cached.principal

    def revoke_token(self, token: str, client: str) -> bool:
        """Ends the grant of a token of that client (RFC 7009); whether there was one."""
        found = self._read_token(token)
        if found is None or found[1].client != client:
            return False
        self.revoke(found[1].id, "by the client")
        return True

    def revoke(self, id: str, why: str = "by command") -> GrantRecord:
        """Ends a grant; other processes notice within a second."""
        found = self._read_grant(id)
        if found is None:
            raise NotFound(f'there is no grant "{id[:40]}"')
        with self._base.transact():
            self._delete_grant(id, why)
        self._base.note_revoked()
        return found

    def list(self, user: str | None = None) -> Sequence[GrantRecord]:
        """Lists the grants that have valid tokens, of one user or of all."""
        rows = self._base.read_sealed(
            GRANTS,
            "grants WHERE (CAST(? AS TEXT) IS NULL OR user = ?) AND EXISTS (SELECT 1 FROM tokens "
            "WHERE grant_id = grants.id AND expires_at > ?) ORDER BY user, created_at",
            (user, user, time.time()),
            _TIMES,
        )
        return list(map(_grant_from_row, rows))

    # --- for the watch of revoked access ---------------------------------------------------------

    def refresh(self) -> None:
        self._base.refresh()
        self.version = self._base.version

    def find_next_expiry(self, now: float) -> float:
        """Returns when the next access token expires."""
        if now >= self._expiry:
            rows = self._base.read(
                "SELECT min(expires_at) FROM tokens WHERE kind = ? AND expires_at > ?",
                (ACCESS, now),
            )
            self._expiry = math.inf if rows[0][0] is None else float(rows[0][0])
        return self._expiry

    def explain_invalid(self, principal: Principal) -> str | None:
        """Implements `TokenFinder`."""
        if principal.kind != USER or "/" in principal.id:
            return None
        user = self._users.find(principal.id)
        if user is None or user.org != principal.org:
            return USER_REMOVED
        if not principal.credential:
            return ""
        grant, _, id = principal.credential.partition(".")
        if self._read_grant(grant) is None:
            return "the access token was revoked"
        rows = self._base.read("SELECT expires_at FROM tokens WHERE id = ?", (id,))
        return "" if rows and rows[0][0] > time.time() else TOKEN_EXPIRED

    def is_active(self) -> bool:
        return True

    def set_issuer(self, find_issuer: Callable[[], str]) -> None:
        """Sets what finds the URL of the hub, which issues the tokens."""
        self._find_issuer = find_issuer

    def list_issuers(self, base: str) -> Sequence[str]:
        return [self._find_issuer()] if self._find_issuer is not None else []

    # --- rows ------------------------------------------------------------------------------------

    def _insert_tokens(
        self, issued: IssuedTokens, access_seconds: float, refresh_seconds: float
    ) -> None:
        now, db, limits, grant = time.time(), self._base.db, self._limits, issued.grant
        for kind, token, seconds in (
            (ACCESS, issued.access, access_seconds),
            (REFRESH, issued.refresh, refresh_seconds),
        ):
            row = (token[4:16], hash_secret(token), grant.id, kind, now + seconds)
            db.execute(
                "INSERT INTO tokens (id, hash, grant_id, kind, expires_at, created_at) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (*row, now),
            )
            self._base.seals.put(db, TOKENS, row)
        self._expiry = min(self._expiry, now + access_seconds)
        db.execute("UPDATE grants SET used_at = ? WHERE id = ?", (now, grant.id))
        db.execute("DELETE FROM tokens WHERE expires_at <= ?", (now,))
        db.execute(
            "UPDATE tokens SET successor = NULL WHERE grant_id = ? AND successor IS NOT NULL "
            "AND used_at <= ?",
            (grant.id, now - limits.leeway_seconds),
        )
        for condition, most in (
            (f"kind = '{ACCESS}'", limits.access_tokens),
            (f"kind = '{REFRESH}' AND used_at IS NOT NULL", limits.used_tokens),
        ):
            db.execute(
                f"DELETE FROM tokens WHERE grant_id = ? AND {condition} AND id NOT IN (SELECT id "
                f"FROM tokens WHERE grant_id = ? AND {condition} ORDER BY created_at DESC LIMIT ?)",
                (grant.id, grant.id, most),
            )

    def _load(self, token: str) -> _CachedToken:
        found = self._read_token(token, ACCESS)
        user = self._users.find(found[1].user) if found is not None else None
        if found is None or user is None:
            raise TokenRejected(_UNKNOWN)
        id, grant, expires_at, *_ = found
        # Scopes that the user has lost are lost to tokens as well.
        scopes = [scope for scope in grant.scopes if scope in user.scopes]
        view = find_view_name([grant.resource])
        principal = user.build_principal(scopes, f"{grant.id}.{id}", view)
        return _CachedToken(hash_secret(token), principal, expires_at)

    def _read_token(
        self, token: str, kind: str | None = None
    ) -> tuple[str, GrantRecord, float, float | None, bytes | None] | None:
        shape = _TOKEN.fullmatch(token)
        if shape is None:
            return None
        rows = self._base.read_sealed(
            TOKENS, "tokens WHERE id = ?", (shape[1],), "used_at, successor"
        )
        if not rows or not hmac.compare_digest(rows[0][1], hash_secret(token)):
            return None
        id, _, grant_id, is_kind, expires_at, used_at, successor = rows[0]
        grant = self._read_grant(grant_id)
        if grant is None or (kind is not None and is_kind != kind):
            return None
        return id, grant, expires_at, used_at, successor

    def _read_grant(self, id: str) -> GrantRecord | None:
        rows = self._base.read_sealed(GRANTS, "grants WHERE id = ?", (id,), _TIMES)
        return _grant_from_row(rows[0]) if rows else None

    def _delete_grant(self, id: str, why: str) -> None:
        row = self._base.db.execute(
            "DELETE FROM grants WHERE id = ? RETURNING user, client_name", (id,)
        ).fetchone()
        if row is not None:
            told = {"client": row[1], "grant": id, "why": why}
            note_change(self._base.db, REVOKE, row[0], told)


def _derive_tokens(token: str, seed: bytes, grant: GrantRecord) -> IssuedTokens:
    """Derives the tokens that a refresh token is exchanged for: the same ones for the same seed, so
    that a repeated exchange opens no second line of tokens. The seed alone, which is stored, says
    nothing about them."""

    def derive(kind: str) -> str:
        derived = hmac.digest(token.encode(), b"successor %s " % kind.encode() + seed, "sha512")
        id = "".join(_ID_LETTERS[byte % len(_ID_LETTERS)] for byte in derived[32:44])
        secret = urlsafe_b64encode(derived[:32]).rstrip(b"=").decode()
        return f"{PREFIXES[kind]}{id}_{secret}"

    return IssuedTokens(derive(ACCESS), derive(REFRESH), grant)


def _make_id() -> str:
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(12))


def _encode(texts: Sequence[str]) -> str:
    return msgspec.json.encode(list(texts)).decode()


def _grant_from_row(row: tuple[Any, ...]) -> GrantRecord:
    id, user, client, name, scopes, resource, created_at, used_at = row
    return GrantRecord(id, user, client, name, decode_texts(scopes), resource, created_at, used_at)
