"""Hostile texts and names neither end the process nor fill its memory."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import pytest
from tests.policy.policy_cases import call, key, policies, tool

_CHECK = """
import sys, threading
from dragoman.policy.loader import check_texts
text = sys.stdin.read()
def run():
    checked = check_texts({"mine.cedar": text})
    print("usable" if checked.policy_set else checked.findings[0].words)
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""
_HEAD = '@id("deep") permit (principal, action in Hub::Action::"any_call", resource) '


@pytest.mark.parametrize(
    "text",
    [
        _HEAD + "when { context" + '["a"]' * 40_000 + " };",
        _HEAD + "when { principal.org == resource.org }" * 6_000 + ";",
        _HEAD + "when { ip" + "(1)" * 40_000 + " };",
    ],
    ids=["indices", "conditions", "calls"],
)
def test_too_deep_policies_are_refused_before_parsing(
    text: str,
) -> None:
    """In a process of its own: what they end is the whole of it."""
    done = subprocess.run(
        [sys.executable, "-c", _CHECK], input=text, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-500:]
    assert "divide it" in done.stdout


def test_resource_uris_from_clients_do_not_fill_memory() -> None:
    judge = policies('@id("all") permit (principal, action, resource) when { principal has org };')
    tracemalloc.start()
    try:
        for number in range(1_500):
            resource = tool(f"files.file:///{number}{'x' * 8_000}", kind="resource")
            assert judge.decide(call(key("guest"), resource)).allowed
        assert tracemalloc.get_traced_memory()[0] < 4_000_000
    finally:
        tracemalloc.stop()
