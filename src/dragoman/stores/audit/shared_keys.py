"""The identity of a home's audit chain, and its key as other hubs read it from the database.

A chain keeps the key of its home. Hubs with a cluster secret store that key in the database,
encrypted with a key that is derived from the secret and bound to the id of the chain, so that each
of them verifies and prunes the chains of all.
"""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.core.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

CHAIN = "audit.chain"
"""The file with the id of the home's chain in the database."""
PURPOSE = b"dragoman audit chain keys"
NONCE_BYTES = 12
HEAD_IN_DATABASE = b"P"
"""The type of the sealed end of a chain in the database."""


class ChainKeys:
    """Seals and opens the keys of chains. Without a secret it does neither."""

    def __init__(self, secret: bytes | None) -> None:
        self._cipher: AESGCM | None = None
        if secret is not None:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            self._cipher = AESGCM(hmac.digest(secret, PURPOSE, "sha256"))

    def seal(self, id: str, key: bytes) -> bytes | None:
        if self._cipher is None:
            return None
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, key, id.encode())

    def open(self, id: str, sealed: bytes | None) -> bytes | None:
        """Returns None for a key that was not sealed with this secret for this chain."""
        if self._cipher is None or sealed is None:
            return None
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], id.encode())
        except (InvalidTag, ValueError):
            return None


def read_chain_id(home: Path) -> str | None:
    """Returns None for a home whose chain was never copied."""
    try:
        found = (home / CHAIN).read_text("ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f'"{home / CHAIN}" cannot be read ({error})') from error
    return found or None


def create_chain_id(home: Path) -> str:
    """Gives the chain of the home a new id, which is on the disk when this returns."""
    id = secrets.token_hex(12)
    draft = home / f"{CHAIN}.new"
    try:
        draft.unlink(missing_ok=True)
        file = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            os.write(file, f"{id}\n".encode())
            os.fsync(file)
        finally:
            os.close(file)
        draft.replace(home / CHAIN)
    except OSError as error:
        raise ConfigError(f'"{home / CHAIN}" cannot be written ({error.strerror})') from error
    return id
