"""Commands that download a package and run it: does the command name one exact version of it?

Without a version, `npx` and `uvx` run the newest release at each start, so everybody who can
publish the package can run code here.
"""

from __future__ import annotations

import os
import re
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
