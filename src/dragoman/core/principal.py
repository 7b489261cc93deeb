"""Who is calling."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """`kind` is `owner` (on the hub's Unix socket), `local` (loopback, no key set) or `key`."""

    kind: str
    id: str
    org: str = "default"

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}"


OWNER = Principal("owner", "owner")
