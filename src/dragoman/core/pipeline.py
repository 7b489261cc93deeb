"""Builds the pipeline of a call. A stage is `async (next, call) -> Result`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import MethodType
from typing import Protocol

from dragoman.core.call import Call, Result

Next = Callable[[Call], Awaitable[Result]]


class Stage(Protocol):
    def __call__(self, next: Next, call: Call) -> Awaitable[Result]: ...


def build_pipeline(stages: Sequence[Stage], end: Next) -> Next:
    """Wraps the stages around `end`, the first one outermost."""
    for stage in reversed(stages):
        # Binds `next` as a method binds `self`: a call enters no frame between two stages.
        end = MethodType(stage.__call__, end)
    return end
