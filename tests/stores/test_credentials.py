"""Stored credentials: encrypted, bound to their rows, with a key outside of the database."""

from __future__ import annotations

import os
import sqlite3
import stat
from base64 import b64encode
from pathlib import Path
from types import ModuleType

import pytest

from dragoman.core.errors import ConfigError
from dragoman.core.ports import CredentialId
from dragoman.stores import credential_key
from dragoman.stores.credential_key import KEY_FILE, find_key, find_older_key
from dragoman.stores.credentials import DATABASE, DatabaseCredentials
from dragoman.stores.database import StorePlace
from dragoman.stores.store_inventory import FILES, VERSIONS

KEY = bytes(range(32))
ANNA = CredentialId("token", "files", "user:anna\0default", "https://auth.example", "https://a/mcp")
BOB = ANNA._replace(holder="user:bob\0default")


def test_what_is_saved_is_found_again(store_place: StorePlace) -> None:
    store = DatabaseCredentials(store_place, KEY)
    store.save(ANNA, b"first")
    store.save(ANNA, b"second")
    store.save(BOB, b"other")
    store.close()
    store = DatabaseCredentials(store_place, KEY)
    assert store.load(ANNA) == b"second"
    assert store.find("token", "files", ANNA.holder) == [(ANNA, b"second")]
    assert store.list("token", "files") == [ANNA, BOB]
    assert store.list("token", "") == [ANNA, BOB]
    assert store.list("client", "files") == []
    store.delete(ANNA)
    assert store.load(ANNA) is None
    assert store.load(BOB) == b"other"
    store.close()


def test_of_several_credentials_the_newest_comes_first(store_place: StorePlace) -> None:
    store = DatabaseCredentials(store_place, KEY)
    other = ANNA._replace(issuer="https://other.example")
    store.save(ANNA, b"1")
    store.save(other, b"2")
    assert [id for id, _ in store.find("token", "files", ANNA.holder)] == [other, ANNA]
    store.save(ANNA, b"3")
    assert [id for id, _ in store.find("token", "files", ANNA.holder)] == [ANNA, other]
    store.close()


def test_the_file_has_neither_value_nor_key(short_tmp: Path) -> None:
    store = DatabaseCredentials(short_tmp, KEY)
    for number in range(20):
        store.save(ANNA, b"canary-%d-canary" % number)
    store.delete(ANNA)
    store.save(BOB, b"canary-last")
    store.close()
    stored = b"".join(path.read_bytes() for path in short_tmp.iterdir())
    assert b"canary" not in stored
    assert KEY not in stored
    assert stat.S_IMODE((short_tmp / DATABASE).stat().st_mode) == 0o600


@pytest.mark.parametrize("column", ["kind", "account", "holder", "issuer", "resource"])
def test_a_value_that_was_moved_cannot_be_decrypted(short_tmp: Path, column: str) -> None:
    store = DatabaseCredentials(short_tmp, KEY)
    store.save(ANNA, b"of anna")
    store.close()
    value = BOB.holder.encode() if column == "holder" else "moved"
    with sqlite3.connect(short_tmp / DATABASE) as db:
        db.execute(f"UPDATE credentials SET {column} = ?", (value,))
    db.close()
    store = DatabaseCredentials(short_tmp, KEY)
    moved = BOB if column == "holder" else ANNA._replace(**{column: "moved"})
    assert store.load(moved) is None
    assert store.find(moved.kind, moved.account, moved.holder) == [(moved, None)]
    store.close()


def test_another_key_and_changed_bytes_read_nothing(short_tmp: Path) -> None:
    store = DatabaseCredentials(short_tmp, KEY)
    store.save(ANNA, b"value")
    store.close()
    store = DatabaseCredentials(short_tmp, bytes(32))
    assert store.load(ANNA) is None
    store.close()
    with sqlite3.connect(short_tmp / DATABASE) as db:
        db.execute("UPDATE credentials SET value = CAST(x'00' || substr(value, 2) AS BLOB)")
    db.close()
    store = DatabaseCredentials(short_tmp, KEY)
    assert store.load(ANNA) is None
    store.close()


def test_equal_values_do_not_look_equal(short_tmp: Path) -> None:
    store = DatabaseCredentials(short_tmp, KEY)
    store.save(ANNA, b"same")
    store.save(BOB, b"same")
    store.close()
    with sqlite3.connect(short_tmp / DATABASE) as db:
        rows = db.execute("SELECT nonce, value FROM credentials").fetchall()
    db.close()
    assert len({nonce for nonce, _ in rows}) == len({value for _, value in rows}) == 2


def test_the_store_is_part_of_a_backup() -> None:
    assert DATABASE in FILES
    assert VERSIONS[DATABASE] == 1


# --- the key --------------------------------------------------------------------------------------


def _no_keyring() -> ModuleType | None:
    return None


class FakeBackend(ModuleType):
    """Stands for the keyring of a desktop, which a test machine does not have."""

    def __init__(self) -> None:
        super().__init__("keyring")
        self.kept: dict[tuple[str, str], str] = {}
        self.is_locked = False

    def set_password(self, service: str, name: str, value: str) -> None:
        self.kept[service, name] = value

    def get_password(self, service: str, name: str) -> str | None:
        if self.is_locked:
            raise RuntimeError("locked")
        return self.kept.get((service, name))


def test_without_a_keyring_the_key_is_a_private_file(short_tmp: Path) -> None:
    key = find_key(short_tmp, "", {}, _no_keyring)
    assert len(key) == 32
    assert find_key(short_tmp, "", {}, _no_keyring) == key
    assert find_key(short_tmp, "file", {}, _no_keyring) == key
    assert stat.S_IMODE((short_tmp / KEY_FILE).stat().st_mode) == 0o600
    assert [path.name for path in short_tmp.iterdir()] == [KEY_FILE]


def test_a_keyring_that_works_has_the_key(short_tmp: Path) -> None:
    backend = FakeBackend()
    key = find_key(short_tmp, "", {}, lambda: backend)
    assert b64encode(key).decode() in backend.kept.values()
    assert b64encode(key) not in (short_tmp / KEY_FILE).read_bytes()
    assert find_key(short_tmp, "", {}, lambda: backend) == key


def test_a_keyring_that_is_locked_is_no_new_key(short_tmp: Path) -> None:
    backend = FakeBackend()
    find_key(short_tmp, "", {}, lambda: backend)
    backend.is_locked = True
    for load in (lambda: backend, _no_keyring):
        with pytest.raises(ConfigError, match="keyring"):
            find_key(short_tmp, "", {}, load)
    assert len(backend.kept) == 1


def test_a_keyring_that_hangs_times_out(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    never = threading.Event()
    monkeypatch.setattr(credential_key, "KEYRING_SECONDS", 0.05)

    def hang() -> ModuleType | None:
        never.wait(30)
        return None

    assert len(find_key(short_tmp, "", {}, hang)) == 32
    never.set()
    with pytest.raises(ConfigError, match="no keyring that works"):
        (short_tmp / KEY_FILE).unlink()
        find_key(short_tmp, "keyring", {}, _no_keyring)


def test_the_setting_names_another_place(short_tmp: Path) -> None:
    text = b64encode(KEY).decode()
    assert find_key(short_tmp, "env:KEY", {"KEY": text}) == KEY
    path = short_tmp / "elsewhere"
    path.write_text(f"{text}\n")
    path.chmod(0o600)
    assert find_key(short_tmp, f"file:{path}", {}) == KEY
    assert not (short_tmp / KEY_FILE).exists()


@pytest.mark.parametrize("setting", ["env:MISSING", "env:SHORT", "file:none", "vault:x", "other"])
def test_a_setting_that_gives_no_key_is_an_error_without_the_value(
    short_tmp: Path, setting: str
) -> None:
    with pytest.raises(ConfigError) as error:
        find_key(short_tmp, setting, {"SHORT": "c2hvcnQ="}, _no_keyring)
    assert "c2hvcnQ=" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"garbage", b"key short", b"key " + b"!" * 44])
def test_a_damaged_key_file_is_an_error(short_tmp: Path, content: bytes) -> None:
    path = short_tmp / KEY_FILE
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError):
        find_key(short_tmp, "", {}, _no_keyring)
    assert path.read_bytes() == content


def test_a_key_that_others_may_read_is_refused(short_tmp: Path) -> None:
    find_key(short_tmp, "file", {}, _no_keyring)
    os.chmod(short_tmp / KEY_FILE, 0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        find_key(short_tmp, "file", {}, _no_keyring)


def test_hubs_of_a_cluster_read_the_credentials_of_each_other(
    store_place: StorePlace, short_tmp: Path
) -> None:
    homes = [short_tmp / "a", short_tmp / "b"]
    for home in homes:
        home.mkdir(mode=0o700)
    alone = DatabaseCredentials(store_place, find_key(homes[0], "", {}, _no_keyring))
    alone.save(ANNA, b"before")
    alone.close()
    shared = b"s" * 32
    first, second = (
        DatabaseCredentials(store_place, find_key(home, "", {}, shared=shared)) for home in homes
    )
    assert find_older_key(homes[1], {}) is None
    first.save(BOB, b"other")
    assert second.load(BOB) == b"other"
    first.adopt(find_older_key(homes[0], {}))  # which stored them before it joined
    assert (second.load(ANNA), second.load(BOB)) == (b"before", b"other")
    assert [path.name for path in homes[1].iterdir() if path.name == KEY_FILE] == []
    for store in (first, second):
        store.close()
    with pytest.raises(ConfigError, match="leave it out, or use env:NAME"):
        find_key(homes[0], "file", {}, shared=shared)
    given = {"KEY": b64encode(KEY).decode()}
    assert find_key(homes[0], "env:KEY", given, shared=shared) == KEY
