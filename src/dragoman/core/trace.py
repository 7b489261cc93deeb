"""The thread that ties the calls of one chain together: an id, and the verbs it went through."""

from __future__ import annotations

from random import getrandbits

from dragoman.core.record import record


@record(frozen=True, slots=True)
class Trace:
    id: str
    chain: tuple[str, ...] = ()

    @property
    def depth(self) -> int:
        return len(self.chain)


def new_trace() -> Trace:
    return Trace(f"{getrandbits(128):032x}")  # a name, not a secret
