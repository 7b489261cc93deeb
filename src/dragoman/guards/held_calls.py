"""What happens to a call that needs an approval: it is parked, and made once it is approved.

A client that can be asked and may decide is asked. Any other client waits for a while; after that
it gets `ApprovalPending`, and the same call later continues to wait and gets the result. The client
that waits at the moment of the decision makes the call; otherwise the hub does, with the rights
that the requester has then.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from dragoman.core import errors
from dragoman.core.approvals import (
    APPROVED,
    COMPLETED,
    DENIED,
    FAILED,
    INTERRUPTED,
    PENDING,
    ApprovalRule,
    StoredApproval,
)
from dragoman.core.call import (
    ABSENT,
    FOLLOW,
    FORM,
    Call,
    Progress,
    Question,
    Result,
    TaskStarted,
)
from dragoman.core.call_chains import CallChains
from dragoman.core.errors import (
    ApprovalClosed,
    ApprovalDenied,
    ApprovalPending,
    AuthorizationError,
    HubError,
    WorkFailed,
    is_own_trouble,
)
from dragoman.core.local_agents import AGENT as LOCAL_AGENT
from dragoman.core.logs import render_time
from dragoman.core.pipeline import Next
from dragoman.core.principal import Principal
from dragoman.core.question_handles import can_answer
from dragoman.core.structs import replace
from dragoman.core.taint import LabelOrigin, Origins
from dragoman.core.tool import PROMPT, RESOURCE, TOOL
from dragoman.core.tool_identity import KEY_META
from dragoman.guards.approval_desk import ApprovalDesk, describe_decision, is_ended
from dragoman.guards.config import ApprovalSettings
from dragoman.wire.json import decode_reply, encode

PARKED_KINDS = (TOOL, PROMPT, RESOURCE)
HANDLE = "approval:"
"""How the handle of such a question begins."""
QUESTION, APPROVE, COMMENT = "approval", "approve", "comment"
MAX_SHOWN = 4_000
"""Characters of arguments in a question."""
MAX_REPLY = 1024 * 1024
"""Bytes of a result that is kept."""
REPEATED_META = "dragoman.hub/repeated"
"""In the `_meta` of a result: it is that of an earlier call."""
MAX_CONTINUED = 1_000
MAX_WAIT = 30 * 86_400.0
"""Seconds that a task waits; its request expires before."""
_SCHEMA = {
    "type": "object",
    "properties": {
        APPROVE: {"type": "boolean", "title": "Approve this call"},
        COMMENT: {"type": "string", "title": "Comment for the record", "maxLength": 1_000},
    },
    "required": [APPROVE],
}

Recheck = Callable[[Call], Call]
"""Checks that an approved call may still be made, and returns it as it is to be made."""


class KeptReply(NamedTuple):
    """What the requester gets of a call that was made without it."""

    result: Result | None
    error: HubError | None
    origins: Origins


class HeldCalls:
    def __init__(
        self,
        desk: ApprovalDesk,
        chains: CallChains,
        recheck: Recheck,
        settings: Callable[[], ApprovalSettings],
    ) -> None:
        self._desk, self._chains, self._recheck = desk, chains, recheck
        self._settings = settings
        self._continued: OrderedDict[Hashable, str] = OrderedDict()
        """Approved calls whose target has asked a question, with the ids of their approvals."""

    async def hold(self, next: Next, call: Call) -> Result:
        rule = call.notes.approval
        assert rule is not None
        if call.tool.kind not in PARKED_KINDS:
            raise AuthorizationError(
                f'"{call.tool.name}" was refused: a {call.tool.kind} of it needs an approval, '
                "which cannot be requested"
            )
        handle = call.handle or ""
        if handle.startswith(HANDLE):
            return await self._take_answer(next, call, handle.removeprefix(HANDLE))
        if handle and (id := self._continued.pop(_build_key(call), "")):
            call.notes.approval_id = id
            return await self._continue(next, call, id)
        if call.approval is not None:
            return await self._hold_own(next, call, rule, call.approval)
        found = self._desk.park(call, rule, self._find_labels(call))
        call.notes.approval_id = id = found.request.id
        if found.state == PENDING and self._find_decider(call, found) is not None:
            return self._ask(found)
        with self._desk.attend(id) as has_room:
            return await self._follow(next, call, id, has_room)

    # --- the call waits --------------------------------------------------------------------------

    async def _follow(
        self, next: Next, call: Call, id: str, has_room: bool, is_following: bool = False
    ) -> Result:
        """Waits for the decision and makes the call, or for the result of the call."""
        desk, loop = self._desk, asyncio.get_running_loop()
        is_task = call.wanted_updates.task_start
        seconds = MAX_WAIT if is_task or is_following else self._settings().wait_secs
        until = loop.time() + (seconds if has_room else 0.0)
        if desk.get(id).state == PENDING:
            words = f"waits for approval {id}: dragoman approvals show {id}"
            call.updates(Progress(progress=0.0, message=words))
            if is_task:
                call.updates(TaskStarted(message=words))
        found = await desk.wait(id, lambda one: one.state != PENDING, until)
        if found.state == APPROVED and desk.begin(id):
            return await self._run(next, call, id)
        if found.state == APPROVED:
            found = await desk.wait(id, is_ended, until)
        if not is_ended(found):
            raise build_pending(found)
        if found.state != APPROVED:
            raise build_denied(found)
        return self._deliver(call, found)

    def _deliver(self, call: Call, found: StoredApproval) -> Result:
        """Gives the result of a call that was made meanwhile, or a while ago, to its requester."""
        id = found.request.id
        data = self._desk.deliver(id)
        is_repeated = data is None
        if data is None:  # it was delivered before, to this client or another of the requester
            data = self._desk.load_reply(id)
        if found.outcome == INTERRUPTED:
            raise WorkFailed(
                f'"{call.tool.name}" was interrupted: the hub stopped while it ran (approval {id}),'
                " so whether it has taken effect is unknown"
            )
        reply = parse_reply(data, found)
        running = self._chains.find_running(call.trace)
        if running is not None and reply.origins:
            running.chain.add_labels(reply.origins)
        if reply.error is not None:
            raise reply.error
        assert reply.result is not None
        if not is_repeated:
            return reply.result
        call.notes.is_repeated = True
        return mark_repeated(reply.result, found)

    # --- the call is made ------------------------------------------------------------------------

    async def _hold_own(self, next: Next, call: Call, rule: ApprovalRule, id: str) -> Result:
        desk = self._desk
        if desk.take_claim(id):  # the hub makes a parked call, and stores how it ends
            call.notes.approval_id = id
            return await self._run(next, call, id, is_present=False)
        found = desk.find_own(call, rule, id)
        call.notes.approval_id = id
        if found.state == PENDING:
            raise build_pending(found)
        if found.state != APPROVED:
            raise build_denied(found)
        if not desk.begin(id):
            raise ApprovalClosed(f'approval "{id}" was used already: it is good for one call')
        return await self._run(next, call, id)

    async def _run(self, next: Next, call: Call, id: str, is_present: bool = True) -> Result:
        """Makes a call that was begun, and stores how it ends. `is_present`: the requester waits
        for it. A call that the hub itself could not make may begin again: the client calls again,
        or the hub does if it made this call."""
        outcome, problem, reply = FAILED, "internal error of the hub", b""
        try:
            for flow in call.notes.flows:  # a taint rule may ask for it
                flow["approved_by"] = self._desk.get(id).approval.decided_by
            attempt = call.attempt if call.task is not None else f"approval {id}"
            call = self._recheck(replace(call, is_approved=True, attempt=attempt))
            result = await self._continue(next, call, id)
            outcome, problem = COMPLETED, ""
            reply = encode_reply(result, None, self._find_labels(call))
            return result
        except HubError as error:
            error.has_left = call.notes.has_left
            if is_own_trouble(error):
                outcome = ""
            else:
                problem, reply = str(error), encode_reply(None, error, self._find_labels(call))
            raise
        except asyncio.CancelledError:
            problem = "its requester cancelled it, or has gone"
            if not is_present or self._desk.is_closed:
                outcome, problem = INTERRUPTED, "the hub stopped while it ran"
            raise
        finally:
            if outcome:
                self._desk.finish(id, outcome, problem, reply, is_delivered=is_present)
            elif is_present:
                self._desk.put_back(id)

    async def _continue(self, next: Next, call: Call, id: str) -> Result:
        result = await next(call)
        if result.questions is not None:  # its target asks, and the answer needs no approval
            self._continued[_build_key(call)] = id
            if len(self._continued) > MAX_CONTINUED:
                self._continued.popitem(last=False)
        return result

    # --- the client is asked ---------------------------------------------------------------------

    def _find_decider(self, call: Call, found: StoredApproval) -> Principal | None:
        """Finds the person at the client, if it can be asked and may decide. The calls of a local
        agent carry the features of the client that it works for; a target that calls back must not
        approve its own call."""
        principal: Principal | None = call.principal
        if call.principal.serves:
            running = self._chains.find_running(call.trace)
            is_local = call.principal.kind == LOCAL_AGENT and running is not None
            principal = running.chain.root if is_local and running is not None else None
        if principal is None or principal.serves or not can_answer(FORM, call.features):
            return None
        return principal if self._desk.may_decide(principal, found) else None

    def _ask(self, found: StoredApproval) -> Result:
        request = found.request
        shown = json.dumps(dict(request.arguments), ensure_ascii=False, indent=1, default=repr)
        if len(shown) > MAX_SHOWN:
            more = f"dragoman approvals show {request.id} has all of it"
            shown = f"{shown[:MAX_SHOWN]}… ({len(shown)} characters; {more})"
        message = (
            f'Approve the call of "{request.title}" by {request.requester}? It needs an approval: '
            f"{request.reason}. Arguments: {shown}"
        )
        body = {"message": message, "requestedSchema": _SCHEMA}
        return Result(
            questions={QUESTION: Question(FORM, body)},
            handle=f"{HANDLE}{request.id}",
            settles_itself=True,
        )

    async def _take_answer(self, next: Next, call: Call, id: str) -> Result:
        desk, found = self._desk, self._desk.get(id)
        call.notes.approval_id = id
        is_following = call.answers is FOLLOW
        answer = None if is_following else _parse_answer(call.answers)
        call, decider = replace(call, answers=None, handle=None), self._find_decider(call, found)
        with desk.attend(id) as has_room:
            if answer is not None and decider is not None and found.state == PENDING:
                approves, comment = answer
                desk.decide(id, approves, decider, comment, call.door)
            elif not is_following and found.state == PENDING:
                raise build_pending(found)  # dismissed: others may decide
            return await self._follow(next, call, id, has_room, is_following)

    # --- labels ----------------------------------------------------------------------------------

    def _find_labels(self, call: Call) -> Origins:
        """Finds the taint labels that the call carries."""
        running = self._chains.find_running(call.trace)
        if running is None:
            return {}
        above, known = running.parent, running.chain.origins or {}
        labels = above.enforced_labels if above is not None else running.chain.labels
        return {label: known.get(label, LabelOrigin("", call.trace.id)) for label in labels}


def _build_key(call: Call) -> Hashable:
    arguments = json.dumps(call.arguments, sort_keys=True, default=repr)
    digest = sha256(arguments.encode("utf-8", "replace")).digest()
    return call.trace.id, call.principal.key, call.tool.name, digest


def _parse_answer(answers: Mapping[str, Any] | None) -> tuple[bool, str] | None:
    """Returns the decision and the comment; None if the person has dismissed the question."""
    answer = (answers or {}).get(QUESTION)
    if not isinstance(answer, Mapping):
        return None
    action, content = answer.get("action", "accept"), answer.get("content")
    if action == "decline":
        return False, ""
    if action != "accept" or not isinstance(content, Mapping):
        return None
    comment = content.get(COMMENT)
    approves = content.get(APPROVE)
    if not isinstance(approves, bool):
        return None
    return approves, comment[:1_000] if isinstance(comment, str) else ""


def build_pending(found: StoredApproval) -> ApprovalPending:
    request = found.request
    id, until = request.id, render_time(request.expires_at)
    if found.state == APPROVED:
        words = f'"{request.title}" was approved and still runs (approval {id}); call it again'
    else:
        words = (
            f'"{request.title}" waits for approval {id}: {request.reason}. A person can decide '
            f"until {until}: dragoman approvals approve {id}. Then call it again"
        )
    more = "" if found.parked is None else " with the same arguments to get the result"
    return ApprovalPending(f"{words}{more}", id, request.expires_at)


def build_denied(found: StoredApproval) -> ApprovalDenied:
    request = found.request
    words = f'"{request.title}" was refused: approval {request.id} {_describe(found)}'
    if found.state == DENIED and found.parked is not None:
        words += f"; the denial stands until {render_time(request.expires_at)}"
    return ApprovalDenied(words)


def _describe(found: StoredApproval) -> str:
    words = describe_decision(found.approval)
    return words if words.startswith("expired") else f"was {words}"


# --- what is kept of a call that was made without its requester ----------------------------------


def encode_reply(result: Result | None, error: HubError | None, origins: Origins) -> bytes:
    """Encodes the result or the error; empty if it is too large."""
    said: dict[str, Any] = {
        "labels": {label: [one.tool, one.trace, one.why] for label, one in origins.items()}
    }
    if error is not None:
        said["error"] = {"kind": error.kind, "message": str(error)}
    elif result is not None and (result.questions is not None or result.unfinished):
        said["asked"] = True
    elif result is not None:
        said |= {"content": list(result.content), "failed": result.failed}
        said["extra"] = dict(result.extra)
        said["ending"] = result.ending
        if result.structured is not ABSENT:
            said["structured"] = result.structured
    try:
        data = encode(said)
    except Exception:  # numbers over 64 bits, lone surrogates
        return b""
    return data if len(data) <= MAX_REPLY else b""


def mark_repeated(result: Result, found: StoredApproval) -> Result:
    """Says that the result is the one of an earlier call: a client that wants the call made twice
    must learn that it was made once."""
    id, at = found.request.id, render_time(found.ended_at)
    words = (
        f"This is the result of the same call of {at} (approval {id}); it was not made again. "
        f"To have it made again, call it with another {KEY_META}. See: dragoman docs approvals"
    )
    meta = {**result.extra.get("_meta", {}), REPEATED_META: {"approval": id, "madeAt": at}}
    return replace(
        result,
        content=[*result.content, {"type": "text", "text": words}],
        extra={**result.extra, "_meta": meta},
    )


def parse_reply(data: bytes, found: StoredApproval) -> KeptReply:
    name, id = found.request.title, found.request.id
    if not data:
        if found.outcome == COMPLETED:
            words = "its result is too large to be kept, or was kept for its time"
            text = f'"{name}" was approved and is done (approval {id}); {words}'
            return KeptReply(Result(content=[{"type": "text", "text": text}]), None, {})
        why = found.approval.problem or "it failed"
        return KeptReply(None, WorkFailed(f'"{name}" failed (approval {id}): {why}'), {})
    said = decode_reply(data)
    origins = {label: LabelOrigin(*one) for label, one in said["labels"].items()}
    if "asked" in said:
        words = "it has asked a question, or works on; its result is not kept"
        text = f'"{name}" was approved and was made (approval {id}); {words}'
        return KeptReply(Result(content=[{"type": "text", "text": text}]), None, {})
    if "error" in said:
        kind, message = said["error"]["kind"], said["error"]["message"]
        error = _ERRORS.get(kind, WorkFailed)(message)
        return KeptReply(None, error, origins)
    result = Result(
        content=said["content"],
        failed=said["failed"],
        ending=said.get("ending", ""),
        extra=said["extra"],
        structured=said.get("structured", ABSENT),
    )
    return KeptReply(result, None, origins)


_ERRORS: Mapping[str, type[HubError]] = {one.kind: one for one in errors.list_leaves()}
