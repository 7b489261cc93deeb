"""The schedules of agents belong to the cluster: one hub fires each time, and every hub knows."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.live.cluster_rig import run_cluster
from tests.live.conftest import RunningHub
from tests.live.module_hub import until
from tests.peers.scripted_model import running_model, say

pytestmark = pytest.mark.promise("T2")

MANIFEST = """
[model]
model = "m"
base_url = "{url}"
[[schedule]]
time = "0 4 1 1 *"
message = "tick"
"""


def list_schedules(hub: RunningHub) -> list[dict[str, Any]]:
    agents = hub.api("/api/agents")["agents"]
    return [one for agent in agents for one in agent["schedules"]]


def test_time_of_an_agent_is_fired_by_one_hub_and_known_to_all() -> None:
    with running_model() as model, run_cluster(2) as cluster:
        model.rules.append(("", say("done")))
        for hub in cluster.hubs:
            folder = hub.home / "agents" / "clock"
            folder.mkdir(parents=True)
            text = MANIFEST.replace("{url}", model.url)
            (folder / "agent.toml").write_text(text, encoding="utf-8")
        until(lambda: all(list_schedules(hub) for hub in cluster.hubs), 60)
        with psycopg.connect(cluster.database, autocommit=True) as database:
            assert database.execute(
                "UPDATE dragoman.schedules SET next_at = 1, missed = 7 RETURNING source"
            ).fetchall() == [("manifest",)]
        until(
            lambda: all(
                [one.get("lastOutcome") for one in list_schedules(hub)] == ["completed"]
                for hub in cluster.hubs
            ),
            60,
        )
        shown = [list_schedules(hub) for hub in cluster.hubs]
        assert shown[0] == shown[1]
        assert len(model.requests) == 1
