"""Sessions: sealed, bound to their caller, bounded; one outlives the hub that began it."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.core.principal import Principal
from dragoman.core.view import EVERYTHING
from dragoman.mcp import sessions as module
from dragoman.mcp.revisions import R2024, R2506, R2511
from dragoman.mcp.server import LIST_CHANGED
from dragoman.mcp.sessions import Sessions

KEY = bytes(range(32))
ALICE, BOB = Principal("key", "alice"), Principal("key", "bob")

pytestmark = pytest.mark.promise("G2")


def made(key: bytes = KEY) -> Sessions:
    return Sessions(key, EVERYTHING)


def test_a_session_is_found_by_its_owner_alone() -> None:
    sessions = made()
    session = sessions.begin(ALICE, R2506)
    assert sessions.find(session.id, ALICE) is session
    for other in (BOB, Principal("local", "alice"), Principal("key", "alice", "other-org")):
        assert sessions.find(session.id, other) is None


def test_a_session_outlives_the_hub_that_began_it_for_its_owner_alone() -> None:
    id = made().begin(ALICE, R2506).id
    later = made()
    assert later.find(id, BOB) is None
    found = later.find(id, ALICE)
    assert found is not None
    assert (found.revision, found.id, found.principal) == (R2506, id, ALICE)
    assert made(bytes(32)).find(id, ALICE) is None


def test_an_id_cannot_be_made_up_or_changed() -> None:
    sessions = made()
    id = sessions.begin(ALICE, R2024).id
    fresh = made()
    forged = [
        "",
        "x",
        "0" * 65,
        "3" + id[1:],
        id[:-1] + ("0" if id[-1] != "0" else "1"),
        id[:5] + ("0" if id[5] != "0" else "1") + id[6:],
        id + "0",
        id[:-1],
        "4" + id[1:],
        "²" + id[1:],
        "é" * 65,
        id.upper() if id.upper() != id else "X" * 65,
    ]
    for bad in forged:
        assert fresh.find(bad, ALICE) is None, bad
    assert fresh.find(id, ALICE) is not None


def test_a_session_that_was_ended_is_gone() -> None:
    sessions = made()
    session = sessions.begin(ALICE, R2511)
    heard: list[Any] = []
    session.streams.append(heard.append)
    sessions.end(session)
    assert heard == [None], "its stream is ended with it"
    assert sessions.find(session.id, ALICE) is None
    assert len(sessions) == 0


@pytest.mark.promise("N1")
def test_sessions_are_bounded_and_the_longest_unused_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_SESSIONS", 3)
    monkeypatch.setattr(module, "MAX_ENDED", 3)
    sessions = made()
    first, second, third = (sessions.begin(ALICE, R2511) for _ in range(3))
    ended: list[Any] = []
    second.streams.append(ended.append)
    assert sessions.find(first.id, ALICE) is first
    sessions.begin(ALICE, R2511)
    assert len(sessions) == 3
    assert ended == [None]
    assert sessions.find(first.id, ALICE) is first
    assert sessions.find(third.id, ALICE) is third
    again = sessions.find(second.id, ALICE)
    assert again is not None and again is not second, "its owner takes it up again"
    for _ in range(10):
        sessions.end(sessions.begin(ALICE, R2511))
    assert len(sessions._ended) == 3


def test_idle_sessions_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    sessions = made()
    idle, used = sessions.begin(ALICE, R2511), sessions.begin(ALICE, R2511)
    ended: list[Any] = []
    idle.streams.append(ended.append)
    now += module.IDLE_SECONDS - 1
    sessions.find(used.id, ALICE)
    now += 2
    sessions.begin(BOB, R2511)
    assert len(sessions) == 2
    assert ended == [None]
    assert sessions.find(used.id, ALICE) is used


def test_a_change_is_told_once_a_session() -> None:
    sessions = made()
    heard: list[tuple[str, Any]] = []
    for name in "ab":
        session = sessions.begin(ALICE, R2511)
        session.streams += [
            lambda message, name=name: heard.append((f"{name}1", message)),
            lambda message, name=name: heard.append((f"{name}2", message)),
        ]
    sessions.tell_changed()
    assert heard == [("a1", LIST_CHANGED), ("b1", LIST_CHANGED)]
    sessions.close()
    assert heard[2:] == [("a1", None), ("a2", None), ("b1", None), ("b2", None)]
