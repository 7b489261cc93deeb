"""Asks the policies. Nothing leaves without a permit; what cannot be decided is refused.

A denied call is "not found" for a principal that may not even list the tool.
"""

from __future__ import annotations

from collections.abc import Awaitable

from dragoman.core.approvals import join_rules
from dragoman.core.call import Call, Result
from dragoman.core.errors import AuthorizationError, NotFound
from dragoman.core.kept_results import KeptResult
from dragoman.core.pipeline import Next
from dragoman.core.ports import Authorizer, Decision
from dragoman.core.structs import replace
from dragoman.core.tool import RESOURCE, Nowhere


class Authorize:
    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    def __call__(self, next: Next, call: Call) -> Awaitable[Result]:
        if isinstance(call.tool.target, Nowhere):
            return next(call)  # nothing is reached
        judged = call
        if call.tool.kind == RESOURCE and isinstance(call.tool.target, KeptResult):
            judged = replace(call, tool=call.tool.target.origin)
        decision = self._authorizer.decide(judged)
        call.notes.decision = decision
        if call.task is not None and call.cancels:
            return next(call)  # it ends what the principal was permitted to begin
        if not decision.allowed:
            raise self._refusal(judged, decision)
        if decision.approval is not None and judged is call:  # a kept result was approved
            call.notes.approval = join_rules(call.notes.approval, decision.approval)
        return next(call)

    def _refusal(self, call: Call, decision: Decision) -> AuthorizationError | NotFound:
        tool = call.tool
        if not self._authorizer.can_list(call.principal, tool):
            return NotFound(f'there is no {tool.kind} "{call.requested_name[:200]}"')
        principal = call.principal
        who = f'agent "{principal.serves}"' if principal.serves else f'"{principal.label}"'
        if decision.errors:
            why = "the policies could not be evaluated; see the hub's log"
        elif decision.policies:
            why = f"a policy forbids {who} to call it"
        else:
            why = f"no policy permits {who} to call it"
        return AuthorizationError(f'"{tool.name}" was refused: {why}')
