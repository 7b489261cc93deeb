"""Makes connections: resolves a name once, classifies every address, and connects to what it
classified.

One address that may not be reached refuses them all: a name that leads both outside and inside is
an attack or a mistake. The name itself is used for TLS alone.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from dragoman.core.errors import Unreachable
from dragoman.net.addresses import AddressClass, Verdict, classify_address
from dragoman.net.urls import Url

CONNECT_SECONDS = 5.0
KEEPALIVE_SECONDS = 60

P = TypeVar("P", bound=asyncio.BaseProtocol)

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Resolves a host name and a port to IP addresses. Raises OSError if there are none."""


class Reach(Enum):
    """How far inside the network a request may go. Forbidden addresses are beyond all of them."""

    PUBLIC = "public"
    LOOPBACK = "loopback"
    """And loopback: the operator wrote `localhost`."""
    PRIVATE = "private"
    """And every private address: the operator allowed them, or wrote this one."""

    def admits(self, judgement: AddressClass) -> bool:
        if judgement.verdict is Verdict.PRIVATE:
            return self is Reach.PRIVATE or (self is Reach.LOOPBACK and judgement.loopback)
        return judgement.verdict is Verdict.PUBLIC


async def system_resolve(host: str, port: int) -> Sequence[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return [str(address[0]) for *_, address in found]


def resolve_apart(threads: int) -> Resolve:
    """Resolves in threads of its own: slow names that clients choose delay only one another."""
    pool = ThreadPoolExecutor(threads, "resolve")

    async def resolve(host: str, port: int) -> Sequence[str]:
        look_up = partial(
            socket.getaddrinfo, host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )
        found = await asyncio.get_running_loop().run_in_executor(pool, look_up)
        return [str(address[0]) for *_, address in found]

    return resolve


@dataclass(frozen=True, slots=True)
class Dialer:
    """Makes connections under one rule of reach."""

    reach: Reach
    resolve: Resolve
    tls: Callable[[], ssl.SSLContext]
    socket_path: str | None = None
    """Every connection goes to this Unix socket instead, whatever the URL says."""
    has_socket_tls: bool = False

    async def dial(self, url: Url, make: Callable[[], P], seconds: float) -> P:
        """A connection to the host of `url` within `seconds`. What it raises says `sent=False`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        cause: Exception | None = None
        try:
            async with asyncio.timeout_at(deadline):
                if self.socket_path is not None:
                    tls = self._choose_tls(url) if self.has_socket_tls else {}
                    return (await loop.create_unix_connection(make, self.socket_path, **tls))[1]
                addresses = await _list_permitted(url, self.reach, self.resolve)
                return await self._connect(url, addresses, make, deadline)
        except TimeoutError:
            problem = f"no connection within {seconds:.2g} s"
        except (OSError, UnicodeError) as error:
            problem, cause = _render_error(error), error
        raise Unreachable(
            f'could not connect to "{url.rendered}": {problem}', sent=False
        ) from cause

    def _choose_tls(self, url: Url) -> dict[str, Any]:
        if url.origin.scheme != "https":
            return {}
        return {"ssl": self.tls(), "server_hostname": url.origin.host}

    async def _connect(
        self, url: Url, addresses: Sequence[str], make: Callable[[], P], deadline: float
    ) -> P:
        loop = asyncio.get_running_loop()
        tls = self._choose_tls(url)
        problem: OSError = OSError("no address")
        for tried, address in enumerate(addresses):
            # An address that never answers must not use up the time of the next ones.
            share = (deadline - loop.time()) / (len(addresses) - tried)
            try:
                async with asyncio.timeout(share):
                    transport, protocol = await loop.create_connection(
                        make, address, url.origin.port, **tls
                    )
                    _keep_alive(transport)
                    return protocol
            except OSError as error:
                problem = error
        raise problem


async def classify_host(url: Url, resolve: Resolve) -> dict[str, AddressClass]:
    """Resolves the host and classifies its addresses, in order."""
    _, host, port = url.origin
    addresses = [host] if url.literal else await resolve(host, port)
    if not addresses:
        raise OSError(f'"{host}" has no addresses')
    return {address: classify_address(address) for address in addresses}


async def list_permitted(url: Url, reach: Reach, resolve: Resolve, seconds: float) -> list[str]:
    """The addresses that may be dialled for `url`. What it raises says `sent=False`."""
    try:
        async with asyncio.timeout(seconds):
            return await _list_permitted(url, reach, resolve)
    except TimeoutError:
        problem = f"its name was not resolved within {seconds:.2g} s"
    except (OSError, UnicodeError) as error:
        problem = _render_error(error)
    raise Unreachable(f'could not connect to "{url.rendered}": {problem}', sent=False)


async def _list_permitted(url: Url, reach: Reach, resolve: Resolve) -> list[str]:
    judgements = await classify_host(url, resolve)
    for address, judgement in judgements.items():
        if not reach.admits(judgement):
            raise _refusal(url, address, judgement)
    return list(judgements)


def _refusal(url: Url, address: str, judgement: AddressClass) -> Unreachable:
    subject = f"{address} is" if url.literal else f'"{url.origin.host}" resolves to {address},'
    remedy = (
        "; set allow_private = true for it if that is intended"
        if judgement.verdict is Verdict.PRIVATE
        else ", which is never allowed"
    )
    message = f'will not connect to "{url.rendered}": {subject} {judgement.kind}{remedy}'
    return Unreachable(message, sent=False)


def _keep_alive(transport: asyncio.BaseTransport) -> None:
    """A stream may be silent for days; a dead peer must still be noticed."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_SECONDS // 4)


def _render_error(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, socket.gaierror):
        return f"its name does not resolve ({error.strerror})"
    return str(error) or type(error).__name__
