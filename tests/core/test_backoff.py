from __future__ import annotations

from itertools import pairwise

from dragoman.core.backoff import Backoff, add_jitter


def test_delays_double_up_to_the_cap_and_start_over_after_a_success() -> None:
    backoff = Backoff(0.5, 3.0, jitter=0)
    assert [backoff.next_delay() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.next_delay() == 0.5
    assert backoff.delay(0) == backoff.delay(1) == 0.5
    assert backoff.delay(10_000) == 3.0  # no overflow


def test_jitter_varies_a_delay_by_its_share() -> None:
    delays = [Backoff(10.0, 10.0).delay(1) for _ in range(200)]
    assert all(8 <= delay <= 12 for delay in delays)
    assert any(one != other for one, other in pairwise(delays))
    assert all(9 <= add_jitter(10, 0.1) <= 11 for _ in range(200))
