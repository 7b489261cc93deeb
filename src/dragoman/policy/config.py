"""`[policy]`: where the policies are, and whether they are in force."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct


class PolicySettings(Struct, frozen=True, kw_only=True):
    mode: Annotated[
        Literal["enforce", "shadow"],
        Meta(
            description="Whether the policies decide (enforce), or only the guardrails do and the "
            "record says what the policies would have refused (shadow)."
        ),
    ] = "enforce"
    additions: Annotated[
        Literal["show", "hold"],
        Meta(
            description="What a server or agent adds after it was first listed, where its entry "
            "does not say: offered and reported (show), or quarantined until it is approved (hold)."
        ),
    ] = "show"
    folder: Annotated[
        str,
        Meta(
            min_length=1,
            description="The folder of the *.cedar files, in the home. Where there is none, the "
            "default policies hold; an empty one permits nothing.",
        ),
    ] = "policies"
