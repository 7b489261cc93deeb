"""How far the search for a trace goes, whose usage it shows, and how many queries run at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dragoman.app.record_queries import MAX_EACH, RecordQueries
from dragoman.core.audit_queries import RecordQuery
from dragoman.core.errors import Overloaded
from dragoman.core.principal import Principal
from dragoman.web.api import Api
from dragoman.web.api_records import MAX_SEARCHES, RecordsApi
from dragoman.web.console.site import DataRequest

TRACE = "0123456789abcdef"


class EndlessLog:
    """An audit log that goes on and on; has one record of the trace, or none."""

    def __init__(self, has_record: bool) -> None:
        self.searches = 0
        self.usage_of: list[tuple[str, str]] = []
        self._rows = [{"trace": TRACE, "seq": 7}] if has_record else []

    async def search(
        self, wanted: RecordQuery, before: int | None, limit: int
    ) -> tuple[Sequence[Mapping[str, Any]], int | None]:
        self.searches += 1
        assert self.searches < 1_000
        return (self._rows if before is None else []), 1_000_000 - self.searches

    def find_usage(self, trace: str, caller: str) -> Sequence[Mapping[str, Any]]:
        self.usage_of.append((trace, caller))
        return []


@pytest.mark.promise("U7")
@pytest.mark.parametrize("is_admin", [True, False])
def test_a_trace_is_searched_for_among_a_bounded_number_of_records(is_admin: bool) -> None:
    decision = SimpleNamespace(allowed=is_admin)
    hub = cast(
        Any,
        SimpleNamespace(
            authorizer=SimpleNamespace(decide_action=lambda *_: decision),
            limiter=SimpleNamespace(charge=lambda *_: None),
        ),
    )
    caller = Principal("key", "reader")
    for has_record, status in ((False, 404), (True, 200)):
        log = EndlessLog(has_record)
        api = Api(hub, cast(Any, None), parts=[RecordsApi(hub, cast(Any, log))])
        answer = asyncio.run(api.respond(DataRequest(f"/api/traces/{TRACE}"), caller))
        assert (answer.status, log.searches) == (status, MAX_SEARCHES)
        # A trace may have calls of others: clients choose its id.
        assert log.usage_of == ([(TRACE, "" if is_admin else "key:reader")] if has_record else [])


@pytest.mark.promise("U7")
async def test_a_principal_has_a_bounded_number_of_queries_at_once(tmp_path: Path) -> None:
    parts = cast(Any, SimpleNamespace(home=tmp_path, shared_audit=None))
    queries = RecordQueries(parts, cast(Any, None), cast(Any, None))

    async def count_refused(wanted: RecordQuery, count: int) -> int:
        found = await asyncio.gather(
            *(queries.search(wanted, None, 1) for _ in range(count)),
            *(queries.summarize(wanted, minutes) for minutes in range(1, count + 1)),
            return_exceptions=True,
        )
        return sum(isinstance(one, Overloaded) for one in found)

    reader = RecordQuery(caller="key:reader", org="default")
    for _ in range(2):  # their ends are counted too
        assert await count_refused(reader, MAX_EACH) == MAX_EACH
    assert await count_refused(RecordQuery(caller="key:reader"), MAX_EACH) == 0  # an administrator
