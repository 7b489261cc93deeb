"""Runs `python -m dragoman` in a process with an empty HOME."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from tests.peers import process
from tests.peers.forked import ForkedProcess, run_forked

from dragoman.cli.main import main

DRAGOMAN = [sys.executable, "-m", "dragoman"]
WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class CommandOutput:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Terminal:
    """A user with an empty HOME; `home` is the hub's and does not exist yet."""

    user: Path
    env: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.user / ".dragoman"

    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.user),
            "PYTHONWARNINGS": "error",
            **self.env,
        }

    def run(
        self, *args: str, input: str | bytes = "", cwd: Path | None = None, timeout: float = 60.0
    ) -> CommandOutput:
        """Runs a command to its end and checks that it reports no unexpected error."""
        done = run_forked(
            [*DRAGOMAN, *args],
            timeout,
            input=input.encode() if isinstance(input, str) else input,
            env=self.environment(),
            cwd=cwd or self.user,
        )
        err = done.stderr.decode()
        assert "Traceback" not in err and "DRAGOMAN_DEBUG=1" not in err, err
        return CommandOutput(done.returncode, done.stdout.decode(), err)

    def quick(self, *args: str, input: str = "") -> CommandOutput:
        """The same inside this process, which is ten times faster: beside a hub that runs, or for
        what needs none."""
        out, err = io.StringIO(), io.StringIO()
        with (
            mock.patch.dict(os.environ, self.environment(), clear=True),
            mock.patch.object(sys, "argv", ["dragoman", *args]),
            mock.patch.object(
                sys, "stdin", io.TextIOWrapper(io.BytesIO(input.encode()), encoding="utf-8")
            ),
            contextlib.chdir(self.user),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                code = main()
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else 0
        assert "DRAGOMAN_DEBUG=1" not in err.getvalue(), err.getvalue()
        return CommandOutput(code, out.getvalue(), err.getvalue())

    def start(self, *args: str) -> subprocess.Popen[str]:
        child = ForkedProcess(
            [*DRAGOMAN, *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(),
            cwd=self.user,
        )
        self.started.append(child)
        return child

    def up(self, *args: str) -> dict[str, Any]:
        """A hub that runs until the test ends; what it said of itself."""
        child = self.start("up", "--json", "--quiet", "--port", "0", *args)
        assert child.stdout is not None and child.stderr is not None
        line = child.stdout.readline()
        assert line, child.stderr.read()
        said = dict(json.loads(line))
        assert "error" not in said, said
        return said

    def wait_until_recorded(self, calls: int) -> None:
        """Waits for the outcomes of that many calls, which the hub stores a moment later."""
        until = time.monotonic() + WAIT_SECONDS
        while True:
            lines = self.quick("audit", "tail", "--json").out.splitlines()
            if sum(json.loads(line)["outcome"] != "running" for line in lines) >= calls:
                return
            assert time.monotonic() < until, lines

    def configure(self, *servers: str, config: str = "") -> None:
        self.home.mkdir(mode=0o700, exist_ok=True)
        text = "\n".join([config, *servers])
        (self.home / "config.toml").write_text(text, encoding="utf-8")

    def close(self) -> None:
        for child in self.started:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
        for child in self.started:
            try:
                child.communicate(timeout=WAIT_SECONDS)
            finally:
                child.kill()
        try:
            pid = json.loads((self.home / "daemon.json").read_bytes())["pid"]
        except (FileNotFoundError, NotADirectoryError):
            return
        with contextlib.suppress(ProcessLookupError):  # left by `up --detach`
            os.kill(pid, signal.SIGTERM)
        process.wait_until_gone([pid], WAIT_SECONDS)
