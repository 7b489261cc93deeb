"""What starts workflows: signed webhooks, schedules that survive restarts, events of the hub."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.workflows.run_rig import RunRig, StubTools, call, node, run_rig

from dragoman import home as home_files
from dragoman.app.build import build_app
from dragoman.app.workflows_view import WorkflowsView
from dragoman.config import Config
from dragoman.core.call import Call
from dragoman.core.errors import ConfigError, InsufficientScope
from dragoman.core.events import AgentChanged, UserEvent
from dragoman.core.logs import render_time
from dragoman.core.principal import OWNER, Principal, principal_from_workflow
from dragoman.core.runs import COMPLETED, Run
from dragoman.core.secret_rules import Author, SecretUse
from dragoman.core.taint import EXTERNAL_NETWORK, UNTRUSTED_AGENT
from dragoman.core.triggers import MAX_BODY
from dragoman.stores.triggers import DatabaseTriggers
from dragoman.web.config import ServerSettings
from dragoman.workflows.event_triggers import EventLimits, WorkflowEvents
from dragoman.workflows.folder import WorkflowFolder
from dragoman.workflows.loader import check_definition
from dragoman.workflows.schedules import OccurrenceLimits, WorkflowSchedules
from dragoman.workflows.service import RunStart
from dragoman.workflows.triggers import TriggeredRuns, has_members
from dragoman.workflows.webhooks import WorkflowWebhooks

pytestmark = [pytest.mark.promise("R14"), pytest.mark.anyio]
ECHO = node("echo", "transform", value="{{ $trigger }}")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def list_runs(rig: RunRig, workflow: str) -> list[Run]:
    return (await rig.service.list_runs(OWNER, workflow=workflow))[0]


# --- schedules ------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def set(self, year: int, month: int = 1, second: int = 0) -> None:
        self.now = datetime(year, month, 1, 0, 0, second, tzinfo=UTC).timestamp()


def open_schedules(
    rig: RunRig, home: Path, clock: Clock
) -> tuple[WorkflowSchedules, DatabaseTriggers]:
    """Schedules with a clock of their own, as after a start of the hub."""
    parts = rig.app.parts.workflows.find()
    assert parts is not None
    (home / "other").mkdir(exist_ok=True)
    store = DatabaseTriggers(home / "other")
    runs = TriggeredRuns(rig.service)
    schedules = WorkflowSchedules(parts.folder, runs, store, OccurrenceLimits(caught_up=2), clock)
    schedules.refresh()
    return schedules, store


async def test_missed_occurrences_are_caught_up_and_none_starts_twice(short_tmp: Path) -> None:
    """Once a year, so that the hub's own clock starts nothing meanwhile."""
    clock = Clock()
    async with run_rig(short_tmp) as rig:
        for how in ("skip", "once", "all"):
            trigger = {"type": "schedule", "cron": "0 0 1 1 *", "catchUp": how, "inputs": {"a": 1}}
            await rig.define(how, ECHO, trigger=trigger)
        clock.set(2027, month=6)
        schedules, store = open_schedules(rig, short_tmp, clock)
        assert await schedules.start_due() == 30.0
        clock.set(2028, second=10)
        await schedules.start_due()
        for how in ("skip", "once", "all"):
            (run,) = await list_runs(rig, how)
            run = await rig.until(run.id)
            assert (run.state, run.output) == (COMPLETED, {"echo": {"a": 1}}), run.problem
            assert run.origin.trigger == {
                "kind": "schedule", "schedule": "0 0 1 1 *", "at": "2028-01-01T00:00:00.000Z",
            }  # fmt: skip
            starter = run.origin.starter
            assert (run.owner, starter.roles, starter.org) == (f"workflow:{how}", (), "default")
        before = store.load_schedules()
        store.close()

        clock.set(2032, month=6)  # four occurrences later
        schedules, store = open_schedules(rig, short_tmp, clock)
        await schedules.start_due()
        counts = {"skip": 1, "once": 2, "all": 3}  # of all, the newest two
        assert {how: len(await list_runs(rig, how)) for how in counts} == counts
        newest = (await list_runs(rig, "once"))[0]
        assert newest.origin.trigger["at"].startswith("2032-01-01")
        assert newest.origin.trigger["missed"] == 4
        assert {one.workflow: one.missed for one in store.load_schedules()} == {
            "skip": 4, "once": 3, "all": 2,
        }  # fmt: skip

        # A crash after the runs were stored and before the schedules were.
        for state in before:
            store.save_schedule(state)
        store.close()
        schedules, store = open_schedules(rig, short_tmp, clock)
        await schedules.start_due()
        assert {how: len(await list_runs(rig, how)) for how in counts} == counts
        assert all(one.next_at > clock.now for one in store.load_schedules())

        # One whose file is gone is forgotten, one whose file cannot be read is not.
        parts = rig.app.parts.workflows.find()
        assert parts is not None
        parts.folder.remove("once")
        (parts.folder.path / "skip.yaml").write_text("steps: 1\n")
        parts.folder.check()
        schedules.refresh(frozenset({"skip"}))
        assert {one.workflow for one in store.load_schedules()} == {"skip", "all"}
        store.close()


async def test_a_schedule_that_may_not_start_says_why_and_goes_on(short_tmp: Path) -> None:
    clock = Clock()
    clock.set(2027, month=6)
    policies = """
        @id("owner") permit (principal in Hub::Role::"owner", action, resource);
        @id("one") permit (principal == Hub::User::"workflow:allowed", action, resource);
    """
    async with run_rig(short_tmp, policies=policies) as rig:
        await rig.define("allowed", ECHO, trigger={"type": "schedule", "every": "1h"})
        await rig.define("denied", ECHO, trigger={"type": "schedule", "every": "1h"})
        schedules, store = open_schedules(rig, short_tmp, clock)
        clock.now += 3_601
        await schedules.start_due()
        states = {one.workflow: one for one in store.load_schedules()}
        assert 'there is no workflow "denied"' in states["denied"].outcome
        assert states["denied"].next_at == clock.now - 1 + 3_600
        assert not await list_runs(rig, "denied")
        assert not states["allowed"].outcome and len(await list_runs(rig, "allowed")) == 1
        store.close()
        shown, _ = await WorkflowsView(rig.app.parts.workflows).list_workflows(OWNER)
        (trigger,) = shown["triggers"]  # of the hub's own schedules: in an hour from now
        assert (trigger["kind"], trigger["lastAt"], trigger["missed"]) == ("schedule", None, 0)
        assert trigger["nextAt"] > render_time(time.time() + 3_000)


# --- webhooks -------------------------------------------------------------------------------------

SECRET = "correct horse battery staple"


@asynccontextmanager
async def open_hub(home: Path) -> AsyncIterator[tuple[RunRig, Callable[..., Any]]]:
    """A hub on a TCP port that requires a key, and what posts to its webhooks without one."""
    home_files.prepare(str(home))
    (home / "hook.secret").write_text(SECRET)
    (home / "hook.secret").chmod(0o600)
    config = Config(server=ServerSettings(port=0), api_key="k" * 32)
    app = build_app(home, config, "daemon")
    await app.start()
    rig = RunRig(app, StubTools())
    try:
        async with httpx.AsyncClient(base_url=f"{app.parts.state.url}/api/hooks") as client:
            yield rig, client.post
    finally:
        await app.stop()


def sign(body: bytes, id: str = "evt-1", at: float | None = None, secret: str = SECRET) -> Any:
    moment = str(int(time.time() if at is None else at))
    signed = f"{id}.{moment}.".encode() + body
    mac = base64.b64encode(hmac.digest(secret.encode(), signed, "sha256")).decode()
    return {"webhook-id": id, "webhook-timestamp": moment, "webhook-signature": f"v1,AAAA v1,{mac}"}


def sign_as_github(body: bytes, secret: str = SECRET, **more: str) -> dict[str, str]:
    return {"X-Hub-Signature-256": f"sha256={hmac.digest(secret.encode(), body, 'sha256').hex()}",
            **more}  # fmt: skip


async def test_a_signed_webhook_starts_one_run(short_tmp: Path) -> None:
    async with open_hub(short_tmp) as (rig, post):
        hook = {"type": "webhook", "secret": "file:hook.secret"}
        pull = {"prUrl": "{{ $event.pull_request.url }}"}
        await rig.define("review", ECHO, inputs={"prUrl": "string"}, trigger=hook)
        await rig.define(
            "pulls", ECHO, inputs={"prUrl": "string"},
            trigger={**hook, "match": {"action": "opened"}, "inputs": pull},
        )  # fmt: skip
        await rig.define("manual", ECHO)
        await rig.define("lost", ECHO, trigger={"type": "webhook", "secret": "env:NOT_SET"})
        body = json.dumps({"prUrl": "{{ $env.HOME }} https://x", "more": 1}).encode()

        # The same at once, and again: one run.
        answers = await asyncio.gather(
            *(post("/review", content=body, headers=sign(body)) for _ in range(5))
        )
        assert sorted(one.status_code for one in answers) == [200, 200, 200, 200, 202]
        (id,) = {one.json()["run"] for one in answers}
        again = await post("/review", content=body, headers=sign(body))
        assert again.json() == {"run": id, "duplicate": True}
        run = await rig.until(id)
        assert run.output == {"echo": {"prUrl": "{{ $env.HOME }} https://x"}}
        assert (run.owner, run.origin.trigger["kind"]) == ("workflow:review", "webhook")
        assert EXTERNAL_NETWORK in run.labels
        other = await post("/review", content=body, headers=sign(body, id="evt-2"))
        assert other.status_code == 202 and other.json()["run"] != id

        # GitHub: the body alone is signed, so another delivery id does not make it another one.
        opened = json.dumps({"action": "opened", "pull_request": {"url": "u"}}).encode()
        headers = sign_as_github(opened, **{"X-GitHub-Delivery": "1"})
        first = await post("/pulls", content=opened, headers=headers)
        assert first.status_code == 202
        assert (await rig.until(first.json()["run"])).output == {"echo": {"prUrl": "u"}}
        replayed = await post(
            "/pulls", content=opened, headers={**headers, "X-GitHub-Delivery": "2"}
        )
        assert (replayed.status_code, replayed.json()["duplicate"]) == (200, True)
        for text, more in (
            (b'{"action": "closed"}', {}),
            (b'{"zen": "x"}', {"X-GitHub-Event": "ping"}),
        ):
            ignored = await post("/pulls", content=text, headers=sign_as_github(text, **more))
            assert (ignored.status_code, ignored.json()) == (200, {"run": None})

        # What cannot be verified gets one answer, whatever the reason.
        now = time.time()
        refused = [
            await post(path, content=body, headers=headers)
            for path, headers in [
                ("/gone", sign(body)), ("/manual", sign(body)), ("/lost", sign(body)), ("", {}),
                ("/review", {}), ("/review", sign(body + b" ")),
                ("/review", sign(body, secret="x")),
                ("/review", sign(body, at=now - 330)), ("/review", sign(body, at=now + 330)),
                ("/review", {**sign(body), "webhook-id": "evt-3"}),
                ("/review", {**sign(body), "webhook-timestamp": "x"}),
                ("/review", {**sign(body), "webhook-signature": "v1,!!! v2,AAAA"}),
                ("/review", sign_as_github(body, "x")),
                ("/review", {"X-Hub-Signature-256": "sha256=zz"}),
                ("/review", {"Authorization": "Bearer wrong"}),
                ("/../review", {}),
            ]
        ]  # fmt: skip
        assert {(one.status_code, one.text) for one in refused[:-1]} == {(401, refused[0].text)}
        assert refused[-1].status_code in (401, 404)
        assert (await post("/review", content=b"x" * 1_100_000)).status_code == 413

        # Authentic, but not what the workflow needs.
        for bad in (b"{}", b"[1]", b"no json"):
            headers = sign(bad, id=f"bad {len(bad)}")
            assert (await post("/review", content=bad, headers=headers)).status_code == 400
        assert len(await list_runs(rig, "review")) == 2


async def test_no_secret_is_read_for_a_request_without_a_signature(tmp_path: Path) -> None:
    """Anyone can send one, and to read a secret may start a program."""
    folder = WorkflowFolder(tmp_path / "workflows")
    definition = {"trigger": {"type": "webhook", "secret": "exec:op read x"}, "steps": [ECHO]}
    folder.write("hook", json.dumps(definition), Author.OWNER)
    uses: list[SecretUse] = []

    async def resolve(reference: str, use: SecretUse) -> str:
        uses.append(use)
        raise ConfigError("the vault is locked")

    nothing: Any = None
    webhooks = WorkflowWebhooks(folder, nothing, nothing, resolve)
    signed = {name.lower().encode(): text.encode() for name, text in sign(b"{}").items()}
    for headers in (
        {}, {b"x-hub-signature-256": b""}, {b"x-hub-signature-256": b"sha256=00"},
        {b"x-hub-signature-256": b"sha256=" + b"zz" * 32},
        {**signed, b"webhook-signature": b"v1,AAAA"}, {**signed, b"webhook-timestamp": b"1"},
        {**signed, b"webhook-id": b""},
    ):  # fmt: skip
        assert await webhooks.receive("hook", headers, b"{}") is None
    assert await webhooks.receive("hook", signed, b"x" * (MAX_BODY + 1)) is None
    assert uses == []
    assert await webhooks.receive("hook", signed, b"{}") is None
    assert uses == [SecretUse(Author.OWNER, 'workflow "hook"')]


# --- events ---------------------------------------------------------------------------------------


async def test_an_event_starts_a_run_and_loops_are_bounded(
    short_tmp: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_rig(short_tmp) as rig:
        started = asyncio.Event()

        def note(one: Call) -> dict[str, Any]:
            started.set()
            return {}

        rig.add("note", note)
        trigger = {
            "type": "event", "event": "agent-changed", "match": {"state": "unreachable"},
            "inputs": {"agent": "{{ $event.agent }}"},
        }  # fmt: skip
        await rig.define("alarm", call("note", arguments={"x": "{{ $trigger.agent }}"}),
                         trigger=trigger)  # fmt: skip
        await rig.define("mail", ECHO, inputs={"data": "object"},
                         trigger={"type": "event", "event": "user"})  # fmt: skip
        # Each call of a run is an event: it must not start another run.
        await rig.define("loop", call("note"), trigger={"type": "event", "event": "post-verb"})
        rig.bus.emit(AgentChanged("qa", "healthy", ""))
        rig.bus.emit(AgentChanged("qa", "unreachable", "gone"))
        async with asyncio.timeout(60):
            await started.wait()
        (run,) = await list_runs(rig, "alarm")
        run = await rig.until(run.id)
        assert rig.stub.calls[0].arguments == {"x": "qa"}
        assert rig.stub.calls[0].principal == principal_from_workflow("alarm")
        assert run.origin.trigger == {"kind": "event", "event": "agent-changed"}
        assert not await list_runs(rig, "loop")

        rig.bus.emit(UserEvent("bot", "hello", {"text": "{{ $run.id }}"}, "t"))
        rig.bus.emit(UserEvent("bot", "hello", {}, "t", org="other"))
        async with asyncio.timeout(60):
            while not (found := await list_runs(rig, "mail")):
                await asyncio.sleep(0)
        mail = await rig.until(found[0].id)
        assert mail.output == {"echo": {"data": {"text": "{{ $run.id }}"}}}
        assert {EXTERNAL_NETWORK, UNTRUSTED_AGENT} <= set(mail.labels)

        parts = rig.app.parts.workflows.find()
        assert parts is not None
        await parts.triggers.close()  # the hub's own, which has the usual budget
        events = WorkflowEvents(
            parts.folder, TriggeredRuns(rig.service), rig.bus, EventLimits(per_minute=3)
        )
        events.refresh()
        for _ in range(50):
            rig.bus.emit(AgentChanged("qa", "unreachable", "again"))
        await events.close()
        assert sum("start no run" in one.message for one in caplog.records) == 1
        assert len(await list_runs(rig, "alarm")) <= 4
        assert len(await list_runs(rig, "mail")) == 1


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        ({}, True),
        ({"a": 1}, True),
        ({"a": 1, "b": {"c": "x"}}, True),
        ({"a": True}, False),
        ({"b": {"c": "y"}}, False),
        ({"b": {"c": {"d": 1}}}, False),
        ({"e": None}, False),
        ({"l": [1, 2]}, True),
    ],
)
def test_events_are_matched_by_members(wanted: dict[str, Any], matches: bool) -> None:
    assert has_members({"a": 1, "b": {"c": "x", "d": 2}, "l": [1, 2]}, wanted) is matches
    assert not has_members([1], {"a": 1})


def test_a_trigger_that_could_not_work_is_found_by_the_check() -> None:
    step = {"id": "a", "nodeId": "agent.invoke", "config": {"agent": "{{ nodes.r.agentCardId }}"}}
    for trigger, words in [
        ({"type": "event", "event": "agent-changex"}, 'did you mean "agent-changed"?'),
        ({"type": "schedule", "every": "1h"}, 'no agent for the reference "r"'),
    ]:
        source = json.dumps({"trigger": trigger, "steps": [step]})
        assert any(words in one.message for one in check_definition(source, "x"))


# --- authors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["key", "user"])
async def test_no_trigger_starts_what_was_written_without_the_right_to_call(
    short_tmp: Path, kind: str
) -> None:
    """As the child of a workflow of the owner."""
    async with run_rig(short_tmp) as rig:
        parts = await rig.app.parts.workflows.require()
        writer = Principal(kind, "ann", roles=("owner",), scopes=("workflows",))
        text = json.dumps({"steps": [ECHO]})
        parts.folder.write("child", text, Author.API, writer)
        request = RunStart(principal=principal_from_workflow("parent"), door="workflow")
        with pytest.raises(InsufficientScope, match='"call"'):
            await rig.service.start("child", request)
        parts.folder.write("child", text, Author.OWNER)
        assert (await rig.service.start("child", request)).owner == "workflow:parent"
