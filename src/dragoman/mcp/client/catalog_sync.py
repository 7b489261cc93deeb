"""What a server offers: lists fetched, parsed into tools and published in the catalogs.

An invalid entry is omitted alone and reported. A list that has not changed changes no catalog,
in whatever order it is.
`ListFreshness` says when a list is read again although its server announced no change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from dragoman.core.backoff import add_jitter
from dragoman.core.call import NOTHING
from dragoman.core.catalog import Catalog
from dragoman.core.errors import ConfigError, HubError, TimedOut, Unreachable
from dragoman.core.loop_turns import LoopTurns
from dragoman.core.ports import SchemaCompiler
from dragoman.core.resource_uris import MAX_URI, build_listed_uri, build_own_uri
from dragoman.core.tool import INSTRUCTIONS, PROMPT, RESOURCE, TEMPLATE, TOOL, Target, Tool
from dragoman.mcp.client.session import UpstreamSession, announces_resources
from dragoman.mcp.protocol.mirrored_headers import Path, find_mirrored_params
from dragoman.mcp.protocol.tool_names import is_shortened
from dragoman.mcp.protocol.translate import MAX_NAME, BadTool, build_names, tool_from_definition
from dragoman.wire.json import encode
from dragoman.wire.rpc import METHOD_NOT_FOUND

if TYPE_CHECKING:
    from dragoman.mcp.client.upstream import Upstream

log = logging.getLogger(__name__)

MAX_PROBLEMS = 20
MAX_INSTRUCTIONS = 65_536
"""Characters of a server's instructions that are reviewed; the rest is never shown."""


class ListKind(NamedTuple):
    feature: str
    """The capability that a server with this list declares."""
    method: str
    member: str
    id: str
    """The member that identifies an entry."""

    @property
    def changed(self) -> str:
        """The notification of a change."""
        return f"notifications/{self.feature}/list_changed"


KINDS = {
    TOOL: ListKind("tools", "tools/list", "tools", "name"),
    PROMPT: ListKind("prompts", "prompts/list", "prompts", "name"),
    RESOURCE: ListKind("resources", "resources/list", "resources", "uri"),
    TEMPLATE: ListKind("resources", "resources/templates/list", "resourceTemplates", "uriTemplate"),
}


def is_offered(session: UpstreamSession, kind: str) -> bool:
    """Whether the server declares this list. One that declares no capabilities at all may still
    have tools."""
    is_assumed = kind == TOOL and not session.features
    return is_assumed or session.features.get(KINDS[kind].feature) is not None


def is_announced(session: UpstreamSession, kind: str) -> bool:
    """Whether the server declares that it announces changes of this list."""
    offered = session.features.get(KINDS[kind].feature)
    return isinstance(offered, dict) and offered.get("listChanged") is True


def find_changed_kinds(method: str) -> list[str]:
    """Returns the kinds whose list a notification announces as changed."""
    return [name for name, kind in KINDS.items() if kind.changed == method]


Lists = dict[str, "list[Any] | HubError"]
"""Entries by kind, or why the server did not return them."""


class ParsedList(NamedTuple):
    definitions: list[Any]
    has_headers: bool
    """Whether the tools were searched for arguments to send as headers."""
    tools: list[Tool]
    mirrored: dict[str, Mapping[str, Path]]
    problems: list[str]


class CatalogSync:
    def __init__(
        self, upstream: Upstream, catalogs: Mapping[str, Catalog], compile_schema: SchemaCompiler
    ) -> None:
        self._upstream = upstream
        self._catalogs = catalogs
        self._compile = compile_schema
        self._published: dict[str, list[Any] | None] = dict.fromkeys(KINDS)
        """As the server returned them. Empty lists are published as well: what comes later is an
        addition."""
        self._instructions: str | None = None
        self._has_headers = False
        """Whether the published tools were searched for arguments to send as headers."""
        self._problems: dict[str, list[str]] = {kind: [] for kind in KINDS}
        self._long_names: list[str] = []
        self.mirrored: dict[str, Mapping[str, Path]] = {}
        """The arguments that are also sent as headers, by tool."""
        self.spent = 0.0
        """Seconds of CPU time that publishing the last lists took."""

    @property
    def problems(self) -> list[str]:
        """What was omitted, and why."""
        found = [problem for about in self._problems.values() for problem in about]
        for catalog in self._catalogs.values():
            found += catalog.list_remarks(self._upstream.name)
        return found[:MAX_PROBLEMS]

    def describe_long_names(self) -> list[str]:
        """Names the tools whose portable name is too long, so that it ends with a digest."""
        entry, found = self._upstream.entry, self._long_names
        if not found:
            return []
        return [
            f"names too long for models with the prefix "
            f'"{entry.name if entry.prefix is None else entry.prefix}", and listed with a digest '
            f'in the style portable: {len(found)}, such as "{found[0]}"; set a shorter prefix for '
            "the server"
        ]

    def count_total(self, kind: str) -> int:
        """Counts the entries of all servers."""
        return len(self._catalogs[kind])

    def list_offered(self, kind: str) -> Sequence[Tool]:
        return self._catalogs[kind].list_offered(self._upstream.name)

    def withdraw(self) -> None:
        for catalog in self._catalogs.values():
            catalog.withdraw(self._upstream.name)

    # --- fetching ------------------------------------------------------------------------------

    async def fetch_lists(
        self, session: UpstreamSession, kinds: Iterable[str], declared: Mapping[str, Any] = NOTHING
    ) -> Lists:
        """Fetches these lists, unchanged. Only the tools are required: for another list that fails
        the error is returned. `declared` are the client features of a modern request."""
        wanted = list(kinds)
        found = await asyncio.gather(
            *(self._fetch_list(session, kind, declared) for kind in wanted)
        )
        lists = dict(zip(wanted, found, strict=True))
        for kind, entries in lists.items():
            if isinstance(entries, Unreachable) or (kind == TOOL and isinstance(entries, HubError)):
                raise entries
        return lists

    async def _fetch_list(
        self, session: UpstreamSession, kind: str, declared: Mapping[str, Any]
    ) -> list[Any] | HubError:
        """No other list delays the tools."""
        _, method, member, *_ = KINDS[kind]
        if not is_offered(session, kind):
            return []
        within, timeout = None, self._upstream.answer_secs
        if kind != TOOL:  # each page of the tools has its timeout, and connecting as a whole
            within = timeout = min(timeout, self._upstream.limits.list_secs)
        try:
            async with asyncio.timeout(within):
                meta = session.build_meta(declared, None)
                return await session.list_entries(method, member, timeout, meta)
        except TimeoutError:
            return TimedOut(f'"{method}" was not answered completely within {timeout:g} s')
        except HubError as error:
            native = getattr(error, "native", None)
            is_unknown = isinstance(native, dict) and native.get("code") == METHOD_NOT_FOUND
            # Many servers have resources and no templates. One that declares nothing may have no
            # tools.
            return [] if is_unknown and (kind == TEMPLATE or not session.features) else error

    # --- publishing ----------------------------------------------------------------------------

    async def publish(self, session: UpstreamSession, lists: Lists) -> None:
        """Publishes these lists; one that could not be fetched stays as it was. One server at a
        time: many that connect at once would each have a turn in the same turn of the loop."""
        async with self._catalogs[TOOL].publishing:
            if not self._is_stopped():
                await self._publish(session, lists)
                await asyncio.sleep(0)  # before the next server

    def _is_stopped(self) -> bool:
        """Whether what the server offered is withdrawn, and nothing may be offered again."""
        return self._upstream.connection.state == "stopped"

    async def _publish(self, session: UpstreamSession, lists: Lists) -> None:
        extensions = session.features.get("extensions")
        self._upstream.traits = replace(
            self._upstream.traits,
            has_resources=session.features.get("resources") is not None,
            announces_resources=announces_resources(session),
            extensions=extensions if isinstance(extensions, dict) else NOTHING,
        )
        changes: list[tuple[str, ParsedList]] = []
        turns = LoopTurns()
        has_headers = session.revision.has_mirrored_headers and session.wire.sends_headers
        for kind, entries in lists.items():
            if isinstance(entries, HubError):
                self.report_problems(KINDS[kind].method, [f"no {kind}s are listed: {entries}"])
                continue
            self.report_problems(KINDS[kind].method, [])
            differs = not _is_same_list(entries, self._published[kind])
            if differs or (kind == TOOL and has_headers != self._has_headers):
                parsed = await self._parse_list(kind, entries, has_headers and kind == TOOL, turns)
                changes.append((kind, parsed))
        for kind, parsed in changes:  # unchanged lists are not published: no client is notified
            if self._is_stopped():
                return
            await self._publish_list(kind, parsed, turns)
        if not self._is_stopped():
            self._publish_instructions(session.instructions[:MAX_INSTRUCTIONS].strip())
        self.spent = turns.spent

    async def _publish_list(self, kind: str, parsed: ParsedList, turns: LoopTurns) -> None:
        catalog, problem = self._catalogs[kind], ""
        try:
            await catalog.offer_in_turns(self._upstream.name, parsed.tools, turns)
        except ConfigError as error:
            problem = str(error)
        # Not before it is offered: what is cancelled until then is published the next time.
        self.report_problems(kind, parsed.problems)
        self._published[kind] = parsed.definitions
        if kind == TOOL:
            self._has_headers, self.mirrored = parsed.has_headers, parsed.mirrored
            has_apps = any(tool.resources for tool in parsed.tools)
            has_apps = has_apps or self._upstream.lists.has_interfaces
            self._upstream.traits = replace(self._upstream.traits, has_apps=has_apps)
            name, prefix = self._upstream.name, self._upstream.entry.prefix
            names = [tool.remote_name for tool in parsed.tools]
            self._long_names = [one for one in names if is_shortened(name, prefix, one)]
        if problem:
            self._problems[kind].append(problem)

    def _publish_instructions(self, text: str) -> None:
        catalog = self._catalogs.get(INSTRUCTIONS)
        if catalog is None or text == self._instructions:
            return
        self._instructions = text
        tool = tool_from_instructions(self._upstream, text)
        catalog.offer(self._upstream.name, [tool] if text else [])

    def report_problems(self, about: str, problems: list[str]) -> None:
        """Replaces the problems reported about one list or topic."""
        known, found = self._problems.get(about, []), problems[:MAX_PROBLEMS]
        self._problems[about] = found
        for problem in found:
            if problem not in known:  # logged once, however often it is listed
                log.warning('server "%s": %s', self._upstream.name, problem)

    # --- parsing -------------------------------------------------------------------------------

    async def _parse_list(
        self, kind: str, definitions: list[Any], has_headers: bool, turns: LoopTurns
    ) -> ParsedList:
        parsed = ParsedList(definitions, has_headers, [], {}, [])
        taken: set[str] = set()
        for position, definition in enumerate(definitions):
            await turns.give_way()
            try:
                tool = self._parse_entry(kind, definition, taken)
                if has_headers and (params := _find_header_params(tool)):
                    parsed.mirrored[tool.remote_name] = params
            except BadTool as error:
                parsed.problems.append(f"{kind} {position + 1} is omitted: {error}")
                continue
            taken.add(tool.remote_name)
            parsed.tools.append(tool)
        return parsed

    def _parse_entry(self, kind: str, definition: Any, taken: Collection[str]) -> Tool:
        upstream, prefix = self._upstream, self._upstream.entry.prefix
        if kind == TOOL:
            return tool_from_definition(definition, upstream, taken, self._compile, prefix)
        if kind == PROMPT:
            return prompt_from_definition(definition, upstream, taken, prefix)
        return resource_from_definition(definition, upstream, taken, kind, KINDS[kind].id)


def _is_same_list(entries: list[Any], published: list[Any] | None) -> bool:
    """Whether both have the same entries. Another order alone is no change: some servers shuffle
    their lists, and clients would be notified of every one."""
    if published is None or len(entries) != len(published):
        return False
    return entries == published or sorted(map(encode, entries)) == sorted(map(encode, published))


def _find_header_params(tool: Tool) -> Mapping[str, Path]:
    try:
        return find_mirrored_params(tool.definition["inputSchema"])
    except ValueError as error:
        raise BadTool(f'"{tool.remote_name}": {error}') from None


def prompt_from_definition(
    definition: Any, target: Target, taken: Collection[str], prefix: str | None = None
) -> Tool:
    """Builds the tool of a server's prompt. `taken` are the names before it in its list."""
    name = _read_text(definition, "name", MAX_NAME)
    arguments = definition.get("arguments")
    if not isinstance(arguments, list | None) or not all(
        isinstance(argument, dict) and isinstance(argument.get("name"), str)
        for argument in arguments or ()
    ):
        raise BadTool(f'"{name}" has invalid arguments: they must be a list of objects with a name')
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
    """Builds the tool of a server's resource or template; clients use the server's URI."""
    uri = _read_text(definition, member, MAX_URI)
    _read_text(definition, "name", MAX_URI)
    if not uri.isprintable():
        raise BadTool(f"its {member} has invalid characters")
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
    """Wraps a server's instructions for review; nothing calls them."""
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
        raise BadTool("it must be an object")
    text = definition.get(member)
    if not isinstance(text, str) or not 0 < len(text) <= longest:
        raise BadTool(f"its {member} must be a string of 1 to {longest} characters")
    return text


def _read_description(definition: Mapping[str, Any], name: str) -> str:
    description = definition.get("description", "")
    if not isinstance(description, str | None):
        raise BadTool(f'"{name[:200]}" has an invalid description: it must be a string')
    return description or ""


# --- freshness ---------------------------------------------------------------------------------

LEAST_SECONDS = 1.0
"""A list younger than this is not read again."""
READ_FACTOR = 5.0
"""A list that took long to read is not read again for this many times as long."""
WAIT_SECONDS = 3.0
"""How long a request waits for lists that are read again for it."""


class _ListAge(NamedTuple):
    read_at: float
    next_at: float
    """When it is read in the background, if at all."""
    ttl: float | None
    """Seconds that it is valid, as the server declared."""
    is_announced: bool
    """Whether the server declares that it announces changes."""


class ListFreshness:
    """When the lists of one server are read again.

    A client that requests a list older than its `ttlMs` (2026-07-28), or than `refresh_secs` where
    the server announces nothing, gets it read again. A list that changes unannounced is found in
    the background while the server is used. However many clients ask, a list is read at most once a
    second, and once more after a call.
    """

    def __init__(
        self,
        interval: float,
        is_listening: Callable[[], bool],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """An `interval` of 0 disables all but `ttlMs`. `is_listening` says whether an announcement
        of the server would arrive at this moment."""
        self._interval = interval
        self._is_listening = is_listening
        self._clock = clock
        self._lists: dict[str, _ListAge] = {}
        self._least = LEAST_SECONDS

    def clear(self) -> None:
        """There is no connection to read from."""
        self._lists.clear()

    def note(self, kind: str, begun: float, ttl: float | None, *, announced: bool) -> None:
        """Notes that this list was read, or could not be, from `begun` on."""
        next_at = begun + add_jitter(self._interval, 0.1)
        self._lists[kind] = _ListAge(begun, next_at, ttl, announced)
        self._least = max(LEAST_SECONDS, READ_FACTOR * (self._clock() - begun))

    def is_stale(self, kind: str, used_at: float = 0.0) -> bool:
        """Whether a client that requests the list gets it read again. A call that ended at
        `used_at` may have changed it: it is then read once, however young."""
        age = self._lists.get(kind)
        if age is None:
            return False
        if age.ttl is not None:
            most = age.ttl
        elif self._interval and not self._is_announced(age):
            most = self._interval
        else:
            return False
        least = 0.0 if used_at > age.read_at else self._least
        return self._clock() - age.read_at >= max(most, least)

    def may_read(self, kind: str) -> bool:
        """Whether it may be read again for a client that calls something it does not contain."""
        age = self._lists.get(kind)
        return age is not None and self._clock() - age.read_at >= self._least

    def list_due(self, used_at: float) -> list[str]:
        """Returns the kinds to read in the background: their lists are old, and the server was used
        since they were read."""
        if not self._interval:
            return []
        now = self._clock()
        return [
            kind
            for kind, age in self._lists.items()
            if now >= age.next_at
            and used_at >= age.read_at
            and now - age.read_at >= self._least
            and not self._is_announced(age)
        ]

    @property
    def pause(self) -> float | None:
        """Seconds until a list may be due; None for never."""
        if not self._interval or not self._lists:
            return None
        now = self._clock()
        coming = [age.next_at - now for age in self._lists.values() if age.next_at > now]
        return max(0.05, min(coming, default=self._interval))

    def _is_announced(self, age: _ListAge) -> bool:
        return age.is_announced and self._is_listening()
