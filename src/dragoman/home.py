"""The hub's home directory: who holds it, where its sockets are, what a running hub says of itself.

One hub holds a home at a time: an exclusive `flock` on `lock`, which the kernel drops when the
process ends, however it ends. `daemon.json` is written by the holder and only believed while a hub
answers. Standard library only and light: `dragoman mcp` loads this on its way to the first byte.
Knows nothing of what the hub does.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

SOCKET_LIMIT = 100  # bytes; `sun_path` has 108 on Linux and 104 on macOS
CONNECT_SECONDS = 1.0
GREETING_SECONDS = 2.0  # in all
_RECORD_LIMIT = 64 * 1024
_INSTRUCTIONS = "instructions.json"
_INSTRUCTIONS_LIMIT = 8 * 1024 * 1024
_FIELDS = ("pid", "url", "socket", "mcp_socket", "version", "started_at", "mode")
_MODES = ("daemon", "mcp")


class Unfit(Exception):
    """The home cannot be used as it is; the message says why and what to do."""


class Held(Exception):
    """Another process holds the home. `daemon` is what that one says of itself, if it does yet."""

    def __init__(self, home: str, pid: int | None, daemon: Daemon | None) -> None:
        self.home = home
        self.pid = pid
        self.daemon = daemon
        who = "another process" if pid is None else f"process {pid}"
        end = "stop that one"
        if daemon is not None and daemon.mode == "daemon":
            at = daemon.url or daemon.socket
            who = f"process {daemon.pid} (a daemon since {daemon.started_at}, at {at})"
        elif daemon is not None:
            who = f"process {daemon.pid} (the hub of a `dragoman mcp` since {daemon.started_at})"
            end = "close the IDEs that share it"
        super().__init__(f'"{home}" is held by {who}; {end}, or give this one a home of its own.')


class Daemon:
    """What the running hub says of itself; `mode` is "daemon", or "mcp" inside a `dragoman mcp`."""

    __slots__ = _FIELDS

    def __init__(
        self,
        *,
        pid: int,
        url: str | None,
        socket: str,
        mcp_socket: str,
        version: str,
        started_at: str,
        mode: str,
    ) -> None:
        self.pid = pid
        self.url = url
        self.socket = socket
        self.mcp_socket = mcp_socket
        self.version = version
        self.started_at = started_at
        self.mode = mode

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Daemon):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _FIELDS)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Daemon({', '.join(f'{name}={getattr(self, name)!r}' for name in _FIELDS)})"


def home_path(given: str | None = None) -> str:
    """`given`, else $DRAGOMAN_HOME, else ~/.dragoman; absolute."""
    path = given or os.environ.get("DRAGOMAN_HOME") or "~/.dragoman"
    path = os.path.expanduser(path)
    if path.startswith("~"):
        raise Unfit(f'"{path}" has no home directory behind it; set DRAGOMAN_HOME to a path.')
    return os.path.abspath(path)


def prepare(home: str) -> None:
    """Makes the home where there is none, and refuses one that others could change."""
    try:
        _make(home)
        found = os.stat(home)
    except OSError as error:
        raise Unfit(f'"{home}" cannot be made a home: {error.strerror}.') from error
    if found.st_uid != os.geteuid():
        raise Unfit(
            f'"{home}" belongs to user {found.st_uid}, not to you (user {os.geteuid()}); '
            "set DRAGOMAN_HOME to a directory of your own."
        )
    if found.st_mode & 0o022:
        raise Unfit(
            f'"{home}" can be written by others (mode {stat.S_IMODE(found.st_mode):04o}); '
            f'run: chmod go-w "{home}"'
        )


def _make(folder: str) -> None:
    """With those above it, for this user alone whatever the umask."""
    if os.path.isdir(folder):
        return
    above = os.path.dirname(folder)
    if above != folder:
        _make(above)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise


def now() -> str:
    """The time as `started_at` has it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def read_daemon(home: str) -> Daemon | None:
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
    words = {name: record.get(name) for name in _FIELDS[2:]}
    texts = {name: value for name, value in words.items() if isinstance(value, str)}
    if len(texts) < len(words) or texts["mode"] not in _MODES:
        return None
    return Daemon(pid=pid, url=url, **texts)


def write_daemon(home: str, daemon: Daemon) -> None:
    """Only for the holder of the home. A reader sees the old record or the new one, whole."""
    path = os.path.join(home, "daemon.json")
    new = f"{path}.{os.getpid()}"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(json.dumps({name: getattr(daemon, name) for name in _FIELDS}).encode())
    os.rename(new, path)


def forget_daemon(home: str) -> None:
    """Only for the holder of the home, when it ends."""
    try:
        os.unlink(os.path.join(home, "daemon.json"))
    except FileNotFoundError:
        pass


def read_instructions(home: str) -> str:
    """What clients were last told of the use of the servers; empty where nothing was."""
    try:
        with open(os.path.join(home, _INSTRUCTIONS), "rb") as file:
            said = json.loads(file.read(_INSTRUCTIONS_LIMIT))
    except (OSError, ValueError, RecursionError):
        return ""
    text = said.get("instructions") if isinstance(said, dict) else None
    return text if isinstance(text, str) else ""


def write_instructions(home: str, text: str) -> None:
    """A reader sees the old text or the new one, whole."""
    path = os.path.join(home, _INSTRUCTIONS)
    new = f"{path}.{os.getpid()}"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(json.dumps({"instructions": text}).encode())
    os.rename(new, path)


def socket_paths(home: str) -> tuple[str, str]:
    """Where the hub listens for HTTP and for stdio sessions; the directory is there."""
    names = ("http.sock", "mcp.sock")
    places = [os.path.join(home, "run")]
    if _too_long(places[0], names):
        from hashlib import sha256  # 10 ms to load, and rarely needed

        name = sha256(f"{os.geteuid()}:{home}".encode()).hexdigest()[:16]
        roots = (os.environ.get("XDG_RUNTIME_DIR"), os.environ.get("TMPDIR"), "/tmp")
        places = [
            os.path.join(root, f"dragoman-{name}")
            for root in roots
            if root and os.path.isabs(root) and os.path.isdir(root)
        ]
    for place in places:
        if not _too_long(place, names):
            _make_private(place)
            return os.path.join(place, names[0]), os.path.join(place, names[1])
    raise Unfit(f'"{home}" is too long a path for a socket; set XDG_RUNTIME_DIR to a short one.')


def _too_long(place: str, names: tuple[str, str]) -> bool:
    return any(len(os.fsencode(os.path.join(place, name))) > SOCKET_LIMIT for name in names)


def _make_private(place: str) -> None:
    try:
        try:
            os.mkdir(place, 0o700)
        except FileExistsError:
            pass
        found = os.lstat(place)  # not stat: in a shared directory a link may be anyone's
    except OSError as error:
        raise Unfit(f'"{place}" cannot be made for sockets: {error.strerror}.') from error
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not mine or found.st_mode & 0o077:
        raise Unfit(
            f'"{place}" is not a directory that only you can enter, so no socket is opened in it; '
            "remove it and start again."
        )


def connect(home: str) -> tuple[socket.socket, Daemon, bytes] | None:
    """A stdio session with the hub that runs, what that says of itself, and what it sent already.

    The hub greets whoever connects with a line, `{"dragoman": version, "pid": n}`: that is the
    health probe.
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
        heard = b""
        while b"\n" not in heard:
            sock.settimeout(max(0.001, until - time.monotonic()))
            more = sock.recv(4096)
            if not more or len(heard) > 4096:
                raise ConnectionError("no greeting")
            heard += more
        line, _, rest = heard.partition(b"\n")
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


def config_stamp(home: str) -> object:
    """Something that differs when the configuration was changed."""
    try:
        found = os.stat(os.path.join(home, "config.toml"))
    except OSError:
        return "none"
    return found.st_mtime_ns, found.st_size, found.st_ino


class Hold:
    """The home, held until closed or until this process ends. A forked child must not keep it."""

    def __init__(self, home: str, fd: int) -> None:
        self.home = home
        self._fd = fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def hold(home: str) -> Hold:
    """Takes the home for this process, or raises Held."""
    prepare(home)
    try:
        # The file stays when the hold ends: removing it would let two hold two files of one name.
        fd = os.open(os.path.join(home, "lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise Unfit(f'"{home}" cannot be held: its lock: {error.strerror}.') from error
    try:
        if not _lock(fd):
            raise Held(home, *_holder(home, fd))
        os.ftruncate(fd, 0)
        os.write(fd, b"%d\n" % os.getpid())
    except BaseException:
        os.close(fd)
        raise
    return Hold(home, fd)


def _lock(fd: int) -> bool:
    for _ in range(5):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.01)  # `is_held` has it for a moment when it looks
        except OSError as error:
            raise Unfit(f"a file system without locks is no place for a home: {error}.") from error
    return False


def _holder(home: str, fd: int) -> tuple[int | None, Daemon | None]:
    text = os.pread(fd, 32, 0).strip()
    pid = int(text) if text.isdigit() else None
    daemon = read_daemon(home)
    # A record of another process is a dead one's: the holder has not written its own yet.
    return pid, daemon if daemon is not None and daemon.pid == pid else None


def is_held(home: str) -> bool:
    """Whether some process holds the home now."""
    try:
        fd = os.open(os.path.join(home, "lock"), os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        raise Unfit(f'"{home}" has a lock that cannot be read: {error.strerror}.') from error
    finally:
        os.close(fd)
    return False
