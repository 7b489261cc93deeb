"""The pages of logins, which anyone may request: what their queries cost, and how they are read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.cpu_time import measure_cpu

from dragoman.core.bus import Bus
from dragoman.oauth.logins.desk import HubLoginDesk
from dragoman.oauth.logins.pages import CALLBACK, LoginPages


class CallbackRequest:
    """A request of `/oauth/callback`, and the status of its response."""

    def __init__(self, query: bytes) -> None:
        self.method, self.path, self.query = "GET", CALLBACK, query
        self.fields: dict[bytes, bytes] = {}
        self.status = 0

    def reply(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.status = status


def serve(query: bytes) -> int:
    desk = HubLoginDesk(Bus(), lambda: None, lambda principal: False, lambda account, holder: None)
    request: Any = CallbackRequest(query)
    work = LoginPages(desk, lambda issuer: {}).serve(request, None)
    assert work is not None
    asyncio.run(work)
    return int(request.status)


@pytest.mark.parametrize("size", [15 * 1024, 64 * 1024])
def test_a_query_of_many_names_costs_little_more_than_one_of_a_long_value(size: int) -> None:
    many = b"&".join(b"%x=1" % number for number in range(size))[:size]
    long = b"state=" + b"x" * size
    assert serve(many) == serve(long) == 400
    assert measure_cpu(lambda: serve(many)) < 10 * measure_cpu(lambda: serve(long))


@pytest.mark.parametrize("query", [b"state=a&state=b", b"state=%ff", b"", b"code=x"])
def test_a_query_without_one_state_belongs_to_no_login(query: bytes) -> None:
    assert serve(query) == 400
