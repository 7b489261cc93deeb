"""Takes the secrets of a request out of its reply, before anything reads it.

Servers repeat headers in errors and debug pages, and a proxy may return a whole request. Whatever
reads the reply, an error, a result, a progress message or a record, gets `***` in their place.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from dragoman.wire.http import NO_HEADERS, Body, HttpClient, HttpReply

MIN_SECRET: Final = 8
"""Shorter values are no credentials; to replace them would spoil ordinary text."""
_MASK: Final = b"***"
CREDENTIAL_HEADERS: Final = frozenset(
    {"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key"}
)
"""What a configuration has in them as it is, without a reference, is a credential as well."""


def mask_reply(reply: HttpReply, secrets: tuple[str, ...]) -> HttpReply:
    """Masks the values in the body, and adds them to those that no message may repeat."""
    if patterns := _encode_secrets(secrets):
        reply.body = MaskedBody(reply.body, patterns)
    reply.secrets = (*reply.secrets, *secrets) if reply.secrets else secrets
    return reply


def mask_message(message: Any, data: bytes, secrets: tuple[str, ...]) -> Any:
    """Masks the values in the texts of a message that was decoded from binary `data`, in which they
    are spelled as they are."""
    found = [one for one in secrets if len(one) >= MIN_SECRET and one.encode() in data]
    for secret in sorted(found, key=len, reverse=True):
        message = _mask_texts(message, secret)
    return message


def _mask_texts(value: Any, secret: str) -> Any:
    if isinstance(value, str):
        return value.replace(secret, _MASK.decode())
    if isinstance(value, dict):
        return {_mask_texts(name, secret): _mask_texts(one, secret) for name, one in value.items()}
    if isinstance(value, list):
        return [_mask_texts(one, secret) for one in value]
    return value


def list_secret_words(value: str, template: str = "", name: str = "") -> list[str]:
    """Lists the words of a header's value that are not in the text that it was made of, such as
    Bearer: each may be a credential. All words of a header that has nothing else."""
    if template == value and name in CREDENTIAL_HEADERS:
        template = ""
    return [word for word in value.split() if word not in template.split()]


@lru_cache(maxsize=1_000)
def _encode_secrets(secrets: Iterable[str]) -> tuple[bytes, ...]:
    """The spellings of the values in a body, the longest first."""
    spelled: set[bytes] = set()
    for secret in secrets:
        text = secret.rpartition(" ")[2]  # the value of `Bearer VALUE`
        if len(text) >= MIN_SECRET:
            data = text.encode("latin-1", "replace")
            escaped = data.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
            spelled |= {data, escaped, escaped.replace(b"/", b"\\/")}
    return tuple(sorted(spelled, key=len, reverse=True))


class MaskedBody:
    """Implements `wire.http.Body`."""

    __slots__ = ("_body", "_patterns")

    def __init__(self, body: Body, patterns: tuple[bytes, ...]) -> None:
        self._body = body
        self._patterns = patterns

    async def read(self, limit: int) -> bytes:
        return self._mask(await self._body.read(limit))

    async def chunks(self) -> AsyncIterator[bytes]:
        held = b""
        async for chunk in self._body.chunks():
            data = self._mask(held + chunk)
            keep = self._count_begun(data)
            held = data[len(data) - keep :]
            if keep < len(data):
                yield data[: len(data) - keep]
        if held:
            yield held

    async def reserve(self, size: int) -> None:
        await self._body.reserve(size)

    def close(self) -> None:
        self._body.close()

    def _mask(self, data: bytes) -> bytes:
        for pattern in self._patterns:
            if pattern in data:
                data = data.replace(pattern, _MASK)
        return data

    def _count_begun(self, data: bytes) -> int:
        """How many bytes at the end may be the beginning of a secret."""
        longest = 0
        for pattern in self._patterns:
            tail = data[-len(pattern) + 1 :]
            at = tail.find(pattern[:1])
            while at >= 0:
                if pattern.startswith(tail[at:]):
                    longest = max(longest, len(tail) - at)
                    break
                at = tail.find(pattern[:1], at + 1)
        return longest


class MaskingClient:
    """Implements `wire.http.HttpClient`: sends headers whose secrets do not change."""

    def __init__(self, http: HttpClient, secrets: Iterable[str]) -> None:
        self._http = http
        self._secrets = tuple(secrets)

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
        reply = await self._http.request(
            method, url, headers, body, timeout=timeout, extra_headers=extra_headers
        )
        return mask_reply(reply, self._secrets)
