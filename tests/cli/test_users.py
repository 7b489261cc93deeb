"""`dragoman users`: people who sign in at the hub itself; and the transcript of its page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.cli.terminal import Terminal
from tests.cli.test_hello_example import typed_and_seen

from dragoman.app.policy_admin.known_ids import load_known_ids
from dragoman.stores.client_grants import ClientGrantStore
from dragoman.stores.users import UsersDatabase, UserStore

pytestmark = pytest.mark.promise("U4")

PAGE = Path(__file__).parent.parent.parent / "docs" / "users.md"
PASSWORD = "correct horse battery"


def test_the_transcript_of_the_page_is_exact(terminal: Terminal) -> None:
    terminal.home.mkdir(mode=0o700)
    (terminal.home / "config.toml").write_text("[auth.server]\nenabled = true\n", encoding="utf-8")
    steps = typed_and_seen(PAGE.read_text(encoding="utf-8"))
    assert len(steps) >= 5
    for line, seen in steps:
        done = terminal.quick(*line.split()[1:])
        pattern = re.escape(" ".join(seen.split())).replace("…", ".+")
        assert re.fullmatch(pattern, " ".join(done.out.split())), (line, done.out)


def test_users_are_added_listed_shown_and_removed(terminal: Terminal) -> None:
    nothing = terminal.quick("users", "list")
    assert nothing.code == 0 and "users add NAME" in nothing.out
    assert not (terminal.home / "users.db").exists()  # reading creates nothing
    assert terminal.quick("users", "show", "anna").code == 5
    made = terminal.quick("users", "add", "Anna", "--org", "sales", "--role", "editor", "--json")
    found = made.json()
    assert found["name"] == "anna" and found["org"] == "sales" and found["roles"] == ["editor"]
    assert "/oauth/enroll?code=" in found["enrolment_link"]
    told = terminal.quick("users", "add", "bob", "--password", input=f"{PASSWORD}\n")
    assert told.code == 0 and "enroll" not in told.out and "enabled = true" in told.err
    assert terminal.quick("users", "add", "carol", "--password", input="short\n").code == 2
    assert terminal.quick("users", "add", "carol", "--password", "--oidc").code == 2
    assert terminal.quick("users", "add", "carol@example.com", "--oidc").code == 0
    rows = {row["name"]: row for row in terminal.quick("users", "list", "--json").json()}
    assert [rows[name]["signs_in"] for name in ("anna", "bob")] == ["not yet", "password"]
    shown = terminal.quick("users", "show", "bob")
    assert shown.code == 0 and "password" in shown.out and "argon2" not in shown.out
    again = terminal.quick("users", "add", "bob")
    assert again.code == 2 and "already exists" in again.err
    assert terminal.quick("users", "remove", "bob").code == 0
    assert "--restore" in terminal.quick("users", "add", "bob").err
    assert terminal.quick("users", "add", "bob", "--restore").code == 0
    missing = terminal.quick("users", "remove", "ana")
    assert missing.code == 5 and 'did you mean "anna"' in missing.err


def test_apps_are_listed_and_disconnected(terminal: Terminal) -> None:
    assert terminal.quick("users", "tokens").code == 5
    terminal.quick("users", "add", "anna", "--password", input=f"{PASSWORD}\n")
    base = UsersDatabase(terminal.home)
    grants = ClientGrantStore(base, UserStore(base))
    tokens = []
    for name in ("First", "Second", "Third"):
        code = grants.open_grant("anna", name.lower(), name, ["call"], "http://hub", "uri", "pkce")
        taken = grants.take_code(code)
        assert taken is not None
        tokens.append(grants.issue_tokens(taken.grant, 60, 60))
    listed = terminal.quick("users", "tokens", "anna", "--json").json()
    assert [row["client"] for row in listed] == ["First", "Second", "Third"]
    assert not any(one.access in terminal.quick("users", "tokens").out for one in tokens)
    done = terminal.quick("users", "tokens", "--revoke", listed[0]["id"])
    assert done.code == 0 and "1 app disconnected" in done.out
    assert terminal.quick("users", "tokens", "--revoke", "nothing").code == 5
    assert terminal.quick("users", "tokens", "--revoke-all").code == 2
    assert terminal.quick("users", "passwd", "anna", "--keep").out.strip().startswith("http://")
    typed = f"{PASSWORD}!\n"
    kept = terminal.quick("users", "passwd", "anna", "--password", "--keep", input=typed)
    assert kept.code == 0 and len(grants.list("anna")) == 2
    link = terminal.quick("users", "passwd", "anna")
    assert link.out.strip().startswith("http://") and "2 connected apps" in link.err
    assert grants.list("anna") == []
    changed = terminal.quick("users", "passwd", "anna", "--password", "--json", input=typed)
    ended = {"sessions": 0, "apps": 0, "passkeys": 0, "browsers": 0}
    assert json.loads(changed.out)["ended"] == ended
    base.close()


def test_policies_can_name_users(terminal: Terminal) -> None:
    terminal.quick("users", "add", "anna", "--role", "editor", "--org", "sales")
    config = terminal.home / "config.toml"
    config.write_text("[auth.server]\nenabled = true\n", encoding="utf-8")
    is_known = load_known_ids(terminal.home, 0.0)
    assert is_known("User", "user:anna") and not is_known("User", "user:bob")
    assert is_known("Role", "editor") and is_known("Org", "sales")
    config.write_text("", encoding="utf-8")  # not enabled
    assert not load_known_ids(terminal.home, 0.0)("User", "user:anna")
