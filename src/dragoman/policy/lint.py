"""Splits a text into policies, and finds problems that Cedar's validator accepts.

Each rule is a function from a policy to findings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from dragoman.core.approvals import ApprovalRule
from dragoman.policy.analysis import PolicyReads
from dragoman.policy.approvals import rule_from_annotations
from dragoman.policy.context import MAX_ARGUMENT
from dragoman.policy.ids import find_unmatched, fold_entity_id, list_named_ids, split_id
from dragoman.policy.policy_set import ERROR, WARNING, PolicyFinding

EntityLookup = Callable[[str, str], bool | str]
"""Whether an entity of that type and id exists; the id of an entity of another kind with the same
name, if only that exists."""

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}")

MAX_BRACKETS = 30
MAX_OPERATORS = 400
MAX_DOTS = 1_000
"""Cedar's parser recurses into these, and an exhausted stack kills the process: 100 nested brackets
suffice for a stack of one megabyte."""

_TOKEN = re.compile(
    r""""(?:\\.|[^"\\])*"|//[^\r\n]*|;|[(\[{]|[)\]}]|&&|\|\||[-+*!.]|\bif\b""", re.DOTALL
)
_BEGINNING = re.compile(r"(?:\s+|//[^\r\n]*)*")


class Statement(NamedTuple):
    text: str
    line: int


def split_statements(text: str) -> list[Statement]:
    """Splits a text into its policies."""
    ends = [token.end() for token in _TOKEN.finditer(text) if token[0] == ";"]
    found = []
    begin = counted = 0
    line = 1
    for end in (*ends, len(text)):
        start = _BEGINNING.match(text, begin, end)
        at = start.end() if start else begin
        line += text.count("\n", counted, at)
        found.append(Statement(text[at:end], line))
        begin, counted = end, at
    return found if found[-1].text.strip() else found[:-1]


def find_excess(text: str) -> str:
    """Describes what exceeds the limits of Cedar's parser; empty if the text may be parsed."""
    depth = deepest = operators = dots = 0
    for token in _TOKEN.finditer(text):
        sign = token[0]
        if sign in "([{":
            depth += 1
            deepest = max(deepest, depth)
            dots += sign != "{"  # `a["b"]["c"]` is as deep as `a.b.c`
            operators += sign == "{"  # and each `when` counts as `&&`
        elif sign in ")]}":
            depth = max(depth - 1, 0)
        elif sign == ".":
            dots += 1
        elif sign == ";":
            operators = dots = 0
        elif sign[0] not in '/"':
            operators += 1
        if deepest > MAX_BRACKETS:
            return f"too deeply nested: more than {MAX_BRACKETS} brackets"
        if operators > MAX_OPERATORS or dots > MAX_DOTS:
            most = f"{MAX_OPERATORS} operators or {MAX_DOTS} dots and brackets"
            return f"a policy is too large: it has more than {most}; divide it"
    return ""


_OTHER_TYPE = {"Tool": "Skill", "Skill": "Tool"}
_OWNERS = frozenset({"Server", "RemoteAgent", "Agent"})
"""The owners of tools and skills, which have names of their own."""


class ParsedPolicy(NamedTuple):
    """A policy that Cedar could parse."""

    file: str
    line: int
    text: str
    form: Mapping[str, Any]
    read: PolicyReads
    template: bool
    written: Mapping[str, Any]
    """The form with its ids as in the text."""

    @property
    def id(self) -> str:
        return str(self.form.get("annotations", {}).get("id") or "")

    def build_rule(self) -> ApprovalRule | None:
        """The approval that it demands. Raises ValueError if its annotations are invalid."""
        annotations = self.form.get("annotations", {})
        given = {name: text or "" for name, text in annotations.items()}
        reads = "approved" in self.read.context or self.read.opaque
        return rule_from_annotations(given, self.form["effect"] == "forbid" and not reads)

    def build_finding(self, level: str, words: str) -> PolicyFinding:
        shown = self.id if ID.fullmatch(self.id) else ""
        return PolicyFinding(level, self.file, self.line, shown, words)


def lint(
    policies: Iterable[ParsedPolicy], reserved: Iterable[str], known: EntityLookup | None
) -> Iterator[PolicyFinding]:
    """`reserved` are ids that these policies may not have."""
    taken = dict.fromkeys(reserved, "a guardrail of the hub has it")
    for policy in policies:
        yield from _check_id(policy, taken)
        yield from _check_names(policy, known)
        yield from _check_texts(policy)
        yield from _check_conditions(policy)
        yield from _check_approval(policy)


def _check_id(policy: ParsedPolicy, taken: dict[str, str]) -> Iterator[PolicyFinding]:
    id = policy.id
    if not id:
        yield policy.build_finding(
            ERROR, 'the id is missing: write @id("a-short-name") before the policy'
        )
    elif not ID.fullmatch(id):
        yield policy.build_finding(
            ERROR, f"invalid id {id!a}: use ASCII letters, digits and . _ : / -"
        )
    elif id in taken:
        yield policy.build_finding(ERROR, f'the id "{id}" already exists: {taken[id]}')
    else:
        taken[id] = f"{policy.file}:{policy.line} has it"


def _check_names(policy: ParsedPolicy, known: EntityLookup | None) -> Iterator[PolicyFinding]:
    folded = {(type, fold_entity_id(id)): id for type, id in list_named_ids(policy.written)}
    for type, found in sorted(policy.read.uids):
        id = folded.get((type, found), found)
        if not id.isascii() or not id.isprintable():
            yield policy.build_finding(
                ERROR,
                f"it names {type}::{id!a}, which has characters that look like others or are "
                "invisible",
            )
        elif known is None or type in ("Action", "Org") or (there := known(type, found)) is True:
            continue
        elif there:
            kind = split_id(str(there))[0]
            words = f'it names {type}::"{id}", but that is the name of a {kind}'
            also = "; it is forbidden anyway" if policy.form["effect"] == "forbid" else ""
            yield policy.build_finding(WARNING, f'{words}: write Hub::{type}::"{there}"{also}')
        else:
            # "Vercel Ops" has vercel_ops.deploy: a policy with the name before the dot would forbid
            # nothing.
            hint = "; use the name as registered, not as in its tools" if type in _OWNERS else ""
            other = _OTHER_TYPE.get(type)
            if other is not None and known(other, found) is True:
                hint = f': that is the name of a {other.lower()}; write Hub::{other}::"{id}"'
            words = f'it names an unknown {type}::"{id}"{hint}'
            yield policy.build_finding(WARNING, words)


def _check_texts(policy: ParsedPolicy) -> Iterator[PolicyFinding]:
    for text, right in dict.fromkeys(find_unmatched(policy.form)):
        yield policy.build_finding(
            ERROR,
            f'it compares a name with "{text}", which no name can equal: names of tools are lower '
            f'case, with "_" for other characters; write "{right}". For the URI of a resource, '
            "compare with a text that contains its colon",
        )


def _check_conditions(policy: ParsedPolicy) -> Iterator[PolicyFinding]:
    form, read = policy.form, policy.read
    if policy.template:
        yield policy.build_finding(
            ERROR,
            "templates are not supported: write the principal and the resource instead of ? slots",
        )
    conditions = form.get("conditions", [])
    depends = bool(read.variables)
    everything = all(form[part]["op"] == "All" for part in ("principal", "action", "resource"))
    if form["effect"] == "permit" and everything and not depends:
        yield policy.build_finding(
            ERROR,
            "it permits everything to everyone: name a principal, an action or a resource, or "
            "add a condition",
        )
    elif conditions and not depends:
        yield policy.build_finding(WARNING, "its conditions do not depend on the request")
    if "args" in read.context and read.longest > MAX_ARGUMENT:
        yield policy.build_finding(
            ERROR,
            f"it compares arguments with a text of {read.longest} characters; at most "
            f"{MAX_ARGUMENT} can be compared",
        )


_CALLS = frozenset({("Action", one) for one in ("any_call", "mcp_call", "a2a_invoke")})


def _check_approval(policy: ParsedPolicy) -> Iterator[PolicyFinding]:
    try:
        rule = policy.build_rule()
    except ValueError as error:
        yield policy.build_finding(ERROR, str(error))
        return
    actions = {uid for uid in policy.read.uids if uid[0] == "Action"}
    if rule is not None and actions and not actions & _CALLS:
        yield policy.build_finding(WARNING, "@approval has no effect: it permits no calls")
