"""Start and shutdown: one hub per home, and every running request is answered."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.live.conftest import DRAGOMAN, RunningHub
from tests.live.module_hub import error_kind, error_text, text_of, until
from tests.live.unix_client import UnixClient
from tests.peers import wire
from tests.peers.forked import run_forked
from tests.peers.process import HttpPeer, alive, server_entry, wait_for_log, wait_until_gone

from dragoman.app.build import build_app
from dragoman.config import Config
from dragoman.core.errors import ConfigError

EXPOSE = '[mcp]\nstdio_expose = ["*"]\n'


def dragoman(home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return run_forked([*DRAGOMAN, *args, "--home", str(home)], 30, text=True)


# --- coming up


@pytest.mark.promise("F2")
def test_home_has_one_hub_and_the_second_names_the_holder(
    hub: Callable[..., RunningHub],
) -> None:
    first = hub()
    second = dragoman(first.home, "up")
    assert second.returncode == 3
    (said,) = second.stderr.strip().splitlines()
    assert str(first.pid) in said and first.url in said and str(first.home) in said
    assert first.get("/healthz").status == 200


@pytest.mark.promise("F2")
def test_hub_runs_in_the_background_with_status_and_stop(short_tmp: Path) -> None:
    home = short_tmp / "h"
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text("[server]\nport = 0\n", encoding="utf-8")
    assert dragoman(home, "status").returncode == 3
    assert dragoman(home, "stop").returncode == 3
    pid = 0
    try:
        begun = dragoman(home, "up", "--detach")
        assert begun.returncode == 0, begun.stderr
        found = re.search(r"process (\d+), (http://\S+)/mcp", begun.stdout)
        assert found
        pid, url = int(found[1]), found[2]
        assert wire.get(url + "/healthz").status == 200
        again = dragoman(home, "up", "--detach")
        assert again.returncode == 3 and str(pid) in again.stderr
        status = json.loads(dragoman(home, "status", "--json").stdout)
        assert status["running"] is True and status["pid"] == pid and status["url"] == url
        assert str(pid) in dragoman(home, "status").stdout
        stopped = dragoman(home, "stop")
        assert stopped.returncode == 0 and str(pid) in stopped.stdout
        wait_until_gone([pid], 5)
        assert not (home / "daemon.json").exists()
        assert "Traceback" not in (home / "hub.log").read_text(encoding="utf-8")
    finally:
        if pid and alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_background_hub_reports_why_it_cannot_start(short_tmp: Path) -> None:
    (short_tmp / "config.toml").write_text("[server]\nhost = 7\n", encoding="utf-8")
    done = dragoman(short_tmp, "up", "--detach")
    assert done.returncode == 7
    assert "config.toml, line 2" in done.stderr and "host" in done.stderr


def test_first_start_writes_a_complete_configuration(short_tmp: Path) -> None:
    home = short_tmp / "new"
    process = subprocess.Popen(
        [*DRAGOMAN, "up", "--home", str(home), "--port", "0"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    try:
        until(lambda: (home / "daemon.json").exists(), 60)
        assert 'stdio_expose = ["*"]' in (home / "config.toml").read_text(encoding="utf-8")
    finally:
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"config.toml" in said and b"Traceback" not in said


# --- shutdown --


def test_sighup_ends_the_hub_unless_detached(
    hub: Callable[..., RunningHub],
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup starts it
    try:
        stays = hub()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # however the tests themselves were started
        goes = hub()
    finally:
        signal.signal(signal.SIGHUP, before)
    for running in (stays, goes):
        running.process.send_signal(signal.SIGHUP)
    assert goes.process.wait(60) == 0
    assert not (goes.home / "daemon.json").exists()
    assert stays.get("/healthz").status == 200


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as made:
        yield made


def chunked_to_its_end(data: bytes) -> bool:
    return data.endswith(b"0\r\n\r\n")


class RawStream:
    """A GET stream as bytes, so that its end can be looked at."""

    def __init__(self, hub: RunningHub) -> None:
        session = wire.Session(hub.mcp_url)
        port = int(hub.url.rpartition(":")[2])
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        lines = ["GET /mcp HTTP/1.1", "Host: localhost", "Accept: text/event-stream"]
        lines += [f"Mcp-Session-Id: {session.headers['Mcp-Session-Id']}", "", ""]
        self.socket.sendall("\r\n".join(lines).encode())
        self.seen = self.socket.recv(4096)

    def rest(self) -> bytes:
        while more := self.socket.recv(65536):
            self.seen += more
        self.socket.close()
        return self.seen


@pytest.mark.promise("G2", "B9")
def test_sigterm_ends_streams_answers_running_calls_and_leaves_no_child(
    hub: Callable[..., RunningHub], tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    log = tmp_path / "log"
    running = hub(
        [
            server_entry("s", "sdk_server", "--log", log),
            server_entry("r", "faulty_server", "ok"),
        ],
        EXPOSE,
    )
    running.wait_connected("s", "r")
    children = [json.loads(log.read_text(encoding="utf-8").splitlines()[0])["pid"]]
    children.append(int(text_of(running.call("r.pid"))))
    streams = [RawStream(running) for _ in range(3)]
    assert all(b" 200 " in stream.seen for stream in streams)
    slow = {"seconds": 2}
    asked: list[Future[Any]] = [
        pool.submit(running.call, "s.slow", slow),
        pool.submit(running.call, "s.slow", slow, era="legacy"),
        pool.submit(wire.post, running.url + "/api/tools/s.slow/call", {"arguments": slow}),
    ]
    ide = UnixClient(running.home)
    ide.initialize()
    ide.send(wire.request("slow", "tools/call", {"name": "s.slow", "arguments": slow}))
    wait_for_log(log, count=4, event="started", name="slow")

    ends = [pool.submit(stream.rest) for stream in streams]
    begun = time.monotonic()
    running.process.send_signal(signal.SIGTERM)
    for end in ends:
        assert chunked_to_its_end(end.result(10))
    assert not any(call.done() for call in asked), "streams are not kept waiting for calls"
    assert text_of(asked[0].result(10)) == "slept 2"
    assert text_of(asked[1].result(10)) == "slept 2"
    assert asked[2].result(10).json()["content"][0]["text"] == "slept 2"
    assert text_of(ide.answer_to("slow")) == "slept 2"
    with pytest.raises(EOFError):
        ide.read()
    ide.close()
    assert running.process.wait(60) == 0
    assert time.monotonic() - begun < 30
    wait_until_gone(children, 2)
    assert "Traceback" not in running.log()
    outcomes = [r["outcome"] for r in running.audit()]
    assert outcomes.count("completed") == len(outcomes) == 5


@pytest.mark.promise("B9", "N1")
def test_unfinished_calls_are_answered_and_recorded_at_shutdown(
    hub: Callable[..., RunningHub], tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    log, far_log = tmp_path / "log", tmp_path / "far"
    with HttpPeer("faulty_http", "--log", far_log) as peer:
        far = f"{peer.url}/after/hang-headers"
        running = hub(
            [
                server_entry("h", "faulty_server", "hang-on-call", "--log", log),
                server_entry("stubborn", "faulty_server", "hang"),
                server_entry("far", "http", far, timeout_secs=60),
            ],
            EXPOSE,
        )
        running.wait_connected("h", "far")
        asked: list[Future[Any]] = [
            pool.submit(running.call, "h.echo"),
            pool.submit(running.call, "h.echo", era="legacy"),
        ]
        api = pool.submit(wire.post, running.url + "/api/tools/h.echo/call", {}, None, 20)
        with UnixClient(running.home) as ide, running.relay() as relay:
            relay.initialize()
            relay.send(wire.request(7, "tools/call", {"name": "far.echo", "arguments": {}}))
            ide.send(wire.request(1, "tools/call", {"name": "h.echo"}))
            wait_for_log(log, count=4, method="tools/call")
            until(lambda: b'"tools/call"' in far_log.read_bytes())
            assert running.stop() == 0
            answers = [ide.answer_to(1), *(one.result(12) for one in asked)]
            lost = relay.read()
            assert lost["id"] == 7 and ("error" in lost or lost["result"]["isError"])
    for answer in answers:
        assert error_kind(answer) == "Unreachable" and "stopped" in error_text(answer)
    assert (api.result(12).status, api.result().json()["error"]["kind"]) == (502, "Unreachable")
    assert "Traceback" not in running.log()
    (record,) = [one for one in running.audit() if one["verb"] == "far.echo"]
    assert record["outcome"] == "target_failed"


def test_second_signal_does_not_interrupt_the_shutdown(
    hub: Callable[..., RunningHub], tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    log = tmp_path / "log"
    running = hub([server_entry("s", "sdk_server", "--log", log)])
    running.wait_connected("s")
    asked = pool.submit(running.call, "s.slow", {"seconds": 1})
    wait_for_log(log, event="started", name="slow")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        running.process.send_signal(number)
    assert text_of(asked.result(10)) == "slept 1"
    assert running.process.wait(60) == 0


@pytest.mark.promise("F2")
def test_killed_hub_does_not_block_the_next(
    hub: Callable[..., RunningHub],
) -> None:
    first = hub([server_entry("r", "faulty_server", "ok")], EXPOSE)
    first.wait_connected("r")
    child = int(text_of(first.call("r.pid")))
    first.kill()
    second = hub(home=first.home)
    second.wait_connected("r")
    assert int(text_of(second.call("r.pid"))) != child
    wait_until_gone([child], 5)
    with UnixClient(second.home) as client:
        assert client.request("ping")["result"] == {}


@pytest.mark.promise("F2")
async def test_failed_hub_start_releases_everything(short_tmp: Path) -> None:
    (short_tmp / "hub.key").write_bytes(b"short")
    for _ in range(2):  # a relay tries again in the same process
        with pytest.raises(ConfigError, match=r'hub\.key" is damaged'):
            build_app(short_tmp, Config(), "mcp")
    (short_tmp / "hub.key").unlink()
    app = build_app(short_tmp, Config(), "mcp")
    await app.stop()
