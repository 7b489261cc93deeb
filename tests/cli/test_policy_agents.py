"""`policy` knows the hub's own agents as principals."""

from __future__ import annotations

import shutil

from tests.cli.terminal import Terminal
from tests.cli.test_demo import wait_until_ready

FORBID = """
@id("guide-asks-nobody")
forbid (
  principal == Hub::Agent::"guide",
  action in Hub::Action::"any_call",
  resource == Hub::Tool::"librarian.message"
);
"""


def test_queries_and_replay_know_the_agents_of_the_hub(terminal: Terminal) -> None:
    terminal.up("--demo")
    wait_until_ready(terminal)
    assert terminal.run("chat", "guide", input="What is a pin?\n").code == 0
    terminal.wait_until_recorded(3)

    explained = terminal.quick("policy", "explain", "agent:guide", "librarian.message")
    assert explained.code == 0, explained.err
    assert explained.out.startswith("allowed: agent:guide may call librarian.message\n")
    refused = terminal.quick("policy", "explain", "agent:guide", "glossary.define")
    assert refused.code == 4
    assert 'denied: the manifest of agent "guide" does not grant "glossary.define"' in refused.out
    assert terminal.quick("policy", "explain", "agent:guid", "glossary.define").code == 5

    who = terminal.quick("policy", "who-can", "glossary.define").out
    rows = [line.split()[:3] for line in who.splitlines()]
    assert ["agent:librarian", "yes", "yes"] in rows
    assert ["agent:guide", "no", "no"] in rows
    what = terminal.quick("policy", "what-can", "agent:librarian", "--json").json()["tools"]
    assert [each["name"] for each in what if each["allowed"]] == [
        "glossary.define",
        "glossary.list_terms",
    ]

    terminal.quick("policy", "init")
    draft = terminal.user / "draft"
    shutil.copytree(terminal.home / "policies", draft)
    (draft / "agents.cedar").write_text(FORBID)
    replayed = terminal.quick("policy", "replay", "--since", "1h", "--draft", "draft", "--json")
    found = replayed.json()
    assert found["judged"] == 3 and found["skipped"] == {}
    (flip,) = found["flips"]
    assert (flip["caller"], flip["verb"]) == ("agent:guide", "librarian.message")
    assert flip["policies"] == ["guide-asks-nobody"]

    assert "warning" not in terminal.quick("policy", "check", "draft").out
    assert terminal.quick("stop").code == 0
    assert "warning" not in terminal.quick("policy", "check", "draft").out  # from the manifests
