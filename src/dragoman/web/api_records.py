"""`/api/audit`, `/api/traces` and `/api/map`: what was called, by whom, and how it ended.

Administrators see the whole audit log, other principals their own calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dragoman.core.audit_queries import SHADOW, RecordQuery
from dragoman.core.errors import InvalidInput, NotFound
from dragoman.core.hub import Hub
from dragoman.core.principal import Principal
from dragoman.core.scopes import USERS
from dragoman.web.api import (
    MAX_PAGE,
    PAGE_QUERY,
    ApiRequest,
    ApiResponse,
    build_response,
    parse_known,
    parse_limit,
    parse_number,
)
from dragoman.web.openapi import admin_route, route
from dragoman.web.openapi_schemas import TEXT, Schema

OUTCOMES = (
    *("completed", "failed", "asked", "parked", "refused", "not_found", "invalid", "target_failed"),
    *("cancelled", "crashed", "running", "unknown", "break"),
)
SECONDS: Schema = {"type": "number", "minimum": 0, "description": "Seconds since 1970."}
AUDIT_QUERY: Mapping[str, Schema] = {
    "q": {"type": "string", "description": "A text that the record contains."},
    "verb": TEXT,
    "caller": TEXT,
    "outcome": {"enum": list(OUTCOMES)},
    "trace": {"type": "string", "description": "A trace, or the beginning of its id."},
    "agent": {"type": "string", "description": "A server or agent, by name or card id."},
    "decision": {
        "enum": ["permit", "deny", SHADOW],
        "description": "shadow: permitted, but policies in shadow mode would have denied it.",
    },
    "since": SECONDS,
    "until": SECONDS,
    **PAGE_QUERY,
}
TRACE_QUERY: Mapping[str, Schema] = {"q": TEXT, **PAGE_QUERY}
MAP_QUERY: Mapping[str, Schema] = {"minutes": {"type": "integer", "minimum": 1, "maximum": 1_440}}
SHORTEST_TRACE = 8
MAX_SEARCHES = 20
"""How often a trace is searched for: among the newest million records."""
PAGE = 100
MAX_CURSOR = 48


class RecordSource(Protocol):
    """Reads the audit log."""

    async def search(
        self, wanted: RecordQuery, before: int | None, limit: int
    ) -> tuple[Sequence[Mapping[str, Any]], int | None]:
        """Returns the newest records that match, before a number, and the number from which the
        search goes on; None at the end. Reads a bounded number of records, so that a page may be
        short, or empty, while more follow."""

    async def list_traces(
        self, wanted: RecordQuery, before: int | None, limit: int
    ) -> tuple[Sequence[Mapping[str, Any]], int | None]:
        """The same for traces: one row for all records of a trace."""

    async def summarize(self, wanted: RecordQuery, minutes: int) -> Mapping[str, Any]:
        """Summarizes the calls of the last minutes as nodes and edges."""

    async def list_nodes(self) -> Sequence[Mapping[str, Any]]:
        """Lists the servers and agents that the hub knows, for administrators."""

    def find_usage(self, trace: str, caller: str) -> Sequence[Mapping[str, Any]]:
        """Sums what agents used in a trace, in the calls that `caller` caused; empty: in all."""

    async def verify(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class RecordsApi:
    _hub: Hub
    _source: RecordSource

    @route(
        "GET /api/audit",
        "Records of the audit log, newest first; without admin, the caller's own calls",
        query=AUDIT_QUERY,
    )
    async def _search(self, request: ApiRequest) -> ApiResponse:
        query = parse_known(request, AUDIT_QUERY)
        for name in ("outcome", "decision"):
            if query.get(name) and query[name] not in AUDIT_QUERY[name]["enum"]:
                choices = ", ".join(AUDIT_QUERY[name]["enum"])
                raise InvalidInput(f"{name} must be one of {choices}")
        wanted = self._restrict(
            request.caller,
            text=query.get("q", ""),
            verb=query.get("verb", ""),
            caller=query.get("caller", ""),
            outcome=query.get("outcome", ""),
            trace=query.get("trace", ""),
            agent=query.get("agent", ""),
            decision=query.get("decision", ""),
            since=_parse_seconds(query, "since", 0.0),
            until=_parse_seconds(query, "until", 1e11),
        )
        rows, more = await self._source.search(wanted, *_parse_page(query))
        return _build_page("records", rows, more)

    @admin_route(
        USERS,
        "POST /api/audit/verify",
        "Whether the audit log is complete and unchanged",
        body=None,
    )
    async def _verify(self, request: ApiRequest) -> ApiResponse:
        return build_response(await self._source.verify())

    @route(
        "GET /api/traces",
        "Chains of calls, newest first; without admin, the caller's own calls",
        query=TRACE_QUERY,
    )
    async def _list_traces(self, request: ApiRequest) -> ApiResponse:
        query = parse_known(request, TRACE_QUERY)
        wanted = self._restrict(request.caller, text=query.get("q", ""))
        rows, more = await self._source.list_traces(wanted, *_parse_page(query))
        return _build_page("traces", rows, more)

    @route(
        "GET /api/traces/{name}",
        "The calls of one trace, oldest first; the first 8 characters of its id are enough",
        (404,),
    )
    async def _get_trace(self, request: ApiRequest) -> ApiResponse:
        trace = request.names[0]
        if len(trace) < SHORTEST_TRACE or not trace.isascii() or not trace.isalnum():
            raise InvalidInput(f"the id of a trace has at least {SHORTEST_TRACE} letters or digits")
        wanted = self._restrict(request.caller, trace=trace)
        rows: list[Mapping[str, Any]] = []
        before: int | None = None
        for _ in range(MAX_SEARCHES):
            found, before = await self._source.search(wanted, before, MAX_PAGE - len(rows))
            rows += found
            if before is None or len(rows) >= MAX_PAGE:
                break
        if not rows:
            raise NotFound(f'there is no trace "{trace[:100]}", or you may not see it')
        whole = str(rows[0].get("trace", trace))
        rows = [row for row in rows if row.get("trace") == whole][::-1]
        usage = self._source.find_usage(whole, wanted.caller)
        answer = {"trace": whole, "records": rows, "usage": usage, "total": len(rows)}
        return build_response({**answer, "complete": before is None})

    @route(
        "GET /api/map",
        "Who called what in the last minutes; without admin, the caller's own calls",
        query=MAP_QUERY,
    )
    async def _get_map(self, request: ApiRequest) -> ApiResponse:
        query = parse_known(request, MAP_QUERY)
        minutes = parse_number(query, "minutes", 15)
        if not 1 <= minutes <= 1_440:
            raise InvalidInput("minutes must be a number from 1 to 1440")
        found = dict(await self._source.summarize(self._restrict(request.caller), minutes))
        if self._is_admin(request.caller):
            known = {node["id"]: dict(node) for node in found["nodes"]}
            for node in await self._source.list_nodes():
                known[node["id"]] = {**known.get(node["id"], {}), **node}
            found["nodes"] = list(known.values())
        return build_response({"minutes": minutes, **found})

    def _is_admin(self, caller: Principal) -> bool:
        return self._hub.authorizer.decide_action(caller, USERS).allowed

    def _restrict(self, principal: Principal, /, **wanted: Any) -> RecordQuery:
        """Builds a query; that of principals without `admin` finds their own calls alone."""
        if not self._is_admin(principal):
            if wanted.get("caller", "") not in ("", principal.label):
                raise InvalidInput("without admin you can only read the records of your own calls")
            wanted = {**wanted, "caller": principal.label, "org": principal.org}
        return RecordQuery(**wanted)


def _parse_page(query: Mapping[str, str]) -> tuple[int | None, int]:
    return _parse_cursor(query.get("cursor", "")), parse_limit(query, PAGE)


def _parse_cursor(text: str) -> int | None:
    """Positions among the records of several hubs have more digits than the number of a record."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_CURSOR):
        raise InvalidInput("cursor must be a whole number: use nextCursor of the page before")
    return int(text) or None


def _parse_seconds(query: Mapping[str, str], name: str, otherwise: float) -> float:
    try:
        seconds = float(query.get(name) or otherwise)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 1e11:
        raise InvalidInput(f"{name} must be a time, in seconds since 1970")
    return seconds


def _build_page(name: str, rows: Sequence[Mapping[str, Any]], more: int | None) -> ApiResponse:
    return build_response({name: rows, "nextCursor": str(more) if more is not None else None})
