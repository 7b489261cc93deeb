"""The bounds of the connection to one server."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.mcp.config import ANSWER_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamLimits:
    answer_secs: float = ANSWER_SECONDS
    """For the handshake, lists and other requests of the hub's own, where the server has no
    `timeout_secs`. Calls to such a server have the time that the hub gives to every call."""
    start_secs: float = 60.0
    """The least for starting a child, from the last sign that it or what it has started works."""
    install_secs: float = 600.0
    """The most for starting a child that works: the first run of `npx` downloads a package."""
    handshake_secs: float = 15.0
    """For a handshake with a server of the modern era, which may not answer it."""
    stop_secs: float = 10.0
    """For stopping a server; twice what a child takes that ignores every request to exit."""
    list_secs: float = 10.0
    """For any list but that of tools."""
    question_secs: float = 600.0
    """For the answer to a question of a suspended call."""
    retry_secs: float = 60.0
    """How long calls use the shared session after a client's own could not be opened."""
    session_idle_secs: float = 1_800.0
    """How long an unused client session is kept if its client may have disconnected unnoticed; as
    long as the hub keeps an idle session of a client."""
    max_sessions: int = 32
    """Client sessions; one principal has at most half of them."""
    max_holder_sessions: int = 1_000
    """Sessions of users with credentials of their own, in the handshake era."""
    max_suspended: int = 1_000
    """Suspended calls; one principal has at most half of them."""
    max_suspended_in_session: int = 64
    max_question_bytes: int = 64 * 1024 * 1024
    """All open questions together."""
