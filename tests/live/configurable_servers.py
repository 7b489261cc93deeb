"""A hub with servers whose definitions a test sets, and a client that looks through every entry
point.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub
from tests.peers import wire
from tests.peers.process import server_entry

PROGRAM = Path(__file__).with_name("configurable_server.py")
OPEN = {"type": "object"}
LISTS = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")
PAGES = ("/api/tools", "/.well-known/agent-card.json", "/.well-known/ai-catalog.json")


def tool(name: str, description: str = "Does it.", **more: Any) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": OPEN, **more}


class ConfigurableServer:
    """One of the servers."""

    def __init__(self, place: Path, name: str, offers: dict[str, Any] | None = None) -> None:
        self.name = name
        self.file = place / f"{name}.json"
        self.hub: RunningHub | None = None
        self.offers = offers or {}
        self.write()

    def write(self) -> None:
        self.file.write_text(json.dumps(self.offers), encoding="utf-8")

    def entry(self, **keys: Any) -> str:
        return server_entry(self.name, "stdio", sys.executable, PROGRAM, self.file, **keys)

    def offer(self, *tools: Any, **others: Sequence[Any]) -> None:
        """Replaces everything it offered and announces the change."""
        assert self.hub is not None
        self.offers = {"tools": tools, **others}
        self.write()
        self.hub.call(f"{self.name}.look")


@contextmanager
def run_configurable_hub(place: Path, config: str = "", **servers: dict[str, Any]) -> Iterator[Any]:
    """Of each server the keys of its entry, and `offers`, what it offers from the start on."""
    made = {
        name: ConfigurableServer(place, name, keys.pop("offers", {}))
        for name, keys in servers.items()
    }
    entries = [made[name].entry(**keys) for name, keys in servers.items()]
    with run_module_hub(entries, config) as hub:
        for one in made.values():
            one.hub = hub
        hub.wait_connected(*servers)
        yield hub, made


class EntryPoints:
    """Reads everything the hub shows, through all entry points and in both eras."""

    def __init__(self, hub: RunningHub) -> None:
        self.hub = hub
        self._session = wire.Session(hub.mcp_url, "2025-11-25")
        self._relay = hub.relay()
        self._relay.initialize()

    def look(self) -> str:
        seen = []
        for method in LISTS:
            seen.append(self.hub.rpc(method)["result"])
            seen.append(self._session.request(method)["result"])
            seen.append(self._relay.request(method)["result"])
        seen += [self.hub.get(page).body.decode() for page in PAGES]
        return "\n".join(map(repr, seen))

    def answers(self, name: str) -> list[str]:
        """What a call of `name` comes to, by each door."""
        called = {"name": name, "arguments": {}}
        return [
            repr(self.hub.call(name)),
            repr(self._session.request("tools/call", called)),
            repr(self._relay.request("tools/call", called)),
            repr(self.hub.get(f"/api/tools/{quote(name)}").body),
        ]

    def close(self) -> None:
        self._relay.close()


def names(hub: RunningHub, what: str = "tools") -> dict[str, Any]:
    key = {"resources": "uri", "resourceTemplates": "uriTemplate"}.get(what, "name")
    method = {"resourceTemplates": "resources/templates"}.get(what, what)
    return {one[key]: one for one in hub.rpc(f"{method}/list")["result"][what]}


def held(hub: RunningHub) -> list[str]:
    """Lists definitions that are offered and quarantined."""
    pins = hub.api("/api/pins")["pins"]
    return sorted(f"{pin['kind']}:{pin['name']}" for pin in pins if pin["offered"])
