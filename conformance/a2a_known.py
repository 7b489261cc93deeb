"""Known findings of the official A2A kit that do not count against the hub, each with its reason.

A failure or a skip that no line here explains fails the run; so does a line that no longer fits,
where its run was whole.
"""

import re
from dataclasses import dataclass

STALE = "The branch is pinned to specification 1.0.0; "
MEDIA = f"{STALE}since 1.0.1 a reply over HTTP+JSON is application/a2a+json (section 11.1)."
CODES = f"{STALE}1.0.1 changed the row of this error in the table of section 5.4."


@dataclass(frozen=True)
class Known:
    runs: str  # a regular expression over the run's name
    check: str  # over the check's name
    message: str  # found in what it said
    reason: str


FAILURES = (
    Known(
        "1.0-.*",
        r".*test_must_requirement\[CORE-SEND-003-.*",
        "Operation failed",
        "The check's own title asks for ContentTypeNotSupportedError, and that is what comes; its "
        "entry names no expected error, so that any error fails it.",
    ),
    Known("1.0-.*", r".*TestRestFormat\.test_response_content_type", "a2a\\+json", MEDIA),
    Known("1.0-.*", r".*http_json\.test_problem_details\..*content_type.*", "a2a\\+json", MEDIA),
    Known(
        "1.0-.*", r".*TestRestErrorStructure\.test_error_uses_aip193_format", "a2a\\+json", MEDIA
    ),
    Known(
        "1.0-.*",
        ".*",
        r"expected \w+ \((409|415|502|UNIMPLEMENTED)\), got (400|500|FAILED_PRECONDITION) ",
        CODES,
    ),
    Known(
        "1.0.*-bare",
        r".*TestRestStreaming.*",
        "ResponseNotRead",
        "The kit reads the body of a streamed reply without fetching it first.",
    ),
)

# Skips are the kit's own, where the agent's card says so or the place does not allow the check.
SKIPS = (
    Known(".*", ".*", "No requirements at this level", "The kit has none."),
    Known(
        "1.0.*",
        ".*",
        r"Agent supports (streaming|push notifications|extended agent card)",
        "Asked of the profile without them.",
    ),
    Known(
        "1.0.*-bare",
        ".*",
        r"(?i)(does not (declare|support)|not supported|requires? .*(streaming|push))",
        "Asked of the profile with them.",
    ),
    Known(
        "1.0.*",
        ".*",
        r"does not declare capabilities for: \['agent-card'\]",
        "Asked of the profile with an extended card.",
    ),
    Known(
        "1.0.*",
        ".*",
        "does not declare urn:a2a:tck:required-extension",
        "Asked of the profile that requires it.",
    ),
    Known("0.3.*", ".*", "HTTPS|https", "The hub is asked over loopback."),
    Known("0.3.*", ".*", "Test specific to|only applicable to", "Asked over that transport."),
    Known("0.3.*", ".*", "REST client implementation required", "The kit lacks it."),
    Known(
        "0.3.*-rest",
        r".*test_streaming_methods\.test_tasks_resubscribe",
        "Could not capture task ID",
        "The kit looks for a bare task in the stream; over REST an event is wrapped, as in the "
        "proto of 0.3.",
    ),
    Known("0.3.*", ".*", "flaky due to", "Skipped by the kit, always."),
    Known(
        "0.3.*",
        ".*",
        "No (security|authentication) schemes declared|authentication section"
        "|authenticated extended card",
        "A hub without a key asks for none.",
    ),
    Known("0.3.*", ".*", "extensions", "The agent of this profile declares none."),
    Known("0.3.*", ".*", "requires 2\\+ transports", "Each run is over one transport."),
)


def reason(known: tuple[Known, ...], run: str, check: str, message: str) -> str | None:
    for each in known:
        here = re.fullmatch(each.runs, run) and re.fullmatch(each.check, check)
        if here and re.search(each.message, message, re.DOTALL):
            return each.reason
    return None
