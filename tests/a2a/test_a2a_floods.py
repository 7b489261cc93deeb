"""Clients, external agents, webhooks and local agents that send too much, too slowly or in too many
pieces affect no one else.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.a2a.task_builders import build_registry, build_task
from tests.net.raw_server import Talk, listening
from tests.permissive_hub import build_permissive_hub

from dragoman.a2a.config import A2aSettings
from dragoman.a2a.protocol.dialects.operations import SEND
from dragoman.a2a.protocol.errors import RESOURCE_EXHAUSTED, A2aError
from dragoman.a2a.remote.remote_task import RemoteTask, result_from_task
from dragoman.a2a.server import card_service as cards_module
from dragoman.a2a.server import http_v01, operations
from dragoman.a2a.server import push_delivery as push_module
from dragoman.a2a.server.card_service import CardService
from dragoman.a2a.server.operations import A2aServer, limit_bytes
from dragoman.a2a.server.push_delivery import PushNotifier, Webhook, deliver
from dragoman.a2a.server.request_context import RequestContext
from dragoman.a2a.server.routing import MessageRouter
from dragoman.a2a.server.task import (
    MAX_BYTES,
    A2aTask,
    A2aTaskRegistry,
    read_events,
    render_task,
)
from dragoman.a2a.server.task_stream import TaskStream
from dragoman.agents.config import AgentEntry
from dragoman.agents.function import FunctionAgent
from dragoman.agents.messages import Request
from dragoman.core.agent_tool import SCHEMA
from dragoman.core.bus import Bus
from dragoman.core.call import Artifact, Progress, Result, Update, Updates, discard_update
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.errors import StorageFailed, WorkFailed
from dragoman.core.ports import StoredPush, TaskChange
from dragoman.core.principal import Principal
from dragoman.core.tasks import Outcome
from dragoman.core.tool import build_unknown_tool
from dragoman.guards.validate import compile_schema
from dragoman.net.client import OutboundHttp
from dragoman.stores.tasks import DatabaseTaskStore, MemoryTaskStore
from dragoman.web.http import http1
from dragoman.web.http.listener import HttpListener
from dragoman.web.http.request import ServerRequest
from dragoman.web.http.sockets import tcp_socket

ME, YOU = Principal("key", "me"), Principal("key", "you")
BOUND = 10.0
MANY = 20_000
CPU_SECONDS = 4.0
"""For what takes a tenth of a second where its cost grows with its size, and ten where with the
square of it."""


class PausedCall:
    """A call that sends given updates and ends on request."""

    def __init__(self, *updates: Update) -> None:
        self.updates = updates
        self.goes_on = asyncio.Event()

    async def call(
        self,
        task: A2aTask,
        updates: Updates,
        answers: Mapping[str, Any] | None,
        handle: str | None,
    ) -> Outcome:
        for update in self.updates:
            updates(update)
        await self.goes_on.wait()
        return build_unknown_tool("x"), Result(content=[{"type": "text", "text": "done"}])


def made(work: PausedCall, owner: Principal = ME, id: str = "t") -> A2aTask:
    return build_task(owner, work.call, id)


def texts(*words: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": each} for each in words]


async def finished(task: A2aTask, work: PausedCall) -> None:
    work.goes_on.set()
    assert await task.until(lambda task: task.finished, BOUND)


# --- agents of the hub's own ----------------------------------------------------------------------


async def test_status_messages_count_against_the_output_limit() -> None:
    work = PausedCall(*(Progress(progress=n, message=f"{n}{'x' * 19_000}") for n in range(5_000)))
    tasks, task = build_registry(), made(work)
    tasks.insert(task)
    task.begin()
    await finished(task, work)
    said = sum(len(part["text"]) for one in render_task(task)["history"] for part in one["parts"])
    assert 0 < said <= MAX_BYTES
    await tasks.close()


def test_empty_parts_count_against_the_output_limit() -> None:
    task = made(PausedCall())
    empty = texts(*[""] * 1_000)
    pieces = 0
    with pytest.raises(WorkFailed, match="more than one task can hold"):
        for pieces in range(1_000):  # noqa: B007 (how far it came)
            task._take_update(Artifact(id="a", content=empty, append=True, last=False))
    assert 100 < pieces < 500


def test_artifact_in_thousands_of_chunks_is_immutable_once_shown() -> None:
    task = made(PausedCall())
    piece = texts(*"0123456789" * 3)
    begun = time.process_time()
    for number in range(9_000):
        task._take_update(Artifact(id="a", content=piece, append=number > 0, last=False))
        if number == 1:
            shown = render_task(task)
    assert time.process_time() - begun < CPU_SECONDS
    assert len(shown["artifacts"][0]["parts"]) == 60
    assert len(render_task(task)["artifacts"][0]["parts"]) == 270_000
    logged = task.record.entries[1].event["artifactUpdate"]["artifact"]
    assert len(logged["parts"]) == 30
    assert render_task(task, at=3)["artifacts"] == shown["artifacts"]


async def test_thread_agent_with_excess_output_fails_and_logs_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    taken: list[Update] = []

    def take(update: Update) -> None:
        if len(taken) == 3:
            raise WorkFailed("that is enough")
        taken.append(update)

    request = Request(
        text="", parts=(), metadata={}, task="", message_id="", skill="", turn=1,
        caller="", _context="", _updates=take, _loop=asyncio.get_running_loop(),
    )  # fmt: skip

    def make() -> None:
        end = time.monotonic() + BOUND
        while time.monotonic() < end:
            request.artifact("more", id="a", append=True)
            time.sleep(0.001)

    with pytest.raises(WorkFailed, match="that is enough"):
        await asyncio.to_thread(make)
    await asyncio.sleep(0)
    assert len(taken) == 3
    assert not caplog.records


@pytest.mark.parametrize("kind", ["sqlite", "memory"])
async def test_unserializable_numbers_do_not_block_other_tasks(kind: str, tmp_path: Path) -> None:
    class Celsius(float): ...

    class Count(int): ...

    store = DatabaseTaskStore(tmp_path) if kind == "sqlite" else MemoryTaskStore()
    tasks = build_registry(store)
    odd, other = made(PausedCall(), id="odd"), made(PausedCall(), YOU, "other")
    for task in (odd, other):
        tasks.insert(task)
    odd.record.append({"artifactUpdate": {"t": Celsius(1.5), "n": Count(3), "yes": True}})
    tasks.flush()
    assert store.load_entries(odd.key)[-1].event == {
        "artifactUpdate": {"t": 1.5, "n": 3, "yes": True}
    }
    assert len(store.load_entries(other.key)) == 1
    await tasks.close()
    store.close()


def test_locked_store_refuses_and_recovers(tmp_path: Path) -> None:
    store = DatabaseTaskStore(tmp_path)
    change = TaskChange(0, "one", ME, "working", 1.0, 1.0, {}, ())
    push = StoredPush(1, "hook", {}, 0, 0, 0.0, "")
    other = sqlite3.connect(tmp_path / "tasks.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for _ in range(10):
        with pytest.raises(StorageFailed, match="locked"):
            store.save([change])
        with pytest.raises(StorageFailed, match="locked"):
            store.save_push(push)
    other.execute("ROLLBACK")
    [(key, _)] = store.save([change])
    other.close()
    assert [task.key for task in store.load()] == [key]
    store.close()


# --- external agents ------------------------------------------------------------------------------


def piece(*parts: Mapping[str, Any], append: bool = True) -> dict[str, Any]:
    artifact = {"artifactId": "a", "parts": list(parts)}
    return {"artifactUpdate": {"taskId": "t", "append": append, "artifact": artifact}}


def completed(*parts: Mapping[str, Any]) -> dict[str, Any]:
    status = {"state": "TASK_STATE_COMPLETED", "message": {"parts": list(parts)}}
    return {"statusUpdate": {"taskId": "t", "status": status}}


def test_word_by_word_response_is_read_in_linear_time() -> None:
    far = RemoteTask("chatty", discard_update)
    words = [f"word {number} ".ljust(300) for number in range(MANY)]
    begun = time.process_time()
    for number, word in enumerate(words):
        far.apply_event(piece({"text": word}, append=number > 0))
    far.apply_event(piece({"data": 1}))
    far.apply_event(piece({"text": "the "}))
    far.apply_event(piece({"text": "end"}))
    far.apply_event(completed())
    found = result_from_task(far, "", None)
    assert time.process_time() - begun < CPU_SECONDS
    first, data, last = found.artifacts[0].content
    assert first["text"] == "".join(words)
    assert (data["data"], last["text"]) == (1, "the end")


def test_many_data_parts_are_read_in_linear_time() -> None:
    far = RemoteTask("chatty", discard_update)
    data = [{"data": number} for number in range(5)]
    begun = time.process_time()
    for number in range(MANY):
        far.apply_event(piece(*data, append=number > 0))
    far.apply_event(completed())
    found = result_from_task(far, "", None)
    assert time.process_time() - begun < CPU_SECONDS
    assert len(found.artifacts[0].content) == 5 * MANY


def test_final_message_as_large_as_its_artifacts_does_not_block() -> None:
    far = RemoteTask("wordy", discard_update)
    far.apply_event(piece(*({"text": f"{number}"} for number in range(MANY)), append=False))
    begun = time.process_time()
    far.apply_event(completed({"text": "1"}, *({"text": f"x{number}"} for number in range(MANY))))
    found = result_from_task(far, "", None)
    assert time.process_time() - begun < CPU_SECONDS
    assert len(found.content) == 2 * MANY  # the "1" was said


# --- logs that are read bit by bit ----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "memory"])
async def test_long_event_log_is_read_in_slices(kind: str, tmp_path: Path) -> None:
    store = DatabaseTaskStore(tmp_path) if kind == "sqlite" else MemoryTaskStore()
    # The save timer must not run: it keeps the entries of a task that a client waits for.
    tasks = build_registry(store, save_seconds=60.0)
    work = PausedCall(*(Progress(progress=n, message=f"{n} {'x' * 10_000}") for n in range(300)))
    task = made(work)
    tasks.insert(task)
    task.begin()
    await finished(task, work)
    tasks.flush()
    assert not task.record.entries  # all of it is in the store alone
    numbers: list[int] = []
    reads = 0
    while bit := read_events(task, numbers[-1] if numbers else 0, 100_000):
        assert sum(len(json.dumps(entry.event)) for entry in bit) < 500_000
        numbers += [entry.number for entry in bit]
        reads += 1
    assert numbers == list(range(2, task.record.count + 1))
    assert 5 < reads < 100
    stream = TaskStream(task, 0, None, BOUND)
    followed = [number async for number, _, _ in stream]
    assert followed == numbers
    await tasks.close()
    store.close()


async def test_task_snapshots_are_sent_once_per_batch_of_events(
) -> None:  # fmt: skip
    work = PausedCall(*(Progress(progress=n, message=f"{n}") for n in range(50)))
    tasks, task = build_registry(), made(work)
    tasks.insert(task)
    stream = TaskStream(task, task.record.count, None, BOUND)
    task.begin()
    await finished(task, work)
    message = {"role": "user", "content": {"type": "text", "text": "hi"}}
    asked = http_v01.parse_request("POST", "/tasks/stream", {"id": "t", "message": message})
    frames = [
        asked.encode_event(stream, number, event, final)
        for number, event, final in await stream.next(BOUND)
    ]
    assert len(frames) > 50
    assert [bool(frame) for frame in frames] == [False] * (len(frames) - 1) + [True]
    stream.close()
    await tasks.close()


# --- the server -----------------------------------------------------------------------------------


def build_server() -> tuple[A2aServer, A2aTaskRegistry, CardService]:
    """With one agent, `echo`."""
    entry = AgentEntry(name="echo", function="tests.peers.agents_module:echo")
    agent = FunctionAgent(entry, "agent_", compile_schema(SCHEMA))
    hub = build_permissive_hub(Catalog(review=admit_all), Bus(), [])
    hub.catalog.offer("echo", [agent.tool])
    settings = A2aSettings(enabled=True)
    tasks, store = build_registry(), MemoryTaskStore()
    targets = MessageRouter(hub, "echo")
    cards = CardService(targets, settings, None)

    async def never(url: str) -> str | None:
        await asyncio.Event().wait()
        return None

    client = OutboundHttp()
    push = PushNotifier(
        tasks, store, client.open_public(allow_private=False), settings, check=never
    )
    return A2aServer(hub, tasks, targets, cards, push, 100.0), tasks, cards


def build_context() -> RequestContext:
    return RequestContext(ME, None, "1.0", frozenset(), "http://hub")


def message(**more: Any) -> dict[str, Any]:
    said = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    return {"message": said, **more}


async def test_disconnect_during_webhook_validation_leaves_no_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there, tasks, _ = build_server()
    hook = {"taskPushNotificationConfig": {"url": "http://slow.example/"}}
    sending = asyncio.ensure_future(
        there.answer(build_context(), SEND, message(configuration=hook))
    )
    async with asyncio.timeout(BOUND):
        while not len(tasks):
            await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending])
    assert len(tasks) == 0
    await tasks.close()


async def test_excess_stream_is_refused_before_any_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operations, "MAX_STREAMS", 1)
    there, tasks, _ = build_server()
    stream = await there.stream(build_context(), message())
    with pytest.raises(A2aError) as refused:
        await there.stream(build_context(), message())
    assert refused.value.reason == RESOURCE_EXHAUSTED
    assert len(tasks) == 1
    stream.close()
    (await there.stream(build_context(), message())).close()
    await tasks.close()


def test_card_cache_is_bounded_across_host_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cards_module, "MAX_KEPT_BYTES", 20_000)
    _, _, cards = build_server()
    for port in range(200):
        body, *_ = cards.encode_card("echo", None, f"http://localhost:{port}", "", False)
        assert f"localhost:{port}/".encode() in body
        assert sum(len(kept) for kept, *_ in cards._kept.values()) < 20_000 + 2 * len(body)


async def test_page_of_large_tasks_is_shortened_but_not_empty() -> None:
    tasks = [made(PausedCall(), id=f"{number}") for number in range(4)]
    for task in tasks:
        task.size = 40
    assert limit_bytes(tasks, 100) == tasks[:2]
    assert limit_bytes(tasks, 160) == tasks
    assert limit_bytes(tasks, 10) == tasks[:1]
    assert limit_bytes([], 10) == []


# --- webhooks -------------------------------------------------------------------------------------


async def test_slow_webhook_yields_before_its_queue_is_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(push_module, "AT_ONCE", 1)
    monkeypatch.setattr(push_module, "TURN_SECONDS", 0.02)
    came: list[str] = []
    enough = asyncio.Event()

    async def webhook(connection: Talk) -> None:
        while True:
            path = (await connection.request()).split(b" ")[1].decode()
            came.append(path)
            if path == "/slow":
                await asyncio.sleep(0.03)
            if came.count("/quick") and came.count("/slow") == 6:
                enough.set()
            await connection.say(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    tasks, store, client = build_registry(), MemoryTaskStore(), OutboundHttp()
    settings = A2aSettings(push_private=True)

    async def fine(url: str) -> str | None:
        return None

    push = PushNotifier(tasks, store, client.open_public(allow_private=True), settings, check=fine)
    async with listening(webhook) as peer:
        for owner, id, count in ((ME, "slow", 4), (YOU, "quick", 0)):
            work = PausedCall(*(Progress(progress=n, message=f"{n}") for n in range(count)))
            task = made(work, owner, id)
            tasks.insert(task)
            task.begin()
            await finished(task, work)
            url = f"http://127.0.0.1:{peer.port}/{id}"
            await push.set(task, {"url": url}, "1.0", after=0)
        await asyncio.wait_for(enough.wait(), BOUND)
        assert came.index("/quick") <= 2
        await tasks.close()
        await push.close()
        await client.close()


async def test_webhook_path_never_appears_in_messages() -> None:
    task, client = made(PausedCall()), OutboundHttp()
    async with listening(Talk.gone) as peer:
        url = f"http://127.0.0.1:{peer.port}/bot-S3CRET/send?key=S3CRET"
    hook = Webhook(task, "h", {"url": url}, "1.0", 0)
    http = client.open_public(allow_private=True)
    failure = await deliver(http, hook, task.record.entries[0], BOUND)
    assert failure is not None and f"127.0.0.1:{peer.port}" in failure.why
    assert "S3CRET" not in failure.why + hook.label
    await client.close()


# --- those who ask and do not read ----------------------------------------------------------------


class Large:
    """Answers with more than a socket holds."""

    size = 16_000_000

    def admit(self, request: ServerRequest) -> bool:
        return True

    async def answer(self, request: ServerRequest) -> None:
        request.reply(200, [(b"content-type", b"text/plain")], b"x" * self.size)


async def test_slow_readers_are_disconnected_oldest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http1, "UNREAD_BYTES_ALL", 3 * Large.size)
    sock = tcp_socket("127.0.0.1", 0)
    listener = HttpListener(Large(), sock)
    await listener.start()
    opened = []
    try:
        async with asyncio.timeout(BOUND):
            for _ in range(6):
                address = sock.getsockname()
                reader, writer = await asyncio.open_connection(*address, limit=1024)
                opened.append((reader, writer))
                writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                await reader.readuntil(b"\r\n\r\n")  # so that they are answered in this order
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await opened[0][0].readexactly(Large.size)
            await opened[-1][0].readexactly(Large.size)
    finally:
        listener.stop_accepting()
        listener.abort()
        for _, writer in opened:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
