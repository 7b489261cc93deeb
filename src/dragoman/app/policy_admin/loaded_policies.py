"""Loads the policies of a home into an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dragoman.app.config_watch import LiveConfig
from dragoman.app.policy_admin.known_ids import LiveKnownIds
from dragoman.core.catalog import Catalog
from dragoman.core.tool import Nowhere, TargetFacts, Tool
from dragoman.policy import loader
from dragoman.policy.engine import PolicyEngine
from dragoman.policy.folder import PolicyFolder
from dragoman.stores.keys import KeyStore


@dataclass(frozen=True, slots=True)
class LoadedPolicies:
    folder: PolicyFolder
    known_ids: LiveKnownIds
    engine: PolicyEngine


def load_policies(
    home: Path,
    live: LiveConfig,
    keys: KeyStore,
    catalogs: Mapping[str, Catalog],
    find_facts: Callable[[str], TargetFacts | None],
) -> LoadedPolicies:
    config = live.config
    folder = PolicyFolder(home / config.policy.folder)
    folder.clean()
    known_ids = LiveKnownIds(home, live, keys, catalogs)
    engine = PolicyEngine(
        loader.load_policies(folder.path, known_ids.is_known),
        facts=find_facts,
        intact=_is_intact,
        mode=config.policy.mode,
        depth=config.limits.chain_depth,
    )
    return LoadedPolicies(folder, known_ids, engine)


def _is_intact(tool: Tool) -> bool:
    """A tool that differs from what was approved is not in the catalog: it leads nowhere."""
    return not isinstance(tool.target, Nowhere)
