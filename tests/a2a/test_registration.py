"""Validation of registrations, and the messages of refusals."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.a2a.config import ExternalAgent
from dragoman.a2a.remote.registration import (
    CONFIG,
    apply_change,
    build_entry,
    create_registration,
    decode_registration,
    encode_registration,
    name_from_card,
    parse_request,
)
from dragoman.core.errors import InvalidInput

URL = "https://agents.example.com/ops"


def test_registration_accepts_both_spellings() -> None:
    body = {
        "url": URL,
        "name": "Linear (prod)",
        "token": "env:OPS_TOKEN",
        "headers": {"X-Api-Key": "${KEY}", "X-Other": "Bearer ${OTHER}"},
        "trustLevel": "trusted",
        "timeoutSecs": 5,
        "allowPrivate": True,
        "pin": "strict",
        "wire": "skill-only",
    }
    entry = build_entry(parse_request(body), "Linear (prod)")
    assert entry == ExternalAgent(
        name="Linear (prod)",
        url=URL,
        token="env:OPS_TOKEN",
        headers={"x-api-key": "${KEY}", "x-other": "Bearer ${OTHER}"},
        trust="trusted",
        timeout_secs=5.0,
        allow_private=True,
        pin="strict",
        wire="skill-only",
    )
    assert create_registration(entry, 1.0).slug == "linear_prod"


def test_deprecated_wire_value_still_loads(caplog: pytest.LogCaptureFixture) -> None:
    assert parse_request({"url": URL, "wire": "seed"})["wire"] == "skill-only"
    assert '"seed" is now called "skill-only"' in caplog.text
    row = encode_registration(create_registration(ExternalAgent(name="a", url=URL), 1.0))
    row["entry"]["wire"] = "seed"
    assert decode_registration(row).entry.wire == "skill-only"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"token": "sk-12345678"}, "not its value.*env:NAME.*file:tokens"),
        ({"token": "Bearer x"}, "not its value"),
        ({"token": "env:NO-NAME"}, "not its value"),
        ({"token": 7}, "not its value"),
        ({"headers": {"X-Key": "sk-123"}}, r'header "X-Key".*not its value.*\$\{NAME\}'),
        ({"headers": {"X-Key": "sk-123${X}"}}, "not its value"),
        ({"headers": {"X-Key": "${X}\r\nHost: evil"}}, "not its value"),
        ({"headers": {"Host": "${X}"}}, 'invalid header name "Host"'),
        ({"headers": {"a b": "${X}"}}, 'invalid header name "a b"'),
        ({"headers": ["X: y"]}, "headers must be an object"),
        ({"headers": {f"x{n}": "${X}" for n in range(17)}}, "at most 16"),
        ({"token": "env:A", "headers": {"Authorization": "Bearer ${B}"}}, "not both"),
        ({"trust": "system"}, "trust must be one of external, trusted"),
        ({"pin": "no"}, "pin must be one of strict, first, off"),
        ({"enabled": "yes"}, "enabled must be true or false"),
        ({"timeout_secs": 0}, "timeout_secs"),
        ({"timeout_secs": True}, "timeout_secs"),
        ({"name": ""}, 'cannot be called ""'),
        ({"name": "tasks"}, 'cannot be called "tasks"'),
        ({"name": "dragoman"}, 'cannot be called "dragoman"'),
        ({"name": "a/b"}, 'cannot be called "a/b"'),
        ({"name": "x" * 65}, "up to 64"),
        ({"name": "\u043eps"}, "cannot be called"),  # a Cyrillic letter
        ({"url": "ftp://x"}, "invalid agent address"),
        ({"url": "https://x/?key=secret"}, "has a query, which only"),
        ({"url": "https://user:secret@x/"}, "invalid agent address"),
        ({"url": None}, "registered by"),
        ({"colour": "red"}, 'unknown setting "colour": use url, name'),
    ],
)
def test_invalid_registration_is_refused_with_valid_values(more: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as caught:
        build_entry(parse_request({"url": URL, "name": "ops", **more}), "ops")
    assert "secret" not in str(caught.value) and "sk-1" not in str(caught.value)


def test_update_keeps_other_fields_and_identity() -> None:
    entry = ExternalAgent(name="ops", url=URL, token="env:A")
    assert apply_change(entry, {"trustLevel": "trusted"}).trust == "trusted"
    assert apply_change(entry, {"token": None}).token is None
    assert apply_change(entry, {"trustLevel": "trusted"}).token == "env:A"
    for body in ({"url": "https://elsewhere"}, {"name": "other"}, {}):
        with pytest.raises(InvalidInput):
            apply_change(entry, body)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("Vercel Ops", "Vercel Ops"),
        ("  Weather: v2 / beta ", "Weather v2 beta"),
        ("_hidden_", "hidden_"),
        ("天气", "agents example com"),
        ("tasks", "agents example com"),
        ("x" * 100, "x" * 64),
    ],
)
def test_unnamed_agent_takes_the_name_of_its_card(said: str, name: str) -> None:
    assert name_from_card({"name": said}, URL) == name


def test_configured_agents_keep_their_id_across_starts() -> None:
    entry = ExternalAgent(name="code-reviewer", url=URL)
    again = ExternalAgent(name="Code Reviewer", url="http://elsewhere")
    assert create_registration(entry, 1.0, CONFIG).id == create_registration(again, 2.0, CONFIG).id
    assert create_registration(entry, 1.0).id != create_registration(entry, 1.0).id


def test_row_round_trips_and_other_versions_are_read_leniently() -> None:
    row = create_registration(ExternalAgent(name="ops", url=URL, token="env:A"), 1.0)
    kept = encode_registration(row)
    assert decode_registration(kept) == row
    newer = {**kept, "entry": {**kept["entry"], "later": 1}}
    assert decode_registration(newer) == row
    for broken in ({}, {**kept, "entry": None}, {**kept, "entry": {}}):
        with pytest.raises(InvalidInput, match="invalid registration"):
            decode_registration(broken)
