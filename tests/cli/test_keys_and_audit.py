"""`keys` and `audit`."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import urllib.error
import urllib.request

import pytest
from tests.cli.terminal import WAIT_SECONDS, Terminal
from tests.peers.process import server_entry


def status_of(url: str, key: str = "") -> int:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{url}/api/status", headers=headers), timeout=60
        ) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return int(error.code)


@pytest.mark.promise("O1")
def test_key_is_created_shown_once_and_revoked(terminal: Terminal) -> None:
    made = terminal.quick("keys", "create", "laptop", "--expires", "1y", "--owner", "ann")
    key = made.out.strip()
    assert made.code == 0 and re.fullmatch(r"dgm_\w{8}_[\w-]{43}", key)
    assert key not in made.err and "Authorization: Bearer dgm_" in made.err
    listed = terminal.quick("keys", "list")
    assert listed.code == 0 and key not in listed.out
    assert re.search(r"laptop +\w{8} +ann +active", listed.out)
    hub = terminal.up()
    assert status_of(hub["url"]) == 401 and status_of(hub["url"], key) == 200
    revoked = terminal.quick("keys", "revoke", "laptop")
    assert revoked.code == 0 and "no active key is left" in revoked.err
    assert "revoked" in terminal.quick("keys", "list").out


def test_key_commands_print_json(terminal: Terminal) -> None:
    made = terminal.quick("keys", "create", "ci", "--expires", "never", "--json").json()
    assert made["name"] == "ci" and made["key"].startswith("dgm_") and made["expires_at"] is None
    (row,) = terminal.quick("keys", "list", "--json").json()
    assert row["name"] == "ci" and row["state"] == "active" and row["expires"] == "never"


@pytest.mark.promise("Q7")
def test_key_for_an_agent_names_it_and_an_unknown_agent_is_reported(terminal: Terminal) -> None:
    terminal.home.mkdir(mode=0o700)
    far = '[[a2a.external_agents]]\nname = "travel"\nurl = "https://t.example"\n'
    (terminal.home / "config.toml").write_text(far, encoding="utf-8")
    made = terminal.quick(
        "keys", "create", "k1", "--for", "travel", "--role", "ops", "--role", "qa"
    )
    assert made.code == 0 and made.out.startswith("dgm_") and "unknown" not in made.err
    typo = terminal.quick("keys", "create", "k2", "--for", "travle", "--scope", "a", "--scope", "b")
    told = "every HTTP client needs one now"
    assert told in made.err and told not in typo.err
    assert typo.code == 0 and 'unknown server or agent "travle"' in typo.err
    first, second = terminal.quick("keys", "list", "--json").json()
    assert (first["for"], first["roles"], first["scopes"]) == ("travel", ["ops", "qa"], ["call"])
    assert (second["for"], second["roles"], second["scopes"]) == ("travle", [], ["a", "b"])
    assert re.search(r"k1 .* travel +ops, qa +call", terminal.quick("keys", "list").out)
    made = terminal.quick("keys", "create", "k3", "--for", "travel", "--json").json()
    assert (made["for"], made["roles"], made["scopes"]) == ("travel", [], ["call"])
    for wrong in (["--for", ""], ["--role", "a b"], ["--scope", ""]):
        done = terminal.quick("keys", "create", "k4", *wrong)
        assert done.code == 2 and len(done.err.splitlines()) == 1, done.err


def test_listing_keys_creates_no_files(terminal: Terminal) -> None:
    assert "dragoman keys create" in terminal.quick("keys", "list").out
    assert terminal.quick("keys", "list", "--json").json() == []
    assert terminal.quick("keys", "revoke", "x").code == 5
    assert not terminal.home.exists()


@pytest.mark.parametrize("expires", ["x", "90", "-1d", "1.5h", "0d", "999999y", "", "1d2h"])
def test_invalid_expiry_is_refused(terminal: Terminal, expires: str) -> None:
    done = terminal.quick("keys", "create", "a", f"--expires={expires}")
    assert done.code == 2 and len(done.err.splitlines()) == 1
    assert "a" not in [row["name"] for row in terminal.quick("keys", "list", "--json").json()]


def test_key_names_are_unique_and_unknown_ones_get_a_suggestion(terminal: Terminal) -> None:
    terminal.quick("keys", "create", "laptop")
    again = terminal.quick("keys", "create", "laptop")
    assert again.code == 2 and "already" in again.err
    unknown = terminal.quick("keys", "revoke", "laptob")
    assert unknown.code == 5 and 'did you mean "laptop"?' in unknown.err


def records(terminal: Terminal, *args: str) -> list[dict[str, object]]:
    done = terminal.quick("audit", "tail", "--json", *args)
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def test_tail_shows_the_newest_records_and_filters_them(terminal: Terminal) -> None:
    terminal.configure(server_entry("peer", "faulty_server", "ok"))
    terminal.up()
    for text in ("a", "b"):
        terminal.quick("call", "peer.echo", f"text={text}")
    terminal.quick("call", "peer.pid")
    refused = terminal.quick("call", "nobody")
    terminal.wait_until_recorded(4)
    assert [one["verb"] for one in records(terminal)] == [
        "peer.echo",
        "peer.echo",
        "peer.pid",
        "nobody",
    ]
    assert [one["verb"] for one in records(terminal, "-n", "2")] == ["peer.pid", "nobody"]
    assert len(records(terminal, "--verb", "peer.echo")) == 2
    assert len(records(terminal, "--outcome", "not_found")) == 1
    assert len(records(terminal, "--caller", "owner:owner")) == 4
    assert records(terminal, "--caller", "key:x") == []
    trace = re.findall(r"\(trace (\w{8})\)", refused.err)[0]
    (found,) = records(terminal, "--trace", trace)
    assert found["verb"] == "nobody" and str(found["trace"]).startswith(trace)
    lines = terminal.quick("audit", "tail").out.splitlines()
    assert lines[0].split()[0] == "AT" and lines[-1].split()[-1] == "nobody"
    nothing = terminal.quick("audit", "tail", "--verb", "nope")
    assert nothing.code == 0 and "no matching records" in nothing.err


def test_tail_follows_and_ends_at_ctrl_c(terminal: Terminal) -> None:
    terminal.configure(server_entry("peer", "faulty_server", "ok"))
    terminal.up()
    terminal.quick("call", "peer.pid")
    child = terminal.start("audit", "tail", "-f", "--json", "--verb", "peer.echo", "-n", "1")
    before = terminal.start("audit", "tail", "-f", "--json", "-n", "1")
    assert before.stdout is not None and child.stdout is not None
    assert json.loads(before.stdout.readline())["verb"] == "peer.pid"
    terminal.quick("call", "peer.pid")
    assert json.loads(before.stdout.readline())["verb"] == "peer.pid"
    terminal.quick("call", "peer.echo", "text=x")
    assert json.loads(child.stdout.readline())["verb"] == "peer.echo"
    for one in (before, child):
        one.send_signal(signal.SIGINT)
        _, err = one.communicate(timeout=WAIT_SECONDS)
        assert one.returncode == 0 and not err


def test_verify_detects_an_edited_record(terminal: Terminal) -> None:
    terminal.configure(server_entry("peer", "faulty_server", "ok"))
    terminal.quick("call", "peer.echo", "text=x")
    fine = terminal.quick("audit", "verify")
    assert fine.code == 0 and fine.out.startswith("ok: ")
    with sqlite3.connect(terminal.home / "audit.db") as db:
        db.execute(
            "UPDATE entries SET body = replace(body, 'owner:owner', 'owner:other') "
            "WHERE kind = 'intent'"
        )
    db.close()
    done = terminal.quick("audit", "verify")
    assert done.code == 1 and "not intact" in done.err
    as_json = terminal.quick("audit", "verify", "--json")
    assert as_json.code == 1 and as_json.json()["ok"] is False and as_json.json()["at_seq"] > 0


def test_audit_commands_report_a_missing_audit(terminal: Terminal) -> None:
    for command in ("tail", "verify"):
        done = terminal.quick("audit", command)
        assert done.code == 5 and "no audit log in" in done.err and "at its first start" in done.err
    assert not terminal.home.exists()
