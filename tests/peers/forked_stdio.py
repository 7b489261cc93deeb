"""Has a program forked that reads and writes this process's stdin, stdout and stderr, and ends as
it does. A hub starts this as `python -I -S forked_stdio.py SOCKET PYTHON SCRIPT ARGS…`: it needs
little of the standard library, and nothing else.
"""

import json
import os
import resource
import signal
import socket
import struct
import sys
from typing import Any

SIZE = struct.Struct("!I")


def list_inherited() -> dict[str, Any]:
    """What a process inherits beside its environment, folder and files."""
    with open("/proc/self/status", encoding="utf-8") as file:
        (umask,) = (line.split()[1] for line in file if line.startswith("Umask:"))
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    ends = (signal.SIGHUP, signal.SIGINT)
    return {
        "cwd": os.getcwd(),
        "umask": int(umask, 8),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in names},
        "ignored": [number for number in ends if signal.getsignal(number) is signal.SIG_IGN],
    }


def send(place: str, request: dict[str, Any], descriptors: list[int]) -> socket.socket:
    """The connection on which the server answers with the pid, and at the end with the status."""
    data = json.dumps(request).encode()
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(place)
    except OSError:
        connection.close()
        raise
    socket.send_fds(connection, [SIZE.pack(len(data))], descriptors)
    connection.sendall(data)
    return connection


def main() -> None:
    place, _, script, *args = sys.argv[1:]
    request = {"script": script, "args": args, "env": dict(os.environ), **list_inherited()}
    try:
        connection = send(place, request, [0, 1, 2])
    except OSError:  # the tests have ended, or this process may not reach their files
        os.execv(sys.argv[2], sys.argv[2:])
    connection.recv(SIZE.size, socket.MSG_WAITALL)  # the pid
    for number in range(3):  # the program has them, and closes them when it ends
        os.close(number)
    status = connection.recv(SIZE.size, socket.MSG_WAITALL)
    code = os.waitstatus_to_exitcode(SIZE.unpack(status)[0]) if status else 1
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
