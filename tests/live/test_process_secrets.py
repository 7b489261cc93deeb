"""What a hub's process keeps from the programs that it starts: descriptors, secrets, core dumps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.live.conftest import DRAGOMAN, RunningHub
from tests.live.module_hub import text_of
from tests.peers.process import server_entry

from dragoman.agents.skills.installation import SkillStore
from dragoman.app.secret_variables import list_secret_variables
from dragoman.config import parse

PROBE = (sys.executable, str(Path(__file__).with_name("probe_server.py")))
OPEN_FILES = (
    "import os\n"
    "found = [os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')"
    " if os.path.exists(f'/proc/self/fd/{fd}')]"
)
ENVIRONMENT = "import os; found = dict(os.environ)"
CORE = "import resource; found = resource.getrlimit(resource.RLIMIT_CORE)"


def run_code(hub: RunningHub, server: str, code: str) -> Any:
    return json.loads(text_of(hub.call(f"{server}.run", {"code": code})))


@pytest.mark.promise("B10")
def test_server_inherits_only_its_pipes_and_named_secrets(hub: Callable[..., RunningHub]) -> None:
    entries = [
        server_entry("named", "stdio", *PROBE, env=["CANARY"]),
        server_entry("other", "stdio", *PROBE),
    ]
    running = hub(entries, env={"CANARY": "canary-value"})
    running.wait_connected("named", "other")
    for server in ("named", "other"):
        opened = [name for name in run_code(running, server, OPEN_FILES) if "/proc/" not in name]
        assert len(opened) == 3 and all(name.startswith("pipe:") for name in opened), opened
        assert run_code(running, server, CORE) == [0, 0]
    assert run_code(running, "named", ENVIRONMENT)["CANARY"] == "canary-value"
    assert "canary-value" not in json.dumps(run_code(running, "other", ENVIRONMENT))
    # A server that is added later gets a variable that was removed from the environment before.
    config = running.home / "config.toml"
    config.write_text(
        config.read_text() + server_entry("late", "stdio", *PROBE, env=["CANARY", "LANG"])
    )
    running.wait_connected("late")
    assert run_code(running, "late", ENVIRONMENT)["CANARY"] == "canary-value"


HOST = """
import json, os, pathlib, subprocess, sys, threading
from dragoman.app.run import run
stop, seen = threading.Event(), {}
def ready(parts):
    inherited = subprocess.run(["env"], capture_output=True, text=True).stdout
    seen.update(own=sorted(os.environ), inherited=inherited)
    seen.update(skills=parts.live.variables["WEATHER_KEY"])
    stop.set()
run(pathlib.Path(sys.argv[1]), ready, stop=stop)
print(json.dumps(seen))
"""


@pytest.mark.promise("B10")
def test_hub_removes_secrets_from_its_environment(short_tmp: Path) -> None:
    home = short_tmp / "h"
    home.mkdir(mode=0o700)
    config = home / "config.toml"
    config.write_text(
        "[server]\nport = 0\n"
        + server_entry("stdio", "stdio", *PROBE, env=["CANARY", "LANG"], enabled=False)
        + server_entry("http", "http", "https://example.org/mcp", enabled=False,
                       transport={"headers": {"Authorization": "Bearer ${BEARER}"}})
    )  # fmt: skip
    config.chmod(0o600)
    skill = short_tmp / "weather"
    skill.mkdir()
    (skill / "SKILL.md").write_text("---\nname: weather\ndescription: d\n---\nText.\n")
    (home / "skills").mkdir(mode=0o700)
    SkillStore(home).install(skill, "weather", env=("WEATHER_KEY", "LANG"))
    secrets = {"CANARY": "c-1", "BEARER": "b-2", "DRAGOMAN_AGENT_X": "a-3", "WEATHER_KEY": "w-5"}
    secrets["DRAGOMAN_API_KEY"] = "k" * 40
    env = {**os.environ, **secrets, "LANG": "C.UTF-8", "PLAIN": "p-4"}
    done = subprocess.run(
        [sys.executable, "-c", HOST, str(home)],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert not set(secrets) & set(seen["own"])
    assert {"LANG", "PLAIN", "PATH"} <= set(seen["own"]) and seen["skills"] == "w-5"
    assert not any(value in seen["inherited"] for value in secrets.values())


def test_variables_stay_where_operator_code_may_read_them() -> None:
    server = server_entry("s", "stdio", *PROBE, env=["CANARY", "HTTPS_PROXY", "HOME"])
    names = ["CANARY", "HTTPS_PROXY", "HOME", "UNRELATED"]
    assert list_secret_variables(parse(server), names) == ["CANARY"]
    agent = '[[agents]]\nname = "a"\nfunction = "mine:answer"\n'
    assert list_secret_variables(parse(agent + server), names) == []


@pytest.mark.promise("B10")
def test_package_without_a_version_is_reported(short_tmp: Path) -> None:
    home = short_tmp / "h"

    def dragoman(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*DRAGOMAN, *args, "--home", str(home)] if args[0] == "doctor" else
            [*DRAGOMAN, *args[:2], "--home", str(home), *args[2:]],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    added = dragoman("servers", "add", "--no-connect", "loose", "npx", "-y", "some-package")
    assert 'npx runs any published version of "some-package"' in added.stdout, added
    pinned = dragoman("servers", "add", "--no-connect", "tight", "uvx", "some-package==1.2.3")
    assert "any published version" not in pinned.stdout
    findings = dragoman("doctor").stdout
    assert findings.count("any published version") == 1
    assert "write the version that you have checked: some-package@VERSION" in findings


def test_secrets_of_identity_providers_leave_the_environment() -> None:
    config = parse(
        '[auth.introspection]\nissuer = "https://a.example"\nurl = "https://a.example/i"\n'
        'client_id = "hub"\nclient_secret = "env:ONE"\n[auth.server]\nenabled = true\n'
        '[auth.server.oidc]\nissuer = "https://b.example"\nclient_id = "hub"\n'
        'client_secret = "env:TWO"\n'
    )
    assert list_secret_variables(config, ["ONE", "TWO", "THREE"]) == ["ONE", "TWO"]


def test_secret_of_introspection_is_a_secret_variable() -> None:
    url = "https://login.example.com"
    table = f'[auth.introspection]\nissuer = "{url}"\nurl = "{url}"\nclient_id = "hub"\n'
    config = parse(table + 'client_secret = "env:HUB_SECRET"\n')
    assert list_secret_variables(config, ["HUB_SECRET", "OTHER"]) == ["HUB_SECRET"]
