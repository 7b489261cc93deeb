"""Servers and agents that die, flood, hang or disconnect while a client uses a healthy one.

Every call gets an answer or a typed error in its time, the neighbour is served all the while, and
the hub has no more processes, descriptors or memory than before.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.live.bridge_fixture import external
from tests.live.conftest import RunningHub, _descendants
from tests.live.module_hub import BackgroundCaller, text_of
from tests.peers import wire
from tests.peers.process import HttpPeer, alive, server_entry

from faults.agents import serving_agents
from faults.fixtures import echo_server
from faults.harness import Outcome, fresh_hub, open_files, resident_mb, until

TIMEOUT = 2
SERVER_MODES = (
    "exit-at-call", "closes-stdout", "hang-on-call", "wrong-id", "two-answers", "garbage", "flood",
    "prints-banner", "stderr-flood", "bigline", "nothing", "hang",
)  # fmt: skip
HTTP_MODES = (
    "hang-headers", "hang-body", "hang-mid", "reset", "reset-mid", "close", "drip", "endless-sse",
    "204", "html-500", "html-200", "big", "big-500", "short", "long", "gzip", "gzip-bomb",
    "redirect-loop", "404-session", "401", "bad-chunks", "not-http", "endless-body", "flood-sse",
)  # fmt: skip
HTTP_MB = 20
AGENT_MODES = ("good", "flooding", "hanging", "comments", "closing", "silent")
AGENT_CALLS = (*AGENT_MODES, "flooding", "flooding", "flooding")
TYPED = (200, 403, 404, 409, 429, 502, 503, 504)


def call_over_api(hub: RunningHub, tool: str, seconds: float) -> tuple[int, float]:
    """The status, 0 where none came in time, and how long it took."""
    begun = time.monotonic()
    body = {"arguments": {"text": "x"}}
    try:
        status = wire.post(hub.url + f"/api/tools/{tool}/call", body, timeout=seconds).status
    except OSError:
        status = 0
    return status, time.monotonic() - begun


def find_p99(took: Sequence[float]) -> float:
    return sorted(took)[len(took) * 99 // 100]


def usual_seconds(hub: RunningHub) -> float:
    """The duration of a call without misbehaving peers."""
    return statistics.median(call_over_api(hub, "r.echo", 20)[1] for _ in range(30))


def judge_neighbour(neighbour: BackgroundCaller, usual: float, outcome: Outcome) -> None:
    outcome.figures["calls of the neighbour"] = neighbour.good
    outcome.figures["their median, ms"] = round(1000 * statistics.median(neighbour.took))
    outcome.figures["their p99, ms"] = round(1000 * find_p99(neighbour.took))
    outcome.figures["a usual one, ms"] = round(1000 * usual)
    outcome.check(not neighbour.bad, f"the neighbour met {neighbour.bad[:2]}")
    outcome.check(neighbour.good > 0, "the neighbour was not served")
    most = 0.1 + 10 * usual
    outcome.check(
        statistics.median(neighbour.took) < most,
        f"half of the neighbour's calls take longer than {most:.2f} s, {usual:.3f} s before",
    )


def misbehaving_servers(rounds: int, seed: int, outcome: Outcome) -> None:
    servers = [
        server_entry(
            mode,
            "faulty_server",
            mode,
            "--seconds",
            5,
            "--megabytes",
            12,
            timeout_secs=TIMEOUT,
        )
        for mode in SERVER_MODES
    ]
    chance = random.Random(seed)
    with fresh_hub(outcome, [echo_server(), *servers]) as hub:
        hub.wait_connected("r", *SERVER_MODES[:7])
        usual = usual_seconds(hub)
        files, memory = open_files(hub), resident_mb(hub.pid)
        with BackgroundCaller(hub, "r.echo") as neighbour:
            for _ in range(rounds):
                order = chance.sample(SERVER_MODES, len(SERVER_MODES))
                with ThreadPoolExecutor(6) as pool:
                    answers = pool.map(lambda mode: call_over_api(hub, f"{mode}.echo", 60), order)
                    for mode, (status, took) in zip(order, answers, strict=True):
                        outcome.count("calls")
                        outcome.check(status in TYPED, f"{mode}: {status} after {took:.1f} s")
                kill_a_child(hub, chance, outcome)
            judge_neighbour(neighbour, usual, outcome)
        back = until(lambda: call_over_api(hub, "two-answers.echo", 20)[0] == 200, 30)
        outcome.check(back, "a server that was killed is not used again")
        outcome.check(
            until(lambda: open_files(hub) <= files + 12, 20),
            f"{open_files(hub)} descriptors are open, {files} were",
        )
        outcome.figures["more memory, MB"] = round(resident_mb(hub.pid) - memory)
        outcome.check(resident_mb(hub.pid) - memory < 150, "memory grows")
        zombies = [pid for pid in _descendants(hub.pid) if not alive(pid)]
        outcome.check(
            until(lambda: not [p for p in _descendants(hub.pid) if not alive(p)], 10),
            f"zombies: {zombies}",
        )


def misbehaving_http_servers(rounds: int, seed: int, outcome: Outcome) -> None:
    """Each way in which an HTTP server can fail at a call: all at once, and in more than one round
    also one at a time."""
    with HttpPeer("faulty_http") as peer:
        query = "?seconds=0.2&rate=20e6"
        answers = {"long": (200,), "401": (403,)}  # the others fail, some of them at their timeout
        servers = [
            server_entry(
                mode,
                "http",
                f"{peer.url}/after/{mode}{query}",
                timeout_secs=20 if mode in answers else TIMEOUT,
            )
            for mode in HTTP_MODES
        ]
        with fresh_hub(outcome, [echo_server(), *servers]) as hub:
            hub.wait_connected("r", *HTTP_MODES)
            usual = usual_seconds(hub)
            files = open_files(hub)

            def call(mode: str) -> None:
                status, took = call_over_api(hub, f"{mode}.echo", 60)
                outcome.count("calls")
                fits = status in answers.get(mode, (502, 503, 504))
                outcome.check(fits and took < 20, f"{mode}: {status} after {took:.1f} s")

            with BackgroundCaller(hub, "r.echo") as neighbour:
                for mode in HTTP_MODES if rounds > 1 else ():
                    before = resident_mb(hub.pid)
                    call(mode)
                    more = resident_mb(hub.pid) - before
                    outcome.check(more < HTTP_MB, f"{mode}: {more:.0f} MB more")
                for _ in range(rounds):
                    with ThreadPoolExecutor(len(HTTP_MODES)) as pool:
                        list(pool.map(call, HTTP_MODES))
                judge_neighbour(neighbour, usual, outcome)
            outcome.check(
                until(lambda: open_files(hub) <= files + 12, 20),
                f"{open_files(hub)} descriptors are open, {files} were",
            )


def kill_a_child(hub: RunningHub, chance: random.Random, outcome: Outcome) -> None:
    """Any but the neighbour's."""
    spared = text_of(hub.call("r.pid"))
    children = [pid for pid in _descendants(hub.pid) if alive(pid) and str(pid) != spared]
    if children:
        try:
            os.kill(chance.choice(children), signal.SIGKILL)
            outcome.count("children killed")
        except ProcessLookupError:
            pass


def misbehaving_agents(rounds: int, seed: int, outcome: Outcome) -> None:
    with serving_agents() as agents:
        entries = [
            external(mode, f"{agents.url}/{mode}/{mode}", timeout_secs=TIMEOUT)
            for mode in AGENT_MODES
        ]
        config = "[limits]\ntask_timeout_secs = 30\n[a2a]\nenabled = true\n" + "".join(entries)
        with fresh_hub(outcome, [echo_server()], config) as hub:
            hub.wait_connected("r")
            healthy = until(lambda: call_over_api(hub, "good.do", 20)[0] == 200, 20)
            outcome.check(healthy, "the good agent is not used")
            usual = usual_seconds(hub)
            memory = resident_mb(hub.pid)
            with BackgroundCaller(hub, "r.echo") as neighbour:
                for _ in range(rounds):
                    with ThreadPoolExecutor(len(AGENT_CALLS)) as pool:
                        answers = pool.map(
                            lambda mode: call_over_api(hub, f"{mode}.do", 120), AGENT_CALLS
                        )
                        for mode, (status, took) in zip(AGENT_CALLS, answers, strict=True):
                            outcome.count("calls")
                            fits = status in TYPED and took < 60
                            outcome.check(fits, f"{mode}: {status} after {took:.1f} s")
                judge_neighbour(neighbour, usual, outcome)
            outcome.figures["more memory, MB"] = round(resident_mb(hub.pid) - memory)
            outcome.check(resident_mb(hub.pid) - memory < 200, "memory grows")
            healthy = until(lambda: call_over_api(hub, "good.do", 20)[0] == 200, 60)
            outcome.check(healthy, "the good agent is not used afterwards")
