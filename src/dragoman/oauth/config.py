"""`oauth` of an MCP server or an external agent: how the hub gets tokens for it. `[oauth]`: how the
hub keeps them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

GrantType = Literal[
    "authorization_code",
    "client_credentials",
    "device_code",
    "token_exchange",
    "id_jag",
    "jwt_bearer",
]
GRANTS_BY_PERSONS = frozenset({"authorization_code", "device_code"})
"""Grants that need a person; the others get tokens by credentials of the hub's own."""
ClientAuthMethod = Literal["none", "client_secret_post", "client_secret_basic", "private_key_jwt"]
SigningAlgorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
Scope = Annotated[str, Meta(pattern=r"^[\x21\x23-\x5b\x5d-\x7e]{1,256}$")]
"""RFC 6749, section 3.3."""

ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"


class IdentityProvider(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the hub exchanges a token of its own for one that the server accepts (RFC 8693)."""

    issuer: Annotated[
        str,
        Meta(
            max_length=2048,
            description="The identity provider's issuer; its endpoints are discovered.",
        ),
    ] = ""
    token_endpoint: Annotated[
        str,
        Meta(max_length=2048, description="Its token endpoint, where nothing is to be discovered."),
    ] = ""
    client_id: Annotated[str, Meta(max_length=2048, description="The hub's client id there.")] = ""
    client_secret: Annotated[
        str, Meta(max_length=2048, description="The hub's secret there, by reference.")
    ] = ""
    subject_token: Annotated[
        str,
        Meta(
            max_length=2048,
            description="The token that is exchanged, by reference: env:NAME, file:PATH, "
            "keyring:NAME or exec:COMMAND.",
        ),
    ] = ""
    subject_token_type: Annotated[
        str, Meta(max_length=256, description="What kind of token that is.")
    ] = ID_TOKEN


class OAuthSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the hub gets tokens for one server or agent; the empty table discovers everything."""

    grant: Annotated[
        GrantType,
        Meta(
            description="How a token is obtained: a person consents in a browser "
            "(authorization_code) or on another device (device_code), the hub's own credentials "
            "(client_credentials), or a token of an identity provider (token_exchange, id_jag, "
            "jwt_bearer)."
        ),
    ] = "authorization_code"
    client_id: Annotated[
        str,
        Meta(
            max_length=2048,
            description="The id of a client that is registered already; default: the hub's own "
            "metadata document, or dynamic registration.",
        ),
    ] = ""
    client_secret: Annotated[
        str,
        Meta(
            max_length=2048,
            description="Its secret, by reference: env:NAME, file:PATH, keyring:NAME or "
            "exec:COMMAND.",
        ),
    ] = ""
    private_key: Annotated[
        str,
        Meta(
            max_length=2048,
            description="Its private key in PEM, by reference, for private_key_jwt.",
        ),
    ] = ""
    private_key_alg: Annotated[
        SigningAlgorithm, Meta(description="The algorithm that the private key signs with.")
    ] = "RS256"
    private_key_id: Annotated[
        str, Meta(max_length=256, description="The key's id (`kid`) at the authorization server.")
    ] = ""
    auth_method: Annotated[
        ClientAuthMethod | None,
        Meta(
            description="How the client authenticates at the token endpoint; default: what both "
            "sides support."
        ),
    ] = None
    issuer: Annotated[
        str,
        Meta(
            max_length=2048,
            description="The authorization server; default: the one that the server names. With "
            "a secret, name it: the secret is then sent nowhere else.",
        ),
    ] = ""
    callback: Annotated[
        Literal["plain", "issuer"],
        Meta(
            description="Which redirect URI the client of client_id is registered with: "
            "`/oauth/callback` (plain) or the one of its authorization server alone (issuer), "
            "which the hub names when a login needs it. Other clients always use the latter."
        ),
    ] = "plain"
    scopes: Annotated[
        list[Scope],
        Meta(
            max_length=100,
            description="The scopes to ask for; default: those that the server asks for.",
        ),
    ] = []
    audience: Annotated[
        str,
        Meta(
            max_length=2048,
            description="A further `audience` parameter, for authorization servers that need it.",
        ),
    ] = ""
    identity_provider: Annotated[
        IdentityProvider,
        Meta(description="Where token_exchange, id_jag and jwt_bearer get their first token."),
    ] = IdentityProvider()


class OAuthHubSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[oauth]`: how the hub keeps the tokens that it was given."""

    credential_key: Annotated[
        str,
        Meta(
            max_length=2048,
            description="Where the key is that encrypts stored tokens: `keyring`, `file` (a file "
            "of the home), env:NAME or file:PATH (32 bytes in base64); default: the system's "
            "keyring if it works, otherwise the file of the home; in a cluster it is derived from "
            "[cluster] secret.",
        ),
    ] = ""
