"""Authentication and Host/Origin decisions, without HTTP."""

from __future__ import annotations

import pytest

from dragoman.core.principal import LOCAL, Principal
from dragoman.web.auth import AllowedNames, Authenticator, Found

PLAIN = AllowedNames("127.0.0.1", None, [], [])
NAMED = AllowedNames(
    "0.0.0.0",
    "https://hub.example.com:8443/base",
    ["Other.Example.com", "fd00::1"],
    ["https://app.example.com/"],
)

pytestmark = pytest.mark.promise("O1")


@pytest.mark.parametrize(
    "host",
    [
        b"localhost",
        b"LOCALHOST",
        b"localhost:50051",
        b"127.0.0.1",
        b"127.0.0.1:1",
        b"[::1]",
        b"[::1]:50051",
    ],
)
def test_loopback_host_names_are_accepted(host: bytes) -> None:
    assert PLAIN.knows_host(host)


EVIL_HOSTS = [
    None,
    b"",
    b":80",
    b"evil.example",
    b"localhost.evil",
    b"localhost.",
    b"evil-localhost",
    b"localhost@evil",
    b"localhost/evil",
    b"localhost:80:80",
    b"127.0.0.1.evil.example",
    b"127.1",
    b"2130706433",
    b"0x7f000001",
    b"::1",
    b"[::1",
    b"[::1].evil",
    b"0.0.0.0",
    b"[::]",
    b"localhost, evil",
    b"localhost evil",
    b"xn--lcalhost-n1a",
    "lôcalhost".encode(),
]


@pytest.mark.parametrize("host", EVIL_HOSTS)
def test_other_host_names_are_refused(host: bytes | None) -> None:
    assert not PLAIN.knows_host(host)
    assert not NAMED.knows_host(host)


@pytest.mark.parametrize(
    "host", [b"hub.example.com", b"hub.example.com:8443", b"other.example.com", b"[fd00::1]:1"]
)
def test_configured_host_names_are_accepted(host: bytes) -> None:
    assert NAMED.knows_host(host)
    assert not PLAIN.knows_host(host)


def test_invalid_public_url_permits_no_host() -> None:
    for url in ("hub.example.com", "", "//", "https://"):
        names = AllowedNames("127.0.0.1", url, [""], [""])
        assert not names.knows_host(b"")
        assert not names.knows_host(b":80")
        assert not names.allows_origin(b"", b"localhost")
        assert not names.allows_origin(b"null", b"localhost")


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        (b"http://localhost:50051", b"localhost:50051"),
        (b"https://localhost:50051", b"localhost:50051"),
        (b"HTTP://127.0.0.1:1", b"127.0.0.1:1"),
    ],
)
def test_own_origin_is_accepted(origin: bytes, host: bytes) -> None:
    assert PLAIN.allows_origin(origin, host)


@pytest.mark.parametrize(
    "origin",
    [
        b"",
        b"null",
        b"*",
        b"http://evil.example",
        b"http://localhost",
        b"http://localhost:3000",
        b"http://localhost:50051.evil.example",
        b"http://localhost:50051/",
        b"http://evil@localhost:50051",
        b"file://",
        b"chrome-extension://abc",
        b"localhost:50051",
    ],
)
def test_other_origins_are_refused(origin: bytes) -> None:
    assert not PLAIN.allows_origin(origin, b"localhost:50051")
    assert not NAMED.allows_origin(origin, b"localhost:50051")


def test_configured_origins_are_accepted() -> None:
    assert NAMED.allows_origin(b"https://app.example.com", b"localhost:1")
    assert NAMED.allows_origin(b"https://hub.example.com:8443", b"localhost:1")
    assert not NAMED.allows_origin(b"https://app.example.com.evil", b"localhost:1")
    assert not NAMED.allows_origin(b"http://app.example.com", b"localhost:1")


ALICE = Principal("key", "alice")


def authenticator(api_key: str | None, *, stored: bool) -> Authenticator:
    return Authenticator(api_key, lambda key: ALICE if key == "dgm_a" else None, lambda: stored)


def who(auth: Authenticator, value: bytes | None) -> Found:
    return auth.authenticate({} if value is None else {b"authorization": value}, lambda: LOCAL)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"secret",
        b"Basic secret",
        b"Bearer wrong",
        b"Bearer secretX",
        b"Bearer secre",
        b"Bearer SECRET",
        b"Bearer \xff",
        b"Bearer secret secret",
        b"Bearersecret",
        b"Token dgm_a",
    ],
)
def test_requests_without_a_key_are_refused_once_a_key_exists(value: bytes | None) -> None:
    assert who(authenticator("secret", stored=False), value) is None
    assert who(authenticator(None, stored=True), value) is None
    assert who(authenticator("secret", stored=True), value) is None


def test_key_identifies_its_principal() -> None:
    both = authenticator("secret", stored=True)
    assert who(both, b"Bearer secret") == Principal("key", "api_key")
    assert who(both, b"bearer  secret ") == Principal("key", "api_key")
    assert who(both, b"Bearer dgm_a") == ALICE
    assert who(authenticator("schlüssel", stored=False), "Bearer schlüssel".encode()) is not None
    assert who(authenticator("", stored=False), b"Bearer ") == LOCAL


def test_clients_without_a_key_are_local_while_no_key_exists() -> None:
    nobody = authenticator(None, stored=False)
    assert not nobody.requires_key()
    assert who(nobody, None) == LOCAL
    assert who(nobody, b"Bearer old") == LOCAL
    assert who(nobody, b"Bearer dgm_unknown") is None  # a key that was revoked or just created
