"""What differs between dialects besides names and shapes, as named capabilities.

Code outside this package asks a trait and never compares versions.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DialectTraits:
    # requests
    is_native: bool = False
    """The hub's internal form: requests and results need no translation."""
    client_names_task: bool = False
    """The client chooses the id of a new task (`TASK_ID`)."""
    context_must_match: bool = False
    """A message to a task must not name another context than the task's (1.0, section 3.4.1);
    clients of 0.3 may send a context id of their own with each message."""
    shares_methods: bool = False
    """Some methods are those of another dialect too (`SHARED`), so a probe has to tell which."""
    numbers_skill_calls: bool = False
    """The JSON-RPC id of a skill call is a number."""
    negotiable: bool = True
    """Another dialect may be tried where this one is not understood."""

    # HTTP and streams
    media_type: str = "application/json"
    """Of HTTP+JSON bodies and of webhook deliveries."""
    sends_version: bool = True
    """Requests carry the header `A2A-Version`."""
    extensions_header: str = "a2a-extensions"
    """Activates extensions; empty where the dialect has none."""
    message_extensions_in_header: bool = False
    """The extensions of a message are repeated in the header."""
    versioned_paths: bool = False
    """The HTTP+JSON paths name the dialect, so no version header is needed."""
    has_rest: bool = True
    has_grpc: bool = True
    has_legacy_routes: bool = False
    """The hub serves this dialect's own HTTP routes (`tasks/send` and others)."""
    can_stream: bool = True
    streams_errors: bool = True
    """A client that asked for a stream reads an error only as an event of one."""

    # webhooks
    pushes_events: bool = False
    """A webhook receives each event; before 1.0 it receives the task as it is now."""
    default_push_id: str = "default"
    """Names a webhook whose client gave it no id; empty: the hub generates one."""
