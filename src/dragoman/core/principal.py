"""Principals: who calls."""

from __future__ import annotations

from dataclasses import dataclass, field

from dragoman.core.scopes import ORDINARY, find_rights

HUB_ORG = "default"
"""The org of the hub itself: only its principals can administer the hub."""


@dataclass(frozen=True, slots=True)
class Principal:
    """`kind` is `owner` (on the hub's Unix socket), `local` (loopback, no key set), `key`, `user`
    (with an access token), `server` (a process that a server of the hub started, without a key), or
    `workflow` (a run that a trigger has started). Kind, id and org identify it."""

    kind: str
    id: str
    org: str = HUB_ORG
    roles: tuple[str, ...] = field(default=(), compare=False)
    """For policies; `owner` may do what the owner may."""
    scopes: tuple[str, ...] = field(default=ORDINARY, compare=False)
    """What the credential of a key or user may be used for (`core.scopes`), and names that only
    policies read."""
    behalf: str = field(default="", compare=False)
    """For whom it acts: the owner of a key."""
    serves: str = field(default="", compare=False)
    """The target whose credential it used, or whose process it is: a server or agent that calls
    back."""
    credential: str = field(default="", compare=False)
    """An id of the access token that it came with, never the token: one user has many tokens, and
    the end of one ends what it opened. Empty if the principal has only one credential."""
    view: str = field(default="", compare=False)
    """The view that it is bound to, at every entry point; empty: none."""
    key: str = field(init=False, compare=False, repr=False)
    """Identifies the principal: hashing a string costs less than hashing a principal."""
    label: str = field(init=False, compare=False, repr=False)
    """`kind:id`, for the record of every call."""
    rights: frozenset[str] = field(init=False, compare=False, repr=False)
    """What its scopes include. The policies must permit it besides."""

    _hash: int = field(init=False, compare=False, repr=False)
    """Kept: a principal is a dictionary key many times per call."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", f"{self.kind}:{self.id}")
        object.__setattr__(self, "key", f"{self.label}\0{self.org}")
        object.__setattr__(self, "rights", find_rights(self.kind, self.scopes))
        object.__setattr__(self, "_hash", hash((self.kind, self.id, self.org)))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return self.label


OWNER = Principal("owner", "owner", roles=("owner",))
LOCAL = Principal("local", "local", roles=("owner",))
"""The hub's user on this machine, where no key is required."""


SERVER = "server"
USER = "user"
WORKFLOW = "workflow"


def principal_from_server(name: str) -> Principal:
    """A process that a server of the hub started: it has that user's rights, and no role here."""
    return Principal(SERVER, name, serves=name)


def principal_from_workflow(name: str) -> Principal:
    """The principal of runs that no person has started: the operator has defined the workflow and
    its triggers, and policies decide what it may do. It has no role."""
    return Principal(WORKFLOW, name)
