"""The credentials of external agents: stored as references, resolved when a request leaves.

`env:NAME` and `${NAME}` name a variable of the environment or of the home's env file, `file:PATH`
names a private file. The operator may refer to anything in config.toml; the API may refer only to
what the operator set aside for agents (`ReferenceRules`). The A2A client sends the headers to the
registered origin alone; this module fills in their values. No value is ever rendered.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from dragoman.a2a.config import ExternalAgent
from dragoman.core.errors import ConfigError, InvalidInput, Unreachable
from dragoman.core.structs import replace
from dragoman.core.variables import expand_variables, find_variable, list_references
from dragoman.wire.http import NO_HEADERS, AddressFinder, FixedHeaders, HttpClient, HttpReply

MAX_FILE_BYTES = 8 * 1024
PLACEHOLDER = "(held)"
"""Stands for a value until the request is sent."""
ENV_PREFIX = "DRAGOMAN_AGENT_"
"""Variables with this prefix are reserved for agents."""
TOKENS = "tokens"
"""The folder of the home whose files are reserved for agents."""
_VISIBLE = re.compile(r"[\x21-\x7e]+")
_HUB_FILES = frozenset({"hub.key", "credentials.key", "env", "config.toml", "daemon.json"})
"""Files of the home that are never an agent's credential."""


class ReferenceRules:
    """The references that agents registered by the API may use."""

    def __init__(self, names: Iterable[str], home: Path) -> None:
        """`names` are the variables that the operator listed in config.toml."""
        self._names = frozenset(names)
        self._home = home

    def check(self, reference: str) -> None:
        """Raises `InvalidInput` for a reference that is not allowed, and looks at nothing: the
        error is the same whether or not the variable or the file exists."""
        kind, _, name = reference.partition(":")
        if kind == "env" and not (name.startswith(ENV_PREFIX) or name in self._names):
            raise InvalidInput(
                "agents registered by the API or the command line may not use the variable "
                f'"{name}": add "{name}" to credential_env below [bridge] in config.toml and '
                "restart the hub, or put the value under a name that begins with "
                f"{ENV_PREFIX} into the hub's env file. See: dragoman docs registry"
            )
        if kind == "file" and not self.normalize(reference).startswith(f"file:{TOKENS}/"):
            raise InvalidInput(
                "agents registered by the API or the command line may only use files below "
                f'"{TOKENS}" in the hub\'s home: put the token there, mode 600, and give '
                f"file:{TOKENS}/NAME. See: dragoman docs registry"
            )

    def normalize(self, reference: str) -> str:
        """One spelling for each file; case is folded, since some file systems ignore it."""
        kind, _, name = reference.partition(":")
        if kind != "file":
            return reference
        path = posixpath.normpath(posixpath.join(str(self._home), name))
        return f"file:{posixpath.relpath(path, str(self._home))}".casefold()

    def find_in(self, entry: ExternalAgent) -> list[str]:
        """The normalized references of an agent's token and headers."""
        headers = entry.headers
        lines = headers.values() if isinstance(headers, dict) else headers
        found = [f"env:{name}" for line in lines for name in list_references(line)]
        if entry.token is not None:
            found.append(self.normalize(entry.token))
        return list(dict.fromkeys(found))


class AgentCredentials:
    def __init__(
        self,
        agent: str,
        token: str | None,
        headers: Mapping[str, str],
        lookup: Mapping[str, str],
        home: Path,
        *,
        files_below: Path,
    ) -> None:
        """A file must be below `files_below` once all links are resolved: `/` for the operator's
        own agents, the home's tokens folder for those registered by the API."""
        self._whose = f'agent "{agent}"'
        self._token = token
        self._headers = {name.lower(): value for name, value in headers.items()}
        self._lookup = lookup
        self._home = home
        self._files_below = files_below

    @property
    def headers(self) -> dict[str, str]:
        """The header names with placeholders, for the client."""
        names = [*self._headers, *(["authorization"] if self._token is not None else [])]
        return dict.fromkeys(names, PLACEHOLDER)

    def resolve(self) -> dict[str, str]:
        """Resolves all values. Raises `ConfigError` if one is missing."""
        found = {
            name: expand_variables(value, self._lookup, self._whose)
            for name, value in self._headers.items()
        }
        if self._token is not None:
            found["authorization"] = f"Bearer {self._resolve_token(self._token)}"
        return found

    def _resolve_token(self, reference: str) -> str:
        kind, _, rest = reference.partition(":")
        token = (
            find_variable(rest, self._lookup, self._whose)
            if kind == "env"
            else self._read_file(rest)
        )
        if not _VISIBLE.fullmatch(token):
            raise ConfigError(
                f'{self._whose}: invalid token at "{reference}": a token has visible ASCII '
                "characters only"
            )
        return token

    def _read_file(self, name: str) -> str:
        try:
            home = self._home.resolve(strict=True)
            path = (home / name).resolve(strict=True)
            if not path.is_relative_to(self._files_below):
                raise self._build_error(name, f'it is outside of "{self._files_below}"')
            if path.parent == home and (path.name in _HUB_FILES or path.suffix == ".db"):
                raise self._build_error(name, "it belongs to the hub itself")
            # Non-blocking, in case it is a pipe.
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                about = os.fstat(file)
                if not stat.S_ISREG(about.st_mode):
                    raise self._build_error(name, "it is not a regular file")
                if about.st_mode & 0o077 or about.st_uid not in (os.geteuid(), 0):
                    raise self._build_error(name, "others may read or change it: chmod 600")
                data = os.read(file, MAX_FILE_BYTES + 1)
            finally:
                os.close(file)
        except OSError as error:
            raise self._build_error(name, str(error.strerror).lower()) from None
        if len(data) > MAX_FILE_BYTES:
            raise self._build_error(name, f"it has more than {MAX_FILE_BYTES} bytes")
        return data.decode("latin-1").strip()

    def _build_error(self, name: str, why: str) -> ConfigError:
        return ConfigError(f'{self._whose}: the token at "file:{name}" cannot be used: {why}')


class CredentialHttpClient:
    """Implements `wire.http.HttpClient`: puts the values into the headers that are sent."""

    def __init__(self, http: HttpClient, credentials: AgentCredentials) -> None:
        self._http = http
        self._credentials = credentials
        self._names = frozenset(credentials.headers)
        self._template: Mapping[str, str] = NO_HEADERS
        self._values: Mapping[str, str] = NO_HEADERS
        self._filled = FixedHeaders(NO_HEADERS)
        """The headers that were sent last, made of this template and these values."""

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        timeout: float,
        extra_headers: Mapping[str, str] = NO_HEADERS,
    ) -> HttpReply:
        if self._names.isdisjoint(headers):
            return await self._http.request(
                method, url, headers, body, timeout=timeout, extra_headers=extra_headers
            )
        values = self._resolve()
        if headers is not self._template or values != self._values:
            filled = {name: values.get(name, value) for name, value in headers.items()}
            self._filled, self._values = FixedHeaders(filled), values
            # Only these do not change from one request to the next.
            self._template = headers if isinstance(headers, FixedHeaders) else NO_HEADERS
        reply = await self._http.request(
            method, url, self._filled, body, timeout=timeout, extra_headers=extra_headers
        )
        return replace(reply, secrets=tuple(values.values()))

    def _resolve(self) -> dict[str, str]:
        try:
            return self._credentials.resolve()
        except ConfigError as error:
            raise Unreachable(str(error), sent=False) from None

    async def find_addresses(self, url: str, timeout: float) -> list[str]:
        """Implements `wire.http.AddressFinder`."""
        if not isinstance(self._http, AddressFinder):
            raise Unreachable("this client supports no gRPC", sent=False)
        return await self._http.find_addresses(url, timeout)

    async def fill(self, url: str, headers: Mapping[str, str]) -> dict[str, str]:
        if self._names.isdisjoint(headers):
            return dict(headers)
        values = self._resolve()
        return {name: values.get(name, value) for name, value in headers.items()}
