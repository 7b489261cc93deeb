from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.config import (
    Config,
    describe_transport,
    find_line,
    list_keys,
    load,
    load_with_source,
    parse,
)
from dragoman.core.errors import ConfigError
from dragoman.mcp.config import (
    ANSWER_SECONDS,
    HttpTransport,
    ServerEntry,
    SseTransport,
    StdioTransport,
    parse_headers,
)

GITHUB = """
[[mcp_servers]]
name = "github"
timeout_secs = 30
env = ["GITHUB_PERSONAL_ACCESS_TOKEN"]
[mcp_servers.transport]
type = "stdio"
command = "npx"
args = ["-y", "@modelcontextprotocol/server-github"]
"""
FILESYSTEM = """
[[mcp_servers]]
name = "filesystem"
timeout_secs = 10
env = []
[mcp_servers.transport]
type = "stdio"
command = "npx"
args = ["-y", "@modelcontextprotocol/server-filesystem", "/home/user/projects"]
"""
POSTGRES = """
[[mcp_servers]]
name = "postgres"
timeout_secs = 30
env = ["DATABASE_URL"]
[mcp_servers.transport]
type = "stdio"
command = "npx"
args = ["-y", "@modelcontextprotocol/server-postgres"]
"""
PUPPETEER = """
[[mcp_servers]]
name = "puppeteer"
timeout_secs = 60
[mcp_servers.transport]
type = "stdio"
command = "npx"
args = ["-y", "@modelcontextprotocol/server-puppeteer"]
"""
REMOTE = """
[[mcp_servers]]
name = "remote-tools"
timeout_secs = 30
[mcp_servers.transport]
type = "sse"
url = "https://tools.example.com/mcp"
"""
SEVERAL = """
[[mcp_servers]]
name = "github"
env = ["GITHUB_PERSONAL_ACCESS_TOKEN"]
[mcp_servers.transport]
type = "stdio"
command = "npx"
args = ["-y", "@modelcontextprotocol/server-github"]
[[mcp_servers]]
name = "filesystem"
[mcp_servers.transport]
type = "stdio"
command = "npx"
args = ["-y", "@modelcontextprotocol/server-filesystem", "/home/user/projects"]
[[mcp_servers]]
name = "postgres"
env = ["DATABASE_URL"]
[mcp_servers.transport]
type = "stdio"
command = "npx"
args = ["-y", "@modelcontextprotocol/server-postgres"]
"""


def npx(name: str, timeout: float | None, env: list[str], *more: str) -> ServerEntry:
    args = ["-y", f"@modelcontextprotocol/server-{name}", *more]
    transport = StdioTransport(command="npx", args=args)
    return ServerEntry(name=name, timeout_secs=timeout, env=env, transport=transport)


FILES = "/home/user/projects"
EXAMPLES = {
    "GitHub": (GITHUB, [npx("github", 30, ["GITHUB_PERSONAL_ACCESS_TOKEN"])]),
    "Filesystem": (FILESYSTEM, [npx("filesystem", 10, [], FILES)]),
    "PostgreSQL": (POSTGRES, [npx("postgres", 30, ["DATABASE_URL"])]),
    "Puppeteer": (PUPPETEER, [npx("puppeteer", 60, [])]),
    "Remote SSE": (
        REMOTE,
        [
            ServerEntry(
                name="remote-tools",
                timeout_secs=30,
                transport=SseTransport(url="https://tools.example.com/mcp"),
            )
        ],
    ),
    "Multiple": (
        SEVERAL,
        [
            npx("github", None, ["GITHUB_PERSONAL_ACCESS_TOKEN"]),
            npx("filesystem", None, [], FILES),
            npx("postgres", None, ["DATABASE_URL"]),
        ],
    ),
}


@pytest.mark.promise("B1")
@pytest.mark.parametrize("example", EXAMPLES)
def test_documented_configuration_examples_load(example: str) -> None:
    text, expected = EXAMPLES[example]
    assert parse(text).mcp_servers == expected


@pytest.mark.promise("B1")
def test_server_defaults_have_common_timeouts_and_no_variables() -> None:
    (entry,) = parse(STDIO).mcp_servers
    assert (entry.timeout_secs, entry.env, entry.enabled, entry.idle_secs) == (None, [], True, 0)
    assert ANSWER_SECONDS == 30


def test_missing_and_empty_files_give_defaults(tmp_path: Path) -> None:
    assert load(tmp_path / "config.toml") == Config()
    (tmp_path / "config.toml").touch()
    assert load(tmp_path / "config.toml") == Config()
    assert Config().server.host == "127.0.0.1"


def test_unreadable_file_is_reported_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=f"cannot read {tmp_path}/config.toml"):
        load(tmp_path / "config.toml")
    with pytest.raises(ConfigError, match=f"cannot read {tmp_path}"):
        load(tmp_path)


def test_former_values_still_work_with_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        '[mcp]\nnames = "seed"\nnames_for = {"a*" = "seed", "b*" = "safe"}\n'
        '[[a2a.external_agents]]\nname = "a"\nurl = "http://x/"\nwire = "seed"\n'
    )
    config, source = load_with_source(file)
    assert config.mcp.names == "legacy"
    assert config.mcp.names_for == {"a*": "legacy", "b*": "safe"}
    assert config.a2a.external_agents[0].wire == "skill-only"
    names, names_for, wire = source.warnings
    assert names.startswith(f'{file}, line 2: the value "seed" is now called "legacy"')
    assert "line 3" in names_for and '"legacy"' in names_for
    assert 'line 7: the value "seed" is now called "skill-only"' in wire


@pytest.mark.parametrize("text", ["mcp = 1", "[mcp]\nnames = 7", "[a2a]\nexternal_agents = 1"])
def test_value_of_the_wrong_type_is_not_treated_as_deprecated(text: str) -> None:
    with pytest.raises(ConfigError):
        parse(text)


def test_new_values_have_no_warning(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[mcp]\nnames = "legacy"\n')
    assert load_with_source(file)[1].warnings == []


NAMED = '[[mcp_servers]]\nname = "a"\n'
COMMAND = '[mcp_servers.transport]\ntype = "stdio"\ncommand = "x"\n'
URL = '[mcp_servers.transport]\ntype = "http"\nurl = "http://x/"\n'
STDIO, HTTP = NAMED + COMMAND, NAMED + URL

UNKNOWN = {
    "mcp_server = 1\n": (
        '1: unknown key "mcp_server" at the top of the file; did you mean "mcp_servers"?'
    ),
    "[servers]\nport = 1\n": (
        '1: unknown key "servers" at the top of the file; did you mean "server"?'
    ),
    '[mcp]\nnames = "sefe"\n': (
        '2: invalid value of "mcp.names": choose one of "legacy", "dotted", "safe", "portable"'
    ),
    '[mcp]\nnames_for = {"a*" = "b"}\n': (
        '2: invalid value of "mcp.names_for": choose one of "legacy", "dotted", "safe", "portable"'
    ),
    "\n[server]\nprot = 1\n": '3: unknown key "prot" in [server]; did you mean "port"?',
    "[limits]\ntool_timeout = 3\n": (
        '2: unknown key "tool_timeout" in [limits]; did you mean "tool_timeout_secs"?'
    ),
    f"{NAMED}timeout = 5\n{COMMAND}": (
        '3: unknown key "timeout" in [[mcp_servers]]; did you mean "timeout_secs"?'
    ),
    STDIO + NAMED.replace('"a"', '"b"') + "\nenvs = []\n" + COMMAND: (
        '9: unknown key "envs" in [[mcp_servers]]; did you mean "env"?'
    ),
    f'{NAMED}command = "x"\n': (
        '3: unknown key "command" in [[mcp_servers]]; '
        '"command" belongs below [mcp_servers.transport]'
    ),
    f'{NAMED}comand = "x"\n': (
        '3: unknown key "comand" in [[mcp_servers]]; '
        'did you mean "command", which belongs below [mcp_servers.transport]?'
    ),
    f'{STDIO}comand = "y"\n': (
        '6: unknown key "comand" in [mcp_servers.transport]; did you mean "command"?'
    ),
    f'{HTTP}cwd = "x"\n': (
        '6: unknown key "cwd" in [mcp_servers.transport]; '
        "known here: allow_private, headers, type, url"
    ),
    f'{STDIO}url = "x"\n': (
        '6: unknown key "url" in [mcp_servers.transport]; known here: args, command, cwd, type'
    ),
}  # fmt: skip


@pytest.mark.promise("B1")
@pytest.mark.parametrize("text", UNKNOWN)
def test_an_unknown_key_is_refused_with_its_line_and_the_nearest_known_one(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(text, "/home/me/config.toml")
    assert str(raised.value) == f"/home/me/config.toml, line {UNKNOWN[text]}"


def test_a_model_has_a_price_under_its_own_name() -> None:
    found = parse('[prices."openai/gpt-4o"]\ninput = 2.5\noutput = 10\n', "config.toml").prices
    assert (found["openai/gpt-4o"].input, found["openai/gpt-4o"].output) == (2.5, 10)
    with pytest.raises(
        ConfigError, match=r'line 2: unknown key "inputs" in .*did you mean "input"'
    ):
        parse('[prices."openai/gpt-4o"]\ninputs = 2.5\n', "config.toml")


BAD = {
    '[server]\nport = "abc"\n': '2: invalid value of "server.port": it must be a whole number, not',
    "[server]\nport = 99999\n": "2: .* it must be a whole number of at most 65535$",
    "[limits]\ncalls_in_flight = 0\n": "2: .* it must be a whole number of at least 1$",
    "[limits]\nchain_depth = -1\n": "2: .* it must be a whole number of at least 0$",
    "[limits]\nchain_depth = 64\n": "2: .* it must be a whole number of at most 63$",
    "[limits]\nchain_depth = 9223372036854775808\n": "2: .*chain_depth",
    "[limits]\nresult_chars = 999\n": "2: .* it must be a whole number of at least 1000$",
    "[limits]\nresult_chars = 5\n": "2: .* it must be a whole number of at least 1000$",
    f"[[mcp_servers]]\n{COMMAND}": r'1: \[\[mcp_servers\]\] needs a "name"$',
    NAMED: r'1: \[\[mcp_servers\]\] needs a "transport"$',
    f'{NAMED}[mcp_servers.transport]\ncommand = "x"\n': (
        r'3: \[mcp_servers.transport\] needs a "type": "stdio", "http" or "sse"$'
    ),
    f'{NAMED}[mcp_servers.transport]\ntype = "websocket"\n': (
        '4: type must be "stdio", "http" or "sse"$'
    ),
    f"{NAMED}[mcp_servers.transport]\ntype = 5\n": "4: .* it must be text in quotes",
    f'{NAMED}[mcp_servers.transport]\ntype = "http"\n': (
        r'3: \[mcp_servers.transport\] needs a "url"$'
    ),
    f'{NAMED}[mcp_servers.transport]\ntype = "stdio"\n': (
        r'3: \[mcp_servers.transport\] needs a "command"$'
    ),
    f'{NAMED}transport = "stdio"\n': "3: .* it must be a table, not text in quotes$",
    '[mcp_servers]\nname = "x"\n': r"1: each server begins with \[\[mcp_servers\]\], in two",
    f"{NAMED}timeout_secs = 0\n{COMMAND}": "3: .* it must be a number greater than 0$",
    f'{NAMED}timeout_secs = "30"\n{COMMAND}': "3: .* it must be a number, not text in quotes$",
    f"{NAMED}timeout_secs = 1e9\n{COMMAND}": "3: .* it must be a number of at most 86400$",
    f"{NAMED}timeout_secs = nan\n{COMMAND}": "3: .* it must be a number",
    f"{NAMED}idle_secs = -1\n{COMMAND}": "3: .* it must be a number of at least 0$",
    f'{NAMED}enabled = "no"\n{COMMAND}': "3: .* it must be true or false, not text in quotes$",
    f'{NAMED}env = "A"\n{COMMAND}': r"3: .* it must be a list in \[ \], not text in quotes$",
    f"{NAMED}env = [1]\n{COMMAND}": "3: .* it must be text in quotes, not a whole number$",
    f'{NAMED}env = ["A=secret"]\n{COMMAND}': '3: "A" in the env of server "a" must be the name',
    f'[[mcp_servers]]\nname = ""\n{COMMAND}': "2: .* it must not be empty$",
    f'[[mcp_servers]]\nname = "a/b"\n{COMMAND}': '2: invalid server name "a/b": use letters',
    f'[[mcp_servers]]\nname = "a.b"\n{COMMAND}': '2: invalid server name "a.b": use letters',
    f'[[mcp_servers]]\nname = "{"a" * 65}"\n{COMMAND}': "2: .* of at most 64 characters$",
    STDIO.replace('"x"', '"x\\u0000"'): "3: .* a NUL character",
    f'{STDIO}args = ["\\u0000"]\n': "3: .* a NUL character",
    f'{STDIO}args = "y"\n': r"6: .* it must be a list in \[ \], not text in quotes$",
    HTTP.replace("http://x/", "ftp://x/"): "5: .* must begin with http:// or https://, not \"ftp",
    HTTP.replace("http://x/", "x"): "5: .* must begin with http:// or https://",
    HTTP.replace("http://x/", "http:///x"): "5: .* must begin with http:// or https://",
    f'{HTTP}headers = {{ "A B" = "c" }}\n': '6: server "a": invalid header name "A B"',
    f'{HTTP}headers = {{ A = "a\\nb" }}\n': '6: .* header "A" contains a control character$',
    f'{HTTP}headers = ["nothing"]\n': '6: server "a": each of headers must be "Name: value"$',
    f'{HTTP}headers = "A: b"\n': r"6: .* it must be a table or a list in \[ \]",
    f"{HTTP}headers = {{ A = 5 }}\n": "6: .* it must be text in quotes, not a whole number$",
    f'{HTTP}allow_private = "yes"\n': "6: .* it must be true or false",
    "[a2a]\ngrpc_ports = { a = 70000 }\n": "2: .* it must be a whole number of at most 65535$",
    "[a2a]\ngrpc_ports = { a = 1 }\n": "2: grpc_ports needs grpc_port, the port",
    'api_key = "short"\n': "1: api_key is too short: .* 16 characters and could be guessed",
}  # fmt: skip


@pytest.mark.promise("B1", "B2")
@pytest.mark.parametrize("text", BAD)
def test_invalid_value_is_reported_in_one_sentence_with_its_line(text: str) -> None:
    with pytest.raises(ConfigError, match=f"^config.toml, line {BAD[text]}") as raised:
        parse(text)
    assert "\n" not in str(raised.value) and "`" not in str(raised.value)
    assert "=secret" not in str(raised.value)


def test_invalid_toml_is_reported_with_the_file() -> None:
    with pytest.raises(ConfigError, match=r"^config.toml is not valid TOML: .*line 2"):
        parse("a = 1\nb = = 2\n")


@pytest.mark.promise("B10", "N1")
@pytest.mark.parametrize("command", ["../x", "a/../x", "/a/..", "..", "a\\\\..\\\\x"])
def test_command_containing_dot_dot_is_refused(command: str) -> None:
    with pytest.raises(ConfigError, match=r'line 5: the command of server "a" contains "\.\."'):
        parse(STDIO.replace('"x"', f'"{command}"'))


@pytest.mark.promise("B10")
def test_dot_dot_inside_a_name_is_accepted() -> None:
    (entry,) = parse(STDIO.replace('"x"', '"tool..v2"')).mcp_servers
    assert isinstance(entry.transport, StdioTransport)
    assert entry.transport.command == "tool..v2"


@pytest.mark.promise("B3")
@pytest.mark.parametrize("second", ["my-server", "My-Server", "my_server", "my server"])
def test_the_second_server_with_a_name_is_refused(second: str) -> None:
    text = STDIO.replace('"a"', '"my-server"') + STDIO.replace('"a"', f'"{second}"')
    with pytest.raises(ConfigError) as raised:
        parse(text)
    assert f'line 7: the name of server "{second}" already exists: "my-server"' in str(raised.value)


@pytest.mark.parametrize(
    ("name", "owner"),
    [("builtin", "the built-in tools"), ("Dragoman", "the hub's own tools")],
)
def test_name_of_the_hubs_own_tools_is_refused_for_servers(name: str, owner: str) -> None:
    with pytest.raises(ConfigError, match=f'"{name}" is reserved for {owner}; give the server'):
        parse(STDIO.replace('"a"', f'"{name}"'))


@pytest.mark.promise("B2")
def servers(*names: str, **prefixes: str) -> str:
    text = ""
    for name in names:
        prefix = prefixes.get(name.replace("-", "_"))
        text += f'[[mcp_servers]]\nname = "{name}"\n'
        text += f'prefix = "{prefix}"\n' if prefix is not None else ""
        text += '[mcp_servers.transport]\ntype = "stdio"\ncommand = "true"\n'
    return text


AGENT = '[[a2a.external_agents]]\nname = "{}"\nurl = "http://127.0.0.1:1"\n'


@pytest.mark.parametrize(
    "text",
    [
        servers("files", "mcp-files"),
        servers("mcp_files", "files"),
        servers("one", "two", one="two"),
        servers("files") + AGENT.format("mcp files"),
    ],
)
def test_targets_that_would_be_listed_under_one_prefix_are_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r'tools of ".+" and of ".+" would both be listed as'):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        servers("mcp-atlassian", "mcp-server-git", "mcp"),
        servers("github", "github_enterprise", "git"),
        servers("one", "two", "three", one="", two=""),
        servers("one", "two", one="all", two="all"),
        servers("files", "mcp-files", mcp_files="f"),
        servers("files") + AGENT.format("a2a files"),
    ],
)
def test_targets_with_similar_names_coexist(text: str) -> None:
    assert parse(text).mcp_servers


def test_headers_are_a_table_or_lines() -> None:
    for headers in ('{ "X-A" = "b: c", Y = "${D}" }', '["X-A: b: c", "Y: ${D}"]'):
        (entry,) = parse(f"{HTTP}headers = {headers}\n").mcp_servers
        assert isinstance(entry.transport, HttpTransport)
        assert dict(parse_headers(entry.transport.headers)) == {"X-A": "b: c", "Y": "${D}"}


def test_server_address_describes_its_transport() -> None:
    github, remote = parse(GITHUB + REMOTE).mcp_servers
    assert describe_transport(github) == "npx -y @modelcontextprotocol/server-github"
    assert describe_transport(remote) == "https://tools.example.com/…"


def test_line_of_a_key_is_found_in_every_toml_form() -> None:
    text = (
        'a.b = 1\n[server] # the server\n"port" = 2\n\n[[mcp_servers]]\nname = "x"\n'
        '[[mcp_servers]]\nname = "y"\n[mcp_servers.transport]\nurl = "z"\n'
    )
    assert find_line(text, ("a", "b")) == 1
    assert find_line(text, ("server", "port")) == 3
    assert find_line(text, ("mcp_servers", 0, "name")) == 6
    assert find_line(text, ("mcp_servers", 1, "transport", "url")) == 10
    assert find_line(text, ("mcp_servers", 1, "transport", "headers")) == 9
    assert find_line(text, ("nowhere",)) is None


def test_every_configuration_key_is_documented() -> None:
    assert [path for path, _, _, meaning in list_keys() if not meaning] == []
    assert (
        "mcp_servers[].name",
        "str",
        "required",
        "The name of the server in the hub.",
    ) in list_keys()


LOGIN_SERVER = '[[mcp_servers]]\nname = "s"\n{more}\ntransport = {{ {transport} }}\n{table}'
REMOTE_TABLE = 'type = "http", url = "https://a.example/mcp"'


@pytest.mark.parametrize(
    ("more", "transport", "table", "problem"),
    [
        ("", 'type = "stdio", command = "x"', "[mcp_servers.oauth]", "is a program"),
        ('credentials = "user"', 'type = "stdio", command = "x"', "", "is a program"),
        (
            'credentials = "user"',
            REMOTE_TABLE + ', headers = { authorization = "Bearer ${X}" }',
            "",
            "remove one of them",
        ),
        (
            'credentials = "user"',
            REMOTE_TABLE,
            '[mcp_servers.oauth]\ngrant = "client_credentials"',
            "one login for all",
        ),
        ("", REMOTE_TABLE, '[mcp_servers.oauth]\nclientid = "x"', "client_id"),
    ],
)
def test_impossible_login_settings_are_refused(
    more: str, transport: str, table: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse(LOGIN_SERVER.format(more=more, transport=transport, table=table))


def test_a_setting_that_is_gone_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '[workflows]\ndatabase = "postgresql://u:hidden@db/runs"\n'
    with pytest.raises(ConfigError, match=r"\[store\] url") as raised:
        parse(text)
    assert "dragoman store copy" in str(raised.value) and "hidden" not in str(raised.value)
    monkeypatch.setenv("DRAGOMAN_WORKFLOWS__DATABASE", "postgresql://db/runs")
    with pytest.raises(
        ConfigError, match=r"DRAGOMAN_WORKFLOWS__DATABASE: .* not a setting any more"
    ):
        load(tmp_path / "config.toml")
