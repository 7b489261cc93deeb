"""The keys of models in tests: variables, and files of a home that does not exist."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dragoman.agents.model_factory import ModelKeys
from dragoman.core.secret_references import SecretResolver


def build_keys(variables: Mapping[str, str]) -> ModelKeys:
    return ModelKeys(variables, SecretResolver(variables, Path("/nowhere")))
