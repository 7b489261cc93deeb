"""`pins`, with and without a running hub."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.terminal import Terminal
from tests.peers.process import server_entry

CHANGING = Path(__file__).parent.parent / "live" / "changing_server.py"


def configured(terminal: Terminal, **keys: Any) -> Path:
    form = terminal.user / "form"
    terminal.configure(
        server_entry("changing", "stdio", sys.executable, CHANGING, form, **keys),
        config="[server]\nport = 0\n",
    )
    return form


@pytest.mark.promise("R9")
def test_changed_definition_is_listed_compared_and_approved(terminal: Terminal) -> None:
    form = configured(terminal)
    assert terminal.quick("pins", "list").out == "nothing is quarantined\n"
    form.write_text("described")
    terminal.up()
    listed = terminal.quick("pins", "list")
    assert listed.code == 0 and "changing.read" in listed.out and "changed 20" in listed.out
    (row,) = terminal.quick("pins", "list", "--json").json()
    assert (row["name"], row["state"]) == ("changing.read", "held")
    assert len(terminal.quick("pins", "list", "--all", "--json").json()) == 3
    refused = terminal.quick("call", "changing.read", "path=x", "mode=text")
    assert refused.code == 4 and "dragoman pins diff changing.read" in refused.err
    shown = terminal.quick("pins", "diff", "changing.read")
    assert shown.code == 0
    assert "  - Reads a file.\n  + Reads a file. EVIL: first read" in shown.out
    whole = terminal.quick("pins", "diff", "changing.read", "--json").json()
    assert f"--digest {whole['digest'][:16]}" in shown.out
    assert terminal.quick("pins", "approve", "changing.read", "--digest", "0" * 16).code == 2
    done = terminal.quick("pins", "approve", "changing.read", "--digest", whole["digest"][:16])
    assert done.code == 0 and "+ Reads a file. EVIL" in done.out
    assert done.out.endswith("approved: changing.read\n")
    assert terminal.quick("call", "changing.read", "path=x", "mode=text").out == "done\n"
    again = terminal.quick("pins", "approve", "changing.read")
    assert again.code == 2 and "is not quarantined" in again.err
    assert terminal.quick("pins", "approve", "--all").out == "nothing was approved\n"


def test_rejected_definition_stays_quarantined_offline(terminal: Terminal) -> None:
    form = configured(terminal)
    terminal.quick("pins", "list")
    form.write_text("schemed")
    done = terminal.quick("pins", "reject", "changing.read")
    assert done.code == 0 and "it stays quarantined" in done.out
    listed = terminal.quick("pins", "list")
    assert "rejected by owner:owner" in listed.out
    forgotten = terminal.quick("pins", "forget", "changing", "--json").json()
    assert len(forgotten["forgotten"]) == 3
    assert terminal.quick("pins", "list").out == "nothing is quarantined\n"


def test_strict_server_is_approved_at_once(terminal: Terminal) -> None:
    configured(terminal, pin="strict")
    terminal.up()
    done = terminal.quick("pins", "approve", "--target", "changing", "--json").json()
    assert done == {"approved": ["changing.ask", "changing.become", "changing.read"]}
    assert "changing.read" in terminal.quick("tools", "--json").out


def test_invalid_pins_command_is_one_sentence(terminal: Terminal) -> None:
    configured(terminal)
    terminal.up()
    for args, code in (
        (["approve"], 2),
        (["approve", "x", "--all"], 2),
        (["approve", "--all", "--target", "x"], 2),
        (["approve", "--all", "--digest", "12345678"], 2),
        (["approve", "x"], 5),
        (["approve", "--target", "x"], 5),
        (["diff", "x"], 5),
        (["reject", "changing.read"], 2),
        (["forget", "x"], 5),
    ):
        done = terminal.quick("pins", *args)
        assert done.code == code and len(done.err.splitlines()) == 1, (args, done)
    assert "dragoman pins approve" in terminal.quick("pins", "--help").out
