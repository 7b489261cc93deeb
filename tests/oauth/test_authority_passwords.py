"""Passwords: which are accepted, constant work for unknown users, few at a time; attempts."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Literal

import pytest
from argon2 import PasswordHasher

from dragoman.core.errors import ConfigError, InvalidInput, Overloaded, RateLimited
from dragoman.core.rate_limiter import Rate
from dragoman.oauth.authority.attempts import AttemptRates, Attempts
from dragoman.oauth.authority.passwords import (
    AT_ONCE,
    WAITING,
    PasswordChecker,
    build_hasher,
    check_password,
)

pytestmark = pytest.mark.promise("U4")

PASSWORD = "correct horse battery"


class WatchedHasher(PasswordHasher):
    """Counts what it verifies, and can be held."""

    def __init__(self) -> None:
        super().__init__(time_cost=1, memory_cost=8, parallelism=1)
        self.verified: list[str] = []
        self.open = threading.Event()
        self.open.set()
        self.running = 0
        self.most = 0

    def verify(self, hash: str | bytes, password: str | bytes) -> Literal[True]:
        self.verified.append(str(hash))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            assert self.open.wait(60)
            return super().verify(hash, password)
        finally:
            self.running -= 1


def test_obvious_and_short_passwords_are_refused() -> None:
    for bad in (
        "short",
        "a" * 30,
        "Password123",
        "1234567890",
        "x" * 257,
        "with\nbreaks12",
        "anna-longer",
    ):
        with pytest.raises(InvalidInput):
            check_password(bad, "Anna-longer")
    check_password(PASSWORD, "anna")


def test_hashes_are_argon2id_with_the_recommended_cost() -> None:
    hashed = build_hasher().hash(PASSWORD)
    assert hashed.startswith("$argon2id$v=19$m=19456,t=2,p=1$") and PASSWORD not in hashed


async def test_an_unknown_user_costs_one_hash_as_a_known_one_does() -> None:
    hasher = WatchedHasher()
    checker = PasswordChecker(hasher)
    known = hasher.hash(PASSWORD)
    assert await checker.verify(known, PASSWORD)
    assert not await checker.verify(known, "wrong")
    assert not await checker.verify("", PASSWORD)  # unknown, or without a password
    assert not await checker.verify("", "")
    assert not await checker.verify("no hash", PASSWORD)
    assert len(hasher.verified) == 5
    parameters = {one.rpartition("$")[0].rpartition("$")[0] for one in hasher.verified[:4]}
    assert len(parameters) == 1  # the same cost


async def test_few_hashes_are_computed_at_once_and_few_wait() -> None:
    hasher = WatchedHasher()
    checker = PasswordChecker(hasher)
    known = hasher.hash(PASSWORD)
    hasher.open.clear()
    tasks = [asyncio.create_task(checker.verify(known, PASSWORD)) for _ in range(AT_ONCE + WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await checker.verify(known, PASSWORD)
    hasher.open.set()
    async with asyncio.timeout(60):
        assert all(await asyncio.gather(*tasks))
    assert hasher.most <= AT_ONCE


def test_attempts_from_elsewhere_do_not_lock_a_user_out() -> None:
    attempts = Attempts(AttemptRates(user=Rate(1, 3), address=Rate(1, 5)))
    for _ in range(3):
        attempts.take_sign_in("192.0.2.1", "anna")
    with pytest.raises(RateLimited) as refused:
        attempts.take_sign_in("192.0.2.1", "anna")
    assert refused.value.retry_after > 1
    attempts.take_sign_in("192.0.2.2", "anna")  # Anna herself
    for _ in range(3):  # or in a browser that knows her, behind the same proxy
        attempts.take_sign_in("192.0.2.1", "anna", "a-known-browser")
    with pytest.raises(RateLimited):
        attempts.take_sign_in("192.0.2.1", "anna", "a-known-browser")
    attempts.take_sign_in("192.0.2.1", "bob")
    attempts.take_sign_in("192.0.2.1", "carol")
    with pytest.raises(RateLimited):
        attempts.take_sign_in("192.0.2.1", "dora")  # the address tries many users
    for number in range(3):  # one network has many addresses
        attempts.take_sign_in(f"2001:db8::{number}", "anna")
    with pytest.raises(RateLimited):
        attempts.take_sign_in("2001:db8::9", "anna")


def test_a_missing_extra_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "argon2", None)  # as if it were not installed
    with pytest.raises(ConfigError, match=r"pip install 'dragoman-hub\[auth\]'"):
        build_hasher()
