"""More A2A tasks than the hub keeps: finished ones make room in order, unfinished ones do not.

A caller that has all its tasks waiting is refused with a typed error; another caller is served.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.live.a2a_hub import Caller, with_key
from tests.live.conftest import RunningHub
from tests.peers import wire

from faults.fixtures import write_agents
from faults.harness import Outcome, running_hub, temporary_home, write_config

PAGE = 100
EXTRA = 20


def list_ids(caller: Caller) -> list[str]:
    """The ids of all tasks of a caller."""
    found: list[str] = []
    token = ""
    while True:
        page = caller.ask("list", {"pageSize": PAGE, "pageToken": token}).value
        found += [task["id"] for task in page["tasks"]]
        token = page["nextPageToken"]
        if not token:
            return found


def check_kept(outcome: Outcome, caller: Caller, expected: list[str], when: str) -> None:
    found = list_ids(caller)
    outcome.check(
        Counter(found) == Counter(expected),
        f"{when}: {len(found)} tasks are kept, {len(set(found) & set(expected))} of "
        f"{len(expected)} right ones",
    )


def send_to(hub: RunningHub, agent: str, headers: Any) -> tuple[str, str]:
    """The id and state of the new task; no id and the message where it was refused."""
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}
    asked = wire.request(1, "SendMessage", {"message": message})
    sent = {"A2A-Version": "1.0", **headers}
    answer = wire.post(f"{hub.url}/a2a/{agent}", asked, sent, 30).json()
    if "error" in answer:
        return "", f"{answer['error']['code']} {answer['error']['message']}"
    task = answer["result"]["task"]
    return task["id"], task["status"]["state"]


def fill_task_store(size: int, seed: int, outcome: Outcome) -> None:
    """`size` tasks are sent to a store of a fifth of that."""
    limit = size // 5
    with temporary_home() as home:
        config = f"[a2a]\nenabled = true\nmax_tasks = {limit}\nmax_tasks_all = {3 * limit}\n"
        write_config(home, [], config + write_agents(home, "quick", "asking"))
        with running_hub(outcome, home) as hub:
            mine, theirs = with_key(hub, "mine"), with_key(hub, "theirs")
            served = 0

            def serve_other() -> None:
                nonlocal served
                done = send_to(hub, "quick", theirs.headers)[1] == "TASK_STATE_COMPLETED"
                outcome.check(done, "the other caller was refused")
                served += done

            finished = []
            for number in range(size):
                id, state = send_to(hub, "quick", mine.headers)
                outcome.check(state == "TASK_STATE_COMPLETED", f"task {number}: {state}")
                finished.append(id)
                if number % 50 == 0:
                    serve_other()
            outcome.figures["finished tasks"] = size
            check_kept(outcome, mine, finished[-limit:], "after finished tasks")
            waiting = []
            for number in range(limit):
                id, state = send_to(hub, "asking", mine.headers)
                outcome.check(state == "TASK_STATE_INPUT_REQUIRED", f"question {number}: {state}")
                waiting.append(id)
                if number == limit // 2:
                    kept = finished[len(waiting) - limit :]
                    check_kept(outcome, mine, [*kept, *waiting], "between")
            outcome.figures["waiting tasks"] = limit
            check_kept(outcome, mine, waiting, "after waiting tasks")
            for _ in range(EXTRA):
                id, why = send_to(hub, "quick", mine.headers)
                typed = not id and "are unfinished" in why and "-32603" not in why
                outcome.check(typed, f"one more: {id} {why}")
                outcome.count("refused")
                serve_other()
            check_kept(outcome, mine, waiting, "after refusals")
            mine.ask("cancel", {"id": waiting[0]})
            id, state = send_to(hub, "quick", mine.headers)
            outcome.check(state == "TASK_STATE_COMPLETED", f"after a cancel: {state}")
            kept = [*waiting[1:], id]
            check_kept(outcome, mine, kept, "after a cancel")
            outcome.figures["tasks of the other caller"] = served
        with running_hub(outcome, home) as hub:
            again = Caller(hub, "", mine.headers)
            check_kept(outcome, again, kept, "after a restart")
