"""The principals and ids that policies of a home can name: from its configuration, keys, registry.

Needs no hub: the command line checks policies with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from dragoman.agents.manifest_agents import FOLDER
from dragoman.agents.skills.skill_book import FOLDER as SKILLS
from dragoman.app.config_watch import LiveConfig
from dragoman.app.store_place import has_store, open_offline_place
from dragoman.config import Config, load, slug_from_name
from dragoman.core.catalog import Catalog
from dragoman.core.errors import ConfigError, HubError
from dragoman.core.local_agents import AgentProfiles, build_agent_principal
from dragoman.core.principal import LOCAL, OWNER, USER, WORKFLOW, Principal
from dragoman.core.tool import Tool
from dragoman.core.tool_identity import RESERVED, fold_id
from dragoman.core.users import UserRecord
from dragoman.oauth.server.config import find_issuer_name
from dragoman.policy.ids import id_from_tool, split_id
from dragoman.policy.lint import EntityLookup
from dragoman.stores.database import StorePlace
from dragoman.stores.keys import DATABASE, KeyRecord, KeyStore
from dragoman.stores.registry import DATABASE as REGISTRY
from dragoman.stores.registry import RegistryStore
from dragoman.stores.users import DATABASE as USERS
from dragoman.stores.users import UsersDatabase, UserStore
from dragoman.web.auth import API_KEY


def principal_from_key(record: KeyRecord) -> Principal:
    return Principal(
        "key",
        record.name,
        record.org,
        roles=record.roles,
        scopes=record.scopes,
        behalf=record.owner,
        serves=record.target,
        view=record.view,
    )


def list_principals(config: Config, records: Iterable[KeyRecord], now: float) -> list[Principal]:
    """Lists everyone who can call: the principals without a key, and those of active keys."""
    found = [OWNER]
    keys = list(records)
    if config.api_key is None and not keys:
        found.append(LOCAL)
    if config.api_key is not None:
        found.append(API_KEY)
    return found + [principal_from_key(key) for key in keys if key.get_state(now) == "active"]


def find_user(config: Config, label: str) -> Principal | None:
    """Finds a user by the label, without roles: only the token tells them. None if no issuer of the
    configuration has such users."""
    kind, _, id = label.partition(":")
    name, slash, rest = id.partition("/")
    rules = [*config.auth.jwt.issuers, config.auth.introspection]
    for one in rules:
        if one is None or kind != USER or not slash or find_issuer_name(one) != name:
            continue
        if one.org_claim is None:
            return Principal(USER, id, one.org, behalf=rest)
        org, slash, subject = rest.partition("/")
        known = one.orgs.values() if isinstance(one.orgs, dict) else one.orgs
        return Principal(USER, id, org, behalf=subject) if slash and org in known else None
    return None


class KnownIds:
    """The ids that policies may name. Every tool id counts as known for a target that offers
    nothing at the moment: it may not be connected."""

    def __init__(
        self,
        config: Config,
        principals: Iterable[Principal],
        registered: Iterable[str] = (),
        skills: Iterable[str] = (),
        manifests: Iterable[str] = (),
    ) -> None:
        """`registered` are the external agents that are not in the configuration, `manifests` the
        hub's own agents that are not; policies know skills as servers."""
        principals = list(principals)
        self._config = config
        self._servers = {*RESERVED, *(entry.name for entry in config.mcp_servers), *skills}
        self._agents = {*(entry.name for entry in config.agents), *manifests}
        self._remote = {entry.name for entry in config.a2a.external_agents} | set(registered)
        self._served = {one.serves for one in principals if one.serves}
        self._users = {one.label for one in (*principals, OWNER, LOCAL)}
        self._roles = {"owner", *(role for one in principals for role in one.roles)}
        self._orgs = {"default", *(one.org for one in principals)}
        self._tools: dict[str, set[str]] = {}
        """The ids that each target offers, by its name."""
        self._other_kinds: dict[str, str] = {}
        """The ids of prompts and resources, by that of a tool of the same name."""

    def add(self, tool: Tool) -> None:
        target = tool.target
        id = id_from_tool(tool)
        self._tools.setdefault(target.name, set()).add(id)
        if id != tool.name:
            self._other_kinds[fold_id(tool.name)] = id
        if target.traits.facts.type == "RemoteAgent":
            self._remote.add(target.name)

    def is_known(self, type: str, id: str) -> bool | str:
        """Implements `policy.lint.EntityLookup`."""
        if type in ("Tool", "Skill"):
            return self._is_tool(type, id)
        places = {
            "User": self._users,
            "Role": self._roles,
            "Org": self._orgs,
            "Server": self._servers,
            "RemoteAgent": self._remote,
            "Agent": self._agents | self._served,
        }
        if type == "User" and find_user(self._config, id) is not None:
            return True
        if type == "User" and id.startswith(f"{WORKFLOW}:"):
            return True  # files of the home, which come and go
        return id in places.get(type, ())

    def _is_tool(self, type: str, id: str) -> bool | str:
        name = split_id(id)[1]
        local = self._servers | self._agents | self._tools.keys()
        for target in self._remote if type == "Skill" else local - self._remote:
            if name.startswith((f"{target}.", f"{slug_from_name(target)}.")):
                offered = self._tools.get(target)
                if not offered or id in offered:
                    return True
        return self._other_kinds.get(id, False)


class LiveKnownIds:
    """The known ids of a running hub, collected again when something has changed."""

    def __init__(
        self,
        home: Path,
        live: LiveConfig,
        keys: KeyStore,
        catalogs: Mapping[str, Catalog],
        users: UserStore | None = None,
        profiles: AgentProfiles | None = None,
    ) -> None:
        """`profiles` are the hub's own agents."""
        self._profiles = AgentProfiles() if profiles is None else profiles
        self._home = home
        self._live = live
        self._keys = keys
        self._catalogs = catalogs
        self._users = users
        self._collected: list[tuple[Any, KnownIds]] = []
        """At most one, with the state that it was collected from."""
        self.refresh()

    def find_user(self, label: str) -> Principal | None:
        return find_user(self._live.config, label)

    def list_principals(self) -> list[Principal]:
        found = list_principals(self._live.config, self._keys.list(), time.time())
        found += [user.build_principal(user.scopes) for user in self._list_users()]
        return found + [build_agent_principal(profile) for profile in self._profiles.list_all()]

    def _list_users(self) -> Sequence[UserRecord]:
        return self._users.list() if self._users is not None else ()

    def refresh(self) -> EntityLookup:
        """Collects the ids if anything has changed. To be called on the event loop."""
        config, records, users = self._live.config, self._keys.list(), self._list_users()
        catalogs = self._catalogs.values()
        versions = [*(catalog.version for catalog in catalogs), self._profiles.version]
        state = versions, records, users, config
        if not self._collected or state != self._collected[0][0]:
            found = list_principals(config, records, time.time())
            found += [user.build_principal() for user in users]
            ids = KnownIds(
                config,
                found,
                list_registered_agents(self._home),
                list_skills(self._home),
                [profile.name for profile in self._profiles.list_all()],
            )
            for tool in (tool for catalog in catalogs for tool in catalog.list_tools()):
                ids.add(tool)
            self._collected[:] = [(state, ids)]
        return self._collected[0][1].is_known

    def is_known(self, type: str, id: str) -> bool | str:
        """As of the last refresh; may be called from any thread."""
        return self._collected[0][1].is_known(type, id)


def load_known_ids(home: Path, now: float) -> EntityLookup:
    """Collects the ids from the configuration, the keys and the registry of a home."""
    config = load(home / "config.toml")
    records: tuple[KeyRecord, ...] = ()
    with open_offline_place(home, config) as place:
        if has_store(place, DATABASE):
            with closing(KeyStore(place)) as store:
                records = store.list()
        principals = list_principals(config, records, now)
        if config.auth.server.enabled and has_store(place, USERS):
            with closing(UsersDatabase(place)) as base:
                principals += [user.build_principal() for user in UserStore(base).list()]
        registered, skills = list_registered_agents(place), list_skills(home)
    manifests = list_manifest_agents(home)
    return KnownIds(config, principals, registered, skills, manifests).is_known


def list_configured(config: Config) -> list[str]:
    """Lists the names of all servers and agents in the configuration, and of the hub itself."""
    names = [*RESERVED, *(server.name for server in config.mcp_servers)]
    names += [agent.name for agent in config.agents]
    return names + [agent.name for agent in config.a2a.external_agents]


def list_targets(home: Path) -> list[str]:
    """Lists the names of all servers, agents and skills of a home."""
    config = load(home / "config.toml")
    with open_offline_place(home, config) as place:
        return list_names(home, config, place)


def list_names(home: Path, config: Config, place: StorePlace) -> list[str]:
    """The same, of a home with that configuration and stores."""
    return [
        *list_configured(config),
        *list_registered_agents(place),
        *list_manifest_agents(home),
        *list_skills(home),
    ]


def list_manifest_agents(home: Path) -> list[str]:
    """Lists the names of the agents with a manifest, as far as it can be read."""
    if not (home / FOLDER).is_dir():
        return []
    from dragoman.agents.manifest import list_manifests, load_manifest

    names = []
    for folder, file in list_manifests(home).items():
        try:
            names.append(load_manifest(file).manifest.name)
        except ConfigError:
            names.append(folder)
    return names


def list_skills(home: Path) -> list[str]:
    if not (home / SKILLS).exists():
        return []
    from dragoman.agents.skills.installation import SkillStore

    return SkillStore(home).list_names()


def list_registered_agents(place: StorePlace) -> list[str]:
    """Lists the external agents that were registered with a running hub; none if the store is
    unreadable, which other checks report."""
    if not has_store(place, REGISTRY):
        return []
    try:
        with closing(RegistryStore(place)) as store:
            return store.list_names()
    except HubError:
        return []
