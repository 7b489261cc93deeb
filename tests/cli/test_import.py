"""`dragoman import` with real client files."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dragoman.cli.clients.import_command import import_command
from dragoman.cli.clients.import_plan import split_references
from dragoman.cli.clients.known_clients import CLIENTS
from dragoman.config import parse as load_config
from dragoman.config import read_env

CLEARED = ("XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR", "DRAGOMAN_HOME", "APPDATA")


def run(home: Path, *args: str, **env: str) -> Result:
    cleared: dict[str, str | None] = dict.fromkeys(CLEARED)
    return CliRunner().invoke(import_command, args, env={**cleared, "HOME": str(home), **env})


def put(home: Path, place: str, content: Any) -> Path:
    path = home / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content, indent=2))
    return path


def servers(home: Path) -> dict[str, dict[str, Any]]:
    text = (home / ".dragoman" / "config.toml").read_text()
    load_config(text)
    return {server["name"]: server for server in tomllib.loads(text)["mcp_servers"]}


def values(home: Path) -> dict[str, str]:
    return read_env((home / ".dragoman" / "env").read_bytes())


GITHUB = {
    "command": "npx",
    "args": ["-y", "@modelcontextprotocol/server-github"],
    "env": {"GITHUB_PERSONAL_ACCESS_TOKEN": "ghp_very=secret "},
}


@pytest.mark.promise("B1")
def test_import_writes_a_table_and_moves_the_secret_to_the_env_file(tmp_path: Path) -> None:
    put(tmp_path, ".cursor/mcp.json", {"mcpServers": {"github": GITHUB}})
    result = run(tmp_path, "cursor")
    assert result.exit_code == 0, result.output
    config, env = tmp_path / ".dragoman" / "config.toml", tmp_path / ".dragoman" / "env"
    first, *_ = config.read_text().splitlines()
    assert first.startswith("# ")
    assert '\nstdio_expose = ["*"]\n' in config.read_text()
    assert config.read_text().endswith(
        """
[[mcp_servers]]
name = "github"
env = ["GITHUB_PERSONAL_ACCESS_TOKEN"]
home = "user"

[mcp_servers.transport]
type = "stdio"
command = "npx"
args = ["-y", "@modelcontextprotocol/server-github"]
"""
    )
    load_config(config.read_text())
    assert env.read_text() == "GITHUB_PERSONAL_ACCESS_TOKEN=ghp_very=secret \n"
    assert values(tmp_path) == {"GITHUB_PERSONAL_ACCESS_TOKEN": "ghp_very=secret "}
    for path, mode in ((config, 0o600), (env, 0o600), (config.parent, 0o700)):
        assert path.stat().st_mode & 0o777 == mode
    assert "ghp_very" not in result.output and "dragoman servers" in result.output


def test_import_is_idempotent(tmp_path: Path) -> None:
    put(
        tmp_path,
        ".cursor/mcp.json",
        {"mcpServers": {"GitHub": GITHUB, "My-Files": {"command": "x"}}},
    )
    run(tmp_path, "cursor")
    home = tmp_path / ".dragoman"
    before = {path.name: path.read_bytes() for path in home.iterdir()}
    put(
        tmp_path,
        ".cursor/mcp.json",
        {"mcpServers": {"github": GITHUB, "my_files": {"command": "y"}}},
    )
    result = run(tmp_path, "cursor", "--json")
    assert result.exit_code == 0
    answer = json.loads(result.output)
    assert answer["added"] == [] and answer["next"] is None
    assert [skip["name"] for skip in answer["skipped"]] == ["github", "my_files"]
    assert all("already in config.toml" in skip["reason"] for skip in answer["skipped"])
    assert {path.name: path.read_bytes() for path in home.iterdir()} == before


def test_import_keeps_every_configuration_byte_and_makes_a_backup(tmp_path: Path) -> None:
    text = '# mine\r\n[server]\r\nport = 4300 # good\r\n\r\n[[mcp_servers]]\r\nname = "a"\r\n'
    text += '[mcp_servers.transport]\r\ntype = "stdio"\r\ncommand = "x"\r\n# end'
    config = tmp_path / ".dragoman" / "config.toml"
    config.parent.mkdir(mode=0o700)
    config.write_bytes(text.encode())
    put(tmp_path, ".dragoman/env", "# mine\nA=1")
    (tmp_path / ".dragoman" / "env").chmod(0o644)
    put(tmp_path, ".cursor/mcp.json", {"mcpServers": {"github": GITHUB}})
    assert run(tmp_path, "cursor").exit_code == 0
    assert config.read_bytes().startswith(text.encode())
    assert list(servers(tmp_path)) == ["a", "github"]
    kept = [p.read_bytes() for p in config.parent.glob("config.toml.bak-*")]
    assert kept == [text.encode()]
    env = tmp_path / ".dragoman" / "env"
    assert env.read_text().startswith("# mine\nA=1\nGITHUB_PERSONAL_ACCESS_TOKEN=")
    assert env.stat().st_mode & 0o777 == 0o600
    assert not list(config.parent.glob("env.bak-*"))


def test_import_never_overwrites_an_existing_value(tmp_path: Path) -> None:
    put(tmp_path, ".dragoman/env", "API_KEY=mine\nSAME=1\n")
    entries = {
        "clash": {"command": "a", "env": {"API_KEY": "theirs", "NEW": "1"}},
        "same": {"command": "b", "env": {"SAME": "1"}},
        "first": {"command": "c", "env": {"TOKEN": "1"}},
        "second": {"command": "d", "env": {"TOKEN": "2"}},
    }
    put(tmp_path, ".cursor/mcp.json", {"mcpServers": entries})
    (tmp_path / ".dragoman").chmod(0o700)
    answer = json.loads(run(tmp_path, "cursor", "--json").output)
    assert [server["name"] for server in answer["added"]] == ["same", "first"]
    assert {skip["name"]: skip["reason"].split()[0] for skip in answer["skipped"]} == {
        "clash": "API_KEY",
        "second": "TOKEN",
    }
    text = (tmp_path / ".dragoman" / "env").read_text()
    assert text == "API_KEY=mine\nSAME=1\nTOKEN=1\n"


def test_remote_servers_keep_their_secrets_out_of_the_configuration(tmp_path: Path) -> None:
    entries = {
        "plain": {"url": "https://example.com/mcp"},
        "old": {"url": "https://example.com/sse"},
        "typed": {"type": "sse", "url": "https://example.com/x"},
        "key": {
            "type": "http",
            "url": "https://example.com/mcp",
            "headers": {"X-Api-Key": "s3cret", "Authorization": "Bearer t0ken", "Accept": "a/b"},
        },
        "reference": {
            "url": "https://example.com/mcp",
            "headers": {"Authorization": "Bearer ${env:TOKEN}", "X-Key": "${OTHER}"},
        },
        "mixed": {"url": "https://example.com/mcp", "headers": {"X": "abc123${env:TOKEN}"}},
        "local": {"url": "http://localhost:3000/mcp"},
        "metadata": {"url": "http://169.254.169.254/mcp"},
        "socket": {"url": "unix:///tmp/x.sock"},
    }
    put(tmp_path, ".cursor/mcp.json", {"mcpServers": entries})
    answer = json.loads(run(tmp_path, "cursor", "--json").output)
    found = {name: server["transport"] for name, server in servers(tmp_path).items()}
    assert found == {
        "plain": {"type": "http", "url": "https://example.com/mcp"},
        "old": {"type": "sse", "url": "https://example.com/sse"},
        "typed": {"type": "sse", "url": "https://example.com/x"},
        "key": {
            "type": "http",
            "url": "https://example.com/mcp",
            "headers": {
                "X-Api-Key": "${KEY_X_API_KEY}",
                "Authorization": "${KEY_AUTHORIZATION}",
                "Accept": "a/b",
            },
        },
        "reference": {
            "type": "http",
            "url": "https://example.com/mcp",
            "headers": {"Authorization": "Bearer ${TOKEN}", "X-Key": "${OTHER}"},
        },
        "local": {"type": "http", "url": "http://localhost:3000/mcp", "allow_private": True},
        "metadata": {"type": "http", "url": "http://169.254.169.254/mcp"},
    }
    assert values(tmp_path) == {"KEY_X_API_KEY": "s3cret", "KEY_AUTHORIZATION": "Bearer t0ken"}
    assert {skip["name"] for skip in answer["skipped"]} == {"mixed", "socket"}


def test_import_translates_or_reports_variable_references(tmp_path: Path) -> None:
    entries = {
        "asks": {
            "type": "stdio",
            "command": "${userHome}/bin/x",
            "env": {"KEY": "${input:api-key}", "SAME": "${env:SAME}", "DIR": "${userHome}/d"},
        },
        "header": {"type": "http", "url": "https://e.com", "headers": {"A": "Bearer ${input:tok}"}},
        "folder": {"type": "stdio", "command": "x", "args": ["${workspaceFolder}/y"]},
        "renamed": {"type": "stdio", "command": "x", "env": {"TOKEN": "${env:OTHER}"}},
        "path": {"type": "stdio", "command": "x", "env": {"PATH": "/opt/bin", "N": 8, "B": True}},
    }
    put(tmp_path, ".config/Code/User/mcp.json", {"inputs": [], "servers": entries})
    answer = json.loads(run(tmp_path, "vscode", "--json").output)
    notes = {server["name"]: " ".join(server["notes"]) for server in answer["added"]}
    have = servers(tmp_path)
    assert have["asks"]["transport"]["command"] == f"{tmp_path}/bin/x"
    assert have["asks"]["env"] == ["KEY", "SAME", "DIR"]
    assert "set KEY" in notes["asks"] and "SAME" not in notes["asks"]
    assert have["header"]["transport"]["headers"] == {"A": "Bearer ${HEADER_TOK}"}
    assert "HEADER_TOK" in notes["header"]
    assert have["renamed"]["env"] == ["TOKEN"] and "OTHER" in notes["renamed"]
    assert have["path"]["env"] == ["N", "B"] and "PATH" in notes["path"]
    assert values(tmp_path) == {"DIR": f"{tmp_path}/d", "N": "8", "B": "true"}
    (skipped,) = answer["skipped"]
    assert skipped["name"] == "folder" and "${workspaceFolder}" in skipped["reason"]


def test_import_reads_the_reference_syntax_of_each_client() -> None:
    def read(value: str, client: str) -> list[tuple[str, str]]:
        return split_references(value, CLIENTS[client])

    assert read("$TOKEN", "gemini-cli") == [("variable", "TOKEN")]
    assert read("pa$word", "cursor") == [("text", "pa$word")]
    assert read("{env:A}", "opencode") == [("variable", "A")]
    assert read("{file:x}", "opencode") == [("other", "{file:x}")]
    assert read("{env:A}", "cursor") == [("text", "{env:A}")]
    assert read("${A:-b}", "claude-code") == [("variable", "A")]
    assert read("x ${env:A}${input:b c}", "vscode") == [
        ("text", "x "),
        ("variable", "A"),
        ("input", "b c"),
    ]
    assert read("", "cursor") == [("text", "")]


FORMATS: dict[str, tuple[str, Any]] = {
    "claude-code": (".claude.json", {"mcpServers": {"x": {"type": "stdio", "command": "y"}}}),
    "zed": (
        ".config/zed/settings.json",
        '// mine\n{"context_servers": {"x": {"command": {"path": "y", "args": []}},},}',
    ),
    "opencode": (
        ".config/opencode/opencode.json",
        {"mcp": {"x": {"type": "local", "command": ["y"], "environment": {"A": "1"}}}},
    ),
    "codex": (".codex/config.toml", '[mcp_servers.x]\ncommand = "y"\nenv_vars = ["A"]\n'),
    "windsurf": (".codeium/windsurf/mcp_config.json", {"mcpServers": {"x": {"command": "y"}}}),
    "amp": (".config/amp/settings.json", {"amp.mcpServers": {"x": {"command": "y"}}}),
    "continue": (".continue/mcpServers/any.json", {"mcpServers": {"x": {"command": "y"}}}),
}


@pytest.mark.parametrize("client", FORMATS)
def test_import_reads_every_format_as_client_and_file(tmp_path: Path, client: str) -> None:
    place, content = FORMATS[client]
    path = put(tmp_path, place, content)
    for source in (client, str(path)):
        result = run(tmp_path, source, "--print")
        assert result.exit_code == 0, result.output
        (server,) = tomllib.loads(result.output)["mcp_servers"]
        assert server["name"] == "x" and server["transport"]["command"] == "y"
        assert server.get("env", ["A"]) == ["A"]
    assert not (tmp_path / ".dragoman").exists()


def test_codex_and_windsurf_name_their_remote_fields_differently(tmp_path: Path) -> None:
    put(
        tmp_path,
        ".codex/config.toml",
        """
[mcp_servers.one]
url = "https://e.com/mcp"
bearer_token_env_var = "TOK"
http_headers = { "X-A" = "secret" }
env_http_headers = { "X-B" = "BVAR" }
[mcp_servers.off]
command = "x"
enabled = false
""",
    )
    put(
        tmp_path,
        ".codeium/windsurf/mcp_config.json",
        {
            "mcpServers": {
                "two": {"serverUrl": "https://e.com/mcp"},
                "o": {"command": "x", "disabled": True},
            }
        },
    )
    put(
        tmp_path,
        ".gemini/settings.json",
        {
            "mcpServers": {
                "three": {"url": "https://e.com/a"},
                "four": {"httpUrl": "https://e.com/b"},
            }
        },
    )
    answer = json.loads(run(tmp_path, "--all", "--json").output)
    have = {name: server["transport"] for name, server in servers(tmp_path).items()}
    assert have["one"]["headers"] == {
        "X-A": "${ONE_X_A}",
        "X-B": "${BVAR}",
        "Authorization": "Bearer ${TOK}",
    }
    assert [have[name]["type"] for name in ("one", "two", "three", "four")] == [
        "http",
        "http",
        "sse",
        "http",
    ]
    assert {s["name"]: s["reason"] for s in answer["skipped"]} == {
        "off": "it is disabled there",
        "o": "it is disabled there",
    }


def test_import_without_a_source_checks_all_clients(tmp_path: Path) -> None:
    put(tmp_path, ".cursor/mcp.json", {"mcpServers": {"github": GITHUB}})
    put(tmp_path, ".kiro/settings/mcp.json", {"mcpServers": {"GitHub": {"command": "other"}}})
    put(tmp_path, ".lmstudio/mcp.json", "{ broken")
    put(tmp_path, ".config/goose/config.yaml", "extensions: {}")
    hub = {"command": "/x/dragoman", "args": ["mcp"]}
    put(tmp_path, ".junie/mcp/mcp.json", {"mcpServers": {"hub": hub, "a": {"command": "b"}}})

    result = run(tmp_path)
    assert result.exit_code == 0 and "--all" in result.output
    assert not (tmp_path / ".dragoman").exists()
    asked = json.loads(run(tmp_path, "--json").output)
    assert asked["added"] == [] and len(asked["found"]) == 2
    assert not (tmp_path / ".dragoman").exists()

    result = run(tmp_path, "--all")
    assert result.exit_code == 0, result.output
    assert list(servers(tmp_path)) == ["github", "a"]
    assert 'Skipped "GitHub" from Kiro: a server of this name is already in Cursor' in result.output
    assert 'Skipped "hub" from Junie (JetBrains): it is this hub itself' in result.output
    assert "line 1, column 3" in result.output and "YAML" in result.output


def test_import_only_takes_the_named_servers(tmp_path: Path) -> None:
    put(
        tmp_path, ".cursor/mcp.json", {"mcpServers": {n: {"command": n} for n in ("a", "b-c", "d")}}
    )
    result = run(tmp_path, "--only", "a,B_C")
    assert result.exit_code == 0, result.output
    assert list(servers(tmp_path)) == ["a", "b-c"]
    result = run(tmp_path, "cursor", "--only", "a,zzz")
    assert result.exit_code == 1 and "zzz" in result.output and "b-c" in result.output


def test_import_skips_what_the_hub_would_refuse(tmp_path: Path) -> None:
    entries = {
        "dots": {"command": "../x"},
        "lines": {"command": "x", "env": {"PEM": "a\nb"}},
        "name": {"command": "x", "env": {"A B": "1"}},
        "neither": {"settings": {}},
        "text": "x",
        "numbers": {"command": "x", "args": 1},
        "bad": {"url": "http://[x"},
        "\u0007bell": {"command": "y"},
        "\u0007!!": {"command": "z"},
        "io.github/x": {"command": "x"},
    }
    put(tmp_path, ".cursor/mcp.json", {"mcpServers": entries})
    result = run(tmp_path, "cursor")
    assert result.exit_code == 0 and "\x07" not in result.output
    assert list(servers(tmp_path)) == ["bell", "io-github-x"]
    assert 'renamed from "io.github/x"' in result.output


def test_import_warns_of_secrets_in_arguments(tmp_path: Path) -> None:
    entries = {
        "a": {"command": "x", "args": ["--api-key", "abc"]},
        "b": {"command": "x", "args": ["postgres://me:pw@host/db"]},
        "c": {"url": "https://e.com/mcp?token=abc"},
        "d": {"command": "x", "args": ["-y", "keyboard"]},
    }
    put(tmp_path, ".cursor/mcp.json", {"mcpServers": entries})
    found = json.loads(run(tmp_path, "cursor", "--json", "--print").output)["found"]
    assert [bool(server["notes"]) for server in found] == [True, True, True, False]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = = 1", "line 1, column 5"),
        ('mcp_servers = [{name = "a"}]\n', "cannot add to mcp_servers"),
        ("[mcp_servers.a]\nx = 1\n", "cannot add to mcp_servers"),
    ],
)
def test_import_leaves_an_uneditable_configuration_unchanged(
    tmp_path: Path, text: str, said: str
) -> None:
    config = put(tmp_path, ".dragoman/config.toml", text)
    config.parent.chmod(0o700)
    put(tmp_path, ".cursor/mcp.json", {"mcpServers": {"github": GITHUB}})
    result = run(tmp_path, "cursor")
    assert result.exit_code == 1 and said in result.output and str(config) in result.output
    assert config.read_text() == text and [p.name for p in config.parent.iterdir()] == [
        "config.toml"
    ]
    assert "error" in json.loads(run(tmp_path, "cursor", "--json").output)


def test_home_writable_by_others_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "shared"
    home.mkdir()
    home.chmod(0o777)
    put(tmp_path, ".cursor/mcp.json", {"mcpServers": {"github": GITHUB}})
    result = run(tmp_path, "cursor", "--home", str(home))
    assert result.exit_code == 1 and "chmod go-w" in result.output
    assert list(home.iterdir()) == []


def test_import_explains_invalid_sources(tmp_path: Path) -> None:
    result = run(tmp_path, "cursr")
    assert result.exit_code == 2 and "did you mean cursor?" in result.output
    result = run(tmp_path, "cursor")
    assert result.exit_code == 1 and str(tmp_path / ".cursor" / "mcp.json") in result.output
    broken = put(tmp_path, "x.json", '{"mcpServers": {,}}')
    result = run(tmp_path, str(broken))
    assert result.exit_code == 1 and "line 1, column 17" in result.output
    assert run(tmp_path, str(put(tmp_path, "y.json", "{}"))).exit_code == 1
    assert "YAML" in run(tmp_path, str(put(tmp_path, "y.yaml", "a: b"))).output
    assert not (tmp_path / ".dragoman").exists()


def test_claude_code_servers_of_this_folder_are_found(tmp_path: Path) -> None:
    here = {
        str(Path.cwd()): {"mcpServers": {"local": {"command": "x"}}},
        "/other": {"mcpServers": {"no": {}}},
    }
    put(tmp_path, ".claude.json", {"projects": here, "mcpServers": {"mine": {"command": "y"}}})
    assert run(tmp_path, "claude-code").exit_code == 0
    assert list(servers(tmp_path)) == ["local", "mine"]


def test_the_home_is_the_one_given_or_in_the_environment(tmp_path: Path) -> None:
    put(tmp_path, ".cursor/mcp.json", {"mcpServers": {"a": {"command": "x"}}})
    assert run(tmp_path, "cursor", DRAGOMAN_HOME=str(tmp_path / "one")).exit_code == 0
    assert run(tmp_path, "cursor", "--home", str(tmp_path / "two")).exit_code == 0
    for name in ("one", "two"):
        assert "mcp_servers" in tomllib.loads((tmp_path / name / "config.toml").read_text())
    assert not (tmp_path / ".dragoman").exists()


@pytest.mark.parametrize(("answer", "added"), [("y", True), ("n", False)])
def test_import_asks_on_a_terminal(tmp_path: Path, answer: str, added: bool) -> None:
    put(tmp_path, ".cursor/mcp.json", {"mcpServers": {"a": {"command": "x"}}})
    code = "from dragoman.cli.clients.import_command import import_command as c; c()"
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={"HOME": str(tmp_path), "PATH": "/usr/bin"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen, until = b"", time.monotonic() + 60
    try:
        while b"?" not in seen and time.monotonic() < until:
            if select.select([ours], [], [], 1)[0]:
                seen += os.read(ours, 4096)
        os.write(ours, f"{answer}\n".encode())
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"Add these to" in seen
    assert (tmp_path / ".dragoman" / "config.toml").exists() is added


def test_import_makes_project_paths_absolute(tmp_path: Path) -> None:
    put(tmp_path, "project/tools/server.py", "")
    put(tmp_path, "project/run.sh", "")
    entries = {
        "a": {"command": "python3", "args": ["tools/server.py", "-x", "gone.py", "tools"]},
        "b": {"command": "./run.sh", "args": ["/abs", "@scope/name", "~/x"]},
        "c": {"command": "python3", "args": ["server.py"], "cwd": "tools"},
    }
    file = put(tmp_path, "project/.vscode/mcp.json", {"servers": entries})
    assert run(tmp_path, str(file)).exit_code == 0
    project = tmp_path / "project"
    found = {name: server["transport"] for name, server in servers(tmp_path).items()}
    assert found["a"]["args"] == [f"{project}/tools/server.py", "-x", "gone.py", "tools"]
    assert found["b"]["command"] == f"{project}/run.sh"
    assert found["b"]["args"] == ["/abs", "@scope/name", "~/x"]
    assert found["c"]["args"] == ["server.py"] and found["c"]["cwd"] == f"{project}/tools"


def test_import_keeps_paths_of_user_level_files(tmp_path: Path) -> None:
    put(tmp_path, ".cursor/server.py", "")
    put(
        tmp_path, ".cursor/mcp.json", {"mcpServers": {"a": {"command": "x", "args": ["server.py"]}}}
    )
    assert run(tmp_path, "cursor").exit_code == 0
    assert servers(tmp_path)["a"]["transport"]["args"] == ["server.py"]


def test_import_stops_at_an_invalid_env_file_or_server_list(tmp_path: Path) -> None:
    put(tmp_path, ".cursor/mcp.json", {"mcpServers": {"github": GITHUB}})
    config = put(tmp_path, ".dragoman/config.toml", "mcp_servers = 5\n")
    config.parent.chmod(0o700)
    result = run(tmp_path, "cursor")
    assert result.exit_code == 1 and "cannot add to mcp_servers" in result.output
    config.write_text("")
    (config.parent / "env").write_bytes(b"\xff")
    result = run(tmp_path, "cursor")
    assert result.exit_code == 1 and "not UTF-8" in result.output
    assert config.read_text() == ""


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (None, {}),
        (b"", {}),
        (b"A=b\nC=d=e\n", {"A": "b", "C": "d=e"}),
        (b"\xef\xbb\xbfA=b\r\n B = c \r\n", {"A": "b", "B": " c "}),
        (b"# A=b\n  # C=d\nE\n=f\n\nG=#h\n", {"G": "#h"}),
        (b'A="b"\nA=c\x0bd\n', {"A": "c\x0bd"}),
    ],
)
def test_env_file_holds_names_and_literal_values(
    data: bytes | None, expected: dict[str, str]
) -> None:
    assert read_env(data) == expected
