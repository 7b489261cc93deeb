"""An HTTP client that puts secrets into headers when a request leaves.

Headers carry a placeholder until then: a random text, so that nothing else in a request can be
taken for one. After a 401 the secrets are read again, and the request is sent once more if they
have changed: a server that answers 401 has executed nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from secrets import token_hex

from dragoman.wire.http import NO_HEADERS, FixedHeaders, HttpClient, HttpReply
from dragoman.wire.masked_replies import list_secret_words, mask_reply

Expand = Callable[[str], Awaitable[str]]
"""Replaces the references in a text; raises what `HttpClient.request` may raise."""
Forget = Callable[[str], bool]
"""Drops what is cached of the references in a text; returns whether there was anything."""
UNAUTHORIZED = 401


def build_placeholder() -> str:
    return f"dragoman-secret-{token_hex(16)}"


class SecretHeadersClient:
    """Implements `wire.http.HttpClient`."""

    def __init__(
        self, http: HttpClient, templates: Mapping[str, str], expand: Expand, forget: Forget
    ) -> None:
        """`templates` are texts with references, by the placeholder that stands for each."""
        self._http = http
        self._templates = dict(templates)
        self._expand = expand
        self._forget = forget
        self._source: Mapping[str, str] = NO_HEADERS
        self._values: dict[str, str] = {}
        self._secrets: tuple[str, ...] = ()
        self._filled: Mapping[str, str] = NO_HEADERS
        """The headers that were sent last, made of this source and these values."""

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
        values = await self._resolve()
        reply = await self._send(method, url, headers, body, timeout, extra_headers, values)
        if reply.status != UNAUTHORIZED:
            return reply
        forgotten = [self._forget(one) for one in self._templates.values()]  # all of them
        if not any(forgotten):
            return reply
        again = await self._resolve()
        if again == values:
            return reply
        reply.body.close()
        return await self._send(method, url, headers, body, timeout, extra_headers, again)

    async def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        timeout: float,
        extra_headers: Mapping[str, str],
        values: dict[str, str],
    ) -> HttpReply:
        filled = self._fill(headers, values)
        secrets = self._secrets  # those of another request may be others before the reply comes
        reply = await self._http.request(
            method, url, filled, body, timeout=timeout, extra_headers=extra_headers
        )
        return mask_reply(reply, secrets)

    def _fill(self, headers: Mapping[str, str], values: dict[str, str]) -> Mapping[str, str]:
        if headers is self._source and values == self._values:
            return self._filled
        filled = FixedHeaders({name: _replace(text, values) for name, text in headers.items()})
        # Only these do not change from one request to the next.
        self._source = headers if isinstance(headers, FixedHeaders) else NO_HEADERS
        self._values, self._filled = values, filled
        self._secrets = tuple(
            word
            for mark, value in values.items()
            for word in list_secret_words(value, self._templates[mark])
        )
        return filled

    async def _resolve(self) -> dict[str, str]:
        return {mark: await self._expand(text) for mark, text in self._templates.items()}


def _replace(text: str, values: Mapping[str, str]) -> str:
    for mark, value in values.items():
        if mark in text:
            text = text.replace(mark, value)
    return text
