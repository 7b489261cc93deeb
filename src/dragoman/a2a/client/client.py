"""A client for A2A agents of every dialect: finds, probes and calls them in the form of 1.0.

Reads leniently and writes strictly. Credentials that an operator registered for an agent go to the
registered origin and to no other, whatever the agent's card says. A request that may have been
acted on is never sent again.
"""

from __future__ import annotations

import asyncio
import copy
from collections import OrderedDict
from collections.abc import Awaitable, Iterable, Mapping
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING, Any

from dragoman.a2a.client.card_discovery import (
    LOOPBACK,
    CardDiscovery,
    CardTrust,
    FoundCard,
    is_same_origin,
)
from dragoman.a2a.client.dialect_probe import ProbedAgent, probe_endpoints
from dragoman.a2a.client.endpoint import (
    GRPC,
    HTTP_JSON,
    JSON_TYPE,
    JSONRPC,
    A2aErrorStatus,
    AgentHttpStatus,
    AgentRequest,
    Endpoint,
    HttpCall,
    NotUnderstood,
    build_headers,
    build_http_call,
    parse_reply,
)
from dragoman.a2a.client.event_stream import AgentEventStream, is_stream, read_events, yield_event
from dragoman.a2a.config import WIRE_SKILL_ONLY
from dragoman.a2a.protocol import errors
from dragoman.a2a.protocol.dialects import SPOKEN
from dragoman.a2a.protocol.dialects.operations import (
    CANCEL,
    CARD,
    GET,
    LIST,
    SEND,
    SKILL_ONLY_03,
    STREAM,
    SUBSCRIBE,
)
from dragoman.a2a.protocol.errors import A2aError
from dragoman.core.errors import BadReply, HubError, TimedOut, Unreachable
from dragoman.core.read_pacing import PER_SECOND, Pace
from dragoman.core.structs import replace
from dragoman.core.urls import parse_origin, render_origin
from dragoman.wire.http import NO_HEADERS, AddressFinder, FixedHeaders, HttpClient, HttpReply
from dragoman.wire.json import MAX_BYTES
from dragoman.wire.masked_replies import list_secret_words

if TYPE_CHECKING:
    from dragoman.a2a.client.grpc_channels import GrpcChannels

SECONDS = 30.0
PROBE_SECONDS = 10.0
MAX_AGENTS = 256
RETURN_IMMEDIATELY: Mapping[str, Any] = {"returnImmediately": True}
"""The configuration of a message whose task is wanted as soon as it has an id."""
AUTO = "auto"
TLS = ("https", "https")


class A2aClient:
    """Sends `headers`, an operator's credentials, to the origin of `registered` and to no other.

    Methods take an agent's URL, or a `ProbedAgent` to use its card as it was found. `headers` of a
    method are those of one request.
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
        """With `wire` "skill-only" the agent gets bare skill calls and is not probed for its
        dialect. Events beyond `events_per_second`, after a burst of as many, are read later."""
        self.timeout = timeout
        self.wire = wire
        self._http = http
        self._headers = {name.lower(): value for name, value in (headers or {}).items()}
        self._origin = parse_origin(registered)
        self._registered = registered
        self._extensions = ",".join(extensions)
        self._fixed: dict[tuple[Endpoint, str, str], FixedHeaders] = {}
        """By endpoint, content type and the message's extensions."""
        self._discovery = CardDiscovery(http, self._headers, registered, timeout, trust)
        self._agents: OrderedDict[str, ProbedAgent] = OrderedDict()
        self._channels: GrpcChannels | None = None
        self._pace = Pace(events_per_second)

    def share(self, http: HttpClient) -> A2aClient:
        """Returns a client of the same agent, with all that is known of it, that sends its requests
        with another HTTP client, whose credential they have. Cards are fetched as before."""
        other = copy.copy(self)
        other._http, other._channels = http, None
        return other

    # --- discovery -----------------------------------------------------------------------------

    async def discover(self, url: str) -> FoundCard:
        return await self._discovery(url)

    async def find_agent(self, url: str) -> ProbedAgent:
        """Finds the agent at `url`; its probe results are kept until its card changes."""
        return self._cache_agent(url, await self._discovery(url))

    async def refetch_card(self, url: str) -> FoundCard:
        """Fetches the card again. After this, only cards passed to `adopt_card` are used."""
        return await self._discovery.refetch(url)

    def adopt_card(self, url: str, found: FoundCard) -> ProbedAgent:
        self._discovery.adopt(url, found)
        return self._cache_agent(url, found)

    async def fetch_extended_card(self, probed: ProbedAgent) -> FoundCard:
        """Asks an agent, whose card says that it has one, for its extended card."""
        raw = await self._request(probed, CARD, {})
        return self._discovery.parse_extended(probed.found, raw)

    def _cache_agent(self, url: str, found: FoundCard) -> ProbedAgent:
        probed = self._agents.get(url)
        if probed is None or (probed.found is not found and probed.found.raw != found.raw):
            probed = self._agents[url] = ProbedAgent(found)
            self._note_foreign_origins(probed)
            while len(self._agents) > MAX_AGENTS:
                self._agents.popitem(last=False)
        return probed

    async def find_probed(self, agent: str | ProbedAgent) -> ProbedAgent:
        """Like `find_agent`, after probing for the dialect."""
        probed = agent if isinstance(agent, ProbedAgent) else await self.find_agent(agent)
        await self._choose_endpoint(probed)
        return probed

    async def _choose_endpoint(self, probed: ProbedAgent) -> Endpoint:
        if probed.endpoint is not None:
            return probed.endpoint
        if self.wire == WIRE_SKILL_ONLY:
            named = (one.url for one in probed.endpoints if one.declared and one.binding == JSONRPC)
            url = next(named, probed.found.asked)
            return probed.use_endpoint(Endpoint(JSONRPC, SKILL_ONLY_03, url, declared=True))
        return await probe_endpoints(probed, self._probe)

    async def _probe(self, endpoint: Endpoint, op: str, request: Mapping[str, Any]) -> Any:
        seconds = min(self.timeout, PROBE_SECONDS)
        return await self._request_once(AgentRequest(endpoint, op, request, NO_HEADERS, seconds))

    def _note_foreign_origins(self, probed: ProbedAgent) -> None:
        for endpoint in probed.endpoints:
            if endpoint.declared and self._withholds_credentials(endpoint):
                probed.add_finding(
                    f'its card names "{render_origin(endpoint.url)}", which is of another origin '
                    f'than "{render_origin(self._registered)}": the credentials registered for the '
                    "agent are not sent there"
                )

    # --- operations ----------------------------------------------------------------------------

    def send_message(
        self,
        agent: str | ProbedAgent,
        request: Mapping[str, Any],
        headers: Mapping[str, str] = NO_HEADERS,
        timeout: float | None = None,
    ) -> Awaitable[dict[str, Any]]:
        """Returns `{"task": …}` or `{"message": …}`."""
        return self._request(agent, SEND, request, headers, timeout)

    def get_task(
        self,
        agent: str | ProbedAgent,
        id: str,
        history: int | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> Awaitable[dict[str, Any]]:
        request = {"id": id} if history is None else {"id": id, "historyLength": history}
        return self._request(agent, GET, request, headers)

    def list_tasks(
        self, agent: str | ProbedAgent, request: Mapping[str, Any]
    ) -> Awaitable[dict[str, Any]]:
        given = {name: value for name, value in request.items() if value is not None}
        return self._request(agent, LIST, given)

    def cancel_task(
        self, agent: str | ProbedAgent, id: str, headers: Mapping[str, str] = NO_HEADERS
    ) -> Awaitable[dict[str, Any]]:
        return self._request(agent, CANCEL, {"id": id}, headers)

    async def stream_message(
        self,
        agent: str | ProbedAgent,
        request: Mapping[str, Any],
        headers: Mapping[str, str] = NO_HEADERS,
        timeout: float | None = None,
    ) -> AgentEventStream:
        """Streams the events of a message; of an agent that does not stream, its one answer."""
        probed = await self.find_probed(agent)
        if probed.can_stream:
            try:
                return await self._open_stream(probed, STREAM, request, headers, timeout)
            except A2aError as problem:
                if problem.reason != errors.UNSUPPORTED_OPERATION:
                    raise
                probed.add_finding(f"its card says that it streams, but: {problem.message}")
        answer = await self._request(probed, SEND, request, headers, timeout)
        return AgentEventStream(yield_event(answer))

    async def subscribe(
        self,
        agent: str | ProbedAgent,
        id: str,
        last: str | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> AgentEventStream:
        """Streams the task as it is now, then its events; those after the event with the id `last`,
        where the agent numbers them."""
        headers = {**headers, "last-event-id": last} if last else headers
        return await self._open_stream(agent, SUBSCRIBE, {"id": id}, headers)

    # --- requests --------------------------------------------------------------------------------

    async def _request(
        self,
        agent: str | ProbedAgent,
        op: str,
        params: Mapping[str, Any],
        headers: Mapping[str, str] = NO_HEADERS,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        probed = agent if isinstance(agent, ProbedAgent) else await self.find_agent(agent)
        tried: set[Endpoint] = set()
        while True:
            endpoint = probed.endpoint or await self._choose_endpoint(probed)
            request = AgentRequest(endpoint, op, params, headers, timeout or self.timeout)
            try:
                value = await self._request_once(request)
            except NotUnderstood as problem:
                if op != SEND:  # another operation being unknown is no sign of another dialect
                    raise A2aError(errors.METHOD_NOT_FOUND, str(problem)) from problem
                tried.add(_without_declared(endpoint))
                await self._switch_dialect(probed, endpoint, problem, tried)
                continue
            if not isinstance(value, dict):
                raise BadReply(f"{request}: the result is not an object")
            return value

    async def _switch_dialect(
        self, probed: ProbedAgent, endpoint: Endpoint, problem: NotUnderstood, tried: set[Endpoint]
    ) -> None:
        """Chooses another dialect for a message that was certainly not acted on. An endpoint that
        was `tried` may look new again: 0.1 is distinguished from 0.3 by probing."""
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
            pass  # it may still accept messages
        if _without_declared(follower) in tried:
            probed.reset()
            raise _build_unknown_method(problem)
        probed.use_endpoint(follower, str(problem))

    async def _request_once(self, request: AgentRequest) -> Any:
        if request.endpoint.binding == GRPC:
            return await self._request_grpc(request)
        until = monotonic() + request.timeout
        call = build_http_call(request)
        reply = await self._send(request, call)
        if reply.status >= 400:
            reply = await self._retry(request, call, reply)
        if reply.headers.get("content-type") != JSON_TYPE and is_stream(reply):
            return await self._read_first_event(request, reply, until)
        return parse_reply(request, reply, await reply.body.read(MAX_BYTES))

    async def _read_first_event(self, request: AgentRequest, reply: HttpReply, until: float) -> Any:
        """Reads the one result of a request that was answered with a stream."""
        stream = AgentEventStream(read_events(request, reply, self._pace), reply)
        try:
            async with asyncio.timeout(until - monotonic()):
                async for event in stream:
                    return event
        except TimeoutError:
            raise TimedOut(
                f"{request} timed out: its stream had no event in time; raise the agent's "
                "timeout_secs if it needs more"
            ) from None
        finally:
            await stream.close()
        raise BadReply(f"{request}: the stream is empty")

    async def _open_stream(
        self,
        agent: str | ProbedAgent,
        op: str,
        params: Mapping[str, Any],
        headers: Mapping[str, str],
        timeout: float | None = None,
    ) -> AgentEventStream:
        probed = agent if isinstance(agent, ProbedAgent) else await self.find_agent(agent)
        endpoint = await self._choose_endpoint(probed)
        request = AgentRequest(endpoint, op, params, headers, timeout or self.timeout)
        try:
            if endpoint.binding == GRPC:
                return AgentEventStream(await self._request_grpc(request, streamed=True))
            call = build_http_call(request)
            reply = await self._send(request, call)
            if reply.status >= 400:
                reply = await self._retry(request, call, reply)
            if is_stream(reply):
                return AgentEventStream(read_events(request, reply, self._pace), reply)
            event = parse_reply(request, reply, await reply.body.read(MAX_BYTES))
        except NotUnderstood as problem:
            reason = errors.UNSUPPORTED_OPERATION if op == STREAM else errors.METHOD_NOT_FOUND
            raise A2aError(reason, str(problem)) from problem
        return AgentEventStream(yield_event(event))

    # --- HTTP -------------------------------------------------------------------------------------

    def _send(self, request: AgentRequest, call: HttpCall) -> Awaitable[HttpReply]:
        endpoint, headers = request.endpoint, request.headers
        traits = SPOKEN[endpoint.version].TRAITS
        message, extensions = request.params.get("message"), ""
        if message and "extensions" in message and traits.message_extensions_in_header:
            extensions = ",".join(message["extensions"])
        key = endpoint, call.content_type, extensions
        fixed = self._fixed.get(key)
        if fixed is None:
            fixed = FixedHeaders(self._add_credentials(endpoint, build_headers(*key)))
            if len(self._fixed) < MAX_AGENTS:
                self._fixed[key] = fixed
        if self._extensions and traits.extensions_header in headers:
            headers = self._add_extensions(endpoint, dict(headers))
        return self._http.request(
            call.method, call.url, fixed, call.body, timeout=request.timeout, extra_headers=headers
        )

    async def _retry(self, request: AgentRequest, call: HttpCall, reply: HttpReply) -> HttpReply:
        """Sends a request again in the form that an HTTP+JSON server of another reading of the
        specification understands. Returns `reply` where that is not the reason for its status."""
        endpoint, is_rest = request.endpoint, request.endpoint.binding == HTTP_JSON
        if is_rest and reply.status == 415:
            # 1.0.0 had no media type of its own.
            reply.body.close()
            reply = await self._send(request, replace(call, content_type=JSON_TYPE))
        elif is_rest and request.op == SUBSCRIBE and reply.status in (404, 405):
            data = await reply.body.read(MAX_BYTES)
            if reply.status == 404 and b"TASK_NOT_FOUND" in data:
                parse_reply(request, reply, data)
            reply = await self._send(request, build_http_call(request, swap_method=True))
        if reply.status in (401, 403) and self._withholds_credentials(endpoint):
            reply.body.close()
            raise self._build_withheld_error(endpoint, reply.status)
        return reply

    def _add_credentials(self, endpoint: Endpoint, headers: dict[str, str]) -> dict[str, str]:
        """Adds the credentials where they may be sent, and the extensions of every request."""
        if self._origin is not None and not self._withholds_credentials(endpoint):
            headers = {**self._headers, **headers}
        return self._add_extensions(endpoint, headers)

    def _add_extensions(self, endpoint: Endpoint, headers: dict[str, str]) -> dict[str, str]:
        if self._extensions and (name := endpoint.traits.extensions_header):
            before = headers.get(name)
            headers[name] = f"{before},{self._extensions}" if before else self._extensions
        return headers

    def _withholds_credentials(self, endpoint: Endpoint) -> bool:
        """Whether the credentials are of another origin. gRPC has a port of its own: there the host
        must be the same, proven by TLS or on this machine."""
        if not self._headers:
            return False
        origin, own = parse_origin(endpoint.url), self._origin
        if endpoint.binding != GRPC or origin is None or own is None:
            return not is_same_origin(origin, own)
        local = origin.host in LOOPBACK and own.host in LOOPBACK
        return not local and (origin.host != own.host or (origin.scheme, own.scheme) != TLS)

    def _build_withheld_error(self, endpoint: Endpoint, status: int) -> AgentHttpStatus:
        return AgentHttpStatus(
            f"{endpoint} needs credentials (HTTP {status}), and those registered for "
            f'"{render_origin(self._registered)}" are not sent to another origin; register the '
            "agent by the address in its card if that is intended",
            status,
        )

    # --- gRPC -------------------------------------------------------------------------------------

    async def _request_grpc(self, request: AgentRequest, *, streamed: bool = False) -> Any:
        """Returns the result of one operation, or the events of one that is `streamed`."""
        http, endpoint = self._http, request.endpoint
        if not isinstance(http, AddressFinder):
            raise Unreachable(f"{endpoint} cannot be reached by this client", sent=False)
        channels = self._channels
        if channels is None:
            # In a thread: it needs an extra, and its import takes long.
            loaded = await asyncio.to_thread(import_module, "dragoman.a2a.client.grpc_channels")
            channels = self._channels = self._channels or loaded.GrpcChannels(http.find_addresses)
        own = {"a2a-version": endpoint.version}
        message = request.params.get("message")
        if message and "extensions" in message and endpoint.traits.message_extensions_in_header:
            own["a2a-extensions"] = ",".join(message["extensions"])
        headers = self._add_credentials(endpoint, {**own, **request.headers})
        filled = await http.fill(endpoint.url, headers)
        words = (list_secret_words(value, headers.get(name, "")) for name, value in filled.items())
        secrets = tuple(word for each in words for word in each)
        request = replace(request, headers=filled, secrets=secrets)
        try:
            if streamed:
                return await channels.stream(request, self._pace)
            return await channels.request(request)
        except A2aError as error:
            denied = error.reason in (errors.UNAUTHENTICATED, errors.PERMISSION_DENIED)
            if denied and self._withholds_credentials(endpoint):
                raise self._build_withheld_error(endpoint, error.codes.http) from None
            raise

    async def close(self) -> None:
        """Closes its gRPC connections; those over HTTP belong to the hub."""
        channels, self._channels = self._channels, None
        if channels is not None:
            await channels.close()


def _without_declared(endpoint: Endpoint) -> Endpoint:
    return endpoint._replace(declared=False)


def _build_unknown_method(problem: NotUnderstood) -> A2aError:
    error = A2aError(errors.METHOD_NOT_FOUND, str(problem))
    return error if 200 <= problem.status < 300 else A2aErrorStatus(error, problem.status)
