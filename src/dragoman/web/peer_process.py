"""Identifies the process at the other end of a local connection: the user's own program, a process
started by a server, or another user's process.

Works on Linux only; elsewhere every process that can connect counts as the owner, as the modes of
the sockets and the loopback address imply. A server's process still has the rights of its user: see
docs/pins.md.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from dragoman.core.principal import LOCAL, OWNER, Principal, principal_from_server

KNOWN = sys.platform == "linux"
"""Whether the system supports the lookup."""

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, NLMSG_ERROR = 4, 20, 1, 2
ALL_STATES = 0xFFFFFFFF
NO_COOKIE = 0xFFFFFFFF
LISTEN = 10
HEADER = struct.Struct("=IHHII")
QUERY = struct.Struct("=BBBBI")
SOCKET_ID = struct.Struct("!HH16s16s")  # the ports and addresses, in network order
REST_OF_ID = struct.Struct("=III")
ANSWER = struct.Struct("=BBBB48sIIIII")
MAPPED = b"\0" * 10 + b"\xff\xff"
"""The prefix of IPv4-mapped IPv6 addresses."""
MAX_KEPT = 1_000

FindServer = Callable[[int], str | None]
"""Finds the server of a process, or of the process that holds a socket; None if it is not a
descendant of the hub."""


class SocketOwner(NamedTuple):
    uid: int
    inode: int


def _split_grpc_peer(peer: str) -> tuple[str, str, str]:
    """Splits `ipv4:127.0.0.1:4711` into family, address and port."""
    family, _, rest = unquote(peer).partition(":")
    address, _, number = rest.rpartition(":")
    return family, address.strip("[]"), number


def address_from_grpc(peer: str) -> str:
    return _split_grpc_peer(peer)[1]


class PeerIdentifier:
    def __init__(self, of_process: FindServer, of_socket: FindServer) -> None:
        self._of_process = of_process
        self._of_socket = of_socket
        self._kept: dict[int, Principal] = {}
        """Cached principals of sockets, by inode."""

    def identify_unix(self, transport: Any) -> Principal:
        """Returns the owner, who alone can open the hub's Unix sockets, or the server whose process
        connected."""
        if not KNOWN:
            return OWNER
        sock = transport.get_extra_info("socket")
        size = struct.calcsize("=iII")
        pid, *_ = struct.unpack(
            "=iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        )
        server = self._of_process(pid)
        return OWNER if server is None else principal_from_server(server)

    def identify_tcp(self, transport: Any) -> Principal | None:
        """Identifies a client without a key; None for another user, and if it is unknown."""
        return self.identify(
            transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        )

    def identify_grpc(self, peer: str, host: str, port: int) -> Principal | None:
        """Like `identify_tcp`, for a gRPC peer name (`ipv4:127.0.0.1:4711`) that has connected to
        `port` of `host`."""
        family, address, number = _split_grpc_peer(peer)
        if family not in ("ipv4", "ipv6") or not number.isdigit():
            return None
        if host == "localhost":
            host = "127.0.0.1" if family == "ipv4" else "::1"
        return self.identify((host, port), (address, int(number)))

    def identify(self, local: Any, remote: Any) -> Principal | None:
        """Like `identify_tcp`, for the connection between these two addresses."""
        if not KNOWN:
            return LOCAL
        if not local or not remote:
            return None
        owner = find_owner(_Address(*remote[:2]), _Address(*local[:2]))
        # Without an inode the socket is closed, and its user reads as root.
        if owner is None or owner.inode == 0 or owner.uid not in (0, os.geteuid()):
            return None
        known = self._kept.get(owner.inode)
        if known is None:
            server = self._of_socket(owner.inode)
            known = LOCAL if server is None else principal_from_server(server)
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[owner.inode] = known
        return known


ALONE = PeerIdentifier(lambda pid: None, lambda inode: None)
"""For a process that starts no servers."""


class _Address(NamedTuple):
    host: str
    port: int

    def pack(self) -> bytes:
        host = self.host.partition("%")[0]
        if ":" not in host:
            return socket.inet_pton(socket.AF_INET, host)
        packed = socket.inet_pton(socket.AF_INET6, host)
        return packed[12:] if packed.startswith(MAPPED) else packed


def find_owner(local: tuple[str, int], remote: tuple[str, int]) -> SocketOwner | None:
    """Finds user and inode of this machine's TCP socket from `local` to `remote`."""
    ours, theirs = _Address(*local), _Address(*remote)
    try:
        return _query_kernel(ours, theirs)
    except OSError:  # the kernel lacks it, or a sandbox forbids it
        return _read_table(ours, theirs)


def _query_kernel(local: _Address, remote: _Address) -> SocketOwner | None:
    ours, theirs = local.pack(), remote.pack()
    family = socket.AF_INET if len(ours) == 4 else socket.AF_INET6
    id = SOCKET_ID.pack(local.port, remote.port, ours.ljust(16, b"\0"), theirs.ljust(16, b"\0"))
    query = QUERY.pack(family, socket.IPPROTO_TCP, 0, 0, ALL_STATES) + id
    query += REST_OF_ID.pack(0, NO_COOKIE, NO_COOKIE)
    head = HEADER.pack(HEADER.size + len(query), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as link:
        link.send(head + query)
        answer = link.recv(4096, socket.MSG_DONTWAIT)  # the kernel answers synchronously
    _, kind, _, _, _ = HEADER.unpack_from(answer)
    if kind == NLMSG_ERROR:
        (code,) = struct.unpack_from("=i", answer, HEADER.size)
        if -code == errno.ENOENT:
            return None
        raise OSError(-code, os.strerror(-code))
    _, state, _, _, found, _, _, _, uid, inode = ANSWER.unpack_from(answer, HEADER.size)
    # Without such a connection the kernel returns a socket that listens on that port.
    if state == LISTEN or found[:4] != id[:4]:
        return None
    return SocketOwner(uid, inode)


def _read_table(local: _Address, remote: _Address) -> SocketOwner | None:
    ours, theirs = _render_forms(local), _render_forms(remote)
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[1] in ours and fields[2] in theirs and int(fields[3], 16) != LISTEN:
                return SocketOwner(int(fields[7]), int(fields[9]))
    return None


def _render_forms(address: _Address) -> set[str]:
    """Renders the address as in the kernel's tables, for sockets of either family."""
    packed = address.pack()
    forms = [packed] if len(packed) == 16 else [packed, MAPPED + packed]
    return {
        "".join(
            f"{int.from_bytes(form[at : at + 4], sys.byteorder):08X}"
            for at in range(0, len(form), 4)
        )
        + f":{address.port:04X}"
        for form in forms
    }
