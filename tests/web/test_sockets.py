"""Listening on a used port."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading

import pytest

from dragoman.core.errors import ConfigError
from dragoman.web.http.sockets import tcp_socket


def taken_port() -> tuple[socket.socket, socket.socket, int]:
    """A port that is the near end of a connection. Below those that the system gives away, or
    another program might have it next."""
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.socket()
    for port in random.sample(range(20_000, 30_000), 100):
        with contextlib.suppress(OSError):
            client.bind(("127.0.0.1", port))
            break
    client.connect(listener.getsockname())
    at_once = struct.pack("ii", 1, 0)  # its end frees the port
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
    return listener, client, client.getsockname()[1]


def test_port_used_by_an_outgoing_connection_is_retried_then_explained() -> None:
    listener, client, port = taken_port()
    with listener, client:
        with pytest.raises(ConfigError, match="an outgoing connection uses it") as raised:
            tcp_socket("127.0.0.1", port, seconds=0.1)
        assert f"ip_local_reserved_ports={port}" in str(raised.value)
        threading.Timer(0.1, client.close).start()
        tcp_socket("127.0.0.1", port, seconds=60).close()


def test_port_used_by_a_listener_is_not_retried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match="stop what uses it"):
            tcp_socket("127.0.0.1", port, seconds=600)
