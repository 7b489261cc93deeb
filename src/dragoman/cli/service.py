"""`service`: runs the hub as a systemd user unit or a launchd agent."""

from __future__ import annotations

import os
import plistlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from dragoman.cli.base.errors import FAILED, NO_HUB, NOT_FOUND, USAGE, fail, say
from dragoman.cli.base.hub_client import find_running_hub, resolve_home
from dragoman.cli.base.output import clean, find_user_name, home_option, json_option, print_json
from dragoman.cli.configure import list_used_variables

MARK = "Written by `dragoman service install`"
COMMAND_SECONDS = 60.0
STOP_SECONDS = 90
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")

UNIT = """\
# {mark}; `dragoman service uninstall` removes it.
[Unit]
Description=Dragoman hub ({home})
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
ExecStart={command}
# The PATH of the shell at installation: servers are started by npx, uvx and the like.
Environment={path}
Restart=on-failure
RestartSec=2
# Another hub holds the home, or the configuration is invalid.
RestartPreventExitStatus=3 7
KillMode=mixed
# [cluster] drain_secs, and at most ten seconds after that.
TimeoutStopSec={stop_seconds}
UMask=0077

[Install]
WantedBy=default.target
"""


@dataclass(frozen=True, slots=True)
class ServiceDefinition:
    """A service manager's file, and the commands that install and remove it."""

    file: Path
    text: str
    start: tuple[Sequence[str], ...]
    end: tuple[Sequence[str], ...]
    """Run before the file is removed."""
    after: tuple[Sequence[str], ...]
    """Run after the file is removed."""
    state: Sequence[str]


name_option = click.option(
    "--name", default="dragoman", show_default=True, help="Name of the service; one per home."
)


@click.group()
def service() -> None:
    """Run the hub as a service of your user, started at login and restarted after a crash.

    \b
    dragoman service install
    dragoman service status

    Uses a systemd user unit on Linux and a launchd agent on macOS.
    """


@service.command()
@click.option("--print", "only_print", is_flag=True, help="Print the file and change nothing.")
@name_option
@home_option
def install(only_print: bool, name: str, home: str | None) -> None:
    """Write the service file, enable the service and start it.

    \b
    dragoman service install
    """
    place = resolve_home(home)
    made = build_service(name, place)
    if only_print:
        print(f"# {made.file}")
        print(made.text, end="")
        return
    _refuse_foreign(made.file)
    daemon = find_running_hub(place)
    if daemon is not None and not made.file.exists():
        fail(
            f"a hub is already running on {place} (process {daemon.pid}); stop it: dragoman stop",
            NO_HUB,
        )
    _demand_program(made.start[0][0])
    made.file.parent.mkdir(parents=True, exist_ok=True)
    made.file.write_text(made.text, encoding="utf-8")
    print(f"wrote {made.file}")
    for command in made.start:
        _run(command)
    print(f"the hub runs on {place} and starts at each login; see: dragoman status")
    if sys.platform == "linux":
        print(f"to run it without a login: loginctl enable-linger {find_user_name()}")
    if variables := list_used_variables():
        say(f"the service does not inherit {', '.join(variables)}; set them in config.toml")


@service.command()
@name_option
def uninstall(name: str) -> None:
    """Stop the service and remove its file. The home is not changed.

    \b
    dragoman service uninstall
    """
    made = build_service(name, "")
    if not made.file.exists():
        fail(f"not installed: {made.file} does not exist", NOT_FOUND)
    _refuse_foreign(made.file)
    _demand_program(made.end[0][0])
    for command in made.end:
        _run(command)
    made.file.unlink()
    print(f"removed {made.file}")
    for command in made.after:
        _run(command)


@service.command()
@name_option
@json_option
def status(name: str, as_json: bool) -> None:
    """Show whether the service is installed and active. Exits with 3 if it is not active.

    \b
    dragoman service status
    """
    made = build_service(name, "")
    state = ""
    if made.file.exists():
        _demand_program(made.state[0])
        done = subprocess.run(
            made.state, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
        )
        active = done.returncode == 0
        state = ("active" if active else "inactive") if sys.platform == "darwin" else ""
        state = state or done.stdout.strip() or done.stderr.strip() or f"exit {done.returncode}"
    is_active = state == "active"
    if as_json:
        print_json(
            {"installed": bool(state), "active": is_active, "state": state, "file": str(made.file)}
        )
    elif state:
        print(f"{made.file}: {state}")
    else:
        print("not installed; see: dragoman service install")
    if not is_active:
        raise SystemExit(NO_HUB)


def build_service(name: str, place: str, platform: str = sys.platform) -> ServiceDefinition:
    if not NAME.fullmatch(name):
        raise click.BadParameter("use letters, digits, - and _ only", param_hint="--name")
    if not place.isprintable():
        fail(
            f"the path of the home has characters that a service file cannot hold: {clean(place)}",
            USAGE,
        )
    command = [sys.executable, "-m", "dragoman", "up", "--home", place]
    if platform == "linux":
        return _build_unit(name, place, command)
    if platform == "darwin":
        return _build_agent(name, place, command)
    fail(f"no supported service manager on {platform}; run: dragoman up --detach")


def _build_unit(name: str, place: str, command: Sequence[str]) -> ServiceDefinition:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    unit = f"{name}.service"
    text = UNIT.format(
        mark=MARK,
        stop_seconds=STOP_SECONDS,
        home=_escape_percent(place),
        command=" ".join(_quote_argument(word).replace("$", "$$") for word in command),
        path=_quote_argument(f"PATH={os.environ.get('PATH') or os.defpath}"),
    )
    control = ("systemctl", "--user")
    return ServiceDefinition(
        Path(base, "systemd", "user", unit),
        text,
        start=(
            (*control, "daemon-reload"),
            (*control, "enable", unit),
            (*control, "restart", unit),
        ),
        end=((*control, "disable", "--now", unit),),
        after=((*control, "daemon-reload"),),
        state=(*control, "is-active", unit),
    )


def _build_agent(name: str, place: str, command: Sequence[str]) -> ServiceDefinition:
    label = f"hub.{name}"
    file = Path(os.path.expanduser("~/Library/LaunchAgents"), f"{label}.plist")
    agent = {
        "Label": label,
        "ProgramArguments": [*command, "--log-file", os.path.join(place, "hub.log")],
        "EnvironmentVariables": {"PATH": os.environ.get("PATH") or os.defpath},
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 10,
        "ExitTimeOut": STOP_SECONDS,
        "Umask": 0o077,
    }
    text = plistlib.dumps(agent).decode().replace("<plist", f"<!-- {MARK} -->\n<plist", 1)
    domain = f"gui/{os.getuid()}"
    return ServiceDefinition(
        file,
        text,
        start=(("launchctl", "bootstrap", domain, str(file)),),
        end=(("launchctl", "bootout", f"{domain}/{label}"),),
        after=(),
        state=("launchctl", "print", f"{domain}/{label}"),
    )


def _quote_argument(word: str) -> str:
    """Quotes an argument by the rules of systemd.syntax(7)."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_escape_percent(escaped)}"'


def _escape_percent(text: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f]", "", text).replace("%", "%%")


def _refuse_foreign(file: Path) -> None:
    if file.exists() and MARK not in file.read_text(encoding="utf-8", errors="replace"):
        fail(f"{file} was not written by this command; remove it by hand, or use --name")


def _demand_program(program: str) -> None:
    if shutil.which(program) is None:
        fail(
            f"{program} was not found, nothing was changed; print the file with: dragoman service "
            "install --print, or run without a service: dragoman up --detach"
        )


def _run(command: Sequence[str]) -> None:
    print(f"ran {shlex.join(command)}")
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )
    if done.returncode:
        why = done.stderr.strip() or done.stdout.strip() or f"exit {done.returncode}"
        fail(f"{shlex.join(command)} failed: {why}", FAILED)
