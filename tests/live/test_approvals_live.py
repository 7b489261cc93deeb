"""Calls that need an approval, at a running hub: by REST, MCP and A2A, decided by key, by form and
by command; and what a hub that is killed leaves of them.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ElicitResult
from tests.live.a2a_hub import SEND, V10, Caller
from tests.live.conftest import RunningHub, _written_config, open_keys
from tests.live.module_hub import until
from tests.peers import wire
from tests.peers.process import server_entry
from tests.table_outage import take_away

from mcp import Client

pytestmark = pytest.mark.promise("U6")

PROGRAM = Path(__file__).parent / "recording_server.py"
SCOPES = ["call", "approve"]
CONFIG = """
[a2a]
enabled = true
[approvals]
wait_secs = 3
"""
POLICIES = """
@id("owner")
permit (principal in Hub::Role::"owner", action, resource)
unless { action in Hub::Action::"any_call" };
@id("everybody")
permit (
  principal,
  action in [Hub::Action::"list", Hub::Action::"a2a_discover", Hub::Action::"task_read"],
  resource
);
@id("plain")
permit (principal, action in Hub::Action::"any_call", resource == Hub::Tool::"rec.plain");
@id("guarded")
@approval("it changes production")
permit (principal, action in Hub::Action::"any_call", resource in Hub::Server::"rec")
unless { resource == Hub::Tool::"rec.quick" };
@id("quick")
@approval("it is urgent")
@expires("1s")
permit (principal, action in Hub::Action::"any_call", resource == Hub::Tool::"rec.quick");
@id("leads")
permit (principal in Hub::Role::"lead", action == Hub::Action::"approve", resource);
@id("two-pairs-of-eyes")
forbid (principal, action == Hub::Action::"approve", resource == Hub::Tool::"rec.strict")
when { context.owner };
"""
TOOLS = ["deploy", "quick", "plain", "strict", "hold", "ask"]


class Rig:
    def __init__(self, home: Path, keys: dict[str, str]) -> None:
        self.home, self.keys = home, keys
        self.recorded = home / "recorded"
        self.start()

    def start(self) -> None:
        self.hub = RunningHub(self.home, [], {})
        self.hub.headers = self.headers("ann")
        self.hub.wait_connected("rec")

    def crash(self) -> None:
        """Kills the hub and starts it again."""
        self.hub.checks = False
        self.hub.kill()
        self.hub.finish()
        self.start()

    def headers(self, who: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[who]}", "Accept": "application/json"}

    def call(self, who: str, tool: str, timeout: float = 60.0, **arguments: Any) -> wire.Answer:
        url = f"{self.hub.url}/api/tools/rec.{tool}/call"
        return wire.post(url, {"arguments": arguments}, self.headers(who), timeout)

    def finish(self, who: str, tool: str, **arguments: Any) -> wire.Answer:
        """Calls again while it waits, as clients do."""
        for _ in range(20):
            answer = self.call(who, tool, **arguments)
            if answer.status != 409:
                break
        return answer

    def decide(self, who: str, id: str, verb: str = "approve", comment: str = "") -> wire.Answer:
        body = {"comment": comment} if comment else {}
        return wire.post(f"{self.hub.url}/api/approvals/{id}/{verb}", body, self.headers(who))

    def show(self, id: str, who: str = "ann") -> dict[str, Any]:
        answer = wire.get(f"{self.hub.url}/api/approvals/{id}", self.headers(who))
        return dict(answer.json())

    def list_pending(self, who: str = "ann") -> list[dict[str, Any]]:
        url = f"{self.hub.url}/api/approvals?state=pending&limit=200"
        return list(wire.get(url, self.headers(who)).json()["approvals"])

    def wait_pending(self, **arguments: Any) -> dict[str, Any]:
        """The request with these arguments, once there is one."""
        return until(
            lambda: next((one for one in self.list_pending() if one["arguments"] == arguments), {})
        )

    def count(self, tool: str) -> int:
        """How often the call has reached the server."""
        file = self.recorded / "calls"
        return file.read_text("utf-8").split().count(tool) if file.exists() else 0


@contextmanager
def run_rig() -> Iterator[Rig]:
    home = Path(tempfile.mkdtemp(prefix="dg", dir="/tmp"))
    try:
        recorded = home / "recorded"
        recorded.mkdir()
        schema = {"type": "object"}
        tools = [{"name": name, "description": "x", "inputSchema": schema} for name in TOOLS]
        (recorded / "tools.json").write_text(json.dumps(tools), encoding="utf-8")
        entry = server_entry("rec", "stdio", sys.executable, PROGRAM, recorded)
        (home / "config.toml").write_text(_written_config(CONFIG, [entry]), encoding="utf-8")
        (home / "config.toml").chmod(0o600)
        (home / "policies").mkdir()
        (home / "policies" / "main.cedar").write_text(POLICIES, encoding="utf-8")
        with open_keys(home) as store:
            keys = {
                name: store.create(name, owner=name, expires_at=None, scopes=SCOPES, roles=roles)
                for name, roles in (
                    ("ann", ["owner"]), ("lea", ["lead"]), ("ci", []), ("guest", []), ("temp", []),
                )
            }  # fmt: skip
        rig = Rig(home, keys)
        try:
            yield rig
        finally:
            problems = rig.hub.finish()
        assert not problems, "\n".join(problems)
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with run_rig() as found:
        yield found


def test_ten_calls_wait_at_once_and_each_is_decided_once(rig: Rig) -> None:
    assert rig.call("ci", "plain").json()["content"][0]["text"] == "arrived: plain"
    assert not (rig.home / "approvals.db").exists()
    before = rig.count("deploy")
    with ThreadPoolExecutor(10) as pool:
        calls: list[Future[wire.Answer]] = [
            pool.submit(rig.finish, "ci", "deploy", number=number) for number in range(10)
        ]
        until(lambda: len(rig.list_pending()) == 10)
        pending = rig.list_pending()
        assert rig.count("deploy") == before
        by_number = {one["arguments"]["number"]: one for one in pending}
        assert {one["requester"] for one in pending} == {"key:ci"}
        assert all(one["canDecide"] and one["reason"] == "it changes production" for one in pending)
        # The requester sees its own and may not decide them; others see nothing.
        assert [one["canDecide"] for one in rig.list_pending("ci")] == [False] * 10
        assert rig.list_pending("guest") == []
        first = by_number[0]["id"]
        for who, status, said in (("ci", 403, "may not approve"), ("guest", 404, "there is no")):
            refused = rig.decide(who, first)
            assert refused.status == status and said in refused.json()["error"]["message"]
        assert rig.decide("lea", by_number[9]["id"], "deny", "not on a Friday").status == 200
        for number in range(9):
            assert rig.decide("lea", by_number[number]["id"]).json()["state"] == "approved"
        again = rig.decide("ann", first)
        assert again.status == 409 and again.json()["error"]["kind"] == "ApprovalClosed"
        assert "approved by key:lea" in again.json()["error"]["message"]
        answers = [call.result() for call in calls]
    assert [one.status for one in answers] == [200] * 9 + [403]
    denied = answers[9].json()["error"]
    assert denied["kind"] == "ApprovalDenied" and "not on a Friday" in denied["message"]
    assert rig.count("deploy") == before + 9
    # A denial stands: no person is asked about the same call again.
    assert rig.call("ci", "deploy", number=9).json()["error"]["kind"] == "ApprovalDenied"
    assert rig.list_pending() == []
    records = rig.hub.audit()
    trace = by_number[0]["trace"]
    verbs = [(one["verb"], one["outcome"]) for one in records if one.get("trace") == trace]
    assert ("approval.request", "completed") in verbs and ("approval.approve", "completed") in verbs
    made = [one for one in records if one.get("approval") == first and one["verb"] == "rec.deploy"]
    assert made[-1]["outcome"] == "completed"
    assert any(one["outcome"] == "refused" and one["caller"] == "key:ci" for one in records)
    assert "not on a Friday" not in rig.hub.log() and '"number"' not in rig.hub.log()


def test_expired_request_is_denied(rig: Rig) -> None:
    answer = rig.call("ci", "quick", at="night")
    assert answer.status == 403 and "expired" in answer.json()["error"]["message"]
    url = f"{rig.hub.url}/api/approvals?state=expired"
    (found,) = wire.get(url, rig.headers("ci")).json()["approvals"]
    late = rig.decide("ann", found["id"])
    assert late.status == 409 and "expired" in late.json()["error"]["message"]
    assert rig.show(found["id"])["state"] == "expired" and rig.count("quick") == 0


def test_requester_may_not_approve_where_a_policy_forbids_it(rig: Rig) -> None:
    url = f"{rig.hub.url}/api/events?phase=approval-requested,approval-decided"
    accept = {"Accept": "text/event-stream"}
    with (
        ThreadPoolExecutor(1) as pool,
        wire.stream("GET", url, None, {**rig.headers("lea"), **accept}) as deciders,
        wire.stream("GET", url, None, {**rig.headers("guest"), **accept}) as others,
    ):
        call = pool.submit(rig.finish, "lea", "strict", x=1)
        found = rig.wait_pending(x=1)
        assert rig.decide("lea", found["id"]).status == 403
        assert rig.decide("ann", found["id"]).status == 200
        assert call.result().json()["content"][0]["text"] == "arrived: strict"
        told = iter(deciders.next, None)  # also that an earlier request has expired
        events = list(islice((one for one in told if one.json()["id"] == found["id"]), 2))
        assert [one.name for one in events] == ["approval-requested", "approval-decided"]
        asked, decided = (one.json() for one in events)
        assert asked["reason"] == "it changes production" and asked["title"] == "rec.strict"
        assert (decided["state"], decided["decidedBy"]) == ("approved", "key:ann")
        assert asked["id"] == decided["id"] == found["id"] and "x" not in asked
        # What others may not decide is not announced to them; their own is.
        own = pool.submit(rig.finish, "guest", "deploy", x=2)
        rig.decide("ann", rig.wait_pending(x=2)["id"], "deny")
        assert others.next().json()["requester"] == "key:guest" and own.result().status == 403


def test_parked_calls_finish_by_rest_mcp_and_a2a(rig: Rig) -> None:
    before = rig.count("deploy")
    # REST: the client goes, the hub makes the call, the client asks again.
    with pytest.raises(TimeoutError):
        rig.call("ci", "deploy", timeout=0.3, by="rest")
    found = rig.wait_pending(by="rest")
    rig.decide("lea", found["id"])
    until(lambda: rig.show(found["id"])["outcome"] == "completed")
    assert rig.count("deploy") == before + 1
    assert "result" not in rig.show(found["id"], "lea")
    shown = rig.show(found["id"], "ci")["result"]
    assert shown["content"] == [{"type": "text", "text": "arrived: deploy"}]
    assert rig.call("ci", "deploy", by="rest").json()["content"] == shown["content"]
    assert rig.count("deploy") == before + 1
    # MCP: it gets a refusal that says what to do, and calls again.
    params = {"name": "rec.deploy", "arguments": {"by": "mcp"}}
    headers = rig.headers("ci")

    def call_by_mcp() -> Any:
        sent = wire.modern_request(rig.hub.mcp_url, "tools/call", params, headers, 20.0)
        return sent.rpc()["result"]

    waits = call_by_mcp()
    found = rig.wait_pending(by="mcp")
    text = waits["content"][0]["text"]
    assert waits["isError"] and f"dragoman approvals approve {found['id']}" in text
    approved = rig.hub.command("approvals", "approve", found["id"], "--comment", "go", "--json")
    assert approved.returncode == 0 and json.loads(approved.stdout)["decidedBy"] == "owner:owner"
    assert call_by_mcp()["content"][0]["text"] == "arrived: deploy"
    # An MCP task waits for the decision, however long that takes.
    session = wire.Session(rig.hub.mcp_url, "2025-11-25", headers=headers)
    params = {"name": "rec.deploy", "arguments": {"by": "task"}, "task": {"ttl": 60_000}}
    task = session.request("tools/call", params)["result"]["task"]
    # And so does an A2A task.
    caller = Caller(rig.hub, headers=headers, binding=V10)
    message = V10.params({"by": "a2a"}, at_once=True)
    message["message"]["metadata"] = {"skillId": "rec.deploy"}
    sent = V10.task(caller.ask(SEND, message).value)
    waiting = [rig.wait_pending(by="task"), rig.wait_pending(by="a2a")]
    late = rig.call("ci", "deploy", by="late")  # which waits for `wait_secs`
    assert late.status == 409 and late.json()["error"]["kind"] == "ApprovalPending"
    assert rig.decide("ann", late.json()["error"]["approval"], "deny").status == 200
    assert "waits for approval" in json.dumps(caller.get(sent["id"])["status"])
    for one in waiting:
        assert rig.decide("lea", one["id"]).status == 200
    done = caller.until(sent["id"], "completed")
    assert "arrived: deploy" in json.dumps(done["artifacts"])
    result = session.request("tasks/result", {"taskId": task["taskId"]})["result"]
    assert result["content"][0]["text"] == "arrived: deploy"
    assert rig.count("deploy") == before + 4


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_client_that_may_decide_is_asked_in_place(rig: Rig, mode: str) -> None:
    answers: list[dict[str, Any]] = [{"approve": True, "comment": "mine"}, {"approve": False}]
    asked: list[str] = []

    async def ask(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content=answers[len(asked) - 1])

    before = rig.count("ask")
    async with httpx2.AsyncClient(headers=rig.headers("ann")) as http:
        target = streamable_http_client(rig.hub.mcp_url, http_client=http)
        async with Client(target, mode=mode, elicitation_callback=ask) as client:
            first = await client.call_tool("rec.ask", {"secret": "s3cr3t", "mode": mode})
            assert first.content[0].text == "arrived: ask"  # type: ignore[union-attr]
            second = await client.call_tool("rec.ask", {"mode": f"{mode}-2"})
            assert second.is_error and "was denied" in second.content[0].text  # type: ignore[union-attr]
    assert "s3cr3t" in asked[0] and "it changes production" in asked[0]
    assert rig.count("ask") == before + 1 and rig.list_pending() == []
    assert "s3cr3t" not in rig.hub.log()
    (decided,) = [one for one in rig.hub.audit() if one.get("comment") == "mine"][-1:]
    assert decided["caller"] == "key:ann" and decided["verb"] == "approval.approve"


def test_killed_hub_makes_an_approved_call_once() -> None:
    with run_rig() as rig:
        for name in ("one", "two"):
            with pytest.raises(TimeoutError):
                rig.call("ci", "deploy", timeout=0.3, name=name)
        with pytest.raises(TimeoutError):
            rig.call("temp", "deploy", timeout=0.3, name="revoked")
        with pytest.raises(TimeoutError):
            rig.call("ci", "hold", timeout=0.3, name="held")
        ids = {one["arguments"]["name"]: one["id"] for one in rig.list_pending()}
        rig.crash()
        assert {one["id"] for one in rig.list_pending()} == set(ids.values())
        # The key was revoked meanwhile: approved, and not made.
        assert rig.hub.command("keys", "revoke", "temp").returncode == 0
        for name in ("one", "revoked"):
            assert rig.decide("lea", ids[name]).status == 200
        until(lambda: rig.show(ids["one"])["outcome"] == "completed")
        until(lambda: rig.show(ids["revoked"])["outcome"] == "failed")
        assert "not served any more" in rig.show(ids["revoked"])["problem"]
        assert rig.count("deploy") == 1
        # Killed while it runs: interrupted, and never made again.
        assert rig.decide("lea", ids["held"]).status == 200
        until(lambda: rig.count("hold") == 1)
        rig.crash()
        assert rig.show(ids["held"])["outcome"] == "interrupted"
        told = rig.call("ci", "hold", name="held").json()["error"]
        assert told["kind"] == "WorkFailed" and "unknown" in told["message"]
        first = rig.call("ci", "deploy", name="one").json()["content"]
        assert rig.count("deploy") == 1 and rig.count("hold") == 1
        # Killed before the client had the answer, for all it knows: it calls again, and gets it.
        rig.crash()
        again = rig.call("ci", "deploy", name="one").json()
        assert again["content"][:1] == first and "was not made again" in again["content"][1]["text"]
        assert again["extra"]["_meta"]["dragoman.hub/repeated"]["approval"] == ids["one"]
        # Another key asks for another call.
        url, body = f"{rig.hub.url}/api/tools/rec.deploy/call", {"arguments": {"name": "one"}}
        other = wire.post(url, {**body, "idempotencyKey": "2"}, rig.headers("ci"), 20.0)
        assert other.status == 409 and rig.count("deploy") == 1
        for key in ("", "x" * 201, 7):
            assert wire.post(url, {**body, "idempotencyKey": key}, rig.headers("ci")).status == 400
        # A policy that forbids it now is asked again when it is approved.
        more = '@id("no") forbid (principal, action in Hub::Action::"any_call", resource);'
        (rig.home / "policies" / "more.cedar").write_text(more, encoding="utf-8")
        until(lambda: rig.call("ci", "plain").status == 403)
        assert rig.decide("lea", ids["two"]).status == 200
        until(lambda: rig.show(ids["two"])["outcome"] == "failed")
        assert rig.count("deploy") == 1


def test_acknowledged_task_outlasts_a_store_that_fails() -> None:
    with run_rig() as rig:
        with pytest.raises(TimeoutError):
            rig.call("ci", "deploy", timeout=0.3, name="first")  # the store exists from now on
        headers = {**rig.headers("ci"), "Idempotency-Key": "a"}
        caller = Caller(rig.hub, headers=headers, binding=V10)
        message = V10.params({"by": "a2a"}, at_once=True)
        message["message"]["metadata"] = {"skillId": "rec.deploy"}
        with take_away(rig.home, "approvals.db", "approvals"):
            sent = V10.task(caller.ask(SEND, message).value)
            until(lambda: "is tried again" in json.dumps(caller.get(sent["id"])["status"]))
        assert rig.decide("lea", rig.wait_pending(by="a2a")["id"]).status == 200
        done = caller.until(sent["id"], "completed")
        assert "arrived: deploy" in json.dumps(done["artifacts"]) and rig.count("deploy") == 1
        rig.hub.checks = False  # the log tells of the store
