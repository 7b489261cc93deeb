"""A client of any A2A agent: finds it, speaks what it speaks, and answers in the words of 1.0.

What is read may be odd, what is written is not. The headers that an operator registered for an
agent go to the origin he registered and to no other, whatever the agent's card says. Nothing that
may have been done is asked for again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import uuid4

from dragoman.a2a.card_reading import card_in
from dragoman.a2a.dialects.ops import (
    CANCEL,
    CARD,
    GET,
    LIST,
    PUSH_DELETE,
    PUSH_GET,
    PUSH_LIST,
    PUSH_SET,
    SEND,
    STREAM,
    SUBSCRIBE,
    V01,
    V03,
)
from dragoman.a2a.discovery import Discovery, Found, Trust, origin_of, shown
from dragoman.a2a.errors import METHOD_NOT_FOUND, UNSUPPORTED_OPERATION, A2aError
from dragoman.a2a.hearing import EventStream, events, is_stream, one_event
from dragoman.a2a.probing import Peer, settle
from dragoman.a2a.ways import (
    HTTP_JSON,
    JSON_TYPE,
    HttpStatus,
    NotTaken,
    Way,
    Written,
    answered,
    written,
)
from dragoman.core.errors import BadReply, HubError
from dragoman.core.ports import HttpClient, Reply
from dragoman.wire.json import MAX_BYTES

SECONDS = 30.0
PROBE_SECONDS = 10.0
MAX_PEERS = 256


class A2aClient:
    """`headers` belong to the origin of `registered`; without one they are sent to nobody."""

    def __init__(
        self,
        http: HttpClient,
        headers: Mapping[str, str] | None = None,
        timeout: float = SECONDS,
        *,
        registered: str = "",
        trust: Trust | None = None,
        extensions: Iterable[str] = (),
    ) -> None:
        self.timeout = timeout
        self._http = http
        self._headers = {name.lower(): value for name, value in (headers or {}).items()}
        self._origin = origin_of(registered)
        self._registered = registered
        self._extensions = ",".join(extensions)
        self._discover = Discovery(http, self._headers, registered, timeout, trust)
        self._peers: OrderedDict[str, Peer] = OrderedDict()

    # --- finding it ----------------------------------------------------------------------------

    async def discover(self, url: str) -> Found:
        return await self._discover(url)

    async def peer(self, url: str) -> Peer:
        """The agent at `url`; what was found out about it holds as long as its card does."""
        found = await self._discover(url)
        peer = self._peers.get(url)
        if peer is None or (peer.found is not found and peer.found.raw != found.raw):
            peer = self._peers[url] = Peer(found)
            self._note_origins(peer)
            while len(self._peers) > MAX_PEERS:
                self._peers.popitem(last=False)
        return peer

    async def settled(self, url: str) -> Peer:
        """The same, when it is known which dialect it speaks."""
        peer = await self.peer(url)
        if peer.way is None:
            await settle(peer, self._probe)
        return peer

    def _note_origins(self, peer: Peer) -> None:
        for way in peer.ways:
            if self._headers and way.declared and origin_of(way.url) != self._origin:
                peer.note(
                    f'its card names "{shown(way.url)}", which is of another origin than '
                    f'"{shown(self._registered)}": the headers registered for that are not sent '
                    "there"
                )

    # --- operations ----------------------------------------------------------------------------

    async def send(self, url: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """`{"task": …}` or `{"message": …}`."""
        return await self._answer(url, SEND, request)

    async def get(self, url: str, id: str, history: int | None = None) -> dict[str, Any]:
        return await self._answer(url, GET, {"id": id, "historyLength": history})

    async def list(self, url: str, request: Mapping[str, Any]) -> dict[str, Any]:
        return await self._answer(url, LIST, request)

    async def cancel(self, url: str, id: str) -> dict[str, Any]:
        return await self._answer(url, CANCEL, {"id": id})

    async def set_push(self, url: str, config: Mapping[str, Any]) -> dict[str, Any]:
        return await self._answer(url, PUSH_SET, config)

    async def get_push(self, url: str, task: str, id: str) -> dict[str, Any]:
        return await self._answer(url, PUSH_GET, {"taskId": task, "id": id})

    async def list_push(self, url: str, task: str) -> dict[str, Any]:
        return await self._answer(url, PUSH_LIST, {"taskId": task})

    async def delete_push(self, url: str, task: str, id: str) -> None:
        await self._answer(url, PUSH_DELETE, {"taskId": task, "id": id})

    async def extended_card(self, url: str) -> dict[str, Any]:
        """In the words of 1.0."""
        found = await self.discover(url)
        return card_in(await self._answer(url, CARD, {}), found.url)

    async def stream(self, url: str, request: Mapping[str, Any]) -> EventStream:
        """Where the agent does not stream, its one answer."""
        peer = await self.settled(url)
        if peer.streams:
            try:
                return await self._stream(url, STREAM, request, None)
            except A2aError as problem:
                if problem.reason != UNSUPPORTED_OPERATION:
                    raise
                peer.note(f"its card says that it streams, but: {problem.message}")
        return EventStream(one_event(await self._answer(url, SEND, request)))

    async def subscribe(self, url: str, id: str, last: str | None = None) -> EventStream:
        """The task as it is now, then what happens to it; from `last` on where it has events with
        ids."""
        return await self._stream(url, SUBSCRIBE, {"id": id}, last)

    # --- the surface of the seed -----------------------------------------------------------------

    async def send_task(self, url: str, message: str, session_id: str | None = None) -> Any:
        """Sends text; the task, or the message that is the answer."""
        said = text_message(message, context=session_id)
        answer = await self.send(url, {"message": said})
        return answer.get("task") or answer.get("message")

    async def get_task(self, url: str, id: str) -> dict[str, Any]:
        return await self.get(url, id)

    # --- asking ----------------------------------------------------------------------------------

    async def _answer(self, url: str, op: str, request: Mapping[str, Any]) -> dict[str, Any]:
        peer = await self.settled(url)
        while True:
            way = await settle(peer, self._probe)
            try:
                value = await self._ask(way, op, request)
            except NotTaken as problem:
                await self._go_on(peer, way, op, problem)
                continue
            if not isinstance(value, dict):
                raise BadReply(f'"{op}" in {way} was answered with no object')
            return value

    async def _stream(
        self, url: str, op: str, request: Mapping[str, Any], last: str | None
    ) -> EventStream:
        peer = await self.settled(url)
        more = {"last-event-id": last} if last else {}
        while True:
            way = await settle(peer, self._probe)
            try:
                reply = await self._exchange(way, op, request, self.timeout, more)
                if not is_stream(reply):
                    data = await reply.body.read(MAX_BYTES)
                    event = answered(way, op, reply.status, data)
                    return EventStream(one_event(event))
            except NotTaken as problem:
                await self._go_on(peer, way, op, problem)
                continue
            return EventStream(events(way, op, reply), reply)

    async def _go_on(self, peer: Peer, way: Way, op: str, problem: NotTaken) -> None:
        """Another dialect is found for what was certainly not done; that an agent knows some
        operation less is no sign of another dialect."""
        if op == STREAM:
            raise A2aError(UNSUPPORTED_OPERATION, str(problem))
        if op != SEND:
            raise A2aError(METHOD_NOT_FOUND, str(problem))
        peer.drop(way)
        follower = next((each for each in peer.ways if each.url == way.url), None)
        if follower is None:
            peer.forget()
            raise A2aError(METHOD_NOT_FOUND, str(problem))
        try:
            follower = await settle(peer, self._probe)
        except HubError:
            pass  # it may still know how to be sent something
        peer.choose(follower, str(problem))

    async def _probe(self, way: Way, op: str, request: Mapping[str, Any]) -> Any:
        return await self._ask(way, op, request, min(self.timeout, PROBE_SECONDS))

    async def _ask(
        self, way: Way, op: str, request: Mapping[str, Any], timeout: float | None = None
    ) -> Any:
        reply = await self._exchange(way, op, request, timeout or self.timeout, {})
        if is_stream(reply):  # to somebody who asked for one answer
            stream = EventStream(events(way, op, reply), reply)
            try:
                async for event in stream:
                    return event
            finally:
                await stream.close()
            raise BadReply(f'"{op}" in {way} was answered with an empty stream')
        return answered(way, op, reply.status, await reply.body.read(MAX_BYTES))

    async def _exchange(
        self,
        way: Way,
        op: str,
        request: Mapping[str, Any],
        timeout: float,
        more: Mapping[str, str],
    ) -> Reply:
        asked = written(way, op, request)
        reply = await self._send(way, asked, timeout, more)
        if way.binding == HTTP_JSON and reply.status == 415:
            # 1.0.0 had no media type of its own.
            reply.body.close()
            asked.headers["content-type"] = JSON_TYPE
            reply = await self._send(way, asked, timeout, more)
        elif way.binding == HTTP_JSON and op == SUBSCRIBE and reply.status in (404, 405):
            data = await reply.body.read(MAX_BYTES)
            if reply.status == 404 and b"TASK_NOT_FOUND" in data:
                answered(way, op, reply.status, data)
            reply = await self._send(way, written(way, op, request, other=True), timeout, more)
        if reply.status in (401, 403) and self._withheld(way):
            reply.body.close()
            raise HttpStatus(
                f"{way} wants credentials (HTTP {reply.status}), and those registered for "
                f'"{shown(self._registered)}" are not sent to another origin; register the agent '
                "by the address that its card names, if that is meant",
                reply.status,
            )
        return reply

    async def _send(
        self, way: Way, asked: Written, timeout: float, more: Mapping[str, str]
    ) -> Reply:
        headers = {} if self._origin is None or self._withheld(way) else dict(self._headers)
        headers.update(asked.headers)
        headers.update(more)
        if self._extensions and way.version != V01:
            prefix = "x-" if way.version == V03 else ""
            headers[f"{prefix}a2a-extensions"] = self._extensions
        return await self._http.request(
            asked.method, asked.url, headers, asked.body, timeout=timeout
        )

    def _withheld(self, way: Way) -> bool:
        return bool(self._headers) and origin_of(way.url) != self._origin


def text_message(
    text: str, *, context: str | None = None, task: str | None = None
) -> dict[str, Any]:
    """A message of the user's, in the words of 1.0."""
    return user_message([{"text": text}], context=context, task=task)


def user_message(
    parts: Iterable[Mapping[str, Any]], *, context: str | None = None, task: str | None = None
) -> dict[str, Any]:
    message: dict[str, Any] = {
        "messageId": str(uuid4()),
        "role": "ROLE_USER",
        "parts": list(parts),
    }
    if context:
        message["contextId"] = context
    if task:
        message["taskId"] = task
    return message
