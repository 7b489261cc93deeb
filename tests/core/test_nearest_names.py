from __future__ import annotations

import pytest
from tests.cpu_time import measure_cpu

from dragoman.core.nearest_names import MAX_KNOWN, MAX_NAME, find_nearest


@pytest.mark.parametrize(
    ("name", "known", "nearest"),
    [
        ("searc", ["search", "fetch", "read"], "search"),
        ("read_fil", ["read_file", "read_files", "write_file"], "read_file"),
        ("zzz", ["search", "fetch"], None),
        ("", ["search"], None),
        ("search", [], None),
        ("x" * (MAX_NAME + 1), ["x" * MAX_NAME], None),
        ("x" * MAX_NAME, ["x" * (MAX_NAME + 1)], None),
    ],
)
def test_nearest_name_is_found(name: str, known: list[str], nearest: str | None) -> None:
    assert find_nearest(name, known) == nearest


def test_cutoff_decides_what_is_alike() -> None:
    assert find_nearest("abcd", ["abxy"], cutoff=0.5) == "abxy"
    assert find_nearest("abcd", ["abxy"], cutoff=0.8) is None


def test_of_many_names_those_that_begin_alike_are_looked_at() -> None:
    many = [f"tool-{number}" for number in range(10 * MAX_KNOWN)]
    assert find_nearest("Search", [*many, "search"]) == "search"


def test_cost_is_bounded_with_many_known_names() -> None:
    name = "ab" * (MAX_NAME // 2)
    few, many = ([f"{'ba' * 25}{number:06}" for number in range(count)] for count in (300, 30_000))
    small = measure_cpu(lambda: find_nearest(name, few))
    assert measure_cpu(lambda: find_nearest(name, many)) < 20 * small
