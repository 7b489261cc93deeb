"""HTTP as the packages see it: requests that arrive, the client for those that leave. No I/O."""

from __future__ import annotations

import math
from asyncio import AbstractEventLoop, Future
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct


class HttpReply(Struct):
    """The status and headers of an HTTP response whose body is still to come."""

    status: int
    headers: Mapping[str, str]
    """Lower-case names; of a repeated header the last value."""
    body: Body
    secrets: tuple[str, ...] = ()
    """Values of request headers that no message may repeat."""
    repeated: Sequence[tuple[str, str]] = ()
    """The earlier values of repeated headers, in order."""


class Body(Protocol):
    async def read(self, limit: int) -> bytes:
        """Reads all of it; raises `AnswerTooLong` when it is longer than `limit`."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Iterates over the body as it arrives. A reader that stops early calls `close`."""

    async def reserve(self, size: int) -> None:
        """Waits until the reader of a stream may keep so many bytes of it in memory; 0 frees them,
        as `close` does. Raises `BadReply` if there is never room."""

    def close(self) -> None:
        """Discards the rest. A body not read to its end costs the connection."""


NO_HEADERS: Mapping[str, str] = {}


class FixedHeaders(dict[str, str]):
    """Headers of many requests, unchanged after the first: the HTTP client encodes them once."""

    __slots__ = ("encoded",)

    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__(headers)
        self.encoded = b""
        """Set when they are sent for the first time."""


class HttpClient(Protocol):
    """Sends requests. Addresses are checked when dialling, on every redirect too."""

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
        """Sends and waits for the head of the answer. `extra_headers` are those of this request
        alone and override `headers`, which may be `FixedHeaders`. Raises `Unreachable` when nothing
        was sent or the connection was lost (`Unreachable.sent` tells whether anything may have
        left), `TimedOut` after `timeout` seconds without a head, `BadReply` for an answer that is
        not HTTP, `InvalidInput` for invalid headers. The timeout covers `read` too, not `chunks`.
        """


@runtime_checkable
class AddressFinder(Protocol):
    """A client whose address rules also serve protocols that make their own connections."""

    async def find_addresses(self, url: str, timeout: float) -> list[str]:
        """Resolves `url` to the IP addresses that may be dialled; a second lookup could lead
        elsewhere. Raises `Unreachable`."""

    async def fill(self, url: str, headers: Mapping[str, str]) -> dict[str, str]:
        """Replaces references to credentials in headers by their values, and adds a token that
        belongs to `url`."""


class HolderClients(Protocol):
    """The HTTP clients of one server or agent that may need a login: one for each holder of
    credentials (see `core.holders`), which sends that holder's token to the server alone."""

    @property
    def is_per_user(self) -> bool:
        """Whether each user has a credential of their own; otherwise all share one."""

    def get_client(self, holder: str) -> HttpClient:
        """Returns the client of a holder. Its requests raise `LoginRequired` if the server needs a
        credential that the holder does not have."""

    def find_list_holder(self) -> str:
        """Finds the holder whose credential lists are read with: the shared one, else the first
        user with one."""

    def get_list_client(self) -> HttpClient:
        """Returns a client that sends the credential of `find_list_holder` at each request."""

    def has_login(self, holder: str) -> bool:
        """Whether the holder has a credential, or the server is not known to need one."""


JSON_HEADERS = [(b"content-type", b"application/json")]
"""Most responses have exactly these, so that they are encoded in advance."""


def build_retry_after(seconds: float) -> tuple[bytes, bytes]:
    """Builds the header, whose unit is a second: rounded up, so that waiting for it is enough."""
    return b"retry-after", b"%d" % max(math.ceil(seconds), 1)


class HttpRequest(Protocol):
    """A request of a client, and its response."""

    method: str
    path: str
    """As sent, without the query."""
    query: bytes
    """What follows the question mark, as sent."""
    fields: dict[bytes, bytes]
    """The headers, names in lower case."""
    body: bytes
    scope_challenge: tuple[bytes, bytes] | None
    """The header of a response that its credential may not be used for calls; None if it may."""

    @property
    def address(self) -> str:
        """The client's IP address; empty if it has none."""

    @property
    def loop(self) -> AbstractEventLoop:
        """The loop that serves it: `get_running_loop` costs a system call each time."""

    @property
    def gone(self) -> Future[None]:
        """Done when the client has disconnected."""

    @property
    def lost(self) -> bool:
        """Whether the client has disconnected."""

    @property
    def reads(self) -> bool:
        """Whether the client reads; one that does not read for long is disconnected."""

    def reply(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Sends the whole response in one write."""

    def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Sends the head of a streamed response and frees `fields` and `body`."""

    async def write(self, data: bytes) -> None:
        """Sends a piece of the body; waits while the client does not read."""

    def send(self, data: bytes) -> bool:
        """Sends a piece of the body if the client reads; returns whether it was sent."""

    def end(self) -> None: ...
