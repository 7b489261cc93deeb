from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from dragoman.core.errors import ConfigError
from dragoman.stores.sqlite import SqliteWriter, find_damage, open_store, open_to_read

ONE = "CREATE TABLE people (name TEXT);\nINSERT INTO people VALUES ('ada');"
TWO = "ALTER TABLE people ADD COLUMN born INTEGER;"


def pragma(db: sqlite3.Connection, name: str) -> object:
    return db.execute(f"PRAGMA {name}").fetchone()[0]


def test_a_new_store_is_private_and_set_up_to_survive_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    db = open_store(path, [ONE])
    names = {each.name: each.stat().st_mode & 0o777 for each in tmp_path.iterdir()}
    assert names == {"new.db": 0o600, "new.db-wal": 0o600, "new.db-shm": 0o600}
    assert pragma(db, "journal_mode") == "wal"
    assert pragma(db, "synchronous") == 1
    assert pragma(db, "foreign_keys") == 1
    assert pragma(db, "busy_timeout") == 2000
    assert db.isolation_level is None
    db.close()
    durable = open_store(path, [ONE], durable=True)
    assert pragma(durable, "synchronous") == 2
    durable.close()


def test_store_readable_by_others_is_made_private(tmp_path: Path) -> None:
    path = tmp_path / "open.db"
    path.touch(0o644)
    open_store(path, [ONE]).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_older_store_is_migrated_and_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    open_store(path, []).close()
    db = open_store(path, [ONE])
    assert pragma(db, "user_version") == 1
    db.execute("INSERT INTO people VALUES ('grace')")
    db.close()
    for _ in range(2):
        db = open_store(path, [ONE, TWO])
        assert pragma(db, "user_version") == 2
        assert db.execute("SELECT * FROM people").fetchall() == [("ada", None), ("grace", None)]
        db.close()


def test_failed_migration_leaves_the_store_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "half.db"
    open_store(path, [ONE]).close()
    with pytest.raises(ConfigError, match=r"half\.db"):
        open_store(path, [ONE, "DELETE FROM people;\nALTER TABLE nobody ADD COLUMN x;"])
    db = open_store(path, [ONE])
    assert pragma(db, "user_version") == 1
    assert db.execute("SELECT * FROM people").fetchall() == [("ada",)]
    db.close()


def test_newer_store_is_refused_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "newer.db"
    open_store(path, [ONE, TWO]).close()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r'newer\.db" was written by a newer dragoman'):
        open_store(path, [ONE])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"this is no database at all, only a text file" * 100,
        lambda whole: whole[:100] + b"\xff" * (len(whole) - 100),
    ],
)
def test_damaged_store_is_refused_with_a_remedy(damage, tmp_path: Path) -> None:
    path = tmp_path / "bad.db"
    open_store(path, [ONE]).close()
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ConfigError, match=r'bad\.db" is damaged .* restore it from a backup'):
        open_store(path, [ONE])


def test_store_in_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no directory"):
        open_store(tmp_path / "nowhere" / "x.db", [ONE])


def test_store_opened_for_reading_rejects_writes(tmp_path: Path) -> None:
    path = tmp_path / "a #? b.db"
    open_store(path, [ONE]).close()
    db = open_to_read(path, 1)
    assert db.execute("SELECT name FROM people").fetchall() == [("ada",)]
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        db.execute("DELETE FROM people")
    db.close()
    with pytest.raises(ConfigError, match=r"none\.db"):
        open_to_read(tmp_path / "none.db", 1)
    with pytest.raises(ConfigError, match="newer dragoman"):
        open_to_read(path, 0)


def test_writer_waits_once_for_a_locked_store_until_a_write_succeeds(
    tmp_path: Path,
) -> None:
    path = tmp_path / "held.db"
    db = open_store(path, [ONE], busy_seconds=0.02)
    writer = SqliteWriter(db, path, 0.02)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert pragma(db, "busy_timeout") == 20
    for _ in range(2):
        with pytest.raises(sqlite3.OperationalError, match="locked"), writer.transaction():
            raise AssertionError
        assert pragma(db, "busy_timeout") == 0
    other.execute("ROLLBACK")
    with writer.transaction():
        db.execute("INSERT INTO people VALUES ('grace')")
    assert pragma(db, "busy_timeout") == 20
    with pytest.raises(ZeroDivisionError), writer.transaction():
        db.execute("DELETE FROM people")
        _ = 1 / 0
    assert db.execute("SELECT count(*) FROM people").fetchone() == (2,)
    other.close()
    db.close()


def test_integrity_check_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    db = open_store(path, [ONE])
    db.executemany("INSERT INTO people VALUES (?)", [("x" * 500,)] * 100)
    db.close()
    assert find_damage(path, 10) == ""
    data = path.read_bytes()
    path.write_bytes(data[:8192] + b"\xff" * 4096 + data[12288:])
    assert find_damage(path, 10)
    index = "CREATE INDEX people_by_name ON people (name)"
    path = tmp_path / "other.db"
    db = open_store(path, [ONE, f"{index};"])
    db.executemany("INSERT INTO people VALUES (?)", [(f"person {n}",) for n in range(20)])
    root = db.execute("SELECT rootpage FROM sqlite_master WHERE sql = ?", (index,)).fetchone()[0]
    db.close()
    assert find_damage(path, 10) == ""
    data, start = path.read_bytes(), (root - 1) * 4096
    page = data[start : start + 4096].replace(b"person 7", b"person 8", 1)
    path.write_bytes(data[:start] + page + data[start + 4096 :])  # the index lacks a row
    assert "missing from index" in find_damage(path, 10)
    path.write_bytes(b"no database at all" * 100)
    assert "not a database" in find_damage(path, 10)
