"""Charges each call to the budgets of its principal and org. Before the policies: a flood of calls
must not cost decisions."""

from __future__ import annotations

from collections.abc import Awaitable

from dragoman.core.call import Call, Result
from dragoman.core.pipeline import Next
from dragoman.core.ports import RateLimiter
from dragoman.core.rate_limiter import AGENT_CALL, READ, TOOL_CALL
from dragoman.core.tool import SUBSCRIPTION, TOOL


class RateLimit:
    def __init__(self, limiter: RateLimiter) -> None:
        self._charge = limiter.charge

    def __call__(self, next: Next, call: Call) -> Awaitable[Result]:
        tool = call.tool
        if call.task is not None and call.sends_nothing:
            return next(call)  # the call that began the task was charged, and the hub paces these
        if tool.kind != TOOL:
            if tool.kind == SUBSCRIPTION and not call.arguments.get("follow"):
                return next(call)  # what ends something must not be refused
            operation = READ
        elif tool.bridged is None and tool.agent is None:
            operation = TOOL_CALL
        else:
            operation = AGENT_CALL
        charged = self._charge(call.principal, operation, tool.name)
        return next(call) if charged is None else _call_charged(charged, next, call)


async def _call_charged(charged: Awaitable[None], next: Next, call: Call) -> Result:
    await charged
    return await next(call)
