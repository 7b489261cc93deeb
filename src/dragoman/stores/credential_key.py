"""The key that encrypts stored credentials: in the system's keyring, or in a file of its own.

The file `credentials.key` has the key, or says that the keyring has it: a keyring that is locked
today is not mistaken for one that never had the key. The setting may name another place.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import re
import secrets
import stat
import tempfile
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

from dragoman.core.errors import ConfigError
from dragoman.stores.credentials import KEY_BYTES

log = logging.getLogger(__name__)

KEY_FILE = "credentials.key"
SERVICE = "dragoman"
KEYRING_SECONDS = 10.0
"""How long a keyring may take: it may ask a person to unlock it."""
MAX_FILE_BYTES = 4096
_IN_FILE, _IN_KEYRING = "key", "keyring"
_LINE = re.compile(r"(key|keyring) ([A-Za-z0-9+/=_-]{16,128})\s*")


def find_key(
    home: Path,
    setting: str,
    lookup: Mapping[str, str],
    load_keyring: Callable[[], ModuleType | None] | None = None,
    *,
    shared: bytes | None = None,
) -> bytes:
    """Finds the key, or creates it. `setting` is empty, `keyring`, `file`, `env:NAME` or
    `file:PATH`; `lookup` has the variables. `shared` is the key of hubs that share a database, from
    which that of their credentials is derived. Raises `ConfigError`."""
    kind, colon, rest = setting.partition(":")
    if colon and kind == "env":
        if rest not in lookup:
            raise ConfigError(f'[oauth] credential_key: the variable "{rest}" is not set')
        return _decode(lookup[rest], setting)
    if colon and kind == "file":
        return _decode(_read_private(home / rest), setting)
    if setting not in ("", "file", "keyring"):
        raise ConfigError(
            f'[oauth] credential_key: invalid value "{setting[:80]}"; use keyring, file, env:NAME '
            "or file:PATH"
        )
    if shared is not None:
        if setting:
            raise ConfigError(
                f'[oauth] credential_key = "{setting}" is a key of one home, and the hubs of a '
                "cluster share their credentials: leave it out, or use env:NAME or file:PATH"
            )
        return hmac.digest(shared, b"credentials", "sha256")
    load = load_keyring or _load_keyring
    path = home / KEY_FILE
    if not path.exists():
        _create(path, setting, load)
    line = _LINE.fullmatch(_read_private(path))
    if line is None:
        raise ConfigError(
            f'"{path}" is damaged; restore it from a backup, or move it away and log in again '
            "everywhere"
        )
    if line[1] == _IN_FILE:
        return _decode(line[2], f"file:{path}")
    found = _ask(load, lambda keyring: keyring.get_password(SERVICE, line[2]))
    if not isinstance(found, str):
        raise ConfigError(
            f'the key of the stored logins is in the system\'s keyring, as "{path}" says, and the '
            "keyring does not return it; unlock it and install dragoman[keyring], or move that "
            "file away and log in again everywhere"
        )
    return _decode(found, "keyring")


def find_older_key(home: Path, lookup: Mapping[str, str]) -> bytes | None:
    """Finds the key that the hub of this home had before it joined a cluster, if there is one."""
    if not (home / KEY_FILE).exists():
        return None
    try:
        return find_key(home, "", lookup)
    except ConfigError as error:
        log.warning("logins that were stored before this hub joined the cluster: %s", error)
        return None


def _create(path: Path, setting: str, load: Callable[[], ModuleType | None]) -> None:
    key = b64encode(os.urandom(KEY_BYTES)).decode("ascii")
    line = f"{_IN_FILE} {key}\n"
    if setting != "file":
        name = f"credentials-{secrets.token_hex(8)}"

        def store(keyring: ModuleType) -> object:
            keyring.set_password(SERVICE, name, key)
            return keyring.get_password(SERVICE, name)

        if _ask(load, store) == key:
            line = f"{_IN_KEYRING} {name}\n"
        elif setting == "keyring":
            raise ConfigError(
                '[oauth] credential_key = "keyring": there is no keyring that works; install '
                'dragoman[keyring], or use "file"'
            )
    _write_new(path, line.encode("ascii"))


def _ask(
    load: Callable[[], ModuleType | None], question: Callable[[ModuleType], object]
) -> object | None:
    """Asks the keyring for a bounded time; None if there is none or it fails."""
    answers: list[object] = []

    def ask() -> None:
        # A backend may raise anything; what it cannot do, the file does.
        with contextlib.suppress(Exception):
            keyring = load()
            if keyring is not None:
                answers.append(question(keyring))

    thread = threading.Thread(target=ask, name="keyring", daemon=True)
    thread.start()
    thread.join(KEYRING_SECONDS)
    return answers[0] if answers else None


def _load_keyring() -> ModuleType | None:
    """Loads the library, if it has a backend that it recommends: others store plain text."""
    try:
        import keyring
    except ImportError:
        return None
    return keyring if keyring.get_keyring().priority >= 1 else None


def _decode(text: str, where: str) -> bytes:
    try:
        key = b64decode(text.strip(), validate=True)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f'[oauth] credential_key: the value at "{where}" is not {KEY_BYTES} bytes in base64; '
            "make one with: openssl rand -base64 32"
        )
    return key


def _read_private(path: Path) -> str:
    try:
        # Non-blocking, in case it is a pipe.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            about = os.fstat(file)
            if not stat.S_ISREG(about.st_mode):
                raise ConfigError(f'"{path}" is not a regular file')
            if about.st_mode & 0o077 or about.st_uid not in (os.geteuid(), 0):
                raise ConfigError(f'others may read or change "{path}"; run: chmod 600 {path}')
            return os.read(file, MAX_FILE_BYTES).decode("latin-1")
        finally:
            os.close(file)
    except OSError as error:
        raise ConfigError(f'"{path}" cannot be read ({error.strerror})') from None


def _write_new(path: Path, data: bytes) -> None:
    """Writes a private file whole, unless another process has just done so."""
    ready = ""
    try:
        handle, ready = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(ready, path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise ConfigError(f'"{path}" cannot be written ({error.strerror})') from error
    finally:
        if ready:
            with contextlib.suppress(OSError):
                os.unlink(ready)
