"""The policy files that hubs on one database share, and the port of their store."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple, Protocol


class SharedFile(NamedTuple):
    text: str
    """Empty for a file that was deleted."""
    digest: str
    number: int
    """How often it was changed."""
    changed_at: float


def hash_text(text: str) -> str:
    return sha256(text.encode()).hexdigest()


class PolicyFileStore(Protocol):
    """Stores the files. Its methods may raise `StorageFailed`."""

    def read_version(self) -> int:
        """A number that differs after another hub has changed a file."""

    @property
    def is_sealed(self) -> bool:
        """Whether only what a hub has written is loaded: a file that is missing was deleted by
        another program then."""

    def load(self) -> dict[str, SharedFile]: ...

    def change(
        self, texts: Mapping[str, str | None], expected: Mapping[str, str | None]
    ) -> list[str]:
        """Stores new texts, and that files whose text is None were deleted, in one transaction.
        Changes only files that have the digest that is `expected`, None for a file that must not
        exist; returns the names of others, which another hub has changed meanwhile."""

    def close(self) -> None: ...
