"""Package runners: is one exact version of the package named?"""

from __future__ import annotations

import pytest
from tests.cpu_time import measure_cpu

from dragoman.core.package_runners import (
    explain_broken_cache,
    explain_unpinned,
    find_installer,
    find_unpinned_package,
)


@pytest.mark.parametrize(
    ("line", "package"),
    [
        ("npx -y server-memory", "server-memory"),
        ("npx -y @modelcontextprotocol/server-memory /data", "@modelcontextprotocol/server-memory"),
        ("/usr/bin/npx --yes @scope/one@latest", "@scope/one@latest"),
        ("npx one@^1.2.3", "one@^1.2.3"),
        ("npx one@1", "one@1"),
        ("npx -p one two --flag", "one"),
        ("npx --package=one@2.0.0 two", None),
        ("npx -y @scope/one@1.2.3 x@latest", None),
        ("npx ./build", None),
        ("npx -y github:owner/repo", "github:owner/repo"),
        ("npx -y github:owner/repo#0123456789abcdef", None),
        ("npm exec -- one", "one"),
        ("npm run start", None),
        ("pnpm dlx one", "one"),
        ("bunx one@1.0.0-rc.1", None),
        ("uvx mcp-server-git", "mcp-server-git"),
        ("uvx mcp-server-git@latest", "mcp-server-git@latest"),
        ("uvx mcp-server-git@2026.1.14", None),
        ("uvx mcp-server-git==2026.1.14 --repository /x", None),
        ("uvx --from mcp-server-git>=2 git", "mcp-server-git>=2"),
        ("uvx --from mcp-server-git==2.0 git", None),
        ("uvx --python 3.12 one", "one"),
        ("uvx --from git+https://example.org/one one", "git+https://example.org/one"),
        ("uvx --from git+https://example.org/one@0123abcd one", None),
        ("uv tool run one", "one"),
        ("uv run server.py", None),
        ("pipx run one", "one"),
        ("pipx run --spec one==1.0 one", None),
        ("pipx install one", None),
        ("docker run -i one", None),
        ("npx", None),
        ("npx -p", None),
    ],
)
def test_unpinned_package_is_found(line: str, package: str | None) -> None:
    command, *args = line.split()
    assert find_unpinned_package(command, args) == package


def test_fix_names_the_package_without_its_range() -> None:
    assert explain_unpinned("npx", "@scope/one@latest")[1].endswith("@scope/one@VERSION")
    assert explain_unpinned("/bin/uvx", "one>=2")[1].endswith("one==VERSION")


@pytest.mark.parametrize(
    ("line", "installer"),
    [
        (["/usr/bin/npx", "-y", "one"], "npm"),
        (["npm", "exec", "one"], "npm"),
        (["npm", "run", "start"], ""),
        (["pnpm", "dlx", "one"], "pnpm"),
        (["yarn", "dlx", "one"], "yarn"),
        (["bunx", "one"], "bun"),
        (["uvx", "one"], "uv"),
        (["uv", "tool", "run", "one"], "uv"),
        (["uv", "run", "server.py"], "uv"),
        (["uv", "pip", "list"], ""),
        (["pipx", "run", "one"], "pipx"),
        (["docker", "run", "-i", "one"], "docker"),
        (["docker", "exec", "-i", "one"], ""),
        (["sh", "-c", "exec npx -y one"], "npm"),
        (["bash", "-c", "uvx 'one"], ""),
        (["sh", "start.sh"], ""),
        (["python3", "npx"], ""),
    ],
)
def test_installer_of_a_package_runner_is_found(line: list[str], installer: str) -> None:
    assert find_installer(line[0], line[1:]) == installer


@pytest.mark.parametrize(
    ("stderr", "folder"),
    [
        ("Error [ERR_UNSUPPORTED_DIR_IMPORT]: Directory import '/home/u/.npm/_npx/0cf3/node_modules"
         "/zod/v4' is not supported resolving ES modules imported from /home/u/.npm/_npx/0cf3/x.js",
         "/home/u/.npm/_npx/0cf3"),
        ("Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'zod/v4' imported from "
         "/home/u/.npm/_npx/0cf3/node_modules/one/index.js", "/home/u/.npm/_npx/0cf3"),
        ("Error: Cannot find module '/srv/a cache/_npx/99/node_modules/one/index.js'",
         "/srv/a cache/_npx/99"),
        ("Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'zod' imported from "
         "file:///srv/_npx/99/node_modules/one/index.js", "/srv/_npx/99"),
        ("Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'zod' imported from /srv/app.js", ""),
        ("Error: no key was given\n    at /home/u/.npm/_npx/0cf3/node_modules/one/index.js", ""),
    ],
)  # fmt: skip
def test_incomplete_npx_cache_is_recognised(stderr: str, folder: str) -> None:
    found = explain_broken_cache(f"node:internal:1\n\n{stderr}\n\nNode.js v20.20.2\n")
    assert bool(found) == bool(folder)
    assert folder in found
    assert f'delete the folder "{folder}"' in found or not folder


@pytest.mark.parametrize("piece", ["/a", "Directory import ", "Cannot find module /", "x/_npx/"])
def test_stderr_of_any_length_is_searched_in_linear_time(piece: str) -> None:
    def search(pieces: int) -> float:
        text = f"Directory import {piece * pieces}"
        return measure_cpu(lambda: explain_broken_cache(text))

    assert search(8_000) < 40 * search(1_000) + 0.05
