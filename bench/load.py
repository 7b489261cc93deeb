"""Load on a running target: the generator's figures and the CPU that the target spent on them."""

import json
import os
import struct
import subprocess
import tempfile
from typing import Any, Protocol

from bench.paths import BLAST, BUILD
from bench.processes import LOAD_CORE, Child, on_core
from bench.wire import CALLED, LISTED, Endpoint

LONGEST_SECONDS = 20.0
MOST_REQUESTS = 250_000


def blast(
    port: int,
    templates: list[bytes],
    connections: int,
    requests: int,
    *,
    expected: str = CALLED,
    with_id: bool = True,
) -> dict:
    with tempfile.NamedTemporaryFile(dir=BUILD, prefix="requests-") as file:
        for template in templates:
            file.write(struct.pack("=I", len(template)) + template)
        file.flush()
        command = [BLAST, "-p", port, "-c", connections, "-n", requests, "-r", file.name]
        command += ["-t", LONGEST_SECONDS, "-x", expected, "-d"]
        if not with_id:
            command.append("-X")
        with on_core(LOAD_CORE):
            ran = subprocess.run(
                [str(part) for part in command],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=LONGEST_SECONDS + 30,
            )
    if ran.returncode:
        raise RuntimeError(f"blast ended with code {ran.returncode}: {ran.stderr.strip()[:200]}")
    figures: dict = json.loads(ran.stdout)
    if unanswered := figures["unanswered"]:
        raise RuntimeError(f"{unanswered} requests were not answered in {LONGEST_SECONDS:.0f} s")
    if figures["bad"]:
        figures["first_bad"] = ran.stderr.strip()[:400]
    return figures


def measure(target: Child, *arguments, **options) -> dict:
    """`blast`, with the CPU that the target and its descendants spent meanwhile."""
    before = target.cpu_seconds()
    figures = blast(*arguments, **options)
    spent = target.cpu_seconds() - before
    return figures | {"cpu_us": spent * 1e6 / figures["n"], "load_average": os.getloadavg()[0]}


def fitting(pilot: dict, seconds: float, connections: int) -> int:
    """As many requests as fill the time, but at least a few for each connection."""
    return int(min(MOST_REQUESTS, max(3 * connections, 20, pilot["per_second"] * seconds)))


class CallableEndpoint(Protocol):
    """An endpoint of either protocol."""

    @property
    def port(self) -> int: ...

    def call_templates(self, connections: int) -> list[bytes]: ...


def measure_calls(
    target: Child, endpoint: CallableEndpoint, connections: int, seconds: float
) -> dict:
    templates = endpoint.call_templates(connections)
    pilot = blast(endpoint.port, templates, connections, max(20, connections))
    if pilot["per_second"] > 500:  # caches filled, and the pilot's speed is worth something
        pilot = blast(endpoint.port, templates, connections, fitting(pilot, 0.1, connections))
    requests = fitting(pilot, seconds, connections)
    return measure(target, endpoint.port, templates, connections, requests)


def measure_lists(target: Child, endpoint: Endpoint, seconds: float) -> dict:
    """A whole listing, one client: where the list comes in pages, their costs are added."""
    names, cursors = endpoint.list_pages()
    total = {"tools": len(names), "pages": len(cursors), "cpu_us": 0.0, "p50_us": 0.0, "bad": 0}
    for cursor in cursors:
        request = (endpoint.port, [endpoint.list_template(cursor)], 1)
        checks: dict[str, Any] = {"expected": LISTED, "with_id": False}
        pilot = blast(*request, 5, **checks)
        count = fitting(pilot, seconds / len(cursors), 1)
        figures = measure(target, *request, count, **checks)
        for key in ("cpu_us", "p50_us", "bad"):
            total[key] += figures[key]
    return total
