"""An identity provider on loopback: metadata, keys, introspection. Tests change its answers."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

HUB = "https://hub.example.com/mcp"
ANN = "ann@example.com"


@cache
def make_key(kind: str, number: int = 0) -> Any:
    """The same key for the same arguments."""
    if kind.startswith(("RS", "PS")):
        return rsa.generate_private_key(65537, 2048)
    if kind == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return ec.generate_private_key(ec.SECP256R1())


def render_jwk(kind: str, key: Any, kid: str) -> dict[str, Any]:
    algorithm = jwt.get_algorithm_by_name(kind)
    jwk: dict[str, Any] = algorithm.to_jwk(key.public_key(), as_dict=True)
    return {**jwk, "kid": kid, "use": "sig", "alg": kind}


class IdentityProvider:
    def __init__(self) -> None:
        self.requests: list[str] = []
        self.keys: dict[str, tuple[str, Any]] = {"first": ("ES256", make_key("ES256"))}
        self.active: dict[str, dict[str, Any]] = {}
        """Opaque tokens and what is said of them."""
        self.change: Callable[[str, Any], Any] = lambda path, body: body
        """Changes a response; a number is a status."""
        self.open = threading.Event()
        """Responses wait for it."""
        self.open.set()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                provider._answer(self, b"")

            def do_POST(self) -> None:
                length = int(self.headers.get("content-length", 0))
                provider._answer(self, self.rfile.read(length))

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.issuer = f"http://127.0.0.1:{self._server.server_address[1]}/realms/main"

    def close(self) -> None:
        self.open.set()
        self._server.shutdown()
        self._server.server_close()

    def count(self, part: str) -> int:
        return sum(part in one for one in self.requests)

    def _answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        path = handler.path
        self.requests.append(path)
        self.open.wait(60)
        found: Any = 404
        if path.endswith("/.well-known/openid-configuration"):
            found = {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys"}
        elif path.endswith("/keys"):
            keys = [render_jwk(kind, key, kid) for kid, (kind, key) in self.keys.items()]
            found = {"keys": keys}
        elif path.endswith("/introspect"):
            found = self._introspect(handler, parse_qs(body.decode()))
        found = self.change(path, found)
        status, data = (found, b"{}") if isinstance(found, int) else (200, found)
        data = data if isinstance(data, bytes) else json.dumps(data).encode()
        try:
            handler.send_response(status)
            handler.send_header("content-type", "application/json")
            handler.send_header("content-length", str(len(data)))
            handler.end_headers()
            handler.wfile.write(data)
        except OSError:
            pass  # the hub has not waited

    def _introspect(self, handler: BaseHTTPRequestHandler, form: Mapping[str, list[str]]) -> Any:
        expected = base64.b64encode(b"hub:s%26cret").decode()
        if handler.headers.get("authorization") != f"Basic {expected}":
            return 401
        claims = self.active.get(form["token"][0])
        return {"active": False} if claims is None else {"active": True, **claims}

    def build_claims(self, **changes: Any) -> dict[str, Any]:
        """Builds good claims; a change to None removes one."""
        now = int(time.time())
        claims = {"iss": self.issuer, "sub": ANN, "aud": HUB, "exp": now + 600, "iat": now}
        return {name: one for name, one in {**claims, **changes}.items() if one is not None}

    def sign(
        self,
        kid: str | None = "first",
        *,
        headers: Mapping[str, Any] | None = None,
        key: Any = None,
        kind: str = "",
        **changes: Any,
    ) -> str:
        """Signs a token with the key `kid`, or with `key` and the algorithm `kind`."""
        known = self.keys.get(kid or "", ("ES256", key))
        named = {} if kid is None else {"kid": kid}
        return jwt.encode(
            self.build_claims(**changes),
            key if key is not None else known[1],
            algorithm=kind or known[0],
            headers={**named, **(headers or {})},
        )


@contextmanager
def run_identity_provider() -> Iterator[IdentityProvider]:
    provider = IdentityProvider()
    try:
        yield provider
    finally:
        provider.close()
