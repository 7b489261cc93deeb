"""What one principal does for one purpose: the run that a call belongs to."""

from __future__ import annotations

from dragoman.core.call import Call


def find_client_run(call: Call) -> str:
    """Finds the run of a call that a client makes by itself: its session, its A2A context, or the
    trace that it sent. Empty if the call stands alone."""
    if call.client:
        return call.client
    if call.message is not None:
        return call.message.context
    return call.trace.id if call.trace.is_sent else ""
