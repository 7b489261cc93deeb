"""The authorization code flow against two implementations of authorization servers."""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qsl, urlsplit

import pytest
from tests.oauth.authlib_authority import AuthlibAuthority
from tests.oauth.served import Browser
from tests.oauth.world import World

from dragoman.core.errors import BadReply, Declined, InvalidInput, LoginRequired
from dragoman.oauth.client.records import SHARED
from dragoman.oauth.client.urls import mark_issuer


def _query_of(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query))


async def test_a_consent_gives_a_token_with_which_calls_succeed(world: World) -> None:
    tokens = world.manage()
    client = world.open(tokens)
    with pytest.raises(LoginRequired) as missing:
        await world.call(client)
    assert missing.value.server == "files"
    assert tokens.get_status(SHARED).state == "none"

    grant = await world.log_in(tokens)
    assert grant.issuer == world.authority.issuer
    assert "read" in grant.scopes
    assert tokens.get_status(SHARED).state == "valid"

    reply = await world.call(client)
    assert reply.status == 200
    token = await tokens.find_token(SHARED)
    assert reply.secrets == (token.header, token.value)
    assert world.resource.seen[-1] == token.header


async def test_the_request_has_pkce_state_and_the_resource(world: World) -> None:
    login = await world.manage().begin_login(SHARED)
    query = _query_of(login.url)
    assert query["code_challenge_method"] == "S256"
    assert len(query["code_challenge"]) == 43
    assert query["resource"] == world.resource.url
    assert query["state"] == login.state
    assert len(login.state) == 43
    assert query["response_type"] == "code"
    assert query["redirect_uri"] == f"{world.redirect_uri}/{mark_issuer(login.issuer)}"


async def test_a_denied_consent_leaves_nothing(world: World) -> None:
    tokens = world.manage()
    with pytest.raises(Declined, match="declined"):
        await world.log_in(tokens, press="deny")
    assert tokens.get_status(SHARED).state == "none"
    assert tokens.list_holders() == []


async def test_a_state_is_for_one_use(world: World) -> None:
    tokens = world.manage()
    login = await tokens.begin_login(SHARED)
    query = await Browser(world.redirect_uri).log_in(login.url)
    await tokens.finish_login(login.state, query, mark_issuer(login.issuer))
    with pytest.raises(InvalidInput, match="start it again"):
        await tokens.finish_login(login.state, query, mark_issuer(login.issuer))


async def test_an_unknown_or_expired_state_is_refused(authlib_world: World) -> None:
    tokens = authlib_world.manage(login_seconds=0.0)
    login = await tokens.begin_login(SHARED)
    query = await Browser(authlib_world.redirect_uri).log_in(login.url)
    for state in (login.state, "x" * 43):
        with pytest.raises(InvalidInput):
            await tokens.finish_login(state, query, mark_issuer(login.issuer))


async def test_logins_that_never_end_are_bounded(authlib_world: World) -> None:
    tokens = authlib_world.manage(max_logins=3)
    logins = [await tokens.begin_login(SHARED) for _ in range(5)]
    query = await Browser(authlib_world.redirect_uri).log_in(logins[0].url)
    with pytest.raises(InvalidInput):
        await tokens.finish_login(logins[0].state, query, mark_issuer(logins[0].issuer))
    query = await Browser(authlib_world.redirect_uri).log_in(logins[-1].url)
    await tokens.finish_login(logins[-1].state, query, mark_issuer(logins[-1].issuer))


@pytest.mark.parametrize(
    ("iss", "announced", "is_accepted"),
    [
        (None, True, True),
        (None, False, True),
        ("", True, False),  # announced and missing
        ("", False, True),  # neither announced nor sent
        ("https://evil.example/tenant", True, False),
        ("https://evil.example/tenant", False, False),
        ("folded", True, False),
        ("slash", True, False),
        ("port", True, False),
    ],
)
async def test_the_issuer_of_the_answer_is_compared_byte_by_byte(
    authlib_world: World,
    authority: AuthlibAuthority,
    iss: str | None,
    announced: bool,
    is_accepted: bool,
) -> None:
    variants = {
        "folded": authority.issuer.replace("/tenant", "/Tenant"),
        "slash": f"{authority.issuer}/",
        "port": authority.issuer.replace("127.0.0.1", "127.0.0.1."),
    }
    authority.sends_iss = announced
    authority.sent_iss = variants.get(iss, iss) if iss is not None else None
    tokens = authlib_world.manage()
    if is_accepted:
        await authlib_world.log_in(tokens)
        return
    with pytest.raises(BadReply, match="authorization server"):
        await authlib_world.log_in(tokens)
    assert authority.token_requests == []


async def test_an_error_with_a_wrong_issuer_is_not_repeated(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    tokens = authlib_world.manage()
    login = await tokens.begin_login(SHARED)
    query = {
        "state": login.state,
        "iss": "https://evil.example",
        "error": "access_denied",
        "error_description": "call +1 555 0100",
    }
    with pytest.raises(BadReply) as refused:
        await tokens.finish_login(login.state, query, mark_issuer(login.issuer))
    assert "555" not in str(refused.value)


async def test_the_state_of_another_browser_is_refused(authlib_world: World) -> None:
    tokens = authlib_world.manage()
    login, other = [await tokens.begin_login(SHARED) for _ in range(2)]
    query = await Browser(authlib_world.redirect_uri).log_in(login.url)
    with pytest.raises(InvalidInput, match="another state"):
        await tokens.finish_login(other.state, query, mark_issuer(other.issuer))


@pytest.mark.parametrize("methods", [None, [], ["plain"], "S256"])
async def test_a_server_without_pkce_gets_no_login(
    authlib_world: World, authority: AuthlibAuthority, methods: object
) -> None:
    authority.metadata = {"code_challenge_methods_supported": methods}
    with pytest.raises(BadReply, match="PKCE"):
        await authlib_world.manage().begin_login(SHARED)
    assert authority.registrations == 0


async def test_scopes_come_from_the_challenge_and_offline_access_from_the_server(
    authlib_world: World,
) -> None:
    authlib_world.resource.challenge_scope = "read files:list"
    login = await authlib_world.manage().begin_login(SHARED)
    assert login.scopes == ("read", "files:list", "offline_access")
    assert _query_of(login.url)["prompt"] == "consent"


async def test_without_a_challenge_the_scopes_are_those_of_the_metadata(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    authority.scopes = ("read", "admin")
    login = await authlib_world.manage().begin_login(SHARED)
    assert login.scopes == ("read",)
    authlib_world.resource.scopes = None
    login = await authlib_world.manage().begin_login(SHARED)
    assert login.scopes == ()
    assert "scope" not in _query_of(login.url)


async def test_holders_have_their_own_tokens(world: World) -> None:
    tokens = world.manage()
    await world.log_in(tokens, "user:anna\0default")
    with pytest.raises(LoginRequired):
        await world.call(world.open(tokens, "user:bob\0default"))
    await world.log_in(tokens, "user:bob\0default")
    anna, bob = world.open(tokens, "user:anna\0default"), world.open(tokens, "user:bob\0default")
    for client, holder in ((anna, "user:anna\0default"), (bob, "user:bob\0default")):
        await world.call(client)
        token = await tokens.find_token(holder)
        assert world.resource.seen[-1] == token.header
    assert len(set(world.resource.seen[-2:])) == 2
    assert sorted(tokens.list_holders()) == ["user:anna\0default", "user:bob\0default"]


async def test_a_step_up_asks_for_the_union_and_the_call_then_succeeds(world: World) -> None:
    tokens = world.manage()
    client = world.open(tokens)
    await world.log_in(tokens)
    with pytest.raises(LoginRequired) as more:
        await world.call(client, "/write")
    assert {"read", "write"} <= set(more.value.scopes)
    assert (await world.call(client)).status == 200  # the old token still does what it could
    grant = await world.log_in(tokens)
    assert {"read", "write"} <= set(grant.scopes)
    assert (await world.call(client, "/write")).status == 200


async def test_a_step_up_that_gives_nothing_ends(authlib_world: World) -> None:
    tokens = authlib_world.manage(step_ups=2)
    client = authlib_world.open(tokens)
    await authlib_world.log_in(tokens)
    found = authlib_world.authority.find
    authlib_world.resource.find = lambda token: {**(found(token) or {}), "scopes": ["read"]}
    for _ in range(2):
        with pytest.raises(LoginRequired):
            await authlib_world.call(client, "/write")
        await authlib_world.log_in(tokens)
    with pytest.raises(Declined, match="needs scopes"):
        await authlib_world.call(client, "/write")


async def test_two_logins_at_once_register_one_client(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    tokens = authlib_world.manage()
    await asyncio.gather(*(tokens.begin_login(f"user:{n}\0default") for n in range(10)))
    assert authority.registrations == 1
