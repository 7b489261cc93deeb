"""Commands that download a package and run it: does the command name one exact version of it, what
does it install with, and did an installation end too early?

Without a version, `npx` and `uvx` run the newest release at each start, so everybody who can
publish the package can run code here.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

_VALUED = {
    "npx": {"-p", "--package", "-c", "--call", "-w", "--workspace", "--registry", "--cache"},
    "bunx": {"-p", "--package"},
    "uvx": {
        *("--from", "--with", "--with-editable", "--with-requirements", "-p", "--python"),
        *("--index", "--index-url", "-i", "--default-index", "--extra-index-url", "--cache-dir"),
        *("--directory", "--env-file", "-c", "--constraints", "-C", "--config-setting"),
    },
    "pipx": {"--spec", "--python", "--pip-args", "--index-url", "-i", "--with"},
}
"""The options of each runner that take a value."""
_PACKAGE = {
    "npx": {"-p", "--package"},
    "bunx": {"-p", "--package"},
    "uvx": {"--from"},
    "pipx": {"--spec"},
}
"""Those whose value is the package."""
_SUBCOMMANDS = {
    ("npm", "exec"): "npx",
    ("npm", "x"): "npx",
    ("pnpm", "dlx"): "npx",
    ("yarn", "dlx"): "npx",
    ("bun", "x"): "bunx",
    ("uv", "tool", "run"): "uvx",
    ("pipx", "run"): "pipx",
}
"""Commands that mean a runner."""
_EXACT = re.compile(r"v?\d+\.\d+[0-9A-Za-z.+!-]*")
_LOCAL = re.compile(r"(\.{0,2}/|~|file:).*")


_INSTALLERS = {
    ("npx",): "npm",
    ("npm", "exec"): "npm",
    ("npm", "x"): "npm",
    ("pnpm", "dlx"): "pnpm",
    ("pnpx",): "pnpm",
    ("yarn", "dlx"): "yarn",
    ("bunx",): "bun",
    ("bun", "x"): "bun",
    ("uvx",): "uv",
    ("uv", "tool", "run"): "uv",
    ("uv", "run"): "uv",
    ("pipx", "run"): "pipx",
    ("deno", "run"): "deno",
    ("docker", "run"): "docker",
    ("podman", "run"): "podman",
    ("nerdctl", "run"): "nerdctl",
}
"""What the first run of each of these commands installs with."""
_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ash"})
_MISSING = (
    "ERR_UNSUPPORTED_DIR_IMPORT", "MODULE_NOT_FOUND", "Cannot find module", "Cannot find package",
    "Directory import",
)  # fmt: skip
_NPX = "/_npx/"
_NPX_FOLDER = re.compile(r"[0-9a-f]{1,64}(?=/)")


def find_installer(command: str, args: Sequence[str]) -> str:
    """Returns the program that installs packages when the command runs for the first time; empty if
    it is no package runner."""
    program = os.path.basename(command).removesuffix(".cmd").removesuffix(".exe")
    if program in _SHELLS:
        if len(args) < 2 or args[0] != "-c":
            return ""
        try:
            words = shlex.split(args[1])
        except ValueError:
            return ""
        words = words[1:] if words[:1] == ["exec"] else words
        return find_installer(words[0], words[1:]) if words else ""
    line = program, *args[:2]
    for length in (1, 2, 3):
        if (found := _INSTALLERS.get(line[:length])) is not None:
            return found
    return ""


def explain_broken_cache(stderr: str) -> str:
    """Says what to do if a package of an `npx` cache is incomplete, as an installation that was
    killed leaves it: npm takes the folder for complete. Empty if that is not the reason."""
    folder = next(filter(None, map(_find_broken_folder, stderr.splitlines())), "")
    if not folder:
        return ""
    return (
        "its package seems incomplete, as an interrupted installation leaves it: delete the folder "
        f'"{folder}" and start it again'
    )


def _find_broken_folder(line: str) -> str:
    """Finds the folder of an `npx` cache in a line that says that a module is missing. The line is
    a text of a child, of any length: each step is linear in it."""
    mark = min((at for at in map(line.find, _MISSING) if at >= 0), default=-1)
    place = line.find(_NPX, mark)
    if mark < 0 or place < 0:
        return ""
    name = _NPX_FOLDER.match(line, place + len(_NPX))
    before = line[mark:place]
    before = before[max(map(before.rfind, "'\"")) + 1 :]
    path = before[before.rfind("//") + 1 :] if "//" in before else before
    path = path[path.find("/") :] if "/" in path else ""
    return f"{path}{_NPX}{name[0]}" if name is not None else ""


def find_unpinned_package(command: str, args: Sequence[str]) -> str | None:
    """Returns the package that the command would download in any version, or None."""
    runner, rest = _find_runner(os.path.basename(command), args)
    if runner is None:
        return None
    chosen, positional = _find_package(runner, rest)
    package = chosen or positional
    return package if package and not _is_pinned(runner, package) else None


def is_container_command(command: str) -> bool:
    return os.path.basename(command) in ("docker", "podman", "nerdctl")


def explain_unpinned(command: str, package: str) -> tuple[str, str]:
    """Returns what is wrong with running this package, and the fix."""
    program = os.path.basename(command)
    base = re.split(r"(?<=.)@|[<>=!~]", package)[0]
    separator = "==" if program in ("uv", "uvx", "pipx") else "@"
    said = f'{program} runs any published version of "{package}", at each start the newest'
    return said, f"write the version that you have checked: {base}{separator}VERSION"


def _find_runner(program: str, args: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    program = program.removesuffix(".cmd").removesuffix(".exe")
    if program in _VALUED and program != "pipx":
        return program, args
    for words, runner in _SUBCOMMANDS.items():
        if words[0] == program and tuple(args[: len(words) - 1]) == words[1:]:
            return runner, args[len(words) - 1 :]
    return None, ()


def _find_package(runner: str, args: Sequence[str]) -> tuple[str | None, str | None]:
    """Returns the package that an option names, and the first argument that is no option."""
    chosen: str | None = None
    at = 0
    while at < len(args):
        word = args[at]
        option, equals, value = word.partition("=")
        if word == "--":
            return chosen, args[at + 1] if at + 1 < len(args) else None
        if not word.startswith("-"):
            return chosen, word
        if not equals and option in _VALUED[runner]:
            value = args[at + 1] if at + 1 < len(args) else ""
            at += 1
        if option in _PACKAGE[runner]:
            chosen = value
        at += 1
    return chosen, None


def _is_pinned(runner: str, package: str) -> bool:
    if _LOCAL.fullmatch(package):
        return True  # what is installed here
    if "git+" in package or "github:" in package or "://" in package:
        return bool(re.search(r"[@#][0-9a-f]{7,64}$|\.(whl|tgz|tar\.gz)(#.*)?$", package))
    if runner in ("uvx", "pipx"):
        found = re.search(r"(?:===?|@)\s*([^,;\s\]]+)$", package)
        return bool(found and _EXACT.fullmatch(found[1]))
    _, at, version = package.lstrip("@").partition("@")
    return bool(at and _EXACT.fullmatch(version))
