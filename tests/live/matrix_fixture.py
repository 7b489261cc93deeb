"""One hub in front of five servers, one per era and transport, and the matrix of what each revision
can express and what its clients see.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.live.conftest import RunningHub
from tests.live.matrix_client import REVISIONS, Client
from tests.live.matrix_transports import connect
from tests.live.module_hub import run_module_hub, until
from tests.peers.process import HttpPeer, server_entry

UPSTREAMS: Mapping[str, tuple[str, str]] = {
    # name: era, transport
    "legacy_stdio": ("legacy", "stdio"),
    "legacy_http": ("legacy", "http"),
    "sse": ("legacy", "sse"),
    "modern_stdio": ("modern", "stdio"),
    "modern_http": ("modern", "http"),
}
CLIENTS = (("2024-11-05", "sse"), *((revision, "http") for revision in REVISIONS[1:]))
"""Each revision over HTTP in its way; test_matrix_stdio has them over stdio."""

YES = "works"
WORDS = "a result with isError that says what was asked"
NO_METHOD = "-32601"

TABLE: Mapping[str, tuple[str, ...]] = {
    # feature: what a client gets that declares all it can, of each revision from 2024-11-05 on;
    # the last entry of a row holds for later revisions
    "form": (WORDS, WORDS, YES, YES, YES),
    "url": (WORDS, WORDS, WORDS, YES, YES),
    "sampling": (YES, YES, YES, YES, YES),
    "roots": (YES, YES, YES, YES, YES),
    "several": (WORDS, WORDS, YES, YES, YES),
    "rounds": (WORDS, WORDS, YES, YES, YES),
    "resources/subscribe": (YES, YES, YES, YES, NO_METHOD),
    "resources/unsubscribe": (YES, YES, YES, YES, NO_METHOD),
    "subscriptions/listen": (NO_METHOD, NO_METHOD, NO_METHOD, NO_METHOD, YES),
    "logging/setLevel": (YES, YES, YES, YES, NO_METHOD),
    "ping": (YES, YES, YES, YES, NO_METHOD),
    "server/discover": (NO_METHOD, NO_METHOD, NO_METHOD, NO_METHOD, YES),
    "cancel": ("said", "said", "said", "said", "hung up"),
    "not found": ("-32002", "-32002", "-32002", "-32002", "-32602"),
    "unasked": (WORDS, WORDS, WORDS, WORDS, "-32021"),
    "title": ("", "", YES, YES, YES),
    "completion context": ("", "", YES, YES, YES),
    "progress message": ("", YES, YES, YES, YES),
    "output": ("", "", "object", "object", YES),
}


def expected(feature: str, revision: str) -> str:
    row = TABLE[feature]
    return row[min(REVISIONS.index(revision), len(row) - 1)]


class Log:
    """What a server saw, each line read once: there are many."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._entries: list[dict[str, Any]] = []
        self._read = 0

    def entries(self, **wanted: Any) -> list[dict[str, Any]]:
        """Those that have all of `wanted`."""
        if self.file.exists():
            with self.file.open("rb") as file:
                file.seek(self._read)
                whole, _, _ = file.read().rpartition(b"\n")
            if whole:
                self._read += len(whole) + 1
                self._entries += map(json.loads, whole.splitlines())
        return [e for e in self._entries if all(e.get(k) == v for k, v in wanted.items())]


@dataclass(frozen=True)
class HubRig:
    hub: RunningHub
    logs: Mapping[str, Log]
    urls: Mapping[str, str]
    """Where those servers are that listen."""

    def wait(self, upstream: str, **wanted: Any) -> dict[str, Any]:
        """The first such entry in the log of that server, once it is there."""
        return until(lambda: self.logs[upstream].entries(**wanted))[0]

    def connect(self, client: tuple[str, str], features: Mapping[str, Any] | None = None) -> Client:
        return connect(self.hub, *client, features)


@contextmanager
def run_matrix_hub(*more: object, config: str = "") -> Iterator[HubRig]:
    """`more` are arguments for each of the servers."""
    folder = Path(tempfile.mkdtemp(prefix="dgm", dir="/tmp"))
    logs = {name: Log(folder / f"{name}.log") for name in UPSTREAMS}

    def arguments(name: str) -> tuple[object, ...]:
        era = UPSTREAMS[name][0]
        return ("--era", era, "--scheme", scheme(name), "--log", logs[name].file, *more)

    def start(name: str) -> str:
        peer = HttpPeer("matrix_server", "--transport", UPSTREAMS[name][1], *arguments(name))
        stack.callback(peer.close)
        return peer.url

    try:
        with ExitStack() as stack, ThreadPoolExecutor() as pool:
            listening = [name for name, (_, transport) in UPSTREAMS.items() if transport != "stdio"]
            urls = dict(zip(listening, pool.map(start, listening), strict=True))
            entries = [
                server_entry(name, UPSTREAMS[name][1], urls[name], interactive=True)
                if name in urls
                else server_entry(name, "matrix_server", *arguments(name), interactive=True)
                for name in UPSTREAMS
            ]
            settings = f'{config}\n[mcp]\nstdio_expose = ["*"]\n'
            hub = stack.enter_context(run_module_hub(entries, settings))
            hub.wait_connected(*UPSTREAMS)
            yield HubRig(hub, logs, urls)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def scheme(upstream: str) -> str:
    """Of the addresses of its resources; an underscore has no place in one."""
    return upstream.replace("_", "-")
