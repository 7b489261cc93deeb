"""`[[agents]]`: the local agents."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, field


class SkillEntry(Struct, frozen=True, kw_only=True):
    id: Annotated[
        str, Meta(min_length=1, max_length=128, description="The id by which clients name it.")
    ]
    name: Annotated[str, Meta(max_length=256, description="The display name; default: the id.")] = (
        ""
    )
    description: Annotated[str, Meta(max_length=4_096, description="What the skill does.")] = ""
    tags: Annotated[list[str], Meta(max_length=64, description="Keywords for search.")] = []
    examples: Annotated[list[str], Meta(max_length=64, description="Example requests.")] = []
    public: Annotated[
        bool,
        Meta(
            description="Whether the public card lists it; otherwise only the extended card does."
        ),
    ] = True


class ExtensionEntry(Struct, frozen=True, kw_only=True):
    uri: Annotated[
        str, Meta(min_length=1, max_length=512, description="The URI of the A2A extension.")
    ]
    description: Annotated[str, Meta(max_length=1_024, description="How the agent uses it.")] = ""
    required: Annotated[bool, Meta(description="Whether clients must support it.")] = False
    params: Annotated[dict[str, Any], Meta(description="The parameters of the extension.")] = {}


class ModelPrice(Struct, frozen=True, kw_only=True):
    input: Annotated[
        float, Meta(ge=0, description="US dollars per million tokens that the model reads.")
    ] = 0.0
    output: Annotated[
        float, Meta(ge=0, description="US dollars per million tokens that the model writes.")
    ] = 0.0

    def compute(self, input_tokens: int, output_tokens: int) -> float:
        return (self.input * input_tokens + self.output * output_tokens) / 1e6


class AgentEntry(Struct, frozen=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=64, description="The name of the agent.")]
    description: Annotated[
        str, Meta(max_length=4_096, description="What the agent does, for clients that choose one.")
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
        str, Meta(min_length=1, max_length=64, description="The version on its card.")
    ] = "1.0.0"
    skills: Annotated[
        list[SkillEntry], Meta(max_length=1_000, description="The skills on its card.")
    ] = []
    input_modes: Annotated[
        list[str],
        Meta(
            min_length=1,
            max_length=64,
            description='The media types it accepts; "*/*" for all, "image/*" for a kind.',
        ),
    ] = field(default_factory=lambda: ["text/plain", "application/json"])
    output_modes: Annotated[
        list[str], Meta(min_length=1, max_length=64, description="The media types of its answers.")
    ] = field(default_factory=lambda: ["text/plain", "application/json"])
    streaming: Annotated[bool, Meta(description="Whether clients can stream its tasks.")] = True
    push: Annotated[bool, Meta(description="Whether its tasks can notify webhooks.")] = True
    extended_card: Annotated[
        bool, Meta(description="Whether clients with a key see more than the public card.")
    ] = False
    extensions: Annotated[
        list[ExtensionEntry], Meta(max_length=64, description="A2A extensions that it supports.")
    ] = []
