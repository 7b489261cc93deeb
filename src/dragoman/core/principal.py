"""Who is calling."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Principal:
    """`kind` is `owner` (on the hub's Unix socket), `local` (loopback, no key set), `key`, or
    `server` (a process that a server of the hub started, without a key). Those of one kind, id and
    org are one, whatever else is known of them."""

    kind: str
    id: str
    org: str = "default"
    roles: tuple[str, ...] = field(default=(), compare=False)
    """What policies know it by beside its name; `owner` may do what the owner may."""
    scopes: tuple[str, ...] = field(default=(), compare=False)
    behalf: str = field(default="", compare=False)
    """For whom it acts, where it says so: the owner of a key."""
    serves: str = field(default="", compare=False)
    """The target whose own credential it came with, or whose process it is: a server or an agent
    that calls back."""
    label: str = field(init=False, compare=False, repr=False)
    """Both in one word, `kind:id`: every call's record has it."""

    _hash: int = field(init=False, compare=False, repr=False)
    """What is kept of a caller is found by it, many times a call."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", f"{self.kind}:{self.id}")
        object.__setattr__(self, "_hash", hash((self.kind, self.id, self.org)))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return self.label


OWNER = Principal("owner", "owner", roles=("owner",))
LOCAL = Principal("local", "local", roles=("owner",))
"""The hub's own user on this machine, where the hub asks for no key."""


SERVER = "server"


def principal_from_server(name: str) -> Principal:
    """A process that a server of the hub started: it has its user's rights, and no role here."""
    return Principal(SERVER, name, serves=name)
