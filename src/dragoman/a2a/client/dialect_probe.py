"""Which dialect an agent really speaks: what its card says first, then what its wire answers.

Cards lie: some name a version whose requests they answer with an error of their framework. So an
agent is asked for a task that there cannot be, which does nothing whatever it speaks, until one way
is answered as by somebody who understood. What differs from the card is kept as a finding.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple
from uuid import uuid4

from dragoman.a2a.client.card_discovery import FoundCard, WebOrigin, parse_origin
from dragoman.a2a.client.endpoint import (
    GRPC,
    HTTP_JSON,
    JSONRPC,
    PATHS,
    TASKS_SEND,
    AgentHttpStatus,
    Endpoint,
    NotUnderstood,
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

SUPPORTED = "A2A 0.1 to 1.x over JSON-RPC and HTTP+JSON, and 0.3 and 1.x over gRPC"
MAX_ENDPOINTS = 24
MAX_FINDINGS = 20

Ask = Callable[[Endpoint, str, Mapping[str, Any]], Awaitable[Any]]

_NOT_UNDERSTOOD = frozenset((PARSE_ERROR, INVALID_REQUEST))
_NO_KEY = frozenset((UNAUTHENTICATED, PERMISSION_DENIED))


class ProbedAgent:
    """What is known of one agent."""

    def __init__(self, found: FoundCard) -> None:
        self.found = found
        self.endpoints = list_endpoints(found)
        """Those that may work, the likeliest first; one that turned out not to is taken away."""
        self.endpoint: Endpoint | None = None
        self._declared = next((endpoint for endpoint in self.endpoints if endpoint.declared), None)
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
        return find_traits(self.endpoint.version if self.endpoint is not None else "")

    @property
    def can_stream(self) -> bool:
        said = self.capabilities.get("streaming") is True
        return said and self.endpoint is not None and self.endpoint.can_stream

    def add_finding(self, finding: str) -> None:
        if finding not in self.findings and len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)

    def use_endpoint(self, endpoint: Endpoint, why: str = "") -> None:
        declared = self._declared
        if declared is not None and endpoint[:4] != declared[:4] and why:
            self.add_finding(f"its card says {declared}, but it speaks {endpoint}: {why}")
        self.endpoint = endpoint

    def drop_endpoint(self, endpoint: Endpoint) -> None:
        self.endpoints = [each for each in self.endpoints if each != endpoint]
        if self.endpoint == endpoint:
            self.endpoint = None

    def reset(self) -> None:
        """Nothing works: perhaps it was just being replaced, and all may be tried again."""
        self.endpoints, self.endpoint = list_endpoints(self.found), None


def list_endpoints(found: FoundCard) -> list[Endpoint]:
    """What the card declares, in its order (8.3.2: the first that is known), then guesses."""
    # gRPC last: its addresses are of another port, which the rules for addresses may not allow.
    declared = sorted(
        _list_declared(found.card, found.url), key=lambda endpoint: endpoint.binding == GRPC
    )
    urls = list(
        dict.fromkeys([endpoint.url for endpoint in declared if endpoint.binding == JSONRPC])
    )
    urls += [
        endpoint.url
        for endpoint in declared
        if endpoint.url not in urls and endpoint.binding != GRPC
    ]
    if declared or not found.card.get("supportedInterfaces"):
        urls += [url for url in (found.asked,) if url.rstrip("/") not in _strip_slashes(urls)]
    guesses = [Endpoint(JSONRPC, version, url) for url in urls for version in PROBED]
    guesses += [Endpoint(binding, V01, url) for url in urls for binding in (PATHS, TASKS_SEND)]
    guesses += [
        Endpoint(HTTP_JSON, version, url)
        for url in urls
        for version in PROBED
        if find_traits(version).has_rest
    ]
    known = {endpoint[:3] for endpoint in declared}
    return (declared + [endpoint for endpoint in guesses if endpoint[:3] not in known])[
        :MAX_ENDPOINTS
    ]


def _strip_slashes(urls: list[str]) -> set[str]:
    return {url.rstrip("/") for url in urls}


def _list_declared(card: Mapping[str, Any], found_at: str) -> Iterator[Endpoint]:
    interfaces = card.get("supportedInterfaces")
    for entry in interfaces[:MAX_ENDPOINTS] if isinstance(interfaces, list) else []:
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
            url = normalize_grpc_url(url, found_at)
        if isinstance(url, str) and parse_origin(url) is not None:
            yield Endpoint(binding, version, url, tenant if isinstance(tenant, str) else "", True)


def normalize_grpc_url(said: str, found_at: str) -> str:
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


class _ProbeResult(NamedTuple):
    understood: bool | None
    """None where it cannot be told."""
    why: str
    alive: bool = True
    locked: bool = False
    """It wants credentials, whatever it is asked."""


async def probe_endpoints(probed: ProbedAgent, ask: Ask) -> Endpoint:
    """The way that works, or the first that is not known not to."""
    if probed.endpoint is not None:
        return probed.endpoint
    unsure: list[Endpoint] = []
    dead: set[WebOrigin | None] = set()
    reasons: list[str] = []
    for endpoint in probed.endpoints:
        if parse_origin(endpoint.url) in dead:
            continue
        verdict = await _probe(endpoint, ask)
        if verdict.understood:
            endpoint = await _distinguish_v01(endpoint, probed, ask)
            probed.use_endpoint(endpoint, reasons[0] if reasons else "")
            return endpoint
        reasons.append(verdict.why)
        if not verdict.alive:
            dead.add(parse_origin(endpoint.url))
        elif verdict.understood is None:
            unsure.append(endpoint)
            if verdict.locked and endpoint.declared:
                break
    likely = next((endpoint for endpoint in unsure if endpoint.declared), None)
    if likely is None:
        raise _build_no_endpoint_error(probed, reasons)
    probed.endpoint = likely
    return likely


def check_supported(found: FoundCard) -> None:
    """Raises `BadReply` for an agent that offers nothing that the hub speaks."""
    if list_endpoints(found):
        return
    offered = [
        f"A2A {one.get('protocolVersion')} over {one.get('protocolBinding')}"
        for one in found.card.get("supportedInterfaces") or ()
    ]
    raise BadReply(
        f'agent "{str(found.card.get("name", ""))[:100]}" offers {", ".join(offered[:5])[:300]}, '
        f"and the hub speaks {SUPPORTED}"
    )


def _build_no_endpoint_error(probed: ProbedAgent, reasons: list[str]) -> HubError:
    name = str(probed.card.get("name", ""))[:100]
    try:
        check_supported(probed.found)
    except BadReply as problem:
        return problem
    first = reasons[0] if reasons else "nothing there answers"
    return Unreachable(f'agent "{name}" understands no dialect of A2A: {first}', sent=False)


async def _probe(endpoint: Endpoint, ask: Ask) -> _ProbeResult:
    try:
        await ask(endpoint, GET, {"id": str(uuid4())})
    except NotUnderstood as problem:
        return _ProbeResult(False, str(problem))
    except A2aError as problem:
        why = f"{endpoint} answers: {problem.message[:200]}"
        if problem.reason in _NOT_UNDERSTOOD:
            return _ProbeResult(False, why)
        locked = problem.reason in _NO_KEY
        return _ProbeResult(None if locked else True, why, locked=locked)
    except AgentHttpStatus as problem:
        return _ProbeResult(None, str(problem), locked=problem.status in (401, 403))
    except (Unreachable, TimedOut) as problem:
        return _ProbeResult(None, str(problem), alive=False)
    except BadReply as problem:
        return _ProbeResult(None, str(problem))
    return _ProbeResult(True, "")


async def _distinguish_v01(endpoint: Endpoint, probed: ProbedAgent, ask: Ask) -> Endpoint:
    """0.1 and 0.3 ask for a task in the same words; what 0.3 calls a webhook's entry 0.1 does not.
    An agent without webhooks may know neither, so that is no proof where the card says 0.3."""
    if endpoint.binding != JSONRPC or not endpoint.traits.shares_methods:
        return endpoint
    newer = endpoint._replace(version=V03)
    try:
        await ask(newer, PUSH_GET, {"taskId": str(uuid4()), "id": str(uuid4())})
    except NotUnderstood:
        said = bool(probed.found.raw.get("protocolVersion")) and endpoint.declared
        return endpoint if said else endpoint._replace(version=V01)
    except A2aError as problem:
        return endpoint if problem.reason in _NOT_UNDERSTOOD else newer
    except HubError:
        return endpoint
    return newer
