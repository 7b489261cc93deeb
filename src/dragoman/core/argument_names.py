"""Names of arguments by which guards tell what a tool does, whatever it declares."""

from __future__ import annotations

URL_ARGUMENTS = frozenset({"url", "urls"})
COMMAND_ARGUMENTS = frozenset(
    {"command", "cmd", "commands", "shell_command", "script", "python_code"}
)
