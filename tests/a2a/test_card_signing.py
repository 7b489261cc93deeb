"""Card signatures: canonical form, interoperability with the official SDK, refusals."""

from __future__ import annotations

import base64
import copy
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from a2a.client.card_resolver import parse_agent_card
from a2a.types import AgentCard
from a2a.utils.signing import create_agent_card_signer, create_signature_verifier
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from google.protobuf.json_format import MessageToDict, ParseDict

from dragoman.a2a.cards.build import CardAddresses, build_card, skill_from_tool
from dragoman.a2a.cards.canonical import NotCanonical, canonicalize, remove_signatures
from dragoman.a2a.cards.signing import (
    PRUNED,
    check_signatures,
    compute_key_id,
    load_private_key,
    load_public_key,
    render_public_jwk,
    sign_card,
)
from dragoman.a2a.protocol.card_fields import select_members
from dragoman.a2a.protocol.dialects.card_shapes import render_card
from dragoman.core.errors import ConfigError
from dragoman.core.tool import AgentFacts

KEY = ec.generate_private_key(ec.SECP256R1())
OTHER = ec.generate_private_key(ec.SECP256R1())


def pem(key: Any) -> bytes:
    if hasattr(key, "private_bytes"):
        return bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
    return bytes(
        key.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )


def a_card(security: bool = True, params: Any = None) -> dict[str, Any]:
    described = AgentFacts(
        name="Übersetzer",
        description='Says "it" in another\ttongue, e.g. 😀',
        version="1.0.0",
        skills=[skill_from_tool("file_read"), skill_from_tool("a_b", description="Adds")],
        streaming=True,
        push=False,
        extended=True,
        extensions=[{"uri": "urn:x", "description": "d", "required": True, "params": params or {}}],
    )
    urls = CardAddresses(url="http://127.0.0.1:9/a2a", grpc="127.0.0.1:10", tenant="t")
    return {
        **build_card(described, urls=urls, security=security),
        "provider": {"organization": "Example", "url": "https://example.com"},
        "documentationUrl": "https://example.com/docs",
    }


def verify_card(card: dict[str, Any], keys: Any) -> str | None:
    """Why no signature of the card is valid; None if one is."""
    return check_signatures(card, keys).why


def header_of(signature: dict[str, Any]) -> dict[str, Any]:
    text = signature["protected"]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return found


def signed_with(key: Any, algorithm: str, header: dict[str, Any], payload: bytes) -> dict[str, Any]:
    made = jwt.api_jws.encode(payload, key, algorithm=algorithm, headers=header)
    protected, _, signature = made.split(".")
    return {"protected": protected, "signature": signature}


# --- RFC 8785 -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bits", "text"),
    [  # appendix B
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555554", "333333333.33333325"),
        ("41b3de4355555555", "333333333.3333333"),
        ("41b3de4355555556", "333333333.3333334"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_canonical_numbers_match_the_appendix(bits: str, text: str) -> None:
    [number] = struct.unpack(">d", bytes.fromhex(bits))
    assert canonicalize(number).decode() == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (10, "10"),
        (-5, "-5"),
        (1.0, "1"),
        (100, "100"),
        (2**53 + 1, "9007199254740992"),
        (10**21, "1e+21"),
        (0.1, "0.1"),
        (1e-7, "1e-7"),
        (True, "true"),
        (False, "false"),
        (None, "null"),
        (
            '\u0000\u001f\b\t\n\f\r"\\/\u007f\u2028é',
            '"\\u0000\\u001f\\b\\t\\n\\f\\r\\"\\\\/\x7f\u2028é"',
        ),
        ([], "[]"),
        ({}, "{}"),
        (
            # section 3.2.2
            {
                "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 1e-27],
                "string": '\u20ac$\u000f\nA\'B"\\\\"/',
                "literals": [None, True, False],
            },
            '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
            '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}',
        ),
        (
            # section 3.2.3: by UTF-16 code units, so the emoji comes before U+FB33
            {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "😀": 5, "\u0080": 6, "ö": 7},
            '{"\\r":2,"1":4,"\u0080":6,"ö":7,"€":1,"😀":5,"\ufb33":3}',
        ),
    ],
)
def test_canonical_values_match_the_scheme(value: Any, text: str) -> None:
    assert canonicalize(value).decode() == text


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), 10**400, "\ud800", {"\udc00": 1}, b""]
)
def test_value_without_a_canonical_form_is_refused(value: Any) -> None:
    with pytest.raises(NotCanonical):
        canonicalize(value)


def test_canonical_members_match_the_specification_examples() -> None:
    card = {  # 8.4.1
        "name": "Example Agent",
        "description": "",
        "capabilities": {"streaming": False, "pushNotifications": False, "extensions": []},
        "skills": [],
        "signatures": [{"protected": "eyJ", "signature": "MEU"}],
    }
    assert canonicalize(select_members(remove_signatures(card))).decode() == (
        '{"capabilities":{"pushNotifications":false,"streaming":false},"description":"",'
        '"name":"Example Agent","skills":[]}'
    )


def test_empty_members_are_kept_only_if_required_or_marked() -> None:
    card: dict[str, Any] = {
        "iconUrl": "",
        "documentationUrl": None,
        "securitySchemes": {},
        "securityRequirements": [{"schemes": {"a": {"list": []}}}],
        "provider": {"url": "", "organization": ""},
        "supportedInterfaces": [{"url": "", "tenant": "", "protocolVersion": "1.0", "other": 1}],
        "capabilities": {"extensions": [{"uri": "u", "required": False, "params": {}}]},
        "other": 5,
    }
    assert select_members(card) == {
        "iconUrl": "",
        "securityRequirements": [{"schemes": {"a": {}}}],
        "provider": {"url": "", "organization": ""},
        "supportedInterfaces": [{"url": "", "protocolVersion": "1.0"}],
        "capabilities": {"extensions": [{"uri": "u", "params": {}}]},
    }


# --- with the official SDK ------------------------------------------------------------------------

PARAMS = [None, {"a": "", "b": [], "n": [1, 2.5, 1e21, -0.0], "ä": {"x": None, "y": False}}]


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("security", [True, False])
@pytest.mark.parametrize("version", ["1.0", "merged"])
def test_the_official_verifier_accepts_the_cards_we_serve(
    version: str, security: bool, params: Any
) -> None:
    served = json.loads(
        json.dumps(render_card(sign_card(a_card(security, params), KEY, "k1"), version))
    )
    asked: list[Any] = []

    def provide(kid: str | None, jku: str | None) -> bytes:
        asked.append((kid, jku))
        return pem(KEY.public_key())

    create_signature_verifier(provide, ["ES256"])(parse_agent_card(served))
    assert asked[0] == ("k1", None)


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("security", [True, False])
def test_we_accept_the_cards_that_the_official_sdk_signs(security: bool, params: Any) -> None:
    theirs = ParseDict(render_card(a_card(security, params), "1.0"), AgentCard())
    header: Any = {"kid": "k1", "alg": "ES256", "jku": "https://evil.example/keys", "typ": "JOSE"}
    create_agent_card_signer(pem(KEY), header)(theirs)
    raw = json.loads(json.dumps(MessageToDict(theirs)))
    assert verify_card(raw, {"k1": KEY.public_key()}) is None
    raw["description"] = "evil"
    assert verify_card(raw, {"k1": KEY.public_key()}) is not None


# --- ours -----------------------------------------------------------------------------------------


def test_signature_names_its_key_and_leaves_the_card_unchanged() -> None:
    card = a_card()
    before = copy.deepcopy(card)
    signed = sign_card(card, KEY)
    assert card == before
    assert {name: value for name, value in signed.items() if name != "signatures"} == card
    assert header_of(signed["signatures"][0]) == {
        "alg": "ES256",
        "kid": compute_key_id(KEY),
        "typ": "JOSE",
    }
    assert verify_card(signed, {compute_key_id(KEY): KEY.public_key()}) is None
    assert verify_card(sign_card(a_card(), KEY, "mine"), {"mine": KEY.public_key()}) is None
    assert len(sign_card(a_card(False, {"x": 1}), KEY)["signatures"]) == 1


def paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    for key, item in inner:
        yield (*here, key)
        yield from paths(item, (*here, key))


@pytest.mark.parametrize("version", ["1.0", "merged"])
def test_changed_or_removed_member_invalidates_the_signature(version: str) -> None:
    whole = a_card(params={"empty": "", "deep": [{"x": 0}]})
    served = render_card(sign_card(whole, KEY), version)
    keys = [KEY.public_key()]
    assert verify_card(served, keys) is None
    changed = 0
    for path in paths(select_members(whole)):
        place: Any = copy.deepcopy(served)
        raw = place
        for step in path[:-1]:
            place = place[step]
        value = place[path[-1]]
        place[path[-1]] = (not value) if isinstance(value, bool) else "changed"
        assert verify_card(raw, keys) is not None, path
        del place[path[-1]]
        assert verify_card(raw, keys) is not None, path
        changed += 1
    assert changed > 50


def test_uncovered_members_are_not_trusted() -> None:
    served = render_card(sign_card(a_card(), KEY), "merged")
    served["url"] = "https://evil.example/"
    served["capabilities"]["other"] = True
    found = check_signatures(served, [KEY.public_key()])
    assert found.why is None
    assert found.covered == select_members(a_card())
    assert check_signatures({**served, "name": "evil"}, [KEY.public_key()]).covered == {}


def test_card_signed_verbatim_is_trusted_completely() -> None:
    raw = {"name": "n", "url": "https://h", "securitySchemes": {"o": {"type": "oauth2"}}, "x": []}
    signature = signed_with(pem(KEY), "ES256", {"kid": "k", "typ": "JOSE"}, canonicalize(raw))
    found = check_signatures({**raw, "signatures": [signature]}, [KEY.public_key()])
    assert (found.why, found.covered) == (None, raw)
    assert verify_card({**raw, "url": "https://g", "signatures": [signature]}, [KEY.public_key()])


def test_pruned_signature_alone_is_not_accepted() -> None:
    signed = sign_card(a_card(), KEY)
    whole, less = signed["signatures"]
    assert header_of(less)[PRUNED] == "pruned"
    weaker = {**signed, "signatures": [less]}
    del weaker["securityRequirements"]
    assert verify_card(weaker, [KEY.public_key()]) == "a signature does not cover the whole card"
    assert verify_card({**signed, "signatures": [less, whole]}, [KEY.public_key()]) is None


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ([], "no key"),
        ({}, "no key"),
        ([OTHER.public_key()], "not by a trusted key"),
        ({"k1": OTHER.public_key()}, "not by a trusted key"),
        ({"k2": KEY.public_key()}, 'by key "k1", which is not trusted'),
        ([OTHER.public_key(), KEY.public_key()], None),
    ],
)
def test_only_given_keys_verify(keys: Any, why: str | None) -> None:
    found = verify_card(sign_card(a_card(), KEY, "k1"), keys)
    assert found is None if why is None else (found is not None and why in found)


def test_one_valid_signature_is_sufficient() -> None:
    mine, theirs = sign_card(a_card(), KEY, "a"), sign_card(a_card(), OTHER, "b")
    both = {**mine, "signatures": [5, *theirs["signatures"], *mine["signatures"]]}
    assert verify_card(both, {"a": KEY.public_key()}) is None


PAYLOAD = canonicalize(select_members(a_card()))
PUBLIC = pem(KEY.public_key())


@pytest.mark.parametrize(
    ("signature", "why"),
    [
        (None, "malformed"),
        ({"protected": "e30"}, "malformed"),
        ({"protected": "!!", "signature": "AAAA"}, "malformed"),
        ({"protected": "e30=", "signature": "AAAA"}, "malformed"),
        ({"protected": "W10", "signature": "AAAA"}, "malformed"),
        ({"protected": "A" * 9_000, "signature": "AAAA"}, "malformed"),
        ({"protected": "e30", "signature": "AAAA"}, "does not name its key"),
        (signed_with(None, "none", {"kid": "k"}, PAYLOAD), "not accepted"),
        (signed_with(b"s" * 32, "HS256", {"kid": "k"}, PAYLOAD), "not accepted"),
        (signed_with(pem(KEY), "ES256", {"typ": "JOSE"}, PAYLOAD), "does not name its key"),
        (signed_with(pem(KEY), "ES256", {"kid": "k", "crit": ["x"], "x": 1}, PAYLOAD), "extension"),
        (
            signed_with(
                pem(OTHER), "ES256", {"kid": "k", "jwk": render_public_jwk(OTHER)}, PAYLOAD
            ),
            "not by a trusted key",
        ),
        (signed_with(pem(KEY), "ES256", {"kid": "k"}, PAYLOAD + b" "), "was changed"),
    ],
)
def test_worthless_signature_is_refused(signature: Any, why: str) -> None:
    if isinstance(signature, dict) and signature.get("signature") == "":
        signature["signature"] = "AAAA"  # `none` has none
    found = verify_card({**a_card(), "signatures": [signature]}, [KEY.public_key()])
    assert found is not None and why in found


def test_missing_or_too_many_signatures_are_refused() -> None:
    signed = sign_card(a_card(), KEY)
    keys = [KEY.public_key()]
    assert verify_card(a_card(), keys) == "the card has no signature"
    assert verify_card({**signed, "signatures": {}}, keys) == "the card has no signature"
    many = {**signed, "signatures": [None] * 16 + signed["signatures"]}
    assert "more than 16" in (verify_card(many, keys) or "")
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    assert "canonical" in (verify_card({**signed, "other": deep}, keys) or "")


# --- keys -----------------------------------------------------------------------------------------


def jwk_file(path: Path, key: dict[str, Any]) -> Path:
    path.write_text(json.dumps(key), encoding="utf-8")
    return path


def test_keys_are_read_from_pem_and_jwk(tmp_path: Path) -> None:
    signed = sign_card(a_card(), KEY)
    (tmp_path / "private.pem").write_bytes(pem(KEY))
    (tmp_path / "public.pem").write_bytes(PUBLIC)
    number = KEY.private_numbers().private_value.to_bytes(32, "big")
    secret = {**render_public_jwk(KEY), "d": base64.urlsafe_b64encode(number).decode().rstrip("=")}
    private = [tmp_path / "private.pem", jwk_file(tmp_path / "private.json", secret)]
    public = [
        tmp_path / "public.pem",
        jwk_file(tmp_path / "public.json", render_public_jwk(KEY)),
        jwk_file(tmp_path / "set.json", {"keys": [render_public_jwk(KEY)]}),
    ]
    for path in public:
        assert verify_card(signed, [load_public_key(path)]) is None
        for own in private:
            assert (
                verify_card(
                    sign_card(a_card(), load_private_key(own)), [load_public_key(str(path))]
                )
                is None
            )


@pytest.mark.parametrize("algorithm", ["RS256", "EdDSA"])
def test_signature_algorithms_match_key_types(tmp_path: Path, algorithm: str) -> None:
    key: Any = (
        rsa.generate_private_key(65537, 2048)
        if algorithm == "RS256"
        else ed25519.Ed25519PrivateKey.generate()
    )
    card = a_card()
    signature = signed_with(pem(key), algorithm, {"kid": "k"}, canonicalize(select_members(card)))
    signed = {**card, "signatures": [signature]}
    (tmp_path / "k.pem").write_bytes(pem(key.public_key()))
    named = "RSAAlgorithm" if algorithm == "RS256" else "OKPAlgorithm"
    jwk = json.loads(getattr(jwt.algorithms, named).to_jwk(key.public_key()))
    for path in (tmp_path / "k.pem", jwk_file(tmp_path / "k.json", jwk)):
        assert verify_card(signed, [load_public_key(path)]) is None
        assert verify_card({**signed, "name": "evil"}, [load_public_key(path)]) is not None
    assert verify_card(signed, [KEY.public_key()]) is not None
    assert verify_card(sign_card(card, KEY), [key.public_key()]) is not None


def test_unusable_key_file_is_reported_by_name(tmp_path: Path) -> None:
    files = {
        "p384.pem": pem(ec.generate_private_key(ec.SECP384R1())),
        "garbage.pem": b"no key",
        "broken.json": b'{"kty": "EC"',
        "other.json": b'{"kty": "oct", "k": "AAAA"}',
        "off.json": b'{"kty": "EC", "crv": "P-256", "x": "AAAA", "y": "AAAA", "d": "AAAA"}',
        "two.json": b'{"keys": [{}, {}]}',
        "large.pem": b"x" * 70_000,
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    for name in [*files, "missing.pem"]:
        with pytest.raises(ConfigError, match=name):
            load_private_key(tmp_path / name)
        with pytest.raises(ConfigError, match=name):
            load_public_key(tmp_path / name)
    with pytest.raises(ConfigError, match="too large"):
        load_public_key(tmp_path / "large.pem")
    (tmp_path / "public384.pem").write_bytes(
        pem(ec.generate_private_key(ec.SECP384R1()).public_key())
    )
    with pytest.raises(ConfigError, match="EC P-256"):
        load_public_key(tmp_path / "public384.pem")
    (tmp_path / "public.pem").write_bytes(PUBLIC)
    with pytest.raises(ConfigError, match="neither a private key"):
        load_private_key(tmp_path / "public.pem")
