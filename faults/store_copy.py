"""A home with many records, tasks and agents is copied into PostgreSQL, and its hub continues."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import closing
from pathlib import Path

from tests.live.a2a_hub import Caller, with_key
from tests.live.conftest import RunningHub
from tests.peers import wire
from tests.peers.postgres_server import create_database, run_peer

from dragoman.a2a.config import ExternalAgent
from dragoman.a2a.remote.registration import create_registration, encode_registration
from dragoman.core.ports import TaskChange
from dragoman.core.principal import Principal
from dragoman.stores.audit.log import SqliteAuditLog
from dragoman.stores.registry import RegistryStore
from dragoman.stores.tasks import DatabaseTaskStore
from faults.fixtures import write_agents
from faults.harness import Outcome, running_hub, temporary_home, write_config
from faults.task_store import check_kept

TASKS, RECORDS = 10, 100
"""For each agent. A record is two entries of the log."""
BATCH = 500
OWNER = Principal("key", "mine")


async def _fill_audit(home: Path, records: int) -> None:
    audit = SqliteAuditLog(home)
    for number in range(records):
        seq = audit.intend({"verb": "files.read", "caller": OWNER.label, "number": number})
        audit.conclude(seq, {"outcome": "completed"})
        if number % BATCH == 0:
            await asyncio.sleep(0)
    audit.flush()
    audit.close()


def _fill(home: Path, agents: int) -> list[str]:
    """Copies the one task of the home many times; returns the ids of all."""
    with closing(RegistryStore(home)) as registry:
        for number in range(agents):
            entry = ExternalAgent(
                name=f"agent{number}", url=f"http://127.0.0.1:9/{number}", enabled=False
            )
            registry.save_agent(encode_registration(create_registration(entry, 1.0)))
    with closing(DatabaseTaskStore(home)) as tasks:
        (model,) = tasks.load()
        entries = tuple(tasks.load_entries(model.key))
        ids = [f"task-{number}" for number in range(TASKS * agents - 1)]
        for at in range(0, len(ids), BATCH):
            tasks.save(
                [
                    TaskChange(
                        0, id, model.owner, model.state, model.created, model.updated, model.about,
                        entries,
                    )
                    for id in ids[at : at + BATCH]
                ]
            )  # fmt: skip
    asyncio.run(_fill_audit(home, RECORDS * agents))
    return [*ids, model.id]


def _run(hub: RunningHub, *args: str) -> str:
    done = hub.command(*args, timeout=600)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def copy_large_home(size: int, seed: int, outcome: Outcome) -> None:
    """`size` agents, ten times as many tasks, and a hundred times as many records of the log."""
    with temporary_home() as home, run_peer() as peer:
        limit = f"max_tasks = {2 * TASKS * size}\nmax_tasks_all = {3 * TASKS * size}\n"
        config = f"[a2a]\nenabled = true\n{limit}{write_agents(home, 'quick')}"
        write_config(home, [], config)
        with running_hub(outcome, home) as hub:
            mine = with_key(hub, OWNER.id, "quick")
            mine.send("before the copy")
        ids = _fill(home, size)
        url = create_database(peer.url)
        begun = time.monotonic()
        copied = json.loads(_run(hub, "store", "copy", url, "--json"))
        outcome.figures["seconds of the copy"] = round(time.monotonic() - begun, 1)
        rows = {one["store"]: one["rows"] for one in copied["stores"]}
        outcome.figures["rows"] = sum(rows.values())
        outcome.figures["entries of the audit log"] = 2 * RECORDS * size
        outcome.check(
            (rows.get("tasks") or 0) >= 2 * len(ids), f"{rows.get('tasks')} rows of tasks"
        )
        outcome.check(rows.get("registry") == size, f"{rows.get('registry')} rows of the registry")
        outcome.check(copied["audit"]["problem"] is None, "the audit log was not verified")
        write_config(home, [], f'{config}\n[store]\nurl = "{url}"\n')
        with running_hub(outcome, home) as after:
            same = Caller(after, "quick", mine.headers)
            check_kept(outcome, same, ids, "after the copy")
            state = same.send("after the copy")["status"]["state"]
            outcome.check(state == "TASK_STATE_COMPLETED", f"a task after the copy: {state}")
            answer = wire.get(f"{after.url}/api/a2a/agents/agent{size - 1}", mine.headers)
            outcome.check(answer.status == 200, f"the last agent: {answer.status}")
