"""Requests for approval: their requesters and deciders, the decisions, and the outcomes of calls.

Implements `core.approvals.Approvals`. Every change is stored before anything follows from it, so
that a hub that stops at any moment neither forgets a decision nor makes a call twice. How a call
ended is stored as soon as possible (`call_endings`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from secrets import token_hex
from time import time
from typing import Any

from dragoman.core.admin_audit import record_action, record_done
from dragoman.core.approvals import (
    APPROVED,
    CALL,
    CANCELLED,
    COMPLETED,
    DENIED,
    EXPIRED,
    PENDING,
    RUNNING,
    Approval,
    ApprovalRequest,
    ApprovalRule,
    ApprovalStore,
    ParkedCall,
    StoredApproval,
    can_satisfy,
)
from dragoman.core.backoff import Backoff
from dragoman.core.bus import Bus
from dragoman.core.call import Call
from dragoman.core.errors import (
    ApprovalClosed,
    AuthorizationError,
    HubError,
    InvalidInput,
    NotFound,
    StorageFailed,
)
from dragoman.core.events import ApprovalDecided, ApprovalRequested
from dragoman.core.logs import STORAGE_OUTAGE, render_time
from dragoman.core.ports import AuditLog, Authorizer
from dragoman.core.principal import Principal
from dragoman.core.redaction import render_name, shorten
from dragoman.core.scopes import APPROVE
from dragoman.core.structs import replace
from dragoman.core.taint import Origins
from dragoman.core.tool import TOOL, Nowhere, Tool
from dragoman.core.tool_identity import KEY_META, WORKFLOW
from dragoman.guards.call_endings import CallEnding, CallEndings
from dragoman.guards.config import ApprovalSettings
from dragoman.wire.json import decode_reply, encode

log = logging.getLogger(__name__)

MAX_ARGUMENTS = 256 * 1024
"""Bytes of arguments: more than a person reads."""
MAX_COMMENT = 1_000
MAX_PROBLEM = 1_000
MAX_WAITING = 8
"""Clients that wait for one request at once."""
LATE_SECONDS = 600.0
"""How long after the decision a call may begin whose request has expired meanwhile."""
PRUNE_EVERY = 60.0
PAGE = 200

FindTool = Callable[[str, str], Tool]
"""Finds a tool by its name and kind."""


class _Waiting:
    """The clients that wait for one request."""

    def __init__(self) -> None:
        self.count = 0
        self.changed = asyncio.Event()


class ApprovalDesk:
    def __init__(
        self,
        store: ApprovalStore,
        bus: Bus,
        audit: AuditLog,
        authorizer: Authorizer,
        find_tool: FindTool,
        settings: Callable[[], ApprovalSettings],
        on_ready: Callable[[str], None],
        clock: Callable[[], float] = time,
    ) -> None:
        """`on_ready` makes an approved call that no client waits for."""
        self._store, self._bus, self._audit = store, bus, audit
        self._authorizer, self._find_tool = authorizer, find_tool
        self._settings, self._on_ready, self._clock = settings, on_ready, clock
        self._waiting: dict[str, _Waiting] = {}
        self._claimed: set[str] = set()
        """Calls that the hub itself makes now."""
        self._unsure: set[str] = set()
        """Calls of which it is unknown whether the store has it that they began."""
        self._endings = CallEndings(store, self._note_ending)
        self._starts = Backoff(first=0.5, longest=30.0)
        self._must_interrupt = False
        """Whether calls of an earlier start of the hub are still stored as running."""
        self._pruned = 0.0
        self.is_closed = False

    # --- requests --------------------------------------------------------------------------------

    def request(self, request: ApprovalRequest) -> Approval:
        found = self._store.find(request.id)
        if found is None:
            found = self._add(request, "", None)
        return self._refresh(found).approval

    def find(self, id: str) -> Approval | None:
        found = self._store.find(id)
        return self._refresh(found).approval if found is not None else None

    def withdraw(self, id: str) -> None:
        found = self._store.find(id)
        if found is not None and self._store.decide(id, CANCELLED, "", "", self._clock()):
            self._announce(id)

    def get(self, id: str) -> StoredApproval:
        found = self._store.find(id)
        if found is None:
            raise NotFound(f'there is no approval "{id[:64]}"; see: dragoman approvals')
        return self._refresh(found)

    def park(self, call: Call, rule: ApprovalRule, origins: Origins) -> StoredApproval:
        """Finds the request of the same call that is open, or whose result answers this call too;
        otherwise stores a new one. `origins` are the labels that the call carries."""
        match = build_match(call)
        found = self._store.find_latest(match)
        if found is not None:
            found = self._refresh(found)
            if self._is_current(found):
                return found
        return self._add(self._build_request(call, rule, ""), match, build_parked(call, origins))

    def find_own(self, call: Call, rule: ApprovalRule, id: str) -> StoredApproval:
        """Finds the request that the caller names, or stores it; the caller makes the call."""
        match = build_match(call)
        found = self._store.find(id)
        if found is None:
            return self._add(self._build_request(call, rule, id), match, None)
        if found.match != match:
            raise InvalidInput(f'approval "{id[:64]}" is for another call')
        return self._refresh(found)

    def _is_current(self, found: StoredApproval) -> bool:
        if found.state == PENDING:
            return True
        if found.state == DENIED:  # it stands, or a stubborn client would ask again and again
            return self._clock() < found.request.expires_at
        if found.state != APPROVED or found.parked is None:
            return False
        if not found.ended_at:
            return True
        settings, now = self._settings(), self._clock()
        if not found.delivered_at:
            return now < found.ended_at + settings.result_secs
        return self._answers_again(found, found.parked, settings, now)

    def _answers_again(
        self, found: StoredApproval, parked: ParkedCall, settings: ApprovalSettings, now: float
    ) -> bool:
        """Whether a result that was delivered answers the same call again: the client may not have
        got it. A failure does not: a client that repeats that call wants it to be made, and a
        person decides."""
        if found.outcome != COMPLETED or parked.kind != TOOL:
            return False
        until = found.ended_at + settings.result_secs
        if not _find_key(parked.meta):
            until = min(until, found.delivered_at + settings.repeat_secs)
        return now < until and is_repeatable(self.load_reply(found.request.id))

    def _build_request(self, call: Call, rule: ApprovalRule, id: str) -> ApprovalRequest:
        arguments = call.trace.secrets.mask(call.arguments)
        try:
            size = len(encode(arguments))
        except Exception:  # numbers over 64 bits, lone surrogates
            size = MAX_ARGUMENTS + 1
        if size > MAX_ARGUMENTS:
            raise AuthorizationError(
                f'"{call.tool.name}" was refused: it needs an approval, and its arguments are too '
                f"large to be reviewed: at most {MAX_ARGUMENTS} bytes of JSON"
            )
        return ApprovalRequest(
            id=id or token_hex(4),
            kind=CALL,
            title=call.tool.name,
            reason=rule.reason,
            requester=call.principal,
            arguments=arguments,
            expires_at=self._clock() + (rule.seconds or self._settings().expiry_secs),
            trace=call.trace.id,
            approvers=rule.approvers,
        )

    def _add(
        self, request: ApprovalRequest, match: str, parked: ParkedCall | None
    ) -> StoredApproval:
        settings = self._settings()
        stored = StoredApproval(
            approval=Approval(request=request, state=PENDING, requested_at=self._clock()),
            match=match,
            parked=parked,
        )
        self.sweep()
        self._store.add(stored, settings.pending, settings.pending_each)
        requester = request.requester
        door = parked.door if parked is not None else ""
        told = {"approval": request.id, "expires": render_time(request.expires_at)}
        more = {"trace": request.trace, "org": requester.org}
        title = self._render_title(stored)
        record_done(self._audit, "approval.request", title, requester.label, door, told, **more)
        log.info("approval %s: %s asks for %s", request.id, requester.label, shorten(title))
        if self._bus.is_observed(ApprovalRequested):
            self._bus.emit(
                ApprovalRequested(
                    request.id, title, requester.label, request.reason, requester.org,
                    request.expires_at,
                )
            )  # fmt: skip
        return stored

    @staticmethod
    def _render_title(stored: StoredApproval) -> str:
        kind = stored.parked.kind if stored.parked is not None else TOOL
        return render_name(stored.request.title, kind)

    def _refresh(self, stored: StoredApproval) -> StoredApproval:
        """A request past its time is expired, and a call that has ended is not running, whether or
        not the store says so yet."""
        stored = self._endings.apply(stored)
        approval = stored.approval
        expires_at = approval.request.expires_at
        if approval.state != PENDING or self._clock() < expires_at:
            return stored
        return replace(stored, approval=replace(approval, state=EXPIRED, decided_at=expires_at))

    # --- decisions -------------------------------------------------------------------------------

    def may_decide(self, principal: Principal, stored: StoredApproval) -> bool:
        request = stored.request
        if principal.org != request.requester.org:
            return False
        tool = None
        if request.kind == CALL:
            kind = stored.parked.kind if stored.parked is not None else TOOL
            tool = self._find_tool(request.title, kind)
            if isinstance(tool.target, Nowhere):  # removed or quarantined meanwhile
                tool = None
        owner = is_own(principal, stored)
        decision = self._authorizer.decide_action(principal, APPROVE, tool, owner=owner)
        return decision.allowed and can_satisfy(request.approvers, principal)

    def decide(
        self, id: str, approves: bool, by: Principal, comment: str = "", door: str = "api"
    ) -> Approval:
        """Raises `NotFound`, `AuthorizationError` if the principal may not decide it, or
        `ApprovalClosed` if it is not open any more."""
        found = self.get(id)
        verb = "approve" if approves else "deny"
        if not self.may_decide(by, found):
            if not is_own(by, found):  # who may neither decide nor ask knows of no request
                raise NotFound(f'there is no approval "{id[:64]}"; see: dragoman approvals')
            raise AuthorizationError(_explain_refusal(found.request, by, verb))
        if len(comment) > MAX_COMMENT:
            raise InvalidInput(f"the comment is too long: at most {MAX_COMMENT} characters")
        if found.state != PENDING:
            raise _build_closed(found)
        title, state = self._render_title(found), APPROVED if approves else DENIED
        more = {"door": door, "trace": found.request.trace, "org": by.org, "approval": id}
        if comment:
            more["comment"] = shorten(comment)
        with record_action(self._audit, f"approval.{verb}", title, by, **more):
            try:
                is_decided = self._store.decide(id, state, by.label, comment, self._clock())
            except StorageFailed:  # perhaps it is stored, and only the answer was lost
                self._note_unread(id)
                raise
            if not is_decided:
                raise _build_closed(self.get(id))
        log.info("approval %s: %s by %s", id, state, by.label)
        self._announce(id)
        return self.get(id).approval

    def _announce(self, id: str) -> None:
        """Follows every end of a request."""
        try:
            found = self.get(id)
        except StorageFailed:  # the decision is stored
            self._note_unread(id)
            raise
        if self._bus.is_observed(ApprovalDecided):
            request, approval = found.request, found.approval
            org = request.requester.org
            self._bus.emit(
                ApprovalDecided(
                    id, approval.state, approval.decided_by, org, self._render_title(found),
                    request.requester.label,
                )
            )  # fmt: skip
        self._wake(id)
        if id not in self._waiting:
            self._start_ready(found)

    def _note_unread(self, id: str) -> None:
        """Something may have become of a request that cannot be read now. Those who wait look
        again; otherwise the hub makes the call once it can read that it was approved."""
        self._wake(id)
        if id not in self._waiting and not self.is_closed:
            self._on_ready(id)

    def sweep(self) -> None:
        """Announces requests that have expired, and deletes old ones."""
        now = self._clock()
        for expired in self._store.expire(now):
            request = expired.request
            told = {"approval": request.id}
            more = {"trace": request.trace, "org": request.requester.org}
            with suppress(HubError):  # the store has it
                record_done(
                    self._audit, "approval.expire", self._render_title(expired), "hub", "", told,
                    **more,
                )  # fmt: skip
            self._announce(request.id)
        if now > self._pruned + PRUNE_EVERY:
            self._pruned = now
            settings = self._settings()
            self._store.prune(settings.keep, now - settings.result_secs)

    # --- waiting ---------------------------------------------------------------------------------

    @contextmanager
    def attend(self, id: str) -> Iterator[bool]:
        """Waits for a request on behalf of a client; yields False if too many do already. What is
        approved then is left to that client; if it goes before it begins, the hub makes the
        call."""
        waiting = self._waiting.setdefault(id, _Waiting())
        waiting.count += 1
        try:
            yield waiting.count <= MAX_WAITING
        finally:
            waiting.count -= 1
            if not waiting.count:
                del self._waiting[id]
                try:
                    self._start_ready(self.get(id))
                except StorageFailed:
                    self._note_unread(id)
                except HubError as error:
                    log.error("approval %s: %s", id, error)

    async def wait(
        self, id: str, is_enough: Callable[[StoredApproval], bool], until: float
    ) -> StoredApproval:
        """Waits until a request is as wanted or has expired, at most until that time of the event
        loop. The client must attend it."""
        loop = asyncio.get_running_loop()
        while True:
            changed = self._waiting[id].changed
            found = self.get(id)
            left = until - loop.time()
            if found.state == PENDING:
                left = min(left, found.request.expires_at - self._clock())
            if is_enough(found) or left <= 0 or self.is_closed:
                return found
            with suppress(TimeoutError):
                async with asyncio.timeout(left + 0.001):
                    await changed.wait()

    def _wake(self, id: str) -> None:
        waiting = self._waiting.get(id)
        if waiting is not None:
            waiting.changed.set()
            waiting.changed = asyncio.Event()

    def note_changes(self) -> None:
        """Others have changed the store: those who wait look again."""
        for id in list(self._waiting):
            self._wake(id)

    def close(self) -> None:
        """Ends the waiting; requests stay as they are."""
        self.is_closed = True
        for id in list(self._waiting):
            self._wake(id)

    def store_endings(self) -> None:
        """Stores how calls have ended, for the last time before the hub stops."""
        self._endings.close()

    # --- calls -----------------------------------------------------------------------------------

    def _start_ready(self, found: StoredApproval) -> None:
        if self._is_ready(found) and not self.is_closed:
            self._on_ready(found.request.id)

    def _is_ready(self, found: StoredApproval) -> bool:
        """Whether the hub may make the call."""
        has_begun = found.outcome and found.request.id not in self._unsure
        return found.state == APPROVED and not has_begun and found.parked is not None

    def start_ready(self) -> None:
        """After a start of the hub: continues what was approved before, and marks what was running
        as interrupted. If the store fails, that is done later."""
        self._must_interrupt = True
        self._try_start()

    def _try_start(self) -> None:
        if self.is_closed:
            return
        try:
            self._interrupt_earlier()
            self.sweep()
            self._start_all_ready()
        except StorageFailed as error:  # nothing of it is made meanwhile
            STORAGE_OUTAGE.note(f"approved calls are continued later: {error}")
            asyncio.get_running_loop().call_later(self._starts.next_delay(), self._try_start)

    def _interrupt_earlier(self) -> None:
        """Must precede the first call that begins, which would look like one of those."""
        if self._must_interrupt:
            count = self._store.interrupt(self._clock())
            self._must_interrupt = False
            if count:
                log.warning("%d approved calls were interrupted when the hub stopped", count)

    def take_over(self, hub: str) -> None:
        """Marks the calls as interrupted that another hub was making when it ended, and makes those
        that were approved there and had not begun. Raises `StorageFailed`."""
        if count := self._store.interrupt(self._clock(), hub):
            log.warning("%d approved calls were interrupted when hub %s ended", count, hub)
            self.note_changes()
        self._start_all_ready()

    def _start_all_ready(self) -> None:
        for found in self._store.list_ready():
            if found.request.id not in self._waiting:
                self._start_ready(found)

    def begin(self, id: str) -> bool:
        """Whether the caller may make the call now, which is true once."""
        self._interrupt_earlier()
        if self._endings:
            self._endings.store()
        try:
            has_begun = self._store.begin(id)
        except StorageFailed:
            self._unsure.add(id)
            raise
        self._unsure.discard(id)
        return has_begun

    def claim(self, id: str) -> StoredApproval | None:
        """Begins a call that the hub makes; None if there is nothing to make, or it was begun by
        another."""
        found = self.get(id)
        if not self._is_ready(found) or not self.begin(id):
            return None
        approval = found.approval
        if self._clock() > max(found.request.expires_at, approval.decided_at + LATE_SECONDS):
            self.finish(id, "failed", "it was approved, and could not begin in time", b"")
            return None
        self._claimed.add(id)
        return found

    def take_claim(self, id: str) -> bool:
        """Whether the hub makes this call now; true for one call after each `claim`."""
        if id not in self._claimed:
            return False
        self._claimed.remove(id)
        return True

    def finish(
        self, id: str, outcome: str, problem: str, reply: bytes, *, is_delivered: bool = False
    ) -> None:
        """Stores how the call has ended, now or as soon as that is possible. `is_delivered`: its
        requester gets the result with this."""
        self._claimed.discard(id)
        now = self._clock()
        ending = CallEnding(
            outcome, shorten(problem, MAX_PROBLEM), reply, now, now if is_delivered else 0.0
        )
        self._endings.add(id, ending)
        self._wake(id)

    def _note_ending(self, id: str, ending: CallEnding) -> None:
        """Follows the moment when it is stored how a call ended."""
        self._wake(id)
        if ending.outcome or id in self._waiting:
            return
        try:
            self._start_ready(self.get(id))
        except StorageFailed:
            self._note_unread(id)
        except NotFound:  # it was deleted meanwhile
            pass

    def put_back(self, id: str) -> None:
        """The hub itself was not able to make a call that was begun, and nothing of it has left: it
        may begin again."""
        self.finish(id, "", "", b"")

    def deliver(self, id: str) -> bytes | None:
        """Returns what the requester gets, once; None after that."""
        if self._endings.find(id) is not None:
            return self._endings.deliver(id, self._clock())
        return self._store.deliver(id, self._clock())

    def load_reply(self, id: str) -> bytes:
        ending = self._endings.find(id)
        return ending.reply if ending is not None else self._store.load_reply(id)

    # --- lists -----------------------------------------------------------------------------------

    def is_visible(self, principal: Principal, stored: StoredApproval) -> bool:
        return is_own(principal, stored) or self.may_decide(principal, stored)

    def find_result(self, principal: Principal, stored: StoredApproval) -> dict[str, Any] | None:
        """The result or the error of an approved call, for its requester."""
        data = self.load_reply(stored.request.id) if is_own(principal, stored) else b""
        if not data:
            return None
        said: dict[str, Any] = decode_reply(data)
        said.pop("labels", None)
        return said

    async def list_visible(
        self, principal: Principal, state: str, before: int | None, most: int
    ) -> tuple[list[StoredApproval], int | None]:
        """Lists the newest first, and from where to continue; None at the end. Between two pages,
        the calls of others make progress: most requests may be those of others."""
        found: list[StoredApproval] = []
        while True:
            page = self._store.list_approvals(principal.org, state, before, PAGE, self._clock())
            for one in page:
                if len(found) == most:
                    return found, found[-1].number
                if self.is_visible(principal, one):
                    found.append(self._refresh(one))
            if len(page) < PAGE:
                return found, None
            before = page[-1].number
            await asyncio.sleep(0)


def is_own(principal: Principal, stored: StoredApproval) -> bool:
    """Whether the principal asks for the approval, or an agent for it."""
    callers: Sequence[tuple[Principal, str]] = stored.parked.callers if stored.parked else ()
    return principal == stored.request.requester or any(principal == one for one, _ in callers)


def is_repeatable(data: bytes) -> bool:
    """Whether what is kept of a call that has ended answers the same call: not a failure, nor a
    question, after which the call went on."""
    if not data:
        return True  # its result was too large to be kept: it is done
    kept = decode_reply(data)
    return not (kept.get("failed") or kept.get("asked") or "error" in kept)


def _find_key(meta: Mapping[str, Any] | None) -> str:
    """The idempotency key that the client has given."""
    key = meta.get(KEY_META) if meta else None
    return key if isinstance(key, str) else ""


def build_match(call: Call) -> str:
    """A digest by which a repetition is recognised. Clients that give idempotency keys say
    themselves what is the same call; steps of workflows name their requests."""
    arguments = json.dumps(call.arguments, sort_keys=True, default=repr)
    callers = [one.key for one, _ in list_callers(call)]
    whole = [call.principal.key, callers, call.tool.kind, call.tool.name, arguments]
    if call.door != WORKFLOW and (key := _find_key(call.meta)):
        whole.append(key)
    return sha256(json.dumps(whole).encode("utf-8", "replace")).hexdigest()


def list_callers(call: Call) -> tuple[tuple[Principal, str], ...]:
    """For whom an agent makes the call, the first in the chain first."""
    if not call.principal.serves:
        return ()
    found: list[tuple[Principal, str]] = []
    above = call.trace.parent
    while above is not None:
        if above.principal is not None:
            found.append((above.principal, above.door))
        above = above.parent
    return tuple(reversed(found))


def build_parked(call: Call, origins: Origins) -> ParkedCall:
    return ParkedCall(
        name=call.tool.name if call.tool.kind == TOOL else call.requested_name,
        kind=call.tool.kind,
        door=call.door,
        callers=list_callers(call),
        chain=call.trace.chain,
        origins=origins,
        session=call.session,
        message=call.message,
        meta=call.meta,
    )


def describe_decision(approval: Approval) -> str:
    """`approved by key:anna: "go ahead"`."""
    if approval.state == EXPIRED:
        return f"expired at {render_time(approval.request.expires_at)}"
    if approval.state == CANCELLED:
        return "withdrawn"
    comment = f': "{shorten(approval.comment)}"' if approval.comment else ""
    return f"{approval.state} by {approval.decided_by}{comment}"


def _build_closed(found: StoredApproval) -> ApprovalClosed:
    approval = found.approval
    when = "" if approval.state == EXPIRED else f" at {render_time(approval.decided_at)}"
    denied = ", which counts as denied" if approval.state == EXPIRED else ""
    return ApprovalClosed(
        f'approval "{approval.request.id}" is not open any more: it was '
        f"{describe_decision(approval)}{when}{denied}".replace("it was expired", "it expired")
    )


def _explain_refusal(request: ApprovalRequest, by: Principal, verb: str) -> str:
    words = f'"{by.label}" may not {verb} "{request.title}": '
    if request.approvers and not can_satisfy(request.approvers, by):
        return f"{words}it needs one of {', '.join(request.approvers)}"
    return f'{words}it needs a policy that permits the action "approve"'


def is_ended(found: StoredApproval) -> bool:
    """Whether nothing more will happen to it."""
    if found.state == PENDING:
        return False
    return found.state != APPROVED or found.outcome not in ("", RUNNING)
