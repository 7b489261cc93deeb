"""The checks of `doctor` on what else a start needs: files that it can write, addresses that it can
listen on, and parts that the configuration names."""

from __future__ import annotations

import errno
import os
import shlex
import socket
import stat
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from dragoman import home
from dragoman.cli.doctor.findings import DoctorContext, Finding
from dragoman.core.errors import HubError

WRITTEN = ("lock", "daemon.json", "children.json", "stores.json", "audit.head", "audit.journal")
"""Files beside the databases that a hub writes."""


def check_files(found: DoctorContext) -> Iterator[Finding]:
    """Whether the hub can write its home."""
    place = found.home
    if not place.is_dir():
        return
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        said = f"you cannot write {place}; a hub does not start there"
        yield Finding("files", "problem", said, _advise(place, "u+rwx"))
        return
    for name in WRITTEN:
        path = place / name
        try:
            kind = path.lstat().st_mode
        except OSError:
            continue
        if not stat.S_ISREG(kind):
            said = f"{path} is no ordinary file; a hub does not start with it"
            yield Finding("files", "problem", said, f"move it away: {_quote(path)}")
        elif not os.access(path, os.R_OK | os.W_OK):
            yield Finding("files", "problem", f"you cannot write {path}", _advise(path, "u+rw"))
    if os.path.lexists(place / "run"):
        try:
            home.socket_paths(str(place))
        except home.Unfit as unfit:
            said, _, fix = str(unfit).rstrip(".").partition("; ")
            yield Finding("files", "problem", said, fix or "remove it and start again")


def _advise(path: Path, mode: str) -> str:
    owner = path.stat().st_uid
    if owner != os.geteuid():
        return f"it belongs to user {owner}: sudo chown -R {os.geteuid()} {_quote(path)}"
    return f"chmod {mode} {_quote(path)}; if the file system is read-only, use another home"


def _quote(path: Path) -> str:
    return shlex.quote(str(path))


def find_listening_problem(host: str, port: int) -> OSError | None:
    """Why nothing can listen there; None where it could. A port of 0 asks for the host alone."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(1)
    except OSError as error:
        return error
    return None


def is_transient(error: OSError, host: str, port: int) -> bool:
    """Whether no program listens on a port that is in use: it is the near end of a connection that
    is open, or was closed a moment ago (TIME-WAIT)."""
    if error.errno != errno.EADDRINUSE:
        return False
    try:
        with socket.create_connection((host, port), timeout=1):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:
        return False


def check_grpc(found: DoctorContext) -> Iterator[Finding]:
    config = found.config
    if config is None or not config.a2a.enabled or config.a2a.grpc_port is None:
        return
    number = config.a2a.grpc_port
    if find_spec("grpc") is None or find_spec("google") is None:
        said = "[a2a] grpc_port is set, and the packages for gRPC are not installed"
        yield Finding("grpc", "problem", said, "install dragoman-hub[grpc], or take it out")
        return
    if found.daemon is not None or number == 0:
        return
    error = find_listening_problem(config.server.host, number)
    if error is not None and not is_transient(error, config.server.host, number):
        said = f"the hub could not listen on port {number} for gRPC: {error.strerror or error}"
        fix = "stop what uses it, or set another [a2a] grpc_port"
        yield Finding("grpc", "problem", said, fix)


def check_plugins(found: DoctorContext) -> Iterator[Finding]:
    """What the configuration names outside of itself."""
    config = found.config
    if config is None:
        return
    from dragoman.app.app import find_plugin, load_signing_key

    for name in config.bus.plugins:
        try:
            find_plugin(name)
        except HubError as error:
            yield Finding("plug-ins", "problem", str(error), "install it, or take it out")
    if config.a2a.enabled and config.a2a.signing_key is not None:
        try:
            load_signing_key(found.home / config.a2a.signing_key)
        except HubError as error:
            said = f"[a2a] signing_key: {error}"
            yield Finding("signing key", "problem", said, "correct the path, or take it out")
