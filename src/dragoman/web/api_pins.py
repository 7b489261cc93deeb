"""`/api/pins`: quarantined definitions, their diffs, and decisions about them.

All routes need `admin`: they show definitions that others may not see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dragoman.core.errors import InvalidInput
from dragoman.core.scopes import PINS
from dragoman.web.api import ApiRequest, ApiResponse, build_response, parse_flag, parse_object
from dragoman.web.openapi import admin_route
from dragoman.web.openapi_schemas import QUERY_FLAG, TEXT


class PinAdministration(Protocol):
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


@dataclass(frozen=True, slots=True)
class PinsApi:
    _decisions: PinAdministration

    @admin_route(
        PINS,
        "GET /api/pins",
        "Quarantined definitions; ?state=new: additions, minor: offered with minor changes, "
        "all: all; ?target= of one; ?diff=1: diffs",
        query={
            "state": {"enum": ["held", "new", "minor", "all"]},
            "target": TEXT,
            "diff": QUERY_FLAG,
        },
    )
    async def _list(self, request: ApiRequest) -> ApiResponse:
        query = request.query
        whole = parse_flag(request, "diff")
        found = self._decisions.list_pins(query.get("state", "held"), query.get("target"), whole)
        return build_response({"pins": found, "total": len(found)})

    @admin_route(
        PINS,
        "GET /api/pins/diff",
        "The diff of the quarantined ?name=",
        (404, 409),
        query={"name": TEXT},
        needs=("name",),
    )
    async def _show_diff(self, request: ApiRequest) -> ApiResponse:
        name = request.query.get("name")
        if not name:
            raise InvalidInput("missing name: use /api/pins/diff?name=NAME")
        return build_response(self._decisions.show(name))

    @admin_route(
        PINS,
        "POST /api/pins/approve",
        "Approve current definitions: {name, digest?}, {target, digests?} or {all: true}",
        (404, 409, 500),
        "PinApproval",
    )
    async def _approve(self, request: ApiRequest) -> ApiResponse:
        by = request.caller.label
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

    @admin_route(
        PINS,
        "POST /api/pins/reject",
        "Reject a definition, now and later: {name}",
        (404, 409, 500),
        "PinName",
    )
    async def _reject(self, request: ApiRequest) -> ApiResponse:
        name = _parse_member(request, "name")
        return build_response({"rejected": self._decisions.reject(name, request.caller.label)})

    @admin_route(
        PINS,
        "POST /api/pins/forget",
        "Delete all pins of a target: {target}",
        (404, 500),
        "PinTarget",
    )
    async def _forget(self, request: ApiRequest) -> ApiResponse:
        target = _parse_member(request, "target")
        return build_response({"forgotten": self._decisions.forget(target, request.caller.label)})


def _parse_member(request: ApiRequest, member: str) -> str:
    given = parse_object(request)
    value = given.get(member)
    if given.keys() != {member} or not isinstance(value, str) or not value:
        raise InvalidInput(f'the body must be {{"{member}": …}}')
    return value
