"""The life of tokens: expiry, refresh, rotation, rejection, revocation, restarts, failures."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace
from tests.oauth.authlib_authority import AuthlibAuthority, Token
from tests.oauth.world import KEY, World

from dragoman.core.errors import LoginRequired, StorageFailed, Unreachable
from dragoman.core.ports import CredentialId
from dragoman.oauth.client.records import SHARED
from dragoman.oauth.client.tokens import TokenManager
from dragoman.oauth.config import OAuthSettings

pytestmark = pytest.mark.promise("U3")


async def test_a_rejected_token_is_refreshed_and_the_call_sent_again(world: World) -> None:
    tokens = world.manage()
    client = world.open(tokens)
    await world.log_in(tokens)
    first = await tokens.find_token(SHARED)
    world.authority.expire()
    assert (await world.call(client)).status == 200
    second = await tokens.find_token(SHARED)
    assert second.value != first.value
    assert world.authority.refreshes == 1
    assert world.resource.executed == 1


@pytest.mark.parametrize("is_noticed_by", ["the hub", "the server"])
async def test_a_hundred_calls_at_expiry_cause_one_refresh(
    world: World, monkeypatch: pytest.MonkeyPatch, is_noticed_by: str
) -> None:
    tokens = world.manage()
    await world.log_in(tokens)
    old = await tokens.find_token(SHARED)
    if is_noticed_by == "the hub":
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + 3600)
        assert tokens.get_status(SHARED).state == "expired"
    else:
        world.authority.expire()
    clients = [world.open(tokens) for _ in range(4)]
    calls = [world.call(clients[number % 4]) for number in range(100)]
    replies = await asyncio.gather(*calls)
    assert {reply.status for reply in replies} == {200}
    assert world.authority.refreshes == 1
    assert (await tokens.find_token(SHARED)).value != old.value
    if is_noticed_by == "the hub":
        assert old.header not in world.resource.seen


async def test_callers_do_not_wait_while_the_old_token_is_valid(
    authlib_world: World, authority: AuthlibAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shortly before expiry the token is refreshed beside the calls."""
    authority.lifetime = 1000
    tokens = authlib_world.manage(margin_seconds=100_000.0, leeway_seconds=0.0)
    await authlib_world.log_in(tokens)
    token = await tokens.find_token(SHARED)
    assert token.expires_at - token.issued_at == pytest.approx(1000, abs=5)
    # A fifth of its life is the margin: let less than that be left.
    later = time.time() + 850.0
    monkeypatch.setattr(time, "time", lambda: later)
    assert tokens.peek(SHARED) is None
    assert (await tokens.find_token(SHARED)).value == token.value
    await tokens.close()  # waits for the refresh
    renewed = tokens.peek(SHARED)
    assert renewed is not None
    assert renewed.value != token.value
    assert authority.refreshes == 1


async def test_rotation_uses_each_refresh_token_once(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    tokens = authlib_world.manage(fresh_seconds=0.0)
    client = authlib_world.open(tokens)
    await authlib_world.log_in(tokens)
    for _ in range(5):
        authority.expire()
        assert (await authlib_world.call(client)).status == 200
    sent = [form["refresh_token"] for form in authority.token_requests[1:]]
    assert len(set(sent)) == 5
    assert authority.reused == 0
    assert all(form["resource"] == authlib_world.resource.url for form in authority.token_requests)


async def test_tokens_survive_a_restart(world: World) -> None:
    tokens = world.manage()
    await world.log_in(tokens)
    token = await tokens.find_token(SHARED)
    world.reopen()
    again = world.manage()
    assert again.get_status(SHARED).state == "valid"
    assert (await again.find_token(SHARED)).value == token.value
    world.authority.expire()
    assert (await world.call(world.open(again))).status == 200


async def test_the_new_refresh_token_is_stored_before_its_access_token_is_used(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    tokens = authlib_world.manage()
    await authlib_world.log_in(tokens)
    authority.expire()
    stored: list[str] = []
    found = authority.find

    def find(token: str) -> dict[str, object] | None:
        """The resource asks: by then another process must find the refresh token of `token`."""
        issued = authority.tokens.get(token)
        if issued is not None and not issued.revoked:
            other = authlib_world.manage()
            kept = other._vault.load(SHARED)
            assert kept is not None
            stored.append(kept.refresh_token)
            assert kept.refresh_token == issued.refresh_token
        return found(token)

    authlib_world.resource.find = find
    assert (await authlib_world.call(authlib_world.open(tokens))).status == 200
    assert stored


async def test_a_dead_refresh_token_is_one_state_with_one_message(world: World) -> None:
    tokens = world.manage()
    client = world.open(tokens)
    await world.log_in(tokens)
    world.authority.expire()
    if isinstance(world.authority, AuthlibAuthority):
        world.authority.tokens.clear()
    else:
        world.authority.refresh.clear()
    calls = [world.call(client) for _ in range(20)]
    failures = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(failure) for failure in failures} == {LoginRequired}
    assert len({str(failure) for failure in failures}) == 1
    assert len(set(map(id, failures))) == 20  # each call has an error of its own
    status = tokens.get_status(SHARED)
    assert status.state == "needs_login"
    assert "invalid_grant" in status.problem
    assert [change[1].state for change in world.changes] == ["valid", "needs_login"]
    # It is the same after a restart, and nothing is asked of the authorization server.
    requests = len(world.resource.seen)
    again = world.manage()
    assert again.get_status(SHARED) == status
    with pytest.raises(LoginRequired, match="invalid_grant"):
        await world.call(world.open(again))
    assert len(world.resource.seen) == requests
    # A login makes it valid again.
    await world.log_in(again)
    assert (await world.call(world.open(again))).status == 200


@pytest.mark.parametrize("status", [500, 503, 429])
async def test_a_passing_failure_keeps_the_tokens(
    authlib_world: World, authority: AuthlibAuthority, status: int
) -> None:
    tokens = authlib_world.manage()
    client = authlib_world.open(tokens)
    await authlib_world.log_in(tokens)
    authority.expire()
    authority.fails_with = status
    with pytest.raises(Unreachable, match=f"HTTP {status}"):
        await authlib_world.call(client)
    assert tokens.get_status(SHARED).state == "valid"  # as far as the hub knows
    assert tokens.get_status(SHARED).problem
    authority.fails_with = 0
    again = authlib_world.manage()  # without the pause between two attempts
    assert (await authlib_world.call(authlib_world.open(again))).status == 200


async def test_failures_pause_before_the_next_attempt(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    tokens = authlib_world.manage(retry_first=1000.0, retry_longest=1000.0)
    client = authlib_world.open(tokens)
    await authlib_world.log_in(tokens)
    authority.expire()
    authority.fails_with = 503
    for _ in range(5):
        with pytest.raises(Unreachable):
            await authlib_world.call(client)
    assert len(authority.token_requests) == 2


def _change_endpoint(tokens: TokenManager, url: str) -> None:
    """As if the authorization server had been elsewhere at the login."""
    stored = tokens._vault.load(SHARED)
    assert stored is not None
    tokens._vault.save(SHARED, replace(stored, token_endpoint=url))


async def test_an_authorization_server_that_is_gone_is_a_passing_failure(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    tokens = authlib_world.manage()
    await authlib_world.log_in(tokens)
    _change_endpoint(tokens, "http://127.0.0.1:1/token")
    authority.expire()
    again = authlib_world.manage()
    with pytest.raises(Unreachable) as gone:
        await authlib_world.call(authlib_world.open(again))
    assert not gone.value.sent
    assert again.get_status(SHARED).state != "needs_login"


async def test_a_token_endpoint_that_has_moved_is_found(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    tokens = authlib_world.manage()
    await authlib_world.log_in(tokens)
    _change_endpoint(tokens, f"{authority.base}/before")
    authority.expire()
    again = authlib_world.manage()
    assert (await authlib_world.call(authlib_world.open(again))).status == 200
    stored = again._vault.load(SHARED)
    assert stored is not None
    assert stored.token_endpoint == f"{authority.issuer}/token"


async def test_a_server_that_rejects_fresh_tokens_is_not_refreshed_forever(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    """As when it expects another audience."""
    tokens = authlib_world.manage()
    client = authlib_world.open(tokens)
    await authlib_world.log_in(tokens)
    authlib_world.resource.find = lambda _: None
    for _ in range(5):
        with pytest.raises(LoginRequired, match="rejects the tokens"):
            await authlib_world.call(client)
    assert authority.refreshes == 1
    assert tokens.get_status(SHARED).state == "needs_login"


async def test_a_server_that_accepts_each_token_for_a_while_gets_another_each_time(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    """Rejections count since the last success: a token that has worked is no reason for a login."""
    tokens = authlib_world.manage()
    client = authlib_world.open(tokens)
    await authlib_world.log_in(tokens)
    uses: Counter[str] = Counter()

    def find(token: str) -> dict[str, Any] | None:
        uses[token] += 1
        return authority.find(token) if uses[token] <= 3 else None

    authlib_world.resource.find = find
    for _ in range(12):
        assert (await authlib_world.call(client)).status == 200
    assert authority.refreshes == 3
    assert tokens.get_status(SHARED).state == "valid"
    # One that is rejected before it was accepted counts as before.
    authlib_world.resource.find = lambda _: None
    for _ in range(3):
        with pytest.raises(LoginRequired, match="rejects the tokens"):
            await authlib_world.call(client)
    assert authority.refreshes == 4


async def test_a_token_for_another_resource_is_rejected_there(authlib_world: World) -> None:
    authlib_world.resource.find = lambda token: {
        **(authlib_world.authority.find(token) or {"active": False}),
        "resource": "https://other.example/mcp",
    }
    tokens = authlib_world.manage()
    await authlib_world.log_in(tokens)
    with pytest.raises(LoginRequired):
        await authlib_world.call(authlib_world.open(tokens))
    assert authlib_world.resource.executed == 0


async def test_a_login_without_refresh_token_ends_when_it_expires(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    tokens = authlib_world.manage()
    await authlib_world.log_in(tokens)
    # As a server that issues none.
    stored = tokens._vault.load(SHARED)
    assert stored is not None
    tokens._vault.save(SHARED, replace(stored, refresh_token=""))
    again = authlib_world.manage()
    assert (await authlib_world.call(authlib_world.open(again))).status == 200
    authority.expire()
    with pytest.raises(LoginRequired, match="cannot be refreshed"):
        await authlib_world.call(authlib_world.open(again))
    assert again.get_status(SHARED).state == "needs_login"


async def test_a_logout_revokes_and_deletes(world: World) -> None:
    tokens = world.manage()
    await world.log_in(tokens)
    token = await tokens.find_token(SHARED)
    done = await tokens.forget(SHARED)
    assert done.found
    assert done.is_revoked, done.problem
    found = world.authority.find(token.value)
    assert found is None or not found["active"]
    assert tokens.get_status(SHARED).state == "none"
    assert world.manage().list_holders() == []
    with pytest.raises(LoginRequired):
        await world.call(world.open(tokens))
    assert not (await tokens.forget(SHARED)).found


async def test_a_logout_during_a_refresh_wins(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    tokens = authlib_world.manage()
    client = authlib_world.open(tokens)
    await authlib_world.log_in(tokens)
    authority.expire()
    authority.hold = asyncio.Event()
    call = asyncio.ensure_future(authlib_world.call(client))
    await asyncio.wait_for(authority.arrived.wait(), 60)
    logout = asyncio.ensure_future(tokens.forget(SHARED))
    authority.hold.set()
    await logout
    with pytest.raises(LoginRequired):
        await call
    await tokens.close()
    assert authlib_world.manage().get_status(SHARED).state == "none"
    left = [one for one in authority.tokens.values() if isinstance(one, Token) and not one.revoked]
    assert left == []


async def test_a_call_of_a_hub_that_stops_fails_and_is_not_cancelled(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    tokens = authlib_world.manage()
    await authlib_world.log_in(tokens)
    authority.expire()
    await tokens.close()
    with pytest.raises(Unreachable, match="the hub stops"):
        await authlib_world.call(authlib_world.open(tokens))


async def test_a_cancelled_caller_does_not_cancel_the_refresh(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    tokens = authlib_world.manage()
    await authlib_world.log_in(tokens)
    authority.expire()
    authority.hold = asyncio.Event()
    first = asyncio.ensure_future(authlib_world.call(authlib_world.open(tokens)))
    await asyncio.wait_for(authority.arrived.wait(), 60)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.ensure_future(authlib_world.call(authlib_world.open(tokens)))
    authority.hold.set()
    assert (await second).status == 200
    assert authority.refreshes == 1


async def test_a_second_manager_does_not_void_the_tokens_of_the_first(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    """As while a hub replaces a server whose configuration has changed."""
    old = authlib_world.manage()
    await authlib_world.log_in(old)
    new = authlib_world.manage()
    await new.find_token(SHARED)
    authority.expire()
    assert (await authlib_world.call(authlib_world.open(new))).status == 200
    assert (await authlib_world.call(authlib_world.open(old))).status == 200
    assert old.get_status(SHARED).state == "valid"


async def test_a_new_authorization_server_needs_a_new_login(
    authlib_world: World, authority: AuthlibAuthority
) -> None:
    tokens = authlib_world.manage()
    await authlib_world.log_in(tokens)
    authority.expire()
    authlib_world.resource.issuers = ["http://127.0.0.1:1/other"]
    with pytest.raises(LoginRequired, match="another authorization server"):
        await authlib_world.call(authlib_world.open(tokens))
    assert authority.refreshes == 0


async def test_tokens_that_cannot_be_stored_are_used_and_reported(
    authlib_world: World,
    authority: AuthlibAuthority,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens = authlib_world.manage()
    await authlib_world.log_in(tokens)
    authority.expire()

    def fail(id: CredentialId, value: bytes) -> None:
        raise StorageFailed("the disk is full")

    monkeypatch.setattr(authlib_world.store, "save", fail)
    with caplog.at_level(logging.ERROR):
        assert (await authlib_world.call(authlib_world.open(tokens))).status == 200
    assert "the disk is full" in caplog.text


async def test_another_key_makes_stored_logins_unreadable_and_nothing_worse(
    authlib_world: World,
) -> None:
    tokens = authlib_world.manage()
    await authlib_world.log_in(tokens)
    authlib_world.reopen(bytes(32))
    again = authlib_world.manage()
    assert again.get_status(SHARED).state == "needs_login"
    with pytest.raises(LoginRequired, match="decrypted"):
        await again.find_token(SHARED)
    await authlib_world.log_in(again)
    assert (await authlib_world.call(authlib_world.open(again))).status == 200
    authlib_world.reopen(KEY)


async def test_many_holders_are_read_again_when_needed(authlib_world: World) -> None:
    tokens = authlib_world.manage(max_holders=3)
    holders = [f"user:{number}\0default" for number in range(6)]
    for holder in holders:
        await authlib_world.log_in(tokens, holder)
    assert len(tokens._slots) <= 3
    values = {(await tokens.find_token(holder)).value for holder in holders}
    assert len(values) == 6


async def test_a_token_is_not_sent_to_another_url_of_the_same_server(
    authlib_world: World,
) -> None:
    """As when the operator changes the URL of a server and keeps its name."""
    await authlib_world.log_in(authlib_world.manage())
    url = authlib_world.resource.url
    for other in (url.replace("127.0.0.1", "localhost"), url.replace("/mcp", "/other")):
        authlib_world.resource.url = other
        assert authlib_world.manage().get_status(SHARED).state == "none"
    authlib_world.resource.url = url
    assert authlib_world.manage().get_status(SHARED).state == "valid"


async def test_a_changed_issuer_needs_a_new_login(authlib_world: World) -> None:
    await authlib_world.log_in(authlib_world.manage())
    changed = authlib_world.manage(OAuthSettings(issuer="https://other.example"))
    with pytest.raises(LoginRequired, match="issuer has changed"):
        await changed.find_token(SHARED)


def test_a_hub_that_signs_and_stores_nothing_loads_no_cryptography() -> None:
    program = (
        "import sys, dragoman.oauth.client.http, dragoman.stores.credentials\n"
        "print([name for name in ('cryptography', 'jwt', 'keyring') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"


async def test_a_login_and_a_logout_at_another_hub_are_taken_over(world: World) -> None:
    here, there = world.manage(), world.manage()
    with pytest.raises(LoginRequired):
        await there.find_token(SHARED)
    assert there.reload() == []
    await world.log_in(here)
    assert there.reload() == [SHARED]
    token = await there.find_token(SHARED)
    assert token.value == (await here.find_token(SHARED)).value
    world.authority.expire()
    renewed = await here.note_rejected(SHARED, token, "")
    assert there.reload() == []  # the same login
    assert (await there.find_token(SHARED)).value == renewed.value
    await here.forget(SHARED)
    assert there.reload() == [SHARED]
    with pytest.raises(LoginRequired):
        await there.find_token(SHARED)
    assert there.get_status(SHARED).state == "none"


@pytest.mark.parametrize("after", ["a while", "a change at another hub", "the end"])
async def test_tokens_that_could_not_be_stored_are_stored_later_and_not_replaced_by_older_ones(
    authlib_world: World,
    authority: AuthlibAuthority,
    monkeypatch: pytest.MonkeyPatch,
    after: str,
) -> None:
    """The authority has replaced the refresh token: the one that is stored is void."""
    tokens = authlib_world.manage()
    client = authlib_world.open(tokens)
    await authlib_world.log_in(tokens)
    authority.expire()

    def fail(id: CredentialId, value: bytes) -> None:
        raise StorageFailed("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(authlib_world.store, "save", fail)
        assert (await authlib_world.call(client)).status == 200
    token = await tokens.find_token(SHARED)
    if after == "a while":
        async with asyncio.timeout(60):
            while tokens._slots[SHARED].unstored is not None:
                await asyncio.sleep(0.05)
    elif after == "the end":
        await tokens.close()
    else:
        assert tokens.reload() == []
        assert (await tokens.find_token(SHARED)).value == token.value
    again = authlib_world.manage()  # at another hub, or after a restart
    assert (await again.find_token(SHARED)).value == token.value
    authority.expire()
    assert (await authlib_world.call(authlib_world.open(again))).status == 200
