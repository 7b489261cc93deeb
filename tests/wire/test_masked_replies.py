"""Secrets of a request in its reply: masked in every spelling and across pieces of a stream."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping

import pytest

from dragoman.wire.http import HttpReply
from dragoman.wire.masked_replies import list_secret_words, mask_reply
from dragoman.wire.secret_headers import SecretHeadersClient

TOKEN = 'AT-anna/"cd8c41'


class PiecedBody:
    def __init__(self, data: bytes, size: int) -> None:
        self.pieces = [data[at : at + size] for at in range(0, len(data), size)]

    async def read(self, limit: int) -> bytes:
        return b"".join(self.pieces)

    async def chunks(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece

    async def reserve(self, size: int) -> None:
        pass

    def close(self) -> None:
        pass


BODY = (
    b'{"a": "Bearer AT-anna/\\"cd8c41", "b": "AT-anna\\/\\"cd8c41", "c": "AT-annaAT-anna/'
    b'\\"cd8c41", "d": "AT-ann"}AT-anna/"cd8c41 AT-an'
)
MASKED = b'{"a": "Bearer ***", "b": "***", "c": "AT-anna***", "d": "AT-ann"}*** AT-an'


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 1000])
async def test_no_spelling_of_a_secret_is_read(size: int) -> None:
    for secrets in ((TOKEN,), (f"Bearer {TOKEN}", TOKEN, "short", "")):
        whole = mask_reply(HttpReply(200, {}, PiecedBody(BODY, size)), secrets)
        assert await whole.body.read(10_000) == MASKED
        assert whole.secrets == secrets
        streamed = mask_reply(HttpReply(200, {}, PiecedBody(BODY, size)), secrets)
        assert b"".join([one async for one in streamed.body.chunks()]) == MASKED


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 16, 1000])
async def test_no_secret_is_read_that_is_escaped_by_numbers(size: int) -> None:
    secret = "q1+Zk9xW0/aBcD=="
    texts = [f"Bearer {secret}", f"{secret}{secret} {secret[:9]}", "caf\u00e9 \\u002B+", "+q1+Z"]
    plain = json.dumps(texts)
    expected = json.loads(plain.replace(secret, "***"))
    for escaped, form in (("+", "\\u%04X"), ("=/", "\\u%04x"), ("q+WD", "\\u%04X")):
        data = plain.translate({ord(one): form % ord(one) for one in escaped}).encode()
        whole = mask_reply(HttpReply(200, {}, PiecedBody(data, size)), (secret,))
        assert json.loads(await whole.body.read(10_000)) == expected
        streamed = mask_reply(HttpReply(200, {}, PiecedBody(data, size)), (secret,))
        assert json.loads(b"".join([one async for one in streamed.body.chunks()])) == expected


async def test_a_stream_is_not_held_back_for_nothing() -> None:
    reply = mask_reply(HttpReply(200, {}, PiecedBody(b"one\n\ntwo\n\nAT-", 5)), (TOKEN,))
    assert [one async for one in reply.body.chunks()] == [b"one\n\n", b"two\n\n", b"AT-"]


def test_words_of_the_configuration_are_no_secrets() -> None:
    assert list_secret_words("Bearer abc def", "Bearer ${TOKEN}") == ["abc", "def"]
    assert list_secret_words("application/json", "application/json") == []
    assert list_secret_words("Basic abc", "Basic abc", "authorization") == ["Basic", "abc"]


@pytest.mark.parametrize(
    ("template", "values"),
    [
        ("session=${COOKIE}", ["q1+Zk9xW0=="]),
        ("theme=dark; session=${COOKIE}; other=1", ["q1+Zk9xW0=="]),
        ('Token token="${file:token}", kind=plain', ["abcd=efgh"]),
        ("prefix-${exec:tool x}-suffix", ["abcd-suffix-efgh"]),
        ("Basic ${USER}:${PASSWORD}", ["anna-maria", "pass:word"]),
        ("Basic ${USER}:${PASSWORD}", ["anna-maria:b", "password"]),
        ("${WHOLE}", ["Bearer of-a-token"]),
    ],
)
def test_the_value_of_a_reference_alone_is_secret(template: str, values: list[str]) -> None:
    value = template
    for one in values:
        value = re.sub(r"\$\{[^}]+\}", one, value, count=1)
    words = list_secret_words(value, template)
    assert {word for one in values for word in one.split()} <= set(words)
    assert not {"theme", "dark", "other=1", "kind=plain", "Basic", "session"} & set(words)


def test_the_value_of_a_cookie_is_secret_without_a_reference() -> None:
    cookie = "session=abcdefgh; token='ijklmnop'; short=abc; padded=="
    words = list_secret_words(cookie, cookie, "cookie")
    assert set(words) == {*cookie.split(), "abcdefgh", "ijklmnop"}


async def test_a_secret_that_is_replaced_while_its_reply_is_awaited_is_masked() -> None:
    secrets = ["first-secret", "second-secret"]
    begun, may_end = asyncio.Event(), asyncio.Event()

    class SlowEcho:
        """Repeats the header; the first reply waits."""

        async def request(
            self, method: str, url: str, headers: Mapping[str, str], *_: object, **__: object
        ) -> HttpReply:
            data = headers["x-key"].encode()
            if data == b"first-secret":
                begun.set()
                await may_end.wait()
            return HttpReply(200, {}, PiecedBody(data, len(data)))

    async def expand(text: str) -> str:
        return secrets.pop(0)

    client = SecretHeadersClient(SlowEcho(), {"mark": "${exec:key}"}, expand, lambda _: False)

    async def call() -> bytes:
        reply = await client.request("POST", "http://x/mcp", {"x-key": "mark"}, timeout=60)
        return await reply.body.read(10_000)

    async with asyncio.timeout(60):
        first = asyncio.create_task(call())
        await begun.wait()
        assert await call() == b"***"
        may_end.set()
        assert await first == b"***"
