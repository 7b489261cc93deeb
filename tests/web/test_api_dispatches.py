from __future__ import annotations

import asyncio
from pathlib import Path
from time import time
from urllib.parse import quote

import pytest
from tests.skill_hub import ALICE, BOB
from tests.web.events_fixture import run_events_server

from dragoman.core.logs import render_time

DISPATCHES = "/api/a2a/dispatches"


@pytest.mark.promise("R12")
async def test_admin_lists_all_dispatches_and_others_their_own(
    tmp_path: Path,
) -> None:
    async with run_events_server(tmp_path) as here:
        await here.skill_hub.call(who=ALICE)
        await here.skill_hub.call("vercel_ops.logs", who=BOB)
        for who, callers in (
            ("boss", ["key:bob", "key:alice"]),
            ("alice", ["key:alice"]),
            ("carol", []),
        ):
            status, found = await here.get(DISPATCHES, who)
            assert status == 200
            assert [row["caller"] for row in found["dispatches"]] == callers
            assert found["nextCursor"] is None


@pytest.mark.promise("R12")
async def test_dispatch_query_filters_and_pages(tmp_path: Path) -> None:
    async with run_events_server(tmp_path) as here:
        for _ in range(60):
            await here.skill_hub.call()
        moment = render_time(time())
        while render_time(time()) == moment:  # times have millisecond resolution
            await asyncio.sleep(0)
        await here.skill_hub.call("vercel_ops.logs", fails=True)
        _, first = await here.get(DISPATCHES)
        assert len(first["dispatches"]) == 50 and first["nextCursor"]
        _, rest = await here.get(f"{DISPATCHES}?cursor={quote(first['nextCursor'])}")
        assert len(rest["dispatches"]) == 11 and rest["nextCursor"] is None
        newest = first["dispatches"][0]
        assert (newest["skillId"], newest["status"]) == ("logs", "failed")
        start = newest["startedAt"]
        for query, count in (
            ("status=failed", 1),
            ("agentId=card-1&limit=200", 61),
            ("agent=Vercel%20Ops&limit=3", 3),
            ("agent=nobody", 0),
            ("kind=routed", 0),
            ("kind=explicit&limit=200", 61),
            (f"session={newest['sessionId']}", 1),
            ("from=2020-01-01T00:00:00Z&limit=200", 61),
            ("from=2020-01-01T00:00:00+01:00&limit=200", 61),
            ("to=2020-01-01", 0),
            (f"from={start}&to=9999999999", 1),
        ):
            status, found = await here.get(f"{DISPATCHES}?{query}")
            assert (status, len(found["dispatches"])) == (200, count), query


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("limit=0", "limit must be a number from 1 to 200"),
        ("limit=201", "limit must be a number from 1 to 200"),
        ("limit=" + "9" * 5000, "limit must be a number from 1 to 200"),
        ("limit=x", "limit must be a number from 1 to 200"),
        ("status=gone", "status must be one of running, completed"),
        ("kind=odd", "kind must be one of explicit, routed"),
        ("from=yesterday", 'from must be a time such as "2026-01-31T12:00:00Z"'),
        ("to=nan", "to must be a time"),
        ("cursor=%25", "there is no such cursor"),
        ("callr=x", 'unknown parameter "callr": use agentId'),
    ],
)
async def test_invalid_query_is_refused_with_a_reason(
    query: str, said: str, tmp_path: Path
) -> None:
    async with run_events_server(tmp_path) as here:
        status, found = await here.get(f"{DISPATCHES}?{query}")
        assert status == 400 and said in found["error"]["message"]
