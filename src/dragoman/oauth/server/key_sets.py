"""The public keys of an issuer (RFC 7517): fetched, kept, and fetched again when they rotate.

A token with an unknown key id causes at most one fetch in `KeyLimits.pause_secs`, however many such
tokens come. While the issuer does not answer, the keys stay in use for a bounded time. A key that
the issuer has withdrawn is noticed within `KeyLimits.fresh_secs`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from dragoman.core.background import Background
from dragoman.core.errors import BadReply, HubError, Unreachable
from dragoman.wire.http import HttpClient
from dragoman.wire.json import Malformed, decode

log = logging.getLogger(__name__)

MAX_RSA_BITS, MIN_RSA_BITS = 8_192, 2_048
_CURVES = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_PUBLIC = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
"""The members that are a public key. Others are not read: a key set by mistake with private keys
must not put them into memory."""


@dataclass(frozen=True, slots=True)
class KeyLimits:
    fetch_secs: float = 5.0
    """For the metadata and the keys together."""
    fresh_secs: float = 300.0
    """After this time, the keys are fetched again."""
    stale_secs: float = 3_600.0
    """How long keys are used after that, if the issuer does not answer."""
    pause_secs: float = 10.0
    """Between two fetches for the sake of unknown key ids."""
    retry_secs: float = 5.0
    """Between a fetch that has failed and the next."""
    max_bytes: int = 512 * 1024
    max_keys: int = 100


@dataclass(frozen=True, slots=True)
class SigningKey:
    id: str
    algorithms: tuple[str, ...]
    key: Any
    """Of `cryptography`."""
    mark: str
    """Identifies the key itself."""


class KeySet:
    def __init__(
        self,
        issuer: str,
        url: str | None,
        http: HttpClient,
        note_withdrawn: Callable[[], None],
        limits: KeyLimits,
    ) -> None:
        """`url` is where the keys are; None if the metadata of the issuer tells. `note_withdrawn`
        is called when a key is not in use any more."""
        self._issuer = issuer
        self._url = url
        self._http = http
        self._note_withdrawn = note_withdrawn
        self._limits = limits
        self._keys: tuple[SigningKey, ...] = ()
        self._fetched = float("-inf")
        self._failed = float("-inf")
        self._problem = ""
        self._flight: asyncio.Task[None] | None = None
        self._background = Background("the keys of issuers")

    @property
    def marks(self) -> frozenset[str]:
        return frozenset(one.mark for one in self._keys)

    def find(
        self, id: str | None, algorithm: str
    ) -> SigningKey | Awaitable[SigningKey | None] | None:
        """Finds the key that may have signed a token; without an id, the only one that can have.
        Raises `Unreachable` if the issuer does not answer."""
        now, limits = monotonic(), self._limits
        age = now - self._fetched
        is_usable = age <= limits.fresh_secs + limits.stale_secs
        key = self._select(id, algorithm) if is_usable else None
        if key is not None:
            self.refresh()
            return key
        if now - self._failed < limits.retry_secs:
            raise self._build_error()
        if is_usable and age < limits.pause_secs:
            return None
        return self._find_later(id, algorithm)

    def refresh(self) -> None:
        """Begins to fetch keys that are no longer fresh."""
        now, limits = monotonic(), self._limits
        is_due = now - self._fetched > limits.fresh_secs and now - self._failed > limits.retry_secs
        if is_due and self._keys and self._flight is None:
            self._begin()

    def close(self) -> None:
        self._background.cancel()

    async def _find_later(self, id: str | None, algorithm: str) -> SigningKey | None:
        await asyncio.shield(self._flight or self._begin())
        if self._fetched < self._failed:
            raise self._build_error()
        return self._select(id, algorithm)

    def _select(self, id: str | None, algorithm: str) -> SigningKey | None:
        found = [
            one
            for one in self._keys
            if algorithm in one.algorithms and (id is None or one.id == id)
        ]
        return found[0] if found and (id is not None or len(found) == 1) else None

    def _begin(self) -> asyncio.Task[None]:
        self._flight = self._background.spawn(self._fetch())
        return self._flight

    async def _fetch(self) -> None:
        before = self.marks
        try:
            async with asyncio.timeout(self._limits.fetch_secs):
                url = self._url or await self._discover()
                keys = tuple(self._parse_keys(await self._get(url)))
            if not keys:
                raise BadReply(f'"{url}" has no key that can be used')
        except (HubError, TimeoutError) as error:
            self._failed = monotonic()
            self._problem = str(error) or "it did not answer in time"
            log.warning('the keys of "%s" could not be fetched: %s', self._issuer, self._problem)
        except Exception:
            self._failed = monotonic()
            self._problem = "internal error; see the hub's log"
            log.exception('the keys of "%s" could not be fetched', self._issuer)
        else:
            self._keys, self._fetched = keys, monotonic()
            if before - self.marks:
                self._note_withdrawn()
        finally:
            self._flight = None

    async def _discover(self) -> str:
        """Finds the URL of the keys in the issuer's metadata, which must be the issuer's own."""
        problem: HubError | None = None
        for url in list_metadata_urls(self._issuer):
            try:
                found = await self._get(url)
            except HubError as error:
                problem = error
                continue
            if found.get("issuer") != self._issuer:
                raise BadReply(f'the metadata at "{url}" is of another issuer')
            keys = found.get("jwks_uri")
            if not isinstance(keys, str) or not is_trustworthy(keys, self._issuer):
                raise BadReply(f'the metadata at "{url}" names no jwks_uri that can be used')
            return keys
        raise problem or BadReply("the issuer has no metadata")

    async def _get(self, url: str) -> dict[str, Any]:
        limits = self._limits
        headers = {"accept": "application/json"}
        reply = await self._http.request("GET", url, headers, timeout=limits.fetch_secs)
        if reply.status != 200:
            reply.body.close()
            raise BadReply(f'"{url}" answered with status {reply.status}')
        try:
            found = decode(await reply.body.read(limits.max_bytes))
        except Malformed as problem:
            raise BadReply(f'"{url}": {problem}') from None
        if not isinstance(found, dict):
            raise BadReply(f'"{url}" is no JSON object')
        return found

    def _parse_keys(self, found: Mapping[str, Any]) -> Iterator[SigningKey]:
        listed = found.get("keys")
        for jwk in listed[: self._limits.max_keys] if isinstance(listed, list) else ():
            key = parse_key(jwk) if isinstance(jwk, dict) else None
            if key is not None:
                yield key

    def _build_error(self) -> Unreachable:
        return Unreachable(
            f'access tokens of "{self._issuer}" cannot be checked at the moment: its keys could '
            "not be fetched; see the hub's log",
            sent=False,
        )


def list_metadata_urls(issuer: str) -> list[str]:
    """Lists where the metadata of an issuer may be: OpenID Connect Discovery, then RFC 8414."""
    parts, bare = urlsplit(issuer), issuer.rstrip("/")
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    return [
        f"{bare}/.well-known/openid-configuration",
        f"{origin}/.well-known/oauth-authorization-server{path}",
    ]


def is_trustworthy(url: str, issuer: str) -> bool:
    """Whether keys may come from `url`: over TLS, unless the issuer itself has none."""
    return url.startswith("https://") or (
        url.startswith("http://") and issuer.startswith("http://")
    )


def parse_key(jwk: Mapping[str, Any]) -> SigningKey | None:
    """Parses the public key of a JWK; None if it is no key for signatures that count."""
    kind, id, algorithm = jwk.get("kty"), jwk.get("kid", ""), jwk.get("alg")
    if not isinstance(kind, str) or not isinstance(id, str) or kind not in _PUBLIC:
        return None
    operations = jwk.get("key_ops", ["verify"])
    if jwk.get("use", "sig") != "sig" or not isinstance(operations, list):
        return None
    if "verify" not in operations:
        return None
    public = {"kty": kind, **{name: jwk.get(name) for name in _PUBLIC[kind]}}
    if not all(isinstance(value, str) and len(value) <= 4_096 for value in public.values()):
        return None
    algorithms = _list_algorithms(public)
    if algorithm is not None:
        algorithms = tuple(one for one in algorithms if one == algorithm)
    if not algorithms:
        return None
    try:
        key = _load_key(public)
    except Exception as error:  # of PyJWT and of `cryptography`
        log.warning("a key of an issuer cannot be used: %s", error)
        return None
    text = "\n".join(f"{name}={value}" for name, value in sorted(public.items()))
    return SigningKey(id, algorithms, key, hashlib.sha256(text.encode()).hexdigest()[:16])


def _list_algorithms(public: Mapping[str, Any]) -> tuple[str, ...]:
    if public["kty"] == "RSA":
        return _RSA if MIN_RSA_BITS <= _count_bits(public["n"]) <= MAX_RSA_BITS else ()
    if public["kty"] == "EC":
        algorithm = _CURVES.get(public["crv"])
        return (algorithm,) if algorithm else ()
    return ("EdDSA",) if public["crv"] == "Ed25519" else ()


def _load_key(public: dict[str, Any]) -> Any:
    from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

    loaders = {
        "RSA": RSAAlgorithm.from_jwk, "EC": ECAlgorithm.from_jwk, "OKP": OKPAlgorithm.from_jwk
    }  # fmt: skip
    return loaders[public["kty"]](public)


def _count_bits(number: str) -> int:
    try:
        data = base64.urlsafe_b64decode(number + "=" * (-len(number) % 4))
    except (ValueError, binascii.Error):
        return 0
    return int.from_bytes(data, "big").bit_length()
