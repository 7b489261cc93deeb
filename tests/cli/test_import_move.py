"""`import --move` and `import --undo` with real files, with and without a running hub."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

from tests.cli.terminal import Terminal

HELLO = str(Path(__file__).parent.parent.parent / "examples" / "hello" / "hello_server.py")
ENTRY = json.dumps({"command": sys.executable, "args": [HELLO]})
CURSOR = f"""\
{{
  // Mine; keep this.
  "mcpServers": {{
    "hello": {ENTRY}, // greets
    "absent": {{"command": "no-such-program"}},
    /* another one */
    "again": {ENTRY}
  }},
  "other": [1, 2,],
}}
"""


def cursor_file(terminal: Terminal, text: str = CURSOR) -> Path:
    file = terminal.user / ".cursor" / "mcp.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return file


def test_import_move_moves_connecting_servers_and_restores_them(terminal: Terminal) -> None:
    file = cursor_file(terminal)
    terminal.configure(config="[server]\nport = 0\n")
    terminal.up()
    assert terminal.quick("import", "cursor", "--only", "hello").code == 0  # as it was before
    assert "--move" in terminal.quick("install", "cursor").err
    checked = terminal.quick("doctor").out
    assert "has the hub and also hello" in checked and "dragoman import cursor --move" in checked

    before = file.read_bytes()
    moved = terminal.quick("import", "cursor", "--move")
    assert moved.code == 0, moved
    assert f"Removed from {file}" in moved.out and ": again, hello.\n" in moved.out
    assert '"absent" was not moved: the hub is not connected to it' in moved.out
    text = file.read_text()
    assert HELLO not in text and '"absent"' in text and '"dragoman"' in text
    assert "// Mine; keep this.\n" in text and '"other": [1, 2,],' in text
    assert terminal.quick("call", "again.add", "a=1", "b=2").out == "3\n"
    assert "has the hub and also absent" in terminal.quick("doctor").out

    undone = terminal.quick("import", "--undo")
    assert undone.code == 0 and file.read_bytes() == before
    assert terminal.quick("import", "--undo").code == 1

    assert terminal.quick("import", "cursor", "--move", "--only", "hello", "--json").code == 0
    file.write_text(file.read_text().replace("Mine", "Changed since"))
    assert terminal.quick("import", "cursor", "--undo", "--json").json()["restored"] == ["hello"]
    text = file.read_text()
    assert "Changed since" in text and HELLO in text


def test_import_move_works_offline_for_toml_and_claude_code(
    terminal: Terminal,
) -> None:
    codex = terminal.user / ".codex" / "config.toml"
    codex.parent.mkdir()
    text = (
        f'# mine\nmodel = "x"\n\n[mcp_servers.hello]\ncommand = "{sys.executable}"\n'
        f'args = ["{HELLO}"]\n\n[mcp_servers.hello.env]\nA = "1"\n\n[other]\nb = 2\n'
    )
    codex.write_text(text)
    claude = terminal.user / ".claude.json"
    here = {str(terminal.user): {"mcpServers": {"local": json.loads(ENTRY)}, "more": True}}
    claude.write_text(json.dumps({"projects": here}, indent=2))
    terminal.configure(config="[server]\nport = 0\n")
    done = terminal.run("import", "--all", "--move", "--json")
    assert done.code == 0, done
    assert [one["servers"] for one in done.json()["moved"]] == [["local"], ["hello"]]
    assert codex.read_text() == '# mine\nmodel = "x"\n\n[other]\nb = 2\n'
    assert json.loads(claude.read_text())["projects"][str(terminal.user)]["more"] is True
    assert HELLO not in claude.read_text()
    codex.write_text(codex.read_text() + "c = 3\n")
    assert terminal.quick("import", "codex", "--undo").code == 0
    assert tomllib.loads(codex.read_text()) == {**tomllib.loads(text), "other": {"b": 2, "c": 3}}
    assert terminal.quick("import", "claude-code", "--undo").code == 0
    assert HELLO in claude.read_text()
    assert (terminal.home / "moved.json").stat().st_mode & 0o777 == 0o600
