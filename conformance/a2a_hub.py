"""A hub with the conformance agent, the basis of all A2A checks."""

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.peers.conformance_profiles import PROFILES, settings

from conformance.hubs import run_hubs
from conformance.paths import HOMES

CARD = "/.well-known/agent-card.json"


@dataclass(frozen=True)
class RunningA2aHub:
    base: str
    home: Path

    @property
    def url(self) -> str:
        return f"{self.base}/a2a"


@contextlib.contextmanager
def a2a_hub(
    name: str, profile: str, *, extra: str = "", grpc: bool = True
) -> Iterator[RunningA2aHub]:
    """A hub of its own, or several; its tasks and push targets are its own."""
    home = HOMES / f"a2a-{name}"
    home.mkdir()
    text = settings(profile, grpc_port=0 if grpc else None, extra=extra)
    (home / "config.toml").write_text(text, encoding="utf-8")
    (home / "config.toml").chmod(0o600)
    key = PROFILES[profile].key or ""
    with run_hubs(f"a2a-{name}", home, key, grpc=grpc) as hubs:

        def card(base: str) -> str:
            request = urllib.request.Request(f"{base}{CARD}")
            if key:
                request.add_header("Authorization", f"Bearer {key}")
            with urllib.request.urlopen(request, timeout=5) as answer:
                return str(json.load(answer)["name"])

        hubs.wait_each(card)
        yield RunningA2aHub(hubs.base, home)
