"""The everything-servers that the SDKs and the suite test themselves with, run as they are.

The Python SDK's comes with its source distribution. The other two are files of public git
repositories, which stay beside the project; their folders are named in variables.
"""

import contextlib
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from conformance.paths import BUILD, EXAMPLES, NODE, PYTHON, CannotRun
from conformance.processes import Command, free_port, started, wait_for

SOURCES = BUILD / "official"


@dataclass(frozen=True)
class Repository:
    """A git repository that the fixture is a file of."""

    variable: str
    address: str
    file: str


@dataclass(frozen=True)
class Official:
    title: str
    repository: Repository | None = None


OFFICIAL = {
    "python": Official("the Python SDK's everything-server"),
    "typescript": Official(
        "the TypeScript SDK's everything-server",
        Repository(
            "MCP_TYPESCRIPT_SDK",
            "https://github.com/modelcontextprotocol/typescript-sdk",
            "test/conformance/src/everythingServer.ts",
        ),
    ),
    "suite": Official(
        "the suite's own everything-server",
        Repository(
            "MCP_CONFORMANCE",
            "https://github.com/modelcontextprotocol/conformance",
            "examples/servers/typescript/everything-server.ts",
        ),
    ),
}


def how_to_get(name: str) -> str:
    repository = OFFICIAL[name].repository
    assert repository is not None
    return (
        f"{OFFICIAL[name].title} is not here: `git clone {repository.address}` beside the project, "
        f"then name its folder in the variable {repository.variable}"
    )


def is_there(name: str) -> bool:
    repository = OFFICIAL[name].repository
    return repository is None or bool(os.environ.get(repository.variable))


def version_of_fixture(name: str) -> str:
    """The commit of the repository that the fixture is taken from."""
    repository = OFFICIAL[name].repository
    assert repository is not None
    return read_git(name, "rev-parse", "--short", "HEAD").decode().strip()


def read_git(name: str, *arguments: str) -> bytes:
    repository = OFFICIAL[name].repository
    assert repository is not None
    folder = Path(os.environ.get(repository.variable, "")).expanduser().resolve()
    done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, check=False)
    if done.returncode:
        problem = done.stderr.decode("utf-8", "replace").strip()
        raise CannotRun(f"{repository.variable}={folder}: {problem}; {how_to_get(name)}.")
    return done.stdout


def read_command(name: str, port: int) -> tuple[Command, dict[str, str]]:
    """What runs the fixture on a port, and its environment."""
    repository = OFFICIAL[name].repository
    if repository is None:
        package = EXAMPLES / "servers" / "everything-server"
        command: Command = [PYTHON, "-m", "mcp_everything_server", "--port", str(port)]
        return command, {"PYTHONPATH": str(package)}
    SOURCES.mkdir(parents=True, exist_ok=True)
    source = SOURCES / f"{name}.ts"
    source.write_bytes(read_git(name, "show", f"HEAD:{repository.file}"))
    return [NODE, "--import", "tsx", source], {"PORT": str(port)}


@contextlib.contextmanager
def run_official(name: str, label: str) -> Iterator[str]:
    """The URL of a fixture, while it runs."""
    port = free_port()
    command, extra = read_command(name, port)
    url = f"http://localhost:{port}/mcp"
    # Node finds its packages from where the file is, so the file is below `conformance`.
    with started(f"official-{label}", command, extra) as process:

        def answers() -> str:
            try:
                urllib.request.urlopen(url, timeout=2).close()
            except urllib.error.HTTPError:
                pass  # a GET without a session is refused
            return url

        yield wait_for(process, answers)
