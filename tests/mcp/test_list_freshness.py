"""How old lists may become, by a clock of the test."""

from __future__ import annotations

import pytest

from dragoman.core.tool import PROMPT, TOOL
from dragoman.mcp.client.catalog_sync import LEAST_SECONDS, READ_FACTOR, ListFreshness


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.hears = True

    def __call__(self) -> float:
        return self.now

    def made(self, interval: float) -> ListFreshness:
        return ListFreshness(interval, lambda: self.hears, self)


def test_list_without_change_notifications_is_stale_after_the_interval() -> None:
    clock = Clock()
    fresh = clock.made(60)
    assert not fresh.is_stale(TOOL) and not fresh.may_read(TOOL) and fresh.pause is None
    fresh.note(TOOL, clock.now, None, announced=False)
    clock.now += 59
    assert not fresh.is_stale(TOOL)
    clock.now += 1
    assert fresh.is_stale(TOOL) and not fresh.is_stale(PROMPT)
    fresh.clear()
    assert not fresh.is_stale(TOOL)


def test_announced_list_is_not_stale_while_notifications_arrive() -> None:
    clock = Clock()
    fresh = clock.made(60)
    fresh.note(TOOL, clock.now, None, announced=True)
    clock.now += 10_000
    assert not fresh.is_stale(TOOL) and not fresh.list_due(clock.now)
    clock.hears = False
    assert fresh.is_stale(TOOL) and fresh.list_due(clock.now) == [TOOL]


@pytest.mark.parametrize("interval", [0, 60])
def test_list_follows_its_ttl_within_bounds(
    interval: float,
) -> None:
    clock = Clock()
    fresh = clock.made(interval)
    fresh.note(TOOL, clock.now, 0.0, announced=True)
    fresh.note(PROMPT, clock.now, 300.0, announced=False)
    assert not fresh.is_stale(TOOL) and not fresh.may_read(TOOL)
    clock.now += LEAST_SECONDS
    assert fresh.is_stale(TOOL) and fresh.may_read(TOOL)
    clock.now += 290
    assert not fresh.is_stale(PROMPT)
    clock.now += 10
    assert fresh.is_stale(PROMPT)


@pytest.mark.promise("N1")
def test_slow_list_is_reread_less_often() -> None:
    clock = Clock()
    fresh = clock.made(60)
    begun = clock.now
    clock.now += 20
    fresh.note(TOOL, begun, 0.0, announced=False)
    clock.now = begun + READ_FACTOR * 20 - 1
    assert not fresh.is_stale(TOOL) and not fresh.may_read(TOOL) and not fresh.list_due(clock.now)
    clock.now += 1
    assert fresh.is_stale(TOOL) and fresh.may_read(TOOL) and fresh.list_due(clock.now)


def test_lists_are_reread_in_the_background_only_while_used() -> None:
    clock = Clock()
    fresh = clock.made(60)
    fresh.note(TOOL, clock.now, None, announced=False)
    pause = fresh.pause
    assert pause is not None and 54 <= pause <= 66
    unused, clock.now = clock.now - 1, clock.now + 70
    assert not fresh.list_due(unused)
    assert fresh.list_due(clock.now) == [TOOL]
    off = clock.made(0)
    off.note(TOOL, clock.now, None, announced=False)
    clock.now += 10_000
    assert not off.list_due(clock.now) and not off.is_stale(TOOL) and off.may_read(TOOL)
    assert off.pause is None
