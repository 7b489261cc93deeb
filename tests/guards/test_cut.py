from __future__ import annotations

from typing import Any

import pytest

from dragoman.core.call import ABSENT, Call, Result
from dragoman.core.errors import BadReply, NotFound, WorkFailed
from dragoman.core.pipeline import compose
from dragoman.core.principal import OWNER
from dragoman.core.tool import tool_nowhere
from dragoman.core.trace import new_trace
from dragoman.guards.config import Limits
from dragoman.guards.cut import Cut

pytestmark = pytest.mark.promise("P2")

CAP = Limits().result_chars


async def cut(*content: Any, structured: Any = ABSENT, size: int = -1) -> Result:
    """What is left of a result that a target gives."""

    async def target(call: Call) -> Result:
        return Result(content=content, structured=structured, size=size)

    call = Call(
        caller=OWNER,
        tool=tool_nowhere("files.read", NotFound("nowhere")),
        asked_as="x",
        arguments={},
        trace=new_trace(),
        door="test",
        extra={},
    )
    return await compose([Cut(CAP)], target)(call)


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def test_the_cap_is_fifty_thousand_unless_it_is_set() -> None:
    assert CAP == 50_000


@pytest.mark.parametrize("character", ["x", "é", "🦉", "\n", '"'])
async def test_text_is_cut_after_fifty_thousand_characters_with_a_marker(character: str) -> None:
    assert (await cut(text(character * CAP))).content == (text(character * CAP),)
    marker = "\n[cut: 1 of 50001 characters left out]"
    (block,) = (await cut(text(character * (CAP + 1), _meta={"k": 1}))).content
    assert block == text(character * CAP + marker, _meta={"k": 1})


async def test_each_text_is_cut_alone_and_the_order_stays() -> None:
    content = [text("a"), text("b" * 60_000), text("c")]
    result = await cut(*content)
    assert [block["text"][:1] for block in result.content] == ["a", "b", "c"]
    assert result.content[1]["text"].endswith("[cut: 10000 of 60000 characters left out]")
    assert len(content[1]["text"]) == 60_000  # what the target holds is not changed


async def test_the_text_of_an_embedded_resource_is_cut_too() -> None:
    resource = {"uri": "test://x", "text": "x" * 50_001, "mimeType": "text/plain"}
    (block,) = (await cut({"type": "resource", "resource": resource})).content
    assert block["resource"]["text"] == "x" * CAP + "\n[cut: 1 of 50001 characters left out]"
    assert block["resource"]["uri"] == "test://x"


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "data": "A" * 100_000, "mimeType": "image/png"},
        {"type": "audio", "data": "A" * 100_000, "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "test://x", "blob": "A" * 100_000}},
        "no object at all" * 10_000,
        {"type": "text", "text": 5},
    ],
)
async def test_what_is_no_text_is_not_cut(block: Any) -> None:
    assert (await cut(block)).content == (block,)


async def test_a_structured_result_over_the_cap_is_refused_rather_than_broken() -> None:
    fits = {"k": "x" * (CAP - len('{"k":""}'))}
    assert (await cut(structured=fits)).structured == fits
    with pytest.raises(BadReply) as raised:
        await cut(text("short"), structured={"k": fits["k"] + "x"})
    assert str(raised.value) == (
        '"files.read" answered with a structured result of more than 50000 characters, which '
        "cannot be cut; ask for less or raise [limits] result_chars"
    )


async def test_a_structured_result_is_measured_in_characters_not_in_bytes() -> None:
    owls = {"k": "🦉" * (CAP - len('{"k":""}'))}
    assert (await cut(structured=owls)).structured == owls


async def test_null_is_a_structured_result_and_none_is_not() -> None:
    assert (await cut(structured=None)).structured is None
    assert (await cut(text("x" * 60_000))).structured is ABSENT


async def test_a_result_known_to_be_small_passes_unweighed_and_a_large_one_does_not() -> None:
    assert (await cut(text("x"), size=CAP)).content == (text("x"),)
    result = await cut(text("x" * 60_000), size=60_100)
    assert "[cut:" in result.content[0]["text"]


async def test_an_error_of_the_far_side_is_kept_to_the_same_size() -> None:
    async def fail(native: dict[str, Any]) -> dict[str, Any] | None:
        async def target(call: Call) -> Result:
            raise WorkFailed("no", native)

        call = Call(
            caller=OWNER,
            tool=tool_nowhere("files.read", NotFound("nowhere")),
            asked_as="x",
            arguments={},
            trace=new_trace(),
            door="test",
            extra={},
        )
        with pytest.raises(WorkFailed) as error:
            await compose([Cut(CAP)], target)(call)
        return error.value.native

    short = {"code": 7, "message": "no", "data": {"a": [1]}, "more": 1}
    assert await fail(short) == short
    long = await fail({"code": 7, "message": "x" * (CAP + 1), "data": ["y" * CAP]})
    assert long is not None and long["code"] == 7
    assert long["message"] == "x" * CAP + "\n[cut: 1 of 50001 characters left out]"
    assert long["data"] == "[cut: more than 50000 characters left out]"
