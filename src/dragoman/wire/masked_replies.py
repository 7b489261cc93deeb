"""Takes the secrets of a request out of its reply, before anything reads it.

Servers repeat headers in errors and debug pages, and a proxy may return a whole request. Whatever
reads the reply, an error, a result, a progress message or a record, gets `***` in their place.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from dragoman.wire.http import NO_HEADERS, Body, HttpClient, HttpReply

MIN_SECRET: Final = 8
"""Shorter values are no credentials; to replace them would spoil ordinary text."""
LARGE: Final = 256 * 1024
_REFERENCE: Final = re.compile(r"\$\{[^}]+\}")
_AROUND: Final = "\"';,"
_MASK: Final = b"***"
_SPELLING: Final = 6
"""The bytes of a character as `\\u002b`."""
_ESCAPE_BEGUN: Final = re.compile(rb"\\(?:u(?:0(?:0[0-9a-fA-F]?)?)?)?\Z")
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
    Bearer: each may be a credential. All words of a header that has nothing else. Of `key=VALUE`,
    and of what the references in the template stand for, also the value alone."""
    if template == value and name in CREDENTIAL_HEADERS:
        template = ""
    words = [word for word in value.split() if word not in template.split()]
    bare = [word.strip(_AROUND).partition("=")[2].strip(_AROUND) for word in words]
    values = [word for one in _find_values(value, template) for word in one.split()]
    parts = (part for part in (*bare, *values) if len(part) >= MIN_SECRET)
    return list(dict.fromkeys((*words, *parts)))


def _find_values(value: str, template: str) -> list[str]:
    """Finds what the references in a template stand for. The text between two of them may occur in
    what they stand for, so it is looked for from both ends."""
    texts = _REFERENCE.split(template)
    backwards = [text[::-1] for text in reversed(texts)]
    return [
        *_split_at(value, texts),
        *(one[::-1] for one in _split_at(value[::-1], backwards)),
    ]


def _split_at(value: str, texts: list[str]) -> list[str]:
    """Lists what is between the texts, of which each is taken as soon as it occurs."""
    if len(texts) == 1:
        return []
    first, *others, last = texts
    found, at, end = list[str](), len(first), len(value) - len(last)
    for text in others:
        stop = value.find(text, at, end)
        if stop < 0:
            return []
        found.append(value[at:stop])
        at = stop + len(text)
    return [*found, value[at:end]]


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


@lru_cache(maxsize=1_000)
def _compile_escapes(patterns: tuple[bytes, ...]) -> re.Pattern[bytes]:
    """Matches the numbers of the characters in the patterns: those that encoders often escape, such
    as quotes, are seldom among them."""
    numbers = (b"%02x" % byte for byte in sorted(set(b"".join(patterns))))
    return re.compile(b"\\\\u00((?i:" + b"|".join(numbers) + b"))")


@lru_cache(maxsize=1_000)
def _compile_escaped(pattern: bytes) -> re.Pattern[bytes]:
    """Matches a spelling of which any character may be escaped by its number."""
    either = (
        b"(?:%b|\\\\u00(?i:%02x))" % (re.escape(pattern[at : at + 1]), pattern[at])
        for at in range(len(pattern))
    )
    return re.compile(b"".join(either))


def _unescape(found: re.Match[bytes]) -> bytes:
    return bytes([int(found[1], 16)])


class MaskedBody:
    """Implements `wire.http.Body`."""

    __slots__ = ("_body", "_patterns")

    def __init__(self, body: Body, patterns: tuple[bytes, ...]) -> None:
        self._body = body
        self._patterns = patterns

    async def read(self, limit: int) -> bytes:
        data = await self._body.read(limit)
        if len(data) > LARGE:  # with many escapes it takes longer than the loop may wait
            return await asyncio.to_thread(self._mask, data)
        return self._mask(data)

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
        return self._mask_escaped(data) if b"\\" in data else data

    def _mask_escaped(self, data: bytes) -> bytes:
        """Masks what some encoders of JSON write as `\\u002B`: they escape more than they must."""
        escapes = _compile_escapes(self._patterns)
        if escapes.search(data) is None:
            return data
        plain = escapes.sub(_unescape, data)
        for pattern in self._patterns:
            if pattern in plain:  # to search for both spellings of each character takes longer
                data = _compile_escaped(pattern).sub(_MASK, data)
        return data

    def _count_begun(self, data: bytes) -> int:
        """How many bytes at the end may be the beginning of a secret."""
        begun = self._count_begun_plain(data)
        end = data[-_SPELLING * len(self._patterns[0]) :]
        if b"\\" not in end:
            return begun
        rest, escapes = _ESCAPE_BEGUN.sub(b"", end), _compile_escapes(self._patterns)
        plain = self._count_begun_plain(escapes.sub(_unescape, rest))
        at = len(rest)
        for _ in range(plain):  # as long as it is in the data
            at -= _SPELLING if escapes.fullmatch(rest, max(at - _SPELLING, 0), at) else 1
        return max(begun, len(end) - at)

    def _count_begun_plain(self, data: bytes) -> int:
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
