"""An OpenID Connect provider on loopback, made with Authlib: code flow with PKCE, nonce, JWKS.

Signs in without a page as `person`. `change_claims` and `sign` let a test make it lie.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import jwt
from authlib.oauth2.rfc6749 import (
    AuthorizationServer,
    ClientMixin,
    JsonRequest,
    OAuth2Error,
    OAuth2Request,
    grants,
)
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oidc.core.grants import OpenIDCode
from joserfc.jwk import ECKey

CLIENT_ID, SECRET = "dragoman", "a secret/with:signs%"


class PlainRequest(OAuth2Request):  # type: ignore[misc]
    def __init__(self, request: dict[str, Any]) -> None:
        super().__init__(request["method"], request["uri"], headers=request["headers"])
        self.payload = BasicOAuth2Payload(request["data"])

    @property
    def args(self) -> Any:
        return self.payload.data

    @property
    def form(self) -> Any:
        return self.payload.data


class Client(ClientMixin):  # type: ignore[misc]
    def __init__(self, redirect_uri: str) -> None:
        self._redirect_uri = redirect_uri

    def get_client_id(self) -> str:
        return CLIENT_ID

    def get_default_redirect_uri(self) -> str:
        return self._redirect_uri

    def get_allowed_scope(self, scope: str) -> str:
        return scope

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return redirect_uri == self._redirect_uri

    def check_client_secret(self, client_secret: str) -> bool:
        return secrets.compare_digest(client_secret, SECRET)

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method == "client_secret_basic"

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type == "authorization_code"


class Code:
    """What the code flow remembers of a request."""

    def __init__(self, request: Any) -> None:
        data = request.payload.data
        self.redirect_uri = data["redirect_uri"]
        self.scope = data["scope"]
        self.nonce = data.get("nonce")
        self.code_challenge = data.get("code_challenge")
        self.code_challenge_method = data.get("code_challenge_method")
        self.user = request.user

    def get_redirect_uri(self) -> str:
        return str(self.redirect_uri)

    def get_scope(self) -> str:
        return str(self.scope)

    def get_nonce(self) -> Any:
        return self.nonce

    def get_auth_time(self) -> int:
        return int(time.time())

    def get_acr(self) -> None:
        return None

    def get_amr(self) -> None:
        return None


class OidcProvider:
    def __init__(self) -> None:
        self.person: dict[str, Any] = {
            "sub": "1",
            "email": "anna@example.com",
            "email_verified": True,
        }
        self.denies = False
        self.change_claims: Callable[[dict[str, Any]], dict[str, Any]] = lambda claims: claims
        self.sign: Callable[[dict[str, Any]], str] | None = None
        self.key: Any = ECKey.generate_key("P-256", {"kid": "first", "use": "sig", "alg": "ES256"})
        self.requests: list[str] = []
        self.codes: dict[str, Code] = {}
        self.redirect_uri = ""
        self._listener = ThreadingHTTPServer(("127.0.0.1", 0), self._build_handler())
        self.issuer = f"http://127.0.0.1:{self._listener.server_address[1]}"
        self._server = self._build_server()
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown()
        self._thread.join(60)
        self._listener.server_close()

    def _build_server(self) -> Any:
        provider = self

        class Server(AuthorizationServer):  # type: ignore[misc]
            def query_client(self, client_id: str) -> Any:
                return Client(provider.redirect_uri) if client_id == CLIENT_ID else None

            def save_token(self, token: Any, request: Any) -> None:
                pass

            def send_signal(self, name: str, *args: Any, **kwargs: Any) -> None:
                pass

            def create_oauth2_request(self, request: Any) -> Any:
                return PlainRequest(request)

            def create_json_request(self, request: Any) -> JsonRequest:
                raise NotImplementedError

            def handle_response(self, status: int, body: Any, headers: Any) -> Any:
                return status, body, headers

        class CodeGrant(grants.AuthorizationCodeGrant):  # type: ignore[misc]
            TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic",)

            def save_authorization_code(self, code: str, request: Any) -> None:
                provider.codes[code] = Code(request)

            def query_authorization_code(self, code: str, client: Any) -> Code | None:
                return provider.codes.get(code)

            def delete_authorization_code(self, authorization_code: Code) -> None:
                provider.codes = {
                    key: one for key, one in provider.codes.items() if one is not authorization_code
                }

            def authenticate_user(self, authorization_code: Code) -> Any:
                return authorization_code.user

        class Claims(OpenIDCode):  # type: ignore[misc]
            def exists_nonce(self, nonce: str, request: Any) -> bool:
                return False

            def resolve_client_private_key(self, client: Any) -> Any:
                return provider.key

            def get_client_algorithm(self, client: Any) -> str:
                return "ES256"

            def get_client_claims(self, client: Any) -> dict[str, Any]:
                now = int(time.time())
                return {"iss": provider.issuer, "aud": [CLIENT_ID], "iat": now, "exp": now + 60}

            def get_encode_header(self, client: Any) -> dict[str, str]:
                return {"alg": "ES256", "kid": "first"}

            def generate_user_info(self, user: Any, scope: str) -> dict[str, Any]:
                return dict(user)

            def encode_id_token(self, token: Any, request: Any) -> str:
                signed: str = super().encode_id_token(token, request)
                claims = jwt.decode(signed, options={"verify_signature": False})
                claims = provider.change_claims(claims)
                if provider.sign is not None:
                    return provider.sign(claims)
                return jwt.encode(
                    claims, provider.key.private_key, "ES256", headers={"kid": "first"}
                )

        server = Server(scopes_supported=["openid", "email", "profile"])
        server.register_token_generator(
            "default",
            lambda grant_type, client, user=None, scope=None, **_: {
                "access_token": secrets.token_urlsafe(16),
                "token_type": "Bearer",
                "expires_in": 60,
                "scope": scope,
            },
        )
        server.register_grant(CodeGrant, [Claims(require_nonce=True), CodeChallenge(required=True)])
        return server

    def _build_handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer({})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"])).decode()
                self._answer(dict(parse_qsl(body)))

            def _answer(self, form: dict[str, str]) -> None:
                status, body, headers = provider.answer(self.command, self.path, self.headers, form)
                data = json.dumps(body).encode() if isinstance(body, dict) else b""
                self.send_response(status)
                for name, value in [*headers, ("content-length", str(len(data)))]:
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler

    def answer(self, method: str, target: str, headers: Any, form: dict[str, str]) -> Any:
        parts = urlsplit(target)
        self.requests.append(parts.path)
        json_type = [("content-type", "application/json")]
        if parts.path == "/.well-known/openid-configuration":
            found = {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/jwks",
            }
            return 200, found, json_type
        if parts.path == "/jwks":
            return 200, {"keys": [self.key.as_dict(private=False)]}, json_type
        data = form or dict(parse_qsl(parts.query))
        known = {name.title(): value for name, value in headers.items()}
        request = {"method": method, "uri": self.issuer + target, "headers": known, "data": data}
        if parts.path == "/token":
            return self._server.create_token_response(request)
        user = None if self.denies else dict(self.person)
        try:
            grant = self._server.get_consent_grant(request, end_user=user)
        except OAuth2Error as error:
            return 400, {"error": error.error, "why": error.description}, json_type
        return self._server.create_authorization_response(grant.request, user, grant=grant)


@contextmanager
def run_oidc_provider() -> Iterator[OidcProvider]:
    provider = OidcProvider()
    try:
        yield provider
    finally:
        provider.close()
