"""Passwords as Argon2id hashes, computed in threads and few at a time."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from dragoman.core.errors import ConfigError, InvalidInput, Overloaded

if TYPE_CHECKING:
    from argon2 import PasswordHasher

MIN_LENGTH = 10
MAX_LENGTH = 256
AT_ONCE = 2
"""Hashes that are computed at once: each takes a core and 19 MiB."""
WAITING = 20
_COMMON = frozenset(
    {
        *("1234567890", "0123456789", "12345678910", "qwertyuiop", "qwerty12345", "1q2w3e4r5t"),
        *("password12", "password123", "password1234", "passwordpassword", "letmeinletmein"),
        *(
            "iloveyou123",
            "administrator",
            "changeme123",
            "changemenow",
            "welcome123",
            "dragoman123",
        ),
    }
)


def check_password(password: str, user: str) -> None:
    """Raises `InvalidInput` for a password that is too short, too long or obvious."""
    if not MIN_LENGTH <= len(password) <= MAX_LENGTH:
        raise InvalidInput(f"a password has {MIN_LENGTH} to {MAX_LENGTH} characters")
    if not password.isprintable():
        raise InvalidInput("a password has printable characters only")
    folded = password.lower()
    if folded in _COMMON or len(set(folded)) < 4 or folded == user.lower():
        raise InvalidInput("this password is easy to guess; choose another one")


def build_hasher() -> PasswordHasher:
    """Raises `ConfigError` if the extra is not installed."""
    try:
        from argon2 import PasswordHasher
    except ImportError:
        raise ConfigError("users need the extra auth: pip install 'dragoman-hub[auth]'") from None
    # As OWASP recommends: two passes over 19 MiB, about 30 ms.
    return PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)


class PasswordChecker:
    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._hasher = hasher or build_hasher()
        self._dummy = self._hasher.hash(secrets.token_urlsafe(16))
        """Compared for unknown users, so that their answer takes as long."""
        self._room = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    async def verify(self, hashed: str, password: str) -> bool:
        """Whether the password is right; never for an empty `hashed`, which takes as long."""
        right = await self._run(hashed or self._dummy, password[: MAX_LENGTH + 1])
        return right and bool(hashed)

    async def hash(self, password: str) -> str:
        async with _Turn(self):
            return await asyncio.to_thread(self._hasher.hash, password)

    async def _run(self, hashed: str, password: str) -> bool:
        async with _Turn(self):
            return await asyncio.to_thread(self._verify, hashed, password)

    def _verify(self, hashed: str, password: str) -> bool:
        from argon2.exceptions import InvalidHashError, VerificationError

        try:
            return self._hasher.verify(hashed, password)
        except (VerificationError, InvalidHashError):
            return False

    # --- turns -----------------------------------------------------------------------------------

    async def enter(self) -> None:
        if self._waiting >= WAITING:
            raise Overloaded("too many people sign in at once; try again in a moment")
        self._waiting += 1
        try:
            await self._room.acquire()
        finally:
            self._waiting -= 1

    def leave(self) -> None:
        self._room.release()


class _Turn:
    """A place among the hashes that are computed at once."""

    def __init__(self, checker: PasswordChecker) -> None:
        self._checker = checker

    async def __aenter__(self) -> None:
        await self._checker.enter()

    async def __aexit__(self, *_: object) -> None:
        self._checker.leave()
