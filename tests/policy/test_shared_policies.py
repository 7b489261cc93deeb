"""The policy folders of hubs on one database stay the same."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.policy.policy_cases import policies
from tests.stores.places import execute

from dragoman.core.policy_files import SharedFile, hash_text
from dragoman.policy import loader
from dragoman.policy.reloader import PolicyReloader
from dragoman.policy.shared_policies import SharedPolicies
from dragoman.stores.database import connect_server
from dragoman.stores.policy_files import PolicyFiles
from dragoman.stores.postgres import PostgresServer
from dragoman.stores.seal_database import attach_seals, begin_sealing, list_refused
from dragoman.stores.store_inventory import RECORD_FILE, StoreInventory

POLICY = '@id("{0}") permit (principal == Hub::User::"key:ann", action, resource);\n'


class PolicyHub:
    """A folder with the policies in force, which is watched as the hub does it."""

    def __init__(self, home: Path, server: PostgresServer) -> None:
        self.server = server
        self.folder = home / "policies"
        self.shared = SharedPolicies(PolicyFiles(server), home, self.folder)
        self.shared.prepare()
        self.engine = policies(loader.load_policies(self.folder, lambda *_: True))
        self.reloader = PolicyReloader(self.engine, self.folder, lambda *_: True, lambda *_: None)

    async def watch(self) -> None:
        while True:
            await self.reloader.poll()
            await self.shared.check(self.reloader)
            await asyncio.sleep(0.02)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(text, "utf-8")

    def read(self) -> dict[str, str]:
        return {one.name: one.read_text("utf-8") for one in self.folder.glob("*.cedar")}

    def list_ids(self) -> set[str]:
        return {one.id for one in self.engine.policy_set.policies if not one.guardrail}

    async def until_stored(self, *names: str) -> None:
        """Until these files, and no others, are in the database as they are here."""
        async with asyncio.timeout(60):
            while self.shared._known.keys() != set(names):
                await asyncio.sleep(0.01)

    async def until(self, *ids: str, seconds: float = 60.0) -> None:
        async with asyncio.timeout(seconds):
            while self.list_ids() != set(ids):
                await asyncio.sleep(0.01)


@asynccontextmanager
async def run_hub(home: Path, url: str, key: bytes | None = None) -> AsyncIterator[PolicyHub]:
    home.mkdir(mode=0o700, exist_ok=True)
    server = connect_server(url)
    attach_seals(server, key, home)
    if key is not None:
        assert begin_sealing(server, home)
    server.watch(exclusive=False)
    hub = PolicyHub(home, server)
    task = asyncio.create_task(hub.watch())
    try:
        yield hub
    finally:
        task.cancel()
        await asyncio.wait({task})
        hub.shared.close()
        server.close()


def make_home(path: Path, **files: str) -> Path:
    (path / "policies").mkdir(mode=0o700, parents=True)
    for name, id in files.items():
        (path / "policies" / f"{name}.cedar").write_text(POLICY.format(id), "utf-8")
        (path / "policies" / f"{name}.cedar").chmod(0o600)
    return path


async def test_changes_at_one_hub_are_in_force_at_the_others(
    tmp_path: Path, postgres_url: str
) -> None:
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(
            run_hub(make_home(tmp_path / "a", one="p1", two="p2"), postgres_url)
        )
        await a.until("p1", "p2")
        async with asyncio.timeout(60):
            while len(a.shared._known) < 2:
                await asyncio.sleep(0.01)
        # One that joins takes what is there, and keeps its own aside.
        joining = make_home(tmp_path / "b", one="mine", more="p9")
        b = await stack.enter_async_context(run_hub(joining, postgres_url))
        await b.until("p1", "p2")
        assert len(list(b.folder.glob("*.aside-*"))) == 2
        # By hand, at either.
        b.write("two.cedar", POLICY.format("p3"))
        b.write("three.cedar", POLICY.format("p4"))
        began = time.monotonic()
        await a.until("p1", "p3", "p4")
        assert time.monotonic() - began < 30
        (a.folder / "one.cedar").unlink()
        await b.until("p3", "p4")
        # A set that is invalid replaces nothing, here or there.
        b.write("two.cedar", "permit (nobody")
        async with asyncio.timeout(60):
            while not b.reloader.problem:
                await asyncio.sleep(0.01)
        a.write("four.cedar", POLICY.format("p5"))
        await a.until("p3", "p4", "p5")
        await asyncio.sleep(0.3)
        assert b.list_ids() == {"p3", "p4"} and a.read()["two.cedar"] == POLICY.format("p3")
        b.write("two.cedar", POLICY.format("p6"))
        for hub in (a, b):
            await hub.until("p4", "p5", "p6")
        assert a.read() == b.read()
        # A folder that is lost is written again, and deletes nothing elsewhere.
        shutil.rmtree(b.folder)
        async with asyncio.timeout(60):
            while not b.folder.is_dir() or len(b.read()) < 3:
                await asyncio.sleep(0.01)
        assert a.list_ids() == b.list_ids() == {"p4", "p5", "p6"}
    # While it was stopped, both have changed the same file: the later one wins.
    async with run_hub(tmp_path / "a", postgres_url) as a:
        a.write("two.cedar", POLICY.format("first"))
        await a.until("p4", "p5", "first")
        async with asyncio.timeout(60):
            while a.shared._store.load()["two.cedar"].text != POLICY.format("first"):
                await asyncio.sleep(0.01)
        late = tmp_path / "b" / "policies" / "two.cedar"
        late.write_text(POLICY.format("later"), "utf-8")
        os.utime(late, (time.time() + 5, time.time() + 5))
        async with run_hub(tmp_path / "b", postgres_url) as b:
            for hub in (a, b):
                await hub.until("p4", "p5", "later")
            aside = list(b.folder.glob("two.cedar.aside-*"))
            assert [one.read_text("utf-8") for one in aside] == [POLICY.format("first")]


async def test_changes_of_a_folder_while_its_hub_is_stopped_count(
    tmp_path: Path, postgres_url: str
) -> None:
    home = make_home(tmp_path / "a", one="p1", two="p2", three="p3")
    async with run_hub(home, postgres_url) as a:
        async with asyncio.timeout(60):
            while len(a.shared._known) < 3:
                await asyncio.sleep(0.01)
    folder = home / "policies"
    (folder / "two.cedar").unlink()
    (folder / "three.cedar").write_text(POLICY.format("changed"), "utf-8")
    os.utime(folder / "three.cedar", (1, 1))  # as a copy of an older file may have it
    async with run_hub(home, postgres_url) as a:
        assert a.list_ids() == {"p1", "changed"}
        async with asyncio.timeout(60):
            while a.shared._store.load()["two.cedar"].text:
                await asyncio.sleep(0.01)
        async with run_hub(tmp_path / "b", postgres_url) as b:
            assert b.list_ids() == a.list_ids() == {"p1", "changed"}
    # A folder that is lost deletes nothing.
    shutil.rmtree(folder)
    async with run_hub(home, postgres_url) as a:
        assert a.list_ids() == {"p1", "changed"}


ALL = "permit (principal, action, resource);"


def forge(server: PostgresServer, name: str, text: str) -> None:
    """As a person who can write the database, and notes the change as a hub does."""
    values = f"'{name}', '{text}', '{hash_text(text)}', 1, {time.time() + 60}"
    execute(
        server,
        "",
        f"INSERT INTO policy_files VALUES ({values}) ON CONFLICT (name) DO UPDATE SET "
        "text = excluded.text, digest = excluded.digest, changed_at = excluded.changed_at",
    )
    note_change(server)


def note_change(server: PostgresServer) -> None:
    execute(server, "", "UPDATE changes SET number = number + 1 WHERE store = 'policies'")


STRANGE = (
    "../config.toml",
    "/tmp/dragoman-x.toml",
    "sub/x.cedar",
    ".x.cedar",
    "x.py",
    "..\\x.toml",
)


@pytest.mark.parametrize("is_running", [False, True])
async def test_a_name_in_the_database_leads_to_no_other_file(
    tmp_path: Path, postgres_url: str, caplog: pytest.LogCaptureFixture, is_running: bool
) -> None:
    home = make_home(tmp_path / "a", one="p1")
    (home / "config.toml").write_text("# mine")
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(run_hub(home, postgres_url))
        await a.until_stored("one.cedar")
        if not is_running:
            await stack.aclose()
        server = connect_server(postgres_url)
        stack.callback(server.close)
        for name in STRANGE:
            forge(server, name, "# of eve")
        forge(server, "two.cedar", POLICY.format("p2"))  # without a secret it counts
        if not is_running:
            a = await stack.enter_async_context(run_hub(home, postgres_url))
        await a.until("p1", "p2")
        a.shared._write({"../c.toml": SharedFile("# of eve", "", 1, 0.0)}, [], {})
    assert (home / "config.toml").read_text() == "# mine"
    assert sorted(path.name for path in home.iterdir()) == [
        "config.toml", "policies", "policies.shared",
    ]  # fmt: skip
    assert sorted(path.name for path in (home / "policies").iterdir()) == ["one.cedar", "two.cedar"]
    for name in STRANGE:
        assert sum(repr(name) in message for message in caplog.messages) in (1, 2), name


async def test_a_policy_that_was_written_in_the_database_is_not_taken(
    tmp_path: Path, postgres_url: str
) -> None:
    home = make_home(tmp_path / "a", one="p1", two="p2")
    async with run_hub(home, postgres_url, b"k" * 32) as a:
        await a.until_stored("one.cedar", "two.cedar")
        forge(a.server, "all.cedar", ALL)
        forge(a.server, "one.cedar", ALL)
        execute(a.server, "", "DELETE FROM policy_files WHERE name = 'two.cedar'")
        note_change(a.server)
        assert list_refused(a.server)[0] == ("policy file", "all.cedar")
        async with run_hub(tmp_path / "b", postgres_url, b"k" * 32) as b:
            # What a hub has takes the place of what was written or deleted by others.
            for hub in (a, b):
                await hub.until("p1", "p2")
            assert a.read() == b.read() and sorted(a.read()) == ["one.cedar", "two.cedar"]
            assert list_refused(a.server) == [("policy file", "all.cedar")]
            # What the hubs themselves change and delete counts, also under that name.
            b.write("all.cedar", POLICY.format("p3"))
            (a.folder / "two.cedar").unlink()
            for hub in (a, b):
                await hub.until("p1", "p3")
            assert list_refused(a.server) == []
            execute(a.server, "", "UPDATE policy_files SET changed_at = changed_at + 1")
            assert len(list_refused(a.server)) == 3, "a file that was deleted has a seal, too"


async def test_policies_that_were_there_before_seals_are_accepted_once(
    tmp_path: Path, postgres_url: str
) -> None:
    home = make_home(tmp_path / "a", one="p1")
    async with run_hub(home, postgres_url) as a:
        await a.until_stored("one.cedar")
        inventory = StoreInventory(home, home / "policies", a.server.read_identity())
        inventory.register_stores()
    (tmp_path / "b").mkdir(mode=0o700)
    shutil.copy(home / RECORD_FILE, tmp_path / "b")  # this home has used the database, too
    async with run_hub(tmp_path / "b", postgres_url, b"k" * 32) as b:
        assert b.list_ids() == {"p1"}
        assert list_refused(b.server) == []
