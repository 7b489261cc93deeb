"""The folder of workflows: a bad file never replaces a good version, and changes are followed."""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
from pathlib import Path

import pytest

from dragoman.core.errors import InvalidInput, NotFound
from dragoman.core.secret_rules import Author, ReferenceRules
from dragoman.workflows.describe import describe_file, describe_workflow
from dragoman.workflows.folder import MAX_FILES, WorkflowFolder, write_file

pytestmark = pytest.mark.promise("R14")


def define(value: str = "1", more: str = "") -> str:
    return f"{more}steps:\n  - {{id: a, nodeId: transform, config: {{value: {value}}}}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> WorkflowFolder:
    (tmp_path / "workflows").mkdir(mode=0o700)
    return WorkflowFolder(tmp_path / "workflows")


def put(folder: WorkflowFolder, file: str, text: str) -> None:
    path = folder.path / file
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")


def test_a_bad_file_leaves_its_workflow_and_the_others_as_they_were(
    folder: WorkflowFolder,
) -> None:
    changes: list[list[str]] = []
    folder.observe(lambda: changes.append([one.name for one in folder.list_workflows()]))
    put(folder, "one.yaml", define())
    put(folder, "two.yml", define(more="name: deux\n"))
    put(folder, ".hidden.yaml", "x")
    put(folder, "notes.txt", "x")
    assert folder.check() == ["one.yaml", "two.yml"]
    assert changes == [["deux", "one"]]
    good = folder.find("one")
    assert folder.check() == [] and len(changes) == 1

    put(folder, "one.yaml", define("'{{ nodes.gone }}'"))
    assert folder.check() == ["one.yaml"]
    assert folder.get("one") is good
    broken = folder.find_file("one")
    assert broken.problem.startswith('one.yaml:2: "nodes.gone" is unknown')
    described = describe_file(broken)
    assert (described["state"], described["digest"]) == ("invalid", good.digest)

    put(folder, "one.yaml", define("2"))
    folder.check()
    assert folder.find("one").digest != good.digest and not folder.find_file("one").problem
    put(folder, "new.yaml", "steps: 5\n")
    folder.check()
    with pytest.raises(InvalidInput, match=r'cannot be used: new.yaml:1: "steps" must be'):
        folder.find("new")
    (folder.path / "one.yaml").unlink()
    folder.check()
    assert changes[-1] == ["deux"]
    with pytest.raises(NotFound, match='there is no workflow "deu"; did you mean "deux"'):
        folder.find("deu")


def test_a_name_belongs_to_one_file_until_that_is_gone(folder: WorkflowFolder) -> None:
    put(folder, "a.yaml", define("1", "name: same\n"))
    put(folder, "b.yaml", define("2", "name: same\n"))
    folder.check()
    first = folder.find("same")
    assert [bool(one.problem) for one in folder.list_files()] == [True, False]
    (folder.path / "a.yaml").unlink()
    folder.check()
    assert folder.find("same").digest != first.digest


def test_what_cannot_be_read_or_trusted_is_a_problem(folder: WorkflowFolder) -> None:
    put(folder, "long.yaml", "#" * 1_100_000)
    put(folder, "bad name.yaml", define())
    (folder.path / "latin.yaml").write_bytes(b"name: \xff\n")
    (folder.path / "folder.yaml").mkdir()
    put(folder, "open.yaml", define())
    os.chmod(folder.path / "open.yaml", 0o666)
    folder.check()
    problems = {one.file: one.problem for one in folder.list_files()}
    assert "too large" in problems["long.yaml"]
    assert 'add the key "name"' in problems["bad name.yaml"]
    assert "not UTF-8" in problems["latin.yaml"]
    assert "folder.yaml" not in problems
    assert problems["open.yaml"] == ""  # others cannot reach it
    with tempfile.TemporaryDirectory() as reachable:
        os.chmod(reachable, 0o755)
        exposed = WorkflowFolder(Path(reachable))
        put(exposed, "open.yaml", define())
        os.chmod(exposed.path / "open.yaml", 0o666)
        exposed.check()
        assert "can be written by others" in exposed.find_file("open").problem
        os.chmod(exposed.path / "open.yaml", 0o644)
        exposed.check()
        assert exposed.find("open")


def test_workflows_are_written_and_deleted_by_name(folder: WorkflowFolder) -> None:
    made = folder.write("new", define(), Author.OWNER)
    file = folder.path / "new.yaml"
    assert folder.get("new") == made and stat.S_IMODE(file.stat().st_mode) == 0o600
    described = describe_workflow(made)
    assert described["definition"]["steps"][0]["id"] == "a"
    assert described["graph"] == {
        "nodes": [{"id": "a", "node": "transform", "dependsOn": [], "within": None,
                   "compensates": None}]
    }  # fmt: skip
    put(folder, "old.yml", define(more="name: older\n"))
    folder.write("older", define("2", "name: older\n"), Author.OWNER)
    assert (folder.path / "old.yml").read_text() == define("2", "name: older\n")
    put(folder, "mine.yaml", define(more="name: yours\n"))
    for name, source, words in [
        ("new", "steps: []\n", "line 1:"),
        ("new", define(more="name: other\n"), 'the name "other", not "new"'),
        ("../x", define(), "invalid workflow name"),
        ("", define(), "invalid workflow name"),
        ("mine", define(), 'the file mine.yaml has the workflow "yours"'),
    ]:
        with pytest.raises(InvalidInput, match=words):
            folder.write(name, source, Author.OWNER)
    assert folder.find("new") == made
    target = folder.path / "elsewhere"
    target.write_text(define())
    (folder.path / "link.yaml").symlink_to(target)
    with pytest.raises(InvalidInput, match="symbolic link"):
        folder.write("link", define("9"), Author.OWNER)
    folder.remove("new")
    assert not file.exists() and folder.get("new") is None
    assert not [one for one in folder.path.iterdir() if one.name.startswith(".")]
    with pytest.raises(NotFound):
        folder.remove("new")


def test_the_folder_is_bounded_and_followed(
    folder: WorkflowFolder, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(MAX_FILES + 5):
        put(folder, f"w{number:04}.yaml", define())
    put(folder, "w0001.yaml", "steps: 1\n")
    asyncio.run(folder.follow())
    assert len(folder.list_files()) == MAX_FILES
    assert sum("the rest is ignored" in one.message for one in caplog.records) == 1
    assert sum("w0001.yaml:1: " in one.message for one in caplog.records) == 1
    with pytest.raises(InvalidInput, match="delete one first"):
        folder.write("more", define(), Author.OWNER)
    asyncio.run(folder.follow())
    assert sum("the rest is ignored" in one.message for one in caplog.records) == 1


HOOK = """\
triggers:
  - type: webhook
    secret: "%s"
steps:
  - {id: a, nodeId: transform, config: {value: 1}}"""


def test_what_the_api_writes_follows_the_rules_of_secrets(tmp_path: Path) -> None:
    rules = ReferenceRules((), tmp_path, ["env:TEAM_*"])
    folder = WorkflowFolder(tmp_path / "workflows", check=rules.check)
    for secret in ("exec:id", "env:AWS_SECRET_ACCESS_KEY", "file:/etc/hostname", "keyring:a/b"):
        with pytest.raises(InvalidInput, match='line 2: workflow "hook" was written by the API'):
            folder.write("hook", HOOK % secret, Author.API)
    with pytest.raises(InvalidInput, match="AWS_SECRET_ACCESS_KEY"):
        folder.write("hook", "env: [AWS_SECRET_ACCESS_KEY]\n" + define(), Author.API)
    assert not folder.list_files() and not (tmp_path / "workflows").exists()
    made = folder.write("hook", HOOK % "env:TEAM_HOOK", Author.API)
    assert made.author is Author.API and made.triggers[0].secret == "env:TEAM_HOOK"

    # The owner's own session writes what the owner's files may contain.
    owned = folder.write("own", HOOK % "exec:op read x", Author.OWNER)
    assert owned.author is Author.OWNER and owned.source == HOOK % "exec:op read x"


def test_the_mark_of_the_api_stays_with_the_text(tmp_path: Path) -> None:
    folder = WorkflowFolder(tmp_path / "workflows")
    folder.write("hook", HOOK % "env:DRAGOMAN_AGENT_HOOK", Author.API)
    file = folder.path / "hook.yaml"
    text = file.read_text()
    assert text.startswith(HOOK % "env:DRAGOMAN_AGENT_HOOK" + "\n# Written by the API")

    # The file was changed under the mark, or another home allows less.
    replace_file(folder, "hook.yaml", text.replace("env:DRAGOMAN_AGENT_HOOK", "exec:id"))
    entry = folder.find_file("hook")
    assert "hook.yaml:2" in entry.problem and "exec: references" in entry.problem
    assert folder.find("hook").triggers[0].secret == "env:DRAGOMAN_AGENT_HOOK"

    # The owner takes it over by removing the line.
    replace_file(folder, "hook.yaml", HOOK % "exec:id")
    assert folder.find("hook").author is Author.OWNER
    # Who writes it again by the API is its author again, whatever the text says of itself.
    made = folder.write("hook", text, Author.API)
    assert made.author is Author.API and made.source.count("# Written by the API") == 1
    assert folder.write("hook", text, Author.OWNER).author is Author.OWNER


def test_files_of_the_owner_need_no_mark(tmp_path: Path) -> None:
    folder = WorkflowFolder(tmp_path / "workflows")
    folder.path.mkdir(mode=0o700)
    replace_file(folder, "own.yaml", "env: [AWS]\n" + HOOK % "exec:op read x")
    workflow = folder.find("own")
    assert workflow.author is Author.OWNER and folder.is_own(workflow.digest)


def replace_file(folder: WorkflowFolder, name: str, text: str) -> None:
    write_file(folder.path / name, text)
    folder.check()
