"""The hub's home directory: its lock, its sockets, and the record of the running hub.

One hub at a time locks a home with an exclusive `flock` on `lock`, which the kernel releases when
the process ends. The lock's holder writes `daemon.json`, which counts only while a hub answers.
Standard library only and light: `dragoman mcp` loads this before its first byte. Knows nothing of
what the hub does.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import sys
import time
from types import SimpleNamespace

SOCKET_LIMIT = 100  # bytes; `sun_path` has 108 on Linux and 104 on macOS
CONNECT_SECONDS = 1.0
GREETING_SECONDS = 2.0  # in all
WORKERS = "workers"
"""The folder with the private directories of the processes of `[server] workers`."""
WORKERS_SECRET = "cluster.key"
"""The file with the secret that they create if `[cluster] secret` is not set."""
_RECORD_LIMIT = 64 * 1024
_INSTRUCTIONS = "instructions.json"
_INSTRUCTIONS_LIMIT = 8 * 1024 * 1024
_TEXTS = ("socket", "mcp_socket", "version", "started_at", "mode")
_MODES = ("daemon", "mcp")
_SIGKILL = 1 << 8
"""Its bit in the sets of pending signals."""


class HomeUnusable(Exception):
    """The home cannot be used; the message says why and what to do."""


class HomeLocked(Exception):
    """Another process has locked the home. `daemon` is its record, if it has written one."""

    def __init__(self, home: str, pid: int | None, daemon: DaemonRecord | None) -> None:
        self.home = home
        self.pid = pid
        self.daemon = daemon
        who = "another process" if pid is None else f"process {pid}"
        end = "stop it"
        if daemon is not None and daemon.mode == "daemon":
            at = daemon.url or daemon.socket
            who = f"process {daemon.pid} (a daemon since {daemon.started_at}, at {at})"
        elif daemon is not None:
            who = f"process {daemon.pid} (the hub of a `dragoman mcp` since {daemon.started_at})"
            end = "close the IDEs that share it"
        super().__init__(f'"{home}" is locked by {who}; {end}, or use another home.')


STOP_SECONDS = 15.0
"""How long a hub takes to stop, at most, unless it is one of a cluster."""
MAX_STOP_SECONDS = 120.0
LOOK_SECONDS = 10.0
"""How long a start waits for programs that look whether the home is locked."""


class DaemonRecord(SimpleNamespace):  # light, unlike a dataclass
    """The running hub; `mode` is "daemon", or "mcp" inside a `dragoman mcp`."""

    pid: int
    url: str | None
    socket: str
    mcp_socket: str
    version: str
    started_at: str
    mode: str
    stop_secs: float
    """How long it takes to stop, at most."""


def find_home(given: str | None = None) -> str:
    """Returns `given`, or else $DRAGOMAN_HOME, or else ~/.dragoman, as an absolute path."""
    path = given or os.environ.get("DRAGOMAN_HOME") or "~/.dragoman"
    path = os.path.expanduser(path)
    if path.startswith("~"):
        raise HomeUnusable(f'"{path}" names an unknown user; set DRAGOMAN_HOME to a path.')
    return os.path.abspath(path)


def prepare(home: str) -> None:
    """Creates the home if it is missing; raises if other users could change it."""
    try:
        _make_folder(home)
        found = os.stat(home)
    except OSError as error:
        raise HomeUnusable(f'cannot use "{home}" as a home: {error.strerror}.') from error
    if found.st_uid != os.geteuid():
        raise HomeUnusable(
            f'"{home}" belongs to user {found.st_uid}, not to you (user {os.geteuid()}); '
            "set DRAGOMAN_HOME to a directory of your own."
        )
    if found.st_mode & 0o022:
        raise HomeUnusable(
            f'"{home}" can be written by other users (mode {stat.S_IMODE(found.st_mode):04o}); '
            f'run: chmod go-w "{home}"'
        )


def _make_folder(folder: str) -> None:
    """Creates a folder and its parents, private to this user whatever the umask is."""
    if os.path.isdir(folder):
        return
    above = os.path.dirname(folder)
    if above != folder:
        _make_folder(above)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise


def render_now() -> str:
    """Returns the current time in the format of `started_at`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def read_daemon(home: str) -> DaemonRecord | None:
    try:
        with open(os.path.join(home, "daemon.json"), "rb") as file:
            record = json.loads(file.read(_RECORD_LIMIT))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    pid, url = record.get("pid"), record.get("url")
    if type(pid) is not int or pid <= 0 or not (url is None or isinstance(url, str)):
        return None
    words = {name: record.get(name) for name in _TEXTS}
    texts = {name: value for name, value in words.items() if isinstance(value, str)}
    if len(texts) < len(words) or texts["mode"] not in _MODES:
        return None
    secs = record.get("stop_secs")
    if not isinstance(secs, int | float) or not STOP_SECONDS <= secs <= MAX_STOP_SECONDS:
        secs = STOP_SECONDS  # of an earlier version
    return DaemonRecord(pid=pid, url=url, stop_secs=secs, **texts)


def write_daemon(home: str, daemon: DaemonRecord) -> None:
    """Replaces the record. Only for the process that has locked the home."""
    _replace_json(os.path.join(home, "daemon.json"), vars(daemon))


def _replace_json(path: str, value: object) -> None:
    """Replaces a private file atomically."""
    new = f"{path}.{os.getpid()}"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(json.dumps(value).encode())
    os.rename(new, path)


def remove_daemon(home: str) -> None:
    """Only for the process that has locked the home, when it stops."""
    try:
        os.unlink(os.path.join(home, "daemon.json"))
    except FileNotFoundError:
        pass


def read_instructions(home: str) -> str:
    """Returns the instructions that clients were sent last; empty if none were."""
    try:
        with open(os.path.join(home, _INSTRUCTIONS), "rb") as file:
            said = json.loads(file.read(_INSTRUCTIONS_LIMIT))
    except (OSError, ValueError, RecursionError):
        return ""
    text = said.get("instructions") if isinstance(said, dict) else None
    return text if isinstance(text, str) else ""


def write_instructions(home: str, text: str) -> None:
    _replace_json(os.path.join(home, _INSTRUCTIONS), {"instructions": text})


def find_socket_paths(home: str) -> tuple[str, str]:
    """Returns the sockets for HTTP and for stdio sessions, and creates their directory."""
    names = ("http.sock", "mcp.sock")
    places = [os.path.join(home, "run")]
    if _is_too_long(places[0], names):
        from hashlib import sha256  # 10 ms to load, and rarely needed

        name = sha256(f"{os.geteuid()}:{home}".encode()).hexdigest()[:16]
        roots = (os.environ.get("XDG_RUNTIME_DIR"), os.environ.get("TMPDIR"), "/tmp")
        places = [
            os.path.join(root, f"dragoman-{name}")
            for root in roots
            if root and os.path.isabs(root) and os.path.isdir(root)
        ]
    for place in places:
        if not _is_too_long(place, names):
            _make_private(place)
            return os.path.join(place, names[0]), os.path.join(place, names[1])
    raise HomeUnusable(
        f'the path "{home}" is too long for a socket; set XDG_RUNTIME_DIR to a short path.'
    )


def _is_too_long(place: str, names: tuple[str, str]) -> bool:
    return any(len(os.fsencode(os.path.join(place, name))) > SOCKET_LIMIT for name in names)


def _make_private(place: str) -> None:
    try:
        try:
            os.mkdir(place, 0o700)
        except FileExistsError:
            pass
        found = os.lstat(place)  # not stat: in a shared directory another user may own the link
    except OSError as error:
        raise HomeUnusable(f'cannot create "{place}" for sockets: {error.strerror}.') from error
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not mine or found.st_mode & 0o077:
        raise HomeUnusable(
            f'"{place}" is not a private directory of yours, so no socket is opened in it; '
            "remove it and start again."
        )


def connect(home: str) -> tuple[socket.socket, DaemonRecord, bytes] | None:
    """Opens a stdio session with the running hub; returns it, the hub's record, and bytes read.

    The hub greets each client with a line, `{"dragoman": version, "pid": n}`: the health probe.
    """
    daemon = read_daemon(home)
    if daemon is None:
        return None
    until = time.monotonic() + GREETING_SECONDS
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(CONNECT_SECONDS)
        sock.connect(daemon.mcp_socket)
        _check_peer(sock)
        received = b""
        while b"\n" not in received:
            sock.settimeout(max(0.001, until - time.monotonic()))
            more = sock.recv(4096)
            if not more or len(received) > 4096:
                raise ConnectionError("no greeting")
            received += more
        line, _, rest = received.partition(b"\n")
        greeting = json.loads(line)
        if not isinstance(greeting, dict) or not isinstance(greeting.get("dragoman"), str):
            raise ConnectionError("not a hub")
    except (OSError, ValueError, RecursionError):
        sock.close()
        return None
    return sock, daemon, rest


def _check_peer(sock: socket.socket) -> None:
    if sys.platform == "linux":
        uid = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[4:8]
        if int.from_bytes(uid, sys.byteorder) not in {0, os.geteuid()}:
            raise ConnectionError("another user's socket")


def read_config_stamp(home: str) -> object:
    """Returns a value that changes when the configuration does."""
    try:
        found = os.stat(os.path.join(home, "config.toml"))
    except OSError:
        return "none"
    return found.st_mtime_ns, found.st_size, found.st_ino


class HomeLock:
    """A lock on the home, until closed or the process ends. A forked child must not keep it."""

    def __init__(self, home: str, fd: int) -> None:
        self.home = home
        self._fd = fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> HomeLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def lock_home(home: str) -> HomeLock:
    """Locks the home for this process; raises `HomeLocked` if another has locked it."""
    prepare(home)
    try:
        # The file is never removed: two processes could then lock two files of one name.
        fd = os.open(os.path.join(home, "lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise HomeUnusable(f'cannot lock "{home}": {error.strerror}.') from error
    try:
        if not _try_lock(fd):
            raise HomeLocked(home, *_find_holder(home, fd))
        os.ftruncate(fd, 0)
        os.write(fd, b"%d\n" % os.getpid())
    except BaseException:
        os.close(fd)
        raise
    return HomeLock(home, fd)


def _try_lock(fd: int) -> bool:
    """Whether this process has the lock now. Waits for programs that only look at it, which hold it
    for a moment (`is_locked`), and for one that was killed: until a busy machine lets them go
    on."""
    end, tries = time.monotonic() + LOOK_SECONDS, 5
    try:
        while True:
            if _flock(fd, fcntl.LOCK_EX):
                return True
            is_shared = _flock(fd, fcntl.LOCK_SH)
            if is_shared:
                fcntl.flock(fd, fcntl.LOCK_UN)
            elif not _is_ending(_read_pid(fd)):
                tries -= 1
            if not tries or time.monotonic() > end:
                return False
            time.sleep(0.01)
    except OSError as error:
        raise HomeUnusable(
            f"the file system of the home does not support locks: {error}."
        ) from error


def _flock(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_pid(fd: int) -> int | None:
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else None


def _is_ending(pid: int | None) -> bool:
    """Whether a process was killed, and keeps its locks until it has ended. Known on Linux only."""
    if pid is None:
        return False
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            found = dict(line.split(":", 1) for line in file if ":" in line)
        pending = int(found["ShdPnd"], 16) | int(found["SigPnd"], 16)
    except (OSError, KeyError, ValueError):
        return False
    return found["State"].strip()[:1] in "ZX" or bool(pending & _SIGKILL)


def _find_holder(home: str, fd: int) -> tuple[int | None, DaemonRecord | None]:
    pid = _read_pid(fd)
    daemon = read_daemon(home)
    # The record of another process is stale: the holder has not written its own yet.
    return pid, daemon if daemon is not None and daemon.pid == pid else None


def is_locked(home: str) -> bool:
    try:
        fd = os.open(os.path.join(home, "lock"), os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        raise HomeUnusable(f'cannot read the lock of "{home}": {error.strerror}.') from error
    finally:
        os.close(fd)
    return False
