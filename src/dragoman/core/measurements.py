"""What the hub has measured of itself, for the forms in which it is exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dragoman.core.structs import Struct

COUNTER, GAUGE = "counter", "gauge"


class Measurement(Struct, frozen=True):
    """A number, or several that labels distinguish."""

    name: str
    kind: str
    """`counter`, which only grows, or `gauge`."""
    meaning: str
    values: Sequence[tuple[Mapping[str, str], float]]


class Distribution(Struct, frozen=True):
    """How often something took how long."""

    name: str
    meaning: str
    bounds: Sequence[float]
    """The upper bounds of the buckets, in seconds; the last bucket has none."""
    counts: Sequence[int]
    """In each bucket."""
    total: float
    """Seconds, of all together."""
