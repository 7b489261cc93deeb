"""Checks that pass on the fixture and not through the hub, and which of them are unavoidable."""

import re
from dataclasses import dataclass

from conformance.suites import Outcome
from conformance.targets import TARGETS


@dataclass(frozen=True)
class Explained:
    """Why a check that passes directly does not pass through the hub."""

    targets: tuple[str, ...]
    check: str  # a regular expression over "scenario: id"
    reason: str
    failing: bool = False  # whether it is made and fails; else it must not even be made


THROUGH = tuple(name for name, target in TARGETS.items() if target.through_hub)
LEGACY = tuple(name for name, target in TARGETS.items() if target.era == "legacy")
EXPLAINED = (
    Explained(
        THROUGH,
        "server-sse-multiple-streams: server-sse-streams-functional",
        "The hub answers a list at once and as JSON, so there is no stream to look at; the suite "
        "calls streams optional here (decision 66).",
    ),
    Explained(
        THROUGH,
        "server-sse-polling: server-sse-disconnect-resume",
        "Where a server closes a stream early the hub comes back to it; its own client's stream "
        "stays open until the answer, so there is nothing to resume (decision 66).",
    ),
    Explained(
        LEGACY,
        "input-required-result-(basic-elicitation: sep-2322-elicitation-(in)?complete"
        "|ignore-extra-params: sep-2322-ignore-unexpected-params)",
        'The suite expects the key "user_name", a word of the server\'s. A handshake server pushes '
        "its question, and a push has no key, so the hub gives one. An answer to that word without "
        "the hub's requestState belongs to no call that waits.",
        failing=True,
    ),
    Explained(
        ("suite-hub",),
        "server-stateless: sep-2575-server-sends-(prompts|tools)-list-changed-on-subscription",
        "This fixture answers subscriptions/listen with lines of JSON as application/json; the "
        "specification has a stream of server-sent events, and the hub reads no other.",
        failing=True,
    ),
    Explained(
        ("legacy-stdio",),
        "server-stateless: sep-2575-http-server-no-independent-requests-on-stream",
        "The first call of a client that can be asked starts a child of its own, and the suite "
        "waits 0.6 s for the first message; the fixture takes longer to start.",
        failing=True,
    ),
)


@dataclass(frozen=True)
class Difference:
    key: str
    message: str
    reason: str | None  # why it cannot be otherwise


FAILS_DIRECTLY = "The fixture itself does not pass this check."


def difference(
    through: Outcome, key: str, message: str, fails_directly: frozenset[str]
) -> Difference:
    if key in fails_directly:
        return Difference(key, message, FAILS_DIRECTLY)
    failed = any(check.key == key for check in through.failed())
    for each in EXPLAINED:
        known = through.target in each.targets and re.fullmatch(each.check, key)
        if known and (each.failing or not failed):
            return Difference(key, message, each.reason)
    return Difference(key, message, None)


def differences(
    through: Outcome, direct: Outcome | None, *, is_ours: bool = True
) -> list[Difference]:
    """Failures, and checks that pass directly but were not even made. A fixture that is not ours
    is taken as it is: what it does not pass itself is not expected through the hub."""
    fails_directly: frozenset[str] = frozenset()
    if not is_ours:
        fails_directly = frozenset(check.key for check in (direct or through).failed())
        if direct is not None:
            fails_directly -= direct.passes().keys()
    found: dict[str, str] = {}
    for check in through.failed():
        found.setdefault(check.key, check.message)
    if direct is not None:
        missing = direct.passes() - through.passes()
        for key in missing:
            found.setdefault(key, unmade(through, key))
    return [difference(through, key, message, fails_directly) for key, message in found.items()]


def unmade(outcome: Outcome, key: str) -> str:
    for check in outcome.checks:
        if check.key == key and check.status != "SUCCESS":
            return f"{check.status}: {check.message}"
    return "not made through the hub"
