"""Times in workflows: a number of seconds, or a text such as `30s`, `5m`, `2h` or `1d`. Pure."""

from __future__ import annotations

import math
import re
from typing import Any

from dragoman.core.errors import InvalidInput

MAX_SECONDS = 366 * 86_400.0
PATTERN = r"[0-9]{1,9}(\.[0-9]{1,3})?\s*(ms|s|m|h|d)"
_DURATION = re.compile(rf"({PATTERN})")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def parse_duration(value: Any) -> float:
    """Returns the seconds of a time. Raises `InvalidInput`."""
    seconds = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, str) and (found := _DURATION.fullmatch(value.strip())):
        unit = found[3]
        seconds = float(value.strip().removesuffix(unit)) * _UNITS[unit]
    if not 0 <= seconds <= MAX_SECONDS:
        raise InvalidInput(
            f"{str(value)[:40]!r} is no time; write seconds, or a text such as 30s, 5m, 2h or 1d, "
            "up to a year"
        )
    return seconds
