"""Which dialect an agent really speaks: what its card says first, then what its wire answers.

Cards lie: some name a version whose requests they answer with an error of their framework. So an
agent is asked for a task that there cannot be, which does nothing whatever it speaks, until one way
is answered as by somebody who understood. What differs from the card is kept as a finding.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple
from uuid import uuid4

from dragoman.a2a.client.card_discovery import Found, Origin, origin_of
from dragoman.a2a.client.endpoint import (
    GRPC,
    HTTP_JSON,
    JSONRPC,
    PATHS,
    SEED,
    HttpStatus,
    NotTaken,
    Way,
)
from dragoman.a2a.protocol.dialects import (
    PROBED,
    DialectTraits,
    find_traits,
    version_from_card,
)
from dragoman.a2a.protocol.dialects.operations import GET, PUSH_GET, V01, V03
from dragoman.a2a.protocol.errors import (
    INVALID_REQUEST,
    PARSE_ERROR,
    PERMISSION_DENIED,
    UNAUTHENTICATED,
    A2aError,
)
from dragoman.core.errors import BadReply, HubError, TimedOut, Unreachable

SPOKEN = "A2A 0.1 to 1.x over JSON-RPC and HTTP+JSON, and 0.3 and 1.x over gRPC"
MAX_WAYS = 24
MAX_FINDINGS = 20

Ask = Callable[[Way, str, Mapping[str, Any]], Awaitable[Any]]

_NOT_UNDERSTOOD = frozenset((PARSE_ERROR, INVALID_REQUEST))
_NO_KEY = frozenset((UNAUTHENTICATED, PERMISSION_DENIED))


class Peer:
    """What is known of one agent."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self.ways = ways_of(found)
        """Those that may work, the likeliest first; one that turned out not to is taken away."""
        self.way: Way | None = None
        self._declared = next((way for way in self.ways if way.declared), None)
        self.findings: list[str] = list(found.findings)

    @property
    def card(self) -> Mapping[str, Any]:
        return self.found.card

    @property
    def capabilities(self) -> Mapping[str, Any]:
        said = self.card.get("capabilities")
        return said if isinstance(said, dict) else {}

    @property
    def traits(self) -> DialectTraits:
        """Those of the dialect spoken; of 1.0 while none is settled."""
        return find_traits(self.way.version if self.way is not None else "")

    @property
    def streams(self) -> bool:
        said = self.capabilities.get("streaming") is True
        return said and self.way is not None and self.way.streams

    def note(self, finding: str) -> None:
        if finding not in self.findings and len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)

    def choose(self, way: Way, why: str = "") -> None:
        declared = self._declared
        if declared is not None and way[:4] != declared[:4] and why:
            self.note(f"its card says {declared}, but it speaks {way}: {why}")
        self.way = way

    def drop(self, way: Way) -> None:
        self.ways = [each for each in self.ways if each != way]
        if self.way == way:
            self.way = None

    def forget(self) -> None:
        """Nothing works: perhaps it was just being replaced, and all may be tried again."""
        self.ways, self.way = ways_of(self.found), None


def ways_of(found: Found) -> list[Way]:
    """What the card declares, in its order (8.3.2: the first that is known), then guesses."""
    # gRPC last: its addresses are of another port, which the rules for addresses may not allow.
    declared = sorted(_declared(found.card, found.url), key=lambda way: way.binding == GRPC)
    urls = list(dict.fromkeys([way.url for way in declared if way.binding == JSONRPC]))
    urls += [way.url for way in declared if way.url not in urls and way.binding != GRPC]
    if declared or not found.card.get("supportedInterfaces"):
        urls += [url for url in (found.asked,) if url.rstrip("/") not in _bare(urls)]
    guesses = [Way(JSONRPC, version, url) for url in urls for version in PROBED]
    guesses += [Way(binding, V01, url) for url in urls for binding in (PATHS, SEED)]
    guesses += [
        Way(HTTP_JSON, version, url)
        for url in urls
        for version in PROBED
        if find_traits(version).has_rest
    ]
    known = {way[:3] for way in declared}
    return (declared + [way for way in guesses if way[:3] not in known])[:MAX_WAYS]


def _bare(urls: list[str]) -> set[str]:
    return {url.rstrip("/") for url in urls}


def _declared(card: Mapping[str, Any], found_at: str) -> Iterator[Way]:
    interfaces = card.get("supportedInterfaces")
    for entry in interfaces[:MAX_WAYS] if isinstance(interfaces, list) else []:
        if not isinstance(entry, dict):
            continue
        url, tenant = entry.get("url"), entry.get("tenant")
        version = version_from_card(entry.get("protocolVersion"))
        binding = str(entry.get("protocolBinding", "")).upper()
        if binding not in (JSONRPC, HTTP_JSON, GRPC) or version is None:
            continue
        if binding == GRPC:
            if not find_traits(version).has_grpc or not isinstance(url, str):
                continue
            url = grpc_url(url, found_at)
        if isinstance(url, str) and origin_of(url) is not None:
            yield Way(binding, version, url, tenant if isinstance(tenant, str) else "", True)


def grpc_url(said: str, found_at: str) -> str:
    """An address of gRPC as a URL: cards have `host:port`, or a scheme of many kinds. Where they do
    not say whether it has TLS, it has it at port 443, and where the card itself was had by it."""
    scheme, mark, rest = said.rpartition("://")
    authority = (rest if mark else said.removeprefix("dns:")).lstrip("/").partition("/")[0]
    scheme = scheme.lower()
    if scheme not in ("http", "grpc", "https", "grpcs"):
        secure = authority.endswith(":443") or found_at.startswith("https:")
    else:
        secure = scheme in ("https", "grpcs")
    return f"{'https' if secure else 'http'}://{authority}"


# --- asking ---------------------------------------------------------------------------------------


class _Verdict(NamedTuple):
    understood: bool | None
    """None where it cannot be told."""
    why: str
    alive: bool = True
    locked: bool = False
    """It wants credentials, whatever it is asked."""


async def settle(peer: Peer, ask: Ask) -> Way:
    """The way that works, or the first that is not known not to."""
    if peer.way is not None:
        return peer.way
    unsure: list[Way] = []
    dead: set[Origin | None] = set()
    reasons: list[str] = []
    for way in peer.ways:
        if origin_of(way.url) in dead:
            continue
        verdict = await _probe(way, ask)
        if verdict.understood:
            way = await _told_apart(way, peer, ask)
            peer.choose(way, reasons[0] if reasons else "")
            return way
        reasons.append(verdict.why)
        if not verdict.alive:
            dead.add(origin_of(way.url))
        elif verdict.understood is None:
            unsure.append(way)
            if verdict.locked and way.declared:
                break
    likely = next((way for way in unsure if way.declared), None)
    if likely is None:
        raise _nobody(peer, reasons)
    peer.way = likely
    return likely


def check_spoken(found: Found) -> None:
    """Raises `BadReply` for an agent that offers nothing that the hub speaks."""
    if ways_of(found):
        return
    offered = [
        f"A2A {one.get('protocolVersion')} over {one.get('protocolBinding')}"
        for one in found.card.get("supportedInterfaces") or ()
    ]
    raise BadReply(
        f'agent "{str(found.card.get("name", ""))[:100]}" offers {", ".join(offered[:5])[:300]}, '
        f"and the hub speaks {SPOKEN}"
    )


def _nobody(peer: Peer, reasons: list[str]) -> HubError:
    name = str(peer.card.get("name", ""))[:100]
    try:
        check_spoken(peer.found)
    except BadReply as problem:
        return problem
    first = reasons[0] if reasons else "nothing there answers"
    return Unreachable(f'agent "{name}" understands no dialect of A2A: {first}', sent=False)


async def _probe(way: Way, ask: Ask) -> _Verdict:
    try:
        await ask(way, GET, {"id": str(uuid4())})
    except NotTaken as problem:
        return _Verdict(False, str(problem))
    except A2aError as problem:
        why = f"{way} answers: {problem.message[:200]}"
        if problem.reason in _NOT_UNDERSTOOD:
            return _Verdict(False, why)
        locked = problem.reason in _NO_KEY
        return _Verdict(None if locked else True, why, locked=locked)
    except HttpStatus as problem:
        return _Verdict(None, str(problem), locked=problem.status in (401, 403))
    except (Unreachable, TimedOut) as problem:
        return _Verdict(None, str(problem), alive=False)
    except BadReply as problem:
        return _Verdict(None, str(problem))
    return _Verdict(True, "")


async def _told_apart(way: Way, peer: Peer, ask: Ask) -> Way:
    """0.1 and 0.3 ask for a task in the same words; what 0.3 calls a webhook's entry 0.1 does not.
    An agent without webhooks may know neither, so that is no proof where the card says 0.3."""
    if way.binding != JSONRPC or not way.traits.shares_methods:
        return way
    newer = way._replace(version=V03)
    try:
        await ask(newer, PUSH_GET, {"taskId": str(uuid4()), "id": str(uuid4())})
    except NotTaken:
        said = bool(peer.found.raw.get("protocolVersion")) and way.declared
        return way if said else way._replace(version=V01)
    except A2aError as problem:
        return way if problem.reason in _NOT_UNDERSTOOD else newer
    except HubError:
        return way
    return newer
