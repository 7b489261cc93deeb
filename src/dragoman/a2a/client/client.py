"""A client of any A2A agent: finds it, speaks what it speaks, and answers in the words of 1.0.

What is read may be odd, what is written is not. The headers that an operator registered for an
agent go to the origin he registered and to no other, whatever the agent's card says. Nothing that
may have been done is asked for again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from importlib import import_module
from random import getrandbits
from time import monotonic
from typing import TYPE_CHECKING, Any

from dragoman.a2a.client.card_discovery import (
    LOOPBACK,
    CardDiscovery,
    CardTrust,
    FoundCard,
    is_same_origin,
    parse_origin,
)
from dragoman.a2a.client.dialect_probe import ProbedAgent, probe_endpoints
from dragoman.a2a.client.endpoint import (
    GRPC,
    HTTP_JSON,
    JSON_TYPE,
    JSONRPC,
    A2aErrorStatus,
    AgentHttpStatus,
    Endpoint,
    HttpCall,
    NotUnderstood,
    build_http_call,
    parse_reply,
    words_in,
)
from dragoman.a2a.client.event_stream import EventStream, is_stream, read_events, yield_event
from dragoman.a2a.config import WIRE_SKILL_ONLY
from dragoman.a2a.protocol.dialects.operations import (
    CANCEL,
    GET,
    LIST,
    SEND,
    SKILL_ONLY_03,
    STREAM,
    SUBSCRIBE,
)
from dragoman.a2a.protocol.errors import (
    METHOD_NOT_FOUND,
    PERMISSION_DENIED,
    UNAUTHENTICATED,
    UNSUPPORTED_OPERATION,
    A2aError,
)
from dragoman.core.errors import BadReply, HubError, TimedOut, Unreachable
from dragoman.core.ports import AddressFinder, FixedHeaders, HttpClient, Reply
from dragoman.core.read_pacing import PER_SECOND, Pace
from dragoman.core.trace import headers_of
from dragoman.core.urls import render_origin
from dragoman.wire import rpc
from dragoman.wire.json import MAX_BYTES

if TYPE_CHECKING:
    from dragoman.a2a.client.grpc_channels import GrpcChannels

SECONDS = 30.0
PROBE_SECONDS = 10.0
MAX_AGENTS = 256
RETURN_IMMEDIATELY: Mapping[str, Any] = {"returnImmediately": True}
"""The configuration of a message whose task is to be told of as soon as it has a name."""
AUTO = "auto"
TLS = ("https", "https")

NO_HEADERS: Mapping[str, str] = {}


class A2aClient:
    """`headers` belong to the origin of `registered`; without one they are sent to nobody.

    Agents are named by their URL; by a `Peer` where it is to be as it was found then, whatever its
    card says now. `more` are headers that go with one request, `timeout` its own time.
    """

    def __init__(
        self,
        http: HttpClient,
        headers: Mapping[str, str] | None = None,
        timeout: float = SECONDS,
        *,
        registered: str = "",
        trust: CardTrust | None = None,
        extensions: Iterable[str] = (),
        wire: str = AUTO,
        events_per_second: float = PER_SECOND,
    ) -> None:
        """With `wire` "skill-only" the agent gets bare skill calls, and is not asked what it
        speaks. Events that come faster than `events_per_second`, after as many at once, wait."""
        self.timeout = timeout
        self.wire = wire
        self._http = http
        self._headers = {name.lower(): value for name, value in (headers or {}).items()}
        self._origin = parse_origin(registered)
        self._registered = registered
        self._extensions = ",".join(extensions)
        self._fixed: dict[tuple[str, bool], FixedHeaders] = {}
        """What goes with every message to these addresses, with extensions and without."""
        self._discovery = CardDiscovery(http, self._headers, registered, timeout, trust)
        self._agents: OrderedDict[str, ProbedAgent] = OrderedDict()
        self._channels: GrpcChannels | None = None
        self._pace = Pace(events_per_second)

    # --- finding it ----------------------------------------------------------------------------

    async def discover(self, url: str) -> FoundCard:
        return await self._discovery(url)

    async def find_agent(self, url: str) -> ProbedAgent:
        """The agent at `url`; what was found out about it holds as long as its card does."""
        return self._cache_agent(url, await self._discovery(url))

    async def refetch_card(self, url: str) -> FoundCard:
        """Its card as it is now; from then on nothing is gone by but what is adopted."""
        return await self._discovery.refetch(url)

    def adopt_card(self, url: str, found: FoundCard) -> ProbedAgent:
        self._discovery.adopt(url, found)
        return self._cache_agent(url, found)

    def _cache_agent(self, url: str, found: FoundCard) -> ProbedAgent:
        probed = self._agents.get(url)
        if probed is None or (probed.found is not found and probed.found.raw != found.raw):
            probed = self._agents[url] = ProbedAgent(found)
            self._note_foreign_origins(probed)
            while len(self._agents) > MAX_AGENTS:
                self._agents.popitem(last=False)
        return probed

    async def find_probed(self, where: str | ProbedAgent) -> ProbedAgent:
        """The same, when it is known which dialect it speaks."""
        probed = where if isinstance(where, ProbedAgent) else await self.find_agent(where)
        if probed.endpoint is None:
            await self._choose_endpoint(probed)
        return probed

    async def _choose_endpoint(self, probed: ProbedAgent) -> Endpoint:
        if probed.endpoint is not None:
            return probed.endpoint
        if self.wire == WIRE_SKILL_ONLY:
            named = (
                endpoint.url
                for endpoint in probed.endpoints
                if endpoint.declared and endpoint.binding == JSONRPC
            )
            probed.endpoint = Endpoint(
                JSONRPC, SKILL_ONLY_03, next(named, probed.found.asked), declared=True
            )
            return probed.endpoint
        return await probe_endpoints(probed, self._probe)

    def _note_foreign_origins(self, probed: ProbedAgent) -> None:
        for endpoint in probed.endpoints:
            if endpoint.declared and self._withholds_credentials(endpoint):
                probed.add_finding(
                    f'its card names "{render_origin(endpoint.url)}", which is of another origin '
                    f'than "{render_origin(self._registered)}": the headers registered for that '
                    "are not sent there"
                )

    # --- operations ----------------------------------------------------------------------------

    async def send_message(
        self,
        where: str | ProbedAgent,
        request: Mapping[str, Any],
        more: Mapping[str, str] = NO_HEADERS,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """`{"task": …}` or `{"message": …}`."""
        return await self._request(where, SEND, request, more, timeout)

    async def get_task(
        self,
        where: str | ProbedAgent,
        id: str,
        history: int | None = None,
        more: Mapping[str, str] = NO_HEADERS,
    ) -> dict[str, Any]:
        return await self._request(where, GET, {"id": id, "historyLength": history}, more)

    async def list_tasks(
        self, where: str | ProbedAgent, request: Mapping[str, Any]
    ) -> dict[str, Any]:
        return await self._request(where, LIST, request)

    async def cancel_task(
        self, where: str | ProbedAgent, id: str, more: Mapping[str, str] = NO_HEADERS
    ) -> dict[str, Any]:
        return await self._request(where, CANCEL, {"id": id}, more)

    async def stream_message(
        self,
        where: str | ProbedAgent,
        request: Mapping[str, Any],
        more: Mapping[str, str] = NO_HEADERS,
        timeout: float | None = None,
    ) -> EventStream:
        """Where the agent does not stream, its one answer."""
        probed = await self.find_probed(where)
        if probed.can_stream:
            try:
                return await self._open_stream(probed, STREAM, request, more, timeout)
            except A2aError as problem:
                if problem.reason != UNSUPPORTED_OPERATION:
                    raise
                probed.add_finding(f"its card says that it streams, but: {problem.message}")
        return EventStream(yield_event(await self._request(probed, SEND, request, more, timeout)))

    async def subscribe(
        self,
        where: str | ProbedAgent,
        id: str,
        last: str | None = None,
        more: Mapping[str, str] = NO_HEADERS,
    ) -> EventStream:
        """The task as it is now, then what happens to it; from `last` on where it has events with
        ids."""
        more = {**more, "last-event-id": last} if last else more
        return await self._open_stream(where, SUBSCRIBE, {"id": id}, more)

    # --- asking ----------------------------------------------------------------------------------

    async def say(
        self,
        probed: ProbedAgent,
        message: dict[str, Any],
        beside: Mapping[str, str],
        timeout: float | None,
    ) -> dict[str, Any]:
        """`send`, of a message that need not be waited for; `beside` is the trace. The way of most
        is short: what is always the same of a request is written once."""
        endpoint = probed.endpoint
        request = {"message": message, "configuration": RETURN_IMMEDIATELY}
        if (
            endpoint is None
            or self._headers
            or endpoint.tenant
            or not endpoint.traits.is_native
            or endpoint.binding != JSONRPC
        ):
            return await self.send_message(probed, request, headers_of(beside), timeout)
        key = endpoint.url, "extensions" in message
        fixed = self._fixed.get(key)
        if fixed is None:
            asked = build_http_call(endpoint, SEND, request)
            fixed = FixedHeaders(self._add_extensions(endpoint, asked.headers))
            if len(self._fixed) < MAX_AGENTS:
                self._fixed[key] = fixed
        body = rpc.request(message["messageId"], SEND, request)
        until = monotonic() + (timeout or self.timeout)
        try:
            reply = await self._http.request(
                "POST",
                endpoint.url,
                fixed,
                body,
                timeout=timeout or self.timeout,
                extra_headers=headers_of(beside),
            )
            if reply.status == 200 and reply.headers.get("content-type") == JSON_TYPE:
                data = await reply.body.read(MAX_BYTES)
                found = words_in(data)  # as the answer to most is
                if found is not None:
                    return {"message": found}
                value = parse_reply(endpoint, SEND, reply.status, data)
            else:
                value = await self._read_reply(endpoint, SEND, reply, until)
        except NotUnderstood as problem:
            await self._switch_dialect(
                probed, endpoint, SEND, problem, {_without_declared(endpoint)}
            )
            return await self.send_message(probed, request, headers_of(beside), timeout)
        if not isinstance(value, dict):
            raise BadReply(f'"{SEND}" in {endpoint} was answered with no object')
        return value

    async def _request(
        self,
        where: str | ProbedAgent,
        op: str,
        request: Mapping[str, Any],
        more: Mapping[str, str] = NO_HEADERS,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        probed = where if isinstance(where, ProbedAgent) else await self.find_agent(where)
        tried: set[Endpoint] = set()
        while True:
            endpoint = probed.endpoint or await self._choose_endpoint(probed)
            try:
                value = await self._request_once(endpoint, op, request, timeout, more)
            except NotUnderstood as problem:
                tried.add(_without_declared(endpoint))
                await self._switch_dialect(probed, endpoint, op, problem, tried)
                continue
            if not isinstance(value, dict):
                raise BadReply(f'"{op}" in {endpoint} was answered with no object')
            return value

    async def _open_stream(
        self,
        where: str | ProbedAgent,
        op: str,
        request: Mapping[str, Any],
        more: Mapping[str, str],
        timeout: float | None = None,
    ) -> EventStream:
        probed = await self.find_probed(where)
        while True:
            endpoint = probed.endpoint or await self._choose_endpoint(probed)
            try:
                if endpoint.binding == GRPC:
                    seconds = timeout or self.timeout
                    return EventStream(
                        await self._request_grpc(
                            endpoint, op, request, seconds, more, streamed=True
                        )
                    )
                reply = await self._exchange(endpoint, op, request, timeout or self.timeout, more)
                if not is_stream(reply):
                    data = await reply.body.read(MAX_BYTES)
                    event = parse_reply(endpoint, op, reply.status, data, reply.secrets)
                    return EventStream(yield_event(event))
            except NotUnderstood as problem:
                await self._switch_dialect(probed, endpoint, op, problem, set())
                continue
            return EventStream(read_events(endpoint, op, reply, self._pace), reply)

    async def _switch_dialect(
        self,
        probed: ProbedAgent,
        endpoint: Endpoint,
        op: str,
        problem: NotUnderstood,
        tried: set[Endpoint],
    ) -> None:
        """Another dialect is found for what was certainly not done; that an agent knows some
        operation less is no sign of another dialect. One that was `tried` may look new again: 0.1
        is told apart from 0.3 by asking."""
        if op == STREAM:
            raise A2aError(UNSUPPORTED_OPERATION, str(problem))
        if op != SEND:
            raise A2aError(METHOD_NOT_FOUND, str(problem))
        if not endpoint.traits.negotiable:
            raise _build_unknown_method(problem)
        probed.drop_endpoint(endpoint)
        follower = next((each for each in probed.endpoints if each.url == endpoint.url), None)
        if follower is None:
            probed.reset()
            raise _build_unknown_method(problem)
        try:
            follower = await self._choose_endpoint(probed)
        except HubError:
            pass  # it may still know how to be sent something
        if _without_declared(follower) in tried:
            probed.reset()
            raise _build_unknown_method(problem)
        probed.use_endpoint(follower, str(problem))

    async def _probe(self, endpoint: Endpoint, op: str, request: Mapping[str, Any]) -> Any:
        return await self._request_once(endpoint, op, request, min(self.timeout, PROBE_SECONDS))

    async def _request_once(
        self,
        endpoint: Endpoint,
        op: str,
        request: Mapping[str, Any],
        timeout: float | None = None,
        more: Mapping[str, str] = NO_HEADERS,
    ) -> Any:
        if endpoint.binding == GRPC:
            return await self._request_grpc(endpoint, op, request, timeout or self.timeout, more)
        until = monotonic() + (timeout or self.timeout)
        reply = await self._exchange(endpoint, op, request, timeout or self.timeout, more)
        return await self._read_reply(endpoint, op, reply, until)

    # --- gRPC -------------------------------------------------------------------------------------

    async def _request_grpc(
        self,
        endpoint: Endpoint,
        op: str,
        request: Mapping[str, Any],
        timeout: float,
        more: Mapping[str, str],
        *,
        streamed: bool = False,
    ) -> Any:
        """The answer to one operation, or the events of one that is `streamed`."""
        http = self._http
        if not isinstance(http, AddressFinder):
            raise Unreachable(f"{endpoint} cannot be reached from here", sent=False)
        channels = self._channels
        if channels is None:
            # It needs an extra, and takes longer to load than others should wait.
            loaded = await asyncio.to_thread(import_module, "dragoman.a2a.client.grpc_channels")
            channels = self._channels = self._channels or loaded.GrpcChannels(http.find_addresses)
        headers = (
            {}
            if self._origin is None or self._withholds_credentials(endpoint)
            else dict(self._headers)
        )
        headers |= {"a2a-version": endpoint.version, **more}
        message = request.get("message")
        if (
            isinstance(message, dict)
            and "extensions" in message
            and endpoint.traits.message_extensions_in_header
        ):
            headers["a2a-extensions"] = ",".join(message["extensions"])
        headers = http.fill(self._add_extensions(endpoint, headers))
        try:
            if streamed:
                return await channels.stream(endpoint, op, request, headers, timeout, self._pace)
            return await channels.request(endpoint, op, request, headers, timeout)
        except A2aError as error:
            if error.reason in (UNAUTHENTICATED, PERMISSION_DENIED) and self._withholds_credentials(
                endpoint
            ):
                raise self._build_withheld_error(endpoint, error.codes.http) from None
            raise

    def _build_withheld_error(self, endpoint: Endpoint, status: int) -> AgentHttpStatus:
        return AgentHttpStatus(
            f"{endpoint} wants credentials (HTTP {status}), and those registered for "
            f'"{render_origin(self._registered)}" are not sent to another origin; '
            "register the agent by the address that its card names, if that is meant",
            status,
        )

    async def close(self) -> None:
        """Ends the connections that are its own; those over HTTP are the hub's."""
        channels, self._channels = self._channels, None
        if channels is not None:
            await channels.close()

    # --- HTTP -------------------------------------------------------------------------------------

    async def _read_reply(self, endpoint: Endpoint, op: str, reply: Reply, until: float) -> Any:
        """The one answer that was asked for, which comes by then: a stream is no answer as long as
        it has comments only."""
        if is_stream(reply):
            stream = EventStream(read_events(endpoint, op, reply, self._pace), reply)
            try:
                async with asyncio.timeout(until - monotonic()):
                    async for event in stream:
                        return event
            except TimeoutError:
                raise TimedOut(
                    f'"{op}" in {endpoint} was answered with a stream that said nothing in time; '
                    "raise the agent's timeout_secs if it needs more"
                ) from None
            finally:
                await stream.close()
            raise BadReply(f'"{op}" in {endpoint} was answered with an empty stream')
        data = await reply.body.read(MAX_BYTES)
        return parse_reply(endpoint, op, reply.status, data, reply.secrets)

    async def _exchange(
        self,
        endpoint: Endpoint,
        op: str,
        request: Mapping[str, Any],
        timeout: float,
        more: Mapping[str, str],
    ) -> Reply:
        asked = build_http_call(endpoint, op, request)
        reply = await self._send(endpoint, asked, timeout, more)
        if endpoint.binding == HTTP_JSON and reply.status == 415:
            # 1.0.0 had no media type of its own.
            reply.body.close()
            asked.headers["content-type"] = JSON_TYPE
            reply = await self._send(endpoint, asked, timeout, more)
        elif endpoint.binding == HTTP_JSON and op == SUBSCRIBE and reply.status in (404, 405):
            data = await reply.body.read(MAX_BYTES)
            if reply.status == 404 and b"TASK_NOT_FOUND" in data:
                parse_reply(endpoint, op, reply.status, data, reply.secrets)
            reply = await self._send(
                endpoint, build_http_call(endpoint, op, request, other=True), timeout, more
            )
        if reply.status in (401, 403) and self._withholds_credentials(endpoint):
            reply.body.close()
            raise self._build_withheld_error(endpoint, reply.status)
        return reply

    async def _send(
        self, endpoint: Endpoint, asked: HttpCall, timeout: float, more: Mapping[str, str]
    ) -> Reply:
        headers = (
            {}
            if self._origin is None or self._withholds_credentials(endpoint)
            else dict(self._headers)
        )
        headers.update(asked.headers)
        headers.update(more)
        return await self._http.request(
            asked.method,
            asked.url,
            self._add_extensions(endpoint, headers),
            asked.body,
            timeout=timeout,
        )

    def _add_extensions(self, endpoint: Endpoint, headers: dict[str, str]) -> dict[str, str]:
        if self._extensions and (name := endpoint.traits.extensions_header):
            said = headers.get(name)
            headers[name] = f"{said},{self._extensions}" if said else self._extensions
        return headers

    def _withholds_credentials(self, endpoint: Endpoint) -> bool:
        """gRPC has a port of its own: there the host counts, which TLS proves, or which is this
        machine."""
        if not self._headers:
            return False
        origin, own = parse_origin(endpoint.url), self._origin
        if endpoint.binding != GRPC or origin is None or own is None:
            return not is_same_origin(origin, own)
        local = origin.host in LOOPBACK and own.host in LOOPBACK
        return not local and (origin.host != own.host or (origin.scheme, own.scheme) != TLS)


def _without_declared(endpoint: Endpoint) -> Endpoint:
    """Whether a card says so is no difference."""
    return endpoint._replace(declared=False)


def _build_unknown_method(problem: NotUnderstood) -> A2aError:
    error = A2aError(METHOD_NOT_FOUND, str(problem))
    return error if 200 <= problem.status < 300 else A2aErrorStatus(error, problem.status)


def build_text_message(
    text: str, *, context: str | None = None, task: str | None = None
) -> dict[str, Any]:
    """A message of the user's, in the words of 1.0."""
    return build_user_message([{"text": text}], context=context, task=task)


def build_user_message(
    parts: Iterable[Mapping[str, Any]], *, context: str | None = None, task: str | None = None
) -> dict[str, Any]:
    message: dict[str, Any] = {
        "messageId": f"{getrandbits(128):032x}",  # a name, not a secret
        "role": "ROLE_USER",
        "parts": list(parts),
    }
    if context:
        message["contextId"] = context
    if task:
        message["taskId"] = task
    return message
