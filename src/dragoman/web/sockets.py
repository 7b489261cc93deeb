"""The sockets that the hub listens on."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket

from dragoman.core.errors import ConfigError


def unix_socket(path: str) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # the home is held: whoever made it is gone
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        sock.bind(path)
    finally:
        os.umask(before)
    return sock


def tcp_socket(host: str, port: int) -> socket.socket:
    sock: socket.socket | None = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; stop what uses it, "
            "or set another [server] port"
        ) from None
    sock.setblocking(False)
    return sock


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
