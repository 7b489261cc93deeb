"""Every call is recorded once with its outcome; excess calls are refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.live.conftest import RunningHub
from tests.live.module_hub import error_kind, error_text, text_of, until
from tests.live.test_recovery import quirky_entry
from tests.peers import wire
from tests.peers.process import HttpPeer, server_entry, wait_for_log

Start = Callable[..., RunningHub]


def test_each_call_has_one_record_with_its_outcome(
    hub: Start, http_peer: Callable[..., HttpPeer], short_tmp: Path
) -> None:
    log = short_tmp / "odd.log"
    peer = http_peer("sdk_server", "--transport", "http", "--json-response")
    running = hub(
        [
            quirky_entry("odd", "plain", log, timeout_secs=1.5),
            server_entry("sdk", "http", peer.url),
            server_entry("exits", "faulty_server", "exit-at-call"),
        ],
        config='[limits]\ncalls_in_flight = 1\n[mcp]\nstdio_expose = ["*"]\n',
    )
    running.wait_connected("odd", "sdk", "exits")
    expected = [
        ("sdk.echo", "mcp_sdk_echo", "completed", None),
        ("sdk.fail", "sdk.fail", "failed", None),
        ("no.such", "no.such", "not_found", "NotFound"),
        ("sdk.do_thing", "sdk.do-thing", "completed", None),
        ("sdk.echo", "sdk.echo", "invalid", "InvalidInput"),
        ("odd.hang", "odd.hang", "target_failed", "TimedOut"),
        ("exits.echo", "exits.echo", "target_failed", "Unreachable"),
        ("odd.hang", "odd.hang", "cancelled", None),
        ("odd.echo", "odd.echo", "refused", "Full"),
    ]
    assert text_of(running.call("mcp_sdk_echo", {"text": "private words"})) == "private words"
    assert running.call("sdk.fail")["result"]["isError"] is True
    assert error_kind(running.call("no.such")) == "NotFound"
    assert text_of(running.call("sdk.do-thing")) == "do-thing"
    assert error_kind(running.call("sdk.echo", {"text": [5]})) == "InvalidInput"
    assert error_kind(running.call("odd.hang")) == "TimedOut"
    assert error_kind(running.call("exits.echo")) == "Unreachable"
    with running.relay() as ide, ThreadPoolExecutor(1) as pool:
        ide.initialize()
        ide.send(wire.request(1, "tools/call", {"name": "odd.hang"}))
        wait_for_log(log, params={"name": "hang", "arguments": {}}, count=2)
        refused = pool.submit(running.call, "odd.echo", {"text": "x"}).result(5)
        assert error_kind(refused) == "Full"
        assert "1 calls are running; try again shortly" in error_text(refused)
        ide.notify("notifications/cancelled", {"requestId": 1})
        wait_for_log(log, method="notifications/cancelled", count=2)

    def settled() -> list[tuple[str, str, str | None, str | None]] | None:
        records = running.audit()
        found = [(r["verb"], r["asked_as"], r.get("outcome"), r.get("error")) for r in records]
        return found if all(outcome for _, _, outcome, _ in found) else None

    found = until(settled)
    assert Counter(found) == Counter(expected)
    assert len({record["trace"] for record in running.audit()}) == len(expected)
    assert "private words" not in str(running.audit())


def test_unsent_call_is_recorded_and_the_next_is_served(
    hub: Start,
) -> None:
    running = hub(
        [server_entry("ok", "faulty_server", "ok")], config="[limits]\ncalls_in_flight = 1\n"
    )
    running.wait_connected("ok")
    for number in range(20):  # one after the other is never one too many
        assert text_of(running.call("ok.echo", {"text": str(number)})) == str(number)
    assert len(running.audit()) == 20
