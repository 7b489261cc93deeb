"""`apply_patch`: the format, where hunks fit, and all or nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tools.tool_rig import ToolRig, read_text

from dragoman.core.errors import HubError, InvalidInput, NotFound, WorkFailed
from dragoman.tools.patch import apply_hunks, parse_patch
from dragoman.tools.workspace import FileChange, Workspace, WorkspaceLimits

pytestmark = pytest.mark.promise("T2")

SOURCE = "def a():\n    return 1\n\n\ndef b():\n    return 1\n"


def wrap(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


def patch_text(text: str, *lines: str) -> str:
    (section,) = parse_patch(wrap("*** Update File: f", *lines))
    return apply_hunks("f", text, section.hunks)


async def test_files_are_added_updated_moved_and_deleted_at_once(rig: ToolRig) -> None:
    for path, content in (("src/main.py", SOURCE), ("old.txt", "x"), ("run.sh", "#!/bin/sh\n")):
        await rig.use("file_write", path=path, content=content)
    (rig.workspace / "run.sh").chmod(0o750)
    done = await rig.use(
        "apply_patch",
        patch=wrap(
            "*** Add File: notes/new.md",
            "+# New",
            "+",
            "+text",
            "*** Update File: src/main.py",
            "@@ def a():",
            "-    return 1",
            "+    return 2",
            "@@ def b():",
            "-    return 1",
            "+    return 3",
            "+",
            "*** Update File: run.sh",
            "*** Move to: bin/run.sh",
            "@@",
            " #!/bin/sh",
            "+echo hello",
            "*** Delete File: old.txt",
        ),
    )
    assert read_text(done).splitlines() == [
        "added notes/new.md",
        "updated src/main.py",
        "moved run.sh to bin/run.sh",
        "deleted old.txt",
    ]
    root = rig.workspace
    assert (root / "notes/new.md").read_text(encoding="utf-8") == "# New\n\ntext\n"
    changed = SOURCE.replace("1", "2", 1).replace("1", "3") + "\n"
    assert (root / "src/main.py").read_text(encoding="utf-8") == changed
    assert (root / "bin/run.sh").stat().st_mode & 0o777 == 0o750
    assert not (root / "run.sh").exists() and not (root / "old.txt").exists()
    assert not list(root.rglob(".dragoman-*"))


@pytest.mark.parametrize(
    ("before", "lines", "after"),
    [
        ("a\nb\nc\n", ["@@", " a", "-b", "+B", " c"], "a\nB\nc\n"),
        ("a\nb\nc\n", [" a", "-b", "+B"], "a\nB\nc\n"),  # without "@@"
        ("a\nb\n", ["@@", "+c", "*** End of File"], "a\nb\nc\n"),
        ("x\na\nx\na\n", ["@@", "-a", "+A", "*** End of File"], "x\na\nx\nA\n"),
        ("a \n  b\n", ["@@", " a", "-b", "+c"], "a \nc\n"),  # spaces differ
        ("a\r\nb\r\n", ["@@", "-b", "+c"], "a\r\nc\r\n"),
        ("a", ["@@", "-a", "+b"], "b"),  # no line break at the end
        ("", ["@@", "+a"], "a\n"),
        ("a\n\nb\n", ["@@", " a", "", "-b", "+c", ""], "a\n\nc\n"),
        ("f(\n  x\n)\n", ["@@ f(", "-  x", "+  y", " )"], "f(\n  y\n)\n"),
        ("one\ntwo\n", ["@@ one", "-one", "+1"], "1\ntwo\n"),  # the anchor is in the hunk
    ],
)
def test_hunk_fits(before: str, lines: list[str], after: str) -> None:
    assert patch_text(before, *lines) == after


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["@@ nothing", "-a", "+b"], 'the line "nothing" is not in the rest'),
        (["@@", "-c", "-a"], "hunk 1 .* does not fit"),
        (["@@", "-c", "+d", "@@", "-a", "+b"], "hunk 2 .* does not fit"),  # in order
    ],
)
def test_hunk_that_does_not_fit_is_refused(lines: list[str], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        patch_text("a\nb\nc\n", *lines)


@pytest.mark.parametrize(
    ("patch", "problem"),
    [
        ("", "begins with"),
        ("*** Begin Patch\n*** Add File: a\n+x", "ends with"),
        (wrap(), "has no file"),
        (wrap("+x"), "line 2 of the patch is outside a file"),
        (wrap("*** Add File: "), "names no file"),
        (wrap("*** Add File: a", "x"), 'line 3 .* must begin with "\\+"'),
        (wrap("*** Delete File: a", "-x"), "a deleted file has no lines"),
        (wrap("*** Update File: a"), "changes nothing"),
        (wrap("*** Update File: a", "@@"), "hunk 1 of .* is empty"),
        (wrap("*** Update File: a", "@@", "?x"), 'begins with "\\?"'),
        (wrap("*** Update File: a", "*** End of File"), "no hunk precedes it"),
        (wrap("*** Update File: a", "@@", "-x", "*** Move to: b"), "follows its file"),
        (wrap(*["*** Delete File: a"] * 201), "more than 200"),
        ("x" * 5_000_001, "too large"),
    ],
)
def test_malformed_patch_is_refused(patch: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        parse_patch(patch)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["*** Add File: ../out", "+x"], r'has "\.\."'),
        (["*** Update File: a", "*** Move to: /tmp/out", "@@", "-a"], "is absolute"),
        (["*** Update File: a", "*** Move to: link/out", "@@", "-a"], "symbolic link"),
        (["*** Delete File: link/secret"], "symbolic link"),
        (["*** Delete File: link"], "is a link"),
        (["*** Add File: a", "+x"], "exists already"),
        (["*** Update File: a", "*** Move to: b"], "exists already"),
        (["*** Delete File: a", "*** Update File: a", "@@", "-a"], "changed twice"),
        (["*** Update File: binary", "@@", "-a"], "is not text"),
        (["*** Update File: missing", "@@", "-a"], "there is no file"),
        (["*** Delete File: missing"], "there is no file"),
        (["*** Update File: a", "@@", "-other"], "does not fit"),
        (["*** Add File: big", f"+{'x' * 6_000_000}"], "too large"),
    ],
)
async def test_nothing_is_changed_if_one_part_fails(
    rig: ToolRig, tmp_path: Path, lines: list[str], problem: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret", encoding="utf-8")
    for name in ("a", "b", "c"):
        await rig.use("file_write", path=name, content=f"{name}\n")
    (rig.workspace / "binary").write_bytes(b"\xff\x00")
    (rig.workspace / "link").symlink_to(outside)

    def read_all() -> dict[str, bytes]:
        return {one.name: one.read_bytes() for one in rig.workspace.iterdir() if one.is_file()}

    before = read_all()
    whole = ["*** Add File: new/deep/x", "+x", "*** Update File: c", "@@", "-c", "+C", *lines]
    with pytest.raises((InvalidInput, NotFound), match=problem):
        await rig.use("apply_patch", patch=wrap(*whole))
    assert read_all() == before and not (rig.workspace / "new").exists()
    assert [one.name for one in outside.iterdir()] == ["secret"]


def test_changes_are_taken_back_if_a_file_cannot_be_installed(tmp_path: Path) -> None:
    """The second of three files cannot be put in its place, because it has become a folder."""
    workspace = Workspace(tmp_path / "w", WorkspaceLimits())
    for name in "abc":
        workspace.write((name,), name.encode())

    def become_folder(*args: object) -> int:
        os.unlink(tmp_path / "w/b")
        os.mkdir(tmp_path / "w/b")
        return 0o600

    class Racing(Workspace):
        """Another program changes the workspace after the files are checked."""

        def _find_mode(self, root: int, parts: object) -> int:
            return become_folder() if parts == ("c",) else 0o600

    racing = Racing(tmp_path / "w", WorkspaceLimits())
    with pytest.raises(WorkFailed, match="could not be written"), racing.edit() as edit:
        edit.delete(("a",))
        edit.write(("b",), b"B")
        edit.write(("c",), b"C")
    assert (tmp_path / "w/a").read_bytes() == b"a" and (tmp_path / "w/c").read_bytes() == b"c"
    assert sorted(one.name for one in (tmp_path / "w").iterdir()) == ["a", "b", "c"]
    assert FileChange(("x",), None).content is None


async def test_hostile_patch_is_bounded(rig: ToolRig) -> None:
    await rig.use("file_write", path="a", content="x\n" * 200_000)
    hunks = [line for _ in range(400) for line in ("@@", "-y", "+z")]
    with pytest.raises(InvalidInput, match=r"does not fit|too large"):
        await rig.use("apply_patch", patch=wrap("*** Update File: a", *hunks))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from(["a", "b", " a", "", "c"]), max_size=8),
    st.lists(
        st.tuples(st.sampled_from("+- "), st.sampled_from(["a", "b", " a", "", "c"])), max_size=5
    ),
)
def test_fuzzed_hunk_is_applied_or_refused(lines: list[str], hunk: list[tuple[str, str]]) -> None:
    """Whatever fits leaves every line that it does not name."""
    text = "".join(f"{line}\n" for line in lines)
    try:
        after = patch_text(text, "@@", *(f"{mark}{line}" for mark, line in hunk))
    except HubError:
        return
    removed = sum(mark == "-" for mark, _ in hunk)
    added = sum(mark == "+" for mark, _ in hunk)
    assert len(after.splitlines()) == len(lines) - removed + added
