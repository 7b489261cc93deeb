"""The `CredentialStore` in `credentials.db`: tokens and clients of OAuth, each encrypted.

The key is not in the database: see `stores.credential_key`. What names a credential is stored as it
is and bound to it: a value that is moved to another row cannot be decrypted there. Does not know
what the values mean.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import msgspec

from dragoman.core.ports import CredentialId
from dragoman.stores.database import SQLITE, LoopStore, StorePlace, StoreTables

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

DATABASE = "credentials.db"
KEY_BYTES = 32
NONCE_BYTES = 12
SCHEME = 1
MIGRATIONS = (
    """
CREATE TABLE credentials (
    kind TEXT NOT NULL, account TEXT NOT NULL, holder BLOB NOT NULL,
    issuer TEXT NOT NULL, resource TEXT NOT NULL,
    saved_at REAL NOT NULL, number INTEGER NOT NULL,
    scheme INTEGER NOT NULL, nonce BLOB NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (kind, account, holder, issuer, resource)
) STRICT, WITHOUT ROWID;
""",
)
TABLES = StoreTables("credentials", DATABASE, MIGRATIONS, counted="credentials")
_OF = "WHERE kind = ? AND account = ? AND holder = ? AND issuer = ? AND resource = ?"
_SAVE = """
INSERT INTO credentials VALUES (?, ?, ?, ?, ?, ?,
    (SELECT coalesce(max(number), 0) + 1 FROM credentials), ?, ?, ?)
ON CONFLICT (kind, account, holder, issuer, resource) DO UPDATE SET
    saved_at = excluded.saved_at, number = excluded.number,
    scheme = excluded.scheme, nonce = excluded.nonce, value = excluded.value
"""


class DatabaseCredentials(LoopStore):
    def __init__(self, place: StorePlace, key: bytes) -> None:
        # The library is loaded by the hubs that store credentials, and by no others.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher: AESGCM = AESGCM(key)
        # A refresh token that was replaced is void, so the new one must survive a power failure.
        super().__init__(place, TABLES, durable=True)
        if self._base.engine == SQLITE:
            # What is deleted or replaced is overwritten, although it is encrypted.
            self._db.execute("PRAGMA secure_delete=ON")

    def load(self, id: CredentialId) -> bytes | None:
        rows = self._read(f"SELECT scheme, nonce, value FROM credentials {_OF}", _build_key(id))
        return self._decrypt(id, *rows[0]) if rows else None

    def find(self, kind: str, account: str, holder: str) -> list[tuple[CredentialId, bytes | None]]:
        rows = self._read(
            "SELECT issuer, resource, scheme, nonce, value FROM credentials "
            "WHERE kind = ? AND account = ? AND holder = ? ORDER BY number DESC",
            (kind, account, holder.encode()),
        )
        ids = [CredentialId(kind, account, holder, row[0], row[1]) for row in rows]
        return [(id, self._decrypt(id, *row[2:])) for id, row in zip(ids, rows, strict=True)]

    def list(self, kind: str, account: str) -> list[CredentialId]:
        rows = self._read(
            "SELECT account, holder, issuer, resource FROM credentials "
            "WHERE kind = ? AND (account = ? OR ? = '') ORDER BY number",
            (kind, account, account),
        )
        return [CredentialId(kind, row[0], row[1].decode(), row[2], row[3]) for row in rows]

    def save(self, id: CredentialId, value: bytes) -> None:
        nonce = os.urandom(NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, value, _build_label(id, SCHEME))
        with self._transact() as db:
            db.execute(_SAVE, (*_build_key(id), time.time(), SCHEME, nonce, sealed))

    def adopt(self, older: bytes | None) -> None:
        """Encrypts again what only an older key decrypts."""
        if older is None:
            return
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        rows = self._read(
            "SELECT kind, account, holder, issuer, resource, scheme, nonce, value FROM credentials",
            (),
        )
        for kind, account, holder, issuer, resource, scheme, nonce, sealed in rows:
            id = CredentialId(kind, account, bytes(holder).decode(), issuer, resource)
            if self._decrypt(id, scheme, nonce, sealed) is None:
                value = self._decrypt(id, scheme, nonce, sealed, AESGCM(older))
                if value is not None:
                    self.save(id, value)

    def delete(self, id: CredentialId) -> None:
        with self._transact() as db:
            db.execute(f"DELETE FROM credentials {_OF}", _build_key(id))

    def _decrypt(
        self,
        id: CredentialId,
        scheme: int,
        nonce: bytes,
        sealed: bytes,
        cipher: AESGCM | None = None,
    ) -> bytes | None:
        from cryptography.exceptions import InvalidTag

        try:
            return (cipher or self._cipher).decrypt(nonce, sealed, _build_label(id, scheme))
        except (InvalidTag, ValueError):
            return None


def _build_key(id: CredentialId) -> tuple[str, str, bytes, str, str]:
    # The key of a principal has a NUL, at which SQLite's functions end a text.
    return id.kind, id.account, id.holder.encode(), id.issuer, id.resource


def _build_label(id: CredentialId, scheme: int) -> bytes:
    """What a value is bound to; JSON keeps the parts apart."""
    return msgspec.json.encode(["dragoman credential", scheme, *id])
