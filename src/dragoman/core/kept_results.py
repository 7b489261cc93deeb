"""Keeps whole results that were truncated, to be read as resources for a while.

A kept text belongs to the principal whose call produced it: no other can read it, and reading it is
authorized like that call. It is in no list, and its address cannot be guessed.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_urlsafe
from time import monotonic

from dragoman.core.access import WhyEnded, explain_lost_access
from dragoman.core.call import Call, Result
from dragoman.core.cluster import SINGLE_HUB, Ownership
from dragoman.core.errors import InvalidInput, NotFound
from dragoman.core.principal import Principal
from dragoman.core.tool import DEFAULT_TRAITS, RESOURCE, Tool, build_missing_tool
from dragoman.core.urls import parse_query

PREFIX = "dragoman://results/"
_NUMBER = re.compile(r"[0-9]{1,15}")
_MEGABYTE = 1024 * 1024


@dataclass(slots=True, eq=False)
class KeptResult:
    """A kept text, and the target that reads it."""

    name = "results"
    traits = DEFAULT_TRAITS

    owner: Principal
    origin: Tool
    """The tool that produced the result: reading it needs permission to call that tool."""
    text: str
    mime_type: str
    size: int
    until: float

    async def run(self, call: Call) -> Result:
        uri = call.tool.remote_name
        if call.principal != self.owner:
            raise _build_not_found(uri)
        begin, end = _parse_range(uri)
        resource = {
            "uri": uri,
            "mimeType": self.mime_type,
            "text": self.text[begin:end],
            "_meta": {"dragoman.hub/total_chars": len(self.text)},
        }
        return Result(content=[{"type": "resource", "resource": resource}])


class KeptResults:
    """Bounded in bytes. One principal has at most half of them. The oldest texts are dropped first:
    the principal's own, or, if the total is too large, those of the principal with the most."""

    def __init__(
        self,
        megabytes: int,
        seconds: float,
        clock: Callable[[], float] = monotonic,
        ownership: Ownership = SINGLE_HUB,
    ) -> None:
        """An address names the hub that keeps the text, where there are several."""
        self.limit(megabytes, seconds)
        self._clock = clock
        self._ownership = ownership
        self._kept: OrderedDict[str, KeptResult] = OrderedDict()
        self._sizes: dict[Principal, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def limit(self, megabytes: int, seconds: float) -> None:
        """Applies to what is kept from now on."""
        self._bytes = megabytes * _MEGABYTE
        self.seconds = seconds

    @property
    def size(self) -> int:
        """Bytes kept now."""
        return sum(self._sizes.values())

    def keep(self, call: Call, text: str, mime_type: str) -> str | None:
        """Keeps `text` and returns its address for the principal; None if it is too large."""
        size, owner = sys.getsizeof(text), call.principal
        if size > self._bytes // 2:
            return None
        self._forget_expired()
        while self._sizes.get(owner, 0) + size > self._bytes // 2:
            self._forget_oldest(owner)
        while self.size + size > self._bytes:
            self._forget_oldest(max(self._sizes, key=lambda one: self._sizes[one]))
        id = self._ownership.mark + token_urlsafe(18)
        until = self._clock() + self.seconds
        self._kept[id] = KeptResult(owner, call.tool, text, mime_type, size, until)
        self._sizes[owner] = self._sizes.get(owner, 0) + size
        self._watch()
        return PREFIX + id

    def find(self, uri: str) -> Tool:
        """Resolves `uri`; returns a `Nowhere` tool if nothing is kept there."""
        kept = self._kept.get(uri.removeprefix(PREFIX).partition("?")[0])
        if kept is None or kept.until <= self._clock():
            return build_missing_result(uri)
        return Tool(
            name=f"{KeptResult.name}.{kept.origin.name}",
            alias=uri,
            remote_name=uri,
            kind=RESOURCE,
            sources=kept.origin.sources,
            target=kept,
        )

    def end_principals(self, why_ended: WhyEnded) -> None:
        """Drops the texts of principals whose access has ended."""
        for id, kept in list(self._kept.items()):
            if explain_lost_access(why_ended, kept.owner):
                self._forget(id)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._kept.clear()
        self._sizes.clear()

    def _forget_oldest(self, owner: Principal) -> None:
        self._forget(next(id for id, kept in self._kept.items() if kept.owner == owner))

    def _forget(self, id: str) -> None:
        kept = self._kept.pop(id)
        left = self._sizes[kept.owner] - kept.size
        if left:
            self._sizes[kept.owner] = left
        else:
            del self._sizes[kept.owner]

    def _forget_expired(self) -> None:
        now = self._clock()
        for id in [id for id, kept in self._kept.items() if kept.until <= now]:
            self._forget(id)

    def _watch(self) -> None:
        """Frees memory even if no call comes any more."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.seconds + 0.01, self._forget_due)

    def _forget_due(self) -> None:
        self._timer = None
        self._forget_expired()
        if self._kept:
            self._watch()


def build_missing_result(uri: str) -> Tool:
    return build_missing_tool(uri, _build_not_found(uri), RESOURCE)


def _build_not_found(uri: str) -> NotFound:
    return NotFound(
        f'there is no resource "{uri[:200]}": a result is kept for a few minutes, and only for the '
        "client that made the call; call the tool again"
    )


def _parse_range(uri: str) -> tuple[int, int | None]:
    """Parses the range of characters that `uri` asks for."""
    found = parse_query(uri.partition("?")[2])
    if unknown := found.keys() - {"offset", "limit"}:
        raise InvalidInput(
            f'unknown parameter "{min(unknown)[:100]}": use offset and limit, both in characters'
        )
    offset, limit = found.get("offset", "0"), found.get("limit")
    numbers = [offset] if limit is None else [offset, limit]
    if not all(_NUMBER.fullmatch(number) for number in numbers):
        raise InvalidInput(
            f'invalid range in "{uri[:200]}": write ?offset=0&limit=50000, both in characters'
        )
    return int(offset), None if limit is None else int(offset) + int(limit)
