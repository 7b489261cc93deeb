"""Pin storage: atomic, durable, bounded."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from dragoman.core.errors import ConfigError, StorageFailed
from dragoman.core.ports import Pin, PinChange, PinDecision
from dragoman.core.structs import replace
from dragoman.stores import pins as stores
from dragoman.stores.database import StorePlace
from dragoman.stores.pins import DatabasePins

A = Pin("files", "tool", "a", "files.a", b"m" * 32, 1.5, "first sight", size=4)


def decision(number: int, target: str = "files") -> PinDecision:
    return PinDecision(float(number), "ann", "approve", target, "tool", "a", "files.a", "d")


def test_saved_pins_are_loaded(tmp_path: Path) -> None:
    store = DatabasePins(tmp_path)
    b = Pin("web", "card", "", "web", held_mark=b"h" * 32, held_at=2.5, held_size=3)
    same = replace(A, kind="prompt")
    store.save([PinChange(A, approved=b"body"), PinChange(b, held=b"new"), PinChange(same)], ())
    store.close()
    store = DatabasePins(tmp_path)
    assert sorted(store.load("files"), key=lambda pin: pin.kind) == [replace(same, size=0), A]
    assert store.load("web") == [b] and store.load("x") == []
    assert [pin.name for pin in store.load(None)] == ["files.a", "files.a", "web"]
    assert store.load_bodies(A) == (b"body", b"") and store.load_bodies(b) == (b"", b"new")
    assert store.load_bodies(replace(A, id="x")) == (b"", b"")
    assert (tmp_path / "pins.db").stat().st_mode & 0o077 == 0
    store.close()


def test_omitted_body_is_kept_and_unquarantined_body_is_removed(store_place: StorePlace) -> None:
    store = DatabasePins(store_place)
    store.save([PinChange(A, approved=b"old")], ())
    held = replace(A, held_mark=b"h", held_size=3)
    store.save([PinChange(held, held=b"new")], ())
    assert store.load_bodies(A) == (b"old", b"new")
    store.save([PinChange(replace(held, rejected_by="ann"))], ())
    assert store.load_bodies(A) == (b"old", b"new") and store.load("files")[0].rejected_by == "ann"
    store.save([PinChange(replace(A, approved_by="ann"), approved=b"new")], ())
    assert store.load_bodies(A) == (b"new", b"")
    assert store.load("files") == [replace(A, approved_by="ann", size=3)]
    store.close()


def test_save_is_atomic(store_place: StorePlace) -> None:
    store = DatabasePins(store_place)
    bad = replace(A, id="b", name=None)
    with pytest.raises(StorageFailed, match="cannot be written"):
        store.save([PinChange(A), PinChange(bad)], [decision(1)])
    assert store.load(None) == [] and store.load_decisions(A, 10) == []
    store.save([PinChange(A)], ())
    assert store.load(None) == [replace(A, size=0)]
    store.close()


def test_pin_store_waits_a_bounded_time_for_another_writer(tmp_path: Path) -> None:
    store = DatabasePins(tmp_path)
    other = sqlite3.connect(tmp_path / "pins.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageFailed, match="locked"):
        store.save([PinChange(A)], ())
    other.execute("ROLLBACK")
    other.close()
    store.save([PinChange(A)], ())
    assert store.load("files")
    store.close()


def test_decisions_are_kept_newest_first_and_bounded(
    store_place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "MAX_DECISIONS", 5)
    store = DatabasePins(store_place)
    for number in range(8):
        store.save([], [decision(number)])
    assert [one.at for one in store.load_decisions(A, 100)] == [7, 6, 5, 4, 3]
    assert [one.at for one in store.load_decisions(A, 2)] == [7, 6]
    assert store.load_decisions(replace(A, id="x"), 100) == []
    store.close()


def test_forgetting_a_target_keeps_other_targets_and_decisions(store_place: StorePlace) -> None:
    store = DatabasePins(store_place)
    store.save([PinChange(A), PinChange(replace(A, target="web"))], [decision(1)])
    store.forget("files", decision(2))
    assert [pin.target for pin in store.load(None)] == ["web"]
    assert [one.at for one in store.load_decisions(A, 10)] == [2, 1]
    store.close()


def test_invalid_pin_database_is_reported(tmp_path: Path) -> None:
    (tmp_path / "pins.db").write_bytes(b"no database, but long enough to look like a file" * 100)
    with pytest.raises(ConfigError, match="damaged"):
        DatabasePins(tmp_path)


def test_missing_table_is_a_refusal(tmp_path: Path) -> None:
    store = DatabasePins(tmp_path)
    other = sqlite3.connect(tmp_path / "pins.db", isolation_level=None)
    other.execute("DROP TABLE pins")
    other.close()
    for ask in (
        lambda: store.load("files"),
        lambda: store.load(None),
        lambda: store.load_bodies(A),
    ):
        with pytest.raises(StorageFailed, match="cannot be read"):
            ask()
    with pytest.raises(StorageFailed, match="cannot be written"):
        store.save([PinChange(A)], ())
    with pytest.raises(StorageFailed, match="cannot be written"):
        store.forget("files", decision(1))
    store.close()
