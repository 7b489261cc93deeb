"""Routes a message to an agent, or to one of the hub's tools with its arguments.

The agent is that of the path or tenant, else the one that the message's metadata names, else the
default agent; without one it is the hub itself, whose skills are its tools.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from dragoman.a2a.config import DOOR, HUB
from dragoman.a2a.protocol import errors
from dragoman.a2a.protocol.dialects.operations import SKILL
from dragoman.a2a.protocol.errors import A2aError
from dragoman.a2a.protocol.parts import block_from_part, join_texts
from dragoman.a2a.protocol.skill_tools import slug_from_name
from dragoman.a2a.server.form_answers import (
    SCALARS,
    find_properties,
    list_required,
    parse_object,
    parse_value,
)
from dragoman.core.agent_tool import MESSAGE, build_tool_name
from dragoman.core.errors import NotFound
from dragoman.core.hub import Hub
from dragoman.core.ports import A2A_DISCOVER
from dragoman.core.principal import Principal
from dragoman.core.structs import Struct
from dragoman.core.tool import AgentFacts, Nowhere, Tool, build_unknown_tool
from dragoman.core.tool_filter import EVERYTHING
from dragoman.core.tool_identity import build_identity

MAX_NAME = 256
MAX_DEFAULTS = 1_000
"""Principals whose default agent is kept."""
REMOTE = "RemoteAgent"
STRANGER = Principal("stranger", "anybody")
"""A client without a key where one is needed. Policies decide which agents it may discover, among
the local ones and the registered ones that are public."""

HUB_FACTS = AgentFacts(
    name=HUB,
    description="Every tool and agent of this hub, called by the name of the skill.",
    input_modes=("text/plain", "application/json"),
    output_modes=("text/plain", "application/json", "*/*"),
    extended=True,
    extensions=(
        {
            "uri": SKILL,
            "description": 'Names the skill that a message is for: {"skillId": "..."}.',
            "required": False,
            "params": {},
        },
    ),
)


class Destination(Struct, frozen=True):
    agent: str
    """Empty for the hub itself."""
    facts: AgentFacts
    tool: str
    """The tool to call; empty if the message names none."""
    skill: str
    is_agent: bool


class MessageRouter:
    def __init__(
        self,
        hub: Hub,
        default_agent: str | None,
        list_order: Callable[[], Sequence[str]] = tuple,
        find_unavailability: Callable[[str], str | None] = lambda name: None,
    ) -> None:
        """`list_order` has the names of the agents, the first ones first; it is read again when the
        catalog changes. `find_unavailability` says why an agent that is known is not in the
        catalog, None for others."""
        self._hub = hub
        self._default = default_agent
        self._list_order = list_order
        self._find_unavailability = find_unavailability
        self._destinations: dict[str, Destination] = {}
        self._slugs: dict[str, str] = {}
        self._order: Sequence[str] = ()
        """The agents of the catalog in their order."""
        self._requires_extensions = False
        self._cached_at = -1
        """The version of the catalog that these four are of."""
        self._defaults: dict[int, tuple[Principal, Destination]] = {}
        """By the identity of the principal, which costs less than comparing all its fields."""
        self._defaults_of = -1
        """The version of the policies that these are of."""

    def list_agents(self, principal: Principal) -> list[Tool]:
        """The agents that it may discover, the default one first."""
        found = {
            tool.agent.name: tool
            for tool in self._hub.catalog.list_tools()
            if tool.agent is not None and self.can_discover(principal, tool)
        }
        if self._cached_at != self._hub.catalog.version:
            self._refresh()
        first = [found.pop(name) for name in self._order if name in found]
        return [*first, *found.values()]

    def get_facts(self, agent: str | None, principal: Principal) -> AgentFacts:
        """Of the agent of that name; None for the default one of the principal. Raises for an
        unknown agent."""
        there = self._get_default(principal) if agent is None else self._get_destination(agent)
        return there.facts

    def requires_extensions(self) -> bool:
        """Whether an agent requires its clients to declare an extension."""
        if self._cached_at != self._hub.catalog.version:
            self._refresh()
        return self._requires_extensions

    def _get_destination(self, agent: str) -> Destination:
        """Of a message to `agent` that names no skill."""
        if self._cached_at != self._hub.catalog.version:
            self._refresh()
        known = self._destinations.get(agent)
        if known is None:
            facts = self._find_facts(agent)
            known = Destination("", facts, "", "", False)
            if facts is not HUB_FACTS:
                known = Destination(facts.name, facts, build_tool_name(facts.name), "", True)
            self._destinations[agent] = known
        return known

    def resolve_slug(self, agent: str) -> str:
        """The name of the agent with that name or slug; `agent` itself if there is none."""
        if self._cached_at != self._hub.catalog.version:
            self._refresh()
        return self._slugs.get(agent, agent)

    def _refresh(self) -> None:
        """After a change of the catalog, orders its agents, and finds the slugs that stand for one
        agent only and are not an agent's name."""
        self._cached_at, self._destinations = self._hub.catalog.version, {}
        self._defaults = {}
        tools = self._hub.catalog.list_tools()
        agents = [tool.agent for tool in tools if tool.agent is not None]
        names = [facts.name for facts in agents]
        self._requires_extensions = any(
            extension.get("required") for facts in agents for extension in facts.extensions
        )
        present = frozenset(names)
        self._order = [name for name in dict.fromkeys(self._list_order()) if name in present]
        taken = Counter(map(slug_from_name, names))
        slugs = {slug_from_name(name): name for name in names}
        unusable = {"", HUB, *names, *(slug for slug, count in taken.items() if count > 1)}
        self._slugs = {slug: name for slug, name in slugs.items() if slug not in unusable}

    def _find_facts(self, agent: str) -> AgentFacts:
        name = self.resolve_slug(agent)
        if not name or name == HUB:
            return HUB_FACTS
        tool = self._find_agent_tool(name)
        if tool is None or tool.agent is None:
            if (why := self._find_unavailability(name)) is not None:
                raise A2aError(errors.UNAVAILABLE, f'agent "{name}" is not available: {why}')
            raise _unknown_agent_error(name)
        return tool.agent

    def _get_default(self, principal: Principal) -> Destination:
        """The agent that answers the principal if none is named: that of the configuration, else
        the first one that the principal may discover, else the hub."""
        if self._default:
            return self._get_destination(self._default)
        if self._cached_at != self._hub.catalog.version:
            self._refresh()
        policies = self._hub.authorizer.version
        if self._defaults_of != policies or len(self._defaults) >= MAX_DEFAULTS:
            self._defaults, self._defaults_of = {}, policies
        kept = self._defaults.get(id(principal))
        if kept is None:
            agent = self._find_first(principal) or HUB
            kept = principal, self._get_destination(agent)
            self._defaults[id(principal)] = kept
        return kept[1]

    def _find_first(self, principal: Principal) -> str:
        for name in self._order:
            tool = self._find_agent_tool(name)
            if tool is not None and self.can_discover(principal, tool):
                return name
        return ""

    def list_skills(self, principal: Principal) -> Iterable[Tool]:
        """The tools that the hub offers to that principal as its skills."""
        tools = self._hub.list_tools(principal, EVERYTHING, door=DOOR)
        return (tool for tool in tools if tool.agent is None)

    def _find_agent_tool(self, name: str) -> Tool | None:
        tool = self._hub.catalog.find(build_tool_name(name))
        return tool if tool.agent is not None else None

    def route(
        self, agent: str | None, request: Mapping[str, Any], principal: Principal
    ) -> Destination:
        """Returns where the message of the principal goes that came by the path of `agent`."""
        named_agent, skill = read_named_target(request)
        if agent is None and named_agent:
            agent = named_agent
        there = self._get_default(principal) if agent is None else self._get_destination(agent)
        if not skill:
            return there
        # The default agent is meant only because the message names no other, unless it has that
        # skill.
        is_assumed = agent is None and all(one.get("id") != skill for one in there.facts.skills)
        if there.agent and not is_assumed:
            return Destination(there.agent, there.facts, there.tool, skill, True)
        tool = self._find_listable(skill, principal)
        if there.agent and self._is_unknown(skill, tool):
            return Destination(there.agent, there.facts, there.tool, skill, True)
        if tool.agent is not None:
            return Destination(tool.agent.name, tool.agent, tool.name, "", True)
        return Destination("", HUB_FACTS, skill, skill, False)

    def _find_listable(self, name: str, principal: Principal) -> Tool:
        """The tool of that name; an unknown one if the principal may not know of it."""
        tool = self._hub.find_visible(principal, name, EVERYTHING)
        if isinstance(tool.target, Nowhere) or self._hub.authorizer.can_list(principal, tool):
            return tool
        return build_unknown_tool(name)

    def _is_unknown(self, skill: str, tool: Tool) -> bool:
        """Quarantined and ambiguous names, and those of a server or agent that is not connected
        yet, are known: a message for one must not reach another target."""
        if not isinstance(tool.target, Nowhere) or not isinstance(tool.target.error, NotFound):
            return False
        startup = self._hub.startup
        return startup is None or startup.find_absent(skill) is None

    def can_discover(self, principal: Principal, tool: Tool) -> bool:
        if principal is STRANGER and not tool.target.traits.is_published:
            return False  # the operator decides whether a registered agent is published
        return self._hub.authorizer.decide_action(principal, A2A_DISCOVER, tool).allowed

    def can_discover_agent(self, principal: Principal, facts: AgentFacts) -> bool:
        tool = self._find_agent_tool(facts.name)
        return tool is None or self.can_discover(principal, tool)

    def get_visible_facts(self, principal: Principal | None, agent: str | None) -> AgentFacts:
        """Like `get_facts`; an agent that the principal may not discover does not exist for it."""
        try:
            facts = self.get_facts(agent, principal or STRANGER)
        except A2aError as error:
            if agent is None and principal is None:
                raise _missing_default_error() from None
            if principal is None and error.reason == errors.UNAVAILABLE:
                raise _unknown_agent_error(agent or "") from None
            raise
        if facts is not HUB_FACTS and not self.can_discover_agent(principal or STRANGER, facts):
            if agent is None:  # the caller has not named it, and may not know of it
                raise _missing_default_error()
            raise _unknown_agent_error(facts.name)
        return facts

    def find_called_tool(self, tool: str, agent: str, skill: str, principal: Principal) -> str:
        """Returns the tool to call for a message to `agent` that names a skill. A remote agent runs
        the skill that is named, so the call of that skill must be permitted. If it is not, or the
        skill is quarantined or unknown, the skill itself is called, and so refused and recorded."""
        whole = self._find_agent_tool(agent) if skill and agent else None
        facts = whole.target.traits.facts if whole is not None else None
        if facts is None or facts.type != REMOTE:
            return tool
        for one in self._hub.catalog.list_offered(agent):
            if one.bridged is not None and one.bridged.skill_id == skill:
                return tool if self._hub.authorizer.can_see(principal, one, DOOR) else one.name
        return build_identity(slug_from_name(agent), skill)

    def select_visible_skills(
        self, facts: AgentFacts, principal: Principal
    ) -> list[Mapping[str, Any]]:
        """The skills without those of a remote agent whose tools the principal may not see."""
        sees = self._hub.authorizer.can_see
        hidden = {
            one.bridged.skill_id
            for one in self._hub.catalog.list_offered(facts.name)
            if one.bridged is not None and not sees(principal, one, DOOR)
        }
        return [skill for skill in facts.skills if skill["id"] not in hidden]

    @property
    def version(self) -> tuple[int, int]:
        """Changes with the catalog and with the policies."""
        return self._hub.catalog.version, self._hub.authorizer.version

    def find_visible_tool(self, name: str, principal: Principal) -> Tool:
        """The tool of that name; an unknown one if the principal may not see it."""
        tool = self._hub.find(name, EVERYTHING)
        is_visible = self._hub.authorizer.can_see(principal, tool, DOOR)
        return tool if is_visible else build_unknown_tool(name)

    def match_skill(self, words: str, principal: Principal) -> str:
        """The skill whose id, or else whose name on the card, the text is; empty if none."""
        words = words.strip()
        if not 0 < len(words) <= MAX_NAME:
            return ""
        if not isinstance(self.find_visible_tool(words, principal).target, Nowhere):
            return words
        named = words.replace(" ", "_").lower()
        found = {one.name for one in self.list_skills(principal) if one.name.lower() == named}
        return found.pop() if len(found) == 1 else ""

    def match_line(self, message: Mapping[str, Any], principal: Principal) -> tuple[str, Any]:
        """The tool whose id is the first word of the message, and the message without that word;
        an empty id if there is none."""
        first, *others = message["parts"]
        word, _, rest = first.get("text", "").strip().partition(" ")
        if not rest.strip() or len(word) > MAX_NAME:
            return "", message
        tool = self.find_visible_tool(word, principal)
        if tool.agent is not None or isinstance(tool.target, Nowhere):
            return "", message
        return word, {**message, "parts": [{**first, "text": rest.strip()}, *others]}


def key_of_principal(principal: Principal) -> Hashable:
    """What decisions depend on: tokens of one user may have other scopes and views."""
    one = principal
    return one, one.roles, one.scopes, one.behalf, one.serves, one.view


def _unknown_agent_error(name: str) -> A2aError:
    return A2aError(errors.INVALID_PARAMS, f'agent "{name[:100]}" was not found')


def _missing_default_error() -> A2aError:
    return A2aError(errors.INVALID_PARAMS, "the default agent was not found")


def read_named_target(request: Mapping[str, Any]) -> tuple[str, str]:
    """The agent and the skill in the metadata; the message's takes precedence."""
    agent = skill = ""
    if "metadata" not in request and "metadata" not in request["message"]:
        return agent, skill  # as for most messages
    for holder in (request["message"], request):
        metadata = holder.get("metadata")
        if not metadata:
            continue
        extension = metadata.get(SKILL)
        skill = (
            skill
            or _read_name(extension.get("skillId") if isinstance(extension, dict) else extension)
            or _read_name(metadata.get("skillId"))
            or _read_name(metadata.get("skill"))
        )
        agent = agent or _read_name(metadata.get("agent"))
    return agent, skill


def _read_name(value: Any) -> str:
    return value if isinstance(value, str) and 0 < len(value) <= MAX_NAME else ""


# --- arguments ----------------------------------------------------------------------------------


def build_agent_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    """An agent gets the text as its message, and all parts beside it if there is more than text."""
    parts = message["parts"]
    if len(parts) == 1 and len(parts[0]) == 1 and "text" in parts[0]:
        return {MESSAGE: parts[0]["text"]}
    return {MESSAGE: join_texts(parts), "parts": [block_from_part(part) for part in parts]}


def build_tool_arguments(
    message: Mapping[str, Any], before: Mapping[str, Any], schema: Any
) -> dict[str, Any]:
    """Data are arguments, and so is a text that is a JSON object; any other text is the one string
    that the tool takes. `before` has the arguments of earlier messages."""
    arguments = dict(before)
    texts = []
    for part in message["parts"]:
        if "data" in part and isinstance(part["data"], dict):
            arguments.update(part["data"])
        elif "text" in part:
            said = parse_object(part["text"])
            if said is None:
                texts.append(part["text"])
            else:
                arguments.update(said)
        else:
            raise A2aError(
                errors.CONTENT_TYPE_NOT_SUPPORTED,
                "a tool takes text, or an object with its arguments as data, and no files or other "
                "values",
            )
    text = "\n".join(texts)
    if texts and (name := find_text_property(schema, arguments, text)) is not None:
        arguments[name] = parse_value(text, schema["properties"][name])
    return arguments


def find_text_property(schema: Any, arguments: Mapping[str, Any], text: str) -> str | None:
    """The one argument that is missing, of the required ones or else of all, if it takes the text:
    as a string, or as the number or boolean that the text is."""
    properties = find_properties(schema)
    for names in (list_required(schema), list(properties)):
        missing = [name for name in names if name not in arguments]
        if len(missing) == 1:
            wanted = properties.get(missing[0])
            kind = wanted.get("type") if isinstance(wanted, Mapping) else None
            if kind == "string" or (isinstance(kind, list) and "string" in kind):
                return str(missing[0])
            if kind in SCALARS and not isinstance(parse_value(text, wanted), str):
                return str(missing[0])
        if missing:
            return None
    return None


# --- requirements of agents -----------------------------------------------------------------------


def check_agent_requirements(facts: AgentFacts, extensions: frozenset[str], streamed: bool) -> None:
    """Raises if the agent requires an extension that the client does not declare, or streaming that
    it does not have."""
    for extension in facts.extensions:
        if extension.get("required") and extension["uri"] not in extensions:
            raise A2aError(
                errors.EXTENSION_SUPPORT_REQUIRED,
                f'agent "{facts.name}" requires the extension {extension["uri"]}: declare it in '
                "A2A-Extensions",
            )
    if streamed and not facts.streaming:
        raise A2aError(
            errors.UNSUPPORTED_OPERATION, f'agent "{facts.name}" does not support streaming'
        )


def render_used_extensions(facts: AgentFacts, extensions: frozenset[str]) -> str:
    """The extensions of the client that a response lists: those that the agent has too."""
    return ", ".join(sorted(extensions & {one["uri"] for one in facts.extensions}))


def check_push_support(facts: AgentFacts) -> None:
    if not facts.push:
        raise A2aError(
            errors.PUSH_NOTIFICATION_NOT_SUPPORTED,
            f'agent "{facts.name}" does not support push notifications',
        )


# --- media types --------------------------------------------------------------------------------


def check_media_types(facts: AgentFacts, parts: Iterable[Mapping[str, Any]]) -> None:
    """Raises for a part of a media type that an agent of this hub does not accept."""
    if facts.judges_media:
        return
    modes = facts.input_modes
    for part in parts:
        media = find_media_type(part)
        if media not in modes and not any(_matches(media, mode) for mode in modes):
            raise A2aError(
                errors.CONTENT_TYPE_NOT_SUPPORTED,
                f'agent "{facts.name}" does not accept "{media[:100]}"; it accepts '
                f"{', '.join(modes)}",
            )


def find_media_type(part: Mapping[str, Any]) -> str:
    named = part.get("mediaType")
    if named and (given := str(named).partition(";")[0].strip().lower()):
        return given
    if "text" in part:
        return "text/plain"
    return "application/json" if "data" in part else "application/octet-stream"


def _matches(media: str, mode: str) -> bool:
    mode = mode.partition(";")[0].strip().lower()
    if mode in (media, "*/*", "*"):
        return True
    kind, slash, sub = mode.partition("/")
    if not slash:  # 0.1 has text, file and data
        return media.startswith(f"{kind}/")
    return sub == "*" and media.partition("/")[0] == kind
