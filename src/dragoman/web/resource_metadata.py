"""Metadata of the hub as an OAuth resource (RFC 9728), and the challenges that lead to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from dragoman.core.access import SESSION
from dragoman.core.principal import USER, Principal
from dragoman.web.api import NO_SNIFF
from dragoman.web.auth import TokenFinder
from dragoman.wire.http import HttpRequest
from dragoman.wire.json import encode

WELL_KNOWN = "/.well-known/oauth-protected-resource"
_NAME = r"[A-Za-z0-9._~%()-]{1,200}"
_RESOURCE = re.compile(rf"/mcp|/sse|/api|/(?:mcp|sse)/v/{_NAME}|/agents/{_NAME}/mcp", re.ASCII)
_UNQUOTABLE = re.compile(r"[^ !#-\[\]-~]")
"""Characters that `error_description` must not have (RFC 6750, section 3)."""


class ResourceMetadata:
    """Every endpoint is a resource of its own, with the same authorization servers."""

    def __init__(
        self,
        finders: Sequence[TokenFinder],
        find_base: Callable[[HttpRequest], str],
        list_required_scopes: Callable[[], Sequence[str]],
        a2a_path: str,
    ) -> None:
        self._finders = finders
        self._find_base = find_base
        self._list_required_scopes = list_required_scopes
        self._a2a_path = a2a_path

    def is_resource(self, path: str) -> bool:
        """Whether the path is that of an endpoint. Names in it need not exist: strangers must not
        learn which do."""
        return path in ("", self._a2a_path) or bool(
            _RESOURCE.fullmatch(path) or re.fullmatch(rf"{re.escape(self._a2a_path)}/{_NAME}", path)
        )

    def list_issuers(self, base: str) -> list[str]:
        return [issuer for finder in self._finders for issuer in finder.list_issuers(base)]

    def has_issuers(self, request: HttpRequest) -> bool:
        return bool(self.list_issuers(self._find_base(request)))

    def find_missing_scopes(self, principal: Principal) -> Sequence[str]:
        """Lists all required scopes if the token of a user lacks one. A session of the console has
        no token: the user has signed in at the hub itself."""
        if principal.credential.startswith(SESSION):
            return ()
        required = self._list_required_scopes()
        if principal.kind != USER or set(required) <= set(principal.scopes):
            return ()
        return required

    def serve(self, request: HttpRequest, principal: Principal | None) -> None:
        base, path = self._find_base(request), request.path.removeprefix(WELL_KNOWN)
        issuers = self.list_issuers(base)
        if request.method not in ("GET", "HEAD"):
            self._reply(request, 405, {"error": "use GET"})
        elif not issuers:
            problem = "the hub accepts no OAuth tokens; send Authorization: Bearer KEY"
            self._reply(request, 404, {"error": problem})
        elif not self.is_resource(path.rstrip("/")):
            self._reply(request, 404, {"error": "the hub has no such resource"})
        else:
            found = {
                "resource": base + path.rstrip("/"),
                "authorization_servers": issuers,
                "bearer_methods_supported": ["header"],
                "resource_name": "Dragoman",
            }
            if scopes := self._list_required_scopes():
                found["scopes_supported"] = list(scopes)
            self._reply(request, 200, found)

    def build_challenge(
        self, request: HttpRequest, error: str = "", why: str = "", scope: str = ""
    ) -> tuple[bytes, bytes]:
        """Builds `WWW-Authenticate`, which tells a client where to get a token and for what;
        `scope` is one that its credential does not have."""
        parts = ['realm="dragoman"']
        if error:
            parts.append(f'error="{error}"')
        if why:
            quotable = _UNQUOTABLE.sub("?", why.replace('"', "'"))
            parts.append(f'error_description="{quotable}"')
        base, issuers = self._find_base(request), self.list_issuers(self._find_base(request))
        scopes = self._list_required_scopes() if issuers else ()
        if scope:
            scopes = list(dict.fromkeys((*scopes, scope)))
        if scopes:
            parts.append(f'scope="{" ".join(scopes)}"')
        if issuers:
            parts.append(f'resource_metadata="{base}{WELL_KNOWN}{self._find_resource(request)}"')
        return b"www-authenticate", f"Bearer {', '.join(parts)}".encode("ascii", "replace")

    def _find_resource(self, request: HttpRequest) -> str:
        """The endpoint that a request belongs to; the whole hub if it has none of its own."""
        path = request.path
        if path.startswith(f"{self._a2a_path}/"):
            return self._a2a_path
        return path if _RESOURCE.fullmatch(path) else ""

    def _reply(self, request: HttpRequest, status: int, found: object) -> None:
        request.reply(status, [(b"content-type", b"application/json"), NO_SNIFF], encode(found))


NO_METADATA = ResourceMetadata((), lambda request: "", tuple, "/a2a")
"""Of a hub without tokens."""
