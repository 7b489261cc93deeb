"""A stage wraps the rest of the road: `async (call, next) -> Result`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from dragoman.core.call import Call, Result

Next = Callable[[Call], Awaitable[Result]]


class Stage(Protocol):
    def __call__(self, call: Call, next: Next) -> Awaitable[Result]: ...


def build_pipeline(stages: Sequence[Stage], end: Next) -> Next:
    """The stages around `end`, the first one outermost."""
    for stage in reversed(stages):
        end = _before(stage.__call__, end)
    return end


def _before(stage: Callable[[Call, Next], Awaitable[Result]], rest: Next) -> Next:
    # A function costs half of what a partial does, and every call passes each of them.
    def pass_on(call: Call) -> Awaitable[Result]:
        return stage(call, rest)

    return pass_on
