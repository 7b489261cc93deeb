"""The wheel in its own environment, the image recipe, and the service unit."""

from __future__ import annotations

import ast
import json
import os
import plistlib
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live.module_hub import until
from tests.peers import wire

ROOT = Path(__file__).parent.parent
UV = ROOT / ".boot" / "bin" / "uv"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment in which the wheel is installed. Its dependencies
    are those of the tests; the sources of the checkout cannot be seen from it."""
    folder = tmp_path_factory.mktemp("wheel")
    uv = str(UV) if UV.exists() else shutil.which("uv")
    assert uv is not None, "make test installs uv"
    cache = os.environ.get("UV_CACHE_DIR") or str(ROOT / ".boot" / "cache")
    environment = {**os.environ, "UV_CACHE_DIR": cache, "UV_LINK_MODE": "copy"}

    def run(*args: str) -> bool:
        done = subprocess.run([uv, *args, "-q"], env=environment, cwd=ROOT, check=False)
        return done.returncode == 0

    build = ("build", "--wheel", "-p", sys.executable, "-o", str(folder))
    assert run(*build, "--offline") or run(*build)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    assert run("pip", "install", "--offline", "--no-deps", "-p", str(python), str(wheel))
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return folder / "venv" / "bin"


def run_installed(
    installed: Path, home: Path, *args: str, **more: str
) -> subprocess.CompletedProcess[str]:
    environment = {"HOME": str(home), "PATH": f"{installed}:{os.environ['PATH']}", **more}
    return subprocess.run(
        ["dragoman", *args], env=environment, cwd=home, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip


def test_the_documentation_is_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    where = subprocess.run(
        [installed / "python", "-c", "import dragoman; print(dragoman.__file__)"],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert str(installed.parent) in where.stdout
    listed = run_installed(installed, tmp_path, "docs", "--json")
    pages = {one["name"] for one in json.loads(listed.stdout)}
    assert pages == {
        str(path.relative_to(ROOT / "docs").with_suffix(""))
        for path in (ROOT / "docs").rglob("*.md")
    }
    page = run_installed(installed, tmp_path, "docs", "docs/operations.md")
    assert page.stdout == (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    slip = run_installed(installed, tmp_path, "docs", "operation")
    assert slip.returncode == 5 and 'did you mean "operations"?' in slip.stderr


def test_templates_and_the_demo_are_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    for name in ("assistant", "researcher", "code-reviewer", "script"):
        made = run_installed(installed, tmp_path, "agents", "new", name, "--from", name)
        assert made.returncode == 0, made.stderr
    assert run_installed(installed, tmp_path, "demo", "add").returncode == 0
    asked = run_installed(installed, tmp_path, "chat", "guide", "What is a pin?")
    assert asked.stdout == "Pin: the digest of an approved definition.\n", asked.stderr


def texts(path: Path) -> Iterator[str]:
    """The strings that a program uses, and what commands say in their docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    comments = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        is_used = path.parent.name == "cli" or id(node) not in comments
        if is_used and isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_messages_refer_to_docs_by_an_installed_command() -> None:
    named = set()
    for path in (ROOT / "src").rglob("*.py"):
        for text in texts(path):
            assert not re.search(r"docs/[a-z-]+\.md", text), path
            named |= set(re.findall(r"dragoman docs ([a-z0-9-]+)", text))
    assert named
    assert not [name for name in named if not (ROOT / "docs" / f"{name}.md").exists()]


# --- the image


def instructions() -> list[tuple[str, str]]:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip() and line[0] != "#"]
    return [(line.split()[0], line.partition(" ")[2]) for line in lines]


def test_image_is_built_from_the_checkout_for_its_own_user() -> None:
    found = instructions()
    last = [name for name, _ in found[len(found) - found[::-1].index(next(
        one for one in found[::-1] if one[0] == "FROM")) - 1:]]  # fmt: skip
    assert {"USER", "VOLUME", "HEALTHCHECK", "ENTRYPOINT", "CMD", "EXPOSE"} <= set(last)
    assert [text for name, text in found if name == "USER"] == ["dragoman"]
    bases = [text.split()[0] for name, text in found if name == "FROM"]
    assert bases and all("/" not in base and ":" in base for base in bases)
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    for name, text in found:
        if name == "COPY" and not text.startswith("--from"):
            for source in text.split()[:-1]:
                assert (ROOT / source).exists() and f"!{source}" in ignored, source


def test_image_command_works_with_its_environment(installed: Path, short_tmp: Path) -> None:
    words = " ".join(text for name, text in instructions() if name == "ENV")
    image = dict(pair.split("=", 1) for pair in shlex.split(words))
    assert image.pop("DRAGOMAN_HOME") == "/data" and image.pop("PATH")
    commands = {name: text for name, text in instructions() if name in ("ENTRYPOINT", "CMD")}
    command = json.loads(commands["ENTRYPOINT"]) + json.loads(commands["CMD"])
    assert command[0] == "dragoman"
    health = json.loads(next(text for name, text in instructions() if name == "HEALTHCHECK")
                        .partition(" CMD ")[2])  # fmt: skip
    home = short_tmp / "data"
    environment = {**image, "DRAGOMAN_HOME": str(home), "DRAGOMAN_SERVER__PORT": "0"}
    closed = run_installed(installed, short_tmp, *command[1:], **environment)
    assert closed.returncode == 7 and "needs a key" in closed.stderr
    assert run_installed(installed, short_tmp, *health[1:], **environment).returncode == 3

    compose = (ROOT / "examples" / "docker" / "compose.yaml").read_text(encoding="utf-8")
    servers = re.search(r"DRAGOMAN_MCP_SERVERS: >-\n(.*?\}\}\])", compose, re.DOTALL)
    assert servers and "build: ../.." in compose and "image:" not in compose
    text = servers[1].replace("/examples", str(ROOT / "examples"))
    environment |= {"DRAGOMAN_API_KEY": "k" * 32, "DRAGOMAN_MCP_SERVERS": text}
    with subprocess.Popen(
        command, env={"PATH": f"{installed}:{os.environ['PATH']}", **environment},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as hub:  # fmt: skip
        try:
            until(lambda: (home / "daemon.json").exists(), 60)
            assert run_installed(installed, short_tmp, *health[1:], **environment).returncode == 0
            url = json.loads((home / "daemon.json").read_text(encoding="utf-8"))["url"]
            assert wire.get(f"{url}/healthz", {"Host": "10.0.0.7"}).status == 200
            called = run_installed(
                installed, short_tmp, "call", "hello.greet", "name=World", **environment
            )
            assert "Hello, World!" in called.stdout, called.stderr
        finally:
            hub.terminate()
            lines = (hub.communicate(timeout=60)[1]).splitlines()
    assert hub.returncode == 0
    assert lines and all("time" in json.loads(line) for line in lines)


# --- the service


def test_a_service_is_installed_runs_the_hub_and_is_removed(
    installed: Path, short_tmp: Path
) -> None:
    programs, told = short_tmp / "programs", short_tmp / "told"
    programs.mkdir()
    control = programs / "systemctl"
    control.write_text(f'#!/bin/sh\necho "$@" >> {told}\necho active\n', encoding="utf-8")
    control.chmod(0o755)
    home = short_tmp / 'h 100% "x" $y'
    more = {"PATH": f"{programs}:{installed}:{os.environ['PATH']}", "DRAGOMAN_HOME": str(home)}
    unit = short_tmp / ".config" / "systemd" / "user" / "dragoman.service"

    shown = run_installed(installed, short_tmp, "service", "install", "--print", **more)
    assert shown.returncode == 0 and not unit.exists() and not told.exists()
    absent = run_installed(installed, short_tmp, "service", "status", **more)
    assert absent.returncode == 3 and "not installed" in absent.stdout

    done = run_installed(installed, short_tmp, "service", "install", **more)
    assert done.returncode == 0, done.stderr
    assert str(unit) in done.stdout and "systemctl --user enable dragoman.service" in done.stdout
    text = unit.read_text(encoding="utf-8")
    assert shown.stdout == f"# {unit}\n{text}"
    if shutil.which("systemd-analyze"):
        checked = subprocess.run(
            ["systemd-analyze", "verify", "--user", "--man=no", str(unit)],
            capture_output=True, text=True, env={**os.environ, "XDG_RUNTIME_DIR": str(short_tmp)},
            check=False,
        )  # fmt: skip
        assert "dragoman.service" not in checked.stderr, checked.stderr
    assert run_installed(installed, short_tmp, "service", "status", **more).returncode == 0

    # The command of the unit, as systemd reads it.
    line = re.search("^ExecStart=(.*)$", text, re.MULTILINE)
    assert line
    command = [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(line[1])]
    assert command[-1] == str(home) and Path(command[0]).parent == installed
    path = re.search("^Environment=(.*)$", text, re.MULTILINE)
    assert path and shlex.split(path[1]) == [f"PATH={more['PATH']}"]
    done = run_installed(installed, short_tmp, *command[3:], "--json", "--port", "70000")
    assert done.returncode == 2  # it is the command of this program, and takes its options

    assert run_installed(installed, short_tmp, "service", "uninstall", **more).returncode == 0
    assert not unit.exists()
    assert told.read_text(encoding="utf-8").splitlines() == [
        "--user daemon-reload",
        "--user enable dragoman.service",
        "--user restart dragoman.service",
        "--user is-active dragoman.service",
        "--user disable --now dragoman.service",
        "--user daemon-reload",
    ]
    unit.write_text("[Unit]\n# somebody's own\n", encoding="utf-8")
    refused = run_installed(installed, short_tmp, "service", "install", **more)
    assert refused.returncode == 1 and "was not written by this command" in refused.stderr


def test_launchd_agent_starts_the_same_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from dragoman.cli.service import MARK, build_service

    monkeypatch.setenv("HOME", "/Users/me")
    unit = build_service("dragoman", "/home/me/odd\\", "linux").text
    assert not any(line.endswith("\\") for line in unit.splitlines()), "it would go on"
    with pytest.raises(SystemExit):
        build_service("dragoman", "/home/me/a\nb", "linux")
    made = build_service("dragoman", "/Users/me/.dragoman", "darwin")
    assert made.file == Path("/Users/me/Library/LaunchAgents/hub.dragoman.plist")
    agent = plistlib.loads(made.text.encode())
    assert agent["ProgramArguments"][1:6] == [
        "-m",
        "dragoman",
        "up",
        "--home",
        "/Users/me/.dragoman",
    ]
    assert agent["KeepAlive"] == {"SuccessfulExit": False} and MARK in made.text
    assert made.start[0][:2] == ("launchctl", "bootstrap")


def test_native_windows_gets_an_explanation() -> None:
    code = "import os, sys; os.name = 'nt'; from dragoman.__main__ import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1 and "run it in WSL" in done.stderr and not done.stdout
