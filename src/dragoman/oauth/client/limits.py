"""The limits of the OAuth client."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OAuthLimits:
    request_seconds: float = 10.0
    """For each request to a metadata document or an endpoint."""
    discovery_seconds: float = 30.0
    """For all requests of one discovery."""
    max_bytes: int = 256 * 1024
    """Of one response."""
    redirects: int = 3
    """Of a metadata document, within its origin."""
    servers: int = 3
    """How many of the authorization servers that a resource names are tried."""
    metadata_seconds: float = 300.0
    """How long discovered metadata is used for further logins."""
    login_seconds: float = 600.0
    """How long a login may take."""
    max_logins: int = 100
    """Logins that have begun and not ended; the oldest is dropped."""
    register_seconds: float = 60.0
    """The pause before a client is registered anew because a login with it did not return."""
    poll_seconds: float = 1.0
    """The least pause between two polls of a login by code."""
    margin_seconds: float = 120.0
    """How long before its expiry a token is refreshed, at most a fifth of its life."""
    leeway_seconds: float = 5.0
    """How long before its expiry a token is not sent any more."""
    retry_first: float = 1.0
    retry_longest: float = 60.0
    """The pauses between refreshes that fail for a passing reason."""
    fresh_seconds: float = 60.0
    """A token that replaced a rejected one and is rejected within this time is not replaced."""
    step_ups: int = 2
    """How often a login is asked for because the same scopes are missing."""
    max_holders: int = 10_000
    """How many holders' tokens are kept in memory; others are read again."""
    mark: str = ""
    """How the ids of logins begin: with the id of the hub, where there are several."""


LIMITS = OAuthLimits()
