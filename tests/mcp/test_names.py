from __future__ import annotations

import re
import subprocess
import sys

import pytest

import dragoman
from dragoman import extract_mcp_server, format_mcp_tool_name, is_mcp_tool
from dragoman.mcp.names import MAX_NAME, alias_name, canonical_name, distinct

pytestmark = pytest.mark.promise("B3")

SEED_NAMES = [
    ("my-server", "do_thing", "mcp_my_server_do_thing"),
    ("github", "create_issue", "mcp_github_create_issue"),
    ("GitHub", "Create-Issue", "mcp_github_create_issue"),
    ("my server", "x", "mcp_my_server_x"),
    ("a_b", "c", "mcp_a_b_c"),
    ("a", "b_c", "mcp_a_b_c"),
]


@pytest.mark.parametrize(("server", "tool", "name"), SEED_NAMES)
def test_a_tool_is_named_after_its_server_in_lower_case_with_underscores(
    server: str, tool: str, name: str
) -> None:
    assert format_mcp_tool_name(server, tool) == name
    assert alias_name(server, tool) == name
    assert is_mcp_tool(name)


def test_the_helpers_are_public_and_cost_nothing_until_they_are_used() -> None:
    code = (
        "import sys, dragoman; before = len([m for m in sys.modules if 'msgspec' in m]);"
        "from dragoman import format_mcp_tool_name; print(before, format_mcp_tool_name('A-b', 'c'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0 mcp_a_b_c\n"
    with pytest.raises(AttributeError, match="no attribute 'format_a2a_tool_name'"):
        dragoman.format_a2a_tool_name  # noqa: B018


def test_other_names_are_no_mcp_tools() -> None:
    for name in ("file_read", "a2a_x_y", "MCP_x_y", "", "xmcp_a_b", "mcp"):
        assert not is_mcp_tool(name)


def test_the_server_of_a_tool_is_the_longest_known_name_that_fits() -> None:
    servers = ["a", "a-b", "a_b_c", "Git Hub"]
    assert extract_mcp_server("mcp_a_x", servers) == "a"
    assert extract_mcp_server("mcp_a_b_x", servers) == "a-b"
    assert extract_mcp_server("mcp_a_b_c_x", servers) == "a_b_c"
    assert extract_mcp_server("mcp_a_b_c", servers) == "a-b"
    assert extract_mcp_server("mcp_git_hub_x", servers) == "Git Hub"
    for name in ("mcp_ab_x", "mcp_a", "a_x", "file_read", ""):
        assert extract_mcp_server(name, servers) is None
    assert extract_mcp_server("mcp_a_x", []) is None


ODD = ["do thing", "do/thing", "été", "x" * 300, "🦉", "a:b", "a\nb"]


@pytest.mark.parametrize("tool", ODD)
def test_names_have_only_characters_and_lengths_that_every_revision_takes(tool: str) -> None:
    for name in (canonical_name("my-server", tool), alias_name("my-server", tool)):
        assert re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", name)


def test_names_that_are_cut_stay_apart() -> None:
    one, other = "x" * 200 + "1", "x" * 200 + "2"
    assert canonical_name("s", one) != canonical_name("s", other)
    assert alias_name("s", one) != alias_name("s", other)
    assert len(canonical_name("s", one)) == MAX_NAME


def test_the_canonical_name_keeps_case_and_hyphens() -> None:
    assert canonical_name("My-Server", "Do-Thing") == "My-Server.Do-Thing"


def test_a_name_made_distinct_fits_and_depends_on_the_tool_alone() -> None:
    name = canonical_name("s", "a b")
    assert name == canonical_name("s", "a/b") == "s.a_b"
    assert distinct(name, "a b") != distinct(name, "a/b")
    assert distinct(name, "a b") == distinct(name, "a b")
    assert len(distinct("s." + "x" * 126, "y")) == MAX_NAME
