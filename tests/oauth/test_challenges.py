"""Challenges of `WWW-Authenticate`, by table."""

from __future__ import annotations

import pytest

from dragoman.oauth.client.challenges import (
    MAX_SCOPES,
    BearerChallenge,
    join_scopes,
    parse_challenge,
    parse_scopes,
)

METADATA = "https://a.example/.well-known/oauth-protected-resource"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", BearerChallenge()),
        ("Bearer", BearerChallenge()),
        ("Basic realm=x", BearerChallenge()),
        (f'Bearer resource_metadata="{METADATA}"', BearerChallenge(METADATA)),
        (f"bearer resource_metadata={METADATA}", BearerChallenge(METADATA)),
        (
            f'Bearer error="invalid_token", scope="a b", resource_metadata = "{METADATA}"',
            BearerChallenge(METADATA, ("a", "b"), "invalid_token"),
        ),
        ('BEARER SCOPE="a"', BearerChallenge("", ("a",))),
        ('Basic realm="scope=x", Bearer scope="a", Digest scope="b"', BearerChallenge("", ("a",))),
        ('Digest scope="b", nonce=1', BearerChallenge()),
        ('Bearer realm="a, scope=\\"x\\"", scope="y"', BearerChallenge("", ("y",))),
        ('Bearer scope="a", scope="b"', BearerChallenge("", ("a",))),
        ('Bearer scope="a  b a"', BearerChallenge("", ("a", "b"))),
        ('Bearer scope="a \u00fc b"', BearerChallenge("", ("a", "b"))),
        ('Bearer scope="unclosed', BearerChallenge()),
        ("Bearer =, ,, scope=a", BearerChallenge()),
        (
            "Bearer error=insufficient_scope scope=a",
            BearerChallenge("", ("a",), "insufficient_scope"),
        ),
    ],
)
def test_the_first_bearer_challenge_counts(header: str, expected: BearerChallenge) -> None:
    assert parse_challenge(header) == expected


@pytest.mark.parametrize("piece", ['a="', "a=", "a ", ', "', "Bearer ", 'scope="\\', "=", '"'])
def test_a_hostile_header_is_read_to_its_limit(piece: str) -> None:
    parse_challenge(f"Bearer {piece * 100_000}")


def test_scopes_are_bounded() -> None:
    many = " ".join(f"s{number}" for number in range(1000))
    assert len(parse_challenge(f'Bearer scope="{many}"').scopes) == MAX_SCOPES
    assert parse_scopes("x" * 300) == ()
    assert parse_scopes(["a", 7, 'q"', None, "b"]) == ("a", "b")
    assert parse_scopes({"a": 1}) == ()


def test_a_union_keeps_the_order_of_first_mention() -> None:
    assert join_scopes(("b", "a"), (), ("a", "c")) == ("b", "a", "c")
