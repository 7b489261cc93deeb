"""What a server offers, of every kind: listed, made the hub's own, and put into the catalogs.

A malformed entry is left out alone and reported. A list that has not changed touches nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from time import thread_time
from typing import Any, NamedTuple

from dragoman.core.call import NOTHING
from dragoman.core.catalog import Catalog
from dragoman.core.errors import ConfigError, HubError, TimedOut, Unreachable
from dragoman.core.ports import SchemaCompiler
from dragoman.core.tool import INSTRUCTIONS, PROMPT, RESOURCE, TEMPLATE, TOOL, Target, Tool
from dragoman.core.unlisted_resources import MAX_URI, build_listed_uri, build_own_uri
from dragoman.mcp.client.session import UpstreamSession, announces_resources
from dragoman.mcp.protocol.mirrored_headers import Path, find_mirrored_params
from dragoman.mcp.protocol.translate import MAX_NAME, BadTool, build_names, tool_from_definition
from dragoman.wire.rpc import METHOD_NOT_FOUND

log = logging.getLogger(__name__)

MAX_PROBLEMS = 20
TURN_SECONDS = 0.005
"""How long a list may be worked on before others have their turn."""
MAX_INSTRUCTIONS = 65_536
"""Characters of a server's instructions that are looked at; the rest is never shown either."""
LIST_SECONDS = 10.0
"""The longest that any list but that of the tools is waited for."""


class ListKind(NamedTuple):
    feature: str
    """Of the server; without it nothing is asked."""
    method: str
    member: str
    changed: str
    """The notification that says so."""
    id: str
    """Which member of an entry tells it from the others."""


KINDS = {
    TOOL: ListKind("tools", "tools/list", "tools", "notifications/tools/list_changed", "name"),
    PROMPT: ListKind(
        "prompts", "prompts/list", "prompts", "notifications/prompts/list_changed", "name"
    ),
    RESOURCE: ListKind(
        "resources", "resources/list", "resources", "notifications/resources/list_changed", "uri"
    ),
    TEMPLATE: ListKind(
        "resources",
        "resources/templates/list",
        "resourceTemplates",
        "notifications/resources/list_changed",
        "uriTemplate",
    ),
}


def is_offered(session: UpstreamSession, kind: str) -> bool:
    """Whether the server says that it has something of that kind. One that declares no capabilities
    at all may still have tools."""
    assumed = kind == TOOL and not session.features
    return assumed or session.features.get(KINDS[kind].feature) is not None


def is_announced(session: UpstreamSession, kind: str) -> bool:
    """Whether the server says that it announces changes of that list."""
    offered = session.features.get(KINDS[kind].feature)
    return isinstance(offered, dict) and offered.get("listChanged") is True


def find_changed_kinds(method: str) -> list[str]:
    """The kinds whose list a notification is about."""
    return [name for name, kind in KINDS.items() if kind.changed == method]


Lists = dict[str, "list[Any] | HubError"]
"""By kind; an error where the server did not give it."""


class ParsedList(NamedTuple):
    """What became of a list."""

    definitions: list[Any]
    checked: bool
    """Whether the tools were looked through for headers to send."""
    tools: list[Tool]
    mirrored: dict[str, Mapping[str, Path]]
    problems: list[str]


class CatalogSync:
    def __init__(
        self,
        target: Target,
        catalogs: Mapping[str, Catalog],
        compile_schema: SchemaCompiler,
        prefix: str | None,
    ) -> None:
        self._target = target
        self._catalogs = catalogs
        self._compile = compile_schema
        self._prefix = prefix
        self._listed: dict[str, list[Any] | None] = {
            TOOL: None,
            PROMPT: None,
            RESOURCE: None,
            TEMPLATE: None,
        }
        """As the server put it. Lists are offered even where nothing is in them: what comes later
        is an addition."""
        self._instructions: str | None = None
        self._checked = False
        """Whether the tools that are offered were looked through for headers to send."""
        self._problems: dict[str, list[str]] = {kind: [] for kind in KINDS}
        self.mirrored: dict[str, Mapping[str, Path]] = {}
        """Of the tools that have such: which of their arguments are sent as headers as well."""
        self.spent = 0.0
        """Seconds of processor time that the last lists took."""

    @property
    def problems(self) -> list[str]:
        """What was left out, and why."""
        found = [words for about in self._problems.values() for words in about]
        for catalog in self._catalogs.values():
            found += catalog.list_remarks(self._target.name)
        return found[:MAX_PROBLEMS]

    def count_offered(self, kind: str) -> int:
        return len(self._catalogs[kind].list_offered(self._target.name))

    def count_total(self, kind: str) -> int:
        """Of all servers."""
        return len(self._catalogs[kind])

    def withdraw(self) -> None:
        for catalog in self._catalogs.values():
            catalog.withdraw(self._target.name)

    def list_offered(self, kind: str) -> Sequence[Tool]:
        """What the catalog has of it."""
        return self._catalogs[kind].list_offered(self._target.name)

    async def fetch_lists(
        self,
        session: UpstreamSession,
        kinds: Iterable[str],
        timeout: float,
        declared: Mapping[str, Any] = NOTHING,
    ) -> Lists:
        """As the server puts them. Only the tools are needed: of another list the reason why it is
        not given. `declared` is what a request of the modern era says its sender can be asked."""
        wanted = list(kinds)
        found = await asyncio.gather(
            *(self._fetch_list(session, kind, timeout, declared) for kind in wanted)
        )
        lists = dict(zip(wanted, found, strict=True))
        for kind, entries in lists.items():
            if isinstance(entries, Unreachable) or (kind == TOOL and isinstance(entries, HubError)):
                raise entries
        return lists

    async def publish(self, session: UpstreamSession, lists: Lists) -> None:
        """Of a list that was not given what was offered stays."""
        extensions = session.features.get("extensions")
        self._target.traits = replace(
            self._target.traits,
            has_resources=session.features.get("resources") is not None,
            announces_resources=announces_resources(session),
            extensions=extensions if isinstance(extensions, dict) else NOTHING,
        )
        changes: list[tuple[str, ParsedList]] = []
        self.spent = 0.0
        checked = session.revision.has_mirrored_headers and session.wire.sends_headers
        for kind, entries in lists.items():
            if isinstance(entries, HubError):
                self.report_problems(KINDS[kind].method, [f"no {kind}s are listed: {entries}"])
                continue
            self.report_problems(KINDS[kind].method, [])
            begun = thread_time()
            differs = entries != self._listed[kind]
            self.spent += thread_time() - begun
            if differs or (kind == TOOL and checked != self._checked):
                changes.append(
                    (kind, await self._parse_list(kind, entries, checked and kind == TOOL))
                )
        begun = thread_time()
        for kind, made in changes:  # what is as it was is not touched: nobody is told of a change
            self._publish_kind(kind, made)
        self._publish_instructions(session.instructions[:MAX_INSTRUCTIONS].strip())
        self.spent += thread_time() - begun

    def _publish_instructions(self, text: str) -> None:
        catalog = self._catalogs.get(INSTRUCTIONS)
        if catalog is None or text == self._instructions:
            return
        self._instructions = text
        tool = tool_from_instructions(self._target, text)
        catalog.offer(self._target.name, [tool] if text else [])

    def _publish_kind(self, kind: str, made: ParsedList) -> None:
        self.report_problems(kind, made.problems)
        self._listed[kind] = made.definitions
        if kind == TOOL:
            self._checked, self.mirrored = made.checked, made.mirrored
        try:
            self._catalogs[kind].offer(self._target.name, made.tools)
        except ConfigError as error:
            self._problems[kind].append(str(error))

    async def _fetch_list(
        self, session: UpstreamSession, kind: str, timeout: float, declared: Mapping[str, Any]
    ) -> list[Any] | HubError:
        """As the server put it, or why there is none. No other list keeps the tools waiting."""
        _, method, member, *_ = KINDS[kind]
        if not is_offered(session, kind):
            return []
        if kind == TOOL:
            within = None  # each of its pages has its time, and connecting as a whole
        else:
            within = timeout = min(timeout, LIST_SECONDS)
        try:
            async with asyncio.timeout(within):
                meta = session.build_meta(declared, None)
                return await self._fetch_entries(session, kind, method, member, timeout, meta)
        except TimeoutError:
            return TimedOut(f'"{method}" was not answered to the end within {timeout:g} s')
        except HubError as error:
            return error

    async def _fetch_entries(
        self,
        session: UpstreamSession,
        kind: str,
        method: str,
        member: str,
        timeout: float,
        meta: Mapping[str, Any],
    ) -> list[Any]:
        try:
            return await session.list_entries(method, member, timeout, meta)
        except HubError as error:
            native = getattr(error, "native", None)
            unknown = isinstance(native, dict) and native.get("code") == METHOD_NOT_FOUND
            # Many have resources and no templates. One that declares nothing may have no tools.
            if unknown and (kind == TEMPLATE or not session.features):
                return []
            raise

    async def _parse_list(self, kind: str, definitions: list[Any], checked: bool) -> ParsedList:
        made = ParsedList(definitions, checked, [], {}, [])
        taken: set[str] = set()
        begun = thread_time()
        for position, definition in enumerate(definitions):
            if (took := thread_time() - begun) > TURN_SECONDS:
                self.spent += took
                await asyncio.sleep(0)
                begun = thread_time()
            try:
                tool = self._parse_entry(kind, definition, taken)
                if checked and (params := _find_header_params(tool)):
                    made.mirrored[tool.remote_name] = params
            except BadTool as error:
                made.problems.append(f"{kind} {position + 1} is left out: {error}")
                continue
            taken.add(tool.remote_name)
            made.tools.append(tool)
        self.spent += thread_time() - begun
        return made

    def _parse_entry(self, kind: str, definition: Any, taken: Collection[str]) -> Tool:
        if kind == TOOL:
            return tool_from_definition(
                definition, self._target, taken, self._compile, self._prefix
            )
        if kind == PROMPT:
            return prompt_from_definition(definition, self._target, taken, self._prefix)
        return resource_from_definition(definition, self._target, taken, kind, KINDS[kind].id)

    def report_problems(self, about: str, problems: list[str]) -> None:
        """Whatever was said about the same before is over."""
        known, found = self._problems.get(about, []), problems[:MAX_PROBLEMS]
        self._problems[about] = found
        for problem in found:
            if problem not in known:  # said once, however often it is listed
                log.warning('server "%s": %s', self._target.name, problem)


def _find_header_params(tool: Tool) -> Mapping[str, Path]:
    try:
        return find_mirrored_params(tool.definition["inputSchema"])
    except ValueError as error:
        raise BadTool(f'"{tool.remote_name}": {error}') from None


def prompt_from_definition(
    definition: Any, target: Target, taken: Collection[str], prefix: str | None = None
) -> Tool:
    """A server's prompt as the hub offers it. `taken` are the names that its list had before it."""
    name = _read_text(definition, "name", MAX_NAME)
    arguments = definition.get("arguments")
    if not isinstance(arguments, list | None) or not all(
        isinstance(argument, dict) and isinstance(argument.get("name"), str)
        for argument in arguments or ()
    ):
        raise BadTool(f'"{name}" has arguments that are no list of named ones')
    canonical, alias, others = build_names(target, name, taken, prefix)
    return Tool(
        name=canonical,
        alias=alias,
        other_names=others,
        kind=PROMPT,
        remote_name=name,
        description=_read_description(definition, name),
        definition=definition,
        target=target,
    )


def resource_from_definition(
    definition: Any, target: Target, taken: Collection[str], kind: str, member: str
) -> Tool:
    """A server's resource, or template of such, which is called as the server has it."""
    uri = _read_text(definition, member, MAX_URI)
    _read_text(definition, "name", MAX_URI)
    if not uri.isprintable():
        raise BadTool(f"its {member} has characters that no address has")
    if uri in taken:
        raise BadTool(f'"{uri[:200]}" is listed twice')
    name = f"{target.name}.{uri}"
    return Tool(
        name=name,
        alias=build_listed_uri(target.name, uri) if kind == RESOURCE else uri,
        other_names={"own": own} if (own := build_own_uri(target.name, uri)) != name else {},
        kind=kind,
        remote_name=uri,
        description=_read_description(definition, uri),
        definition=definition,
        target=target,
    )


def tool_from_instructions(target: Target, text: str) -> Tool:
    """A server's instructions in the form in which they are reviewed; nothing calls them."""
    name = f"{target.name}.{INSTRUCTIONS}"
    return Tool(
        name=name,
        alias=name,
        kind=INSTRUCTIONS,
        remote_name=INSTRUCTIONS,
        description=text,
        definition={"description": text},
        target=target,
    )


def _read_text(definition: Any, member: str, longest: int) -> str:
    if not isinstance(definition, dict):
        raise BadTool("it is no object")
    text = definition.get(member)
    if not isinstance(text, str) or not 0 < len(text) <= longest:
        raise BadTool(f"its {member} is no text of 1 to {longest} characters")
    return text


def _read_description(definition: Mapping[str, Any], name: str) -> str:
    description = definition.get("description", "")
    if not isinstance(description, str | None):
        raise BadTool(f'"{name[:200]}" has a description that is no text')
    return description or ""
