"""`/api/workflows`: the workflows of the home. `/api/runs`: their runs, which belong to those who
started them; administrators see all of their org."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dragoman.core.access import require_scope
from dragoman.core.background import Work
from dragoman.core.errors import HubError, InvalidInput
from dragoman.core.principal import Principal
from dragoman.core.rate_limiter import TOOL_CALL
from dragoman.core.runs import DECISIONS, RUN_STATES
from dragoman.core.scopes import WORKFLOWS
from dragoman.web.api import (
    ApiRequest,
    ApiResponse,
    build_response,
    parse_object,
    response_from_error,
)
from dragoman.web.app import PathMount
from dragoman.web.events import EventStreams, send_reply
from dragoman.web.openapi import RUN_EVENTS, admin_route, route
from dragoman.web.openapi_schemas import TEXT
from dragoman.wire.http import HttpRequest
from dragoman.wire.json import encode

LIMIT, MAX_LIMIT = 50, 200
MAX_DEFINITION = 1024 * 1024
"""Bytes of a request with a definition."""
_KNOWN = ("workflow", "state", "limit", "cursor")
_EVENTS = re.compile(r"/api/runs/([0-9A-Za-z_-]{1,64})/events")

Rendered = dict[str, Any]


class WorkflowsPort(Protocol):
    """Workflows and runs, as principals may see and change them."""

    async def list_workflows(self, principal: Principal) -> list[Rendered]: ...

    async def describe(self, principal: Principal, name: str) -> Rendered: ...

    async def write(self, principal: Principal, name: str, source: str) -> Rendered: ...

    async def remove(self, principal: Principal, name: str) -> None: ...

    async def check(self, principal: Principal, source: str) -> list[Rendered]: ...

    async def start(
        self,
        principal: Principal,
        name: str,
        inputs: Mapping[str, Any],
        agents: Mapping[str, str],
    ) -> Rendered: ...

    async def list_runs(
        self,
        principal: Principal,
        workflow: str,
        states: tuple[str, ...],
        limit: int,
        cursor: str,
    ) -> tuple[list[Rendered], str]: ...

    async def get_run(self, principal: Principal, id: str) -> Rendered: ...

    async def may_watch(self, principal: Principal, id: str) -> None: ...

    async def cancel(self, principal: Principal, id: str) -> Rendered: ...

    async def retry(self, principal: Principal, id: str) -> Rendered: ...

    async def resume(self, principal: Principal, id: str, path: str, decision: str) -> Rendered: ...

    async def answer(
        self, principal: Principal, id: str, path: str, answers: Mapping[str, Any]
    ) -> Rendered: ...


@dataclass(frozen=True, slots=True)
class WorkflowsApi:
    _port: WorkflowsPort

    @route("GET /api/workflows", "The workflows that the caller may run; administrators see all")
    async def _list(self, request: ApiRequest) -> ApiResponse:
        found = await self._port.list_workflows(request.caller)
        return build_response({"workflows": found, "total": len(found)})

    @admin_route(
        WORKFLOWS,
        "POST /api/workflows",
        "Create or replace a workflow",
        (400,),
        charge=TOOL_CALL,
        body_bytes=MAX_DEFINITION,
    )
    async def _write(self, request: ApiRequest) -> ApiResponse:
        body = _parse_members(request, "name", "source")
        return build_response(
            await self._port.write(
                request.caller, _read_text(body, "name"), _read_text(body, "source")
            )
        )

    @route(
        "POST /api/workflows/check",
        "What is wrong with a definition, by line",
        (400,),
        charge=TOOL_CALL,
        body_bytes=MAX_DEFINITION,
    )
    async def _check(self, request: ApiRequest) -> ApiResponse:
        body = _parse_members(request, "source")
        problems = await self._port.check(request.caller, _read_text(body, "source"))
        return build_response({"problems": problems})

    @route("GET /api/workflows/{name}", "One workflow, with its graph and definition", (404,))
    async def _get(self, request: ApiRequest) -> ApiResponse:
        return build_response(await self._port.describe(request.caller, request.names[0]))

    @admin_route(
        WORKFLOWS, "DELETE /api/workflows/{name}", "Delete a workflow; its runs finish", (404,)
    )
    async def _delete(self, request: ApiRequest) -> ApiResponse:
        await self._port.remove(request.caller, request.names[0])
        return build_response({"name": request.names[0], "deleted": True})

    @route("POST /api/workflows/{name}/run", "Start a run", (400, 403, 404, 503))
    async def _run(self, request: ApiRequest) -> ApiResponse:
        body = _parse_members(request, "inputs", "agents")
        inputs, agents = body.get("inputs", {}), body.get("agents", {})
        is_named = isinstance(agents, dict) and all(isinstance(one, str) for one in agents.values())
        if not isinstance(inputs, dict) or not is_named:
            raise InvalidInput('"inputs" must be an object, and "agents" one of texts')
        run = await self._port.start(request.caller, request.names[0], inputs, agents)
        return ApiResponse(202, encode({"run": run}))

    # --- runs ------------------------------------------------------------------------------------

    @route(
        "GET /api/runs",
        "Runs of workflows, newest first",
        (400,),
        query={
            "workflow": TEXT,
            "state": {"enum": list(RUN_STATES)},
            "cursor": TEXT,
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT},
        },
    )
    async def _list_runs(self, request: ApiRequest) -> ApiResponse:
        query = request.query
        if unknown := query.keys() - set(_KNOWN):
            raise InvalidInput(f'unknown parameter "{min(unknown)[:100]}": use {", ".join(_KNOWN)}')
        states = tuple(filter(None, query.get("state", "").split(",")))
        if any(one not in RUN_STATES for one in states):
            raise InvalidInput(f"state must be one of {', '.join(RUN_STATES)}")
        limit = query.get("limit", str(LIMIT))
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= MAX_LIMIT):
            raise InvalidInput(f"limit must be a number from 1 to {MAX_LIMIT}")
        found, cursor = await self._port.list_runs(
            request.caller, query.get("workflow", ""), states, int(limit), query.get("cursor", "")
        )
        return build_response({"runs": found, "nextCursor": cursor or None})

    @route("GET /api/runs/{name}", "One run, with its steps and output", (404,))
    async def _get_run(self, request: ApiRequest) -> ApiResponse:
        return build_response(await self._port.get_run(request.caller, request.names[0]))

    @route("POST /api/runs/{name}/cancel", "Cancel a run and its running calls", (400, 404))
    async def _cancel(self, request: ApiRequest) -> ApiResponse:
        _parse_members(request)
        run = await self._port.cancel(request.caller, request.names[0])
        return build_response({"run": run})

    @route("POST /api/runs/{name}/retry", "Continue a failed run at its failed steps", (400, 404))
    async def _retry(self, request: ApiRequest) -> ApiResponse:
        _parse_members(request)
        run = await self._port.retry(request.caller, request.names[0])
        return build_response({"run": run})

    @route(
        "POST /api/runs/{name}/resume",
        "Decide about a step of which it is unknown whether it was done: retry, skip or fail",
        (400, 404),
    )
    async def _resume(self, request: ApiRequest) -> ApiResponse:
        body = _parse_members(request, "step", "decision")
        if body.get("decision") not in DECISIONS:
            raise InvalidInput(f'"decision" must be one of {", ".join(DECISIONS)}')
        run = await self._port.resume(
            request.caller, request.names[0], _read_text(body, "step"), body["decision"]
        )
        return build_response({"run": run})

    @route("POST /api/runs/{name}/answer", "Answer the questions of a step", (400, 404))
    async def _answer(self, request: ApiRequest) -> ApiResponse:
        body = _parse_members(request, "step", "answers")
        answers = body.get("answers")
        if not isinstance(answers, dict):
            raise InvalidInput('"answers" must be an object with an answer to each question')
        run = await self._port.answer(
            request.caller, request.names[0], _read_text(body, "step"), answers
        )
        return build_response({"run": run})


class RunEventsMount(PathMount):
    """`GET /api/runs/{id}/events`: the events of one run as server-sent events."""

    def has(self, path: str) -> bool:
        return _EVENTS.fullmatch(path) is not None


def build_run_events(port: WorkflowsPort, streams: EventStreams) -> RunEventsMount:
    async def serve(request: HttpRequest, principal: Principal) -> None:
        match = _EVENTS.fullmatch(request.path)
        assert match is not None
        try:
            require_scope(principal, RUN_EVENTS.right)
            await port.may_watch(principal, match[1])
        except HubError as error:
            return send_reply(request, response_from_error(error))
        await streams(request, principal, match[1])

    def serve_known(request: HttpRequest, principal: Principal | None) -> Work[None] | None:
        assert principal is not None  # the path is not open
        return serve(request, principal)

    return RunEventsMount("/api/runs", serve_known, lambda path: False)


def _parse_members(request: ApiRequest, *names: str) -> dict[str, Any]:
    body = parse_object(request)
    if unknown := body.keys() - set(names):
        known = ", ".join(names) or "none"
        raise InvalidInput(f'unknown member "{min(unknown)[:100]}"; known: {known}')
    return body


def _read_text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidInput(f'"{name}" must be a text')
    return value
