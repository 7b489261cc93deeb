"""`[console]`: the console in the browser."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class ConsoleSettings(Struct, frozen=True, kw_only=True):
    enabled: Annotated[
        bool | None,
        Meta(
            description="Whether the hub serves the console at /console/. Absent: only while it "
            "listens on loopback."
        ),
    ] = None

    def is_served(self, is_loopback: bool) -> bool:
        return is_loopback if self.enabled is None else self.enabled
