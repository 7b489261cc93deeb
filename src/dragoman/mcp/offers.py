"""What a server offers, of every kind: listed, made the hub's own, and put into the catalogs.

A malformed entry is left out alone and reported. A list that has not changed touches nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Any, NamedTuple

from dragoman.core.catalog import Catalog
from dragoman.core.errors import ConfigError, HubError, Unreachable
from dragoman.core.ports import SchemaCompiler
from dragoman.core.templates import MAX_URI
from dragoman.core.tool import PROMPT, RESOURCE, TEMPLATE, TOOL, Target, Tool
from dragoman.mcp.client import Session
from dragoman.mcp.client_http import HttpWire
from dragoman.mcp.names import alias_name, canonical_name, distinct, other_names
from dragoman.mcp.param_headers import Path, header_params
from dragoman.mcp.translate import MAX_NAME, BadTool, tool_from_definition

log = logging.getLogger(__name__)

MAX_PROBLEMS = 20
TURN_SECONDS = 0.005
"""How long a list may be worked on before others have their turn."""
LIST_SECONDS = 10.0
"""The longest that any list but that of the tools is waited for."""


class Kind(NamedTuple):
    feature: str
    """Of the server; without it nothing is asked."""
    method: str
    member: str
    changed: str
    """The notification that says so."""


KINDS = {
    TOOL: Kind("tools", "tools/list", "tools", "notifications/tools/list_changed"),
    PROMPT: Kind("prompts", "prompts/list", "prompts", "notifications/prompts/list_changed"),
    RESOURCE: Kind(
        "resources", "resources/list", "resources", "notifications/resources/list_changed"
    ),
    TEMPLATE: Kind(
        "resources",
        "resources/templates/list",
        "resourceTemplates",
        "notifications/resources/list_changed",
    ),
}


def kinds_changed(method: str) -> list[str]:
    """The kinds whose list a notification is about."""
    return [name for name, kind in KINDS.items() if kind.changed == method]


class Offers:
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
            PROMPT: [],
            RESOURCE: [],
            TEMPLATE: [],
        }
        """As the server put it. Tools are offered even where there are none."""
        self._checked = False
        """Whether the tools that are offered were looked through for headers to send."""
        self._problems: dict[str, list[str]] = {}
        self.mirrored: dict[str, Mapping[str, Path]] = {}
        """Of the tools that have such: which of their arguments are sent as headers as well."""

    @property
    def problems(self) -> list[str]:
        """What was left out, and why."""
        return [words for kind in KINDS for words in self._problems.get(kind, ())][:MAX_PROBLEMS]

    def count(self, kind: str) -> int:
        return len(self._catalogs[kind].offered_by(self._target.name))

    def total(self, kind: str) -> int:
        """Of all servers."""
        return len(self._catalogs[kind])

    def withdraw(self) -> None:
        for catalog in self._catalogs.values():
            catalog.withdraw(self._target.name)

    async def refresh(self, session: Session, kinds: Iterable[str], timeout: float) -> None:
        """Lists what may have changed and offers it. Only the tools are needed: another list that
        is not given is reported, and what was offered stays."""
        wanted = list(kinds)
        if TOOL in wanted:
            await self._refresh(session, TOOL, timeout)
        others = [kind for kind in wanted if kind != TOOL]
        if others:
            within = min(timeout, LIST_SECONDS)
            await asyncio.gather(*(self._try(session, kind, within) for kind in others))

    async def _try(self, session: Session, kind: str, timeout: float) -> None:
        try:
            await self._refresh(session, kind, timeout)
        except Unreachable:
            raise
        except HubError as error:
            self._report(kind, [f"no {kind}s are listed: {error}"])

    async def _refresh(self, session: Session, kind: str, timeout: float) -> None:
        feature, method, member, _ = KINDS[kind]
        definitions: list[Any] = []
        assumed = kind == TOOL and not session.features
        if session.features.get(feature) is not None or assumed:
            definitions = await self._entries(session, kind, method, member, timeout)
        checked = kind == TOOL and session.modern and isinstance(session.wire, HttpWire)
        if definitions == self._listed[kind] and (kind != TOOL or checked == self._checked):
            return  # so that nobody is told of a change that is none
        tools, mirrored, problems = await self._made(kind, definitions, checked)
        self._report(kind, problems)
        self._listed[kind] = definitions
        if kind == TOOL:
            self._checked, self.mirrored = checked, mirrored
        try:
            self._catalogs[kind].offer(self._target.name, tools)
        except ConfigError as error:
            self._problems[kind].append(str(error))

    async def _entries(
        self, session: Session, kind: str, method: str, member: str, timeout: float
    ) -> list[Any]:
        try:
            return await session.entries(method, member, timeout)
        except HubError as error:
            native = getattr(error, "native", None)
            if kind == TEMPLATE and isinstance(native, dict) and native.get("code") == -32601:
                return []  # many have resources and no templates
            raise

    async def _made(
        self, kind: str, definitions: list[Any], checked: bool
    ) -> tuple[list[Tool], dict[str, Mapping[str, Path]], list[str]]:
        tools: list[Tool] = []
        mirrored: dict[str, Mapping[str, Path]] = {}
        problems: list[str] = []
        taken: dict[str, str] = {}
        begun = monotonic()
        for position, definition in enumerate(definitions):
            if monotonic() - begun > TURN_SECONDS:
                await asyncio.sleep(0)
                begun = monotonic()
            try:
                tool = self._one(kind, definition, taken)
                if checked and (params := _headers(tool)):
                    mirrored[tool.remote_name] = params
            except BadTool as error:
                problems.append(f"{kind} {position + 1} is left out: {error}")
                continue
            taken[tool.name] = tool.remote_name
            tools.append(tool)
        return tools, mirrored, problems

    def _one(self, kind: str, definition: Any, taken: Mapping[str, str]) -> Tool:
        if kind == TOOL:
            return tool_from_definition(
                definition, self._target, taken, self._compile, self._prefix
            )
        if kind == PROMPT:
            return prompt_from_definition(definition, self._target, taken, self._prefix)
        member = "uri" if kind == RESOURCE else "uriTemplate"
        return resource_from_definition(definition, self._target, taken, kind, member)

    def _report(self, kind: str, problems: list[str]) -> None:
        known, found = self._problems.get(kind, []), problems[:MAX_PROBLEMS]
        self._problems[kind] = found
        for problem in found:
            if problem not in known:  # said once, however often it is listed
                log.warning('server "%s": %s', self._target.name, problem)


def _headers(tool: Tool) -> Mapping[str, Path]:
    try:
        return header_params(tool.definition["inputSchema"])
    except ValueError as error:
        raise BadTool(f'"{tool.remote_name}": {error}') from None


def prompt_from_definition(
    definition: Any, target: Target, taken: Mapping[str, str], prefix: str | None = None
) -> Tool:
    """A server's prompt as the hub offers it. `taken` are the names given already, and to which."""
    name = _text(definition, "name", MAX_NAME)
    arguments = definition.get("arguments")
    if not isinstance(arguments, list | None) or not all(
        isinstance(argument, dict) and isinstance(argument.get("name"), str)
        for argument in arguments or ()
    ):
        raise BadTool(f'"{name}" has arguments that are no list of named ones')
    canonical = canonical_name(target.name, name)
    if taken.get(canonical, name) != name:
        canonical = distinct(canonical, name)
    if canonical in taken:
        raise BadTool(f'"{name}" is listed twice')
    others = other_names(target.name, prefix, name, canonical)
    return Tool(
        name=canonical,
        alias=others.pop("seed", "") or alias_name(target.name, name),
        other_names=others,
        kind=PROMPT,
        remote_name=name,
        description=_description(definition, name),
        definition=definition,
        target=target,
    )


def resource_from_definition(
    definition: Any, target: Target, taken: Mapping[str, str], kind: str, member: str
) -> Tool:
    """A server's resource, or template of such, which is called as the server has it."""
    uri = _text(definition, member, MAX_URI)
    _text(definition, "name", MAX_URI)
    if not uri.isprintable():
        raise BadTool(f"its {member} has characters that no address has")
    canonical = f"{target.name}.{uri}"
    if canonical in taken:
        raise BadTool(f'"{uri[:200]}" is listed twice')
    return Tool(
        name=canonical,
        alias=uri,
        kind=kind,
        remote_name=uri,
        description=_description(definition, uri),
        definition=definition,
        target=target,
    )


def _text(definition: Any, member: str, longest: int) -> str:
    if not isinstance(definition, dict):
        raise BadTool("it is no object")
    text = definition.get(member)
    if not isinstance(text, str) or not 0 < len(text) <= longest:
        raise BadTool(f"its {member} is no text of 1 to {longest} characters")
    return text


def _description(definition: Mapping[str, Any], name: str) -> str:
    description = definition.get("description", "")
    if not isinstance(description, str | None):
        raise BadTool(f'"{name[:200]}" has a description that is no text')
    return description or ""
