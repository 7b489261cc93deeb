"""Skills in a running hub: added, changed and removed while it serves, over every protocol."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.live.a2a_hub import SEND, V03, V10, DialectBinding, HubRig, run_a2a_hub
from tests.live.module_hub import text_of, until
from tests.live.test_sandbox import TOOLS_PATH
from tests.peers.process import ROOT, server_entry, wait_until_gone

PROBE = (sys.executable, str(Path(__file__).with_name("probe_server.py")))


@pytest.fixture(scope="module")
def rig() -> Iterator[HubRig]:
    with run_a2a_hub((), [server_entry("probe", "stdio", *PROBE)], env={"PATH": TOOLS_PATH}) as it:
        it.hub.wait_connected("probe")
        yield it


def command(rig: HubRig, *args: str) -> str:
    done = rig.hub.command("skills", *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_skill(folder: Path, name: str, program: str) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "main.sh").write_text(program, encoding="utf-8")
    (folder / "skill.toml").write_text(
        f'[skill]\nname = "{name}"\ndescription = "Shouts."\n[runtime]\ntype = "shell"\n'
        'entry = "main.sh"\n[[tools.provided]]\nname = "shout"\ndescription = "Shouts."\n'
        'input_schema = { properties = { text = { type = "string" } }, required = ["text"] }\n',
        encoding="utf-8",
    )
    return folder


SHOUT = "tr a-z A-Z"


def list_names(rig: HubRig) -> list[str]:
    return [tool["name"] for tool in rig.hub.rpc("tools/list")["result"]["tools"]]


def list_skills(rig: HubRig) -> dict[str, Any]:
    return {one["name"]: one for one in rig.hub.api("/api/skills")["skills"]}


def send(rig: HubRig, binding: DialectBinding, skill: str) -> str:
    message = binding.message({"text": "hello"}, metadata={"skillId": skill})
    reply = binding.ask(rig.hub, SEND, {"message": message})
    assert reply.error is None, reply.error
    return json.dumps(binding.task(reply.value)["artifacts"])


@pytest.mark.promise("T3")
def test_added_skill_is_called_over_every_protocol(rig: HubRig, tmp_path: Path) -> None:
    hub = rig.hub
    command(rig, "add", str(write_skill(tmp_path / "loud", "loud-one", SHOUT)), "--sandbox", "off")
    until(lambda: "skill_loud_one_shout" in list_names(rig))
    expected = '{"TOOL":"SHOUT","INPUT":{"TEXT":"HELLO"}}'
    for name in ("skill_loud_one_shout", "loud-one.shout"):
        assert text_of(hub.call(name, {"text": "hello"})) == expected
    answer = hub.post("/api/tools/loud-one.shout/call", {"arguments": {"text": "hello"}})
    assert answer["content"][0]["text"] == expected and answer["failed"] is False
    for binding in (V10, V03):
        assert "HELLO" in send(rig, binding, "loud-one.shout")
    card = hub.get("/.well-known/agent-card.json").json()
    assert any("shout" in skill["id"] for skill in card["skills"])
    invalid = hub.call("loud-one.shout", {})
    assert "text" in json.dumps(invalid)
    assert list_skills(rig)["loud-one"]["state"] == "used"
    command(rig, "remove", "loud-one")
    until(lambda: "skill_loud_one_shout" not in list_names(rig))
    assert "loud-one" not in list_skills(rig)


@pytest.mark.promise("T3")
def test_changed_skill_disappears_until_it_is_approved(rig: HubRig, tmp_path: Path) -> None:
    command(rig, "add", str(write_skill(tmp_path / "loud", "fickle", SHOUT)), "--sandbox", "off")
    until(lambda: "skill_fickle_shout" in list_names(rig))
    program = rig.hub.home / "skills" / "fickle" / "main.sh"
    program.write_text("echo evil", encoding="utf-8")
    at_once = rig.hub.call("fickle.shout", {"text": "x"})  # the change may not be noticed yet
    assert "evil" not in json.dumps(at_once.get("result", {}).get("content", []))
    until(lambda: "skill_fickle_shout" not in list_names(rig))
    found = list_skills(rig)["fickle"]
    assert found["state"] == "disabled" and "have changed" in found["problem"]
    assert "fickle" in rig.hub.api("/api/status")["skills"]["disabled"]
    assert 'skill "fickle" is not used' in rig.hub.log()
    command(rig, "approve", "fickle", "--yes")
    until(lambda: "skill_fickle_shout" in list_names(rig))
    assert text_of(rig.hub.call("fickle.shout", {"text": "x"})) == "evil"
    command(rig, "remove", "fickle")

    def list_recorded() -> list[str]:
        rows = [row for row in rig.hub.audit() if row.get("verb") == "skill.change"]
        return [how for row in rows for how in ("added", "changed", "removed")
                if "fickle" in row.get(how, ())]  # fmt: skip

    until(lambda: list_recorded() == ["added", "changed", "changed", "removed"])


@pytest.mark.promise("T3")
def test_skill_with_the_name_of_a_server_is_not_used(rig: HubRig, tmp_path: Path) -> None:
    source = write_skill(tmp_path / "loud", "quiet", SHOUT)
    command(rig, "add", str(source))
    folder = rig.hub.home / "skills"
    shutil.copytree(folder / "quiet", folder / "PROBE")
    shutil.copy(folder / "quiet.json", folder / "PROBE.json")
    until(lambda: "PROBE" in list_skills(rig))
    found = list_skills(rig)["PROBE"]
    assert 'its name is that of server "probe"' in found["problem"]
    assert "mcp_probe_run" in list_names(rig)
    for name in ("PROBE", "quiet"):
        command(rig, "remove", name)


def test_policies_know_skills_as_servers(rig: HubRig, tmp_path: Path) -> None:
    command(rig, "add", str(write_skill(tmp_path / "loud", "barred", SHOUT)), "--sandbox", "off")
    until(lambda: "skill_barred_shout" in list_names(rig))
    policies = rig.hub.home / "policies"
    shipped = ROOT / "src" / "dragoman" / "policy" / "shipped" / "default.cedar"
    rule = '@id("barred") forbid (principal, action, resource in Hub::Server::"barred");\n'
    policies.mkdir(mode=0o700)
    for name, text in (("default", shipped.read_text(encoding="utf-8")), ("barred", rule)):
        (policies / f"{name}.cedar").write_text(text, encoding="utf-8")
    until(lambda: "skill_barred_shout" not in list_names(rig))
    refused = rig.hub.call("barred.shout", {"text": "x"})
    assert "HELLO" not in json.dumps(refused) and "error" in json.dumps(refused).lower()
    assert not rig.hub.api("/api/policies").get("problem")
    (policies / "barred.cedar").unlink()
    until(lambda: "skill_barred_shout" in list_names(rig))
    command(rig, "remove", "barred")


@pytest.mark.promise("T3")
def test_example_of_the_documentation_works(rig: HubRig) -> None:
    command(rig, "add", str(ROOT / "examples" / "skills" / "commit-messages"))
    until(lambda: "commit-messages" in list_skills(rig))
    found = list_skills(rig)["commit-messages"]
    assert found["tools"] == [] and found["has_prompt"] and found["runtime"] == "prompt"
    command(rig, "remove", "commit-messages")


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_running_skill_ends_with_the_hub(tmp_path: Path, end: str) -> None:
    """A hub that is killed cannot end anything; the next one on its home does."""
    started = tmp_path / "started"
    with run_a2a_hub((), [], env={"PATH": TOOLS_PATH}) as rig:
        program = f"echo $$ > {started}; exec sleep 600"
        source = write_skill(tmp_path / "slow", "slow", program)
        command(rig, "add", str(source), "--sandbox", "off")
        until(lambda: "skill_slow_shout" in list_names(rig))
        caller = Thread(target=call_quietly, args=(rig, "slow.shout"), daemon=True)
        caller.start()
        pid = int(until(lambda: started.read_text() if started.exists() else ""))
        if end == "stop":
            rig.hub.stop()
        else:
            rig.hub.kill()
        if end == "kill":
            environment = {**os.environ, "PATH": TOOLS_PATH}
            again = [sys.executable, "-m", "dragoman", "tools", "--home", str(rig.hub.home)]
            subprocess.run(again, env=environment, capture_output=True, timeout=60, check=True)
        wait_until_gone([pid])
        caller.join(60)


def call_quietly(rig: HubRig, tool: str) -> None:
    with contextlib.suppress(Exception):
        rig.hub.call(tool, {"text": "x"})
