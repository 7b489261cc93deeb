"""What `doctor` says, and what its checks look at."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dragoman.cli.base.files import read_bytes
from dragoman.cli.base.hub_client import (
    ANSWER_SECONDS,
    HubProblem,
    HubUnavailable,
    find_running_hub,
    request_json,
)
from dragoman.config import Config, load, read_env
from dragoman.core.errors import ConfigError
from dragoman.home import Daemon, read_daemon

Level = Literal["ok", "info", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    level: Level
    said: str
    """One sentence: how it is."""
    fix: str = ""
    """What to do about it."""


@dataclass(slots=True)
class DoctorContext:
    """Found out once, before the checks."""

    home: Path
    deep: bool
    config: Config | None = None
    """None where it cannot be used."""
    config_problem: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    """What the env file holds."""
    env_problem: str = ""
    daemon: Daemon | None = None
    """The hub that runs and answers."""
    record: Daemon | None = None
    """What daemon.json says, whoever wrote it."""
    hub_problem: str = ""
    """Why that one does not say how its servers are."""
    servers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the running hub says of each."""
    agents: Mapping[str, Any] = field(default_factory=dict)
    """What it says of agents."""
    pins: Sequence[Mapping[str, Any]] = ()
    """What it holds until somebody approves it."""

    def find_variable(self, name: str) -> str | None:
        """As a hub that is started here would find it."""
        return os.environ.get(name, self.env.get(name))


Check = Callable[[DoctorContext], Iterable[Finding]]


def gather_context(place: Path, deep: bool) -> DoctorContext:
    found = DoctorContext(place, deep)
    try:
        found.config = load(place / "config.toml")
    except ConfigError as error:
        found.config_problem = str(error)
    try:
        found.env = read_env(read_bytes(place / "env"))
    except Exception as error:
        found.env_problem = str(error)
    found.record = read_daemon(str(place))
    found.daemon = find_running_hub(str(place))
    if found.daemon is not None:
        try:
            answer = request_json(
                found.daemon.socket, "GET", "/api/mcp/servers", None, ANSWER_SECONDS
            )
            found.servers = {server["name"]: server for server in answer["connected"]}
            status = request_json(found.daemon.socket, "GET", "/api/status", None, ANSWER_SECONDS)
            found.agents = status.get("agents", {})
        except (HubUnavailable, HubProblem) as error:
            found.hub_problem = str(error)
        with contextlib.suppress(HubUnavailable, HubProblem):  # who may not administer is not told
            for state in ("held", "new"):
                path = f"/api/pins?state={state}"
                pins = request_json(found.daemon.socket, "GET", path, None, ANSWER_SECONDS)
                found.pins = [*found.pins, *pins["pins"]]
    return found
