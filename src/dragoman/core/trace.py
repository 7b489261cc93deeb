"""The thread that ties the calls of one chain together: an id, and the verbs it went through."""

from __future__ import annotations

from dataclasses import dataclass
from secrets import token_hex


@dataclass(frozen=True, slots=True)
class Trace:
    id: str
    chain: tuple[str, ...] = ()

    @property
    def depth(self) -> int:
        return len(self.chain)


def new_trace() -> Trace:
    return Trace(token_hex(16))
