"""What the API reports of the hub itself: keys, connected clients, settings, and the doctor."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.app.hub_parts import HubParts
from dragoman.core.logs import render_time
from dragoman.mcp.server.client_state import ClientState
from dragoman.processes.own_commands import OwnCommands


@dataclass(frozen=True, slots=True)
class HubReportsView:
    """Implements `web.api_hub.HubReports`."""

    _parts: HubParts
    _commands: OwnCommands

    def list_keys(self) -> Sequence[Mapping[str, Any]]:
        now = time.time()
        return [
            {
                "name": one.name,
                "owner": one.owner,
                "org": one.org,
                "roles": list(one.roles),
                "scopes": list(one.scopes),
                "target": one.target,
                "view": one.view,
                "state": one.get_state(now),
                "created_at": render_time(one.created_at),
                "expires_at": render_time(one.expires_at) if one.expires_at is not None else None,
            }
            for one in self._parts.stores.keys.list()
        ]

    def list_clients(self) -> Sequence[Mapping[str, Any]]:
        rows: dict[tuple[str, ...], dict[str, Any]] = {}
        for client, streams in self._list_sessions():
            door, principal = client.door, client.principal
            name, view = client.client_name, client.view.name
            key = door, principal.label, principal.org, name, view
            row = rows.setdefault(
                key,
                {
                    "name": name,
                    "principal": principal.label,
                    "org": principal.org,
                    "transport": door,
                    "revision": client.revision.name,
                    "view": view,
                    "sessions": 0,
                    "streams": 0,
                },
            )
            row["sessions"] += 1
            row["streams"] += streams
        for principal, count in self._parts.events.streams.count_by_principal().items():
            key = "api-events", principal.label, principal.org, "", ""
            rows[key] = {
                "name": "",
                "principal": principal.label,
                "org": principal.org,
                "transport": "api-events",
                "revision": "",
                "view": "",
                "sessions": count,
                "streams": count,
            }
        return sorted(rows.values(), key=lambda row: (-row["streams"], row["principal"]))

    def _list_sessions(self) -> Iterator[tuple[ClientState, int]]:
        mcp, state = self._parts.mcp, self._parts.state
        for session in mcp.http.sessions.list_open():
            yield session, len(session.streams) + session.listens
        for stream in mcp.sse.list_clients():
            yield stream, 1 + stream.listens
        for connection in state.stdio:
            yield connection.client, 1
        for client in mcp.server.subscriptions.list_sessionless():
            yield client, client.listens

    async def show_config(self) -> Mapping[str, Any]:
        rows = await self._commands.run("config", "show", "--all", "--json")
        settings = [
            {"key": row["setting"], "value": row["value"], "origin": row["from"]} for row in rows
        ]
        return {"file": str(self._parts.home / "config.toml"), "settings": settings}

    async def diagnose(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = await self._commands.run("doctor", "--json", codes=(0, 1))
        return found
