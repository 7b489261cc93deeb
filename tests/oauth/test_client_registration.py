"""Which client the hub is at an authorization server, and how it authenticates."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from joserfc.jwk import ECKey
from tests.oauth.authlib_authority import AuthlibAuthority, Client
from tests.oauth.sdk_authority import SdkAuthority
from tests.oauth.world import REDIRECT, World

from dragoman.core.errors import BadReply, ConfigError, Declined, LoginRequired
from dragoman.oauth.client.client_auth import ClientKeys, sign_assertion
from dragoman.oauth.client.records import SHARED
from dragoman.oauth.client.registration import build_client_document, can_use_document
from dragoman.oauth.client.urls import mark_issuer
from dragoman.oauth.config import OAuthSettings

DOCUMENT = "https://hub.example/oauth/client.json"


def _get_client_id(url: str) -> str:
    return dict(parse_qsl(urlsplit(url).query))["client_id"]


async def test_a_client_is_registered_once_per_issuer_and_kept(world: World) -> None:
    first = await world.manage().begin_login(SHARED)
    world.reopen()
    second = await world.manage().begin_login(SHARED)
    assert _get_client_id(first.url) == _get_client_id(second.url)
    assert list(world.authority.clients) == [_get_client_id(first.url)]


async def test_another_redirect_uri_registers_anew_and_old_tokens_keep_their_client(
    world: World,
) -> None:
    tokens = world.manage()
    await world.log_in(tokens)
    world.redirect_uri = REDIRECT.replace("4150", "4151")
    await tokens.begin_login("user:anna\0default")
    assert len(world.authority.clients) == 2
    world.authority.expire()
    assert (await world.call(world.open(tokens))).status == 200


async def test_a_forgotten_client_is_registered_again_after_invalid_client(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    tokens = authlib_world.manage()
    await authlib_world.log_in(tokens)
    authority.clients.clear()
    authority.expire()
    with pytest.raises(LoginRequired, match="invalid_client"):
        await authlib_world.call(authlib_world.open(tokens))
    await authlib_world.log_in(tokens)
    assert authority.registrations == 2
    assert (await authlib_world.call(authlib_world.open(tokens))).status == 200


async def test_a_login_that_never_returned_registers_anew_after_a_while(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    """An authorization server that forgot the client shows an error page in the browser."""
    tokens = authlib_world.manage(register_seconds=0.0)
    await tokens.begin_login(SHARED)
    authority.clients.clear()
    await authlib_world.log_in(tokens)
    assert authority.registrations == 2
    patient = authlib_world.manage()
    for _ in range(3):
        await patient.begin_login(SHARED)
    assert authority.registrations == 2


async def test_a_step_up_registers_the_scopes_that_the_client_lacks(world: World) -> None:
    tokens = world.manage()
    await world.log_in(tokens)
    login = await tokens.begin_login(SHARED, ("write",))
    assert "write" in login.scopes
    client = world.authority.clients[_get_client_id(login.url)]
    if isinstance(world.authority, SdkAuthority):
        assert "write" in (getattr(client, "scope", "") or "").split()


@pytest.mark.parametrize("methods", [["client_secret_post"], ["client_secret_basic"], ["none"]])
async def test_a_registered_client_authenticates_as_it_was_registered(
    authlib_world: World, authority: AuthlibAuthority, methods: list[str]
) -> None:
    authority.metadata = {"token_endpoint_auth_methods_supported": methods}
    tokens = authlib_world.manage()
    await authlib_world.log_in(tokens)
    assert [client.method for client in authority.clients.values()] == methods
    assert ("client_secret" in authority.token_requests[0]) is (methods[0] == "client_secret_post")
    authority.expire()
    assert (await authlib_world.call(authlib_world.open(tokens))).status == 200


async def test_the_document_of_the_hub_comes_before_registration(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    authority.documents = True
    authlib_world.document_url = DOCUMENT
    mark = mark_issuer(authority.issuer)
    document = f"{DOCUMENT}/{mark}"
    authority.clients[document] = Client(document, redirect_uris=(f"{REDIRECT}/{mark}",))
    tokens = authlib_world.manage()
    await authlib_world.log_in(tokens)
    assert authority.registrations == 0
    assert authority.token_requests[0]["client_id"] == document
    authority.expire()
    assert (await authlib_world.call(authlib_world.open(tokens))).status == 200


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:4150/oauth/client.json"])
async def test_without_a_public_url_the_client_is_registered(
    authlib_world: World, authority: AuthlibAuthority, url: str
) -> None:
    authority.documents = True
    authlib_world.document_url = url
    await authlib_world.manage().begin_login(SHARED)
    assert authority.registrations == 1


def test_the_document_names_itself() -> None:
    document = build_client_document(DOCUMENT, "https://hub.example/oauth/callback")
    assert document["client_id"] == DOCUMENT
    assert document["redirect_uris"] == ["https://hub.example/oauth/callback"]
    assert document["token_endpoint_auth_method"] == "none"
    assert can_use_document(DOCUMENT)
    assert not can_use_document("https://localhost/oauth/client.json")
    assert not can_use_document("https://hub.example")


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post", "none"])
async def test_a_configured_client_comes_first(
    authlib_world: World, authority: AuthlibAuthority, method: str
) -> None:
    secret = "" if method == "none" else "s3cret: ü&%"
    authority.documents = True
    authlib_world.document_url = DOCUMENT
    authority.metadata = {"token_endpoint_auth_methods_supported": [method]}
    authority.clients["mine"] = Client("mine", method, secret, (REDIRECT,))
    authlib_world.secrets["env:SECRET"] = secret
    reference = "env:SECRET" if secret else ""
    tokens = authlib_world.manage(OAuthSettings(client_id="mine", client_secret=reference))
    await authlib_world.log_in(tokens)
    authority.expire()
    assert (await authlib_world.call(authlib_world.open(tokens))).status == 200
    assert authority.registrations == 0


async def test_a_configured_client_is_bound_to_its_first_issuer(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    authority.clients["mine"] = Client("mine", redirect_uris=(REDIRECT,))
    settings = OAuthSettings(client_id="mine")
    await authlib_world.log_in(authlib_world.manage(settings))
    # The resource now names another server, which would get the client's secret.
    other = f"{authority.base}/other"
    authority.metadata = {"issuer": other}
    authlib_world.resource.issuers = [other]
    with pytest.raises(BadReply, match="was used with"):
        await authlib_world.manage(settings).begin_login(SHARED)
    told = OAuthSettings(client_id="mine", issuer=other)
    assert (await authlib_world.manage(told).begin_login(SHARED)).issuer == other


async def test_without_registration_the_message_says_what_to_do(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    authority.registers = False
    uri = f"{REDIRECT}/{mark_issuer(authority.issuer)}"
    with pytest.raises(Declined, match=f'redirect URI {uri}.*client_id and callback = "issuer"'):
        await authlib_world.manage().begin_login(SHARED)


async def test_a_changed_client_id_needs_a_new_login(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    for name in ("one", "two"):
        authority.clients[name] = Client(name, redirect_uris=(REDIRECT,))
    await authlib_world.log_in(authlib_world.manage(OAuthSettings(client_id="one")))
    changed = authlib_world.manage(OAuthSettings(client_id="two"))
    with pytest.raises(LoginRequired, match="client_id has changed"):
        await changed.find_token(SHARED)


def _make_key() -> tuple[str, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return pem, key


async def test_a_private_key_authenticates_the_client(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    pem, key = _make_key()
    authority.clients["machine"] = Client(
        "machine", "private_key_jwt", redirect_uris=(REDIRECT,), grant_types=("client_credentials",)
    )
    authority.clients["machine"].public_key = ECKey.import_key(key.public_key())
    authlib_world.secrets["file:key.pem"] = pem
    settings = OAuthSettings(
        grant="client_credentials",
        client_id="machine",
        private_key="file:key.pem",
        private_key_alg="ES256",
        private_key_id="k1",
    )
    tokens = authlib_world.manage(settings)
    assert (await authlib_world.call(authlib_world.open(tokens))).status == 200
    sent = authority.token_requests[0]["client_assertion"]
    assert jwt.get_unverified_header(sent) == {"alg": "ES256", "kid": "k1", "typ": "JWT"}
    claims = jwt.decode(sent, key.public_key(), ["ES256"], audience=authority.issuer)
    assert claims["iss"] == claims["sub"] == "machine"
    assert claims["exp"] - claims["iat"] <= 300


@pytest.mark.parametrize("key", ["", "garbage", "rsa"])
def test_a_key_that_does_not_fit_is_not_shown(key: str) -> None:
    pem, _ = _make_key()
    keys = ClientKeys("", pem if key == "rsa" else key, "RS256")
    with pytest.raises(ConfigError, match="cannot sign with RS256") as error:
        sign_assertion("machine", keys, "https://auth.example")
    assert "PRIVATE" not in str(error.value)
    assert "PRIVATE" not in repr(keys)
