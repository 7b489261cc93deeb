"""`[auth.jwt]` and `[auth.introspection]`: the identity providers whose access tokens count."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct, field

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
"""Signatures with a public key only: with HS256 the published key would be the secret."""

ClaimPath = Annotated[str, Meta(min_length=1, max_length=200)]
Text = Annotated[str, Meta(min_length=1, max_length=200, pattern="^[^\x00-\x1f\x7f]+$")]
RoleName = Annotated[str, Meta(max_length=64, pattern="^[A-Za-z0-9][A-Za-z0-9._:-]*$")]


class ClaimRules(Struct, frozen=True, kw_only=True):
    """Who the user of a token is, and which tokens are accepted at all."""

    name: Annotated[
        str,
        Meta(
            max_length=64,
            pattern="^([A-Za-z0-9][A-Za-z0-9._-]*)?$",
            description="What users of this issuer are called by: NAME/SUBJECT. Default: the host "
            "of `issuer`.",
        ),
    ] = ""
    issuer: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=2_000,
            description="The issuer, exactly as tokens name it in `iss`: https, or http on "
            "loopback.",
        ),
    ]
    audiences: Annotated[
        list[Text],
        Meta(
            max_length=64,
            description="Values of `aud` that mean this hub. Default: the URLs of its endpoints, "
            "such as https://hub.example.com/mcp.",
        ),
    ] = []
    required_claims: Annotated[
        dict[str, str | bool | int | list[str]],
        Meta(
            max_length=64,
            description="Claims that a token must have, with the value or one of the values. A "
            "claim that is a list must contain it.",
        ),
    ] = {}
    owner_claim: Annotated[
        ClaimPath,
        Meta(description="The claim with the name of the person, for policies and the audit log."),
    ] = "sub"
    org: Annotated[Text, Meta(description="The org of the users of this issuer.")] = "default"
    org_claim: Annotated[
        ClaimPath | None,
        Meta(description="The claim with the org of the user; needs `orgs`, instead of `org`."),
    ] = None
    orgs: Annotated[
        dict[str, Text] | list[Text],
        Meta(
            description="The accepted values of `org_claim`, which are the names of orgs, or a "
            "table from values to names. Tokens with other values are refused."
        ),
    ] = []
    roles: Annotated[
        list[RoleName], Meta(max_length=64, description="Roles of every user of this issuer.")
    ] = []
    roles_claim: Annotated[
        ClaimPath | None,
        Meta(
            description="The claim with the roles of the user, a list or words: "
            '"realm_access.roles". The role owner is never taken from it.'
        ),
    ] = None
    owner_roles: Annotated[
        list[Text],
        Meta(
            max_length=64,
            description="Values of `roles_claim` that make a user an owner of the hub, who may do "
            "everything.",
        ),
    ] = []
    scopes_claim: Annotated[
        ClaimPath | None,
        Meta(
            description="The claim with the scopes, a list or words. Default: `scope`, then `scp`."
        ),
    ] = None
    default_scopes: Annotated[
        list[Text],
        Meta(
            max_length=64,
            description="The scopes of tokens that name none of the hub's own: `call`, `list`, "
            "`approve`, `metrics`, `admin` and its parts. Those of an owner include all.",
        ),
    ] = field(default_factory=lambda: ["call"])
    leeway_secs: Annotated[
        float,
        Meta(ge=0, le=300, description="How far the clock of the issuer may differ, in seconds."),
    ] = 30
    allow_private: Annotated[
        bool, Meta(description="Whether the issuer may be at a private address.")
    ] = False


class JwtIssuer(ClaimRules, frozen=True, kw_only=True):
    algorithms: Annotated[
        list[Algorithm],
        Meta(min_length=1, description="The accepted signatures; tokens with others are refused."),
    ] = field(default_factory=lambda: ["RS256", "ES256", "PS256", "EdDSA"])
    jwks_url: Annotated[
        Annotated[str, Meta(min_length=1, max_length=2_000)] | None,
        Meta(
            description="Where the keys of the issuer are. Default: found by the metadata of the "
            "issuer (OpenID Connect discovery, RFC 8414)."
        ),
    ] = None


class JwtSettings(Struct, frozen=True, kw_only=True):
    issuers: Annotated[
        list[JwtIssuer],
        Meta(max_length=64, description="The identity providers whose signed tokens count."),
    ] = []


class IntrospectionSettings(ClaimRules, frozen=True, kw_only=True):
    url: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=2_000,
            description="The introspection endpoint (RFC 7662), for tokens that are not signed.",
        ),
    ]
    client_id: Annotated[
        str, Meta(min_length=1, max_length=500, description="How the hub is registered there.")
    ]
    client_secret: Annotated[
        Annotated[str, Meta(pattern="^[a-z]+:.+$", max_length=2_000)],
        Meta(description="The secret of the hub there, by reference: env:NAME."),
    ]
    cache_secs: Annotated[
        float,
        Meta(
            ge=0,
            le=300,
            description="Seconds for which an answer counts. A revoked token may work that much "
            "longer.",
        ),
    ] = 10


def find_issuer_name(rules: ClaimRules) -> str:
    return rules.name or (urlsplit(rules.issuer).hostname or "issuer").replace(":", "-")
