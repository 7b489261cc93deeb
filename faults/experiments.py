"""The experiments: what each does to the hub, when it has passed, how large a whole run is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tests.live.conftest import RunningHub

from faults import (
    attacks,
    chaos,
    clients,
    clock,
    console,
    database_away,
    databases,
    descriptors,
    disk,
    failing_statements,
    hub_kills,
    injections,
    kills,
    load,
    logins,
    model_agents,
    openapi,
    parked_runs,
    peers,
    policies,
    reload,
    rolling_upgrade,
    run_kills,
    shared_limits,
    shutdown,
    store_copy,
    takeovers,
    task_store,
    tools_fuzz,
    upstream_fuzz,
)
from faults.bytes_fuzz import fuzz_bytes
from faults.cpu_fuzz import fuzz_cpu
from faults.doors import fuzz_messages
from faults.fixtures import run_costly_hub, run_fuzzed_hub
from faults.harness import Outcome
from faults.message_seeds import DOORS


@dataclass(frozen=True)
class Experiment:
    name: str
    does: str
    passes: str
    run: Callable[[int, int, Outcome], None]
    """Takes the size, the seed and the outcome that it fills."""
    whole: int
    """The size in a whole run."""
    quick: int
    fuzz: Callable[..., None] | None = None
    """Where one case can be run alone: takes a hub and `only`."""
    seeds: int = 1
    """How many seeds a whole run has, one after the other."""


def run_fuzz(fuzz: Callable[..., None], size: int, seed: int, outcome: Outcome) -> None:
    run_case(fuzz, size, seed, outcome, None)


def run_case(
    fuzz: Callable[..., None], size: int, seed: int, outcome: Outcome, only: int | None
) -> None:
    run_hub = run_costly_hub if fuzz is fuzz_cpu else run_fuzzed_hub
    with run_hub(outcome) as hub:
        fuzz(hub, size, seed, outcome, only=only)


def fuzz_one_door(
    door: str, hub: RunningHub, size: int, seed: int, outcome: Outcome, only: int | None = None
) -> None:
    fuzz_messages(hub, door, size, seed, outcome, only)


def build_fuzz(name: str, does: str, fuzz: Callable[..., None], whole: int) -> Experiment:
    return Experiment(
        name, does,
        "0 hangs, 0 HTTP 500, 0 errors -32603, 0 tracebacks; /healthz answers meanwhile",
        partial(run_fuzz, fuzz), whole, 2_000, fuzz,
    )  # fmt: skip


FUZZED_MESSAGES = 100_000

UNAFFECTED = (
    "another caller's p99 is at most 1.25 times the larger of that before and that while the "
    "attacker is busy elsewhere, and again so within 10 s; less than 256 MB more"
)
NEIGHBOUR = (
    "all calls of a neighbour are served, half of them within 0.1 s and ten times what they took "
    "before (p99 is not judged)"
)

EXPERIMENTS = [
    build_fuzz(
        "bytes at HTTP",
        "every method with every form of upgrade, and requests changed byte by byte",
        fuzz_bytes,
        FUZZED_MESSAGES,
    ),
    *(
        build_fuzz(
            f"messages: {door}",
            "well-formed messages, changed in structure and in bytes",
            partial(fuzz_one_door, door),
            FUZZED_MESSAGES,
        )
        for door in DOORS
    ),
    *(
        Experiment(
            f"upstream: {upstream}",
            "a server or agent whose answers are changed in structure and in bytes",
            "0 hangs, 0 HTTP 500, 0 tracebacks; it is used again when it answers well",
            partial(upstream_fuzz.fuzz_upstream, upstream), FUZZED_MESSAGES, 2_000,
        )
        for upstream in upstream_fuzz.UPSTREAMS
    ),
    Experiment(
        "upstream: MCP lists",
        "a server whose handshake and lists are others at every connection, changed in structure "
        "and in bytes",
        "0 hangs, 0 HTTP 500, 0 tracebacks; another server is used meanwhile; it is used when it "
        "answers well",
        upstream_fuzz.fuzz_lists, 10_000, 300,
    ),
    Experiment(
        "upstream: A2A cards",
        "agents whose card is another one at every fetch, changed in structure and in bytes",
        "0 hangs, 0 HTTP 500, 0 tracebacks; another agent is used meanwhile",
        upstream_fuzz.fuzz_cards, 20_000, 500,
    ),
    Experiment(
        "CPU of requests",
        "64 KB of head or query to every open path, up to 3 MB of body to every operation of the "
        "API, of MCP (HTTP, SSE) and A2A (JSON-RPC, REST, gRPC), to the pages of the authorization "
        "server, to a webhook and to a tool with a costly schema, in 12 to 40 shapes each",
        "no request takes the event loop more than 5 times the CPU of an ordinary one of its size",
        partial(run_fuzz, fuzz_cpu), 6_000, 300, fuzz_cpu,
    ),
    Experiment(
        "OpenAPI document",
        "requests made from the document by Schemathesis, valid and invalid ones",
        "0 HTTP 500; every status, content type and body is documented; what violates a schema is "
        "refused; without a key only public operations work",
        openapi.check_api, 150, 10,
    ),
    Experiment(
        "built-in tools: files",
        "paths and patches made of pieces that mean something to a file system, while a thread "
        "replaces a folder of the workspace by a link to the outside",
        "nothing outside the workspace is read or changed; every refusal is a typed error",
        tools_fuzz.fuzz_files, 10_000, 1_000,
    ),
    Experiment(
        "built-in tools: commands",
        "argument lists and lines made of words that mean something to a shell",
        "what is granted is one of the granted programs, in whole words; no shell syntax passes",
        tools_fuzz.fuzz_commands, 10_000, 1_000,
    ),
    Experiment(
        "kill -9: tasks",
        "killed under A2A load and while it starts",
        "every acknowledged task is there, none is left at work, none runs twice",
        kills.kill_tasks, 60, 5,
    ),
    Experiment(
        "kill -9: workflow runs",
        "killed during runs of six steps with a fan-out, an approval and a task that takes long",
        "every run ends as if nothing had happened or stops at a decision; agents saw each step "
        "that is not repeatable at most once; nothing is left running",
        run_kills.kill_runs, 100, 5,
    ),
    Experiment(
        "kill -9: hubs of a cluster",
        "one of three hubs killed and started again at once, under MCP calls, streams and tasks, "
        "A2A messages and streams, runs, schedules of workflows and a client at its rate limit, "
        "which a balancer spreads",
        "no session is lost, every acknowledged task and run is readable and has ended, each "
        "answered call has its effect, no call, message or step is made twice, streams are resumed "
        "without a lost or doubled event, each time of a schedule has one run within 10 s, at most "
        "1.2 times the limit is admitted, load goes on",
        hub_kills.kill_hubs, 20, 1,
    ),
    Experiment(
        "cluster chaos",
        "three hubs with the default lease, under MCP calls, A2A messages with idempotency keys, "
        "conversations, runs, approvals, registrations, changes of policies and schedules of "
        "workflows and agents, ten minutes for each of three seeds, in a random order: hubs are "
        "paused for 1 to 30 s, killed, stopped, "
        "cut off from PostgreSQL, Valkey and each other (closed, hanging, late by 0.7 s); rows of "
        "each table are locked for a second; the clock of PostgreSQL steps by 10 s, ahead and back",
        "no acknowledged task, run, approval, registration or policy is lost or differs at a hub; "
        "runs end as completed, tasks and approved calls as completed or interrupted; by a ledger "
        "outside of the hubs, each answered call and each step that was not skipped has its effect "
        "and nothing has two; no time of a schedule is fired twice, none of a workflow is left "
        "out, and agents are asked every four minutes at least; each idempotency key can be used "
        "again and has its task; all hubs are ready, list keys and store a message, an approval, a "
        "registration and a run within 10 s after the last fault, and none says so for longer "
        "while it cannot; no traceback, no text of a complaint more than twice from one fault to "
        "the next, or in each whole minute until then (that of an event loop that was held is left "
        "out); the audit logs verify",
        chaos.cause_chaos, 600, 60, seeds=3,
    ),
    Experiment(
        "failing statements",
        "each statement that one of two hubs sends to PostgreSQL under the same load fails with "
        "55P03, 57014, 40P01 and 40001, is answered 3 s late, or finds its connection closed, "
        "before and after the server has executed it; statements of timers of more than some "
        "seconds, and those of logins, users and pins, are left out; then 40 starts, with a fault "
        "at one statement of each (none of the errors at COMMIT)",
        "each time, the hub is ready and does what it does after cluster chaos within 10 s, 20 s "
        "after a start; at the end as with cluster chaos",
        failing_statements.fail_statements, 5_000, 20,
    ),
    Experiment(
        "rolling upgrade",
        "three hubs stopped by SIGTERM and replaced, one after the other, under clients of both "
        "eras and A2A messages; a balancer follows /readyz, and in each second round only refused "
        "connections",
        "no request fails, each answer is right, each message is carried out once",
        rolling_upgrade.upgrade_hubs, 6, 1,
    ),
    Experiment(
        "rolling upgrade: two versions",
        "the same to hubs of the previous version, and back to this one, in a random order",
        "no request fails, each answer is right, each message is carried out once",
        rolling_upgrade.upgrade_versions, 4, 1,
    ),
    Experiment(
        "parked workflow runs",
        "runs whose agent works for long; the hub is killed and started again",
        "parked steps hold no connections and little memory; the next hub polls each at a measured "
        "pace, and all end; the agent got each message once",
        parked_runs.park_runs, 500, 20,
    ),
    Experiment(
        "takeover of many tasks",
        "the store of one hub takes over the A2A tasks that the store of another one has written, "
        "some of them damaged, in one process; nothing is written meanwhile",
        "all others are taken over, those that ran have failed, and the event loop is never busy "
        "for more than a second at a time",
        takeovers.take_over_tasks, 10_000, 1_000,
    ),
    Experiment(
        "power failure: workflow runs",
        "killed during the same runs; then `runs.db` has only what was synced to the disk",
        "the same; of a run that is lost, no step was executed",
        run_kills.lose_power, 40, 3,
    ),
    Experiment(
        "kill -9: calls",
        "killed under calls, registrations and changes of policies, and while it starts",
        "nothing acknowledged is lost, nothing is executed twice, each effect has an intent in "
        "the audit, which verifies",
        kills.kill_calls, 60, 5,
    ),
    Experiment(
        "kill -9: agents",
        "killed while fifty agents with a model run: they ask it, wait for it and call a tool",
        "every task is completed or failed as interrupted, no tool call is made twice, no child "
        "is left, usage has every answer, the audit verifies",
        model_agents.kill_agents, 40, 3,
    ),
    Experiment(
        "disk full",
        "its disk is full under load, is freed, is full at a start",
        "writes are refused, reads go on, it heals by itself, nothing acknowledged is lost",
        disk.disk_full, 3, 1,
    ),
    Experiment(
        "disk read-only",
        "its disk is read-only at a start",
        "the start is refused with a message that names the home; works afterwards",
        disk.disk_read_only, 1, 1,
    ),
    Experiment(
        "files that cannot grow",
        "a limit of the file size stops every file from growing",
        "as with a full disk",
        disk.limit_file_size, 3, 1,
    ),
    Experiment(
        "failing file operations",
        "the k-th write, sync, rename or open of a call and of a send fails: EIO, ENOSPC, one or "
        "40 in a row, for every k",
        "what is answered is kept, what is refused did not happen, nothing runs twice, it heals "
        "by itself, the audit verifies",
        disk.fail_operations, 30, 3,
    ),
    Experiment(
        "slow disk",
        "every fsync takes 300 ms",
        "no call and no task is refused",
        disk.slow_disk, 15, 3,
    ),
    Experiment(
        "clock jumps",
        "the wall clock of a single hub with SQLite jumps by hours and days, and is 100 days ahead "
        "at a start",
        "timeouts hold, calls and tasks go on, the audit verifies and loses no record",
        clock.jump, 7, 2,
    ),
    Experiment(
        "few descriptors",
        "a crowd takes all of 64, 96 and 256 descriptors",
        "who is connected is served, it does not spin, it heals, children restart",
        descriptors.exhaust_descriptors, 3, 1,
    ),
    Experiment(
        "locked databases",
        "another program holds each store for a second under load",
        "reads go on, calls answer or are refused, nothing acknowledged is lost, it heals",
        databases.lock_stores, 6, 2,
    ),
    Experiment(
        "damaged databases",
        "each store is missing, empty, cut in half, a directory, or has a quarter of each page or "
        "its header overwritten, at a start",
        "the start is refused and names the file (without dispatches.db it may start); nobody "
        "gets in without a key and no changed definition is offered",
        databases.damage_stores, 36, 4,
    ),
    Experiment(
        "lost databases",
        "each store is deleted or replaced while it runs",
        "it acknowledges no write to it, nothing opens, the next start names it",
        databases.delete_stores, 10, 2,
    ),
    Experiment(
        "Redis away",
        "two hubs, which are no cluster, share their rate limits in Valkey, which is killed, "
        "stopped for 30 s, slow by 200 ms, or emptied",
        "no request is lost; p99 is at most 60 ms above that of requests that are not charged; "
        "both hubs together admit at most twice the limit while it is away; they use it again "
        "within 5 s after its return, except that nothing returns if it is emptied",
        shared_limits.lose_redis, 30, 2,
    ),
    Experiment(
        "PostgreSQL away",
        "calls, also forwarded ones, and messages go to two hubs while their PostgreSQL server as "
        "a whole is stopped or paused for 10 s, or restarted; nearly all are refused then",
        "each request is answered or refused within 2 s, except calls that were running before "
        "/readyz failed: their results come once their labels can be stored; each answered call "
        "has one effect and no call has two; no hub is declared dead; all is served within 5 s "
        "after the server is back, without a restart",
        database_away.lose_database, 10, 2,
    ),
    Experiment(
        "misbehaving servers",
        "children that die, hang, flood, answer wrongly, print garbage, are killed",
        f"each call gets an answer or a typed error, {NEIGHBOUR}, no zombie, no leak",
        peers.misbehaving_servers, 20, 1,
    ),
    Experiment(
        "misbehaving HTTP servers",
        "servers that hang, reset, drip, redirect for ever, compress bombs, send pages, 100 MB, "
        "or less or more than they say; 24 ways",
        "each call gets its answer or a typed error in its time and takes less than 20 MB, "
        f"{NEIGHBOUR}, no leak",
        peers.misbehaving_http_servers, 5, 1,
    ),
    Experiment(
        "misbehaving agents",
        "agents whose streams flood, hang, have only comments, or break off",
        f"each call gets an answer or a typed error in its time, {NEIGHBOUR}",
        peers.misbehaving_agents, 10, 1,
    ),
    Experiment(
        "console at scale",
        "every screen is opened in a browser, with 10,000 tools, 1,000 agents and many records",
        "each can be used within a second (median of five), and reports no error",
        console.open_screens, 100_000, 2_000,
    ),
    Experiment(
        "agents: model faults",
        "fifty agents at once whose model hangs, drops, limits the rate, sends garbage, too much "
        "or nothing, invents tools, malforms arguments, asks for 120 calls, loops; 17 ways",
        "each message is answered, or refused with the reason, within 45 s; one fault is "
        "survived, no request to the model is left, each message is in the audit",
        model_agents.fail_models, 20, 1,
    ),
    Experiment(
        "users with logins",
        "six users call one server, in each era, while their tokens expire and they log out and in",
        "every call leaves with the token of its user, once; no session has two users",
        logins.interleave_users, 1_000, 100,
    ),
    Experiment(
        "overload by one caller",
        "one key keeps 40 calls going where 20 are allowed",
        "all calls of another key are served, every refusal is typed",
        clients.flood_with_calls, 20, 3,
    ),
    Experiment(
        "slow connections",
        "2,000 heads that come line by line, 2,000 silent connections, 500 bodies that come byte "
        "by byte, each opened again when it is closed",
        f"each is closed within its time; {UNAFFECTED}",
        attacks.slow_connections, 2_000, 100,
    ),
    Experiment(
        "many values",
        "20 senders of one key send bodies of 9.9 MB of {}, 20 a second",
        UNAFFECTED,
        attacks.many_values, 4, 1,
    ),
    Experiment(
        "request bombs",
        "20 senders of one key send bodies of 200 KB that inflate to 200 MB, 20 a second",
        UNAFFECTED,
        attacks.request_bombs, 4, 1,
    ),
    Experiment(
        "response bombs",
        "10 callers of a server whose answers of 200 KB inflate to 200 MB, 20 a second",
        UNAFFECTED,
        attacks.response_bombs, 4, 1,
    ),
    Experiment(
        "answers without end",
        "servers that answer with 4 streams of 5 MB/s of events, 2 bodies of 50 MB/s, 100 bodies "
        "of 1 MB/s, none of which ends",
        UNAFFECTED,
        attacks.drips, 3, 1,
    ),
    Experiment(
        "overload",
        "one key offers five times as many calls as it may have at once",
        "refusals say when to try again, at least 80 % of the calls that were served before are "
        f"served meanwhile and all after it; {UNAFFECTED}",
        attacks.overload, 4, 1,
    ),
    Experiment(
        "steady load",
        "50 callers send 300 requests a second for 90 s, a fifth of them calls of 5 ms",
        "no answer is wrong or missing; the hub adds at most 5 ms (p50) and 50 ms (p99); memory "
        "grows by less than 1 MB a minute",
        load.steady_load, 90, 5,
    ),
    Experiment(
        "coming and going",
        "clients of every transport connect, call and leave, politely or not, while config.toml "
        "is edited",
        "descriptors and children are as before, memory at most 1.1 times that after a third, "
        "the audit verifies",
        load.soak, 40, 2,
    ),
    Experiment(
        "shutdown",
        "SIGTERM twice with 50 calls in flight, half of which never end, and 10 open streams",
        "every call is answered and has an outcome in the audit; it ends within 10 s with 0 and "
        "leaves no child",
        shutdown.end_under_load, 3, 1,
    ),
    Experiment(
        "unfinished bodies",
        "300 bodies of 9.9 MB by one key without their last byte, 150 at once",
        "less than 512 MB of memory; an ordinary caller is served",
        clients.unfinished_bodies, 300, 40,
    ),
    Experiment(
        "full task store",
        "five times as many A2A tasks as it keeps, then as many that wait for an answer",
        "finished tasks go, the oldest first, waiting ones stay, refusals are typed, another "
        "caller is served, the same tasks are there after a restart",
        task_store.fill_task_store, 5_000, 500,
    ),
    Experiment(
        "copy to PostgreSQL",
        "a home with a thousand agents, ten times as many tasks and a hundred times as many "
        "records in the audit log is copied",
        "the counts are equal, the audit log verifies, the hub continues with the same tasks",
        store_copy.copy_large_home, 1_000, 20,
    ),
    Experiment(
        "changing policies",
        "5,000 policies, broken files, empty ones and none, under calls",
        "a broken file changes nothing, what no policy permits is refused, what is permitted is "
        "served all the while",
        policies.change_policies, 4_900, 500,
    ),
    Experiment(
        "injected instructions",
        "an agent obeys every instruction in web pages, files, conversations and other agents, in "
        "four encodings; definitions change after their approval",
        "no command runs and no secret leaves by an injected call; no changed text of a "
        "definition is listed, and each but a title is quarantined; no everyday call is refused",
        injections.inject, 160, 8,
    ),
    Experiment(
        "live reload",
        "config.toml is edited while servers start, a quarter of the files broken",
        "good files are applied, broken ones change nothing, a server that stays serves every "
        "call, no process is left",
        reload.edit_configuration, 200, 20,
    ),
]  # fmt: skip
