"""`workflows` without a hub: new, check, list, show, graph."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.terminal import Terminal


@pytest.mark.promise("R14")
def test_workflows_are_written_checked_shown_and_drawn(terminal: Terminal, tmp_path: Path) -> None:
    assert "there are no workflows" in terminal.quick("workflows", "list").err
    made = terminal.quick("workflows", "new", "hello")
    file = terminal.home / "workflows" / "hello.yaml"
    assert made.code == 0 and f"wrote {file}" in made.out, made.err
    assert "already" in terminal.quick("workflows", "new", "hello").err
    assert terminal.quick("workflows", "new", "a b").code == 2
    assert terminal.quick("workflows", "check").out == "ok: hello.yaml: hello, 3 steps\n"
    assert "hello" in terminal.quick("workflows", "list").out
    shown = terminal.quick("workflows", "show", "hello").out
    assert "input who (optional): Whom to greet." in shown and "├─╯" in shown
    assert "├─╯" in terminal.quick("workflows", "graph", "hello").out
    mermaid = terminal.quick("workflows", "graph", str(file), "--mermaid").out
    assert mermaid.startswith("flowchart TD")
    nodes = terminal.quick("workflows", "graph", "hello", "--json").json()["nodes"]
    assert [one["id"] for one in nodes] == ["greet", "ask", "shout"]

    bad = tmp_path / "bad.yaml"
    bad.write_text("steps:\n  - id: a\n    nodeId: agent.invok\n", encoding="utf-8")
    words = 'bad.yaml:3: "nodeId": unknown node "agent.invok"; did you mean "agent.invoke"?'
    checked = terminal.quick("workflows", "check", "hello", str(bad))
    assert checked.code == 1
    assert f"error: {bad.parent}/{words}" in checked.out and "ok: hello.yaml" in checked.out
    report = terminal.quick("workflows", "check", str(bad), "--json")
    assert report.code == 1
    assert json.loads(report.out)["workflows"][0]["problems"][0]["line"] == 3
    (terminal.home / "workflows" / "bad.yaml").write_text(bad.read_text(), encoding="utf-8")
    assert words in terminal.quick("workflows", "list").out
    assert terminal.quick("workflows", "list", "--json").json()[0]["state"] == "invalid"
    assert words in terminal.quick("workflows", "show", "bad").err
    for gone in ("helo", "./gone.yaml"):
        assert terminal.quick("workflows", "show", gone).code == 5
