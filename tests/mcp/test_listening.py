"""What clients are told unasked, in both eras. The server is a few lines in here."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from typing import Any

import pytest
from tests.permissive_hub import build_permissive_hub

from dragoman.core.bus import Bus
from dragoman.core.call import Call, LogMessage, Result
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.errors import Denied, InvalidInput
from dragoman.core.events import ClientGone, ListAnnounced, ResourceUpdated, ServerLogged
from dragoman.core.ports import Decision
from dragoman.core.principal import OWNER, Principal
from dragoman.core.tool import DEFAULT_TRAITS, PROMPT, RESOURCE, TEMPLATE, TOOL, Tool
from dragoman.core.tool_filter import EVERYTHING, View
from dragoman.mcp.client.child_process import OutputRing
from dragoman.mcp.client.server_logs import ServerLogs
from dragoman.mcp.protocol.revisions import R2024, R2503, R2506, R2511, R2607, SERVER_KEY, Revision
from dragoman.mcp.server import subscriptions
from dragoman.mcp.server.client_state import ClientState
from dragoman.mcp.server.dispatcher import McpServer
from dragoman.wire import rpc

META = "io.modelcontextprotocol/"
ID = META + "subscriptionId"
LEGACY = [R2024, R2503, R2506, R2511]
LIST_OF = {TOOL: "tools", PROMPT: "prompts", RESOURCE: "resources", TEMPLATE: "resources"}


class Watchable:
    traits = DEFAULT_TRAITS
    name = "watch"

    def __init__(self) -> None:
        self.calls: list[tuple[str, bool, str]] = []
        self.hold: asyncio.Event | None = None
        self.stopped = asyncio.Event()

    async def run(self, call: Call) -> Result:
        follow = call.arguments["follow"]
        self.calls.append((call.tool.remote_name, follow, call.client))
        if not follow:
            self.stopped.set()
        if self.hold is not None and call.tool.remote_name == "a:2":
            await self.hold.wait()
        if "secret" in call.tool.remote_name:
            raise Denied("no")
        if "dull" in call.tool.remote_name:
            raise InvalidInput("it does not tell")
        return Result()


def offered(kind: str, name: str, target: Any) -> Tool:
    return Tool(name=f"watch.{name}", alias=name, kind=kind, remote_name=name, target=target)


def watched(*uris: str) -> tuple[McpServer, Watchable]:
    target, hub = Watchable(), build_permissive_hub(Catalog(review=admit_all), Bus(), [])
    names = uris or ("a:1", "a:2", "a:secret", "a:dull", "file:///d")
    hub.catalogs[RESOURCE].offer("watch", [offered(RESOURCE, uri, target) for uri in names])
    return McpServer(hub), target


class Told(ClientState):
    """A client of the old era that keeps what it is told."""

    __slots__ = ("new", "told")

    def __init__(self, revision: Revision = R2511, client: str = "one") -> None:
        super().__init__(OWNER, "test", EVERYTHING, revision, client)
        self.told: list[Any] = []
        self.new = asyncio.Event()

    def notify(self, message: bytes) -> None:
        self.told.append(json.loads(message))
        self.new.set()


class Listener:
    """A client of the new era and its one request to listen."""

    def __init__(
        self, face: McpServer, id: Any = "l1", peer: ClientState | None = None, **wanted: Any
    ) -> None:
        self.peer = peer or ClientState(OWNER, "test", EVERYTHING, R2607)
        self.told: list[Any] = []
        self.new = asyncio.Event()
        self.deaf = False
        meta = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": {}}
        params = {"notifications": wanted, "_meta": meta}
        message = json.loads(rpc.encode_request(id, "subscriptions/listen", params))
        self.work = asyncio.ensure_future(face.answer(message, self.peer, self.push))

    async def read_answer(self) -> Any:
        answer = await self.work
        assert answer is not None
        return json.loads(answer)

    def push(self, message: bytes) -> bool:
        if self.deaf:
            return False
        self.told.append(json.loads(message))
        self.new.set()
        return True

    async def end(self) -> None:
        self.work.cancel()
        await asyncio.gather(self.work, return_exceptions=True)


async def told(who: Any, count: int) -> list[Any]:
    async with asyncio.timeout(5):
        while len(who.told) < count:
            who.new.clear()
            await who.new.wait()
    return list(who.told)


async def ask(face: McpServer, peer: ClientState, method: str, uri: Any) -> Any:
    answer = await face.answer(json.loads(rpc.encode_request(1, method, {"uri": uri})), peer)
    assert answer is not None
    return json.loads(answer)


def methods(told: list[Any]) -> list[str]:
    return [one["method"] for one in told]


# --- lists


@pytest.mark.promise("B12")
@pytest.mark.parametrize("revision", LEGACY)
@pytest.mark.parametrize("kind", LIST_OF)
async def test_who_has_joined_is_told_once_of_changes_that_come_together(
    kind: str, revision: Revision
) -> None:
    face, target = watched()
    peer, stranger = Told(revision), Told(revision)
    face.join(peer)
    for number in range(5):
        face.hub.catalogs[kind].offer("more", [offered(kind, f"new{number}", target)])
    (one,) = await told(peer, 1)
    assert one == {
        "jsonrpc": "2.0",
        "method": f"notifications/{LIST_OF[kind]}/list_changed",
    }
    witness = Told(revision, client="two")
    face.join(witness)
    face.hub.catalogs[kind].offer("more", [])
    await told(witness, 1)
    assert len(peer.told) == 2
    face.leave(peer)
    face.hub.catalogs[kind].offer("more", [offered(kind, "last", target)])
    await told(witness, 2)
    assert len(peer.told) == 2 and not stranger.told


async def test_resources_and_their_templates_are_one_list_that_changes() -> None:
    face, target = watched()
    peer = Told()
    face.join(peer)
    for kind in LIST_OF:
        face.hub.catalogs[kind].offer("more", [offered(kind, "new", target)])
    got = methods(await told(peer, 3))
    assert got == [f"notifications/{one}/list_changed" for one in ("prompts", "resources", "tools")]
    assert len(peer.told) == 3


async def test_a_list_that_is_the_same_after_all_is_not_told_of() -> None:
    face, target = watched()
    peer = Told()
    face.join(peer)
    catalog = face.hub.catalogs[PROMPT]
    catalog.offer("empty", [])
    extra = offered(TOOL, "x", target)
    face.hub.catalog.offer("more", [extra])
    face.hub.catalog.offer("more", [])
    face.hub.catalogs[RESOURCE].offer("more", [offered(RESOURCE, "r", target)])
    assert methods(await told(peer, 1)) == ["notifications/resources/list_changed"]


@pytest.mark.promise("B12", "N1")
async def test_a_list_that_is_the_same_is_told_of_if_its_server_says_so_but_not_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    face, target = watched()
    peer, blind = Told(), Told(client="two")
    blind.view = View(("other.*",))
    face.join(peer)
    face.join(blind)
    announced = ListAnnounced("watch", RESOURCE)
    face.hub.bus.emit(announced)
    assert methods(await told(peer, 1)) == ["notifications/resources/list_changed"]
    for _ in range(5):
        face.hub.bus.emit(announced)
    monkeypatch.setattr(subscriptions, "ANNOUNCE_PAUSE", 0.05)
    face.hub.catalogs[PROMPT].offer("more", [offered(PROMPT, "p", target)])
    seen = sorted(methods(await told(peer, 3)))
    assert (
        seen
        == ["notifications/prompts/list_changed"] + ["notifications/resources/list_changed"] * 2
    )
    assert methods(blind.told) == ["notifications/prompts/list_changed"]


# --- lines of logs


@pytest.mark.promise("B12")
async def test_a_line_of_a_shared_log_goes_to_those_who_asked_for_it_and_may_read_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    face, _ = watched()
    asked, quiet, other = Told(client="asked"), Told(client="quiet"), Told(client="other")
    blind, late = Told(client="blind"), Told(client="late")
    other.principal = Principal("key", "other")
    blind.view = View(("elsewhere.*",))
    for peer in (asked, other, blind, late):
        peer.log_level = "notice"
    for peer in (asked, quiet, other, blind):
        face.join(peer)

    def may(caller: Principal, action: str, *_: Any, **__: Any) -> Decision:
        return Decision(caller == OWNER, (), "test")

    monkeypatch.setattr(face.hub.authorizer, "decide_action", may)

    def log(level: str, data: Any, client: str | None = None) -> None:
        face.hub.bus.emit(ServerLogged("watch", LogMessage(level=level, data=data), client))

    log("info", "dull")
    log("error", "news")
    log("error", "x" * subscriptions.MAX_LOG_BYTES)
    assert [one["params"] for one in asked.told] == [{"level": "error", "data": "news"}]
    assert not quiet.told and not other.told and not blind.told and not late.told
    log("debug", "dull", "quiet")
    log("info", "own", "quiet")
    log("error", "own", "other")
    assert [one["params"]["data"] for one in quiet.told] == ["own"]
    assert [one["params"]["data"] for one in other.told] == ["own"]
    assert len(asked.told) == 1


@pytest.mark.promise("N1")
def test_a_server_that_logs_too_fast_is_kept_but_not_passed_on() -> None:
    now, bus, ring = [0.0], Bus(), OutputRing()
    heard: list[ServerLogged] = []
    bus.observe(ServerLogged, heard.append)
    logs = ServerLogs("s", ring, bus, lambda: now[0])
    for number in range(150):
        logs.write({"level": "info", "data": f"line {number}"}, None)
    logs.write({"level": "info", "data": "of a client without a session"}, "")
    assert (
        len(heard) == 100
        and "line 149" in ring.read_text()
        and "without a session" in ring.read_text()
    )
    now[0] = 1.0
    for _ in range(150):
        logs.write({"level": "info", "data": "more"}, None)
    assert len(heard) == 120


@pytest.mark.promise("B12")
async def test_a_modern_client_hears_of_the_lists_it_asked_for_and_no_others() -> None:
    face, target = watched()
    everything = Listener(
        face, 7, toolsListChanged=True, promptsListChanged=True, resourcesListChanged=True
    )
    prompts = Listener(face, "l2", promptsListChanged=True, toolsListChanged=False)
    nothing = Listener(face, "l3")
    (first,) = await told(everything, 1)
    assert first["method"] == "notifications/subscriptions/acknowledged"
    assert first["params"] == {
        "notifications": {
            "toolsListChanged": True,
            "promptsListChanged": True,
            "resourcesListChanged": True,
        },
        "_meta": {ID: 7},
    }
    assert (await told(prompts, 1))[0]["params"]["notifications"] == {"promptsListChanged": True}
    assert (await told(nothing, 1))[0]["params"]["notifications"] == {}
    face.hub.catalog.offer("more", [offered(TOOL, "t", target)])
    await told(everything, 2)
    face.hub.catalogs[PROMPT].offer("more", [offered(PROMPT, "p", target)])
    face.hub.catalogs[TEMPLATE].offer("more", [offered(TEMPLATE, "r", target)])
    got = await told(everything, 4)
    assert methods(got[1:]) == [
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
        "notifications/resources/list_changed",
    ]
    assert all(one["params"]["_meta"] == {ID: 7} for one in got)
    assert methods(await told(prompts, 2))[1:] == ["notifications/prompts/list_changed"]
    assert len(nothing.told) == 1
    for one in (everything, prompts, nothing):
        await one.end()
    assert not face.subscriptions._streams


# --- resources, in sessions


@pytest.mark.promise("B12")
@pytest.mark.parametrize("revision", LEGACY)
async def test_a_session_is_told_of_what_it_follows_until_it_does_not(revision: Revision) -> None:
    face, target = watched()
    one, other = Told(revision), Told(revision, client="two")
    assert (await ask(face, one, "resources/subscribe", "a:1"))["result"] == {}
    assert (await ask(face, other, "resources/subscribe", "watch.a:1"))["result"] == {}
    assert (await ask(face, one, "resources/subscribe", "a:1"))["result"] == {}
    assert one.subscribed == {"watch.a:1": "a:1"}
    face.hub.bus.emit(ResourceUpdated("watch.a:1"))
    face.hub.bus.emit(ResourceUpdated("watch.a:2"))
    updated = {"jsonrpc": "2.0", "method": "notifications/resources/updated"}
    assert one.told == [{**updated, "params": {"uri": "a:1"}}]
    assert other.told == [{**updated, "params": {"uri": "watch.a:1"}}]
    assert (await ask(face, one, "resources/unsubscribe", "watch.a:1"))["result"] == {}
    assert (await ask(face, one, "resources/unsubscribe", "a:1"))["result"] == {}
    face.hub.bus.emit(ResourceUpdated("watch.a:1"))
    assert (len(one.told), len(other.told)) == (1, 2)
    assert target.calls == [("a:1", True, "one"), ("a:1", True, "two"), ("a:1", False, "one")]


@pytest.mark.promise("B12")
async def test_what_may_not_be_followed_is_not() -> None:
    face, _ = watched()
    peer = Told()
    for uri, code in (("a:secret", -32003), ("a:dull", -32602), ("b:none", -32002)):
        if uri == "b:none":
            face.hub.catalogs[RESOURCE].withdraw("watch")
        answer = await ask(face, peer, "resources/subscribe", uri)
        assert answer["error"]["code"] == code
        face.hub.bus.emit(ResourceUpdated(f"watch.{uri}"))
    assert not peer.told and not peer.subscribed and not face.subscriptions._subscribers


async def test_without_a_session_nothing_is_followed() -> None:
    face, target = watched()
    answer = await ask(face, Told(client=""), "resources/subscribe", "a:1")
    assert answer["error"]["code"] == -32600 and not target.calls


@pytest.mark.promise("N1")
async def test_a_session_follows_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_FOLLOWED", 1)
    face, _ = watched()
    peer = Told()
    assert "result" in await ask(face, peer, "resources/subscribe", "a:1")
    assert (await ask(face, peer, "resources/subscribe", "a:2"))["error"]["code"] == -32000
    assert "result" in await ask(face, peer, "resources/subscribe", "a:1")


async def test_a_session_that_ends_follows_nothing_and_is_said_to_be_gone_once() -> None:
    face, target = watched()
    gone: list[str] = []
    face.hub.bus.observe(ClientGone, lambda event: gone.append(event.client))
    peer = Told()
    await ask(face, peer, "resources/subscribe", "a:1")
    target.hold = asyncio.Event()
    late = asyncio.ensure_future(ask(face, peer, "resources/subscribe", "a:2"))
    await asyncio.sleep(0)
    face.leave(peer)
    face.leave(peer)
    face.leave(Told(client=""))
    assert gone == ["one"]
    target.hold.set()
    await late
    async with asyncio.timeout(5):
        await target.stopped.wait()
    assert target.calls[-1] == ("a:2", False, "one")  # it came too late
    face.hub.bus.emit(ResourceUpdated("watch.a:1"))
    face.hub.bus.emit(ResourceUpdated("watch.a:2"))
    assert not peer.told and not face.subscriptions._subscribers


async def test_who_follows_a_folder_hears_of_what_is_in_it_unless_somebody_follows_just_that() -> (
    None
):
    face, _ = watched()
    folder, file = Told(), Told(client="two")
    await ask(face, folder, "resources/subscribe", "file:///d")
    face.hub.bus.emit(ResourceUpdated("watch.file:///d/e/f.txt"))
    assert folder.told[0]["params"] == {"uri": "file:///d/e/f.txt"}
    face.hub.bus.emit(ResourceUpdated("watch.file:///dd"))
    face.hub.bus.emit(ResourceUpdated("watch." + "/" * 100_000))
    assert len(folder.told) == 1
    await ask(face, file, "resources/subscribe", "file:///d/x")
    face.hub.bus.emit(ResourceUpdated("watch.file:///d/x"))
    assert len(file.told) == 1 and len(folder.told) == 1


# --- resources, on streams


@pytest.mark.promise("B12")
async def test_a_modern_client_hears_of_the_resources_that_it_may_follow() -> None:
    face, target = watched()
    uris = ["a:1", "a:secret", "watch.a:2", "a:1", "a:dull"]
    listener = Listener(face, resourceSubscriptions=uris)
    (first,) = await told(listener, 1)
    assert first["params"]["notifications"] == {"resourceSubscriptions": ["a:1", "watch.a:2"]}
    for name in ("a:1", "a:secret", "a:2", "a:dull"):
        face.hub.bus.emit(ResourceUpdated(f"watch.{name}"))
    got = await told(listener, 3)
    assert methods(got[1:]) == ["notifications/resources/updated"] * 2
    assert [one["params"]["uri"] for one in got[1:]] == ["a:1", "watch.a:2"]
    assert all(one["params"]["_meta"] == {ID: "l1"} for one in got)
    target.calls.clear()
    await listener.end()
    async with asyncio.timeout(5):
        await asyncio.gather(*face.subscriptions._background._tasks)
    assert target.calls == [("a:1", False, ""), ("a:2", False, "")]
    assert not face.subscriptions._subscribers


async def test_what_changes_before_the_acknowledgement_is_told_after_it() -> None:
    face, target = watched()
    target.hold = asyncio.Event()
    listener = Listener(face, toolsListChanged=True, resourceSubscriptions=["a:1", "a:2"])
    async with asyncio.timeout(5):
        while "watch.a:1" not in face.subscriptions._subscribers:
            await asyncio.sleep(0)
    for _ in range(2):
        face.hub.bus.emit(ResourceUpdated("watch.a:1"))
    assert not listener.told
    target.hold.set()
    first, second = await told(listener, 2)
    assert first["method"] == "notifications/subscriptions/acknowledged"
    assert second["params"]["uri"] == "a:1"
    await listener.end()


@pytest.mark.promise("B12")
@pytest.mark.parametrize("id", ["l1", 0, 7, 1.5])
async def test_a_stream_ends_with_its_result_when_the_hub_goes_down(id: Any) -> None:
    face, target = watched()
    listener = Listener(face, id, toolsListChanged=True, resourceSubscriptions=["a:1"])
    await told(listener, 1)
    face.close()
    async with asyncio.timeout(5):
        answer = await listener.read_answer()
    assert answer["id"] == id
    assert answer["result"]["resultType"] == "complete"
    assert answer["result"]["_meta"][ID] == id
    assert SERVER_KEY in answer["result"]["_meta"]
    face.hub.catalog.offer("more", [offered(TOOL, "t", target)])
    assert face.subscriptions._notify_timer is None and len(listener.told) == 1
    late = await Listener(face, toolsListChanged=True).read_answer()
    assert late["error"]["code"] == 42900


@pytest.mark.parametrize(
    "wanted",
    [
        {"toolsListChanged": 1},
        {"promptsListChanged": "true"},
        {"resourceSubscriptions": "a:1"},
        {"resourceSubscriptions": [7]},
        {"resourceSubscriptions": ["a:1"] * 1001},
    ],
)
async def test_a_filter_that_is_none_is_refused(wanted: Any) -> None:
    face, target = watched()
    listener = Listener(face, **wanted)
    assert (await listener.read_answer())["error"]["code"] == -32602
    assert not listener.told and not target.calls


@pytest.mark.parametrize("params", [{}, {"notifications": None}, {"notifications": []}])
async def test_who_does_not_say_what_to_listen_for_is_refused(params: Any) -> None:
    face, _ = watched()
    meta = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": {}}
    message = json.loads(rpc.encode_request(1, "subscriptions/listen", {**params, "_meta": meta}))
    answer = await face.answer(
        message, ClientState(OWNER, "test", EVERYTHING, R2607), lambda _: True
    )
    assert answer is not None and json.loads(answer)["error"]["code"] == -32602
    message["params"]["notifications"] = {}
    answer = await face.answer(message, ClientState(OWNER, "test", EVERYTHING, R2607))
    assert answer is not None and b"text/event-stream" in answer


async def test_a_view_hides_resources_from_those_who_listen_too() -> None:
    face, target = watched()
    peer = ClientState(OWNER, "test", View(("watch.a:1",)), R2607)
    listener = Listener(face, peer=peer, resourceSubscriptions=["a:1", "a:2"])
    (first,) = await told(listener, 1)
    assert first["params"]["notifications"] == {"resourceSubscriptions": ["a:1"]}
    assert [name for name, _, _ in target.calls] == ["a:1"]
    await listener.end()


# --- clients that do not read, and many of them


@pytest.mark.promise("N1")
async def test_a_client_that_reads_again_is_told_what_it_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscriptions, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(subscriptions, "MAX_LATE", 2)
    face, _ = watched()
    listener = Listener(face, resourceSubscriptions=["a:1", "a:2", "file:///d"])
    await told(listener, 1)
    listener.deaf = True
    for _ in range(3):
        for name in ("a:1", "a:2", "file:///d"):
            face.hub.bus.emit(ResourceUpdated(f"watch.{name}"))
    (stream,) = face.subscriptions._streams
    assert stream.unsent is not None and len(stream.unsent) == 2
    listener.deaf = False
    got = await told(listener, 3)
    assert [one["params"]["uri"] for one in got[1:]] == ["a:1", "a:2"]
    face.hub.bus.emit(ResourceUpdated("watch.a:1"))
    assert len(await told(listener, 4)) == 4
    await listener.end()


async def test_a_client_that_does_not_even_get_the_acknowledgement_is_let_go() -> None:
    face, _ = watched()
    listener = Listener(face, toolsListChanged=True)
    listener.deaf = True
    assert (await listener.read_answer())["error"]["code"] == -32603
    assert not face.subscriptions._streams and listener.peer.listens == 0


@pytest.mark.promise("N1")
async def test_one_connection_listens_only_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_LISTENS", 2)
    face, _ = watched()
    peer = ClientState(OWNER, "test", EVERYTHING, R2607)
    some = [Listener(face, id, peer, toolsListChanged=True) for id in range(3)]
    assert (await some[2].read_answer())["error"]["code"] == 42900
    await some[0].end()
    another = Listener(face, 3, peer, toolsListChanged=True)
    await told(another, 1)
    for one in (*some, another):
        await one.end()
    assert peer.listens == 0


@pytest.mark.promise("N1")
async def test_five_thousand_idle_streams_take_little_room() -> None:
    """What the face holds of each; the rest of the 12 KB is the connection's."""
    face, target = watched()
    count = 5_000
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        listeners = [Listener(face, id, toolsListChanged=True) for id in range(count)]
        for listener in listeners:
            await told(listener, 1)
        each = (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()
    assert each < 8_000  # with the test's own client, its event and what it was told
    face.hub.catalog.offer("more", [offered(TOOL, "t", target)])
    for listener in listeners:
        await told(listener, 2)
    face.close()
    async with asyncio.timeout(10):
        await asyncio.gather(*(listener.work for listener in listeners))
