"""Three hubs to which everything happens in a random order that a seed repeats: pauses, kills,
stops, links that are closed, hang or are slow, locked rows, and a clock of the database that steps.
"""

from __future__ import annotations

import itertools
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import psycopg

from faults.chaos_loads import Approvals, Client, Crowd, Messages, Registrations
from faults.chaos_rig import ChaosRig, Place, run_chaos_rig
from faults.cluster_loads import BROKEN
from faults.harness import Outcome, until
from faults.hub_logs import judge_logs
from faults.links import CUT, DELAY, HANG, PASS, Link

READY_SECONDS = 10.0
"""After the last fault, all hubs are ready and do their work."""
PATIENCE = 30.0
"""How long it is measured if that fails."""
PROBE_SECONDS = 5.0
LONGEST_PAUSE = 30.0
STEP_SECONDS = 10
"""By which the clock of PostgreSQL is set, ahead and back."""
LOCK_SECONDS = 1.0
LOCKED_AT_A_TIME = 6
DECK = (
    *["pause"] * 5,
    "kill",
    "stop",
    *(f"{mode} {link}" for link in ("database", "redis", "peers") for mode in (CUT, HANG, DELAY)),
    *["lock"] * 3,
    "clock ahead",
    "clock back",
)
COUNTS = {"lock": LOCKED_AT_A_TIME, "clock": 2}
"""How many faults those are that consist of several."""
HARMLESS = ("clock", "lock", "cut redis", "hang redis", "delay redis", "cut peers", "hang peers")
"""Faults in which all hubs run and reach the database."""
_ALIVE = "SELECT id FROM dragoman.hubs WHERE heir IS NULL AND state = 'ready'"
_TABLES = """
SELECT table_name FROM information_schema.tables
WHERE table_schema = 'dragoman' AND table_type = 'BASE TABLE' ORDER BY table_name
"""


@dataclass(frozen=True)
class Fault:
    kind: str
    place: int
    seconds: float
    calm: float
    """Seconds until the next one."""


def plan_faults(seed: int, hubs: int) -> Callable[[], Fault]:
    """Gives one fault after the other, each kind before one comes again."""
    chance = random.Random(seed)
    left: list[str] = []

    def draw() -> Fault:
        if not left:
            left.extend(DECK)
            chance.shuffle(left)
        kind = left.pop()
        seconds = chance.uniform(1.0, 12.0)
        if kind == "pause":  # half of them longer than a lease
            longest = chance.choice((6.0, LONGEST_PAUSE))
            seconds = chance.uniform(1.0, longest)
        return Fault(kind, chance.randrange(hubs), seconds, chance.uniform(0.5, 5.0))

    return draw


@dataclass
class Truth:
    """Asks each hub whether it is ready, and whether it can do what it says."""

    rig: ChaosRig
    seed: int
    lying: dict[int, float] = field(default_factory=dict)
    """Since when a hub has said that it is ready and done nothing."""
    longest: float = 0.0
    why: str = ""

    def __post_init__(self) -> None:
        kinds = (Messages, Approvals, Registrations)
        self._makers: list[Client] = [
            kind(self.rig, 90 + n, self.seed) for n, kind in enumerate(kinds)
        ]
        self._numbers = itertools.count()

    def is_ready(self, place: Place) -> bool:
        try:
            return self.rig.get(place, "/readyz", PROBE_SECONDS).status == 200
        except BROKEN:
            return False

    def find_inability(self, place: Place, *, briefly: bool = False) -> str:
        """What the hub cannot do, of that which needs the writes of its stores; empty if it can do
        everything. `briefly` leaves out what makes more work for the hub."""
        seconds = PROBE_SECONDS
        messages, approvals, _ = self._makers
        assert isinstance(messages, Messages) and isinstance(approvals, Approvals)
        key = f"probe{next(self._numbers)}x{place.number}"
        works: dict[str, Callable[[], object]] = {
            "a message": lambda: messages.send(place, key, seconds),
            "an approval": lambda: approvals.request(place, key, seconds),
            "the list of keys": lambda: self.rig.get(place, "/api/keys", seconds).json()["keys"],
            "a registration": lambda: self._register(place, key, seconds),
            "a run": lambda: self.rig.post(place, "/api/workflows/three/run", {}, seconds).json()[
                "run"
            ]["id"],
        }
        for name, work in list(works.items())[: 3 if briefly else None]:
            try:
                work()
            except BROKEN as error:
                return f"{name}: {error!r}"[:400]
        return ""

    def _register(self, place: Place, name: str, seconds: float) -> None:
        """Registers an agent and removes it: the hub stores a limited number of them."""
        registrations = self._makers[2]
        assert isinstance(registrations, Registrations)
        registrations.add(place, name, seconds)
        registrations.remove(place, name)

    def works(self, place: Place, why: list[str]) -> bool:
        """Whether the hub is ready and can do everything; `why` not."""
        why[:] = ["not ready"]
        if self.is_ready(place):
            why[:] = [self.find_inability(place)]
        return not why[0]

    def watch(self) -> None:
        """Notes how long a hub says that it is ready while nothing works."""
        with self.rig.reporting("the watch of readiness"):
            self._watch()

    def _watch(self) -> None:
        while not self.rig.over.wait(1.0):
            for place in self.rig.places:
                if place.paused or not self.is_ready(place):
                    self.lying.pop(place.number, None)
                elif why := self.find_inability(place, briefly=True):
                    since = self.lying.setdefault(place.number, time.monotonic())
                    lasted = time.monotonic() - since
                    if lasted > self.longest:
                        self.longest = lasted
                        self.why = f"hub {place.number}: {why}"
                else:
                    self.lying.pop(place.number, None)


class Chaos:
    def __init__(self, rig: ChaosRig, seed: int) -> None:
        self.rig, self.seed = rig, seed
        self.outcome = rig.outcome
        self.draw = plan_faults(seed, len(rig.places))
        self.episodes: Counter[str] = Counter()
        self._locks = seed
        self.truth = Truth(rig, seed)

    def run(self, seconds: float) -> None:
        crowd = Crowd(self.rig, self.seed)
        watcher = threading.Thread(target=self.truth.watch, daemon=True)
        crowd.start()
        watcher.start()
        try:
            until_at = time.monotonic() + seconds
            time.sleep(2.0)
            while time.monotonic() < until_at:
                fault = self.draw()
                self._say(f"{fault.kind} hub {fault.place} for {fault.seconds:.1f} s")
                self.rig.mark_logs(COUNTS.get(fault.kind.split()[0], 1))
                self._cause(fault)
                self._check_running()
                self.episodes[fault.kind] += 1
                time.sleep(fault.calm)
            self._judge_recovery()
        finally:
            crowd.stop()
            watcher.join(60)
        crowd.judge()
        self.outcome.check(
            self.truth.longest <= READY_SECONDS,
            f"a hub has said for {self.truth.longest:.0f} s that it is ready: {self.truth.why}",
        )
        self.outcome.figures["longest untrue readiness, s"] = round(self.truth.longest, 1)
        self.outcome.figures["faults"] = sum(self.episodes.values())
        judge_logs(self.rig)

    def _say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')}     seed {self.seed}: {text}", flush=True)

    def _check_running(self) -> None:
        """No hub ends by itself; one that has is started again."""
        for place in self.rig.places:
            assert place.hub is not None
            if place.hub.process.poll() is not None:
                self.rig.end_hub(place, gently=False)  # reports it
                self._start(place)

    def _judge_recovery(self) -> None:
        """Each hub is asked until it can do everything."""
        begun = time.monotonic()

        def wait_for(place: Place) -> float:
            why = [""]
            if not until(lambda: self.truth.works(place, why), PATIENCE):
                self.outcome.fail(
                    f"hub {place.number} does not work {PATIENCE:.0f} s after the last fault: "
                    f"{why[0]}"
                )
            return time.monotonic() - begun

        with ThreadPoolExecutor(len(self.rig.places)) as pool:
            slowest = max(pool.map(wait_for, self.rig.places))
        self.outcome.check(
            slowest <= READY_SECONDS, f"a hub worked {slowest:.1f} s after the last fault"
        )
        self.outcome.figures["all ready after, s"] = round(slowest, 1)

    # --- the faults

    def _cause(self, fault: Fault) -> None:
        """A hub that runs and reaches the database is not taken for dead."""
        is_harmless = fault.kind.startswith(HARMLESS)
        before = self._wait_for_hubs() if is_harmless else set()
        self._break(fault)
        if is_harmless:
            dead = before - self._list_alive()
            self.outcome.count("hubs taken for dead that were not", len(dead))
            self.outcome.check(not dead, f"{fault.kind}: {len(dead)} hubs were taken for dead")

    def _list_alive(self) -> set[str]:
        with psycopg.connect(self.rig.database, autocommit=True) as database:
            return {str(id) for (id,) in database.execute(_ALIVE).fetchall()}

    def _wait_for_hubs(self) -> set[str]:
        """Those of the last fault have joined again."""
        until(lambda: len(self._list_alive()) >= len(self.rig.places), READY_SECONDS)
        return self._list_alive()

    def _break(self, fault: Fault) -> None:
        place = self.rig.places[fault.place]
        match fault.kind.split():
            case ["pause"]:
                self._pause(place, fault.seconds)
            case ["kill"]:
                self.rig.end_hub(place, gently=False)
                time.sleep(min(fault.seconds, 8.0))
                self._start(place)
            case ["stop"]:
                self.rig.end_hub(place, gently=True)
                self._start(place)
            case ["lock"]:
                self._lock_rows()
            case ["clock", way]:
                self._step_clock(STEP_SECONDS if way == "ahead" else -STEP_SECONDS, fault.seconds)
            case [mode, name]:
                link: Link = getattr(place, name)
                self.rig.links.set(link, mode)
                time.sleep(fault.seconds)
                self.rig.links.set(link, PASS)

    def _start(self, place: Place) -> None:
        try:
            self.rig.start_hub(place)
        except RuntimeError as error:
            self.outcome.fail(f"hub {place.number} does not start: {str(error)[-600:]}")
            self.rig.start_hub(place)

    def _pause(self, place: Place, seconds: float) -> None:
        assert place.hub is not None
        process = place.hub.process
        place.paused = True
        process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            process.send_signal(signal.SIGCONT)
            place.paused = False

    def _step_clock(self, ahead: int, seconds: float) -> None:
        if self.rig.clock is None:
            self.outcome.figures["steps of the clock"] = "not without a C compiler"
            return
        for value in (ahead, 0):
            self.rig.clock.set_clock(value)
            self.outcome.count("steps of the clock")
            time.sleep(seconds)

    def _lock_rows(self) -> None:
        """Locks a row of one table after the other, and that by which each store counts its
        changes."""
        with psycopg.connect(self.rig.database, autocommit=True) as database:
            tables = [str(name) for (name,) in database.execute(_TABLES).fetchall()]
            counted = database.execute("SELECT store FROM dragoman.changes ORDER BY store")
            stores = [str(name) for (name,) in counted.fetchall()]
            places = [f"changes WHERE store = '{store}'" for store in stores]
            database.execute("SET lock_timeout = 2000")  # a hub may hold the row itself
            places += [f"{table} ORDER BY random() LIMIT 1" for table in tables]
            for _ in range(LOCKED_AT_A_TIME):
                where = places[self._locks % len(places)]
                self._locks += 7 if len(places) % 7 else 5  # of any kind in a short run
                with suppress(psycopg.Error), database.transaction():
                    database.execute(f"SELECT 1 FROM dragoman.{where} FOR UPDATE".encode())
                    time.sleep(LOCK_SECONDS)
                self.outcome.count("rows locked")


def cause_chaos(seconds: int, seed: int, outcome: Outcome) -> None:
    """Runs one seed for so many seconds."""
    print(f"{time.strftime('%H:%M:%S')}     cluster chaos: seed {seed}, {seconds} s", flush=True)
    with run_chaos_rig(outcome) as rig:
        Chaos(rig, seed).run(seconds)
