"""Changed policy files are activated atomically, or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.policy.policy_cases import call, key, policies, tool

from dragoman.policy.loader import PolicyError, load_policies
from dragoman.policy.policy_set import PolicySet
from dragoman.policy.reloader import PolicyReloader

ALICE = '@id("alice") permit (principal == Hub::User::"key:alice", action, resource);\n'
BOB = '@id("bob") permit (principal == Hub::User::"key:bob", action, resource);\n'


def reloader(folder: Path) -> tuple[PolicyReloader, list[tuple[PolicySet, PolicySet]]]:
    changes: list[tuple[PolicySet, PolicySet]] = []
    engine = policies(load_policies(folder))
    made = PolicyReloader(engine, folder, lambda *_: True, lambda *both: changes.append(both))
    return made, changes


def may(made: PolicyReloader, name: str) -> bool:
    return made._policies.decide(call(key(name), tool("fs.read"))).allowed


@pytest.mark.promise("R11")
async def test_changed_file_is_activated_once_stable(tmp_path: Path) -> None:
    (tmp_path / "a.cedar").write_text(ALICE)
    made, changes = reloader(tmp_path)
    version = made._policies.version
    assert not await made.poll()
    (tmp_path / "a.cedar").write_text(BOB)
    assert not await made.poll(), "it may still be being written"
    assert may(made, "alice")
    assert await made.poll()
    assert may(made, "bob")
    assert not may(made, "alice")
    assert made._policies.version > version
    ((old, new),) = changes
    assert old.hash != new.hash == made._policies.policy_set.hash
    assert not await made.poll()
    assert len(changes) == 1


@pytest.mark.promise("R11")
async def test_invalid_set_keeps_the_old_one_and_reports_why(tmp_path: Path) -> None:
    (tmp_path / "a.cedar").write_text(ALICE)
    made, changes = reloader(tmp_path)
    (tmp_path / "b.cedar").write_text('@id("b") permit (principal resource);')
    await made.poll()
    assert not await made.poll()
    assert "b.cedar:1" in made.problem
    assert "stay active" in made.problem
    assert made.findings[0].file == "b.cedar"
    assert may(made, "alice")
    assert changes == []
    with pytest.raises(PolicyError, match=r"b\.cedar:1"):
        await made.reload()
    (tmp_path / "b.cedar").write_text(BOB)
    await made.poll()
    assert await made.poll()
    assert made.problem == ""
    assert may(made, "bob")


@pytest.mark.promise("R11")
async def test_set_failing_its_golden_tests_is_not_activated(tmp_path: Path) -> None:
    (tmp_path / "a.cedar").write_text(ALICE)
    golden = '[[tests]]\nname="alice"\ncaller="key:alice"\ntool="fs.read"\nexpect="permit"\n'
    (tmp_path / "t.toml").write_text(golden)
    made, changes = reloader(tmp_path)
    (tmp_path / "a.cedar").write_text(BOB)
    await made.poll()
    await made.poll()
    assert 'the test "alice" fails' in made.problem
    assert may(made, "alice")
    assert changes == []


async def test_deleted_folder_does_not_load_the_defaults(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "a.cedar").write_text(ALICE)
    made, changes = reloader(folder)
    shutil.rmtree(folder)
    await made.poll()
    assert not await made.poll()
    assert "is missing" in made.problem
    assert not may(made, "bob")
    folder.mkdir()
    (folder / "a.cedar").write_text(BOB)
    await made.poll()
    assert await made.poll()
    assert may(made, "bob")
    assert len(changes) == 1


async def test_new_folder_replaces_the_defaults(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    made, _ = reloader(folder)
    assert may(made, "bob")
    folder.mkdir()
    (folder / "a.cedar").write_text(ALICE)
    await made.poll()
    assert await made.poll()
    assert not may(made, "bob")
    assert may(made, "alice")


async def test_removed_file_removes_its_policies(tmp_path: Path) -> None:
    (tmp_path / "a.cedar").write_text(ALICE)
    (tmp_path / "b.cedar").write_text(BOB)
    made, _ = reloader(tmp_path)
    (tmp_path / "b.cedar").unlink()
    await made.poll()
    assert await made.poll()
    assert not may(made, "bob")
    assert may(made, "alice")


async def test_touched_file_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.cedar").write_text(ALICE)
    made, changes = reloader(tmp_path)
    version = made._policies.version
    (tmp_path / "a.cedar").write_text(ALICE)
    await made.poll()
    assert not await made.poll()
    assert not changes
    assert made._policies.version == version


async def test_immediate_reload_does_not_wait(tmp_path: Path) -> None:
    (tmp_path / "a.cedar").write_text(ALICE)
    made, changes = reloader(tmp_path)
    (tmp_path / "a.cedar").write_text(BOB)
    now = await made.reload()
    assert now is made._policies.policy_set
    assert may(made, "bob")
    assert not await made.poll()
    assert len(changes) == 1
