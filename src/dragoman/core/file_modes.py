"""Finds files that other users may read or write: by mode and owner, and by whether they can reach
them.

Other users are all but this one and root. A group with this user alone, as Debian and Fedora make
for each user, does not count. Access control lists are not checked.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

WRITE, READ, SEARCH = 2, 4, 1
GUARDED = (
    *("config.toml", "env", "hub.key", "audit.key", "hub.db", "cluster.key"),
    *("servers", "programs", "skills", "workflows", "cache"),
    *("pins.db", "registry.db", "tasks.db", "agents.db", "users.db"),
    *("audit.db", "children.json", "credentials.db", "credentials.key", "runs.db"),
)
"""The files in a home that a hub trusts."""


class Exposure(NamedTuple):
    path: Path
    words: str
    """What other users may do."""
    fix: str
    """The command that fixes it."""
    reachable: bool
    """Whether they can reach the file; otherwise only its mode would allow it."""

    def __str__(self) -> str:
        return f"{self.path} {self.words}; run: {self.fix}"


def find_exposure(path: Path, *, secret: bool = False) -> Exposure | None:
    """Finds what other users may do with a file or folder and should not: write it, or read it if
    it is `secret`. Follows links, and checks the folder of the target."""
    try:
        real = Path(os.path.realpath(path))
        found, folder = real.stat(), real.parent.stat()
        reachable = all(_may(above.stat(), SEARCH) for above in real.parents)
    except OSError:
        return None  # missing, or unreadable to us as well
    quoted = shlex.quote(str(real))
    mode = f"(mode {stat.S_IMODE(found.st_mode):04o})"
    if found.st_uid not in (0, os.geteuid()):
        owned = f"belongs to user {found.st_uid}"
        return Exposure(path, owned, f"chown {os.geteuid()} {quoted}", reachable)
    if _may(found, WRITE):
        return Exposure(path, f"can be written by others {mode}", f"chmod go-w {quoted}", reachable)
    if _may(folder, WRITE) and not folder.st_mode & stat.S_ISVTX:
        words = f"can be replaced by others, who may write the folder {real.parent}"
        fix = f"chmod go-w {shlex.quote(str(real.parent))}"
        return Exposure(path, words, fix, reachable)
    if secret and _may(found, READ):
        words = f"holds secrets and can be read by others {mode}"
        return Exposure(path, words, f"chmod go-rwx {quoted}", reachable)
    return None


def find_exposures(home: Path, *, config_is_secret: bool) -> Iterator[Exposure]:
    """Checks the files in a home that the hub trusts."""
    secrets = {
        "env",
        "hub.key",
        "audit.key",
        "hub.db",
        "credentials.db",
        "credentials.key",
        "cluster.key",
    }
    if config_is_secret:
        secrets.add("config.toml")
    for name in GUARDED:
        if exposure := find_exposure(home / name, secret=name in secrets):
            yield exposure


def find_exposures_in(folder: Path) -> Iterator[Exposure]:
    """Checks a folder and the files in it."""
    try:
        files = sorted(folder.iterdir())
    except OSError:
        return
    for path in (folder, *files):
        if exposure := find_exposure(path):
            yield exposure


def make_private_folder(path: Path) -> None:
    """Creates a folder and its missing parents for this user alone, whatever the umask."""
    for folder in reversed([path, *path.parents]):
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue
        except OSError:
            if not folder.is_dir():  # a parent that is not writable need not be
                raise


def _may(found: os.stat_result, what: int) -> bool:
    mode = stat.S_IMODE(found.st_mode)
    if mode & what:
        return True
    return bool(mode >> 3 & what) and not _is_private(found.st_gid)


def _is_private(gid: int) -> bool:
    """Whether the group has no other member."""
    if gid == 0:
        return True
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
        group = grp.getgrgid(gid)
    except KeyError:
        return gid == os.geteuid() == os.getegid()
    return group.gr_name == user and set(group.gr_mem) <= {user}
