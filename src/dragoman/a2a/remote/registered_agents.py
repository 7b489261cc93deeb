"""The table of registered agents. The registry fills it; pins, policies and name claims read it."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.a2a.remote.health_watch import HealthWatch
from dragoman.a2a.remote.registration import MAX_NAME, AgentRegistration
from dragoman.a2a.remote.remote_agent import RemoteAgent
from dragoman.core.errors import NotFound
from dragoman.core.nearest_names import find_nearest
from dragoman.core.ports import Viewer

AGENT_MARK = "_agent_"
"""Before the slug in the name of the tool that takes any message for an agent."""


class RegisteredAgent:
    def __init__(self, row: AgentRegistration) -> None:
        self.registration = row
        self.watch: HealthWatch | None = None
        """None if the agent is disabled or refused."""
        self.refusal = ""
        """Why the hub keeps the agent but does not use it."""

    @property
    def name(self) -> str:
        return self.registration.entry.name


class RegisteredAgents:
    def __init__(self) -> None:
        self._by_slug: dict[str, RegisteredAgent] = {}
        self._by_name: dict[str, RegisteredAgent] = {}
        self._by_id: dict[str, RegisteredAgent] = {}

    def __len__(self) -> int:
        return len(self._by_slug)

    def __iter__(self) -> Iterator[RegisteredAgent]:
        return iter(tuple(self._by_slug.values()))

    def __bool__(self) -> bool:
        return True

    def put(self, agent: RegisteredAgent) -> None:
        """Adds the agent, in place of one with its slug."""
        row = agent.registration
        if (old := self._by_slug.get(row.slug)) is not None:
            self._by_name.pop(old.name, None)
            self._by_id.pop(old.registration.id, None)
        self._by_slug[row.slug] = self._by_name[agent.name] = self._by_id[row.id] = agent

    def remove(self, agent: RegisteredAgent) -> None:
        self._by_slug.pop(agent.registration.slug, None)
        self._by_name.pop(agent.name, None)
        self._by_id.pop(agent.registration.id, None)

    def find_slug(self, slug: str) -> RegisteredAgent | None:
        return self._by_slug.get(slug)

    def find_id(self, id: str) -> RegisteredAgent | None:
        return self._by_id.get(id)

    def list_namespaces(self) -> dict[str, str]:
        """The names of the agents by what the names of their tools begin with."""
        found: dict[str, str] = {}
        for agent in self._by_slug.values():
            found |= {agent.registration.slug: agent.name, agent.name: agent.name}
        return found

    def list_refused(self) -> dict[str, str]:
        """Returns why agents are registered but not used, by name."""
        return {one.name: one.refusal for one in self._by_slug.values() if one.refusal}

    def find(self, key: str) -> RegisteredAgent:
        """Finds an agent by its id, slug or name."""
        for members in (self._by_id, self._by_slug, self._by_name):
            if (member := members.get(key)) is not None:
                return member
        near = find_nearest(key, self.list_names())
        hint = f'; did you mean "{near}"?' if near else ""
        raise NotFound(f'there is no registered agent "{key[:100]}"{hint}')

    def find_pin_mode(self, name: str) -> str | None:
        member = self.find_by_name(name)
        return member.registration.entry.pin if member is not None else None

    def find_additions_mode(self, name: str) -> str | None:
        member = self.find_by_name(name)
        return member.registration.entry.additions if member is not None else None

    def find_target(self, name: str) -> RemoteAgent | None:
        member = self.find_by_name(name)
        return member.watch.agent if member is not None and member.watch is not None else None

    def list_needing_login(self, viewer: Viewer) -> frozenset[str]:
        """Lists the agents at which such a client's calls need a login first."""
        watches = [one.watch for one in self._by_slug.values() if one.watch is not None]
        return frozenset(one.agent.name for one in watches if one.agent.needs_login(viewer))

    def find_by_name(self, name: str) -> RegisteredAgent | None:
        return self._by_name.get(name)

    def list_names(self) -> list[str]:
        return list(self._by_name)

    def find_absent(self, name: str) -> tuple[RemoteAgent, str] | None:
        """Finds the agent in whose namespace `name` is, of those never reached, and the reason."""
        for slug in _list_possible_slugs(name):
            member = self._by_slug.get(slug)
            if member is not None and member.watch is not None:
                agent = member.watch.agent
                if not agent.was_found:
                    return agent, f'agent "{member.name}" is not found yet: {agent.reason}'
        return None

    def recheck(self, name: str) -> None:
        """Checks an agent soon: what its pins quarantine was decided on."""
        member = self.find_by_name(name)
        if member is not None and member.watch is not None:
            member.watch.check_soon()

    def list_agents(self) -> list[RegisteredAgent]:
        """Lists the agents, those of the configuration first."""
        return list(self._by_slug.values())


def _list_possible_slugs(name: str) -> Iterator[str]:
    """Lists the slugs of the agents that a tool of this name could belong to, the longest first
    of those that it begins with."""
    folded = name.lower().replace("-", "_")
    yield folded
    for start in ("", "a2a_"):
        if folded.startswith(start):
            rest = folded[len(start) : len(start) + MAX_NAME + 1]
            for end in range(len(rest) - 1, 0, -1):
                if rest[end] == "_" or (rest[end] == "." and not start):
                    yield rest[:end]
    last = folded[-MAX_NAME - len(AGENT_MARK) :]
    position = last.find(AGENT_MARK)
    while position >= 0:
        yield last[position + len(AGENT_MARK) :]
        position = last.find(AGENT_MARK, position + 1)
