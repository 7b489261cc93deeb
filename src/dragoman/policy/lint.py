"""Where the policies of a text begin, and what is wrong with them that Cedar's validator lets pass.

Each rule is one function: a policy in, findings out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from dragoman.policy.analysis import PolicyReads
from dragoman.policy.context import MAX_ARGUMENT
from dragoman.policy.ids import find_unmatched, fold_entity_id, list_named_ids, split_id
from dragoman.policy.policy_set import ERROR, WARNING, PolicyFinding

EntityLookup = Callable[[str, str], bool | str]
"""Whether there is such an entity here, by its type and id; the id of what is called the same and
is of another kind, where there is that alone."""

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}")

MAX_BRACKETS = 30
MAX_OPERATORS = 400
MAX_DOTS = 1_000
"""What Cedar's parser goes down into, and the stack it has ends the whole process: 100 brackets
within one another do where it is a megabyte."""

_TOKEN = re.compile(
    r""""(?:\\.|[^"\\])*"|//[^\r\n]*|;|[(\[{]|[)\]}]|&&|\|\||[-+*!.]|\bif\b""", re.DOTALL
)
_BEGINNING = re.compile(r"(?:\s+|//[^\r\n]*)*")


class Statement(NamedTuple):
    text: str
    line: int


def split_statements(text: str) -> list[Statement]:
    """The policies of a text, as they stand there."""
    found = []
    begin = 0
    for token in _TOKEN.finditer(text):
        if token[0] == ";":
            found.append(_cut_statement(text, begin, token.end()))
            begin = token.end()
    last = _cut_statement(text, begin, len(text))
    return [*found, last] if last.text.strip() else found


def find_excess(text: str) -> str:
    """What is too much of it for Cedar, in words; nothing where it may be parsed."""
    depth = deepest = operators = dots = 0
    for token in _TOKEN.finditer(text):
        sign = token[0]
        if sign in "([{":
            depth += 1
            deepest = max(deepest, depth)
            dots += sign != "{"  # `a["b"]["c"]` goes as deep as `a.b.c`
            operators += sign == "{"  # and each `when` is one more `&&`
        elif sign in ")]}":
            depth = max(depth - 1, 0)
        elif sign == ".":
            dots += 1
        elif sign == ";":
            operators = dots = 0
        elif sign[0] not in '/"':
            operators += 1
        if deepest > MAX_BRACKETS:
            return f"more than {MAX_BRACKETS} brackets are within one another"
        if operators > MAX_OPERATORS or dots > MAX_DOTS:
            most = f"{MAX_OPERATORS} operators or {MAX_DOTS} dots and brackets"
            return f"a policy has more than {most}: divide it"
    return ""


def _cut_statement(text: str, begin: int, end: int) -> Statement:
    start = _BEGINNING.match(text, begin, end)
    at = start.end() if start else begin
    return Statement(text[at:end], text.count("\n", 0, at) + 1)


_OTHER_TYPE = {"Tool": "Skill", "Skill": "Tool"}
_OWNERS = frozenset({"Server", "RemoteAgent", "Agent"})
"""Of tools and skills, which have names of their own."""


class ParsedPolicy(NamedTuple):
    """A policy that Cedar could read."""

    file: str
    line: int
    text: str
    form: Mapping[str, Any]
    read: PolicyReads
    template: bool
    written: Mapping[str, Any]
    """The form with its ids as they stand in the text."""

    @property
    def id(self) -> str:
        return str(self.form.get("annotations", {}).get("id") or "")

    def build_finding(self, level: str, words: str) -> PolicyFinding:
        shown = self.id if ID.fullmatch(self.id) else ""
        return PolicyFinding(level, self.file, self.line, shown, words)


def lint(
    policies: Iterable[ParsedPolicy], reserved: Iterable[str], known: EntityLookup | None
) -> Iterator[PolicyFinding]:
    """`reserved` are ids that no policy of these may have."""
    taken = dict.fromkeys(reserved, "the hub's own guardrails have it")
    for policy in policies:
        yield from _check_id(policy, taken)
        yield from _check_names(policy, known)
        yield from _check_texts(policy)
        yield from _check_conditions(policy)


def _check_id(policy: ParsedPolicy, taken: dict[str, str]) -> Iterator[PolicyFinding]:
    id = policy.id
    if not id:
        yield policy.build_finding(ERROR, 'it has no id: write @id("a-short-name") before it')
    elif not ID.fullmatch(id):
        yield policy.build_finding(
            ERROR,
            f"its id {id!a} may have only letters without accents, digits and . _ : / - in it",
        )
    elif id in taken:
        yield policy.build_finding(ERROR, f'its id "{id}" is taken: {taken[id]}')
    else:
        taken[id] = f"{policy.file}:{policy.line} has it"


def _check_names(policy: ParsedPolicy, known: EntityLookup | None) -> Iterator[PolicyFinding]:
    folded = {(type, fold_entity_id(id)): id for type, id in list_named_ids(policy.written)}
    for type, found in sorted(policy.read.uids):
        id = folded.get((type, found), found)
        if not id.isascii() or not id.isprintable():
            yield policy.build_finding(
                ERROR,
                f"it names {type}::{id!a}, in which are characters that look like others or "
                "like nothing",
            )
        elif known is None or type in ("Action", "Org") or (there := known(type, found)) is True:
            continue
        elif there:
            kind = split_id(str(there))[0]
            words = f'it names {type}::"{id}", and what is called so is a {kind}'
            also = "; it is forbidden all the same" if policy.form["effect"] == "forbid" else ""
            yield policy.build_finding(WARNING, f'{words}: write Hub::{type}::"{there}"{also}')
        else:
            # "Vercel Ops" has vercel_ops.deploy: whoever takes the agent's name from there forbids
            # nothing.
            hint = "; it is named as registered, not as its tools are" if type in _OWNERS else ""
            other = _OTHER_TYPE.get(type)
            if other is not None and known(other, found) is True:
                hint = f': what is called so is a {other.lower()}; write Hub::{other}::"{id}"'
            words = f'it names {type}::"{id}", which is not known here{hint}'
            yield policy.build_finding(WARNING, words)


def _check_texts(policy: ParsedPolicy) -> Iterator[PolicyFinding]:
    for text, right in dict.fromkeys(find_unmatched(policy.form)):
        yield policy.build_finding(
            ERROR,
            f'it compares a name with "{text}", which no name can be: tools are called in lower '
            f'case, with "_" for all else; write "{right}". For the address of a resource, compare '
            "with one that has its colon",
        )


def _check_conditions(policy: ParsedPolicy) -> Iterator[PolicyFinding]:
    form, read = policy.form, policy.read
    if policy.template:
        yield policy.build_finding(
            ERROR, "it is a template: write the principal and the resource in place of ? slots"
        )
    conditions = form.get("conditions", [])
    depends = bool(read.variables)
    everything = all(form[part]["op"] == "All" for part in ("principal", "action", "resource"))
    if form["effect"] == "permit" and everything and not depends:
        yield policy.build_finding(
            ERROR,
            "it permits everything to everybody: name a principal, an action or a resource, or "
            "give a condition",
        )
    elif conditions and not depends:
        yield policy.build_finding(WARNING, "its conditions depend on nothing of the request")
    if "args" in read.context and read.longest > MAX_ARGUMENT:
        yield policy.build_finding(
            ERROR,
            f"it compares arguments with a text of {read.longest} characters; {MAX_ARGUMENT} can "
            "be compared",
        )
