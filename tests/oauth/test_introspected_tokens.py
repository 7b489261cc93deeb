"""Opaque tokens: how often their issuer is asked, and what its answers mean."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.peers.identity_provider import HUB, IdentityProvider, run_identity_provider

from dragoman.core.access import SETTINGS_CHANGED, TOKEN_EXPIRED, TokenRejected
from dragoman.core.errors import ConfigError, HubError, Overloaded, Unreachable
from dragoman.core.principal import Principal
from dragoman.core.secret_rules import SecretUse
from dragoman.net.client import OutboundHttp
from dragoman.oauth.server import introspection
from dragoman.oauth.server.config import IntrospectionSettings
from dragoman.oauth.server.introspection import MAX_ASKING, IntrospectedTokens

pytestmark = pytest.mark.promise("O1", "U4")

SOON = 10.0


async def resolve(reference: str, use: SecretUse) -> str:
    if reference != "env:HUB_SECRET":
        raise ConfigError(f"{use.purpose} needs another variable")
    return "s&cret"


class Rig:
    def __init__(self, provider: IdentityProvider) -> None:
        self.provider = provider
        self.net = OutboundHttp()
        self.tokens = IntrospectedTokens(
            lambda url, private: self.net.open_configured(url, allow_private=private),
            lambda url: url == HUB,
            resolve,
        )
        self.apply()

    def apply(self, **settings: Any) -> None:
        issuer = self.provider.issuer
        given = {
            "name": "opaque", "issuer": issuer, "url": f"{issuer}/introspect", "client_id": "hub",
            "client_secret": "env:HUB_SECRET", "cache_secs": 60, "leeway_secs": 0, **settings,
        }  # fmt: skip
        self.tokens.apply(IntrospectionSettings(**given))

    def allow(self, token: str, **claims: Any) -> None:
        expires = int(time.time()) + 600
        self.provider.active[token] = {"sub": "ann", "aud": HUB, "exp": expires, **claims}

    @property
    def asked(self) -> int:
        return self.provider.count("/introspect")

    async def find(self, token: str) -> Principal | None:
        found = self.tokens.find(token)
        if found is None or isinstance(found, Principal):
            return found
        return await asyncio.wait_for(found(), SOON)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    with run_identity_provider() as provider:
        made = Rig(provider)
        yield made
        made.tokens.close()
        await made.net.close()


async def test_issuer_is_asked_once_for_all_that_ask(rig: Rig) -> None:
    rig.allow("token", scope="a b")
    found = await asyncio.gather(*(rig.find("token") for _ in range(50)))
    assert set(found) == {Principal("user", "opaque/ann")} and rig.asked == 1
    known = rig.tokens.find("token")
    assert isinstance(known, Principal) and known.scopes == ("a", "b", "call") and rig.asked == 1
    assert "token" not in known.credential


@pytest.mark.parametrize("prefix", ["dgm_", "dgt_", "dgr_"])
async def test_issuer_is_not_told_keys_and_tokens_of_hubs(rig: Rig, prefix: str) -> None:
    rig.allow(f"{prefix}abc")
    assert await rig.find(f"{prefix}abc") is None and rig.asked == 0


async def test_answer_counts_for_a_short_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.allow("token")
    assert await rig.find("token")
    del rig.provider.active["token"]
    assert await rig.find("token") and rig.asked == 1
    later = time.time() + 61
    for module in ("introspection", "verified_tokens", "jwt_tokens"):
        monkeypatch.setattr(f"dragoman.oauth.server.{module}.time", lambda: later)
    with pytest.raises(TokenRejected):
        await rig.find("token")
    with pytest.raises(TokenRejected):
        await rig.find("token")
    assert rig.asked == 2, "a refusal is remembered too"


ANSWERS: dict[str, tuple[Any, type[Exception]]] = {
    "inactive": ({"active": False}, TokenRejected),
    "almost active": ({"active": "true", "sub": "ann", "aud": HUB}, TokenRejected),
    "no audience": ({"active": True, "sub": "ann"}, TokenRejected),
    "another audience": ({"active": True, "sub": "ann", "aud": HUB + "/x"}, TokenRejected),
    "no subject": ({"active": True, "aud": HUB}, TokenRejected),
    "expired": ({"active": True, "sub": "ann", "aud": HUB, "exp": 1}, TokenRejected),
    "another issuer": ({"active": True, "sub": "a", "aud": HUB, "iss": "x"}, TokenRejected),
    "an error": (500, Unreachable),
    "unauthorized": (401, Unreachable),
    "no JSON": (b"<html>", Unreachable),
    "a list": (b"[]", Unreachable),
    "too much": (b'{"active":true,"x":"' + b"x" * 100_000 + b'"}', Unreachable),
}


@pytest.mark.parametrize("case", ANSWERS)
async def test_other_answers_are_no_user(rig: Rig, case: str) -> None:
    answer, expected = ANSWERS[case]
    rig.provider.change = lambda path, body: answer
    with pytest.raises(expected):
        await rig.find("token")


async def test_hub_without_its_secret_accepts_no_token(rig: Rig) -> None:
    rig.apply(client_secret="env:ANOTHER")
    rig.allow("token")
    with pytest.raises(Unreachable):
        await rig.find("token")
    assert rig.asked == 0


async def test_questions_at_once_are_bounded(rig: Rig) -> None:
    rig.provider.open.clear()
    asking = [asyncio.create_task(rig.find(f"token {n}")) for n in range(MAX_ASKING)]
    async with asyncio.timeout(SOON):
        while len(rig.tokens._asking) < MAX_ASKING:
            await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await rig.find("one more")
    rig.provider.open.set()
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert all(isinstance(one, TokenRejected | HubError) for one in found)


async def test_credential_ends_with_token_settings_and_issuer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.allow("token")
    ann = await rig.find("token")
    assert ann is not None and rig.tokens.explain_invalid(ann) == ""
    assert rig.tokens.explain_invalid(Principal("user", "opaque/ann")) == ""
    assert rig.tokens.explain_invalid(Principal("user", "other/ann")) is None
    later = time.time() + 601
    with monkeypatch.context() as patched:
        patched.setattr(introspection, "time", lambda: later)
        assert rig.tokens.explain_invalid(ann) == TOKEN_EXPIRED
    rig.apply(audiences=["another"])
    assert rig.tokens.explain_invalid(ann) == SETTINGS_CHANGED
    rig.apply(org="elsewhere")
    assert "org" in (rig.tokens.explain_invalid(ann) or "")
    rig.tokens.apply(None)
    assert rig.tokens.explain_invalid(ann) is None and await rig.find("token") is None
    assert rig.tokens.is_active()
