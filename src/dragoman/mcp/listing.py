"""The lists of a server that is said to ask questions.

Some of the old era offer what asks only to clients that say they can be asked. Such a server is
listed once more on a connection that says so, on which nothing is ever called and every question is
refused; it is closed again at once. In the new era the request for a list says so itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from dragoman.core.errors import HubError
from dragoman.mcp.client import Session
from dragoman.mcp.hearing import Heard
from dragoman.mcp.offers import KINDS, LIST_SECONDS, Lists, Offers, kinds_changed
from dragoman.mcp.questions import askable

ASKED: Mapping[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}, "context": {}},
    "roots": {},
}
"""All that can be passed on to a client that can answer it."""

T = TypeVar("T")
Open = Callable[[Mapping[str, Any], Heard], Awaitable[Session]]
"""Opens a session that declares these features, and who hears what is said on it unasked."""


class Listing:
    def __init__(self, offers: Offers, open: Open, timeout: float) -> None:
        self._offers = offers
        self._open = open
        self._timeout = timeout
        self._session: Session | None = None
        self._known: dict[str, set[str]] = {}
        """What the shared session ever listed, by kind: that it tells of itself."""
        self._more: Lists = {}
        """What was last listed beside it."""
        self._running: set[asyncio.Task[Any]] = set()

    async def refresh(self, session: Session, kinds: Iterable[str], seconds: float) -> None:
        """As `Offers.refresh`; the other connection may take so long, and none is opened for 0 s.
        Where it fails, what the shared session lists is offered."""
        wanted = list(kinds)
        if session.modern:
            await self._offers.refresh(session, wanted, self._timeout)
            return
        if session is not self._session:
            self._session, self._known, self._more = session, {}, {}
        if not seconds:
            lists = await self._offers.listed(session, wanted, self._timeout)
            await self._offer(session, lists)
            return
        work = self._list_more(session.revision, wanted, min(seconds, LIST_SECONDS))
        listing_more = self._begin(work)
        try:
            lists = await self._offers.listed(session, wanted, self._timeout)
            problems = await listing_more
        finally:
            listing_more.cancel()
        await self._offer(session, lists)
        self._offers.report("listing", problems)

    async def _offer(self, session: Session, lists: Lists) -> None:
        await self._offers.offer(session, {kind: self._whole(kind, lists[kind]) for kind in lists})

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def _whole(self, kind: str, entries: list[Any] | HubError) -> list[Any] | HubError:
        """What the shared session lists, and what only the other one does. The two may be children
        each with a state of its own: what the shared one has dropped is gone."""
        if isinstance(entries, HubError):
            return entries
        known = self._known.setdefault(kind, set())
        known.update(_name(kind, entry) for entry in entries)
        more = self._more.get(kind)
        if not isinstance(more, list):
            return entries
        return entries + [entry for entry in more if _name(kind, entry) not in known]

    async def _list_more(self, revision: int, kinds: list[str], seconds: float) -> list[str]:
        """What went wrong with it, if anything did."""
        try:
            async with asyncio.timeout(seconds):
                self._more.update(await self._listed_apart(revision, kinds))
        except (HubError, TimeoutError) as error:
            reason = str(error) or f"it took longer than {seconds:g} s"
            return [f"what it offers to clients that can be asked is not listed: {reason}"]
        return []

    async def _listed_apart(self, revision: int, kinds: list[str]) -> Lists:
        changed: set[str] = set()

        def heard(method: str, params: Mapping[str, Any]) -> None:
            changed.update(kinds_changed(method))

        session = await self._open(askable(ASKED, revision), heard)
        try:
            lists = await self._offers.listed(session, kinds, self._timeout)
            late = changed.intersection(kinds)
            if late:  # what hangs on the client is often added only after the greeting
                lists.update(await self._offers.listed(session, late, self._timeout))
            return lists
        finally:
            self._begin(_close(session))  # a child may take its time

    async def close(self) -> None:
        while self._running:
            await asyncio.gather(*self._running, return_exceptions=True)


async def _close(session: Session) -> None:
    with contextlib.suppress(HubError):
        await session.close()


def _name(kind: str, entry: Any) -> str:
    """What tells an entry from the others of its list."""
    return str(entry.get(KINDS[kind].id)) if isinstance(entry, dict) else ""
