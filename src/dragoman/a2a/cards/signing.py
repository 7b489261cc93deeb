"""Signs agent cards and checks their signatures (specification 8.4): detached JWS over the
canonical form.

Only keys that the operator pinned count. The references to a key in a signature (`jku`, `jwk`,
`x5u`) are ignored: they would let the author of a card choose who vouches for it. `cryptography`
is imported where it is used: a hub without signatures does not load it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.a2a.cards.canonical import NotCanonical, canonicalize, prune, remove_signatures
from dragoman.a2a.protocol.card_fields import select_members
from dragoman.core.errors import ConfigError
from dragoman.core.structs import Struct
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
"""Marks the signature for SDKs that sign less than they should. A hub does not accept it: only the
signature of the whole card beside it counts."""

_BASE64URL = re.compile(r"[A-Za-z0-9_-]+")


class SignatureCheck(Struct, frozen=True):
    """`why` no signature is valid, or None; then `covered` is what the valid one covers. Of a card
    of several dialects at once, that is only the part in 1.0's form."""

    why: str | None
    covered: dict[str, Any]


def sign_card(card: Mapping[str, Any], key: PrivateKey, kid: str | None = None) -> dict[str, Any]:
    """Returns the card with signatures by `key`; `kid` is its name, by default its thumbprint.

    It gets a second signature where the official SDKs would not accept the specified one: they
    drop empty values from what they verify, and with them a requirement without scopes.
    """
    rest = select_members(remove_signatures(card))
    whole = canonicalize(rest)
    header = {"alg": "ES256", "kid": kid or compute_key_id(key), "typ": "JOSE"}
    signatures = [_sign_payload(whole, header, key)]
    less = canonicalize(prune(rest) or {})
    if less != whole:
        signatures.append(_sign_payload(less, {**header, PRUNED: "pruned"}, key))
    return {**card, "signatures": signatures}


def _sign_payload(payload: bytes, header: Mapping[str, Any], key: PrivateKey) -> dict[str, Any]:
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    protected = _encode_base64url(encode(header))
    r, s = decode_dss_signature(key.sign(_build_signing_input(protected, payload), ECDSA(SHA256())))
    raw = r.to_bytes(32, "big") + s.to_bytes(32, "big")  # RFC 7518, 3.4: not DER
    return {"protected": protected, "signature": _encode_base64url(raw)}


def check_signatures(
    card: Mapping[str, Any], keys: Mapping[str, PublicKey] | Sequence[PublicKey]
) -> SignatureCheck:
    """Checks the signatures of a card as it was fetched. Of a mapping, only the key with the
    signature's `kid` is tried."""
    signatures = card.get("signatures")
    if not isinstance(signatures, list) or not signatures:
        return SignatureCheck("the card has no signature", {})
    if len(signatures) > MAX_SIGNATURES:
        return SignatureCheck(f"the card has more than {MAX_SIGNATURES} signatures", {})
    if not keys:
        return SignatureCheck("there is no key to check the card's signature with", {})
    try:
        forms = _list_forms(card)
    except NotCanonical as error:
        return SignatureCheck(f"the card has no canonical form: {error}", {})
    reasons = []
    for signature in signatures:
        found = _check_one(signature, keys, forms)
        if not isinstance(found, str):
            return SignatureCheck(None, found)
        reasons.append(found)
    return SignatureCheck("; ".join(dict.fromkeys(reasons)), {})


def _list_forms(card: Mapping[str, Any]) -> list[tuple[bytes, dict[str, Any]]]:
    """Lists what may have been signed, and what that covers: the form of 8.4.1, that of the
    official SDKs, and the card as it is, for signers that ignore the presence rules."""
    given = remove_signatures(card)
    known = select_members(given)
    left = prune(known) or {}
    return [(canonicalize(known), known), (canonicalize(left), left), (canonicalize(given), given)]


def _check_one(
    signature: Any,
    keys: Mapping[str, PublicKey] | Sequence[PublicKey],
    forms: list[tuple[bytes, dict[str, Any]]],
) -> str | dict[str, Any]:
    """Returns the part of the card that this signature covers, or why it is not accepted."""
    try:
        protected, header, raw = _parse_signature(signature)
    except ValueError:
        return "a signature is malformed"
    kid, alg = header.get("kid"), header.get("alg")
    if header.get(PRUNED) is not None:
        return "a signature does not cover the whole card"
    if header.get("crit") is not None:  # RFC 7515, 4.1.11: unknown extensions must be rejected
        return "a signature requires an unknown extension of JWS"
    if not isinstance(kid, str) or not kid:
        return "a signature does not name its key"
    if not isinstance(alg, str) or alg not in ALGORITHMS:
        return f'a signature has the algorithm "{str(alg)[:50]}", which is not accepted'
    named = keys.get(kid) if isinstance(keys, Mapping) else None
    candidates = list(keys) if not isinstance(keys, Mapping) else [named] if named else []
    if not candidates:
        return f'a signature is by key "{kid[:100]}", which is not trusted'
    for key in candidates:
        for payload, covered in forms:
            if _is_valid(alg, key, raw, _build_signing_input(protected, payload)):
                return covered
    return "a signature is not by a trusted key, or the card was changed after it was signed"


def _parse_signature(signature: Any) -> tuple[str, dict[str, Any], bytes]:
    if not isinstance(signature, dict):
        raise ValueError("no object")
    protected, raw = signature.get("protected"), signature.get("signature")
    if not isinstance(protected, str) or not isinstance(raw, str):
        raise ValueError("no text")
    if len(protected) > MAX_PART or len(raw) > MAX_PART:
        raise ValueError("too long")
    header = decode(_decode_base64url(protected))
    if not isinstance(header, dict):
        raise ValueError("no object")
    return protected, header, _decode_base64url(raw)


ALGORITHMS = ("ES256", "RS256", "EdDSA")


def _is_valid(alg: str, key: PublicKey, raw: bytes, signed: bytes) -> bool:
    """Each algorithm takes only keys of its own kind: a signature cannot choose how a key is
    used."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    try:
        if alg == "ES256" and isinstance(key, ec.EllipticCurvePublicKey) and len(raw) == 64:
            r, s = int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big")
            key.verify(encode_dss_signature(r, s), signed, ec.ECDSA(SHA256()))
        elif alg == "RS256" and isinstance(key, rsa.RSAPublicKey):
            key.verify(raw, signed, padding.PKCS1v15(), SHA256())
        elif alg == "EdDSA" and isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(raw, signed)
        else:
            return False
    except InvalidSignature:
        return False
    return True


# --- keys -----------------------------------------------------------------------------------------


def load_private_key(path: str | Path) -> PrivateKey:
    """Loads the key that signs cards: EC P-256, in PEM or as a JWK."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    data = _read_key_file(path)
    try:
        if (jwk := _parse_jwk(data)) is not None:
            point = _parse_ec_numbers(jwk)
            number = int.from_bytes(_decode_base64url(jwk["d"]), "big")
            return ec.EllipticCurvePrivateNumbers(number, point).private_key()
        key = load_pem_private_key(data, None)
    except (ValueError, TypeError, KeyError, UnsupportedAlgorithm):
        why = "it is neither a private key in PEM without a password nor a JWK"
        raise _unusable(path, why) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise _unusable(path, "cards are signed with ES256, which needs a key on curve P-256")
    return key


def load_public_key(path: str | Path) -> PublicKey:
    """Loads a key that checks signatures: EC P-256, RSA or Ed25519, in PEM or as a JWK."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    data = _read_key_file(path)
    try:
        jwk = _parse_jwk(data)
        key = load_pem_public_key(data) if jwk is None else _public_from_jwk(jwk)
    except (ValueError, TypeError, KeyError, UnsupportedAlgorithm):
        raise _unusable(path, "it is neither a public key in PEM nor one JWK") from None
    return _check_kind(key, path)


def _check_kind(key: Any, path: str | Path) -> PublicKey:
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
        modulus, exponent = (
            int.from_bytes(_decode_base64url(jwk[name]), "big") for name in ("n", "e")
        )
        return RSAPublicNumbers(exponent, modulus).public_key()
    if jwk["kty"] == "OKP" and jwk["crv"] == "Ed25519":
        return Ed25519PublicKey.from_public_bytes(_decode_base64url(jwk["x"]))
    return _parse_ec_numbers(jwk).public_key()


def _parse_ec_numbers(jwk: Mapping[str, Any]) -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    if jwk["kty"] != "EC" or jwk["crv"] != "P-256":
        raise ValueError("unknown kind of key or curve")
    x, y = (int.from_bytes(_decode_base64url(jwk[name]), "big") for name in ("x", "y"))
    return ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1())


def render_public_jwk(key: PrivateKey) -> dict[str, str]:
    """Returns the public half as a JWK, for others to pin."""
    numbers = key.public_key().public_numbers()
    x, y = (_encode_base64url(number.to_bytes(32, "big")) for number in (numbers.x, numbers.y))
    return {"crv": "P-256", "kty": "EC", "x": x, "y": y}


def compute_key_id(key: PrivateKey) -> str:
    """Returns the thumbprint (RFC 7638), so that a key has the same name everywhere."""
    return _encode_base64url(hashlib.sha256(canonicalize(render_public_jwk(key))).digest())


def _read_key_file(path: str | Path) -> bytes:
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_KEY_FILE + 1)
    except OSError as error:
        raise _unusable(path, f"it cannot be read ({error.strerror})") from None
    if len(data) > MAX_KEY_FILE:
        raise _unusable(path, "it is too large for a key")
    return data


def _parse_jwk(data: bytes) -> dict[str, Any] | None:
    """Returns the key of a JWK or of a set of one; None if `data` is not JSON."""
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


def _build_signing_input(protected: str, payload: bytes) -> bytes:
    return f"{protected}.{_encode_base64url(payload)}".encode()


def _encode_base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode_base64url(text: Any) -> bytes:
    if not isinstance(text, str) or not _BASE64URL.fullmatch(text):
        raise ValueError("not base64url")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
