"""One authorization scenario of the suite against the hub's own OAuth client.

The suite runs `python -m conformance.auth_driver LABEL URL` with the URL of its mock server. This
puts a hub in front of it, logs in as a person with a browser does whenever the hub asks for that,
and lists and calls the tools; the suite judges what the hub sends to its mock servers. A login that
fails is the point of some scenarios, so only a hub that does not run fails the driver.
"""

import html
import json
import os
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

from conformance.hubs import run_hubs
from conformance.paths import HOMES, LOGS
from conformance.processes import stop_all

SERVER = "fixture"
SECONDS = 15.0
LOGINS = 4
"""Logins per scenario: more would hide a hub that asks in circles."""
NOTICED_SECONDS = 1.5
"""How soon several hubs have noticed what one of them has stored. A person takes longer."""
SETTLED = ("connected", "needs_login", "failed")
CIMD = "https://conformance-test.local/client-metadata.json"
"""The client that the suite's authorization server knows by its metadata document."""


def settings_of(scenario: str, context: dict[str, Any], home: Path) -> str:
    """The table `oauth` of the server, as an operator writes it for what the suite hands out."""
    found: dict[str, str] = {}
    if scenario == "auth/basic-cimd":
        found["client_id"] = CIMD
    if "client_id" in context:
        found["client_id"] = context["client_id"]
    if "client_secret" in context:
        found["client_secret"] = "file:client.secret"
        _write(home / "client.secret", context["client_secret"])
    if "private_key_pem" in context:
        found["private_key"] = "file:client.pem"
        found["private_key_alg"] = context.get("signing_algorithm", "ES256")
        _write(home / "client.pem", context["private_key_pem"])
    if scenario.startswith("auth/client-credentials"):
        found["grant"] = "client_credentials"
    lines = [f"{name} = {json.dumps(value)}" for name, value in found.items()]
    if scenario == "auth/wif-jwt-bearer":
        _write(home / "workload.token", context["valid_jwt"])
        lines += ['grant = "jwt_bearer"', 'identity_provider.subject_token = "file:workload.token"']
    if scenario in ("auth/enterprise-managed-authorization", "auth/cross-app-access-complete-flow"):
        lines = [*lines, 'grant = "id_jag"', *_identity_provider(context, home)]
    return "\n".join(["[mcp_servers.oauth]", *lines]) if lines else ""


def _identity_provider(context: dict[str, Any], home: Path) -> list[str]:
    _write(home / "subject.token", context["idp_id_token"])
    provider = {
        "issuer": context["idp_issuer"],
        "token_endpoint": context["idp_token_endpoint"],
        "client_id": context["idp_client_id"],
        "subject_token": "file:subject.token",
    }
    pairs = ", ".join(f"{name} = {json.dumps(value)}" for name, value in provider.items())
    return [f"identity_provider = {{ {pairs} }}"]


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)


class Hub:
    def __init__(self, base: str, bases: list[str]) -> None:
        self.base = base
        self.bases = bases

    def api(self, method: str, path: str, body: Any = None, base: str = "") -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{base or self.base}{path}", data, {"content-type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def wait_settled(self) -> dict[str, Any]:
        """Waits until the hub, or each of several, knows what it needs."""
        if len(self.bases) > 1:
            time.sleep(NOTICED_SECONDS)
        until = time.monotonic() + SECONDS
        while True:
            states = [
                dict(self.api("GET", "/api/mcp/servers", base=base)[1]["connected"][0])
                for base in self.bases
            ]
            is_settled = states[0]["state"] in SETTLED
            if is_settled and len({one["state"] for one in states}) == 1:
                return states[0]
            if time.monotonic() > until:
                return states[0]
            time.sleep(0.05)


def visit(url: str) -> str:
    """What a person's browser ends at: presses the button of the hub's page, follows the rest."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    try:
        with browser.open(url, timeout=SECONDS) as page:
            text = str(page.read().decode())
        form = re.search(r'<form method="post" action="([^"]+)"', text)
        if form is None:
            return text
        action = urllib.parse.urljoin(url, html.unescape(form[1]))
        with browser.open(urllib.request.Request(action, b""), timeout=SECONDS) as page:
            return str(page.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode("utf-8", "replace")


def log_in(hub: Hub, url: str = "") -> bool:
    """Returns whether the hub says that it has worked."""
    if not url:
        status, begun = hub.api("POST", f"/api/mcp/servers/{SERVER}/login", {})
        if status != 200:
            print("no login:", begun)
            return False
        url = begun["url"]
    page = visit(url)
    print("login:", re.sub(r"<style>.*?</style>|<[^>]+>", " ", page).strip()[:300])
    return "You are logged in" in page


def drive(hub: Hub) -> None:
    logins = 0
    while True:
        state = hub.wait_settled()
        print("state:", state["state"], state.get("reason", ""))
        if state["state"] != "needs_login" or logins >= LOGINS:
            break
        logins += 1
        if not log_in(hub):
            break
    for tool in state.get("tools", []):
        while True:
            status, said = hub.api(
                "POST", f"/api/tools/{urllib.parse.quote(tool['name'])}/call", {"arguments": {}}
            )
            print(tool["name"], status, json.dumps(said)[:300])
            error = said.get("error", {}) if isinstance(said, dict) else {}
            if error.get("kind") != "LoginRequired" or not error.get("url") or logins >= LOGINS:
                break
            logins += 1
            log_in(hub, error["url"])
            hub.wait_settled()


def main() -> int:
    label, url = sys.argv[1:3]
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    sys.stdout = (LOGS / f"{label}.said").open("w", encoding="utf-8", buffering=1)
    print("context:", sorted(context))
    home = HOMES / label
    home.mkdir(mode=0o700)
    _write(
        home / "config.toml",
        '[server]\nport = 0\n\n[oauth]\ncredential_key = "file"\n\n'
        f'[[mcp_servers]]\nname = "{SERVER}"\nprefix = ""\n\n'
        f'[mcp_servers.transport]\ntype = "http"\nurl = "{url}"\nallow_private = true\n\n'
        + settings_of(scenario, context, home),
    )
    try:
        with run_hubs(label, home) as hubs:
            drive(Hub(hubs.base, hubs.bases))
    finally:
        stop_all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
