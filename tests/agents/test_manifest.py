"""Manifests: both forms, those of OpenFang and OpenStarry, grants, and errors that name the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.agents.manifest import (
    LoadedManifest,
    list_manifests,
    load_manifest,
    parse_manifest,
    strip_comments,
)
from dragoman.agents.manifest_agents import _covers
from dragoman.core.errors import ConfigError
from dragoman.core.tool import AgentFacts, TargetFacts, TargetTraits, Tool
from dragoman.wire.json import decode, encode

pytestmark = pytest.mark.promise("Q4", "P1")

TOML, JSON = Path("/home/agents/coder/agent.toml"), Path("/home/agents/coder/agent.json")

OPENFANG = """
name = "code-reviewer"
version = "0.1.0"
description = "Senior code reviewer."
author = "openfang"
module = "builtin:chat"
tags = ["review", "code-quality"]

[model]
provider = "openai"
model = "gpt-4o"
api_key_env = "OPENAI_API_KEY"
max_tokens = 4096
temperature = 0.3
system_prompt = '''You are Code Reviewer.'''

[[fallback_models]]
provider = "groq"
model = "llama-3.3-70b-versatile"
api_key_env = "GROQ_API_KEY"

[resources]
max_llm_tokens_per_hour = 150000

[capabilities]
tools = ["file_read", "file_list", "shell_exec", "memory_store", "memory_recall"]
memory_read = ["*"]
memory_write = ["self.*", "shared.*"]
agent_message = ["coder"]
shell = ["cargo clippy *", "git diff *"]
ofp_discover = true
"""
OPENSTARRY = """
{
  // who it is
  "identity": {"id": "openstarry-coder", "name": "Coder", "description": "Codes: a // b",
               "version": "1.0.0"},
  "cognition": {"provider": "openai", "model": "gpt-4o", "temperature": 0.5, "maxTokens": 800,
                "maxToolRounds": 7},
  "capabilities": {"tools": ["fs.read", "fs:write"], "allowedPaths": ["/x"]},
  "policy": {"maxConcurrentTools": 1},
  "plugins": [{"name": "p"}], /* of no use here */
  "communication": {"canSendTo": ["tester"], "maxMessageSize": 4096},
  "mcp": {
    "expose_tools": ["fs:read_file", "git:status"], // Only expose these two
    "private_tools": ["admin:reset"] // Hide administrative tools
  }
}
"""


def test_manifest_of_openfang_loads_with_a_warning_for_each_field_without_meaning() -> None:
    loaded = parse_manifest(OPENFANG, TOML)
    manifest = loaded.manifest
    assert (manifest.name, manifest.version, manifest.author) == (
        "code-reviewer", "0.1.0", "openfang",
    )  # fmt: skip
    assert manifest.model.model == "gpt-4o" and manifest.model.system_prompt.startswith("You are")
    assert [one.provider for one in manifest.fallback_models] == ["groq"]
    profile = loaded.build_profile()
    assert profile.agents == ("coder",) and profile.shell == ("cargo clippy *", "git diff *")
    assert profile.memory_write == ("self.*", "shared.*")
    named = [one.split('"')[3] for one in loaded.warnings]
    assert named == ["capabilities.ofp_discover", "module", "resources"]
    assert all(str(TOML) in one for one in loaded.warnings)


def test_manifest_of_openstarry_loads_with_its_comments() -> None:
    loaded = parse_manifest(OPENSTARRY, JSON)
    manifest = loaded.manifest
    assert (manifest.name, manifest.version) == ("Coder", "1.0.0")
    assert manifest.description == "Codes: a // b"
    assert manifest.model.max_tokens == 800 and manifest.limits.turns == 7
    assert manifest.mcp.expose_tools == ["fs:read_file", "git:status"]
    assert manifest.mcp.private_tools == ["admin:reset"]
    profile = loaded.build_profile()
    assert profile.tools == ("fs.read", "fs.write") and profile.agents == ("tester",)
    assert len(loaded.warnings) == 4


@pytest.mark.parametrize(
    ("text", "times", "warned"),
    [
        ('schedule = "reactive"', [], False),
        ('schedule = { periodic = { cron = "every 5m" } }', ["every 5m"], False),
        ("[schedule.continuous]\ncheck_interval_secs = 90", ["every 90 seconds"], False),
        ("[schedule]\ncontinuous = {}", ["every 60 seconds"], False),
        ('schedule = { proactive = { conditions = ["x"] } }', [], True),
        ('schedule = "0 9 * * *"', ["0 9 * * *"], False),
        ('schedule = ["hourly", { time = "daily", message = "m" }]', ["hourly", "daily"], False),
        ('[schedule]\ntime = "hourly"', ["hourly"], False),
    ],
)
def test_schedule_is_read_in_each_form(text: str, times: list[str], warned: bool) -> None:
    loaded = parse_manifest(text, TOML)
    assert [one.time for one in loaded.build_profile().schedules] == times
    assert bool(loaded.warnings) is warned


def test_smallest_manifest_has_the_name_of_its_folder_and_grants_nothing() -> None:
    loaded = parse_manifest('[[script]]\nsay = "hi"\n', TOML)
    assert loaded.manifest.name == "coder"
    profile = loaded.build_profile()
    granted = (profile.tools, profile.servers, profile.agents, profile.shell, profile.network)
    assert granted == ((), (), (), (), ()) and not profile.can_spawn
    assert profile.workspace == TOML.parent / "workspace"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("names = 'x'", 'unknown field "names"; did you mean "name"?'),
        ("[model]\nmodels = 'x'", 'unknown field "model.models"; did you mean "model.model"?'),
        ("[[script]]\nsya = 'x'", 'unknown field "script.sya"; did you mean "script.say"?'),
        ("name = 3", "Expected `str`, got `int`"),
        ("name = 'a/b'", "the name 'a/b' is invalid"),
        ("name = ''", "the name '' is invalid"),
        ("[limits]\nturns = 0", "`int` >= 1"),
        ("[model]\ntemperature = 9", "<= 2"),
        ("profile = 'all'", "Invalid enum value 'all'"),
        ("name = ", "cannot be parsed"),
        ("schedule = 5", "Expected `array`"),
        ("[[schedule]]\ntimes = 'x'", 'did you mean "schedule.time"?'),
    ],
)
def test_error_names_the_file_and_the_field(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_manifest(text, TOML)
    assert str(TOML) in str(raised.value) and said in str(raised.value)


def test_files_that_cannot_be_read_are_errors(tmp_path: Path) -> None:
    folder = tmp_path / "agents" / "a"
    folder.mkdir(parents=True)
    assert list_manifests(tmp_path) == {} == list_manifests(tmp_path / "nowhere")
    file = folder / "agent.toml"
    for data, said in (
        (b"\xff\xfe", "is not UTF-8"),
        (b"#" * (1024 * 1024 + 1), "is larger than"),
    ):
        file.write_bytes(data)
        with pytest.raises(ConfigError, match=said):
            load_manifest(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_manifest(folder / "agent.json")
    assert list_manifests(tmp_path) == {"a": file}


@given(st.recursive(st.text() | st.integers() | st.none(), lambda one: st.lists(one) |
                    st.dictionaries(st.text(), one), max_leaves=8))  # fmt: skip
def test_stripping_comments_leaves_json_as_it_is(value: Any) -> None:
    try:
        text = encode(value).decode()
        decode(text.encode())
    except ValueError:
        return  # a number or a text that the codec refuses
    assert strip_comments(text) == text
    lines = f"// one\n/* two\n*/{text} // three"
    assert strip_comments(lines).strip() == text.strip()


# --- grants ---------------------------------------------------------------------------------------


class Target:
    def __init__(self, name: str, kind: str = "Server") -> None:
        self.name = name
        self.traits = TargetTraits(facts=TargetFacts(type=kind))

    async def run(self, call: Any) -> Any:
        raise AssertionError


def build(name: str, agent: bool = False) -> Tool:
    target, _, own = name.partition(".")
    return Tool(
        name=name,
        alias=f"mcp_{target}_{own}",
        remote_name=own,
        target=Target(target, "Agent" if agent else "Server"),
        agent=AgentFacts(name=target, description="") if agent else None,
    )


def load(text: str) -> LoadedManifest:
    return parse_manifest(f"[capabilities]\n{text}", TOML)


@pytest.mark.parametrize(
    ("grants", "granted", "refused"),
    [
        ("", [], ["fs.read", "helper.message"]),
        ('tools = ["fs.read"]', ["fs.read"], ["fs.write", "fs2.read"]),
        ('tools = ["mcp_fs_*"]', ["fs.read", "fs.write"], ["git.read"]),
        ('tools = ["fs:read"]', ["fs.read"], ["fs.write"]),
        ('mcp_servers = ["fs"]', ["fs.read", "fs.write"], ["git.read"]),
        ('mcp_servers = ["*"]', ["fs.read", "git.read"], []),
        ('tools = ["*"]', ["fs.read"], []),
    ],
)
def test_tools_are_granted_by_name_and_pattern(
    grants: str, granted: list[str], refused: list[str]
) -> None:
    profile = load(grants).build_profile()
    assert all(profile.grants(build(name)) for name in granted)
    assert not any(profile.grants(build(name)) for name in refused)


def test_agents_are_granted_by_their_names() -> None:
    profile = load('agents = ["help*"]').build_profile()
    assert profile.grants(build("helper.message", agent=True))
    assert not profile.grants(build("other.message", agent=True))
    assert not load('mcp_servers = ["*"]').build_profile().grants(build("a.message", agent=True))


@pytest.mark.parametrize(
    ("wide", "narrow", "covered"),
    [
        ("*", "anything*", True),
        ("fs.*", "fs.read", True),
        ("fs.*", "fs.r*", True),
        ("fs.read", "fs.read", True),
        ("fs.read", "fs.*", False),
        ("fs.*", "*", False),
        ("fs.?", "fs.a", False),
        ("a*b*", "a*b*", True),
        ("a*b*", "axb", False),
    ],
)
def test_grant_covers_what_it_certainly_includes(wide: str, narrow: str, covered: bool) -> None:
    assert _covers(wide, narrow) is covered
