"""Who is offered built-in tools, and the names that lead to them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from tests.tools.tool_rig import ToolRig, read_object, read_text

from dragoman import config
from dragoman.core.call import Call, Result
from dragoman.core.errors import ConfigError, InvalidInput, NotFound
from dragoman.core.events import PreVerb
from dragoman.core.local_agents import AgentProfile, build_agent_principal
from dragoman.core.principal import OWNER, Principal, principal_from_server
from dragoman.core.tool import TargetFacts, TargetTraits, Tool
from dragoman.core.tool_filter import EVERYTHING, View
from dragoman.guards.validate import compile_schema
from dragoman.tools.all_specs import SPECS
from dragoman.tools.builtin_names import FALLBACK_NAMES, grants_builtin_tools
from dragoman.tools.shell import SHELL_EXEC
from dragoman.tools.web import WEB_SEARCH

pytestmark = pytest.mark.promise("T2", "G5")

NAMES = {
    *("file_read", "file_write", "file_list", "apply_patch", "web_fetch", "web_search"),
    *("shell_exec", "agent_send", "agent_spawn", "agent_list", "agent_kill", "agent_find"),
    *("memory_store", "memory_recall", "task_post", "task_claim", "task_complete", "task_list"),
    *("event_publish", "schedule_create", "schedule_list", "schedule_delete", "image_analyze"),
    *("system_time", "a2a_discover", "a2a_send"),
}


def test_all_promised_tools_are_defined() -> None:
    assert {spec.name for spec in SPECS} == NAMES and len(SPECS) == 26


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_definition_is_complete(spec) -> None:
    definition = spec.build_definition()
    schema = definition["inputSchema"]
    compile_schema(schema)
    assert (
        schema["additionalProperties"] is False
        and set(spec.required) <= schema["properties"].keys()
    )
    assert definition["description"].endswith(".") and definition["title"]
    assert set(definition["annotations"]) == {
        *("title", "readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
    }
    assert not (spec.read_only and spec.destructive)
    assert spec.open_world == bool(spec.sources)
    for name, one in schema["properties"].items():
        assert "type" in one or "anyOf" in one, name


@pytest.mark.parametrize(
    ("patterns", "granted"),
    [
        ((), False),
        (("glossary.define", "mcp_files_*"), False),
        (("*",), True),
        (("file_*",), True),
        (("builtin.task_post",), True),
        (("Bash",), True),
    ],
)
def test_grant_of_a_built_in_tool_is_recognised(patterns: tuple[str, ...], granted: bool) -> None:
    assert grants_builtin_tools(patterns) is granted


def test_no_name_leads_to_two_tools() -> None:
    assert {spec.name for spec in SPECS} == set(FALLBACK_NAMES)
    names = [name for spec in SPECS for name in (spec.name, *spec.fallback_names)]
    assert len(set(names)) == len(names)


async def test_agent_is_offered_the_tools(rig: ToolRig) -> None:
    principal = build_agent_principal(rig.tester.profile)
    listed = {tool.alias for tool in rig.hub.list_tools(principal, EVERYTHING)}
    assert listed >= NAMES - {SHELL_EXEC.name, WEB_SEARCH.name}
    catalog = rig.hub.catalog
    for style in ("", "dotted", "safe", "portable"):
        assert catalog.listed_name(catalog.find("builtin.file_read"), style) == "file_read"


@pytest.mark.parametrize(
    "principal",
    [
        OWNER,
        Principal("key", "x"),
        principal_from_server("s"),
        Principal("agent", "ghost", serves="x"),
    ],
)
async def test_other_principal_neither_lists_nor_calls_them(
    rig: ToolRig, principal: Principal
) -> None:
    assert not [
        tool for tool in rig.hub.list_tools(principal, EVERYTHING) if tool.target.name == "builtin"
    ]
    messages = set()
    for name in ("file_read", "builtin.file_read", "Read", "no_such_tool"):
        with pytest.raises(NotFound) as refused:
            await rig.call(principal, name, {"path": "x"})
        messages.add(str(refused.value).replace(name, "NAME"))
    assert messages == {'there is no tool "NAME"'}


async def test_clients_are_offered_what_the_operator_opens(tmp_path: Path) -> None:
    rig = ToolRig(
        tmp_path,
        'clients = ["system_*", "memory_*", "builtin.file_*"]\n'
        '[client_grants]\nmemory_read = ["self.*"]\nmemory_write = ["self.*"]\n'
        'workspace = "shared"\n',
    )
    try:
        listed = {tool.alias for tool in rig.hub.list_tools(OWNER, EVERYTHING)} & NAMES
        assert listed == {
            *("system_time", "memory_store", "memory_recall"),
            *("file_read", "file_write", "file_list"),
        }
        other = Principal("key", "ci")
        for who, value in ((OWNER, "mine"), (other, "theirs")):
            await rig.call(who, "memory_store", {"key": "a", "value": value})
        assert read_text(await rig.call(OWNER, "memory_recall", {"key": "a"})) == "mine"
        await rig.call(OWNER, "file_write", {"path": "a", "content": "x"})
        assert (tmp_path / "shared/a").read_text(encoding="utf-8") == "x"
        with pytest.raises(NotFound):
            await rig.call(OWNER, "web_fetch", {"url": "http://127.0.0.1"})
        group = rig.hub.authorizer.group_of_principal
        assert group(OWNER) == group(other) != group(build_agent_principal(rig.tester.profile))
    finally:
        await rig.close()


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("Read", "file_read"),
        ("read_file", "file_read"),
        ("fs-read", "file_read"),
        ("Edit", "file_write"),
        ("Write", "file_write"),
        ("Grep", "file_list"),
        ("Glob", "file_list"),
        ("ls", "file_list"),
        ("WebFetch", "web_fetch"),
        ("builtin.file_read", "file_read"),
    ],
)
async def test_other_names_lead_to_the_tool(rig: ToolRig, name: str, tool: str) -> None:
    called: list[str] = []
    rig.bus.observe(PreVerb, lambda event: called.append(event.call.tool.alias))
    with contextlib.suppress(InvalidInput):  # some require arguments
        await rig.use(name)
    assert called == [tool]


class OtherServer:
    name = "other"
    traits = TargetTraits(facts=TargetFacts(type="Server"))

    async def run(self, call: Call) -> Result:
        return Result(content=[{"type": "text", "text": "of the other server"}])


async def test_tool_of_a_server_keeps_a_name_that_is_a_fallback(rig: ToolRig) -> None:
    server = OtherServer()
    tool = Tool(name="other.read", alias="Read", remote_name="read", target=server)
    rig.hub.catalog.offer("other", [tool])
    assert read_text(await rig.use("Read", path="x")) == "of the other server"
    rig.hub.catalog.withdraw("other")
    with pytest.raises(NotFound):
        await rig.use("Read", path="x")  # the name stays with its owner
    rig.hub.catalog.claims.release("other")
    with pytest.raises(NotFound, match="no file or folder"):
        await rig.use("Read", path="x")
    assert rig.hub.catalog.find_fallbacks("Read", View(("other.*",))) == []


def test_grant_of_all_servers_is_no_grant_of_built_in_tools(rig: ToolRig) -> None:
    tool = rig.hub.catalog.find("file_read")

    def grants(**patterns: Any) -> bool:
        return AgentProfile(name="a", workspace=Path("/x"), **patterns).grants(tool)

    assert not grants(servers=("*", "builtin"))
    assert grants(tools=("file_*",)) and grants(tools=("builtin.*",)) and grants(tools=("Read",))
    assert not grants(tools=("Rea*",)) and not grants()


@pytest.mark.parametrize(
    "text",
    [
        '[[mcp_servers]]\nname = "builtin"\ntransport = {type = "stdio", command = "x"}',
        '[[mcp_servers]]\nname = "Builtin"\ntransport = {type = "stdio", command = "x"}',
        '[[agents]]\nname = "builtin"\nfunction = "a:b"',
        '[[a2a.external_agents]]\nname = "builtin"\nurl = "http://x"',
    ],
)
def test_name_is_reserved(text: str) -> None:
    with pytest.raises(ConfigError, match="is reserved"):
        config.parse(text)


def test_search_url_is_checked() -> None:
    with pytest.raises(ConfigError, match="must begin with http"):
        config.parse('[tools]\nsearch_url = "searx.local"')
    assert config.parse('[tools]\nsearch_url = "http://searx.local/search"').tools.search_url


async def test_invalid_arguments_are_refused_before_the_tool_runs(rig: ToolRig) -> None:
    for arguments in ({}, {"path": 1}, {"path": "x", "odd": 1}):
        with pytest.raises(InvalidInput):
            await rig.use("file_read", **arguments)
    assert read_object(await rig.use("file_list"))["entries"] == []
