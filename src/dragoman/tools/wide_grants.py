"""Finds grants of `shell_exec` that are any command in effect, because their program runs what its
arguments say. Pure.

The sandbox holds such a program as any other. The list is for warnings: no list of programs that
run programs is complete.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from dragoman.tools.shell import ANY, SHELLS

_OPERANDS: Mapping[str, int] = {
    "timeout": 1, "flock": 1, "chroot": 1, "taskset": 1, "chrt": 1, "setarch": 1, "runuser": 1,
}  # fmt: skip
"""What comes before the command in the arguments of a program."""
STARTERS = frozenset({
    *SHELLS, *_OPERANDS,
    *("rbash", "pwsh", "nice", "ionice", "stdbuf", "time", "watch", "parallel", "unshare"),
    *("nsenter", "strace", "ltrace", "gdb", "valgrind", "systemd-run", "ssh", "tmux", "screen"),
    *("awk", "gawk", "mawk", "nawk", "perl", "ruby", "node", "nodejs", "deno", "bun", "php", "lua"),
    *("python*", "pypy*", "tclsh", "Rscript", "osascript", "java", "ed", "ex", "vi", "vim", "nvim"),
    *("emacs", "less", "more", "man", "git", "make", "cmake", "ninja", "npm", "npx", "pnpm"),
    *("yarn", "uv", "uvx", "pip", "pipx", "cargo", "go", "docker", "podman", "kubectl", "psql"),
})  # fmt: skip
"""Programs that run what their first arguments say."""
OPTION_RUNNERS = frozenset({
    *("find", "fd", "tar", "bsdtar", "sort", "rsync", "scp", "sed", "zip", "rg", "ctags", "gcc"),
    *("cc", "g++", "ld", "mysql", "curl", "wget"),
})  # fmt: skip
"""Programs with an option, at any place, that runs a program or writes any file."""


def list_wide_grants(patterns: Sequence[str]) -> list[str]:
    """Describes each of the patterns that is any command in effect."""
    return [
        f'the grant "{pattern}" of shell is any command in effect: {reason}; name the arguments, '
        'as in "git log *"'
        for pattern in patterns
        if (reason := _find_reason(pattern))
    ]


def _find_reason(pattern: str) -> str:
    try:
        program, *words = shlex.split(pattern)
    except ValueError:  # it grants nothing
        return ""
    if program == ANY and all(word == ANY for word in words):
        return "it names no program"
    name = program.rpartition("/")[2]
    has_free_end = bool(words) and words[-1] == ANY
    if has_free_end and (found := _find_program(name, OPTION_RUNNERS)):
        return f'"{found}" has options that run other programs or write any file'
    if (found := _find_program(name, STARTERS)) and _leaves_open(words, _OPERANDS.get(found, 0)):
        return f'"{found}" runs what its arguments say'
    return ""


def _find_program(name: str, programs: frozenset[str]) -> str:
    """Finds a program that the first word of a pattern matches."""
    for one in sorted(programs):
        if fnmatchcase(name, one) or ("*" in name and one not in SHELLS and fnmatchcase(one, name)):
            return name if fnmatchcase(name, one) and "*" not in name else one
    return ""


def _leaves_open(words: Sequence[str], operands: int) -> bool:
    """Whether a model chooses the first of `words` that is neither an option nor one of so many
    operands."""
    for word in words:
        if any(letter in word for letter in "*?["):
            return True
        if word.startswith("-") or "=" in word:
            continue
        if operands:
            operands -= 1
        elif not word.isdecimal():  # the value of an option
            return False
    return False
