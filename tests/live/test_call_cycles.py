"""Call cycles across MCP and A2A through peers that forward, strip or forge the trace: each ends by
depth, cycle or budget, the refusal shows the chain, and other clients are unaffected.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from tests.live.callback_peers import (
    Manner,
    Peers,
    ReceivedTrace,
    as_tracing_libraries_do,
    forged,
    headers_only,
    intact,
    peers,
    stripped,
    text_from_mcp,
)
from tests.live.conftest import RunningHub
from tests.live.module_hub import run_module_hub, until
from tests.peers import wire

from dragoman.stores.keys import KeyStore

AGENTS, SERVERS = ("a", "b", "c"), ("s", "t", "u", "v")
SECONDS = 30.0
RINGS: Mapping[str, Sequence[str]] = {
    "an agent itself": ("mcp:a.message",),
    "an agent itself over A2A": ("a2a:a",),
    "a server itself": ("mcp:s.go",),
    "2": ("mcp:a.message", "mcp:b.message"),
    "2 by a skill": ("mcp:a.go", "mcp:s.go"),
    "2 over A2A": ("a2a:a", "a2a:b"),
    "3": ("mcp:a.go", "mcp:s.go", "a2a:b"),
    "5": ("mcp:s.go", "a2a:a", "mcp:t.go", "mcp:b.message", "a2a:c"),
}


class HubRig:
    def __init__(self, hub: RunningHub, them: Peers, keys: Mapping[str, str]) -> None:
        self.hub = hub
        self.peers = them
        self.keys = keys
        """Of users and of the peers themselves."""

    def call(self, path: str, message: str = "go", user: str = "ann") -> str:
        """Starts a chain as a user, and returns its outcome."""
        door, _, name = path.partition(":")
        tool = f"{name}.message" if door == "a2a" else name
        headers = {"Authorization": f"Bearer {self.keys[user]}"} if self.keys else {}
        arguments = {"message": message} if tool.endswith(".message") else {}
        params = {"name": tool, "arguments": arguments}
        sent = wire.modern_request(self.hub.mcp_url, "tools/call", params, headers, 30.0)
        return text_from_mcp(sent.rpc())

    def ring(self, around: Sequence[str]) -> str:
        """Goes round until it is stopped; the last calls the first again."""
        for path, after in zip(around, [*around[1:], around[0]], strict=True):
            self.peers.calls[name_in(path)] = [after]
        begun = time.monotonic()
        said = self.call(around[0])
        assert time.monotonic() - begun < SECONDS
        return said


def name_in(path: str) -> str:
    return path.partition(":")[2].partition(".")[0]


def verb_from_path(path: str) -> str:
    return f"{name_in(path)}.message" if path.startswith("a2a:") else path.partition(":")[2]


@contextmanager
def run_rig(names: Sequence[str] = (), config: str = "") -> Iterator[HubRig]:
    with peers() as them:
        settings = [config, "[a2a]\nenabled = true", *(them.agent(name) for name in AGENTS)]
        servers = [them.server(name) for name in SERVERS]
        with run_module_hub(servers, "\n".join(settings)) as hub:
            them.hub = hub.url
            hub.wait_connected(*SERVERS)
            tools = len(SERVERS) + 2 * len(AGENTS)
            until(lambda: hub.api("/api/status")["tools"] >= tools)
            keys = create_keys(hub, names)
            yield HubRig(hub, them, keys)


def create_keys(hub: RunningHub, names: Sequence[str]) -> dict[str, str]:
    """Keys: of users, and of the peers that have one."""
    if not names:
        return {}
    store = KeyStore(hub.home)
    keys = {}
    for name in names:
        target = name if name in (*AGENTS, *SERVERS) else ""
        keys[name] = store.create(
            f"{name}-key", owner="ann", expires_at=None, scopes=["call"], target=target
        )
    store.close()
    status = f"{hub.url}/api/status"
    until(lambda: wire.get(status, {}).status == 401)  # it has seen that there are keys
    headers = {"Authorization": f"Bearer {keys[names[-1]]}"}
    until(lambda: wire.get(status, headers).status == 200)
    return keys


@pytest.fixture(scope="module")
def _open() -> Iterator[HubRig]:
    with run_rig() as create_keys:
        yield create_keys


@pytest.fixture
def open_rig(_open: HubRig) -> HubRig:
    """A hub without keys: all clients are the same principal."""
    _open.peers.forget()
    return _open


@pytest.fixture(scope="module")
def _keyed() -> Iterator[HubRig]:
    with run_rig([*AGENTS, *SERVERS, "ann", "bob"]) as create_keys:
        yield create_keys


@pytest.fixture
def keyed_rig(_keyed: HubRig) -> HubRig:
    """A hub where every peer has a key of its own, and so have the users."""
    _keyed.peers.forget()
    _keyed.peers.keys = dict(_keyed.keys)
    return _keyed


@pytest.fixture(scope="module")
def _narrow() -> Iterator[HubRig]:
    with run_rig(config="[limits]\ntarget_calls = 8") as create_keys:
        yield create_keys


def assert_cycle_refused(said: str, origin: str, around: Sequence[str]) -> None:
    path = " → ".join([origin, *map(verb_from_path, around), verb_from_path(around[0])])
    first = name_in(around[0])
    assert f'"{first}" is already at work in this chain and would wait for itself: {path}' in said
    assert re.search(r"\(trace [0-9a-f]{8}\)", said)


@pytest.mark.promise("Q6", "Q7")
@pytest.mark.parametrize("around", RINGS.values(), ids=RINGS.keys())
@pytest.mark.parametrize("trace_mode", [intact, headers_only, as_tracing_libraries_do])
def test_cycle_of_trace_forwarding_peers_is_refused_where_it_closes(
    open_rig: HubRig, trace_mode: Manner, around: Sequence[str]
) -> None:
    open_rig.peers.trace_mode = trace_mode
    assert_cycle_refused(open_rig.ring(around), "local:local", around)
    assert set(open_rig.peers.served.values()) == {1}
    assert len(open_rig.peers.served) == len(around)


def of_another_chain(received: ReceivedTrace, number: int) -> tuple[dict[str, Any], dict[str, str]]:
    return OTHER.beside, OTHER.headers


OTHER = ReceivedTrace({}, {})


@pytest.mark.promise("Q7")
@pytest.mark.parametrize("around", RINGS.values(), ids=RINGS.keys())
@pytest.mark.parametrize("trace_mode", [stripped, forged, intact])
def test_cycle_of_peers_with_credentials_is_refused_despite_forged_traces(
    keyed_rig: HubRig, trace_mode: Manner, around: Sequence[str]
) -> None:
    keyed_rig.peers.trace_mode = trace_mode
    assert_cycle_refused(keyed_rig.ring(around), "key:ann-key", around)
    assert set(keyed_rig.peers.served.values()) == {1}


@pytest.mark.promise("Q7")
def test_cycle_claiming_another_chain_ends_without_affecting_it(
    keyed_rig: HubRig,
) -> None:
    here, them = keyed_rig, keyed_rig.peers
    with ThreadPoolExecutor(1) as pool:
        bobs = pool.submit(here.call, "mcp:c.message", "hold", "bob")
        assert them.held.wait(SECONDS)
        OTHER.beside, OTHER.headers = them.received[0].beside, them.received[0].headers
        them.trace_mode = of_another_chain
        them.calls["c hold"] = ["mcp:v.go"]
        around = RINGS["3"]
        assert_cycle_refused(here.ring(around), "key:ann-key", around)
        them.gate.set()
        assert bobs.result(SECONDS) == "c(v())"


@pytest.mark.promise("Q7")
@pytest.mark.parametrize("trace_mode", [stripped, forged])
def test_cycle_cannot_use_the_budget_of_a_concurrent_chain(
    keyed_rig: HubRig, trace_mode: Manner
) -> None:
    here, them = keyed_rig, keyed_rig.peers
    them.trace_mode = trace_mode
    them.calls["b hold"] = ["mcp:v.go", "mcp:u.go"]
    with ThreadPoolExecutor(1) as pool:
        bobs = pool.submit(here.call, "mcp:b.message", "hold", "bob")
        assert them.held.wait(SECONDS)
        said = here.ring(RINGS["2"])
        assert "would wait for itself" in said
        assert them.sent <= 4  # and not all that bob's may make
        them.gate.set()
        assert bobs.result(SECONDS) == "b(v(), u())"


@pytest.mark.promise("Q7")
@pytest.mark.parametrize("trace_mode", [intact, stripped, forged])
def test_seventh_call_of_a_chain_is_too_deep(keyed_rig: HubRig, trace_mode: Manner) -> None:
    here, them = keyed_rig, keyed_rig.peers
    them.trace_mode = trace_mode
    line = ("mcp:a.go", "mcp:s.go", "a2a:b", "mcp:t.go", "mcp:c.message", "mcp:u.go", "mcp:v.go")
    for path, after in pairwise(line):
        them.calls[name_in(path)] = [after]
    said = here.call(line[0])
    path = " → ".join(["key:ann-key", *map(verb_from_path, line)])
    words = "it would be 6 calls deep and 5 are allowed ([limits] chain_depth)"
    assert f'"v.go" was refused: {words}: {path}' in said
    assert sum(them.served.values()) == 6 and not them.served["v"]


@pytest.mark.promise("Q7")
@pytest.mark.parametrize("trace_mode", [intact, stripped])
def test_wide_chain_ends_at_its_budget(keyed_rig: HubRig, trace_mode: Manner) -> None:
    here, them = keyed_rig, keyed_rig.peers
    them.trace_mode, them.at_once = trace_mode, True
    line = ("mcp:a.message", "mcp:s.go", "mcp:b.message", "mcp:t.go", "mcp:c.message", "mcp:u.go")
    for path, after in pairwise(line):
        them.calls[name_in(path)] = [after] * 10
    begun = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: [here.call("mcp:v.go", user="bob") for _ in range(20)])
        said = here.call(line[0])
        assert other.result(SECONDS) == ["v()"] * 20
    assert time.monotonic() - begun < SECONDS
    assert "its chain has made 64 calls, which are all it may make ([limits] chain_calls)" in said
    assert "key:ann-key → a.message → s.go" in said
    assert sum(them.served.values()) - them.served["v"] == 64


@pytest.mark.promise("Q7")
@pytest.mark.parametrize("trace_mode", [stripped, forged])
@pytest.mark.parametrize("around", [RINGS["an agent itself"], RINGS["2"], RINGS["3"]], ids=len)
def test_cycle_without_credentials_is_bounded_per_target(
    _narrow: HubRig, trace_mode: Manner, around: Sequence[str]
) -> None:
    here = _narrow
    here.peers.forget()
    here.peers.trace_mode = trace_mode
    said = here.ring(around)
    first = name_in(around[0])
    assert f'4 calls to "{first}" are running; try again shortly or raise [limits]' in said
    assert set(here.peers.served.values()) == {4} and here.peers.most <= 4 * len(around)
    here.peers.calls.clear()
    assert here.call("mcp:a.message") == "a()"  # all have ended


@pytest.mark.promise("Q7")
def test_cycle_without_credentials_ends_in_seconds_while_others_are_served(
    open_rig: HubRig,
) -> None:
    here = open_rig
    here.peers.trace_mode = stripped
    with ThreadPoolExecutor(1) as pool:
        rings = pool.submit(here.ring, RINGS["2"])
        slowest, count = 0.0, 0
        while not rings.done() or not count:
            begun = time.monotonic()
            assert here.call("mcp:v.go") == "v()"
            slowest, count = max(slowest, time.monotonic() - begun), count + 1
        assert re.search(r'\d+ calls to "[ab]" are running', rings.result())
    assert slowest < 30
    here.peers.calls.clear()
    assert here.call("mcp:a.message") == "a()"


@pytest.mark.promise("Q6", "Q7")
def test_cycle_is_recorded_as_one_trace_with_depths(
    open_rig: HubRig,
) -> None:
    around = RINGS["3"]
    open_rig.ring(around)
    trace = open_rig.peers.received[0].beside["X-OpenStarry-Trace-ID"]
    mine = [one for one in open_rig.hub.audit() if one.get("trace") == trace]
    begun = [one for one in mine if "depth" in one]
    assert {one["depth"]: one["verb"] for one in begun} == dict(
        enumerate([*map(verb_from_path, around), verb_from_path(around[0])])
    )
    assert "Looping" in str(mine)
    traces = {one.beside["X-OpenStarry-Trace-ID"] for one in open_rig.peers.received}
    assert traces == {trace}
    spans = {one.beside["traceparent"].split("-")[2] for one in open_rig.peers.received}
    assert len(spans) == len(around)
