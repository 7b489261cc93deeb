"""What is done to the hub itself, in the same record as what is done through it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from dragoman.core.ports import AuditLog
from dragoman.core.principal import Principal

MAX_NAMED = 200


@contextmanager
def recorded(audit: AuditLog, verb: str, what: str, by: Principal | None) -> Iterator[None]:
    """`what` is what it is done to. Nothing is done that cannot be recorded: raises `Full`."""
    caller = by.label if by is not None else "nobody"
    named = what[:MAX_NAMED].encode("utf-8", "replace").decode()
    entry = {"verb": verb, "asked_as": named, "caller": caller, "door": "api", "depth": 0}
    begun = perf_counter()
    seq = audit.intend(entry)
    outcome = "failed"
    try:
        yield
        outcome = "completed"
    finally:
        took = round((perf_counter() - begun) * 1000, 3)
        audit.conclude(seq, {"outcome": outcome, "duration_ms": took})
