"""How a client of the bench identifies itself to a hub, by a key or by a token of an issuer, and
the login of that user at the far end."""

import json
import subprocess
import threading
import time
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bench.paths import HUB

SCOPE = "hub:invoke"  # what the policies of the bench ask for
AUDIENCE = "https://hub.example.com/mcp"
SUBJECT = "8a2f1c5e-ann"


def create_key(home: Path) -> str:
    command = [str(HUB), "keys", "create", "bench", "--scope", SCOPE, "--home", str(home)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.split()[-1]


@cache
def _run_issuer() -> tuple[str, Any]:
    """Publishes one key for as long as the bench runs; returns the issuer and the private key."""
    import jwt
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048)
    public = jwt.get_algorithm_by_name("RS256").to_jwk(key.public_key(), as_dict=True)
    keys = json.dumps({"keys": [{**public, "kid": "bench", "use": "sig"}]}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(keys)))
            self.end_headers()
            self.wfile.write(keys)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}", key


def store_login(home: Path, url: str) -> None:
    """Stores a token for the user of `sign_token` at the far end, as after a login there."""
    from dragoman.core.principal import USER, Principal
    from dragoman.oauth.client.client_auth import ClientIdentity
    from dragoman.oauth.client.grants import StoredToken
    from dragoman.oauth.client.token_vault import TokenVault
    from dragoman.oauth.config import OAuthSettings
    from dragoman.stores.credential_key import find_key
    from dragoman.stores.credentials import DatabaseCredentials

    issuer, now = "https://login.example.com", time.time()
    stored = StoredToken(
        "t" * 400, "", now + 7_200, now, (), (), issuer, url, f"{issuer}/token", "",
        ClientIdentity("bench", source="registered"),
    )  # fmt: skip
    store = DatabaseCredentials(home, find_key(home, "file", {}))
    try:
        user = Principal(USER, f"bench/{SUBJECT}")
        TokenVault("up0", url, OAuthSettings(), store).save(user.key, stored)
    finally:
        store.close()


def render_issuer() -> str:
    issuer = _run_issuer()[0]
    return (
        f'\n[[auth.jwt.issuers]]\nname = "bench"\nissuer = "{issuer}"\n'
        f'jwks_url = "{issuer}/keys"\naudiences = ["{AUDIENCE}"]\n'
    )


def sign_token() -> str:
    """Signs a token as an identity provider does, with a dozen claims."""
    import jwt

    issuer, key = _run_issuer()
    now = int(time.time())
    claims = {
        "iss": issuer, "aud": AUDIENCE, "sub": SUBJECT, "scope": SCOPE, "exp": now + 7_200,
        "iat": now, "jti": "b1946ac92492d2347c6235b4d2611184", "azp": "bench", "typ": "Bearer",
        "email": "ann@example.com", "preferred_username": "ann", "session_state": "0d6b1f",
        "realm_access": {"roles": ["offline_access", "uma_authorization", "developer"]},
    }  # fmt: skip
    return jwt.encode(claims, key, algorithm="RS256", headers={"kid": "bench", "typ": "at+jwt"})
