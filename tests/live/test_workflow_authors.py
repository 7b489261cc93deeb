"""What triggers start acts for the author of a definition that the API wrote, and does nothing that
its author may not do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.live.conftest import RunningHub, open_keys
from tests.live.module_hub import run_module_hub, until
from tests.peers import wire
from tests.peers.process import server_entry

from dragoman.workflows.authorship import MARK

pytestmark = pytest.mark.promise("R14", "F3")

CONFIG = 'api_key = "owner-of-the-tests-0123456789"\n'
POLICY = """
@id("operators")
permit (principal in Hub::Role::"ops", action == Hub::Action::"workflows", resource);
@id("not-third")
forbid (principal in Hub::Role::"ops", action in Hub::Action::"any_call",
  resource == Hub::Tool::"third.echo");
"""
KEYS = {"writer": ["workflows"], "author": ["workflows", "call"], "leaver": ["workflows", "call"]}
TRIGGERED = """
triggers:
  - {type: event, event: post-verb, match: {verb: other.echo}}
"""
CALLS = """
steps:
  - {id: go, nodeId: tool.call, config: {tool: NAME.echo, arguments: {text: "by a trigger"}}}
"""
STARTS = """
steps:
  - {id: go, nodeId: workflow.run, config: {workflow: forbidden}}
"""


class Rig:
    def __init__(self, hub: RunningHub) -> None:
        self.hub = hub
        with open_keys(hub.home) as store:
            self.keys = {
                name: store.create(name, owner="o", expires_at=None, scopes=scopes, roles=["ops"])
                for name, scopes in KEYS.items()
            }

    def write(self, who: str, name: str, source: str) -> wire.Answer:
        headers = {"Authorization": f"Bearer {self.keys[who]}"}
        body = {"name": name, "source": source}
        return wire.post(f"{self.hub.url}/api/workflows", body, headers)

    def fire(self, workflow: str) -> dict[str, Any]:
        """Causes the event, and returns the run that it has started once that has ended."""
        before = {one["id"] for one in self._list_runs(workflow)}
        self.hub.post("/api/tools/other.echo/call", {"arguments": {"text": "x"}})

        def find() -> dict[str, Any] | None:
            new = [one for one in self._list_runs(workflow) if one["id"] not in before]
            return next((one for one in new if one["state"] in ("completed", "failed")), None)

        run = until(find, 20)
        assert run is not None
        return {**run, **self.hub.api(f"/api/runs/{run['id']}")}

    def _list_runs(self, workflow: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.hub.api(f"/api/runs?workflow={workflow}")["runs"]
        return found

    def fire_refused(self, workflow: str) -> str:
        """Causes the event, and returns what the log says about the start."""
        begin = len(self.hub.log())
        self.hub.post("/api/tools/other.echo/call", {"arguments": {"text": "x"}})
        lines = until(
            lambda: [
                one
                for one in self.hub.log()[begin:].splitlines()
                if f'"{workflow}"' in one and "start" in one
            ],
            20,
        )
        return lines[0]


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    servers = [server_entry(name, "faulty_server", "ok") for name in ("other", "third")]
    with run_module_hub(servers, CONFIG) as hub:
        hub.wait_connected("other", "third")
        assert hub.post("/api/policies", {"name": "mine", "text": POLICY}).get("ok")
        made = Rig(hub)
        headers = {"Authorization": f"Bearer {made.keys['leaver']}"}
        until(lambda: wire.get(f"{hub.url}/api/status", headers).status == 200)
        yield made


@pytest.mark.parametrize(
    "trigger",
    [
        "{type: event, event: post-verb}",
        "{type: schedule, every: 1h}",
        "{type: webhook, secret: 'env:DRAGOMAN_AGENT_HOOK'}",
    ],
)
def test_a_trigger_needs_the_right_to_call(rig: Rig, trigger: str) -> None:
    source = f"triggers: [{trigger}]{CALLS.replace('NAME', 'other')}"
    refused = rig.write("writer", "started", source)
    assert (refused.status, refused.json()["error"]["scope"]) == (403, "call"), refused.body
    assert rig.hub.get("/api/workflows/started").status == 404
    assert rig.write("writer", "manual", CALLS.replace("NAME", "other")).status == 200


def test_a_triggered_run_may_do_what_the_author_may(rig: Rig) -> None:
    written = rig.write("author", "allowed", TRIGGERED + CALLS.replace("NAME", "other"))
    assert written.status == 200, written.body
    run = rig.fire("allowed")
    assert (run["state"], run["startedBy"]) == ("completed", "workflow:allowed"), run["problem"]
    written = rig.write("author", "forbidden", TRIGGERED + CALLS.replace("NAME", "third"))
    run = rig.fire("forbidden")
    assert run["state"] == "failed"
    assert '"key:author", for whom workflow "forbidden" calls it' in str(run["problem"])


def test_a_run_that_a_trigger_of_the_owner_started_acts_for_the_author_of_its_child(
    rig: Rig,
) -> None:
    assert rig.write("author", "forbidden", CALLS.replace("NAME", "third")).status == 200
    for name, source in {"parent": STARTS, "plain": CALLS.replace("NAME", "third")}.items():
        file = rig.hub.home / "workflows" / f"{name}.yaml"
        file.write_text(TRIGGERED + source, encoding="utf-8")
        file.chmod(0o600)
    until(lambda: len(rig.hub.api("/api/workflows")["workflows"]) >= 3)
    until(lambda: rig.hub.get("/api/workflows/parent").status == 200)
    run = rig.fire("parent")
    assert run["state"] == "failed" and '"key:author"' in str(run), run
    assert rig.fire("plain")["state"] == "completed"  # no author stands behind it


def test_a_triggered_run_of_an_author_who_was_removed_does_nothing(rig: Rig) -> None:
    written = rig.write("leaver", "left", TRIGGERED + CALLS.replace("NAME", "other"))
    assert written.status == 200, written.body
    assert rig.fire("left")["state"] == "completed"
    assert rig.hub.command("keys", "revoke", "leaver").returncode == 0
    run = rig.fire("left")
    assert run["state"] == "failed"
    assert '"key:leaver", for whom it runs, is not served any more' in str(run)


def test_a_definition_whose_author_is_unknown_is_not_started(rig: Rig) -> None:
    """As of an earlier version. The caller of the API cannot name another author."""
    file = rig.hub.home / "workflows" / "older.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"{TRIGGERED}{CALLS.replace('NAME', 'other')}{MARK}\n", encoding="utf-8")
    file.chmod(0o600)
    until(lambda: rig.hub.get("/api/workflows/older").status == 200)
    assert "triggers act for its author" in rig.fire_refused("older")
    forged = f'{MARK} Author: {{"kind": "owner", "id": "owner", "org": "default"}}\n'
    source = TRIGGERED + CALLS.replace("NAME", "third") + forged
    assert rig.write("author", "older", source).status == 200
    text = file.read_text(encoding="utf-8")
    assert text.count(MARK) == 1 and '"author"' in text
    assert rig.fire("older")["state"] == "failed"
