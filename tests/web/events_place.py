"""The event streams and the dispatches on a real socket, in front of a road of their own."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.skill_hub import SkillHub
from tests.web.serving import Place, Sources

from dragoman.core.principal import Principal
from dragoman.stores.dispatches import DispatchStore
from dragoman.web.api import Api
from dragoman.web.api_dispatches import DispatchesApi
from dragoman.web.app import TcpApp
from dragoman.web.auth import AllowedNames, Authenticator
from dragoman.web.events import EventStreams
from dragoman.web.http.listener import HttpListener
from dragoman.web.peer_process import ALONE


class Ground(Place):
    def __init__(
        self, port: int, listener: HttpListener, road: SkillHub, streams: EventStreams
    ) -> None:
        self.port = port
        self.listener = listener
        self.road = road
        self.streams = streams
        self.answers = []

    async def listen(self, who: str = "boss", query: str = "", **headers: str) -> Heard:
        answer = await self.send("GET", f"/api/events{query}", who=who, **headers)
        assert (answer.status, answer.streams) == (200, True), answer.status
        return Heard(answer)

    async def get(self, path: str, who: str = "boss") -> tuple[int, Any]:
        answer = await self.send("GET", path, who=who)
        return answer.status, await answer.json()


class Heard:
    """What one who listens is told."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.last = ""

    async def next(self) -> tuple[str, Any]:
        event = await self.answer.event()
        self.last = event.id or self.last
        return event.event, json.loads(event.data)

    async def names(self, count: int) -> list[str]:
        return [(await self.next())[0] for _ in range(count)]


@asynccontextmanager
async def ground(home: Path) -> AsyncIterator[Ground]:
    road = SkillHub()
    streams, store = EventStreams(road.hub), DispatchStore(home, 1_000)
    store.observe(road.bus)
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    auth = Authenticator(None, lambda key: Principal("key", key), lambda: True)
    api = Api(road.hub, Sources(), parts=[DispatchesApi(road.hub, store)])
    names = AllowedNames("127.0.0.1", None, [], [])
    listener = HttpListener(TcpApp(auth, names, {"/api/events": streams}, api, peers=ALONE), sock)
    await listener.start()
    made = Ground(sock.getsockname()[1], listener, road, streams)
    try:
        yield made
    finally:
        road.agent.go.set()
        streams.close()
        await listener.drain(0.5)
        listener.abort()
        await store.close()
        for answer in made.answers:
            answer.close()
