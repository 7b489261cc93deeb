"""examples/policies and docs/policies.md: every set works, and every snippet comes from one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.policy import policy
from dragoman.policy.config import PolicySettings
from dragoman.policy.context import NAMES
from dragoman.policy.loader import check_folder, check_texts, read_texts
from dragoman.policy.policy_set import ACTIONS
from dragoman.web.api_policies import PoliciesApi
from dragoman.web.openapi import list_routes

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples" / "policies"
PAGE = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
SETS = sorted(folder.name for folder in EXAMPLES.iterdir() if folder.is_dir())


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", SETS)
def test_example_policy_set_loads_and_decides_as_documented(name: str) -> None:
    checked = check_folder(EXAMPLES / name)
    assert checked.policy_set is not None, checked.findings
    assert not checked.findings
    assert len(checked.outcomes) >= 5 and all(each.passed for each in checked.outcomes)


@pytest.mark.parametrize("name", SETS)
def test_each_policy_of_an_example_is_necessary(name: str) -> None:
    texts = read_texts(EXAMPLES / name)
    own = next(file for file in texts if file.endswith(".cedar") and file != "default.cedar")
    policies = [part for part in re.split(r"(?=@id\()", texts[own]) if part.startswith("@id(")]
    assert policies
    for one in policies:
        without = {**texts, own: texts[own].replace(one, "")}
        failed = [each for each in check_texts(without).outcomes if not each.passed]
        assert failed, f"no golden decision of {name} fails without {one.splitlines()[0]}"


def test_the_default_policies_in_the_examples_are_those_of_the_hub() -> None:
    shipped = ROOT / "src" / "dragoman" / "policy" / "shipped" / "default.cedar"
    for copy in EXAMPLES.glob("*/default.cedar"):
        assert copy.read_text() == shipped.read_text(), copy


def test_policy_snippets_in_docs_come_from_examples() -> None:
    files = [file.read_text(encoding="utf-8") for file in EXAMPLES.glob("*/*")]
    shown = blocks("cedar") + [block for block in blocks("toml") if "[[tests]]" in block]
    assert len(shown) > 4
    for block in shown:
        assert any(block in file for file in files), f"no example has:\n{block}"


def test_the_page_names_every_example_action_guardrail_and_attribute_of_the_context() -> None:
    for name in SETS:
        assert f"examples/policies/{name}/" in PAGE
    for action in ACTIONS:
        assert f"`{action}`" in PAGE
    snapshot = check_texts(None).policy_set
    assert snapshot is not None
    for each in snapshot.policies:
        assert not each.guardrail or f"`{each.id}`" in PAGE
    for attribute in NAMES:
        assert f"`{attribute}`" in PAGE or f"`context.{attribute}`" in PAGE
    assert PolicySettings().mode == "enforce"  # as the page says


def test_the_page_names_every_command_and_route() -> None:
    for command in policy.commands:
        assert re.search(rf"`dragoman policy {command}\b|`{command} (NAME|WHO)`", PAGE), command
    for word in re.findall(r"dragoman policy ([a-z-]+)", PAGE):
        assert word in policy.commands, word
    nothing: Any = None
    for path in {each.path for each, _ in list_routes(PoliciesApi(nothing))}:
        assert path in PAGE, path
