"""Starts Python programs by forking a process that has done their imports: a child, and not a new
interpreter, so it is a real process that starts in a tenth of the time.

Run as `python fork_server.py SOCKET`; it ends when its stdin does, and its children with it. A
client connects, sends stdin, stdout and stderr with a request, and gets the child's pid, and at its
end the wait status. A client that closes the connection has its child killed.
"""

from __future__ import annotations

import ast
import atexit
import gc
import json
import os
import resource
import runpy
import selectors
import signal
import socket
import struct
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SIZE = struct.Struct("!I")
PATH = sys.path[1:]  # the first is the folder of this file
SECONDS_TO_SEND = 10.0
HIGHEST_DESCRIPTOR = 65_536


def read_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return data


def receive_request(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A request `{"script" or "module", "args", "env"}` with what the program inherits, and three
    descriptors."""
    size, descriptors, _, _ = socket.recv_fds(connection, SIZE.size, 3)
    try:
        if len(size) != SIZE.size or len(descriptors) != 3:
            raise EOFError
        return json.loads(read_exactly(connection, SIZE.unpack(size)[0])), descriptors
    except BaseException:
        for one in descriptors:
            os.close(one)
        raise


class ForkServer:
    def __init__(self, path: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(64)
        self._imported: set[str] = set()
        self._children: dict[int, tuple[int, socket.socket]] = {}  # pid and client by pidfd

    def serve(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(0, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == 0:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fd in self._children:
                    self._reap(key.fd)
                else:
                    self._lose_client(key.fd)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(SECONDS_TO_SEND)
        try:
            request, descriptors = receive_request(connection)
        except (OSError, EOFError, ValueError):
            connection.close()
            return
        self._import_for(request)
        pid = os.fork()
        if pid == 0:
            _become(request, descriptors)  # does not return
        for one in descriptors:
            os.close(one)
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = (pid, connection)
        self._selector.register(pidfd, selectors.EVENT_READ)
        self._selector.register(connection, selectors.EVENT_READ)
        self._send(connection, pid)

    def _import_for(self, request: Mapping[str, Any]) -> None:
        """Imports what the program imports at its top; what fails will fail again, in the child."""
        for name in request.get("imports", ()):
            self._import(f"import {name}", name)
        if script := request.get("script"):
            if script in self._imported:
                return
            self._imported.add(script)
            parsed = ast.parse(Path(script).read_bytes())
            sys.path[:] = [str(Path(script).parent), *PATH, str(Path(script).parents[2])]
            for node in parsed.body:
                if isinstance(node, ast.Import | ast.ImportFrom):
                    statement = ast.unparse(node)
                    if not statement.startswith("from __future__"):
                        self._import(statement, statement)

    def _import(self, statement: str, name: str) -> None:
        if name in self._imported:
            return
        self._imported.add(name)
        try:
            exec(statement, {"__name__": "imports"})
        except Exception:
            traceback.print_exc()
        gc.collect()
        gc.freeze()  # a collection in a child copies none of this

    def _reap(self, pidfd: int) -> None:
        pid, connection = self._children.pop(pidfd)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        if connection.fileno() >= 0:
            self._selector.unregister(connection)
            self._send(connection, status)
            connection.close()

    def _lose_client(self, descriptor: int) -> None:
        for pid, connection in self._children.values():
            if connection.fileno() == descriptor:
                self._selector.unregister(connection)
                connection.close()
                os.kill(pid, signal.SIGKILL)  # it is not reaped yet, so it is this process
                return

    def _send(self, connection: socket.socket, number: int) -> None:
        try:
            connection.sendall(SIZE.pack(number))
        except OSError:
            pass  # the client is gone, which is read from its connection next

    def kill_all(self) -> None:
        for pid, _ in self._children.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _become(request: Mapping[str, Any], descriptors: list[int]) -> None:
    """Makes this fork what a new interpreter would be, runs the program, and ends."""
    for number, one in enumerate([os.dup(one) for one in descriptors]):
        os.dup2(one, number)
    os.closerange(3, HIGHEST_DESCRIPTOR)
    for ignored in request["ignored"]:
        signal.signal(ignored, signal.SIG_IGN)
    for name, limit in request["limits"].items():
        if resource.getrlimit(getattr(resource, name)) != tuple(limit):
            resource.setrlimit(getattr(resource, name), tuple(limit))
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 (open to the end)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(  # noqa: SIM115
        2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False
    )
    if options := request["env"].get("PYTHONWARNINGS"):
        sys.warnoptions[:] = options.split(",")
        warnings._processoptions(sys.warnoptions)  # type: ignore[attr-defined]
    given = [one for one in request["env"].get("PYTHONPATH", "").split(os.pathsep) if one]
    code = 1
    try:
        code = _run(request, given)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
        finally:
            os._exit(code)


def _run(request: Mapping[str, Any], given: list[str]) -> int:
    script = request.get("script")
    sys.argv = [script or "-m", *request["args"]]
    sys.path[:] = [str(Path(script).parent) if script else os.getcwd(), *given, *PATH]
    try:
        if script:
            runpy.run_path(script, run_name="__main__")
        else:
            runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return (ended.code or 0) & 0xFF
        print(ended.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    server = ForkServer(sys.argv[1])
    try:
        server.serve()
    finally:
        server.kill_all()
