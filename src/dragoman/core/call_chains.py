"""Assigns calls to chains, and refuses a call whose chain has gone too far.

A call made on behalf of another belongs to that call's chain. The proof is what it carries: a token
signed by the hub, or the span of a running call. If a peer has stripped or forged that, the
credential decides: while a target serves calls, a call with that target's own credential belongs to
one of them. A call with neither starts a chain, and is bounded by the number of calls that one
target serves at once.
"""

from __future__ import annotations

import binascii
import hmac
import json
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b
from time import monotonic, time
from typing import NamedTuple

from dragoman.core.call import Call
from dragoman.core.errors import Looping, Overloaded, TooDeep
from dragoman.core.holders import find_holder_of, find_person
from dragoman.core.principal import Principal
from dragoman.core.secret_values import NO_SECRETS, SecretValues
from dragoman.core.structs import Struct
from dragoman.core.taint import LabelOrigin, Origins
from dragoman.core.trace import NO_LABELS, Trace, TraceContext

MAX_REMEMBERED = 10_000
"""Chains remembered after their first call has ended: what it started may continue."""
NAMED_BYTES = 1_500
"""Limit for the names in a chain token: servers refuse long headers."""
LONGEST_KEPT = 256
MAX_STATE = 512
RANDOM_BYTES = 24 * 256
MAC_BYTES = 16
_HANDLE = re.compile(r"(?!0{32})([0-9a-f]{32})\.")


class Chain(Struct, eq=False):
    """A first call and everything it led to."""

    id: str
    origin: str
    begun: float
    calls: int = 0
    labels: frozenset[str] = NO_LABELS
    """The taint labels that it has collected."""
    observed: frozenset[str] = NO_LABELS
    """Labels that its client's earlier calls have collected, where these are only observed."""
    origins: dict[str, LabelOrigin] | None = None
    """Where the labels came from, as far as known."""
    secrets: SecretValues = NO_SECRETS
    """The secrets that arguments may have, and no record."""
    root: Principal | None = None
    """Who made the first call; None if only a token is left of the chain, or another user has made
    a call in it."""

    def add_labels(self, origins: Origins) -> None:
        """Adds labels; the origin of a label that it already has stays."""
        new = {name: one for name, one in origins.items() if name not in self.labels}
        if new:
            self.labels = self.labels.union(new)
            self.origins = {**(self.origins or {}), **new}


class RunningCall(Struct, eq=False):
    """A running call; or, without a target, the last known call of a chain."""

    trace: Trace
    target: str
    principal: Principal | None
    chain: Chain
    parent: RunningCall | None
    """The call on whose behalf this one is made."""
    is_reentrant: bool = False
    """Whether its target may be called again meanwhile."""
    door: str = ""
    """The entry point of the call."""
    sources: frozenset[str] = NO_LABELS
    """The taint labels of what its target says, and of the targets that wait for it: the calls that
    a target makes while it serves this one have them."""

    @property
    def is_held(self) -> bool:
        """Whether `hold` has opened it. Only the hub knows its span."""
        return not self.target and self.principal is not None

    @property
    def enforced_labels(self) -> frozenset[str]:
        """The taint labels of a call made on behalf of this one."""
        labels = self.chain.labels
        return labels | self.sources if self.sources else labels

    @property
    def labels(self) -> frozenset[str]:
        """The same, and those that are only observed."""
        observed = self.chain.observed
        return self.enforced_labels | observed if observed else self.enforced_labels

    def list_waiting(self) -> Iterator[RunningCall]:
        """Lists this call and those that wait for it."""
        flight: RunningCall | None = self
        while flight is not None:
            yield flight
            flight = flight.parent


class ChainToken(NamedTuple):
    """The contents of the hub's signed token about a call: its trace and its chain."""

    trace: str
    span: str
    chain: str
    begun: int
    calls: int
    origin: str
    verbs: list[str]
    labels: list[str]


class CallChains:
    def __init__(
        self,
        key: bytes,
        *,
        depth: int = 5,
        calls: int = 64,
        seconds: float = 300.0,
        at_once: int = 400,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`at_once` is how many calls one target serves; one principal may have half of them."""
        key = hmac.digest(key, b"chains of calls", "sha256")
        self._keyed = blake2b(key=key, digest_size=MAC_BYTES)
        self._mark = f"{self._mac(b'the mark of this hub')[:8]}@dragoman="
        """The key of this hub's entry in a `tracestate`; every hub has its own."""
        self.set_limits(depth, calls, seconds, at_once)
        self._clock = clock
        self._epoch = time() - clock()
        self._running: dict[str, RunningCall] = {}
        """By span."""
        self._at: dict[str, dict[str, RunningCall]] = {}
        """The running calls of each target by span, the oldest first."""
        self._of: dict[tuple[str, str], int] = {}
        """How many of these each principal has."""
        self._live: dict[str, Chain] = {}
        """Chains whose first call is running, by id."""
        self._over: OrderedDict[str, Chain] = OrderedDict()
        """Chains whose first call has ended and that may continue. For all others the token
        suffices."""
        self._random = b""
        self._used = 0

    def set_limits(self, depth: int, calls: int, seconds: float, at_once: int) -> None:
        """Applies to calls from now on."""
        self.depth, self.calls, self.seconds, self.at_once = depth, calls, seconds, at_once
        self._each = max(1, at_once // 2)

    # --- assigning calls to chains ----------------------------------------------------------------

    def start_trace(
        self,
        principal: Principal,
        verb: str,
        target: str,
        carried: TraceContext | None,
        handle: str | None = None,
    ) -> Trace:
        """Starts the trace of a call. The handle of a question names the trace it was asked in."""
        id, span = self._make_ids()
        state = self._mark + span
        asked = _HANDLE.match(handle) if handle is not None else None
        if carried is None and not principal.serves:  # the common case
            return Trace(asked[1] if asked else id, (), span, verb, "", None, self._sign, state)
        above, is_ambiguous = self._find_parent(principal, target, carried)
        chain: tuple[str, ...] = ()
        origin = caller_span = ""
        is_sent = False
        if above is not None:
            id, origin, chain = above.trace.id, above.chain.origin, above.trace.chain
            chain = (*chain, above.trace.verb) if above.trace.verb else chain
        elif asked:
            id, is_sent = asked[1], carried is not None and carried.id == asked[1]
        elif carried is not None and carried.id:
            id, is_sent, caller_span = carried.id, True, carried.span
        if carried is not None and carried.state and carried.id == id:
            state = self._join_state(state, carried.state)
        return Trace(
            *(id, chain, span, verb, origin, above, self._sign, state, is_sent, is_ambiguous),
            caller_span,
        )

    def _find_parent(
        self, principal: Principal, target: str, carried: TraceContext | None
    ) -> tuple[RunningCall | None, bool]:
        """Finds the call on whose behalf this one is made, as far as known, and whether it may just
        as well be that of another user."""
        claimed = self._find_claimed_parent(carried) if carried is not None else None
        served = self._at.get(principal.serves) if principal.serves else None
        if not served or (
            claimed is not None and (claimed.target == principal.serves or claimed.is_held)
        ):
            return claimed, False
        # The credential outranks the token, which may be missing or another call's.
        waited = {id(one.parent) for one in self._at.get(target, {}).values()}
        found = max(served.values(), key=lambda flight: self._rank(flight, target, waited))
        return found, len({find_person(flight) for flight in served.values()}) > 1

    def _rank(self, flight: RunningCall, target: str, waited: set[int]) -> tuple[bool, bool, int]:
        """Prefers, among several possible parents, one that does not already wait for that target:
        otherwise a loop would continue at the expense of unrelated calls of the same agent. Then
        one under which the call is allowed, then the deepest."""
        fits = self._find_violation(flight, target, flight.trace.depth + 1) is None
        return id(flight) not in waited, fits, flight.trace.depth

    def _find_claimed_parent(self, carried: TraceContext) -> RunningCall | None:
        for span in (carried.span, self._find_own_span(carried.state)):
            flight = self._running.get(span)
            if flight is not None and flight.trace.id == carried.id:
                return flight  # only the callee knows the span
        words = self._open_token(carried.chain) if carried.chain else None
        if words is None:
            return None
        if (flight := self._running.get(words.span)) is not None:
            return flight
        chain = self._live.get(words.chain)
        if chain is None and (chain := self._over.get(words.chain)) is not None:
            self._over.move_to_end(words.chain)
        if chain is None:
            ago = max(0.0, time() - words.begun)
            chain = self._remember(Chain(words.chain, words.origin, self._clock() - ago))
            chain.calls, chain.labels = words.calls, frozenset(words.labels)
        # That call has ended; its verb is the last of the chain.
        return RunningCall(
            Trace(words.trace, tuple(words.verbs), words.span), "", None, chain, None
        )

    def _find_own_span(self, state: str) -> str:
        """Finds the hub's own span in a tracestate, which tracing libraries pass on unchanged."""
        _, _, after = f",{state}".replace(" ", "").partition("," + self._mark)
        return after[:16]

    def _join_state(self, own: str, state: str) -> str:
        """Trace Context 3.3: the newest entry first, the others unchanged."""
        for entry in state.split(",")[:31]:
            entry = entry.strip()
            if entry and not entry.startswith(self._mark):
                if len(own) + len(entry) >= MAX_STATE:
                    break
                own = f"{own},{entry}"
        return own

    # --- running calls ----------------------------------------------------------------------------

    def enter(self, call: Call) -> RunningCall:
        """Admits the call or raises. After it has ended, `leave` must be called."""
        trace, target = call.trace, call.tool.target.name
        above: RunningCall | None = trace.parent
        if above is None:
            chain = Chain(trace.span, call.principal.label, self._clock(), root=call.principal)
        else:
            chain = above.chain
            if chain.root != call.principal and find_holder_of(call.principal) is not None:
                chain.root = None  # what continues it later may be for either
            if (violation := self._find_violation(above, target, trace.depth)) is not None:
                kind, why = violation
                path = " → ".join([chain.origin, *trace.chain, call.tool.name])
                raise kind(f'"{call.tool.name}" was refused: {why}: {path}')
        served = self._at.get(target)
        if served is None:
            served = self._at[target] = {}
        key = (target, call.principal.key)
        count = self._of.get(key, 0)
        if len(served) >= self.at_once or count >= self._each:
            running = len(served) if count < self._each else count
            raise Overloaded(
                f'"{call.tool.name}" was refused: {running} calls to "{target}" are running; '
                "try again shortly or raise [limits] target_calls"
            )
        chain.calls += 1
        if above is None:
            self._live[chain.id] = chain
        reentrant = call.tool.target.traits.is_reentrant
        flight = RunningCall(trace, target, call.principal, chain, above, reentrant, call.door)
        served[trace.span] = self._running[trace.span] = flight
        self._of[key] = count + 1
        return flight

    def _find_violation(
        self, above: RunningCall, target: str, depth: int
    ) -> tuple[type[Looping | TooDeep], str] | None:
        """Why a call to `target` on behalf of `above` is not allowed; None if it is."""
        chain = above.chain
        waiting = above.list_waiting()
        if any(one.target == target and not one.is_reentrant for one in waiting):
            at_work = f'"{target}" is already at work in this chain and would wait for itself'
            return Looping, at_work
        if depth > self.depth:
            allowed = f"{self.depth} are allowed ([limits] chain_depth)"
            return TooDeep, f"it would be {depth} calls deep and {allowed}"
        if chain.calls >= self.calls:
            made = f"its chain has made {chain.calls} calls"
            return TooDeep, f"{made}, which are all it may make ([limits] chain_calls)"
        if self._clock() - chain.begun > self.seconds:
            ago = f"more than {self.seconds:g} s ago ([limits] chain_secs)"
            return TooDeep, f"its chain began {ago}"
        return None

    @contextmanager
    def hold(
        self,
        callers: Sequence[tuple[Principal, str]],
        origins: Origins,
        trace_id: str = "",
        verbs: tuple[str, ...] = (),
        secrets: SecretValues = NO_SECRETS,
    ) -> Iterator[Trace]:
        """Opens a chain on behalf of principals, each with its entry point, the first one first:
        for a call that the hub makes for them later. The chain has the labels of `origins`, and
        `verbs` are the calls that led to it, and `secrets` are kept out of its records."""
        id, key = self._make_ids()
        id = trace_id or id
        chain = self._live[key] = Chain(key, callers[0][0].label, self._clock())
        chain.secrets = secrets
        chain.add_labels(origins)
        above: RunningCall | None = None
        for principal, door in callers:
            _, span = self._make_ids()
            trace = Trace(id, verbs, span, "", chain.origin, above, self._sign, self._mark + span)
            above = RunningCall(trace, "", principal, chain, above, True, door)
        assert above is not None
        self._running[above.trace.span] = above
        try:
            yield above.trace
        finally:
            del self._running[above.trace.span], self._live[key]
            self._remember(chain)

    def find_obstacle(self, trace: Trace, target: str) -> str:
        """Why a call with that trace would be refused before it reaches `target`; empty if it would
        not be."""
        above: RunningCall | None = trace.parent
        found = self._find_violation(above, target, trace.depth) if above is not None else None
        return found[1] if found is not None else ""

    def count_running(self, target: str) -> int:
        """Counts the calls that a target serves."""
        return len(self._at.get(target, ()))

    def find_running(self, trace: Trace) -> RunningCall | None:
        """Finds a call between `enter` and `leave`."""
        return self._running.get(trace.span)

    def leave(self, flight: RunningCall) -> None:
        chain = flight.chain
        if flight.parent is None:
            del self._live[chain.id]
            if chain.calls > 1:
                self._remember(chain)
        span, target = flight.trace.span, flight.target
        del self._running[span]
        served = self._at[target]
        del served[span]
        if not served:
            del self._at[target]
        assert flight.principal is not None
        key = (target, flight.principal.key)
        left = self._of[key] - 1
        if left:
            self._of[key] = left
        else:
            del self._of[key]

    # --- signed tokens ----------------------------------------------------------------------------

    def _sign(self, trace: Trace) -> str:
        flight = self._running.get(trace.span)
        labels = NO_LABELS
        if flight is not None:
            chain = flight.chain
            labels = chain.labels | flight.sources  # as `enforced_labels`, without a frame
        elif trace.parent is not None:
            chain = trace.parent.chain
        else:  # the call has ended, or never entered
            chain = Chain(trace.span, trace.origin, self._clock())
        begun = int(self._epoch + chain.begun)
        named = _encode_names if len(trace.verb) <= LONGEST_KEPT else _encode_names.__wrapped__
        names = named(chain.origin, trace.chain, trace.verb, labels)
        words = f"v1.{trace.id}.{trace.span}.{chain.id}.{begun}.{chain.calls}.{names}"
        return f"{words}.{self._mac(words.encode())}"

    def _open_token(self, text: str) -> ChainToken | None:
        """Verifies and parses a token; None if this hub has not signed it."""
        words, _, mac = text.rpartition(".")
        if not text.isascii() or not words.startswith("v1."):
            return None
        if not hmac.compare_digest(mac, self._mac(words.encode())):
            return None
        _, trace, span, chain, begun, calls, names = words.split(".")
        origin, verbs, labels = json.loads(binascii.a2b_base64(names))
        return ChainToken(trace, span, chain, int(begun), int(calls), origin, verbs, labels)

    def _mac(self, message: bytes) -> str:
        mac = self._keyed.copy()
        mac.update(message)
        return mac.hexdigest()

    def _remember(self, chain: Chain) -> Chain:
        self._over[chain.id] = chain
        if len(self._over) > MAX_REMEMBERED:
            self._over.popitem(last=False)
        return chain

    def _make_ids(self) -> tuple[str, str]:
        """Makes a trace id and a span that cannot be guessed: knowing one proves membership."""
        used = self._used
        if used >= len(self._random):
            self._random, used = os.urandom(RANDOM_BYTES), 0
        self._used = used + 24
        text = self._random[used : used + 24].hex()
        return text[:32], text[32:]


@lru_cache(maxsize=1_024)
def _encode_names(origin: str, chain: tuple[str, ...], verb: str, labels: frozenset[str]) -> str:
    """Encodes who started a chain, what it called and its labels in base64; long names are cut."""
    most = NAMED_BYTES // (len(chain) + 1)
    while True:
        verbs = [one[:most] for one in (*chain, verb)]
        text = json.dumps([origin[:most], verbs, sorted(labels)])
        if len(text) <= NAMED_BYTES or not most:
            return binascii.b2a_base64(text.encode(), newline=False).decode()
        most //= 2
