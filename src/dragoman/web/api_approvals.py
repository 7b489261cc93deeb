"""`/api/approvals`: what waits for the approval of a person, and decisions about it.

A request is visible to those who may decide it and to its requester; the result of an approved call
to the requester alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dragoman.core.approvals import STATES, StoredApproval
from dragoman.core.errors import InvalidInput, NotFound
from dragoman.core.logs import render_time
from dragoman.core.principal import Principal
from dragoman.core.scopes import APPROVE
from dragoman.web.api import ApiRequest, ApiResponse, build_response, parse_object
from dragoman.web.openapi import route
from dragoman.web.openapi_schemas import TEXT

if TYPE_CHECKING:
    from dragoman.core.approvals import Approval

LIMIT, MAX_LIMIT = 50, 200
_KNOWN = ("state", "limit", "cursor")


class ApprovalDecisions(Protocol):
    """Requests for approval, as principals may see and decide them."""

    def get(self, id: str) -> StoredApproval: ...

    def is_visible(self, principal: Principal, stored: StoredApproval) -> bool: ...

    def may_decide(self, principal: Principal, stored: StoredApproval) -> bool: ...

    async def list_visible(
        self, principal: Principal, state: str, before: int | None, most: int
    ) -> tuple[list[StoredApproval], int | None]: ...

    def decide(
        self, id: str, approves: bool, by: Principal, comment: str = "", door: str = "api"
    ) -> Approval: ...

    def find_result(self, principal: Principal, stored: StoredApproval) -> dict[str, Any] | None:
        """The result of an approved call, for its requester."""


class ApprovalSource(Protocol):
    def find_existing(self) -> ApprovalDecisions | None:
        """None if this hub has never needed an approval."""


@dataclass(frozen=True, slots=True)
class ApprovalsApi:
    _source: ApprovalSource

    @route(
        "GET /api/approvals",
        "What waits for approval, and what was decided, newest first",
        query={
            "state": {"enum": list(STATES)},
            "cursor": TEXT,
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT},
        },
    )
    async def _list(self, request: ApiRequest) -> ApiResponse:
        query = request.query
        if unknown := query.keys() - set(_KNOWN):
            raise InvalidInput(f'unknown parameter "{min(unknown)[:100]}": use {", ".join(_KNOWN)}')
        state = query.get("state", "")
        if state and state not in STATES:
            raise InvalidInput(f"state must be one of {', '.join(STATES)}")
        before = _parse_number("cursor", query.get("cursor"), 2**53)
        most = _parse_number("limit", query.get("limit"), MAX_LIMIT) or LIMIT
        desk = self._source.find_existing()
        if desk is None:
            return build_response({"approvals": [], "nextCursor": None})
        found, cursor = await desk.list_visible(request.caller, state, before, most)
        shown = [render_approval(desk, request.caller, one) for one in found]
        return build_response(
            {"approvals": shown, "nextCursor": None if cursor is None else str(cursor)}
        )

    @route("GET /api/approvals/{name}", "One request, and the result of its call", (404,))
    async def _get(self, request: ApiRequest) -> ApiResponse:
        desk, found = self._find(request)
        shown = render_approval(desk, request.caller, found)
        result = desk.find_result(request.caller, found)
        return build_response({**shown, **({"result": result} if result is not None else {})})

    @route(
        "POST /api/approvals/{name}/approve",
        "Approve a request: {comment?}; its call is then made once",
        (403, 404, 409, 503),
        "ApprovalDecision",
        right=APPROVE,
    )
    async def _approve(self, request: ApiRequest) -> ApiResponse:
        return self._decide(request, True)

    @route(
        "POST /api/approvals/{name}/deny",
        "Deny a request: {comment?}",
        (403, 404, 409, 503),
        "ApprovalDecision",
        right=APPROVE,
    )
    async def _deny(self, request: ApiRequest) -> ApiResponse:
        return self._decide(request, False)

    def _decide(self, request: ApiRequest, approves: bool) -> ApiResponse:
        given = parse_object(request)
        comment = given.get("comment", "")
        if given.keys() - {"comment"} or not isinstance(comment, str):
            raise InvalidInput('the body must be {} or {"comment": …}')
        id = request.names[0]
        desk = self._source.find_existing()
        if desk is None:
            raise _build_missing(id)
        desk.decide(id, approves, request.caller, comment)
        return build_response(render_approval(desk, request.caller, desk.get(id)))

    def _find(self, request: ApiRequest) -> tuple[ApprovalDecisions, StoredApproval]:
        id, desk = request.names[0], self._source.find_existing()
        if desk is None:
            raise _build_missing(id)
        found = desk.get(id)
        if not desk.is_visible(request.caller, found):
            raise _build_missing(id)
        return desk, found


def render_approval(
    desk: ApprovalDecisions, principal: Principal, stored: StoredApproval
) -> dict[str, Any]:
    approval, request = stored.approval, stored.request
    requester = request.requester
    return {
        "id": request.id,
        "kind": request.kind,
        "title": request.title,
        "reason": request.reason,
        "requester": requester.label,
        "behalf": requester.behalf or None,
        "callers": [one.label for one, _ in stored.parked.callers] if stored.parked else [],
        "org": requester.org,
        "arguments": dict(request.arguments),
        "approvers": list(request.approvers),
        "requestedAt": render_time(approval.requested_at),
        "expiresAt": render_time(request.expires_at),
        "state": approval.state,
        "decidedAt": render_time(approval.decided_at) if approval.decided_at else None,
        "decidedBy": approval.decided_by or None,
        "comment": approval.comment or None,
        "trace": request.trace or None,
        "run": request.run or None,
        "step": request.step or None,
        "outcome": approval.outcome or None,
        "isParked": stored.parked is not None,
        "problem": approval.problem or None,
        "canDecide": approval.state == "pending" and desk.may_decide(principal, stored),
    }


def _build_missing(id: str) -> NotFound:
    return NotFound(f'there is no approval "{id[:64]}"; see: dragoman approvals')


def _parse_number(name: str, given: str | None, most: int) -> int | None:
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) <= 16) or not (
        1 <= int(given) <= most
    ):
        raise InvalidInput(f"{name} must be a number from 1 to {most}")
    return int(given)
