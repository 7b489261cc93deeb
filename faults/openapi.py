"""Schemathesis over the hub's OpenAPI document: requests that fit it, and requests that do not.

Every response has a status, a content type and a body that the document names, a request against
the schema is refused, and no operation works without a key but the public ones.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.live.conftest import RunningHub
from tests.peers import wire

from faults.fixtures import EVERYTHING, echo_server, write_agents
from faults.harness import Outcome, running_hub, temporary_home, write_config

KEY = "the-key-of-the-owner"
POLICY = '@id("mine") forbid (principal, action, resource == Hub::Tool::"no.such");'
NAMES = {
    "/api/tools/": ["r.echo", "mcp_r_echo", "r.pid", "quick.message"],
    "/api/mcp/servers/": ["r"],
    "/api/a2a/agents/": ["n"],
    "/api/policies/": ["mine"],
}
"""What there is, by the beginning of the path."""
QUERIES = {"tool": ["r.echo"], "principal": ["owner"], "name": ["r.echo"], "target": ["r"]}
NO_AGENT = "http://127.0.0.1:9/none"
CHECKS = """
[checks]
positive_data_acceptance.enabled = false
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "502", "503", "504"]
"""
"""A request that fits the schema may be refused for what it says. 502 to 504 tell of a server
behind the hub, which is absent here; only 500 tells of the hub."""


def prefer(schema: dict[str, Any], values: list[str]) -> dict[str, Any]:
    return {"anyOf": [{"enum": values}, {"enum": values}, schema]}


def load_document(hub: RunningHub) -> dict[str, Any]:
    """The hub's document, with names of what there is."""
    document: dict[str, Any] = hub.api("/openapi.json")
    del document["paths"]["/api/mcp/servers/{name}"]["delete"]  # the server is called afterwards
    for path, item in document["paths"].items():
        for operation in item.values():
            for parameter in operation.get("parameters", ()):
                values = QUERIES.get(parameter["name"], [])
                if parameter["in"] == "path":
                    values = next((v for k, v in NAMES.items() if path.startswith(k)), [])
                if values:
                    parameter["schema"] = prefer(parameter["schema"], values)
    agent = document["components"]["schemas"]["Agent"]["properties"]
    agent["url"] = {"enum": [NO_AGENT, "http://127.0.0.1:9"]}  # nothing leaves the machine
    arguments = document["components"]["schemas"]["Arguments"]["properties"]
    arguments["arguments"] = {
        "anyOf": [{"enum": [{"text": "x"}, {"message": "x"}]}, {"type": "object"}]
    }
    return document


def run_schemathesis(
    hub: RunningHub, folder: Path, examples: int, seed: int, outcome: Outcome, *more: str
) -> None:
    (folder / "openapi.json").write_text(json.dumps(load_document(hub)), encoding="utf-8")
    (folder / "schemathesis.toml").write_text(CHECKS, encoding="utf-8")
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"),
            *("run", "openapi.json", "--url", hub.url, "--header", f"Authorization: Bearer {KEY}"),
            *("--max-examples", str(examples), "--seed", str(seed), "--no-shrink", "--workers"),
            *("1", "--exclude-path", "/api/events", "--request-timeout", "20"),  # without end
            *("--warnings", "off", "--continue-on-failure", *more),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    said = done.stdout + done.stderr
    if found := re.search(r"(\d+) generated", said):
        outcome.count("requests", int(found[1]))
    if found := re.search(r"Tested: (\d+)", said):
        outcome.count("operations", int(found[1]))
    outcome.check(outcome.figures.get("operations", 0) > 30, f"few operations: {said[-1500:]}")
    if done.returncode:
        _, mark, failures = said.partition("= FAILURES =")
        outcome.fail((mark + failures if mark else said)[:6000])


def check_api(examples: int, seed: int, outcome: Outcome, *more: str) -> None:
    with temporary_home() as home:
        agents = write_agents(home, "quick", "asking")
        config = f'api_key = "{KEY}"\n{EVERYTHING}{agents}\n'
        write_config(home, [echo_server()], config)
        (home / "work").mkdir()
        with running_hub(outcome, home) as hub:
            hub.wait_connected("r")
            hub.post("/api/policies", {"name": "mine", "text": POLICY})
            hub.post("/api/a2a/agents", {"url": NO_AGENT, "name": "n"})
            run_schemathesis(hub, home / "work", examples, seed, outcome, *more)
            healthy = wire.get(hub.url + "/healthz").status == 200
            outcome.check(healthy, "/healthz does not answer")
            works = wire.post(
                hub.url + "/api/tools/r.echo/call", {"arguments": {"text": "x"}}, hub.headers
            )
            outcome.check(works.status == 200, f"calls are refused afterwards: {works.body!r}")
