"""How old lists may become, by a clock of the test's own."""

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


def test_a_list_of_a_server_that_says_nothing_of_changes_is_stale_after_the_interval() -> None:
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


def test_a_list_whose_changes_are_announced_is_never_stale_while_that_is_heard() -> None:
    clock = Clock()
    fresh = clock.made(60)
    fresh.note(TOOL, clock.now, None, announced=True)
    clock.now += 10_000
    assert not fresh.is_stale(TOOL) and not fresh.list_due(clock.now)
    clock.hears = False
    assert fresh.is_stale(TOOL) and fresh.list_due(clock.now) == [TOOL]


@pytest.mark.parametrize("interval", [0, 60])
def test_a_list_holds_as_long_as_its_server_says_but_is_not_read_all_the_time(
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
def test_a_list_that_takes_long_to_read_is_read_less_often() -> None:
    clock = Clock()
    fresh = clock.made(60)
    begun = clock.now
    clock.now += 20
    fresh.note(TOOL, begun, 0.0, announced=False)
    clock.now = begun + READ_FACTOR * 20 - 1
    assert not fresh.is_stale(TOOL) and not fresh.may_read(TOOL) and not fresh.list_due(clock.now)
    clock.now += 1
    assert fresh.is_stale(TOOL) and fresh.may_read(TOOL) and fresh.list_due(clock.now)


def test_in_the_background_lists_are_read_only_while_the_server_is_used() -> None:
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
