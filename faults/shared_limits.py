"""Two hubs that share their rate limits in Valkey, which is killed, stopped, emptied, or slow."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tests.live.conftest import RunningHub, _written_config
from tests.peers import wire
from tests.peers.valkey_server import SlowProxy, ValkeyServer, run_slow_proxy, run_valkey

from faults.harness import Outcome, running_hub, temporary_home, until
from faults.peers import find_p99

KEY = {"authorization": "Bearer a-key-of-both-hubs-which-is-long"}
BURST, PER_SECOND = 50, 40
CALLERS = 4
CALM_SECONDS = 2.0
BACK_SECONDS = 5.0
LATE_SECONDS = 0.06
CONFIG = f"""api_key = "a-key-of-both-hubs-which-is-long"
[redis]
url = "URL"
[limits.rate]
owner_per_minute = {PER_SECOND * 60}
owner_burst = {BURST}
"""


class Callers:
    """Send requests to both hubs in turn, and count the tokens that they were admitted for."""

    def __init__(self, hubs: Sequence[RunningHub]) -> None:
        self._hubs = hubs
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._send, args=(n,)) for n in range(CALLERS)]
        self._threads += [threading.Thread(target=self._probe) for _ in range(CALLERS)]
        self.admitted = 0
        self.refused = 0
        self.lost: list[str] = []
        self.begun = time.monotonic()
        self.took: list[float] = []
        """The seconds of each request since `reset`."""
        self.probes: list[float] = []
        """Of those that are not charged: how slow this machine is by itself."""

    def __enter__(self) -> Callers:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for one in self._threads:
            one.join(30)

    def _send(self, number: int) -> None:
        turn = number
        while not self._over.wait(0.01):
            turn += 1
            begun = time.monotonic()
            try:
                url = self._hubs[turn % len(self._hubs)].url
                status = wire.get(f"{url}/api/tools", KEY, timeout=10).status
            except OSError as error:
                status = 0
                self.lost.append(repr(error)[:200])
            took = time.monotonic() - begun
            with self._lock:
                self.took.append(took)
                self.admitted += status == 200
                self.refused += status == 429
                if status not in (0, 200, 429):
                    self.lost.append(f"status {status}")

    def _probe(self) -> None:
        while not self._over.wait(0.01):
            for hub in self._hubs:
                begun = time.monotonic()
                wire.get(f"{hub.url}/healthz", timeout=10)
                took = time.monotonic() - begun
                with self._lock:
                    self.probes.append(took)

    def reset(self) -> None:
        """Counts anew from here: what was admitted before would hide an excess."""
        with self._lock:
            self.took, self.probes = [], []
            self.admitted, self.begun = 0, time.monotonic()

    def find_excess(self) -> float:
        """The share of the limit that was admitted since `reset`."""
        return self.admitted / (BURST + PER_SECOND * (time.monotonic() - self.begun))


@contextmanager
def _serve_proxy(upstream: str) -> Iterator[SlowProxy]:
    """The proxy, with an event loop of its own."""
    loop, found = asyncio.new_event_loop(), threading.Event()
    proxies: list[SlowProxy] = []
    over = asyncio.Event()

    async def serve() -> None:
        async with run_slow_proxy(upstream) as proxy:
            proxies.append(proxy)
            found.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert found.wait(10)
        yield proxies[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(10)


def lose_redis(size: int, seed: int, outcome: Outcome) -> None:
    """`size` is the number of seconds for which Redis is away."""
    with run_valkey() as server, _serve_proxy(server.url) as proxy:
        for how in ("killed", "stopped", "slow", "emptied"):
            _lose_once(how, server, proxy, size, outcome)


def _lose_once(
    how: str, server: ValkeyServer, proxy: SlowProxy, seconds: int, outcome: Outcome
) -> None:
    def set_delay(delay: float) -> None:
        proxy.delay = delay

    leave: dict[str, Callable[[], None]] = {
        "killed": server.kill,
        "stopped": server.pause,
        "slow": lambda: set_delay(0.2),
        "emptied": server.empty,
    }
    come_back: dict[str, Callable[[], None]] = {
        "killed": server.start,
        "stopped": server.resume,
        "slow": lambda: set_delay(0.0),
        "emptied": lambda: None,
    }
    with ExitStack() as stack:
        hubs = []
        for _ in range(2):
            home = stack.enter_context(temporary_home())
            # The proxy shares a process with the callers, and so is slow by itself.
            url = proxy.url if how == "slow" else server.url
            text = _written_config(CONFIG.replace("URL", url), [])
            (home / "config.toml").write_text(text, encoding="utf-8")
            (home / "config.toml").chmod(0o600)
            hubs.append(stack.enter_context(running_hub(outcome, home)))

        def is_shared(expected: bool) -> bool:
            line = b"dragoman_redis_up %d" % expected
            return all(line in wire.get(f"{one.url}/metrics", KEY).body for one in hubs)

        outcome.check(until(lambda: is_shared(True)), f"{how}: Redis is not used at first")
        callers = stack.enter_context(Callers(hubs))
        time.sleep(CALM_SECONDS)
        callers.reset()
        leave[how]()
        if how == "emptied":
            callers.begun -= BURST / PER_SECOND  # another budget, which was lost
        time.sleep(seconds)
        late = find_p99(callers.took) - find_p99(callers.probes)
        excess = callers.find_excess()
        enough = callers.admitted > 0.5 * PER_SECOND * seconds  # the burst is used up by then
        if how != "emptied":  # nothing returns then
            before = [len(one.log()) for one in hubs]
            come_back[how]()
            begun = time.monotonic()
            # The log, since requests may be refused while there are no tokens.
            back = until(
                lambda: all(
                    " is back" in one.log()[size:] for one, size in zip(hubs, before, strict=True)
                ),
                BACK_SECONDS + 1,
            )
            took = time.monotonic() - begun
            outcome.check(bool(back) and took <= BACK_SECONDS, f"{how}: back after {took:.1f} s")
            outcome.figures[f"{how}: back after s"] = round(took, 1)
        outcome.check(not callers.lost, f"{how}: requests were lost: {callers.lost[:3]}")
        fits = enough and excess <= 2.0
        outcome.check(fits, f"{how}: {excess:.2f} times the limit was admitted")
        outcome.check(late <= LATE_SECONDS, f"{how}: p99 is {late * 1000:.0f} ms more")
        outcome.figures[f"{how}: times the limit"] = round(excess, 2)
        outcome.figures[f"{how}: p99, ms over a probe"] = max(0, round(late * 1000))
