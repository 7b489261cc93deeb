"""Finds the process below the hub that holds a socket, with real processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from dragoman.processes.descendants import UNKNOWN, Descendants

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows them")

MANY_FILES = "import os, sys; [os.dup(0) for _ in range(300)]; print(flush=True); sys.stdin.read()"


def test_socket_owner_search_is_bounded() -> None:
    with (
        socket.socket() as own,
        subprocess.Popen(
            [sys.executable, "-c", MANY_FILES], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as child,
    ):
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        inode = os.fstat(own.fileno()).st_ino
        assert Descendants(search_files=100_000).find_socket(inode) is None
        assert Descendants(search_files=200).find_socket(inode) == UNKNOWN
        child.stdin.close()
