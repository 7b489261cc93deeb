"""What is kept of results that were cut: bounded, and each for its caller alone."""

from __future__ import annotations

import pytest

from dragoman.core.access import TOKEN_EXPIRED
from dragoman.core.call import Call
from dragoman.core.errors import InvalidInput, NotFound
from dragoman.core.kept_results import KeptResults
from dragoman.core.principal import Principal
from dragoman.core.structs import replace
from dragoman.core.tool import Nowhere, build_missing_tool
from dragoman.core.trace import new_trace

pytestmark = pytest.mark.promise("P2")

HALF = "x" * (512 * 1024 - 100)
"""Half of what may be kept in the tests below, nearly."""


def call_of(name: str) -> Call:
    return Call(
        principal=Principal("key", name),
        tool=build_missing_tool("files.read", NotFound("nowhere")),
        requested_name="x",
        arguments={},
        trace=new_trace(),
        door="test",
    )


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def is_there(kept: KeptResults, uri: str | None) -> bool:
    assert uri is not None
    return not isinstance(kept.find(uri).target, Nowhere)


async def test_principal_has_half_of_the_space_and_its_oldest_result_is_evicted() -> None:
    kept = KeptResults(1, 600)
    other = kept.keep(call_of("other"), "short", "text/plain")
    first, second = (kept.keep(call_of("one"), HALF + n, "text/plain") for n in "ab")
    assert not is_there(kept, first)
    assert is_there(kept, second) and is_there(kept, other)
    assert kept.keep(call_of("one"), HALF * 2, "text/plain") is None
    assert kept.size <= 1024 * 1024
    kept.close()


async def test_largest_holder_is_evicted_first() -> None:
    kept = KeptResults(1, 600)
    small = kept.keep(call_of("small"), "x" * 1_000, "text/plain")
    large = kept.keep(call_of("large"), HALF, "text/plain")
    later = kept.keep(call_of("later"), HALF, "text/plain")
    assert [is_there(kept, uri) for uri in (small, large, later)] == [True, False, True]
    kept.close()


async def test_kept_result_ends_with_its_ttl_or_lost_access() -> None:
    clock = Time()
    kept = KeptResults(1, 600, clock)
    first = kept.keep(call_of("one"), "a text", "text/plain")
    clock.now = 599
    second = kept.keep(call_of("two"), "a text", "text/plain")
    assert is_there(kept, first) and first != second
    clock.now = 600
    assert not is_there(kept, first) and is_there(kept, second)
    kept.end_principals(lambda one: "revoked" if one.id == "two" else "")
    assert not is_there(kept, second)
    kept.keep(call_of("two"), "a text", "text/plain")
    assert kept.size < 1_000, "what has expired is not held any longer"
    kept.close()
    assert KeptResults(0, 600).keep(call_of("one"), "x", "text/plain") is None


async def test_part_is_selected_in_characters_by_its_principal() -> None:
    kept = KeptResults(1, 600)
    uri = kept.keep(call_of("one"), "a🦉bc", "text/markdown")

    async def read(query: str, caller: str = "one") -> str:
        tool = kept.find(f"{uri}{query}")
        call = replace(call_of(caller), tool=tool)
        (block,) = (await tool.target.run(call)).content
        assert block["resource"]["mimeType"] == "text/markdown"
        assert block["resource"]["_meta"] == {"dragoman.hub/total_chars": 4}
        return str(block["resource"]["text"])

    assert await read("") == "a🦉bc"
    assert await read("?offset=1&limit=2") == "🦉b"
    assert await read("?limit=1") == "a"
    assert await read("?offset=9") == ""
    for wrong in ("?offset=-1", "?offset=x", "?page=2", "?offset=1&limit=", "?offset=1e3"):
        with pytest.raises(InvalidInput, match="both in characters"):
            await read(wrong)
    for twice in ("?offset=1&offset=2", "?offset=1&limit=2&limit=2", "?%6Fffset=1&offset=1"):
        with pytest.raises(InvalidInput, match="pass it once"):
            await read(twice)
    with pytest.raises(InvalidInput, match='unknown parameter "page"'):
        await read("?page=2")
    with pytest.raises(InvalidInput, match="invalid query"):
        await read("?" + "&".join(f"p{n}=1" for n in range(101)))
    with pytest.raises(NotFound):
        await read("", "two")
    kept.close()


async def test_kept_results_of_one_user_end_with_their_own_token() -> None:
    kept = KeptResults(1, 600)
    ann = [Principal("user", "ann", credential=name) for name in ("one", "two", "three")]
    uris = [kept.keep(replace(call_of("x"), principal=who), "text", "text/plain") for who in ann]
    why = {"one": "revoked", "two": TOKEN_EXPIRED}
    kept.end_principals(lambda who: why.get(who.credential, ""))
    assert [is_there(kept, uri) for uri in uris] == [False, True, True]
    kept.close()
