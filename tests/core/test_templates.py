from __future__ import annotations

from time import process_time

import pytest

from dragoman.core.call import Call, Result
from dragoman.core.templates import matches, owner_of
from dragoman.core.tool import RESOURCE, TEMPLATE, Tool

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


@pytest.mark.parametrize(("template", "uri", "fits"), EXPANSIONS)
def test_an_address_is_told_from_those_that_no_template_leads_to(
    template: str, uri: str, fits: bool
) -> None:
    assert matches(template, uri) is fits


def test_no_template_makes_the_search_long() -> None:
    begun = process_time()
    matches("x://" + "{a}y" * 1_000 + "z", "x://" + "y" * 8_000)
    matches("x://" + "{+a}" * 1_000 + "z", "x://" + "y" * 8_000)
    assert process_time() - begun < 0.5
    assert not matches("x://{+a}", "x://" + "y" * 10_000), "longer than any address that is taken"


class Place:
    def __init__(self, name: str) -> None:
        self.name = name

    async def run(self, call: Call) -> Result:
        return Result()


def of(server: str, address: str, kind: str) -> Tool:
    return Tool(
        name=f"{server}.{address}", alias=address, remote_name=address, kind=kind,
        target=Place(server),
    )  # fmt: skip


def test_the_template_that_says_the_most_has_the_address() -> None:
    wide, narrow = of("a", "db://{+rest}", TEMPLATE), of("b", "db://users/{id}", TEMPLATE)
    assert owner_of("db://users/1", [wide, narrow], []) is narrow
    assert owner_of("db://other/1", [wide, narrow], []) is wide


def test_without_a_template_the_only_server_with_resources_is_asked_and_never_one_of_several() -> (
    None
):
    one, other = of("a", "x://1", RESOURCE), of("b", "y://1", RESOURCE)
    assert owner_of("z://9", [], [one]) is one
    assert owner_of("z://9", [], [one, other]) is None
    assert owner_of("b.z://9", [], [one, other]) is other, "its full name says whose it is"
    assert owner_of("z://9", [], []) is None
