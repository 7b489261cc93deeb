"""`[[agents]]`: the agents that the hub runs itself."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, field


class SkillEntry(Struct, frozen=True, kw_only=True):
    id: Annotated[str, Meta(min_length=1, max_length=128, description="What callers name it by.")]
    name: Annotated[str, Meta(max_length=256, description="For people; default: the id.")] = ""
    description: Annotated[str, Meta(max_length=4_096, description="What it is good for.")] = ""
    tags: Annotated[list[str], Meta(max_length=64, description="Words to find it by.")] = []
    examples: Annotated[list[str], Meta(max_length=64, description="What one may ask.")] = []
    public: Annotated[
        bool,
        Meta(description="Whether the public card has it; else only the one for known callers."),
    ] = True


class ExtensionEntry(Struct, frozen=True, kw_only=True):
    uri: Annotated[str, Meta(min_length=1, max_length=512, description="Which extension of A2A.")]
    description: Annotated[str, Meta(max_length=1_024, description="How it is used here.")] = ""
    required: Annotated[bool, Meta(description="Whether callers must know it.")] = False
    params: Annotated[dict[str, Any], Meta(description="What it wants to be said.")] = {}


class AgentEntry(Struct, frozen=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=64, description="What the agent is called.")]
    description: Annotated[
        str, Meta(max_length=4_096, description="What it is good for, for those who choose.")
    ] = ""
    function: Annotated[
        str,
        Meta(
            min_length=3,
            description='The Python function that answers, as "module:function"; modules in the '
            "hub's home are found.",
        ),
    ]
    version: Annotated[
        str, Meta(min_length=1, max_length=64, description="Its own version, on its card.")
    ] = "1.0.0"
    skills: Annotated[
        list[SkillEntry], Meta(max_length=1_000, description="What its card says it can do.")
    ] = []
    input_modes: Annotated[
        list[str],
        Meta(
            min_length=1,
            max_length=64,
            description='The media types it takes; "*/*" for all, "image/*" for a kind.',
        ),
    ] = field(default_factory=lambda: ["text/plain", "application/json"])
    output_modes: Annotated[
        list[str], Meta(min_length=1, max_length=64, description="The media types it answers in.")
    ] = field(default_factory=lambda: ["text/plain", "application/json"])
    streaming: Annotated[bool, Meta(description="Whether its work can be followed.")] = True
    push: Annotated[bool, Meta(description="Whether its tasks are told to webhooks.")] = True
    extended_card: Annotated[
        bool, Meta(description="Whether callers with a key are shown more than the public card.")
    ] = False
    extensions: Annotated[
        list[ExtensionEntry], Meta(max_length=64, description="Extensions of A2A that it uses.")
    ] = []
