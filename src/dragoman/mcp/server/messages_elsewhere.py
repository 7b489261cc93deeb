"""Messages of clients that another hub has to answer, where the request itself cannot be forwarded:
its session or its connection is here, and the task, question or result that it names is there.

The hub of the client sends the message and what it knows of the client. The owner answers it as if
the client were its own, and what it pushes goes back the same way: the client's responses to pushed
requests are sent to the owner, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, nullcontext, suppress
from functools import partial
from typing import Any

from dragoman.core.background import Background, resolve, start_task
from dragoman.core.call import LEVELS
from dragoman.core.cluster import (
    FrameSink,
    OwnedElsewhere,
    OwnerRequests,
    Ownership,
    find_mark,
    make_id,
    prepay,
)
from dragoman.core.errors import HubError, StorageFailed, Unreachable
from dragoman.core.principal import Principal
from dragoman.core.tool_filter import EVERYTHING, View
from dragoman.core.trace import HEADERS as TRACE_HEADERS
from dragoman.core.views import NamedView, Views
from dragoman.mcp.protocol.errors import encode_error
from dragoman.mcp.protocol.revisions import LATEST, REVISIONS, Revision
from dragoman.mcp.server.client_questions import MAX_ASKED, deliver_response, drop_pending
from dragoman.mcp.server.client_state import ClientState, Push
from dragoman.wire import rpc
from dragoman.wire.json import decode, encode

PART = "mcp"
FOLLOW_SECONDS = 3.0
"""How long another hub has to begin to listen to its tasks."""
RETRY_SECONDS = 1.0
"""How long to wait before a notification is sent again to a client that did not read it."""
MAX_CLIENTS = 5_000
"""Clients of other hubs whose messages are being answered."""

_CLIENT, _PUSHED, _RESULT, _ERROR = b"c", b"p", b"r", b"e"
"""The kinds of frames, each its first byte."""

Answer = Callable[..., Awaitable[bytes | None]]
"""`McpServer.answer`."""


class ForwardedClient(ClientState):
    """A client of another hub, for one message."""

    __slots__ = ()
    is_of_another_hub = True


class MessagesElsewhere:
    def __init__(
        self, owners: OwnerRequests, ownership: Ownership, views: Views, answer: Answer
    ) -> None:
        self._owners = owners
        self._ownership = ownership
        self._views = views
        self._answer = answer
        self._clients: dict[str, ForwardedClient] = {}
        """The clients of other hubs that can be asked, by the id that they have here."""
        self._background = Background("messages to other hubs")

    # --- at the hub of the client ----------------------------------------------------------------

    async def answer(
        self,
        other: OwnedElsewhere,
        message: Mapping[str, Any],
        client: ClientState,
        push: Push | None,
        fields: Mapping[bytes, bytes],
    ) -> bytes | None:
        """Returns the owner's response to a request."""
        id = rpc.find_id(message)
        try:
            body = _encode_client(client, push, fields) | {"message": message}
            frames = await self._owners.open(
                other.mark, PART, client.principal, encode(body), is_charged=other.is_charged
            )
            if frames is None:
                return await self._answer_here(other, message, client, push, fields)
            return await self._relay(frames, client, push)
        except HubError as error:
            return encode_error(id, error, client.revision)

    async def _answer_here(
        self,
        other: OwnedElsewhere,
        message: Mapping[str, Any],
        client: ClientState,
        push: Push | None,
        fields: Mapping[bytes, bytes],
    ) -> bytes | None:
        """Answers what this hub owns by now."""
        try:
            with prepay() if other.is_charged else nullcontext():
                return await self._answer(message, client, push, fields)
        except OwnedElsewhere:
            raise Unreachable("the owner of the request has just changed", sent=False) from None

    async def _relay(
        self, frames: AsyncIterator[bytes], client: ClientState, push: Push | None
    ) -> bytes | None:
        there = ""
        asked: set[Any] = set()
        try:
            async with aclosing(frames):  # type: ignore[type-var]
                async for frame in frames:
                    kind, data = frame[:1], frame[1:]
                    if kind == _CLIENT:
                        there = data.decode()
                    elif kind == _PUSHED and push is not None:
                        self._push(data, client, push, there, asked)
                    elif kind == _RESULT:
                        return data
                    elif kind == _ERROR:
                        return _parse_error(data)
        finally:
            for key in asked:
                resolve(client.pending.pop(key, None), None)
        raise Unreachable("the hub that answered was lost")

    def _push(
        self, data: bytes, client: ClientState, push: Push, there: str, asked: set[Any]
    ) -> None:
        """Sends the client what the owner pushes; the response to a question goes to the owner."""
        message = decode(data)
        id = message.get("id")
        if id is None:
            cancelled = rpc.find_cancelled(message)
            if cancelled is not None:
                client.pending.pop(cancelled, None)
            push(data)
            return
        key = rpc.build_key(id)
        if len(client.pending) >= MAX_ASKED or not push(data):
            refusal = decode(rpc.encode_error(id, rpc.INTERNAL_ERROR, "the client cannot be asked"))
            self._respond(client, there, refusal)
            return
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        client.pending[key] = answered
        asked.add(key)
        answered.add_done_callback(partial(self._deliver, client, there))

    def _deliver(self, client: ClientState, there: str, answered: asyncio.Future[Any]) -> None:
        if not answered.cancelled() and isinstance(answered.result(), dict):
            self._respond(client, there, answered.result())

    def _respond(self, client: ClientState, there: str, response: Mapping[str, Any]) -> None:
        self._background.spawn(self._send_response(client, there, response))

    async def _send_response(
        self, client: ClientState, there: str, response: Mapping[str, Any]
    ) -> None:
        body = encode({"client": there, "response": response})
        try:
            mark = find_mark(there)
            frames = await self._owners.open(mark, PART, client.principal, body, is_charged=True)
            if frames is not None:
                async with aclosing(frames):  # type: ignore[type-var]
                    async for _ in frames:
                        pass
        except HubError:
            pass  # the question is lost with its hub, and the request fails

    async def list_tasks(self, client: ClientState) -> list[dict[str, Any]]:
        """Lists the tasks of the client's principal at the other hubs that respond in time."""
        message = {"jsonrpc": "2.0", "id": 1, "method": "tasks/list", "params": {}}
        found: list[dict[str, Any]] = []
        try:
            body = _encode_client(client, None, {}) | {"message": message}
        except Unreachable:
            return found
        for frames in await self._owners.ask_others(PART, client.principal, encode(body)):
            for frame in frames:
                if frame[:1] == _RESULT:
                    found += decode(frame[1:])["result"]["tasks"]
        return found

    async def follow_tasks(
        self, marks: Mapping[str, str], id: rpc.Id, params: Mapping[str, Any], client: ClientState
    ) -> list[FollowedTasks]:
        """Listens to tasks of other hubs, for a `subscriptions/listen` with that id and those
        parameters. `marks` are those of the ids of the tasks. Hubs that do not respond and tasks
        that they do not have are left out."""
        found: dict[str, list[str]] = {}
        for task, mark in marks.items():
            with suppress(StorageFailed):
                if owner := await self._owners.find_owner(mark):
                    found.setdefault(owner, []).append(task)
        asked = [self._follow(owner, tasks, id, params, client) for owner, tasks in found.items()]
        return [one for one in await asyncio.gather(*asked) if one is not None]

    async def _follow(
        self,
        owner: str,
        tasks: list[str],
        id: rpc.Id,
        params: Mapping[str, Any],
        client: ClientState,
    ) -> FollowedTasks | None:
        wanted = {"_meta": params["_meta"], "notifications": {"taskIds": tasks}}
        message = {"jsonrpc": "2.0", "id": id, "method": "subscriptions/listen", "params": wanted}
        frames: AsyncIterator[bytes] | None = None
        try:
            body = {**_encode_client(client, None, {}), "pushes": True, "message": message}
            async with asyncio.timeout(FOLLOW_SECONDS):
                frames = await self._owners.open(
                    owner, PART, client.principal, encode(body), is_charged=True
                )
                if frames is None:
                    return None
                async for frame in frames:
                    if frame[:1] == _PUSHED:  # the acknowledgement
                        granted = decode(frame[1:])["params"]["notifications"]["taskIds"]
                        return FollowedTasks(granted, frames)
                    if frame[:1] != _CLIENT:
                        break
        except (HubError, TimeoutError):
            pass
        if frames is not None:
            await frames.aclose()  # type: ignore[attr-defined]
        return None

    # --- at the owner ----------------------------------------------------------------------------

    async def serve(self, principal: Principal, body: bytes, sink: FrameSink) -> None:
        """Serves another hub; a `core.cluster.ServeFrames`."""
        sent = decode(body)
        if "response" in sent:
            client = self._clients.get(sent["client"])
            if client is not None and client.principal == principal:
                deliver_response(sent["response"], client)
            return
        client, trace = self._build_client(principal, sent)
        try:
            push = None
            if sent["pushes"]:
                push = partial(_push_frame, sink)
                await sink.write(_CLIENT + client.client.encode())
            await sink.write(await self._answer_forwarded(sent["message"], client, push, trace))
        finally:
            self._clients.pop(client.client, None)
            drop_pending(client)

    async def _answer_forwarded(
        self,
        message: Mapping[str, Any],
        client: ForwardedClient,
        push: Push | None,
        fields: Mapping[bytes, bytes],
    ) -> bytes:
        try:
            answer = await self._answer(message, client, push, fields)
        except OwnedElsewhere as other:
            try:  # this hub may not have known that it is the heir
                if await self._owners.find_owner(other.mark):
                    raise Unreachable("the hubs disagree on its owner", sent=False)
                answer = await self._answer_here(other, message, client, push, fields)
            except HubError as error:
                answer = encode_error(rpc.find_id(message), error, client.revision)
        kind = _ERROR if isinstance(answer, rpc.EncodedError) else _RESULT
        return kind + (answer or b"")

    def _build_client(
        self, principal: Principal, sent: Mapping[str, Any]
    ) -> tuple[ForwardedClient, dict[bytes, bytes]]:
        view: View = self._parse_view(sent["view"])
        revision: Revision = REVISIONS.get(sent["revision"], LATEST)
        client = ForwardedClient(principal, sent["door"], view, revision)
        client.features = sent["features"]
        client.client_name = sent["client_name"]
        client.log_level = sent["log_level"] if sent["log_level"] in LEVELS else None
        if sent["can_respond"] and len(self._clients) < MAX_CLIENTS:
            client.client = make_id(self._ownership)
            self._clients[client.client] = client
        return client, {k.encode(): v.encode("latin-1") for k, v in sent["trace"].items()}

    def _parse_view(self, sent: Mapping[str, Any]) -> View:
        if sent["name"]:
            return self._views.get_bound(sent["name"])
        view = View(tuple(sent["patterns"]), sent["agents"])
        return EVERYTHING if view == EVERYTHING else view


class FollowedTasks:
    """Tasks of another hub that a `subscriptions/listen` follows."""

    def __init__(self, ids: list[str], frames: AsyncIterator[bytes]) -> None:
        self.ids = ids
        self._frames = frames
        self._relaying: asyncio.Task[None] | None = None

    def begin(self, push: Push) -> None:
        """Sends the client the notifications of the other hub."""
        self._relaying = start_task(self._relay(push))

    def stop(self) -> None:
        start_task(self._end())

    async def _end(self) -> None:
        if self._relaying is not None:
            self._relaying.cancel()
            await asyncio.wait([self._relaying])
        await self._frames.aclose()  # type: ignore[attr-defined]

    async def _relay(self, push: Push) -> None:
        with suppress(HubError):
            async for frame in self._frames:
                while frame[:1] == _PUSHED and not push(frame[1:]):
                    await asyncio.sleep(RETRY_SECONDS)  # the client does not read


def _push_frame(sink: FrameSink, message: bytes) -> bool:
    return sink.send(_PUSHED + message)


def _encode_client(
    client: ClientState, push: Push | None, fields: Mapping[bytes, bytes]
) -> dict[str, Any]:
    view = client.view
    if type(view) is not View and not isinstance(view, NamedView):
        raise Unreachable("this endpoint does not reach other hubs of the cluster", sent=False)
    return {
        "door": client.door,
        "view": {"name": view.name, "patterns": view.patterns, "agents": view.agents},
        "revision": client.revision.name,
        "features": dict(client.features),
        "client_name": client.client_name,
        "log_level": client.log_level,
        "pushes": push is not None,
        "can_respond": push is not None and bool(client.client),
        "trace": {
            name: fields[name.encode()].decode("latin-1")
            for name in TRACE_HEADERS
            if name.encode() in fields
        },
    }


def _parse_error(data: bytes) -> rpc.EncodedError:
    error = rpc.EncodedError(data)
    error.code = decode(data)["error"]["code"]
    return error
