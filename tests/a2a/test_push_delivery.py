"""Webhook delivery: in order, retried until accepted, never to private addresses."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from itertools import pairwise
from pathlib import Path
from time import time
from typing import Any

import pytest
from tests.a2a.task_builders import build_registry, build_stored, build_task
from tests.net.raw_server import Peer, Talk, listening

from dragoman.a2a.config import A2aSettings
from dragoman.a2a.protocol.errors import INVALID_PARAMS, TASK_NOT_FOUND, A2aError
from dragoman.a2a.server import push_delivery as push_module
from dragoman.a2a.server.push_delivery import PushNotifier
from dragoman.a2a.server.task import A2aTask, A2aTaskRegistry
from dragoman.core.call import Artifact, Progress, Result, Update, Updates
from dragoman.core.cluster import SINGLE_HUB, Ownership, SingleHub
from dragoman.core.errors import LeaseExpired, Overloaded, StorageFailed
from dragoman.core.ports import TaskStore
from dragoman.core.principal import Principal
from dragoman.core.tasks import Outcome
from dragoman.core.tool import build_unknown_tool
from dragoman.net.client import OutboundHttp
from dragoman.net.dialing import Resolve, system_resolve
from dragoman.stores.database import Statement
from dragoman.stores.tasks import DatabaseTaskStore, MemoryTaskStore

ALICE, BOB = Principal("key", "alice"), Principal("key", "bob")
BOUND = 5.0
pytestmark = pytest.mark.promise("I3")


# --- the receiver


@dataclass
class ReceivedRequest:
    """A request as a webhook received it."""

    path: str
    headers: dict[str, str]
    body: Any
    raw: bytes


@dataclass
class Receiver:
    """Webhooks on one port: each path answers as the test says, 200 by itself."""

    port: int = 0
    got: list[ReceivedRequest] = field(default_factory=list)
    came: asyncio.Condition = field(default_factory=asyncio.Condition)
    answers: dict[str, Callable[[int], bytes]] = field(default_factory=dict)
    """By path; given how often it was asked before."""
    held: dict[str, asyncio.Event] = field(default_factory=dict)
    """Paths that answer once their event is set."""
    under_way: int = 0
    most: int = 0

    def url(self, path: str = "/hook", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def at(self, path: str = "/hook") -> list[ReceivedRequest]:
        return [one for one in self.got if one.path == path]

    async def until(self, count: int, path: str = "/hook") -> list[ReceivedRequest]:
        async with asyncio.timeout(BOUND), self.came:
            await self.came.wait_for(lambda: len(self.at(path)) >= count)
        return self.at(path)

    async def talk(self, connection: Talk) -> None:
        while True:
            raw = await connection.request()
            head, _, body = raw.partition(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            path = first.split(" ")[1]
            headers = dict(line.split(": ", 1) for line in lines)
            before = len(self.at(path))
            async with self.came:
                self.got.append(ReceivedRequest(path, headers, json.loads(body), raw))
                self.came.notify_all()
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            if path in self.held:
                await self.held[path].wait()
            self.under_way -= 1
            await connection.say(self.answers.get(path, lambda _: status(200))(before))


def status(code: int, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {code} Whatever", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def failing(*codes: int) -> Callable[[int], bytes]:
    return lambda before: status(codes[before]) if before < len(codes) else status(200)


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    async with listening(receiver.talk) as peer:
        receiver.port = peer.port
        yield receiver


# --- the hub's side


class Work:
    """The scripted work of a task, step by step."""

    def __init__(self) -> None:
        self._next: asyncio.Queue[Update | Result] = asyncio.Queue()

    async def call(
        self,
        task: A2aTask,
        updates: Updates,
        answers: Mapping[str, Any] | None,
        handle: str | None,
    ) -> Outcome:
        while True:
            step = await self._next.get()
            if isinstance(step, Result):
                return build_unknown_tool("x"), step
            updates(step)

    def says(self, *texts_of_deliveries: str) -> None:
        for each in texts_of_deliveries:
            self._next.put_nowait(Progress(progress=1, message=each))

    def makes(self, id: str, text: str) -> None:
        self._next.put_nowait(Artifact(id=id, content=[{"type": "text", "text": text}]))

    def ends(self, text: str = "done") -> None:
        self._next.put_nowait(Result(content=[{"type": "text", "text": text}]))


@dataclass
class PushRig:
    """The webhook part of a hub."""

    tasks: A2aTaskRegistry
    push: PushNotifier
    store: TaskStore
    works: dict[str, Work] = field(default_factory=dict)

    def begin(self, id: str = "t", owner: Principal = ALICE) -> A2aTask:
        work = self.works[id] = Work()
        task = build_task(owner, work.call, id)
        self.tasks.insert(task)
        task.begin()
        return task

    async def quiet(self) -> None:
        """Until all is sent that is not to wait."""
        async with asyncio.timeout(BOUND):
            while self.push._sending:
                await asyncio.sleep(0.002)

    async def run(self, id: str, *texts_of_deliveries: str, owner: Principal = ALICE) -> None:
        """Has the work of a task say `words` and end."""
        self.works[id].says(*texts_of_deliveries)
        self.works[id].ends()
        task = self.tasks.get(owner, id)
        assert await task.until(lambda task: task.finished, BOUND)


@asynccontextmanager
async def run_push_rig(
    store: TaskStore | None = None,
    resolve: Resolve = system_resolve,
    first_seconds: float = 0.01,
    private: bool = True,
    most: int = 100,
    sweep_seconds: float = 30.0,
    cluster: Ownership = SINGLE_HUB,
    **settings: Any,
) -> AsyncIterator[PushRig]:
    store = store or MemoryTaskStore()
    tasks = build_registry(store, count=most, count_per_owner=most, sweep_seconds=sweep_seconds)
    client = OutboundHttp(resolve)
    push = PushNotifier(
        tasks,
        store,
        client.open_public(allow_private=private),
        A2aSettings(push_private=private, **settings),
        check=lambda url: client.find_objection(url, allow_private=private),
        first_seconds=first_seconds,
        cluster=cluster,
    )
    tasks.load(build_stored)
    push.load()
    try:
        yield PushRig(tasks, push, store)
    finally:
        await asyncio.wait_for(tasks.close(), BOUND)
        await asyncio.wait_for(push.close(), BOUND)
        await asyncio.wait_for(client.close(), BOUND)


def texts_of_deliveries(got: Sequence[ReceivedRequest]) -> list[str]:
    """The text of each delivery: of its status message, else its state."""
    said = []
    for one in got:
        made = one.body.get("artifactUpdate")
        if made is not None:
            said.append(made["artifact"]["parts"][0]["text"])
            continue
        now = one.body["statusUpdate"]["status"]
        said.append(now["message"]["parts"][0]["text"] if "message" in now else now["state"])
    return said


DONE = ["done", "TASK_STATE_COMPLETED"]


# --- what is sent


async def test_webhook_receives_later_events_in_order() -> None:
    async with receiving() as receiver, run_push_rig() as hub:
        task = hub.begin()
        await hub.push.set(task, {"url": receiver.url()}, "1.0")
        hub.works["t"].makes("a", "made")
        await hub.run("t", *(f"step {n}" for n in range(30)))
        got = await receiver.until(33)
        assert texts_of_deliveries(got) == ["made", *(f"step {n}" for n in range(30)), *DONE]
        first = got[1].body
        assert list(first) == ["statusUpdate"]
        assert (first["statusUpdate"]["taskId"], first["statusUpdate"]["contextId"]) == ("t", "c")
        assert receiver.most == 1, "one after the other"


class ExpiringLease(SingleHub):
    """A place in a cluster whose lease a test lets expire."""

    is_expired = False
    checks = 0

    def check_lease(self) -> None:
        self.checks += 1
        if self.is_expired:
            raise LeaseExpired("paused for too long")


async def test_a_hub_whose_lease_has_expired_delivers_nothing_and_its_owner_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_module, "STORE_SECONDS", 0.01)
    lease = ExpiringLease()
    async with receiving() as receiver:
        async with run_push_rig(DatabaseTaskStore(tmp_path), cluster=lease, push_attempts=2) as hub:
            task = hub.begin()
            await hub.push.set(task, {"url": receiver.url()}, "1.0")
            lease.is_expired = True
            await hub.run("t")
            async with asyncio.timeout(BOUND):
                while lease.checks < 5:  # more often than a delivery is tried
                    await asyncio.sleep(0.002)
            assert not receiver.got and hub.push.list(task)["configs"]
        async with run_push_rig(
            DatabaseTaskStore(tmp_path)
        ):  # at the heir, or here once the lease is renewed
            assert texts_of_deliveries(await receiver.until(2)) == DONE


async def test_webhook_receives_earlier_events_on_request() -> None:
    async with receiving() as receiver, run_push_rig() as hub:
        task = hub.begin()
        await hub.push.set(task, {"url": receiver.url("/all")}, "1.0", after=0)
        await hub.push.set(task, {"url": receiver.url("/new")}, "1.0")
        await hub.run("t")
        assert texts_of_deliveries(await receiver.until(3, "/all")) == ["TASK_STATE_WORKING", *DONE]
        assert texts_of_deliveries(await receiver.until(2, "/new")) == DONE


async def test_webhook_headers_identify_sender_and_format() -> None:
    async with receiving() as receiver, run_push_rig() as hub:
        task = hub.begin()
        config = {
            "url": receiver.url("/hook?key=1"),
            "token": "tok en",
            "authentication": {"scheme": "Bearer", "credentials": "s3cret"},
        }
        await hub.push.set(task, config, "1.0")
        await hub.push.set(task, {"url": receiver.url("/plain")}, "1.0")
        await hub.run("t")
        [got, _] = await receiver.until(2, "/hook?key=1")
        assert got.headers["authorization"] == "Bearer s3cret"
        assert got.headers["x-a2a-notification-token"] == "tok en"
        assert got.headers["content-type"] == "application/a2a+json"
        assert re.fullmatch(r"Dragoman/\S+ A2A", got.headers["user-agent"])
        [plain, _] = await receiver.until(2, "/plain")
        assert not {"authorization", "x-a2a-notification-token"} & plain.headers.keys()


@pytest.mark.parametrize("version", ["0.3", "0.1"])
async def test_older_dialects_receive_one_task_snapshot_for_batched_events(
    version: str,
) -> None:
    async with receiving() as receiver, run_push_rig() as hub:
        task = hub.begin()
        receiver.held["/hook"] = asyncio.Event()
        await hub.push.set(task, {"url": receiver.url(), "token": "t"}, version)
        hub.works["t"].says("first")
        [first] = await receiver.until(1)
        await hub.run("t", "second", "third")
        receiver.held["/hook"].set()
        got = await receiver.until(2)
        assert first.headers["content-type"] == "application/json"
        assert first.headers["x-a2a-notification-token"] == "t"
        assert (first.body["id"], first.body["status"]["state"]) == ("t", "working")
        assert first.body["status"]["message"]["parts"][0]["text"] == "first"
        assert first.body["status"]["message"]["parts"][0]["kind" if version == "0.3" else "type"]
        assert (first.body.get("kind") == "task") is (version == "0.3")
        assert got[1].body["status"]["state"] == "completed"
        assert got[1].body["artifacts"][0]["parts"][0]["text"] == "done"
        assert hub.push.get(task, "")["url"] == receiver.url()
        await hub.quiet()
        assert len(receiver.at()) == 2


async def test_task_without_webhooks_has_no_watcher() -> None:
    async with receiving() as receiver, run_push_rig(sweep_seconds=0.01) as hub:
        task = hub.begin()
        assert not task.watchers
        await hub.push.set(task, {"url": receiver.url(), "id": "a"}, "1.0")
        await hub.push.set(task, {"url": receiver.url(), "id": "b"}, "1.0")
        hub.push.delete(task, "a")
        assert task.watchers
        hub.push.delete(task, "b")
        assert not task.watchers
        await hub.push.set(task, {"url": receiver.url()}, "1.0")
        await hub.run("t")
        assert not task.watchers
        async with asyncio.timeout(BOUND):
            while task.record.entries:  # until it lies in the store alone
                await asyncio.sleep(0.005)
        await receiver.until(2)


@pytest.mark.promise("O1")
async def test_webhooks_of_a_revoked_principal_are_parked_across_restarts(
    tmp_path: Path,
) -> None:
    def why_ended(owner: Principal) -> str:
        return "the key was revoked" if owner == ALICE else ""

    async with receiving() as receiver:
        receiver.held = {"/alice": asyncio.Event(), "/bob": asyncio.Event()}
        store = DatabaseTaskStore(tmp_path)
        async with run_push_rig(store) as hub:
            for owner in (ALICE, BOB):
                task = hub.begin(owner.id, owner)
                await hub.push.set(task, {"url": receiver.url(f"/{owner.id}")}, "1.0")
                hub.works[owner.id].says("under way", "more")
                await receiver.until(1, f"/{owner.id}")
            hub.push.end_principals(why_ended)
            hub.tasks.end_principals(why_ended)
            assert hub.tasks.get(ALICE, "alice").state == "cancelled"
            assert hub.tasks.get(BOB, "bob").state == "working"
            for held in receiver.held.values():
                held.set()
            await receiver.until(2, "/bob")
            await hub.quiet()
        store.close()
        store = DatabaseTaskStore(tmp_path)
        async with run_push_rig(store) as hub:
            hub.push.end_principals(why_ended)
            await receiver.until(3, "/bob")  # that it was interrupted
            await hub.quiet()
            assert hub.push.list(hub.tasks.get(ALICE, "alice"))["configs"], "it is still there"
        store.close()
        assert texts_of_deliveries(receiver.at("/alice")) == ["under way"]


# --- one that does not take it


@pytest.mark.parametrize("code", [500, 503, 404, 401, 408, 429])
async def test_failed_delivery_is_retried_before_later_events(code: int) -> None:
    async with receiving() as receiver, run_push_rig() as hub:
        task = hub.begin()
        receiver.answers["/hook"] = failing(200, code, code, 200, code)
        await hub.push.set(task, {"url": receiver.url()}, "1.0")
        await hub.run("t", "one", "two", "three")
        got = await receiver.until(8)
        assert texts_of_deliveries(got) == ["one", "two", "two", "two", "three", "three", *DONE]


async def test_retry_delay_grows_and_resets_after_a_success(
    tmp_path: Path,
) -> None:
    store = DatabaseTaskStore(tmp_path)
    async with receiving() as receiver, run_push_rig(store, first_seconds=0.04) as hub:
        task = hub.begin()
        receiver.answers["/hook"] = failing(500, 500, 500)
        await hub.push.set(task, {"url": receiver.url()}, "1.0")
        at: list[float] = []

        async def note() -> None:
            for count in range(1, 5):
                await receiver.until(count)
                at.append(time())

        noting = asyncio.ensure_future(note())
        hub.works["t"].says("one")
        await receiver.until(3)
        [push] = store.load_pushes()
        assert (push.attempts, push.dead) == (2, "") and 0 < push.next_at <= time() + 0.1
        await noting
        gaps = [later - earlier for earlier, later in pairwise(at)]
        assert 0.03 < gaps[0] < gaps[1] < gaps[2]
        async with asyncio.timeout(BOUND):
            while store.load_pushes()[0].attempts:
                await asyncio.sleep(0.005)
        assert store.load_pushes()[0].cursor == task.record.count
    store.close()


async def test_permanently_failing_webhook_is_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store = DatabaseTaskStore(tmp_path)
    async with receiving() as receiver, run_push_rig(store, push_attempts=3) as hub:
        task = hub.begin()
        receiver.answers["/dead"] = lambda _: status(500, body=b"x" * 1000)
        config = {
            "id": "dead",
            "url": receiver.url("/dead?key=hidden"),
            "token": "hidden",
            "authentication": {"scheme": "Bearer", "credentials": "hidden"},
        }
        receiver.answers["/dead?key=hidden"] = receiver.answers["/dead"]
        await hub.push.set(task, config, "1.0")
        await hub.push.set(task, {"id": "well", "url": receiver.url("/well")}, "1.0")
        hub.works["t"].says("one")
        await receiver.until(3, "/dead?key=hidden")
        await hub.run("t", "two", "three")
        assert texts_of_deliveries(await receiver.until(5, "/well")) == [
            "one",
            "two",
            "three",
            *DONE,
        ]
        async with asyncio.timeout(BOUND):
            while not next(push for push in store.load_pushes() if push.id == "dead").dead:
                await asyncio.sleep(0.005)
        pushes = {push.id: push for push in store.load_pushes()}
        assert (pushes["dead"].dead, pushes["dead"].attempts) == ("it responded with 500", 3)
        assert texts_of_deliveries(receiver.at("/dead?key=hidden")) == ["one"] * 3
        assert hub.push.get(task, "dead")["id"] == "dead", "it is kept"
        assert 'of task "t" was abandoned: it responded with 500' in caplog.text
        assert "hidden" not in caplog.text

        del receiver.answers["/dead?key=hidden"]
        await hub.push.set(task, config, "1.0")
        got = await receiver.until(8, "/dead?key=hidden")
        assert texts_of_deliveries(got[3:]) == ["one", "two", "three", *DONE], (
            "set again it goes on"
        )
    store.close()


async def test_webhook_answering_410_is_dropped_at_once(tmp_path: Path) -> None:
    store = DatabaseTaskStore(tmp_path)
    async with receiving() as receiver, run_push_rig(store) as hub:
        task = hub.begin()
        receiver.answers["/hook"] = lambda _: status(410)
        await hub.push.set(task, {"url": receiver.url()}, "1.0")
        hub.works["t"].says("one")
        async with asyncio.timeout(BOUND):
            while not store.load_pushes()[0].dead:
                await asyncio.sleep(0.005)
        await hub.run("t", "two")
        await hub.quiet()
        assert len(receiver.at()) == 1
        assert store.load_pushes()[0].dead == "it responded with 410"
    store.close()


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("2", (1.5, 2.5)),
        ("100000", (59, 61)),
        ("9" * 400, (59, 61)),
        ("date+20", (10, 20.5)),
        ("date-20", (-BOUND, 0.5)),  # on a busy machine it is over when the test looks
        ("soon", (-BOUND, 0.5)),
        ("-5", (-BOUND, 0.5)),
    ],
)
async def test_retry_after_is_honoured_up_to_a_minute(
    said: str, seconds: tuple[float, float], tmp_path: Path
) -> None:
    if said.startswith("date"):
        said = formatdate(time() + int(said.removeprefix("date")), usegmt=True)
    store = DatabaseTaskStore(tmp_path)
    async with receiving() as receiver, run_push_rig(store, first_seconds=0.2) as hub:
        task = hub.begin()
        receiver.answers["/hook"] = lambda _: status(503, f"retry-after: {said}")
        await hub.push.set(task, {"url": receiver.url()}, "1.0")
        hub.works["t"].says("one")
        async with asyncio.timeout(BOUND):
            while not store.load_pushes()[0].attempts:
                await asyncio.sleep(0.005)
        least, most = seconds
        assert least < store.load_pushes()[0].next_at - time() < most
    store.close()


async def test_webhook_redirect_is_a_failure(tmp_path: Path) -> None:
    store = DatabaseTaskStore(tmp_path)
    async with receiving() as receiver, run_push_rig(store, push_attempts=2) as hub:
        task = hub.begin()
        moved = f"location: {receiver.url('/elsewhere')}"
        receiver.answers["/hook"] = lambda before: status(307 if before else 302, moved)
        await hub.push.set(task, {"url": receiver.url(), "token": "mine"}, "1.0")
        hub.works["t"].says("one")
        async with asyncio.timeout(BOUND):
            while not (why := store.load_pushes()[0].dead):
                await asyncio.sleep(0.005)
        assert why == "it responded with 307, and redirects are not followed"
        assert (len(receiver.at()), receiver.at("/elsewhere")) == (2, [])
    store.close()


async def test_webhook_response_body_is_not_read() -> None:
    async def talk(connection: Talk) -> None:
        request = await connection.request()
        if b"/long" in request:
            await connection.say(status(200, body=b"x" * 10**6))
        else:
            await connection.say(b"HTTP/1.1 200 OK\r\n\r\nno end")
        await connection.gone()

    def asked(peer: Peer, path: bytes) -> int:
        return sum(path in request for request in peer.requests)

    async with listening(talk) as peer, run_push_rig(push_timeout_secs=0.2) as hub:
        task = hub.begin()
        for path in ("long", "endless"):
            await hub.push.set(task, {"url": f"{peer.url}{path}"}, "1.0")
        await hub.run("t")
        async with asyncio.timeout(BOUND):
            while asked(peer, b"/long") < 2 or asked(peer, b"/endless") < 2:
                await asyncio.sleep(0.005)
        bodies = [request.partition(b"\r\n\r\n")[2] for request in peer.requests]
        assert len(set(bodies)) == 2 and len(bodies) == 4, "each event once to each"


async def test_webhook_timeout_is_a_failure(tmp_path: Path) -> None:
    store = DatabaseTaskStore(tmp_path)
    async with (
        receiving() as receiver,
        run_push_rig(store, push_timeout_secs=0.05, push_attempts=2) as hub,
    ):
        receiver.held["/hook"] = asyncio.Event()
        task = hub.begin()
        await hub.push.set(task, {"url": receiver.url()}, "1.0")
        hub.works["t"].says("one")
        async with asyncio.timeout(BOUND):
            while not (why := store.load_pushes()[0].dead):
                await asyncio.sleep(0.005)
        assert "did not answer within 0.05 s" in why
    store.close()


# --- many at once


async def test_slow_webhook_delays_no_other() -> None:
    async with receiving() as receiver, run_push_rig() as hub:
        receiver.held["/slow"] = asyncio.Event()
        task = hub.begin()
        await hub.push.set(task, {"url": receiver.url("/slow")}, "1.0")
        await hub.push.set(task, {"url": receiver.url("/fast")}, "1.0")
        hub.works["t"].says("one")
        await receiver.until(1, "/slow")
        await hub.run("t", "two", "three")
        other = hub.begin("other")
        await hub.push.set(other, {"url": receiver.url("/other")}, "1.0")
        await hub.run("other")
        assert texts_of_deliveries(await receiver.until(5, "/fast")) == [
            "one",
            "two",
            "three",
            *DONE,
        ]
        assert texts_of_deliveries(await receiver.until(2, "/other")) == DONE
        assert len(receiver.at("/slow")) == 1, "it still answers"
        receiver.held["/slow"].set()
        assert texts_of_deliveries(await receiver.until(5, "/slow")) == [
            "one",
            "two",
            "three",
            *DONE,
        ]


async def test_deliveries_are_limited_to_sixteen_and_eight_per_principal() -> None:
    async with receiving() as receiver, run_push_rig(push_configs=30) as hub:
        gate = asyncio.Event()
        for owner, most in ((ALICE, 8), (BOB, 16), (Principal("key", "carol"), 16)):
            task = hub.begin(owner.id, owner)
            for n in range(12):
                path = f"/{owner.id}/{n}"
                receiver.held[path] = gate
                await hub.push.set(task, {"url": receiver.url(path)}, "1.0")
            await hub.run(owner.id, owner=owner)
            async with asyncio.timeout(BOUND), receiver.came:
                while len(receiver.got) < most:
                    await receiver.came.wait()
        assert (len(receiver.got), receiver.most, len(hub.push._sending)) == (16, 16, 16)
        gate.set()
        async with asyncio.timeout(BOUND), receiver.came:
            await receiver.came.wait_for(lambda: len(receiver.got) >= 72)
        assert receiver.most == 16
        for owner_id in ("alice", "bob", "carol"):
            assert all(
                texts_of_deliveries(receiver.at(f"/{owner_id}/{n}")) == DONE for n in range(12)
            )


async def test_busy_webhook_yields_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(push_module, "AT_ONCE_EACH", 1)
    monkeypatch.setattr(push_module, "TURN", 5)
    async with receiving() as receiver, run_push_rig() as hub:
        receiver.held["/long"] = asyncio.Event()
        task, other = hub.begin(), hub.begin("other")
        await hub.push.set(task, {"url": receiver.url("/long")}, "1.0")
        await hub.push.set(other, {"url": receiver.url("/short")}, "1.0")
        await hub.run("t", *(f"step {n}" for n in range(40)))
        await receiver.until(1, "/long")
        await hub.run("other")
        receiver.held["/long"].set()
        await receiver.until(42, "/long")
        order = [got.path for got in receiver.got]
        assert order.index("/short") == 5
        assert texts_of_deliveries(receiver.at("/long")) == [
            *(f"step {n}" for n in range(40)),
            *DONE,
        ]


# --- the store


async def test_restarted_hub_continues_deliveries(tmp_path: Path) -> None:
    async with receiving() as receiver:
        store = DatabaseTaskStore(tmp_path)
        async with run_push_rig(store, first_seconds=60) as hub:
            task = hub.begin()
            receiver.answers["/hook"] = failing(200, 200, 500)
            receiver.answers["/gone"] = lambda _: status(410)
            config = {"id": "one", "url": receiver.url(), "token": "tok"}
            await hub.push.set(task, config, "1.0")
            await hub.push.set(task, {"id": "two", "url": receiver.url("/old")}, "0.3")
            await hub.push.set(task, {"id": "dead", "url": receiver.url("/gone")}, "1.0")
            hub.works["t"].says("one", "two", "three")
            await receiver.until(3)
            await receiver.until(1, "/gone")
            async with asyncio.timeout(BOUND):
                while store.load_pushes()[1].attempts == 0:
                    await asyncio.sleep(0.005)
            told = len(await receiver.until(1, "/old"))
        store.close()

        again = DatabaseTaskStore(tmp_path)
        due = time() + 0.2
        again._db.execute("UPDATE pushes SET next_at = ? WHERE id = 'one'", (due,))
        async with run_push_rig(again) as hub:
            found = hub.tasks.get(ALICE, "t")
            assert hub.push.get(found, "one") == {"taskId": "t", **config}
            await receiver.until(4)
            assert time() >= due
            got = await receiver.until(5)
            interrupted = "it was interrupted: the hub was stopped while it worked on this"
            assert texts_of_deliveries(got) == ["one", "two", "three", "three", interrupted]
            assert got[-1].headers["x-a2a-notification-token"] == "tok"
            last = (await receiver.until(told + 1, "/old"))[-1]
            assert (last.body["kind"], last.body["status"]["state"]) == ("task", "failed")
            await hub.quiet()
            assert len(receiver.at("/gone")) == 1, "what was given up stays so"
        again.close()


async def test_interrupted_delivery_is_sent_after_restart(
    tmp_path: Path,
) -> None:
    async with receiving() as receiver:
        store = DatabaseTaskStore(tmp_path)
        receiver.held["/hook"] = asyncio.Event()
        async with run_push_rig(store) as hub:
            task = hub.begin()
            await hub.push.set(task, {"url": receiver.url()}, "1.0")
            await hub.run("t")
            await receiver.until(1)
        store.close()
        receiver.held["/hook"].set()
        again = DatabaseTaskStore(tmp_path)
        async with run_push_rig(again):
            assert texts_of_deliveries(await receiver.until(3)) == [DONE[0], *DONE], (
                "rather twice than never"
            )
        again.close()


class Refusing(DatabaseTaskStore):
    """A store on a disk that may be full."""

    full = False

    def _execute(self, check: Statement, statement: Statement) -> None:
        if self.full:
            raise StorageFailed("the disk is full")
        super()._execute(check, statement)


async def test_full_disk_refuses_new_webhooks_and_keeps_existing_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Refusing(tmp_path)
    async with receiving() as receiver, run_push_rig(store) as hub:
        task = hub.begin()
        await hub.push.set(task, {"id": "a", "url": receiver.url()}, "1.0")
        store.full = True
        with pytest.raises(StorageFailed):
            await hub.push.set(task, {"id": "b", "url": receiver.url()}, "1.0")
        with pytest.raises(StorageFailed):
            await hub.push.set(task, {"id": "a", "url": receiver.url("/other")}, "1.0")
        with pytest.raises(StorageFailed):
            hub.push.delete(task, "a")
        assert hub.push.list(task)["configs"] == [{"taskId": "t", "id": "a", "url": receiver.url()}]
        await hub.run("t")
        assert texts_of_deliveries(await receiver.until(2)) == DONE
        assert "cannot be stored: the disk is full" in caplog.text
    store.close()


async def test_removed_task_removes_its_webhooks(tmp_path: Path) -> None:
    store = DatabaseTaskStore(tmp_path)
    async with receiving() as receiver, run_push_rig(store, most=2, first_seconds=60) as hub:
        old = hub.begin("old")
        receiver.answers["/old"] = lambda _: status(500)
        receiver.held["/held"] = asyncio.Event()
        await hub.push.set(old, {"url": receiver.url("/old")}, "1.0")
        await hub.push.set(old, {"url": receiver.url("/held")}, "1.0")
        await hub.run("old")
        await receiver.until(1, "/old")
        await receiver.until(1, "/held")
        hub.begin("new")
        newest = hub.begin("newest")
        assert [task.id for task in hub.tasks.list_owned(ALICE)] == ["newest", "new"]
        hub.tasks.flush()
        assert store.load_pushes() == []
        assert hub.push.list(old) == {"configs": [], "nextPageToken": ""}
        with pytest.raises(A2aError) as caught:
            await hub.push.set(old, {"url": receiver.url()}, "1.0")
        assert caught.value.reason == TASK_NOT_FOUND
        receiver.held["/held"].set()
        await hub.push.set(newest, {"url": receiver.url("/newest")}, "1.0")
        await hub.run("newest")
        await receiver.until(2, "/newest")
        assert {push.task for push in store.load_pushes()} == {newest.key}
        assert len(receiver.at("/held")) == 1
    store.close()


async def test_orphaned_webhooks_are_removed_at_start(
    tmp_path: Path,
) -> None:
    store = DatabaseTaskStore(tmp_path)
    async with receiving() as receiver, run_push_rig(store) as hub:
        task = hub.begin()
        await hub.push.set(task, {"url": receiver.url()}, "1.0")
    store._db.execute("DELETE FROM tasks")
    async with run_push_rig(store) as hub:
        assert store.load_pushes() == []
    store.close()


# --- as clients set, get, list and delete them


async def test_webhook_with_a_known_id_is_replaced() -> None:
    async with receiving() as receiver, run_push_rig() as hub:
        task = hub.begin()
        made = await hub.push.set(task, {"url": receiver.url("/a")}, "1.0")
        assert made == {"taskId": "t", "id": made["id"], "url": receiver.url("/a")}
        assert len(made["id"]) == 36
        config = {
            "id": "mine",
            "url": receiver.url("/b"),
            "token": "t",
            "authentication": {"scheme": "Basic", "credentials": "c"},
        }
        given = {**config, "taskId": "t", "tenant": "echo", "unknown": [1]}
        assert await hub.push.set(task, given, "1.0") == {"taskId": "t", **config}
        assert hub.push.get(task, "mine") == hub.push.get(task, "") == {"taskId": "t", **config}
        again = {"id": "mine", "url": receiver.url("/c")}
        await hub.push.set(task, again, "1.0")
        assert hub.push.get(task, "mine") == {"taskId": "t", **again}
        assert len(hub.push.list(task)["configs"]) == 2
        await hub.push.set(task, made, "1.0")
        assert hub.push.get(task, "") == made, "the one that was set last"
        await hub.run("t")
        assert texts_of_deliveries(await receiver.until(2, "/c")) == DONE
        assert texts_of_deliveries(await receiver.until(2, "/a")) == DONE
        assert receiver.at("/b") == []


async def test_replaced_webhook_is_retried_at_once() -> None:
    async with receiving() as receiver, run_push_rig(first_seconds=60) as hub:
        task = hub.begin()
        receiver.answers["/hook"] = lambda _: status(401)
        await hub.push.set(task, {"id": "a", "url": receiver.url(), "token": "old"}, "1.0")
        hub.works["t"].says("one")
        await receiver.until(1)
        await hub.quiet()
        del receiver.answers["/hook"]
        await hub.push.set(task, {"id": "a", "url": receiver.url(), "token": "new"}, "1.0")
        got = await receiver.until(2)
        assert texts_of_deliveries(got) == ["one", "one"], "nothing is left out"
        assert got[1].headers["x-a2a-notification-token"] == "new"


async def test_webhooks_are_listed_page_by_page() -> None:
    async with receiving() as receiver, run_push_rig() as hub:
        task = hub.begin()
        for id in ("c", "a", "b"):
            await hub.push.set(task, {"id": id, "url": receiver.url()}, "1.0")
        page = hub.push.list(task, 2)
        assert [config["id"] for config in page["configs"]] == ["a", "b"]
        hub.push.delete(task, "b")
        rest = hub.push.list(task, 2, page["nextPageToken"])
        assert [config["id"] for config in rest["configs"]] == ["c"]
        assert rest["nextPageToken"] == ""
        assert len(hub.push.list(task, 0)["configs"]) == 2
        assert hub.push.list(hub.begin("other")) == {"configs": [], "nextPageToken": ""}


async def test_deleted_webhook_receives_nothing_and_deletion_is_idempotent(
    tmp_path: Path,
) -> None:
    store = DatabaseTaskStore(tmp_path)
    async with receiving() as receiver, run_push_rig(store) as hub:
        task = hub.begin()
        receiver.held["/hook"] = asyncio.Event()
        await hub.push.set(task, {"id": "a", "url": receiver.url()}, "1.0")
        await hub.push.set(task, {"id": "b", "url": receiver.url("/b")}, "1.0")
        hub.works["t"].says("one")
        await receiver.until(1)
        hub.push.delete(task, "a")
        hub.push.delete(task, "a")
        hub.push.delete(hub.begin("other"), "a")
        receiver.held["/hook"].set()
        with pytest.raises(A2aError, match=r'task "t" has no push notification .* "a"') as caught:
            hub.push.get(task, "a")
        assert caught.value.reason == TASK_NOT_FOUND
        await hub.run("t")
        await receiver.until(3, "/b")
        await hub.quiet()
        assert len(receiver.at()) == 1
        assert [push.id for push in store.load_pushes()] == ["b"]
        hub.push.delete(task, "b")
        with pytest.raises(A2aError, match="at all"):
            hub.push.get(task, "")
    store.close()


# --- bounds


@pytest.mark.parametrize(
    ("config", "where"),
    [
        ({}, "url"),
        ({"url": 5}, "url"),
        ({"url": "ftp://example.com/"}, "url"),
        ({"url": "//example.com/"}, "url"),
        ({"url": "http://example.com/\r\nx: y"}, "url"),
        ({"url": "http://example.com/\u0000"}, "url"),
        ({"url": "http://user:password@example.com/"}, "url"),
        ({"url": "http://exa mple.com/"}, "url"),
        ({"url": "http://example.com/" + "x" * 2048}, "url"),
        ({"url": "http://example.com:99999/"}, "url"),
        ({"url": "http://0x7f000001/"}, "url"),
        ({"url": "http://example.com/", "id": "x" * 257}, "id"),
        ({"url": "http://example.com/", "id": "a\nb"}, "id"),
        ({"url": "http://example.com/", "token": "a\r\nb"}, "token"),
        ({"url": "http://example.com/", "token": "ä"}, "token"),
        ({"url": "http://example.com/", "token": "x" * 4097}, "token"),
        ({"url": "http://example.com/", "authentication": {"credentials": "x"}}, "scheme"),
        ({"url": "http://example.com/", "authentication": {"scheme": "a b"}}, "scheme"),
        ({"url": "http://example.com/", "authentication": {"scheme": "a:\r\nb"}}, "scheme"),
        (
            {"url": "http://example.com/", "authentication": {"scheme": "a", "credentials": "\n"}},
            "credentials",
        ),
        (
            {
                "url": "http://example.com/",
                "authentication": {"scheme": "a", "credentials": "x" * 4097},
            },
            "credentials",
        ),
    ],
)
async def test_invalid_webhook_is_refused_with_its_field(
    config: dict[str, Any], where: str
) -> None:
    async with run_push_rig() as hub:
        task = hub.begin()
        with pytest.raises(A2aError) as caught:
            await hub.push.set(task, config, "1.0")
        assert caught.value.reason == INVALID_PARAMS
        assert [field.rpartition(".")[2] for field, _ in caught.value.violations] == [where]
        assert hub.push.list(task)["configs"] == []


async def test_webhooks_per_task_are_bounded() -> None:
    async with receiving() as receiver, run_push_rig(push_configs=2) as hub:
        task = hub.begin()
        for id in ("a", "b", "b"):
            await hub.push.set(task, {"id": id, "url": receiver.url()}, "1.0")
        with pytest.raises(Overloaded, match="has 2 webhooks"):
            await hub.push.set(task, {"url": receiver.url()}, "1.0")
        await hub.push.set(hub.begin("other"), {"url": receiver.url()}, "1.0")
        hub.push.delete(task, "a")
        await hub.push.set(task, {"url": receiver.url()}, "1.0")


@pytest.mark.parametrize("bound", ["MOST", "MOST_EACH"])
async def test_total_webhooks_are_bounded_and_finished_ones_evicted_first(
    bound: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_module, bound, 3)
    store = DatabaseTaskStore(tmp_path)
    async with receiving() as receiver, run_push_rig(store) as hub:
        done, runs = hub.begin("done"), hub.begin("runs")
        await hub.push.set(done, {"id": "a", "url": receiver.url("/a")}, "1.0")
        await hub.run("done")
        await receiver.until(2, "/a")
        await hub.quiet()
        for id in ("b", "c", "d"):
            await hub.push.set(runs, {"id": id, "url": receiver.url()}, "1.0")
        assert hub.push.list(done)["configs"] == []
        assert sorted(push.id for push in store.load_pushes()) == ["b", "c", "d"]
        with pytest.raises(Overloaded, match="no more are kept"):
            await hub.push.set(runs, {"id": "e", "url": receiver.url()}, "1.0")
        await hub.push.set(runs, {"id": "d", "url": receiver.url("/d")}, "1.0")
        hub.push.delete(runs, "d")
        await hub.push.set(runs, {"id": "e", "url": receiver.url()}, "1.0")
        if bound == "MOST_EACH":
            await hub.push.set(hub.begin("bob", BOB), {"url": receiver.url()}, "1.0")
    store.close()


# --- where it may lead


def resolving(*answers: Sequence[str]) -> Resolve:
    """A resolver that gives `answers` one lookup after the other, and the last one for ever."""
    asked = 0

    async def resolve(host: str, port: int) -> Sequence[str]:
        nonlocal asked
        asked += 1
        return answers[min(asked, len(answers)) - 1]

    return resolve


@pytest.mark.promise("B11")
@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("http://127.0.0.1/", "a loopback address"),
        ("http://[::1]/", "a loopback address"),
        ("http://10.1.2.3/", "a private address"),
        ("http://[::ffff:192.168.1.1]/", "a private address"),
        ("http://169.254.169.254/latest", "a cloud metadata address"),
        ("http://0.0.0.0/", "an unspecified address"),
        ("http://inside.example/", "a private address"),
    ],
)
async def test_private_webhook_url_is_refused_at_registration(url: str, kind: str) -> None:
    async with run_push_rig(resolve=resolving(["8.8.8.8", "10.0.0.1"]), private=False) as hub:
        task = hub.begin()
        with pytest.raises(A2aError, match=f'"url" is not permitted: .* {kind}') as caught:
            await hub.push.set(task, {"url": url}, "1.0")
        assert caught.value.reason == INVALID_PARAMS
        assert hub.push.list(task)["configs"] == []


@pytest.mark.promise("B11")
async def test_allowed_private_addresses_exclude_metadata() -> None:
    async with run_push_rig(private=True) as hub:
        task = hub.begin()
        for url in ("http://169.254.169.254/", "http://[fd00:ec2::254]/", "http://100.100.100.200"):
            with pytest.raises(A2aError, match="a cloud metadata address"):
                await hub.push.set(task, {"url": url}, "1.0")


@pytest.mark.promise("B11")
async def test_webhook_name_resolving_to_a_private_address_is_refused_at_dial(
    tmp_path: Path,
) -> None:
    store = DatabaseTaskStore(tmp_path)
    inside = resolving(["8.8.8.8"], ["127.0.0.1"])
    settings: dict[str, Any] = {"resolve": inside, "private": False, "push_attempts": 2}
    async with receiving() as receiver, run_push_rig(store, **settings) as hub:
        task = hub.begin()
        await hub.push.set(task, {"url": receiver.url(host="rebinds.example")}, "1.0")
        hub.works["t"].says("one")
        async with asyncio.timeout(BOUND):
            while not (why := store.load_pushes()[0].dead):
                await asyncio.sleep(0.005)
        assert '"rebinds.example" resolves to 127.0.0.1, a loopback address' in why
        assert receiver.got == []
    store.close()


@pytest.mark.promise("B11")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_stored_webhook_url_has_no_operator_trust(host: str, tmp_path: Path) -> None:
    """Stored when private addresses were allowed or not checked."""
    store = DatabaseTaskStore(tmp_path)
    async with receiving() as receiver:
        receiver.answers["/hook"] = lambda _: status(500)
        async with run_push_rig(store, first_seconds=60) as hub:
            task = hub.begin()
            await hub.push.set(task, {"url": receiver.url(host=host)}, "1.0")
            await hub.run("t")
            await receiver.until(1)
        store._db.execute("UPDATE pushes SET next_at = 0")
        async with run_push_rig(store, private=False, push_attempts=1) as hub:
            async with asyncio.timeout(BOUND):
                while not (why := store.load_pushes()[0].dead):
                    await asyncio.sleep(0.005)
            assert "a loopback address" in why
        assert len(receiver.got) == 1
    store.close()


async def test_slow_dns_lookup_of_a_webhook_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(push_module, "CHECK_SECONDS", 0.05)

    async def slowly(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        raise AssertionError

    async with run_push_rig(resolve=slowly) as hub:
        task = hub.begin()
        async with asyncio.timeout(BOUND):
            await asyncio.gather(
                *(hub.push.set(task, {"url": f"http://slow{n}.example/"}, "1.0") for n in range(8))
            )
        assert len(hub.push.list(task)["configs"]) == 8, "it is judged again when it is dialled"
