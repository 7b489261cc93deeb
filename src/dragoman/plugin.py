"""Public names for plug-ins: `from dragoman.plugin import Denied, PostVerb, render_verb_event`.

A plug-in is an entry point of the group `dragoman.bus` that the configuration names in
`[bus] plugins`. It is called with the bus at start; see docs/events-use.md.
"""

from dragoman.core.bus import Bus
from dragoman.core.errors import Denied
from dragoman.core.event_payloads import render_verb_event
from dragoman.core.events import (
    AgentChanged,
    CostReported,
    Event,
    PinAdded,
    PinHeld,
    PolicyChanged,
    PostVerb,
    PreVerb,
    ServerChanged,
    ToolCall,
    ToolResult,
    VerbError,
)

__all__ = [
    "AgentChanged",
    "Bus",
    "CostReported",
    "Denied",
    "Event",
    "PinAdded",
    "PinHeld",
    "PolicyChanged",
    "PostVerb",
    "PreVerb",
    "ServerChanged",
    "ToolCall",
    "ToolResult",
    "VerbError",
    "render_verb_event",
]
