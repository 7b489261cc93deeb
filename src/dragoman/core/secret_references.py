"""References to secrets: settings name where a secret is, and it is read when it is used.

`env:NAME` names a variable of the environment or of the home's env file, `file:PATH` a private
file. Further kinds are the `sources` that the resolver is given. A text may contain references as
`${REFERENCE}`; `${NAME}` means `${env:NAME}`. Each reference comes with the `SecretUse` that says
who wrote it and what for, and the rules decide on it before anything is read. No error contains a
secret.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from dragoman.core.errors import ConfigError, InvalidInput, Unreachable
from dragoman.core.secret_rules import ReferenceRules, SecretUse
from dragoman.core.variables import find_variable

KINDS = ("env", "file", "keyring", "exec")
MAX_SECRET_BYTES = 8 * 1024
_REFERENCE = re.compile(rf"({'|'.join(KINDS)}):(?=\S).+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EMBEDDED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*|(?:" + "|".join(KINDS) + r"):[^}]+)\}")
_HUB_FILES = frozenset({"hub.key", "credentials.key", "env", "config.toml", "daemon.json"})
"""Files of the home that are never a credential."""


class SecretSource(Protocol):
    """Reads the secrets of one kind of reference."""

    async def read(self, name: str, owner: str) -> str:
        """Reads the secret `name`, which is the reference without its kind. Raises `ConfigError`
        that names the owner and not the secret."""

    def forget(self, name: str) -> bool:
        """Drops a cached secret; returns whether there was one, so that it is read again."""


def is_reference(text: str) -> bool:
    """Whether the whole text is a reference such as `env:NAME`."""
    return _REFERENCE.fullmatch(text) is not None


def list_embedded(text: str) -> list[str]:
    """Lists the references in `text`, each with its kind."""
    return [_add_kind(found) for found in _EMBEDDED.findall(text)]


def find_embedded_variables(text: str) -> list[str]:
    """Lists the variables that the references in `text` name."""
    found = (one.partition(":") for one in list_embedded(text))
    return [name for kind, _, name in found if kind == "env"]


def needs_resolver(text: str) -> bool:
    """Whether a reference in `text` is of another kind than `env:`, and so may change."""
    return any(not one.startswith("env:") for one in list_embedded(text))


def _add_kind(inner: str) -> str:
    return f"env:{inner}" if _VARIABLE.fullmatch(inner) else inner


class SecretResolver:
    """Reads secrets. Every method that reads one takes its `SecretUse`."""

    def __init__(
        self,
        variables: Mapping[str, str],
        home: Path,
        sources: Mapping[str, SecretSource] | None = None,
        rules: ReferenceRules | None = None,
    ) -> None:
        """`sources` are the other kinds of references, by kind. `rules` say what others than the
        owner may refer to; without them, only what every home sets aside."""
        self._variables = variables
        self._home = home
        self._sources = dict(sources or {})
        self.rules = rules if rules is not None else ReferenceRules((), home)

    async def resolve(self, reference: str, use: SecretUse) -> str:
        """Reads the secret. Raises `ConfigError`, also if its author may not use it."""
        kind, _, name = reference.partition(":")
        source = self._sources.get(kind)
        if source is None:
            return self.resolve_local(reference, use)
        self._check(reference, use)
        secret = await source.read(name, use.purpose)
        if not secret:
            raise ConfigError(f'{use.purpose}: "{render_reference(reference)}" is empty')
        return secret

    async def expand(self, text: str, use: SecretUse) -> str:
        """Replaces every `${REFERENCE}` in `text`."""
        if "${" not in text:
            return text
        parts, end = [], 0
        for match in _EMBEDDED.finditer(text):
            secret = await self.resolve(_add_kind(match[1]), use)
            parts += [text[end : match.start()], secret]
            end = match.end()
        return "".join(parts) + text[end:]

    async def resolve_to_send(self, reference: str, use: SecretUse) -> str:
        """Like `resolve`, for a request that is about to leave. Raises `Unreachable`."""
        try:
            return await self.resolve(reference, use)
        except ConfigError as error:
            raise Unreachable(str(error), sent=False) from None

    async def expand_to_send(self, text: str, use: SecretUse) -> str:
        """Like `expand`, for a request that is about to leave. Raises `Unreachable`."""
        try:
            return await self.expand(text, use)
        except ConfigError as error:
            raise Unreachable(str(error), sent=False) from None

    def resolve_local(self, reference: str, use: SecretUse) -> str:
        """The same for the kinds that need no other program: `env:` and `file:`."""
        self._check(reference, use)
        kind, _, name = reference.partition(":")
        if kind == "env":
            return find_variable(name, self._variables, use.purpose)
        if kind == "file":
            return self._read_file(name, use.purpose, self.rules.find_folder(reference, use))
        raise ConfigError(
            f'{use.purpose}: unknown kind of secret reference "{kind[:40]}"; known: '
            f"{', '.join(KINDS)}"
        )

    def _check(self, reference: str, use: SecretUse) -> None:
        """And reserves the reference for the origin that it is about to be sent to."""
        try:
            self.rules.check(reference, use)
        except InvalidInput as error:
            raise ConfigError(str(error)) from None
        self.rules.note_use(reference, use)

    def forget_embedded(self, text: str) -> bool:
        """Drops the cached secrets of all references in `text`; returns whether there were any."""
        forgotten = [self.forget(one) for one in list_embedded(text)]  # all of them
        return any(forgotten)

    def forget(self, reference: str) -> bool:
        """Drops a cached secret, after the other side has refused it. Returns whether reading it
        again may give another one."""
        kind, _, name = reference.partition(":")
        source = self._sources.get(kind)
        return source is not None and source.forget(name)

    def _read_file(self, name: str, owner: str, files_below: Path) -> str:
        def build_error(why: str) -> ConfigError:
            return ConfigError(f'{owner}: the secret at "file:{name}" cannot be used: {why}')

        try:
            home = self._home.resolve(strict=True)
            path = (home / Path(name).expanduser()).resolve(strict=True)
            if not path.is_relative_to(files_below):
                raise build_error(f'it is outside of "{files_below}"')
            if path.parent == home and (path.name in _HUB_FILES or path.suffix == ".db"):
                raise build_error("it belongs to the hub itself")
            # Non-blocking, in case it is a pipe.
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                about = os.fstat(file)
                if not stat.S_ISREG(about.st_mode):
                    raise build_error("it is not a regular file")
                if about.st_mode & 0o077 or about.st_uid not in (os.geteuid(), 0):
                    raise build_error("others may read or change it: chmod 600")
                data = os.read(file, MAX_SECRET_BYTES + 1)
            finally:
                os.close(file)
        except (OSError, RuntimeError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise build_error(str(why).lower()) from None
        if len(data) > MAX_SECRET_BYTES:
            raise build_error(f"it has more than {MAX_SECRET_BYTES} bytes")
        return data.decode("latin-1").strip()


def render_reference(reference: str) -> str:
    """The reference for people: the arguments of a command may be secrets themselves."""
    kind, _, name = reference.partition(":")
    if kind == "exec":
        return f"exec:{name.split(maxsplit=1)[0]} …"
    return reference[:200]
