from __future__ import annotations

import stat
from pathlib import Path

import pytest

from dragoman.core.errors import StorageFailed
from dragoman.stores import registry
from dragoman.stores.database import StorePlace
from dragoman.stores.registry import RegistryStore

pytestmark = pytest.mark.promise("R10")


def row(id: str, slug: str = "ops", **more: object) -> dict[str, object]:
    return {"id": id, "org": "default", "slug": slug, **more}


def test_registry_rows_survive_a_restart_and_deletion_removes_them(tmp_path: Path) -> None:
    store = RegistryStore(tmp_path)
    store.save_agent(row("2", "zebra"))
    store.save_agent(row("1", "ape", entry={"url": "http://a"}))
    store.save_agent(row("1", "ape", entry={"url": "http://b"}))
    store.close()
    assert stat.S_IMODE((tmp_path / "registry.db").stat().st_mode) == 0o600
    again = RegistryStore(tmp_path)
    assert again.list_agents() == [row("1", "ape", entry={"url": "http://b"}), row("2", "zebra")]
    again.delete_agent("1")
    assert [one["id"] for one in again.list_agents()] == ["2"]
    again.close()


def test_slug_is_unique_within_an_org(store_place: StorePlace) -> None:
    store = RegistryStore(store_place)
    store.save_agent(row("1"))
    with pytest.raises(StorageFailed, match="cannot be written"):
        store.save_agent(row("2"))
    store.save_agent({**row("3"), "org": "another"})
    store.close()


def test_cards_are_stored_verbatim_once_and_newest_first(store_place: StorePlace) -> None:
    store = RegistryStore(store_place)
    one, two = b'{ "name": "A" }\n', b'{"name":"\xc3\xa9"}'
    store.save_card("a", "d1", one, 1.0)
    store.save_card("a", "d2", two, 2.0)
    store.save_card("b", "d1", one, 2.5)
    assert store.list_cards("a") == [("d2", 2.0, len(two)), ("d1", 1.0, len(one))]
    store.save_card("a", "d1", one, 3.0)  # it has gone back to that
    assert store.list_cards("a") == [("d1", 3.0, len(one)), ("d2", 2.0, len(two))]
    assert store.load_card("a", "d2") == two and store.load_card("a", "d1") == one
    assert store.load_card("a", "none") is None and store.list_cards("nobody") == []
    store.delete_agent("a")
    assert store.list_cards("a") == [] and len(store.list_cards("b")) == 1
    store.close()


def test_the_last_fifty_cards_are_kept(store_place: StorePlace) -> None:
    store = RegistryStore(store_place)
    for n in range(60):
        store.save_card("a", f"d{n}", b"{}", float(n))
    assert [digest for digest, _, _ in store.list_cards("a")] == [f"d{n}" for n in range(59, 9, -1)]
    store.close()


def test_stored_cards_are_bounded_in_bytes(
    store_place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MAX_CARD_BYTES", 1_000)
    store = RegistryStore(store_place)
    for n in range(6):
        store.save_card("a", f"d{n}", b"x" * 300, float(n))
    assert [digest for digest, _, _ in store.list_cards("a")] == ["d5", "d4", "d3"]
    for n in range(6, 9):
        store.save_card("a", f"d{n}", b"x" * 2_000, float(n))
    assert [digest for digest, _, _ in store.list_cards("a")] == ["d8", "d7"]
    store.close()
