"""`dragoman install` with real client files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.cli.base.errors import CommandFailed, UnreadableFile
from dragoman.cli.base.files import list_backups, replace_file
from dragoman.cli.base.toml_edit import render_value
from dragoman.cli.clients.edit import parse_document, remove_entry, set_entry
from dragoman.cli.clients.install import install
from dragoman.cli.clients.jsonc import parse_jsonc
from dragoman.cli.clients.known_clients import CLIENTS, find_config_file, is_hub_entry

CLEARED = ("XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR", "DRAGOMAN_HOME", "APPDATA")


def run(home: Path, *args: str, **env: str) -> Result:
    cleared: dict[str, str | None] = dict.fromkeys(CLEARED)
    return CliRunner().invoke(install, args, env={**cleared, "HOME": str(home), **env})


def cursor_file(home: Path, content: bytes) -> Path:
    path = home / ".cursor" / "mcp.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def is_kept(old: bytes, new: bytes) -> bool:
    """Whether `new` is `old` with things put in between and nothing else."""
    rest = iter(new)
    return all(byte in rest for byte in old)


FILES = {
    "nothing": b"",
    "spaces": b"  \n\n",
    "only a comment": b"// mine\n",
    "only a comment, no end of line": b"/* mine */",
    "empty object": b"{}",
    "empty object with a space": b"{ }\n",
    "empty object over two lines": b"{\n}\n",
    "empty servers": b'{\n    "mcpServers": {}\n}\n',
    "empty servers over lines": b'{\n  "mcpServers": {\n  }\n}',
    "a comment in empty servers": b'{\n  "mcpServers": { // none yet\n  }\n}',
    "one line": b'{"mcpServers": {"a": {"command": "x"}}, "b": 1}',
    "one line, no servers": b'{"b":[1,2,{"c":null}]}',
    "one line, empty servers": b'{"mcpServers":{},"b":1}',
    "one line, trailing comma": b'{"mcpServers": {"a": {"command": "x"},},}',
    "one line, then a comment": b'{"mcpServers": {"a": {"command": "x"} // here\n}}',
    "byte order mark": b'\xef\xbb\xbf{\n  "mcpServers": {"a": {}}\n}\n',
    "windows lines": b'{\r\n  "theme": "dark",\r\n  "mcpServers": {\r\n    "a": {}\r\n  }\r\n}\r\n',
    "windows lines, no servers": b'{\r\n\t"theme": "dark"\r\n}',
    "old mac lines": b'{\r  "theme": "dark"\r}\r',
    "tabs": b'{\n\t"mcpServers": {\n\t\t"a": {\n\t\t\t"command": "x"\n\t\t}\n\t}\n}\n',
    "far to the right": b'      {\n        "mcpServers": {\n          "a": {}\n        }\n      }',
    "comments and trailing commas": b"""// my settings
{
  /* several
     lines */
  "theme": "dark", // as "ever": {
  "mcpServers": {
    // the first
    "a": { "command": "x", "args": ["// no comment", "/* nor this */", "\\"}"], }, // after it
    // "off": {},
  }, /* servers end */
  "last": true,
}
// the end
""",
    "a comment after the last": b'{\n  "mcpServers": {\n    "a": {} // it\n  }\n}\n',
    "a brace on the last line": b'{\n  "mcpServers": {\n    "a": {}}}',
    "other letters": '{\n  "fürs Büro": "\\ud83d 😀",\n  "mcpServers": {"ä": {}}\n}'.encode(),
    "twice the same": b'{\n  "mcpServers": {"old": {}},\n  "mcpServers": {"new": {}}\n}',
    "numbers": b'{\n  "n": [1e999, -0.0, 12345678901234567890123, 1.10, 1E2]\n}\n',
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES.keys())
def test_install_keeps_every_byte_and_removal_restores_the_file(
    tmp_path: Path, content: bytes
) -> None:
    path = cursor_file(tmp_path, content)
    before = parse_document("json", content)

    result = run(tmp_path, "cursor")
    assert result.exit_code == 0, result.output
    assert is_kept(content, path.read_bytes())
    after = parse_document("json", path.read_bytes())
    assert is_hub_entry(after["mcpServers"].pop("dragoman"))
    assert after == before | {"mcpServers": before.get("mcpServers", {})}

    result = run(tmp_path, "cursor", "--remove")
    assert result.exit_code == 0, result.output
    assert path.read_bytes() == content


def test_install_follows_the_layout_of_the_file(tmp_path: Path) -> None:
    path = cursor_file(tmp_path, FILES["tabs"])
    run(tmp_path, "cursor")
    assert path.read_text().splitlines()[2:9] == [
        '\t\t"a": {',
        '\t\t\t"command": "x"',
        "\t\t},",
        '\t\t"dragoman": {',
        f'\t\t\t"command": "{Path(sys.executable).parent / "dragoman"}",',
        '\t\t\t"args": ["mcp"]',
        "\t\t}",
    ]
    path = cursor_file(tmp_path, FILES["windows lines, no servers"])
    run(tmp_path, "cursor")
    assert re.findall(rb"(?<!\r)\n", path.read_bytes()) == []
    path = cursor_file(tmp_path, FILES["a comment after the last"])
    run(tmp_path, "cursor")
    assert b'"a": {}, // it\n' in path.read_bytes()


@pytest.mark.parametrize(
    "content",
    [value for value in FILES.values() if b'"a": {' in value or b'"new"' in value],
)
def test_removal_works_without_a_backup_beside_other_servers(
    tmp_path: Path, content: bytes
) -> None:
    path = cursor_file(tmp_path, content)
    run(tmp_path, "cursor")
    for backup in list_backups(path):
        backup.unlink()
    assert run(tmp_path, "cursor", "--remove").exit_code == 0
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"mcpServers": {"dragoman": HUB, "b": {}}}', b'{"mcpServers": {"b": {}}}'),
        (b'{"mcpServers": {"a": {}, "dragoman": HUB}}', b'{"mcpServers": {"a": {}}}'),
        (
            b'{"mcpServers": {"a": {}, "dragoman": HUB, "b": 1}}',
            b'{"mcpServers": {"a": {}, "b": 1}}',
        ),
        (b'{"mcpServers": {"dragoman": HUB}}', b'{"mcpServers": {}}'),
        (
            b'{"mcpServers": {\n  // c\n  "dragoman": HUB, // hub\n  "b": {}\n}}',
            b'{"mcpServers": {\n  // c\n   // hub\n  "b": {}\n}}',
        ),
        (b'{"mcpServers": { // c\n  "dragoman": HUB }}', b'{"mcpServers": { // c\n   }}'),
        (
            b'{"mcpServers": {\n  "a": {}\n  , "dragoman": HUB /* x */ ,\n}}',
            b'{"mcpServers": {\n  "a": {}\n  , /* x */ \n}}',
        ),
    ],
)
def test_removal_takes_out_a_handwritten_entry(
    tmp_path: Path, content: bytes, expected: bytes
) -> None:
    hub = b'{"command": "dragoman", "args": ["mcp"]}'
    path = cursor_file(tmp_path, content.replace(b"HUB", hub))
    result = run(tmp_path, "cursor", "--remove")
    assert result.exit_code == 0, result.output
    assert parse_document("json", path.read_bytes()) == parse_document("json", expected)
    assert path.read_bytes() == expected


BROKEN = {
    "no end": (b'{\n  "a": 1', "line 2, column 9"),
    "no comma": (b'{\n  "a": 1\n  "b": 2\n}', "line 3, column 3"),
    "single quotes": (b"{'a': 1}", "line 1, column 2"),
    "a bare word": (b'{\n\n "a": yes}', "line 3, column 7"),
    "a bad escape": (b'{"a": "\\x"}', "line 1, column 7"),
    "a line break in a string": (b'{"a": "x\ny"}', "line 1, column 7"),
    "two documents": (b"{} {}", "line 1, column 4"),
    "an open comment": (b'{ /* "a": 1}', "line 1, column 3"),
    "two commas": (b'{"a": [1,,2]}', "line 1, column 10"),
    "no colon": (b'{"a" 1}', "line 1, column 6"),
    "not a number": (b'{"a": NaN}', "line 1, column 7"),
    "too deep": (b"[" * 100_000, "nested more than"),
    "no text": (b"\xff\xfe{\x00}\x00", "not valid UTF-8"),
    "a list": (b"[]", "the document is not an object"),
    "servers are a list": (b'{"mcpServers": []}', '"mcpServers" is not an object'),
    "servers are null": (b'{"mcpServers": null}', '"mcpServers" is not an object'),
}


@pytest.mark.parametrize(("content", "said"), BROKEN.values(), ids=BROKEN.keys())
def test_install_never_touches_an_unparseable_file(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = cursor_file(tmp_path, content)
    result = run(tmp_path, "cursor")
    assert result.exit_code == 1
    assert said in result.output and str(path) in result.output
    assert "Nothing was changed" in result.output
    assert path.read_bytes() == content
    assert [p.name for p in path.parent.iterdir()] == ["mcp.json"]


@pytest.mark.promise("F1")
@pytest.mark.parametrize("name", [c.name for c in CLIENTS.values() if c.format != "yaml"])
def test_install_and_removal_work_for_each_client(tmp_path: Path, name: str) -> None:
    client = CLIENTS[name]
    result = run(tmp_path, name)
    assert result.exit_code == 0, result.output
    answer = json.loads(run(tmp_path, name, "--json").output)
    path = Path(answer["path"])
    assert path.is_relative_to(tmp_path) and path.stat().st_mode & 0o777 == 0o600
    assert answer["action"] == "already" and is_hub_entry(answer["entry"])
    document: Any = parse_document(client.format, path.read_bytes())
    for key in client.keys:
        document = document[key]
    assert document == {"dragoman": answer["entry"]}
    assert str(path) in result.output and client.next_step in result.output
    listed = json.loads(run(tmp_path, "--json").output)["clients"]
    assert [c["client"] for c in listed if c["installed"]] == [name]

    assert run(tmp_path, name, "--remove").exit_code == 0
    assert not path.exists()
    assert json.loads(run(tmp_path, name, "--remove", "--json").output)["action"] == "absent"


@pytest.mark.parametrize("name", [c.name for c in CLIENTS.values() if c.project])
def test_install_writes_a_project_file(tmp_path: Path, name: str) -> None:
    project = tmp_path / "project"
    project.mkdir()
    result = run(tmp_path, name, "--project", str(project), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["path"] == str(project / CLIENTS[name].project[0])
    assert [p.name for p in tmp_path.iterdir()] == ["project"]


def test_client_files_follow_the_platform() -> None:
    def at(name: str, platform: str, **environ: str) -> str:
        return str(find_config_file(CLIENTS[name], platform=platform, environ=environ))

    assert at("vscode", "linux", HOME="/h") == "/h/.config/Code/User/mcp.json"
    assert at("vscode", "linux", HOME="/h", XDG_CONFIG_HOME="/x") == "/x/Code/User/mcp.json"
    mac = "/h/Library/Application Support"
    assert at("vscode", "darwin", HOME="/h") == f"{mac}/Code/User/mcp.json"
    assert at("claude-desktop", "darwin", HOME="/h") == f"{mac}/Claude/claude_desktop_config.json"
    assert at("zed", "darwin", HOME="/h", XDG_CONFIG_HOME="/x") == "/h/.config/zed/settings.json"
    assert at("zed", "win32", USERPROFILE="C:/u", APPDATA="C:/a") == "C:/a/Zed/settings.json"
    assert at("cursor", "win32", USERPROFILE="C:/u") == "C:/u/.cursor/mcp.json"
    assert at("goose", "win32", APPDATA="C:/a") == "C:/a/Block/goose/config/config.yaml"
    assert at("codex", "linux", HOME="/h", CODEX_HOME="/c") == "/c/config.toml"
    assert at("claude-code", "linux", HOME="/h", CLAUDE_CONFIG_DIR="/c") == "/c/.claude.json"


def test_first_existing_client_file_is_used(tmp_path: Path) -> None:
    older = tmp_path / ".config" / "opencode" / "opencode.jsonc"
    older.parent.mkdir(parents=True)
    older.write_text('{\n  // newer form\n  "mcp": {"servers": {"a": {"type": "local"}}}\n}\n')
    assert run(tmp_path, "opencode").exit_code == 0
    mcp = parse_document("json", older.read_bytes())["mcp"]
    assert list(mcp) == ["servers"] and list(mcp["servers"]) == ["a", "dragoman"]
    assert mcp["servers"]["dragoman"]["command"][1:] == ["mcp"]


def test_install_is_idempotent(tmp_path: Path) -> None:
    path = cursor_file(tmp_path, FILES["comments and trailing commas"])
    run(tmp_path, "cursor")
    first, saved = path.stat(), list_backups(path)
    result = run(tmp_path, "cursor")
    assert result.exit_code == 0 and "Already installed" in result.output
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (first.st_mtime_ns, first.st_ino)
    assert list_backups(path) == saved and len(saved) == 1
    assert saved[0].read_bytes() == FILES["comments and trailing commas"]


@pytest.mark.parametrize("option", ["--print", "--dry-run"])
def test_print_and_dry_run_write_nothing(tmp_path: Path, option: str) -> None:
    result = run(tmp_path, "cursor", option)
    assert result.exit_code == 0 and str(tmp_path / ".cursor" / "mcp.json") in result.output
    assert list(tmp_path.iterdir()) == []
    if option == "--print":
        shown = result.output.split("\n", 1)[1]
        assert is_hub_entry(json.loads(shown)["mcpServers"]["dragoman"])
    path = cursor_file(
        tmp_path, b'{"mcpServers": {"dragoman": {"command": "dragoman", "args": ["mcp"]}}}'
    )
    content = path.read_bytes()
    assert run(tmp_path, "cursor", "--remove", "--dry-run").exit_code == 0
    assert path.read_bytes() == content


def test_stale_entry_is_updated_and_keeps_client_additions(tmp_path: Path) -> None:
    old = {
        "command": "/gone/bin/dragoman",
        "args": ["mcp"],
        "autoApprove": ["x"],
        "env": {"A": "1"},
    }
    path = cursor_file(
        tmp_path, json.dumps({"mcpServers": {"dragoman": old, "b": {}}}, indent=4).encode()
    )
    result = run(tmp_path, "cursor", "--json", DRAGOMAN_HOME="/some/where")
    assert json.loads(result.output)["action"] == "updated"
    servers = parse_document("json", path.read_bytes())["mcpServers"]
    assert list(servers) == ["dragoman", "b"]
    assert servers["dragoman"] == old | {
        "command": str(Path(sys.executable).parent / "dragoman"),
        "env": {"A": "1", "DRAGOMAN_HOME": "/some/where"},
    }


def test_foreign_server_of_the_same_name_is_kept(tmp_path: Path) -> None:
    path = cursor_file(tmp_path, b'{"mcpServers": {"dragoman": {"command": "other"}}}')
    content = path.read_bytes()
    for args in ((), ("--remove",)):
        result = run(tmp_path, "cursor", *args)
        assert result.exit_code == 1 and "--name" in result.output
        assert path.read_bytes() == content
    assert run(tmp_path, "cursor", "--name", "hub").exit_code == 0
    assert list(parse_document("json", path.read_bytes())["mcpServers"]) == ["dragoman", "hub"]
    again = json.loads(run(tmp_path, "cursor", "--json").output)
    assert (again["action"], again["name"]) == ("already", "hub")


def test_read_only_file_is_not_changed(tmp_path: Path) -> None:
    path = cursor_file(tmp_path, b"{}")
    path.chmod(0o444)
    result = run(tmp_path, "cursor")
    assert result.exit_code == 1 and "read-only" in result.output
    assert path.read_bytes() == b"{}" and len(list(path.parent.iterdir())) == 1


def test_install_follows_links_and_keeps_the_mode(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles" / "cursor.json"
    real.parent.mkdir()
    real.write_bytes(b"{}\n")
    real.chmod(0o640)
    link = tmp_path / ".cursor" / "mcp.json"
    link.parent.mkdir()
    link.symlink_to("../dotfiles/cursor.json")
    assert run(tmp_path, "cursor").exit_code == 0
    assert link.is_symlink() and "dragoman" in real.read_text()
    assert real.stat().st_mode & 0o777 == 0o640
    assert [p.stat().st_mode & 0o777 for p in list_backups(link)] == [0o640]
    assert [p.name for p in link.parent.iterdir()] == ["mcp.json"]
    assert run(tmp_path, "cursor", "--remove").exit_code == 0
    assert real.read_bytes() == b"{}\n"


def test_at_most_five_backups_are_kept_and_other_files_stay(tmp_path: Path) -> None:
    path = cursor_file(tmp_path, b"{}")
    theirs = path.with_name("mcp.json.bak-mine")
    theirs.write_text("theirs")
    for _ in range(4):
        assert run(tmp_path, "cursor").exit_code == 0
        assert run(tmp_path, "cursor", "--remove").exit_code == 0
    assert len(list_backups(path)) == 5 and theirs.exists()
    assert path.read_bytes() == b"{}"


def test_concurrently_changed_file_is_not_overwritten(tmp_path: Path) -> None:
    path = cursor_file(tmp_path, b'{"new": 1}')
    with pytest.raises(CommandFailed, match="changed by another program"):
        replace_file(path, b"ours", b"{}")
    assert path.read_bytes() == b'{"new": 1}'
    assert [p.name for p in path.parent.iterdir()] == ["mcp.json"]


def test_path_that_is_not_a_file_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / ".cursor" / "mcp.json"
    path.parent.mkdir()
    os.mkfifo(path)
    result = run(tmp_path, "cursor")
    assert result.exit_code == 1 and "not a regular file" in result.output


TOMLS = {
    "nothing": "",
    "no end of line": 'model = "x"',
    "comments": '# mine\nmodel = "x" # good\n\n[mcp_servers.a]\ncommand = "y"\n\n# the end\n',
    "windows lines": 'model = "x"\r\n\r\n[mcp_servers.a]\r\ncommand = "y"\r\n',
    "byte order mark": '\ufeffmodel = "x"\n',
    "a header in a string": 'text = """\n[mcp_servers.dragoman]\n"""\n[x]\ny = [\n[1],\n]\n',
    "not a number": "x = nan\n",
}


@pytest.mark.parametrize("text", TOMLS.values(), ids=TOMLS.keys())
def test_codex_table_is_added_and_removed(tmp_path: Path, text: str) -> None:
    path = tmp_path / ".codex" / "config.toml"
    path.parent.mkdir()
    path.write_bytes(text.encode())
    result = run(tmp_path, "codex", DRAGOMAN_HOME='/a "b"')
    if "a header" in next(k for k, v in TOMLS.items() if v == text):
        assert result.exit_code == 1 and path.read_bytes() == text.encode()
        return
    assert result.exit_code == 0, result.output
    data = path.read_bytes()
    assert data.startswith(text.encode())
    entry = parse_document("toml", data)["mcp_servers"]["dragoman"]
    assert is_hub_entry(entry) and entry["env"] == {"DRAGOMAN_HOME": '/a "b"'}
    if "\r\n" in text:
        assert re.findall(rb"(?<!\r)\n", data) == []
    assert "Already" in run(tmp_path, "codex", DRAGOMAN_HOME='/a "b"').output
    assert run(tmp_path, "codex", "--remove").exit_code == 0
    assert path.read_bytes() == text.encode()


def test_codex_subtables_are_removed_and_the_next_comment_stays() -> None:
    text = (
        '[mcp_servers.a]\ncommand = "y"\n\n[mcp_servers."dragoman"] # hub\ncommand = "dragoman"\n'
        'args = ["mcp"]\n\n[mcp_servers.dragoman.env]\nA = "1"\n\n# about x\n[x]\ny = 1\n'
    )
    left = remove_entry(CLIENTS["codex"], text.encode(), "dragoman").decode()
    assert left == '[mcp_servers.a]\ncommand = "y"\n\n# about x\n[x]\ny = 1\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [("a = 1\nb = = 2\n", "line 2, column 5"), ("mcp_servers = {}\n", "cannot be edited safely")],
)
def test_uneditable_toml_file_is_not_changed(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / ".codex" / "config.toml"
    path.parent.mkdir()
    path.write_text(text)
    result = run(tmp_path, "codex")
    assert result.exit_code == 1 and said in result.output
    assert path.read_text() == text and len(list(path.parent.iterdir())) == 1


_TOML: st.SearchStrategy[Any] = st.deferred(
    lambda: (
        st.text()
        | st.booleans()
        | st.integers()
        | st.lists(_TOML, max_size=5)
        | st.dictionaries(st.text(), _TOML, max_size=5)
    )
)


@given(_TOML)
def test_written_toml_reads_back_equal(value: Any) -> None:
    text = render_value({"key": value})
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    assert tomllib.loads(f"x = {text}")["x"] == {"key": value}


def test_goose_install_prints_what_to_add(tmp_path: Path) -> None:
    path = tmp_path / ".config" / "goose" / "config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("extensions: {}\n")
    result = run(tmp_path, "goose", DRAGOMAN_HOME="/h")
    assert result.exit_code == 8
    assert 'args: ["mcp"]' in result.output and str(path) in result.output
    assert path.read_text() == "extensions: {}\n"
    assert run(tmp_path, "goose", "--print").exit_code == 0


def test_an_unknown_client_names_the_nearest(tmp_path: Path) -> None:
    result = run(tmp_path, "curser")
    assert result.exit_code == 2 and "did you mean cursor?" in result.output
    result = run(tmp_path, "claude", "--json")
    assert result.exit_code == 2
    assert "claude-desktop or claude-code" in json.loads(result.output)["error"]
    assert run(tmp_path, "--remove").exit_code == 2
    assert run(tmp_path, "windsurf", "--project", str(tmp_path)).exit_code == 2
    assert run(tmp_path, "cursor", "--name", "a b").exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_client_list_shows_installations_and_broken_entries(tmp_path: Path) -> None:
    run(tmp_path, "zed", "--name", "hub")
    cursor_file(tmp_path, b"{")
    lines = {line.split()[0]: line for line in run(tmp_path).output.splitlines() if line}
    assert 'installed as "hub"' in lines["zed"] and str(tmp_path) in lines["zed"]
    assert "unreadable: line 1, column 2" in lines["cursor"]
    assert "no configuration" in lines["kiro"]
    assert set(CLIENTS) <= set(lines)


def test_terminal_clients_get_a_bare_command_only_if_on_path(tmp_path: Path) -> None:
    script = tmp_path / "bin" / "dragoman"
    script.parent.mkdir()
    script.write_text(
        f"#!{sys.executable}\nfrom dragoman.cli.clients.install import install\ninstall()\n"
    )
    script.chmod(0o755)

    def command(client: str, path: str, **more: str) -> str:
        env = {"HOME": str(tmp_path), "PATH": path, **more}
        done = subprocess.run(
            [script, client, "--dry-run", "--json"],
            env=env,
            capture_output=True,
            timeout=60,
            check=True,
        )
        return str(json.loads(done.stdout)["entry"]["command"])

    here = str(script.parent)
    assert command("claude-code", f"{here}:/usr/bin") == "dragoman"
    activated = str(tmp_path)  # which the next terminal is not
    assert command("claude-code", f"{here}:/usr/bin", VIRTUAL_ENV=activated) == str(script)
    assert command("claude-code", "/usr/bin") == str(script)
    assert command("cursor", f"{here}:/usr/bin") == str(script)


def test_concurrent_installs_leave_a_valid_file(tmp_path: Path) -> None:
    path = cursor_file(tmp_path, FILES["tabs"])
    code = "from dragoman.cli.clients.install import install; install()"
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin"}
    names = ["one", "two", "three"]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, "cursor", "--name", name],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for name in names
    ]
    done = []
    for name, process in zip(names, running, strict=True):
        process.communicate(timeout=60)
        done += [name] if process.returncode == 0 else []
    servers = parse_document("json", path.read_bytes())["mcpServers"]
    assert done and "a" in servers and set(servers) <= {"a", *done}
    assert not list(path.parent.glob(".*.tmp"))


# Not `st.recursive`: once in a while that warns of recursing no further, and warnings are errors.
_VALUES: st.SearchStrategy[Any] = st.deferred(
    lambda: (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=8)
        | st.lists(_VALUES, max_size=3)
        | st.dictionaries(st.text(max_size=6), _VALUES, max_size=3)
    )
)
_KEYS = st.sampled_from(["mcpServers", "dragoman", "a", "//", "/*", "{", '"'])


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    document=st.dictionaries(
        _KEYS, _VALUES | st.dictionaries(_KEYS, _VALUES, max_size=3), max_size=4
    ),
    indent=st.sampled_from([None, 0, 1, 2, 4, "\t"]),
    compact=st.booleans(),
    ascii_only=st.booleans(),
    newline=st.sampled_from(["\n", "\r\n"]),
    end=st.sampled_from(["", "\n", "\n\n"]),
)
def test_any_json_document_survives_byte_for_byte(
    tmp_path: Path,
    document: Any,
    indent: Any,
    compact: bool,
    ascii_only: bool,
    newline: str,
    end: str,
) -> None:
    separators = (",", ":") if compact else None
    text = json.dumps(document, indent=indent, separators=separators, ensure_ascii=ascii_only) + end
    try:
        content = text.replace("\n", newline).encode()
    except UnicodeEncodeError:
        return
    path = cursor_file(tmp_path, content)
    for backup in list_backups(path):
        backup.unlink()
    result = run(tmp_path, "cursor", "--name", "hub")
    servers = document.get("mcpServers", {})
    if not isinstance(servers, dict):
        assert result.exit_code == 1 and path.read_bytes() == content
        return
    assert result.exit_code == 0, result.output
    assert is_kept(content, path.read_bytes())
    assert run(tmp_path, "cursor", "--name", "hub", "--remove").exit_code == 0
    assert path.read_bytes() == content


@given(st.text(alphabet='{}[]",:/*\n\r\t \\a1', max_size=40))
def test_jsonc_reader_agrees_with_the_strict_parser(text: str) -> None:
    try:
        node = parse_jsonc(text)
    except UnreadableFile:
        with pytest.raises(ValueError):
            json.loads(text)
        return
    try:
        strict = json.loads(text)
    except ValueError:
        return  # comments, trailing commas and nothing at all are ours alone
    assert node is not None and node.value == strict


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(_KEYS, _VALUES, min_size=1, max_size=4), st.sampled_from([None, 2, "\t"]))
def test_removal_inverts_install_without_backups(servers: Any, indent: Any) -> None:
    data = json.dumps({"x": 1, "mcpServers": servers}, indent=indent).encode()
    added = set_entry(CLIENTS["cursor"], data, "hub", {"command": "dragoman", "args": ["mcp"]})
    assert remove_entry(CLIENTS["cursor"], added, "hub") == data


def test_entry_carries_the_requested_home(tmp_path: Path) -> None:
    result = run(tmp_path, "cursor", "--home", "other", DRAGOMAN_HOME="/elsewhere")
    assert result.exit_code == 0
    entry = json.loads((tmp_path / ".cursor" / "mcp.json").read_bytes())["mcpServers"]["dragoman"]
    assert entry["env"] == {"DRAGOMAN_HOME": str(Path("other").absolute())}


def test_install_warns_when_no_tool_is_exposed(tmp_path: Path) -> None:
    home = tmp_path / ".dragoman"
    home.mkdir(mode=0o700)
    server = '[[mcp_servers]]\nname = "a"\ntransport = { type = "stdio", command = "x" }\n'
    for config, told in (
        ("", "no servers or agents yet"),
        (server, 'stdio_expose = ["*"]'),
        ("[servr]\n", "will not start"),
    ):
        (home / "config.toml").write_text(config)
        result = run(tmp_path, "cursor")
        assert result.exit_code == 0 and told in result.stderr
    (home / "config.toml").write_text('[mcp]\nstdio_expose = ["*"]\n' + server)
    assert run(tmp_path, "cursor").stderr == ""
    cursor_file(tmp_path, b'{"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}}}')
    told = run(tmp_path, "cursor").stderr
    assert told.startswith("dragoman: a: also in ") and "twice" in told
