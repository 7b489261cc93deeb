"""The client's identity at an authorization server, and how it authenticates there."""

from __future__ import annotations

import secrets
import time
from base64 import b64encode
from urllib.parse import quote

from msgspec import Struct

from dragoman.core.errors import BadReply, ConfigError
from dragoman.core.urls import render_origin
from dragoman.oauth.client.discovery import ServerMetadata
from dragoman.oauth.config import ClientAuthMethod, OAuthSettings

JWT_BEARER = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
ASSERTION_SECONDS = 120
_WITH_SECRET: tuple[ClientAuthMethod, ...] = ("client_secret_basic", "client_secret_post")


class ClientIdentity(Struct, frozen=True, omit_defaults=True):
    """A client as an authorization server knows it. Stored encrypted, never shown."""

    client_id: str
    method: ClientAuthMethod = "none"
    secret: str = ""
    """Of a client that was registered dynamically; others are resolved when they are used."""
    source: str = "configured"
    """`configured`, `document` or `registered`."""
    redirect_uri: str = ""
    scopes: tuple[str, ...] = ()
    registered_at: float = 0.0
    expires_at: float = 0.0
    """When the secret expires; 0: never."""

    def __repr__(self) -> str:
        return f"<ClientIdentity {self.source}>"


class ClientKeys(Struct, frozen=True):
    """The resolved secrets of a client, for one request."""

    secret: str = ""
    private_key: str = ""
    algorithm: str = "RS256"
    key_id: str = ""

    def __repr__(self) -> str:
        return "<ClientKeys>"


def choose_method(settings: OAuthSettings, server: ServerMetadata) -> ClientAuthMethod:
    """Chooses how a configured client authenticates."""
    if settings.auth_method is not None:
        return settings.auth_method
    if settings.private_key:
        return "private_key_jwt"
    if not settings.client_secret:
        return "none"
    supported = server.auth_methods or _WITH_SECRET
    for method in _WITH_SECRET:
        if method in supported:
            return method
    raise BadReply(
        f'the authorization server "{render_origin(server.issuer)}" accepts no client secret; it '
        f"supports {', '.join(supported)[:200]}"
    )


def choose_registered_method(server: ServerMetadata) -> ClientAuthMethod:
    """Chooses what a dynamically registered client asks for: no secret where none is needed."""
    supported = server.auth_methods
    if supported is None or "none" in supported:
        return "none"
    # In the order of the server: the first is the one that it was tested with.
    known: dict[str, ClientAuthMethod] = {method: method for method in _WITH_SECRET}
    return next((known[method] for method in supported if method in known), "none")


def authenticate(
    client: ClientIdentity, keys: ClientKeys, audience: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Builds the parameters and headers that authenticate a client at a token endpoint; `audience`
    is the issuer."""
    form = {"client_id": client.client_id}
    if client.method == "client_secret_basic":
        pair = f"{quote(client.client_id, safe='')}:{quote(keys.secret, safe='')}"
        basic = b64encode(pair.encode("ascii")).decode("ascii")
        # Some servers look the client up by the form, whatever the header says.
        return form, {"authorization": f"Basic {basic}"}
    if client.method == "client_secret_post":
        form["client_secret"] = keys.secret
    elif client.method == "private_key_jwt":
        form["client_assertion_type"] = JWT_BEARER
        form["client_assertion"] = sign_assertion(client.client_id, keys, audience)
    return form, {}


def sign_assertion(client_id: str, keys: ClientKeys, audience: str) -> str:
    """Signs a client assertion (RFC 7523, section 3)."""
    import jwt  # only where it is used: a hub without such a client does not load it

    now = int(time.time())
    claims = {
        "iss": client_id,
        "sub": client_id,
        "aud": audience,
        "iat": now,
        "exp": now + ASSERTION_SECONDS,
        "jti": secrets.token_urlsafe(24),
    }
    headers = {"kid": keys.key_id} if keys.key_id else None
    try:
        return jwt.encode(claims, keys.private_key, algorithm=keys.algorithm, headers=headers)
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        # The message of the library may have parts of the key.
        raise ConfigError(
            f"the private key cannot sign with {keys.algorithm} ({type(error).__name__}); it must "
            "be a PEM file of a matching kind"
        ) from None
