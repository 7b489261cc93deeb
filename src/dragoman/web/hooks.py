"""`POST /api/hooks/NAME`: starts the workflow of that name. Needs no key: the signature of the
request authenticates it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from urllib.parse import unquote

from dragoman.core.background import Work
from dragoman.core.errors import HubError, RateLimited
from dragoman.core.principal import Principal
from dragoman.core.rate_limiter import ADDRESS_SCOPE, Budgets, Rate, find_network
from dragoman.core.triggers import MAX_BODY, WebhookReceiver
from dragoman.web.api import NO_SNIFF, ApiResponse, build_error, response_from_error
from dragoman.web.app import PathMount
from dragoman.wire.http import HttpRequest
from dragoman.wire.json import encode

log = logging.getLogger(__name__)

PREFIX = "/api/hooks"
REJECTED = Rate(60, 60)
"""Requests without a valid signature that an address may send; signed ones are not counted."""
MAX_ADDRESSES = 10_000
UNKNOWN = "there is no such webhook, or the signature of the request is invalid"


class WebhookEndpoint:
    def __init__(
        self,
        find: Callable[[], Awaitable[WebhookReceiver | None]],
        rate: Rate = REJECTED,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`find` returns what receives webhooks, if the hub has any."""
        self._find = find
        self._clock = clock
        self._rejected = Budgets(ADDRESS_SCOPE, "", rate, MAX_ADDRESSES)
        """How many requests without a valid signature each address has sent."""

    @property
    def mount(self) -> PathMount:
        return PathMount(PREFIX, self.serve, lambda path: True, body_bytes=MAX_BODY)

    def serve(self, request: HttpRequest, principal: Principal | None) -> Work[None]:
        return self._serve(request)

    async def _serve(self, request: HttpRequest) -> None:
        try:
            response = await self._receive(request)
        except HubError as error:
            response = response_from_error(error)
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            response = build_error(500, "internal error; see the hub's log")
        headers = [(b"content-type", response.content_type.encode()), NO_SNIFF, *response.headers]
        request.reply(response.status, headers, response.body)

    async def _receive(self, request: HttpRequest) -> ApiResponse:
        if request.method != "POST":
            return build_error(405, "webhooks are sent with POST", (b"allow", b"POST"))
        receiver = await self._find()
        name = unquote(request.path.removeprefix(PREFIX).removeprefix("/"))
        delivery = None
        if receiver is not None:
            delivery = await receiver.receive(name, request.fields, request.body)
        if delivery is None:
            return self._reject(request.address)
        if not delivery.run:
            return ApiResponse(200, encode({"run": None}))
        status = 202 if delivery.is_new else 200
        return ApiResponse(status, encode({"run": delivery.run, "duplicate": not delivery.is_new}))

    def _reject(self, address: str) -> ApiResponse:
        wait = self._rejected.take(find_network(address), 1.0, self._clock())
        if wait > 0:
            raise RateLimited(
                f"too many requests without a valid signature from {address}; try again in "
                f"{wait:.0f} s",
                retry_after=wait,
            )
        return build_error(401, UNKNOWN)
