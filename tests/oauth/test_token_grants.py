"""Grants without a browser: client credentials, device codes, token exchange, ID-JAG."""

from __future__ import annotations

import pytest
from tests.oauth.authlib_authority import ID_JAG, JWT_BEARER, AuthlibAuthority, Client
from tests.oauth.world import World

from dragoman.core.errors import BadReply, Declined, InvalidInput, LoginRequired, Unreachable
from dragoman.oauth.client.grants import read_token
from dragoman.oauth.client.records import SHARED
from dragoman.oauth.config import IdentityProvider, OAuthSettings

MACHINE = OAuthSettings(grant="client_credentials", client_id="machine", client_secret="env:SECRET")


@pytest.fixture
def machine(authlib_world: World, authority: AuthlibAuthority) -> Client:
    grants = ("client_credentials",)
    client = Client("machine", "client_secret_basic", "hunter2-hunter2", grant_types=grants)
    authority.clients["machine"] = client
    authlib_world.secrets["env:SECRET"] = client.secret
    return client


async def test_client_credentials_need_no_login(
    authlib_world: World, authority: AuthlibAuthority, machine: Client
) -> None:
    tokens = authlib_world.manage(MACHINE)
    client = authlib_world.open(tokens)
    assert (await authlib_world.call(client)).status == 200
    assert authority.token_requests[0]["resource"] == authlib_world.resource.url
    assert authority.token_requests[0]["scope"] == "read"
    authority.expire()
    assert (await authlib_world.call(client)).status == 200
    assert tokens.get_status(SHARED).state == "valid"
    assert len(authority.token_requests) == 2


async def test_client_credentials_step_up_by_themselves(
    authlib_world: World, authority: AuthlibAuthority, machine: Client
) -> None:
    client = authlib_world.open(authlib_world.manage(MACHINE))
    assert (await authlib_world.call(client)).status == 200
    assert (await authlib_world.call(client, "/write")).status == 200
    assert [form["scope"] for form in authority.token_requests] == ["read", "read write"]


async def test_a_refused_client_is_no_login_but_a_readable_failure(
    authlib_world: World, authority: AuthlibAuthority, machine: Client
) -> None:
    authlib_world.secrets["env:SECRET"] = "wrong-wrong"
    tokens = authlib_world.manage(MACHINE, retry_first=1000.0, retry_longest=1000.0)
    for _ in range(3):
        with pytest.raises(Declined, match="invalid_client") as refused:
            await authlib_world.call(authlib_world.open(tokens))
        assert "wrong-wrong" not in str(refused.value)
    assert len(authority.token_requests) == 1
    assert tokens.get_status(SHARED).state == "needs_login"


async def test_a_machine_grant_has_no_logins(authlib_world: World, machine: Client) -> None:
    tokens = authlib_world.manage(MACHINE)
    for begin in (tokens.begin_login, tokens.begin_device_login):
        with pytest.raises(Declined, match="needs no login"):
            await begin(SHARED)


async def test_a_machine_grant_without_client_id_says_so(authlib_world: World) -> None:
    tokens = authlib_world.manage(OAuthSettings(grant="client_credentials"))
    with pytest.raises(Unreachable, match="needs client_id"):
        await tokens.find_token(SHARED)


async def test_a_device_login_waits_for_the_decision(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    tokens = authlib_world.manage(OAuthSettings(grant="device_code"))
    login = await tokens.begin_device_login(SHARED)
    assert login.verification_uri == f"{authority.base}/device"
    assert login.user_code in login.verification_uri_complete
    assert await tokens.poll_device_login(login.id) is None
    authority.decisions[login.user_code] = True
    grant = await tokens.poll_device_login(login.id)
    assert grant is not None
    assert "read" in grant.scopes
    assert (await authlib_world.call(authlib_world.open(tokens))).status == 200
    authority.expire()
    assert (await authlib_world.call(authlib_world.open(tokens))).status == 200
    with pytest.raises(InvalidInput):
        await tokens.poll_device_login(login.id)


async def test_a_device_login_can_be_declined(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    tokens = authlib_world.manage()
    login = await tokens.begin_device_login(SHARED)
    authority.decisions[login.user_code] = False
    with pytest.raises(Declined, match="access_denied"):
        await tokens.poll_device_login(login.id)
    assert tokens.get_status(SHARED).state == "none"


async def test_a_device_login_slows_down_when_told(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    tokens = authlib_world.manage()
    login = await tokens.begin_device_login(SHARED)
    authority.slows_down = True
    for _ in range(5):
        assert await tokens.poll_device_login(login.id) is None
    assert len(authority.token_requests) == 1  # the others came before the interval was over


async def test_a_server_without_device_logins_says_so(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    authority.metadata = {"device_authorization_endpoint": None}
    with pytest.raises(Declined, match="browser"):
        await authlib_world.manage().begin_device_login(SHARED)


async def test_a_token_is_exchanged(
    authlib_world: World, authority: AuthlibAuthority, machine: Client
) -> None:
    authority.subjects.add("idp-token-1234")
    authlib_world.secrets["exec:idp"] = "idp-token-1234"
    provider = IdentityProvider(subject_token="exec:idp")
    settings = OAuthSettings(
        grant="token_exchange",
        client_id="machine",
        client_secret="env:SECRET",
        audience="files",
        identity_provider=provider,
    )
    tokens = authlib_world.manage(settings)
    assert (await authlib_world.call(authlib_world.open(tokens))).status == 200
    sent = authority.exchanges[0]
    assert sent["audience"] == "files"
    assert sent["resource"] == authlib_world.resource.url
    with pytest.raises(Unreachable, match='credentials = "shared"'):
        await tokens.find_token("user:anna\0default")
    assert len(authority.exchanges) == 1


async def test_a_token_of_a_workload_is_an_assertion(
    authlib_world: World, authority: AuthlibAuthority, machine: Client
) -> None:
    """As the token of a service account, which its platform replaces in a file."""
    settings = OAuthSettings(
        grant="jwt_bearer",
        client_id="machine",
        client_secret="env:SECRET",
        identity_provider=IdentityProvider(subject_token="file:token"),
    )
    client = authlib_world.open(authlib_world.manage(settings))
    for number in range(2):
        authlib_world.secrets["file:token"] = f"workload-token-{number}"
        authority.subjects = {f"workload-token-{number}"}
        authority.expire()
        assert (await authlib_world.call(client)).status == 200
    sent = [(form["grant_type"], form["assertion"]) for form in authority.exchanges]
    assert sent == [(JWT_BEARER, "workload-token-0"), (JWT_BEARER, "workload-token-1")]


async def test_an_id_jag_is_obtained_and_used(
    authlib_world: World, authority: AuthlibAuthority, machine: Client
) -> None:
    authority.subjects.add("id-token-1234")
    authlib_world.secrets["file:id"] = "id-token-1234"
    provider = IdentityProvider(
        issuer=authority.issuer,
        client_id="machine",
        client_secret="env:SECRET",
        subject_token="file:id",
    )
    settings = OAuthSettings(
        grant="id_jag",
        client_id="machine",
        client_secret="env:SECRET",
        issuer=authority.issuer,
        identity_provider=provider,
    )
    tokens = authlib_world.manage(settings)
    assert (await authlib_world.call(authlib_world.open(tokens))).status == 200
    first, second = authority.exchanges
    assert first["requested_token_type"] == ID_JAG
    assert first["audience"] == authority.issuer
    assert first["resource"] == authlib_world.resource.url
    assert second["grant_type"] == JWT_BEARER
    assert second["assertion"].startswith("jag-")


async def test_a_holder_has_a_token_of_its_own_where_its_subject_is_known(
    authlib_world: World, authority: AuthlibAuthority, machine: Client
) -> None:
    authority.subjects |= {"token-of-anna", "token-of-bob"}

    async def find_subject(holder: str) -> str:
        return f"token-of-{holder}"

    settings = OAuthSettings(
        grant="token_exchange", client_id="machine", client_secret="env:SECRET"
    )
    tokens = authlib_world.manage(settings)
    tokens._endpoint._find_subject = find_subject
    values = {(await tokens.find_token(holder)).value for holder in ("anna", "bob")}
    assert len(values) == 2
    assert [sent["subject_token"] for sent in authority.exchanges] == [
        "token-of-anna",
        "token-of-bob",
    ]


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"access_token": ""},
        {"access_token": 7},
        {"access_token": "a b"},
        {"access_token": "a\r\nx: y"},
        {"access_token": "ä"},
        {"access_token": "x" * 20_000},
        {"access_token": "ok", "token_type": "DPoP"},
        {"access_token": "ok", "token_type": 7},
        {"access_token": "ok", "refresh_token": "a\nb"},
    ],
)
def test_an_invalid_answer_gives_no_token(answer: dict[str, object]) -> None:
    with pytest.raises(BadReply):
        read_token(answer, "https://auth.example/token")


@pytest.mark.parametrize("life", [None, -1, "x", 1e300, [], float("nan")])
def test_a_senseless_expiry_counts_as_not_said(life: object) -> None:
    token = read_token({"access_token": "ok", "expires_in": life}, "https://auth.example")
    assert token.expires_at == float("inf")


async def test_a_login_is_not_asked_for_where_it_cannot_help(
    authlib_world: World, machine: Client
) -> None:
    authlib_world.secrets["env:SECRET"] = "other-other"
    with pytest.raises(Declined) as refused:
        await authlib_world.manage(MACHINE).find_token(SHARED)
    assert not isinstance(refused.value, LoginRequired)
