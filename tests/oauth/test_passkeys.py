"""Passkeys: registration and sign-in with a software authenticator, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.peers.authenticator import PRESENT, VERIFIED, SoftAuthenticator

from dragoman.core.errors import InvalidInput
from dragoman.oauth.authority.passkeys import CHALLENGE_SECONDS, Passkeys
from dragoman.stores.users import MAX_PASSKEYS, UsersDatabase, UserStore

pytestmark = pytest.mark.promise("U4")

BASE = "https://hub.example.com"
SESSION, BROWSER = "s" * 43, "b" * 43

KEY = b"k" * 32


@pytest.fixture
def users(tmp_path: Path) -> Iterator[UserStore]:
    base = UsersDatabase(tmp_path)
    store = UserStore(base)
    store.add("anna")
    store.add("bob")
    yield store
    base.close()


@pytest.fixture
def passkeys(users: UserStore) -> Passkeys:
    return Passkeys(users, lambda: BASE, KEY)


def enrol(passkeys: Passkeys, users: UserStore, name: str) -> SoftAuthenticator:
    authenticator, user = SoftAuthenticator(BASE), users.get(name)
    options = passkeys.build_options(user, SESSION)
    passkeys.add(user, authenticator.create(options), SESSION)
    return authenticator


def test_a_user_signs_in_with_a_passkey(passkeys: Passkeys, users: UserStore) -> None:
    authenticator = enrol(passkeys, users, "anna")
    for _ in range(2):
        answer = authenticator.get(passkeys.build_sign_in_options(BROWSER))
        assert passkeys.verify_sign_in(answer, BROWSER).name == "anna"
    assert users.list_passkeys("anna")[0].sign_count == 2
    users.remove("anna")
    with pytest.raises(InvalidInput):
        passkeys.verify_sign_in(authenticator.get(passkeys.build_sign_in_options(BROWSER)), BROWSER)


def test_answers_of_other_browsers_sites_and_times_are_refused(
    passkeys: Passkeys, users: UserStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    authenticator = enrol(passkeys, users, "anna")

    def is_refused(answer: str, browser: str = BROWSER) -> bool:
        with pytest.raises(InvalidInput):
            passkeys.verify_sign_in(answer, browser)
        return True

    answer = authenticator.get(passkeys.build_sign_in_options(BROWSER))
    assert is_refused(answer, "c" * 43)  # a challenge of another browser
    assert passkeys.verify_sign_in(answer, BROWSER).name == "anna"
    assert is_refused(answer)  # the counter of the authenticator did not increase
    foreign, same = (Passkeys(users, lambda: BASE, key) for key in (b"o" * 32, KEY))
    assert is_refused(authenticator.get(foreign.build_sign_in_options(BROWSER)))
    answer = authenticator.get(same.build_sign_in_options(BROWSER))  # of another hub of a cluster
    assert passkeys.verify_sign_in(answer, BROWSER).name == "anna"
    authenticator.origin = "https://hub.example.com.evil.example"
    assert is_refused(authenticator.get(passkeys.build_sign_in_options(BROWSER)))
    authenticator.origin = BASE
    authenticator.flags = PRESENT  # without a PIN or fingerprint
    assert is_refused(authenticator.get(passkeys.build_sign_in_options(BROWSER)))
    authenticator.flags = PRESENT | VERIFIED
    authenticator.handle = users.get("bob").handle
    assert is_refused(authenticator.get(passkeys.build_sign_in_options(BROWSER)))
    authenticator.handle = users.get("anna").handle
    other = SoftAuthenticator(BASE)
    other.id, other.count = authenticator.id, 50  # another key under the same id
    assert is_refused(other.get(passkeys.build_sign_in_options(BROWSER)))
    for nonsense in ("", "{}", "[]", '{"id": 1}', "x" * 20_000, '{"response": {}}'):
        assert is_refused(nonsense)
    late = authenticator.get(passkeys.build_sign_in_options(BROWSER))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + CHALLENGE_SECONDS + 1)
    assert is_refused(late)


def test_a_passkey_belongs_to_one_user_and_their_number_is_bounded(
    passkeys: Passkeys, users: UserStore
) -> None:
    authenticator = enrol(passkeys, users, "anna")
    bob = users.get("bob")
    with pytest.raises(InvalidInput, match="already in use"):
        passkeys.add(bob, authenticator.create(passkeys.build_options(bob, SESSION)), SESSION)
    for _ in range(MAX_PASSKEYS - 1):
        enrol(passkeys, users, "anna")
    with pytest.raises(InvalidInput, match="at most"):
        enrol(passkeys, users, "anna")


def test_an_address_without_a_name_has_no_passkeys(users: UserStore) -> None:
    for base in ("http://127.0.0.1:5", "http://[::1]:5"):
        passkeys = Passkeys(users, lambda base=base: base, KEY)  # type: ignore[misc]
        assert passkeys.build_sign_in_options(BROWSER) == ""
        assert passkeys.build_options(users.get("anna"), SESSION) == ""
        with pytest.raises(InvalidInput):
            passkeys.verify_sign_in("{}", BROWSER)
    assert Passkeys(users, lambda: "http://localhost:5", KEY).build_sign_in_options(BROWSER)
