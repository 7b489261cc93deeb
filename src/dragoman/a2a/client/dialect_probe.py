"""Finds out which dialect an agent really speaks, and at which endpoint.

Cards can be wrong: some agents answer requests of the version in their card with an error of their
framework. A probe asks for a task that cannot exist, which has no effect in any dialect, until an
endpoint answers as one that understood. Deviations from the card are recorded as findings.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple
from uuid import uuid4

from dragoman.a2a.client.card_discovery import FoundCard
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
from dragoman.a2a.protocol import errors
from dragoman.a2a.protocol.dialects import PROBED, find_traits, version_from_card
from dragoman.a2a.protocol.dialects.operations import GET, PUSH_GET, V01, V03
from dragoman.a2a.protocol.errors import A2aError
from dragoman.core.errors import BadReply, HubError, TimedOut, Unreachable
from dragoman.core.urls import WebOrigin, parse_origin

SUPPORTED = "A2A 0.1 to 1.x over JSON-RPC and HTTP+JSON, and 0.3 and 1.x over gRPC"
MAX_ENDPOINTS = 24
MAX_FINDINGS = 20

SendProbe = Callable[[Endpoint, str, Mapping[str, Any]], Awaitable[Any]]

_NOT_UNDERSTOOD = frozenset((errors.PARSE_ERROR, errors.INVALID_REQUEST))
_NO_KEY = frozenset((errors.UNAUTHENTICATED, errors.PERMISSION_DENIED))


class ProbedAgent:
    """An agent's card and the endpoint that was chosen by probing."""

    def __init__(self, found: FoundCard) -> None:
        self.found = found
        self.card = found.card
        self.endpoints = list_endpoints(found)
        """The candidates, the likeliest first, without those that were ruled out."""
        self.extended: FoundCard | None = None
        """Its extended card, if it has one that may be used."""
        self.findings: list[str] = list(found.findings)
        self._declared = next((one for one in self.endpoints if one.declared), None)
        self._set_endpoint(None)

    def _set_endpoint(self, endpoint: Endpoint | None) -> None:
        self.endpoint = endpoint
        self.traits = find_traits(endpoint.version if endpoint is not None else "")
        """Of the dialect spoken; of 1.0 before probing."""
        capabilities = self.card.get("capabilities")
        declared = isinstance(capabilities, dict) and capabilities.get("streaming") is True
        self.can_stream = declared and endpoint is not None and endpoint.can_stream

    def use_endpoint(self, endpoint: Endpoint, why: str = "") -> Endpoint:
        declared = self._declared
        if declared is not None and endpoint[:4] != declared[:4] and why:
            self.add_finding(f"its card says {declared}, but it speaks {endpoint}: {why}")
        self._set_endpoint(endpoint)
        return endpoint

    def drop_endpoint(self, endpoint: Endpoint) -> None:
        self.endpoints = [each for each in self.endpoints if each != endpoint]
        if self.endpoint == endpoint:
            self._set_endpoint(None)

    def reset(self) -> None:
        """Allows every endpoint again: the agent may have been restarting."""
        self.endpoints = list_endpoints(self.found)
        self._set_endpoint(None)

    def add_finding(self, finding: str) -> None:
        if finding not in self.findings and len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)

    def replace_finding(self, old: str, new: str) -> None:
        """Either may be empty, for none."""
        if old != new:
            self.findings = [one for one in self.findings if one != old]
            if new:
                self.add_finding(new)


def list_endpoints(found: FoundCard) -> list[Endpoint]:
    """Lists the endpoints that the card declares, in its order (8.3.2), then guesses."""
    # gRPC last: its port is another one, which the address rules may not allow.
    declared = sorted(_list_declared(found.card, found.url), key=lambda one: one.binding == GRPC)
    urls = list(dict.fromkeys(one.url for one in declared if one.binding == JSONRPC))
    urls += [one.url for one in declared if one.url not in urls and one.binding != GRPC]
    is_new = found.asked.rstrip("/") not in {url.rstrip("/") for url in urls}
    if is_new and (declared or not found.card.get("supportedInterfaces")):
        urls.append(found.asked)
    rest = [version for version in PROBED if find_traits(version).has_rest]
    guesses = [Endpoint(JSONRPC, version, url) for url in urls for version in PROBED]
    guesses += [Endpoint(binding, V01, url) for url in urls for binding in (PATHS, TASKS_SEND)]
    guesses += [Endpoint(HTTP_JSON, version, url) for url in urls for version in rest]
    known = {one[:3] for one in declared}
    return (declared + [one for one in guesses if one[:3] not in known])[:MAX_ENDPOINTS]


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
    """Turns the gRPC address of a card into a URL: cards write `host:port` or various schemes. One
    that does not tell uses TLS on port 443, and wherever the card itself came over TLS."""
    scheme, mark, rest = said.rpartition("://")
    authority = (rest if mark else said.removeprefix("dns:")).lstrip("/").partition("/")[0]
    scheme = scheme.lower()
    if scheme not in ("http", "grpc", "https", "grpcs"):
        secure = authority.endswith(":443") or found_at.startswith("https:")
    else:
        secure = scheme in ("https", "grpcs")
    return f"{'https' if secure else 'http'}://{authority}"


# --- probing --------------------------------------------------------------------------------------


class _ProbeResult(NamedTuple):
    understood: bool | None
    """None if the reply does not tell."""
    why: str
    alive: bool = True
    locked: bool = False
    """It needs credentials for every request."""


async def probe_endpoints(probed: ProbedAgent, send: SendProbe) -> Endpoint:
    """Chooses the endpoint that works, else the first declared one that was not ruled out."""
    unsure: list[Endpoint] = []
    dead: set[WebOrigin | None] = set()
    reasons: list[str] = []
    for endpoint in probed.endpoints:
        if parse_origin(endpoint.url) in dead:
            continue
        verdict = await _probe(endpoint, send)
        if verdict.understood:
            endpoint = await _distinguish_v01(endpoint, probed, send)
            return probed.use_endpoint(endpoint, reasons[0] if reasons else "")
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
    return probed.use_endpoint(likely)


def check_supported(found: FoundCard) -> None:
    """Raises `BadReply` if the hub supports none of the agent's interfaces."""
    if list_endpoints(found):
        return
    offered = [
        f"A2A {one.get('protocolVersion')} over {one.get('protocolBinding')}"
        for one in found.card.get("supportedInterfaces") or ()
    ]
    raise BadReply(
        f'agent "{str(found.card.get("name", ""))[:100]}" offers {", ".join(offered[:5])[:300]}; '
        f"the hub supports {SUPPORTED}"
    )


def _build_no_endpoint_error(probed: ProbedAgent, reasons: list[str]) -> HubError:
    name = str(probed.card.get("name", ""))[:100]
    try:
        check_supported(probed.found)
    except BadReply as problem:
        return problem
    first = reasons[0] if reasons else "no endpoint answers"
    return Unreachable(f'agent "{name}" understands no dialect of A2A: {first}', sent=False)


async def _probe(endpoint: Endpoint, send: SendProbe) -> _ProbeResult:
    try:
        await send(endpoint, GET, {"id": str(uuid4())})
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


async def _distinguish_v01(endpoint: Endpoint, probed: ProbedAgent, send: SendProbe) -> Endpoint:
    """Tells 0.1 from 0.3 by a method for webhooks that only 0.3 has: both ask for a task alike. An
    agent without webhooks may know neither, so a card that says 0.3 is believed."""
    if endpoint.binding != JSONRPC or not endpoint.traits.shares_methods:
        return endpoint
    newer = endpoint._replace(version=V03)
    try:
        await send(newer, PUSH_GET, {"taskId": str(uuid4()), "id": str(uuid4())})
    except NotUnderstood:
        declared = bool(probed.found.raw.get("protocolVersion")) and endpoint.declared
        return endpoint if declared else endpoint._replace(version=V01)
    except A2aError as problem:
        return endpoint if problem.reason in _NOT_UNDERSTOOD else newer
    except HubError:
        return endpoint
    return newer
