"""Signatures of cards (specification 8.4): JWS with the payload left out, over the canonical form.

A key is one that the operator pinned. Where a signature says that its key is to be had (`jku`,
`jwk`, `x5u`) is not looked at: it would let whoever made the card choose who vouches for it.
`cryptography` is imported only where it is used; it comes with an extra.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.a2a.cards.canonical import NotCanonical, canonicalize, prune, remove_signatures
from dragoman.a2a.protocol.card_fields import select_members
from dragoman.core.errors import ConfigError
from dragoman.core.fast_dataclass import record
from dragoman.wire.json import Malformed, decode, encode

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import (
        EllipticCurvePrivateKey,
        EllipticCurvePublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    PrivateKey = EllipticCurvePrivateKey
    PublicKey = EllipticCurvePublicKey | RSAPublicKey | Ed25519PublicKey

MAX_SIGNATURES = 16
MAX_PART = 8_192
"""Characters of a protected header, and of a signature."""
MAX_KEY_FILE = 65_536
MIN_RSA_BITS = 2048

PRUNED = "dragoman-form"
"""A header of the signature that is there for those who sign less than they should. Whoever knows
it does not accept that signature: the whole one beside it counts, or none."""

_BASE64URL = re.compile(r"[A-Za-z0-9_-]+")


@record(frozen=True, slots=True)
class SignatureCheck:
    """`why` no signature is good, or None; then `covered` is what the good one speaks for. In a
    card of several dialects at once, that is the part in 1.0's form and no more."""

    why: str | None
    covered: dict[str, Any]


def sign_card(card: Mapping[str, Any], key: PrivateKey, kid: str | None = None) -> dict[str, Any]:
    """The card with signatures of `key`, by the name of `kid` or else of its thumbprint.

    There are two where the official SDKs would not accept the one that the specification asks for:
    they leave empty values out of what they verify, and with them a requirement without scopes.
    """
    rest = select_members(remove_signatures(card))
    whole = canonicalize(rest)
    header = {"alg": "ES256", "kid": kid or compute_key_id(key), "typ": "JOSE"}
    signatures = [_signed(whole, header, key)]
    less = canonicalize(prune(rest) or {})
    if less != whole:
        signatures.append(_signed(less, {**header, PRUNED: "pruned"}, key))
    return {**card, "signatures": signatures}


def _signed(payload: bytes, header: Mapping[str, Any], key: PrivateKey) -> dict[str, Any]:
    _need()
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    protected = _base64url(encode(header))
    r, s = decode_dss_signature(key.sign(_input(protected, payload), ECDSA(SHA256())))
    raw = r.to_bytes(32, "big") + s.to_bytes(32, "big")  # RFC 7518, 3.4: not DER
    return {"protected": protected, "signature": _base64url(raw)}


def verify_card(
    card: Mapping[str, Any], keys: Mapping[str, PublicKey] | Sequence[PublicKey]
) -> str | None:
    """None where one of these keys made a good signature of the card as it was fetched, otherwise
    why none counts. Of a mapping only the key with the signature's `kid` is tried."""
    return check_signatures(card, keys).why


def check_signatures(
    card: Mapping[str, Any], keys: Mapping[str, PublicKey] | Sequence[PublicKey]
) -> SignatureCheck:
    signatures = card.get("signatures")
    if not isinstance(signatures, list) or not signatures:
        return SignatureCheck("the card has no signature", {})
    if len(signatures) > MAX_SIGNATURES:
        return SignatureCheck(f"the card has more than {MAX_SIGNATURES} signatures", {})
    if not keys:
        return SignatureCheck("there is no key to check the card's signature with", {})
    try:
        forms = _forms(card)
    except NotCanonical as error:
        return SignatureCheck(f"the card has no canonical form: {error}", {})
    reasons = []
    for signature in signatures:
        found = _check_one(signature, keys, forms)
        if not isinstance(found, str):
            return SignatureCheck(None, found)
        reasons.append(found)
    return SignatureCheck("; ".join(dict.fromkeys(reasons)), {})


def _forms(card: Mapping[str, Any]) -> list[tuple[bytes, dict[str, Any]]]:
    """What may have been signed, and what that speaks for: 8.4.1's form; what the official SDKs
    make of it; and the card as it stands, by those who left the presence rules out."""
    given = remove_signatures(card)
    known = select_members(given)
    left = prune(known) or {}
    return [(canonicalize(known), known), (canonicalize(left), left), (canonicalize(given), given)]


def _check_one(
    signature: Any,
    keys: Mapping[str, PublicKey] | Sequence[PublicKey],
    forms: list[tuple[bytes, dict[str, Any]]],
) -> str | dict[str, Any]:
    """The part of the card that this signature speaks for, or why it does not count."""
    try:
        protected, header, raw = _read(signature)
    except ValueError:
        return "a signature is malformed"
    kid, alg = header.get("kid"), header.get("alg")
    if header.get(PRUNED) is not None:
        return "a signature does not cover the whole card"
    if header.get("crit") is not None:  # RFC 7515, 4.1.11: what is not understood is not accepted
        return "a signature needs an extension of JWS that this hub does not know"
    if not isinstance(kid, str) or not kid:
        return "a signature does not name its key"
    if not isinstance(alg, str) or alg not in _VERIFIERS:
        return f'a signature is made with "{str(alg)[:50]}", which is not accepted'
    candidates = _named(keys, kid) if isinstance(keys, Mapping) else list(keys)
    if not candidates:
        return f'a signature is by key "{kid[:100]}", which is not trusted here'
    for key in candidates:
        for payload, covered in forms:
            if _VERIFIERS[alg](key, raw, _input(protected, payload)):
                return covered
    return "a signature is not by a trusted key, or the card was changed after it was signed"


def _named(keys: Mapping[str, PublicKey], kid: str) -> list[PublicKey]:
    return [keys[kid]] if kid in keys else []


def _read(signature: Any) -> tuple[str, dict[str, Any], bytes]:
    if not isinstance(signature, dict):
        raise ValueError("no object")
    protected, raw = signature.get("protected"), signature.get("signature")
    if not isinstance(protected, str) or not isinstance(raw, str):
        raise ValueError("no text")
    if len(protected) > MAX_PART or len(raw) > MAX_PART:
        raise ValueError("too long")
    header = decode(_bytes(protected))
    if not isinstance(header, dict):
        raise ValueError("no object")
    return protected, header, _bytes(raw)


def _verify_es256(key: PublicKey, raw: bytes, signed: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    if not isinstance(key, ec.EllipticCurvePublicKey) or len(raw) != 64:
        return False
    der = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
    try:
        key.verify(der, signed, ec.ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


def _verify_rs256(key: PublicKey, raw: bytes, signed: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.hashes import SHA256

    if not isinstance(key, RSAPublicKey):
        return False
    try:
        key.verify(raw, signed, PKCS1v15(), SHA256())
    except InvalidSignature:
        return False
    return True


def _verify_eddsa(key: PublicKey, raw: bytes, signed: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if not isinstance(key, Ed25519PublicKey):
        return False
    try:
        key.verify(raw, signed)
    except InvalidSignature:
        return False
    return True


_VERIFIERS: Mapping[str, Callable[[PublicKey, bytes, bytes], bool]] = {
    "ES256": _verify_es256,
    "RS256": _verify_rs256,
    "EdDSA": _verify_eddsa,
}
"""Each takes keys of its own kind only, so that a signature cannot choose how a key is used."""


def load_private_key(path: str | Path) -> PrivateKey:
    """The key that cards are signed with: EC P-256, in PEM or as a JWK."""
    _need()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    data = _content(path)
    try:
        if (jwk := _jwk(data)) is not None:
            point = _ec_numbers(jwk)
            number = int.from_bytes(_bytes(jwk["d"]), "big")
            return ec.EllipticCurvePrivateNumbers(number, point).private_key()
        key = load_pem_private_key(data, None)
    except (ValueError, TypeError, KeyError, UnsupportedAlgorithm):
        raise _unusable(
            path, "it is no private key in PEM without a password, and no JWK"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise _unusable(path, "cards are signed with ES256, and its key is not on curve P-256")
    return key


def load_public_key(path: str | Path) -> PublicKey:
    """A key that a card may be signed with: EC P-256, RSA or Ed25519, in PEM or as a JWK."""
    _need()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    data = _content(path)
    try:
        jwk = _jwk(data)
        key = load_pem_public_key(data) if jwk is None else _public_from_jwk(jwk)
    except (ValueError, TypeError, KeyError, UnsupportedAlgorithm):
        raise _unusable(path, "it is neither a public key in PEM nor one JWK") from None
    return _accepted(key, path)


def _accepted(key: Any, path: str | Path) -> PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    if isinstance(key, EllipticCurvePublicKey) and key.curve.name == "secp256r1":
        return key
    if isinstance(key, RSAPublicKey) and key.key_size >= MIN_RSA_BITS:
        return key
    if isinstance(key, Ed25519PublicKey):
        return key
    raise _unusable(path, f"a key is EC P-256, Ed25519, or RSA of {MIN_RSA_BITS} bits or more")


def _public_from_jwk(jwk: Mapping[str, Any]) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers

    if jwk["kty"] == "RSA":
        modulus, exponent = (int.from_bytes(_bytes(jwk[name]), "big") for name in ("n", "e"))
        return RSAPublicNumbers(exponent, modulus).public_key()
    if jwk["kty"] == "OKP" and jwk["crv"] == "Ed25519":
        return Ed25519PublicKey.from_public_bytes(_bytes(jwk["x"]))
    return _ec_numbers(jwk).public_key()


def _ec_numbers(jwk: Mapping[str, Any]) -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    if jwk["kty"] != "EC" or jwk["crv"] != "P-256":
        raise ValueError("its kind or curve is not known here")
    x, y = (int.from_bytes(_bytes(jwk[name]), "big") for name in ("x", "y"))
    return ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1())


def render_public_jwk(key: PrivateKey) -> dict[str, str]:
    """The public half as a JWK, for those who are to pin it."""
    numbers = key.public_key().public_numbers()
    x, y = (_base64url(number.to_bytes(32, "big")) for number in (numbers.x, numbers.y))
    return {"crv": "P-256", "kty": "EC", "x": x, "y": y}


def compute_key_id(key: PrivateKey) -> str:
    """RFC 7638: the thumbprint, so that a key has the same name wherever it is used."""
    return _base64url(hashlib.sha256(canonicalize(render_public_jwk(key))).digest())


def _need() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise ConfigError(
            'signatures of agent cards need the package "cryptography", which is not installed; '
            "install it with: pip install 'dragoman-hub[signing]'"
        ) from None


def _content(path: str | Path) -> bytes:
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_KEY_FILE + 1)
    except OSError as error:
        raise _unusable(path, f"it cannot be read ({error.strerror})") from None
    if len(data) > MAX_KEY_FILE:
        raise _unusable(path, "it is too large for a key")
    return data


def _jwk(data: bytes) -> dict[str, Any] | None:
    """The one key of a JWK or of a set of one; None for what is not JSON."""
    if not data.lstrip().startswith(b"{"):
        return None
    value = decode(data)
    held = value.get("keys", [value])
    if not isinstance(held, list) or len(held) != 1 or not isinstance(held[0], dict):
        raise Malformed("it does not hold exactly one key")
    found: dict[str, Any] = held[0]
    return found


def _unusable(path: str | Path, why: str) -> ConfigError:
    return ConfigError(f'the key file "{path}" cannot be used: {why}')


def _input(protected: str, payload: bytes) -> bytes:
    return f"{protected}.{_base64url(payload)}".encode()


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: Any) -> bytes:
    if not isinstance(text, str) or not _BASE64URL.fullmatch(text):
        raise ValueError("not base64url")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
