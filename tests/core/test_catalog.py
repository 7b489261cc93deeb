from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from tests.permissive_hub import build_permissive_hub, call_tool

from dragoman.core.bus import Bus
from dragoman.core.call import Call, Result
from dragoman.core.catalog import Catalog, ReviewResult, UncheckedReason, admit_all
from dragoman.core.errors import (
    ConfigError,
    NotFound,
    Quarantined,
    StorageFailed,
    is_own_trouble,
)
from dragoman.core.logs import STORAGE_OUTAGE
from dragoman.core.name_claims import Claim, NameClaims
from dragoman.core.principal import OWNER
from dragoman.core.tool import DEFAULT_TRAITS, Nowhere, Tool


class FakeTarget:
    traits = DEFAULT_TRAITS

    def __init__(self, name: str) -> None:
        self.name = name

    async def run(self, call: Call) -> Result:
        return Result()


def tool(name: str, alias: str = "") -> Tool:
    target, _, remote = name.partition(".")
    return Tool(name=name, alias=alias or name, remote_name=remote, target=FakeTarget(target))


def error_of(catalog: Catalog, name: str) -> Exception:
    target = catalog.find(name).target
    assert isinstance(target, Nowhere)
    return target.error


@pytest.mark.promise("B3")
def test_tool_is_found_by_name_and_alias() -> None:
    catalog = Catalog(review=admit_all)
    one = tool("a.b_c", "mcp_a_b_c")
    catalog.offer("a", [one])
    assert catalog.find("a.b_c") is one
    assert catalog.find("mcp_a_b_c") is one
    assert len(catalog) == 1


@pytest.mark.promise("B3")
def test_names_are_matched_completely() -> None:
    catalog = Catalog(review=admit_all)
    catalog.offer("a", [tool("a.b_c", "mcp_a_b_c")])
    catalog.offer("a_b", [tool("a_b.d", "mcp_a_b_d")])
    assert catalog.find("mcp_a_b_c").name == "a.b_c"
    assert catalog.find("mcp_a_b_d").name == "a_b.d"
    for name in ("mcp_a_b", "mcp_a", "a", "b_c", "", "MCP_A_B_C"):
        assert isinstance(error_of(catalog, name), NotFound)


@pytest.mark.promise("B3")
def test_alias_stays_with_its_first_tool_until_the_target_is_removed() -> None:
    catalog = Catalog(review=admit_all)
    catalog.offer("a_b", [tool("a_b.c", "mcp_a_b_c")])
    catalog.offer("a", [tool("a.b_c", "mcp_a_b_c")])
    assert catalog.find("mcp_a_b_c").name == "a_b.c"
    assert [catalog.listed_name(one) for one in catalog.list_tools()] == ["a.b_c", "mcp_a_b_c"]
    catalog.offer("a_b", [])
    assert isinstance(error_of(catalog, "mcp_a_b_c"), NotFound)
    catalog.withdraw("a_b")
    catalog.offer("a", [tool("a.b_c", "mcp_a_b_c")])
    assert isinstance(error_of(catalog, "mcp_a_b_c"), NotFound)
    assert [catalog.listed_name(one) for one in catalog.list_tools()] == ["a.b_c"]
    catalog.claims.release("a_b")
    catalog.share_names()
    assert catalog.find("mcp_a_b_c").name == "a.b_c"
    assert [catalog.listed_name(one) for one in catalog.list_tools()] == ["mcp_a_b_c"]


def test_quarantined_tool_keeps_its_names() -> None:
    def review(target: str, tools: Sequence[Tool]) -> ReviewResult:
        held = {one.name: "it has changed" for one in tools if one.remote_name == "c"}
        return ReviewResult([one for one in tools if one.name not in held], held)

    catalog = Catalog(review=review)
    catalog.offer("a_b", [tool("a_b.c", "mcp_a_b_c")])
    catalog.offer("a", [tool("a.b_c", "mcp_a_b_c")])
    assert isinstance(error_of(catalog, "mcp_a_b_c"), Quarantined)
    assert catalog.listed_name(catalog.find("a.b_c")) == "a.b_c"


async def test_a_definition_that_cannot_be_checked_is_the_hubs_own_trouble() -> None:
    """Work that was accepted is made later."""

    def review(target: str, tools: Sequence[Tool]) -> ReviewResult:
        return ReviewResult([], {one.name: UncheckedReason("the store failed") for one in tools})

    catalog = Catalog(review=review)
    catalog.offer("a", [tool("a.b", "mcp_a_b")])
    hub = build_permissive_hub(catalog, Bus(), [])
    with pytest.raises(StorageFailed, match="the store failed") as raised:
        await call_tool(hub, OWNER, "a.b", {})
    assert is_own_trouble(raised.value)


def test_canonical_prefix_of_a_target_is_reserved() -> None:
    claims = NameClaims(find_namespaces=lambda: {"git": "git", "p": "p"})
    catalog = Catalog(review=admit_all, claims=claims)
    catalog.offer("p", [tool("p.x", "git.push"), tool("p.y", "mcp_p_y")])
    assert isinstance(error_of(catalog, "git.push"), NotFound)
    assert catalog.find("mcp_p_y").name == "p.y"


class NameStore:
    """A store of names."""

    def __init__(self, broken: bool = False) -> None:
        self.rows: dict[tuple[str, str, str], Claim] = {}
        self.broken = broken

    def load_names(self) -> list[Claim]:
        if self.broken:
            raise StorageFailed("it cannot be read")
        return list(self.rows.values())

    def save_names(self, claims: Sequence[Claim]) -> None:
        self.rows |= {claim[:3]: claim for claim in claims}

    def release_names(self, target: str) -> None:
        self.rows = {key: one for key, one in self.rows.items() if key[0] != target}


def test_name_claims_survive_a_restart_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = NameStore()
    Catalog(review=admit_all, claims=NameClaims(kept)).offer("a_b", [tool("a_b.c", "mcp_a_b_c")])
    again = Catalog(review=admit_all, claims=NameClaims(kept))
    again.offer("a", [tool("a.b_c", "mcp_a_b_c")])
    assert isinstance(error_of(again, "mcp_a_b_c"), NotFound)
    again.claims.keep_only({"a"})
    assert not kept.rows
    again.share_names()
    assert again.find("mcp_a_b_c").name == "a.b_c"
    monkeypatch.setattr("dragoman.core.name_claims.MAX_NAMES", 2)
    again.offer("a", [tool(f"a.{n}", f"mcp_a_{n}") for n in range(5)])
    assert sum(again.listed_name(one) != one.name for one in again.list_tools()) == 1


def test_unreadable_claims_leave_only_canonical_names() -> None:
    catalog = Catalog(review=admit_all, claims=NameClaims(NameStore(broken=True)))
    catalog.offer("a", [tool("a.x", "mcp_a_x")])
    assert catalog.find("a.x").name == "a.x"
    assert isinstance(error_of(catalog, "mcp_a_x"), NotFound)
    assert catalog.listed_name(catalog.find("a.x")) == "a.x"


def test_name_precedes_an_alias() -> None:
    catalog = Catalog(review=admit_all)
    catalog.offer("a", [tool("a.x", "b.y")])
    catalog.offer("b", [tool("b.y", "mcp_b_y")])
    assert catalog.find("b.y").name == "b.y"


def test_new_offer_replaces_the_previous_one() -> None:
    catalog = Catalog(review=admit_all)
    catalog.offer("a", [tool("a.x"), tool("a.y")])
    catalog.offer("a", [tool("a.y"), tool("a.z")])
    assert [one.name for one in catalog.list_tools()] == ["a.y", "a.z"]
    assert [one.name for one in catalog.list_offered("a")] == ["a.y", "a.z"]
    assert isinstance(error_of(catalog, "a.x"), NotFound)


def test_targets_are_sorted_and_each_keeps_the_order_of_its_tools() -> None:
    catalog = Catalog(review=admit_all)
    catalog.offer("b", [tool("b.x")])
    catalog.offer("a", [tool("a.z"), tool("a.a")])
    assert [one.name for one in catalog.list_tools()] == ["a.z", "a.a", "b.x"]


def test_claimed_name_stays_with_its_owner_and_the_rest_is_offered() -> None:
    catalog = Catalog(review=admit_all)
    first = tool("a.x")
    catalog.offer("a", [first])
    with pytest.raises(ConfigError, match=r"target 'b' offers names that others hold: a\.x"):
        catalog.offer("b", [tool("a.x"), tool("b.y")])
    assert catalog.find("a.x") is first
    assert catalog.find("b.y").name == "b.y"
    catalog.withdraw("b")
    assert catalog.find("a.x") is first


def test_offer_with_a_duplicate_name_changes_nothing() -> None:
    catalog = Catalog(review=admit_all)
    catalog.offer("a", [tool("a.x")])
    version = catalog.version
    with pytest.raises(ConfigError, match="twice"):
        catalog.offer("a", [tool("a.y"), tool("a.y")])
    assert [one.name for one in catalog.list_tools()] == ["a.x"]
    assert catalog.version == version


def test_listeners_receive_changes_until_unsubscribed() -> None:
    catalog = Catalog(review=admit_all)
    received: list[int] = []
    stop = catalog.on_change(lambda: received.append(catalog.version))
    catalog.offer("a", [tool("a.x")])
    catalog.withdraw("a")
    catalog.withdraw("a")  # nothing to withdraw, nothing to hear of
    stop()
    catalog.offer("a", [tool("a.x")])
    assert received == [1, 2]


def test_unknown_name_error_is_bounded() -> None:
    assert len(str(error_of(Catalog(review=admit_all), "x" * 10_000))) < 250


@pytest.mark.promise("B3")
def test_tool_with_a_conflicting_alias_uses_its_own_name() -> None:
    catalog = Catalog(review=admit_all)
    catalog.offer("a", [tool("a.b.c", "mcp_a_b.c")])
    catalog.offer("mcp_a_b", [tool("mcp_a_b.c", "mcp_mcp_a_b_c")])
    assert catalog.listed_name(catalog.find("a.b.c")) == "a.b.c"
    assert catalog.listed_name(catalog.find("mcp_a_b.c")) != "a.b.c"


class AwayNames:
    """A store of claims that fails."""

    def load_names(self) -> Sequence[Claim]:
        raise StorageFailed("the database is away")

    def save_names(self, claims: Sequence[Claim]) -> None:
        raise StorageFailed("the database is away")

    def release_names(self, target: str) -> None:
        raise StorageFailed("the database is away")


class ReadableNames(AwayNames):
    def load_names(self) -> Sequence[Claim]:
        return []


@pytest.mark.parametrize("store", [AwayNames(), ReadableNames()])
def test_claims_that_fail_with_their_store_are_one_line_in_the_log(
    store: AwayNames, caplog: pytest.LogCaptureFixture
) -> None:
    STORAGE_OUTAGE.clear()
    claims = NameClaims(store)
    for number in range(5):
        claims.claim("tool", "a", [tool(f"a.b{number}", f"mcp_a_b{number}")])
        claims.reload()
    STORAGE_OUTAGE.clear()
    said = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert [one.levelname for one in said] == ["ERROR"]
    assert "claims to names" in said[0].getMessage()
