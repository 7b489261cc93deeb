"""An agent with a real small model on this machine answers a question with a tool of the hub.

`make demo-model` runs it: it starts the model's server and a hub in a folder of its own, types the
commands of the transcript, and writes `docs/local-model.md`.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PAGE = ROOT / "docs" / "local-model.md"
TEMPLATE = HERE / "page.md"
MODEL_PYTHON = ROOT / ".venv-localmodel" / "bin" / "python"
CALL_SECONDS = 300
QUESTION = "How many teapots are left?"


@contextmanager
def running_model() -> Iterator[str]:
    """Yields the URL of the model's server."""
    server = subprocess.Popen(
        [str(MODEL_PYTHON), str(HERE / "serve_model.py")], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        url = server.stdout.readline().strip()
        if not url:
            raise SystemExit("the model's server did not start")
        yield url
    finally:
        server.terminate()
        server.wait(30)


class Terminal:
    def __init__(self, home: Path) -> None:
        self.lines: list[str] = []
        self._environment = {**os.environ, "DRAGOMAN_HOME": str(home), "COLUMNS": "150"}
        self._home = home
        self._dragoman = str(Path(sys.executable).parent / "dragoman")

    def type(self, command: str) -> str:
        """Runs a command; it and its output become part of the transcript."""
        words = shlex.split(command)
        done = subprocess.run(
            [self._dragoman, *words[1:]],
            env=self._environment, capture_output=True, text=True, timeout=CALL_SECONDS,
            cwd=ROOT, check=False,
        )  # fmt: skip
        shown = (done.stdout + done.stderr).replace(str(self._home), "~/.dragoman").rstrip()
        self.lines += [f"$ {command}", *(line.rstrip() for line in shown.splitlines())]
        print("\n".join([f"$ {command}", shown]), flush=True)
        if done.returncode:
            raise SystemExit(f"the command ended with {done.returncode}")
        return done.stdout


def write_home(home: Path, url: str) -> None:
    folder = home / "agents" / "clerk"
    folder.mkdir(parents=True)
    manifest = (HERE / "agent.toml").read_text(encoding="utf-8")
    manifest = manifest.replace("http://127.0.0.1:8080/v1", url)
    (folder / "agent.toml").write_text(manifest, encoding="utf-8")
    config = (HERE / "config.toml").read_text(encoding="utf-8")
    config = config.replace('"python3"', f'"{sys.executable}"').replace(
        "examples/", f"{ROOT}/examples/"
    )
    (home / "config.toml").write_text(config, encoding="utf-8")
    for path in (home, folder.parent, folder):
        path.chmod(0o700)


def describe_machine() -> str:
    model = "an unknown processor"
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
    return f"{os.cpu_count()} cores of {model}"


def main() -> None:
    begun, load = time.monotonic(), os.getloadavg()[0]
    with running_model() as url, tempfile.TemporaryDirectory() as folder:
        loaded = time.monotonic() - begun
        home = Path(folder)
        write_home(home, url)
        terminal = Terminal(home)
        terminal.type("dragoman up --detach --port 0")
        try:
            terminal.type("dragoman tools")
            asked = time.monotonic()
            terminal.type(f'dragoman call clerk.message message="{QUESTION}"')
            answered = time.monotonic() - asked
            terminal.type("dragoman audit tail")
            terminal.type("dragoman usage")
        finally:
            terminal.type("dragoman stop")
    transcript = "\n".join(terminal.lines)
    page = TEMPLATE.read_text(encoding="utf-8").format(
        machine=describe_machine(),
        load=load,
        loaded=loaded,
        answered=answered,
        transcript=transcript,
    )
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
