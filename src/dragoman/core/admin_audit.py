"""Records administrative actions in the same audit log as calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic, perf_counter
from typing import Any

from dragoman.core.errors import ShuttingDown, StorageFailed
from dragoman.core.ports import AuditLog
from dragoman.core.principal import Principal

MAX_NAMED = 200
MAX_CHANGES = 100


@contextmanager
def record_action(
    audit: AuditLog, verb: str, what: str, by: Principal | None, **more: Any
) -> Iterator[None]:
    """Records an action around the block that does it; `what` is its object, and `more` are other
    members of the entry. Raises as `intend`, before anything is done."""
    principal = by.label if by is not None else "nobody"
    named = what[:MAX_NAMED].encode("utf-8", "replace").decode()
    entry = {"verb": verb, "asked_as": named, "caller": principal, "door": "api", "depth": 0}
    entry |= more
    begun = perf_counter()
    seq = audit.intend(entry)
    outcome = "failed"
    try:
        yield
        outcome = "completed"
    finally:
        took = round((perf_counter() - begun) * 1000, 3)
        audit.conclude(seq, {"outcome": outcome, "duration_ms": took})


def record_done(
    audit: AuditLog,
    verb: str,
    what: str,
    by: str,
    door: str,
    told: Mapping[str, Any],
    **more: Any,
) -> None:
    """Records something that has already happened; `more` are other members of the entry. Raises as
    `intend`."""
    named = what[:MAX_NAMED].encode("utf-8", "replace").decode()
    entry = {"verb": verb, "asked_as": named, "caller": by, "door": door, "depth": 0}
    audit.conclude(audit.intend(entry | more), {"outcome": "completed", "duration_ms": 0, **told})


def list_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, list[str]]:
    """Lists the names that were added, removed and changed, at most `MAX_CHANGES` of each."""
    both = before.keys() & after.keys()
    names = {
        "added": after.keys() - before.keys(),
        "removed": before.keys() - after.keys(),
        "changed": {name for name in both if before[name] != after[name]},
    }
    return {how: sorted(some)[:MAX_CHANGES] for how, some in names.items()}


class Tally:
    """Records events that outsiders can repeat at will, such as wrong keys: the first at once, the
    rest of each minute as one record with a count. The number of kinds is bounded; further ones are
    counted together."""

    MAX_KINDS = 64
    OTHERS = "(others)"

    def __init__(self, audit: AuditLog, seconds: float = 60.0) -> None:
        self._audit = audit
        self._seconds = seconds
        self._counts: dict[tuple[str, str, str], int] = {}
        self._since = monotonic()

    def add(self, verb: str, what: str, by: str, door: str) -> None:
        what = what[:MAX_NAMED]
        kind = (verb, what, by)
        if kind not in self._counts and len(self._counts) >= self.MAX_KINDS:
            kind = (verb, self.OTHERS, self.OTHERS)
        if kind in self._counts:
            self._counts[kind] += 1
            return
        self._counts[kind] = 0 if self._record(kind, 1, door) else 1

    def flush(self, *, now: bool = False) -> None:
        """Records the counts if a minute has passed, or `now`."""
        if not now and monotonic() - self._since < self._seconds:
            return
        self._since = monotonic()
        counts, self._counts = self._counts, {}
        for kind, count in counts.items():
            if count and not self._record(kind, count, ""):
                self._counts[kind] = count

    def _record(self, kind: tuple[str, str, str], count: int, door: str) -> bool:
        verb, what, by = kind
        told = {"outcome": "refused", "count": count}
        try:
            record_done(self._audit, verb, what, by, door, told)
        except (StorageFailed, ShuttingDown):  # the audit log has logged why; the count is kept
            return False
        return True
