"""Queries of the audit log."""

from __future__ import annotations

from dataclasses import dataclass

SHADOW = "shadow"
"""The decision of a call that was permitted, but that policies in shadow mode would have denied."""


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """Which records are wanted; empty members want all."""

    text: str = ""
    verb: str = ""
    caller: str = ""
    org: str = ""
    """Of the caller; records of administrative actions have none."""
    outcome: str = ""
    trace: str = ""
    """The beginning of its id."""
    agent: str = ""
    decision: str = ""
    since: float = 0.0
    until: float = 1e11
