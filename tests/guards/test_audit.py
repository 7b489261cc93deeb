from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dragoman.core.call import Call, Result
from dragoman.core.errors import (
    AmbiguousName,
    ConfigError,
    Denied,
    HubError,
    InvalidInput,
    NotFound,
    Overloaded,
    ShuttingDown,
    StorageFailed,
    TimedOut,
    Unreachable,
    WorkFailed,
)
from dragoman.core.principal import Principal
from dragoman.core.tool import build_missing_tool
from dragoman.core.trace import Trace
from dragoman.guards import audit
from dragoman.guards.audit import Audit
from dragoman.stores.audit.log import SqliteAuditLog
from dragoman.stores.audit.reader import AuditReader, AuditRecord


def call_of(arguments: Mapping[str, Any], *, name: str = "files.read", asked: str = "x") -> Call:
    return Call(
        principal=Principal("key", "ci", "lab"),
        tool=build_missing_tool(name, NotFound("nowhere")),
        requested_name=asked,
        arguments=arguments,
        trace=Trace("4f2a", ("a.b", "c.d")),
        door="mcp-http",
    )


def records(home: Path) -> list[AuditRecord]:
    reader = AuditReader(home)
    found = reader.list_records(100)
    reader.close()
    return found


async def recorded(home: Path, error: BaseException | None, **arguments: Any) -> AuditRecord:
    """The record of a call with `arguments` that ends with `error`."""
    log = SqliteAuditLog(home)

    async def run(call: Call) -> Result:
        if error is not None:
            raise error
        return Result()

    try:
        if error is None:
            await Audit(log)(run, call_of(arguments))
        else:
            with pytest.raises(type(error)) as raised:
                await Audit(log)(run, call_of(arguments))
            assert raised.value is error
    finally:
        log.close()
    return records(home)[0]


async def test_intent_is_stored_before_the_pipeline_continues(tmp_path: Path) -> None:
    log = SqliteAuditLog(tmp_path)
    seen: list[AuditRecord] = []

    async def run(call: Call) -> Result:
        seen.extend(records(tmp_path))
        return Result()

    arguments = {"path": "/tmp/café", "n": 3}
    await Audit(log)(run, call_of(arguments, asked="mcp_files_read"))
    log.close()
    encoded = json.dumps(arguments, separators=(",", ":"), ensure_ascii=False).encode()
    key = (tmp_path / "audit.key").read_bytes()  # no one else can enumerate the arguments
    assert [(record.outcome, record.intent) for record in seen] == [
        (
            "running",
            {
                "verb": "files.read",
                "asked_as": "mcp_files_read",
                "caller": "key:ci",
                "org": "lab",
                "door": "mcp-http",
                "trace": "4f2a",
                "depth": 2,
                "target": "nowhere",
                "args_mac": hashlib.blake2b(
                    encoded, key=key, digest_size=32, person=b"dragoman args"
                ).hexdigest(),
                "args_bytes": len(encoded),
                "chain": ["a.b", "c.d"],
            },
        )
    ]
    (record,) = records(tmp_path)
    assert record.outcome == "completed"
    assert 0 < record.conclusion["duration_ms"] < 10_000


ENDS: list[tuple[HubError | Exception, str]] = [
    (Denied("no policy"), "refused"),
    (Overloaded("too much"), "refused"),
    (NotFound("no such tool"), "not_found"),
    (InvalidInput("n must be a number"), "invalid"),
    (AmbiguousName("two of them"), "invalid"),
    (TimedOut("30 s"), "target_failed"),
    (Unreachable("gone"), "target_failed"),
    (WorkFailed("it said no"), "target_failed"),
    (StorageFailed("the disk is full"), "refused"),
]


def test_client_chosen_names_are_not_kept_after_their_record() -> None:
    name = "".join(["x"] * 1_000)
    before = sys.getrefcount(name)
    listed = audit._list_bounded((name,))
    assert len(listed[0]) < len(name)
    assert sys.getrefcount(name) == before


@pytest.mark.parametrize(("error", "outcome"), ENDS, ids=lambda each: str(each))
async def test_an_error_of_the_hub_is_recorded_by_its_class(
    error: HubError, outcome: str, tmp_path: Path
) -> None:
    record = await recorded(tmp_path, error)
    assert record.outcome == outcome
    assert record.conclusion["error"] == error.kind
    assert record.conclusion["message"] == str(error)


@pytest.mark.parametrize("error", [ZeroDivisionError("secret"), ConfigError("x"), SystemExit(1)])
async def test_unexpected_exception_is_recorded_as_a_crash_and_propagates(
    error: BaseException, tmp_path: Path
) -> None:
    record = await recorded(tmp_path, error)
    assert record.outcome == "crashed"
    assert "message" not in record.conclusion


async def test_tool_error_is_recorded_as_failed(tmp_path: Path) -> None:
    log = SqliteAuditLog(tmp_path)

    async def run(call: Call) -> Result:
        return Result(failed=True)

    assert (await Audit(log)(run, call_of({}))).failed
    log.close()
    assert records(tmp_path)[0].outcome == "failed"


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("after", range(8))
async def test_cancelled_call_is_recorded_once(after: int, tmp_path: Path) -> None:
    log = SqliteAuditLog(tmp_path)
    ran = asyncio.Event()

    async def run(call: Call) -> Result:
        ran.set()
        await asyncio.Event().wait()
        return Result()

    running = asyncio.create_task(Audit(log)(run, call_of({})))
    await asyncio.sleep(0)
    await turns(after)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await turns(3)
    assert not log._running
    log.close()
    assert [record.outcome for record in records(tmp_path)] == ["cancelled"]
    assert ran.is_set()


async def test_unrecordable_call_is_refused(tmp_path: Path) -> None:
    log = SqliteAuditLog(tmp_path)
    ran = []

    async def run(call: Call) -> Result:
        ran.append(call)
        return Result()

    loop: dict[str, Any] = {}
    loop["self"] = loop
    with pytest.raises(StorageFailed, match="cannot be recorded"):
        await Audit(log)(run, call_of(loop))
    log.close()
    with pytest.raises(ShuttingDown, match="shutting down"):
        await Audit(log)(run, call_of({}))
    assert not ran


async def test_unusual_json_arguments_are_recorded(tmp_path: Path) -> None:
    record = await recorded(tmp_path, None, big=2**200, half="\ud800", none=None)
    assert len(record.intent["args_mac"]) == 64
    assert record.outcome == "completed"


async def test_client_chosen_names_are_truncated_and_storable(tmp_path: Path) -> None:
    log = SqliteAuditLog(tmp_path)

    async def run(call: Call) -> Result:
        return await call.tool.target.run(call)

    name = "x" * 5_000_000
    with pytest.raises(NotFound):
        await Audit(log)(run, call_of({}, name=name, asked="\ud800é"))
    log.close()
    (record,) = records(tmp_path)
    assert record.intent["verb"] == "x" * 199 + "…"
    assert record.intent["asked_as"] == "?é"
    assert record.outcome == "not_found"


CANARY = "hunter2-correct-horse-battery"
LEAKS = {
    "whole": f"'{CANARY}' is not a number",
    "cut short": f"{CANARY[:20]}… is not a number",
    "twice": f"{CANARY} and {CANARY}",
    "cut by the limit": "y" * 285 + CANARY,
    "in a long message": CANARY + "z" * 100_000,
}


@pytest.mark.parametrize("how", LEAKS)
async def test_argument_values_are_never_stored(how: str, tmp_path: Path) -> None:
    arguments = {"password": CANARY, "deep": [{"list": [CANARY]}], "n": 1234567}
    error = WorkFailed(LEAKS[how])
    record = await recorded(tmp_path, error, **arguments)
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert CANARY[:12].encode() not in kept
    assert CANARY[:4].encode() not in kept
    assert b"1234567" not in kept
    assert len(record.conclusion["message"]) <= 300


@pytest.mark.parametrize(
    ("arguments", "said", "kept"),
    [
        ({"n": 42}, "42 is not of type string, nor is 142", "… is not of type string, nor is 142"),
        ({"pin": "9f"}, "no file 9f here, but 9fa", "no file … here, but 9fa"),
        ({"a": 'say "hi" to everybody'}, r'bad: "say \"hi\" to everybody"', 'bad: "…"'),
        ({"a": "Grüße an alle Leute"}, r"bad: Gr\u00fc\u00dfe an alle Leute!", "bad: …!"),
        ({"a": "one\ntwo three four"}, r"bad: 'one\ntwo three four'", "bad: '…'"),
        ({"x": 1.5, "y": True, "z": None, "e": ""}, "1.5 True None", "… True None"),
    ],
)
async def test_argument_values_are_redacted_in_messages(
    arguments: dict[str, Any], said: str, kept: str, tmp_path: Path
) -> None:
    record = await recorded(tmp_path, InvalidInput(said), **arguments)
    assert record.conclusion["message"] == kept


@pytest.mark.parametrize("many", [[f"value number {n}" for n in range(100_000)], [{}] * 100_000])
async def test_message_is_dropped_when_redaction_is_too_costly(
    many: list[Any], tmp_path: Path
) -> None:
    record = await recorded(tmp_path, InvalidInput("value number 7 is bad"), many=many)
    assert record.conclusion["message"] == "(not kept: too many arguments to look for in it)"


async def test_message_is_truncated_to_300_characters(tmp_path: Path) -> None:
    record = await recorded(tmp_path, Denied("n" * 301))
    assert record.conclusion["message"] == "n" * 299 + "…"
