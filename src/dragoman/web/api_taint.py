"""`/api/taint`: the taint rules in force, how tools are classified, and labels of stored data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from dragoman.core.errors import InvalidInput
from dragoman.core.principal import Principal
from dragoman.core.scopes import POLICIES
from dragoman.web.api import ApiRequest, ApiResponse, build_response, parse_object
from dragoman.web.openapi import admin_route, route
from dragoman.web.openapi_schemas import TEXT

MAX_LISTED = 1_000


class TaintAdministration(Protocol):
    def describe_rules(self) -> dict[str, Any]:
        """The rules, each with label, sink and mode, and the settings beside them."""

    def describe_tools(self, principal: Principal) -> list[dict[str, Any]]:
        """The sources and sinks of the tools that the principal may see, with the reasons."""

    def list_stored(self, prefix: str, most: int) -> list[dict[str, Any]]: ...

    def declassify(self, key: str, label: str | None, why: str, by: Principal) -> list[str]:
        """Removes labels of stored data, and records it. Raises `NotFound`."""


@dataclass(frozen=True, slots=True)
class TaintApi:
    _taint: TaintAdministration

    @route("GET /api/taint", "The taint rules in force, and the sources and sinks of tools")
    async def _get_rules(self, request: ApiRequest) -> ApiResponse:
        tools = self._taint.describe_tools(request.caller)
        return build_response({**self._taint.describe_rules(), "tools": tools})

    @admin_route(
        POLICIES,
        "GET /api/taint/stored", "Labels of stored data; ?prefix= of their keys",
        query={"prefix": TEXT},
    )  # fmt: skip
    async def _list_stored(self, request: ApiRequest) -> ApiResponse:
        found = self._taint.list_stored(request.query.get("prefix", ""), MAX_LISTED)
        return build_response({"stored": found, "total": len(found)})

    @admin_route(
        POLICIES,
        "POST /api/taint/declassify",
        "Remove labels of stored data: {key, why, label?}",
        (404, 500),
        "TaintDeclassification",
    )
    async def _declassify(self, request: ApiRequest) -> ApiResponse:
        match parse_object(request):
            case {"key": str(key), "why": str(why), **rest} if (
                key and why.strip() and not rest.keys() - {"label"}
            ):
                label = rest.get("label")
                if not isinstance(label, str | None):
                    raise InvalidInput('"label" must be a string')
                return build_response(
                    {"removed": self._taint.declassify(key, label, why, request.caller)}
                )
        raise InvalidInput('the body must be {"key": …, "why": …}, with "label" for one label')
