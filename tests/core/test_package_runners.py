"""Package runners: is one exact version of the package named?"""

from __future__ import annotations

import pytest

from dragoman.core.package_runners import explain_unpinned, find_unpinned_package


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
