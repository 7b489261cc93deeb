"""The process of a connection, found with real sockets of this one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from dragoman.core.principal import LOCAL, Principal
from dragoman.web import peer_process
from dragoman.web.peer_process import ALONE, PeerIdentifier, SocketOwner, find_owner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")

Find = Callable[[tuple[str, int], tuple[str, int]], SocketOwner | None]


def read_table(local: tuple[str, int], remote: tuple[str, int]) -> SocketOwner | None:
    return peer_process._read_table(peer_process._Address(*local), peer_process._Address(*remote))


def connect(listening: str, to: str) -> tuple[socket.socket, socket.socket, socket.socket]:
    family = socket.AF_INET6 if ":" in listening else socket.AF_INET
    listener = socket.create_server((listening, 0), family=family)
    client = socket.socket(socket.AF_INET6 if ":" in to else socket.AF_INET)
    client.connect((to, listener.getsockname()[1]))
    served, _ = listener.accept()
    return listener, served, client


@pytest.mark.parametrize("find", [find_owner, read_table], ids=["netlink", "table"])
@pytest.mark.parametrize(
    ("listening", "to"),
    [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "::ffff:127.0.0.1"), ("::1", "::1")],
)
def test_user_and_inode_of_a_peer_socket_are_found(find: Find, listening: str, to: str) -> None:
    listener, served, client = connect(listening, to)
    with listener, served, client:
        ours, theirs = served.getsockname()[:2], served.getpeername()[:2]
        inode = os.fstat(client.fileno()).st_ino
        assert find(theirs, ours) == SocketOwner(os.geteuid(), inode)
        # A socket that only listens on that port is not an end of the connection.
        assert find(ours, (theirs[0], 1)) is None


def test_keyless_client_is_identified_by_its_socket() -> None:
    listener, served, client = connect("127.0.0.1", "127.0.0.1")
    with listener, served:
        ours, theirs = served.getsockname(), served.getpeername()
        assert ALONE.identify(ours, theirs) == LOCAL
        named = f"ipv4:{theirs[0]}:{theirs[1]}"
        for host in ("127.0.0.1", "localhost"):
            assert ALONE.identify_grpc(named, host, ours[1]) == LOCAL
        assert ALONE.identify_grpc("unix:", "127.0.0.1", ours[1]) is None
        asked: list[int] = []

        def find_socket(inode: int) -> str:
            asked.append(inode)
            return "files"

        below = PeerIdentifier(lambda pid: None, find_socket)
        inode = os.fstat(client.fileno()).st_ino
        for _ in range(2):
            found = below.identify(ours, theirs)
            assert found == Principal("server", "files") and found.serves == "files"
            assert not found.roles
        assert asked == [inode]  # once a connection
        # When its process has closed it, the kernel says that it is root's.
        client.close()
        assert ALONE.identify(ours, theirs) is None
    assert ALONE.identify(None, None) is None


PROTECTED = """
import ctypes, subprocess, sys
from dragoman.app import process
process.protect()
get = "import ctypes; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), flush=True)
subprocess.run([sys.executable, "-c", get], check=True)
"""


def test_hub_process_is_not_dumpable_and_its_children_are() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROTECTED], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0", "1"]
