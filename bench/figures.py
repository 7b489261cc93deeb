"""Medians and ratios over the rounds of a run; None where nothing was measured."""

import statistics
from typing import Any


def dig(record: dict, path: tuple[str, ...]) -> Any:
    """Returns the figure, or the list of samples, at that path; None if there is none."""
    value: Any = record
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    return value


def median(records: list[dict], *path: str) -> float | None:
    values = [value for record in records if (value := dig(record, path)) is not None]
    return statistics.median(values) if values else None


def ratio(records: list[dict], base: list[dict], *path: str) -> float | None:
    """The median over rounds of one over the other: what slows a whole round cancels out."""
    of_round = {record["round"]: dig(record, path) for record in base}
    ratios = []
    for record in records:
        value, other = dig(record, path), of_round.get(record["round"])
        if value is not None and other:
            ratios.append(value / other)
    return statistics.median(ratios) if ratios else None


def of_size(records: list[dict], size: int) -> list[dict]:
    return [record for record in records if record["size"] == size]


def bad_answers(records: list[dict]) -> int:
    return sum(figures["bad"] for record in records for figures in record["load"].values())
