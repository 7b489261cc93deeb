"""The relay between a real stdin and stdout and a real Unix socket.

`Hub` plays the hub's end of that socket as it is written down: a greeting, then one JSON a line.
"""

import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dragoman import home as home_module
from dragoman.core.errors import ConfigError
from dragoman.home import (
    DaemonRecord,
    find_socket_paths,
    is_locked,
    lock_home,
    prepare,
    render_now,
    write_daemon,
)
from dragoman.mcp import relay as relay_module
from dragoman.mcp.protocol.framing import Deframer, Frame, frame
from dragoman.mcp.protocol.revisions import build_initialize_result
from dragoman.mcp.relay import Relay

WAIT = 60  # seconds; the bound of every wait here

INITIALIZE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"sampling": {}},
        "clientInfo": {"name": "ide", "version": "1"},
    },
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
GREETING = b'{"dragoman": "0", "pid": 1}\n'
LIST_CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


@pytest.fixture
def place():
    """A home whose path leaves room for a socket's name."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


def ask(id_, method="tools/list", **params):
    return {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}


def result(id_, value):
    return {"jsonrpc": "2.0", "id": id_, "result": value}


def encoded(message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


class Hub:
    """Answers what it is asked with its own name, but for methods that `silent` names."""

    def __init__(self, home, name="hub", mode="daemon", silent=(), greeting=GREETING):
        prepare(str(home))
        self.name = name
        self.silent = silent
        self.greeting = greeting
        self.got: queue.Queue[Any] = queue.Queue()
        self.connections: queue.Queue[socket.socket] = queue.Queue()
        self._threads = []
        self._open = []
        http, path = find_socket_paths(str(home))
        if os.path.exists(path):
            os.unlink(path)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._start(self._accept)
        write_daemon(
            str(home),
            DaemonRecord(
                pid=os.getpid(),
                url=None,
                socket=http,
                mcp_socket=path,
                version="0",
                started_at=render_now(),
                mode=mode,
                stop_secs=15.0,
            ),
        )

    def _start(self, work, *args):
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            connection.sendall(self.greeting)
            self.connections.put(connection)
            self._start(self._serve, connection)

    def _serve(self, connection):
        deframer = Deframer(64 * 1024 * 1024)
        while True:
            try:
                data = connection.recv(1 << 20)
            except OSError:
                return
            if not data:
                return
            for piece in deframer.feed(data):
                assert isinstance(piece, Frame)
                message = json.loads(piece.payload)
                self.got.put(message)
                self.answer(message, connection)

    def answer(self, message, connection):
        if isinstance(message, list):
            self.say([result(each["id"], self.name) for each in message], connection)
        elif "id" in message and "method" in message and message["method"] not in self.silent:
            self.say(result(message["id"], self.name), connection)

    def say(self, message, connection=None):
        connection = connection or self._open[-1]
        connection.sendall(encoded(message) + b"\n")

    def hear(self):
        return self.got.get(timeout=WAIT)

    def close(self):
        for each in (self._listener, *self._open):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            each.close()
        for thread in self._threads:
            thread.join(WAIT)


class Ide:
    def __init__(self, stdin: int, stdout: int):
        self.stdin = stdin
        self.stdout = stdout
        self._deframer = Deframer(64 * 1024 * 1024)
        self._pieces: list[Any] = []

    def raw(self, data: bytes):
        view = memoryview(data)
        while view:
            view = view[os.write(self.stdin, view) :]

    def send(self, message, framing="line"):
        self.raw(frame(encoded(message), framing))

    def get(self, framing="line"):
        piece = self._next(WAIT)
        assert piece is not None, "nothing came"
        assert piece.framing == framing
        return json.loads(piece.payload)

    def _next(self, seconds):
        until = time.monotonic() + seconds
        while not self._pieces:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.stdout], [], [], left)[0]:
                return None
            data = os.read(self.stdout, 1 << 20)
            if not data:
                return None
            self._pieces += self._deframer.feed(data)
        return self._pieces.pop(0)

    def rest(self):
        """All that comes until the relay closes its end."""
        found = []
        while (piece := self._next(WAIT)) is not None:
            found.append(json.loads(piece.payload))
        return found

    def shake_hands(self):
        self.send(INITIALIZE)
        answer = self.get()
        self.send(INITIALIZED)
        return answer["result"]


class RelayProcess(subprocess.Popen[bytes]):
    ide: Ide


@contextmanager
def process(home):
    """`dragoman mcp` as an IDE starts it."""
    with RelayProcess(
        [sys.executable, "-m", "dragoman", "mcp", "--home", str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        child.ide = Ide(child.stdin.fileno(), child.stdout.fileno())
        try:
            yield child
        finally:
            child.kill()


class InProcessRelay:
    """A relay in this process, so that a test can say what its hub is."""

    def __init__(self, home, boot):
        theirs_in, self._in = os.pipe()
        self._out, theirs_out = os.pipe()
        self._fds = [theirs_in, self._in, self._out, theirs_out]
        self.ide = Ide(self._in, self._out)
        self.relay = Relay(str(home), theirs_in, theirs_out, boot)
        self.code = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        self.code = self.relay.run()

    def close(self):
        """As an IDE that ends: stdin is closed, and the relay is given time to go."""
        if self._in in self._fds:
            self._fds.remove(self._in)
            os.close(self._in)
        self._thread.join(WAIT)
        assert not self._thread.is_alive()
        for fd in self._fds:
            os.close(fd)
        self._fds = []


def never(home, stop):
    raise AssertionError("no hub was to be booted")


def host_hub(name, booted=None, **more):
    """A hub that is run in the relay's process as the real one is: it holds the home."""

    def boot(home, stop):
        with lock_home(home), closing(Hub(home, name, mode="mcp", **more)):
            if booted is not None:
                booted.set()
            stop.wait(60)

    return boot


@pytest.mark.promise("F1", "F2", "F6")
def test_relay_passes_messages_between_ide_and_hub(place):
    with closing(Hub(place)) as hub, process(place) as child:
        child.ide.send(INITIALIZE)
        assert child.ide.get() == result(0, "hub")
        child.ide.send(INITIALIZED)
        child.ide.send(ask("one", "tools/call", name="x", arguments={"ü": [1, 2.5, None]}))
        assert child.ide.get() == result("one", "hub")

        assert [hub.hear() for _ in range(3)] == [
            INITIALIZE,
            INITIALIZED,
            ask("one", "tools/call", name="x", arguments={"ü": [1, 2.5, None]}),
        ]
        child.stdin.close()
        assert child.wait(WAIT) == 0
        assert child.stdout.read() == b""
        assert child.stderr.read() == b""


@pytest.mark.promise("F4")
def test_response_uses_the_framing_of_its_request(place):
    with closing(Hub(place, silent=("slow",))) as hub, process(place) as child:
        ide = child.ide
        ide.send(ask(1, "slow"), "length")
        ide.send(ask(2), "line")
        assert ide.get("line") == result(2, "hub")
        ide.send(ask("three"), "length")
        assert ide.get("length") == result("three", "hub")
        ide.send(ask(4), "line")
        assert ide.get("line") == result(4, "hub")
        hub.say(LIST_CHANGED)
        assert ide.get("line") == LIST_CHANGED
        hub.say(result(1, "late"))
        assert ide.get("length") == result(1, "late")
        ide.raw(frame(json.dumps(ask(5), indent=1).replace("\n", "\r\n").encode(), "length"))
        assert ide.get("length") == result(5, "hub")
        hub.say(LIST_CHANGED)
        assert ide.get("length") == LIST_CHANGED


@pytest.mark.promise("F4")
def test_ids_match_in_every_json_form(place):
    with closing(Hub(place, silent=("x",))) as hub, process(place) as child:
        ids = [-7, 'quo"te', "grün", "", 10**17, "1"]
        for id_ in ids:
            child.ide.send(ask(id_, "x"), "length")
            hub.hear()
        child.ide.send(ask(0), "line")
        assert child.ide.get("line") == result(0, "hub")
        connection = hub.connections.get(timeout=WAIT)
        for id_ in ids:
            text = json.dumps({"result": {}, "id": id_, "jsonrpc": "2.0"}, ensure_ascii=False)
            if id_ in {"grün", 10**17}:
                text = json.dumps(result(id_, {}), separators=(",", ":"), ensure_ascii=False)
            connection.sendall(text.encode() + b"\n")
            assert child.ide.get("length") == result(id_, {})


def test_batch_is_passed_to_the_hub(place):
    with closing(Hub(place)), process(place) as child:
        child.ide.send([ask(1), ask(2)], "length")
        child.ide.send(ask(3), "line")

        assert child.ide.get("length") == [result(1, "hub"), result(2, "hub")]
        assert child.ide.get("line") == result(3, "hub")


@pytest.mark.promise("F5")
@pytest.mark.parametrize("framing", ["line", "length"])
def test_oversized_relay_message_is_refused_and_the_next_served(place, framing):
    with closing(Hub(place)), process(place) as child:
        child.ide.send(ask(1, "tools/call", text="x" * (10 * 1024 * 1024)), framing)
        child.ide.send(ask(2, "tools/call", text="x" * (9 * 1024 * 1024)), framing)

        refusal = child.ide.get(framing)
        assert (refusal["id"], refusal["error"]["code"]) == (1, -32600)
        assert "limit of 10 MB" in refusal["error"]["message"]
        assert child.ide.get(framing) == result(2, "hub")


@pytest.mark.promise("F5")
def test_oversized_answer_reaches_the_hub_as_an_error(place):
    with closing(Hub(place)) as hub, process(place) as child:
        hub.connections.get(timeout=WAIT)
        hub.say(ask("q", "sampling/createMessage"))
        assert child.ide.get()["id"] == "q"
        child.ide.send(result("q", "x" * (10 * 1024 * 1024)))

        assert hub.hear()["error"]["code"] == -32600


@pytest.mark.promise("F5")
@pytest.mark.parametrize(
    "garbage",
    [b"hello\n", b'{"id":1\n', b"\xff\xfe{}\n", b'{"id":NaN}\n', b"[" * 100_000 + b"\n"],
)
def test_invalid_json_is_answered_and_the_next_message_served(place, garbage):
    with closing(Hub(place)) as hub, process(place) as child:
        child.ide.raw(garbage)
        answer = child.ide.get()
        assert (answer["id"], answer["error"]["code"]) == (None, -32700)
        child.ide.send(ask(1))
        assert child.ide.get() == result(1, "hub")
        assert hub.hear() == ask(1)


@pytest.mark.promise("F5")
def test_headers_without_a_length_get_an_error_and_the_next_message_is_served(place):
    with closing(Hub(place)), process(place) as child:
        child.ide.raw(b"Content-Length: many\r\n\r\n")
        answer = child.ide.get("length")
        assert (answer["id"], answer["error"]["code"]) == (None, -32700)
        assert "Content-Length" in answer["error"]["message"]
        child.ide.send(ask(1))
        assert child.ide.get() == result(1, "hub")


@pytest.mark.promise("F2")
def test_a_relay_survives_a_restart_of_the_hub(place):
    first = Hub(place, "first", silent=("tools/call",))
    with process(place) as child:
        ide = child.ide
        with closing(first):
            ide.shake_hands()
            ide.send(ask(1, "tools/call"), "length")
            ide.send(ask(2, "tools/call"), "line")
            while first.hear() != ask(2, "tools/call"):
                pass
        lost = [ide.get("length"), ide.get("line")]
        assert [each["id"] for each in lost] == [1, 2]
        for each in lost:
            assert each["error"] == {
                "code": -32603,
                "message": 'the hub was lost during "tools/call"; the request may or may not '
                "have been executed; try again",
                "data": {"kind": "Unreachable"},
            }
        with closing(Hub(place, "second")) as second:
            assert ide.get() == LIST_CHANGED
            ide.send(ask(3))
            assert ide.get() == result(3, "second")
            replayed = second.hear()
            assert replayed["params"] == INITIALIZE["params"]
            assert replayed["id"] != INITIALIZE["id"]
            assert [second.hear(), second.hear()] == [INITIALIZED, ask(3)]


@pytest.mark.promise("F2")
def test_requests_without_a_hub_wait_for_the_next(place):
    first = Hub(place, "first", silent=("slow",))
    with process(place) as child:
        with closing(first):
            child.ide.send(ask(1, "slow"))
            assert first.hear() == ask(1, "slow")
        assert child.ide.get()["error"]["code"] == -32603
        child.ide.send(ask(2), "length")
        child.ide.send(ask(3), "line")
        with closing(Hub(place, "second")) as second:
            assert child.ide.get("length") == result(2, "second")
            assert child.ide.get("line") == result(3, "second")
            assert [second.hear(), second.hear()] == [ask(2), ask(3)]


@pytest.mark.promise("F2")
def test_modern_client_gets_no_notification_when_the_hub_changes(place):
    first = Hub(place, "first")
    with process(place) as child:
        with closing(first):
            child.ide.send(ask(1))
            assert child.ide.get() == result(1, "first")
        with closing(Hub(place, "second")) as second:
            second.connections.get(timeout=WAIT)
            child.ide.send(ask(2))
            assert child.ide.get() == result(2, "second")
            assert second.hear() == ask(2)


@pytest.mark.promise("F2")
def test_initialize_pending_at_a_hub_exit_is_answered_by_the_relay(place):
    hub = Hub(place, silent=("initialize",))
    with process(place) as child:
        with closing(hub):
            child.ide.send(INITIALIZE)
            assert hub.hear() == INITIALIZE

        assert child.ide.get() == result(0, build_initialize_result(INITIALIZE["params"]))


def test_cancelled_request_is_not_answered_after_a_hub_exit(place):
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    hub = Hub(place, silent=("slow",))
    with process(place) as child:
        with closing(hub):
            child.ide.send(ask(1, "slow"))
            child.ide.send(cancel)
            child.ide.send(ask(2, "slow"))
            assert [hub.hear(), hub.hear(), hub.hear()] == [ask(1, "slow"), cancel, ask(2, "slow")]
        assert child.ide.get()["id"] == 2
        with closing(Hub(place)):
            child.ide.send(ask(3))
            assert child.ide.get() == result(3, "hub")


def test_answer_for_an_exited_hub_does_not_reach_the_next(place):
    question = ask(1, "sampling/createMessage")
    first = Hub(place)
    with process(place) as child:
        ide = child.ide
        with closing(first):
            ide.shake_hands()
            assert [first.hear(), first.hear()] == [INITIALIZE, INITIALIZED]
            first.say(question)
            assert ide.get() == question
        gone = ide.get()
        assert (gone["method"], gone["params"]) == ("notifications/cancelled", {"requestId": 1})
        with closing(Hub(place)) as second:
            assert ide.get() == LIST_CHANGED
            ide.send(result(1, "too late"))
            second.say(ask(2, "sampling/createMessage"))
            assert ide.get()["id"] == 2
            ide.send(result(2, "in time"))
            assert second.hear()["method"] == "initialize"
            assert [second.hear(), second.hear()] == [INITIALIZED, result(2, "in time")]


@pytest.mark.promise("F2")
def test_silent_socket_is_not_a_hub(place, monkeypatch):
    monkeypatch.setattr(home_module, "GREETING_SECONDS", 0.3)
    booted = threading.Event()
    with closing(Hub(place, "mute", greeting=b"")) as mute:
        started = time.monotonic()
        with closing(InProcessRelay(place, host_hub("own", booted))) as inside:
            assert booted.wait(WAIT)
            assert 0.3 < time.monotonic() - started < 30
            inside.ide.send(ask(1))
            assert inside.ide.get() == result(1, "own")
        assert mute.got.empty()


class ClosingHub(Hub):
    def _serve(self, connection):
        connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.promise("F2")
@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0\n", b"[]\n", b'{"dragoman":1}\n', b"x" * 9000])
def test_wrong_greeting_is_not_a_hub(place, greeting):
    with (
        closing((Hub if greeting else ClosingHub)(place, "other", greeting=greeting)) as other,
        closing(InProcessRelay(place, host_hub("own"))) as inside,
    ):
        inside.ide.send(ask(1))
        assert inside.ide.get() == result(1, "own")
        assert other.got.empty()


@pytest.mark.promise("F2", "F6")
def test_initialize_is_answered_without_a_hub_and_the_rest_once_it_is_up(place):
    go = threading.Event()

    def boot(home, stop):
        assert go.wait(WAIT)
        host_hub("own")(home, stop)

    with closing(InProcessRelay(place, boot)) as inside:
        ide = inside.ide
        ide.send(ask(9), "length")
        ide.send({**INITIALIZE, "params": {}})
        assert ide.get() == result(0, build_initialize_result({}))
        ide.send(INITIALIZED)
        ide.send(ask(1))
        go.set()
        assert ide.get("length") == result(9, "own")
        assert ide.get("line") == result(1, "own")
    assert inside.code == 0
    assert not is_locked(str(place))


@pytest.mark.promise("F2")
def test_in_process_hub_receives_earlier_client_messages(place):
    hubs: queue.Queue[Hub] = queue.Queue()
    go = threading.Event()

    def boot(home, stop):
        assert go.wait(WAIT)
        with lock_home(home), closing(Hub(home, "own", mode="mcp")) as hub:
            hubs.put(hub)
            stop.wait(60)

    with closing(InProcessRelay(place, boot)) as inside:
        inside.ide.shake_hands()
        go.set()
        hub = hubs.get(timeout=WAIT)
        assert hub.hear()["params"] == INITIALIZE["params"]
        assert hub.hear() == INITIALIZED
        inside.ide.send(ask(1))
        assert inside.ide.get() == result(1, "own")


@pytest.mark.promise("F2")
def test_second_ide_continues_when_the_hosting_one_ends(place):
    first_up, second_up = threading.Event(), threading.Event()
    first = InProcessRelay(place, host_hub("first", first_up))
    assert first_up.wait(WAIT)
    with closing(InProcessRelay(place, host_hub("second", second_up))) as second:
        second.ide.shake_hands()
        second.ide.send(ask(1))
        assert second.ide.get() == result(1, "first")
        assert not second_up.is_set()

        first.close()

        assert second.ide.get() == LIST_CHANGED
        second.ide.send(ask(2))
        assert second.ide.get() == result(2, "second")


@pytest.mark.promise("F2")
def test_concurrent_relays_share_one_hub(place):
    relays = [InProcessRelay(place, host_hub(f"hub {n}")) for n in range(6)]
    try:
        answers = set()
        for each in relays:
            each.ide.send(ask(1))
        for each in relays:
            answers.add(each.ide.get()["result"])
        assert len(answers) == 1
    finally:
        for each in relays:
            each.close()


@pytest.mark.promise("F2")
def test_home_of_a_restarting_daemon_is_not_taken(place):
    first = Hub(place, "first")
    with closing(InProcessRelay(place, never)) as inside:
        with closing(first):
            inside.ide.send(ask(1))
            assert inside.ide.get() == result(1, "first")
        inside.ide.send(ask(2))
        assert not inside.relay._ended.wait(0.5)
        with closing(Hub(place, "second")):
            assert inside.ide.get() == result(2, "second")


@pytest.mark.promise("F2")
def test_daemon_that_does_not_return_is_replaced(place, monkeypatch):
    monkeypatch.setattr(relay_module, "GRACE_SECONDS", 0.3)
    daemon = Hub(place, "daemon", silent=("slow",))
    with closing(InProcessRelay(place, host_hub("own"))) as inside:
        with closing(daemon):
            inside.ide.send(ask(1, "slow"))
            daemon.hear()
        assert inside.ide.get()["id"] == 1
        lost = time.monotonic()
        inside.ide.send(ask(2))
        assert inside.ide.get() == result(2, "own")
        assert time.monotonic() - lost > 0.2


@pytest.mark.promise("F2")
def test_invalid_configuration_is_reported_on_every_request_until_fixed(place, capfd):
    tries = []

    def boot(home, stop):
        tries.append(time.monotonic())
        if (place / "config.toml").read_text(encoding="utf-8") == "bad":
            raise ConfigError('"config.toml" line 1 is bad; mend it')
        host_hub("own")(home, stop)

    (place / "config.toml").write_text("bad", encoding="utf-8")
    with closing(InProcessRelay(place, boot)) as inside:
        ide = inside.ide
        ide.shake_hands()
        for id_ in (1, 2):
            ide.send({"jsonrpc": "2.0", "method": "notifications/progress"})
            ide.send(ask(id_), "length")
            refusal = ide.get("length")
            assert refusal["id"] == id_
            assert refusal["error"]["code"] == -32603
            assert refusal["error"]["message"] == '"config.toml" line 1 is bad; mend it'
        assert len(tries) == 1
        (place / "config.toml").write_text("good", encoding="utf-8")
        assert ide.get("length") == LIST_CHANGED
        ide.send(ask(3))
        assert ide.get() == result(3, "own")
    assert capfd.readouterr().err.count("line 1 is bad") == 1


@pytest.mark.promise("F2")
def test_relay_with_an_invalid_configuration_uses_a_hub_that_appears(place, capfd):
    def boot(home, stop):
        raise ConfigError("bad")

    with closing(InProcessRelay(place, boot)) as inside:
        inside.ide.send(ask(1))
        assert inside.ide.get()["error"]["message"] == "bad"
        with closing(Hub(place)) as hub:
            hub.connections.get(timeout=WAIT)
            inside.ide.send(ask(2))
            assert inside.ide.get()["id"] == 2


@pytest.mark.promise("F2")
def test_hub_that_fails_to_start_is_restarted(place, capfd):
    tries = []

    def boot(home, stop):
        tries.append(1)
        if len(tries) == 1:
            raise SystemExit("out of luck")
        host_hub("own")(home, stop)

    with closing(InProcessRelay(place, boot)) as inside:
        inside.ide.send(ask(1))
        refusal = inside.ide.get()
        assert "out of luck" in refusal["error"]["message"]
        up = time.monotonic() + WAIT
        while len(tries) < 2 and time.monotonic() < up:
            inside.relay._ended.wait(0.02)
        inside.ide.send(ask(2))
        assert inside.ide.get() == result(2, "own")


def test_home_writable_by_others_is_not_used_even_with_a_hub(place):
    with closing(Hub(place)) as hub:
        place.chmod(0o777)
        with process(place) as child:
            child.ide.send(ask(1))
            assert "can be written by other users" in child.ide.get()["error"]["message"]
            child.stdin.close()
            assert child.wait(WAIT) == 0
        assert hub.connections.empty()


def test_queued_messages_are_bounded(place):
    go = threading.Event()

    def boot(home, stop):
        assert go.wait(WAIT)
        host_hub("own")(home, stop)

    with closing(InProcessRelay(place, boot)) as inside:
        most = relay_module.MAX_WAITING
        for id_ in range(most + 3):
            inside.ide.send(ask(id_))
        inside.ide.send({"jsonrpc": "2.0", "method": "notifications/progress"})
        for id_ in range(most, most + 3):
            refusal = inside.ide.get()
            assert (refusal["id"], refusal["error"]["code"]) == (id_, -32603)
            assert "busy" in refusal["error"]["message"]
        go.set()
        assert [inside.ide.get() for _ in range(most)] == [result(n, "own") for n in range(most)]


def test_queued_bytes_are_bounded(place):
    go = threading.Event()

    def boot(home, stop):
        assert go.wait(WAIT)
        host_hub("own")(home, stop)

    with closing(InProcessRelay(place, boot)) as inside:
        for id_ in range(5):
            inside.ide.send(ask(id_, text="x" * (8 * 1024 * 1024 - 1000)))
        assert inside.ide.get()["id"] == 4
        go.set()
        assert [inside.ide.get()["id"] for _ in range(4)] == [0, 1, 2, 3]


@pytest.mark.promise("F2")
def test_pending_responses_arrive_after_stdin_ends(place):
    with closing(Hub(place, silent=("slow",))) as hub, process(place) as child:
        child.ide.send(ask(1, "slow"))
        child.stdin.close()
        assert hub.hear() == ask(1, "slow")
        hub.say(LIST_CHANGED)
        hub.say(result(1, "done"))

        assert child.ide.rest() == [LIST_CHANGED, result(1, "done")]
        assert child.wait(WAIT) == 0


def test_subscription_does_not_keep_the_relay_after_stdin_ends(place):
    with (
        closing(Hub(place, silent=("subscriptions/listen",))) as hub,
        process(place) as child,
    ):
        child.ide.send(ask(1, "subscriptions/listen"))
        hub.hear()
        started = time.monotonic()
        child.stdin.close()

        assert child.ide.rest() == []
        assert child.wait(WAIT) == 0
        assert time.monotonic() - started < relay_module.DRAIN_SECONDS - 1


def test_missing_response_does_not_keep_the_relay_forever(place, monkeypatch):
    monkeypatch.setattr(relay_module, "DRAIN_SECONDS", 0.2)
    with closing(Hub(place, silent=("slow",))) as hub:
        inside = InProcessRelay(place, never)
        inside.ide.send(ask(1, "slow"))
        hub.hear()
        started = time.monotonic()
        inside.close()

        assert 0.2 <= time.monotonic() - started < 30


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_ends_the_relay_like_end_of_stdin(place, number):
    with closing(Hub(place, silent=("slow",))) as hub, process(place) as child:
        child.ide.send(ask(1, "slow"))
        hub.hear()
        child.send_signal(number)
        hub.say(result(1, "done"))

        assert child.ide.rest() == [result(1, "done")]
        assert child.wait(WAIT) == 0
        assert child.stderr.read() == b""


def test_signal_ends_a_relay_whose_main_thread_does_not_handle_it(place):
    before = signal.signal(signal.SIGHUP, lambda *_: None)
    with closing(Hub(place)), closing(InProcessRelay(place, never)) as inside:
        inside.ide.shake_hands()
        inside.relay.watch_signals()
        try:
            signal.raise_signal(signal.SIGHUP)
            assert inside.relay._ended.wait(WAIT)
        finally:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGHUP, before)


def test_closed_stdout_ends_the_relay_quietly(place):
    with closing(Hub(place)) as hub, process(place) as child:
        hub.connections.get(timeout=WAIT)
        child.stdout.close()
        until = time.monotonic() + WAIT
        while child.poll() is None:  # the relay closes a slow connection and opens another
            assert time.monotonic() < until
            with suppress(OSError):
                hub.say(LIST_CHANGED)
            time.sleep(0.05)

        assert child.returncode == 0
        assert child.stderr.read() == b""


def test_slow_ide_pauses_the_hub_not_the_relays_memory(place):
    with closing(Hub(place)) as hub, process(place):
        connection = hub.connections.get(timeout=WAIT)
        connection.settimeout(0.5)
        notice = encoded({"jsonrpc": "2.0", "method": "x", "params": {"text": "x" * 65536}}) + b"\n"
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 500:
                connection.sendall(notice)
                sent += 1

        assert sent * len(notice) < 4_000_000


def test_large_responses_pass_completely(place):
    with closing(Hub(place, silent=("big",))) as hub, process(place) as child:
        for framing in ("line", "length"):
            child.ide.send(ask(1, "big"), framing)
            hub.hear()
            hub.say(result(1, "ü" * 6_000_000))
            assert child.ide.get(framing) == result(1, "ü" * 6_000_000)


def test_in_process_prints_do_not_enter_the_protocol(place):
    program = (
        "import sys, os\n"
        "from dragoman.__main__ import _take_stdio\n"
        "stdin, stdout = _take_stdio()\n"
        "print('stray', flush=True)\n"
        "os.system('echo child')\n"
        "os.write(stdout, b'protocol')\n"
        "assert sys.stdin.read() == ''\n"
        "assert os.read(stdin, 9) == b'input'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=b"input", capture_output=True, timeout=WAIT
    )

    assert (done.returncode, done.stdout) == (0, b"protocol"), done.stderr
    assert done.stderr == b"stray\nchild\n"


def test_closed_stderr_does_not_redirect_output(place):
    place.chmod(0o777)  # which is something to say
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(encoded(ask(1)) + b"\n")
        ours.shutdown(socket.SHUT_WR)
        done = subprocess.run(
            ["sh", "-c", f'exec "{sys.executable}" -m dragoman mcp --home "{place}" 2>&-'],
            stdin=theirs.fileno(),
            stdout=subprocess.PIPE,
            timeout=WAIT,
        )
        theirs.close()

        assert done.returncode == 0
        assert json.loads(done.stdout)["id"] == 1
        assert ours.recv(1000) == b""


@pytest.mark.promise("F1")
def test_help_prints_the_ide_configuration():
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", "mcp", "--help"], capture_output=True, timeout=WAIT
    )

    assert done.returncode == 0
    line = next(each for each in done.stdout.decode().splitlines() if "mcpServers" in each)
    assert json.loads(line) == {
        "mcpServers": {"dragoman": {"command": "dragoman", "args": ["mcp"]}}
    }


@pytest.mark.parametrize("words", [["--hom", "x"], ["x"], ["--home"], ["--home="], ["--home", ""]])
def test_unknown_argument_is_refused_with_the_usage(words):
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", "mcp", *words], capture_output=True, timeout=WAIT
    )

    assert (done.returncode, done.stdout) == (2, b"")
    assert b"unknown arguments" in done.stderr
    assert b"Usage: dragoman mcp" in done.stderr


@pytest.mark.promise("F2")
def test_relay_loads_only_the_standard_library_and_itself(place):
    with (
        closing(Hub(place)),
        subprocess.Popen(
            [sys.executable, "-X", "importtime", "-m", "dragoman", "mcp", f"--home={place}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as child,
    ):
        out, err = child.communicate(
            encoded(INITIALIZE) + b"\n" + encoded(ask(1)) + b"\n", timeout=WAIT
        )
    assert [json.loads(line)["id"] for line in out.splitlines()] == [0, 1]
    loaded = {line.rpartition("|")[2].strip() for line in err.decode().splitlines()}
    ours = {name for name in loaded if name.partition(".")[0] == "dragoman"}
    theirs = {name.partition(".")[0] for name in loaded - ours}
    # The environment's own site-packages may load something of their own at the start.
    bare = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", ""], capture_output=True, timeout=WAIT
    )
    always = {line.rpartition("|")[2].strip() for line in bare.stderr.decode().splitlines()}

    assert "dragoman.mcp.relay" in ours
    assert ours <= {
        "dragoman",
        "dragoman.home",
        "dragoman.mcp",
        "dragoman.mcp.protocol",
        "dragoman.mcp.relay",
        "dragoman.mcp.protocol.framing",
        "dragoman.mcp.protocol.revisions",
    }
    assert theirs - always - {"imported package"} <= sys.stdlib_module_names
    heavy = {"asyncio", "click", "msgspec", "uvicorn", "dataclasses", "typing", "pathlib"}
    assert not theirs & heavy
