"""Who is calling."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Principal:
    """`kind` is `owner` (on the hub's Unix socket), `local` (loopback, no key set) or `key`."""

    kind: str
    id: str
    org: str = "default"
    label: str = field(init=False, compare=False, repr=False)
    """Both in one word, `kind:id`: every call's record has it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", f"{self.kind}:{self.id}")

    def __str__(self) -> str:
        return self.label


OWNER = Principal("owner", "owner")
