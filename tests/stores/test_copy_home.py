"""The copy of a home's stores into PostgreSQL: whole, counted, continued, and into nothing else."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from dragoman.core.conversations import ConversationKey
from dragoman.core.errors import InvalidInput
from dragoman.core.ports import CredentialId, TaskChange
from dragoman.core.principal import Principal
from dragoman.core.taint import LabelOrigin
from dragoman.core.tasks import Entry
from dragoman.stores import copy_home as copying
from dragoman.stores.all_tables import ALL_TABLES
from dragoman.stores.client_grants import ClientGrantStore
from dragoman.stores.conversations import NEVER, DatabaseConversations
from dragoman.stores.copy_home import CopiedStore, copy_home, count_rows
from dragoman.stores.credentials import DatabaseCredentials
from dragoman.stores.database import StorePlace, connect_server
from dragoman.stores.keys import KeyStore
from dragoman.stores.labels import DatabaseLabels
from dragoman.stores.registry import RegistryStore
from dragoman.stores.seal_database import attach_seals, begin_sealing
from dragoman.stores.tasks import DatabaseTaskStore
from dragoman.stores.users import UsersDatabase, UserStore

ANN = Principal("key", "ann", "acme")
KEY = bytes(range(32))
CREDENTIAL = CredentialId("token", "files", "user:ann\0acme", "https://a.example", "https://b/mcp")
MESSAGES = [{"role": "user", "content": "hi"}]
TALK = ConversationKey("a", "key:ann\0acme", "c1")


def build_change(id: str) -> TaskChange:
    entries = (Entry(1, 1.0, {"text": "a\0b"}),)
    return TaskChange(0, id, ANN, "working", 1.0, 2.0, {"agent": "echo"}, entries)


@pytest.fixture
async def home(tmp_path: Path) -> Path:
    (tmp_path / "hub.key").write_bytes(KEY)
    with closing(KeyStore(tmp_path)) as keys:
        keys.create("ci", owner="me", expires_at=None, scopes=["call"])
    with closing(DatabaseTaskStore(tmp_path)) as tasks:
        tasks.save([build_change(f"t{number}") for number in range(20)])
    with closing(RegistryStore(tmp_path)) as registry:
        registry.save_agent({"id": "1", "org": "acme", "slug": "s", "entry": {"name": "é"}})
        registry.save_card("1", "d", b"\0\xff card", 1.0)
    with closing(DatabaseLabels(tmp_path)) as labels:
        labels.add_labels("file /w/a\0b", {"secret": LabelOrigin("t", "trace", "why")})
    with closing(DatabaseCredentials(tmp_path, KEY)) as credentials:
        credentials.save(CREDENTIAL, b"token")
    with closing(UsersDatabase(tmp_path)) as base:
        users = UserStore(base)
        users.add("anna", roles=["editor"])
        grants = ClientGrantStore(base, users)
        grants.open_grant("anna", "app", "App", ["call"], "http://hub", "uri", "pkce")
    talks = DatabaseConversations(tmp_path)
    talks.append(TALK, NEVER, MESSAGES, MESSAGES, lambda messages: messages)
    talks.save_context(TALK, "far")
    talks.close()
    return tmp_path


async def check_contents(place: StorePlace) -> None:
    with closing(KeyStore(place)) as keys:
        assert [one.name for one in keys.list()] == ["ci"]
    with closing(DatabaseTaskStore(place)) as tasks:
        found = tasks.load()
        assert [task.id for task in found] == [f"t{number}" for number in range(20)]
        assert tasks.load_entries(found[0].key) == list(build_change("x").entries)
        ((key, _),) = tasks.save([build_change("next")])
        assert key > found[-1].key  # the numbers continue
    with closing(RegistryStore(place)) as registry:
        assert registry.list_agents()[0]["entry"] == {"name": "é"}
        assert registry.load_card("1", "d") == b"\0\xff card"
    with closing(DatabaseLabels(place)) as labels:
        assert set(labels.find_labels(["file /w/a\0b"])) == {"secret"}
    with closing(DatabaseCredentials(place, KEY)) as credentials:
        assert credentials.load(CREDENTIAL) == b"token"
    with closing(UsersDatabase(place)) as base:
        assert UserStore(base).get("anna").roles == ("editor",)
        recorded: list[str] = []
        assert UserStore(base).record_next(lambda verb, *_: recorded.append(verb))
        assert recorded == ["user.add"]
    talks = DatabaseConversations(place)
    stored = await talks.find(TALK)
    assert stored is not None and stored.messages == MESSAGES
    assert await talks.find_context(TALK) == "far"
    talks.close()


async def test_a_copied_home_has_the_same_contents(home: Path, postgres_url: str) -> None:
    noted: list[tuple[str, int, int]] = []
    with closing(connect_server(postgres_url)) as server:
        copied = copy_home(home, server, lambda *progress: noted.append(progress))
        rows = {one.store: one.rows for one in copied}
        assert rows == {
            "keys": 1, "users": 4, "credentials": 1, "pins": 1, "registry": 2, "tasks": 40,
            "agents": 2,
        }  # fmt: skip
        assert noted[-1] == ("agents", 2, 2)
        counts = count_rows(server)
        assert {name: counts[name] for name in rows} == rows
        await check_contents(server)


async def test_an_interrupted_copy_continues(
    home: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = copying._copy_store

    def fail(*args: object) -> CopiedStore:
        if args[2].store == "tasks":  # type: ignore[attr-defined]
            raise OSError("the cable was pulled")
        return whole(*args)  # type: ignore[arg-type]

    with closing(connect_server(postgres_url)) as server:
        monkeypatch.setattr(copying, "_copy_store", fail)
        with pytest.raises(Exception, match="the cable was pulled; what was copied"):
            copy_home(home, server)
        assert count_rows(server)["tasks"] == 0
        monkeypatch.undo()
        new = {one.store: one.is_new for one in copy_home(home, server)}
        assert not new["keys"] and new["tasks"]
        await check_contents(server)


def test_a_database_with_other_data_is_refused(
    home: Path, tmp_path: Path, postgres_url: str
) -> None:
    with closing(connect_server(postgres_url)) as server:
        with closing(KeyStore(server)) as keys:
            keys.create("theirs", owner="me", expires_at=None, scopes=["call"])
        with pytest.raises(InvalidInput, match=r"not empty: its table dragoman\.keys has rows"):
            copy_home(home, server)
        assert count_rows(server)["users"] == 0


def test_a_copy_is_sealed_by_the_hub_of_its_home_only(
    home: Path, postgres_url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with closing(connect_server(postgres_url)) as server:
        copy_home(home, server)
    other = tmp_path_factory.mktemp("other")
    (other / "hub.key").write_bytes(b"x" * 32)
    for place, keys in ((other, []), (home, ["ci"])):
        with closing(connect_server(postgres_url)) as server:
            attach_seals(server, KEY, place)
            assert begin_sealing(server, place) == bool(keys)
            with closing(KeyStore(server)) as store:
                assert [one.name for one in store.list()] == keys


def test_another_home_does_not_continue_a_copy(home: Path, postgres_url: str) -> None:
    with closing(connect_server(postgres_url)) as server:
        copy_home(home, server)
        (home / "hub.key").write_bytes(KEY[::-1])
        with pytest.raises(InvalidInput, match="the stores of another home"):
            copy_home(home, server)


def test_no_two_stores_have_a_table_of_the_same_name() -> None:
    names: list[str] = []
    for tables in ALL_TABLES:
        for script in tables.migrations:
            found = copying._find_names(script)
            names += [copying._rename(tables, name) for name in found]
    reserved = {"versions", "changes", "identity", "copies"}
    assert len(names) == len(set(names)) and not reserved & set(names)
