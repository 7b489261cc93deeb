"""Limits the bytes of large bodies in memory, in all and for each principal, and how fast large
bodies of one principal are read: one budget for requests, one for the answers of servers and
agents. Knows no sockets."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Protocol

from dragoman.core.errors import BadReply
from dragoman.core.read_pacing import BytePace

MAX_WAITING = 256
"""Requests that wait for room at once. Up to one read of each is in memory already."""
MAX_WAITING_EACH = 64
"""Of these, requests of one principal."""
MAX_PACED = 1_000
"""Principals whose speed is known before those that send nothing are forgotten."""


class AnswerTooLong(BadReply):
    """An answer is longer than its reader allows."""


class BodyWaiter(Protocol):
    def grant_body(self) -> None:
        """Called once: the body may be read."""


class BodyBudget:
    """The whole size of a body is reserved before it is read, so every body that was begun can be
    read to its end. A principal has at most half of the budget; bodies that do not fit wait."""

    def __init__(
        self, limit: int, max_waiting: int | None = None, max_waiting_each: int | None = None
    ) -> None:
        """At most `max_waiting` bodies wait at once, `max_waiting_each` of one principal."""
        self._max_waiting = MAX_WAITING if max_waiting is None else max_waiting
        self._max_each = MAX_WAITING_EACH if max_waiting_each is None else max_waiting_each
        self.limit = limit
        self.share = limit // 2
        self.held = 0
        self._held_by: dict[Hashable, int] = {}
        self._waiting: dict[Hashable, deque[tuple[int, int, BodyWaiter]]] = {}
        """By principal, in order: its turn, the bytes it needs, and its connection."""
        self._turn = 0
        self._count = 0
        self._crowded = False
        """A request waits for bytes of other principals, and none may overtake it."""
        self._paces: dict[Hashable, BytePace] = {}

    def take(self, owner: Hashable, size: int) -> bool:
        """Reserves the bytes, unless they do not fit or an earlier request waits for room."""
        if self._crowded or owner in self._waiting or not self._fits(owner, size):
            return False
        self._add(owner, size)
        return True

    def wait(self, owner: Hashable, size: int, waiter: BodyWaiter) -> bool:
        """Reserves the bytes when it is their turn; False if too many requests wait already."""
        queue = self._waiting.get(owner)
        if self._count >= self._max_waiting or (queue and len(queue) >= self._max_each):
            return False
        if queue is None:
            queue = self._waiting[owner] = deque()
        self._turn += 1
        self._count += 1
        queue.append((self._turn, size, waiter))
        self._grant()
        return True

    def leave(self, owner: Hashable, waiter: BodyWaiter) -> None:
        """Stops waiting."""
        queue = self._waiting.get(owner, deque())
        for entry in queue:
            if entry[2] is waiter:
                queue.remove(entry)
                self._count -= 1
                break
        if not queue:
            self._waiting.pop(owner, None)
        self._grant()

    def give_back(self, owner: Hashable, size: int) -> None:
        self._add(owner, -size)
        if self._waiting:
            self._grant()

    def move(self, owner: Hashable, other: Hashable, size: int) -> None:
        """Makes bytes that `owner` has reserved those of another principal, which may have more
        than its share for a while."""
        if size:
            self._add(other, size)
            self.give_back(owner, size)

    def pace(self, owner: Hashable, size: int) -> float:
        """Seconds to pause after so many bytes of large bodies of the principal."""
        pace = self._paces.get(owner)
        if pace is None:
            if len(self._paces) >= MAX_PACED:
                self._paces = {one: pace for one, pace in self._paces.items() if not pace.is_idle()}
            pace = self._paces[owner] = BytePace()
        return pace.pause(size)

    def _fits(self, owner: Hashable, size: int) -> bool:
        return self.held + size <= self.limit and self._held_by.get(owner, 0) + size <= self.share

    def _add(self, owner: Hashable, size: int) -> None:
        self.held += size
        left = self._held_by.get(owner, 0) + size
        if left:
            self._held_by[owner] = left
        else:
            del self._held_by[owner]

    def _grant(self) -> None:
        """Grants what fits, in order. A request that waits for bytes of its own principal is passed
        over; one that waits for those of others is not."""
        granted: list[BodyWaiter] = []
        self._crowded = False
        for owner in sorted(self._waiting, key=lambda owner: self._waiting[owner][0][0]):
            queue = self._waiting[owner]
            while queue and self._fits(owner, queue[0][1]):
                _, size, waiter = queue.popleft()
                self._count -= 1
                self._add(owner, size)
                granted.append(waiter)
            if not queue:
                del self._waiting[owner]
            elif self._held_by.get(owner, 0) + queue[0][1] <= self.share:
                self._crowded = True
                break
        for waiter in granted:
            waiter.grant_body()
