"""Which grants of shell_exec are any command in effect."""

from __future__ import annotations

import pytest

from dragoman.tools.shell import is_granted_command
from dragoman.tools.wide_grants import list_wide_grants


@pytest.mark.parametrize(
    "pattern",
    [
        *("*", "* *", "git *", "git -c *", "find *", "find . -name *", "tar *", "tar -xf *"),
        *("timeout *", "timeout 5 *", "nice *", "nice -n 5 *", "env *", "env A=b *", "awk *"),
        *("gawk -f *", "sh -c *", "/usr/bin/env *", "python3 *", "python3.12 -c *", "node -e *"),
        *("stdbuf -o0 *", "flock /tmp/lock *", "ionice *", "setarch -R *", "rbash *", "xargs *"),
        *("perl *", "make *", "npm *", "sort *", "g* *", "sudo *", "docker *"),
    ],
)
def test_grants_that_are_any_command_are_found(pattern: str) -> None:
    (reason,) = list_wide_grants([pattern])
    assert f'"{pattern}"' in reason and "any command in effect" in reason


@pytest.mark.parametrize(
    "pattern",
    [
        *("git log *", "git diff *", "git status", "ls *", "cat *", "timeout 5 pytest *", "env"),
        *("python3 -m pytest *", "python3 tool.py *", "sh build.sh *", "make test", "npm run lint"),
        *("find . -name x", "grep -r * .", "tar -tf x.tar", "nice", "sort names.txt", "'", ""),
        *("gi? log *", "echo *", "ruff check *", "g*"),
    ],
)
def test_ordinary_grants_are_not(pattern: str) -> None:
    assert list_wide_grants([pattern]) == []


def test_what_is_found_does_run_other_programs() -> None:
    assert is_granted_command(["timeout", "5", "sh", "-c", "id"], ["*"])
    assert is_granted_command(["git", "-c", "alias.x=!id", "x"], ["git *"])
    assert is_granted_command(["find", ".", "-exec", "id", ";"], ["find *"])
    assert not is_granted_command(["git", "-c", "alias.x=!id", "x"], ["git log *"])
