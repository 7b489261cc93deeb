"""Card discovery: where cards are fetched, how long they are cached, which are trusted."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.a2a.scripted_agent import OLD_PLACE, WELL_KNOWN, Request, card_10, scripted_agent

from dragoman import __version__
from dragoman.a2a.cards.signing import sign_card
from dragoman.a2a.client.card_discovery import (
    IGNORE,
    PREFER,
    REQUIRE,
    CardDiscovery,
    CardTrust,
    list_card_urls,
    strip_card_path,
)
from dragoman.core.errors import BadReply, ConfigError, InvalidInput
from dragoman.core.urls import parse_origin
from dragoman.net.client import OutboundHttp


def discovery(url: str, **more: Any) -> CardDiscovery:
    return CardDiscovery(OutboundHttp().open_configured(url, allow_private=False), {}, url, **more)


@pytest.mark.promise("L1")
async def test_card_is_fetched_from_the_current_then_the_legacy_path() -> None:
    def handle(request: Request) -> None:
        if request.path == OLD_PLACE:
            old = {"name": "Old", "url": "http://127.0.0.1:1/", "version": "1", "skills": []}
            request.reply(200, old)
        else:
            request.reply(404, {"detail": "Not Found"})

    async with scripted_agent(handle) as agent:
        found = await discovery(agent.url)(agent.url + "/")
    assert [request.path for request in agent.requests] == [WELL_KNOWN, OLD_PLACE]
    assert found.card["name"] == "Old" and found.card["supportedInterfaces"]
    headers = agent.requests[0].headers
    assert headers["user-agent"] == f"Dragoman/{__version__} A2A"
    assert "a2a-version" not in headers


def test_card_is_fetched_under_the_path_then_at_the_origin() -> None:
    assert list_card_urls("https://a.example/x/y/") == [
        "https://a.example/x/y/.well-known/agent-card.json",
        "https://a.example/x/y/.well-known/agent.json",
        "https://a.example/.well-known/agent-card.json",
        "https://a.example/.well-known/agent.json",
    ]
    assert (
        len(list_card_urls("https://a.example")) == len(list_card_urls("https://a.example/")) == 2
    )
    named = "https://a.example/x/my-card.json?v=2"
    assert list_card_urls(named) == [named]
    assert strip_card_path("https://a.example/x/.well-known/agent.json") == "https://a.example/x"
    for bad in (
        "a.example",
        "ftp://a.example",
        "https://user:pw@a.example",
        "https://a.example\\@b",
    ):
        with pytest.raises(InvalidInput, match="invalid agent address"):
            list_card_urls(bad)


def test_an_origin_is_scheme_host_and_port() -> None:
    assert parse_origin("HTTPS://A.example/x") == parse_origin("https://a.example:443")
    assert parse_origin("http://a.example") != parse_origin("https://a.example")
    assert parse_origin("http://a.example:81") != parse_origin("http://a.example")
    assert parse_origin("http://[::1") is parse_origin("file:///x") is None


async def test_invalid_card_is_skipped_and_reported() -> None:
    def handle(request: Request) -> None:
        if request.path == WELL_KNOWN:
            request.reply(200, b"<html>welcome</html>", content_type="text/html")
        else:
            request.reply(401, {})

    async with scripted_agent(handle) as agent:
        with pytest.raises(BadReply) as failed:
            await discovery(agent.url)(agent.url)
    words = str(failed.value)
    assert (
        "is not an agent card: not valid JSON" in words
        and "was answered with HTTP 401; it needs credentials" in words
    )


async def test_a_card_is_bounded() -> None:
    def handle(request: Request) -> None:
        request.reply(200, card_10("http://127.0.0.1:1", description="x" * (1024 * 1024)))

    async with scripted_agent(handle) as agent:
        with pytest.raises(BadReply):
            await discovery(agent.url)(agent.url)


async def test_card_is_cached_as_declared_and_revalidated_by_etag() -> None:
    now = 1000.0
    version = 1

    def handle(request: Request) -> None:
        etag = f'"v{version}"'
        if request.headers.get("if-none-match") == etag:
            request.reply(304, b"", etag=etag, cache_control="max-age=60")
        else:
            card = card_10("http://127.0.0.1:1", version=str(version))
            request.reply(200, card, etag=etag, cache_control="public, max-age=60")

    async with scripted_agent(handle) as agent:
        find = discovery(agent.url, clock=lambda: now)
        first = await find(agent.url)
        now += 59
        assert await find(agent.url) is first and len(agent.requests) == 1
        now += 2
        assert await find(agent.url) is first and len(agent.requests) == 2
        assert agent.requests[1].headers["if-none-match"] == '"v1"'
        version = 2
        now += 61
        assert (await find(agent.url)).card["version"] == "2"


@pytest.mark.parametrize(
    ("said", "fresh", "stale"),
    [
        ("no-store", 29, 31),
        ("max-age=1", 29, 31),
        ("max-age=99999999", 86_399, 86_401),
        ("", 299, 301),
    ],
)
async def test_card_cache_time_is_bounded(said: str, fresh: float, stale: float) -> None:
    now = 0.0

    def handle(request: Request) -> None:
        request.reply(200, card_10("http://127.0.0.1:1"), cache_control=said)

    async with scripted_agent(handle) as agent:
        find = discovery(agent.url, clock=lambda: now)
        await find(agent.url)
        now = fresh
        await find(agent.url)
        assert len(agent.requests) == 1
        now = stale
        await find(agent.url)
        assert len(agent.requests) == 2


async def test_unreachable_agent_keeps_its_cached_card() -> None:
    now, broken = 0.0, False

    def handle(request: Request) -> None:
        if broken:
            request.reply(503, {})
        else:
            request.reply(200, card_10("http://127.0.0.1:1"))

    async with scripted_agent(handle) as agent:
        find = discovery(agent.url, clock=lambda: now)
        first = await find(agent.url)
        now, broken = 1000.0, True
        assert await find(agent.url) is first and len(agent.requests) == 2


async def test_registered_headers_are_sent_only_to_the_registered_origin() -> None:
    def handle(request: Request) -> None:
        request.reply(200, card_10("http://127.0.0.1:1"))

    async with scripted_agent(handle) as agent, scripted_agent(handle) as other:
        http = OutboundHttp().open_configured(agent.url, allow_private=True)
        find = CardDiscovery(http, {"authorization": "Bearer s"}, agent.url)
        await find(agent.url)
        await find(other.url)
    assert agent.requests[0].headers["authorization"] == "Bearer s"
    assert "authorization" not in other.requests[0].headers


# --- signatures -----------------------------------------------------------------------------------

KEY, OTHER = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
PLAIN = card_10("https://a.example/rpc")
GOOD = sign_card(PLAIN, KEY)
BAD = {**GOOD, "description": "something else"}
FOREIGN = sign_card(PLAIN, OTHER)


def trust(policy: str, *keys: Any, at: str = "https://a.example") -> CardTrust:
    origin = parse_origin(at)
    assert origin is not None
    return CardTrust(policy, {origin: keys} if keys else None)


def test_signatures_are_ignored_without_a_policy() -> None:
    for card in (PLAIN, GOOD, BAD, FOREIGN):
        assert trust(IGNORE, KEY.public_key()).verify_card("https://a.example/c", card) == (
            card,
            None,
        )


def test_prefer_policy_refuses_invalid_and_accepts_missing_signatures() -> None:
    mine = trust(PREFER, KEY.public_key())
    assert mine.verify_card("https://a.example/c", GOOD)[1] is None
    assert "not signed" in str(mine.verify_card("https://a.example/c", PLAIN)[1])
    for card in (BAD, FOREIGN):
        with pytest.raises(BadReply, match="signature is invalid"):
            mine.verify_card("https://a.example/c", card)
    unpinned = trust(PREFER)
    assert "no key is pinned" in str(unpinned.verify_card("https://a.example/c", FOREIGN)[1])


def test_require_policy_accepts_only_valid_signatures_by_pinned_keys() -> None:
    mine = trust(REQUIRE, KEY.public_key())
    believed, note = mine.verify_card("https://a.example/c", GOOD)
    assert note is None and believed["name"] == "Odd"
    for card in (PLAIN, BAD, FOREIGN):
        with pytest.raises(BadReply, match="is refused"):
            mine.verify_card("https://a.example/c", card)
    with pytest.raises(BadReply, match="no key is pinned"):
        trust(REQUIRE).verify_card("https://a.example/c", GOOD)


def test_pinned_key_applies_only_to_its_origin() -> None:
    mine = trust(REQUIRE, KEY.public_key(), at="https://a.example")
    with pytest.raises(BadReply, match="no key is pinned"):
        mine.verify_card("https://b.example/c", GOOD)


def test_unsigned_members_are_ignored() -> None:
    """A card of several dialects at once is signed in its form of 1.0."""
    more = {**GOOD, "url": "https://evil.example", "protocolVersion": "0.3.0"}
    believed, _ = trust(REQUIRE, KEY.public_key()).verify_card("https://a.example/c", more)
    assert "url" not in believed and believed["supportedInterfaces"] == PLAIN["supportedInterfaces"]


def test_unknown_signature_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="use ignore, prefer, require"):
        CardTrust("perhaps")


async def test_refused_card_is_not_fetched_elsewhere() -> None:
    def handle(request: Request) -> None:
        request.reply(200, PLAIN)

    async with scripted_agent(handle) as agent:
        find = discovery(agent.url, trust=trust(REQUIRE, KEY.public_key(), at=agent.url))
        with pytest.raises(BadReply, match="it is not signed"):
            await find(agent.url)
    assert len(agent.requests) == 1


async def test_card_that_lost_its_signature_is_refused() -> None:
    now, card = 0.0, GOOD

    def handle(request: Request) -> None:
        request.reply(200, card)

    async with scripted_agent(handle) as agent:
        keys = trust(REQUIRE, KEY.public_key(), at=agent.url)
        find = discovery(agent.url, trust=keys, clock=lambda: now)
        assert (await find(agent.url)).card["name"] == "Odd"
        now, card = 1000.0, BAD
        for _ in range(2):
            with pytest.raises(BadReply, match="signature is invalid"):
                await find(agent.url)
