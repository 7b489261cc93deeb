"""How many tools known MCP clients take. Pure."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import lru_cache

TOOL_LIMITS = {
    "visual?studio?code*": 128, "vscode*": 128, "github*copilot*": 128, "copilot*": 128,
    "windsurf*": 100,
}  # fmt: skip
"""By globs of the names in `clientInfo`: above that they refuse every request of their user, or
leave tools out. The page on views has the sources."""


@lru_cache(maxsize=256)  # every list asks for it
def find_known_limit(client: str) -> int:
    """Returns how many tools the client of that name takes; 0: any number that is known of."""
    name = client.lower()
    return next((most for glob, most in TOOL_LIMITS.items() if fnmatchcase(name, glob)), 0)
