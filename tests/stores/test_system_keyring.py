"""The keyring of the system, with a real backend of the library."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked

from dragoman.core.errors import ConfigError
from dragoman.stores.system_keyring import read_keyring

CANARY = "canary-7b21f0"


class MemoryKeyring(KeyringBackend):
    priority = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[str, str], str] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.problem: Exception | None = None

    def get_password(self, service: str, username: str) -> str | None:
        self.gate.wait(60)
        if self.problem is not None:
            raise self.problem
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password


@pytest.fixture
def backend() -> Iterator[MemoryKeyring]:
    before, made = keyring.get_keyring(), MemoryKeyring()
    keyring.set_keyring(made)
    yield made
    made.gate.set()
    keyring.set_keyring(before)


async def test_reads_a_secret_of_a_service(backend: MemoryKeyring) -> None:
    keyring.set_password("vault", "github/main", CANARY)
    keyring.set_password("dragoman", "token", "own")
    assert await read_keyring("vault/github/main", "it") == CANARY
    assert await read_keyring("token", "it") == "own"


async def test_says_what_is_missing_and_how_to_store_it(backend: MemoryKeyring) -> None:
    with pytest.raises(ConfigError, match=r'agent "a": .* store it with: keyring set vault x'):
        await read_keyring("vault/x", 'agent "a"')
    for name in ("/x", "vault/"):
        with pytest.raises(ConfigError, match="use SERVICE/NAME"):
            await read_keyring(name, "it")


async def test_a_keyring_that_fails_or_hangs_is_reported(backend: MemoryKeyring) -> None:
    backend.problem = KeyringLocked(f"locked: {CANARY}")
    with pytest.raises(ConfigError, match="KeyringLocked") as caught:
        await read_keyring("vault/x", "it")
    assert CANARY not in str(caught.value)
    backend.problem = None
    backend.gate.clear()
    with pytest.raises(ConfigError, match=r"did not answer within 0\.2 s"):
        await read_keyring("vault/x", "it", 0.2)


async def test_names_the_extra_if_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(ConfigError, match=r"pip install 'dragoman-hub\[keyring\]'"):
        await read_keyring("vault/x", "it")
