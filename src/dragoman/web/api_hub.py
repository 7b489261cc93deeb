"""`/api/keys`, `/api/clients`, `/api/config`, `/api/doctor`: the hub itself. They need `admin`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dragoman.core.scopes import REGISTRY, USERS
from dragoman.web.api import ApiRequest, ApiResponse, build_response
from dragoman.web.openapi import admin_route


class HubReports(Protocol):
    def list_keys(self) -> Sequence[Mapping[str, Any]]:
        """Lists the API keys, without anything that could be used as one."""

    def list_clients(self) -> Sequence[Mapping[str, Any]]:
        """Lists the connected clients: one row for the sessions of one principal with the same
        name, transport and view."""

    async def show_config(self) -> Mapping[str, Any]:
        """Returns the settings in force and where each comes from, without secrets."""

    async def diagnose(self) -> Mapping[str, Any]:
        """Runs the checks of `dragoman doctor`."""


@dataclass(frozen=True, slots=True)
class HubApi:
    _reports: HubReports

    @admin_route(USERS, "GET /api/keys", "The API keys: names, owners, rights, states")
    async def _list_keys(self, request: ApiRequest) -> ApiResponse:
        found = self._reports.list_keys()
        return build_response({"keys": found, "total": len(found)})

    @admin_route(USERS, "GET /api/clients", "The connected clients, and the streams that they hold")
    async def _list_clients(self, request: ApiRequest) -> ApiResponse:
        found = self._reports.list_clients()
        streams = sum(one["streams"] for one in found)
        return build_response({"clients": found, "total": len(found), "streams": streams})

    @admin_route(
        REGISTRY, "GET /api/config", "The settings and where they come from, without secrets"
    )
    async def _show_config(self, request: ApiRequest) -> ApiResponse:
        return build_response(await self._reports.show_config())

    @admin_route(
        REGISTRY, "GET /api/doctor", "Known problems and their fixes, as dragoman doctor finds them"
    )
    async def _diagnose(self, request: ApiRequest) -> ApiResponse:
        return build_response(await self._reports.diagnose())
