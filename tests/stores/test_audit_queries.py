"""Search, traces and the summary of the audit log."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from dragoman.core.audit_queries import RecordQuery
from dragoman.stores.audit import queries
from dragoman.stores.audit.log import SqliteAuditLog
from dragoman.stores.audit.queries import list_traces, search_records, summarize_calls


def write(home: Path, rows: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    log = SqliteAuditLog(home)
    for intent, conclusion in rows:
        entry = {"caller": "key:anna", "org": "default", "door": "mcp-http", "depth": 0, **intent}
        log.conclude(log.intend(entry), {"outcome": "completed", "duration_ms": 5.0, **conclusion})
    log.close()


def call(number: int, **more: Any) -> dict[str, Any]:
    return {"verb": "git.log", "target": "git", "trace": f"{number:032x}", "args_mac": "m", **more}


@pytest.mark.promise("U7")
def test_search_finds_by_every_member_and_goes_on_page_by_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[tuple[dict[str, Any], dict[str, Any]]] = [(call(n), {}) for n in range(30)]
    rows[7] = (
        call(7, caller="key:bert", verb="Naïve.Tool"),
        {"outcome": "refused", "decision": "deny", "message": 'no "policy"'},
    )
    rows[9] = (call(9, org="other"), {})
    write(tmp_path, rows)

    def find(**wanted: Any) -> list[str]:
        found, more = search_records(tmp_path, RecordQuery(**wanted), None, 100)
        assert more is None
        return [row["trace"][-2:] for row in found]

    assert find()[:3] == ["1d", "1c", "1b"] and len(find()) == 30
    for wanted in (
        {"caller": "key:bert"},
        {"verb": "Naïve.Tool"},
        {"outcome": "refused"},
        {"decision": "deny"},
        {"text": "naÏve"},
        {"text": "BERT"},
        {"text": 'no "pol'},
        {"trace": f"{7:032x}"[:31] + "7"},
        {"caller": "key:bert", "org": "default"},
    ):
        assert find(**wanted) == ["07"], wanted
    assert find(caller="key:anna", org="other") == ["09"]
    assert find(text="nosuch") == find(until=1.0) == find(since=1e10) == find(agent="x") == []
    assert len(find(agent="git")) == 30
    row = search_records(tmp_path, RecordQuery(), None, 1)[0][0]
    assert "args_mac" not in row and row["at"].endswith("Z") and row["outcome"] == "completed"

    pages, before = [], None
    while True:
        found, before = search_records(tmp_path, RecordQuery(), before, 7)
        pages.append(len(found))
        if before is None:
            break
    assert pages == [7, 7, 7, 7, 2]
    monkeypatch.setattr(queries, "MAX_READ", 10)
    found, before = search_records(tmp_path, RecordQuery(caller="key:bert"), None, 5)
    assert found == [] and before is not None  # it goes on there
    found, before = search_records(tmp_path, RecordQuery(caller="key:bert"), before, 5)
    assert found == [] and before is not None
    assert len(search_records(tmp_path, RecordQuery(caller="key:bert"), before, 5)[0]) == 1


@pytest.mark.promise("U7")
def test_traces_and_map_join_the_hops_of_a_chain(tmp_path: Path) -> None:
    outer = {"verb": "helper.ask", "target": "helper", "trace": "a" * 32}
    inner = {
        "verb": "git.log",
        "target": "git",
        "trace": "a" * 32,
        "depth": 1,
        "chain": ["helper.ask"],
    }
    write(
        tmp_path,
        [
            (outer, {"duration_ms": 50.0}),
            (inner, {"outcome": "target_failed", "duration_ms": 20.0, "message": "git is gone"}),
            (call(1), {"outcome": "refused", "shadow": {"decision": "deny"}}),
            ({"verb": "pin.approve", "asked_as": "git"}, {}),  # no call
        ],
    )
    traces, more = list_traces(tmp_path, RecordQuery(), None, 10)
    assert more is None
    assert [
        (one["trace"][0], one["verb"], one["calls"], one["failed"], one["refused"])
        for one in traces
    ] == [("0", "git.log", 1, 0, 1), ("a", "helper.ask", 2, 1, 0)]
    assert [one["problem"] for one in traces] == [None, "git is gone"]
    (shadowed,) = search_records(tmp_path, RecordQuery(decision="shadow"), None, 9)[0]
    assert shadowed["trace"][0] == "0" and abs(shadowed["time"] - time.time()) < 60
    first, more = list_traces(tmp_path, RecordQuery(), None, 1)
    assert len(first) == 1 and more is not None
    assert [one["trace"][0] for one in list_traces(tmp_path, RecordQuery(), more, 5)[0]] == ["a"]

    found = summarize_calls(tmp_path, RecordQuery(), 5)
    edges = {(one["from"], one["to"]): one for one in found["edges"]}
    assert edges.keys() == {("key:anna", "helper"), ("helper", "git"), ("key:anna", "git")}
    assert (edges["helper", "git"]["failed"], edges["key:anna", "git"]["refused"]) == (1, 1)
    assert edges["key:anna", "helper"]["p95_ms"] == 50.0
    assert {node["id"]: node["kind"] for node in found["nodes"]} == {
        "key:anna": "client",
        "helper": "server",
        "git": "server",
    }
    assert summarize_calls(tmp_path, RecordQuery(caller="key:bert"), 5)["edges"] == []
