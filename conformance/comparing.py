"""What passes on the fixture itself and not through the hub, and what of it cannot be helped."""

import re
from dataclasses import dataclass

from conformance.grounds import GROUNDS
from conformance.suites import Outcome


@dataclass(frozen=True)
class Explained:
    """Why a check that passes directly is not made through the hub. A failure has no excuse."""

    grounds: tuple[str, ...]
    check: str  # a regular expression over "scenario: id"
    reason: str


THROUGH = tuple(name for name, ground in GROUNDS.items() if ground.through_hub)
EXPLAINED = (
    Explained(
        THROUGH,
        "server-sse-multiple-streams: server-sse-streams-functional",
        "The hub answers a list at once and as JSON, so there is no stream to look at.",
    ),
    Explained(
        THROUGH,
        "server-sse-polling: server-sse-disconnect-resume",
        "Where an upstream closes a stream the hub takes it up again itself; its own client's "
        "stream stays open, so there is nothing to resume.",
    ),
)


@dataclass(frozen=True)
class Difference:
    key: str
    message: str
    reason: str | None  # why it cannot be otherwise


def reason_for(ground: str, key: str) -> str | None:
    for each in EXPLAINED:
        if ground in each.grounds and re.fullmatch(each.check, key):
            return each.reason
    return None


def difference(through: Outcome, key: str, message: str) -> Difference:
    failed = any(check.key == key for check in through.failed())
    return Difference(key, message, None if failed else reason_for(through.ground, key))


def differences(through: Outcome, direct: Outcome | None) -> list[Difference]:
    """Failures, and checks that pass directly but were not even made."""
    found: dict[str, str] = {}
    for check in through.failed():
        found.setdefault(check.key, check.message)
    if direct is not None:
        missing = direct.passes() - through.passes()
        for key in missing:
            found.setdefault(key, unmade(through, key))
    return [difference(through, key, message) for key, message in found.items()]


def unmade(outcome: Outcome, key: str) -> str:
    for check in outcome.checks:
        if check.key == key and check.status != "SUCCESS":
            return f"{check.status}: {check.message}"
    return "not made through the hub"
