"""`dragoman mcp`: relays messages between an IDE on stdin and stdout and the hub's socket.

If no hub is running, this process becomes the hub and relays to itself over the same socket. Each
connection is one MCP session, newline-delimited; the framing of the IDE is handled here. The relay
keeps what it needs to reopen the session with another hub: the client's `initialize` parameters and
the requests in flight.

Three threads: the reader owns the queue and alone sends for the client; the link finds a hub and
forwards its messages; the main thread idles until it has to run the hub. Imports only the standard
library, because an IDE waits for the start. Knows no MCP beyond the handshake.
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
    CHOOSE_VIEW,
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
GRACE_SECONDS = 3.0  # a lost daemon may be restarting: do not take over its home at once
HUB_SECONDS = 20.0  # for a hub that has locked the home but does not answer
RETRY_SECONDS = 10.0
DRAIN_SECONDS = 5.0
HOST_SECONDS = 10.0
_WAKE = b"."
_ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
MAX_WAITING = 1000
MAX_WAITING_BYTES = 32 * 1024 * 1024
MAX_IN_FLIGHT = 10_000
HUB_LIMIT = 64 * 1024 * 1024  # a result may repeat 10 MB of binary data in base64

PARSE_ERROR, INVALID_REQUEST, INTERNAL_ERROR = -32700, -32600, -32603
METHOD_NOT_FOUND = -32601
LISTEN = "subscriptions/listen"  # its response ends the stream, so draining does not wait for it
INITIALIZED = "notifications/initialized"
LOST = 'the hub was lost during "%s"; the request may or may not have been executed; try again'


def _encode(**members: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}, separators=(",", ":")).encode()


def _log(text: str) -> None:
    """Writes one line to stderr, which the IDE logs."""
    try:
        os.write(2, f"dragoman mcp: {text}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        pass


def _shut_down(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


class RelayClient:
    """The IDE, which reads from stdout."""

    def __init__(self, fd: int, on_close: Callable[[], None]) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._on_close = on_close
        self.framing: Framing = "line"  # of its last message
        self.closed = False

    def write(self, data: bytes) -> None:
        """Blocks while the IDE does not read, so that no more is read from the hub either."""
        with self._lock:
            view = memoryview(data)
            try:
                while view and not self.closed:
                    view = view[os.write(self._fd, view) :]
                return
            except OSError:
                self.closed = True
        self._on_close()

    def refuse(self, id_: Id | None, framing: Framing, code: int, text: str, kind: str) -> None:
        error = {"code": code, "message": text, "data": {"kind": kind}}
        self.write(frame(_encode(id=id_, error=error), framing))

    def notify(self, **members: object) -> None:
        self.write(frame(_encode(**members), self.framing))


class Relay:
    """`boot(home, stop)` runs a hub in this process until `stop` is set and the hub has ended."""

    def __init__(
        self,
        home: str,
        stdin: int,
        stdout: int,
        boot: Callable[[str, threading.Event], None],
        view: str = "",
    ) -> None:
        self.home = home
        self._view = view
        self.hosted = False
        self._boot = boot
        self._stdin = stdin
        self._client = RelayClient(stdout, self.end)
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        # Held while sending and while the connection changes, never while stdout blocks.
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        self._handshake: dict[str, Any] | None = None  # the params of the client's `initialize`
        self._own_id = f"relay-{os.urandom(8).hex()}"
        self._view_id = f"{self._own_id}-view"
        self._initialized = False
        self._waiting: deque[FramedMessage] = deque()
        self._waiting_bytes = 0
        self._in_flight: dict[Id, tuple[str, Framing]] = {}
        self._hub_requests: dict[Id, None] = {}  # not answered by the client yet
        self._is_forwarding = self._has_searched = False
        self._problem: tuple[str, str] | None = None  # why there is no hub, and the error kind
        self._boot_after, self._booted_at, self._backoff = 0.0, 0.0, 0.5
        self._bad_config: object = None
        self._is_ending = self._is_draining = self._has_failed = False
        self._ended = threading.Event()
        self._stop = threading.Event()
        self._host_wanted = threading.Event()  # wakes the main thread
        self._main_idle = threading.Event()
        self._main_idle.set()

    def run(self) -> int:
        """Returns when the IDE has disconnected. A hub, if needed, runs in the calling thread."""
        threads = [
            threading.Thread(target=self._run_thread, args=(work,), daemon=True)
            for work in (self._follow_hub, self._read_client)
        ]
        for thread in threads:
            thread.start()
        while not self._ended.is_set():
            self._host_wanted.wait()
            self._host_wanted.clear()
            if not (self._ended.is_set() or self._main_idle.is_set()):
                self._run_hub()
        self._main_idle.set()
        for thread in threads:
            thread.join(1)
        return int(self._has_failed)

    def end(self) -> None:
        """Ends the relay as if stdin had ended; safe in a signal handler."""
        self._is_ending = True
        self._wake()

    def watch_signals(self) -> None:
        """Has signals end the relay that the main thread handles, even if it does not notice them:
        one that arrives just before it begins to wait is handled after the wait."""
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)

    def _wake(self) -> None:
        try:
            os.write(self._wake_writer, _WAKE)
        except BlockingIOError:
            pass

    def _read_wakes(self) -> bool:
        """Whether one of the wake-ups was the number of a signal that ends the relay."""
        return not _ENDING.isdisjoint(os.read(self._wake_reader, 4096))

    def _run_thread(self, work: Callable[[], None]) -> None:
        """Runs `work`, then ends the relay: neither thread works without the other."""
        try:
            work()
        except Exception:
            self._has_failed = True
            sys.excepthook(*sys.exc_info())
        self._ended.set()
        self._stop.set()
        self._host_wanted.set()
        if (sock := self._sock) is not None:
            _shut_down(sock)
        if not self._main_idle.wait(HOST_SECONDS):
            _log("the hub did not stop in time")
            os._exit(0)

    # --- from the IDE: the reader's thread -------------------------------------------------------

    def _read_client(self) -> None:
        deframer = Deframer()
        poller = select.poll()
        poller.register(self._stdin, select.POLLIN)
        poller.register(self._wake_reader, select.POLLIN)
        while not self._is_ending:
            ready = {fd for fd, _ in poller.poll()}
            if self._wake_reader in ready:
                self._is_ending = self._is_ending or self._read_wakes()
                self._flush()
            if self._stdin in ready:
                try:
                    data = os.read(self._stdin, 65536)
                except OSError:
                    data = b""
                self._is_ending = self._is_ending or not data
                for piece in deframer.feed(data):
                    self._handle_piece(piece)
        # Drain: wait a limited time for the responses to requests in flight.
        self._is_draining = True
        poller.unregister(self._stdin)
        until = time.monotonic() + DRAIN_SECONDS
        while self._has_unanswered() and (left := until - time.monotonic()) > 0:
            if poller.poll(left * 1000):
                self._read_wakes()
            self._flush()

    def _handle_piece(self, piece: Piece) -> None:
        self._client.framing = framing = piece.framing
        if isinstance(piece, Frame):
            try:
                message = FramedMessage(piece.payload, framing)
            except (ValueError, RecursionError) as error:
                text = f"the message is not JSON: {str(error)[:200]}"
                self._client.refuse(None, framing, PARSE_ERROR, text, "InvalidInput")
            else:
                self._enqueue(message)
            return
        if isinstance(piece, MalformedFrame):
            self._client.refuse(None, framing, PARSE_ERROR, piece.reason, "InvalidInput")
            return
        id_, is_answer = find_id(piece.prefix)
        text = "the message exceeds the limit of 10 MB and was not read; send less at once"
        if not is_answer:
            self._client.refuse(id_, framing, INVALID_REQUEST, text, "InvalidInput")
        elif id_ is not None:  # the hub waits for this response
            problem = {"code": INVALID_REQUEST, "message": text}
            self._enqueue(FramedMessage(_encode(id=id_, error=problem), framing))
        self._is_ending = self._is_ending or isinstance(piece, Unrecoverable)

    def _enqueue(self, message: FramedMessage) -> None:
        if message.answers:
            asked = [id_ for id_ in message.answers if self._hub_requests.pop(id_, self) is None]
            if not asked and not message.requests:
                return  # the request is no longer pending, and another hub may reuse its id
        full = len(self._waiting) >= MAX_WAITING or len(self._in_flight) >= MAX_IN_FLIGHT
        if full or self._waiting_bytes + len(message.line) > MAX_WAITING_BYTES:
            self._refuse(message, "the hub is busy: too many requests wait; try again", "Full")
            return
        self._waiting.append(message)
        self._waiting_bytes += len(message.line)
        self._flush()

    def _flush(self) -> None:
        """Sends the queued messages; without a hub, answers those that the relay can answer."""
        while self._waiting:
            with self._lock:
                sent = self._sock is not None and self._send(self._sock, self._waiting[0])
                here = self._sock is None and self._has_searched
            if sent:
                self._dequeue(self._waiting[0])
            elif not (here and self._answer_locally()):
                return

    def _dequeue(self, message: FramedMessage) -> None:
        self._waiting.remove(message)
        self._waiting_bytes -= len(message.line)

    def _answer_locally(self) -> bool:
        """Answers without a hub; returns whether `_flush` should continue."""
        for message in self._waiting:
            if message.method == "initialize" and message.requests:
                with self._lock:
                    if self._sock is not None:
                        return True
                    self._handshake = message.params
                self._dequeue(message)
                self._answer_initialize(message.requests[0][0], message.framing)
                return True
        if (problem := self._problem) is None:
            return False
        for message in list(self._waiting):
            self._dequeue(message)
            self._initialized = self._initialized or message.method == INITIALIZED
            self._refuse(message, *problem)
        # The client needs a hub: try again soon, though not too often.
        self._boot_after = min(self._boot_after, self._booted_at + RETRY_SECONDS)
        return True

    def _answer_initialize(self, id_: Id, framing: Framing) -> None:
        from dragoman.mcp.protocol.revisions import build_initialize_result

        result = build_initialize_result(self._handshake or {})
        if text := read_instructions(self.home):  # saved from the last hub
            result["instructions"] = text
        self._client.write(frame(_encode(id=id_, result=result), framing))

    def _save_instructions(self, payload: bytes) -> None:
        """Saves the instructions in a hub's answer to `initialize`, for the next client that must
        be answered before there is a hub."""
        answer = json.loads(payload)
        result = answer.get("result") if isinstance(answer, dict) else None
        text = result.get("instructions", "") if isinstance(result, dict) else None
        try:
            if isinstance(text, str) and text != read_instructions(self.home):
                write_instructions(self.home, text)
        except OSError as error:
            _log(f"the instructions of the servers could not be saved: {error}")

    def _refuse(self, message: FramedMessage, text: str, kind: str) -> None:
        for id_, _ in message.requests:
            self._client.refuse(id_, message.framing, INTERNAL_ERROR, text, kind)

    def _send(self, sock: socket.socket, message: FramedMessage) -> bool:
        """Returns False if nothing was sent: the message may then go to the next hub."""
        for id_, method in message.requests:
            self._in_flight[id_] = (method, message.framing)
        try:
            sent = sock.send(message.line)
        except OSError:
            for id_, _ in message.requests:
                self._in_flight.pop(id_, None)
            _shut_down(sock)
            return False
        try:
            sock.sendall(memoryview(message.line)[sent:])
        except OSError:
            _shut_down(sock)  # the link answers the requests in flight
        if message.method == "initialize":
            self._handshake = message.params
        elif message.method == INITIALIZED:
            self._initialized = True
        elif message.method == "notifications/cancelled":
            # No response will come; one already on its way uses the framing last seen.
            cancelled = message.params.get("requestId")
            if isinstance(cancelled, str | int):
                self._in_flight.pop(cancelled, None)
        return True

    def _has_unanswered(self) -> bool:
        if self._client.closed:
            return False
        # In this order: the link sets `_is_forwarding` before it removes a request in flight.
        return (
            any(method != LISTEN for method, _ in list(self._in_flight.values()))
            or self._is_forwarding
            or any(message.requests for message in self._waiting)
        )

    # --- from the hub: the link's thread ---------------------------------------------------------

    def _follow_hub(self) -> None:
        pause = 0.0
        while (found := self._find_hub()) is not None:
            sock, daemon, rest = found
            began = time.monotonic()
            deframer = Deframer(HUB_LIMIT)
            try:
                self._open_session(sock)
                self._forward(deframer.feed(rest))
                while data := sock.recv(262144):
                    self._forward(deframer.feed(data))
            except (OSError, ValueError, RecursionError) as error:
                _log(f"the connection to the hub was lost: {error}")
            self._close_session(sock)
            if daemon.mode == "daemon":
                self._boot_after = time.monotonic() + GRACE_SECONDS
            # A hub that disconnects at once is not contacted again at once.
            pause = 0.0 if time.monotonic() - began > 1 else min(2.0, pause * 2 + 0.02)
            self._ended.wait(pause)

    def _find_hub(self) -> tuple[socket.socket, DaemonRecord, bytes] | None:
        """Finds or starts a hub; None when the relay has ended."""
        since = time.monotonic()
        while not self._ended.is_set():
            locked = True
            try:
                prepare(self.home)
                if (found := connect(self.home)) is not None:
                    return found
                locked = is_locked(self.home)
            except HomeUnusable as error:
                self._report_problem(str(error), "ConfigError")
            if not self._has_searched:
                self._has_searched = True
                self._wake()
            if self._main_idle.is_set() and not locked and self._can_boot():
                since = time.monotonic()
                self._problem = None  # requests wait until the hub has started
                self._main_idle.clear()
                self._host_wanted.set()
            elif locked and self._problem is None and time.monotonic() - since > HUB_SECONDS:
                text = f'the hub that uses "{self.home}" does not answer; restart it and try again'
                self._report_problem(text, "Unreachable")
            self._ended.wait(0.01 if self._problem is None else 0.25)
        return None

    def _can_boot(self) -> bool:
        mended = self._bad_config not in {None, read_config_stamp(self.home)}
        return mended or time.monotonic() >= self._boot_after

    def _report_problem(self, text: str, kind: str) -> None:
        """Refuses requests with `text` until there is a hub."""
        if self._problem != (text, kind):
            _log(text)
        self._problem = (text, kind)
        self._wake()

    def _open_session(self, sock: socket.socket) -> None:
        """Repeats the client's handshake to the hub, then lets the reader send."""
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
        with self._lock:
            known = self._handshake is not None and self._initialized
            if self._view:
                chosen = {"name": self._view}
                sock.sendall(_encode(id=self._view_id, method=CHOOSE_VIEW, params=chosen) + b"\n")
            if self._handshake is not None:  # no wait for the response: the hub reads in order
                hello = _encode(id=self._own_id, method="initialize", params=self._handshake)
                sock.sendall(hello + b"\n")
            if known:
                sock.sendall(_encode(method=INITIALIZED) + b"\n")
            self._sock = sock
            self._problem = self._bad_config = None
        if known:  # by an earlier hub or by the relay: its list may be outdated
            self._client.notify(method="notifications/tools/list_changed")
        self._wake()

    def _forward(self, pieces: list[Piece]) -> None:
        """Forwards messages to the client, each response in the framing of its request."""
        self._is_forwarding = True
        for piece in pieces:
            self._client.write(self._encode_for_client(piece))
        self._is_forwarding = False
        if self._is_draining:
            self._wake()

    def _encode_for_client(self, piece: Piece) -> bytes:
        if isinstance(piece, Frame):
            answered, asked = find_ids(piece.payload)
            if self._view_id in answered:
                self._check_view(piece.payload)
                return b""
            if self._own_id in answered:
                self._save_instructions(piece.payload)
                return b""
            framing = self._client.framing
            for id_ in answered:
                method, framing = self._in_flight.pop(id_, ("", framing))
                if method == "initialize":
                    self._save_instructions(piece.payload)
            for id_ in asked:
                self._hub_requests[id_] = None
            return frame(piece.payload, framing)
        raise ConnectionError(f"it sent an invalid message, or one of more than {HUB_LIMIT} bytes")

    def _check_view(self, payload: bytes) -> None:
        """Ends the relay if the hub does not serve its view: the client must not get another."""
        error = json.loads(payload).get("error")
        if error is not None:
            text = error.get("message") if error.get("code") != METHOD_NOT_FOUND else ""
            _log(text or "the running hub is of a version without views; restart it")
            self._has_failed = True
            self.end()
            raise ConnectionError("the view is not served")

    def _close_session(self, sock: socket.socket) -> None:
        """Answers every request in flight with an error, and sends none of them again."""
        _shut_down(sock)
        self._is_forwarding = True
        with self._lock:
            self._sock = None
            sock.close()
            lost, self._in_flight = self._in_flight, {}
            asked, self._hub_requests = self._hub_requests, {}
        if self._ended.is_set():
            return
        for id_, (method, framing) in lost.items():
            if method == "initialize":
                self._answer_initialize(id_, framing)
            else:
                self._client.refuse(id_, framing, INTERNAL_ERROR, LOST % method, "Unreachable")
        for id_ in asked:
            self._client.notify(method="notifications/cancelled", params={"requestId": id_})
        self._is_forwarding = False
        if self._is_draining:
            self._wake()

    # --- the hub in this process: the main thread ------------------------------------------------

    def _run_hub(self) -> None:
        self.hosted = True
        self._booted_at = time.monotonic()
        stamp = read_config_stamp(self.home)
        problem: tuple[str, str] | None = None
        try:
            self._boot(self.home, self._stop)
        except HomeLocked:
            pass
        except BaseException as error:  # SystemExit too: it ends the hub, not the relay
            problem = _describe_failure(error)
        now = time.monotonic()
        self._backoff = 0.5 if now - self._booted_at > 10 else min(30.0, self._backoff * 2)
        if problem is not None and not self._stop.is_set():
            if problem[1] == "ConfigError":
                self._bad_config, self._boot_after = stamp, float("inf")
            else:
                self._boot_after = now + self._backoff
            self._report_problem(*problem)
        self._main_idle.set()


def _describe_failure(error: BaseException) -> tuple[str, str]:
    from dragoman.core.errors import ConfigError

    if isinstance(error, ConfigError | HomeUnusable):
        return str(error), "ConfigError"
    sys.excepthook(type(error), error, error.__traceback__)
    return f"the hub failed ({type(error).__name__}: {error}) and will be restarted", "Unreachable"


def host_here(home: str, stop: threading.Event) -> None:
    from dragoman.app.run import host

    host(home, stop)


def main(home: str, stdin: int, stdout: int, view: str = "") -> int:
    relay = Relay(home, stdin, stdout, host_here, view)

    def end(number: int, where: object) -> None:
        relay.end()
        signal.alarm(int(DRAIN_SECONDS + HOST_SECONDS) + 1)  # in case a thread hangs

    for number in _ENDING:
        signal.signal(number, end)
    relay.watch_signals()
    code = relay.run()
    if relay.hosted:
        os._exit(code)  # do not wait for threads that the hub left running
    return code
