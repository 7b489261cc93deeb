"""The settings that a hub runs the conformance agent with. Standard library only."""

from __future__ import annotations

import json
from dataclasses import dataclass

AGENT = "conformance"
MODULE = "tests.peers.conformance_agent"
REQUIRED_EXTENSION = "urn:a2a:tck:required-extension"
KEY = "conformance-key-of-no-one"


@dataclass(frozen=True)
class Profile:
    title: str
    function: str = "agent"
    streaming: bool = True
    push: bool = True
    required_extension: bool = False
    key: str | None = None  # what a caller must show, to be shown the extended card
    card: str = "1.0"  # the kit's schema refuses the members of other versions
    modes: tuple[str, ...] = ("text/plain", "application/json")


PROFILES = {
    "full": Profile("everything declared"),
    "bare": Profile("no streaming, no push", streaming=False, push=False),
    "extension": Profile("an extension is required", required_extension=True),
    "extended": Profile("extended card, with authentication", key=KEY),
    # Branch 0.3.x asks about files and data only where these words are among the modes.
    "patient": Profile(
        "tasks that stay open",
        function="patient",
        card="merged",
        modes=("text", "file", "data", "*/*"),
    ),
    "merged": Profile("everything declared, a card for all versions", card="merged"),
}


def settings(name: str, *, grpc_port: int | None = None, extra: str = "") -> str:
    """The whole configuration; the hub takes a free port for HTTP, for gRPC where 0 is given."""
    profile = PROFILES[name]
    head = f"api_key = {json.dumps(profile.key)}\n\n" if profile.key else ""
    grpc = f'grpc_port = {grpc_port}\ngrpc_on_cards = "always"\n' if grpc_port is not None else ""
    extension = (
        f"\n[[agents.extensions]]\nuri = {json.dumps(REQUIRED_EXTENSION)}\nrequired = true\n"
        if profile.required_extension
        else ""
    )
    return (
        f"{head}[server]\nport = 0\n\n"
        f"[a2a]\nenabled = true\ndefault_agent = {json.dumps(AGENT)}\n"
        f"card = {json.dumps(profile.card)}\npush_private = true\n{grpc}\n"
        f'[[agents]]\nname = {json.dumps(AGENT)}\ndescription = "Does what the kits ask for"\n'
        f"function = {json.dumps(f'{MODULE}:{profile.function}')}\n"
        f"streaming = {json.dumps(profile.streaming)}\npush = {json.dumps(profile.push)}\n"
        f"input_modes = {json.dumps(profile.modes)}\n"
        f"extended_card = {json.dumps(profile.key is not None)}\n"
        '\n[[agents.skills]]\nid = "echo"\nname = "Echo"\n'
        'description = "Says back what it was told"\ntags = ["echo"]\n'
        f"{extension}{extra}"
    )
