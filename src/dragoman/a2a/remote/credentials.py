"""The credentials of external agents: stored as references, resolved when a request leaves.

`core.secret_references` reads them. The operator may refer to anything in config.toml; the API may
refer only to what the operator set aside for agents (`ReferenceRules`). The A2A client sends the
headers to the registered origin alone; this module fills in their values. No value is ever
rendered.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from dragoman.a2a.config import ExternalAgent
from dragoman.core.errors import ConfigError, InvalidInput, Unreachable
from dragoman.core.secret_references import SecretResolver, list_embedded, render_reference
from dragoman.core.structs import replace
from dragoman.wire.http import (
    NO_HEADERS,
    AddressFinder,
    FixedHeaders,
    HolderClients,
    HttpClient,
    HttpReply,
)

UNAUTHORIZED = 401
PLACEHOLDER = "(held)"
"""Stands for a value until the request is sent."""
ENV_PREFIX = "DRAGOMAN_AGENT_"
"""Variables with this prefix are reserved for agents."""
TOKENS = "tokens"
"""The folder of the home whose files are reserved for agents."""
_VISIBLE = re.compile(r"[\x21-\x7e]+")


class ReferenceRules:
    """The references that agents registered by the API may use."""

    def __init__(self, names: Iterable[str], home: Path, allow: Iterable[str] = ()) -> None:
        """`names` are the variables that the operator listed in config.toml, `allow` the globs of
        further references."""
        self._names = frozenset(names)
        self._home = home
        self._allow = [self._normalize_glob(one) for one in allow]

    def check(self, reference: str) -> None:
        """Raises `InvalidInput` for a reference that is not allowed, and looks at nothing: the
        error is the same whether or not the variable or the file exists."""
        kind, _, name = reference.partition(":")
        if kind != "exec" and self._find_glob(reference) is not None:
            return
        if kind == "env" and not (name.startswith(ENV_PREFIX) or name in self._names):
            raise _build_refusal(
                f'the variable "{name}": add "{name}" to credential_env below [bridge] in '
                f'config.toml, or "env:{name}" to allow below [secrets], and restart the hub, or '
                f"put the value under a name that begins with {ENV_PREFIX} into the hub's env file"
            )
        if kind == "file" and not self.normalize(reference).startswith(f"file:{TOKENS}/"):
            raise _build_refusal(
                f'files outside of "{TOKENS}" in the hub\'s home: put the token there, mode 600, '
                f"and give file:{TOKENS}/NAME, or add the file to allow below [secrets] in "
                "config.toml and restart the hub"
            )
        if kind == "keyring":
            raise _build_refusal(
                f'"{reference[:200]}": add it to allow below [secrets] in config.toml and restart '
                "the hub"
            )
        if kind not in ("env", "file"):
            raise _build_refusal(f"{kind[:20]}: references, which only config.toml may contain")

    def find_folder(self, entry: ExternalAgent) -> Path:
        """The folder that the files of an agent must be in once all links are resolved: the one
        that is allowed, however the file is linked."""
        for reference in self.find_in(entry):
            if reference.startswith("file:") and not reference.startswith(f"file:{TOKENS}/"):
                glob = self._find_glob(reference)
                if glob is not None:
                    fixed = re.split(r"[*?\[]", glob.removeprefix("file:"))[0]
                    return Path(posixpath.join(str(self._home), posixpath.dirname(fixed))).resolve()
        return self._home.resolve() / TOKENS

    def _find_glob(self, reference: str) -> str | None:
        found = self.normalize(reference)
        for glob, folded in self._allow:
            if fnmatchcase(found, folded):
                return glob
        return None

    def _normalize_glob(self, glob: str) -> tuple[str, str]:
        """The glob, and the form that normalized references are compared with."""
        return glob, self.normalize(glob)

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
        found = [self.normalize(one) for line in lines for one in list_embedded(line)]
        if entry.token is not None:
            found.append(self.normalize(entry.token))
        return list(dict.fromkeys(found))


def _build_refusal(what: str) -> InvalidInput:
    return InvalidInput(
        f"agents registered by the API or the command line may not use {what}. See: dragoman docs "
        "secrets"
    )


class AgentCredentials:
    def __init__(
        self,
        agent: str,
        token: str | None,
        headers: Mapping[str, str],
        secrets: SecretResolver,
        *,
        files_below: Path,
    ) -> None:
        """A file must be below `files_below` once all links are resolved: `/` for the operator's
        own agents, the allowed folder for those registered by the API."""
        self._whose = f'agent "{agent}"'
        self._token = token
        self._headers = {name.lower(): value for name, value in headers.items()}
        self._secrets = secrets
        self._files_below = files_below

    @property
    def headers(self) -> dict[str, str]:
        """The header names with placeholders, for the client."""
        names = [*self._headers, *(["authorization"] if self._token is not None else [])]
        return dict.fromkeys(names, PLACEHOLDER)

    @property
    def _references(self) -> list[str]:
        found = [one for value in self._headers.values() for one in list_embedded(value)]
        return [*found, *([self._token] if self._token is not None else [])]

    def check_local(self) -> None:
        """Raises `ConfigError` if a variable or a file is missing; asks no other program."""
        for reference in self._references:
            if reference.startswith(("env:", "file:")):
                found = self._secrets.resolve_local(reference, self._whose, self._files_below)
                if reference == self._token:
                    self._check_token(found)

    async def resolve(self) -> dict[str, str]:
        """Resolves all values. Raises `ConfigError` if one is missing."""
        secrets, whose, below = self._secrets, self._whose, self._files_below
        found = {
            name: await secrets.expand(value, whose, below) for name, value in self._headers.items()
        }
        if self._token is not None:
            token = await secrets.resolve(self._token, whose, below)
            self._check_token(token)
            found["authorization"] = f"Bearer {token}"
        return found

    def forget(self) -> bool:
        """Drops cached secrets, which the agent has refused; returns whether there were any."""
        forgotten = [self._secrets.forget(one) for one in self._references]  # all of them
        return any(forgotten)

    def _check_token(self, token: str) -> None:
        if not _VISIBLE.fullmatch(token):
            raise ConfigError(
                f'{self._whose}: invalid token at "{render_reference(self._token or "")}": a token '
                "has visible ASCII characters only"
            )


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
        values = await self._resolve()
        filled = self._fill(headers, values)
        reply = await self._http.request(
            method, url, filled, body, timeout=timeout, extra_headers=extra_headers
        )
        if reply.status == UNAUTHORIZED and self._credentials.forget():
            again = await self._resolve()
            if again != values:  # the agent has executed nothing
                reply.body.close()
                values, filled = again, self._fill(headers, again)
                reply = await self._http.request(
                    method, url, filled, body, timeout=timeout, extra_headers=extra_headers
                )
        return replace(reply, secrets=tuple(values.values()))

    def _fill(self, headers: Mapping[str, str], values: dict[str, str]) -> FixedHeaders:
        if headers is not self._template or values != self._values:
            filled = {name: values.get(name, value) for name, value in headers.items()}
            self._filled, self._values = FixedHeaders(filled), values
            # Only these do not change from one request to the next.
            self._template = headers if isinstance(headers, FixedHeaders) else NO_HEADERS
        return self._filled

    async def _resolve(self) -> dict[str, str]:
        try:
            return await self._credentials.resolve()
        except ConfigError as error:
            raise Unreachable(str(error), sent=False) from None

    async def find_addresses(self, url: str, timeout: float) -> list[str]:
        """Implements `wire.http.AddressFinder`."""
        if not isinstance(self._http, AddressFinder):
            raise Unreachable("this client supports no gRPC", sent=False)
        return await self._http.find_addresses(url, timeout)

    async def fill(self, url: str, headers: Mapping[str, str]) -> dict[str, str]:
        filled = dict(headers)
        if not self._names.isdisjoint(headers):
            values = await self._resolve()
            filled = {name: values.get(name, value) for name, value in headers.items()}
        http = self._http
        return await http.fill(url, filled) if isinstance(http, AddressFinder) else filled


class CredentialClients:
    """Implements `wire.http.HolderClients` for an agent with headers besides those of a login."""

    def __init__(self, clients: HolderClients, credentials: AgentCredentials) -> None:
        self._clients = clients
        self._credentials = credentials
        self.is_per_user = clients.is_per_user
        self.find_list_holder = clients.find_list_holder
        self.has_login = clients.has_login

    def get_client(self, holder: str) -> HttpClient:
        return CredentialHttpClient(self._clients.get_client(holder), self._credentials)

    def get_list_client(self) -> HttpClient:
        return CredentialHttpClient(self._clients.get_list_client(), self._credentials)
