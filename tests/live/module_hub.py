"""A hub shared by the tests of a module, and helpers to use it from several threads."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.live.conftest import RunningHub, _written_config, run_hub
from tests.peers import wire

T = TypeVar("T")

ERROR_KEY = "dragoman.hub/error"


@contextmanager
def run_module_hub(
    servers: Sequence[str], config: str = "", env: Mapping[str, str] | None = None
) -> Iterator[RunningHub]:
    """As the fixture `hub`, and held to the same end: 0 in time, nothing left, audit verifies."""
    home = Path(tempfile.mkdtemp(prefix="dg", dir="/tmp"))
    try:
        (home / "config.toml").write_text(_written_config(config, servers), encoding="utf-8")
        (home / "config.toml").chmod(0o600)
        running = run_hub(home, [], env or {})
        try:
            yield running
        finally:
            problems = running.finish()
        assert not problems, "\n".join(problems)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def until(found: Callable[[], T], seconds: float = 60.0) -> T:
    """Waits until `found` returns a true value, and returns it."""
    end = time.monotonic() + seconds
    while True:
        value = found()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"not so within {seconds} s: {value!r}")
        time.sleep(0.02)


def run_concurrently(work: Callable[[int], T], count: int) -> list[T]:
    """Runs `work(0)`, `work(1)`, … concurrently."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


def state_of(hub: RunningHub, server: str) -> dict[str, Any]:
    states = hub.api("/api/mcp/servers")["connected"]
    return next(one for one in states if one["name"] == server)


def wait_failure_reason(hub: RunningHub, server: str, seconds: float = 60.0) -> str:
    """Why it is not connected, once an attempt has failed: before that it has no reason yet."""

    def found() -> str:
        state = state_of(hub, server)
        return str(state["reason"]) if state["state"] in ("failed", "needs_login") else ""

    return until(found, seconds)


def tools_of(hub: RunningHub, server: str) -> list[str]:
    return [tool["name"] for tool in state_of(hub, server)["tools"]]


def text_of(answer: Mapping[str, Any]) -> str:
    """The one text of a good answer to a call."""
    assert "result" in answer, answer
    result = answer["result"]
    assert not result.get("isError"), result
    (block,) = result["content"]
    return str(block["text"])


def error_kind(answer: Mapping[str, Any]) -> str:
    """The error kind of a failed call, whether a result or a JSON-RPC error."""
    if "error" in answer:
        return str((answer["error"].get("data") or {}).get("kind"))
    result = answer["result"]
    assert result.get("isError") is True, result
    return str(result["_meta"][ERROR_KEY]["kind"])


def error_text(answer: Mapping[str, Any]) -> str:
    """The message of a failed call, whether a result or a JSON-RPC error."""
    if "error" in answer:
        return str(answer["error"]["message"])
    return str(answer["result"]["content"][0]["text"])


class BackgroundCaller:
    """Calls a healthy server continuously inside a `with` block; check it afterwards."""

    def __init__(self, hub: RunningHub, tool: str) -> None:
        self.hub = hub
        self.tool = tool
        self.good = 0
        self.bad: list[Any] = []
        self.took: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            begun = time.monotonic()
            try:
                answer = self.hub.call(self.tool, {"text": f"hello {number}"})
                right = text_of(answer) == f"hello {number}"
            except Exception as error:
                answer, right = repr(error), False
            self.took.append(time.monotonic() - begun)
            if right:
                self.good += 1
            else:
                self.bad.append(answer)
            self._over.wait(0.005)

    def __enter__(self) -> BackgroundCaller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)

    def unharmed(self) -> None:
        assert not self.bad, self.bad[:3]
        assert self.good > 0
        # By half of the calls, and roughly: a busy machine makes all of them wait.
        assert statistics.median(self.took) < 10.0, sorted(self.took)
        assert max(self.took) < 10.0, f"an answer took {max(self.took):.2f} s"


def rss(pid: int) -> int:
    """The memory of a process, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise LookupError(pid)


def modern_stream(
    hub: RunningHub, tool: str, arguments: Mapping[str, Any], **meta: Any
) -> list[Any]:
    """All messages of the answer to one modern call, with `_meta`."""
    params = {"name": tool, "arguments": dict(arguments), "_meta": meta}
    return wire.modern_request(hub.mcp_url, "tools/call", params, hub.headers, 20).messages()
