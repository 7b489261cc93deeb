"""Holds calls that need the approval of a person. What happens to such a call is in `held_calls`,
which a hub loads when it first meets one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from dragoman.core.call import Call, Result
from dragoman.core.errors import AuthorizationError
from dragoman.core.pipeline import Next

if TYPE_CHECKING:
    from dragoman.guards.held_calls import HeldCalls


class ApprovalGuard:
    def __init__(self, find_held: Callable[[], HeldCalls] | None) -> None:
        """Without `find_held`, such calls are refused."""
        self._find_held = find_held

    def __call__(self, next: Next, call: Call) -> Awaitable[Result]:
        if call.notes.approval is None:
            return next(call)
        if call.task is not None and call.sends_nothing:
            return next(call)  # the call that began the task was approved if that was needed
        if self._find_held is None:
            raise AuthorizationError(f'"{call.tool.name}" was refused: it needs an approval')
        return self._find_held().hold(next, call)
