"""Classifies tools: the labels of their results, and the sinks of their arguments with their rules.

Configuration counts first, then what the target declares, then the annotations of an MCP tool, the
place where it runs, and its arguments. Knows no calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from dragoman.core.argument_names import COMMAND_ARGUMENTS, URL_ARGUMENTS
from dragoman.core.kept_results import KeptResult
from dragoman.core.structs import replace
from dragoman.core.taint import (
    AGENT,
    EXEC,
    EXTERNAL_NETWORK,
    LABELS,
    NET,
    SECRET,
    UNTRUSTED_AGENT,
    WRITE,
    FlowRule,
    ToolFlows,
)
from dragoman.core.tool import ISOLATED, NETWORK, TOOL, TRUSTED, Tool
from dragoman.guards.config import LabelRules, TaintSettings, ToolFlowSettings

MAX_CLASSIFIED = 10_000

ENFORCE, ASK, OBSERVE, OFF = "enforce", "ask", "observe", "off"
STRICTNESS: Final = (ENFORCE, ASK, OBSERVE)
DEFAULT_MODES: Mapping[tuple[str, str], str] = {
    (EXTERNAL_NETWORK, EXEC): ENFORCE,
    (UNTRUSTED_AGENT, EXEC): ENFORCE,
    (SECRET, NET): ENFORCE,
}
"""By label and sink; the others are observed."""

_REMOTE = "its server is on another machine"
_STORED_BY = (
    "path", "file_path", "filepath", "filename", "file", "paths", "files", "uri", "key",
)  # fmt: skip
"""The arguments that usually name stored data."""


def find_mode(settings: TaintSettings, label: str, sink: str) -> str:
    rules: LabelRules = getattr(settings, label)
    chosen: str | None = getattr(rules, sink)
    return chosen or DEFAULT_MODES.get((label, sink), OBSERVE)


def list_rules(settings: TaintSettings) -> Iterator[tuple[str, str, str]]:
    """Lists the label, the sink and the mode of every rule that is not off."""
    for label in LABELS:
        for sink in (EXEC, WRITE, NET, AGENT):
            mode = find_mode(settings, label, sink)
            if mode != OFF:
                yield label, sink, mode


class ToolFlowTable:
    def __init__(self, settings: TaintSettings) -> None:
        self.apply(settings)

    def apply(self, settings: TaintSettings) -> None:
        """Applies to calls from now on."""
        self.settings = settings
        self._known: dict[str, tuple[Tool, ToolFlows]] = {}

    def find(self, tool: Tool) -> ToolFlows:
        known = self._known.get(tool.name)
        if known is not None and known[0] is tool:
            return known[1]
        origin = tool.target.origin if isinstance(tool.target, KeptResult) else None
        if origin is not None:  # the rest of a result: it was called before
            return replace(self.find(origin), sinks={}, rules={}, reads_only=True)
        flows = self._classify(tool)
        if len(self._known) >= MAX_CLASSIFIED:
            self._known.clear()
        self._known[tool.name] = tool, flows
        return flows

    def find_names(self, tool: Tool) -> tuple[frozenset[str], frozenset[str]]:
        """The sources and the sinks."""
        flows = self.find(tool)
        return flows.labels, frozenset(flows.sinks)

    def _classify(self, tool: Tool) -> ToolFlows:
        own = _join_entries(self.settings.tools, tool.name)
        trusts = own.annotations != "ignore" and tool.target.traits.facts.trust >= TRUSTED
        facts = _read_definition(tool, trusts, self.settings.unannotated == "assume" or not trusts)
        sources, sinks = facts.sources, facts.sinks
        if own.sources is not None:
            sources = dict.fromkeys(own.sources, "configured")
        if own.sinks is not None:
            sinks = dict.fromkeys(own.sinks, "configured")
        return ToolFlows(
            sources=sources,
            sinks=sinks,
            rules=self._find_rules(sinks, own.allow or ()),
            labels=frozenset(sources),
            reads_only=facts.reads_only,
            stored_by=tuple(own.stored_by) if own.stored_by is not None else _STORED_BY,
            secret_fields=frozenset(map(str.lower, own.secret_fields or ())),
            pii_fields=frozenset(map(str.lower, own.pii_fields or ())),
            detects=own.detect is not False and bool(self.settings.detect),
        )

    def _find_rules(self, sinks: Mapping[str, str], allowed: Sequence[str]) -> dict[str, FlowRule]:
        rules = {}
        for label in LABELS:
            if label in allowed:
                continue
            modes = {find_mode(self.settings, label, sink): sink for sink in reversed([*sinks])}
            for mode in STRICTNESS:
                if mode in modes:
                    rules[label] = FlowRule(mode, modes[mode])
                    break
        return rules


def _join_entries(entries: Sequence[ToolFlowSettings], name: str) -> ToolFlowSettings:
    """Joins the entries that match; a setting of a later one replaces that of an earlier one."""
    found: dict[str, Any] = {}
    for entry in entries:
        if fnmatchcase(name, entry.match):
            for field in entry.__struct_fields__:
                value = getattr(entry, field)
                if value is not None:
                    found[field] = value
    return ToolFlowSettings(**{"match": name, **found})


class _Facts(NamedTuple):
    sources: dict[str, str]
    sinks: dict[str, str]
    reads_only: bool


def _read_definition(tool: Tool, trusts: bool, assumes: bool) -> _Facts:
    """Reads what the tool's target declares. Hints that relax count only if the target is trusted;
    with `assumes`, missing ones have the defaults of the MCP specification."""
    facts = tool.target.traits.facts
    declared = "declared by its target"
    sources = dict.fromkeys(sorted(tool.sources), declared)
    sinks = dict.fromkeys(sorted(tool.sinks), declared)
    if tool.agent is not None:
        sinks.setdefault(AGENT, "it is an agent")
    if facts.type != "Server":
        return _Facts(sources, sinks, False)
    hints = tool.definition.get("annotations") if tool.kind == TOOL else None
    hints = hints if isinstance(hints, Mapping) else {}
    members = _list_arguments(tool)
    if why := _find_openness(tool, hints, members, trusts, assumes):
        sources.setdefault(EXTERNAL_NETWORK, why)
        sinks.setdefault(NET, why)
    if facts.reach == NETWORK:
        sinks.setdefault(NET, _REMOTE)
    reads_only = tool.kind != TOOL or (hints.get("readOnlyHint") is True and trusts)
    if not reads_only:
        destructive = hints.get("destructiveHint")
        if destructive is True:
            sinks.setdefault(WRITE, "destructiveHint")
        elif assumes and not (destructive is False and trusts):
            sinks.setdefault(WRITE, "it has no readOnlyHint")
        if COMMAND_ARGUMENTS & members:
            sinks.setdefault(EXEC, "it takes a command")
    return _Facts(sources, sinks, reads_only)


def _find_openness(
    tool: Tool, hints: Mapping[str, Any], members: frozenset[str], trusts: bool, assumes: bool
) -> str:
    """Why the tool exchanges data with the network; empty if nothing says so."""
    hint = hints.get("openWorldHint")
    if hint is True:
        return "openWorldHint"
    if hint is False and trusts:
        return ""
    reach = tool.target.traits.facts.reach
    if reach == NETWORK:
        return _REMOTE
    if URL_ARGUMENTS & members:
        return "it takes a URL"
    return "it has no openWorldHint" if assumes and tool.kind == TOOL and reach != ISOLATED else ""


def _list_arguments(tool: Tool) -> frozenset[str]:
    schema = tool.definition.get("inputSchema")
    members = schema.get("properties") if isinstance(schema, Mapping) else None
    return frozenset(members) if isinstance(members, Mapping) else frozenset()
