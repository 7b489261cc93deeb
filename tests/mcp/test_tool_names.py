from __future__ import annotations

import hashlib
import re
import subprocess
import sys

import pytest

import dragoman
from dragoman import extract_mcp_server, format_mcp_tool_name, is_mcp_tool
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.errors import NotFound
from dragoman.core.tool import Nowhere, Tool
from dragoman.core.tool_identity import MAX_NAME, build_identity, fold_id, fold_name, shorten
from dragoman.mcp.protocol.tool_names import (
    build_alias,
    build_canonical_name,
    build_other_names,
    build_safe_name,
    is_shortened,
)

pytestmark = pytest.mark.promise("B3")

LEGACY_NAMES = [
    ("my-server", "do_thing", "mcp_my_server_do_thing"),
    ("github", "create_issue", "mcp_github_create_issue"),
    ("GitHub", "Create-Issue", "mcp_github_create_issue"),
    ("my server", "x", "mcp_my_server_x"),
    ("a_b", "c", "mcp_a_b_c"),
    ("a", "b_c", "mcp_a_b_c"),
]


@pytest.mark.parametrize(("server", "tool", "name"), LEGACY_NAMES)
def test_a_tool_is_named_after_its_server_in_lower_case_with_underscores(
    server: str, tool: str, name: str
) -> None:
    assert format_mcp_tool_name(server, tool) == name
    assert build_alias(server, tool) == name
    assert is_mcp_tool(name)


def test_public_name_helpers_import_lazily() -> None:
    code = (
        "import sys, dragoman; before = len([m for m in sys.modules if 'msgspec' in m]);"
        "from dragoman import format_mcp_tool_name; print(before, format_mcp_tool_name('A-b', 'c'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0 mcp_a_b_c\n"
    with pytest.raises(AttributeError, match="no attribute 'format_a2a_tool_name'"):
        dragoman.format_a2a_tool_name  # noqa: B018


def test_other_names_are_not_mcp_tools() -> None:
    for name in ("file_read", "a2a_x_y", "MCP_x_y", "", "xmcp_a_b", "mcp"):
        assert not is_mcp_tool(name)


def test_longest_known_server_name_wins() -> None:
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
def test_names_fit_every_revision(tool: str) -> None:
    for name in (build_canonical_name("my-server", tool), build_alias("my-server", tool)):
        assert re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", name)


def test_truncated_names_stay_distinct() -> None:
    one, other = "x" * 200 + "1", "x" * 200 + "2"
    assert build_canonical_name("s", one) != build_canonical_name("s", other)
    assert build_alias("s", one) != build_alias("s", other)
    assert len(build_canonical_name("s", one)) == MAX_NAME


FOLDED = [
    ("read_file", "read_file"),
    ("Read_File", "read_file"),
    ("READ-FILE", "read_file"),
    ("read.file", "read_file"),
    ("read file", "read_file"),
    ("read/file", "read_file"),
    ("readFile", "readfile"),
    ("a--b", "a__b"),
    ("", ""),
    ("été", "_t__" + hashlib.sha256("été".encode()).hexdigest()[:8]),
    ("\u212aelvin", "kelvin_" + hashlib.sha256("\u212aelvin".encode()).hexdigest()[:8]),
]


@pytest.mark.parametrize(("name", "folded"), FOLDED)
def test_every_spelling_folds_to_one_name(name: str, folded: str) -> None:
    assert fold_name(name) == folded
    assert fold_name(folded) == folded
    assert build_canonical_name("My-Server", name) == build_identity("My-Server", name)
    assert fold_id(f"My-Server.{name}") == f"My-Server.{folded}"


def test_names_without_ascii_letters_stay_distinct() -> None:
    one, other = "读取文件", "写入文件"
    assert fold_name(one) != fold_name(other)
    assert build_canonical_name("s", one) != build_canonical_name("s", other)
    assert build_alias("s", one) != build_alias("s", other)
    for style in ("dotted", "safe", "safe!"):
        assert (
            build_other_names("s", None, one)[style] != build_other_names("s", None, other)[style]
        )
    for name in (build_canonical_name("s", one), build_alias("s", one)):
        assert re.fullmatch(r"[A-Za-z0-9_.]+", name)


def test_spellings_of_a_long_name_share_one_identity() -> None:
    assert build_canonical_name("s", "x" * 200) == build_canonical_name("s", "X" * 200)
    assert fold_id(build_canonical_name("s", "x" * 200)) == build_canonical_name("s", "x" * 200)


def test_each_naming_style_has_its_name_and_a_prefix_replaces_the_server() -> None:
    assert build_other_names("Git-Hub", None, "create.issue") == {
        "dotted": "Git-Hub.create.issue",
        "spelled": "Git-Hub.create.issue",
        "safe": "Git-Hub_create_issue",
        "safe!": "Git-Hub_create_issue_" + digest("Git-Hub.create_issue"),
        "portable": "Git-Hub_create_issue",
        "portable!": "Git-Hub_create_issue_" + digest("Git-Hub.create_issue"),
    }
    prefixed = build_other_names("github", "gh", "Create-Issue")
    assert prefixed["spelled"] == "github.Create-Issue"
    assert prefixed["dotted"] == "gh.Create-Issue"
    assert prefixed["legacy"] == "mcp_gh_create_issue"
    assert prefixed["safe"] == "gh_Create-Issue"
    untouched = build_other_names("github", "", "create issue")
    assert untouched["dotted"] == untouched["legacy"] == "create issue"
    assert untouched["safe"] == "create_issue"


PORTABLE = [
    ("github", None, "create_issue", "github_create_issue"),
    ("hostinger", None, "agency-hosting_createANewWebsiteV1",
     "hostinger_agency-hosting_createANewWebsiteV1"),
    ("hostinger", None, "agency-hosting_deployNodeStaticWebsite",
     "hostinger_agency-hosting_deployNodeStaticWebsite"),
    ("hostinger", None, "t" * 54, "hostinger_" + "t" * 54),
    ("mcp-atlassian", None, "jira_get_issue", "atlassian_jira_get_issue"),
    ("MCP_x", None, "y", "x_y"), ("mcp", None, "y", "mcp_y"), ("mcp-", None, "y", "mcp-_y"),
    ("mcp-atlassian", "mcp-a", "t", "mcp-a_t"), ("s", "", "get-time", "get-time"),
]  # fmt: skip


@pytest.mark.parametrize(("server", "prefix", "tool", "portable"), PORTABLE)
def test_portable_names_have_one_form_and_the_spelling_of_the_server(
    server: str, prefix: str | None, tool: str, portable: str
) -> None:
    assert build_other_names(server, prefix, tool)["portable"] == portable
    assert not is_shortened(server, prefix, tool)


def test_only_portable_names_that_are_too_long_have_a_digest() -> None:
    name = build_other_names("hostinger", None, "t" * 55)["portable"]
    assert len(name) == 64 and re.fullmatch(r"hostinger_t{45}_[0-9a-f]{8}", name)
    assert is_shortened("hostinger", None, "t" * 55) and not is_shortened(
        "hostinger", "h", "t" * 55
    )


@pytest.mark.parametrize("server", ["github", "Git-Hub", "mcp-files", "s" * 40, "a.b"])
@pytest.mark.parametrize("prefix", [None, "", "gh", "p" * 30])
@pytest.mark.parametrize("tool", ["get", "getUser", "with.dots", "été", "t" * 30, "t" * 60])
def test_portable_names_of_earlier_versions_stay_names_of_the_tool(
    server: str, prefix: str | None, tool: str
) -> None:
    """Clients, views and grants of agents keep names."""
    names = build_other_names(server, prefix, tool)
    usual = names.get("legacy") or build_alias(server, tool)
    kept = usual
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,48}", usual):
        kept = shorten(names["safe"], 48, build_canonical_name(server, tool))
    assert kept in {*names.values(), usual}


def test_safe_name_fits_every_model_api() -> None:
    for server, tool in [("s" * 64, "t" * 128), ("a", "é ü"), ("x.y", "z/1:2"), ("", "t" * 64)]:
        names = build_other_names(server, server, tool)
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", names["safe"]), names
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", names["safe!"]), names
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,48}", names["portable!"]), names
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", names["portable"]), names
    assert build_safe_name("s", "t" * 100) != build_safe_name("s", "t" * 101)


def test_catalog_accepts_every_form_and_disambiguates_safe_names() -> None:
    catalog = Catalog(review=admit_all)
    for server, tool in (("a_b", "c"), ("a", "b_c"), ("a", "d")):
        catalog.offer(server, [*catalog.list_offered(server), made(server, tool)])
    for name in ("a.d", "mcp_a_d", "a_d"):
        assert catalog.find(name).name == "a.d"
    one, other = catalog.find("a_b.c"), catalog.find("a.b_c")
    shown = {catalog.listed_name(one, "safe"), catalog.listed_name(other, "safe")}
    assert len(shown) == 2 and all("." not in name for name in shown)
    assert {catalog.find(name).name for name in shown} == {"a_b.c", "a.b_c"}
    assert catalog.listed_name(catalog.find("a.d"), "safe") == "a_d"
    assert catalog.listed_name(catalog.find("a.d"), "dotted") == "a.d"
    assert catalog.listed_name(catalog.find("a.d")) == "mcp_a_d"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def made(server: str, tool: str) -> Tool:
    canonical = build_canonical_name(server, tool)
    return Tool(
        name=canonical, alias=build_alias(server, tool), remote_name=tool,
        other_names=build_other_names(server, None, tool), target=Nowhere(NotFound("-")),
    )  # fmt: skip


def test_name_of_128_characters_stays_and_a_longer_one_ends_with_its_digest() -> None:
    assert build_identity("s", "t" * 126) == f"s.{'t' * 126}"
    longer = [build_identity("s", "t" * 127), build_identity("s", "t" * 128)]
    assert len({*longer}) == 2, "two long names stay two"
    for name in longer:
        assert len(name) == MAX_NAME and re.fullmatch(r"s\.t{117}_[0-9a-f]{8}", name), name
