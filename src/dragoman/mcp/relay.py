"""`dragoman mcp`: stands between an IDE on stdin and stdout and the hub's socket.

If a hub runs, messages go to it; if none does, this process becomes the hub and then relays to
itself over the same socket, so there is one mechanism. Each connection there is one MCP session,
newline-delimited; the framing of the IDE's side is settled here. The relay keeps what it takes to
open the session again elsewhere: the client's `initialize`, and which requests want an answer.

Three threads. The reader owns what is waiting and is the only one that sends for the client; the
link finds a hub and passes on what it says; the main thread rests, and runs the hub when asked to.
Standard library only, because an IDE waits for it. Knows no MCP beyond the handshake.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections import deque

from dragoman.home import (
    HomeLocked,
    HomeUnusable,
    connect,
    is_locked,
    prepare,
    read_config_stamp,
    read_instructions,
    write_instructions,
)
from dragoman.mcp.protocol.framing import (
    Deframer,
    Frame,
    FramedMessage,
    MalformedFrame,
    Unrecoverable,
    find_id,
    find_ids,
    frame,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dragoman.home import DaemonRecord
    from dragoman.mcp.protocol.framing import Framing, Id, Piece

SEND_SECONDS = 30
GRACE_SECONDS = 3.0  # a daemon that went may be restarting: its home is not taken from it at once
PATIENCE_SECONDS = 20.0  # then a hub that holds the home and says nothing is an error, not a wait
RETRY_SECONDS = 10.0
DRAIN_SECONDS = 5.0
HOST_SECONDS = 10.0
MOST_WAITING = 1000
MOST_WAITING_BYTES = 32 * 1024 * 1024
MOST_IN_FLIGHT = 10_000
HUB_LIMIT = 64 * 1024 * 1024  # a result may carry 10 MB of binary, in base64, more than once

PARSE_ERROR, INVALID_REQUEST, INTERNAL_ERROR = -32700, -32600, -32603
LISTEN = "subscriptions/listen"  # answered when it ends, so nobody waits for that
INITIALIZED = "notifications/initialized"
LOST = 'the hub went away while "%s" was under way; it may or may not have been done; ask again'


def _encode(**members: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}, separators=(",", ":")).encode()


def _say(text: str) -> None:
    """One line for the person who reads the IDE's log."""
    try:
        os.write(2, f"dragoman mcp: {text}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        pass


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


class RelayClient:
    """The IDE's end of stdout."""

    def __init__(self, fd: int, when_gone: Callable[[], None]) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._when_gone = when_gone
        self.framing: Framing = "line"  # the one last seen
        self.gone = False

    def write(self, data: bytes) -> None:
        """Blocks while the IDE does not read: what is not taken is not fetched either."""
        with self._lock:
            view = memoryview(data)
            try:
                while view and not self.gone:
                    view = view[os.write(self._fd, view) :]
                return
            except OSError:
                self.gone = True
        self._when_gone()

    def refuse(self, id_: Id | None, framing: Framing, code: int, text: str, kind: str) -> None:
        error = {"code": code, "message": text, "data": {"kind": kind}}
        self.write(frame(_encode(id=id_, error=error), framing))

    def notify(self, **members: object) -> None:
        self.write(frame(_encode(**members), self.framing))


class Relay:
    """`boot(home, stop)` runs a hub in this process until `stop` is set and all is done."""

    def __init__(
        self, home: str, stdin: int, stdout: int, boot: Callable[[str, threading.Event], None]
    ) -> None:
        self.home = home
        self.hosted = False
        self._boot = boot
        self._stdin = stdin
        self._client = RelayClient(stdout, self.end)
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        # Held while something is sent and while the connection changes, never while stdout blocks.
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        self._hello: dict[str, Any] | None = None  # the params of the client's `initialize`
        self._own_id = f"relay-{os.urandom(8).hex()}"
        self._initialized = False
        self._waiting: deque[FramedMessage] = deque()
        self._waiting_bytes = 0
        self._in_flight: dict[Id, tuple[str, Framing]] = {}
        self._asked: dict[Id, None] = {}  # by the hub, and not answered by the client
        self._passing = self._looked = False
        self._trouble: tuple[str, str] | None = None  # why there is no hub, and its kind
        self._boot_after, self._booted_at, self._backoff = 0.0, 0.0, 0.5
        self._bad_config: object = None
        self._end = self._draining = self._failed = False
        self._ended = threading.Event()
        self._stop = threading.Event()
        self._summons = threading.Event()  # for the main thread
        self._resting = threading.Event()  # the main thread is
        self._resting.set()

    def run(self) -> int:
        """Returns when the IDE has gone. The hub, if one is needed, runs in the calling thread."""
        works = (self._link, self._read)
        threads = [threading.Thread(target=self._try, args=(w,), daemon=True) for w in works]
        for thread in threads:
            thread.start()
        while not self._ended.is_set():
            self._summons.wait()
            self._summons.clear()
            if not (self._ended.is_set() or self._resting.is_set()):
                self._host()
        self._resting.set()
        for thread in threads:
            thread.join(1)
        return int(self._failed)

    def end(self) -> None:
        """As if stdin had ended; safe in a signal handler."""
        self._end = True
        self._wake()

    def _wake(self) -> None:
        try:
            os.write(self._wakes, b".")
        except BlockingIOError:
            pass

    def _try(self, work: Callable[[], None]) -> None:
        """Works, and then all is over: neither thread goes on without the other."""
        try:
            work()
        except Exception:
            self._failed = True
            sys.excepthook(*sys.exc_info())
        self._ended.set()
        self._stop.set()
        self._summons.set()
        if (sock := self._sock) is not None:
            _shut(sock)
        if not self._resting.wait(HOST_SECONDS):
            _say("the hub did not end in time")
            os._exit(0)

    # --- from the IDE: the reader's thread -------------------------------------------------------

    def _read(self) -> None:
        deframer = Deframer()
        poller = select.poll()
        poller.register(self._stdin, select.POLLIN)
        poller.register(self._woken, select.POLLIN)
        while not self._end:
            ready = {fd for fd, _ in poller.poll()}
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._flush()
            if self._stdin in ready:
                try:
                    data = os.read(self._stdin, 65536)
                except OSError:
                    data = b""
                self._end = self._end or not data
                for piece in deframer.feed(data):
                    self._take(piece)
        # What was asked is answered, if that does not take too long.
        self._draining = True
        poller.unregister(self._stdin)
        until = time.monotonic() + DRAIN_SECONDS
        while self._owes() and not self._client.gone and (left := until - time.monotonic()) > 0:
            if poller.poll(left * 1000):
                os.read(self._woken, 4096)
            self._flush()

    def _take(self, piece: Piece) -> None:
        self._client.framing = framing = piece.framing
        if isinstance(piece, Frame):
            try:
                message = FramedMessage(piece.payload, framing)
            except (ValueError, RecursionError) as error:
                text = f"the message is not JSON: {str(error)[:200]}"
                self._client.refuse(None, framing, PARSE_ERROR, text, "InvalidInput")
            else:
                self._accept(message)
            return
        if isinstance(piece, MalformedFrame):
            self._client.refuse(None, framing, PARSE_ERROR, piece.reason, "InvalidInput")
            return
        id_, is_answer = find_id(piece.prefix)
        text = "the message is over the limit of 10 MB and was not read; send less at once"
        if not is_answer:
            self._client.refuse(id_, framing, INVALID_REQUEST, text, "InvalidInput")
        elif id_ is not None:  # the hub asked, and waits
            problem = {"code": INVALID_REQUEST, "message": text}
            self._accept(FramedMessage(_encode(id=id_, error=problem), framing))
        self._end = self._end or isinstance(piece, Unrecoverable)

    def _accept(self, message: FramedMessage) -> None:
        if message.answers:
            asked = [id_ for id_ in message.answers if self._asked.pop(id_, self) is None]
            if not asked and not message.requests:
                return  # nobody asks any more, and another hub may mean another thing by that id
        full = len(self._waiting) >= MOST_WAITING or len(self._in_flight) >= MOST_IN_FLIGHT
        if full or self._waiting_bytes + len(message.line) > MOST_WAITING_BYTES:
            self._refuse(message, "the hub is busy: too much is waiting for it; ask again", "Full")
            return
        self._waiting.append(message)
        self._waiting_bytes += len(message.line)
        self._flush()

    def _flush(self) -> None:
        """Sends what is waiting; without a hub, answers what can be answered here."""
        while self._waiting:
            with self._lock:
                sent = self._sock is not None and self._send(self._sock, self._waiting[0])
                here = self._sock is None and self._looked
            if sent:
                self._drop(self._waiting[0])
            elif not (here and self._answer_here()):
                return

    def _drop(self, message: FramedMessage) -> None:
        self._waiting.remove(message)
        self._waiting_bytes -= len(message.line)

    def _answer_here(self) -> bool:
        """Whether that changed anything: then it is worth looking again."""
        for message in self._waiting:
            if message.method == "initialize" and message.requests:
                with self._lock:
                    if self._sock is not None:
                        return True
                    self._hello = message.params
                self._drop(message)
                self._greet(message.requests[0][0], message.framing)
                return True
        if (trouble := self._trouble) is None:
            return False
        for message in list(self._waiting):
            self._drop(message)
            self._initialized = self._initialized or message.method == INITIALIZED
            self._refuse(message, *trouble)
        # Somebody asks: that is worth another try, though not too often.
        self._boot_after = min(self._boot_after, self._booted_at + RETRY_SECONDS)
        return True

    def _greet(self, id_: Id, framing: Framing) -> None:
        from dragoman.mcp.protocol.revisions import build_initialize_result

        result = build_initialize_result(self._hello or {})
        if text := read_instructions(self.home):  # as the last hub gave them
            result["instructions"] = text
        self._client.write(frame(_encode(id=id_, result=result), framing))

    def _remember(self, payload: bytes) -> None:
        """Keeps what a hub answers to `initialize` of its servers' instructions, for the next
        client that has to be answered before there is a hub."""
        answer = json.loads(payload)
        result = answer.get("result") if isinstance(answer, dict) else None
        text = result.get("instructions", "") if isinstance(result, dict) else None
        try:
            if isinstance(text, str) and text != read_instructions(self.home):
                write_instructions(self.home, text)
        except OSError as error:
            _say(f"the instructions of servers could not be kept: {error}")

    def _refuse(self, message: FramedMessage, text: str, kind: str) -> None:
        for id_, _ in message.requests:
            self._client.refuse(id_, message.framing, INTERNAL_ERROR, text, kind)

    def _send(self, sock: socket.socket, message: FramedMessage) -> bool:
        """False where nothing has left: then it may go to the next hub."""
        for id_, method in message.requests:
            self._in_flight[id_] = (method, message.framing)
        try:
            sent = sock.send(message.line)
        except OSError:
            for id_, _ in message.requests:
                self._in_flight.pop(id_, None)
            _shut(sock)
            return False
        try:
            sock.sendall(memoryview(message.line)[sent:])
        except OSError:
            _shut(sock)  # the link answers for what was in flight
        if message.method == "initialize":
            self._hello = message.params
        elif message.method == INITIALIZED:
            self._initialized = True
        elif message.method == "notifications/cancelled":
            # No answer will come; if one was on its way it goes out in the framing last seen.
            cancelled = message.params.get("requestId")
            if isinstance(cancelled, str | int):
                self._in_flight.pop(cancelled, None)
        return True

    def _owes(self) -> bool:
        # In this order: the link says that it is passing before it takes out of what is in flight.
        return (
            any(method != LISTEN for method, _ in list(self._in_flight.values()))
            or self._passing
            or any(message.requests for message in self._waiting)
        )

    # --- from the hub: the link's thread ---------------------------------------------------------

    def _link(self) -> None:
        pause = 0.0
        while (found := self._find()) is not None:
            sock, daemon, rest = found
            began = time.monotonic()
            deframer = Deframer(HUB_LIMIT)
            try:
                self._introduce(sock)
                self._pass(deframer.feed(rest))
                while data := sock.recv(262144):
                    self._pass(deframer.feed(data))
            except (OSError, ValueError, RecursionError) as error:
                _say(f"the connection to the hub is lost: {error}")
            self._lose(sock)
            if daemon.mode == "daemon":
                self._boot_after = time.monotonic() + GRACE_SECONDS
            # A hub that lets go at once is not asked again at once.
            pause = 0.0 if time.monotonic() - began > 1 else min(2.0, pause * 2 + 0.02)
            self._ended.wait(pause)

    def _find(self) -> tuple[socket.socket, DaemonRecord, bytes] | None:
        """A hub, found or made; None when the IDE has gone."""
        since = time.monotonic()
        while not self._ended.is_set():
            held = True
            try:
                prepare(self.home)
                if (found := connect(self.home)) is not None:
                    return found
                held = is_locked(self.home)
            except HomeUnusable as error:
                self._give_up(str(error), "ConfigError")
            if not self._looked:
                self._looked = True
                self._wake()
            if self._resting.is_set() and not held and self._may_boot():
                since = time.monotonic()
                self._trouble = None  # requests wait for the outcome
                self._resting.clear()
                self._summons.set()
            elif held and self._trouble is None and time.monotonic() - since > PATIENCE_SECONDS:
                text = f'the hub that holds "{self.home}" does not answer; restart it and ask again'
                self._give_up(text, "Unreachable")
            self._ended.wait(0.01 if self._trouble is None else 0.25)
        return None

    def _may_boot(self) -> bool:
        mended = self._bad_config not in {None, read_config_stamp(self.home)}
        return mended or time.monotonic() >= self._boot_after

    def _give_up(self, text: str, kind: str) -> None:
        """For now: requests are refused with `text` until there is a hub."""
        if self._trouble != (text, kind):
            _say(text)
        self._trouble = (text, kind)
        self._wake()

    def _introduce(self, sock: socket.socket) -> None:
        """Tells the hub what the client has told already, then lets the reader send."""
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
        with self._lock:
            known = self._hello is not None and self._initialized
            if self._hello is not None:  # in one go with what follows: the hub reads in order
                hello = _encode(id=self._own_id, method="initialize", params=self._hello)
                sock.sendall(hello + b"\n")
            if known:
                sock.sendall(_encode(method=INITIALIZED) + b"\n")
            self._sock = sock
            self._trouble = self._bad_config = None
        if known:  # to another hub, or to none: what it was told may be wrong now
            self._client.notify(method="notifications/tools/list_changed")
        self._wake()

    def _pass(self, pieces: list[Piece]) -> None:
        """On to the client, each answer in the framing of its request."""
        self._passing = True
        for piece in pieces:
            self._client.write(self._outgoing(piece))
        self._passing = False
        if self._draining:
            self._wake()

    def _outgoing(self, piece: Piece) -> bytes:
        if isinstance(piece, Frame):
            answered, asked = find_ids(piece.payload)
            if self._own_id in answered:
                self._remember(piece.payload)
                return b""
            framing = self._client.framing
            for id_ in answered:
                method, framing = self._in_flight.pop(id_, ("", framing))
                if method == "initialize":
                    self._remember(piece.payload)
            for id_ in asked:
                self._asked[id_] = None
            return frame(piece.payload, framing)
        raise ConnectionError(f"it said something that is no message, or is over {HUB_LIMIT} bytes")

    def _lose(self, sock: socket.socket) -> None:
        """Nothing that was under way is left without an answer, and nothing is sent twice."""
        _shut(sock)
        self._passing = True
        with self._lock:
            self._sock = None
            sock.close()
            lost, self._in_flight = self._in_flight, {}
            asked, self._asked = self._asked, {}
        if self._ended.is_set():
            return
        for id_, (method, framing) in lost.items():
            if method == "initialize":
                self._greet(id_, framing)
            else:
                self._client.refuse(id_, framing, INTERNAL_ERROR, LOST % method, "Unreachable")
        for id_ in asked:
            self._client.notify(method="notifications/cancelled", params={"requestId": id_})
        self._passing = False
        if self._draining:
            self._wake()

    # --- the hub in this process: the main thread ------------------------------------------------

    def _host(self) -> None:
        self.hosted = True
        self._booted_at = time.monotonic()
        stamp = read_config_stamp(self.home)
        problem: tuple[str, str] | None = None
        try:
            self._boot(self.home, self._stop)
        except HomeLocked:
            pass
        except BaseException as error:  # SystemExit too: what ends the hub does not end the relay
            problem = _problem(error)
        now = time.monotonic()
        self._backoff = 0.5 if now - self._booted_at > 10 else min(30.0, self._backoff * 2)
        if problem is not None and not self._stop.is_set():
            if problem[1] == "ConfigError":
                self._bad_config, self._boot_after = stamp, float("inf")
            else:
                self._boot_after = now + self._backoff
            self._give_up(*problem)
        self._resting.set()


def _problem(error: BaseException) -> tuple[str, str]:
    from dragoman.core.errors import ConfigError

    if isinstance(error, ConfigError | HomeUnusable):
        return str(error), "ConfigError"
    sys.excepthook(type(error), error, error.__traceback__)
    return f"the hub failed ({type(error).__name__}: {error}); it is started again", "Unreachable"


def host_here(home: str, stop: threading.Event) -> None:
    from dragoman.app.run import host

    host(home, stop)


def main(home: str, stdin: int, stdout: int) -> int:
    relay = Relay(home, stdin, stdout, host_here)

    def end(number: int, where: object) -> None:
        relay.end()
        signal.alarm(int(DRAIN_SECONDS + HOST_SECONDS) + 1)  # whatever hangs, the process ends

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    code = relay.run()
    if relay.hosted:
        os._exit(code)  # threads that the hub left behind keep nobody waiting
    return code
