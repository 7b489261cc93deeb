"""Queries over the audit log for the API. They run in a thread, a few at a time."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, TypeVar

from dragoman.a2a.remote.registry_view import RegistryView
from dragoman.app.hub_parts import HubParts
from dragoman.core.audit_queries import RecordQuery
from dragoman.core.errors import Overloaded
from dragoman.core.usage import UsageStore
from dragoman.stores.audit.queries import Source, list_traces, search_records, summarize_calls
from dragoman.stores.audit.verify import verify

T = TypeVar("T")

AT_ONCE = 2
MAX_EACH = 8
"""Queries that one principal without `admin` may have at once: others must not wait for more."""
SUMMARY_SECONDS, SUMMARY_REST = 2.0, 20
"""A summary is good for so many seconds, and for so many times as long as it took."""
MAX_SUMMARIES = 64
USAGE_DAYS = 366


class RecordQueries:
    """Implements `web.api_records.RecordSource`."""

    def __init__(self, parts: HubParts, registry: RegistryView, usage: UsageStore) -> None:
        self._parts = parts
        shared = parts.shared_audit
        self._source: Source = shared.records if shared is not None else parts.home
        self._registry = registry
        self._usage = usage
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._begun: Counter[tuple[str, str]] = Counter()
        """The queries of each principal without `admin` that have begun or wait."""
        self._summing = asyncio.Lock()
        self._summaries: dict[tuple[RecordQuery, int], tuple[float, Mapping[str, Any]]] = {}

    async def search(
        self, wanted: RecordQuery, before: int | None, limit: int
    ) -> tuple[Sequence[Mapping[str, Any]], int | None]:
        with self._count(wanted):
            return await self._run(lambda: search_records(self._source, wanted, before, limit))

    async def list_traces(
        self, wanted: RecordQuery, before: int | None, limit: int
    ) -> tuple[Sequence[Mapping[str, Any]], int | None]:
        with self._count(wanted):
            return await self._run(lambda: list_traces(self._source, wanted, before, limit))

    async def summarize(self, wanted: RecordQuery, minutes: int) -> Mapping[str, Any]:
        """Computes it once for all pages that show it, and takes 5 % of a core for it at most.
        `nextInMs` says when it is computed again."""
        with self._count(wanted):
            async with self._summing:
                return await self._summarize(wanted, minutes)

    async def _summarize(self, wanted: RecordQuery, minutes: int) -> Mapping[str, Any]:
        known, began = self._summaries.get((wanted, minutes)), time.monotonic()
        if known is None or known[0] < began:
            found = await self._run(lambda: summarize_calls(self._source, wanted, minutes))
            if len(self._summaries) >= MAX_SUMMARIES:
                self._summaries.clear()
            ended = time.monotonic()
            until = ended + max(SUMMARY_SECONDS, (ended - began) * SUMMARY_REST)
            known = self._summaries[wanted, minutes] = until, found
        left = max(0.0, known[0] - time.monotonic())
        return {**known[1], "nextInMs": math.ceil(left * 1000)}

    async def verify(self) -> Mapping[str, Any]:
        shared = self._parts.shared_audit
        if shared is not None:
            return asdict(await self._run(shared.verify))
        return asdict(await self._run(lambda: verify(self._parts.home)))

    def find_usage(self, trace: str, caller: str) -> Sequence[Mapping[str, Any]]:
        since, only = time.time() - USAGE_DAYS * 86_400, {"trace": trace}
        if caller:
            only["origin"] = caller
        return self._usage.summarize(["agent", "model"], since, only)

    async def list_nodes(self) -> Sequence[Mapping[str, Any]]:
        servers = [
            {
                "id": one["name"],
                "kind": "server",
                "label": one["name"],
                "state": one["state"],
                "tools": one["tools_count"],
            }
            for one in self._parts.upstreams.snapshot()["connected"]
        ]
        agents = [
            {
                "id": one["name"],
                "kind": "agent",
                "label": one["name"],
                "state": one["state"],
                "tools": one["skills"],
            }
            for one in await self._registry.list_status()
        ]
        local = [
            {"id": name, "kind": "agent", "label": name, "state": "healthy", "tools": 0}
            for name in self._parts.agents.local.by_name
        ]
        return [*servers, *agents, *local]

    @contextmanager
    def _count(self, wanted: RecordQuery) -> Iterator[None]:
        who = wanted.caller, wanted.org
        if not wanted.org:  # of an administrator
            yield
            return
        if self._begun[who] >= MAX_EACH:
            raise Overloaded("you search the records too often at once; wait for the answers")
        self._begun[who] += 1
        try:
            yield
        finally:
            self._begun[who] -= 1
            if not self._begun[who]:
                del self._begun[who]

    async def _run(self, work: Callable[[], T]) -> T:
        async with self._turns:
            return await asyncio.to_thread(work)
