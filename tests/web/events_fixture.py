"""The event streams and dispatches on a real socket, with their own pipeline."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.skill_hub import SkillHub
from tests.web.mcp_http_fixture import HubRig, Sources

from dragoman.core.principal import Principal
from dragoman.stores.dispatches import DispatchStore
from dragoman.web.api import Api
from dragoman.web.api_dispatches import DispatchesApi
from dragoman.web.app import TcpApp
from dragoman.web.auth import AllowedNames, Authenticator
from dragoman.web.events import EventStreams
from dragoman.web.http.listener import HttpListener
from dragoman.web.peer_process import ALONE


class EventsRig(HubRig):
    def __init__(
        self, port: int, listener: HttpListener, skill_hub: SkillHub, streams: EventStreams
    ) -> None:
        self.port = port
        self.listener = listener
        self.skill_hub = skill_hub
        self.streams = streams
        self.answers = []

    async def listen(self, who: str = "boss", query: str = "", **headers: str) -> EventListener:
        answer = await self.send("GET", f"/api/events{query}", who=who, **headers)
        assert (answer.status, answer.streams) == (200, True), answer.status
        return EventListener(answer)

    async def get(self, path: str, who: str = "boss") -> tuple[int, Any]:
        answer = await self.send("GET", path, who=who)
        return answer.status, await answer.json()


class EventListener:
    """The events of one listener."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.last = ""

    async def next(self) -> tuple[str, Any]:
        event = await self.answer.event()
        self.last = event.id or self.last
        return event.event, json.loads(event.data)

    async def names(self, count: int) -> list[str]:
        return [(await self.next())[0] for _ in range(count)]


class NoDecisions:
    """A hub whose router has decided nothing."""

    def offer(self) -> None:
        pass

    def explain(self, id: str, org: str, caller: str | None) -> dict[str, Any] | None:
        return None


@asynccontextmanager
async def run_events_server(home: Path) -> AsyncIterator[EventsRig]:
    skill_hub = SkillHub()
    streams, store = EventStreams(skill_hub.hub), DispatchStore(home, 1_000)
    store.observe(skill_hub.bus)
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    auth = Authenticator(None, lambda key: Principal("key", key), lambda: True)
    api = Api(
        skill_hub.hub, Sources(), parts=[DispatchesApi(skill_hub.hub, store, NoDecisions(), {})]
    )
    names = AllowedNames("127.0.0.1", None, [], [])
    listener = HttpListener(TcpApp(auth, names, {"/api/events": streams}, api, peers=ALONE), sock)
    await listener.start()
    made = EventsRig(sock.getsockname()[1], listener, skill_hub, streams)
    try:
        yield made
    finally:
        skill_hub.agent.go.set()
        streams.close()
        await listener.drain(0.5)
        listener.abort()
        await store.close()
        for answer in made.answers:
            answer.close()
