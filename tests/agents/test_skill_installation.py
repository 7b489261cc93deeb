"""Skills in a home: what is copied, what is refused, and that a change disables them."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.agents.skills import installation
from dragoman.agents.skills.installation import SkillStore, compute_digest
from dragoman.core.errors import InvalidInput, NotFound

MANIFEST = """
[skill]
name = "mine"
[runtime]
type = "shell"
entry = "run.sh"
[[tools.provided]]
name = "t"
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "lib").mkdir(parents=True)
    (folder / "skill.toml").write_text(MANIFEST)
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "lib" / "data.txt").write_text("data")
    return folder


@pytest.fixture
def store(tmp_path: Path) -> SkillStore:
    return SkillStore(tmp_path / "home")


@pytest.mark.promise("T3")
def test_skill_is_copied_privately_and_pinned(source: Path, store: SkillStore) -> None:
    (source / "__pycache__").mkdir()
    (source / ".git").mkdir()
    (source / ".git" / "config").write_text("x")
    found = store.install(source, "mine", env=("KEY",))
    assert not found.problem and found.manifest is not None and found.sandbox == "net"
    assert [stamp[0] for stamp in found.stamps] == ["run.sh", "skill.toml", "lib/data.txt"]
    assert found.record.env == ("KEY",) and found.record.source == str(source)
    for path in (store.folder, found.folder, found.folder / "run.sh"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((found.folder / "skill.toml").stat().st_mode) == 0o600
    assert sorted(os.listdir(store.folder)) == ["mine", "mine.json"]
    assert store.list_names() == ["mine"] and store.read("mine") == found


def link_folder(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))
    folder.symlink_to(folder.with_name("moved"))


def replace_by_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def make_folders(folder: Path) -> None:
    for number in range(12):
        (folder / f"d{number}").mkdir()


CHANGES: dict[str, Callable[[Path], object]] = {
    "a file changed": lambda folder: (folder / "run.sh").write_text("#!/bin/sh\nevil\n"),
    "a file added": lambda folder: (folder / "new").write_text(""),
    "a file removed": lambda folder: (folder / "lib" / "data.txt").unlink(),
    "a file renamed": lambda folder: (folder / "lib").rename(folder / "bil"),
    "a file executable": lambda folder: (folder / "skill.toml").chmod(0o700),
    "a symbolic link": lambda folder: (folder / "link").symlink_to("/etc/passwd"),
    "the folder a link": lambda folder: link_folder(folder),
    "a folder in place of a file": lambda folder: replace_by_folder(folder / "lib" / "data.txt"),
}


@pytest.mark.promise("T3")
@pytest.mark.parametrize("change", CHANGES)
def test_change_on_disk_disables_a_skill(source: Path, store: SkillStore, change: str) -> None:
    before, state = store.install(source, "mine"), store.read_state()
    CHANGES[change](before.folder)
    assert not before.is_unchanged()
    found = store.read("mine")
    assert found.problem and found.manifest is None
    assert store.read_state() != state


def test_same_contents_written_again_are_no_change(source: Path, store: SkillStore) -> None:
    found = store.install(source, "mine")
    (found.folder / "run.sh").write_text("#!/bin/sh\n")
    assert not found.is_unchanged()  # so it is read again
    assert not store.read("mine").problem


def test_changed_skill_is_approved_or_added_again(source: Path, store: SkillStore) -> None:
    folder = store.install(source, "mine", env=("KEY",), sandbox="strict").folder
    (folder / "run.sh").write_text("#!/bin/sh\n# new\n")
    digest = store.read("mine").digest
    (folder / "run.sh").write_text("#!/bin/sh\n# newer\n")
    with pytest.raises(InvalidInput, match="has changed meanwhile"):
        store.approve("mine", digest)
    approved = store.approve("mine", compute_digest(folder))
    assert not approved.problem
    assert (approved.record.env, approved.record.sandbox) == (("KEY",), "strict")
    (folder / "run.sh").write_text("evil")
    again = store.install(source, "mine")
    assert not again.problem and (folder / "run.sh").read_text() == "#!/bin/sh\n"
    assert sorted(os.listdir(store.folder)) == ["mine", "mine.json"]


def test_removed_skill_leaves_nothing(source: Path, store: SkillStore) -> None:
    store.install(source, "mine")
    store.remove("mine")
    assert store.list_names() == [] and os.listdir(store.folder) == []
    for name in ("mine", "../mine", "gone", ""):
        with pytest.raises(NotFound, match="there is no skill"):
            store.remove(name)


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a link": (lambda folder: (folder / "x").symlink_to("/etc/passwd"), "is a symbolic link"),
    "a linked folder": (lambda folder: (folder / "x").symlink_to("/etc"), "is a symbolic link"),
    "a pipe": (lambda folder: os.mkfifo(folder / "x"), "is not a file"),
    "too many files": (
        lambda folder: [(folder / f"f{n}").write_text("") for n in range(12)],
        "is too large for a skill",
    ),
    "too many folders": (make_folders, "is too large for a skill"),
    "too many bytes": (
        lambda folder: (folder / "x").write_bytes(bytes(2_000)),
        "is too large for a skill",
    ),
    "too deep": (
        lambda folder: (folder / "/".join("a" * 20)).mkdir(parents=True),
        "is too large for a skill",
    ),
    "no manifest": (lambda folder: (folder / "skill.toml").unlink(), "has neither"),
}


@pytest.mark.promise("T3")
@pytest.mark.parametrize("what", HOSTILE)
def test_unsuitable_folder_is_refused(
    source: Path, store: SkillStore, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(installation, "MAX_FILES", 10)
    monkeypatch.setattr(installation, "MAX_BYTES", 1_500)
    make, problem = HOSTILE[what]
    make(source)
    with pytest.raises(InvalidInput, match=problem):
        store.install(source, "mine")
    assert store.list_names() == []
    assert os.listdir(store.folder) == [], "nothing is left of a refused skill"


def test_refused_version_leaves_the_installed_one(source: Path, store: SkillStore) -> None:
    store.install(source, "mine")
    (source / "x").symlink_to("/etc/passwd")
    with pytest.raises(InvalidInput):
        store.install(source, "mine")
    assert not store.read("mine").problem


def test_names_and_variables_are_checked(source: Path, store: SkillStore) -> None:
    for name in ("../x", ".x", "a/b", "", "x" * 65):
        with pytest.raises(InvalidInput, match="cannot be the name of a skill"):
            store.install(source, name)
    with pytest.raises(InvalidInput, match="cannot be the name of a variable"):
        store.install(source, "mine", env=("A=B",))


@pytest.mark.parametrize("record", ["", "[]", "{}", '{"digest": 5}', "not json"])
def test_damaged_record_disables_its_skill(source: Path, store: SkillStore, record: str) -> None:
    store.install(source, "mine")
    (store.folder / "mine.json").write_text(record)
    assert "have changed since they were approved" in store.read("mine").problem


def test_record_cannot_loosen_the_sandbox_by_a_typing_error(
    source: Path, store: SkillStore
) -> None:
    store.install(source, "mine")
    file = store.folder / "mine.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "sandbox": "of"}))
    assert store.read("mine").sandbox == "strict"
