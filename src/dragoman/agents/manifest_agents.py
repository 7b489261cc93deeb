"""The agents of a home that have a manifest: loads them, follows their files, starts and ends them.

Implements `core.local_agents.AgentDirectory`. A manifest that is invalid leaves its agent as it
was; the others are not touched.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Set
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from dragoman.core.catalog import Catalog
from dragoman.core.errors import ConfigError, InvalidInput, NotFound
from dragoman.core.local_agents import AgentProfile, AgentProfiles
from dragoman.core.principal import Principal
from dragoman.core.structs import replace
from dragoman.core.tool import Target, Tool

if TYPE_CHECKING:  # a hub without agents does not load what reads manifests
    from dragoman.agents.manifest import LoadedManifest, Manifest

log = logging.getLogger(__name__)

FILES = ("agent.toml", "agent.json")
"""The manifest of an agent: the first that its folder has."""
FOLDER = "agents"
"""The folder of the agents in the home."""
PATTERNS = (
    "tools", "servers", "skills", "agents", "shell", "network", "memory_read", "memory_write",
)  # fmt: skip
"""The fields of a profile that are patterns."""
SPAWNED = "spawned"
"""The folder of the agents that an agent has started, in its own."""
MAX_SPAWNED = 50
"""Agents that others have started."""
WATCH_SHARE = 0.005
"""Of the time, that the manifests may be watched."""
LONGEST_PAUSE = 5.0
"""Seconds between two checks of the manifests, with however many agents."""
FileState = tuple[str, tuple[int, int, int] | None]
"""The path of a manifest, and its time of change, size and inode; None to have it read again."""


class LocalAgent(Target, Protocol):
    """An agent that runs in the hub."""

    @property
    def tool(self) -> Tool: ...

    def end(self) -> None:
        """Cancels its running calls; their callers get an error."""

    def close(self) -> None:
        """Releases what it holds; running calls continue."""


BuildAgent = Callable[["LoadedManifest", AgentProfile], LocalAgent]
"""Builds the agent of a manifest; raises `ConfigError`."""


class ManifestAgents:
    def __init__(
        self,
        home: Path,
        catalog: Catalog,
        agents: MutableMapping[str, LocalAgent],
        profiles: AgentProfiles,
        build: BuildAgent,
        find_objection: Callable[[str], str | None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`agents` are all local agents by name, to which these are added. `find_objection` says
        why no agent can have a name, if so."""
        self._home = home
        self._catalog = catalog
        self._agents = agents
        self._build = build
        self._find_objection = find_objection
        self._profiles = profiles
        self._clock = clock
        self._next_check = 0.0
        self._files: dict[str, FileState] = {}
        """The manifest of each folder, and what it was when it was read."""
        self._manifests: dict[str, Manifest] = {}
        self._names: dict[str, str] = {}
        """The agent of each folder."""
        self._older: dict[str, WeakSet[LocalAgent]] = {}
        """The agents that were replaced by others of their name, as long as they have calls."""
        self.failures: dict[str, str] = {}
        """Why the manifest of a folder is not in force."""

    # --- manifests --------------------------------------------------------------------------------

    def check(self) -> list[str]:
        """Loads manifests that are new or have changed, and removes agents whose manifest is gone.
        Returns the folders that have changed."""
        found = _read_states(self._home / FOLDER)
        changed: list[str] = []
        for folder in [one for one in self._files if one not in found]:
            changed.append(folder)
            del self._files[folder]
            self.failures.pop(folder, None)
            if (name := self._names.pop(folder, None)) is not None:
                self._remove(name)
                log.info('agent "%s" was removed', name)
        for folder, seen in found.items():
            if self._files.get(folder) != seen:
                self._files[folder] = seen
                changed.append(folder)
                self._load(folder, Path(seen[0]))
        return changed

    def reconsider(self, variables: Set[str]) -> None:
        """Has the next check load manifests again: those that are not in force, and those whose
        models take their key from one of these variables, which have changed."""
        for folder, (file, _) in self._files.items():
            name = self._names.get(folder)
            if folder in self.failures or (name and self._uses(name, variables)):
                self._files[folder] = file, None

    def _uses(self, name: str, variables: Set[str]) -> bool:
        from dragoman.agents.model_factory import describe_models

        models = describe_models(self._manifests[name])
        return any(one.key_variable in variables for one in models)

    async def follow(self) -> None:
        """Applies changes of manifests; called again and again. With many agents it checks less
        often, so that watching the files takes a small share of the time."""
        begun = self._clock()
        if begun < self._next_check:
            return
        changed = self.check()
        spent = self._clock() - begun
        self._next_check = begun + (0 if changed else min(spent / WATCH_SHARE, LONGEST_PAUSE))

    def _load(self, folder: str, file: Path) -> None:
        from dragoman.agents.manifest import load_manifest

        try:
            loaded = load_manifest(file)
            self._replace(folder, loaded)
        except ConfigError as error:
            self.failures[folder] = str(error)
            kept = " as it was" if folder in self._names else ""
            log.error("%s; the hub runs without it%s", error, kept)
            return
        self.failures.pop(folder, None)
        for warning in loaded.warnings:
            log.warning("%s", warning)
        log.info('agent "%s" is ready', loaded.manifest.name)

    def _replace(self, folder: str, loaded: LoadedManifest) -> None:
        name, old = loaded.manifest.name, self._names.get(folder)
        if name != old and name in self._agents:
            raise ConfigError(f'"{folder}": there is an agent "{name}" already')
        if name != old and (objection := self._find_objection(name)) is not None:
            raise ConfigError(f'"{folder}": the name "{name}" cannot be used: {objection}')
        profile = loaded.build_profile()
        agent = self._build(loaded, profile)
        if old is not None:
            self._remove(old, is_replaced=old == name)
        self._add(profile, agent, loaded.manifest)
        self._names[folder] = name

    def _add(self, profile: AgentProfile, agent: LocalAgent, manifest: Manifest) -> None:
        profile.workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._agents[profile.name] = agent
        self._profiles.add(profile)
        self._manifests[profile.name] = manifest
        self._catalog.offer(profile.name, [agent.tool])

    def _remove(self, name: str, *, is_replaced: bool = False) -> None:
        """Removes an agent with its running calls, and those that it has started with their files.
        The calls of one that is replaced continue as they began."""
        for child in [one for one in self._profiles.list_all() if one.parent == name]:
            self._remove(child.name)
            shutil.rmtree(child.workspace.parent, ignore_errors=True)
        self._catalog.offer(name, [])
        self._profiles.remove(name)
        self._manifests.pop(name, None)
        agent = self._agents.pop(name, None)
        older = self._older.setdefault(name, WeakSet())
        if agent is not None:
            older.add(agent)
            agent.close()
        if not is_replaced:
            del self._older[name]
            for one in older:
                one.end()

    def find_by_name(self, name: str) -> AgentProfile | None:
        return self._profiles.get(name)

    def get_manifest(self, name: str) -> Manifest:
        return self._manifests[name]

    # --- AgentDirectory ---------------------------------------------------------------------------

    def find_profile(self, principal: Principal) -> AgentProfile | None:
        return self._profiles.find(principal)

    def list_profiles(self) -> list[AgentProfile]:
        return self._profiles.list_all()

    async def spawn(self, parent: AgentProfile, manifest: Mapping[str, Any]) -> AgentProfile:
        from dragoman.agents.manifest import bind_to_parent, build_manifest

        if not parent.can_spawn:
            raise InvalidInput(f'agent "{parent.name}" may not start agents (agent_spawn)')
        if sum(bool(one.parent) for one in self._profiles.list_all()) >= MAX_SPAWNED:
            raise InvalidInput(f"{MAX_SPAWNED} agents have been started already; end one first")
        place = parent.workspace.parent / SPAWNED
        try:
            loaded = build_manifest(manifest, place / "agent.toml")
            loaded = replace(loaded, folder=place / loaded.manifest.name)
            if (own := self._manifests.get(parent.name)) is not None:
                loaded = bind_to_parent(loaded, own)
            name = loaded.manifest.name
            if name in self._agents:
                raise ConfigError(f'there is an agent "{name}" already')
            if (objection := self._find_objection(name)) is not None:
                raise ConfigError(f'the name "{name}" cannot be used: {objection}')
            profile = loaded.build_profile(parent.org, parent.name)
            wider = list(_list_wider(profile, parent))
            if wider:
                raise ConfigError(
                    f'agent "{name}" would have more than its parent "{parent.name}": '
                    f"{', '.join(wider[:5])}"
                )
            agent = self._build(loaded, profile)
        except ConfigError as error:
            raise InvalidInput(str(error)) from None
        self._add(profile, agent, loaded.manifest)
        return profile

    async def kill(self, name: str, by: AgentProfile) -> None:
        profile = self._profiles.get(name)
        if profile is None:
            raise NotFound(f'there is no agent "{name[:200]}"')
        if profile.parent != by.name:
            raise InvalidInput(f'agent "{name}" was not started by "{by.name}"')
        self._remove(name)
        shutil.rmtree(profile.workspace.parent, ignore_errors=True)


def _list_wider(child: AgentProfile, parent: AgentProfile) -> Iterator[str]:
    """Lists the grants of a child that none of its parent's covers."""
    for field in PATTERNS:
        granted = getattr(parent, field)
        for pattern in getattr(child, field):
            # A command pattern matches word by word, so that only an equal one is certain.
            covers = str.__eq__ if field == "shell" else _covers
            if not any(covers(one, pattern) for one in granted):
                yield f'{field} "{pattern}"'
    if child.can_spawn and not parent.can_spawn:
        yield "agent_spawn"


def _covers(wide: str, narrow: str) -> bool:
    """Whether every name that `narrow` matches is matched by `wide`, as far as that is certain:
    equal patterns, `*`, and a prefix."""
    if wide in ("*", narrow):
        return True
    prefix = wide.removesuffix("*")
    plain = not any(one in prefix for one in "*?[")
    return wide.endswith("*") and plain and narrow.startswith(prefix)


def _read_states(place: Path) -> dict[str, FileState]:
    """Reads what the manifest of each folder is now; without `Path`, which takes most of the time
    with a thousand agents."""
    found: dict[str, FileState] = {}
    try:
        with os.scandir(place) as entries:
            folders = sorted((entry.name, entry.path) for entry in entries)
    except OSError:
        return found
    for name, folder in folders:
        for file in FILES:
            path = f"{folder}/{file}"
            try:
                now = os.stat(path)
            except OSError:
                continue
            if stat.S_ISREG(now.st_mode):
                found[name] = path, (now.st_mtime_ns, now.st_size, now.st_ino)
                break
    return found
