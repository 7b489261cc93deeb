"""`policy`: files without a hub, queries with one."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from tests.cli.terminal import WAIT_SECONDS, Terminal
from tests.peers.process import server_entry

ROOT = Path(__file__).parent.parent.parent
HELLO = ROOT / "examples" / "hello" / "hello_server.py"
EXAMPLES = ROOT / "examples" / "policies"
NO_ADDING = """
@id("no-adding")
@why("sums are for people")
forbid (principal, action in Hub::Action::"any_call", resource == Hub::Tool::"hello.add");
"""


def hello() -> str:
    return server_entry("hello", "stdio", "python3", str(HELLO))


def until(terminal: Terminal, snapshot: str) -> None:
    """A running hub has taken up what is in the folder."""
    end = time.monotonic() + WAIT_SECONDS
    while terminal.quick("policy", "list", "--json").json()["hub"]["snapshot"] != snapshot:
        assert time.monotonic() < end, "the hub did not take the folder up"


@pytest.mark.promise("R11")
def test_policies_are_exported_checked_switched_and_listed_offline(
    terminal: Terminal,
) -> None:
    first = terminal.quick("policy", "list")
    assert first.code == 0 and "default policies apply" in first.out
    assert not terminal.home.exists()
    made = terminal.quick("policy", "init")
    policies = terminal.home / "policies"
    assert made.code == 0 and str(policies / "default.cedar") in made.out
    assert "already exists" in terminal.quick("policy", "init").out
    (policies / "mine.cedar").write_text(NO_ADDING)
    checked = terminal.quick("policy", "check")
    assert checked.code == 0 and "ok: 3 policies, 0 decisions" in checked.out
    # There is no server "hello" here: a slip, or one that is still to come.
    assert 'mine.cedar:2: warning: no-adding: it names an unknown Tool::"hello.add"' in checked.out
    terminal.configure(hello())
    assert "warning" not in terminal.quick("policy", "check").out

    assert terminal.quick("policy", "disable", "mine").code == 0
    assert sorted(file.name for file in policies.iterdir()) == ["default.cedar", "mine.cedar.off"]
    listed = terminal.quick("policy", "list").out
    assert "mine     off    forbid  no-adding" in listed and "default  on     permit" in listed
    assert terminal.quick("policy", "enable", "mine.cedar").code == 0
    assert (policies / "mine.cedar").exists()
    near = terminal.quick("policy", "disable", "mien")
    assert near.code == 5 and 'did you mean "mine"?' in near.err
    rows = terminal.quick("policy", "list", "--json").json()
    assert rows["ok"] and rows["hub"] is None
    assert [(each["name"], each["enabled"]) for each in rows["files"]] == [
        ("default", True),
        ("mine", True),
    ]


@pytest.mark.promise("R11")
def test_policy_check_reports_file_and_line(terminal: Terminal) -> None:
    draft = terminal.user / "draft"
    draft.mkdir()
    (draft / "a.cedar").write_text('\n@id("x") permit (principal, action, resource);\n')
    (draft / "b.cedar").write_text(NO_ADDING + NO_ADDING.replace("any_call", "any_cal"))
    done = terminal.quick("policy", "check", "draft")
    assert done.code == 7 and "are invalid" in done.err
    lines = done.out.splitlines()
    assert any(line.startswith("a.cedar:2: x: it permits everything") for line in lines), lines
    assert any(
        line.startswith("b.cedar:6: no-adding: ") and "already exists" in line for line in lines
    )
    assert any(line.startswith("b.cedar:6: no-adding: ") and "any_cal" in line for line in lines)
    programs = terminal.quick("policy", "check", "draft", "--json")
    assert programs.code == 7 and not programs.json()["ok"]
    assert {each["file"] for each in programs.json()["findings"]} == {"a.cedar", "b.cedar"}
    assert terminal.quick("policy", "check", "nowhere").code == 2


@pytest.mark.promise("R11")
def test_policy_test_runs_golden_decisions(terminal: Terminal) -> None:
    shutil.copytree(EXAMPLES / "first", terminal.user / "draft")
    done = terminal.quick("policy", "test", "draft")
    assert done.code == 0 and done.out.count("ok  ") == 5
    (terminal.user / "draft" / "mine.cedar").write_text("")
    failed = terminal.quick("policy", "test", "draft")
    assert failed.code == 7 and "1 of 5 failed" in failed.err
    assert "FAILED  a key may not destroy\n    expected deny, got permit" in failed.out
    assert terminal.quick("policy", "check", "draft").code == 7
    empty = terminal.user / "empty"
    empty.mkdir()
    assert "no golden decisions" in terminal.quick("policy", "test", "empty").out


def test_broken_policy_set_is_repaired_step_by_step(terminal: Terminal) -> None:
    terminal.quick("policy", "init")
    policies = terminal.home / "policies"
    (policies / "a.cedar.off").write_text("permit (")
    refused = terminal.quick("policy", "enable", "a")
    assert refused.code == 7 and "a.cedar:1" in refused.err
    assert (policies / "a.cedar.off").exists()
    for name in ("a", "b"):
        (policies / f"{name}.cedar").write_text("permit (")
    (policies / "a.cedar.off").unlink()
    first = terminal.quick("policy", "disable", "a")
    assert first.code == 0 and "b.cedar:1" in first.err and "still invalid" in first.err
    second = terminal.quick("policy", "disable", "b")
    assert second.code == 0 and not second.err
    assert terminal.quick("policy", "check").code == 0
    assert "every call is denied" in terminal.quick("policy", "disable", "default").err


def test_hub_does_not_start_with_an_unusable_policy_set(terminal: Terminal) -> None:
    terminal.quick("policy", "init")
    (terminal.home / "policies" / "mine.cedar").write_text("permit (")
    done = terminal.quick("up", "--quiet", "--port", "0")
    assert done.code == 7 and "mine.cedar:1" in done.err


@pytest.mark.promise("R11")
def test_policy_queries_are_answered_by_the_running_hub(terminal: Terminal) -> None:
    terminal.configure(hello())
    terminal.quick("policy", "init")
    terminal.quick("keys", "create", "ci")
    terminal.up()
    allowed = terminal.quick("policy", "explain", "key:ci", "mcp_hello_add")
    assert allowed.code == 0 and allowed.out.startswith("allowed: key:ci may call hello.add\n")
    assert (
        "permitted by  everybody: authenticated principals may use everything, but not administer"
        in allowed.out
    )

    slip = terminal.user / "slip"
    slip.mkdir()
    (slip / "a.cedar").write_text(NO_ADDING.replace("hello.add", "hello.ad"))
    assert 'an unknown Tool::"hello.ad"' in terminal.quick("policy", "check", "slip").out

    (terminal.home / "policies" / "mine.cedar").write_text(NO_ADDING)
    until(terminal, terminal.quick("policy", "check", "--json").json()["snapshot"])
    denied = terminal.quick("policy", "explain", "key:ci", "hello.add")
    assert denied.code == 4 and denied.out.startswith("denied: key:ci may not call hello.add\n")
    assert "forbidden by  no-adding: sums are for people" in denied.out
    assert (
        "needed: add an exception to the forbidding policy, or remove it: no-adding (mine.cedar:2)"
        in denied.out
    )
    called = terminal.quick("call", "hello.add", "a=1", "b=2")
    assert called.code == 4 and "a policy forbids" in called.err

    deep = terminal.quick("policy", "explain", "owner:owner", "hello.greet", "--depth", "9")
    assert deep.code == 4 and "depth-breaker (guardrail)" in deep.out
    admin = terminal.quick("policy", "explain", "key:ci", "-", "--action", "admin")
    assert admin.code == 4 and 'permit (\n    principal == Hub::User::"key:ci",' in admin.out
    as_owner = ("policy", "explain", "key:ci", "-", "--action", "admin", "--role", "owner")
    assert terminal.quick(*as_owner).code == 0
    nobody = terminal.quick("policy", "explain", "key:co", "hello.add")
    assert nobody.code == 5 and 'did you mean "key:ci"?' in nobody.err

    who = terminal.quick("policy", "who-can", "hello.greet")
    assert [line.split()[:3] for line in who.out.splitlines()] == [
        ["PRINCIPAL", "CALL", "LISTED"],
        ["owner:owner", "yes", "yes"],
        ["key:ci", "yes", "yes"],
    ]
    what = terminal.quick("policy", "what-can", "key:ci").out
    assert sorted(line.split()[:3] for line in what.splitlines()[1:]) == [
        ["hello.add", "no", "no"],
        ["hello.countdown", "yes", "yes"],
        ["hello.greet", "yes", "yes"],
    ]
    only = terminal.quick("policy", "what-can", "key:ci", "--denied", "--json").json()["tools"]
    assert [(each["name"], each["policies"]) for each in only] == [("hello.add", ["no-adding"])]


@pytest.mark.promise("R11")
def test_invalid_set_never_replaces_a_valid_one(terminal: Terminal) -> None:
    terminal.configure(hello())
    terminal.quick("policy", "init")
    terminal.up()
    good = terminal.quick("policy", "list", "--json").json()["hub"]["snapshot"]
    (terminal.home / "policies" / "mine.cedar").write_text("forbid (")
    end = time.monotonic() + WAIT_SECONDS
    while not (hub := terminal.quick("policy", "list", "--json").json()["hub"])["problem"]:
        assert time.monotonic() < end, "the hub has not seen it"
    assert hub["snapshot"] == good and "mine.cedar:1" in hub["problem"]
    assert "keeps its old policies" in terminal.quick("policy", "list").err
    assert terminal.quick("call", "hello.add", "a=1", "b=2").out == "3\n"


@pytest.mark.promise("R11")
def test_draft_is_replayed_on_the_audit(terminal: Terminal) -> None:
    terminal.configure(hello())
    terminal.quick("policy", "init")
    terminal.up()
    for _ in range(2):
        terminal.quick("call", "hello.add", "a=1", "b=2")
    terminal.quick("call", "hello.greet", "name=Ann")
    terminal.wait_until_recorded(3)
    draft = terminal.user / "draft"
    shutil.copytree(terminal.home / "policies", draft)
    same = terminal.quick("policy", "replay", "--since", "1h", "--draft", "draft")
    assert same.code == 0 and same.out == "3 calls replayed, 0 with a different decision\n"
    (draft / "mine.cedar").write_text(NO_ADDING)
    done = terminal.quick("policy", "replay", "--since", "1h", "--draft", "draft")
    assert done.code == 0, done.err
    head, row, total = done.out.splitlines()
    assert head.startswith("CHANGE") and "owner:owner  hello.add  2" in row
    assert row.startswith("permit → deny") and row.endswith("everybody, owner  no-adding")
    assert total == "3 calls replayed, 2 with a different decision"
    found = terminal.quick(
        "policy", "replay", "--since", "2020-01-01", "--draft", "draft", "--json"
    )
    (flip,) = found.json()["flips"]
    assert flip["count"] == 2 and flip["policies"] == ["no-adding"]
    assert terminal.quick("policy", "replay", "--since", "soon", "--draft", "draft").code == 2
    (draft / "mine.cedar").write_text("forbid (")
    bad = terminal.quick("policy", "replay", "--since", "1h", "--draft", "draft")
    assert bad.code == 7 and "mine.cedar:1" in bad.err
    assert terminal.quick("call", "hello.add", "a=1", "b=2").out == "3\n"


def test_minimal_policy_is_proposed(terminal: Terminal) -> None:
    terminal.configure(hello())
    terminal.up()
    terminal.quick("call", "hello.add", "a=1", "b=2")
    terminal.wait_until_recorded(1)
    done = terminal.quick("policy", "propose", "--since", "1h")
    assert done.code == 0 and done.out.startswith("// What was needed, and no more; calls: 1.")
    (terminal.user / "draft").mkdir()
    (terminal.user / "draft" / "least.cedar").write_text(done.out)
    assert terminal.quick("policy", "check", "draft").code == 0
    replayed = terminal.quick("policy", "replay", "--since", "1h", "--draft", "draft")
    assert replayed.out == "1 call replayed, 0 with a different decision\n"


FILES = ["list", "enable", "disable", "check", "test"]
QUESTIONS = ["explain", "who-can", "what-can", "replay", "propose"]


@pytest.mark.parametrize("command", FILES + QUESTIONS)
def test_every_policy_command_has_help_with_examples(terminal: Terminal, command: str) -> None:
    done = terminal.quick("policy", command, "--help")
    assert done.code == 0 and len(done.out) > 200
    assert command in terminal.quick("policy", "--help").out


def test_policy_commands_print_json(terminal: Terminal) -> None:
    terminal.configure(hello())
    for args in (
        ("list",),
        ("check",),
        ("test",),
        ("who-can", "hello.add"),
        ("what-can", "owner:owner"),
        ("explain", "owner:owner", "hello.add"),
    ):
        done = terminal.quick("policy", *args, "--json")
        assert done.code == 0 and isinstance(json.loads(done.out), dict), (args, done)
