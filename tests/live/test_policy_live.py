"""Policies of a running hub: a denied call never reaches the wire, its record names the policy, its
message is readable, and each call is decided by one policy set.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from tests.live.bridge_fixture import EXPOSE, eventually, external, tool_names
from tests.live.conftest import RunningHub
from tests.live.module_hub import ERROR_KEY, run_module_hub, until
from tests.live.recording_agents import RecordingAgent, run_agents
from tests.peers import wire

pytestmark = pytest.mark.promise("R7")

QUIET = "[bridge]\nprobe_secs = 3600\n[a2a]\nenabled = true\n"
"""Disables health probes during the tests."""
SKILL = "vercel_ops.deploy"
FORBID = (
    '@id("no-deploys") @why("nothing is deployed on Fridays")\n'
    'forbid (principal, action in Hub::Action::"any_call", resource == Hub::Skill::"{}");\n'
)
URI = "urn:dragoman:a2a:skill:v1"


@contextmanager
def an_agent(config: str = EXPOSE) -> Iterator[tuple[RunningHub, RecordingAgent]]:
    agent = RecordingAgent("Vercel Ops", "deploy", "logs")
    with (
        run_agents(agent),
        run_module_hub([], config + QUIET + external(agent.name, agent.url)) as hub,
    ):
        until(lambda: SKILL in tool_names(hub))
        yield hub, agent


def put(hub: RunningHub, text: str, name: str = "mine") -> str:
    """Puts policies in force; gives the name of the set."""
    done = hub.post("/api/policies", {"name": name, "text": text})
    assert done.get("ok"), done
    return str(done["snapshot"])


@dataclass(frozen=True)
class Refusal:
    caller: str
    door: str
    words: str
    code: int


def by_mcp(hub: RunningHub, era: str) -> Refusal:
    answer = hub.call(SKILL, {"target": "production"}, era=era)
    if era == "legacy":
        error = answer["error"]
        assert error["data"]["kind"] == "AuthorizationError", error
        return Refusal("local:local", "mcp-http", error["message"], error["code"])
    result = answer["result"]
    assert result["isError"] is True and result["_meta"][ERROR_KEY]["kind"] == "AuthorizationError"
    words = result["content"][0]["text"]
    return Refusal("local:local", "mcp-http", words, result["_meta"][ERROR_KEY]["code"])


def by_stdio(hub: RunningHub) -> Refusal:
    with hub.relay() as ide:
        ide.initialize()
        params = {"name": "a2a_vercel_ops_deploy", "arguments": {"target": "production"}}
        error = ide.request("tools/call", params)["error"]
    return Refusal("owner:owner", "mcp-stdio", error["message"], error["code"])


def by_a2a(hub: RunningHub) -> Refusal:
    """As a skill of the hub itself."""
    parts = [{"data": {"target": "production"}}]
    message: dict[str, Any] = {"messageId": "1", "role": "ROLE_USER", "parts": parts}
    message["metadata"] = {URI: {"skillId": SKILL}}
    body = wire.request(1, "SendMessage", {"message": message})
    error = wire.post(f"{hub.url}/a2a", body, {"A2A-Version": "1.0"}).json()["error"]
    assert error["data"][0]["reason"] == "PERMISSION_DENIED"
    return Refusal("local:local", "a2a", error["message"], -32003)


def by_command(hub: RunningHub) -> Refusal:
    done = hub.command("call", SKILL, "target=production")
    assert done.returncode == 4 and not done.stdout
    return Refusal("owner:owner", "api", done.stderr.removeprefix("dragoman: ").strip(), -32003)


DOORS: Mapping[str, Callable[[RunningHub], Refusal]] = {
    "2025-11-25": lambda hub: by_mcp(hub, "legacy"),
    "2026-07-28": lambda hub: by_mcp(hub, "modern"),
    "stdio": by_stdio,
    "A2A": by_a2a,
    "command": by_command,
}


@pytest.mark.promise("R6", "R8", "R12")
def test_denied_call_is_not_sent_and_is_reported_and_recorded() -> None:
    with an_agent() as (hub, agent):
        assert hub.call(SKILL, {})["result"]["content"][0]["text"] == "done"
        in_force = put(hub, FORBID.format(SKILL))
        assert SKILL not in tool_names(hub) and "vercel_ops.logs" in tool_names(hub)
        received = bytes(agent.received)
        with wire.stream("GET", f"{hub.url}/api/events", headers=hub.headers) as events:
            for ask in DOORS.values():
                refusal = ask(hub)
                heard = [events.next() for _ in range(3)]
                trace = assert_denial_reported(refusal, [event.json() for event in heard])
                (row,) = [one for one in hub.audit() if one.get("trace") == trace]
                assert_denial_recorded(refusal, row, in_force)
        assert bytes(agent.received) == received, "not a byte"
        assert len(agent.sent) == 1
        denied = hub.api("/api/a2a/dispatches?status=denied")["dispatches"]
        assert [one["errorCode"] for one in denied] == [-32003] * len(DOORS)
        assert {one["taskId"] for one in denied} == {None}
        assert hub.call("vercel_ops.logs", {})["result"]["content"][0]["text"] == "done"


def assert_denial_reported(refusal: Refusal, events: list[dict[str, Any]]) -> str:
    """By the caller's answer, and on the stream; gives its trace."""
    pre, post, error = events
    assert [one["phase"] for one in events] == ["pre-verb", "post-verb", "verb-error"]
    assert [one["context"]["denied"] for one in events] == [False, True, True]
    assert {one["verb"] for one in events} == {SKILL} and post["outcome"] == "failed"
    assert pre["args"] == {"target": {"type": "string", "size": 10}}, "no values"
    assert error["error"]["code"] == refusal.code == -32003
    trace = str(error["context"]["traceId"])
    said = f'"{SKILL}" was refused: a policy forbids "{refusal.caller}" to call it'
    assert refusal.words == f"{said} (trace {trace[:8]})", "and not which, nor why"
    assert error["error"]["message"] == said
    return trace


def assert_denial_recorded(refusal: Refusal, row: Mapping[str, Any], in_force: str) -> None:
    assert (row["decision"], row["policies"], row["policy_set"]) == (
        "deny",
        ["no-deploys"],
        in_force,
    )
    assert (row["outcome"], row["error"]) == ("refused", "AuthorizationError")
    assert (row["caller"], row["door"], row["verb"]) == (refusal.caller, refusal.door, SKILL)
    assert row["duration_ms"] >= 0 and "far_task" not in row


def test_unlistable_tool_is_not_found_and_its_record_says_why() -> None:
    with an_agent() as (hub, agent):
        hide = FORBID.replace('action in Hub::Action::"any_call"', "action")
        in_force = put(hub, hide.format(SKILL))
        received = bytes(agent.received)
        for era in ("legacy", "modern"):
            unknown = hub.call("vercel_ops.deplox", {}, era=era)
            answer = hub.call(SKILL, {}, era=era)
            assert answer["error"]["code"] == unknown["error"]["code"] == -32602
            told, other = (
                one["error"]["message"].partition(" (trace")[0] for one in (answer, unknown)
            )
            assert told == other.replace("deplox", "deploy")
            row = hub.audit()[-1]
            assert (row["outcome"], row["decision"]) == ("not_found", "deny")
            assert (row["policies"], row["policy_set"]) == (["no-deploys"], in_force)
        assert bytes(agent.received) == received


@pytest.mark.promise("R11")
def test_policy_files_apply_together_and_an_invalid_one_changes_nothing() -> None:
    with an_agent() as (hub, agent):
        folder = hub.home / "policies"
        assert hub.command("policy", "init").returncode == 0
        session = wire.Session(hub.mcp_url)
        with wire.stream("GET", hub.mcp_url, headers=session.headers) as told:
            (folder / "mine.cedar").write_text(FORBID.format(SKILL), encoding="utf-8")
            assert told.next_json()["method"] == "notifications/tools/list_changed"
            assert SKILL not in tool_names(hub)
            in_force = hub.audit()[-1]
            assert (in_force["verb"], in_force["outcome"]) == ("policy.change", "completed")

            (folder / "mine.cedar").write_text("permit (principal, action", encoding="utf-8")
            why = until(lambda: hub.api("/api/policies").get("problem"))
            assert "mine.cedar" in why
            refused = hub.call(SKILL, {}, era="legacy")
            assert refused["error"]["code"] == -32003, "what was in force still is"
            listed = hub.command("policy", "list")
            assert "mine.cedar" in listed.stdout + listed.stderr

            (folder / "mine.cedar").unlink()
            assert told.next_json()["method"] == "notifications/tools/list_changed"
            assert SKILL in tool_names(hub) and "result" in hub.call(SKILL, {}, era="legacy")
            assert not hub.api("/api/policies").get("problem") and len(agent.sent) == 1


# --- swapped under load ---------------------------------------------------------------------------

CALLERS, MEMBERS, SWAPS, EACH = 1_000, 4, 24, 40
"""EACH: so many calls are judged between two swaps, at least."""
SECONDS = 2.0
"""That an agent takes at most."""
CHANCE = Random(7)
QUICK = f"agent_{MEMBERS}.work"
LIMITS = """[limits]
calls_in_flight = 4000
target_calls = 4000
overload_delay_secs = 60  # the callers are on this machine, too
[limits.rate]
owner_per_minute = 10_000_000
owner_burst = 1_000_000
"""


def some_seconds() -> float:
    """So that calls come evenly."""
    return CHANCE.uniform(SECONDS / 4, SECONDS)


def numbered(number: int) -> str:
    """Every second set forbids; each has one policy of its own, which always counts."""
    effect = "forbid" if number % 2 else "permit"
    head = '(principal, action in Hub::Action::"any_call", resource)'
    return f'@id("set-{number}") {effect} {head} when {{ resource.org == principal.org }};\n'


async def one_call(
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], host: str, tool: str
) -> tuple[str, bool]:
    """Its trace, and whether it was done; anything else than done or denied raises."""
    reader, writer = streams
    trace = uuid4().hex
    meta = {"traceparent": f"00-{trace}-{'1' * 16}-01"}
    params = {"name": tool, "arguments": {}, "_meta": meta}
    body = json.dumps(wire.request(1, "tools/call", wire.modern_params(params))).encode()
    head = {
        "Host": host,
        "Content-Type": "application/json",
        "Accept": wire.ACCEPT,
        "Content-Length": str(len(body)),
        **wire.modern_headers("tools/call", params),
    }
    lines = ["POST /mcp HTTP/1.1", *(f"{name}: {value}" for name, value in head.items()), "", ""]
    writer.write("\r\n".join(lines).encode() + body)
    answered = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(answered.partition("content-length:")[2].split()[0])
    answer = json.loads(await reader.readexactly(length))
    assert "result" in answer, answer
    result = answer["result"]
    if not result.get("isError"):
        return trace, True
    assert result["_meta"][ERROR_KEY]["kind"] == "AuthorizationError", result
    return trace, False


@dataclass
class Load:
    """A thousand callers who call all the while, and sets of policies that are swapped."""

    hub: RunningHub
    agents: list[RecordingAgent]
    answers: dict[str, bool] = field(default_factory=dict)
    """Of each trace, whether the call was done."""
    sets: dict[str, int] = field(default_factory=dict)
    """The number of each set by its name."""
    late: list[tuple[int, str]] = field(default_factory=list)
    """After each swap, the trace of a call that was begun when it was in force."""

    def judged(self) -> int:
        """How many calls so far: answered, or on their way."""
        return len(self.answers) + sum(one.at_once for one in self.agents)

    async def run(self) -> None:
        parts = urlsplit(self.hub.url)
        over, room = asyncio.Event(), asyncio.Semaphore(100)

        async def caller(number: int) -> None:
            tool = f"agent_{number % MEMBERS}.work"
            async with room:
                streams = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                while not over.is_set():
                    trace, done = await one_call(streams, parts.netloc, tool)
                    self.answers[trace] = done
                    if not done:  # as long as it would have taken, or they would drown the others
                        with suppress(TimeoutError):
                            await asyncio.wait_for(over.wait(), some_seconds())
            finally:
                streams[1].close()

        async def swaps() -> None:
            await eventually(lambda: sum(one.at_once for one in self.agents) == CALLERS, 60)
            # Not before: the hub closes a connection on which nothing comes for ten seconds.
            streams = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                for number in range(SWAPS):
                    name = await asyncio.to_thread(put, self.hub, numbered(number))
                    self.sets[name] = number
                    trace, done = await one_call(streams, parts.netloc, QUICK)
                    self.answers[trace] = done
                    self.late.append((number, trace))
                    enough = self.judged() + EACH

                    def is_enough(enough: int = enough) -> bool:
                        return self.judged() >= enough

                    await eventually(is_enough)
            finally:
                over.set()
                streams[1].close()

        async with asyncio.timeout(100):
            await asyncio.gather(swaps(), *(caller(number) for number in range(CALLERS)))


@pytest.mark.promise("R11", "R12")
def test_thousand_concurrent_calls_each_use_one_policy_set() -> None:
    agents = [RecordingAgent(f"Agent {number}", "work") for number in range(MEMBERS + 1)]
    with run_agents(*agents):
        entries = "".join(external(one.name, one.url) for one in agents)
        with run_module_hub([], LIMITS + QUIET + entries) as hub:
            until(lambda: sum(".work" in name for name in tool_names(hub)) == len(agents), 60)
            put(hub, numbered(0))
            for one in agents[:MEMBERS]:
                one.delay = some_seconds
            load = Load(hub, agents)
            asyncio.run(load.run())

            def list_decided() -> dict[str, Any]:
                """The rows of all calls, once each has its outcome."""
                rows = {
                    one["trace"]: one for one in hub.audit() if one.get("trace") in load.answers
                }
                return rows if all("policy_set" in one for one in rows.values()) else {}

            rows = until(list_decided, 60)
    assert len(load.sets) == SWAPS
    assert rows.keys() == load.answers.keys() and len(rows) > CALLERS
    assert_decided_by_one_set(load, rows)
    done = sum(load.answers.values())
    sent = sum(len(one.sent) for one in agents)
    assert sent == done, "what was denied was not sent, what was permitted was sent once"


def assert_decided_by_one_set(load: Load, rows: Mapping[str, Mapping[str, Any]]) -> None:
    used = set()
    for trace, row in rows.items():
        number = load.sets[row["policy_set"]]
        used.add(number)
        own = [id for id in row["policies"] if id.startswith("set-")]
        assert own == [f"set-{number}"], "one set, and no other's policy"
        permitted = number % 2 == 0
        assert row["decision"] == ("permit" if permitted else "deny")
        assert row["outcome"] == ("completed" if permitted else "refused")
        assert load.answers[trace] is permitted, "and the caller was told the same"
    assert used == set(range(SWAPS))
    for number, trace in load.late:
        assert load.sets[rows[trace]["policy_set"]] == number, "in force when it is said so"
