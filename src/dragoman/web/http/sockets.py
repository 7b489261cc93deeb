"""The sockets that the hub listens on."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import time
from typing import Any

from dragoman.core.errors import ConfigError

RETRY_SECONDS = 3.0
"""How long a start waits for a port that an outgoing connection has taken: Linux gives such
connections any port from 32768 to 60999, and the hub's default is one of these."""


def unix_socket(path: str) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # the home is locked: its creator has ended
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        sock.bind(path)
    finally:
        os.umask(before)
    return sock


def tcp_socket(
    host: str,
    port: int,
    seconds: float = RETRY_SECONDS,
    *,
    shared: bool = False,
    setting: str = "[server] port",
) -> socket.socket:
    """Retries for that many seconds while an outgoing connection uses the port. Several processes
    of this user can listen on a `shared` one; the kernel distributes the connections. `setting`
    names the port in errors."""
    until = time.monotonic() + seconds
    while True:
        try:
            family, kind, _, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            return _bind(family, kind, address, shared)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE and not _listens(family, kind, address)
            if taken and time.monotonic() < until:
                time.sleep(0.05)  # nothing is served yet
                continue
            problem = f"cannot listen on {host} port {port}: {error.strerror or error}"
            if taken:
                raise ConfigError(
                    f"{problem}; no program listens there, so an outgoing connection uses it: "
                    f"start again in a moment, set another {setting}, or reserve the port: "
                    f"sysctl net.ipv4.ip_local_reserved_ports={port}"
                ) from None
            refused = ConfigError(f"{problem}; stop what uses it, or set another {setting}")
            refused.taken_port = port if error.errno == errno.EADDRINUSE else None
            raise refused from None


def _bind(family: int, kind: int, address: Any, shared: bool) -> socket.socket:
    sock = socket.socket(family, kind)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def _listens(family: int, kind: int, address: Any) -> bool:
    """Whether a program listens there; True if unknown."""
    with socket.socket(family, kind) as sock:
        sock.settimeout(1)
        return sock.connect_ex(address) != errno.ECONNREFUSED


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
