"""The findings of `doctor`, and the context that its checks examine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dragoman.cli.base import hub_client
from dragoman.cli.base.errors import UnreadableFile
from dragoman.cli.base.files import read_bytes
from dragoman.cli.base.token_costs import VIEWS_PATH
from dragoman.config import Config, load, read_env
from dragoman.core.errors import ConfigError
from dragoman.home import DaemonRecord, read_daemon

if TYPE_CHECKING:
    from dragoman.stores.database import StorePlace

Level = Literal["ok", "info", "warning", "problem"]
MAX_WAITING = 100
"""Requests and runs that are counted; more are only said to be more."""


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    level: Level
    said: str
    """The state in one sentence."""
    fix: str = ""
    """How to fix or improve it."""


@dataclass(slots=True)
class DoctorContext:
    """The state that is gathered once, before the checks."""

    home: Path
    deep: bool
    config: Config | None = None
    """None if it is invalid."""
    config_problem: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    """The values in the env file."""
    env_problem: str = ""
    daemon: DaemonRecord | None = None
    """The running hub, if it answers."""
    record: DaemonRecord | None = None
    """The content of daemon.json, possibly stale."""
    hub_problem: str = ""
    """Why the running hub did not report the state of its servers."""
    servers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The states that the running hub reports, by name."""
    agents: Mapping[str, Any] = field(default_factory=dict)
    """The agents that the running hub reports."""
    pins: Sequence[Mapping[str, Any]] = ()
    """Quarantined and new pins of the running hub, and those with minor changes."""
    approvals: Sequence[Mapping[str, Any]] = ()
    """Requests for approval that wait, of the running hub; at most `MAX_WAITING`."""
    undecided: Sequence[Mapping[str, Any]] = ()
    """Runs of the running hub that need a decision; at most `MAX_WAITING`."""

    store_problems: Sequence[str] = ()
    """What the running hub reports of its stores."""
    hubs: Sequence[Mapping[str, Any]] = ()
    """The hubs of the cluster, as the running hub describes them."""

    views: Mapping[str, Any] | None = None
    """The costs of the views of the running hub."""

    store_problem: str = ""
    """Why the stores cannot be opened, once that was tried in vain."""

    @contextlib.contextmanager
    def open_place(self) -> Iterator[StorePlace]:
        """Opens the place of the stores. Raises `ConfigError`; at once if it has failed before: a
        server that hangs costs seconds."""
        from dragoman.app.store_place import open_offline_place

        if self.store_problem:
            raise ConfigError(self.store_problem)
        with contextlib.ExitStack() as stack:
            try:
                place = stack.enter_context(open_offline_place(self.home, self.config))
            except ConfigError as error:
                self.store_problem = str(error)
                raise
            yield place

    def find_variable(self, name: str) -> str | None:
        """Returns a variable as a hub started here would see it."""
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
    except (ConfigError, OSError, UnreadableFile) as error:
        found.env_problem = str(error)
    found.record = read_daemon(str(place))
    found.daemon = hub_client.find_running_hub(str(place))
    if found.daemon is not None:
        _gather_from_hub(found, found.daemon.socket)
    return found


def _gather_from_hub(found: DoctorContext, socket_path: str) -> None:
    def get(path: str) -> Any:
        return hub_client.request_json(socket_path, "GET", path, None, hub_client.ANSWER_SECONDS)

    try:
        servers = get("/api/mcp/servers")["connected"]
        found.servers = {server["name"]: server for server in servers}
        status = get("/api/status")
        found.agents = status.get("agents", {})
        found.store_problems = status.get("store_problems", ())
    except (hub_client.HubUnavailable, hub_client.HubProblem) as error:
        found.hub_problem = str(error)
    # The policies may not permit it.
    with contextlib.suppress(hub_client.HubUnavailable, hub_client.HubProblem):
        found.hubs = get("/api/cluster")["hubs"]
    with contextlib.suppress(hub_client.HubUnavailable, hub_client.HubProblem):
        found.views = get(VIEWS_PATH)
    with contextlib.suppress(hub_client.HubUnavailable, hub_client.HubProblem):
        for state in ("held", "new", "minor"):
            found.pins = [*found.pins, *get(f"/api/pins?state={state}")["pins"]]
    with contextlib.suppress(hub_client.HubUnavailable, hub_client.HubProblem):
        found.approvals = get(f"/api/approvals?state=pending&limit={MAX_WAITING}")["approvals"]
        found.undecided = get(f"/api/runs?state=needs_decision&limit={MAX_WAITING}")["runs"]
