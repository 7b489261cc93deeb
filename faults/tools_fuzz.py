"""Fuzzes the file tools with paths and patches, and the shell tool with argument lists.

What they are made of are pieces that mean something to a file system or a shell. Beside the
workspace is a folder that nothing may read or change.
"""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

from dragoman.core.errors import HubError
from dragoman.tools.patch import apply_sections, parse_patch
from dragoman.tools.shell import SHELLS, find_shell_syntax, is_granted_command, split_command
from dragoman.tools.workspace import Workspace, WorkspaceLimits, parse_path
from faults.harness import Outcome, temporary_home

SECRET = "the secret of another"
LIMITS = WorkspaceLimits(total_bytes=200_000, files=300)
PIECES = (
    *("..", ".", "", "/", "a", "b", "link", "file", "secret.txt", "outside", "\0", "\\", "~"),
    *("%2e%2e", "…", "\uff0e\uff0e", "‥", "a\n", " ", "*", "nul", "x" * 300, "\udc80", "dir"),
    *(".dragoman-x", "turn", "-rf", "a" * 199, "é", "‮", "COM1"),
)
WORDS = (
    *("git", "diff", "status", "--", "-c", "*", ";", "|", "&&", "$(id)", "`id`", ">", "a b", ""),
    *("bash", "sh", "/bin/sh", "../git", "./git", "env", "git diff", "'", '"', "\\", "\n", "\0"),
    *("cat", "a.txt", "x /etc/passwd.txt", "$HOME", "${IFS}", "\udc80", "--output=/etc/x", "sudo"),
)
PATTERNS = ("git diff *", "git status", "cat *.txt")
PATCH_LINES = (
    *("*** Add File: a", "*** Update File: a", "*** Delete File: a", "*** Move to: b"),
    *("*** Add File: ../outside/x", "*** Delete File: link/secret.txt", "*** Update File: file"),
    *("*** Move to: link/x", "@@", "@@ a", "+x", "-x", " x", "", "*** End of File"),
)


def build_path(random: Random) -> str:
    return "/".join(random.choice(PIECES) for _ in range(random.randint(0, 6)))


def build_patch(random: Random) -> str:
    """Mostly of whole sections, so that some of the patches fit."""
    lines: list[str] = []
    for _ in range(random.randint(1, 3)):
        name = random.choice(("a", "b", "c/d"))
        lines += random.choice(
            (
                [f"*** Add File: {name}", "+x"],
                [f"*** Update File: {name}", "@@", "-x", "+x", "+y"],
                [f"*** Update File: {name}", "*** Move to: e"],
                [f"*** Delete File: {name}"],
                [random.choice(PATCH_LINES)],
            )
        )
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


def fuzz_path(workspace: Workspace, path: str) -> bool:
    """Reads, writes and lists a path; returns whether it was accepted. Only a `HubError` may come
    of it, and never the secret."""
    try:
        parts = parse_path(path)
    except HubError:
        return False
    works: tuple[Callable[[], object], ...] = (
        lambda: workspace.write(parts, b"fuzzed"),
        lambda: workspace.read(parts),
        lambda: workspace.list_entries(parts, None, True),
    )
    for work in works:
        try:
            assert SECRET not in str(work()), f"{path!r} leads to the secret"
        except HubError:
            continue
    return True


def fuzz_patch(workspace: Workspace, patch: str) -> bool:
    try:
        apply_sections(workspace, parse_patch(patch))
    except HubError:
        return False
    return True


def fuzz_command(command: str | list[str]) -> bool:
    """Returns whether it was granted: only one of the programs, in whole words, without a shell."""
    try:
        argv = split_command(command)
    except HubError:
        return False
    assert not any("\0" in word for word in argv), argv
    if isinstance(command, str):
        assert not find_shell_syntax(command), command
    if is_granted_command(argv, ["*"]):
        assert argv[0] not in SHELLS and "/" not in argv[0], argv
    if not is_granted_command(argv, PATTERNS):
        return False
    assert argv[:2] == ["git", "diff"] or argv == ["git", "status"] or (
        argv[0] == "cat" and len(argv) == 2 and argv[1].endswith(".txt")
    ), argv  # fmt: skip
    return True


def fuzz_files(size: int, seed: int, outcome: Outcome) -> None:
    """While a thread replaces a folder of the workspace by a link to the outside and back."""
    random = Random(seed)
    with temporary_home() as place:
        outside, root, patched = (place / name for name in ("outside", "workspace", "patched"))
        for folder in (outside, root / "real", patched):
            folder.mkdir(parents=True)
        (outside / "secret.txt").write_text(SECRET, encoding="utf-8")
        (root / "real/secret.txt").write_text("inside", encoding="utf-8")
        for folder in (root, patched):
            (folder / "link").symlink_to(outside)
            (folder / "file").symlink_to(outside / "secret.txt")
        (root / "swapped").symlink_to(outside)
        over = threading.Event()
        thread = threading.Thread(target=_swap, args=(root, over))
        thread.start()
        workspace, others = Workspace(root, LIMITS), Workspace(patched, LIMITS)
        try:
            for number in range(size):
                patch, path = build_patch(random), build_path(random)
                try:
                    if number % 10:
                        outcome.count("accepted paths", fuzz_path(workspace, path))
                    else:
                        outcome.count("applied patches", fuzz_patch(others, patch))
                except Exception as error:
                    outcome.fail(f"case {number}: {error!r}")
        finally:
            over.set()
            thread.join(10)
        secret = (outside / "secret.txt").read_text(encoding="utf-8")
        outcome.check(secret == SECRET, "the file outside was changed")
        outcome.check(os.listdir(outside) == ["secret.txt"], "a file was written outside")
        found = sorted(one.name for one in place.iterdir())
        outcome.check(
            found == ["outside", "patched", "workspace"], f"files beside the workspace: {found}"
        )
    outcome.figures["paths and patches"] = size


def _swap(root: Path, over: threading.Event) -> None:
    while not over.is_set():
        for name in ("real", "swapped"):
            try:
                os.rename(root / name, root / "dir")
                os.rename(root / "dir", root / name)
            except OSError:
                continue  # the fuzzer has written there


def fuzz_commands(size: int, seed: int, outcome: Outcome) -> None:
    random = Random(seed)
    for number in range(size):
        words = [random.choice(WORDS) for _ in range(random.randint(0, 5))]
        form = number % 3
        command: str | list[str] = words if form == 0 else " ".join(words)
        if form == 2:
            command = shlex.join(word for word in words if "\0" not in word)
        try:
            outcome.count("granted commands", fuzz_command(command))
        except Exception as error:
            outcome.fail(f"case {number}: {error!r}")
    outcome.figures["commands"] = size
