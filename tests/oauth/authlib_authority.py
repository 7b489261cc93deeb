"""A second authorization server, made with authlib: RFC 9207, 8628, 8693, 7009 and 7523.

authlib ships no binding for ASGI, so requests and responses are adapted here.
"""

# authlib has no types.
# mypy: disable-error-code="misc, import-untyped"
from __future__ import annotations

import asyncio
import json
import secrets
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

from authlib.oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import (
    AuthorizationCodeMixin,
    ClientMixin,
    InvalidGrantError,
    InvalidRequestError,
    OAuth2Error,
    OAuth2Request,
    TokenMixin,
    grants,
)
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload
from authlib.oauth2.rfc7009 import RevocationEndpoint
from authlib.oauth2.rfc7523 import JWTBearerClientAssertion
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc8628 import DeviceAuthorizationEndpoint, DeviceCodeGrant
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
METHODS = ["none", "client_secret_basic", "client_secret_post", "private_key_jwt"]


@dataclass
class Client(ClientMixin):
    client_id: str
    method: str = "none"
    secret: str = ""
    redirect_uris: tuple[str, ...] = ()
    grant_types: tuple[str, ...] = ("authorization_code", "refresh_token")
    public_key: Any = None

    def get_client_id(self) -> str:
        return self.client_id

    def get_default_redirect_uri(self) -> str:
        return self.redirect_uris[0]

    def get_allowed_scope(self, scope: str) -> str:
        return scope or ""

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return redirect_uri in self.redirect_uris

    def check_client_secret(self, client_secret: str) -> bool:
        return secrets.compare_digest(self.secret.encode(), client_secret.encode())

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method == self.method

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type in self.grant_types


@dataclass
class Code(AuthorizationCodeMixin):
    code: str
    client_id: str
    redirect_uri: str
    scope: str
    resource: str
    code_challenge: str
    code_challenge_method: str

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope


@dataclass
class Token(TokenMixin):
    access_token: str
    refresh_token: str
    client_id: str
    scope: str
    resource: str
    expires_at: float
    subject: str = "user"
    revoked: bool = False

    def check_client(self, client: Client) -> bool:
        return self.client_id == client.client_id

    def get_scope(self) -> str:
        return self.scope

    def get_expires_in(self) -> int:
        return int(self.expires_at - time.time())

    def is_expired(self) -> bool:
        return self.expires_at <= time.time()

    def is_revoked(self) -> bool:
        return self.revoked


@dataclass
class Device:
    client_id: str
    scope: str
    user_code: str
    expires_at: float

    def get_client_id(self) -> str:
        return self.client_id

    def get_scope(self) -> str:
        return self.scope

    def get_user_code(self) -> str:
        return self.user_code

    def is_expired(self) -> bool:
        return self.expires_at <= time.time()


class _Request(OAuth2Request):
    def __init__(self, method: str, uri: str, headers: Any, values: dict[str, str]) -> None:
        super().__init__(method, uri.replace("http://", "https://"), headers=headers)
        self.payload = BasicOAuth2Payload(values)
        self.values = values

    @property
    def args(self) -> dict[str, str]:
        return self.values

    @property
    def form(self) -> dict[str, str]:
        return self.values


class _Server(AuthorizationServer):
    def __init__(self, authority: AuthlibAuthority) -> None:
        super().__init__()
        self.authority = authority
        self.register_token_generator("default", authority.generate)

    def query_client(self, client_id: str) -> Client | None:
        return self.authority.clients.get(client_id)

    def save_token(self, token: dict[str, Any], request: Any) -> None:
        authority = self.authority
        resource = request.payload.data.get("resource", "")
        if request.refresh_token is not None:
            resource = request.refresh_token.resource
        issued = Token(
            token["access_token"],
            token.get("refresh_token", ""),
            request.client.client_id,
            token.get("scope", ""),
            resource,
            time.time() + authority.lifetime,
        )
        authority.tokens[issued.access_token] = issued
        if issued.refresh_token:
            authority.tokens[issued.refresh_token] = issued

    def send_signal(self, name: str, *args: Any, **kwargs: Any) -> None:
        pass

    def create_oauth2_request(self, request: Any) -> Any:
        return request

    def handle_response(self, status: int, body: Any, headers: Any) -> Response:
        content = json.dumps(body) if isinstance(body, dict) else body
        return Response(content, status, dict(headers))


class _CodeGrant(grants.AuthorizationCodeGrant):
    TOKEN_ENDPOINT_AUTH_METHODS: ClassVar[list[str]] = METHODS

    def save_authorization_code(self, code: str, request: Any) -> None:
        data = request.payload.data
        self.server.authority.codes[code] = Code(
            code,
            request.client.client_id,
            data["redirect_uri"],
            request.scope,
            data.get("resource", ""),
            data.get("code_challenge", ""),
            data.get("code_challenge_method", ""),
        )

    def query_authorization_code(self, code: str, client: Client) -> Code | None:
        found: Code | None = self.server.authority.codes.get(code)
        return found if found is not None and found.client_id == client.client_id else None

    def delete_authorization_code(self, authorization_code: Code) -> None:
        del self.server.authority.codes[authorization_code.code]

    def authenticate_user(self, authorization_code: Code) -> str:
        return "user"


class _RefreshGrant(grants.RefreshTokenGrant):
    TOKEN_ENDPOINT_AUTH_METHODS: ClassVar[list[str]] = METHODS
    INCLUDE_NEW_REFRESH_TOKEN = True

    def authenticate_refresh_token(self, refresh_token: str) -> Token | None:
        authority = self.server.authority
        authority.refreshes += 1
        found: Token | None = authority.tokens.get(refresh_token)
        if found is not None and found.revoked:
            authority.reused += 1
        return found if found is not None and not found.revoked else None

    def authenticate_user(self, refresh_token: Token) -> str:
        return "user"

    def revoke_old_credential(self, refresh_token: Token) -> None:
        refresh_token.revoked = True


class _ClientCredentials(grants.ClientCredentialsGrant):
    TOKEN_ENDPOINT_AUTH_METHODS: ClassVar[list[str]] = METHODS


class _DeviceGrant(DeviceCodeGrant):
    def query_device_credential(self, device_code: str) -> Device | None:
        found: Device | None = self.server.authority.devices.get(device_code)
        return found

    def query_user_grant(self, user_code: str) -> tuple[str, bool] | None:
        approved = self.server.authority.decisions.get(user_code)
        return None if approved is None else ("user", approved)

    def should_slow_down(self, credential: Device) -> bool:
        return bool(self.server.authority.slows_down)


class _ExchangeGrant(grants.BaseGrant, grants.TokenEndpointMixin):
    """RFC 8693 and the jwt-bearer grant, both by looking the token up."""

    TOKEN_ENDPOINT_AUTH_METHODS: ClassVar[list[str]] = METHODS

    @classmethod
    def check_token_endpoint(cls, request: Any) -> bool:
        return request.payload.grant_type in (TOKEN_EXCHANGE, JWT_BEARER)

    def validate_token_request(self) -> None:
        self.request.client = self.authenticate_token_endpoint_client()
        data = self.request.payload.data
        authority = self.server.authority
        authority.exchanges.append(dict(data))
        given = data.get("subject_token") or data.get("assertion")
        if not given:
            raise InvalidRequestError()
        if given not in authority.subjects:
            raise InvalidGrantError("unknown subject")

    def create_token_response(self) -> tuple[int, dict[str, Any], Any]:
        data = self.request.payload.data
        if data.get("requested_token_type") == ID_JAG:
            jag = f"jag-{secrets.token_urlsafe(16)}"
            self.server.authority.subjects.add(jag)
            answer = {"access_token": jag, "issued_token_type": ID_JAG, "token_type": "N_A"}
            return 200, answer, self.TOKEN_RESPONSE_HEADER
        token = self.server.authority.generate(
            data["grant_type"], self.request.client, scope=data.get("scope"),
            include_refresh_token=False,
        )  # fmt: skip
        self.server.save_token(token, self.request)
        return 200, token, self.TOKEN_RESPONSE_HEADER


class _Revocation(RevocationEndpoint):
    CLIENT_AUTH_METHODS: ClassVar[list[str]] = METHODS

    def query_token(self, token_string: str, token_type_hint: str | None) -> Token | None:
        found: Token | None = self.server.authority.tokens.get(token_string)
        return found

    def revoke_token(self, token: Token, request: Any) -> None:
        token.revoked = True


class _DeviceEndpoint(DeviceAuthorizationEndpoint):
    INTERVAL = 0

    def get_verification_uri(self) -> str:
        return f"{self.server.authority.base}/device"

    def save_device_credential(self, client_id: str, scope: str, data: dict[str, Any]) -> None:
        expires = time.time() + data["expires_in"]
        device = Device(client_id, scope or "", data["user_code"], expires)
        self.server.authority.devices[data["device_code"]] = device


class _Assertion(JWTBearerClientAssertion):
    CLIENT_AUTH_METHOD = "private_key_jwt"

    def __init__(self, authority: AuthlibAuthority) -> None:
        super().__init__()
        self.authority = authority

    def get_audiences(self) -> list[str]:
        return [self.authority.issuer]

    def validate_jti(self, claims: Any, jti: str) -> bool:
        is_new = jti not in self.authority.jtis
        self.authority.jtis.add(jti)
        return is_new

    def resolve_client_public_key(self, client: Client) -> Any:
        return client.public_key


@dataclass
class AuthlibAuthority:
    """An issuer with a path, so that the well-known paths differ from those of a root."""

    base: str
    lifetime: int = 3600
    scopes: tuple[str, ...] = ("read", "write", "offline_access")
    sends_iss: bool = True
    sent_iss: str | None = None
    """What is sent instead of the issuer; empty sends none, while the metadata announces it."""
    registers: bool = True
    documents: bool = False
    has_openid_only: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    """Overrides members of the metadata; None removes one."""
    clients: dict[str, Client] = field(default_factory=dict)
    codes: dict[str, Code] = field(default_factory=dict)
    tokens: dict[str, Token] = field(default_factory=dict)
    devices: dict[str, Device] = field(default_factory=dict)
    decisions: dict[str, bool] = field(default_factory=dict)
    subjects: set[str] = field(default_factory=set)
    exchanges: list[dict[str, str]] = field(default_factory=list)
    jtis: set[str] = field(default_factory=set)
    slows_down: bool = False
    refreshes: int = 0
    reused: int = 0
    registrations: int = 0
    fails_with: int = 0
    """An HTTP status that the token endpoint answers with instead."""
    echoes: bool = False
    """Whether the token endpoint refuses and repeats what it was sent."""
    hold: asyncio.Event | None = None
    """Token requests wait for it; `arrived` is set when one does."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    token_requests: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.issuer = f"{self.base}/tenant"
        self.server = _Server(self)
        self.server.register_grant(_CodeGrant, [CodeChallenge(required=True)])
        for grant in (_RefreshGrant, _ClientCredentials, _DeviceGrant, _ExchangeGrant):
            self.server.register_grant(grant)
        for endpoint in (_Revocation, _DeviceEndpoint):
            self.server.register_endpoint(endpoint)
        self.server.register_client_auth_method("private_key_jwt", _Assertion(self))

    @property
    def app(self) -> Starlette:
        oauth, openid = (
            "/.well-known/oauth-authorization-server",
            "/.well-known/openid-configuration",
        )
        names = (
            [f"/tenant{openid}"] if self.has_openid_only else [f"{oauth}/tenant", f"{oauth}/other"]
        )
        return Starlette(
            routes=[
                *(Route(name, self._describe) for name in names),
                Route("/tenant/authorize", self._authorize, methods=["GET", "POST"]),
                Route("/tenant/token", self._token, methods=["POST"]),
                Route("/tenant/register", self._register, methods=["POST"]),
                Route("/tenant/revoke", self._revoke, methods=["POST"]),
                Route("/tenant/device", self._device, methods=["POST"]),
            ]
        )

    def find(self, token: str) -> dict[str, Any] | None:
        found = self.tokens.get(token)
        if found is None or token != found.access_token:
            return None
        active = not found.revoked and not found.is_expired()
        return {
            "scopes": found.scope.split(),
            "resource": found.resource,
            "active": active,
            "subject": found.subject,
        }

    def expire(self) -> None:
        """Lets all access tokens expire."""
        for token in self.tokens.values():
            token.expires_at = 0.0

    def generate(
        self,
        grant_type: str,
        client: Client,
        user: object = None,
        scope: str | None = None,
        expires_in: int | None = None,
        include_refresh_token: bool = True,
    ) -> dict[str, Any]:
        token = {
            "token_type": "Bearer",
            "access_token": f"at-{secrets.token_urlsafe(32)}",
            "expires_in": self.lifetime,
            "scope": scope or "",
        }
        if include_refresh_token and grant_type != "client_credentials":
            token["refresh_token"] = f"rt-{secrets.token_urlsafe(32)}"
        return token

    async def _describe(self, request: Request) -> Response:
        self.paths.append(request.url.path)
        about: dict[str, Any] = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "revocation_endpoint": f"{self.issuer}/revoke",
            "device_authorization_endpoint": f"{self.issuer}/device",
            "token_endpoint_auth_methods_supported": METHODS,
            "code_challenge_methods_supported": ["S256"],
            "scopes_supported": list(self.scopes),
            "client_id_metadata_document_supported": self.documents,
            "authorization_response_iss_parameter_supported": self.sends_iss,
        }
        if self.registers:
            about["registration_endpoint"] = f"{self.issuer}/register"
        about |= self.metadata
        return JSONResponse({name: value for name, value in about.items() if value is not None})

    async def _authorize(self, request: Request) -> Response:
        values = dict(request.query_params)
        made = _Request("GET", str(request.url), request.headers, values)
        if request.method == "GET":
            try:
                self.server.get_consent_grant(made, end_user="user")
            except OAuth2Error as error:
                response = self.server.handle_error_response(made, error)
                return self._add_issuer(response)
            return HTMLResponse("<form method=post><button name=decision>approve</button></form>")
        form = await request.form()
        grant = self.server.get_consent_grant(made, end_user="user")
        user = "user" if form["decision"] == "approve" else None
        return self._add_issuer(
            self.server.create_authorization_response(made, grant_user=user, grant=grant)
        )

    def _add_issuer(self, response: Response) -> Response:
        """Adds the issuer (RFC 9207), or a wrong one."""
        iss = self.issuer if self.sent_iss is None else self.sent_iss
        where = response.headers.get("location")
        if where and iss and (self.sends_iss or self.sent_iss):
            from urllib.parse import quote

            response.headers["location"] = f"{where}&iss={quote(iss, safe='')}"
        return response

    async def _post(self, request: Request) -> _Request:
        values = {name: str(value) for name, value in (await request.form()).items()}
        return _Request("POST", str(request.url), request.headers, values)

    async def _token(self, request: Request) -> Response:
        made = await self._post(request)
        self.token_requests.append(made.values)
        if self.hold is not None:
            self.arrived.set()
            await self.hold.wait()
        if self.echoes:
            said = {"error": "invalid_grant", "error_description": f"rejected {made.values}"}
            return JSONResponse(said, 400)
        if self.fails_with:
            return Response("unavailable", self.fails_with)
        response: Response = self.server.create_token_response(made)
        return response

    async def _revoke(self, request: Request) -> Response:
        made = await self._post(request)
        response: Response = self.server.create_endpoint_response("revocation", made)
        return response

    async def _device(self, request: Request) -> Response:
        made = await self._post(request)
        response: Response = self.server.create_endpoint_response("device_authorization", made)
        return response

    async def _register(self, request: Request) -> Response:
        wanted = await request.json()
        self.registrations += 1
        client = Client(
            f"client-{secrets.token_hex(4)}",
            wanted["token_endpoint_auth_method"],
            redirect_uris=tuple(wanted["redirect_uris"]),
            grant_types=tuple(wanted["grant_types"]),
        )
        if client.method != "none":
            client.secret = f"cs-{secrets.token_urlsafe(16)}"
        self.clients[client.client_id] = client
        answer = {**wanted, "client_id": client.client_id}
        if client.secret:
            answer["client_secret"] = client.secret
        return JSONResponse(answer, 201)
