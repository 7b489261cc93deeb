"""Starting the programs of this folder, and writing the entries by which a hub finds them."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.peers.forked import ForkedProcess, run_forked, stdio_command

HERE = Path(__file__).parent.resolve()
ROOT = HERE.parent.parent
MCP1 = ROOT / ".venv-mcp1" / "bin" / "python"


FORKED = {
    "dual_server",
    "listen_server",
    "matrix_server",
    "mcp1_big_server",
    "mcp1_server",
    "mcp1_talkative_server",
    "sdk_server",
}
"""Servers made with an SDK, whose imports take most of a second."""


def plain_command(program: str, *args: object) -> list[str]:
    """The command line of one of these programs, by absolute paths: it works in any folder."""
    python = str(MCP1) if program.startswith("mcp1") else sys.executable
    return [python, str(HERE / f"{program}.py"), *map(str, args)]


def command(program: str, *args: object) -> list[str]:
    """The same; a server made with an SDK is forked, so it is not the process that is started."""
    line = plain_command(program, *args)
    return stdio_command(line) if program in FORKED else line


def run_client(program: str, *args: object, timeout: float = 60.0) -> dict[str, Any]:
    """What `sdk_client` or `mcp1_client` printed."""
    done = run_forked(plain_command(program, *args), timeout)
    if not done.stdout.strip():
        raise RuntimeError(f"{program} printed nothing; stderr: {done.stderr.decode()}")
    return dict(json.loads(done.stdout))


class HttpPeer:
    """A peer that listens: `url`, `port`; use it with `with`, or `close` it."""

    def __init__(self, program: str, *args: object, timeout: float = 60.0) -> None:
        # An unread pipe would block the peer.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `close`)
        self.process = ForkedProcess(
            plain_command(program, *args), stdout=subprocess.PIPE, stderr=self._stderr
        )
        assert self.process.stdout is not None
        try:
            readable, _, _ = select.select([self.process.stdout], [], [], timeout)
            where = json.loads(self.process.stdout.readline()) if readable else None
        except ValueError:
            where = None
        if where is None:
            self.kill()
            stderr = self.stderr
            self.close()
            raise RuntimeError(f"{program} did not come up; stderr: {stderr}")
        self.port: int = where["port"]
        self.url: str = where["url"]

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stderr(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode("utf-8", "replace")

    def kill(self) -> None:
        """At once, as in a crash."""
        self.process.kill()
        self.process.wait(60)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)  # one that keeps its streams open is killed
            except subprocess.TimeoutExpired:
                self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._stderr.close()

    def __enter__(self) -> HttpPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_log(file: str | Path) -> list[dict[str, Any]]:
    """What a peer wrote to its `--log`; a line that is still being written does not count."""
    path = Path(file)
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _bare(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: value[name] for name in value if name != "_meta"}


def wait_for_log(
    file: str | Path, timeout: float = 60.0, count: int = 1, **wanted: Any
) -> dict[str, Any]:
    """The `count`th entry that has all of `wanted`, once it is there; `_meta` in its params, where
    a trace is, does not count."""
    end = time.monotonic() + timeout
    while True:
        found = [
            entry
            for entry in read_log(file)
            if all(_bare(entry.get(name)) == value for name, value in wanted.items())
        ]
        if len(found) >= count:
            return found[count - 1]
        if time.monotonic() > end:
            seen = [entry.get("method") or entry.get("event") for entry in read_log(file)]
            raise TimeoutError(f"no entry {wanted} in {timeout} s; there are: {seen}")
        time.sleep(0.02)


def list_marked(mark: str) -> list[int]:
    """The processes with the mark of a hub's child in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            variables = (entry / "environ").read_bytes()
        except OSError:
            continue
        if f"DRAGOMAN_CHILD={mark}".encode() in variables and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def alive(pid: int) -> bool:
    """Whether there is such a process, zombies not counted."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_until_gone(pids: list[int], timeout: float = 60.0) -> None:
    end = time.monotonic() + timeout
    while left := [pid for pid in pids if alive(pid)]:
        if time.monotonic() > end:
            raise TimeoutError(f"still there after {timeout} s: {left}")
        time.sleep(0.02)


def processes_at_home(home: str | Path) -> list[int]:
    """Every process whose HOME lies below `home`: the children of a hub, however far they went."""
    prefix = f"HOME={Path(home).resolve()}{os.sep}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or not alive(int(entry.name)):
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if any(variable.startswith(prefix) for variable in environment.split(b"\0")):
            found.append(int(entry.name))
    return found


# --- entries of config.toml


def toml(value: Any) -> str:
    """A value as TOML: JSON's strings, numbers, booleans and lists are TOML's too."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{json.dumps(str(k))} = {toml(v)}" for k, v in value.items())
        return f"{{ {inner} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml(one) for one in value)}]"
    return json.dumps(str(value) if isinstance(value, Path) else value)


def server_entry(
    name: str,
    kind: str,
    *args: object,
    transport: Mapping[str, Any] | None = None,
    **keys: Any,
) -> str:
    """`[[mcp_servers]]` for a peer; `keys` go to the entry, `transport` to its transport.

    `kind` is the program of a stdio peer (`sdk_server`, `mcp1_server`, `faulty_server`), `args` its
    arguments; or `stdio` with any command line; or `http` or `sse` with a URL.
    """
    if kind in ("http", "sse"):
        (url,) = args
        how: dict[str, Any] = {"type": kind, "url": url}
    else:
        line = [str(one) for one in args] if kind == "stdio" else command(kind, *args)
        how = {"type": "stdio", "command": line[0], "args": line[1:]}
    entry = {"name": name, **keys}
    lines = ["[[mcp_servers]]", *(f"{key} = {toml(value)}" for key, value in entry.items())]
    lines += ["[mcp_servers.transport]"]
    lines += [f"{key} = {toml(value)}" for key, value in {**how, **(transport or {})}.items()]
    return "\n".join(lines) + "\n"
