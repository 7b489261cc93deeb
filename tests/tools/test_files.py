"""The file tools: happy paths, bad input, quotas, and every way out of the workspace."""

from __future__ import annotations

import base64
import os
import threading
from pathlib import Path

import pytest
from faults.tools_fuzz import LIMITS, PIECES, SECRET, fuzz_path
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tools.tool_rig import ToolRig, read_object, read_text

from dragoman.core.errors import HubError, InvalidInput, NotFound, WorkFailed
from dragoman.tools.workspace import Workspace, WorkspaceLimits, match_parts

pytestmark = pytest.mark.promise("T2", "G5")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder beside the workspace with a file that no tool may read or change."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_text(SECRET, encoding="utf-8")
    return folder


async def test_file_is_written_read_and_listed(rig: ToolRig) -> None:
    made = await rig.use("file_write", path="notes/plan.md", content="one\ntwo\nthree\n")
    assert read_text(made) == 'created "notes/plan.md" (14 bytes)'
    assert read_text(await rig.use("file_read", path="./notes//plan.md")) == "one\ntwo\nthree\n"
    replaced = await rig.use("file_write", path="notes/plan.md", content="")
    assert "replaced" in read_text(replaced)
    assert read_text(await rig.use("file_read", path="notes/plan.md")) == ""
    assert read_text(await rig.use("file_list")) == "notes/"
    listed = await rig.use("file_list", path="notes")
    assert read_object(listed)["entries"] == [{"path": "notes/plan.md", "kind": "file", "size": 0}]
    assert (rig.workspace / "notes/plan.md").stat().st_mode & 0o777 == 0o600
    assert rig.workspace.stat().st_mode & 0o777 == 0o700


async def test_range_of_lines_is_read(rig: ToolRig) -> None:
    await rig.use("file_write", path="a", content="".join(f"line {n}\n" for n in range(1, 101)))
    found = await rig.use("file_read", path="a", offset=99, limit=5)
    assert read_text(found) == "line 99\nline 100\n\n[lines 99 to 100 of 100]"
    assert read_text(await rig.use("file_read", path="a", limit=1)).startswith("line 1\n")
    with pytest.raises(InvalidInput, match="has 100 lines"):
        await rig.use("file_read", path="a", offset=101)


async def test_binary_file_is_read_as_base64_only(rig: ToolRig) -> None:
    data = b"\x00\xff\x01"
    await rig.use(
        "file_write", path="b", content=base64.b64encode(data).decode(), encoding="base64"
    )
    assert (rig.workspace / "b").read_bytes() == data
    with pytest.raises(InvalidInput, match="is not text: it has 3 bytes"):
        await rig.use("file_read", path="b")
    found = await rig.use("file_read", path="b", encoding="base64")
    assert base64.b64decode(read_text(found)) == data
    with pytest.raises(InvalidInput, match="not base64"):
        await rig.use("file_write", path="b", content="***", encoding="base64")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.py", ["main.py"]),
        ("**/*.py", ["main.py", "src/a.py", "src/deep/b.py"]),
        ("src/*", ["src/a.py", "src/deep"]),
        ("**/deep/**", ["src/deep", "src/deep/b.py"]),
        ("nothing*", []),
    ],
)
async def test_glob_finds_files(rig: ToolRig, pattern: str, found: list[str]) -> None:
    for path in ("main.py", "src/a.py", "src/deep/b.py", "notes.md"):
        await rig.use("file_write", path=path, content="x")
    listed = read_object(await rig.use("file_list", pattern=pattern))["entries"]
    assert sorted(one["path"] for one in listed) == found


def test_glob_with_many_stars_is_matched_in_time() -> None:
    path = tuple("a" * 31)
    assert match_parts(path, ("**", *("a", "**") * 15))
    assert not match_parts(path, (*("**", "a") * 15, "b"))


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("../outside/secret.txt", r'has "\.\."'),
        ("a/../../outside/secret.txt", r'has "\.\."'),
        ("/etc/passwd", "is absolute"),
        ("", "the workspace itself"),
        (".", "the workspace itself"),
        ("a\0b", "control characters"),
        ("a\nb", "control characters"),
        ("x" * 250, "too long"),
        ("/".join("x" * 40), "more than 32"),
        (".dragoman-1", "reserved"),
        ("\udcff", "no file name"),
    ],
)
async def test_path_that_leads_out_is_refused(
    rig: ToolRig, outside: Path, path: str, problem: str
) -> None:
    for tool, more in (("file_read", {}), ("file_write", {"content": "x"})):
        with pytest.raises(InvalidInput, match=problem):
            await rig.use(tool, path=path, **more)
    assert (outside / "secret.txt").read_text(encoding="utf-8") == SECRET


@pytest.mark.parametrize("path", ["link/secret.txt", "file", "a/link/secret.txt"])
async def test_symbolic_link_is_not_followed(rig: ToolRig, outside: Path, path: str) -> None:
    await rig.use("file_write", path="a/x", content="x")
    (rig.workspace / "link").symlink_to(outside)
    (rig.workspace / "a/link").symlink_to(outside)
    (rig.workspace / "file").symlink_to(outside / "secret.txt")
    with pytest.raises(InvalidInput, match="symbolic link"):
        await rig.use("file_read", path=path)
    with pytest.raises((InvalidInput, WorkFailed)):
        await rig.use("file_write", path=path, content="changed")
    with pytest.raises((InvalidInput, NotFound)):
        await rig.use("file_list", path=path)
    listed = read_object(await rig.use("file_list", recursive=True))["entries"]
    assert not [one for one in listed if "secret" in one["path"]]
    assert (outside / "secret.txt").read_text(encoding="utf-8") == SECRET
    assert [one.name for one in outside.iterdir()] == ["secret.txt"]


async def test_file_that_blocks_or_is_no_file_is_refused(rig: ToolRig) -> None:
    await rig.use("file_write", path="a/x", content="x")
    os.mkfifo(rig.workspace / "fifo")
    for path in ("fifo", "a"):
        with pytest.raises(InvalidInput, match=r"is a folder|not a regular file"):
            await rig.use("file_read", path=path)
        with pytest.raises(InvalidInput, match="not a file"):
            await rig.use("file_write", path=path, content="x")
    with pytest.raises(InvalidInput, match="not a folder"):
        await rig.use("file_write", path="a/x/y", content="x")
    with pytest.raises(NotFound):
        await rig.use("file_read", path="missing/file")


def test_link_that_appears_during_the_walk_is_not_followed(tmp_path: Path, outside: Path) -> None:
    """A thread replaces a folder by a link to the outside and back while files are read and
    written: nothing outside is ever read or changed."""
    root = tmp_path / "workspace"
    (root / "real").mkdir(parents=True)
    (root / "real/secret.txt").write_text("inside", encoding="utf-8")
    (root / "link").symlink_to(outside)
    workspace, over = Workspace(root, WorkspaceLimits()), threading.Event()
    swaps = 0

    def swap() -> None:
        nonlocal swaps
        while not over.is_set():
            for name in ("link", "real"):
                os.rename(root / name, root / "turn")
                os.rename(root / "turn", root / name)
                try:
                    os.rename(root / name, root / "dir")
                    os.rename(root / "dir", root / name)
                except OSError:
                    pass
            swaps += 1

    thread = threading.Thread(target=swap)
    thread.start()
    seen: set[str] = set()
    try:
        for count in range(1_500):
            try:
                seen.add(workspace.read(("dir", "secret.txt")).decode())
            except HubError:
                seen.add("refused")
            if count % 10 == 0:
                try:
                    workspace.write(("dir", "written.txt"), b"x")
                except HubError:
                    pass
    finally:
        over.set()
        thread.join(60)
    assert SECRET not in seen and "refused" in seen and swaps
    assert [one.name for one in outside.iterdir()] == ["secret.txt"]
    assert (outside / "secret.txt").read_text(encoding="utf-8") == SECRET


async def test_hard_linked_file_is_replaced_not_changed(rig: ToolRig, outside: Path) -> None:
    await rig.use("file_write", path="x", content="x")
    os.link(outside / "secret.txt", rig.workspace / "hard")
    await rig.use("file_write", path="hard", content="changed")
    assert (outside / "secret.txt").read_text(encoding="utf-8") == SECRET


# --- limits ---------------------------------------------------------------------------------------


def test_quota_bounds_bytes_files_and_folders(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "w", WorkspaceLimits(total_bytes=100, files=4, file_bytes=60))
    workspace.write(("a",), b"x" * 60)
    with pytest.raises(InvalidInput, match="too large: 61 bytes"):
        workspace.write(("b",), b"x" * 61)
    with pytest.raises(InvalidInput, match="the workspace would be too large: 101"):
        workspace.write(("b",), b"x" * 41)
    workspace.write(("a",), b"x" * 10)  # what is replaced is free again
    with pytest.raises(InvalidInput, match="too many files: 5"):
        workspace.write(("b", "c", "d", "e"), b"")
    assert not (tmp_path / "w/b").exists()
    workspace.write(("b", "c", "d"), b"")
    with pytest.raises(InvalidInput, match="too many files: 5"):
        workspace.write(("e",), b"")
    workspace.require_room()
    (tmp_path / "w/a").write_bytes(b"x" * 101)
    with pytest.raises(InvalidInput, match="the workspace is full: it has 101 bytes in 4 files"):
        workspace.require_room()  # as a command may have left it
    (tmp_path / "w/a").write_bytes(b"x" * 61)
    with pytest.raises(InvalidInput, match="too large: 61 bytes"):
        workspace.read(("a",))


def test_list_is_bounded(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, WorkspaceLimits(listed=3))
    for name in "abcde":
        (tmp_path / name).write_text(name, encoding="utf-8")
    found, has_more = workspace.list_entries((), None, False)
    assert [one.path for one in found] == ["a", "b", "c"] and has_more


def test_two_writers_do_not_exceed_the_quota(tmp_path: Path) -> None:
    limits = WorkspaceLimits(total_bytes=50, files=100)

    def write(name: str) -> None:
        workspace = Workspace(tmp_path / "w", limits)
        for number in range(10):
            try:
                workspace.write((f"{name}{number}",), b"x" * 10)
            except InvalidInput:
                pass

    threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(one.stat().st_size for one in (tmp_path / "w").iterdir()) == 50


# --- fuzzing --------------------------------------------------------------------------------------

PATHS = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=6).map("/".join)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(path=PATHS)
def test_fuzzed_path_stays_inside(tmp_path: Path, outside: Path, path: str) -> None:
    root = tmp_path / "workspace"
    root.mkdir(exist_ok=True)
    if not (root / "link").is_symlink():
        (root / "link").symlink_to(outside)
        (root / "file").symlink_to(outside / "secret.txt")
    fuzz_path(Workspace(root, LIMITS), path)
    assert (outside / "secret.txt").read_text(encoding="utf-8") == SECRET
    assert {one.name for one in tmp_path.iterdir()} <= {"workspace", "outside"}
    assert len(list(outside.iterdir())) == 1
