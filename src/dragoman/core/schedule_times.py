"""When a schedule runs: parses cron expressions and intervals, and computes the next run. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from dragoman.core.errors import InvalidInput

MIN_SECONDS = 60
MAX_SECONDS = 366 * 86_400
MAX_COUNTED = 1_000
"""Missed runs that are counted."""
EVERY = "every "
"""Begins the stored form of an interval."""

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
_INTERVAL = re.compile(
    r"(?:every\s+|in\s+)?(\d{1,6})?\s*"
    r"(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|w|weeks?)"
)
_WORDS = {
    "hourly": "0 * * * *",
    "daily": "0 0 * * *",
    "weekly": "0 0 * * 0",
    "monthly": "0 0 1 * *",
    "yearly": "0 0 1 1 *",
}
_DAYS = {
    "day": "*",
    "daily": "*",
    "weekday": "1-5",
    "weekdays": "1-5",
    "weekend": "0,6",
    **{
        day: str(number)
        for number, day in enumerate(
            ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
        )
    },
}
_AT = re.compile(r"(?:every\s+)?([a-z]+)\s+at\s+(\d{1,2})(?::(\d{2}))?\s*(am|pm)?")


class Timing(NamedTuple):
    spec: str
    """A cron expression, or `every N` seconds."""
    zone: str
    once: bool


def parse_timing(text: str, zone: str, once: bool) -> Timing:
    """Raises `InvalidInput`."""
    find_zone(zone)
    words = " ".join(text.lower().split())
    if found := _INTERVAL.fullmatch(words):
        seconds = int(found[1] or 1) * _UNITS[found[2][0]]
        if not MIN_SECONDS <= seconds <= MAX_SECONDS:
            raise InvalidInput("the interval must be between a minute and a year")
        return Timing(f"{EVERY}{seconds}", zone, once or words.startswith("in "))
    if (found := _AT.fullmatch(words)) and found[1] in _DAYS:
        hour, minute = int(found[2]), int(found[3] or 0)
        if found[4]:
            hour = hour % 12 + (12 if found[4] == "pm" else 0)
        spec = f"{minute} {hour} * * {_DAYS[found[1]]}"
    else:
        spec = _WORDS.get(words.removeprefix("@"), text.strip())
    if spec.startswith(EVERY):
        raise _build_error(text, "the interval cannot be read")
    timing = Timing(spec, zone, once)
    find_next(timing, datetime.now(UTC).timestamp())
    return timing


def find_zone(zone: str) -> tzinfo:
    """Raises `InvalidInput` for an unknown time zone."""
    if zone == "UTC":
        return UTC  # also on a machine without a database of time zones
    try:
        return ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInput(
            f'unknown time zone "{zone[:60]}"; use a name such as "Europe/Berlin"'
        ) from None


def find_next(timing: Timing, after: float, previous: float | None = None) -> float:
    """Computes the first run after `after`. Intervals continue from `previous`."""
    if timing.spec.startswith(EVERY):
        seconds = int(timing.spec.removeprefix(EVERY))
        if previous is None or previous > after:
            return after + seconds
        return previous + seconds * (int((after - previous) // seconds) + 1)
    if len(timing.spec.split()) != 5:
        raise _build_error(timing.spec, "a cron expression has five fields")
    try:
        start = datetime.fromtimestamp(after, find_zone(timing.zone))
        return next(CronSim(timing.spec.upper(), start)).timestamp()
    except CronSimError as error:
        raise _build_error(timing.spec, str(error)) from None
    except StopIteration:
        raise _build_error(timing.spec, "it never runs") from None


def count_missed(timing: Timing, due: float, now: float) -> int:
    """Counts the runs between the one that is due and now, without the latest."""
    count, at = 0, due
    while count < MAX_COUNTED:
        at = find_next(timing, at, at)
        if at > now:
            break
        count += 1
    return count


def _build_error(spec: str, why: str) -> InvalidInput:
    return InvalidInput(
        f'the schedule "{spec[:60]}" is invalid: {why}. Use five cron fields such as '
        '"0 9 * * 1-5", or words such as "every 10 minutes", "daily at 9:00" or "in 20 minutes"'
    )
