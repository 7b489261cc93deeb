"""A protected resource: RFC 9728 metadata, challenges, and a tool that needs a further scope."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

FindToken = Callable[[str], dict[str, Any] | None]
"""Finds what an authorization server knows of a token: `scopes`, `resource`, `active`."""


@dataclass
class Resource:
    """`issuers` and `metadata` may be changed while it is served."""

    url: str
    """Of its endpoint, below which `/write` needs the scope `write`."""
    find: FindToken
    issuers: list[str]
    scopes: list[str] | None = None
    challenge_scope: str = ""
    publishes: bool = True
    """Whether it has metadata, as since revision 2025-06-18."""
    names_metadata: bool = True
    """Whether its challenges name the metadata."""
    checks_audience: bool = True
    metadata: dict[str, Any] = field(default_factory=dict)
    """Overrides members of the metadata."""
    seen: list[str] = field(default_factory=list)
    """The authorization headers of all requests."""
    executed: int = 0

    @property
    def base(self) -> str:
        return self.url.removesuffix("/mcp")

    @property
    def app(self) -> Starlette:
        well_known = "/.well-known/oauth-protected-resource/mcp"
        return Starlette(
            routes=[
                Route("/mcp", self._serve, methods=["GET", "POST"]),
                Route("/mcp/write", self._serve, methods=["POST"]),
                Route(well_known, self._describe),
            ]
        )

    async def _describe(self, request: Request) -> Response:
        if not self.publishes:
            return Response(status_code=404)
        about: dict[str, Any] = {"resource": self.url, "authorization_servers": self.issuers}
        if self.scopes is not None:
            about["scopes_supported"] = self.scopes
        return JSONResponse({**about, **self.metadata})

    async def _serve(self, request: Request) -> Response:
        header = request.headers.get("authorization", "")
        self.seen.append(header)
        found = self.find(header.removeprefix("Bearer ")) if header else None
        if found is None or not found["active"] or not self._is_meant(found):
            return self._challenge(401, "invalid_token" if header else "", self.challenge_scope)
        if request.url.path.endswith("/write") and "write" not in found["scopes"]:
            return self._challenge(403, "insufficient_scope", "write")
        self.executed += 1
        return JSONResponse({"scopes": found["scopes"], "subject": found.get("subject")})

    def _is_meant(self, found: dict[str, Any]) -> bool:
        return not self.checks_audience or found["resource"] == self.url

    def _challenge(self, status: int, error: str, scope: str) -> Response:
        parts = {"error": error, "scope": scope}
        if self.publishes and self.names_metadata:
            metadata = f"{self.base}/.well-known/oauth-protected-resource/mcp"
            parts["resource_metadata"] = metadata
        text = ", ".join(f'{name}="{value}"' for name, value in parts.items() if value)
        return Response(status_code=status, headers={"www-authenticate": f"Bearer {text}".strip()})
