from __future__ import annotations

from time import process_time

import pytest

from dragoman.core.call import Call, Result
from dragoman.core.resource_uris import MAX_URI, ResourceOwners, ReturnedUris
from dragoman.core.tool import DEFAULT_TRAITS, TEMPLATE, Tool

EXPANSIONS = [
    ("test://template/{id}/data", "test://template/7/data", True),
    ("test://template/{id}/data", "test://template//data", False),
    ("test://template/{id}/data", "test://template/a/b/data", False),
    ("test://template/{id}/data", "test://template/7/datum", False),
    ("file:///{+path}", "file:///a/b/c.txt", True),
    ("file:///{path}", "file:///a/b/c.txt", False),
    ("db://{table}/{row}", "db://users/1", True),
    ("db://{table}/{row}", "db://users", False),
    ("search://find{?q,page}", "search://find?q=a/b&page=2", True),
    ("search://find{?q,page}", "search://find", True),
    ("x://{a}{b}", "x://ab", False),
    ("plain://here", "plain://here", True),
    ("plain://here", "plain://there", False),
    ("x://{id", "x://{id", True),
    ("{+all}", "anything:/at/all", True),
]


class FakeTarget:
    traits = DEFAULT_TRAITS

    def __init__(self, name: str) -> None:
        self.name = name

    async def run(self, call: Call) -> Result:
        return Result()


def build_resource(server: str, address: str, kind: str) -> Tool:
    return Tool(
        name=f"{server}.{address}", alias=address, remote_name=address, kind=kind,
        target=FakeTarget(server),
    )  # fmt: skip


def matches(template: str, uri: str) -> bool:
    return ResourceOwners([build_resource("a", template, TEMPLATE)], []).find_owner(uri) is not None


@pytest.mark.parametrize(("template", "uri", "fits"), EXPANSIONS)
def test_uri_is_matched_against_templates(template: str, uri: str, fits: bool) -> None:
    assert matches(template, uri) is fits


def test_template_matching_is_fast_for_any_template() -> None:
    begun = process_time()
    matches("x://" + "{a}y" * 1_000 + "z", "x://" + "y" * 8_000)
    matches("x://" + "{+a}" * 1_000 + "z", "x://" + "y" * 8_000)
    assert process_time() - begun < 0.5
    assert not matches("x://{+a}", "x://" + "y" * 10_000), "longer than any address that is taken"


def test_most_specific_template_wins() -> None:
    wide, narrow = (
        build_resource("a", "db://{+rest}", TEMPLATE),
        build_resource("b", "db://users/{id}", TEMPLATE),
    )
    owners = ResourceOwners([wide, narrow], [])
    assert owners.find_owner("db://users/1") == (narrow.target, "db://users/1")
    assert owners.find_owner("db://other/1") == (wide.target, "db://other/1")


def test_single_resource_server_is_asked_without_a_template() -> None:
    one, other = FakeTarget("a"), FakeTarget("b")
    assert ResourceOwners([], [one]).find_owner("z://9") == (one, "z://9")
    assert ResourceOwners([], [one, other]).find_owner("z://9") is None
    whole = ResourceOwners([], [one, other]).find_owner("b.z://9")
    assert whole == (other, "z://9"), "its full name says whose it is"
    assert ResourceOwners([], [one, other]).find_owner("ui://b.dragoman/z/9") == (other, "ui://z/9")
    assert ResourceOwners([], []).find_owner("z://9") is None


def test_ambiguous_template_needs_a_server_name() -> None:
    one, other = (
        build_resource("a", "db://{table}", TEMPLATE),
        build_resource("b", "db://{table}", TEMPLATE),
    )
    owners = ResourceOwners([one, other], [])
    assert owners.find_owner("db://users") is None
    assert owners.find_owner("b.db://users") == (other.target, "db://users")


def test_overlong_uri_matches_no_server() -> None:
    only = FakeTarget("a")
    assert ResourceOwners([], [only]).find_owner("z://" + "9" * MAX_URI) is None


def test_many_templates_are_searched_quickly() -> None:
    many = [build_resource("a", f"x://{'y' * 4_000}/{n}/{{id}}", TEMPLATE) for n in range(5_000)]
    owners = ResourceOwners(many, [])
    begun = process_time()
    for _ in range(20):
        assert owners.find_owner("z://9") is None
    assert process_time() - begun < 1.0


def test_uri_named_by_a_tool_or_result_belongs_to_its_server() -> None:
    one, other, third = FakeTarget("a"), FakeTarget("b"), FakeTarget("c")
    mine = Tool(name="b.t", alias="t", remote_name="t", resources=("ui://app",), target=other)
    both = [
        Tool(name=f"{on.name}.s", alias="s", remote_name="s", resources=("ui://both",), target=on)
        for on in (one, other)
    ]
    owners = ResourceOwners([], [one, other], [one, other, third], [mine, *both])
    assert owners.find_owner("ui://app", mentioned_by="a") == (other, "ui://app")
    assert owners.find_owner("ui://both") is None, "two say that it is theirs"
    assert owners.find_owner("x://9", mentioned_by="c") == (third, "x://9")
    assert owners.find_owner("x://9", mentioned_by="gone") is None


def test_returned_uri_stays_with_its_first_server_within_bounds() -> None:
    mentions = ReturnedUris(most=2)
    for server, uri in [("a", "x://1"), ("b", "x://1"), ("b", "x://2"), ("a", "x://3")]:
        mentions.add(server, uri)
    assert [mentions.find_owner(f"x://{n}") for n in (1, 2, 3)] == ["a", "b", "a"]
    mentions.add("a", "x://1")
    mentions.add("a", "x://4")
    assert [mentions.find_owner(f"x://{n}") for n in (1, 2, 3, 4)] == ["a", "b", None, "a"]
    mentions.forget("a")
    assert [mentions.find_owner(f"x://{n}") for n in (1, 2, 3, 4)] == [None, "b", None, None]
