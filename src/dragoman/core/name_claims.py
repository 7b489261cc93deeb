"""Which tool owns a listed name: the first to have it, as long as its target exists.

A name stays with its owner while that is quarantined, absent or not started yet, so that no other
target receives its calls. Canonical names begin with their target and need no claim.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Protocol

from dragoman.core.errors import StorageFailed
from dragoman.core.logs import STORAGE_OUTAGE, RepeatedFailure
from dragoman.core.tool import Tool

log = logging.getLogger(__name__)

MAX_NAMES = 100_000
"""Per target. What it offers beyond that has its canonical name alone."""

Claim = tuple[str, str, str, Sequence[str]]
"""A target, a kind, the canonical name of the owner, and the names it owns."""


class NameStore(Protocol):
    """Stores claims. All methods may raise `StorageFailed`."""

    def load_names(self) -> Iterable[Claim]: ...

    def save_names(self, claims: Sequence[Claim]) -> None:
        """Replaces the names of each owner."""

    def release_names(self, target: str) -> None: ...


class NameClaims:
    def __init__(
        self,
        store: NameStore | None = None,
        find_namespaces: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`find_namespaces` returns the configured and registered targets by the prefix of their
        canonical names: no other target may claim a name with that prefix."""
        self._store = store
        self._find_namespaces = find_namespaces
        self._owners: dict[str, dict[str, str]] = {}
        """By kind: canonical names of owners by the names they own."""
        self._claims: dict[str, dict[tuple[str, str], list[str]]] = {}
        """By target, then by kind and owner."""
        self._count: dict[str, int] = {}
        self._unsaved: dict[tuple[str, str, str], Claim] = {}
        self._readable = True
        self._unread = RepeatedFailure()
        self.releases = 0
        """Changes whenever names may have become free."""
        self._load()

    def _load(self) -> None:
        store = self._store
        try:
            for target, kind, owner, names in store.load_names() if store is not None else ():
                self._put(target, kind, owner, names)
        except StorageFailed as error:
            # Fails closed: with unknown owners, tools have their canonical names alone.
            self._readable = False
            what = "claims to names cannot be read, so only canonical names are listed"
            if text := self._unread.note(what):
                log.error("%s: %s", text, error)

    def reload(self) -> bool:
        """Reads what other hubs have stored; returns whether anything differs."""
        before = self._claims
        self.releases += 1
        self._owners, self._claims, self._count, self._readable = {}, {}, {}, True
        self._load()
        for target, kind, owner, names in self._unsaved.values():
            if owner not in {one for _, one in self._claims.get(target, {})}:
                self._put(target, kind, owner, names)
        return self._claims != before

    def find_owner(self, kind: str, name: str) -> str | None:
        """Finds the canonical name of the tool that owns `name`; None if unclaimed."""
        return self._owners.get(kind, {}).get(name)

    def claim(self, kind: str, target: str, tools: Iterable[Tool]) -> None:
        """Claims the names of `tools` that are free."""
        if not self._readable:
            return
        owners = self._owners.setdefault(kind, {})
        find_namespaces = cache(self._find_namespaces)  # few tools need them
        room = MAX_NAMES - self._count.get(target, 0)
        for tool in tools:
            free = [
                name
                for name in list_aliases(tool)
                if name not in owners
                and name != tool.name
                and ("." not in name or _is_own(name, target, find_namespaces()))
            ]
            if free and len(free) <= room:
                room -= len(free)
                self._put(target, kind, tool.name, free)
                names = self._claims[target][kind, tool.name]
                self._unsaved[target, kind, tool.name] = (target, kind, tool.name, names)
        self._save()

    def _put(self, target: str, kind: str, owner: str, names: Sequence[str]) -> None:
        self._owners.setdefault(kind, {}).update(dict.fromkeys(names, owner))
        self._claims.setdefault(target, {}).setdefault((kind, owner), []).extend(names)
        self._count[target] = self._count.get(target, 0) + len(names)

    def _save(self) -> None:
        if self._store is None or not self._unsaved:
            self._unsaved = {}
            return
        try:
            self._store.save_names(list(self._unsaved.values()))
            self._unsaved = {}
        except StorageFailed as error:  # retried with the next claim
            STORAGE_OUTAGE.note(f"claims to names could not be stored: {error}")

    def release(self, target: str) -> None:
        """Releases the names of a target that was removed."""
        self.releases += 1
        for (kind, _), names in self._claims.pop(target, {}).items():
            for name in names:
                self._owners[kind].pop(name, None)
        self._count.pop(target, None)
        self._unsaved = {key: one for key, one in self._unsaved.items() if key[0] != target}
        try:
            if self._store is not None:
                self._store.release_names(target)
        except StorageFailed as error:
            log.error('the names of "%s" could not be released: %s', target, error)

    def keep_only(self, targets: Collection[str]) -> None:
        """Releases the names of all targets but these."""
        for target in [one for one in self._claims if one not in targets]:
            self.release(target)


def list_aliases(tool: Tool) -> set[str]:
    """Lists the names of a tool beside its canonical one."""
    return {tool.alias, *tool.other_names.values()}


def _is_own(name: str, target: str, namespaces: Mapping[str, str]) -> bool:
    return namespaces.get(name.partition(".")[0], target) == target
