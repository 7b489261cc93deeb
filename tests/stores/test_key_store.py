from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from dragoman.core.errors import InvalidInput, NotFound
from dragoman.stores.database import StorePlace, connect_server
from dragoman.stores.keys import DATABASE, MIGRATIONS, KeyStore
from dragoman.stores.sqlite import open_store

pytestmark = pytest.mark.promise("O1")


def test_a_key_is_shown_once_and_kept_only_as_a_hash(tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    assert not store.has_keys()
    key = store.create("ci", owner="ada", expires_at=None, scopes=["files.*", "git.log"], org="lab")
    assert re.fullmatch(r"dgm_[a-z0-9]{8}_[A-Za-z0-9_-]{43}", key)
    found = store.find(key)
    assert found is not None
    assert (found.name, found.owner, found.org) == ("ci", "ada", "lab")
    assert found.scopes == ("files.*", "git.log")
    assert found.id == key[4:12]
    assert store.list() == (found,)
    assert "hash" not in repr(found)
    store.close()
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert found.id.encode() in kept
    assert key[13:].encode() not in kept
    again = KeyStore(tmp_path)
    assert again.find(key) == found
    again.close()


def test_malformed_keys_match_no_principal(store_place: StorePlace) -> None:
    store = KeyStore(store_place)
    key = store.create("ci", owner="ada", expires_at=None, scopes=[])
    other = store.create("cd", owner="ada", expires_at=None, scopes=[])
    mixed = key[:13] + other[13:]
    last = "A" if key[-1] != "A" else "B"
    for wrong in ("", "dgm_", key[:-1], key + "x", key[:-1] + last, mixed, key.upper(), f" {key}",
                  f"{key}\n", key[:-1] + "é", "x" * 1_000_000):  # fmt: skip
        assert store.find(wrong) is None
    assert store.find(key) is not None
    store.close()


def test_revoked_key_is_refused_and_its_record_kept(store_place: StorePlace) -> None:
    store = KeyStore(store_place)
    key = store.create("ci", owner="ada", expires_at=None, scopes=[])
    store.revoke("ci")
    revoked = store.list()[0].revoked_at
    store.revoke("ci")
    assert store.find(key) is None
    assert store.has_keys()
    assert store.list()[0].revoked_at == revoked
    assert store.list()[0].get_state(time.time()) == "revoked"
    with pytest.raises(InvalidInput, match='named "ci" already'):
        store.create("ci", owner="ada", expires_at=None, scopes=[])
    store.close()
    again = KeyStore(store_place)
    assert again.has_keys()
    assert again.find(key) is None
    again.close()


def test_key_is_refused_after_its_expiry(store_place: StorePlace) -> None:
    store = KeyStore(store_place)
    key = store.create("brief", owner="ada", expires_at=time.time() + 0.3, scopes=[])
    found = store.find(key)
    assert found is not None
    assert found.expires_at is not None
    assert found.get_state(found.expires_at) == "expired"
    while time.time() < found.expires_at:
        time.sleep(0.02)
    assert store.find(key) is None
    for late in (time.time() - 1, float("inf"), float("nan")):
        with pytest.raises(InvalidInput, match="already be expired"):
            store.create("late", owner="ada", expires_at=late, scopes=[])
    store.close()


def test_names_are_checked_and_the_nearest_one_is_suggested(store_place: StorePlace) -> None:
    store = KeyStore(store_place)
    store.create("deploy-bot", owner="ada", expires_at=None, scopes=[])
    for bad in ("", "a b", "-x", "x" * 65, "é", "a\n", "../x"):
        with pytest.raises(InvalidInput, match="invalid key name"):
            store.create(bad, owner="ada", expires_at=None, scopes=[])
    with pytest.raises(InvalidInput, match="owner of a key"):
        store.create("x", owner="", expires_at=None, scopes=[])
    with pytest.raises(InvalidInput, match="scope of a key"):
        store.create("x", owner="ada", expires_at=None, scopes=["a\0b"])
    with pytest.raises(InvalidInput, match="must be a list"):
        store.create("x", owner="ada", expires_at=None, scopes="files")
    with pytest.raises(NotFound, match='no key named "deploy-bto"; did you mean "deploy-bot"'):
        store.revoke("deploy-bto")
    with pytest.raises(NotFound, match=r'no key named "zzz"$'):
        store.revoke("zzz")
    store.close()


@pytest.mark.promise("Q7")
def test_key_can_belong_to_a_target_and_have_roles(store_place: StorePlace) -> None:
    store = KeyStore(store_place)
    plain = store.create("ci", owner="ada", expires_at=None, scopes=["call"])
    made = store.create(
        "t", owner="ada", expires_at=None, scopes=[], roles=["ops", "a:b.c"], target="my agent"
    )  # fmt: skip
    store.close()
    again = KeyStore(store_place)
    found, other = again.find(made), again.find(plain)
    assert found is not None and other is not None
    assert (found.roles, found.target, found.scopes) == (("ops", "a:b.c"), "my agent", ())
    assert (other.roles, other.target, other.scopes) == ((), "", ("call",))
    for roles in (["a b"], [""], ["-x"], ["x" * 65], ["\u0430dmin"], ["a\n"]):
        with pytest.raises(InvalidInput, match="invalid role"):
            again.create("x", owner="ada", expires_at=None, scopes=[], roles=roles)
    for wrong in ("owner", ["r"] * 101):
        with pytest.raises(InvalidInput, match='the roles of key "x" must be a list'):
            again.create("x", owner="ada", expires_at=None, scopes=[], roles=wrong)
    for target in ("a\0b", "x" * 201):
        with pytest.raises(InvalidInput, match="invalid target of a key"):
            again.create("x", owner="ada", expires_at=None, scopes=[], target=target)
    assert len(again.list()) == 2
    again.close()


def test_keys_created_before_roles_still_work(tmp_path: Path) -> None:
    first = MIGRATIONS[:1]
    db = open_store(tmp_path / DATABASE, first)
    key = f"dgm_abcdefgh_{'x' * 43}"
    row = ("old", "abcdefgh", hashlib.sha256(key.encode()).digest(), "ada", "lab", '["call"]', 1.0)
    db.execute(
        "INSERT INTO keys (name, id, hash, owner, org, scopes, created_at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        row,
    )
    db.close()
    store = KeyStore(tmp_path)
    found = store.find(key)
    assert found is not None
    assert (found.owner, found.org, found.scopes) == ("ada", "lab", ("call",))
    assert (found.roles, found.target) == ((), "")
    store.close()


def test_changes_by_another_process_are_seen_within_a_second(tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    assert not store.has_keys()

    def elsewhere(code: str) -> str:
        program = f"from pathlib import Path; from dragoman.stores.keys import KeyStore; import sys; store = KeyStore(Path(sys.argv[1])); {code}"  # noqa: E501
        run = [sys.executable, "-c", program, str(tmp_path)]
        return subprocess.run(run, check=True, capture_output=True, text=True, timeout=60).stdout

    key = elsewhere("print(store.create('ci', owner='a', expires_at=None, scopes=[]))").strip()
    ends = time.monotonic() + 60
    while store.find(key) is None:
        assert time.monotonic() < ends
        time.sleep(0.05)
    elsewhere("store.revoke('ci')")
    ends = time.monotonic() + 60
    while store.find(key) is not None:
        assert time.monotonic() < ends
        time.sleep(0.05)
    store.close()


def test_other_hubs_notice_keys_at_once_and_revocations_within_a_second(postgres_url: str) -> None:
    with (
        closing(connect_server(postgres_url)) as here,
        closing(connect_server(postgres_url)) as there,
    ):
        here.watch(exclusive=False)
        mine, other = KeyStore(here), KeyStore(there)
        key = other.create("a", owner="me", expires_at=None, scopes=["call"])
        until = time.monotonic() + 0.5
        while mine.find(key) is None:  # unknown keys are looked for once in SERVER_MISS_SECONDS
            assert time.monotonic() < until
            time.sleep(0.01)
        other.revoke("a")
        until = time.monotonic() + 1.5
        while mine.find(key) is not None:
            assert time.monotonic() < until
            time.sleep(0.01)
        mine.close()
        other.close()


def test_a_key_is_valid_at_once_at_every_hub(postgres_url: str) -> None:
    with ExitStack() as stack:
        here, there = (stack.enter_context(closing(connect_server(postgres_url))) for _ in range(2))
        here.watch(exclusive=False)
        hub, command = (stack.enter_context(closing(KeyStore(server))) for server in (here, there))
        for number in range(30):
            hub.list()
            key = command.create(f"k{number}", owner="o", expires_at=None, scopes=["call"])
            hub._looked = hub._asked = 0.0  # as if the last look was long ago
            assert hub.find(key) is not None, number
