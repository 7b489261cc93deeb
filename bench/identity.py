"""How a client of the bench identifies itself to a hub: by a key, or by a token of an issuer."""

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
        "iss": issuer, "aud": AUDIENCE, "sub": "8a2f1c5e-ann", "scope": SCOPE, "exp": now + 7_200,
        "iat": now, "jti": "b1946ac92492d2347c6235b4d2611184", "azp": "bench", "typ": "Bearer",
        "email": "ann@example.com", "preferred_username": "ann", "session_state": "0d6b1f",
        "realm_access": {"roles": ["offline_access", "uma_authorization", "developer"]},
    }  # fmt: skip
    return jwt.encode(claims, key, algorithm="RS256", headers={"kid": "bench", "typ": "at+jwt"})
