"""Notifications and subscriptions of clients in both eras. The server is defined here."""

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
from dragoman.mcp.client.server_logs import ServerLogs
from dragoman.mcp.protocol.revisions import R2024, R2503, R2506, R2511, R2607, SERVER_KEY, Revision
from dragoman.mcp.server import subscriptions
from dragoman.mcp.server.client_state import ClientState
from dragoman.mcp.server.dispatcher import McpServer
from dragoman.processes.child_process import OutputRing
from dragoman.wire import rpc

META = "io.modelcontextprotocol/"
ID = META + "subscriptionId"
LEGACY = [R2024, R2503, R2506, R2511]
LIST_OF = {TOOL: "tools", PROMPT: "prompts", RESOURCE: "resources", TEMPLATE: "resources"}


class SubscribableTarget:
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


def watched(*uris: str) -> tuple[McpServer, SubscribableTarget]:
    target, hub = SubscribableTarget(), build_permissive_hub(Catalog(review=admit_all), Bus(), [])
    names = uris or ("a:1", "a:2", "a:secret", "a:dull", "file:///d")
    hub.catalogs[RESOURCE].offer("watch", [offered(RESOURCE, uri, target) for uri in names])
    return McpServer(hub), target


class RecordingClient(ClientState):
    """A legacy client that records its notifications."""

    __slots__ = ("new", "received")

    def __init__(self, revision: Revision = R2511, client: str = "one") -> None:
        super().__init__(OWNER, "test", EVERYTHING, revision, client)
        self.received: list[Any] = []
        self.new = asyncio.Event()

    def notify(self, message: bytes) -> None:
        self.received.append(json.loads(message))
        self.new.set()


class Listener:
    """A client of the new era and its one request to listen."""

    def __init__(
        self, mcp_server: McpServer, id: Any = "l1", peer: ClientState | None = None, **wanted: Any
    ) -> None:
        self.peer = peer or ClientState(OWNER, "test", EVERYTHING, R2607)
        self.received: list[Any] = []
        self.new = asyncio.Event()
        self.deaf = False
        meta = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": {}}
        params = {"notifications": wanted, "_meta": meta}
        message = json.loads(rpc.encode_request(id, "subscriptions/listen", params))
        self.work = asyncio.ensure_future(mcp_server.answer(message, self.peer, self.push))

    async def read_answer(self) -> Any:
        answer = await self.work
        assert answer is not None
        return json.loads(answer)

    def push(self, message: bytes) -> bool:
        if self.deaf:
            return False
        self.received.append(json.loads(message))
        self.new.set()
        return True

    async def end(self) -> None:
        self.work.cancel()
        await asyncio.gather(self.work, return_exceptions=True)


async def received(who: Any, count: int) -> list[Any]:
    async with asyncio.timeout(60):
        while len(who.received) < count:
            who.new.clear()
            await who.new.wait()
    return list(who.received)


async def ask(mcp_server: McpServer, peer: ClientState, method: str, uri: Any) -> Any:
    answer = await mcp_server.answer(json.loads(rpc.encode_request(1, method, {"uri": uri})), peer)
    assert answer is not None
    return json.loads(answer)


def methods(received: list[Any]) -> list[str]:
    return [one["method"] for one in received]


# --- lists


@pytest.mark.promise("B12")
@pytest.mark.parametrize("revision", LEGACY)
@pytest.mark.parametrize("kind", LIST_OF)
async def test_joined_client_gets_one_notification_for_joint_changes(
    kind: str, revision: Revision
) -> None:
    mcp_server, target = watched()
    peer, stranger = RecordingClient(revision), RecordingClient(revision)
    mcp_server.subscriptions.join(peer)
    for number in range(5):
        mcp_server.hub.catalogs[kind].offer("more", [offered(kind, f"new{number}", target)])
    (one,) = await received(peer, 1)
    assert one == {
        "jsonrpc": "2.0",
        "method": f"notifications/{LIST_OF[kind]}/list_changed",
    }
    witness = RecordingClient(revision, client="two")
    mcp_server.subscriptions.join(witness)
    mcp_server.hub.catalogs[kind].offer("more", [])
    await received(witness, 1)
    assert len(peer.received) == 2
    mcp_server.subscriptions.leave(peer)
    mcp_server.hub.catalogs[kind].offer("more", [offered(kind, "last", target)])
    await received(witness, 2)
    assert len(peer.received) == 2 and not stranger.received


async def test_resources_and_templates_share_one_change_notification() -> None:
    mcp_server, target = watched()
    peer = RecordingClient()
    mcp_server.subscriptions.join(peer)
    for kind in LIST_OF:
        mcp_server.hub.catalogs[kind].offer("more", [offered(kind, "new", target)])
    got = methods(await received(peer, 3))
    assert got == [f"notifications/{one}/list_changed" for one in ("prompts", "resources", "tools")]
    assert len(peer.received) == 3


async def test_unchanged_list_is_not_announced() -> None:
    mcp_server, target = watched()
    peer = RecordingClient()
    mcp_server.subscriptions.join(peer)
    catalog = mcp_server.hub.catalogs[PROMPT]
    catalog.offer("empty", [])
    extra = offered(TOOL, "x", target)
    mcp_server.hub.catalog.offer("more", [extra])
    mcp_server.hub.catalog.offer("more", [])
    mcp_server.hub.catalogs[RESOURCE].offer("more", [offered(RESOURCE, "r", target)])
    assert methods(await received(peer, 1)) == ["notifications/resources/list_changed"]


@pytest.mark.promise("B12", "N1")
async def test_unchanged_list_announced_by_its_server_is_passed_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mcp_server, target = watched()
    peer, blind = RecordingClient(), RecordingClient(client="two")
    blind.view = View(("other.*",))
    mcp_server.subscriptions.join(peer)
    mcp_server.subscriptions.join(blind)
    announced = ListAnnounced("watch", RESOURCE)
    mcp_server.hub.bus.emit(announced)
    assert methods(await received(peer, 1)) == ["notifications/resources/list_changed"]
    for _ in range(5):
        mcp_server.hub.bus.emit(announced)
    monkeypatch.setattr(subscriptions, "ANNOUNCE_PAUSE", 0.05)
    mcp_server.hub.catalogs[PROMPT].offer("more", [offered(PROMPT, "p", target)])
    seen = sorted(methods(await received(peer, 3)))
    assert (
        seen
        == ["notifications/prompts/list_changed"] + ["notifications/resources/list_changed"] * 2
    )
    assert methods(blind.received) == ["notifications/prompts/list_changed"]


# --- lines of logs


@pytest.mark.promise("B12")
async def test_shared_log_line_reaches_clients_that_requested_and_may_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mcp_server, _ = watched()
    asked, quiet, other = (
        RecordingClient(client="asked"),
        RecordingClient(client="quiet"),
        RecordingClient(client="other"),
    )
    blind, late = RecordingClient(client="blind"), RecordingClient(client="late")
    other.principal = Principal("key", "other")
    blind.view = View(("elsewhere.*",))
    for peer in (asked, other, blind, late):
        peer.log_level = "notice"
    for peer in (asked, quiet, other, blind):
        mcp_server.subscriptions.join(peer)

    def may(caller: Principal, action: str, *_: Any, **__: Any) -> Decision:
        return Decision(caller == OWNER, (), "test")

    monkeypatch.setattr(mcp_server.hub.authorizer, "decide_action", may)

    def log(level: str, data: Any, client: str | None = None) -> None:
        mcp_server.hub.bus.emit(ServerLogged("watch", LogMessage(level=level, data=data), client))

    log("info", "dull")
    log("error", "news")
    log("error", "x" * subscriptions.MAX_LOG_BYTES)
    assert [one["params"] for one in asked.received] == [{"level": "error", "data": "news"}]
    assert not quiet.received and not other.received and not blind.received and not late.received
    log("debug", "dull", "quiet")
    log("info", "own", "quiet")
    log("error", "own", "other")
    assert [one["params"]["data"] for one in quiet.received] == ["own"]
    assert [one["params"]["data"] for one in other.received] == ["own"]
    assert len(asked.received) == 1


@pytest.mark.promise("N1")
def test_fast_log_is_kept_but_not_forwarded() -> None:
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
async def test_modern_client_gets_only_requested_list_changes() -> None:
    mcp_server, target = watched()
    everything = Listener(
        mcp_server, 7, toolsListChanged=True, promptsListChanged=True, resourcesListChanged=True
    )
    prompts = Listener(mcp_server, "l2", promptsListChanged=True, toolsListChanged=False)
    nothing = Listener(mcp_server, "l3")
    (first,) = await received(everything, 1)
    assert first["method"] == "notifications/subscriptions/acknowledged"
    assert first["params"] == {
        "notifications": {
            "toolsListChanged": True,
            "promptsListChanged": True,
            "resourcesListChanged": True,
        },
        "_meta": {ID: 7},
    }
    assert (await received(prompts, 1))[0]["params"]["notifications"] == {
        "promptsListChanged": True
    }
    assert (await received(nothing, 1))[0]["params"]["notifications"] == {}
    mcp_server.hub.catalog.offer("more", [offered(TOOL, "t", target)])
    await received(everything, 2)
    mcp_server.hub.catalogs[PROMPT].offer("more", [offered(PROMPT, "p", target)])
    mcp_server.hub.catalogs[TEMPLATE].offer("more", [offered(TEMPLATE, "r", target)])
    got = await received(everything, 4)
    assert methods(got[1:]) == [
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
        "notifications/resources/list_changed",
    ]
    assert all(one["params"]["_meta"] == {ID: 7} for one in got)
    assert methods(await received(prompts, 2))[1:] == ["notifications/prompts/list_changed"]
    assert len(nothing.received) == 1
    for one in (everything, prompts, nothing):
        await one.end()
    assert not mcp_server.subscriptions._streams


# --- resources, in sessions


@pytest.mark.promise("B12")
@pytest.mark.parametrize("revision", LEGACY)
async def test_session_gets_updates_until_unsubscribed(revision: Revision) -> None:
    mcp_server, target = watched()
    one, other = RecordingClient(revision), RecordingClient(revision, client="two")
    assert (await ask(mcp_server, one, "resources/subscribe", "a:1"))["result"] == {}
    assert (await ask(mcp_server, other, "resources/subscribe", "watch.a:1"))["result"] == {}
    assert (await ask(mcp_server, one, "resources/subscribe", "a:1"))["result"] == {}
    assert one.subscribed == {"watch.a:1": "a:1"}
    mcp_server.hub.bus.emit(ResourceUpdated("watch.a:1"))
    mcp_server.hub.bus.emit(ResourceUpdated("watch.a:2"))
    updated = {"jsonrpc": "2.0", "method": "notifications/resources/updated"}
    assert one.received == [{**updated, "params": {"uri": "a:1"}}]
    assert other.received == [{**updated, "params": {"uri": "watch.a:1"}}]
    assert (await ask(mcp_server, one, "resources/unsubscribe", "watch.a:1"))["result"] == {}
    assert (await ask(mcp_server, one, "resources/unsubscribe", "a:1"))["result"] == {}
    mcp_server.hub.bus.emit(ResourceUpdated("watch.a:1"))
    assert (len(one.received), len(other.received)) == (1, 2)
    assert target.calls == [("a:1", True, "one"), ("a:1", True, "two"), ("a:1", False, "one")]


@pytest.mark.promise("B12")
async def test_unpermitted_subscription_is_refused() -> None:
    mcp_server, _ = watched()
    peer = RecordingClient()
    for uri, code in (("a:secret", -32003), ("a:dull", -32602), ("b:none", -32002)):
        if uri == "b:none":
            mcp_server.hub.catalogs[RESOURCE].withdraw("watch")
        answer = await ask(mcp_server, peer, "resources/subscribe", uri)
        assert answer["error"]["code"] == code
        mcp_server.hub.bus.emit(ResourceUpdated(f"watch.{uri}"))
    assert not peer.received and not peer.subscribed and not mcp_server.subscriptions._subscribers


async def test_subscription_needs_a_session() -> None:
    mcp_server, target = watched()
    answer = await ask(mcp_server, RecordingClient(client=""), "resources/subscribe", "a:1")
    assert answer["error"]["code"] == -32600 and not target.calls


@pytest.mark.promise("N1")
async def test_subscriptions_per_session_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_FOLLOWED", 1)
    mcp_server, _ = watched()
    peer = RecordingClient()
    assert "result" in await ask(mcp_server, peer, "resources/subscribe", "a:1")
    assert (await ask(mcp_server, peer, "resources/subscribe", "a:2"))["error"]["code"] == -32000
    assert "result" in await ask(mcp_server, peer, "resources/subscribe", "a:1")


async def test_ended_session_drops_its_subscriptions_once() -> None:
    mcp_server, target = watched()
    gone: list[str] = []
    mcp_server.hub.bus.observe(ClientGone, lambda event: gone.append(event.client))
    peer = RecordingClient()
    await ask(mcp_server, peer, "resources/subscribe", "a:1")
    target.hold = asyncio.Event()
    late = asyncio.ensure_future(ask(mcp_server, peer, "resources/subscribe", "a:2"))
    await asyncio.sleep(0)
    mcp_server.subscriptions.leave(peer)
    mcp_server.subscriptions.leave(peer)
    mcp_server.subscriptions.leave(RecordingClient(client=""))
    assert gone == ["one"]
    target.hold.set()
    await late
    async with asyncio.timeout(60):
        await target.stopped.wait()
    assert target.calls[-1] == ("a:2", False, "one")  # it came too late
    mcp_server.hub.bus.emit(ResourceUpdated("watch.a:1"))
    mcp_server.hub.bus.emit(ResourceUpdated("watch.a:2"))
    assert not peer.received and not mcp_server.subscriptions._subscribers


async def test_folder_subscription_gets_updates_below_unless_subscribed_separately() -> None:
    mcp_server, _ = watched()
    folder, file = RecordingClient(), RecordingClient(client="two")
    await ask(mcp_server, folder, "resources/subscribe", "file:///d")
    mcp_server.hub.bus.emit(ResourceUpdated("watch.file:///d/e/f.txt"))
    assert folder.received[0]["params"] == {"uri": "file:///d/e/f.txt"}
    mcp_server.hub.bus.emit(ResourceUpdated("watch.file:///dd"))
    mcp_server.hub.bus.emit(ResourceUpdated("watch." + "/" * 100_000))
    assert len(folder.received) == 1
    await ask(mcp_server, file, "resources/subscribe", "file:///d/x")
    mcp_server.hub.bus.emit(ResourceUpdated("watch.file:///d/x"))
    assert len(file.received) == 1 and len(folder.received) == 1


# --- resources, on streams


@pytest.mark.promise("B12")
async def test_modern_client_gets_updates_of_permitted_resources() -> None:
    mcp_server, target = watched()
    uris = ["a:1", "a:secret", "watch.a:2", "a:1", "a:dull"]
    listener = Listener(mcp_server, resourceSubscriptions=uris)
    (first,) = await received(listener, 1)
    assert first["params"]["notifications"] == {"resourceSubscriptions": ["a:1", "watch.a:2"]}
    for name in ("a:1", "a:secret", "a:2", "a:dull"):
        mcp_server.hub.bus.emit(ResourceUpdated(f"watch.{name}"))
    got = await received(listener, 3)
    assert methods(got[1:]) == ["notifications/resources/updated"] * 2
    assert [one["params"]["uri"] for one in got[1:]] == ["a:1", "watch.a:2"]
    assert all(one["params"]["_meta"] == {ID: "l1"} for one in got)
    target.calls.clear()
    await listener.end()
    async with asyncio.timeout(60):
        await asyncio.gather(*mcp_server.subscriptions._background._tasks)
    assert target.calls == [("a:1", False, ""), ("a:2", False, "")]
    assert not mcp_server.subscriptions._subscribers


async def test_change_before_the_acknowledgement_is_sent_after_it() -> None:
    mcp_server, target = watched()
    target.hold = asyncio.Event()
    listener = Listener(mcp_server, toolsListChanged=True, resourceSubscriptions=["a:1", "a:2"])
    async with asyncio.timeout(60):
        while "watch.a:1" not in mcp_server.subscriptions._subscribers:
            await asyncio.sleep(0)
    for _ in range(2):
        mcp_server.hub.bus.emit(ResourceUpdated("watch.a:1"))
    assert not listener.received
    target.hold.set()
    first, second = await received(listener, 2)
    assert first["method"] == "notifications/subscriptions/acknowledged"
    assert second["params"]["uri"] == "a:1"
    await listener.end()


@pytest.mark.promise("B12")
@pytest.mark.parametrize("id", ["l1", 0, 7, 1.5])
async def test_listen_stream_ends_with_its_result_on_shutdown(id: Any) -> None:
    mcp_server, target = watched()
    listener = Listener(mcp_server, id, toolsListChanged=True, resourceSubscriptions=["a:1"])
    await received(listener, 1)
    mcp_server.subscriptions.close()
    async with asyncio.timeout(60):
        answer = await listener.read_answer()
    assert answer["id"] == id
    assert answer["result"]["resultType"] == "complete"
    assert answer["result"]["_meta"][ID] == id
    assert SERVER_KEY in answer["result"]["_meta"]
    mcp_server.hub.catalog.offer("more", [offered(TOOL, "t", target)])
    assert mcp_server.subscriptions._notify_timer is None and len(listener.received) == 1
    late = await Listener(mcp_server, toolsListChanged=True).read_answer()
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
async def test_invalid_filter_is_refused(wanted: Any) -> None:
    mcp_server, target = watched()
    listener = Listener(mcp_server, **wanted)
    assert (await listener.read_answer())["error"]["code"] == -32602
    assert not listener.received and not target.calls


@pytest.mark.parametrize("params", [{}, {"notifications": None}, {"notifications": []}])
async def test_listen_without_a_filter_is_refused(params: Any) -> None:
    mcp_server, _ = watched()
    meta = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": {}}
    message = json.loads(rpc.encode_request(1, "subscriptions/listen", {**params, "_meta": meta}))
    answer = await mcp_server.answer(
        message, ClientState(OWNER, "test", EVERYTHING, R2607), lambda _: True
    )
    assert answer is not None and json.loads(answer)["error"]["code"] == -32602
    message["params"]["notifications"] = {}
    answer = await mcp_server.answer(message, ClientState(OWNER, "test", EVERYTHING, R2607))
    assert answer is not None and b"text/event-stream" in answer


async def test_view_hides_resources_from_subscribers() -> None:
    mcp_server, target = watched()
    peer = ClientState(OWNER, "test", View(("watch.a:1",)), R2607)
    listener = Listener(mcp_server, peer=peer, resourceSubscriptions=["a:1", "a:2"])
    (first,) = await received(listener, 1)
    assert first["params"]["notifications"] == {"resourceSubscriptions": ["a:1"]}
    assert [name for name, _, _ in target.calls] == ["a:1"]
    await listener.end()


# --- clients that do not read, and many of them


@pytest.mark.promise("N1")
async def test_slow_client_gets_missed_changes_when_reading_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscriptions, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(subscriptions, "MAX_LATE", 2)
    mcp_server, _ = watched()
    listener = Listener(mcp_server, resourceSubscriptions=["a:1", "a:2", "file:///d"])
    await received(listener, 1)
    listener.deaf = True
    for _ in range(3):
        for name in ("a:1", "a:2", "file:///d"):
            mcp_server.hub.bus.emit(ResourceUpdated(f"watch.{name}"))
    (stream,) = mcp_server.subscriptions._streams
    assert stream.unsent is not None and len(stream.unsent) == 2
    listener.deaf = False
    got = await received(listener, 3)
    assert [one["params"]["uri"] for one in got[1:]] == ["a:1", "a:2"]
    mcp_server.hub.bus.emit(ResourceUpdated("watch.a:1"))
    assert len(await received(listener, 4)) == 4
    await listener.end()


async def test_unread_acknowledgement_ends_the_subscription() -> None:
    mcp_server, _ = watched()
    listener = Listener(mcp_server, toolsListChanged=True)
    listener.deaf = True
    assert (await listener.read_answer())["error"]["code"] == -32603
    assert not mcp_server.subscriptions._streams and listener.peer.listens == 0


@pytest.mark.promise("N1")
async def test_subscriptions_per_connection_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_LISTENS", 2)
    mcp_server, _ = watched()
    peer = ClientState(OWNER, "test", EVERYTHING, R2607)
    some = [Listener(mcp_server, id, peer, toolsListChanged=True) for id in range(3)]
    assert (await some[2].read_answer())["error"]["code"] == 42900
    await some[0].end()
    another = Listener(mcp_server, 3, peer, toolsListChanged=True)
    await received(another, 1)
    for one in (*some, another):
        await one.end()
    assert peer.listens == 0


@pytest.mark.promise("N1")
async def test_idle_streams_take_little_memory() -> None:
    """What the face holds of each; the rest of the 12 KB is the connection's."""
    mcp_server, target = watched()
    count = 5_000
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        listeners = [Listener(mcp_server, id, toolsListChanged=True) for id in range(count)]
        for listener in listeners:
            await received(listener, 1)
        each = (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()
    assert each < 8_000  # with the test's client, its event and its notifications
    mcp_server.hub.catalog.offer("more", [offered(TOOL, "t", target)])
    for listener in listeners:
        await received(listener, 2)
    mcp_server.subscriptions.close()
    async with asyncio.timeout(60):
        await asyncio.gather(*(listener.work for listener in listeners))
