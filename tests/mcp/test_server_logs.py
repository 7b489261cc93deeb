"""Attribution of server log lines: to their call, or to none where ambiguous."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.mcp.upstream_hub import Scripted, http, run_hub, stdio, until
from tests.peers.process import HttpPeer, read_log

from dragoman.core.call import LogMessage, WantedUpdates

Peers = Callable[..., HttpPeer]


def note(words: str, level: str = "info", **more: Any) -> dict[str, Any]:
    params = {"level": level, "data": words, **more}
    return {"method": "notifications/message", "params": params}


@pytest.mark.promise("B12")
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_each_http_call_gets_its_requested_logs(
    era: str, short_tmp: Path, http_peer: Peers
) -> None:
    log = short_tmp / "log"
    peer = http_peer("matrix_server", "--transport", "http", "--era", era, "--log", log)
    async with run_hub(short_tmp) as world:
        await world.add(http("m", peer.url))

        async def hear(key: str, level: str | None) -> list[Any]:
            received: list[Any] = []
            wanted = WantedUpdates(log_level=level)
            await world.call(
                "m.log", {"key": key}, updates=received.append, wanted_updates=wanted, client=key
            )
            return received

        a, b, c = await asyncio.gather(hear("a", "debug"), hear("b", "error"), hear("c", None))

        assert [(one.level, one.data["key"]) for one in a] == [
            (level, "a") for level in ("debug", "info", "warning", "error")
        ]
        assert [(one.level, one.data["key"]) for one in b] == [("error", "b")]
        assert a[0].logger == "matrix" and c == []
        await hear("a", "info")
        levels = [
            seen["params"]["level"]
            for seen in read_log(log)
            if seen.get("method") == "logging/setLevel"
        ]
        if era == "modern":
            assert levels == []
        else:
            assert levels[-1] == "debug" and len(levels) <= 2  # said once, the least grave last
        stamped = [
            (seen["params"].get("_meta") or {}).get("io.modelcontextprotocol/logLevel")
            for seen in read_log(log)
            if seen.get("method") == "tools/call"
        ]
        by_key = sorted(filter(None, stamped))
        assert by_key == (["debug", "error", "info"] if era == "modern" else [])


@pytest.mark.promise("B12")
async def test_sole_call_of_a_stream_gets_its_logs(short_tmp: Path) -> None:
    said = [note("one", "debug"), note("two"), {"method": "notifications/message", "params": {}}]
    said += [note("three", "error", logger="l")]
    server = Scripted(
        short_tmp,
        "legacy",
        {"tools/call": {"first": said, "content": []}, "logging/setLevel": {}},
        capabilities={"tools": {}, "logging": {}},
    )
    async with run_hub(short_tmp) as world:
        upstream = await world.add(server.entry())
        received: list[Any] = []
        how: dict[str, Any] = {"updates": received.append, "client": "a"}

        await world.call("s.t", wanted_updates=WantedUpdates(log_level="info"), **how)
        await world.call("s.t", wanted_updates=WantedUpdates(log_level="warning"), **how)
        await world.call("s.t")

        assert received == [
            LogMessage(level="info", data="two"),
            LogMessage(level="error", data="three", logger="l"),
            LogMessage(level="error", data="three", logger="l"),
        ]
        assert [one["params"]["level"] for one in server.sent("logging/setLevel")] == ["info"]
        lines = upstream.stderr.read_text().splitlines()
        assert lines == ["[debug] one"] * 2 + ["[info] two"] + [
            "[debug] one",
            "[info] two",
            "[error l] three",
        ]


@pytest.mark.promise("B12")
@pytest.mark.parametrize(
    ("others", "heard_by_b"), [(["a"], False), ([""], False), (["b"], True), (["b", "b"], True)]
)
async def test_ambiguous_log_line_goes_to_the_server_log_only(
    others: list[str], heard_by_b: bool, short_tmp: Path
) -> None:
    silent = {"silent": True}
    loud = {"first": [note("whose?")], "content": []}
    server = Scripted(short_tmp, "legacy", {"tools/call": [*([silent] * len(others)), loud]})
    async with run_hub(short_tmp) as world:
        upstream = await world.add(server.entry())
        received: dict[str, list[Any]] = {"a": [], "b": [], "": []}

        def call(client: str) -> asyncio.Task[Any]:
            how: dict[str, Any] = {"updates": received[client].append, "client": client}
            return asyncio.ensure_future(
                world.call("s.t", wanted_updates=WantedUpdates(log_level="info"), **how)
            )

        hanging = []
        for number, client in enumerate(others):
            hanging.append(call(client))

            def was_sent(number: int = number) -> bool:
                return len(server.sent("tools/call")) == number + 1

            await until(was_sent)
        await call("b")

        assert [one.data for one in received["b"]] == (["whose?"] if heard_by_b else [])
        assert received["a"] == received[""] == []
        assert ("whose?" in upstream.stderr.read_text()) is not heard_by_b
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)


@pytest.mark.promise("B12")
async def test_log_after_a_cancelled_call_is_not_attributed_to_another(
    short_tmp: Path,
) -> None:
    answers = [{"silent": True}, {"first": [note("of the first")], "content": []}]
    server = Scripted(short_tmp, "legacy", {"tools/call": answers})
    async with run_hub(short_tmp) as world:
        upstream = await world.add(server.entry())
        received: list[Any] = []
        how: dict[str, Any] = {
            "updates": received.append,
            "wanted_updates": WantedUpdates(log_level="info"),
        }
        first = asyncio.ensure_future(world.call("s.t", client="a", **how))
        await until(lambda: server.sent("tools/call"))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)

        await world.call("s.t", client="b", **how)
        assert received == [] and "of the first" in upstream.stderr.read_text()
        await world.call("s.t", client="a", **how)
        assert [one.data for one in received] == ["of the first"]


@pytest.mark.promise("B12")
async def test_progress_and_logs_are_requested_only_where_wanted(short_tmp: Path) -> None:
    async with run_hub(short_tmp) as world:
        log = short_tmp / "log"
        await world.add(stdio("m", "matrix_server", "--era", "modern", "--log", log))

        for wanted in (
            WantedUpdates(),
            WantedUpdates(progress=True),
            WantedUpdates(log_level="error"),
        ):
            await world.call("m.echo", {"text": "x"}, updates=lambda _: None, wanted_updates=wanted)
        await world.call("m.echo", {"text": "x"})

        metas = [
            seen["params"]["_meta"] for seen in read_log(log) if seen.get("method") == "tools/call"
        ]
        assert ["progressToken" in meta for meta in metas] == [False, True, False, False]
        key = "io.modelcontextprotocol/logLevel"
        assert [meta.get(key) for meta in metas] == [None, None, "error", None]
