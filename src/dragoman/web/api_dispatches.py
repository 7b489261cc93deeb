"""`POST /api/a2a/dispatch`: has work done by an agent that the hub chooses. `GET
/api/a2a/dispatches`: every call of a registered agent's skill, or of a chosen agent, the newest
first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from dragoman.core.errors import InvalidInput, NotFound
from dragoman.core.hub import Hub
from dragoman.core.scopes import USERS
from dragoman.web.api import (
    CALL_ERRORS,
    QUESTION_MEMBERS,
    ApiRequest,
    ApiResponse,
    build_call_options,
    build_response,
    json_from_result,
    parse_object,
)
from dragoman.web.openapi import route
from dragoman.web.openapi_schemas import TEXT

LIMIT, MAX_LIMIT = 50, 200
ALL_CALLERS = "*"
DISPATCH_TOOL, DISPATCH_META = "dragoman.dispatch", "dragoman.hub/dispatch"
_QUESTIONS = (
    '"can" must be a list of "form" and "url", and "answers" and "handle" belong together: an '
    "object, and the text that came with the questions"
)

_EXACT = {"agentId": "agent_id", "agent": "agent", "session": "session", "decision": "decision"}
_WORDS = {
    "status": ("running", "completed", "asked", "parked", "failed", "denied", "cancelled"),
    "kind": ("explicit", "routed"),
}
_TIMES = {"from": "since", "to": "until"}
_KNOWN = (*_EXACT, *_WORDS, *_TIMES, "limit", "cursor")


class DispatchSource(Protocol):
    async def find(
        self, limit: int, cursor: str | None, **wanted: Any
    ) -> tuple[list[dict[str, Any]], str | None]: ...


class DecisionSource(Protocol):
    def offer(self) -> None:
        """Offers the tool that dispatches work, unless it is offered already."""

    def explain(self, id: str, org: str, caller: str | None) -> dict[str, Any] | None:
        """Finds a decision by its id, as that caller may see it; None: an administrator."""


@dataclass(frozen=True, slots=True)
class DispatchesApi:
    _hub: Hub
    _store: DispatchSource
    _decisions: DecisionSource
    _features: Mapping[str, Any]
    """The capabilities of every client of the API."""

    @route(
        "POST /api/a2a/dispatch",
        "Have work done by an agent that the hub chooses, or with dryRun show the choice",
        CALL_ERRORS,
        "Dispatch",
        calls=True,
        media=("text/event-stream",),
    )
    async def _dispatch(self, request: ApiRequest) -> ApiResponse:
        body = parse_object(request)
        asked = {name: body.pop(name) for name in QUESTION_MEMBERS if name in body}
        options = build_call_options(request, asked, self._features)
        if options is None:
            raise InvalidInput(_QUESTIONS)
        self._decisions.offer()
        _, result = await self._hub.call(request.caller, DISPATCH_TOOL, body, options)
        if body.get("dryRun") is True:
            return build_response(result.structured)
        said = json_from_result(result)
        extra = dict(said.pop("extra", {}))
        meta = dict(extra.pop("_meta", {}))
        about = meta.pop(DISPATCH_META, {})
        if meta:
            extra["_meta"] = meta
        return build_response({**about, **said, **({"extra": extra} if extra else {})})

    @route(
        "GET /api/a2a/dispatches/{name}/decision",
        "Why the hub has chosen the agent, by the id of a dispatch or of the decision",
        (404,),
    )
    async def _explain(self, request: ApiRequest) -> ApiResponse:
        principal, id = request.caller, request.names[0]
        sees_all = self._hub.authorizer.decide_action(principal, USERS).allowed
        caller = None if sees_all else principal.label
        found = self._decisions.explain(id, principal.org, caller)
        if found is None:
            rows, _ = await self._store.find(
                1, None, org=principal.org, caller=caller or ALL_CALLERS, id=id
            )
            if rows and rows[0]["decisionId"] is None:
                raise NotFound(f'dispatch "{id[:64]}" has no decision: the caller named the agent')
            if rows:
                found = self._decisions.explain(rows[0]["decisionId"], principal.org, caller)
        if found is None:
            raise NotFound(f'there is no dispatch or decision "{id[:64]}"')
        return build_response(found)

    @route(
        "GET /api/a2a/dispatches",
        "Calls of registered agents' skills, newest first",
        (500,),
        query={
            **dict.fromkeys((*_EXACT, *_TIMES, "cursor"), TEXT),
            **{name: {"enum": list(words)} for name, words in _WORDS.items()},
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT},
        },
    )
    async def _list(self, request: ApiRequest) -> ApiResponse:
        principal, query = request.caller, request.query
        if unknown := query.keys() - set(_KNOWN):
            raise InvalidInput(f'unknown parameter "{min(unknown)[:100]}": use {", ".join(_KNOWN)}')
        wanted: dict[str, Any] = {_EXACT[name]: query[name] for name in _EXACT if name in query}
        for name, words in _WORDS.items():
            if name in query:
                if query[name] not in words:
                    raise InvalidInput(f"{name} must be one of {', '.join(words)}")
                wanted[name] = query[name]
        for name, field in _TIMES.items():
            if name in query:
                wanted[field] = _parse_time(name, query[name])
        # An administrator sees all of them, other principals their own.
        sees_all = self._hub.authorizer.decide_action(principal, USERS).allowed
        found, cursor = await self._store.find(
            _parse_limit(query.get("limit")),
            query.get("cursor"),
            org=principal.org,
            caller=ALL_CALLERS if sees_all else principal.label,
            **wanted,
        )
        return build_response({"dispatches": found, "nextCursor": cursor})


def _parse_limit(given: str | None) -> int:
    if given is None:
        return LIMIT
    if not (given.isascii() and given.isdigit() and len(given) <= 9) or not (
        1 <= int(given) <= MAX_LIMIT
    ):
        raise InvalidInput(f"limit must be a number from 1 to {MAX_LIMIT}")
    return int(given)


def _parse_time(name: str, given: str) -> float:
    """Parses ISO 8601, in UTC without an offset, or seconds since 1970."""
    try:
        seconds = float(given)
    except ValueError:
        try:
            at = datetime.fromisoformat(given.replace(" ", "+"))  # a plus sign that was not quoted
            seconds = (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            seconds = math.nan
    if not math.isfinite(seconds):
        raise InvalidInput(f'{name} must be a time such as "2026-01-31T12:00:00Z"')
    return seconds
