"""The credentials of external agents: stored as references, resolved when a request leaves.

`core.secret_references` reads them, and asks `core.secret_rules` whether who registered the agent
may refer to them. The A2A client sends the headers to the registered origin alone; this module
fills in their values. No value is ever rendered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dragoman.a2a.config import ExternalAgent
from dragoman.core.errors import ConfigError, Unreachable
from dragoman.core.secret_references import SecretResolver, list_embedded, render_reference
from dragoman.core.secret_rules import Author, ReferenceRules, SecretUse
from dragoman.wire.http import (
    NO_HEADERS,
    AddressFinder,
    FixedHeaders,
    HolderClients,
    HttpClient,
    HttpReply,
)
from dragoman.wire.masked_replies import list_secret_words, mask_reply

UNAUTHORIZED = 401
PLACEHOLDER = "(held)"
"""Stands for a value until the request is sent."""
_VISIBLE = re.compile(r"[\x21-\x7e]+")


def list_references(entry: ExternalAgent, rules: ReferenceRules) -> list[str]:
    """The normalized references of an agent's token and headers."""
    headers = entry.headers
    lines = headers.values() if isinstance(headers, dict) else headers
    references = [rules.normalize(one) for line in lines for one in list_embedded(line)]
    if entry.token is not None:
        references.append(rules.normalize(entry.token))
    return list(dict.fromkeys(references))


class AgentCredentials:
    def __init__(
        self,
        agent: str,
        token: str | None,
        headers: Mapping[str, str],
        secrets: SecretResolver,
        *,
        author: Author,
        origin: str = "",
    ) -> None:
        """`author` is who wrote the entry of the agent, and `origin` where its credentials go."""
        self._use = SecretUse(author, f'agent "{agent}"', origin)
        self._token = token
        self._headers = {name.lower(): value for name, value in headers.items()}
        self._secrets = secrets

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
                found = self._secrets.resolve_local(reference, self._use)
                if reference == self._token:
                    self._check_token(found)

    async def resolve(self) -> dict[str, str]:
        """Resolves all values. Raises `ConfigError` if one is missing."""
        secrets, use = self._secrets, self._use
        found = {name: await secrets.expand(value, use) for name, value in self._headers.items()}
        if self._token is not None:
            token = await secrets.resolve(self._token, use)
            self._check_token(token)
            found["authorization"] = f"Bearer {token}"
        return found

    def list_secrets(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """Lists what no reply may repeat of the headers with these values."""
        templates = {"authorization": "Bearer", **self._headers}
        words = (list_secret_words(value, templates[name], name) for name, value in values.items())
        return tuple(word for each in words for word in each)

    def forget(self) -> bool:
        """Drops cached secrets, which the agent has refused; returns whether there were any."""
        forgotten = [self._secrets.forget(one) for one in self._references]  # all of them
        return any(forgotten)

    def _check_token(self, token: str) -> None:
        if not _VISIBLE.fullmatch(token):
            raise ConfigError(
                f'{self._use.purpose}: invalid token at "{render_reference(self._token or "")}": a '
                "token has visible ASCII characters only"
            )


class CredentialHttpClient:
    """Implements `wire.http.HttpClient`: puts the values into the headers that are sent."""

    def __init__(self, http: HttpClient, credentials: AgentCredentials) -> None:
        self._http = http
        self._credentials = credentials
        self._names = frozenset(credentials.headers)
        self._template: Mapping[str, str] = NO_HEADERS
        self._values: Mapping[str, str] = NO_HEADERS
        self._secrets: tuple[str, ...] = ()
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
        filled, secrets = self._fill(headers, values)
        reply = await self._http.request(
            method, url, filled, body, timeout=timeout, extra_headers=extra_headers
        )
        if reply.status == UNAUTHORIZED and self._credentials.forget():
            again = await self._resolve()
            if again != values:  # the agent has executed nothing
                reply.body.close()
                filled, secrets = self._fill(headers, again)
                reply = await self._http.request(
                    method, url, filled, body, timeout=timeout, extra_headers=extra_headers
                )
        return mask_reply(reply, secrets)

    def _fill(
        self, headers: Mapping[str, str], values: dict[str, str]
    ) -> tuple[FixedHeaders, tuple[str, ...]]:
        """Returns the headers, and the secrets in them: while the reply is awaited, another request
        may be sent with others."""
        if headers is not self._template or values != self._values:
            filled = {name: values.get(name, value) for name, value in headers.items()}
            self._filled, self._values = FixedHeaders(filled), values
            self._secrets = self._credentials.list_secrets(values)
            # Only these do not change from one request to the next.
            self._template = headers if isinstance(headers, FixedHeaders) else NO_HEADERS
        return self._filled, self._secrets

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
