"""Loads policy files into a policy set: reads, parses, validates and lints them, and runs their
golden tests. Reports all problems at once, with file, line and policy.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from hashlib import sha256
from operator import or_
from pathlib import Path
from typing import Any

import msgspec

from dragoman.core.errors import ConfigError
from dragoman.policy.analysis import PolicyReads, analyze
from dragoman.policy.cedar import CedarEvaluator
from dragoman.policy.golden_tests import GoldenTest, TestOutcome, parse_tests, run_tests
from dragoman.policy.ids import fold_form
from dragoman.policy.lint import (
    EntityLookup,
    ParsedPolicy,
    Statement,
    find_excess,
    lint,
    split_statements,
)
from dragoman.policy.policy_set import ERROR, Policy, PolicyFinding, PolicySet

SHIPPED = {
    "hub.cedarschema": "8695f489d21e199393a0df843a98c061e1e86386eec16cc6b4964c1f28505ca9",
    "guardrails.cedar": "07022f358216512a977206952cb402b6a4298fc88adb73db2c8aa59a50874aec",
    "default.cedar": "e37c1c0538f129ab8710fc452431a321b2e97e06d9f2ec07659f58131dc5cd36",
}
"""The hashes of the shipped files, which were validated when these were written."""
GUARDRAILS, DEFAULT = "guardrails.cedar", "default.cedar"

MAX_FILES = 256
MAX_BYTES = 5 * 1024 * 1024
"""Of a folder that is read. Changes by the API may fill less of it (`policy.folder`)."""
MAX_POLICIES = 5_000
MAX_FINDINGS = 100
AT_ONCE = 50
"""Policies that Cedar gets at once: it parses them without giving way to other threads, and the
time of its validator grows with the square of their number."""
POLICIES, TESTS = ".cedar", ".toml"

ALL_ELSE = '@id("shadow") permit (principal, action, resource);'
"""Added to the guardrails where only they are in force."""


class PolicyError(ConfigError, kind="ConfigError"):
    """The policies are invalid."""

    def __init__(self, findings: tuple[PolicyFinding, ...]) -> None:
        self.findings = tuple(one for one in findings if one.level == ERROR)
        lines = "\n  ".join(str(one) for one in self.findings)
        super().__init__(f"the policies are invalid:\n  {lines}")


@dataclass(frozen=True, slots=True)
class CheckedPolicies:
    policy_set: PolicySet | None
    """None if there are errors."""
    findings: tuple[PolicyFinding, ...]
    outcomes: tuple[TestOutcome, ...]
    """Of the golden tests."""


def load_policies(folder: Path | None, known: EntityLookup | None = None) -> PolicySet:
    checked = check_folder(folder, known)
    if checked.policy_set is None:
        raise PolicyError(checked.findings)
    return checked.policy_set


def check_folder(folder: Path | None, known: EntityLookup | None = None) -> CheckedPolicies:
    """Checks the files in `folder`, or the default policies if there is no folder."""
    try:
        texts = read_texts(folder) if folder is not None and _exists(folder) else None
        return check_texts(texts, known)
    except PolicyError as error:
        return CheckedPolicies(None, error.findings, ())


def check_texts(
    texts: Mapping[str, str] | None, known: EntityLookup | None = None
) -> CheckedPolicies:
    """Checks files by their names; None for the default policies."""
    import cedarpy

    shipped = {name: _read_shipped(name) for name in SHIPPED}
    schema = cedarpy.Schema.from_str(shipped["hub.cedarschema"])
    files = {DEFAULT: shipped[DEFAULT]} if texts is None else _select_files(texts, POLICIES)
    effective: list[str] = []
    guardrails = _parse_policies(GUARDRAILS, shipped[GUARDRAILS])
    found: list[PolicyFinding] = []
    own: list[ParsedPolicy] = []
    for name, text in files.items():
        wrong = "the file is too large" if len(text) > MAX_BYTES else find_excess(text)
        if wrong:
            found.append(PolicyFinding(ERROR, name, 0, "", wrong))
            continue
        try:
            parsed = _parse_policies(name, text)
            own += parsed
            effective.append(_fold_ids(text, parsed))
            found += _find_invalid(name, text, schema) if texts is not None else ()
        except (ValueError, RecursionError) as error:
            found += _find_unreadable(name, text, str(error))
    if len(own) > MAX_POLICIES:
        words = f"too many policies: {len(own)}, and at most {MAX_POLICIES} are supported"
        found.append(PolicyFinding(ERROR, "", 0, "", words))
    if texts is not None:
        found += lint(own, [one.id for one in guardrails], known)
    tests, unread = _parse_tests(texts or {})
    found += unread
    if any(one.level == ERROR for one in found):
        return CheckedPolicies(None, tuple(found[:MAX_FINDINGS]), ())
    parts = [shipped[GUARDRAILS], *effective]
    rules = {one.id: one.build_rule() for one in own}
    snapshot = PolicySet(
        hash=_compute_hash(shipped, files),
        policies=(*_build_policies(guardrails, True), *_build_policies(own, False)),
        default=texts is None,
        read=reduce(or_, (one.read for one in (*guardrails, *own)), PolicyReads()),
        all=cedarpy.PolicySet.from_str("\n".join(parts), release_gil=True),
        guardrails=cedarpy.PolicySet.from_str(f"{parts[0]}\n{ALL_ELSE}"),
        schema=schema,
        approvals={id: rule for id, rule in rules.items() if rule is not None},
    )
    return _run_tests(snapshot, tests, tuple(found))


def _run_tests(
    snapshot: PolicySet, tests: Mapping[str, list[GoldenTest]], found: tuple[PolicyFinding, ...]
) -> CheckedPolicies:
    judge = CedarEvaluator(snapshot)
    outcomes = tuple(
        outcome for name, some in tests.items() for outcome in run_tests(judge, name, some)
    )
    failed = tuple(
        PolicyFinding(ERROR, one.file, 0, "", f'the test "{one.name}" fails: {one.words}')
        for one in outcomes
        if not one.passed
    )
    if failed:
        return CheckedPolicies(None, (*found, *failed), outcomes)
    return CheckedPolicies(replace(snapshot, warnings=found), found, outcomes)


# --- files ----------------------------------------------------------------------------------------


def read_texts(folder: Path) -> dict[str, str]:
    """Reads the policy and test files directly in the folder, by their names."""
    found: dict[str, str] = {}
    wrong: list[PolicyFinding] = []
    size = 0
    try:
        files = sorted(one for one in folder.iterdir() if _is_policy_file(one))
    except OSError as error:
        words = f"the folder {folder} cannot be read: {error.strerror}"
        raise PolicyError((PolicyFinding(ERROR, "", 0, "", words),)) from error
    for file in files[: MAX_FILES + 1]:
        try:
            with file.open("rb") as opened:
                data = opened.read(MAX_BYTES - size + 1)
            size += len(data)
            found[file.name] = data.decode("utf-8-sig")
        except OSError as error:
            words = f"the file cannot be read: {error.strerror}"
            wrong.append(PolicyFinding(ERROR, file.name, 0, "", words))
        except UnicodeDecodeError:
            wrong.append(PolicyFinding(ERROR, file.name, 0, "", "the file is not UTF-8 text"))
        if size > MAX_BYTES or len(files) > MAX_FILES:
            words = f"too many files: at most {MAX_FILES} files of {MAX_BYTES} bytes together"
            raise PolicyError((PolicyFinding(ERROR, "", 0, "", words),))
    if wrong:
        raise PolicyError(tuple(wrong))
    return found


def _exists(folder: Path) -> bool:
    """A dangling link exists, and so does what may not be accessed: neither is a reason to use the
    defaults, which permit more."""
    try:
        folder.lstat()
    except FileNotFoundError:
        return False
    except OSError:
        pass
    return True


def _is_policy_file(file: Path) -> bool:
    return file.suffix in (POLICIES, TESTS) and not file.name.startswith(".") and file.is_file()


def _read_shipped(name: str) -> str:
    text = (Path(__file__).parent / "shipped" / name).read_text("utf-8")
    if sha256(text.encode()).hexdigest() != SHIPPED[name]:
        words = "the file differs from the one shipped with this version: install the hub again"
        raise PolicyError((PolicyFinding(ERROR, name, 0, "", words),))
    return text


def _select_files(texts: Mapping[str, str], suffix: str) -> dict[str, str]:
    return {name: texts[name] for name in sorted(texts) if name.endswith(suffix)}


def _compute_hash(shipped: Mapping[str, str], files: Mapping[str, str]) -> str:
    whole = {"schema": shipped["hub.cedarschema"], "guardrails": shipped[GUARDRAILS], "own": files}
    return sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:12]


# --- policies -------------------------------------------------------------------------------------


def _parse_policies(file: str, text: str) -> list[ParsedPolicy]:
    """Raises ValueError if Cedar cannot parse it."""
    import cedarpy

    places = split_statements(text)
    found: list[tuple[int, ParsedPolicy]] = []
    for first, some in _list_batches(places):
        form = json.loads(cedarpy.policies_to_json_str(some))
        for kind in ("staticPolicies", "templates"):
            for name, policy in form[kind].items():
                place = first + int(name.removeprefix("policy"))  # Cedar numbers them in order
                whole, line = places[place] if place < len(places) else ("", 0)
                folded = fold_form(policy)
                parsed = ParsedPolicy(
                    file, line, whole, folded, analyze(folded), kind == "templates", policy
                )
                found.append((place, parsed))
    return [parsed for _, parsed in sorted(found, key=lambda pair: pair[0])]


def _list_batches(places: Sequence[Statement]) -> Iterator[tuple[int, str]]:
    """Lists the policies as texts of a few of them, each with the number of its first."""
    for first in range(0, len(places), AT_ONCE):
        yield first, "\n".join(one.text for one in places[first : first + AT_ONCE])


def _fold_ids(text: str, parsed: list[ParsedPolicy]) -> str:
    """Returns the text with folded ids; the same text if they are folded already."""
    import cedarpy

    if all(one.form == one.written or one.template for one in parsed):
        return text
    policies = {f"policy{number}": one.form for number, one in enumerate(parsed)}
    form = {"staticPolicies": policies, "templates": {}, "templateLinks": []}
    return cedarpy.policies_from_json_str(json.dumps(form))


def _find_unreadable(file: str, text: str, error: str) -> Iterator[PolicyFinding]:
    """Finds the policies that cannot be parsed: Cedar does not tell where it stopped."""
    import cedarpy

    some = False
    for one in split_statements(text)[:MAX_POLICIES]:
        try:
            cedarpy.policies_to_json_str(one.text)
        except (ValueError, RecursionError) as own:
            some = True
            yield PolicyFinding(ERROR, file, one.line, "", f"cannot be parsed: {own}")
    if not some:
        yield PolicyFinding(ERROR, file, 0, "", f"cannot be parsed: {error}")


def _find_invalid(file: str, text: str, schema: Any) -> Iterator[PolicyFinding]:
    import cedarpy

    places = split_statements(text)
    for first, some in _list_batches(places):
        result = cedarpy.validate_policies(some, schema, release_gil=True)
        names = result.id_annotations_by_policy_id
        for words in dict.fromkeys((one.policy_id, one.error) for one in result.errors):
            id, said = words
            number = id.removeprefix("policy")
            at = first + int(number) if number.isdigit() else len(places)
            line = places[at].line if at < len(places) else 0
            if id:  # parse errors were reported before
                said = said.removeprefix(f"for policy `{id}`, ")
                yield PolicyFinding(ERROR, file, line, names.get(id, ""), said)


def _parse_tests(
    texts: Mapping[str, str],
) -> tuple[dict[str, list[GoldenTest]], list[PolicyFinding]]:
    found, wrong = {}, []
    for name, text in _select_files(texts, TESTS).items():
        try:
            found[name] = parse_tests(text)
        except (tomllib.TOMLDecodeError, msgspec.ValidationError, ValueError) as error:
            wrong.append(PolicyFinding(ERROR, name, 0, "", f"cannot be parsed: {error}"))
    return found, wrong


def _build_policies(parsed: list[ParsedPolicy], guardrail: bool) -> Iterator[Policy]:
    for one in parsed:
        yield Policy(
            id=one.id,
            effect=str(one.form["effect"]),
            file=one.file,
            line=one.line,
            text=one.text,
            annotations={name: text or "" for name, text in one.form["annotations"].items()},
            guardrail=guardrail,
            form=one.form,
            read=one.read,
        )
