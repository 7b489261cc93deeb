"""Secrets in data: replaced by references, restored from them, never made from foreign text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.core.secret_values import NO_SECRETS, SecretValues

TOKEN, KEY = "tok-7712-canary", 'line "one"\nline two'
VALUES = SecretValues({"TOKEN": TOKEN, "KEY": KEY, "SHORT": "prod"}, ["LATER"])


def test_values_are_replaced_everywhere_and_restored() -> None:
    data = {
        "a": [TOKEN, f"Bearer {TOKEN}!", 1, None, True, "prod"],
        f"key of {TOKEN}": {"text": json.dumps({"k": KEY, "t": TOKEN})},
    }
    sealed = VALUES.seal(data)
    stored = json.dumps(sealed)
    assert TOKEN not in stored and json.dumps(KEY)[1:-1] not in stored and "line two" not in stored
    assert sealed["a"][1] == "Bearer ${secret env:TOKEN}!" and sealed["a"][5] == "prod"
    assert VALUES.unseal(sealed) == data
    assert VALUES.find_in(data) == {"TOKEN", "KEY"} and not VALUES.find_in(["prod"])


@pytest.mark.parametrize(
    "text",
    [
        "${secret env:TOKEN}", "${secret text:env:TOKEN}", "${secret env:LATER}",
        "${secret json:env:KEY} ${secret text:text:env:TOKEN}", "${secret env:OTHER}", "${secret ",
    ],
)  # fmt: skip
def test_text_that_looks_like_a_reference_does_not_become_a_secret(text: str) -> None:
    sealed = VALUES.seal({"said": text})
    restored = VALUES.unseal(json.loads(json.dumps(sealed)))
    assert restored == {"said": text}
    # A variable that was not set when the text was stored does not change that.
    later = SecretValues({"TOKEN": TOKEN, "KEY": KEY, "LATER": "later-secret"}, ["SHORT"])
    assert later.unseal(sealed) == {"said": text}


def test_masking_twice_changes_nothing() -> None:
    odd = SecretValues({"secret": "secret", "N": "env:secret", "A": TOKEN, "B": f"{TOKEN}-long"})
    once = odd.mask(f"{TOKEN} secret {TOKEN}-long")
    assert once == "${secret env:A} secret ${secret env:B}" and odd.mask(once) == once


def test_without_secrets_nothing_is_copied() -> None:
    data: dict[str, Any] = {"a": ["x"]}
    assert NO_SECRETS.mask(data) is data and not NO_SECRETS and not NO_SECRETS.find_in(data)
