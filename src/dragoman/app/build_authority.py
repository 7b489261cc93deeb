"""Builds the hub's own authorization server, where it is enabled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from dragoman.app.build_auth import AuthParts
from dragoman.app.build_stores import Stores, UserStores
from dragoman.app.config_watch import LiveConfig
from dragoman.core.admin_audit import record_done
from dragoman.core.errors import HubError
from dragoman.core.principal import USER, Principal
from dragoman.net.client import OutboundHttp
from dragoman.web.app import PathMount
from dragoman.web.browser_sessions import BrowserSessions
from dragoman.wire.http import HttpRequest

if TYPE_CHECKING:
    from dragoman.oauth.authority.server import AuthorizationServer

log = logging.getLogger(__name__)

SIGN_IN_FAILED = "user.sign_in_failed"
CHANGES_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Authority:
    """The authorization server and what it is made of."""

    server: AuthorizationServer
    browsers: BrowserSessions
    mounts: tuple[PathMount, ...]
    _stores: UserStores
    _hub_stores: Stores

    def find_browser_user(self, request: HttpRequest) -> Principal | None:
        """Finds the user who has signed in in the browser that sent a request."""
        return self.browsers.find_user(request)

    def find_sign_in(self, principal: Principal, path: str) -> str | None:
        """Finds where a principal signs in to come back to `path`; None if it is no user of this
        server. The ids of users of identity providers have a slash."""
        if principal.kind != USER or "/" in principal.id:
            return None
        return f"/oauth/login?{urlencode({'next': path})}"

    async def record_changes(self) -> None:
        """Writes what happened to users and grants, here or by command, to the audit log."""
        users, audit = self._stores.users, self._hub_stores.audit

        def record(verb: str, name: str, told: Mapping[str, Any]) -> None:
            record_done(audit, verb, name, f"user:{name}", "sign-in", told)

        try:
            for _ in range(CHANGES_AT_ONCE):
                if not users.record_next(record):
                    break
        except HubError as error:  # the next round tries again
            log.debug("changes of users could not be recorded: %s", error)


def build_authority(
    live: LiveConfig, auth: AuthParts, stores: Stores, net: OutboundHttp, key: bytes
) -> Authority | None:
    """`key` seals what browsers bring back, to any hub of a cluster. Raises `ConfigError` if
    the extra is not installed."""
    settings, state = live.config.auth.server, auth.state
    if stores.users is None or not settings.enabled:
        return None
    # Most hubs do without, and start faster.
    from dragoman.oauth.authority.protocol import MAX_BODY
    from dragoman.oauth.authority.server import AuthorityPorts, AuthorizationServer

    users, grants = stores.users.users, stores.users.grants
    browsers = BrowserSessions(users, lambda: state.base, settings.session_hours * 3600)
    oidc_http = None
    if settings.oidc is not None:
        oidc_http = net.open_configured(settings.oidc.issuer, allow_private=False)

    ports = AuthorityPorts(
        users,
        grants,
        browsers,
        lambda: state.base,
        net.open_public(allow_private=False),
        oidc_http,
        auth.secrets.resolve,
        _note_failures(stores),
        key,
    )
    scopes = dict.fromkeys(("call", *live.config.auth.required_scopes))
    server = AuthorizationServer(settings, ports, tuple(scopes))
    mounts = tuple(
        PathMount(path, server.serve, frozenset((path,)).__contains__, body_bytes=MAX_BODY)
        for path in server.paths
    )
    return Authority(server, browsers, mounts, stores.users, stores)


def _note_failures(stores: Stores) -> Callable[[str], None]:
    def note(address: str) -> None:
        stores.tally.add(SIGN_IN_FAILED, address, "nobody", "sign-in")

    return note
