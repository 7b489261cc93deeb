"""Finds the process that listens on a port of this machine, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

_LISTEN = "0A"


def find_listener(port: int) -> str | None:
    """Returns the process and its command, or None if unknown (another user's, or no /proc)."""
    wanted = {f"socket:[{inode}]" for inode in _list_inodes(port)}
    for process in Path("/proc").glob("[0-9]*") if wanted else ():
        try:
            links = (os.readlink(link) for link in (process / "fd").iterdir())
            if any(link in wanted for link in links):
                words = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
                return f"process {process.name} ({' '.join(words).strip()[:120] or 'no name'})"
        except OSError:
            continue
    return None


def _list_inodes(port: int) -> set[str]:
    """Lists the inodes of listening sockets: column 2 is address:port in hexadecimal, 4 the state,
    10 the inode."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if columns[3] == _LISTEN and int(columns[1].rpartition(":")[2], 16) == port:
                found.add(columns[9])
    return found
