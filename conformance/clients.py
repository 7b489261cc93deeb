"""The suite's client scenarios against the hub's own client, one at a time."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from conformance.paths import NODE, NOTHING_EXPECTED, PRERELEASE, PYTHON, RELEASE, RESULTS
from conformance.processes import Command, run
from conformance.suites import Check, Outcome, read_all

SECONDS = 90.0
RAISED = re.compile(r"[\w.]+(Error|Exception|Timeout|Group): ")
HANDSHAKE = ("initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry")


@dataclass(frozen=True)
class ClientSet:
    title: str
    program: Path
    revision: str | None
    scenarios: tuple[str, ...]
    has_logins: bool = False
    """Whether they are about authorization: the hub logs in, and no other client is compared."""


LOGINS = (
    *("auth/metadata-default", "auth/metadata-var1", "auth/metadata-var2", "auth/metadata-var3"),
    *("auth/basic-cimd", "auth/scope-from-www-authenticate", "auth/scope-from-scopes-supported"),
    *("auth/scope-omitted-when-undefined", "auth/scope-step-up", "auth/scope-retry-limit"),
    *("auth/token-endpoint-auth-basic", "auth/token-endpoint-auth-post"),
    *("auth/token-endpoint-auth-none", "auth/pre-registration"),
)
"""Those of every revision since 2025-11-25."""
LOGINS_SINCE_2026 = (
    *("auth/resource-mismatch", "auth/offline-access-scope", "auth/offline-access-not-supported"),
    *("auth/authorization-server-migration", "auth/iss-supported", "auth/iss-not-advertised"),
    *("auth/iss-supported-missing", "auth/iss-wrong-issuer", "auth/iss-unexpected"),
    *("auth/iss-normalized", "auth/metadata-issuer-mismatch"),
)
CLIENT_SETS = {
    "release": ClientSet("release", RELEASE, None, HANDSHAKE),
    "2025-06-18": ClientSet(
        "prerelease, 2025-06-18", PRERELEASE, "2025-06-18", ("initialize", "tools_call")
    ),
    "2025-11-25": ClientSet(
        "prerelease, 2025-11-25",
        PRERELEASE,
        "2025-11-25",
        (*HANDSHAKE, "json-schema-2020-12-preservation"),
    ),
    "2026-07-28": ClientSet(
        "prerelease, 2026-07-28",
        PRERELEASE,
        "2026-07-28",
        (
            "tools_call",
            "request-metadata",
            "http-standard-headers",
            "http-custom-headers",
            "http-invalid-tool-headers",
            "json-schema-ref-no-deref",
            "json-schema-2020-12-preservation",
            "sep-2322-client-request-state",
        ),
    ),
    "auth-2025-03-26": ClientSet(
        "prerelease, 2025-03-26, authorization",
        PRERELEASE,
        "2025-03-26",
        ("auth/2025-03-26-oauth-metadata-backcompat", "auth/2025-03-26-oauth-endpoint-fallback"),
        has_logins=True,
    ),
    "auth-2025-11-25": ClientSet(
        "prerelease, 2025-11-25, authorization", PRERELEASE, "2025-11-25", LOGINS, has_logins=True
    ),
    "auth-2026-07-28": ClientSet(
        "prerelease, 2026-07-28, authorization",
        PRERELEASE,
        "2026-07-28",
        (*LOGINS, *LOGINS_SINCE_2026),
        has_logins=True,
    ),
    "auth-extensions": ClientSet(
        "prerelease, extensions of authorization",
        PRERELEASE,
        None,
        (
            "auth/client-credentials-jwt",
            "auth/client-credentials-basic",
            "auth/enterprise-managed-authorization",
            "auth/wif-jwt-bearer",
        ),
        has_logins=True,
    ),
}
"""All but the unscored scenarios of DPoP, which the hub does not have."""


def run_scenario(set_name: str, scenario: str, way: str) -> Outcome:
    """With the SDK's client directly at the mock server, or with the hub between."""
    chosen = CLIENT_SETS[set_name]
    label = f"client-{way}-{set_name}-{scenario}".replace("/", "-")
    folder = RESULTS / label
    program = ["conformance.auth_driver", label]
    if not chosen.has_logins:
        program = ["conformance.driver", label, way]
    driver = shlex.join([str(PYTHON), "-m", *program])
    command: Command = [NODE, chosen.program, "client", "--command", driver]
    command += ["--scenario", scenario, "--timeout", "60000"]
    command += ["--expected-failures", NOTHING_EXPECTED, "--output-dir", folder]
    if chosen.revision is not None:
        command += ["--spec-version", chosen.revision]
    code, out, errors = run(label, command, SECONDS)
    checks = tuple(read_all(folder))
    said = (out + errors).splitlines()
    if any(line.startswith("Client exited with code") for line in said):
        why = next((line for line in reversed(said) if RAISED.match(line)), "for no reason given")
        checks += (Check(scenario, "driver", "FAILURE", why),)
    if not any(check.status in ("SUCCESS", "FAILURE", "WARNING") for check in checks):
        checks += (Check(scenario, "checks", "FAILURE", "none was made"),)
    return Outcome(set_name, scenario, code == 0, checks)
