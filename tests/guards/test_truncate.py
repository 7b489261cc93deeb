from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dragoman.core.call import ABSENT, Artifact, Call, Result
from dragoman.core.errors import NotFound, WorkFailed
from dragoman.core.kept_results import KeptResults
from dragoman.core.pipeline import build_pipeline
from dragoman.core.principal import OWNER
from dragoman.core.tool import PROMPT, RESOURCE, TOOL, build_missing_tool
from dragoman.core.trace import new_trace
from dragoman.guards.config import Limits
from dragoman.guards.truncate import Truncate
from dragoman.wire.json import encode

pytestmark = pytest.mark.promise("P2")

LIMITS = Limits(result_chars=50_000, data_chars=60_000)
CAP, DATA = LIMITS.result_chars, LIMITS.data_chars


def a_call(**about: Any) -> Call:
    return Call(
        principal=OWNER,
        tool=replace(build_missing_tool("files.read", NotFound("nowhere")), **about),
        requested_name="x",
        arguments={},
        trace=new_trace(),
        door="test",
    )


async def cut(
    *content: Any,
    structured: Any = ABSENT,
    size: int = -1,
    schema: Any = None,
    artifacts: Sequence[Artifact] = (),
    kind: str = TOOL,
) -> Result:
    """What is left of a result that a target gives, where nothing of it is kept."""

    async def target(call: Call) -> Result:
        return Result(content=content, structured=structured, size=size, artifacts=artifacts)

    call = a_call(definition={"outputSchema": schema}, kind=kind)
    return await build_pipeline([Truncate(LIMITS, KeptResults(0, 600))], target)(call)


def marker(out: int, of: int, setting: str = "result_chars", most: int = CAP) -> str:
    return f"[cut: {out} of {of} characters left out, by [limits] {setting} = {most}]"


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def test_sixty_kilobyte_file_is_complete_by_default() -> None:
    assert (Limits().result_chars, Limits().data_chars) == (100_000, 1_000_000)


@pytest.mark.parametrize("character", ["x", "é", "🦉", "\n", '"'])
async def test_text_is_truncated_after_fifty_thousand_characters(character: str) -> None:
    assert (await cut(text(character * CAP))).content == (text(character * CAP),)
    (block,) = (await cut(text(character * (CAP + 1), _meta={"k": 1}))).content
    assert block == text(f"{character * CAP}\n{marker(1, 50_001)}", _meta={"k": 1})


async def test_texts_are_truncated_individually_in_order() -> None:
    content = [text("a"), text("b" * 60_000), text("c")]
    result = await cut(*content)
    assert [block["text"][:1] for block in result.content] == ["a", "b", "c"]
    assert result.content[1]["text"].endswith(marker(10_000, 60_000))
    assert len(content[1]["text"]) == 60_000  # what the target holds is not changed


@pytest.mark.parametrize("kind", [TOOL, PROMPT, RESOURCE])
async def test_resources_have_one_limit_wherever_they_are(kind: str) -> None:
    for length, out in ((DATA, 0), (DATA + 1, 1)):
        resource = {"uri": "test://x", "text": "x" * length, "mimeType": "text/plain"}
        (block,) = (await cut({"type": "resource", "resource": resource}, kind=kind)).content
        more = f"\n{marker(1, length, 'data_chars', DATA)}" if out else ""
        assert block["resource"] == {**resource, "text": "x" * DATA + more}


async def test_structured_binary_data_is_not_kept_as_a_text_that_was_cut() -> None:
    kept, data = KeptResults(64, 600), b64encode(bytes(range(256)) * 1_000).decode()

    async def target(call: Call) -> Result:
        return Result(content=[text("done")], structured={"image": data})

    result = await build_pipeline([Truncate(LIMITS, kept)], target)(a_call())
    assert result.structured == {"image": data} and kept.size == 0


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
async def test_non_text_is_not_truncated(block: Any) -> None:
    assert (await cut(block)).content == (block,)


@pytest.mark.parametrize(
    ("uri", "mime", "is_program"),
    [
        ("ui://a/app", None, True),
        *(
            ("a:b", mime, True)
            for mime in (
                "text/html;profile=mcp-app", 'Text/HTML; charset=utf-8; profile="mcp-app"',
                "text/html+skybridge", "text/javascript", "application/javascript; charset=utf-8",
                "application/json", "application/ld+json", "text/x-python", "application/x-sh",
            )
        ),
        *(
            ("a:b", mime, False)
            for mime in ("text/html", "text/plain", "text/markdown", "text/javascripts", None)
        ),
    ],
)  # fmt: skip
async def test_program_that_is_read_is_whole(uri: str, mime: str | None, is_program: bool) -> None:
    content = {"uri": uri, "text": "f(1); " * DATA} | ({"mimeType": mime} if mime else {})
    block = {"type": "resource", "resource": content}

    async def target(call: Call) -> Result:
        return Result(content=[block])

    for kind in ("tool", "resource"):
        truncate = Truncate(LIMITS, KeptResults(0, 600))
        (shown,) = (await build_pipeline([truncate], target)(a_call(kind=kind))).content
        assert (shown == block) is (is_program and kind == "resource"), "models get the others"


async def test_long_structured_texts_are_truncated() -> None:
    fits = {"k": "x" * (DATA - len('{"k":""}'))}
    assert (await cut(text("short"), structured=fits)).structured == fits
    value: dict[str, Any] = {
        "long": "x" * 90_000,
        "also": ["y" * 30_000, 5, None],
        "short": "z",
        "n": 1.5,
    }
    shorter = (await cut(text("short"), structured=value)).structured
    assert shorter.keys() == value.keys()
    assert (shorter["short"], shorter["n"], shorter["also"][1:]) == ("z", 1.5, [5, None])
    assert shorter["also"][0].strip("y") in ("", shorter["also"][0].lstrip("y"))
    assert shorter["long"].lstrip("x").startswith("[cut: ")
    assert DATA * 0.7 < len(encode(shorter)) <= DATA
    assert len(value["long"]) == 90_000, "what the target holds is not changed"


@pytest.mark.parametrize(
    ("keyword", "mode"),
    [
        ({}, "marked"),
        ({"maxLength": 200_000}, "marked"),
        ({"pattern": "^x*$"}, "bare"),
        ({"enum": ["x" * 90_000]}, "whole"),
        ({"minLength": 90_000}, "whole"),
    ],
)
async def test_truncated_content_matches_its_schema(keyword: dict[str, Any], mode: str) -> None:
    schema = {
        "type": "object",
        "properties": {"bound": {"type": "string", **keyword}, "free": {"type": "string"}},
    }
    value = {"bound": "x" * 90_000, "free": "y" * 200_000}
    result = await cut(text("short"), structured=value, schema=schema)
    if mode == "whole":  # which is more than may be passed on, and nothing else would fit
        assert result.failed and result.structured is ABSENT
        assert "has no text that can be cut" in result.content[-1]["text"]
        return
    assert not result.failed
    bound, free = result.structured["bound"], result.structured["free"]
    assert ("[cut: " in bound) == (mode == "marked") and bound.startswith("x" * 200)
    assert "[cut: " in free and len(encode(result.structured)) <= DATA


async def test_schema_bound_text_is_kept_where_others_suffice() -> None:
    schema = {"properties": {"bound": {"enum": ["x" * 5_000]}}}
    value = {"bound": "x" * 5_000, "free": "y" * 200_000}
    shorter = (await cut(text("short"), structured=value, schema=schema)).structured
    assert shorter["bound"] == "x" * 5_000 and "[cut: " in shorter["free"]


async def test_nonconforming_content_may_be_truncated() -> None:
    value = {"k": "x" * 90_000}
    shorter = (await cut(text("s"), structured=value, schema={"required": ["no"]})).structured
    assert "[cut: " in shorter["k"]


async def test_binary_structured_data_is_not_counted() -> None:
    data = b64encode(bytes(n % 251 for n in range(300_000))).decode()
    for value in (
        {"content": [{"type": "image", "data": "A" * 100_000, "mimeType": "image/png"}]},
        {"contents": [{"uri": "file:///x", "blob": "A" * 100_000}]},
        {"picture": data},
        {"picture": f"data:image/png;base64,{data}"},
        {"picture": "\n".join(data[n : n + 76] for n in range(0, len(data), 76))},
    ):
        assert (await cut(text("short"), structured=value)).structured == value
    both = {"picture": data, "log": "line\n" * 30_000}
    shorter = (await cut(text("short"), structured=both)).structured
    assert shorter["picture"] == data and "[cut: " in shorter["log"]


async def test_unshortenable_structure_is_an_error() -> None:
    result = await cut(text("short"), structured=list(range(100_000)))
    assert result.failed and result.structured is ABSENT
    assert [block["text"][:40] for block in result.content] == [
        "short",
        '"files.read" completed, but its structur',
    ]
    assert "raise the limit" in result.content[1]["text"]


async def test_structured_content_alone_is_not_rendered_unbounded() -> None:
    result = await cut(structured={"k": "x y" * 18_000})
    assert result.structured == {"k": "x y" * 18_000}
    assert result.content[0]["text"].endswith(marker(4_008, 54_008))
    assert (await cut(structured={"k": "x"})).content == ()


async def test_structured_size_is_measured_in_characters() -> None:
    owls = {"k": "🦉" * (DATA - len('{"k":""}'))}
    assert (await cut(text("short"), structured=owls)).structured == owls


async def test_artifacts_and_data_have_equal_limits() -> None:
    made = [text("x" * 60_000), {"type": "data", "data": {"k": "y z " * 30_000}}]
    result = await cut(*made, artifacts=[Artifact(id="1", content=made)])
    for blocks in (result.content, result.artifacts[0].content):
        assert blocks[0]["text"].endswith(marker(10_000, 60_000))
        assert len(encode(blocks[1]["data"])) <= DATA and "[cut: " in blocks[1]["data"]["k"]
    (block,) = (await cut({"type": "data", "data": list(range(100_000))})).content
    assert block["type"] == "text" and "has no text that can be cut" in block["text"]


async def test_null_structured_result_differs_from_none() -> None:
    assert (await cut(structured=None)).structured is None
    assert (await cut(text("x" * 60_000))).structured is ABSENT


async def test_small_result_is_not_measured() -> None:
    assert (await cut(text("x"), size=CAP)).content == (text("x"),)
    result = await cut(text("x" * 60_000), size=60_100)
    assert "[cut:" in result.content[0]["text"]


async def test_upstream_error_is_truncated_equally() -> None:
    async def fail(native: dict[str, Any]) -> dict[str, Any] | None:
        async def target(call: Call) -> Result:
            raise WorkFailed("no", native)

        with pytest.raises(WorkFailed) as error:
            await build_pipeline([Truncate(LIMITS, KeptResults(0, 600))], target)(a_call())
        return error.value.native

    short = {"code": 7, "message": "no", "data": {"a": [1]}, "more": 1}
    assert await fail(short) == short
    long = await fail({"code": 7, "message": "x" * (CAP + 1), "data": ["y" * CAP]})
    assert long is not None and long["code"] == 7
    assert long["message"] == f"{'x' * CAP}\n{marker(1, 50_001)}"
    assert long["data"] == "[cut: more than 50000 characters left out]"
