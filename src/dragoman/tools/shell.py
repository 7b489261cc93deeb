"""`shell_exec`: runs a command that the agent was granted, as an argument list, in a sandbox.

No shell reads the command. A pattern is matched word by word, so that no argument can pose as
several, or as another program.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from dragoman.core.call import Result, TaskStarted
from dragoman.core.errors import InvalidInput, TimedOut
from dragoman.core.local_agents import AgentProfile
from dragoman.core.safe_text import escape_controls
from dragoman.core.taint import EXEC
from dragoman.tools.files import WorkspaceFiles
from dragoman.tools.tool_spec import BoundTool, ToolSpec, ToolUse, build_text_result

MAX_COMMAND = 32_000
MAX_ARGUMENTS = 1_000
ANY = "*"

SHELLS = frozenset(
    {
        *("sh", "bash", "dash", "zsh", "ksh", "mksh", "fish", "csh", "tcsh", "ash", "busybox"),
        *("env", "xargs", "sudo", "doas", "su", "nohup", "setsid", "script", "expect"),
    }
)
"""Programs that run other programs from a text or their arguments: a pattern must name them."""

_OPERATORS = {
    ";": "a command list",
    "|": "a pipe",
    "&": "a background command or a list",
    "<": "a redirection",
    ">": "a redirection",
    "(": "a subshell",
    ")": "a subshell",
    "`": "a command substitution",
    "\n": "several commands",
}

SHELL_EXEC = ToolSpec(
    name="shell_exec",
    title="Run a command",
    description="Runs one command in your workspace and returns its output. No shell is involved: "
    "no pipes, redirections, variables, substitutions or several commands at once. You can run the "
    "commands that you were granted. Pass the command as a list of arguments, or as one line.",
    properties={
        "command": {
            "anyOf": [
                {"type": "string", "minLength": 1, "maxLength": MAX_COMMAND},
                {
                    "type": "array",
                    "items": {"type": "string"},
                    "minItems": 1,
                    "maxItems": MAX_ARGUMENTS,
                },
            ],
            "description": 'The program and its arguments: ["git", "diff", "--stat"], or '
            '"git diff --stat".',
        },
        "timeout_seconds": {
            "type": "integer",
            "minimum": 1,
            "description": "After how many seconds the command is ended. Default: 30.",
        },
    },
    required=("command",),
    destructive=True,
    sinks=frozenset({EXEC}),
)


@dataclass(frozen=True, slots=True)
class ShellLimits:
    seconds: float = 30.0
    """The default."""
    most_seconds: float = 55.0
    """What a call may ask for; less than the time of a tool call."""
    output_bytes: int = 100_000
    """Of each stream."""


class ShellOutcome(NamedTuple):
    code: int
    """The exit code; -1 if it did not exit by itself."""
    output: str
    errors: str
    signal: str = ""
    """The name of the signal that ended it."""
    is_cut: bool = False
    """Whether a part of the output is left out."""
    timed_out: bool = False


class ShellRunner(Protocol):
    """Runs a program in a sandbox, in which it sees the workspace and the system."""

    async def run(
        self, agent: AgentProfile, argv: Sequence[str], timeout: float, limits: ShellLimits
    ) -> ShellOutcome:
        """Runs in the agent's workspace. Ends the program and everything that it started after
        `timeout` seconds, and when it is cancelled. Raises `TargetFailed` for a program that cannot
        be started."""


def split_command(command: str | Sequence[str]) -> list[str]:
    """Splits a line as a shell would. Raises `InvalidInput` for what only a shell can do."""
    if isinstance(command, str):
        if reason := find_shell_syntax(command):
            raise InvalidInput(
                f"the command has shell syntax, {reason}, and no shell runs it. Pass one program "
                'with its arguments, such as ["grep", "-r", "a|b", "."]; to combine commands, '
                "call this tool several times"
            )
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise InvalidInput(f"the command cannot be split: {error}".lower()) from None
    else:
        words = list(command)
    if not words or not words[0]:
        raise InvalidInput("the command names no program")
    if len(words) > MAX_ARGUMENTS or sum(map(len, words)) > MAX_COMMAND:
        raise InvalidInput("the command is too long")
    if any("\0" in word for word in words):
        raise InvalidInput("the command has a NUL character")
    try:
        for word in words:
            word.encode()
    except UnicodeEncodeError:
        raise InvalidInput("the command has characters that cannot be encoded") from None
    return words


def find_shell_syntax(line: str) -> str:
    """Names what in a line only a shell understands, outside quotes; empty if there is nothing."""
    quote, place = "", 0
    while place < len(line):
        letter = line[place]
        if letter == "\\" and quote != "'":
            place += 2
            continue
        if quote == "'":
            quote = "" if letter == "'" else quote
        elif letter == "$" and _begins_expansion(line[place + 1 : place + 2]):
            return "a variable or substitution ($)"
        elif letter == "`":
            return f"{_OPERATORS[letter]} (`)"
        elif letter in "'\"":
            quote = "" if quote == letter else (quote or letter)
        elif not quote and letter in _OPERATORS:
            shown = "a line break" if letter == "\n" else letter
            return f"{_OPERATORS[letter]} ({shown})"
        place += 1
    return ""


def _begins_expansion(letter: str) -> bool:
    return letter.isalnum() or (bool(letter) and letter in "_({?#@*!$-'\"")


def is_granted_command(argv: Sequence[str], patterns: Sequence[str]) -> bool:
    """Whether one of the patterns matches, word by word. `*` as the last word of a pattern stands
    for any further arguments; elsewhere a glob stands for exactly one."""
    return any(_matches(argv, _split_pattern(pattern)) for pattern in patterns)


@lru_cache(maxsize=1_000)
def _split_pattern(pattern: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(pattern))
    except ValueError:
        return ()  # an invalid pattern grants nothing


def _matches(argv: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return False
    program = argv[0]
    is_named = pattern[0] == program
    if not is_named and program.rpartition("/")[2] in SHELLS:
        return False
    if pattern == (ANY,):
        return "/" not in program
    *first, last = pattern
    if last == ANY and first:
        if len(argv) < len(first):
            return False
        words, globs = argv[: len(first)], first
    else:
        if len(argv) != len(pattern):
            return False
        words, globs = argv, list(pattern)
    if not is_named and "/" in program and "/" not in globs[0]:
        return False  # a glob for a program on the PATH names no file
    return all(fnmatchcase(word, glob) for word, glob in zip(words, globs, strict=True))


class ShellTools:
    def __init__(
        self, files: WorkspaceFiles, runner: ShellRunner | None, limits: ShellLimits
    ) -> None:
        """Without `runner`, the tool is not offered."""
        self._files = files
        self._runner = runner
        self._limits = limits

    def bind_tools(self) -> Iterable[BoundTool]:
        if self._runner is not None:
            yield BoundTool(SHELL_EXEC, self._execute, self._list_written)

    def _list_written(self, use: ToolUse) -> Iterable[str]:
        return self._files.list_command_keys(use.agent)

    async def _execute(self, use: ToolUse) -> Result:
        assert self._runner is not None
        argv, limits = split_command(use.arguments["command"]), self._limits
        _require_grant(argv, use.agent)
        seconds = float(use.arguments.get("timeout_seconds", limits.seconds))
        if seconds > limits.most_seconds:
            raise InvalidInput(
                f"a command may take {limits.most_seconds:g} s at most, not {seconds:g}"
            )
        await self._files.threads.run(self._files.open(use.agent).require_room)
        self._files.note_command(use)
        if seconds > limits.seconds:
            use.call.updates(TaskStarted())  # it has the time of a task
        outcome = await self._runner.run(use.agent, argv, seconds, limits)
        if outcome.timed_out:
            shown = _render_streams(outcome)
            raise TimedOut(
                f'"{argv[0][:100]}" took longer than {seconds:g} s and was ended'
                + (f"; its output so far:\n{shown}" if shown else "")
            )
        return _render_outcome(outcome)


def _require_grant(argv: Sequence[str], agent: AgentProfile) -> None:
    if is_granted_command(argv, agent.shell):
        return
    shown = escape_controls(shlex.join(argv))[:200]
    granted = "; ".join(agent.shell[:20]) or "none"
    raise InvalidInput(f"the command `{shown}` was not granted to you; granted commands: {granted}")


def _render_streams(outcome: ShellOutcome) -> str:
    output = escape_controls(outcome.output.replace("\r\n", "\n"))
    errors = escape_controls(outcome.errors.replace("\r\n", "\n"))
    return f"{output.rstrip()}\n[stderr]\n{errors}".lstrip("\n") if errors else output


def _render_outcome(outcome: ShellOutcome) -> Result:
    text = _render_streams(outcome)
    if outcome.code:
        how = f"ended by signal {outcome.signal}" if outcome.signal else f"exit code {outcome.code}"
        text = f"{text.rstrip()}\n[{how}]".lstrip("\n")
    structured: dict[str, Any] = {
        "exitCode": outcome.code,
        "stdout": outcome.output,
        "stderr": outcome.errors,
        "complete": not outcome.is_cut,
    }
    return build_text_result(text or "[no output]", structured, failed=outcome.code != 0)
