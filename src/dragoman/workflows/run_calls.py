"""Makes the calls of runs: as the principal that started the run, with the rights that it still
has, in one trace, and with the taint labels of what the run has seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dragoman.core.access import WhyEnded, explain_lost_access
from dragoman.core.call import BEGIN, CANCEL, Result, TaskHandling, Updates, WantedUpdates
from dragoman.core.errors import AuthorizationError, HubError, TimedOut
from dragoman.core.hub import CallOptions, Hub
from dragoman.core.local_agents import AGENT, SCHEDULE
from dragoman.core.principal import Principal
from dragoman.core.runs import DOOR, KEY_META, Run, RunOrigin, RunPrincipal
from dragoman.core.secret_values import NO_SECRETS, SecretValues
from dragoman.core.structs import Struct
from dragoman.core.taint import NO_ORIGINS, Origins
from dragoman.core.tool_filter import EVERYTHING
from dragoman.core.tool_identity import WORKFLOW, build_identity

WANTED = WantedUpdates(progress=True, task_start=True)
NO_RESULT = Result()
_FOR_OTHERS = (AGENT, SCHEDULE)


class RunCall(Struct, frozen=True, kw_only=True):
    tool: str
    arguments: Mapping[str, Any]
    key: str
    timeout: float | None = None
    answers: Mapping[str, Any] | None = None
    handle: str | None = None
    approval: str = ""
    """The id of the request, if the policies want an approval for the call."""
    action: str = BEGIN
    """Of `TaskHandling`."""
    attempt: str = ""
    """Names the attempt."""
    leaks: str = ""
    """The variable whose value the arguments have although the step does not name it: the call
    carries the label `secret`."""
    begun: float = 0.0
    until: float = 0.0
    """When a task that it begins has to be done."""


class CallOutcome(NamedTuple):
    result: Result
    labels: Origins
    """Those of the run, with what this call has added."""
    agent: str = ""
    """The agent that did it; empty for other tools."""
    error: HubError | None = None
    """Why there is no result."""


class RunCalls:
    def __init__(
        self,
        hub: Hub,
        renew: Callable[[Principal], Principal],
        why_ended: WhyEnded,
        features: Mapping[str, Any],
        attached_secs: float,
    ) -> None:
        """`renew` takes from a principal what it does not have any more, `why_ended` says why it is
        not served any more. `features` are those of a client that waits for tasks and whose people
        answer later. After `attached_secs`, a task is left to itself."""
        self._hub = hub
        self._features = features
        self._attached_secs = attached_secs
        self._renew = renew
        self._why_ended = why_ended

    def explain_ended(self, run: Run) -> str:
        """Why the run may not continue: one for whom it runs is not served any more."""
        for one in (run.origin.starter, *run.origin.callers):
            principal = one.build_principal()
            if principal.kind in _FOR_OTHERS:
                continue  # what an agent was granted is checked with each call
            if why := explain_lost_access(self._why_ended, principal):
                return f'"{principal.label}", for whom it runs, is not served any more: {why}'
        return ""

    async def make(
        self,
        run: Run,
        labels: Origins,
        call: RunCall,
        updates: Updates,
        secrets: SecretValues = NO_SECRETS,
    ) -> CallOutcome:
        """Calls the tool; `secrets` are kept out of the records of the call. Raises
        `AuthorizationError` for one who is not served any more."""
        if call.action != CANCEL and (why := self.explain_ended(run)):
            raise AuthorizationError(f'"{call.tool}" was refused: {why}')
        origin = run.origin
        principal = self.build_principal(origin.starter)
        callers = [
            (self.build_principal(one), one.door) for one in origin.callers or (origin.starter,)
        ]
        options = CallOptions(
            door=DOOR,
            view=EVERYTHING,
            meta={KEY_META: call.key},
            updates=updates,
            wanted_updates=WANTED,
            features=self._features,
            answers=call.answers,
            handle=call.handle,
            approval=call.approval,
            task=TaskHandling(action=call.action, attached_secs=self._attached_secs),
            attempt=call.attempt,
        )
        chains = self._hub.chains
        verbs = (*origin.chain, build_identity(WORKFLOW, run.workflow))
        with chains.hold(callers, labels, origin.trace, verbs, secrets) as trace:
            held = chains.find_running(trace)
            assert held is not None
            result, agent = NO_RESULT, ""
            failure: HubError | None = None
            try:
                async with asyncio.timeout(call.timeout) as limit:
                    tool, result = await self._hub.call_within(
                        trace, principal, call.tool, call.arguments, options
                    )
                agent = tool.target.name if tool.agent or tool.bridged else ""
            except TimeoutError:
                if not limit.expired():
                    raise
                failure = TimedOut(
                    f'"{call.tool}" took longer than the {call.timeout:g} s of its step and was '
                    "cancelled"
                )
            except HubError as error:
                failure = error.with_traceback(None)
            found = held.chain.origins or NO_ORIGINS
            carried = {name: found[name] for name in held.chain.labels if name in found}
        return CallOutcome(result, {**labels, **carried}, agent, failure)

    def list_principals(self, origin: RunOrigin) -> list[tuple[Principal, str]]:
        """Lists the starter, and those for whom it acts, with their entry points and the rights
        that they have now."""
        callers = [one for one in origin.callers if one.kind not in _FOR_OTHERS]
        return [(self.build_principal(one), one.door) for one in (origin.starter, *callers)]

    def build_principal(self, one: RunPrincipal) -> Principal:
        """Builds the principal with the rights that it has now."""
        return self._renew(one.build_principal())
