"""`[auth.server]`: the hub's own authorization server, for the users of `dragoman users`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field


class OidcSettings(Struct, frozen=True, kw_only=True):
    """`[auth.server.oidc]`: sign-in at an identity provider, by OpenID Connect."""

    issuer: Annotated[
        str,
        Meta(
            pattern=r"^https?://[^\s?#]+$",
            max_length=2048,
            description="The provider's issuer URL; its endpoints are discovered from there.",
        ),
    ]
    client_id: Annotated[
        str, Meta(min_length=1, max_length=2048, description="The hub's client id there.")
    ]
    client_secret: Annotated[
        str,
        Meta(max_length=2048, description="A reference to the hub's secret there: env:NAME."),
    ] = ""
    name: Annotated[
        str, Meta(max_length=60, description="What the sign-in page calls the provider.")
    ] = "your organization"
    scopes: Annotated[
        list[str], Meta(description="What the hub asks the provider for; openid is needed.")
    ] = field(default_factory=lambda: ["openid", "email", "profile"])
    name_claim: Annotated[
        str,
        Meta(
            min_length=1,
            description="The claim that becomes the user's name; email must be verified.",
        ),
    ] = "email"
    allowed_domains: Annotated[
        list[str],
        Meta(description="Domains of the email addresses that may sign in; empty allows all."),
    ] = []
    required_claims: Annotated[
        dict[str, str],
        Meta(description="Claims that a user must have, with their values; lists must contain it."),
    ] = {}
    roles_claim: Annotated[
        str, Meta(description="The claim with the roles or groups that new users get as roles.")
    ] = ""
    create_users: Annotated[
        bool,
        Meta(description="Whether the first sign-in adds the user; else dragoman users add does."),
    ] = False
    org: Annotated[str, Meta(min_length=1, description="The org of users that are added.")] = (
        "default"
    )
    roles: Annotated[list[str], Meta(description="Roles of users that are added.")] = []


class AuthServerSettings(Struct, frozen=True, kw_only=True):
    enabled: Annotated[
        bool,
        Meta(description="Whether users sign in at the hub, so that MCP clients connect by URL."),
    ] = False
    access_minutes: Annotated[
        float, Meta(gt=0, le=1_440, description="Lifetime of an access token, in minutes.")
    ] = 60
    refresh_days: Annotated[
        float,
        Meta(gt=0, le=3_650, description="Days after which an unused client must ask again."),
    ] = 30
    session_hours: Annotated[
        float, Meta(gt=0, le=8_760, description="Lifetime of a sign-in in a browser, in hours.")
    ] = 12
    allow_registration: Annotated[
        bool,
        Meta(description="Whether clients may register themselves (RFC 7591); most need to."),
    ] = True
    allow_client_documents: Annotated[
        bool,
        Meta(description="Whether a client may be identified by the URL of its metadata."),
    ] = True
    redirect_hosts: Annotated[
        list[str],
        Meta(
            description="Hosts that clients may send users back to, e.g. claude.ai; empty allows "
            "all. Programs on the user's machine are always allowed."
        ),
    ] = []
    redirect_schemes: Annotated[
        list[str],
        Meta(
            description="URI schemes of programs that users may be sent back to, e.g. myapp, "
            "besides those of known MCP clients and schemes with a dot, such as com.example.app."
        ),
    ] = []
    oidc: Annotated[OidcSettings | None, Meta(description="Sign-in at an identity provider.")] = (
        None
    )
