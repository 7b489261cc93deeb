"""Settings from the environment: types, precedence, errors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dragoman.config import Config, find_frozen_changes, load, load_with_source, parse
from dragoman.config_layers import (
    Override,
    find_near_misses,
    list_settings,
    variable_from_path,
)
from dragoman.core.errors import ConfigError

HTTP = '[[mcp_servers]]\nname = "far"\n[mcp_servers.transport]\ntype = "http"\nurl = "http://h/m"\n'
SERVERS = '[{"name": "near", "transport": {"type": "stdio", "command": "x"}}]'

GOOD: dict[str, tuple[dict[str, str], str, Any]] = {
    "a number": ({"DRAGOMAN_SERVER__PORT": "0"}, "server.port", 0),
    "a fraction": ({"DRAGOMAN_LIMITS__TOOL_TIMEOUT_SECS": "1.5"}, "limits.tool_timeout_secs", 1.5),
    "text": ({"DRAGOMAN_API_KEY": "0123456789abcdef"}, "api_key", "0123456789abcdef"),
    "text that reads null": ({"DRAGOMAN_SERVER__HOST": "null"}, "server.host", "null"),
    "a boolean": ({"DRAGOMAN_A2A__ENABLED": "true"}, "a2a.enabled", True),
    "another boolean": ({"DRAGOMAN_A2A__ENABLED": "0"}, "a2a.enabled", False),
    "a choice": ({"DRAGOMAN_LOG__FORMAT": "json"}, "log.format", "json"),
    "a list": ({"DRAGOMAN_SERVER__ALLOWED_HOSTS": "a, b"}, "server.allowed_hosts", ["a", "b"]),
    "a list in JSON": (
        {"DRAGOMAN_SERVER__ALLOWED_HOSTS": '["a,b"]'},
        "server.allowed_hosts",
        ["a,b"],
    ),
    "a table": ({"DRAGOMAN_MCP__NAMES_FOR": '{"x*": "safe"}'}, "mcp.names_for", {"x*": "safe"}),
    "an optional number": ({"DRAGOMAN_A2A__GRPC_PORT": "5"}, "a2a.grpc_port", 5),
    "all servers": ({"DRAGOMAN_MCP_SERVERS": SERVERS}, "mcp_servers.0.name", "near"),
    "a server of the file": (
        {"DRAGOMAN_MCP_SERVERS__0__TIMEOUT_SECS": "7"},
        "mcp_servers.0.timeout_secs",
        7,
    ),
    "its address": (
        {"DRAGOMAN_MCP_SERVERS__0__TRANSPORT__URL": "http://other/mcp"},
        "mcp_servers.0.transport.url",
        "http://other/mcp",
    ),
    "a further server": (
        {
            "DRAGOMAN_MCP_SERVERS__1__NAME": "near",
            "DRAGOMAN_MCP_SERVERS__1__TRANSPORT__TYPE": "stdio",
            "DRAGOMAN_MCP_SERVERS__1__TRANSPORT__COMMAND": "x",
        },
        "mcp_servers.1.transport.command",
        "x",
    ),
    "one of a list that is given": (
        {"DRAGOMAN_MCP_SERVERS__0__ENABLED": "false", "DRAGOMAN_MCP_SERVERS": SERVERS},
        "mcp_servers.0.enabled",
        False,
    ),
}


def value_at(config: Any, path: str) -> Any:
    for step in path.split("."):
        config = config[int(step)] if step.isdecimal() else getattr(config, step)
    return config


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DRAGOMAN_HOME", raising=False)
    file = tmp_path / "config.toml"
    file.write_text(f"[server]\nport = 1\nhost = 'from-file'\n{HTTP}")
    return file


@pytest.mark.parametrize("name", GOOD)
def test_variable_is_parsed_as_its_settings_type(
    name: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables, path, expected = GOOD[name]
    for variable, text in variables.items():
        monkeypatch.setenv(variable, text)
    found = value_at(load(file), path)
    assert found == expected and type(found) in (type(expected), float)


def test_command_line_overrides_environment_and_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_SERVER__PORT", "2")
    monkeypatch.setenv("DRAGOMAN_LOG__FORMAT", "json")
    given = [Override(("server", "port"), 3, "--port")]
    config, source = load_with_source(file, given)
    assert (config.server.port, config.log.format, config.server.host) == (3, "json", "from-file")
    assert source.find_origin(("server", "port")) == "--port"
    assert source.find_origin(("log", "format")) == "environment variable DRAGOMAN_LOG__FORMAT"
    assert source.find_origin(("server", "host")) == f"{file}, line 3"
    assert source.find_origin(("server", "public_url")) == "default"
    assert load(file).server.port == 2
    assert parse(file.read_text(encoding="utf-8")).server.port == 1  # the text alone


WRONG = {
    "DRAGOMAN_SERVER__PROT=1": r'unknown setting "prot"; did you mean DRAGOMAN_SERVER__PORT\?',
    "DRAGOMAN_SERVR__PORT=1": r'unknown setting "servr"; did you mean DRAGOMAN_SERVER__PORT\?',
    "DRAGOMAN_SERVER__port=1": 'unknown setting "port"',
    "DRAGOMAN_SERVER__=1": "known there: ALLOWED_HOSTS, ",
    "DRAGOMAN_SERVER__PORT__X=1": "is a single value, not a table",
    "DRAGOMAN_A2A__EXTERNAL_AGENTS__NAME=x": "write DRAGOMAN_A2A__EXTERNAL_AGENTS__0__…",
    "DRAGOMAN_MCP_SERVERS__0__TRANSPORT=x": "set DRAGOMAN_MCP_SERVERS__0__TRANSPORT__… instead",
    "DRAGOMAN_MCP_SERVERS__0__TRANSPORT__COMMAND=x": 'unknown setting "command"',
    "DRAGOMAN_MCP_SERVERS__2__NAME=x": "the list has 1 elements: the next index is 1",
    "DRAGOMAN_MCP_SERVERS=s3cret": "must be JSON such as",
    "DRAGOMAN_MCP_SERVERS=[s3cret": "is not valid JSON",
    "DRAGOMAN_SERVER__PORT=s3cret": "must be a whole number",
    "DRAGOMAN_SERVER__PORT=99999": "of at most 65535",
    "DRAGOMAN_A2A__ENABLED=s3cret": "must be true or false",
    "DRAGOMAN_LOG__FORMAT=s3cret": 'choose one of "text", "json"',
    "DRAGOMAN_API_KEY=s3cret": "less than 16 characters",
    "DRAGOMAN_API_KEY=": "less than 16 characters",
    'DRAGOMAN_MCP_SERVERS=[{"name": "x", "comand": "s3cret"}]': 'unknown key "comand"',
}


@pytest.mark.parametrize("assignment", WRONG)
def test_invalid_variable_is_named_without_its_value(
    assignment: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, _, text = assignment.partition("=")
    monkeypatch.setenv(name, text)
    with pytest.raises(ConfigError) as raised:
        load(file)
    assert str(raised.value).startswith(f"environment variable {name}")
    assert re.search(WRONG[assignment], str(raised.value))
    assert "s3cret" not in str(raised.value)


def test_unrelated_variables_are_ignored(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = {
        "DRAGOMAN_AGENT_OPS__TOKEN": "x",  # a credential
        "DRAGOMAN_PORT": "tcp://10.0.0.1:50051",  # as Kubernetes tells of a service
        "DRAGOMAN_SERVER_PORT": "tcp://10.0.0.1:50051",
        "DRAGOMAN_SERVER_HOST": "0.0.0.0",
        "DRAGOMAN_DEBUG": "1",
    }
    for name, text in others.items():
        monkeypatch.setenv(name, text)
    assert load(file) == parse(file.read_text(encoding="utf-8"))
    assert find_near_misses(Config, others) == [("DRAGOMAN_SERVER_HOST", "DRAGOMAN_SERVER__HOST")]


def test_every_setting_has_a_variable() -> None:
    variables = [variable_from_path(path) for path, *_ in list_settings(Config)]
    assert len(set(variables)) > 100 and all(re.fullmatch("[A-Z0-9_]+", one) for one in variables)
    assert variable_from_path("mcp_servers[].transport(http).url") == (
        "DRAGOMAN_MCP_SERVERS__N__TRANSPORT__URL"
    )


def test_changes_requiring_a_restart_are_named() -> None:
    old = parse("[server]\nport = 1\n[audit]\nkeep_days = 3\n")
    new = parse(f'api_key = "0123456789abcdef"\n[server]\nport = 2\n[log]\nfiles = 2\n{HTTP}')
    assert find_frozen_changes(old, new) == ["api_key", "server.port", "log.files"]
    assert find_frozen_changes(old, old) == []
