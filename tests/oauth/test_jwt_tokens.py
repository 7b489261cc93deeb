"""Access tokens of identity providers: which are accepted, by which keys, and for how long."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tests.peers.identity_provider import (
    ANN,
    HUB,
    IdentityProvider,
    make_key,
    render_jwk,
    run_identity_provider,
)

from dragoman.core.access import SETTINGS_CHANGED, TOKEN_EXPIRED, TokenRejected
from dragoman.core.errors import Unreachable
from dragoman.core.principal import Principal
from dragoman.net.client import OutboundHttp
from dragoman.oauth.server.config import JwtIssuer, JwtSettings
from dragoman.oauth.server.jwt_tokens import MAX_TOKEN, JwtTokens
from dragoman.oauth.server.key_sets import KeyLimits, list_metadata_urls, parse_key
from dragoman.oauth.server.verified_tokens import VerifiedTokens, parse_credential

pytestmark = pytest.mark.promise("O1", "U4")

SOON = 10.0


class Rig:
    def __init__(self, provider: IdentityProvider, **limits: Any) -> None:
        self.provider = provider
        self.net = OutboundHttp()
        self.tokens = JwtTokens(
            lambda url, private: self.net.open_configured(url, allow_private=private),
            lambda url: url == HUB,
            KeyLimits(**{"pause_secs": 0.0, "retry_secs": 0.0, **limits}),
        )
        self.trust()

    def trust(self, **rules: Any) -> None:
        rules = {"name": "corp", "issuer": self.provider.issuer, "leeway_secs": 0, **rules}
        self.tokens.apply(JwtSettings(issuers=[JwtIssuer(**rules)]))

    async def find(self, token: str) -> Principal | None:
        found = self.tokens.find(token)
        if found is None or isinstance(found, Principal):
            return found
        return await asyncio.wait_for(found(), SOON)

    async def refuse(self, token: str) -> str:
        """Why the token is not accepted."""
        with pytest.raises(TokenRejected) as caught:
            await self.find(token)
        return str(caught.value)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    with run_identity_provider() as provider:
        made = Rig(provider)
        yield made
        made.tokens.close()
        await made.net.close()


async def test_token_of_a_trusted_issuer_is_accepted(rig: Rig) -> None:
    ann = await rig.find(rig.provider.sign())
    assert ann == Principal("user", f"corp/{ANN}") and ann.behalf == ANN
    assert ann.roles == () and ann.scopes == ("call",) and ANN not in ann.credential


async def test_audience_may_be_a_list_with_the_hub(rig: Rig) -> None:
    assert await rig.find(rig.provider.sign(aud=["https://other.example.com", HUB]))


CLAIMS: dict[str, tuple[dict[str, Any], str]] = {
    "wrong audience": ({"aud": "https://other.example.com/mcp"}, "another audience"),
    "no audience": ({"aud": None}, "lacks one of"),
    "audience that begins as ours": ({"aud": HUB + "/evil"}, "another audience"),
    "audience that ours begins with": ({"aud": HUB[:-1]}, "another audience"),
    "audience of another type": ({"aud": {HUB: True}}, "another audience"),
    "expired": ({"exp": 1}, "expired"),
    "no expiry": ({"exp": None}, "lacks one of"),
    "expiry as text": ({"exp": "9999999999"}, "when it expires"),
    "expiry beyond all dates": ({"exp": 10**30}, "when it expires"),
    "not valid yet": ({"nbf": 9_999_999_999}, "not valid yet"),
    "issued in the future": ({"iat": 9_999_999_999}, "not valid yet"),
    "no subject": ({"sub": None}, "lacks one of"),
    "subject with a line break": ({"sub": "a\nb"}, "no subject"),
    "empty subject": ({"sub": ""}, "no subject"),
}


@pytest.mark.parametrize("case", CLAIMS)
async def test_token_with_wrong_claims_is_refused(rig: Rig, case: str) -> None:
    changes, why = CLAIMS[case]
    assert why in await rig.refuse(rig.provider.sign(**changes))
    assert len(rig.tokens._known) == 0


async def test_issuer_is_compared_exactly(rig: Rig) -> None:
    """A token of an issuer that is not configured belongs to another finder, or to none."""
    issuer = rig.provider.issuer
    for other in (issuer + "/", issuer.upper(), issuer[:-1], "https://evil.example.com"):
        assert await rig.find(rig.provider.sign(iss=other)) is None


def encode(part: Any) -> str:
    text = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


async def test_unsigned_tokens_and_key_confusion_are_refused(rig: Rig) -> None:
    good = rig.provider.sign()
    claims = rig.provider.build_claims()
    public = make_key("ES256").public_key()
    for alg in ("none", "None", "nOnE", "", None, ["none"]):
        header = encode({"alg": alg, "kid": "first"})
        for signature in ("", good.rpartition(".")[2]):
            assert "algorithm" in await rig.refuse(f"{header}.{encode(claims)}.{signature}")
    secrets = [
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        json.dumps(render_jwk("ES256", make_key("ES256"), "first")).encode(),
    ]
    for secret in secrets:
        signed = f"{encode({'alg': 'HS256', 'kid': 'first'})}.{encode(claims)}"
        mac = hmac.digest(secret, signed.encode(), "sha256")
        assert "algorithm" in await rig.refuse(f"{signed}.{encode(mac)}")


async def test_signature_by_another_key_is_refused(rig: Rig) -> None:
    provider = rig.provider
    assert "signature" in await rig.refuse(provider.sign(key=make_key("ES256", 1)))
    header, claims, signature = provider.sign().split(".")
    forged = encode(provider.build_claims(sub="root"))
    assert "signature" in await rig.refuse(f"{header}.{forged}.{signature}")
    assert "signature" in await rig.refuse(f"{header}.{claims}.{encode(bytes(64))}")
    assert await rig.find(f"{header}.{claims}.{signature}")


async def test_references_to_keys_in_a_token_are_ignored(rig: Rig) -> None:
    """Neither fetched nor believed."""
    other = make_key("ES256", 1)
    place = rig.provider.issuer + "/evil"
    named = {"jku": place, "x5u": place, "jwk": render_jwk("ES256", other, "first"), "x5c": ["AA"]}
    assert "signature" in await rig.refuse(rig.provider.sign(key=other, headers=named))
    assert await rig.find(rig.provider.sign(headers=named))
    assert rig.provider.count("evil") == 0


HEADERS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown critical extension": ({"crit": ["exp"], "exp": 1}, "extension"),
    "empty crit": ({"crit": []}, "extension"),
    "unencoded payload": ({"b64": False}, "extension"),
    "logout token": ({"typ": "logout+jwt"}, "no access token"),
    "proof of possession": ({"typ": "dpop+jwt"}, "no access token"),
    "typ of another type": ({"typ": 7}, "no access token"),
    "kid of another type": ({"kid": 7}, "names its key"),
    "kid as a list": ({"kid": ["first"]}, "names its key"),
    "huge kid": ({"kid": "x" * 600}, "names its key"),
    "path as kid": ({"kid": "../../../../dev/null"}, "does not have"),
    "SQL as kid": ({"kid": "first' OR '1'='1"}, "does not have"),
    "NUL in kid": ({"kid": "first\0"}, "does not have"),
    "kid in another case": ({"kid": "FIRST"}, "does not have"),
    "kid with a space": ({"kid": "first "}, "does not have"),
    "empty kid": ({"kid": ""}, "does not have"),
}


@pytest.mark.parametrize("case", HEADERS)
async def test_token_with_a_wrong_header_is_refused(rig: Rig, case: str) -> None:
    changes, why = HEADERS[case]
    header = {"alg": "ES256", "kid": "first", **changes}
    _, claims, signature = rig.provider.sign().split(".")
    assert why in await rig.refuse(f"{encode(header)}.{claims}.{signature}")


@pytest.mark.parametrize("typ", ["at+jwt", "AT+JWT", "application/at+jwt", "JWT"])
async def test_type_of_an_access_token_is_accepted(rig: Rig, typ: str) -> None:
    assert await rig.find(rig.provider.sign(headers={"typ": typ}))


async def test_malformed_tokens_are_refused(rig: Rig) -> None:
    claims = encode(rig.provider.build_claims())
    headers: list[Any] = [[], b"{", b"", b"7", b"\xff"]
    for header in headers:
        assert "cannot be read" in await rig.refuse(f"{encode(header) or 'A'}.{claims}.AA")
    good = encode({"alg": "ES256", "kid": "first"})
    for text in (b'{"iss":NaN}', b'{"iss":"\xff"}', b"[" * 5_000, b"7", b'{"iss":7}'):
        assert await rig.find(f"{good}.{encode(text)}.AA") is None, "of another finder"
    for other in ("dgm_x", "a.b", "a.b.c", "..", "a.b.c.d.e", "", "opaque.with.dots"):
        assert await rig.find(other) is None


async def test_long_token_is_refused_unread(rig: Rig) -> None:
    token = rig.provider.sign(padding="x" * 1_000_000)
    assert len(token) > 1_000_000
    assert str(MAX_TOKEN) in await rig.refuse(token)
    assert rig.provider.requests == [], "nothing was fetched for it"
    assert await rig.find(rig.provider.sign(padding="x" * 8_000))


@pytest.mark.parametrize("kind", ["RS256", "PS256", "ES256", "EdDSA"])
async def test_default_algorithms_verify(rig: Rig, kind: str) -> None:
    rig.provider.keys["second"] = (kind, make_key(kind))
    assert await rig.find(rig.provider.sign("second"))


async def test_key_is_used_with_its_own_algorithm_only(rig: Rig) -> None:
    """The JWK says RS256, so a PS256 signature of the same key does not count."""
    rig.provider.keys["rsa"] = ("RS256", make_key("RS256"))
    token = rig.provider.sign("rsa", key=make_key("RS256"), kind="PS256")
    assert "does not have" in await rig.refuse(token)
    rig.trust(algorithms=["ES256"])
    assert "algorithm" in await rig.refuse(rig.provider.sign("rsa"))


async def test_token_without_kid_needs_an_unambiguous_key(rig: Rig) -> None:
    assert await rig.find(rig.provider.sign(None, key=make_key("ES256"), kind="ES256"))
    rig.provider.keys["second"] = ("ES256", make_key("ES256", 1))
    rig.trust(jwks_url=rig.provider.issuer + "/keys")
    assert "does not have" in await rig.refuse(
        rig.provider.sign(None, key=make_key("ES256"), kind="ES256")
    )


def test_unusable_keys_are_left_out() -> None:
    good = render_jwk("ES256", make_key("ES256"), "k")
    rsa = render_jwk("RS256", make_key("RS256"), "k")
    assert parse_key(good) and parse_key({**good, "alg": None})
    for bad in (
        {**good, "kty": "oct", "k": "AAAA"}, {**good, "use": "enc"}, {**good, "key_ops": ["sign"]},
        {**good, "key_ops": 7}, {**good, "crv": "P-999"}, {**good, "x": "AA"}, {**good, "x": 7},
        {**good, "alg": "HS256"}, {**good, "alg": "none"}, {**good, "kid": 7}, {**rsa, "n": "AQAB"},
        {**rsa, "n": base64.urlsafe_b64encode(b"\xff" * 2_000).decode()}, {},
    ):  # fmt: skip
        assert parse_key(bad) is None, bad
    private = {**good, "d": "AAAA"}
    found, plain = parse_key(private), parse_key(good)
    assert found and plain and found.mark == plain.mark, "a private part is not read"


# --- keys that rotate, and issuers that do not answer ---------------------------------------------


async def test_keys_are_fetched_once_and_again_for_an_unknown_kid(rig: Rig) -> None:
    provider = rig.provider
    first = [rig.find(provider.sign(sub=f"user {n}")) for n in range(20)]
    assert all(await asyncio.gather(*first))
    assert provider.count("/keys") == 1, "one flight for all"
    provider.keys["second"] = ("ES256", make_key("ES256", 1))
    assert await rig.find(provider.sign("second"))
    assert provider.count("/keys") == 2


async def test_unknown_kids_cause_one_fetch_in_a_while() -> None:
    with run_identity_provider() as provider:
        rig = Rig(provider, pause_secs=3_600)
        assert await rig.find(provider.sign())
        for n in range(50):
            token = provider.sign(headers={"kid": f"unknown {n}"})
            assert "does not have" in await rig.refuse(token)
        assert provider.count("/keys") == 1
        await rig.net.close()


async def test_withdrawn_key_ends_its_tokens(rig: Rig) -> None:
    provider = rig.provider
    provider.keys["second"] = ("ES256", make_key("ES256", 1))
    old, new = provider.sign(), provider.sign("second")
    ann = await rig.find(old)
    assert ann and await rig.find(new) and rig.tokens.explain_invalid(ann) == ""
    version = rig.tokens.version
    del provider.keys["first"]
    with pytest.raises(TokenRejected):
        await rig.find(provider.sign("unknown", key=make_key("ES256", 2)))  # makes it fetch
    assert rig.tokens.version > version
    assert "withdrawn" in (rig.tokens.explain_invalid(ann) or "")
    assert "does not have" in await rig.refuse(old)
    assert await rig.find(new)


async def test_keys_are_fetched_again_in_the_background() -> None:
    """Without an unknown kid: a withdrawn key must be noticed while only its tokens come."""
    with run_identity_provider() as provider:
        rig = Rig(provider, fresh_secs=0.0)
        ann = await rig.find(provider.sign())
        assert ann is not None
        provider.keys = {"second": ("ES256", make_key("ES256", 1))}
        async with asyncio.timeout(SOON):
            while rig.tokens.explain_invalid(ann) == "":
                rig.tokens.refresh()
                await asyncio.sleep(0.01)
        rig.tokens.close()
        await rig.net.close()


BROKEN: dict[str, Any] = {
    "an error": 500,
    "no JSON": b"<html>",
    "another shape": b"[]",
    "no keys": {"keys": []},
    "keys of another type": {"keys": {"first": 1}},
    "only secrets": {"keys": [{"kty": "oct", "k": "AAAA", "kid": "first", "alg": "HS256"}]},
    "too much": b'{"keys":[' + b" " * 600_000 + b"]}",
    "too deep": b"[" * 100_000,
}


@pytest.mark.parametrize("case", BROKEN)
async def test_without_keys_a_token_is_neither_accepted_nor_called_invalid(
    rig: Rig, case: str
) -> None:
    rig.provider.change = lambda path, body: BROKEN[case] if path.endswith("/keys") else body
    with pytest.raises(Unreachable, match="cannot be checked at the moment"):
        await rig.find(rig.provider.sign())
    rig.provider.change = lambda path, body: body
    assert await rig.find(rig.provider.sign()), "and it recovers"


async def test_slow_issuer_is_not_waited_for_twice() -> None:
    with run_identity_provider() as provider:
        rig = Rig(provider, fetch_secs=0.05, retry_secs=3_600)
        provider.open.clear()
        with pytest.raises(Unreachable):
            await rig.find(provider.sign())
        asked = len(provider.requests)
        with pytest.raises(Unreachable):
            await rig.find(provider.sign(sub="another"))
        assert len(provider.requests) == asked
        provider.open.set()
        await rig.net.close()


async def test_known_keys_stay_in_use_for_a_bounded_time_without_the_issuer() -> None:
    for stale, is_accepted in ((3_600.0, True), (0.0, False)):
        with run_identity_provider() as provider:
            rig = Rig(provider, fresh_secs=0.0, stale_secs=stale)
            assert await rig.find(provider.sign())
            provider.change = lambda path, body: 503
            token = provider.sign(sub="another")
            if is_accepted:
                assert await rig.find(token)
            else:
                with pytest.raises(Unreachable):
                    await rig.find(token)
            rig.tokens.close()
            await rig.net.close()


async def test_metadata_of_another_issuer_is_not_believed(rig: Rig) -> None:
    other = {"issuer": "https://evil.example.com", "jwks_uri": rig.provider.issuer + "/keys"}
    rig.provider.change = lambda path, body: other if "well-known" in path else body
    with pytest.raises(Unreachable):
        await rig.find(rig.provider.sign())
    assert rig.provider.count("/keys") == 0


async def test_keys_on_a_private_address_of_another_origin_are_not_fetched(rig: Rig) -> None:
    with run_identity_provider() as other:
        moved = {"issuer": rig.provider.issuer, "jwks_uri": other.issuer + "/keys"}
        rig.provider.change = lambda path, body: moved if "well-known" in path else body
        with pytest.raises(Unreachable):
            await rig.find(rig.provider.sign())
        assert other.requests == []


def test_metadata_is_looked_for_where_the_specifications_say() -> None:
    assert list_metadata_urls("https://a.example.com/realms/x/") == [
        "https://a.example.com/realms/x/.well-known/openid-configuration",
        "https://a.example.com/.well-known/oauth-authorization-server/realms/x",
    ]


# --- tokens that are known ------------------------------------------------------------------------


async def test_known_token_is_not_verified_again_and_never_outlives_its_expiry(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = rig.provider.sign()
    ann = await rig.find(token)
    assert ann is not None and rig.tokens.find(token) is ann
    assert rig.tokens.explain_invalid(ann) == ""
    later = time.time() + 601
    monkeypatch.setattr("dragoman.oauth.server.verified_tokens.time", lambda: later)
    monkeypatch.setattr("dragoman.oauth.server.jwt_tokens.time", lambda: later)
    assert "expired" in await rig.refuse(token)
    assert rig.tokens.explain_invalid(ann) == TOKEN_EXPIRED


async def test_expiry_of_tokens_in_use_is_known(rig: Rig) -> None:
    now = int(time.time())
    assert rig.tokens.find_next_expiry(now) == float("inf")
    for seconds in (500, 100, 300):
        assert await rig.find(rig.provider.sign(exp=now + seconds))
    assert rig.tokens.find_next_expiry(now) == now + 100
    assert rig.tokens.find_next_expiry(now + 100) == now + 300


async def test_changed_settings_apply_to_known_tokens(rig: Rig) -> None:
    token = rig.provider.sign()
    ann = await rig.find(token)
    assert ann is not None
    rig.trust(audiences=["another"])
    assert "another audience" in await rig.refuse(token)
    assert rig.tokens.explain_invalid(ann) == SETTINGS_CHANGED
    assert rig.provider.count("/keys") == 1, "the keys are still those"
    rig.trust(org="elsewhere")
    assert "org" in (rig.tokens.explain_invalid(ann) or "")
    rig.tokens.apply(JwtSettings())
    assert await rig.find(token) is None and rig.tokens.explain_invalid(ann) is None
    assert rig.tokens.is_active(), "a hub that accepted tokens does not become open"


async def test_user_without_a_credential_is_known_by_the_issuer(rig: Rig) -> None:
    assert rig.tokens.explain_invalid(Principal("user", f"corp/{ANN}")) == ""
    for other in ("corp", "corpse/ann", "other/ann"):
        assert rig.tokens.explain_invalid(Principal("user", other)) is None
    named = Principal("user", f"corp/{ANN}", credential="made up")
    assert rig.tokens.explain_invalid(named) == SETTINGS_CHANGED


async def test_known_tokens_are_bounded_and_keyed_by_hash() -> None:
    kept = VerifiedTokens(most=10)
    for n in range(100):
        kept.keep(hashlib.sha256(b"%d" % n).digest(), Principal("user", str(n)), time.time() + 60)
    assert len(kept) <= 10
    assert kept.find(hashlib.sha256(b"99").digest()) == Principal("user", "99")
    assert len(kept._expiries) <= 2, "as many as seconds"


async def test_same_subject_of_two_issuers_is_two_users() -> None:
    with run_identity_provider() as one, run_identity_provider() as two:
        rig = Rig(one)
        issuers = [JwtIssuer(name=name, issuer=at.issuer) for name, at in (("a", one), ("b", two))]
        rig.tokens.apply(JwtSettings(issuers=issuers))
        first, second = await rig.find(one.sign()), await rig.find(two.sign())
        assert first and second and (first.id, second.id) == (f"a/{ANN}", f"b/{ANN}")
        assert first != second
        # Both have the same key; the issuer in the token decides, and is the one that must match.
        borrowed = two.sign(iss=one.issuer, key=make_key("ES256", 5))
        assert "signature" in await rig.refuse(borrowed)
        await rig.net.close()


async def test_credential_names_no_secret(rig: Rig) -> None:
    token = rig.provider.sign()
    ann = await rig.find(token)
    assert ann is not None
    credential = parse_credential(ann.credential)
    assert credential is not None and credential.issuer == "corp"
    assert not any(part in ann.credential for part in token.split("."))
    other = await rig.find(rig.provider.sign(jti="2"))
    assert other == ann and other.credential != ann.credential
