"""`GET /api/events`: live events as server-sent events.

A principal gets the events of its own calls, and with `admin` all events; never those of tools that
it may not list. Without listeners no events are built. `event_payloads` renders them.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import translate
from time import monotonic, time
from typing import Any

from dragoman.core import errors
from dragoman.core.access import WhyEnded, require_scope
from dragoman.core.bus import End
from dragoman.core.call import Call
from dragoman.core.event_payloads import EVENT_NAMES, redact_event, render_event
from dragoman.core.events import (
    AgentChanged,
    ApprovalDecided,
    ApprovalRequested,
    Event,
    PostVerb,
    RunChanged,
    StepChanged,
    VerbError,
)
from dragoman.core.hub import Hub
from dragoman.core.principal import Principal
from dragoman.core.rate_limiter import REQUEST
from dragoman.core.redaction import render_name, shorten
from dragoman.core.scopes import APPROVE, USERS
from dragoman.core.tool import Nowhere, Tool
from dragoman.core.tool_filter import EVERYTHING
from dragoman.core.tool_identity import BUILTIN
from dragoman.web.activity import ACTIVITY, ActivityCounter
from dragoman.web.api import NO_SNIFF, ApiResponse, build_error, decode_query, response_from_error
from dragoman.web.openapi import EVENTS
from dragoman.wire import sse
from dragoman.wire.http import HttpRequest
from dragoman.wire.json import encode

MAX_STREAMS, MAX_EACH = 128, 4
MAX_EACH_ADMIN = 64
"""Streams of one administrator: each visible tab of the console has one."""
MAX_KEPT = 1_000
MAX_KEPT_BYTES = 4 * 1024 * 1024
MAX_WAITING = 256
"""Events queued for a client that does not read; more are dropped and counted."""
MAX_WAITING_BYTES = 1024 * 1024
MAX_EVENT = 64 * 1024
"""Longer events are sent without arguments."""
KEEPALIVE_SECONDS = 15.0
LINGER_SECONDS = 30.0
"""How long events are kept after the last stream has ended."""
STREAM_SECONDS = 300.0
"""The duration of a stream; the client then opens another one."""
RETRY = b"retry: 1000\n\n"

DROPPED = "dropped"
_FILTERS = ("phase", "verb", "agent", "outcome", "trace", "run", "args")


class SentEvent:
    """An event, and the data that decides who gets it."""

    __slots__ = (
        "agents", "approval", "id", "name", "org", "outcome", "owner", "run", "tool", "trace",
        "verb", "who",
    )  # fmt: skip

    def __init__(self, id: int, event: Event, name: str) -> None:
        self.id = id
        self.name = name
        call: Call | None = getattr(event, "call", None)
        self.tool: Tool | None = call.tool if call is not None else None
        self.who: Principal | None = call.principal if call is not None else None
        """The principal of the call; None for events of the hub."""
        self.org: str = getattr(event, "org", "")
        """Of the agent that has published the event, or of a request for approval; empty for other
        events."""
        self.approval = event if isinstance(event, ApprovalRequested | ApprovalDecided) else None
        self.run: str = ""
        """Of a workflow; empty for other events."""
        self.owner = ""
        """The label of the principal that started the run."""
        if isinstance(event, RunChanged | StepChanged):
            self.run, self.owner = event.run, event.owner
        self.verb = shorten(render_name(call.tool.name, call.tool.kind)) if call is not None else ""
        self.trace = call.trace.id if call is not None else ""
        bridged = call.tool.bridged if call is not None else None
        self.agents: tuple[str, ...] = (bridged.agent, bridged.card_id) if bridged else ()
        if isinstance(event, AgentChanged):
            self.agents = (event.agent,)
        self.outcome = "failed" if isinstance(event, VerbError) else ""
        if isinstance(event, PostVerb):
            self.outcome = event.outcome


@dataclass(frozen=True, slots=True)
class EventFilter:
    phases: frozenset[str]
    verb: re.Pattern[str] | None
    agent: str | None
    outcome: str | None
    trace: str | None
    run: str | None = None

    def wants(self, name: str) -> bool:
        """Whether events of this name are wanted. `activity` must be named: it repeats others."""
        return name in self.phases or (not self.phases and name != ACTIVITY)

    def matches(self, one: SentEvent) -> bool:
        return (
            (not self.phases or one.name in self.phases)
            and (self.verb is None or self.verb.match(one.verb) is not None)
            and (self.agent is None or self.agent in one.agents)
            and (self.outcome is None or self.outcome == one.outcome)
            and (self.trace is None or self.trace == one.trace)
            and (self.run is None or self.run == one.run)
        )


class ApiEventStream:
    def __init__(
        self, hub: Hub, request: HttpRequest, principal: Principal, asked: EventFilter, args: bool
    ) -> None:
        self.request = request
        self.principal = principal
        self._hub = hub
        self.asked = asked
        self._args = args
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._dropped = 0
        self._version = -1
        self._admin = False
        self._woken = asyncio.Event()
        self.is_closed = False

    @property
    def is_admin(self) -> bool:
        if self._version != self._hub.authorizer.version:
            self._version = self._hub.authorizer.version
            self._admin = self._hub.authorizer.decide_action(self.principal, USERS).allowed
        return self._admin

    @property
    def with_args(self) -> bool:
        return self._args and self.is_admin

    def is_entitled(self, one: SentEvent) -> bool:
        if not self.asked.matches(one):
            return False
        if one.approval is not None:
            return self._may_see_approval(one.approval)
        if one.run and one.owner == self.principal.label and one.org == self.principal.org:
            return True
        if one.who is None or one.tool is None:
            return self.is_admin and one.org in ("", self.principal.org)
        if one.who != self.principal and not (self.is_admin and one.who.org == self.principal.org):
            return False
        if isinstance(one.tool.target, Nowhere):
            return True
        if one.tool.target.name == BUILTIN and self.is_admin:
            return True  # tools of agents, which no client need be able to list
        return self._hub.authorizer.can_list(self.principal, one.tool)

    def _may_see_approval(self, event: ApprovalRequested | ApprovalDecided) -> bool:
        """Administrators, the requester, and who may approve calls of the tool."""
        principal, hub = self.principal, self._hub
        if event.org != principal.org:
            return False
        if self.is_admin or event.requester == principal.label:
            return True
        tool = hub.find(event.title, EVERYTHING)
        known = None if isinstance(tool.target, Nowhere) else tool
        return hub.authorizer.decide_action(principal, APPROVE, known).allowed

    def enqueue(self, data: bytes) -> None:
        if len(self._waiting) < MAX_WAITING and self._waiting_bytes < MAX_WAITING_BYTES:
            self._waiting.append(data)
            self._waiting_bytes += len(data)
        else:
            self._dropped += 1
        self._woken.set()

    def close(self) -> None:
        self.is_closed = True
        self._woken.set()

    def revoke(self) -> None:
        """Closes the stream without sending queued events."""
        self._waiting.clear()
        self.close()

    async def write_until_end(self) -> None:
        """Writes events until the client disconnects or the stream ends."""
        end = monotonic() + STREAM_SECONDS
        self.request.gone.add_done_callback(lambda _: self.close())
        while not self.is_closed and monotonic() < end:
            if not self._waiting:
                await self._wait_or_keep_alive()
            pieces = [*self._waiting]
            self._waiting.clear()
            self._waiting_bytes = 0
            if self._dropped:
                pieces.append(encode_dropped(self._dropped))
                self._dropped = 0
            if pieces:
                await self.request.write(b"".join(pieces))

    async def _wait_or_keep_alive(self) -> None:
        self._woken.clear()
        try:
            async with asyncio.timeout(KEEPALIVE_SECONDS):
                await self._woken.wait()
        except TimeoutError:
            self._waiting.append(sse.KEEPALIVE)


class EventStreams:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._streams: list[ApiEventStream] = []
        self._each: Counter[Principal] = Counter()
        self._kept: deque[tuple[SentEvent, bytes]] = deque()
        self._kept_bytes = 0
        self._missed = 0
        """The id of the last event that is no longer kept."""
        self._last = 0
        self._ends: dict[type[Event], End] = {}
        """What ends the observation of each kind of event. Kinds that no stream wants are not
        observed, so that calls cost nothing for them."""
        self._begun: dict[type[Event], int] = {}
        """The id from which on each of them is kept."""
        self._activity = ActivityCounter(hub.bus, self._send_activity)
        self._linger: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._streams)

    def count_by_principal(self) -> Mapping[Principal, int]:
        """Counts the open streams of each principal."""
        return dict(self._each)

    def close(self) -> None:
        """Ends all streams properly and accepts no more."""
        self._closed = True
        for stream in self._streams:
            stream.close()
        self._stop_observing()

    def end_principals(self, why_ended: WhyEnded) -> None:
        for stream in self._streams:
            if why_ended(stream.principal):
                stream.revoke()

    async def __call__(
        self, request: HttpRequest, principal: Principal, run: str | None = None
    ) -> None:
        """Serves `GET /api/events`, or the events of one run."""
        if request.method != "GET":
            return send_reply(request, build_error(405, "use GET", (b"allow", b"GET")))
        try:
            charged = self._hub.limiter.charge(principal, REQUEST, "GET /api/events")
            if charged is not None:
                await charged
            require_scope(principal, EVENTS.right)
            stream = self._open_stream(request, principal, run)
            last = _parse_last_id(request.fields.get(b"last-event-id"))
        except errors.HubError as error:
            return send_reply(request, response_from_error(error))
        request.start(200, [*sse.HEADERS, NO_SNIFF])
        request.send(RETRY)
        self._observe_bus(stream.asked)
        if last is not None:
            self._replay(stream, last)
        self._streams.append(stream)
        self._each[principal] += 1
        try:
            await stream.write_until_end()
            request.end()
        finally:
            self._remove(stream)

    def _open_stream(
        self, request: HttpRequest, principal: Principal, run: str | None
    ) -> ApiEventStream:
        accept = request.fields.get(b"accept", b"*/*").lower()
        if b"event-stream" not in accept and b"*" not in accept:
            raise errors.InvalidInput("invalid Accept header: only text/event-stream is available")
        if self._closed:
            raise errors.ShuttingDown("the hub is shutting down")
        is_admin = self._hub.authorizer.decide_action(principal, USERS).allowed
        most = MAX_EACH_ADMIN if is_admin else MAX_EACH
        if len(self._streams) >= MAX_STREAMS or self._each[principal] >= most:
            raise errors.Overloaded(
                f"too many event streams: at most {MAX_STREAMS}, and {most} per principal; "
                "close another one, or try again later"
            )
        query = decode_query(request.query)
        asked = parse_filter(query if run is None else {**query, "run": run})
        args = query.get("args", "0")
        if args not in ("0", "1"):
            raise errors.InvalidInput("args must be 0 or 1")
        stream = ApiEventStream(self._hub, request, principal, asked, args == "1")
        if args == "1" and not stream.is_admin:
            raise errors.AuthorizationError(
                f'"{principal.label}" may not read arguments: that needs a policy that permits '
                'the action "users"; omit args=1'
            )
        return stream

    def _remove(self, stream: ApiEventStream) -> None:
        self._streams.remove(stream)
        self._each[stream.principal] -= 1
        if not self._each[stream.principal]:
            del self._each[stream.principal]
        if not self._closed:
            if self._linger is not None:
                self._linger.cancel()
            loop = stream.request.loop
            self._linger = loop.call_later(LINGER_SECONDS, self._stop_unused)
            if not any(one.asked.wants(ACTIVITY) for one in self._streams):
                self._activity.stop()

    # --- listening --------------------------------------------------------------------------------

    def _observe_bus(self, asked: EventFilter) -> None:
        for kind, name in EVENT_NAMES.items():
            if kind not in self._ends and asked.wants(name):
                self._begun[kind] = self._next_id()
                self._ends[kind] = self._hub.bus.observe(
                    kind, self._distribute, "the observer for event streams"
                )
        if asked.wants(ACTIVITY):
            self._activity.start()

    def _stop_unused(self) -> None:
        """Ends the observation of kinds that no stream wants any more."""
        for kind in [*self._ends]:
            if not any(one.asked.wants(EVENT_NAMES[kind]) for one in self._streams):
                self._ends.pop(kind)()
        if not self._streams:
            self._kept.clear()
            self._kept_bytes = 0

    def _stop_observing(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
        for end in self._ends.values():
            end()
        self._ends = {}
        self._activity.stop()
        self._kept.clear()
        self._kept_bytes = 0

    def _send_activity(self) -> None:
        for stream in self._streams:
            if not stream.asked.wants(ACTIVITY):
                continue
            principal, activity = stream.principal, self._activity
            calls, failed = (
                activity.sum_org(principal.org) if stream.is_admin else activity.sum_own(principal)
            )
            if calls:
                said = encode({"calls": calls, "failed": failed})
                stream.enqueue(sse.encode_event(said, name=ACTIVITY))

    def _next_id(self) -> int:
        """Returns an ascending id, also across restarts, which does not reveal the number of
        events of other principals."""
        self._last = max(self._last + 1, int(time() * 1_000_000))
        return self._last

    def _distribute(self, event: Event) -> None:
        found = render_event(event)
        if found is None:
            return
        name, said = found
        call: Call | None = getattr(event, "call", None)
        one = SentEvent(self._next_id(), event, name)
        plain = redact_event(said, call)
        data = sse.encode_event(encode(plain), name=name, id=str(one.id))
        self._keep(one, data)
        whole: bytes | None = None
        for stream in self._streams:
            if stream.is_entitled(one):
                if stream.with_args and whole is None:
                    whole = _encode_with_arguments(said, one) or data
                stream.enqueue(whole if whole is not None and stream.with_args else data)

    def _keep(self, one: SentEvent, data: bytes) -> None:
        self._kept.append((one, data))
        self._kept_bytes += len(data)
        while len(self._kept) > MAX_KEPT or self._kept_bytes > MAX_KEPT_BYTES:
            gone, lost = self._kept.popleft()
            self._kept_bytes -= len(lost)
            self._missed = gone.id

    def _replay(self, stream: ApiEventStream, last: int) -> None:
        """Sends the kept events after `last`, without arguments, and whether some are lost."""
        pieces = [data for one, data in self._kept if one.id > last and stream.is_entitled(one)]
        begun = [self._begun[kind] for kind in self._ends if stream.asked.wants(EVENT_NAMES[kind])]
        if last < max([self._missed, *begun]):
            pieces.insert(0, encode_dropped(None))
        if pieces:
            stream.request.send(b"".join(pieces))


def parse_filter(query: Mapping[str, str]) -> EventFilter:
    if unknown := query.keys() - set(_FILTERS):
        raise errors.InvalidInput(
            f'unknown parameter "{min(unknown)[:100]}"; use {", ".join(_FILTERS)}'
        )
    if any(len(value) > 500 for value in query.values()):
        raise errors.InvalidInput("a parameter is too long: at most 500 characters")
    phases = frozenset(filter(None, query.get("phase", "").split(",")))
    if strange := phases - {ACTIVITY, *EVENT_NAMES.values()}:
        known = ", ".join((*EVENT_NAMES.values(), ACTIVITY))
        raise errors.InvalidInput(f'unknown phase "{min(strange)}"; use {known}')
    outcome = query.get("outcome")
    if outcome not in (None, "completed", "failed"):
        raise errors.InvalidInput("outcome must be completed or failed")
    verb = query.get("verb")
    pattern = re.compile(translate(verb)) if verb is not None else None
    return EventFilter(
        phases, pattern, query.get("agent"), outcome, query.get("trace"), query.get("run")
    )


def encode_dropped(count: int | None) -> bytes:
    """Encodes how many events were dropped; None if unknown. Has no id, so that a client resumes
    from the last event that it got."""
    return sse.encode_event(encode({"count": count}), name=DROPPED)


def _encode_with_arguments(said: Mapping[str, Any], one: SentEvent) -> bytes | None:
    try:
        data = encode(said)
    except Exception:  # not encodable, such as integers over 64 bits
        return None
    return sse.encode_event(data, name=one.name, id=str(one.id)) if len(data) <= MAX_EVENT else None


def _parse_last_id(given: bytes | None) -> int | None:
    if given is None:
        return None
    if not given.isdigit() or len(given) > 18:
        raise errors.InvalidInput("invalid Last-Event-ID; omit it")
    return int(given)


def send_reply(request: HttpRequest, response: ApiResponse) -> None:
    headers = [(b"content-type", response.content_type.encode()), *response.headers]
    request.reply(response.status, headers, response.body)
