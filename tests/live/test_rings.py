"""Rings across MCP and A2A, of peers that forward what they were told, strip it, or lie: each ends
by depth, cycle or budget, with a refusal that shows the chain, and nobody else notices."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from tests.live.conftest import RunningHub
from tests.live.lasting import lasting_hub, until
from tests.live.ring_grounds import (
    Manner,
    Peers,
    Told,
    as_tracing_libraries_do,
    forged,
    headers_only,
    intact,
    peers,
    said_in_mcp,
    stripped,
)
from tests.peers import wire

from dragoman.stores.keys import KeyStore

AGENTS, SERVERS = ("a", "b", "c"), ("s", "t", "u", "v")
SECONDS = 10.0
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


class Ground:
    def __init__(self, hub: RunningHub, them: Peers, keys: Mapping[str, str]) -> None:
        self.hub = hub
        self.peers = them
        self.keys = keys
        """Of users and of the peers themselves."""

    def call(self, path: str, message: str = "go", user: str = "ann") -> str:
        """As somebody who begins a chain; what came of it."""
        door, _, name = path.partition(":")
        tool = f"{name}.message" if door == "a2a" else name
        headers = {"Authorization": f"Bearer {self.keys[user]}"} if self.keys else {}
        arguments = {"message": message} if tool.endswith(".message") else {}
        params = {"name": tool, "arguments": arguments}
        sent = wire.modern_request(self.hub.mcp_url, "tools/call", params, headers, 30.0)
        return said_in_mcp(sent.rpc())

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


def verb_of(path: str) -> str:
    return f"{name_in(path)}.message" if path.startswith("a2a:") else path.partition(":")[2]


@contextmanager
def ground(names: Sequence[str] = (), config: str = "") -> Iterator[Ground]:
    with peers() as them:
        settings = [config, "[a2a]\nenabled = true", *(them.agent(name) for name in AGENTS)]
        servers = [them.server(name) for name in SERVERS]
        with lasting_hub(servers, "\n".join(settings)) as hub:
            them.hub = hub.url
            hub.wait_connected(*SERVERS)
            tools = len(SERVERS) + 2 * len(AGENTS)
            until(lambda: hub.api("/api/status")["tools"] >= tools)
            keys = made(hub, names)
            yield Ground(hub, them, keys)


def made(hub: RunningHub, names: Sequence[str]) -> dict[str, str]:
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
def _open() -> Iterator[Ground]:
    with ground() as made:
        yield made


@pytest.fixture
def open_ground(_open: Ground) -> Ground:
    """A hub without keys: whoever calls is the same to it."""
    _open.peers.forget()
    return _open


@pytest.fixture(scope="module")
def _keyed() -> Iterator[Ground]:
    with ground([*AGENTS, *SERVERS, "ann", "bob"]) as made:
        yield made


@pytest.fixture
def keyed_ground(_keyed: Ground) -> Ground:
    """A hub where every peer has a key of its own, and so have the users."""
    _keyed.peers.forget()
    _keyed.peers.keys = dict(_keyed.keys)
    return _keyed


@pytest.fixture(scope="module")
def _narrow() -> Iterator[Ground]:
    with ground(config="[limits]\ntarget_calls = 8") as made:
        yield made


def looped(said: str, origin: str, around: Sequence[str]) -> None:
    path = " → ".join([origin, *map(verb_of, around), verb_of(around[0])])
    first = name_in(around[0])
    assert f'"{first}" is already at work in this chain and would wait for itself: {path}' in said
    assert re.search(r"\(trace [0-9a-f]{8}\)", said)


@pytest.mark.promise("Q6", "Q7")
@pytest.mark.parametrize("around", RINGS.values(), ids=RINGS.keys())
@pytest.mark.parametrize("manner", [intact, headers_only, as_tracing_libraries_do])
def test_a_ring_of_peers_that_forward_what_they_are_told_ends_where_it_would_close(
    open_ground: Ground, manner: Manner, around: Sequence[str]
) -> None:
    open_ground.peers.manner = manner
    looped(open_ground.ring(around), "local:local", around)
    assert set(open_ground.peers.served.values()) == {1}
    assert len(open_ground.peers.served) == len(around)


def of_another_chain(told: Told, number: int) -> tuple[dict[str, Any], dict[str, str]]:
    return OTHER.beside, OTHER.headers


OTHER = Told({}, {})


@pytest.mark.promise("Q7")
@pytest.mark.parametrize("around", RINGS.values(), ids=RINGS.keys())
@pytest.mark.parametrize("manner", [stripped, forged, intact])
def test_a_ring_of_peers_with_credentials_ends_there_whatever_they_say(
    keyed_ground: Ground, manner: Manner, around: Sequence[str]
) -> None:
    keyed_ground.peers.manner = manner
    looped(keyed_ground.ring(around), "key:ann-key", around)
    assert set(keyed_ground.peers.served.values()) == {1}


@pytest.mark.promise("Q7")
def test_a_ring_that_says_it_is_of_another_chain_ends_and_the_other_goes_on(
    keyed_ground: Ground,
) -> None:
    here, them = keyed_ground, keyed_ground.peers
    with ThreadPoolExecutor(1) as pool:
        bobs = pool.submit(here.call, "mcp:c.message", "hold", "bob")
        assert them.held.wait(SECONDS)
        OTHER.beside, OTHER.headers = them.told[0].beside, them.told[0].headers
        them.manner = of_another_chain
        them.calls["c hold"] = ["mcp:v.go"]
        around = RINGS["3"]
        looped(here.ring(around), "key:ann-key", around)
        them.gate.set()
        assert bobs.result(SECONDS) == "c(v())"


@pytest.mark.promise("Q7")
@pytest.mark.parametrize("manner", [stripped, forged])
def test_a_ring_does_not_live_on_a_chain_that_its_peers_serve_meanwhile(
    keyed_ground: Ground, manner: Manner
) -> None:
    here, them = keyed_ground, keyed_ground.peers
    them.manner = manner
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
@pytest.mark.parametrize("manner", [intact, stripped, forged])
def test_the_seventh_of_a_line_is_too_deep(keyed_ground: Ground, manner: Manner) -> None:
    here, them = keyed_ground, keyed_ground.peers
    them.manner = manner
    line = ("mcp:a.go", "mcp:s.go", "a2a:b", "mcp:t.go", "mcp:c.message", "mcp:u.go", "mcp:v.go")
    for path, after in pairwise(line):
        them.calls[name_in(path)] = [after]
    said = here.call(line[0])
    path = " → ".join(["key:ann-key", *map(verb_of, line)])
    words = "it would be 6 calls deep and 5 are allowed ([limits] chain_depth)"
    assert f'"v.go" was refused: {words}: {path}' in said
    assert sum(them.served.values()) == 6 and not them.served["v"]


@pytest.mark.promise("Q7")
@pytest.mark.parametrize("manner", [intact, stripped])
def test_a_chain_that_grows_wide_ends_at_its_budget(keyed_ground: Ground, manner: Manner) -> None:
    here, them = keyed_ground, keyed_ground.peers
    them.manner, them.at_once = manner, True
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
@pytest.mark.parametrize("manner", [stripped, forged])
@pytest.mark.parametrize("around", [RINGS["an agent itself"], RINGS["2"], RINGS["3"]], ids=len)
def test_a_ring_without_credentials_is_bounded_by_what_a_target_serves(
    _narrow: Ground, manner: Manner, around: Sequence[str]
) -> None:
    here = _narrow
    here.peers.forget()
    here.peers.manner = manner
    said = here.ring(around)
    first = name_in(around[0])
    assert f'4 calls to "{first}" are running; try again shortly or raise [limits]' in said
    assert set(here.peers.served.values()) == {4} and here.peers.most <= 4 * len(around)
    here.peers.calls.clear()
    assert here.call("mcp:a.message") == "a()"  # all have ended


@pytest.mark.promise("Q7")
def test_a_ring_without_credentials_ends_in_seconds_and_others_are_served_meanwhile(
    open_ground: Ground,
) -> None:
    here = open_ground
    here.peers.manner = stripped
    with ThreadPoolExecutor(1) as pool:
        rings = pool.submit(here.ring, RINGS["2"])
        slowest, count = 0.0, 0
        while not rings.done() or not count:
            begun = time.monotonic()
            assert here.call("mcp:v.go") == "v()"
            slowest, count = max(slowest, time.monotonic() - begun), count + 1
        assert re.search(r'\d+ calls to "[ab]" are running', rings.result())
    assert slowest < 10.0
    here.peers.calls.clear()
    assert here.call("mcp:a.message") == "a()"


@pytest.mark.promise("Q6", "Q7")
def test_the_record_of_a_ring_is_one_trace_with_its_depths_and_its_end(
    open_ground: Ground,
) -> None:
    around = RINGS["3"]
    open_ground.ring(around)
    trace = open_ground.peers.told[0].beside["X-OpenStarry-Trace-ID"]
    mine = [one for one in open_ground.hub.audit() if one.get("trace") == trace]
    begun = [one for one in mine if "depth" in one]
    assert {one["depth"]: one["verb"] for one in begun} == dict(
        enumerate([*map(verb_of, around), verb_of(around[0])])
    )
    assert "Looping" in str(mine)
    traces = {one.beside["X-OpenStarry-Trace-ID"] for one in open_ground.peers.told}
    assert traces == {trace}
    spans = {one.beside["traceparent"].split("-")[2] for one in open_ground.peers.told}
    assert len(spans) == len(around)
