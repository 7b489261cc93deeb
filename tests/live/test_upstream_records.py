"""Every call is recorded once, however it ends; and what is one too many is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.live.conftest import RunningHub
from tests.live.lasting import kind_of, text_of, until, words_of
from tests.live.test_healing import odd_entry
from tests.peers import wire
from tests.peers.process import HttpPeer, server_entry, wait_for_log

Start = Callable[..., RunningHub]


def test_each_call_has_one_record_that_says_how_it_ended(
    hub: Start, http_peer: Callable[..., HttpPeer], short_tmp: Path
) -> None:
    log = short_tmp / "odd.log"
    peer = http_peer("sdk_server", "--transport", "http", "--json-response")
    running = hub(
        [
            odd_entry("odd", "plain", log, timeout_secs=1.5),
            server_entry("sdk", "http", peer.url),
            server_entry("exits", "rude_server", "exit-at-call"),
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
    assert kind_of(running.call("no.such")) == "NotFound"
    assert text_of(running.call("sdk.do-thing")) == "do-thing"
    assert kind_of(running.call("sdk.echo", {"text": [5]})) == "InvalidInput"
    assert kind_of(running.call("odd.hang")) == "TimedOut"
    assert kind_of(running.call("exits.echo")) == "Unreachable"
    with running.relay() as ide, ThreadPoolExecutor(1) as pool:
        ide.initialize()
        ide.send(wire.request(1, "tools/call", {"name": "odd.hang"}))
        wait_for_log(log, params={"name": "hang", "arguments": {}}, count=2)
        refused = pool.submit(running.call, "odd.echo", {"text": "x"}).result(5)
        assert kind_of(refused) == "Full"
        assert "1 calls are running; try again shortly" in words_of(refused)
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


def test_what_left_no_mark_on_a_server_is_recorded_too_and_the_next_call_is_served(
    hub: Start,
) -> None:
    running = hub(
        [server_entry("ok", "rude_server", "ok")], config="[limits]\ncalls_in_flight = 1\n"
    )
    running.wait_connected("ok")
    for number in range(20):  # one after the other is never one too many
        assert text_of(running.call("ok.echo", {"text": str(number)})) == str(number)
    assert len(running.audit()) == 20
