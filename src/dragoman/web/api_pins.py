"""`/api/pins`: quarantined definitions, their diffs, and decisions about them.

All routes need `admin`: they show definitions that others may not see.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from dragoman.core.errors import InvalidInput
from dragoman.core.hub import Hub
from dragoman.web.api import ApiRequest, ApiResponse, build_response, parse_object, require_admin
from dragoman.web.openapi import route


class PinAdministration(Protocol):
    """Administration of pins."""

    def list_pins(
        self, state: str, target: str | None = None, whole: bool = False
    ) -> list[dict[str, Any]]: ...

    def show(self, name: str) -> dict[str, Any]: ...

    def approve(self, name: str, by: str, code: str | None = None) -> list[str]: ...

    def approve_all(
        self, by: str, target: str | None, digests: Mapping[str, str] | None = None
    ) -> tuple[list[str], list[str]]: ...

    def reject(self, name: str, by: str) -> list[str]: ...

    def forget(self, target: str, by: str) -> list[str]: ...


class PinsApi:
    def __init__(self, hub: Hub, decisions: PinAdministration) -> None:
        self._hub = hub
        self._decisions = decisions

    @route(
        "GET /api/pins",
        "Quarantined definitions; ?state=new: additions, all: all; ?target= of one; ?diff=1: diffs",
        400,
        403,
    )
    async def _list(self, request: ApiRequest) -> ApiResponse:
        require_admin(self._hub, request.principal)
        query = request.query
        whole = query.get("diff") == "1"
        found = self._decisions.list_pins(query.get("state", "held"), query.get("target"), whole)
        return build_response({"pins": found, "total": len(found)})

    @route("GET /api/pins/diff", "The diff of the quarantined ?name=", 400, 403, 404, 409)
    async def _show_diff(self, request: ApiRequest) -> ApiResponse:
        require_admin(self._hub, request.principal)
        name = request.query.get("name")
        if not name:
            raise InvalidInput("missing name: use /api/pins/diff?name=NAME")
        return build_response(self._decisions.show(name))

    @route(
        "POST /api/pins/approve",
        "Approve current definitions: {name, digest?}, {target, digests?} or {all: true}",
        400,
        403,
        404,
        409,
        500,
        503,
        body="Object",
    )
    async def _approve(self, request: ApiRequest) -> ApiResponse:
        by = require_admin(self._hub, request.principal).label
        given = parse_object(request)
        match given:
            case {"name": str(name), **rest} if name and not rest.keys() - {"digest"}:
                code = rest.get("digest")
                if not isinstance(code, str | None):
                    raise InvalidInput('"digest" must be a string')
                done = self._decisions.approve(name, by, code)
            case {"target": str(target), **rest} if target and not rest.keys() - {"digests"}:
                return self._approve_all(by, target, rest.get("digests"))
            case {"all": True, **rest} if not rest.keys() - {"digests"}:
                return self._approve_all(by, None, rest.get("digests"))
            case _:
                raise InvalidInput(
                    'the body must be {"name": …}, with "digest" for exactly what was reviewed, '
                    'or {"target": …}, or {"all": true}'
                )
        return build_response({"approved": done})

    def _approve_all(self, by: str, target: str | None, digests: Any) -> ApiResponse:
        if digests is not None and not (
            isinstance(digests, dict) and all(isinstance(one, str) for one in digests.values())
        ):
            raise InvalidInput('"digests" must be an object of strings, by kind and name')
        done, skipped = self._decisions.approve_all(by, target, digests)
        return build_response({"approved": done, **({"skipped": skipped} if skipped else {})})

    @route(
        "POST /api/pins/reject",
        "Reject a definition, now and later: {name}",
        400,
        403,
        404,
        409,
        500,
        503,
        body="Object",
    )
    async def _reject(self, request: ApiRequest) -> ApiResponse:
        by = require_admin(self._hub, request.principal).label
        return build_response(
            {"rejected": self._decisions.reject(_parse_member(request, "name"), by)}
        )

    @route(
        "POST /api/pins/forget",
        "Delete all pins of a target: {target}",
        400,
        403,
        404,
        500,
        503,
        body="Object",
    )
    async def _forget(self, request: ApiRequest) -> ApiResponse:
        by = require_admin(self._hub, request.principal).label
        return build_response(
            {"forgotten": self._decisions.forget(_parse_member(request, "target"), by)}
        )


def _parse_member(request: ApiRequest, member: str) -> str:
    given = parse_object(request)
    value = given.get(member)
    if given.keys() != {member} or not isinstance(value, str) or not value:
        raise InvalidInput(f'the body must be {{"{member}": …}}')
    return value
