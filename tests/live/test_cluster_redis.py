"""Two hubs of a cluster that also use a real Valkey: one rate limit, and messages by Redis."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.live.cluster_rig import Cluster, run_cluster
from tests.live.module_hub import run_concurrently, until
from tests.peers import wire
from tests.peers.valkey_server import ValkeyServer, run_valkey

pytestmark = pytest.mark.promise("O2")

BURST, PER_SECOND = 100, 60
CONFIG = f"""[redis]
url = "URL"
[limits.rate]
owner_per_minute = {PER_SECOND * 60}
owner_burst = {BURST}
"""


@pytest.fixture
def valkey() -> Iterator[ValkeyServer]:
    with run_valkey() as server:
        yield server


@pytest.fixture
def cluster(valkey: ValkeyServer) -> Iterator[Cluster]:
    with run_cluster(2, config=CONFIG.replace("URL", valkey.url)) as running:
        yield running


def test_hubs_of_a_cluster_have_one_limit_and_send_messages_by_redis(
    cluster: Cluster, valkey: ValkeyServer
) -> None:
    urls = [one.url for one in cluster.hubs]

    def is_up() -> bool:
        texts = [wire.get(f"{url}/metrics", cluster.headers).body for url in urls]
        return all(b"dragoman_redis_up 1" in text for text in texts)

    until(is_up, 60.0)
    assert valkey.query("PUBSUB", "NUMSUB", "dragoman:bus").endswith(b":2\r\n")
    valkey.command("FLUSHALL")
    begun = time.monotonic()

    refused: list[int] = []

    def call(number: int) -> int:
        admitted = turn = 0
        while (passed := time.monotonic() - begun) < 1.5 or (not refused and passed < 20):
            turn += 1
            status = wire.get(f"{urls[(number + turn) % 2]}/api/tools", cluster.headers).status
            assert status in (200, 429)
            admitted += status == 200
            refused.extend([number] * (status == 429))
        return admitted

    found = run_concurrently(call, 6)
    limit = BURST + PER_SECOND * (time.monotonic() - begun)
    # A busy machine may send few, but some more than the limit.
    assert BURST / 2 < sum(found) <= 1.2 * limit
    assert refused
