"""A disk that is full or read-only, file operations that fail, under load and at the start.

A small tmpfs needs mounts: `unshare -rm` gives them without root, and where it does not work a
limit of the file size takes the place of the full disk. Failing operations need a C compiler.
"""

from __future__ import annotations

import errno
import json
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.live.conftest import RunningHub
from tests.peers import wire
from tests.peers.process import read_log, server_entry

from faults.fixtures import EVERYTHING, write_agents
from faults.harness import (
    ROOT,
    NotHere,
    Outcome,
    audit_records,
    running_hub,
    start_fails,
    temporary_home,
    until,
    verify_audit,
    write_config,
)
from faults.shim import Shim

CALL_SECONDS = 30.0
POLICY = """@id("x")
@why("w")
forbid (principal, action in Hub::Action::"any_call", resource == Hub::Tool::"r.none");
"""


class Writes:
    """Calls and A2A sends, whose answers are remembered; the server writes what it executes."""

    def __init__(self, hub: RunningHub, log: Path) -> None:
        self.hub, self.log = hub, log
        self.calls: set[str] = set()
        self.refused: set[str] = set()
        self.tasks: dict[str, Any] = {}
        self.seen: Counter[str] = Counter()
        self.odd: list[str] = []

    def call(self) -> int:
        trace = uuid.uuid4().hex
        headers = {"traceparent": f"00-{trace}-{trace[:16]}-01"}
        body = {"arguments": {"text": trace}}
        answer = wire.post(
            self.hub.url + "/api/tools/r.echo/call", body, headers, timeout=CALL_SECONDS
        )
        self.seen[f"call {answer.status}"] += 1
        if answer.status == 200:
            self.calls.add(trace)
        else:
            self.refused.add(trace)
            if answer.status != 503:
                self.odd.append(f"call: {answer.status} {answer.body[:300]!r}")
        return answer.status

    def send(self) -> bool:
        text = uuid.uuid4().hex + "x" * 1500
        message = {"messageId": text[:32], "role": "ROLE_USER", "parts": [{"text": text}]}
        body = wire.request(1, "SendMessage", {"message": message})
        answer = wire.post(
            self.hub.url + "/a2a/quick", body, {"A2A-Version": "1.0"}, timeout=CALL_SECONDS
        ).json()
        if "result" in answer:
            self.tasks[answer["result"]["task"]["id"]] = answer["result"]["task"]
        elif answer["error"]["code"] == -32603 and "StorageFailed" not in str(answer):
            self.odd.append(f"send: {answer}")
        self.seen["send ok" if "result" in answer else "send refused"] += 1
        return "result" in answer

    def check(self, outcome: Outcome, when: str) -> None:
        """What was answered is there, what was refused did not happen, nothing ran twice."""
        hits = Counter(
            (entry["params"].get("arguments") or {}).get("text", "")
            for entry in read_log(self.log)
            if entry.get("method") == "tools/call"
        )
        twice = [trace for trace, count in hits.items() if count > 1]
        outcome.check(not twice, f"{when}: executed twice: {twice[:3]}")
        done = [trace for trace in self.refused if trace in hits]
        outcome.check(not done, f"{when}: refused, yet executed: {done[:3]}")
        missing = [trace for trace in self.calls if trace not in hits]
        outcome.check(not missing, f"{when}: answered, yet never executed: {missing[:3]}")
        for id, task in self.tasks.items():
            wanted = wire.request(1, "GetTask", {"id": id})
            now = wire.post(self.hub.url + "/a2a", wanted, {"A2A-Version": "1.0"}).json()
            if not outcome.check(
                now.get("result") == task, f"{when}: task {id} is {str(now)[:300]}"
            ):
                break
        outcome.check(not self.odd, f"{when}: {self.odd[:3]}")
        self.odd.clear()

    def check_intents(self, outcome: Outcome, home: Path) -> None:
        recorded = {record.get("trace") for record in audit_records(home)}
        hits = [
            (entry["params"].get("arguments") or {}).get("text", "")
            for entry in read_log(self.log)
            if entry.get("method") == "tools/call"
        ]
        without = [trace for trace in hits if trace not in recorded]
        outcome.check(not without, f"executed without an intent in the audit: {without[:3]}")


def write_home(home: Path, log: Path, *servers: str) -> None:
    agents = write_agents(home, "quick")
    echo = server_entry("r", "faulty_server", "ok", "--log", log)
    write_config(home, [echo, *servers], EVERYTHING + agents)


# --- full and read-only, in a mount namespace


def run_in_namespace(function: str, size: int, seed: int, outcome: Outcome) -> None:
    """Runs `function` of this module in a process that may mount, and takes over its outcome."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rm", "true"], capture_output=True).returncode:
        raise NotHere("`unshare -rm` does not work here: user namespaces are missing or forbidden")
    command = [unshare, "-rm", sys.executable, "-m", "faults.disk", function, str(size), str(seed)]
    inside = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        out, err = inside.communicate(timeout=600)
    except BaseException:
        inside.terminate()  # it ends its hub first
        inside.communicate(timeout=30)
        raise
    if inside.returncode:
        raise RuntimeError(err[-2000:])
    figures, failures = json.loads(out.splitlines()[-1])
    outcome.figures.update(figures)
    for failure in failures:
        outcome.fail(failure)


@contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    """A tmpfs of so many megabytes, with a home in it."""
    place = Path(tempfile.mkdtemp(prefix="df", dir="/tmp"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "tmpfs", str(place)]
    subprocess.run(mount, check=True)
    try:
        (place / "h").mkdir(mode=0o700)
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)
        place.rmdir()


def fill(place: Path) -> None:
    with (place / "ballast").open("ab", buffering=0) as ballast:
        for size in (65536, 4096, 1):
            try:
                while ballast.write(b"b" * size) == size:
                    pass
            except OSError:
                pass


def fill_disk(rounds: int, seed: int, outcome: Outcome) -> None:
    with small_disk(24) as place, tempfile.TemporaryDirectory() as folder:
        home, log = place / "h", Path(folder) / "calls.jsonl"
        write_home(home, log)
        with running_hub(outcome, home) as hub:
            hub.wait_connected("r")
            writes = Writes(hub, log)
            for number in range(rounds):
                break_and_heal(
                    writes, lambda: fill(place), (place / "ballast").unlink, outcome, str(number)
                )
            fill(place)
            hub.kill()
        failed = start_fails(home)
        outcome.check(
            failed is None
            or (failed.returncode not in (0, 999) and "Traceback" not in failed.stderr),
            f"start while full: {failed}",
        )
        (place / "ballast").unlink()
        with running_hub(outcome, home) as hub:
            hub.wait_connected("r")
            writes.hub = hub
            outcome.check(writes.call() == 200, "no call after the disk has room again")
            writes.check(outcome, "after a restart")
            writes.check_intents(outcome, home)
            outcome.figures.update(writes.seen)


def break_and_heal(
    writes: Writes,
    damage: Callable[[], object],
    heal: Callable[[], object],
    outcome: Outcome,
    when: str,
) -> None:
    """Load before, during and after; reads go on all the while, and writes again soon after."""
    hub = writes.hub
    for _ in range(10):
        writes.call()
        writes.send()
    over = threading.Event()
    reads: Counter[int] = Counter()

    def read() -> None:
        while not over.is_set():
            for path in ("/healthz", "/api/tools"):
                try:
                    reads[wire.get(hub.url + path, timeout=CALL_SECONDS).status] += 1
                except OSError:
                    reads[-1] += 1

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    damage()
    refused = 0
    end = time.monotonic() + 10
    while refused < 20 and time.monotonic() < end:
        refused += writes.call() != 200
        refused += not writes.send()
    over.set()
    reader.join(CALL_SECONDS)
    outcome.check(refused > 0, f"round {when}: no write was refused")
    outcome.check(set(reads) <= {200}, f"round {when}: reads answered {dict(reads)}")
    heal()
    outcome.check(until(lambda: writes.call() == 200, 20), f"round {when}: calls do not heal")
    outcome.check(until(writes.send, 20), f"round {when}: tasks do not heal")
    outcome.count("refusals", refused)
    outcome.count("reads meanwhile", reads[200])
    verify_audit(outcome, hub.home, f"round {when}")
    writes.check(outcome, f"round {when}")


def make_read_only(rounds: int, seed: int, outcome: Outcome) -> None:
    with small_disk(64) as place, tempfile.TemporaryDirectory() as folder:
        home, log = place / "h", Path(folder) / "calls.jsonl"
        write_home(home, log)

        def remount(how: str) -> None:
            subprocess.run(["mount", "-o", f"remount,{how}", str(place)], check=False)

        with running_hub(outcome, home) as hub:
            hub.wait_connected("r")
            hub.kill()
        remount("ro")
        failed = start_fails(home)
        said = failed.stderr if failed is not None else "it started"
        outcome.check(
            failed is not None
            and failed.returncode not in (0, 999)
            and "Traceback" not in said
            and str(home) in said,
            f"start on a read-only disk: {said[-500:]}",
        )
        remount("rw")
        with running_hub(outcome, home) as hub:
            outcome.check(hub.get("/healthz").status == 200, "no start after it")
        outcome.figures["starts refused"] = 1


def disk_full(rounds: int, seed: int, outcome: Outcome) -> None:
    run_in_namespace("fill_disk", rounds, seed, outcome)


def disk_read_only(rounds: int, seed: int, outcome: Outcome) -> None:
    run_in_namespace("make_read_only", rounds, seed, outcome)


# --- files that may not grow, everywhere


def limit_file_size(rounds: int, seed: int, outcome: Outcome) -> None:
    """No file of the hub's may grow: what a full disk or a quota does, without a mount."""
    with temporary_home() as home, tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "calls.jsonl"
        write_home(home, log)
        with running_hub(outcome, home) as hub:
            hub.wait_connected("r")
            writes = Writes(hub, log)

            def limit(size: int) -> None:
                unlimited = resource.RLIM_INFINITY
                resource.prlimit(hub.pid, resource.RLIMIT_FSIZE, (size, unlimited))

            def stop_growth() -> None:
                limit(max(p.stat().st_size for p in home.iterdir() if p.suffix == ".db-wal"))

            for number in range(rounds):
                break_and_heal(
                    writes, stop_growth, lambda: limit(resource.RLIM_INFINITY), outcome, str(number)
                )
            hub.kill()
        with running_hub(outcome, home) as hub:
            hub.wait_connected("r")
            writes.hub = hub
            writes.check(outcome, "after a restart")
            writes.check_intents(outcome, home)
            outcome.figures.update(writes.seen)


# --- the k-th file operation fails


def fail_operations(most: int, seed: int, outcome: Outcome) -> None:
    """The k-th file operation of a call and of a send fails, for every k up to `most`."""
    with temporary_home() as home, tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "calls.jsonl"
        write_home(home, log)
        shim = Shim(Path(folder), home)
        with running_hub(outcome, home, env=shim.env) as hub:
            hub.wait_connected("r")
            writes = Writes(hub, log)
            for work in (writes.call, writes.send):
                work()
                operations = shim.count_operations(work)
                outcome.check(operations > 0, "the shim saw no file operation")
                for error, in_a_row in ((errno.EIO, 1), (errno.ENOSPC, 1), (errno.EIO, 40)):
                    for number in range(1, min(operations + 3, most + 1)):
                        shim.arm(number, error, in_a_row)
                        work()
                        until(lambda: shim.failed() > 0, 0.1)
                        outcome.count("operations that failed", shim.disarm())
                        healed = until(lambda: writes.call() == 200 and writes.send(), 20)
                        name = f"{work.__name__}, operation {number}, {errno.errorcode[error]}"
                        if not outcome.check(bool(healed), f"{name}: the hub does not heal"):
                            return
                writes.check(outcome, work.__name__)
            verify_audit(outcome, home, "after the faults")
            hub.process.send_signal(signal.SIGKILL)
            hub.process.wait(10)
            hub.killed = True
        with running_hub(outcome, home) as hub:
            hub.wait_connected("r")
            writes.hub = hub
            writes.check(outcome, "after a restart")
            writes.check_intents(outcome, home)
            outcome.figures.update(writes.seen)


# --- a slow disk


def slow_disk(seconds: int, seed: int, outcome: Outcome) -> None:
    """To bring anything to the disk takes 300 ms; what is served does not wait for it."""
    with temporary_home() as home, tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "calls.jsonl"
        write_home(home, log)
        shim = Shim(Path(folder), home)
        with running_hub(outcome, home, env=shim.env) as hub:
            hub.wait_connected("r")
            writes = Writes(hub, log)
            shim.set_disk(300)
            policy = {"name": "x", "text": POLICY}
            post = partial(wire.post, hub.url + "/api/policies", policy, timeout=60)
            threading.Thread(target=post, daemon=True).start()  # every store learns of the first
            slowest = 0.0
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                begun = time.monotonic()
                outcome.check(writes.call() == 200, "a call is refused")
                outcome.check(writes.send(), "a task is refused")
                slowest = max(slowest, time.monotonic() - begun)
            outcome.figures.update(writes.seen)
            outcome.figures["slowest pair, s"] = round(slowest, 2)
            writes.check(outcome, "slow disk")
            shim.set_disk(0)


def main() -> None:
    """Runs one function of this module, in a namespace, and prints its outcome."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    outcome = Outcome()
    globals()[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]), outcome)
    print(json.dumps([outcome.figures, outcome.failures]))


if __name__ == "__main__":
    main()
