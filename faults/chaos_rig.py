"""Hubs of a cluster with the default lease, each behind proxies of its own: to PostgreSQL, to
Valkey, and from the other hubs. Their effects go to a ledger outside of them."""

from __future__ import annotations

import json
import random
import re
import shutil
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from tests.live.conftest import RunningHub
from tests.peers import wire
from tests.peers.postgres_server import PostgresPeer, create_database, run_peer
from tests.peers.process import server_entry, toml
from tests.peers.scripted_model import Answer, ScriptedModel, running_model, say
from tests.peers.valkey_server import ValkeyServer, run_valkey

from faults.agents import Agents, serving_agents
from faults.harness import RATE_LIMITS, ROOT, NotHere, Outcome
from faults.ledger import VARIABLE, note, run_ledger
from faults.links import Link, Links, run_links
from faults.shim import Shim

KEY = "key-of-the-chaos-0123456789abcdefghij"
SECRET = "secret-of-the-chaos-0123456789abcdefghij"
HEADERS = {"Authorization": f"Bearer {KEY}"}
ANSWER_SECONDS = 45.0
"""More than the longest pause: a request that waits at a paused hub is answered after it."""
_MEMBERS = "SELECT id FROM dragoman.hubs WHERE heir IS NULL AND state NOT IN ('stopped', 'dead')"
_INTERRUPTED = "SELECT id, hub FROM dragoman.approvals WHERE outcome = 'interrupted'"
TICKS = 6
"""Schedules of workflows, and as many of agents, each due once a minute."""
_STEP = (
    "{{id: {id}, nodeId: tool.call, config: {{tool: ledger.pay, arguments: {{seconds: {seconds}, "
    "key: 'run {{{{ $run.id }}}} {id}'}}}}{more}}}"
)
STEPS = ("a", "b", "c")
WORKFLOW = "steps:\n" + "".join(
    f"  - {_STEP.format(id=id, seconds=0.2, more=f', dependsOn: [{before}]' if before else '')}\n"
    for before, id in zip(("", *STEPS), STEPS, strict=False)
)
TICK = "triggers:\n  - {{type: schedule, every: 1m, catchUp: all}}\nsteps:\n  - {}\n".format(
    _STEP.format(id="a", seconds=0.1, more="")
)
MANIFEST = """
name = "{name}"
description = "Works by the clock"
[model]
model = "scripted-1"
base_url = "{url}"
[[schedule]]
time = "* * * * *"
message = "tick of {name}"
"""
DEFAULTS = ROOT / "src" / "dragoman" / "policy" / "shipped" / "default.cedar"
GUARD = """
@id("guarded")
@approval("it is money")
forbid (principal, action in Hub::Action::"any_call", resource == Hub::Tool::"ledger.guarded")
unless { context.approved };
"""
CONFIG = """
api_key = {key}
[server]
port = 0
[limits]
tasks = 100_000
tasks_each = 100_000
{rates}
[store]
url = {store}
[cluster]
secret = {secret}
listen = "127.0.0.1:{listen}"
advertise = "127.0.0.1:{advertise}"
[redis]
url = {redis}
[approvals]
wait_secs = 0.2
pending = 10_000
pending_each = 10_000
[a2a]
enabled = true
max_tasks = 50_000
[[agents]]
name = "worker"
function = "faults.ledger:work"
{servers}
"""


class LedgerModel(ScriptedModel):
    """The model of agents with a schedule and of conversations: each request for a run of a
    schedule is an effect."""

    def __init__(self, ledger: Path) -> None:
        super().__init__()
        self._ledger = ledger
        self.asked: dict[str, str] = {}
        """All messages of the last request for each turn of a conversation."""

    def take(self, body: dict[str, Any]) -> Answer:
        text = str(body.get("messages"))
        if words := re.findall(r"word \d+ \d+\.", text):
            self.asked[words[-1]] = text
        else:
            found = re.findall(r"tick of (\w+)", text)
            note(self._ledger, "begun", f"schedule {found[-1] if found else 'unknown'}")
        return say("done")


@dataclass
class Place:
    """A home with its links, in which one hub after the other runs."""

    number: int
    home: Path
    database: Link
    redis: Link
    peers: Link
    hub: RunningHub | None = None
    logs: list[str] = field(default_factory=list)
    """What the hubs before the present one have logged."""
    paused: bool = False

    @property
    def url(self) -> str:
        """A hub that had to wait for its database has listened at another port meanwhile."""
        hub = self.hub
        if hub is None:
            raise ConnectionRefusedError("no hub runs there")
        try:
            return str(json.loads((self.home / "daemon.json").read_bytes())["url"])
        except (OSError, ValueError):
            return hub.url

    def read_log(self) -> str:
        return "".join(self.logs) + (self.hub.log() if self.hub is not None else "")


@dataclass
class ChaosRig:
    folder: Path
    places: list[Place]
    postgres: PostgresPeer
    database: str
    valkey: ValkeyServer
    links: Links
    agents: Agents
    model: LedgerModel
    clock: Shim | None
    """Of PostgreSQL; None where the machine has no compiler for it."""
    outcome: Outcome
    over: threading.Event = field(default_factory=threading.Event)
    settled_by: float = 0.0
    """When all that was begun must have ended."""
    decided: set[tuple[str, str]] = field(default_factory=set)
    """The steps that a person has skipped, each with the id of its run."""
    log_marks: list[tuple[int, float, list[int]]] = field(default_factory=list)
    """How many faults began, when, and how much each hub had logged by then."""

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    def mark_logs(self, faults: int = 1) -> None:
        """Notes that so many faults begin."""
        lengths = [len(place.read_log()) for place in self.places]
        self.log_marks.append((faults, time.monotonic(), lengths))

    def list_members(self) -> set[str]:
        """The ids of the hubs that have neither ended nor been taken for dead."""
        with psycopg.connect(self.database, autocommit=True) as database:
            return {str(id) for (id,) in database.execute(_MEMBERS).fetchall()}

    def list_interrupted(self) -> dict[str, str]:
        """The hub of each approved call that counts as interrupted."""
        with psycopg.connect(self.database, autocommit=True) as database:
            return {str(id): str(hub) for id, hub in database.execute(_INTERRUPTED).fetchall()}

    def find_request(self, word: str) -> str:
        """All messages with which the model was asked for that turn."""
        return self.model.asked.get(word, "")

    @contextmanager
    def reporting(self, work: str) -> Iterator[None]:
        """Reports what ends a thread: an experiment without its load or its watch shows nothing."""
        try:
            yield
        except Exception:
            self.outcome.fail(f"{work} ended: {traceback.format_exc()[-1_500:]}")

    def start_hub(self, place: Place) -> None:
        variables = {"PYTHONPATH": str(ROOT), VARIABLE: str(self.ledger)}
        begun = time.monotonic()
        place.hub = RunningHub(place.home, [], variables)
        figures = self.outcome.figures
        took = max(time.monotonic() - begun, figures.get("longest start, s", 0.0))
        figures["longest start, s"] = round(took, 1)

    def end_hub(self, place: Place, *, gently: bool) -> None:
        """By SIGTERM or SIGKILL; what the hub leaves behind is judged at the end. A hub that has
        ended by itself is a failure."""
        hub = place.hub
        if hub is None:
            return
        if (code := hub.process.poll()) is not None:
            log = hub.log()[-2_000:]
            self.outcome.fail(f"hub {place.number} ended by itself with {code}: {log}")
            self.outcome.count("hubs that ended by themselves")
        if gently:
            hub.stop()
            for problem in hub.problems:
                self.outcome.fail(f"hub {place.number}: {problem}")
        else:
            hub.kill()
        place.logs.append(hub.log())
        place.hub = None
        hub.checks = False
        hub.finish()

    def get(self, place: Place, path: str, seconds: float = ANSWER_SECONDS) -> wire.Answer:
        return wire.get(f"{place.url}{path}", HEADERS, seconds)

    def post(
        self,
        place: Place,
        path: str,
        body: Any,
        seconds: float = ANSWER_SECONDS,
        headers: Mapping[str, str] | None = None,
    ) -> wire.Answer:
        return wire.post(f"{place.url}{path}", body, {**HEADERS, **(headers or {})}, seconds)


def _find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _write_home(place: Place, listen: int, store: str, redis: str, ledger: str, model: str) -> None:
    home = place.home
    for folder in (home, home / "policies", home / "workflows", home / "agents"):
        folder.mkdir(mode=0o700)
    config = CONFIG.format(
        key=toml(KEY),
        rates=RATE_LIMITS,
        store=toml(store),
        secret=toml(SECRET),
        listen=listen,
        advertise=place.peers.port,
        redis=toml(redis),
        servers=server_entry("ledger", "http", ledger),
    )
    files = {
        home / "config.toml": config,
        home / "policies" / "default.cedar": DEFAULTS.read_text("utf-8"),
        home / "policies" / "guard.cedar": GUARD,
        home / "workflows" / "three.yaml": WORKFLOW,
    }
    for number in range(TICKS):
        files[home / "workflows" / f"tick{number}.yaml"] = TICK
        folder = home / "agents" / f"clock{number}"
        folder.mkdir(mode=0o700)
        files[folder / "agent.toml"] = MANIFEST.format(name=f"clock{number}", url=model)
    for file, text in files.items():
        file.write_text(text, encoding="utf-8")
        file.chmod(0o600)


def _build_clock(folder: Path) -> Shim | None:
    try:
        return Shim(folder, folder / "nothing")
    except NotHere:
        return None


@contextmanager
def run_chaos_rig(
    outcome: Outcome, count: int = 3, database_links: Sequence[Link] | None = None
) -> Iterator[ChaosRig]:
    """Starts the hubs. `database_links` are proxies of the caller's own to PostgreSQL."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="dfc", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        clock = _build_clock(folder)
        postgres = stack.enter_context(run_peer(clock.env if clock is not None else None))
        database = create_database(postgres.url)
        valkey = stack.enter_context(run_valkey())
        links = stack.enter_context(run_links())
        agents = stack.enter_context(serving_agents())
        asked = LedgerModel(folder / "ledger")
        model = stack.enter_context(running_model(asked))
        ledger = stack.enter_context(run_ledger(folder / "ledger"))
        rig = ChaosRig(folder, [], postgres, database, valkey, links, agents, asked, clock, outcome)
        for number in range(count):
            listen = _find_port()
            given = database_links[number] if database_links is not None else None
            if given is not None:
                given.target = postgres.port
                links.start(given)
            link = given or links.add(postgres.port)
            place = Place(
                number, folder / f"h{number}", link, links.add(valkey.port), links.add(listen)
            )
            store = database.replace(f":{postgres.port}/", f":{link.port}/")
            redis = f"redis://127.0.0.1:{place.redis.port}"
            _write_home(place, listen, store, redis, ledger, model.url)
            rig.places.append(place)
        stack.callback(_end_all, rig)
        for place in rig.places:
            rig.start_hub(place)
        for place in rig.places:
            assert place.hub is not None
            place.hub.wait_connected("ledger")
        yield rig
        _finish(rig)


def _finish(rig: ChaosRig) -> None:
    """Every hub ends well, and its audit verifies."""
    for place in rig.places:
        hub = place.hub
        if hub is None:
            continue
        done = hub.command("audit", "verify")
        text = (done.stdout + done.stderr).strip()
        rig.outcome.check(
            done.returncode == 0, f"hub {place.number}: the audit does not verify: {text[-500:]}"
        )
        place.logs.append(hub.log())
        place.hub = None
        for problem in hub.finish():
            rig.outcome.fail(f"hub {place.number}: {problem[:4000]}")


def _end_all(rig: ChaosRig) -> None:
    for place in rig.places:
        hub, place.hub = place.hub, None
        if hub is not None:
            hub.checks = False
            with suppress(OSError):
                hub.process.kill()
            hub.finish()


def choose_place(rig: ChaosRig, chance: random.Random) -> Place:
    return rig.places[chance.randrange(len(rig.places))]
