"""`users.db`: the users of the hub's own authorization server, their passkeys and browser sessions.

Passwords are stored as Argon2id hashes, ids of sessions and enrolment codes as SHA-256 hashes. The
row of a removed user stays: another person must not get the name, and with it what the first one
has stored. Does not know HTTP, OAuth or how a password is checked.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from dragoman.core.errors import InvalidInput, NotFound, StorageFailed
from dragoman.core.nearest_names import find_nearest
from dragoman.core.users import EndedAccess, Passkey, SessionRecord, UserRecord
from dragoman.stores.database import (
    DatabaseConnection,
    Error,
    IntegrityError,
    StorePlace,
    StoreTables,
    open_database,
)
from dragoman.stores.row_seals import SealedTable, find_seals
from dragoman.stores.sqlite import BUSY_SECONDS

DATABASE = "users.db"
MIGRATIONS = (
    """
    CREATE TABLE users (
        name TEXT PRIMARY KEY,
        org TEXT NOT NULL,
        roles TEXT NOT NULL,
        scopes TEXT NOT NULL,
        password TEXT NOT NULL,
        subject TEXT UNIQUE,
        handle BLOB NOT NULL UNIQUE,
        created_at REAL NOT NULL,
        signed_in_at REAL,
        removed_at REAL,
        enrolment BLOB UNIQUE,
        enrolment_until REAL
    );
    CREATE TABLE passkeys (
        id BLOB PRIMARY KEY,
        user TEXT NOT NULL REFERENCES users (name),
        public_key BLOB NOT NULL,
        sign_count INTEGER NOT NULL,
        created_at REAL NOT NULL,
        used_at REAL
    );
    CREATE INDEX passkeys_by_user ON passkeys (user);
    CREATE TABLE sessions (
        hash BLOB PRIMARY KEY,
        user TEXT NOT NULL REFERENCES users (name),
        created_at REAL NOT NULL,
        expires_at REAL NOT NULL
    );
    CREATE INDEX sessions_by_user ON sessions (user, created_at);
    CREATE TABLE known_browsers (
        hash BLOB PRIMARY KEY,
        user TEXT NOT NULL REFERENCES users (name),
        at REAL NOT NULL
    );
    CREATE INDEX known_browsers_by_user ON known_browsers (user, at);
    CREATE TABLE clients (
        id TEXT PRIMARY KEY,
        metadata TEXT NOT NULL,
        secret BLOB NOT NULL,
        created_at REAL NOT NULL,
        used_at REAL
    );
    CREATE TABLE consents (
        user TEXT NOT NULL REFERENCES users (name),
        session BLOB NOT NULL REFERENCES sessions (hash) ON DELETE CASCADE,
        client TEXT NOT NULL,
        redirect_uri TEXT NOT NULL,
        scopes TEXT NOT NULL,
        resource TEXT NOT NULL,
        at REAL NOT NULL,
        PRIMARY KEY (session, client, redirect_uri, resource)
    );
    CREATE TABLE grants (
        id TEXT PRIMARY KEY,
        user TEXT NOT NULL REFERENCES users (name),
        client TEXT NOT NULL,
        client_name TEXT NOT NULL,
        scopes TEXT NOT NULL,
        resource TEXT NOT NULL,
        created_at REAL NOT NULL,
        used_at REAL NOT NULL
    );
    CREATE INDEX grants_by_user ON grants (user, created_at);
    CREATE TABLE codes (
        hash BLOB PRIMARY KEY,
        grant_id TEXT NOT NULL REFERENCES grants (id) ON DELETE CASCADE,
        redirect_uri TEXT NOT NULL,
        challenge TEXT NOT NULL,
        expires_at REAL NOT NULL,
        used_at REAL
    );
    CREATE INDEX codes_by_grant ON codes (grant_id);
    CREATE TABLE tokens (
        id TEXT PRIMARY KEY,
        hash BLOB NOT NULL,
        grant_id TEXT NOT NULL REFERENCES grants (id) ON DELETE CASCADE,
        kind TEXT NOT NULL,
        created_at REAL NOT NULL,
        expires_at REAL NOT NULL,
        used_at REAL
    );
    CREATE INDEX tokens_by_grant ON tokens (grant_id, kind, created_at);
    CREATE INDEX tokens_by_expiry ON tokens (expires_at);
    CREATE TABLE changes (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        verb TEXT NOT NULL,
        name TEXT NOT NULL,
        details TEXT NOT NULL
    );
    """,
    "ALTER TABLE tokens ADD COLUMN successor BLOB",
)
TABLES = StoreTables(
    "users",
    DATABASE,
    MIGRATIONS,
    # In PostgreSQL, `user` is the role of the connection.
    {"changes": "user_changes", "user": '"user"'},
    counted="users",
    oldest=1,
)

SEALED = SealedTable(
    "users",
    "user",
    (
        "name", "org", "roles", "scopes", "password", "subject", "handle", "created_at",
        "enrolment", "enrolment_until", "removed_at",
    ),
)  # fmt: skip

PASSKEYS = SealedTable("passkeys", "passkey", ("id", "user", "public_key"), has_blob_id=True)
SESSIONS = SealedTable(
    "sessions", "browser session", ("hash", "user", "created_at", "expires_at"), has_blob_id=True
)
GRANTS = SealedTable(
    "grants", "connected app", ("id", "user", "client", "client_name", "scopes", "resource")
)
CODES = SealedTable(
    "codes",
    "authorization code",
    ("hash", "grant_id", "redirect_uri", "challenge", "expires_at"),
    has_blob_id=True,
)
TOKENS = SealedTable("tokens", "token", ("id", "hash", "grant_id", "kind", "expires_at"))
CLIENTS = SealedTable("clients", "registered client", ("id", "metadata", "secret", "created_at"))
CONSENTS = SealedTable(
    "consents",
    "consent of a browser session",
    ("session", "client", "redirect_uri", "resource", "user", "scopes"),
    has_blob_id=True,
    id_columns=4,
)
SEALED_ACCESS = (PASSKEYS, SESSIONS, GRANTS, CODES, TOKENS, CLIENTS, CONSENTS)
"""The sealed columns of these rows do not change, except that a consent is given anew."""

ADD, CHANGE, REMOVE = "user.add", "user.change", "user.remove"
SIGN_IN, SIGN_OUT = "user.sign_in", "user.sign_out"

MAX_USERS = 10_000
MAX_SESSIONS = 50
"""Browser sessions of one user; a new one ends the oldest."""
MAX_BROWSERS = 50
"""Browsers of one user that are remembered; a new one replaces the oldest."""
MAX_PASSKEYS = 20
MAX_LISTED = 100
"""Roles, and scopes."""
MAX_CHANGES = 10_000
"""Changes that wait for the hub to record them."""
LOOK_SECONDS = 0.25
"""How long a change by another process may go unnoticed."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._@+-]{0,63}", re.ASCII)
_ROLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}", re.ASCII)
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,100}")
"""RFC 6749, section 3.3."""
_TEXT = re.compile(r"[^\x00-\x1f\x7f]{1,200}")


class UsersDatabase:
    """The connection that the stores in `users.db` share, and its changes by other processes."""

    def __init__(self, place: StorePlace, *, busy_seconds: float = BUSY_SECONDS) -> None:
        self._base = open_database(place, TABLES, busy_seconds=busy_seconds)
        self.db, self._writer = self._base.db, self._base.writer
        self.seals = find_seals(place)
        self._data_version = self._read_version()
        self._looked = time.monotonic()
        self.version = 0
        """Increases when access may have been taken from someone: here or by another process."""

    def read(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        try:
            return self.db.execute(query, values).fetchall()
        except Error as error:
            raise self._build_error("read", error) from error

    def read_sealed(
        self, table: SealedTable, source: str, values: Sequence[Any], more: str = ""
    ) -> list[Any]:
        """Reads the sealed columns of admitted rows, and `more` columns."""
        selection = self.seals.build_selection(table) + (f", {more}" if more else "")
        rows = self.read(f"SELECT {selection} FROM {source}", values)
        size = len(table.columns)
        return [(*row[:size], *row[size + 1 :]) for row in rows if self.seals.admits(table, row)]

    @contextmanager
    def transact(self) -> Iterator[DatabaseConnection]:
        """Raises `StorageFailed`; a constraint that is not met stays an `IntegrityError`."""
        try:
            with self._writer.transaction():
                yield self.db
        except IntegrityError:
            raise
        except Error as error:
            raise self._build_error("written", error) from error

    @contextmanager
    def change_user(self, name: str, *columns: str) -> Iterator[DatabaseConnection]:
        """A transaction that changes the columns in the row of a user, and seals it."""
        with self.transact() as db, self.seals.change(db, SEALED, name, sets=columns):
            yield db

    def note_revoked(self) -> None:
        self.version += 1

    def refresh(self, pause: float = 0.0) -> None:
        """Notes changes by other processes; looks at most every `pause` seconds."""
        now = time.monotonic()
        if now - self._looked < pause:
            return
        try:
            self._base.check()  # revocations in a replaced file would go unnoticed
            version = self._base.read_version(now=False)
        except Error as error:
            raise self._build_error("read", error) from error
        if version != self._data_version:
            self._data_version = version
            self.version += 1
        self._looked = now

    def _read_version(self) -> int:
        try:
            return self._base.read_version()
        except Error as error:
            raise self._build_error("read", error) from error

    def _build_error(self, how: str, error: Exception) -> StorageFailed:
        return StorageFailed(
            f'users cannot be checked: "{self._base.name}" cannot be {how} ({error})'
        )

    def close(self) -> None:
        self._base.close()


class UserStore:
    """All methods raise `StorageFailed` if the database cannot be used."""

    def __init__(self, base: UsersDatabase) -> None:
        self._base = base

    # --- users -----------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        *,
        org: str = "default",
        roles: Sequence[str] = (),
        scopes: Sequence[str] = ("call",),
        password: str = "",
        subject: str = "",
        by: str = "cli",
        restore: bool = False,
    ) -> UserRecord:
        """Adds a user. `restore` also takes the name of a removed one, who then has what they had
        stored. `by` is what added the user, for the record."""
        name = fold_name(name)
        _check_fields(name, org, roles, scopes)
        if self.read_count() >= MAX_USERS:
            raise InvalidInput(f"there are {MAX_USERS} users, which is the most that a hub has")
        lists = [msgspec.json.encode(list(each)).decode() for each in (roles, scopes)]
        handle, now = secrets.token_bytes(32), time.time()
        row = (name, org, *lists, password, subject or None, handle, now, None, None, None)
        try:
            with self._base.transact() as db:
                if restore:
                    db.execute(
                        "DELETE FROM users WHERE name = ? AND removed_at IS NOT NULL", (name,)
                    )
                places = ", ".join("?" * len(row))
                db.execute(f"INSERT INTO users ({SEALED.listed}) VALUES ({places})", row)
                self._base.seals.put(db, SEALED, row)
                note_change(db, ADD, name, {"org": org, "roles": list(roles), "by": by})
        except IntegrityError as error:
            removed = self._base.read(
                "SELECT 1 FROM users WHERE name = ? AND removed_at IS NOT NULL", (name,)
            )
            hint = "choose another name"
            if removed:
                hint = (
                    "and was removed: what that person has stored belongs to the name; choose "
                    "another name, or give it to the same person again with --restore"
                )
            raise InvalidInput(f'a user named "{name}" already exists; {hint}') from error
        found = self.find(name)
        assert found is not None
        return found

    def find(self, name: str) -> UserRecord | None:
        return self._find_one("name = ?", fold_name(name))

    def get(self, name: str) -> UserRecord:
        """Raises `NotFound`, with the nearest name."""
        found = self.find(name)
        if found is None:
            names = [one.name for one in self.list()]
            near = find_nearest(fold_name(name), names)
            hint = f'; did you mean "{near}"?' if near else ""
            raise NotFound(f'there is no user named "{name[:64]}"{hint}')
        return found

    def find_by_subject(self, subject: str) -> UserRecord | None:
        return self._find_one("subject = ?", subject)

    def list(self) -> tuple[UserRecord, ...]:
        """Lists the users, ordered by name, without removed ones."""
        return tuple(self._read("removed_at IS NULL ORDER BY name"))

    def read_count(self) -> int:
        count: int = self._base.read("SELECT count(*) FROM users")[0][0]
        return count

    def set_password(self, name: str, password: str, *, keep: bool = False) -> EndedAccess:
        """Sets the hash of a password, and ends all access of the user unless `keep`."""
        with self._base.change_user(name, "password") as db:
            db.execute("UPDATE users SET password = ? WHERE name = ?", (password, name))
            ended = EndedAccess() if keep else _end_everything(db, name)
            note_change(db, CHANGE, name, {"what": "password"})
        self._base.note_revoked()
        return ended

    def end_access(self, name: str) -> EndedAccess:
        """Ends all access of a user who will choose a new password: the old one, too."""
        with self._base.change_user(name, "password") as db:
            db.execute("UPDATE users SET password = '' WHERE name = ?", (name,))
            ended = _end_everything(db, name)
            note_change(db, CHANGE, name, {"what": "access ended"})
        self._base.note_revoked()
        return ended

    def bind_subject(self, name: str, subject: str) -> None:
        """Binds a user to an identity of a provider. Raises `InvalidInput` if it has one."""
        try:
            with self._base.change_user(name, "subject") as db:
                done = db.execute(
                    "UPDATE users SET subject = ? WHERE name = ? AND subject IS NULL "
                    "AND password = '' AND enrolment IS NULL AND removed_at IS NULL",
                    (subject, name),
                )
                if done.rowcount:
                    note_change(db, CHANGE, name, {"what": "identity"})
        except IntegrityError:
            raise InvalidInput("this identity belongs to another user") from None
        if done.rowcount == 0:
            raise InvalidInput(f'the user "{name}" signs in differently')

    def note_sign_in(self, name: str, how: str) -> None:
        with self._base.transact() as db:
            db.execute("UPDATE users SET signed_in_at = ? WHERE name = ?", (time.time(), name))
            note_change(db, SIGN_IN, name, {"how": how})

    def remove(self, name: str) -> None:
        """Removes a user and ends everything of theirs; other processes notice within a second."""
        found = self.get(name)
        columns = ("removed_at", "password", "subject", "enrolment", "enrolment_until")
        with self._base.change_user(found.name, *columns) as db:
            db.execute(
                "UPDATE users SET removed_at = ?, password = '', subject = NULL, enrolment = NULL, "
                "enrolment_until = NULL WHERE name = ?",
                (time.time(), found.name),
            )
            _end_everything(db, found.name)
            note_change(db, REMOVE, found.name, {})
        self._base.note_revoked()

    def _find_one(self, condition: str, value: object) -> UserRecord | None:
        return next(self._read(f"{condition} AND removed_at IS NULL", (value,)), None)

    def _read(self, condition: str, values: Sequence[Any] = ()) -> Iterator[UserRecord]:
        source = f"users WHERE {condition}"
        return map(_user_from_row, self._base.read_sealed(SEALED, source, values, "signed_in_at"))

    # --- enrolment -------------------------------------------------------------------------------

    def open_enrolment(self, name: str, seconds: float) -> str:
        """Returns a code with which the user sets a password, once; it replaces an earlier one."""
        code = secrets.token_urlsafe(32)
        with self._base.change_user(name, "enrolment", "enrolment_until") as db:
            db.execute(
                "UPDATE users SET enrolment = ?, enrolment_until = ? WHERE name = ?",
                (hash_secret(code), time.time() + seconds, name),
            )
        return code

    def find_enrolment(self, code: str) -> UserRecord | None:
        found = self._find_one("enrolment = ?", hash_secret(code))
        if found is None or (found.enrolment_until or 0) <= time.time():
            return None
        return found

    def finish_enrolment(self, code: str, password: str) -> UserRecord | None:
        """Sets the hash of the first password, or another one, and ends all earlier access; None
        if the code is not valid."""
        found = self.find_enrolment(code)
        if found is None:
            return None
        columns = ("password", "enrolment", "enrolment_until")
        with self._base.change_user(found.name, *columns) as db:
            done = db.execute(
                "UPDATE users SET password = ?, enrolment = NULL, enrolment_until = NULL "
                "WHERE enrolment = ?",
                (password, hash_secret(code)),
            )
            if done.rowcount == 0:
                return None
            _end_everything(db, found.name)
            note_change(db, CHANGE, found.name, {"what": "password"})
        self._base.note_revoked()
        return found

    # --- passkeys --------------------------------------------------------------------------------

    def add_passkey(self, user: str, id: bytes, public_key: bytes, sign_count: int) -> None:
        if len(self.list_passkeys(user)) >= MAX_PASSKEYS:
            raise InvalidInput(f"a user has at most {MAX_PASSKEYS} passkeys; remove one first")
        try:
            with self._base.transact() as db:
                db.execute(
                    "INSERT INTO passkeys VALUES (?, ?, ?, ?, ?, NULL)",
                    (id, user, public_key, sign_count, time.time()),
                )
                self._base.seals.put(db, PASSKEYS, (id, user, public_key))
                note_change(db, CHANGE, user, {"what": "passkey"})
        except IntegrityError:
            raise InvalidInput("this passkey is already in use") from None

    def find_passkey(self, id: bytes) -> Passkey | None:
        return next(iter(self._read_passkeys("id = ?", id)), None)

    def list_passkeys(self, user: str) -> Sequence[Passkey]:
        return self._read_passkeys("user = ? ORDER BY created_at", user)

    def _read_passkeys(self, condition: str, value: object) -> Sequence[Passkey]:
        rows = self._base.read_sealed(
            PASSKEYS, f"passkeys WHERE {condition}", (value,), "sign_count, created_at, used_at"
        )
        return [Passkey(*row) for row in rows]

    def note_passkey_used(self, id: bytes, sign_count: int) -> None:
        with self._base.transact() as db:
            db.execute(
                "UPDATE passkeys SET sign_count = ?, used_at = ? WHERE id = ?",
                (sign_count, time.time(), id),
            )

    def remove_passkeys(self, user: str) -> None:
        with self._base.transact() as db:
            db.execute("DELETE FROM passkeys WHERE user = ?", (user,))
            note_change(db, CHANGE, user, {"what": "passkeys removed"})

    # --- browser sessions ------------------------------------------------------------------------

    def open_session(self, user: str, seconds: float) -> str:
        """Returns the id of a new browser session, which is stored as a hash."""
        id, now = secrets.token_urlsafe(32), time.time()
        with self._base.transact() as db:
            db.execute("DELETE FROM sessions WHERE expires_at <= ?", (now,))
            row = (hash_secret(id), user, now, now + seconds)
            db.execute("INSERT INTO sessions VALUES (?, ?, ?, ?)", row)
            self._base.seals.put(db, SESSIONS, row)
            db.execute(
                "DELETE FROM sessions WHERE user = ? AND hash NOT IN (SELECT hash FROM sessions "
                "WHERE user = ? ORDER BY created_at DESC LIMIT ?)",
                (user, user, MAX_SESSIONS),
            )
        return id

    def find_session(self, id: str) -> SessionRecord | None:
        rows = self._base.read_sealed(SESSIONS, "sessions WHERE hash = ?", (hash_secret(id),))
        if not rows or rows[0][3] <= time.time():
            return None
        return SessionRecord(*rows[0])

    def close_session(self, id: str) -> None:
        with self._base.transact() as db:
            user = db.execute(
                "DELETE FROM sessions WHERE hash = ? RETURNING user", (hash_secret(id),)
            ).fetchone()
            if user:
                note_change(db, SIGN_OUT, user[0], {})

    def remember_browser(self, user: str) -> str:
        """Returns an id by which a browser is recognised that the user has signed in with."""
        id = secrets.token_urlsafe(32)
        with self._base.transact() as db:
            db.execute(
                "INSERT INTO known_browsers VALUES (?, ?, ?)", (hash_secret(id), user, time.time())
            )
            db.execute(
                "DELETE FROM known_browsers WHERE user = ? AND hash NOT IN (SELECT hash FROM "
                "known_browsers WHERE user = ? ORDER BY at DESC LIMIT ?)",
                (user, user, MAX_BROWSERS),
            )
        return id

    def is_known_browser(self, id: str, user: str) -> bool:
        rows = self._base.read("SELECT user FROM known_browsers WHERE hash = ?", (hash_secret(id),))
        return bool(rows) and rows[0][0] == fold_name(user)

    # --- the record of changes -------------------------------------------------------------------

    def record_next(self, record: Callable[[str, str, Mapping[str, Any]], None]) -> bool:
        """Has the oldest change recorded, by one of the hubs that share the users, and forgets it.
        Returns whether there was one."""
        oldest = "SELECT number, verb, name, details FROM changes ORDER BY number LIMIT 1"
        if not self._base.read(oldest):
            return False
        with self._base.transact() as db:
            row = db.execute(oldest).fetchone()
            if row is None:  # another hub was faster
                return False
            record(row[1], row[2], msgspec.json.decode(row[3]))
            db.execute("DELETE FROM changes WHERE number = ?", (row[0],))
        return True


def fold_name(name: str) -> str:
    """User names are equal in upper and lower case."""
    return name.strip().lower()[:200]


def hash_secret(text: str) -> bytes:
    # Plain SHA-256 is enough for 256 random bits, which cannot be guessed.
    return hashlib.sha256(text.encode()).digest()


def note_change(db: DatabaseConnection, verb: str, name: str, details: Mapping[str, Any]) -> None:
    """Notes a change for the audit log, in the transaction that makes it."""
    db.execute(
        "INSERT INTO changes (verb, name, details) VALUES (?, ?, ?)",
        (verb, name, msgspec.json.encode(details).decode()),
    )
    db.execute(
        "DELETE FROM changes WHERE number <= (SELECT max(number) FROM changes) - ?", (MAX_CHANGES,)
    )


def _end_everything(db: DatabaseConnection, user: str) -> EndedAccess:
    """Ends every way in but the password and the identity provider: a person who had the old
    password may have added a passkey, or known the browser that has a limit of its own."""
    tables = ("sessions", "grants", "passkeys", "known_browsers")
    return EndedAccess(
        *(db.execute(f"DELETE FROM {table} WHERE user = ?", (user,)).rowcount for table in tables)
    )


def _check_fields(name: str, org: str, roles: Sequence[str], scopes: Sequence[str]) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"invalid user name {name[:80]!r}: use up to 64 letters, digits and . _ @ + -, "
            "beginning with a letter or a digit"
        )
    if not _TEXT.fullmatch(org):
        raise InvalidInput(f"invalid org {org[:80]!r}: use 1 to 200 characters")
    for what, given, shape in (("role", roles, _ROLE), ("scope", scopes, _SCOPE)):
        if len(given) > MAX_LISTED:
            raise InvalidInput(f'the user "{name}" would have more than {MAX_LISTED} {what}s')
        for one in given:
            if not shape.fullmatch(one):
                raise InvalidInput(
                    f"invalid {what} {one[:80]!r}: use letters, digits, dots, colons, hyphens "
                    "and underscores"
                )


def _user_from_row(row: tuple[Any, ...]) -> UserRecord:
    name, org, roles, scopes, password, subject, handle, created_at, *rest = row
    _, enrolment_until, _, signed_in_at = rest
    lists = decode_texts(roles), decode_texts(scopes)
    times = created_at, signed_in_at, enrolment_until
    return UserRecord(name, org, *lists, password, subject or "", handle, *times)


def decode_texts(listed: str) -> tuple[str, ...]:
    return msgspec.json.decode(listed, type=tuple[str, ...])
