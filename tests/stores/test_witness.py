"""A missing store is detected, whatever else was deleted with it; ordinary maintenance is not
reported.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import chain, combinations
from pathlib import Path

import pytest

from dragoman.app.build import build_app
from dragoman.config import Config, load
from dragoman.core.errors import ConfigError, InvalidInput, StorageFailed
from dragoman.core.principal import OWNER
from dragoman.stores.audit.verify import verify
from dragoman.stores.keys import KeyStore
from dragoman.stores.store_inventory import DATABASES, StoreLoss, accept_losses, survey_stores

CONFIG = '[a2a]\nenabled = true\n[tools]\nclients = ["system_time"]\n'
AUDIT_FILES = ("audit.db", "audit.key", "audit.head", "audit.journal")
STORES = {name: file for name, file in DATABASES.items() if name != "users"}
"""Those of a home without `[auth.server]`."""
PARTS = {
    **{name: (file,) for name, file in STORES.items()},
    "audit": AUDIT_FILES,
    "home-key": ("hub.key",),
    "record": ("stores.json",),
}
"""The files that are deleted together, by what is lost with them."""


async def run_hub(home: Path) -> None:
    app = build_app(home, load(home / "config.toml"), "mcp")
    app.parts.stores.audit.conclude(
        app.parts.stores.audit.intend({"verb": "x"}), {"outcome": "completed"}
    )
    await app.stop()


@pytest.fixture(scope="module")
def used_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home that a hub has run on."""
    made = tmp_path_factory.mktemp("used")
    made.chmod(0o700)
    (made / "config.toml").write_text(CONFIG, encoding="utf-8")
    asyncio.run(run_hub(made))
    return made


@pytest.fixture
def home(used_home: Path, tmp_path: Path) -> Path:
    """A copy of it, which a test may do anything to."""
    return Path(shutil.copytree(used_home, tmp_path / "home"))


def names_lost(home: Path) -> set[str]:
    return {loss.name for loss in survey_stores(home, home / "policies").losses}


def proper_subsets() -> Iterator[tuple[str, ...]]:
    sizes = range(1, len(PARTS))
    return chain.from_iterable(combinations(PARTS, size) for size in sizes)


@pytest.mark.parametrize("empty", [False, True], ids=["deleted", "emptied"])
async def test_deleted_store_is_detected_while_any_other_remains(
    home: Path, tmp_path: Path, empty: bool
) -> None:
    for number, subset in enumerate(proper_subsets()):
        place = tmp_path / str(number)
        shutil.copytree(home, place)
        for file in chain.from_iterable(PARTS[part] for part in subset):
            if empty and file.endswith(".db"):
                (place / file).write_bytes(b"")
            else:
                (place / file).unlink()
        missing = set(subset) - {"record"}
        if missing >= set(STORES) and "record" in subset:
            missing -= {"tasks", "agents"}  # not every home has had one
        assert names_lost(place) >= missing, subset
        if not missing:
            await run_hub(place)  # the copies are enough


async def test_lost_store_stops_the_start_with_both_remedies(home: Path) -> None:
    (home / "pins.db").unlink()
    with pytest.raises(ConfigError) as failed:
        await run_hub(home)
    for said in (str(home / "pins.db"), "from a backup", "dragoman stores accept-loss pins"):
        assert said in str(failed.value)
    with pytest.raises(InvalidInput, match="is not lost"):
        accept_losses(home, home / "policies", ["registry"], "me")
    accepted = accept_losses(home, home / "policies", ["pins"], "me")
    assert [(loss.name, loss.how) for loss in accepted] == [("pins", "is missing")]
    await run_hub(home)
    assert verify(home).ok


async def test_ordinary_home_maintenance_is_not_a_loss(home: Path, tmp_path: Path) -> None:
    old = tmp_path / "backup"
    shutil.copytree(home, old)
    await run_hub(home)
    shutil.copy(old / "pins.db", home / "pins.db")  # one older database
    await run_hub(home)
    home.rename(tmp_path / "moved")
    await run_hub(tmp_path / "moved")
    shutil.rmtree(tmp_path / "moved")
    shutil.copytree(old, home)  # the whole of a backup
    await run_hub(home)
    assert verify(home).ok


async def test_restored_audit_is_a_loss_and_a_break_once_accepted(
    home: Path, tmp_path: Path
) -> None:
    old = tmp_path / "backup"
    shutil.copytree(home, old)
    await run_hub(home)
    entries = verify(home).last_seq
    for file in AUDIT_FILES:
        shutil.copy(old / file, home / file)
    with pytest.raises(ConfigError, match=r"audit\.db.* ends at entry \d+, but had \d+"):
        await run_hub(home)
    accept_losses(home, home / "policies", ["audit"], "me")
    await run_hub(home)
    verdict = verify(home)
    assert not verdict.ok and "me has accepted the loss" in (verdict.problem or "")
    assert verdict.at_seq == entries + 1  # no number is given twice


async def test_home_of_an_older_version_is_adopted(home: Path) -> None:
    (home / "stores.json").unlink()
    for file in STORES.values():
        with closing(sqlite3.connect(home / file)) as db:
            version = db.execute("PRAGMA user_version").fetchone()
            db.execute("DROP TABLE home_store")
            assert db.execute("PRAGMA user_version").fetchone() == version  # it opens there too
    await run_hub(home)
    (home / "hub.db").unlink()
    assert names_lost(home) == {"keys"}


async def test_damaged_store_is_set_aside_when_its_loss_is_accepted(home: Path) -> None:
    whole = (home / "registry.db").read_bytes()
    (home / "registry.db").write_bytes(b"x" * 100 + whole[100:])
    with pytest.raises(ConfigError, match=r"registry\.db.*damaged.*accept-loss registry"):
        await run_hub(home)
    accept_losses(home, home / "policies", ["registry"], "me")
    await run_hub(home)
    assert list(home.glob("registry.db.lost-*"))


async def test_inventory_not_sealed_by_this_home_is_ignored(home: Path) -> None:
    forged = (home / "stores.json").read_text().replace('"keys_made":false', '"keys_made":true')
    forged = forged.replace('"number":', '"number":9')
    (home / "stores.json").write_text(forged)
    found = survey_stores(home, home / "policies")
    assert not found.losses and not found.record.keys_made


async def test_hub_that_lost_all_keys_stays_closed(home: Path) -> None:
    store = KeyStore(home)
    store.create("laptop", owner="me", expires_at=None, scopes=["call"])
    store.close()
    await run_hub(home)
    assert survey_stores(home, home / "policies").record.keys_made
    (home / "hub.db").unlink()
    accept_losses(home, home / "policies", ["keys"], "me")
    app = build_app(home, load(home / "config.toml"), "mcp")
    assert not app.parts.stores.keys.list() and app.parts.stores.keys.has_keys()
    await app.stop()


async def test_lost_policies_are_not_replaced_by_the_defaults(home: Path) -> None:
    folder = home / "policies"
    folder.mkdir()
    (folder / "none.cedar").write_text("")
    app = build_app(home, load(home / "config.toml"), "mcp")
    shutil.rmtree(folder)
    with pytest.raises(StorageFailed, match="is missing"):
        await app.parts.guards.policies.write("new", "", OWNER, force=True)
    assert not app.parts.guards.policies.engine.policy_set.default and not folder.exists()
    await app.stop()
    with pytest.raises(ConfigError, match="accept-loss policies"):
        await run_hub(home)
    lost: list[StoreLoss] = accept_losses(home, folder, ["policies"], "me")
    assert [loss.file for loss in lost] == [folder]
    await run_hub(home)


async def test_interrupted_first_start_is_not_a_loss(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "audit.db").mkdir()  # it cannot be opened
    with pytest.raises(ConfigError):
        build_app(home, Config(), "mcp")
    (home / "audit.db").rmdir()
    (home / "hub.key").unlink()
    await build_app(home, Config(), "mcp").stop()
