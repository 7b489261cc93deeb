"""`[a2a]`: how the hub serves A2A, and the external agents it knows. `[bridge]`: how their skills
become tools."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from dragoman.core.tool_identity import HUB as HUB
from dragoman.oauth.config import OAuthSettings

DOOR = "a2a"
"""The entry point, as policies and records name it."""
PATHS = frozenset({"tasks", "agents", "v1", "card", "stream", "extendedAgentCard", ".well-known"})
"""Path segments that are not the name of an agent where one may stand."""

Signatures = Literal["ignore", "prefer", "require"]
Trust = Literal["external", "trusted"]

WIRE_SKILL_ONLY = "skill-only"
"""The `wire` of an agent that is sent bare skill calls."""
RENAMED_WIRES = {"seed": WIRE_SKILL_ONLY}
"""Former values, still accepted with a warning."""


class ExternalAgent(Struct, frozen=True, kw_only=True):
    name: Annotated[
        str, Meta(min_length=1, max_length=64, description="The name of the agent on this hub.")
    ]
    url: Annotated[str, Meta(min_length=1, description="Where its card is published.")]
    headers: Annotated[
        dict[str, str] | list[str],
        Meta(
            description="Headers to send to this origin alone; ${NAME} takes a value from the "
            "environment, ${REFERENCE} from a file, the keyring or a command."
        ),
    ] = {}
    allow_private: Annotated[
        bool, Meta(description="Whether the name in `url` may lead to a private address.")
    ] = False
    public: Annotated[
        bool,
        Meta(
            description="Whether its card is published to clients without a key; while the hub "
            "needs no key, every client on this machine sees it."
        ),
    ] = False
    timeout_secs: Annotated[
        float, Meta(gt=0, le=86_400, description="Seconds to wait for each of its responses.")
    ] = 30
    signatures: Annotated[
        Signatures | None,
        Meta(description="Whether its card must be signed; default: that of [a2a]."),
    ] = None
    keys: Annotated[
        list[str],
        Meta(max_length=16, description="Files with the public keys that may sign its card."),
    ] = []
    token: Annotated[
        Annotated[str, Meta(pattern="^(env|file|keyring|exec):.+$")] | None,
        Meta(
            description="The bearer token for this origin alone, by reference: env:NAME, "
            "file:PATH, keyring:SERVICE/NAME or exec:COMMAND."
        ),
    ] = None
    trust: Annotated[Trust, Meta(description="How far it is trusted, for policies and labels.")] = (
        "external"
    )
    pin: Annotated[
        Literal["strict", "first", "off"],
        Meta(
            description="Its card and skills are quarantined until they are approved: from the "
            "start (strict), when they have changed since they were first seen (first), or "
            "never (off)."
        ),
    ] = "first"
    additions: Annotated[
        Literal["show", "hold"] | None,
        Meta(
            description="What it adds after it was first listed: offered and reported (show), or "
            "quarantined until it is approved (hold); default: that of [policy]."
        ),
    ] = None
    wire: Annotated[
        Literal["auto", "skill-only"],
        Meta(
            description="How a skill is called: as the agent's card says (auto), or by "
            "message/send with the skill and none of the members that 0.3 added (skill-only)."
        ),
    ] = "auto"
    oauth: Annotated[
        OAuthSettings | None,
        Meta(
            description="How the hub gets tokens for it. Needed only where something cannot be "
            "discovered: an agent that asks for a login gets one with `dragoman agents login`."
        ),
    ] = None
    credentials: Annotated[
        Literal["shared", "user"],
        Meta(
            description="Whose login its calls use: one for all callers (shared), or that of each "
            "user (user)."
        ),
    ] = "shared"
    tags: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=64)]],
        Meta(max_length=100, description="Keywords by which [[views]] select it."),
    ] = []
    enabled: Annotated[bool, Meta(description="Whether the hub connects to it.")] = True


class BridgeSettings(Struct, frozen=True, kw_only=True):
    timeout_secs: Annotated[
        Annotated[float, Meta(gt=0, le=86_400)] | None,
        Meta(
            description="Seconds a skill may take for clients that know neither tasks nor "
            "progress; default: the agent's own timeout_secs."
        ),
    ] = None
    errors: Annotated[
        Literal["auto", "codes", "result"],
        Meta(
            description="How a skill's failure is reported to MCP clients: as JSON-RPC errors "
            "-32201 to -32204 and -32003 (codes), as results (result), or as each revision "
            "requires."
        ),
    ] = "auto"
    list_aliases: Annotated[
        bool,
        Meta(description="Whether a2a_agent_skill is listed beside agent.skill; both are called."),
    ] = False
    probe_secs: Annotated[
        float, Meta(gt=0, le=86_400, description="Seconds between two health checks of an agent.")
    ] = 30
    max_agents: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="How many external agents the hub uses, wherever they come from: "
            "config.toml, the API or a shared database. Each takes some 40 KB and a health check "
            "each probe_secs.",
        ),
    ] = 1_000
    credential_env: Annotated[
        list[Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]],
        Meta(
            max_length=1_000,
            description="Variables that agents registered by the API or the command line may use "
            "as credentials, beside those that begin with DRAGOMAN_AGENT_.",
        ),
    ] = []
    keep_dispatches: Annotated[
        int, Meta(ge=100, le=10_000_000, description="How many past dispatches are kept.")
    ] = 100_000


class A2aSettings(Struct, frozen=True, kw_only=True):
    enabled: Annotated[bool, Meta(description="Whether A2A is served, and agents are found.")] = (
        False
    )
    listen_path: Annotated[
        str, Meta(min_length=2, max_length=128, description="The path that A2A is served under.")
    ] = "/a2a"
    default_agent: Annotated[
        str | None,
        Meta(
            description="The agent that answers where none is named, of any kind; default: the "
            "first of [[agents]], of those with a manifest by name, or of the external ones, else "
            "the hub itself."
        ),
    ] = None
    card: Annotated[
        Literal["merged", "1.0"],
        Meta(
            description="The shape of cards for clients that ask for no version: readable by all "
            "of them (merged), or pure."
        ),
    ] = "merged"
    require_version: Annotated[
        bool, Meta(description="Whether requests of 1.0 must send A2A-Version, as it requires.")
    ] = False
    store: Annotated[
        Literal["sqlite", "memory"],
        Meta(description="Where tasks are stored; in memory they end with the hub."),
    ] = "sqlite"
    max_tasks: Annotated[
        int, Meta(ge=1, le=100_000, description="Tasks kept for one caller; the oldest go first.")
    ] = 1_000
    max_tasks_all: Annotated[int, Meta(ge=1, le=1_000_000, description="Tasks kept in all.")] = (
        10_000
    )
    max_megabytes: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Megabytes that tasks may take in all.")
    ] = 512
    idle_secs: Annotated[
        float, Meta(gt=0, description="Seconds after which a task that waits for an answer fails.")
    ] = 86_400
    stream_secs: Annotated[
        float, Meta(gt=0, le=604_800, description="Seconds after which a stream is ended.")
    ] = 3_600
    grpc_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(description="Serve A2A over gRPC there too; needs the extra grpc."),
    ] = None
    grpc_ports: Annotated[
        dict[str, Annotated[int, Meta(ge=0, le=65_535)]],
        Meta(
            max_length=64,
            description="Further ports of gRPC at which one agent answers, by its name, for "
            "clients of 0.3, which cannot name an agent.",
        ),
    ] = {}
    grpc_on_cards: Annotated[
        Literal["asked", "always"],
        Meta(
            description="Which cards list gRPC: those fetched with ?binding=GRPC (asked), or all "
            "of them, which google-adk refuses (always)."
        ),
    ] = "asked"
    grpc_address: Annotated[
        Annotated[str, Meta(pattern=r"^[^\s/]+:[0-9]{1,5}$")] | None,
        Meta(
            description="host:port of gRPC on cards, where a proxy stands before it; default: the "
            "host of public_url or of the request, and grpc_port. The ports of grpc_ports are "
            "listed at the same host."
        ),
    ] = None
    signing_key: Annotated[
        str | None, Meta(description="A PEM file with a P-256 key that cards are signed with.")
    ] = None
    push_private: Annotated[
        bool, Meta(description="Whether webhooks may be at private and loopback addresses.")
    ] = False
    push_attempts: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="How often a delivery is tried before its webhook is abandoned.",
        ),
    ] = 8
    push_timeout_secs: Annotated[
        float, Meta(gt=0, le=300, description="Seconds a webhook may take to respond.")
    ] = 10
    push_configs: Annotated[int, Meta(ge=1, le=100, description="Webhooks of one task.")] = 10
    signatures: Annotated[
        Signatures,
        Meta(
            description="Signed cards of external agents: ignore signatures, prefer (a bad one is "
            "refused) or require one by a key that is named."
        ),
    ] = "ignore"
    external_agents: list[ExternalAgent] = []
