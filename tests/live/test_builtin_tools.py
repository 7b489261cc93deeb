"""The built-in tools of a running hub: agents with a model use them, clients do not see them, and
what they keep survives `kill -9`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.live.bridge_fixture import external
from tests.live.conftest import RunningHub
from tests.live.module_hub import error_kind, until
from tests.live.test_sandbox import TOOLS_PATH, needs_sandbox
from tests.live.test_skills_live import PROBE, write_skill
from tests.peers.process import HttpPeer, server_entry
from tests.peers.scripted_model import ScriptedModel, running_model, say, use

from dragoman.agents.skills.installation import SkillStore

pytestmark = pytest.mark.promise("T2", "G5", "G1")

WORKER = """
name = "worker"
description = "Works"
[model]
model = "scripted-1"
base_url = "{url}"
[capabilities]
tools = ["file_*", "apply_patch", "memory_*", "task_*", "schedule_*", "system_time", "agent_*"]
agents = ["helper"]
shell = ["ls *", "cat *", "touch *"]
memory_read = ["*"]
memory_write = ["*"]
"""
HELPER = """
name = "helper"
[model]
model = "scripted-1"
base_url = "{url}"
[capabilities]
tools = ["system_time"]
agents = ["worker"]
"""
Hub = Callable[..., RunningHub]


def write_agents(home: Path, model: ScriptedModel, more: str = "") -> None:
    home.mkdir(mode=0o700, exist_ok=True)
    for name, text in (("worker", WORKER), ("helper", HELPER)):
        folder = home / "agents" / name
        folder.mkdir(parents=True)
        text = text.replace('"agent_*"]', f'"agent_*"{more}]')
        (folder / "agent.toml").write_text(text.replace("{url}", model.url), encoding="utf-8")


def list_results(model: ScriptedModel) -> list[str]:
    """The results of tools that the model has seen last; a schedule may ask it in between."""
    for request in reversed(model.requests):
        messages = request["messages"]
        if found := [str(one["content"]) for one in messages if one["role"] == "tool"]:
            return found
    return []


def ask(hub: RunningHub, message: str = "go", agent: str = "worker") -> str:
    answer = hub.call(f"{agent}.message", {"message": message})
    return str(answer["result"]["content"][0]["text"])


def list_schedules(hub: RunningHub, agent: str = "helper") -> list[Any]:
    agents = hub.api("/api/agents")["agents"]
    return [one for agent_ in agents if agent_["name"] == agent for one in agent_["schedules"]]


def list_names(hub: RunningHub) -> set[str]:
    return {tool["name"] for tool in hub.rpc("tools/list")["result"]["tools"]}


def test_agent_works_with_its_tools_and_clients_do_not_see_them(hub: Hub, short_tmp: Path) -> None:
    home = short_tmp / "home"
    with running_model() as model:
        running = hub(home=home)
        write_agents(home, model)  # the tools are loaded with the first agent
        until(lambda: "dragoman_agent_worker" in list_names(running))
        model.answers += [
            use(
                ("file_write", {"path": "notes/a.md", "content": "# A\n"}),
                ("memory_store", {"key": "plan", "value": "finish"}),
                ("Read", {"path": "../../config.toml"}),
                ("shell_exec", {"command": "ls"}),
            ),
            use(("file_read", {"path": "notes/a.md"}), ("memory_recall", {"query": "finish"})),
            use(("agent_send", {"agent_id": "helper", "message": "what time is it?"})),
            use(("system_time", {})),
            say("it is late"),
            say("done"),
        ]
        assert ask(running) == "done"
        results = list_results(model)
        offered = {tool["function"]["name"] for tool in model.requests[0]["tools"]}
        assert "file_write" in offered and "web_fetch" not in offered and "Read" not in offered
        assert "shell_exec" not in offered  # it was not granted
        assert "created" in results[0] and "stored" in results[1]
        assert '".."' in results[2] and "there is no tool" in results[3]
        assert results[4] == "# A\n" and "self.plan" in results[5] and "late" in results[6]
        assert not list_names(running) & {"file_read", "builtin.file_read", "system_time"}
        for name in ("file_read", "builtin.file_read", "Read"):
            assert error_kind(running.call(name, {"path": "x"})) == "NotFound"
        (workspace,) = home.rglob("a.md")
        assert workspace.stat().st_mode & 0o077 == 0


def test_operator_opens_tools_to_clients(hub: Hub) -> None:
    running = hub(config='[tools]\nclients = ["system_*", "file_*"]\n')
    assert list_names(running) >= {"system_time", "file_read", "file_write", "file_list"}
    assert not list_names(running) & {"memory_store", "agent_list"}
    assert running.call("system_time")["result"]["structuredContent"]["timeZone"] == "UTC"
    assert "created" in json.dumps(running.call("file_write", {"path": "a", "content": "x"}))
    assert (running.home / "workspaces/clients/a").read_text(encoding="utf-8") == "x"
    failed = running.call("file_read", {"path": "/etc/passwd"})
    assert "is absolute" in json.dumps(failed)


@pytest.mark.promise("B6")
def test_full_tool_set_is_listed_and_called_at_one_endpoint(hub: Hub, short_tmp: Path) -> None:
    home = short_tmp / "home"
    home.mkdir(mode=0o700)
    folder = home / "agents" / "parrot"
    folder.mkdir(parents=True)
    (folder / "agent.toml").write_text('[[script]]\nsay = "parrot: {message}"\n', encoding="utf-8")
    (home / "skills").mkdir(mode=0o700)
    SkillStore(home).install(
        write_skill(short_tmp / "loud", "loud", "tr a-z A-Z"), "loud", sandbox="off"
    )
    with HttpPeer("a2a_skill_agent", "--declare", "JSONRPC:1.0") as agent:
        running = hub(
            home=home,
            config='[tools]\nclients = ["system_time"]\n[a2a]\nenabled = true\n'
            + external("ops", agent.url),
            servers=[server_entry("probe", "stdio", *PROBE)],
        )
        calls = {
            "system_time": ({}, "timeZone"),
            "skill_loud_shout": ({"text": "hi"}, "HI"),
            "mcp_probe_run": ({"code": "found = 6 * 7"}, "42"),
            "dragoman_agent_parrot": ({"message": "hi"}, "parrot: hi"),
            "ops.echo": ({}, "echo:"),
        }
        until(lambda: list_names(running) >= calls.keys())
        for name, (arguments, said) in calls.items():
            answer = running.call(name, arguments)
            assert said in json.dumps(answer["result"]["content"]), answer


def test_memory_queue_and_schedules_survive_a_crash(hub: Hub, short_tmp: Path) -> None:
    home = short_tmp / "home"
    with running_model() as model:
        write_agents(home, model)
        with (home / "agents/helper/agent.toml").open("a", encoding="utf-8") as file:
            file.write('[[schedule]]\ntime = "0 4 * * *"\nmessage = "do the rounds"\n')
        model.rules.append(("do the rounds", say("done")))
        first = hub(home=home, config="[tools]\nlease_secs = 1\n")
        until(lambda: "dragoman_agent_worker" in list_names(first))
        until(lambda: list_schedules(first))
        model.answers += [
            use(
                ("memory_store", {"key": "plan", "value": "kept"}),
                ("task_post", {"title": "T", "description": "D"}),
                ("schedule_create", {"description": "S", "schedule": "daily"}),
            ),
            use(("task_claim", {})),
            say("done"),
        ]
        assert ask(first) == "done"
        first.kill()
        with closing(sqlite3.connect(home / "agents.db")) as db:
            db.execute("UPDATE schedules SET next_at = 1 WHERE source = 'manifest'")
            db.commit()
        second = hub(home=home)
        until(lambda: "dragoman_agent_worker" in list_names(second))

        def claim() -> bool:
            model.answers[:] = [
                use(
                    ("memory_recall", {"key": "plan"}),
                    ("schedule_list", {}),
                    ("task_claim", {}),
                ),
                say("done"),
            ]
            assert ask(second) == "done"
            memory, schedules, task = list_results(model)
            assert memory == "kept" and json.loads(schedules)["schedules"][0]["runs"] == 0
            return task.startswith("{")  # the lease is over

        until(claim)
        until(lambda: list_schedules(second)[0].get("lastOutcome") == "completed")
        assert list_schedules(second)[0]["schedule"] == "0 4 * * *"
        (home / "agents/helper/agent.toml").write_text(HELPER.replace("{url}", model.url))
        until(lambda: not list_schedules(second))


@needs_sandbox
def test_command_of_an_agent_runs_in_a_sandbox(hub: Hub, short_tmp: Path) -> None:
    home = short_tmp / "home"
    with running_model() as model:
        write_agents(home, model, ', "shell_exec"')
        running = hub(home=home, env={"PATH": TOOLS_PATH})
        until(lambda: "dragoman_agent_worker" in list_names(running))
        commands: list[Any] = [
            ["touch", "made.txt"],
            "ls",
            ["cat", str(home / "config.toml")],
            ["touch", "/usr/made.txt"],
            "ls | cat",
            "id",
        ]
        model.answers += [
            *(use(("shell_exec", {"command": command})) for command in commands),
            say("done"),
        ]
        assert ask(running) == "done"
        made, listed, hidden, written, piped, other = list_results(model)
        assert made == "[no output]" and listed == "made.txt\n"
        assert "No such file" in hidden and "Read-only" in written
        assert "shell syntax" in piped and "was not granted" in other
