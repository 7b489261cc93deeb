"""An MCP server made with the previous SDK (mcp 1.x) that works with git, as many do: through the
program, with what its user has configured. To be run with the python of .venv-mcp1.
"""

from __future__ import annotations

import os
import subprocess

from mcp.server.fastmcp import FastMCP

server = FastMCP("mcp1-git", log_level="ERROR")


def git(folder: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", "-C", folder, *args], capture_output=True, text=True, timeout=60, check=False
    )


@server.tool(structured_output=False)
def git_commit(folder: str, message: str) -> str:
    """Commits, and says as whom"""
    done = git(folder, "commit", "--allow-empty", "-m", message)
    if done.returncode:
        return done.stderr
    return git(folder, "log", "-1", "--format=%an <%ae>").stdout.strip()


@server.tool()
def environ() -> dict[str, str]:
    """Its environment, and where it was started"""
    return {**os.environ, "cwd": os.getcwd()}


if __name__ == "__main__":
    server.run("stdio")
