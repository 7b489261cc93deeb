"""Makes approved calls whose requesters do not wait for them any more, each exactly once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from dragoman.core.access import WhyEnded, explain_lost_access
from dragoman.core.approvals import COMPLETED, FAILED, INTERRUPTED, ParkedCall, StoredApproval
from dragoman.core.background import Background
from dragoman.core.backoff import Backoff
from dragoman.core.call import Call, Result
from dragoman.core.call_chains import CallChains
from dragoman.core.errors import (
    AuthorizationError,
    HubError,
    LeaseExpired,
    NotFound,
    StorageFailed,
    is_own_trouble,
    is_stopping,
)
from dragoman.core.hub import CallOptions, Hub
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.principal import Principal
from dragoman.core.structs import replace
from dragoman.core.taint import NO_ORIGINS
from dragoman.core.tool import TOOL, Nowhere
from dragoman.core.tool_filter import EVERYTHING
from dragoman.core.trace import TraceContext
from dragoman.guards.approval_desk import ApprovalDesk
from dragoman.guards.grants import GrantedAuthorizer
from dragoman.guards.held_calls import encode_reply

log = logging.getLogger(__name__)

AT_ONCE = 16

RenewPrincipal = Callable[[Principal], Principal]
"""Takes from a principal what it does not have any more."""


@dataclass(frozen=True, slots=True)
class RequesterRights:
    """Checks that the requester of an approved call may still make it."""

    hub: Hub
    authorizer: GrantedAuthorizer
    why_ended: WhyEnded
    renew: RenewPrincipal

    def recheck(self, call: Call) -> Call:
        """Implements `guards.held_calls.Recheck`."""
        tool = call.tool
        if tool.kind == TOOL:
            tool = self.hub.find(tool.name, EVERYTHING)
            if isinstance(tool.target, Nowhere):
                raise tool.target.error
        call = replace(call, tool=tool, principal=self.find_principal(call.principal, tool.name))
        if not self.authorizer.may_call(call):
            raise AuthorizationError(
                f'"{tool.name}" was refused: it was approved, but the policies do not permit '
                f'"{call.principal.label}" to call it any more'
            )
        return call

    def find_principal(self, principal: Principal, name: str) -> Principal:
        """Returns the principal with the rights that it has now."""
        renewed = self.renew(principal)
        if why := explain_lost_access(self.why_ended, principal) if _can_end(principal) else "":
            raise AuthorizationError(
                f'"{name}" was refused: it was approved, but "{principal.label}" is not served any '
                f"more: {why}"
            )
        return renewed


def _can_end(principal: Principal) -> bool:
    return principal.kind in ("key", "user", "local", "server")


@dataclass(frozen=True, slots=True)
class ApprovalRunner:
    hub: Hub
    chains: CallChains
    rights: RequesterRights
    find_desk: Callable[[], ApprovalDesk]
    _background: Background = field(default_factory=lambda: Background("approved calls"))
    _active: set[str] = field(default_factory=set)
    """Requests whose calls it makes, or tries to."""
    _room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    def start(self, id: str) -> None:
        if id not in self._active:
            self._active.add(id)
            self._background.spawn(self._run(id))

    async def close(self, grace: float) -> None:
        await self._background.close(grace)

    async def _run(self, id: str) -> None:
        """Makes the call, and tries again while the hub itself cannot: until it has made it, or the
        time is over in which it may begin."""
        backoff = Backoff(first=0.5, longest=30.0)
        try:
            while (trouble := await self._try(id)) is not None:
                if is_stopping(trouble):
                    return
                text = f"approval {id}: its call begins later: {trouble}"
                if isinstance(trouble, StorageFailed | LeaseExpired):
                    STORAGE_OUTAGE.note(text)  # as many calls wait, and so do other parts
                elif not backoff.failures:
                    log.error("%s", text)
                await asyncio.sleep(backoff.next_delay())
        finally:
            self._active.discard(id)

    async def _try(self, id: str) -> HubError | None:
        """Returns why the hub itself was not able to make the call."""
        async with self._room:
            try:
                desk = self.find_desk()
                found = desk.claim(id)
            except StorageFailed as error:
                return error
            except NotFound:  # it was deleted
                return None
            if found is None or found.parked is None:
                return None
            outcome, problem, reply = INTERRUPTED, "the hub stopped while it ran", b""
            try:
                # `HeldCalls` stores how it ends, unless it was refused before, or the policies do
                # not ask for an approval any more.
                result = await self._call(found, found.parked)
                outcome, problem = COMPLETED, ""
                reply = encode_reply(result, None, found.parked.origins)
            except HubError as error:
                if is_own_trouble(error):
                    outcome = ""
                    return error
                outcome, problem = FAILED, str(error)
                reply = encode_reply(None, error, NO_ORIGINS)
            except Exception:
                log.exception("approval %s: its call failed", id)
                outcome, problem = FAILED, "internal error of the hub"
            finally:
                if outcome:
                    desk.finish(id, outcome, problem, reply)
                else:
                    desk.put_back(id)
            log.info("approval %s: its call has %s", id, outcome)
            return None

    async def _call(self, found: StoredApproval, parked: ParkedCall) -> Result:
        request, name = found.request, parked.name
        principal = self.rights.find_principal(request.requester, name)
        callers = [(self.rights.find_principal(one, name), door) for one, door in parked.callers]
        options = CallOptions(
            door=parked.door,
            view=EVERYTHING,
            kind=parked.kind,
            trace_context=TraceContext(request.trace, "", ""),
            meta=parked.meta,
            session=parked.session,
            message=parked.message,
            approval=request.id,
        )
        if not callers and not parked.origins:
            _, result = await self.hub.call(principal, name, request.arguments, options)
            return result
        above = callers or [(principal, parked.door)]
        with self.chains.hold(above, parked.origins, request.trace, parked.chain) as trace:
            _, result = await self.hub.call_within(
                trace, principal, name, request.arguments, options
            )
            return result
