"""Sessions: sealed, bound to their principal, bounded, and valid across hub restarts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from dragoman.core.access import TOKEN_EXPIRED
from dragoman.core.principal import Principal
from dragoman.core.question_handles import can_answer
from dragoman.core.tool_filter import EVERYTHING
from dragoman.mcp.protocol.elicitation import select_carried
from dragoman.mcp.protocol.revisions import APP_TYPE, APPS, R2024, R2503, R2506, R2511, Revision
from dragoman.mcp.server import http_sessions as module
from dragoman.mcp.server.client_state import ClientState
from dragoman.mcp.server.http_sessions import HttpSession, HttpSessions
from dragoman.mcp.server.replay_streams import NOTIFICATIONS
from dragoman.wire.http import HttpRequest

RENDERS: dict[str, Any] = {"extensions": {APPS: {"mimeTypes": [APP_TYPE]}}}
KEY = bytes(range(32))
ALICE, BOB = Principal("key", "alice"), Principal("key", "bob")

pytestmark = pytest.mark.promise("G2")


class Audience:
    def __init__(self) -> None:
        self.there: list[ClientState] = []

    def join(self, peer: ClientState) -> None:
        self.there.append(peer)

    def resume(self, client: ClientState, uris: Sequence[str]) -> None: ...

    def leave(self, peer: ClientState) -> None:
        self.there.remove(peer)


class Pipe:
    """A request whose client reads, or does not, or has gone."""

    def __init__(self) -> None:
        self.lost = False
        self.reads = True
        self.sent: list[bytes] = []
        self.ended = False

    def start(self, status: int, headers: Any) -> None: ...

    def send(self, data: bytes) -> bool:
        if not self.reads or self.lost or self.ended:
            return False
        self.sent.append(data)
        return True

    def end(self) -> None:
        self.ended = True


def made(key: bytes = KEY, audience: Audience | None = None) -> HttpSessions:
    return HttpSessions(key, audience or Audience())


def shaken(
    principal: Principal,
    revision: Revision,
    features: Mapping[str, Any] | None = None,
    info: str = "",
) -> ClientState:
    peer = ClientState(principal, "mcp-http", EVERYTHING, revision)
    peer.features = features or {}
    peer.client_name = info
    return peer


def open_stream(session: HttpSession) -> Pipe:
    pipe = Pipe()
    request = cast(HttpRequest, pipe)
    session.streams.append(session.create_stream(request, NOTIFICATIONS))
    return pipe


def test_session_is_found_only_by_its_owner() -> None:
    sessions = made()
    session = sessions.begin(shaken(ALICE, R2506))
    assert sessions.find(session.id, ALICE) is session
    for other in (BOB, Principal("local", "alice"), Principal("key", "alice", "other-org")):
        assert sessions.find(session.id, other) is None


def test_session_survives_its_hub_for_its_owner_only() -> None:
    id = made().begin(shaken(ALICE, R2506)).id
    later = made()
    assert later.find(id, BOB) is None
    found = later.find(id, ALICE)
    assert found is not None
    assert (found.revision, found.id, found.principal) == (R2506, id, ALICE)
    assert made(bytes(32)).find(id, ALICE) is None


@pytest.mark.promise("B12")
@pytest.mark.parametrize(
    "features",
    [
        {},
        {"elicitation": {}},
        {"elicitation": {"form": {}}},
        {"elicitation": {"url": {}}, "roots": {"listChanged": True}},
        {"elicitation": {"form": {"x": 1}, "url": {}}, "sampling": {}},
        {"sampling": {"tools": {}}, "experimental": {"x": {}}},
        {"sampling": {"context": {}}, "roots": {}},
        {"sampling": {"tools": {}, "context": {}}},
        {"roots": {}, **RENDERS},
        {"sampling": None, "roots": [], "elicitation": "yes"},
    ],
)
def test_client_capabilities_and_name_survive_the_hub(features: dict[str, Any]) -> None:
    first = made().begin(shaken(ALICE, R2511, features, "Été IDE"))
    assert first.features == features
    assert len(first.id) < 256 and first.id.isascii() and first.id.isalnum()
    later = made().find(first.id, ALICE)
    assert later is not None
    for kind in ("form", "url", "sampling", "roots"):
        assert can_answer(kind, later.features) == can_answer(kind, features), kind
    assert select_carried(later.features) == select_carried(features)
    sampling = features.get("sampling") or {}
    assert later.features.get("sampling", {}).keys() == sampling.keys()
    assert (later.client_name, later.client) == ("Été IDE", first.client)
    assert first.client and first.client != first.id
    raised = "3" + ("3f" if first.id[1:3] != "3f" else "00") + first.id[3:]
    assert made().find(raised, ALICE) is None, "a client cannot grant itself capabilities"


def test_overlong_client_name_is_truncated() -> None:
    session = made().begin(shaken(ALICE, R2511, {}, "é" * 1000))
    assert len(session.id) < 256
    later = made().find(session.id, ALICE)
    assert later is not None and later.client_name == "é" * 32


def test_session_id_cannot_be_forged() -> None:
    sessions = made()
    id = sessions.begin(shaken(ALICE, R2024)).id
    fresh = made()
    forged = [
        "",
        "x",
        "0" * 67,
        "3" + id[1:],
        id[:-1] + ("0" if id[-1] != "0" else "1"),
        id[:5] + ("0" if id[5] != "0" else "1") + id[6:],
        id + "0",
        id + "41",
        id[:-1],
        "4" + id[1:],
        "²" + id[1:],
        "é" * 67,
        id.upper() if id.upper() != id else "X" * 67,
    ]
    for bad in forged:
        assert fresh.find(bad, ALICE) is None, bad
    assert fresh.find(id, ALICE) is not None


def test_ended_session_cancels_its_requests() -> None:
    audience = Audience()
    sessions = made(audience=audience)
    session = sessions.begin(shaken(ALICE, R2511))
    assert audience.there == [session]
    pipe = open_stream(session)
    cancelled: list[int] = []
    session.running[1] = lambda: cancelled.append(1)
    sessions.end(session)
    assert pipe.ended, "its stream is ended with it"
    assert cancelled == [1]
    assert audience.there == []
    assert sessions.find(session.id, ALICE) is None
    assert len(sessions) == 0


@pytest.mark.promise("N1")
def test_sessions_are_bounded_and_the_least_recently_used_is_evicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_SESSIONS", 3)
    monkeypatch.setattr(module, "MAX_ENDED", 3)
    audience = Audience()
    sessions = made(audience=audience)
    first, second, third = (sessions.begin(shaken(ALICE, R2511)) for _ in range(3))
    assert sessions.find(first.id, ALICE) is first
    sessions.begin(shaken(ALICE, R2511))
    assert len(sessions) == len(audience.there) == 3
    assert second not in audience.there
    assert sessions.find(first.id, ALICE) is first
    assert sessions.find(third.id, ALICE) is third
    again = sessions.find(second.id, ALICE)
    assert again is not None and again is not second, "its owner takes it up again"
    for _ in range(10):
        sessions.end(sessions.begin(shaken(ALICE, R2511)))
    assert len(sessions._ended) == 3


@pytest.mark.promise("N1")
def test_active_session_is_evicted_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SESSIONS", 3)
    sessions = made()
    used = sessions.begin(shaken(ALICE, R2511))
    pipe = open_stream(used)
    for _ in range(10):
        sessions.begin(shaken(BOB, R2511))
    assert sessions.find(used.id, ALICE) is used and not pipe.ended
    pipes = [open_stream(sessions.begin(shaken(BOB, R2511))) for _ in range(30)]
    assert len(sessions) == 3
    assert sum(not one.ended for one in (pipe, *pipes)) == 3


def test_idle_sessions_expire_unless_they_have_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    sessions = made()
    idle, used, listening, working = (sessions.begin(shaken(ALICE, R2511)) for _ in range(4))
    pipe = open_stream(listening)
    working.running[1] = lambda: None
    now += module.IDLE_SECONDS - 1
    sessions.find(used.id, ALICE)
    now += 2
    sessions.begin(shaken(BOB, R2511))
    assert len(sessions) == 4
    assert not pipe.ended
    for one in (used, listening, working):
        assert sessions.find(one.id, ALICE) is one
    assert sessions.find(idle.id, ALICE) is not idle


def test_notification_goes_to_the_first_open_stream_only() -> None:
    sessions = made()
    session = sessions.begin(shaken(ALICE, R2511))
    first, second = open_stream(session), open_stream(session)
    session.notify(b"1")
    first.lost = True
    session.notify(b"2")
    assert [b"data: 1" in one for one in first.sent] == [True]
    assert [b"data: 2" in one for one in second.sent] == [True]
    second.reads = False
    session.notify(b"3")
    assert second.ended, "who does not read is cut off, and can come again"
    sessions.close()
    assert first.ended


def test_notification_without_a_stream_waits_where_resumable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    for revision, kept in ((R2024, False), (R2503, True), (R2511, True)):
        session = made().begin(shaken(ALICE, revision))
        session.notify(b"too old")
        now += module.UNSENT_SECONDS + 1
        for _ in range(5):
            session.notify(b"same")
        for number in range(module.MAX_UNSENT - 2):
            session.notify(b"%d" % number)
        pipe = open_stream(session)
        session.send_unsent(session.streams[0])
        texts = [one.split(b"data: ")[1].strip() for one in pipe.sent]
        more = [b"%d" % number for number in range(module.MAX_UNSENT - 2)]
        assert texts == ([b"same", *more] if kept else [])
        session.send_unsent(session.streams[0])
        assert len(pipe.sent) == len(texts)
        session.streams.clear()
        for number in range(100):
            session.notify(b"%d" % number)
        assert len(session.unsent) == (module.MAX_UNSENT if kept else 0)


def test_session_belongs_to_the_user_and_takes_the_newest_token() -> None:
    sessions = made()
    old, new = (Principal("user", "ann", roles=(one,), credential=one) for one in ("old", "new"))
    session = sessions.begin(ClientState(old, "mcp-http", EVERYTHING, R2511))
    other = sessions.begin(ClientState(old, "mcp-http", EVERYTHING, R2511))
    assert sessions.find(session.id, new) is session
    assert session.principal is new, "its roles are those of the request"
    sessions.end_principals(lambda who: TOKEN_EXPIRED if who.credential == "old" else "")
    assert len(sessions) == 2
    sessions.end_principals(lambda who: "revoked" if who.credential == "old" else "")
    assert sessions.find(session.id, new) is session and sessions.find(other.id, new) is None
    assert sessions.find(session.id, Principal("user", "eve", credential="new")) is None
