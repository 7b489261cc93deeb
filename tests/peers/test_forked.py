"""A forked program must behave as one that `python` starts, in less time."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.peers.forked import ForkedProcess, run_forked, start_process, stdio_command
from tests.peers.process import alive, wait_until_gone

REPORT = """
import json, os, resource, sys
print(json.dumps({
    "argv": sys.argv, "path": sys.path[:2], "cwd": os.getcwd(), "env": dict(os.environ),
    "umask": os.umask(0), "limit": resource.getrlimit(resource.RLIMIT_NOFILE), "name": __name__,
    "input": sys.stdin.read(), "open": sorted(os.listdir("/proc/self/fd"))[:3],
    "group": os.getpgrp() == int(sys.argv[1]),
}))
print("to stderr", file=sys.stderr)
sys.exit(int(sys.argv[2]))
"""
WAIT = "import signal, sys; print('ready', flush=True); signal.pause()"


@pytest.fixture
def script(tmp_path: Path) -> Any:
    def write(text: str, *args: object) -> list[str]:
        file = tmp_path / "program.py"
        file.write_text(text, encoding="utf-8")
        return [sys.executable, str(file), *map(str, args)]

    return write


def test_a_forked_program_sees_what_a_new_interpreter_shows(script: Any, tmp_path: Path) -> None:
    line = script(REPORT, os.getpgrp(), 7)
    how: dict[str, Any] = {
        "cwd": tmp_path,
        "env": {"A": "é", "LC_ALL": "C.UTF-8", "PYTHONPATH": "/x"},
    }
    before, limit = os.umask(0o27), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[0] - 1, limit[1]))
    try:
        plain = subprocess.run(line, capture_output=True, check=False, input=b"in", **how)
        forked = run_forked(line, 20, input=b"in", **how)
        stdio = subprocess.run(
            stdio_command(line), capture_output=True, check=False, input=b"in", **how
        )
    finally:
        os.umask(before)
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    seen = json.loads(plain.stdout)
    assert seen["input"] == "in" and seen["env"]["A"] == "é"
    assert seen["umask"] == 0o27 and seen["limit"][0] == limit[0] - 1
    for one in (forked, stdio):
        assert json.loads(one.stdout) == seen
        assert one.stderr == plain.stderr and one.returncode == plain.returncode == 7


@pytest.mark.parametrize("text", ["raise ValueError('no')", "import sys; sys.exit('no')", "1 / 0"])
def test_an_error_ends_a_forked_program_with_1(script: Any, text: str) -> None:
    done = run_forked(script(text), 20, text=True)
    last = subprocess.run(script(text), capture_output=True, text=True, check=False).stderr
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == last.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_signal_ends_a_forked_program(script: Any, number: signal.Signals) -> None:
    with ForkedProcess(script(WAIT), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        assert child.poll() is None and alive(child.pid)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.05)
        child.send_signal(number)
        assert child.wait(60) == -number and not alive(child.pid)


def test_the_program_ends_with_the_process_that_had_it_forked(script: Any) -> None:
    text = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    with subprocess.Popen(stdio_command(script(text)), stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        forked = int(child.stdout.readline())
        assert forked != child.pid and alive(forked)
        child.kill()
        wait_until_gone([forked])
    with subprocess.Popen(stdio_command(script(text)), stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        os.kill(int(child.stdout.readline()), signal.SIGTERM)
        assert child.wait(60) == -signal.SIGTERM


def test_without_the_server_the_program_is_started_plainly(script: Any) -> None:
    line = stdio_command(script("print('started')"))
    line[4] = "/nowhere/socket"
    assert subprocess.run(line, capture_output=True, check=True).stdout == b"started\n"


def test_variables_that_act_at_the_start_of_an_interpreter_need_one(script: Any) -> None:
    text = "import sys; print(sys.flags.dont_write_bytecode, sys.flags.optimize)"
    for name, flag in (("PYTHONDONTWRITEBYTECODE", b"1 0"), ("PYTHONOPTIMIZE", b"0 1")):
        env = {**{k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}, name: "1"}
        with start_process(script(text), stdout=subprocess.PIPE, env=env) as child:
            assert child.communicate(timeout=60)[0].strip() == flag
