"""Seals of rows in a shared database: what a person who can write it, and does not have the
secret of the cluster, cannot do."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from tests.stores.places import execute

from dragoman.core.access import TokenRejected
from dragoman.core.approvals import APPROVED, Approval, ApprovalRequest, StoredApproval
from dragoman.core.errors import ConfigError, StorageFailed
from dragoman.core.principal import Principal
from dragoman.stores.approvals import DatabaseApprovals
from dragoman.stores.client_grants import ClientGrantStore
from dragoman.stores.database import connect_server
from dragoman.stores.keys import TABLES, KeyStore
from dragoman.stores.policy_files import PolicyFiles
from dragoman.stores.postgres import PostgresServer
from dragoman.stores.registry import RegistryStore
from dragoman.stores.seal_database import FILE, attach_seals, begin_sealing, list_refused
from dragoman.stores.store_inventory import StoreInventory
from dragoman.stores.users import UsersDatabase, UserStore

KEY = b"k" * 32


@contextmanager
def connect(url: str, home: Path, key: bytes | None = KEY) -> Iterator[PostgresServer]:
    """The database as a hub or a command of the cluster sees it."""
    server = connect_server(url)
    try:
        attach_seals(server, key, home)
        yield server
    finally:
        server.close()


@pytest.fixture
def sealed(postgres_url: str, tmp_path: Path) -> Iterator[PostgresServer]:
    """A database in which sealing has begun."""
    with connect(postgres_url, tmp_path) as place:
        assert begin_sealing(place, tmp_path)
        yield place


def remember(home: Path, place: PostgresServer) -> None:
    """Has the home know the database, as after a start of a hub."""
    StoreInventory(home, home / "policies", place.read_identity()).register_stores()


def write(place: PostgresServer, statement: str) -> None:
    """As a person who has the database only."""
    execute(place, "", statement)


def create(store: KeyStore, name: str) -> str:
    return store.create(name, owner="anna", expires_at=None, scopes=["call"])


def request_call(store: DatabaseApprovals, id: str) -> None:
    anna = Principal("user", "anna", "default")
    request = ApprovalRequest(
        id=id, kind="call", title="pay", requester=anna, reason="", expires_at=time.time() + 60
    )
    approval = Approval(request=request, state="pending", requested_at=time.time())
    store.add(StoredApproval(approval=approval, match=id, parked=None), 10, 10)


def list_keys(place: PostgresServer) -> list[str]:
    with closing(KeyStore(place)) as store:
        return [record.name for record in store.list()]


@pytest.mark.parametrize(
    "change",
    [
        """roles = '["owner"]'""", """scopes = '["admin"]'""", "org = 'other'", "view = 'all'",
        "revoked_at = NULL, owner = 'eve'", "expires_at = 1e12", "hash = 'x'::bytea",
    ],
)  # fmt: skip
def test_a_key_that_was_changed_in_the_database_is_refused(
    sealed: PostgresServer, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(KeyStore(sealed)) as store:
        good, low = create(store, "good"), create(store, "low")
        assert store.find(low) is not None
        write(sealed, f"UPDATE keys SET {change} WHERE name = 'low'")
        with closing(KeyStore(sealed)) as other:
            create(other, "bump")
        with caplog.at_level(logging.ERROR):
            for _ in range(3):
                store._load()
        assert store.find(low) is None
        assert store.find(good) is not None, "the others work"
    assert list_keys(sealed) == ["bump", "good"]
    assert list_refused(sealed) == [("key", "low")]
    assert sum('"low"' in message for message in caplog.messages) == 1


def test_a_key_that_was_added_or_copied_in_the_database_is_refused(sealed: PostgresServer) -> None:
    with closing(KeyStore(sealed)) as store:
        create(store, "good")
    columns = "hash, owner, org, scopes, created_at, roles, target, view, scopes_chosen"
    write(sealed, f"INSERT INTO keys (name, id, {columns}) SELECT 'eve', 'e', {columns} FROM keys")
    write(
        sealed,
        "INSERT INTO row_seals SELECT of_table, 'eve', seal FROM row_seals WHERE row_id = 'good'",
    )
    assert list_keys(sealed) == ["good"]
    with closing(KeyStore(sealed)) as store:
        write(sealed, "DELETE FROM row_seals WHERE of_table = 'keys'")
        store._load()
        assert store.list() == () and store.has_keys(), "a hub whose keys are refused stays closed"


def test_a_change_by_a_hub_does_not_confirm_what_was_written_by_others(
    sealed: PostgresServer,
) -> None:
    with closing(KeyStore(sealed)) as store:
        create(store, "low")
        write(sealed, """UPDATE keys SET roles = '["owner"]' WHERE name = 'low'""")
        store.set_scopes("low", ["call", "metrics"])
        assert store.list() == ()
        create(store, "own")
        store.set_scopes("own", ["metrics"])
        store.revoke("own")
        assert [record.name for record in store.list()] == ["own"]


@contextmanager
def hold(place: PostgresServer, statement: str) -> Iterator[None]:
    """Executes a statement as a person who has the database only, and commits once a hub waits for
    the rows."""
    waits = b"SELECT 1 FROM pg_locks WHERE NOT granted"
    with (
        psycopg.connect(place.url) as writer,
        psycopg.connect(place.url, autocommit=True) as watcher,
        ThreadPoolExecutor() as threads,
    ):
        writer.execute("SET search_path = dragoman")
        writer.execute(statement.encode())

        def commit() -> None:
            end = time.monotonic() + 60
            while time.monotonic() < end and watcher.execute(waits).fetchone() is None:
                time.sleep(0.01)
            writer.commit()

        done = threads.submit(commit)
        yield
        done.result(60)


def test_a_change_of_a_key_does_not_confirm_what_is_written_at_the_same_time(
    sealed: PostgresServer,
) -> None:
    with closing(KeyStore(sealed)) as store:
        create(store, "low")
        with hold(sealed, """UPDATE keys SET roles = '["owner"]' WHERE name = 'low'"""):
            store.set_scopes("low", ["call", "metrics"])
        assert store.list() == () and list_refused(sealed) == [("key", "low")]


def test_an_approval_does_not_confirm_what_is_written_at_the_same_time(
    sealed: PostgresServer,
) -> None:
    with closing(DatabaseApprovals(sealed)) as store:
        request_call(store, "one")
        with hold(sealed, "UPDATE approvals SET request = replace(request, 'pay', 'pay all')"):
            store.decide("one", APPROVED, "lea", "", time.time())
        assert store.find("one") is None and not store.begin("one")


def test_a_policy_that_is_added_in_the_database_meanwhile_is_refused(
    sealed: PostgresServer,
) -> None:
    with closing(PolicyFiles(sealed)) as policies:
        columns = "name, text, digest, number, changed_at"
        row = "'all.cedar', 'permit (principal, action, resource);', 'x', 1, 0"
        with hold(sealed, f"INSERT INTO policy_files ({columns}) VALUES ({row})"):
            assert policies.change({"all.cedar": "forbid"}, {}) == ["all.cedar"]
        assert policies.load() == {}


def test_what_a_trigger_changes_is_not_sealed(sealed: PostgresServer) -> None:
    write(
        sealed,
        "CREATE FUNCTION dragoman.raise_it() RETURNS trigger LANGUAGE plpgsql AS "
        """$$ BEGIN NEW.roles = '["owner"]'; RETURN NEW; END $$""",
    )
    with closing(KeyStore(sealed)) as store:
        create(store, "low")
        write(
            sealed,
            "CREATE TRIGGER raise_it BEFORE INSERT OR UPDATE ON keys "
            "FOR EACH ROW EXECUTE FUNCTION dragoman.raise_it()",
        )
        with pytest.raises(StorageFailed, match='changes "roles" of key "low" as well'):
            store.set_scopes("low", ["call", "metrics"])
        create(store, "new")
        assert [(key.name, key.roles, key.scopes) for key in store.list()] == [
            ("low", (), ("call",))
        ]


def test_a_user_that_was_changed_in_the_database_is_refused(sealed: PostgresServer) -> None:
    with closing(UsersDatabase(sealed)) as base:
        users = UserStore(base)
        for name in ("anna", "bob"):
            users.add(name)
        users.set_password("anna", "hash")
        code = users.open_enrolment("anna", 60)
        assert users.finish_enrolment(code, "another") is not None
        users.note_sign_in("anna", "password")
        assert [user.name for user in users.list()] == ["anna", "bob"]
        write(sealed, """UPDATE users SET roles = '["owner"]' WHERE name = 'bob'""")
        write(sealed, "UPDATE users SET password = 'of eve' WHERE name = 'anna'")
        assert users.list() == () and users.find("anna") is None
    assert list_refused(sealed) == [("user", "anna"), ("user", "bob")]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE sessions SET \"user\" = 'owner'",
        "UPDATE sessions SET expires_at = 1e12",
        "UPDATE passkeys SET public_key = 'of eve'::bytea",
        "UPDATE grants SET \"user\" = 'owner'",
        """UPDATE grants SET scopes = '["admin"]'""",
        "UPDATE tokens SET grant_id = (SELECT id FROM grants WHERE \"user\" = 'owner')",
        "UPDATE codes SET grant_id = (SELECT id FROM grants WHERE \"user\" = 'owner')",
    ],
)
def test_no_way_in_of_a_user_is_taken_by_a_writer_of_the_database(
    sealed: PostgresServer, statement: str
) -> None:
    with closing(UsersDatabase(sealed)) as base:
        users = UserStore(base)
        grants = ClientGrantStore(base, users)
        codes = {}
        for name in ("owner", "eve"):
            users.add(name, roles=["owner"] if name == "owner" else [])
            codes[name] = grants.open_grant(name, "app", "App", ["call"], "http://hub", "u", "c")
        session = users.open_session("eve", 60)
        users.add_passkey("eve", b"passkey", b"public", 0)
        taken = grants.take_code(codes["eve"])
        assert taken is not None
        token = grants.issue_tokens(taken.grant, 60, 60).access
        second = grants.open_grant("eve", "app", "App", ["call"], "http://hub", "u", "c")

        def list_refusals() -> list[bool]:
            base.note_revoked()  # nothing is answered from memory
            try:
                has_token = grants.find(token) is not None
            except TokenRejected:
                has_token = False
            has_session = users.find_session(session) is not None
            return [has_session, users.find_passkey(b"passkey") is not None, has_token]

        assert all(list_refusals())
        write(sealed, statement)
        assert list_refusals().count(False) == (0 if " codes " in statement else 1)
        is_code_touched = " codes " in statement or " grants " in statement.partition("SET")[0]
        assert (grants.take_code(second) is None) == is_code_touched


def test_no_app_gets_a_code_by_what_was_written_in_the_database(sealed: PostgresServer) -> None:
    with closing(UsersDatabase(sealed)) as base:
        users = UserStore(base)
        users.add("anna")
        grants = ClientGrantStore(base, users)
        app, other = (grants.register_client({"redirect_uris": ["u"]}, "").id for _ in range(2))
        session = users.find_session(users.open_session("anna", 60))
        assert session is not None
        grants.remember_consent(session, app, "u", ["call"], "http://hub")
        grants.remember_consent(session, app, "u", ["call", "list"], "http://hub")
        asked = ("u", ["call", "list"], "http://hub")
        assert grants.has_consent(session, app, *asked) and list_refused(sealed) == []
        write(
            sealed,
            'INSERT INTO consents SELECT "user", session, '
            f"'{other}', redirect_uri, scopes, resource, at FROM consents",
        )
        assert not grants.has_consent(session, other, *asked), "nobody has consented to this one"
        assert grants.has_consent(session, app, *asked)
        write(sealed, """UPDATE consents SET scopes = '["call", "list", "admin"]'""")
        assert not grants.has_consent(session, app, *asked)
        write(sealed, f"UPDATE clients SET metadata = '{{}}' WHERE id = '{other}'")
        assert grants.find_client(other) is None and grants.find_client(app) is not None
        assert [noun for noun, _ in list_refused(sealed)] == [
            "registered client", "consent of a browser session", "consent of a browser session",
        ]  # fmt: skip


def test_an_agent_that_was_changed_in_the_database_is_refused(sealed: PostgresServer) -> None:
    with closing(RegistryStore(sealed)) as store:
        for id in ("a", "b"):
            store.save_agent({"id": id, "org": "default", "slug": id, "url": "https://a.example"})
        store.save_agent({"id": "a", "org": "default", "slug": "a", "url": "https://b.example"})
        assert [row["id"] for row in store.list_agents()] == ["a", "b"]
        write(sealed, "UPDATE agents SET row = replace(row, 'a.example', 'e.example')")
        assert [row["id"] for row in store.list_agents()] == ["a"]


def test_a_call_that_was_approved_in_the_database_is_not_made(sealed: PostgresServer) -> None:
    with closing(DatabaseApprovals(sealed)) as store:
        for id in ("one", "two"):
            request_call(store, id)
        assert store.decide("one", APPROVED, "lea", "", time.time())
        write(sealed, "UPDATE approvals SET state = 'approved', decided_by = 'lea'")
        assert store.find("two") is None and not store.begin("two")
        found = store.find("one")
        assert found is not None and store.begin("one")
        store.finish("one", "completed", "", b"{}", time.time())
        write(sealed, "UPDATE approvals SET outcome = ''")  # once more
        assert not store.begin("one")


def test_what_was_there_before_is_accepted_once(postgres_url: str, tmp_path: Path) -> None:
    with connect(postgres_url, tmp_path, None) as place, closing(KeyStore(place)) as store:
        create(store, "before")  # by a version without seals
        remember(tmp_path, place)
    with connect(postgres_url, tmp_path) as place:
        assert list_keys(place) == ["before"]
        assert begin_sealing(place, tmp_path)
        with connect(postgres_url, tmp_path, None) as outside, closing(KeyStore(outside)) as store:
            create(store, "later")
        assert list_keys(place) == ["before"]
    # Taking the mark away does not make it begin anew, for a hub that has sealed the database.
    with connect(postgres_url, tmp_path, None) as outside:
        write(outside, "DELETE FROM row_seals WHERE of_table = ''")
    with connect(postgres_url, tmp_path) as place:
        assert begin_sealing(place, tmp_path)
        assert list_keys(place) == ["before"]
        # A person who has looked at the rows accepts them.
        assert begin_sealing(place, tmp_path, again=True)
        assert list_keys(place) == ["before", "later"]
    assert (tmp_path / FILE).exists()


@pytest.mark.parametrize("what", ["row_seals", "row_seals WHERE of_table = ''"])
def test_a_hub_with_a_new_home_accepts_nothing_that_is_there(
    postgres_url: str, tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    lasting, fresh = tmp_path / "lasting", tmp_path / "fresh"
    lasting.mkdir()
    fresh.mkdir()
    with connect(postgres_url, lasting) as place:
        assert begin_sealing(place, lasting)
        with closing(KeyStore(place)) as store:
            create(store, "good")
            create(store, "low")
        # Without the mark, the database looks as before there were seals.
        write(place, """UPDATE keys SET roles = '["owner"]' WHERE name = 'low'""")
        write(place, f"DELETE FROM {what}")
    admitted = ["good"] if "WHERE" in what else []
    refused = [("key", name) for name in ("good", "low") if name not in admitted]
    for _ in range(2):  # also when the home has a record of the database
        with connect(postgres_url, fresh) as place:
            assert list_keys(place) == admitted, "a command refuses it, too"
            with caplog.at_level(logging.ERROR):
                assert not begin_sealing(place, fresh)
            assert list_keys(place) == admitted and list_refused(place) == refused
            with closing(KeyStore(place)) as store:
                store.set_scopes("low", ["call"])
            remember(fresh, place)
        assert "if you trust them: dragoman stores seal" in caplog.text
        caplog.clear()
    with connect(postgres_url, lasting) as place:
        assert list_refused(place) == refused
    # A person has looked at the rows.
    with connect(postgres_url, fresh) as place:
        assert begin_sealing(place, fresh, again=True)
        assert list_keys(place) == ["good", "low"]
    with connect(postgres_url, tmp_path / "another") as place:
        assert list_keys(place) == ["good", "low"] and not place.seals.is_unconfirmed


def test_a_new_home_and_an_empty_database_are_sealed_from_the_beginning(
    postgres_url: str, tmp_path: Path
) -> None:
    with connect(postgres_url, tmp_path) as place:
        with closing(KeyStore(place)) as store:
            create(store, "own")
        assert begin_sealing(place, tmp_path)
        with connect(postgres_url, tmp_path, None) as outside, closing(KeyStore(outside)) as store:
            create(store, "other")
        assert list_keys(place) == ["own"]
    with connect(postgres_url, tmp_path / "next") as place:
        assert list_keys(place) == ["own"] and not place.seals.is_unconfirmed


def test_a_hub_with_a_new_home_does_not_replace_policies_of_a_version_before_seals(
    postgres_url: str, tmp_path: Path
) -> None:
    with connect(postgres_url, tmp_path, None) as place, closing(PolicyFiles(place)) as policies:
        assert policies.change({"all.cedar": "forbid"}, {}) == []
    with connect(postgres_url, tmp_path) as place:
        with pytest.raises(ConfigError, match=r"policies among them: .* dragoman stores seal"):
            begin_sealing(place, tmp_path)
        assert begin_sealing(place, tmp_path, again=True)
        with closing(PolicyFiles(place)) as policies:
            assert policies.load().keys() == {"all.cedar"}


def test_a_new_process_of_a_home_accepts_what_was_there_before(
    postgres_url: str, tmp_path: Path
) -> None:
    workers = [tmp_path / "workers" / str(number) for number in range(2)]
    for worker in workers:
        worker.mkdir(parents=True)
    with connect(postgres_url, tmp_path, None) as place, closing(KeyStore(place)) as store:
        create(store, "before")
        remember(tmp_path, place)
    with connect(postgres_url, workers[0]) as place:
        assert begin_sealing(place, workers[0])
        assert list_keys(place) == ["before"]
        write(place, "DELETE FROM row_seals")
    with connect(postgres_url, workers[1]) as place:
        assert begin_sealing(place, workers[1])
        assert list_keys(place) == [], "another process has sealed the database"


def test_rows_count_while_a_hub_without_seals_is_a_member(
    postgres_url: str, tmp_path: Path
) -> None:
    with connect(postgres_url, tmp_path, None) as place:
        place.open(TABLES).close()
        remember(tmp_path, place)
    with connect(postgres_url, tmp_path) as place:
        # As the version before has made it.
        write(place, "CREATE TABLE hubs (id text PRIMARY KEY, state text NOT NULL, heir text)")
        write(place, "INSERT INTO hubs VALUES ('old', 'ready', NULL)")
        with closing(KeyStore(place)) as store:
            create(store, "new")
            assert not begin_sealing(place, tmp_path)
            with connect(postgres_url, tmp_path, None) as old, closing(KeyStore(old)) as older:
                create(older, "old")
                older.set_scopes("new", ["metrics"])
            assert list_keys(place) == ["new", "old"]
            write(place, "UPDATE hubs SET state = 'stopped'")
            assert begin_sealing(place, tmp_path)
            assert list_keys(place) == ["new", "old"]
            assert list_refused(place) == []


def test_another_secret_refuses_everything(sealed: PostgresServer, tmp_path: Path) -> None:
    with closing(KeyStore(sealed)) as store:
        create(store, "good")
    with connect(sealed.url, tmp_path / "fresh", b"x" * 32) as place:
        assert list_keys(place) == []
